"""What waits to be written to an engine's corpus, and writing it."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shards.errors import BadSpec
from shards.layers import SpaceSpec, create, space_id
from shards.manifest import latest_generation, read_root
from shards.memory import give_back, uncollected
from shards.plugins import Embedder
from shards.pushlog import Operation
from shards.types import Array

from .documents import SPACE, Documents

if TYPE_CHECKING:
    from serve.generations import Generations
    from shards.bulk import Batch, BulkWriter
    from shards.delta import Specs
    from shards.generation import Generation
    from shards.layers.contract import Resources

GRANULARITY = "chunk"  # the peer's default: few vectors, and sentences are cut from chunks when a query wants some
FLUSH_BYTES, FLUSH_DOCUMENTS = 32 << 20, 50_000  # of documents that wait: some tenths of a second, held in memory some three times
TRIM_BYTES = 4 << 20  # of a batch after which the memory that writing it took is given back
MERGE_BYTES = 8 << 20  # of text, to be merged after a flush; larger merges are left to `settle`, and to whoever serves the store


@dataclass(frozen=True, slots=True)
class Spaces:
    """What an engine's corpus is to have. granularity: None where that of the store's corpus will do; layers: specs of further spaces."""

    embedder: Embedder
    named: Mapping[str, Embedder]
    granularity: str | None
    layers: tuple[str, ...]

    def specs(self, resources: "Resources", granularity: str) -> "Specs":
        """With their ids. Raises BadSpec for a wrong layer, ModelMissing."""
        made = [SpaceSpec(SPACE, "embedded", {"embedder": self.embedder.model_id, "unit": granularity, "dim": self.embedder.dim})]
        made += [SpaceSpec(name, "vectors", {"dim": embedder.dim}) for name, embedder in self.named.items()]
        made += [SpaceSpec.parse(text) for text in self.layers]
        return {spec.name: (spec, space_id(spec, create(spec, resources))) for spec in made}


def _fitted(generation: "Generation") -> bytes | None:
    """Null models. What fits them is loaded when they are wanted."""
    from serve.calibrate import Calibrator

    return Calibrator(threads=1)(generation)


class Filling:
    """Fills one corpus. Safe for several threads.

    granularity: what its text is cut into. moved: told when there is another generation.
    """

    def __init__(
        self, generations: "Generations", corpus: str, spaces: Spaces, n_shards: int, making: Documents, moved: Callable[[], None]
    ):
        """Raises BadSpec where the store's corpus is another embedder's, or lacks a space."""
        self._generations, self.corpus, self._spaces, self._n_shards = generations, corpus, spaces, n_shards
        self._making, self._moved = making, moved
        self._adding, self._writing = threading.Lock(), threading.RLock()
        self._waiting: Batch | None = None
        self._bulk: BulkWriter | None = None
        self.granularity = self._granularity()
        # What the vectors will take that are to be made, about: of English sentences, and of whatever else is cut.
        self._vector_bytes, self._unit_bytes = 4 * spaces.embedder.dim, 80 if self.granularity == "sentence" else 800
        self._begun = latest_generation(generations.store, corpus) is not None

    def add(self, operation: Operation, units: Mapping[str, Array] | None = None, most: int = FLUSH_DOCUMENTS) -> None:
        """Have a document written with the next; at once where `most` wait, or they take much memory."""
        from shards.bulk import Batch

        with self._adding:
            self._waiting = self._waiting or Batch()
            self._waiting.add(operation, units)
            if not units:
                self._waiting.size_bytes += self._vector_bytes * (1 + len(operation.text) // self._unit_bytes)
            full = len(self._waiting) >= most or self._waiting.size_bytes >= FLUSH_BYTES
        if full:
            self.flush(merging=False)  # more comes: what is merged at once would be merged again

    def catch_up(self) -> bool:
        """See that all that was added before is written, also by others; whether there was anything."""
        with self._writing:  # what another thread is writing was added before, too
            if self._waiting is None and self._begun:
                return False
            self.flush()
            return True

    def flush(self, merging: bool = True) -> None:
        """Write what waits. Raises EmbeddingError and others of layers, BadQuery, StoreError: then it waits on."""
        with self._writing:
            with self._adding:
                batch, self._waiting = self._waiting, None
            if batch is None and self._begun:
                return
            try:
                with uncollected():
                    self._publish(batch, merging)
            except BaseException:
                self._restore(batch)
                raise
            self._begun = True
            self._moved()
            if batch is not None and batch.size_bytes >= TRIM_BYTES:
                del batch
                give_back()

    def discard(self) -> int:
        """Forget what waits; returns how many documents that were."""
        with self._adding:
            batch, self._waiting = self._waiting, None
        return len(batch) if batch else 0

    def settle(self) -> None:
        """Write what waits, join segments, fit null models where that is due."""
        with self._writing:
            self.flush()
            if self._writer().settle() is not None:
                self._moved()

    def close(self) -> None:
        """End what was started; what waits is lost."""
        if self._bulk is not None:
            self._bulk.close()

    def _publish(self, batch: "Batch | None", merging: bool) -> None:
        from shards.bulk import Batch

        if batch is not None:
            self._making.check(batch, self.granularity, self._generations.resources.plugins)
        writer = self._writer()
        if writer.publish(batch or Batch()) is not None and merging:
            writer.merge(MERGE_BYTES)

    def _restore(self, batch: "Batch | None") -> None:
        """What could not be written waits on, before what came meanwhile."""
        if batch is None:
            return
        with self._adding:
            later, self._waiting = self._waiting, batch
            if later is not None:
                batch.update(later)

    def _writer(self) -> "BulkWriter":
        from shards.bulk import BulkWriter

        if self._bulk is None:
            into = self._generations
            specs = self._spaces.specs(into.resources, self.granularity)
            made = (into.store, self.corpus, into.cache, into.resources)
            self._bulk = BulkWriter(*made, specs, self._n_shards, _fitted)
        return self._bulk

    def _granularity(self) -> str:
        """That of the store's corpus, where there is one, which must be of this embedder."""
        into, wanted = self._generations, self._spaces
        number = latest_generation(into.store, self.corpus)
        if number is None:
            return wanted.granularity or GRANULARITY
        refs = {ref.name: ref for ref in read_root(into.store, self.corpus, number).spaces}
        ref = refs.get(SPACE)
        if ref is None or ref.layer != "embedded":
            raise BadSpec(
                f"Corpus {self.corpus!r} in {into.store.url} was not made by an engine with an embedder. Name another corpus, or ask this "
                "one by sondage.Engine(store).query(…)."
            )
        unit, by = str(ref.params.get("unit")), wanted.embedder
        if wanted.granularity is not None and wanted.granularity.lower() != unit.lower():
            raise BadSpec(f"Corpus {self.corpus!r} has embedded every {unit}, not every {wanted.granularity}. Leave granularity out.")
        spec = SpaceSpec(SPACE, "embedded", {**ref.params, "embedder": by.model_id, "dim": by.dim})
        if space_id(spec, create(spec, into.resources)) != ref.space_id:
            raise BadSpec(
                f"Corpus {self.corpus!r} was embedded by {ref.params.get('embedder')!r} ({ref.params.get('dim')} numbers), and vectors of "
                f"{by.model_id!r} ({by.dim}) cannot be compared with these. Give that embedder, or another corpus."
            )
        asked = [*wanted.named, *(SpaceSpec.parse(text).name for text in wanted.layers)]
        if lacking := [name for name in asked if name not in refs]:
            raise BadSpec(f"Corpus {self.corpus!r} was made without {', '.join(lacking)}. It has: {', '.join(sorted(refs))}.")
        return unit
