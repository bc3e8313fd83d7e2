"""A host light enough to be killed often: the interface of cluster/host.py over a folder of text files, no index, no models."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from cluster.host import DetailsRequest, DocumentText, HostRequest, Opened
from shards.errors import NotFound
from shards.identity import HASH_BYTES, bucket_of, content_hash, shard_ranges
from shards.plan import Plan
from shards.types import Candidates, Detail, LayerStatus, Moments

N_SHARDS = 8
NEVER = float("-inf")


def shard_of(document: bytes) -> int:
    return next(i for i, (low, high) in enumerate(shard_ranges(N_SHARDS)) if low <= bucket_of(document) < high)


class LightHost:
    """Scores a document by how often a word occurs in it. Payload of the query: {"word", "sleep_s", "raise", "only"}; only: the process
    that sleeps and raises, none: all.
    """

    def __init__(self, store_url: str, **_settings: Any):
        texts = [path.read_bytes() for path in sorted(Path(store_url).iterdir())]
        self.texts = {content_hash(text): text for text in texts}
        self.started, self.calls, self.opened = time.time(), 0, set()
        self.rows: set[tuple[str, int, int]] = set()
        self.cancelled: list[int] = []

    def search(self, requests: list[HostRequest]) -> list[Candidates]:
        self.calls += 1
        return [self._search(request) for request in requests]

    def _search(self, request: HostRequest) -> Candidates:
        asked = request.plan.queries[0].payload
        meant = asked.get("only", os.getpid()) == os.getpid()
        time.sleep(asked.get("sleep_s", 0) if meant else 0)
        if "raise" in asked and meant:
            raise ArithmeticError(asked["raise"])
        mine = {h: text for h, text in self.texts.items() if shard_of(h) in request.shards}
        counts = {h: text.split().count(asked["word"].encode()) for h, text in mine.items()}
        found = sorted(h for h, n in counts.items() if n)
        per_shard = {shard: sum(shard_of(h) == shard for h in mine) for shard in request.shards}
        return Candidates(
            hashes=np.frombuffer(b"".join(found), np.uint8).reshape(-1, HASH_BYTES),
            generated=np.ones((len(found), 1), bool),
            scores=np.array([[counts[h]] for h in found], np.float64).reshape(-1, 1),
            starts=np.zeros((len(found), 1), np.int64),
            ends=np.zeros((len(found), 1), np.int64),
            moments=(Moments.of(np.array(list(counts.values()))),),
            n_matched=np.array([len(found)]),
            status=tuple(LayerStatus("count", shard, "ready", n, n) for shard, n in per_shard.items()),
        )

    def details(self, requests: list[DetailsRequest]) -> list[dict[bytes, Detail]]:
        return [
            {h: Detail(h, (), len(self.texts[h]), "text", {}) for h in request.spans if h in self.texts} for request in requests
        ]

    def document(self, corpus: str, generation: int, document: bytes, start: int, end: int | None) -> DocumentText:
        if document not in self.texts:
            raise NotFound(f"No document {document.hex()} in generation {generation} of corpus {corpus!r}.")
        text = self.texts[document]
        return DocumentText(start, end or len(text), len(text), text[start:end].decode(), None)

    def warm(self, corpus: str, generation: int, shards: tuple[int, ...], plan: Plan | None = None) -> Opened:
        self.opened |= set(shards)
        self.rows |= {(corpus, generation, shard) for shard in shards}
        return Opened({shard: sum(shard_of(h) == shard for h in self.texts) for shard in shards})

    def cancel(self, keys: list[int]) -> None:
        self.cancelled += list(keys)

    def status(self) -> dict[str, Any]:
        rows = [{"corpus": c, "generation": g, "shard": s, "of": N_SHARDS} for c, g, s in sorted(self.rows)]
        told = {"calls": self.calls, "opened": sorted(self.opened), "shards": rows, "cancelled": self.cancelled}
        return {"pid": os.getpid(), "started": self.started} | told
