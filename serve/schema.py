"""The request and the answer of a search, as they cross HTTP: the same for people, programs and agents."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_QUERY_CHARS = 8_192
MAX_K = 1_000


class Edge(BaseModel):
    """Frozen, unknown fields refused: a typo in a request must not be silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _printable(text: str) -> str:
    """JSON cannot carry the lone surrogates that stand for a path's invalid UTF-8; such bytes are shown as U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Printable = Annotated[str, AfterValidator(_printable)]


class SearchRequest(Edge):
    """One search over one corpus."""

    corpus: Annotated[str, Field(min_length=1, max_length=128, description="name of the corpus")]
    query: Annotated[str, Field(max_length=MAX_QUERY_CHARS, description="what is looked for, as plain text")] = ""
    forms: Annotated[
        dict[str, dict[str, Any]],
        Field(description='own forms per space: {"text": {"pattern": "def \\\\w+", "regex": true}, "names": {"glob": "**/*.py"}}'),
    ] = {}
    layers: Annotated[Literal["auto"] | list[str], Field(description='"auto", or names of the spaces to ask')] = "auto"
    paths: Annotated[list[str], Field(max_length=100, description="globs; an entry must match one; a leading ! excludes")] = []
    where: Annotated[
        dict[str, Any] | None,
        Field(description='metadata filter: {"field": value}, {"field": {">=": 3}}, {"and"|"or": [..]}, {"not": ..}'),
    ] = None
    k: Annotated[int, Field(ge=1, le=MAX_K, description="hits wanted")] = 10
    budget_ms: Annotated[int, Field(ge=1, le=60_000, description="time for the whole answer")] = 2_000
    cursor: Annotated[str | None, Field(max_length=512, description="of a previous answer: its next page, same generation")] = None
    generation: Annotated[int | None, Field(ge=1, lt=10**16, description="a kept generation to search instead of the newest")] = None
    highlight: Annotated[bool, Field(description="mark matches in excerpts with offsets")] = True
    explain: Annotated[bool, Field(description="add z, gates and weights to each signal")] = False
    keep_all: Annotated[bool, Field(description="return hits even where the verdict is none: for rankings")] = False


class Signal(Edge):
    """What one space says of a hit. score: its raw score. surprise: -ln p under the space's null model, nats. evalue: how many
    of its units this good chance alone would give (p x units; conservative, for one space and hit)."""

    layer: str
    score: float
    surprise: float
    evalue: float
    start: int
    end: int
    z: float | None = None
    weight: float | None = None


class EntryOut(Edge):
    """One place where the hit's document lies."""

    source: Printable
    path: Printable
    size_bytes: int
    mtime: float
    metadata: dict[str, Any] = {}


class ExcerptOut(Edge):
    """Text [start, end) of the rendition in UTF-8 bytes; line: 1-based line of the hit's own start, `first_line` that of the text;
    marks: character ranges of `text` to highlight."""

    start: int
    end: int
    first_line: int
    text: str
    marks: list[tuple[int, int]] = []


class Hit(Edge):
    """A document. hash, start, end, line: where the strongest signal lies. fused: weighted sum of surprises (nats). evalue:
    how many documents with so much fused evidence a query of unrelated words would bring (Gumbel fit of the best hit)."""

    hash: str
    start: int
    end: int
    line: int
    fused: float
    evalue: float
    entries: list[EntryOut]
    n_entries: int
    excerpt: ExcerptOut | None
    signals: list[Signal]


class LayerInfo(Edge):
    """A space, described once per answer, not per hit; asked: what it was asked, null where it was not."""

    name: str
    layer: str
    origin: str
    granularity: str
    asked: str | None
    reason: str = ""
    n_units: int
    n_matched: int = 0
    weight: float = 0.0
    null: str = ""


class Coverage(Edge):
    """How much of the scope a space looked at on one shard, and why not all (`LayerStatus`)."""

    layer: str
    shard: int
    state: str
    covered: int
    total: int
    reason: str = ""


class SearchAnswer(Edge):
    """verdict: strong, weak or none, with its reason. complete: whether every layer and shard was fully searched,
    and no hit had to be left out because its text could not be read in time."""

    corpus: str
    generation: int
    null_version: int
    verdict: Literal["strong", "weak", "none"]
    verdict_reason: str
    complete: bool
    hits: list[Hit]
    cursor: str | None = None
    layers: list[LayerInfo]
    coverage: list[Coverage]
    timings_ms: dict[str, float]


class DocumentAnswer(Edge):
    """A piece of a rendition: its bytes [start, end), cut outwards to whole characters, of size_bytes in all."""

    corpus: str
    generation: int
    hash: str
    kind: str = ""
    start: int
    end: int
    size_bytes: int
    text: str
    entries: list[EntryOut]


class Problem(Edge):
    """kind: stable, for programs; message: for people, with the remedy; at: the place in the request, if there is one."""

    kind: str
    message: str
    at: str | None = None


class ProblemAnswer(Edge):
    """What every error looks like."""

    error: Problem
