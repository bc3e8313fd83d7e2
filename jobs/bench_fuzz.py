"""Random queries of NLQL, right and broken, asked of an engine over a few documents: each must end in rows or in an error of NLQL's
family, with its place, and within a second. What does not is reported with its text and how it ended.
"""

import hashlib
import time
import traceback
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jobs.progress import Progress
from jobs.random_queries import PATTERNS, TEXTS, RandomQueries

if TYPE_CHECKING:
    from serve.client.corpus import CorpusEngine

DIM = 16
SLOW_S = 1.0
LISTED = 20  # of what went wrong, in the figures
QUERIES_A_SEED = 1_000  # so that one that fails is found again without the others
WARMING = (
    "SELECT SENTENCE WHERE status != code ORDER BY year DESC LIMIT 3 COUNT BY year",
    'SELECT DOCUMENT LET rel = SIMILARITY(content, "tea") WHERE rel > 0 AND content MATCH "(a|aa)+$" AND BM25(content, "tea") > 0',
    'SELECT SPAN(SENTENCE) WHERE SIMILARITY(vec.title, "tea") > 0 AND GEO_DISTANCE(place, 1, 2) > 3 ORDER BY EVIDENCE(content, "tea")',
    'SELECT CHUNK WHERE content MATCH "(?=t)(e|a)\\1"',
)
SENTENCES = (
    "Tea is a drink.", "Green tea grows in the hills!",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", "日本のお茶。", "It's published?", "a\tb 42",
)  # fmt: skip


class Letters:
    """An embedder of letters: no model, and the same vectors always."""

    model_id, dim = "letters", DIM

    def embed(self, texts: Sequence[str]) -> Any:
        import numpy as np

        vectors = np.zeros((len(texts), DIM), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            vector[0] = 0.01
            for word in text.lower().split():
                vector[hashlib.blake2b(word.encode(), digest_size=1).digest()[0] % DIM] += 1.0
        return vectors


def bench_fuzz(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Of --count queries: how they ended, the slowest, the slow ones, exceptions of other kinds, errors without a place."""
    ends: Counter[str] = Counter()
    slowest: tuple[float, str] = (0.0, "")
    wrong: list[dict[str, Any]] = []
    slow: list[dict[str, Any]] = []
    begun, cpu = time.perf_counter(), time.process_time()
    with filled() as engine:
        for i in range(options.count):
            if i % QUERIES_A_SEED == 0:
                seed = options.seed + i // QUERIES_A_SEED
                queries = RandomQueries(seed)
                progress("queries", i, options.count, "queries")
            text = queries.either()
            shown = text.encode("utf-8", "backslashreplace").decode()  # half characters cannot be printed
            asked, asked_cpu = time.perf_counter(), time.process_time()
            end, problem = outcome(engine, text)
            seconds, cpu_s = time.perf_counter() - asked, time.process_time() - asked_cpu
            ends[end] += 1
            slowest = max(slowest, (seconds, shown))
            if problem is not None and len(wrong) < LISTED:
                wrong.append({"seed": seed, "query": shown, **problem})
            if seconds > SLOW_S:
                slow.append({"seconds": round(seconds, 2), "cpu_s": round(cpu_s, 3), "seed": seed, "query": shown})
        progress("queries", options.count, options.count, "queries")
    return {
        "queries": options.count,
        "ends": dict(ends.most_common()),
        "wrong": sum(n for end, n in ends.items() if end.startswith("wrong")),
        "examples of wrong": wrong,
        f"over {SLOW_S:g} s": len(slow),
        f"over {SLOW_S:g} s of CPU": sum(query["cpu_s"] > SLOW_S for query in slow),  # the others waited for a busy machine
        "examples of slow": slow[:LISTED],
        "slowest": {"seconds": round(slowest[0], 3), "query": slowest[1]},
        "seconds": round(time.perf_counter() - begun, 1),
        "cpu_s": round(time.process_time() - cpu, 1),
    }


def outcome(engine: "CorpusEngine", text: str) -> tuple[str, dict[str, Any] | None]:
    """How a query ended, in a word or two, and what was wrong with that."""
    from serve.problems import InvalidRequest
    from shards.nlql.errors import NLQLError

    try:
        rows = engine.query(text).rows
    except NLQLError as error:
        if error.category == "syntax" and error.line is None:
            return "wrong: a syntax error without a place", {"error": str(error)}
        return f"{error.category} error", None
    except InvalidRequest:  # half characters: refused before anybody reads them
        return "request error", None
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"wrong: {type(error).__name__}", {"error": f"{error!r:.300}", "raised in": f"{last.filename}:{last.lineno}"}
    return "rows" if rows else "no rows", None


def filled(shards: int = 1) -> "CorpusEngine":
    """An engine over a few documents whose metadata has fields of all kinds, and the words that queries ask for."""
    from serve.client.corpus import CorpusEngine

    engine = CorpusEngine(Letters(), granularity="sentence", layers=["bm25"], named_embedders={"title": Letters()}, shards=shards)
    for i in range(24):
        text = " ".join(SENTENCES[(i + j) % len(SENTENCES)] for j in range(1 + i % 4)) + f" {TEXTS[i % len(TEXTS)]} word{i}."
        engine.add_multivector(f"d{i}", content=text, named={"title": f"title {i}"}, metadata=_metadata(i))
    engine.settle()
    for query in WARMING:  # what a first query imports and compiles is no query's time
        engine.query(query)
    return engine


def _metadata(i: int) -> dict[str, Any]:
    of_all: dict[str, Any] = {
        "year": (2020 + i, "2024", 2024.5, None, "several")[i % 5],
        "score": i / 7,
        "status": ("published", "draft", "", "Tea")[i % 4],
        "tags": (["tea", "a"], [], ["b", 1, None], "tea")[i % 4],
        "author": {"team": "a" * i, "name": {"x": i % 2 == 0}},
        "code": ("007", 7, "12A", True)[i % 4],
        "created_at": ("2024-01-01", "2024-05-01T10:00:00+00:00", "20240101", "2024-1-5", "soon", None)[i % 6],
        "true_x": i % 3,
        "LIMIT": 10,
        "place": ({"lat": 48.1, "lon": 11.6}, [52.5, 13.4], "35.7,139.7", "nowhere")[i % 4],
        "pattern": PATTERNS[i % len(PATTERNS)],
    }
    return {name: value for j, (name, value) in enumerate(of_all.items()) if (i + j) % 6}
