"""Null models once a space that is built where it is used has its sample: whether that is due, fitting them, and publishing them.

Until then the space counts by its own certainty alone (`serve/evidence.py`), so this goes before whatever else is to be built of it.
"""

import logging
from collections.abc import Callable, Mapping

import numpy as np

from shards import layer_queue
from shards.building import SAMPLE, Catalogue
from shards.drafts import Draft, specs_of
from shards.errors import Cancelled, SondageError
from shards.generation import Generation
from shards.identity import HASH_BYTES
from shards.layers.contract import Progress
from shards.lease import Clock
from shards.manifest import Root
from shards.store import Store
from shards.types import Array
from shards.writing import Calibrate, Report, Writer, keep_nulls

logger = logging.getLogger(__name__)

_NO_DOCUMENT = bytes(HASH_BYTES)  # that the lease of a fit is about


class SampledNulls:
    """Fits null models for one corpus. For one thread at a time.

    writer: publishes. calibrator: makes what fits null models, given whom to tell how far it is; None: nobody fits. A fit that failed, or
    brought the space nothing, is not tried again by this process.
    """

    def __init__(self, writer: Writer, store: Store, calibrator: Callable[[Report], Calibrate] | None, clock: Clock):
        self._writer, self._store, self._calibrator, self._clock = writer, store, calibrator, clock
        self._tried: set[str] = set()  # ids of spaces

    def due(self, generation: Generation, catalogue: Catalogue, built: Mapping[str, Array]) -> str:
        """The name of a space whose sample is published and that has no null model, "" if there is none. built: by name, (n,) bool."""
        if self._calibrator is None:
            return ""
        known = generation.nulls
        for name, rows in built.items():
            space = generation.spaces[name]
            if space.layer.null != "moments" or space.id in self._tried or (known is not None and name in known.spaces):
                continue
            sample = np.flatnonzero(catalogue.in_globs(space.scope))[:SAMPLE]
            if len(sample) and rows[sample].all():
                return name
        return ""

    def fit(self, generation: Generation, name: str, go_on: Progress | None) -> Root | None:
        """Fit null models on a generation and publish them on top of the newest; None where that brought nothing, or others are at it.

        Raises Cancelled, and what the store and the writer's lease raise: try again.
        """
        assert self._calibrator is not None
        space = generation.spaces[name].id
        lease = layer_queue.take(self._store, space, [_NO_DOCUMENT], self._clock())
        if lease is None:
            return None
        try:
            data = self._calibrator(lambda step, done, total, _: go_on(step, done, total) if go_on is not None else None)(generation)
        except Cancelled:
            raise
        except SondageError as error:  # some space cannot be asked here: an index run that can fits them
            logger.warning("corpus=%s space=%s event=not_fitted reason=%s", generation.root.corpus, name, error)
            data = None
        finally:
            self._store.delete(lease)
        root = None if data is None else self._publish(generation.root, data)
        if data is None or root is not None:
            self._tried.add(space)
        return root

    def _publish(self, fitted_on: Root, data: bytes) -> Root | None:
        file = keep_nulls(self._store, data)
        try:
            with self._writer.lease() as held:
                newest = self._writer.newest()
                # Documents that came meanwhile change little; other spaces, or null models, much.
                if newest is None or newest.root.nulls != fitted_on.nulls or newest.root.spaces != fitted_on.spaces:
                    return None
                root = self._writer.root(newest, Draft(specs_of(newest.root), build=frozenset()), newest.pages, {})
                counters = {**root.counters, "docs_at_fit": fitted_on.n_docs}
                root = root.model_copy(update={"nulls": file, "null_version": root.null_version + 1, "counters": counters})
                return self._writer.publish(held, root, newest.root)
        finally:
            self._writer.forget()
