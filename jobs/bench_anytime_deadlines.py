"""How often an answer comes later than its request allowed: thousands of searches of mixed kinds, a few clients at a time, over HTTP.

The server is `sondage serve` in a process of its own; the clients are threads of this one that send bytes made beforehand and wait
(`jobs/bench_anytime_wire.py`). A request in ten asks for nothing (`/healthz`): the time that it takes beyond its median is what the
machine and the clients add to every other request. Budgets are drawn log-uniformly. An answer is late where it takes more than its
budget and a tenth of it, or 15 ms where that is more, from the first byte sent to the last one read.
"""

import json
import math
import random
import re
import tempfile
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.bench_anytime_server import served
from jobs.bench_anytime_wire import Wire, made
from jobs.bench_corpus import queries_of_stdlib
from jobs.bench_tree import CORPUS, bench_folder, made_tree
from jobs.chaos_report import percentile
from jobs.progress import Progress
from shards.errors import BadSpec

LAYERS = "names,text,trigram,fuzzy,structure,bm25,static"
SHORTEST_MS, LONGEST_MS = 20, 1_000
LATE_SHARE, LATE_MS = 0.1, 15.0  # of the budget; at least
N_CLIENTS = 4  # at a time
WARMING = 300  # requests that do not count: files are mapped, code is compiled, the planner has seen each kind
IDLE_EVERY = 10  # requests, of which one asks for nothing
WORST = 12  # that are shown one by one
ALLOWED = 10  # late ones of 10,000
MANY_HITS = 1_000
NDJSON = "application/x-ndjson"


@dataclass(frozen=True, slots=True)
class Question:
    """A request of one kind with its budget, ready to be sent. what: for people."""

    kind: str
    budget_ms: int
    sent: bytes
    what: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of a request. ms: how long it took; complete: whether all was looked at; steps: ms by the server's own clock."""

    question: Question
    status: int
    ms: float
    complete: bool
    steps: dict[str, float] = field(default_factory=dict)
    said: str = ""

    @property
    def late_ms(self) -> float:
        """Beyond its budget; below 0 where it came earlier."""
        return self.ms - self.question.budget_ms


def allowance_ms(budget_ms: float) -> float:
    """What an answer may take beyond its budget."""
    return max(LATE_SHARE * budget_ms, LATE_MS)


def is_late(seen: Seen) -> bool:
    """Whether an answer came later than allowed; what was refused or broke counts as late."""
    return seen.status != 200 or seen.late_ms > allowance_ms(seen.question.budget_ms)


# --- what is asked --------------------------------------------------------------------------------------------------------------


class Kinds:
    """Requests by kind, drawn by a seed. asked: sentences, and names, as `queries_of_stdlib` finds them."""

    def __init__(self, seed: int, asked: Sequence[str]):
        self.sentences = [text for text in asked if " " in text]
        self.identifiers = [text for text in asked if " " not in text]
        self.words = sorted({word for text in self.sentences for word in re.findall(r"[a-z]{4,}", text.lower())})
        self.random = random.Random(seed)
        self.makers = [name.removeprefix("make_") for name in dir(self) if name.startswith("make_")]

    def draw(self, url: str, idle: bool) -> Question:
        """One request of any kind, or one that asks for nothing."""
        budget_ms = round(math.exp(self.random.uniform(math.log(SHORTEST_MS), math.log(LONGEST_MS))))
        if idle:
            return Question("nothing", budget_ms, made(url, "GET", "/healthz"), "")
        kind = self.random.choice(self.makers)
        asked: dict[str, Any] = getattr(self, f"make_{kind}")()
        accept = NDJSON if asked.pop("stream", False) else ""
        path = "/v1/query" if "text" in asked else "/v1/search"
        body = json.dumps({"corpus": CORPUS, "budget_ms": budget_ms, **asked}).encode()
        return Question(kind.replace("_", " "), budget_ms, made(url, "POST", path, body, accept), json.dumps(asked)[:160])

    def some_words(self, least: int, most: int) -> str:
        return " ".join(self.random.sample(self.words, self.random.randint(least, most)))

    def misspelt(self) -> str:
        word = self.random.choice([word for word in self.words if len(word) >= 7])
        at = self.random.randrange(1, len(word) - 2)
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]

    def form(self, layer: str, **form: Any) -> dict[str, Any]:
        return {"forms": {layer: form}, "layers": [layer]}

    def make_words(self) -> dict[str, Any]:
        return {"query": self.some_words(1, 3)}

    def make_question(self) -> dict[str, Any]:
        return {"query": self.random.choice(self.sentences), "rerank": False}

    def make_long_question(self) -> dict[str, Any]:
        return {"query": " ".join(self.random.sample(self.sentences, self.random.randint(5, 40)))[:8_000]}

    def make_identifier(self) -> dict[str, Any]:
        return {"query": self.random.choice(self.identifiers)}

    def make_regex_of_much(self) -> dict[str, Any]:
        patterns = [r"\w", r"[a-z]+e\b", r"self\.\w+", r"(?i)return|import|def", r"^\s*#"]
        return self.form("text", pattern=self.random.choice(patterns), regex=True)

    def make_regex_of_nothing(self) -> dict[str, Any]:
        letters = "".join(self.random.choices("qxzjk", k=6))
        return self.form("text", pattern=self.random.choice([rf"\b{letters}\d+", rf"[{letters}]{{9}}\s+[{letters}]{{9}}"]), regex=True)

    def make_regex_that_is_slow(self) -> dict[str, Any]:
        patterns = [r"(?s)TimeoutError.{1,80}raise", r"(\w+\s+){6,12}error", r"(?i)[aeiou]{3}.*[xyz]{2}.*\d$", r"except \w+:\n\s+pass\n"]
        return self.form("text", pattern=self.random.choice(patterns), regex=True)

    def make_literal_by_trigram(self) -> dict[str, Any]:
        return self.form("trigram", pattern=self.random.choice(self.words))

    def make_fuzzy(self) -> dict[str, Any]:
        return self.form("fuzzy", text=self.misspelt(), edits=self.random.randint(1, 2))

    def make_names(self) -> dict[str, Any]:
        globs = ["**/*.py", f"**/*{self.random.choice(self.words)[:3]}*", "**/test_*.py", "*/**/__init__.py"]
        return self.form("names", glob=self.random.choice(globs))

    def make_structure(self) -> dict[str, Any]:
        patterns = ["isinstance($A, $B)", "for $A in range($B): $$$", "$A.append($B)", "raise $A from None", "not $A in $B"]
        return self.form("structure", pattern=self.random.choice(patterns), language="python")

    def make_nlql(self) -> dict[str, Any]:
        text = f'SELECT CHUNK LET rel = BM25(content, "{self.some_words(2, 4)}") WHERE rel > 0 ORDER BY rel DESC LIMIT 20'
        return {"text": text + self.random.choice(["", f" WITHIN {self.random.randint(5, 200)} MS"])}

    def make_nlql_of_rows(self) -> dict[str, Any]:
        where = self.random.choice(['CONTAINS(content, "error")', "LENGTH(content) > 300", 'content LIKE "%raise%"'])
        return {"text": f"SELECT SENTENCE WHERE {where} ORDER BY LENGTH(content) DESC LIMIT 50"}

    def make_combined(self) -> dict[str, Any]:
        asked = [{"query": self.some_words(1, 3), "layers": ["bm25"]}, {"query": self.random.choice(self.sentences)}]
        return {"combine": {self.random.choice(["union", "intersect"]): [{"search": each} for each in asked]}}

    def make_many_hits(self) -> dict[str, Any]:
        return {"query": self.some_words(1, 2), "k": MANY_HITS, "keep_all": True}

    def make_joint(self) -> dict[str, Any]:
        return {"query": self.random.choice(self.sentences), "coupling": "joint"}

    def make_filtered(self) -> dict[str, Any]:
        scopes: list[dict[str, Any]] = [{"paths": ["**/*.py", "!**/test*/**"]}, {"paths": ["stdlib/a*/**"]}]
        scopes.append({"where": {"size_bytes": {"<": 20_000}}})
        return {"query": self.some_words(2, 3), "explain": True} | self.random.choice(scopes)

    def make_fast(self) -> dict[str, Any]:
        return {"query": self.random.choice(self.sentences), "goal": "fast"}

    def make_wide(self) -> dict[str, Any]:
        return {"query": self.random.choice(self.sentences), "goal": "wide", "k": 50}

    def make_stream(self) -> dict[str, Any]:
        return {"query": self.random.choice(self.sentences), "stream": True}


# --- asking ---------------------------------------------------------------------------------------------------------------------


def asked_of(url: str, questions: Sequence[Question], n_clients: int, progress: Progress, step: str) -> list[Seen]:
    """All questions, so many clients at a time, each on its own connection, one request after the other."""
    taken = iter(questions)
    found: list[Seen] = []
    lock = threading.Lock()

    def client() -> None:
        wire = Wire(url)
        while True:
            with lock:
                question = next(taken, None)
            if question is None:
                break
            answered = wire.send(question.sent)
            said = "" if answered.status == 200 else answered.body[:300].decode("utf-8", "replace")
            steps = {n.decode(): float(ms) for n, ms in re.findall(rb"([\w.-]+);dur=([\d.]+)", answered.head)}
            complete = b'"complete":true' in answered.body
            found.append(Seen(question, answered.status, 1_000 * answered.seconds, complete, steps, said))
        wire.close()

    threads = [threading.Thread(target=client) for _ in range(n_clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.25)
        progress(step, len(found), len(questions), "requests")
    progress(step, len(questions), len(questions), "requests")
    return found


# --- what it comes to -----------------------------------------------------------------------------------------------------------


def lateness(seen: Sequence[Seen]) -> dict[str, Any]:
    """Of answers of one kind, or all: how many, whole ones, those later than allowed and than twice their budget, ms beyond the budget."""
    late = [one.late_ms for one in seen if one.status == 200]
    doubled = [one for one in seen if one.ms > max(2 * one.question.budget_ms, one.question.budget_ms + LATE_MS)]
    marks = {f"p{mark}": round(percentile(late, share) or 0.0, 1) for mark, share in (("50", 0.5), ("99", 0.99), ("99.9", 0.999))}
    found: dict[str, Any] = {
        "n": len(seen),
        "complete, %": round(100 * sum(one.complete for one in seen) / max(len(seen), 1), 1),
        "late": sum(map(is_late, seen)),
        "above twice": len(doubled),
        "ms beyond the budget": marks | {"most": round(max(late, default=0.0), 1)},
    }
    if others := Counter(one.status for one in seen if one.status != 200):
        found["other statuses"] = dict(others)
        found["said"] = next(one.said for one in seen if one.status != 200)
    return found


def without_work(seen: Sequence[Seen]) -> dict[str, float]:
    """How much longer than the median requests took that ask for nothing, ms: what is not the search's doing."""
    took = [one.ms for one in seen]
    middle = percentile(took, 0.5) or 0.0
    beyond = [ms - middle for ms in took]
    marks = {f"p{mark} beyond it": percentile(beyond, share) or 0.0 for mark, share in (("99", 0.99), ("99.9", 0.999))}
    figures = {"p50": middle, **marks, "most beyond it": max(beyond, default=0.0)}
    return {name: round(ms, 2) for name, ms in figures.items()} | {"n": len(took), "later than 15 ms": sum(ms > LATE_MS for ms in beyond)}


def told(seen: Seen) -> dict[str, Any]:
    """One late answer, with where its time went."""
    steps = {name: round(ms, 1) for name, ms in sorted(seen.steps.items(), key=lambda item: -item[1])[:8]}
    figures = {"kind": seen.question.kind, "budget_ms": seen.question.budget_ms, "ms": round(seen.ms, 1), "status": seen.status}
    return figures | {"what": seen.question.what, "steps_ms": steps} | ({"said": seen.said} if seen.said else {})


def figures(seen: Sequence[Seen]) -> dict[str, Any]:
    """All of it: together, by kind, what asks for nothing, the worst."""
    idle = [one for one in seen if one.question.kind == "nothing"]
    searches = [one for one in seen if one.question.kind != "nothing"]
    kinds = sorted({one.question.kind for one in searches})
    worst = sorted(searches, key=lambda one: one.late_ms - allowance_ms(one.question.budget_ms), reverse=True)[:WORST]
    late = sum(map(is_late, searches))
    bands = {"20-49": (0, 50), "50-149": (50, 150), "150-399": (150, 400), "400-1000": (400, 2_000)}
    together = lateness(searches)
    allowed = round(ALLOWED * len(searches) / 10_000, 2)
    return {
        "searches": together,
        "targets": {
            f"late, at most {allowed}": "met" if late <= allowed else f"missed: {late}",
            "above twice the budget, none": "met" if not together["above twice"] else f"missed: {together['above twice']}",
        },
        "requests without work, ms": without_work(idle),
        "by budget": {
            name: lateness([one for one in searches if low <= one.question.budget_ms < high]) for name, (low, high) in bands.items()
        },
        "by kind": {kind: lateness([one for one in searches if one.question.kind == kind]) for kind in kinds},
        "worst": [told(one) for one in worst],
    }


def index_of_tree(megabytes: int, progress: Progress) -> tuple[str, str]:
    """A store with the tree, made once and kept, and what it is made of."""
    from jobs import index
    from jobs.settings import Settings

    tree = made_tree(megabytes, progress)
    store = str(bench_folder() / f"anytime-{tree.root.name}")
    line = ["--corpus", CORPUS, "--source", str(tree.root), "--store", store, "--layers", LAYERS, "--shards", "4", "--local"]
    outcome = index.run(index.parser().parse_args(line), Settings.load(store=store), progress)
    if outcome.failed:
        path, reason = min(outcome.failed.items())
        raise BadSpec(f"{path} of the bench's tree cannot be indexed: {reason}")
    return store, tree.how


def bench_deadlines(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Late answers, together and by kind of query, beside requests without work."""
    store, how = index_of_tree(options.megabytes, progress)
    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch, served(store, Path(scratch) / "log") as server:
        url = server.url
        drawn = Kinds(options.seed, queries_of_stdlib(300, 100))
        wanted = WARMING + options.requests + options.requests // (IDLE_EVERY - 1)
        questions = [drawn.draw(url, idle=not i % IDLE_EVERY) for i in range(wanted)]
        warm = asked_of(url, questions[:WARMING], N_CLIENTS, progress, "warming up")
        begun = time.perf_counter()
        seen = asked_of(url, questions[WARMING:], N_CLIENTS, progress, "deadlines")
        seconds = time.perf_counter() - begun
        broken = server.said() if any(one.status in (0, 500) for one in (*warm, *seen)) else ""
    refused = [one for one in warm if one.status not in (200, 429, 503)]
    if refused:
        one = refused[0]
        raise BadSpec(f"A search ({one.question.kind}) was refused with {one.status}: {one.said} It asked {one.question.what}.\n{broken}")
    about = {"corpus": how, "layers": LAYERS, "clients": N_CLIENTS, "budgets_ms": [SHORTEST_MS, LONGEST_MS], "seed": options.seed}
    return about | {"seconds": round(seconds, 1), **figures(seen)} | ({"log": broken} if broken else {})
