"""One engine of `jobs/bench.py nlql` in its process: fills itself with the corpus of `corpus`, and answers queries from its stdin."""

import json
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

DIM, SENTENCES, TOPICS = 384, 5, 8  # numbers of a vector; sentences of a document, each a unit; of the vectors' directions
QUERIES = {"AI agents call tools": 0, "slow shards answer late": 1}  # and the topic that each is about
STATUSES, BATCH = ("published", "published", "published", "draft"), 500


def topics() -> np.ndarray:
    """(TOPICS, DIM) unit vectors, nearly at right angles."""
    found = np.random.default_rng(7).standard_normal((TOPICS, DIM)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def corpus(n_units: int) -> Iterator[tuple[list[dict[str, Any]], np.ndarray]]:
    """Documents in batches, with the vectors of their sentences: (n, DIM) float32 of unit length.

    A sentence's vector leans towards the topic of its document, so that a question about one is like an eighth of the sentences.
    """
    directions, rng = topics(), np.random.default_rng(11)
    words = [f"word{i}" for i in range(5_000)]
    for first in range(0, n_units // SENTENCES, BATCH):
        numbers = range(first, min(first + BATCH, n_units // SENTENCES))
        picks = rng.integers(len(words), size=(len(numbers), SENTENCES, 8))
        chosen = rng.integers(TOPICS, size=len(numbers))
        vectors = rng.standard_normal((len(numbers) * SENTENCES, DIM)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors += 0.35 * np.repeat(directions[chosen], SENTENCES, axis=0)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        documents = []
        for i, number in enumerate(numbers):
            text = " ".join(" ".join(words[w] for w in picks[i, s]) + f" in {number} part {s}." for s in range(SENTENCES))
            day = number * 2_654_435_761 % 3_650
            metadata = {
                "status": STATUSES[number % 4],
                "year": 2015 + day // 365,
                "score": round(number * 40_503 % 1_000 / 100, 2),
                "created_at": str(np.datetime64("2015-01-01") + day),
                "topic": f"topic{chosen[i]}",
                "tags": ["a", f"t{number % 50}"],
            }
            documents.append({"id": f"doc{number}", "text": text, "metadata": metadata})
        yield documents, vectors


class Given:
    """An embedder that knows the vectors beforehand: those of the next sentences in order, and those of the queries."""

    model_id, dim = "given", DIM

    def __init__(self) -> None:
        self._questions = dict(zip(QUERIES, topics()[list(QUERIES.values())], strict=True))
        self.coming = np.zeros((0, DIM), np.float32)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        if texts[0] in self._questions:
            return np.stack([self._questions[text] for text in texts])
        found, self.coming = self.coming[: len(texts)], self.coming[len(texts) :]
        return found


class Sondage:
    """Ours: vectors come with their documents, or, to compare, from the embedder."""

    def __init__(self, carried: bool):
        import sondage
        from sondage import Document

        self._embedder, self._carried, self._document = Given(), carried, Document
        self.engine = sondage.Engine(self._embedder, granularity="sentence")

    def documents(self, given: Sequence[dict[str, Any]], vectors: np.ndarray) -> list[Any]:
        if not self._carried:
            self._embedder.coming = np.concatenate([self._embedder.coming, vectors])
            return [self._document(**fields) for fields in given]
        of = vectors.reshape(len(given), SENTENCES, DIM)
        return [self._document(**fields, vectors=own) for fields, own in zip(given, of, strict=True)]

    def end(self) -> None:
        self.engine.flush()

    def row(self, row: Any) -> list[Any]:
        return [row.id, round(row.scores.get("rel", 0.0), 5)]


class Peer:
    """python-nlql."""

    def __init__(self) -> None:
        from nlql import Engine
        from nlql.model import Document

        self._embedder, self._document = Given(), Document
        self.engine = Engine(self._embedder, granularity="sentence")

    def documents(self, given: Sequence[dict[str, Any]], vectors: np.ndarray) -> list[Any]:
        self._embedder.coming = np.concatenate([self._embedder.coming, vectors])
        return [self._document.from_text(fields["text"], id=fields["id"], metadata=fields["metadata"]) for fields in given]

    def end(self) -> None:
        pass

    def row(self, row: Any) -> list[Any]:
        return [row.id, round(row.scores.get("rel", 0.0), 5)]


def ingest(side: Any, n_units: int) -> dict[str, Any]:
    """Seconds of adding alone: making the documents is nobody's."""
    spent, cpu = 0.0, 0.0
    for given, vectors in corpus(n_units):
        documents = side.documents(given, vectors)
        del given
        begun, cpu_begun = time.perf_counter(), time.process_time()
        side.engine.add_documents(documents)
        spent, cpu = spent + time.perf_counter() - begun, cpu + time.process_time() - cpu_begun
    begun, cpu_begun = time.perf_counter(), time.process_time()
    side.end()
    return {"s": spent + time.perf_counter() - begun, "cpu_s": cpu + time.process_time() - cpu_begun}


def query(side: Any, text: str, rounds: int) -> dict[str, Any]:
    """Milliseconds of each round, and of processors, and the rows of the last: all of them were looked at."""
    times, cpu = [], []
    for _ in range(rounds):
        begun, cpu_begun = time.perf_counter(), time.process_time()
        rows = side.engine.search(text)
        n = sum(1 for row in rows if row.scores is not None)
        times.append(1e3 * (time.perf_counter() - begun))
        cpu.append(1e3 * (time.process_time() - cpu_begun))
    return {"ms": times, "cpu_ms": cpu, "n": n, "rows": [side.row(row) for row in rows[:1_000]]}


def serve(name: str, n_units: int) -> None:
    """Answers requests, a JSON object a line, until stdin ends."""
    side = Peer() if name == "peer" else Sondage(carried=name == "sondage")
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        asked = json.loads(line)
        match asked["do"]:
            case "ingest":
                answer = ingest(side, n_units)
            case "query":
                answer = query(side, asked["text"], asked["rounds"])
            case _:
                answer = {}
        answer["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(answer), file=out, flush=True)
    if name != "peer":
        side.engine.close()
