"""Encodings that searches made of documents without an index (`shards/on_the_fly.py`), handed to whoever builds the space: kept in the
store by content, where a builder finds them when it comes to the documents.

Of documents alone that an answer showed after they were encoded, by the corpus's counts: these a builder would encode next, so nothing is
built that would not have been. Not where usage is not counted, nor of what was evicted since. A search pays nothing: what it made is
handed over some seconds later, when its answer has been counted, by a thread of its own.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from shards import layer_queue, usage
from shards.encodings import PackedEncodings
from shards.errors import SondageError
from shards.given import folder
from shards.identity import HASH_BYTES
from shards.on_the_fly import OnTheFly
from shards.store import Store

if TYPE_CHECKING:
    from shards.shard import Space

logger = logging.getLogger(__name__)

AFTER_S = 8.0  # coordinators write counts down every 5
MOST_BYTES = 8 << 20  # at once: 5,000 passages of 384 numbers
SKEW_S = 1.0  # by which clocks of two machines may differ, and counts are rounded


class Handover:
    """Hands over what the searches of one process made. Safe for many threads. store_of: a corpus's folder of the store."""

    def __init__(self, store_of: Callable[[str], Store], on_the_fly: OnTheFly):
        self._store_of, self._on_the_fly = store_of, on_the_fly
        self._waiting: set[str] = set()  # corpora
        self._lock = threading.Lock()

    def soon(self, corpus: str, spaces: Iterable["Space"]) -> None:
        """In some seconds hand over what was made for these spaces of a corpus, if anything was: microseconds."""
        made = [space for space in spaces if space.built == "used" and self._on_the_fly.has_made(space.id)]
        if not made:
            return
        with self._lock:
            if corpus in self._waiting:
                return
            self._waiting.add(corpus)
        timer = threading.Timer(AFTER_S, self._late, (corpus, made))
        timer.daemon = True
        timer.start()

    def _late(self, corpus: str, spaces: list["Space"]) -> None:
        with self._lock:
            self._waiting.discard(corpus)
        try:
            self.now(corpus, spaces)
        except (SondageError, OSError) as error:  # the next search that makes some tries again
            logger.info("corpus=%s event=not_handed_over reason=%s", corpus, error)

    def now(self, corpus: str, spaces: Iterable["Space"]) -> int:
        """Hand over what answers showed; returns how many documents' encodings were written. Raises StoreError."""
        inside = self._store_of(corpus)
        queue = layer_queue.state(inside)
        if not queue.usage:
            return 0
        shown, n = usage.read(inside).documents, 0
        for space in spaces:
            evicted_at = max((one.at for one in (*queue.evictions, *queue.evicted) if one.space == space.name), default=0.0)
            wanted: dict[bytes, np.ndarray] = {}
            size = 0
            for document, at in self._on_the_fly.made(space.id).items():
                last = shown[document.hex()].last if document.hex() in shown else 0.0
                values = self._on_the_fly.kept(space.id, document)
                if last < max(at - SKEW_S, evicted_at) or values is None or size + values.nbytes > MOST_BYTES:
                    continue
                wanted[document] = values
                size += values.nbytes
            if not wanted:
                continue
            keys = sorted(wanted)
            known = PackedEncodings(inside, folder(space.layer, space.id))
            lacking = known.lacking(np.frombuffer(b"".join(keys), np.uint8).reshape(-1, HASH_BYTES))
            new = {key: wanted[key] for key, lacks in zip(keys, lacking.tolist(), strict=True) if lacks}
            known.put(new)
            self._on_the_fly.handed(space.id, keys)
            n += len(new)
            logger.info("corpus=%s space=%s event=handed_over documents=%d bytes=%d", corpus, space.name, len(new), size)
        return n
