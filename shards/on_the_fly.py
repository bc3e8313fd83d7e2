"""Scores of documents that a space has no index of: they are encoded when a search has found them, within its time.

What a layer builds of a document does not depend on its neighbours, so a segment is built in memory of the few documents, opened as any
other and asked: its scores are those that the index will give. The documents that the other spaces think most of come first. Encodings
are kept in memory by content hash, so the next search for the same documents encodes nothing.

A model is loaded in a thread of its own, never in a search; until it is there, nothing is scored on the fly. Between two looks at the
clock lies what a model reads at once, and a document is not begun whose encoding would probably end too late, by the rate measured.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shards.documents import Documents
from shards.endpoint_settings import Usage
from shards.errors import SondageError
from shards.layers.contract import Layer
from shards.plan import SpaceQuery
from shards.segment import pack_entries
from shards.types import Array, Budget, Scored

if TYPE_CHECKING:
    from shards.shard import Space

logger = logging.getLogger(__name__)

FIRST = 32  # documents of each question: what lies behind them hardly reaches the first page
SLICE_S = 0.01  # of work between two looks at the clock, where documents are that small
KEPT_BYTES = 64 << 20  # of encodings in memory, of all spaces
_WAIT_S = 0.05  # for another search that encodes with the same model
_TRIAL = b"how long does it take to read a passage of text that was never read before? " * 13  # about 1,000 bytes, a passage


class _TimeIsOver(Exception):
    """Raised out of a layer that encodes."""


class _Kept:
    """Encodings of all spaces, by space and content hash: those used last. Safe for many threads."""

    def __init__(self, size_bytes: int):
        self._most, self._size = size_bytes, 0
        self._known: OrderedDict[tuple[str, bytes], Array] = OrderedDict()
        self._made: dict[str, dict[bytes, float]] = {}  # by space, of documents that nobody was handed: when they were encoded
        self._lock = threading.Lock()

    def get(self, space_id: str, key: bytes) -> Array | None:
        with self._lock:
            if (found := self._known.get((space_id, key))) is not None:
                self._known.move_to_end((space_id, key))
            return found

    def put(self, space_id: str, encodings: Mapping[bytes, Array]) -> None:
        with self._lock:
            for key, values in encodings.items():
                old = self._known.pop((space_id, key), None)
                values = np.array(values)  # a copy: a view would keep all that was encoded with it
                self._known[space_id, key] = values
                self._made.setdefault(space_id, {})[key] = time.time()
                self._size += values.nbytes - (0 if old is None else old.nbytes)
            while self._size > self._most:
                (space, gone), old = self._known.popitem(last=False)
                self._made.get(space, {}).pop(gone, None)
                self._size -= old.nbytes

    def has_made(self, space_id: str) -> bool:
        return bool(self._made.get(space_id))

    def made(self, space_id: str) -> dict[bytes, float]:
        with self._lock:
            return dict(self._made.get(space_id, {}))

    def handed(self, space_id: str, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in keys:
                self._made.get(space_id, {}).pop(key, None)


class _OfSpace:
    """The `Encodings` (`shards.layers.contract`) of one space."""

    def __init__(self, kept: _Kept, space_id: str):
        self._kept, self._id = kept, space_id

    def get(self, hashes: Array) -> dict[bytes, Array]:
        found = {row.tobytes(): self._kept.get(self._id, row.tobytes()) for row in hashes}
        return {key: values for key, values in found.items() if values is not None}

    def put(self, encodings: Mapping[bytes, Array]) -> None:
        self._kept.put(self._id, encodings)

    def spend(self, usage: Usage) -> None:
        """Nobody is told: layers that ask an endpoint are not asked on the fly."""


@dataclass
class _Model:
    """A layer that can encode. per_byte_s: seconds it took lately; problem: why it cannot. busy: held by who encodes."""

    layer: Layer
    loaded: threading.Event = field(default_factory=threading.Event)
    busy: threading.Lock = field(default_factory=threading.Lock)
    per_byte_s: float = 0.0
    problem: str = ""

    def load(self) -> None:
        """Encode a passage twice: the first loads the model, the second shows how long one takes."""
        try:
            for turn in range(2):
                begun = time.monotonic()
                text = b"%d %s" % (turn, _TRIAL)
                self.layer.build(Documents.pack([(bytes(20), text, "")]), pack_entries(()))
                self.per_byte_s = (time.monotonic() - begun) / len(text)
        except Exception as error:  # in a thread that nobody waits for: searches say why
            self.problem = str(error) if isinstance(error, SondageError) else f"{type(error).__name__}: {error}"
            logger.warning("layer=%s event=not_on_the_fly reason=%s", self.layer.name, self.problem)
        finally:
            self.loaded.set()


class OnTheFly:
    """Encodes for the searches of one process. Safe for many threads."""

    def __init__(self, kept_bytes: int = KEPT_BYTES):
        self._kept = _Kept(kept_bytes)
        self._models: dict[str, _Model] = {}
        self._lock = threading.Lock()

    def load(self, space: "Space") -> threading.Event:
        """Begin to load a space's model, if nobody has; set once it is loaded, or cannot be."""
        with self._lock:
            model = self._models.get(space.id)
            if model is None:
                model = self._models[space.id] = _Model(space.layer)
                threading.Thread(target=model.load, name=f"load {space.name}", daemon=True).start()
        return model.loaded

    def has_made(self, space_id: str) -> bool:
        """Whether `made` has any."""
        return self._kept.has_made(space_id)

    def made(self, space_id: str) -> dict[bytes, float]:
        """The documents that were encoded for a space and handed to nobody (`shards/handover.py`): when, in seconds since 1970."""
        return self._kept.made(space_id)

    def kept(self, space_id: str, document: bytes) -> Array | None:
        """The encodings of a document, None where they are not kept any more."""
        return self._kept.get(space_id, document)

    def handed(self, space_id: str, documents: Sequence[bytes]) -> None:
        """Told that these are in the store."""
        self._kept.handed(space_id, documents)

    def score(
        self, space: "Space", query: SpaceQuery, wanted: Sequence[tuple[Documents, int]], budget: Budget
    ) -> tuple[Scored, str]:
        """Scores of documents, (those of a segment, row), in their order, as `Reader.score` gives them, nan where the time did not
        suffice; and why not all were scored, "" where it was the time.

        What is kept is scored first. The others follow one by one, small ones some at once.
        """
        n = len(wanted)
        scored = Scored(np.full(n, np.nan), np.zeros(n, np.int64), np.zeros(n, np.int64))
        if not self.load(space).is_set():
            return scored, "its model is being loaded"
        model = self._models[space.id]
        if model.problem:
            return scored, model.problem
        if not model.busy.acquire(timeout=max(min(budget.remaining_s, _WAIT_S), 0.0)):
            return scored, "its model is busy"
        try:
            kept = [self._kept.get(space.id, documents.hashes[row].tobytes()) is not None for documents, row in wanted]
            if any(kept):
                _score(model, self._of(space), query, wanted, [i for i in range(n) if kept[i]], scored, budget)
            todo = [i for i in range(n) if not kept[i]]
            while todo and not budget.expired:
                portion: list[int] = []
                seconds = 0.0
                while todo:
                    cost = model.per_byte_s * _size(wanted[todo[0]])
                    if portion and seconds + cost > SLICE_S:
                        break
                    at = todo.pop(0)
                    if seconds + cost < budget.remaining_s:  # a shorter one behind it may still fit
                        portion.append(at)
                        seconds += cost
                if portion:
                    _score(model, self._of(space), query, wanted, portion, scored, budget)
        finally:
            model.busy.release()
        return scored, ""

    def _of(self, space: "Space") -> _OfSpace:
        return _OfSpace(self._kept, space.id)


def _size(wanted: tuple[Documents, int]) -> int:
    documents, row = wanted
    return int(documents.ends[row] - documents.starts[row])


def _score(
    model: _Model,
    known: _OfSpace,
    query: SpaceQuery,
    wanted: Sequence[tuple[Documents, int]],
    portion: Sequence[int],
    scored: Scored,
    budget: Budget,
) -> None:
    """Puts the scores of a portion of the documents in their places; nothing where the time ends before."""

    def look(step: str, done: int, total: int) -> None:
        if budget.expired and done < total:
            raise _TimeIsOver

    begun = time.monotonic()
    held = [wanted[at] for at in portion]
    keys = [documents.hashes[row].tobytes() for documents, row in held]
    new = sum(_size(one) for one, key in zip(held, keys, strict=True) if not known.get(np.frombuffer(key, np.uint8).reshape(1, 20)))
    documents = Documents.pack(
        (key, bytes(of.content(row)), of.kind_names[of.kinds[row]]) for key, (of, row) in zip(keys, held, strict=True)
    )
    entries = pack_entries(())
    try:
        arrays = model.layer.build(documents, entries, None, known, look)
    except _TimeIsOver:
        model.per_byte_s = max(model.per_byte_s, (time.monotonic() - begun) / max(new, 1))
        return
    if new:
        model.per_byte_s = 0.7 * model.per_byte_s + 0.3 * (time.monotonic() - begun) / new
    places = {row.tobytes(): i for i, row in enumerate(documents.hashes)}
    rows = np.array([places[key] for key in keys], np.int32)
    # No budget: what was encoded is worth its score, which takes microseconds.
    got = model.layer.open(arrays, documents, entries, np.ones(len(documents), bool)).score(query, rows, Budget())
    scored.scores[portion], scored.starts[portion], scored.ends[portion] = got.scores, got.starts, got.ends


def can_be(space: "Space") -> bool:
    """Whether a space's documents may be scored on the fly: its layer builds each document by itself, from its text, on this machine."""
    layer = space.layer
    usual = layer.in_part and "refine" in layer.roles and not (layer.limits or layer.media or space.scope or space.problem)
    return usual and getattr(layer.params, "endpoint", None) is None  # a search spends nobody's money


def by_promise(scores: Array, weights: Sequence[float] = ()) -> Array:
    """Rows of a table of candidates, (n, s) float64, those first that its columns rank best.

    By the sum of w / (60 + rank) over columns (Cormack, Clarke & Buettcher 2009): raw scores of several spaces do not add up. weights: what
    each column counts, since those are to be scored that evidence ranks first; none, or none above 0: all alike.
    """
    promise = np.zeros(len(scores))
    counted = weights if any(weights) else (1.0,) * scores.shape[1]
    for column, weight in zip(scores.T, counted, strict=True):
        found = np.flatnonzero(np.isfinite(column))
        order = found[np.argsort(-column[found], kind="stable")]
        promise[order] += weight / (60.0 + np.arange(1, len(order) + 1))
    return np.argsort(-promise, kind="stable")
