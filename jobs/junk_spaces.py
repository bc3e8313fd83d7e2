"""Spaces that say nothing true, as layers of the engine's contract: what fusion must survive, registered by the evaluator alone.

Scores are drawn from hashes of the question and the document, so they are the same on any placement and in any process. A text that
stands in for a document (`shards.cloze`) bears its hash and so has its scores. The kinds are those of EVIDENCE.md section 4.
"""

import json
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from shards.documents import Documents, Entries
from shards.identity import prefixes
from shards.layers import REGISTRY, contract
from shards.layers.contract import Encodings, Layer, Progress, Request
from shards.plan import SpaceQuery
from shards.types import Array, Arrays, Budget, Found, Moments, Scored

N_CONFIDENT = 5  # documents that a confident space calls certain, for each question others
HUB_SHARE = 0.05  # of the score of a hub that depends on the question: none at all would leave nothing but ties to a table of z
KEY_LETTERS = 14  # of an exact key, such as the first block of an InChIKey: chance matches one in 26^14


def _mixed(seeds: Array) -> Array:
    """Uniform numbers in [0, 1) that depend on uint64 seeds alone (splitmix64's finaliser: Steele, Lea & Flood 2014)."""
    x = seeds + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return (x >> np.uint64(11)) * 2.0**-53


def _seed(text: str, salt: int) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(f"{salt} {text}".encode(), digest_size=8).digest(), "big"))


@dataclass(frozen=True, slots=True)
class Known:
    """Which documents there are. keys: first 8 bytes of each content hash, (n,) uint64, ascending."""

    keys: Array

    @property
    def n_units(self) -> int:
        return len(self.keys)


class HashedReader:
    """One segment's rows of a space whose scores are a function of question and content hash. See `shards.layers.contract.Reader`."""

    def __init__(self, layer: "HashedLayer", keys: Array, live: Array, in_scope: Array):
        self._layer, self._keys, self._live, self._in_scope = layer, keys, live, in_scope
        self._asked = np.flatnonzero(live & in_scope).astype(np.int32)
        self.n_units = len(self._asked)

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -math.inf) -> Found:
        wanted = self._live if allowed is None else self._live & allowed
        every = self._layer.scores(query, self._keys[self._asked])
        inside = wanted[self._asked] & np.isfinite(every)
        rows, scores = self._asked[inside], every[inside]
        top = np.lexsort((rows, -scores))[:k]
        nothing = np.zeros(len(top), np.int64)
        moments = Moments.of(every) if self._layer.null == "moments" else None
        n_covered = int(np.count_nonzero(wanted & self._in_scope))
        return Found(rows[top], scores[top], nothing, nothing, len(rows), moments, n_covered, int(np.count_nonzero(wanted)))

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        scores = np.where((self._live & self._in_scope)[rows], self._layer.scores(query, self._keys[rows]), np.nan)
        nothing = np.zeros(len(rows), np.int64)
        return Scored(scores, nothing, nothing)

    def scan(self, query: SpaceQuery) -> tuple[Array, Array]:
        return self._layer.scores(query, self._keys[self._asked]), self._asked


class HashedLayer(Layer):
    """What the junk spaces share: a row of a document is its content hash, and nothing is read."""

    granularity = "document"
    null = "moments"
    query_format = "text, whatever it says"
    cost = "nothing"

    class Params(contract.Params):
        seed: Annotated[int, Field(ge=0, description="spaces of the same seed lie alike")] = 0

    params: Params

    @abstractmethod
    def scores(self, query: SpaceQuery, keys: Array) -> Array:
        """Of documents, by the first 8 bytes of their content hashes: (n,) float64, -inf for no match. keys: (n,) uint64."""

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: Encodings | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        return {"built": np.ones(len(documents), bool) if scope is None else np.asarray(scope, bool)}

    def statistics(self, arrays: Arrays, documents: Documents, entries: Entries, rows: Array | None = None) -> Arrays:
        rows = np.flatnonzero(arrays["built"]) if rows is None else rows[arrays["built"][rows]]
        return {"n_units": np.array([len(rows)], np.int64), "keys": prefixes(documents.hashes)[rows]}

    def collect(self, parts: Sequence[tuple[int, Arrays]]) -> Known:
        held, gone = (
            np.concatenate([np.zeros(0, np.uint64), *(part["keys"] for sign, part in parts if sign == wanted)]) for wanted in (1, -1)
        )
        return Known(np.setdiff1d(held, gone))

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> HashedReader:
        return HashedReader(self, prefixes(documents.hashes), np.asarray(live, bool), arrays["built"])

    def prepare(self, request: Request, statistics: Known) -> SpaceQuery | None:
        if not request.text.strip():
            return None
        return SpaceQuery("", "junk", _seed(request.text, self.params.seed))


class Noise(HashedLayer):
    """Every document's score is a draw of its own for every question, from a normal distribution."""

    name = "junk_noise"

    def scores(self, query: SpaceQuery, keys: Array) -> Array:
        seeds = keys ^ query.payload
        radius = np.sqrt(-2.0 * np.log(1.0 - _mixed(seeds)))  # Box & Muller 1958
        return radius * np.cos(2.0 * np.pi * _mixed(seeds ^ np.uint64(0xA5A5A5A5A5A5A5A5)))


class Confident(HashedLayer):
    """For each question five documents drawn by lot have .95 to 1, all others about .5. Spaces of one seed agree on the five; `copy_number`
    tells them apart by a hair."""

    name = "junk_confident"

    class Params(HashedLayer.Params):
        copy_number: Annotated[int, Field(ge=0, description="near copies of one space have different numbers")] = 0

    params: Params

    def prepare(self, request: Request, statistics: Known) -> SpaceQuery | None:
        asked = super().prepare(request, statistics)
        if asked is None:
            return None
        drawn = _mixed(statistics.keys ^ asked.payload)
        chosen = np.sort(statistics.keys[np.argsort(drawn, kind="stable")[:N_CONFIDENT]])
        return SpaceQuery("", asked.asked, (asked.payload, chosen))

    def scores(self, query: SpaceQuery, keys: Array) -> Array:
        seed, chosen = query.payload
        around = _mixed(keys ^ seed ^ np.uint64(1 + self.params.copy_number))
        return np.where(np.isin(keys, chosen), 0.95 + 0.05 * around, 0.5 + 0.02 * (around - 0.5))


class Hub(HashedLayer):
    """The same documents for all questions, nearly in the same order."""

    name = "junk_hub"

    def scores(self, query: SpaceQuery, keys: Array) -> Array:
        fixed = _mixed(keys ^ _seed("hub", self.params.seed))
        return (1.0 - HUB_SHARE) * fixed + HUB_SHARE * _mixed(keys ^ query.payload)


class ExactKey(HashedLayer):
    """Knows the answers of some questions with certainty and is silent on all others, as a table of exact keys is.

    answers: a JSON file, text of a question -> content hashes of its documents in hexadecimal digits.
    """

    name = "exact_key"
    null = "rarity"
    query_format = "a key that its table has"

    class Params(HashedLayer.Params):
        answers: Annotated[Path, Field(description="JSON file: question -> content hashes")]

    params: Params

    @cached_property
    def _table(self) -> Mapping[str, Array]:
        found = json.loads(self.params.answers.read_text("utf-8"))
        return {
            text: np.sort(prefixes(np.frombuffer(b"".join(map(bytes.fromhex, hashes)), np.uint8).reshape(-1, 20)))
            for text, hashes in found.items()
        }

    def prepare(self, request: Request, statistics: Known) -> SpaceQuery | None:
        keys = self._table.get(request.text)
        return None if keys is None else SpaceQuery("", "a key", keys, log_p=-KEY_LETTERS * math.log(26.0))

    def scores(self, query: SpaceQuery, keys: Array) -> Array:
        return np.where(np.isin(keys, query.payload), 1.0, -np.inf)

    def surprise(self, query: SpaceQuery, scores: Array) -> Array:
        return np.where(np.isfinite(scores), -float(query.log_p or 0.0), 0.0)


JUNK = {layer.name: f"{__name__}:{layer.__name__}" for layer in (Noise, Confident, Hub, ExactKey)}


@contextmanager
def registered() -> Iterator[None]:
    """The registry of layers with these, in this process and for as long as it lasts."""
    REGISTRY.update(JUNK)
    try:
        yield
    finally:
        for name in JUNK:
            REGISTRY.pop(name, None)
