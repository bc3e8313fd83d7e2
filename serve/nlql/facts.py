"""What planning needs to know of a corpus: its spaces with what their units are, and the types that its metadata was said to have."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shards.generation import Generation

NO_UNITS = ""  # of a space that has no vectors
WHOLE = "document"  # of one whose vectors stand for a document, not for a piece of its text


@dataclass(frozen=True, slots=True)
class SpaceFact:
    """One space.

    unit: what its vectors stand for: passage, sentence, chunk, a splitter's name, or WHOLE; NO_UNITS: it has none that SIMILARITY could
    read. n_units: of the corpus. dim: numbers in a vector, where that is known. given: they are callers' own. problem: why it cannot be
    asked, "" if it can.
    """

    name: str
    layer: str
    unit: str = NO_UNITS
    n_units: int = 0
    dim: int = 0
    given: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class CorpusFacts:
    """A generation of a corpus. spaces: in the order in which it has them. field_types: of its metadata, by dotted path."""

    corpus: str
    generation: int
    n_docs: int
    n_entries: int
    text_bytes: int
    n_shards: int = 1
    spaces: Mapping[str, SpaceFact] = field(default_factory=dict)
    field_types: Mapping[str, str] = field(default_factory=dict)
    read_at: float = field(default=0.0, compare=False)  # when the types were looked up, of a clock that only goes forward

    def of_layer(self, layer: str) -> list[SpaceFact]:
        """The spaces of a layer."""
        return [space for space in self.spaces.values() if space.layer == layer]

    @property
    def readable(self) -> list[SpaceFact]:
        """The spaces whose vectors stand for pieces of the text, `content` first: what SIMILARITY(content, …) can be asked of."""
        found = [space for space in self.spaces.values() if space.unit not in (NO_UNITS, WHOLE) and not space.given]
        return sorted(found, key=lambda space: space.name != "content")

    def of_unit(self, unit: str) -> SpaceFact | None:
        """The first of them whose vectors stand for such units."""
        return next((space for space in self.readable if space.unit == unit), None)


def facts_of(generation: "Generation", field_types: Mapping[str, str] | None = None) -> CorpusFacts:
    """The facts of an open generation. Its statistics are read, which may take a while the first time."""
    from shards.layers.vectors import VectorLayer

    spaces = {}
    for name, space in generation.spaces.items():
        layer = space.layer
        unit, dim = NO_UNITS, 0
        if isinstance(layer, VectorLayer):
            # Texts about a document, and images, are no pieces of its text.
            unit = layer.granularity if layer.origin == "source" and not layer.media else WHOLE
            dim = layer.dim if layer.given is not None else 0  # of others the model would have to be loaded
        n_units = int(generation.statistics(name).n_units)
        spaces[name] = SpaceFact(name, layer.name, unit, n_units, dim, layer.given is not None, space.problem)
    root = generation.root
    return CorpusFacts(
        root.corpus,
        root.generation,
        root.n_docs,
        root.n_entries,
        root.text_bytes,
        len(root.shards),
        spaces,
        dict(field_types or {}),
    )
