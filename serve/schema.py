"""The request and the answer of a search, as they cross HTTP: the same for people, programs and agents."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

MAX_QUERY_CHARS = 8_192
MAX_K = 1_000
MAX_DEPTH = 200  # hits that a reranker reads: 300 kB of text at most
MAX_CONTEXT_LINES = 100  # before and after a hit


class Edge(BaseModel):
    """Frozen, unknown fields refused: a typo in a request must not be silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _printable(text: str) -> str:
    """JSON cannot carry the lone surrogates that stand for a path's invalid UTF-8; such bytes are shown as U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Printable = Annotated[str, AfterValidator(_printable)]


class Rerank(Edge):
    """The last stage: a model reads the question with the passage of each of the best hits, and orders these anew."""

    model: Annotated[str, Field(min_length=1, max_length=500, description="cross-encoder: a folder or owner/name; or the endpoint's model")]
    endpoint: Annotated[str | None, Field(max_length=128, description="an endpoint of the server's settings, whose model judges")] = None
    depth: Annotated[int, Field(ge=1, le=MAX_DEPTH, description="hits that are read; those behind keep their order")] = 20
    query: Annotated[str | None, Field(max_length=MAX_QUERY_CHARS, description="judge by this text instead of the search's")] = None
    share: Annotated[float, Field(gt=0, lt=1, description="of budget_ms, kept back from the search for this")] = 0.5


# A tag for each, so that what is wrong with one is not told as if the other had been meant; [ hides it from places of errors.
LastStage = Annotated[
    Annotated[Rerank, Tag("[stage]")] | Annotated[Literal[False], Tag("[none]")],
    Discriminator(lambda value: "[none]" if value is False else "[stage]"),
]


class Context(Edge):
    """What excerpts show, as grep's -B and -A say it: so many lines before and after those of the hit."""

    before: Annotated[int, Field(ge=0, le=MAX_CONTEXT_LINES)] = 0
    after: Annotated[int, Field(ge=0, le=MAX_CONTEXT_LINES)] = 0


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
    context: Annotated[Context | None, Field(description="whole lines around each hit; null: about 320 bytes of lines")] = None
    explain: Annotated[bool, Field(description="add z, gates and weights to each signal")] = False
    rerank: Annotated[
        LastStage | None, Field(description="reorder the best hits by a model; null: as the server does by itself; false: never")
    ] = None
    keep_all: Annotated[bool, Field(description="return hits even where the verdict is none: for rankings")] = False


class Generated(Edge):
    """A text about bytes [start, end) of the document's rendition, by which a derived space found it. It is no part of the source and no
    evidence of what stands there. kind: context, question, summary; generator: "extractive", or the model that wrote it."""

    text: Printable
    kind: str
    generator: str
    start: int
    end: int


class Signal(Edge):
    """What one space says of a hit. score: its raw score. surprise: -ln p under the space's null model, nats. evalue: how many
    of its units this good chance alone would give (p x units; conservative, for one space and hit). generated: of a derived space, the
    text that it saw instead of the document."""

    layer: str
    score: float
    surprise: float
    evalue: float
    start: int
    end: int
    z: float | None = None
    weight: float | None = None
    generated: Generated | None = None


class RerankSignal(Edge):
    """What the reranker says of a hit: its own number, comparable within this answer alone, never evidence. origin: it read the source's
    own text, bytes [start, end) of the rendition."""

    model: str
    origin: Literal["source"] = "source"
    score: float
    start: int
    end: int


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
    """A document. hash, start, end, line: where the strongest signal lies; place: in which part of a file that has pages, slides, sheets,
    chapters or cells ("page 3", "slide 4", "Sheet2!B7", "chapter 2", "cell 5"), else "". fused: weighted sum of surprises (nats). evalue:
    how many documents with so much fused evidence a query of unrelated words would bring (Gumbel fit of the best hit). constellation:
    who saw it: spaces that read the source; only derived ones, which see texts about it (a hypothesis); or both (the strongest)."""

    hash: str
    start: int
    end: int
    line: int
    place: str = ""
    fused: float
    evalue: float
    entries: list[EntryOut]
    n_entries: int
    excerpt: ExcerptOut | None
    signals: list[Signal]
    constellation: Literal["source", "derived", "both"] = "source"
    rerank: RerankSignal | None = None


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


class RerankInfo(Edge):
    """What became of reranking. done: the first `depth` hits stand in the reranker's order, the others behind them as they were. Else the
    order is that of the evidence: partial (only n of the hits were scored), skipped (none was), failed; reason: why."""

    state: Literal["done", "partial", "skipped", "failed"]
    reason: str = ""
    n: int
    depth: int
    model: str
    ms: float


class SearchAnswer(Edge):
    """verdict: strong, weak or none, with its reason. complete: whether every layer and shard was fully searched,
    and no hit had to be left out because its text could not be read in time. read_as: what the query looks like, with what shows it,
    where the spaces to ask were chosen by that."""

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
    rerank: RerankInfo | None = None
    timings_ms: dict[str, float]
    read_as: dict[str, str] = {}


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
