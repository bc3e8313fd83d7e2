"""The request and the answer of a search, as they cross HTTP: the same for people, programs and agents."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from serve.algebra_schema import Tree
from serve.anytime.planning import Goal
from serve.anytime.schema import Certificate, SearchPlan
from serve.combined_schema import Combined, Part
from serve.edge import MAX_QUERY_CHARS, Coupling, Edge, Printable, Weight, spelt
from serve.feedback_schema import MAX_SPANS, FeedbackInfo, SpanRef
from serve.freshness_schema import Freshness, FreshnessInfo, HitFreshness
from serve.translation_schema import Translate, TranslationInfo

MAX_K = 1_000
MAX_DEPTH = 200  # hits that a reranker reads: 300 kB of text at most
MAX_CONTEXT_LINES = 100  # before and after a hit


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


Translator = Annotated[
    Annotated[Translate, Tag("[by]")] | Annotated[bool, Tag("[whether]")],
    Discriminator(lambda value: "[whether]" if isinstance(value, bool) else "[by]"),
]


class Context(Edge):
    """What excerpts show, as grep's -B and -A say it: so many lines before and after those of the hit."""

    before: Annotated[int, Field(ge=0, le=MAX_CONTEXT_LINES)] = 0
    after: Annotated[int, Field(ge=0, le=MAX_CONTEXT_LINES)] = 0


MAX_TOKEN = 64  # characters of `continue`
ASKING = ("query", "forms", "layers", "coupling", "weights")  # what sub-queries say instead, where there are some


class SearchRequest(Edge):
    """One search over one corpus."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

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
    goal: Annotated[
        Goal,
        Field(
            description="fast: the cheapest layers first, and enough when the first hits would hardly change; balanced: what fits into the "
            "time; precise: also what is not expected to fit, last; wide: all layers, longer lists"
        ),
    ] = "balanced"
    continue_: Annotated[
        str | None,
        Field(alias="continue", max_length=MAX_TOKEN, description="of a previous answer that its time cut off: goes on where that ended"),
    ] = None
    freshness: Annotated[
        Freshness,
        Field(
            description="trust: what was indexed; check: files of local sources are looked at beside the search, in a tenth of its time, "
            "and what changed is read; strict: all files of the scope, of any source, as far as the time goes"
        ),
    ] = "check"
    cursor: Annotated[str | None, Field(max_length=512, description="of a previous answer: its next page, same generation")] = None
    generation: Annotated[int | None, Field(ge=1, lt=10**16, description="a kept generation to search instead of the newest")] = None
    highlight: Annotated[bool, Field(description="mark matches in excerpts with offsets")] = True
    context: Annotated[Context | None, Field(description="whole lines around each hit; null: about 320 bytes of lines")] = None
    explain: Annotated[bool, Field(description="add z, gates and weights to each signal")] = False
    coupling: Annotated[
        Coupling,
        BeforeValidator(spelt, json_schema_input_type=str | Coupling),
        Field(description='how lists become one ranking: a name, "rrf:k=2", or {"name": "rrf", "k": 2}'),
    ] = Coupling(name="evidence")
    weights: Annotated[
        dict[str, Weight],
        Field(max_length=1_000, description="what spaces count in the ranking; others: 1, or in evidence what the corpus taught"),
    ] = {}
    rerank: Annotated[
        LastStage | None, Field(description="reorder the best hits by a model; null: as the server does by itself; false: never")
    ] = None
    keep_all: Annotated[bool, Field(description="return hits even where the verdict is none: for rankings")] = False
    combine: Annotated[
        Tree | None, Field(description='several searches as one: {"union": [{"search": {…}}, …]}; then query, forms, layers are theirs')
    ] = None

    feedback: Annotated[
        tuple[SpanRef, ...],
        Field(max_length=MAX_SPANS, description='spans of hits, "HASH:START-END": asks for more like these; they are no hits then'),
    ] = ()
    translate: Annotated[
        Translator, Field(description="let a chat model write layers' own forms of the query: true: as the server is set up")
    ] = False

    @model_validator(mode="after")
    def _one_way_to_ask(self) -> "SearchRequest":
        asked_beside = [name for name in ASKING if getattr(self, name) != type(self).model_fields[name].default]
        if self.combine is not None and asked_beside:
            problem = "combine has sub-queries that say what is asked; move {fields} into them"
            raise PydanticCustomError("asked_twice", problem, {"fields": ", ".join(asked_beside)})
        if self.continue_ is not None and self.cursor is not None:
            raise PydanticCustomError("two_ways_on", "cursor gives further hits, continue more time; send one of them", {})
        if self.combine is not None and (self.feedback or self.translate):
            problem = "feedback and translate change one search; send them without combine"
            raise PydanticCustomError("combined_change", problem, {})
        return self


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
    text that it saw instead of the document. With `explain`: z, the score under the space's moments (`SpaceEvidence`); weight, what the
    space counts; share, weight x surprise: what the hit's `fused` is the sum of. part: the sub-query that asked, in a
    combined request."""

    layer: str
    score: float
    surprise: float
    evalue: float
    start: int
    end: int
    z: float | None = None
    weight: float | None = None
    share: float | None = None
    generated: Generated | None = None
    part: str = ""


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
    """A document. hash, start, end, line: where the strongest signal lies; column: in that line, in characters from 1, 0 where it is not
    known; place: in which part of a file that has pages, slides, sheets,
    chapters or cells ("page 3", "slide 4", "Sheet2!B7", "chapter 2", "cell 5"), else "". fused: weighted sum of surprises (nats). evalue:
    how many documents with so much fused evidence a query of unrelated words would bring (Gumbel fit of the best hit). constellation:
    who saw it: spaces that read the source; only derived ones, which see texts about it (then it is a hypothesis); or both (the strongest).
    coupled: the number by which hits are ranked where that is not `fused`, else null. ranks: the hit's place, from 1, in the list of each
    space that has it on its list; with evidence only where `explain` is set. All else is the same whatever the coupling.
    parts: of a combined request, what each sub-query says of it; `fused` and `evalue` are those of the whole (`serve/algebra.py`).
    freshness: whether its file is still what was indexed: current; changed (it is shown as it was); live (read for this search, and
    shown as it is now); unchecked."""

    hash: str
    start: int
    end: int
    line: int
    column: int = 0
    place: str = ""
    fused: float
    evalue: float
    entries: list[EntryOut]
    n_entries: int
    excerpt: ExcerptOut | None
    signals: list[Signal]
    constellation: Literal["source", "hypothesis", "both"] = "source"
    coupled: float | None = None
    ranks: dict[str, int] = {}
    parts: list[Part] = []
    rerank: RerankSignal | None = None
    freshness: HitFreshness = "unchecked"


class SpaceEvidence(Edge):
    """What a space's evidence rests on, with `explain`.

    n_units: its units in scope, the multiplier of its E-values. n, mean, sd: of this query's scores over all live units, by which scores
    become z (a space of matches has none; where sd is tiny, a floor of the space takes its place). gate: what known items say of it,
    0 to 1; learnt: what cloze probes say it counts beside all others of the corpus, null where they said nothing; cloze: its mean
    reciprocal rank on these; certainty: how far, 0 to 1, it certifies itself by a hit that chance hardly gives, where these said nothing.
    weight: what its surprise counts in `fused`. concordance: how much more it says, in standard deviations, of what the others together
    find best than of documents drawn by lot; null where no other space says anything."""

    n_units: int
    n: int | None
    mean: float | None
    sd: float | None
    gate: float
    learnt: float | None
    cloze: float | None
    certainty: float
    weight: float
    concordance: float | None


class LayerInfo(Edge):
    """A space, described once per answer, not per hit; asked: what it was asked, null where it was not. weight: what it counted in the
    ranking; reason: why nothing was asked of it, or why its answer did not count. null: where its surprise comes from: "probes" (a fitted
    table), "normal" (none yet), "rarity" (the chance of a match).

    With `explain`, of those that were asked, asked_by: who made the question: the caller (named the space, or gave it a form of its own), a
    rule (by what the query looks like), a model (encoded the text, or wrote the form), a bridge (other spaces' hits) or feedback (chosen
    spans); because: how, for people.
    part: the sub-query that asked it, in a combined request."""

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
    asked_by: Literal["caller", "rule", "model", "bridge", "feedback"] | None = None
    because: Printable = ""
    evidence: SpaceEvidence | None = None
    part: str = ""


class Coverage(Edge):
    """How much of the scope a space looked at on one shard, and why not all (`LayerStatus`). part: the sub-query that asked it."""

    layer: str
    shard: int
    state: str
    covered: int
    total: int
    reason: str = ""
    part: str = ""


class RerankInfo(Edge):
    """What became of reranking. done: the first `depth` hits stand in the reranker's order, the others behind them as they were. Else the
    order is that of the evidence: partial (only n of the hits were scored), skipped (none was), failed; reason: why."""

    state: Literal["done", "partial", "skipped", "failed"]
    reason: str = ""
    n: int
    depth: int
    model: str
    ms: float


class JointInfo(Edge):
    """What is known of a joint ranking. exact_to: its first so many hits are, in their order, those of the ranking of all documents of the
    scope, each scored by every space. rounds: calls to each host; candidates: documents scored by every space; documents: of the scope.
    reason: why not as many are certain as were asked for, "" if they are (fewer than asked for: no other has any evidence)."""

    exact_to: int
    rounds: int
    candidates: int
    documents: int
    reason: str = ""


class SearchAnswer(Edge):
    """verdict: strong, weak or none, with its reason. complete: whether every layer and shard was fully searched,
    and no hit had to be left out because its text could not be read in time. read_as: what the query looks like, with what shows it,
    where the spaces to ask were chosen by that. answerable, with `explain`: how far the query is from what this corpus takes for
    nonsense, in nats of log odds; below 0 it is taken for that. Null where that was not learnt, or only a part was searched.
    certificate: whether more could still come, and what that would change; null of a combined request. continue: of an answer that its time
    cut off: a request with it goes on where this one ended, for a minute. resumed: whether this one did so; null where that was not asked
    for, false where what it should have gone on from was not here any more, so that it began anew. plan, with `explain`: how it went."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

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
    coupling: Coupling = Coupling(name="evidence")
    joint: JointInfo | None = None
    combined: Combined | None = None
    rerank: RerankInfo | None = None
    timings_ms: dict[str, float]
    read_as: dict[str, str] = {}
    answerable: float | None = None
    feedback: FeedbackInfo | None = None
    translation: TranslationInfo | None = None
    certificate: Certificate | None = None
    continue_: Annotated[str | None, Field(alias="continue")] = None
    resumed: bool | None = None
    plan: SearchPlan | None = None
    freshness: FreshnessInfo | None = None


class DocumentAnswer(Edge):
    """A piece of a rendition: its bytes [start, end), cut outwards to whole characters, of size_bytes in all. live: it was read from a file
    that changed or came since the generation, which does not hold it."""

    corpus: str
    generation: int
    hash: str
    kind: str = ""
    start: int
    end: int
    size_bytes: int
    live: bool = False
    text: str
    entries: list[EntryOut]


class StatusAnswer(BaseModel):
    """What there is (`serve/status.py`), and what was counted. A key that does not see all corpora is told of those that it sees."""

    model_config = ConfigDict(extra="allow")

    corpora: dict[str, dict[str, Any]]
    hosts: list[dict[str, Any]] = []
    problems: dict[str, str] = {}
    ready: bool = False


class Ready(Edge):
    """Whether searches can be answered; why not, as far as the caller may know."""

    ready: bool
    reason: str = ""


class Problem(Edge):
    """kind: stable, for programs; message: for people, with the remedy; at: the place in the request, if there is one.

    Of queries of NLQL also category: syntax, schema, plan, type, execution, registry, embedding; line, column: in the query's text, from 1;
    expected: what could have stood there; caret: that line, and below it a caret under the column."""

    kind: str
    message: str
    at: str | None = None
    category: str | None = None
    line: int | None = None
    column: int | None = None
    expected: list[str] | None = None
    caret: str | None = None


class ProblemAnswer(Edge):
    """What every error looks like."""

    error: Problem
