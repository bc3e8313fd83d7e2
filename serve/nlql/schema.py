"""A query of NLQL and its answer, as they cross HTTP: the same for people, programs and agents."""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from serve.edge import MAX_QUERY_CHARS, Edge, Printable
from serve.freshness_schema import FreshnessInfo
from serve.schema import Coverage

MAX_TEXT_CHARS = 64 * 1024  # of a query: room for long lists of IN
MAX_FACTOR = 100
RERANK_FACTOR = 5  # as the peer has it; of 10 rows asked for, a reranker reads 50

Bound = bool | int | float | str | None
Name = Annotated[str, Field(min_length=1, max_length=500)]


class QueryRequest(Edge):
    """One query over one corpus: as text, or as the tree that it stands for."""

    corpus: Annotated[str, Field(min_length=1, max_length=128, description="name of the corpus")]
    text: Annotated[str | None, Field(max_length=MAX_TEXT_CHARS, description="the query in NLQL; EXPLAIN before it shows the plan")] = None
    ir: Annotated[dict[str, Any] | None, Field(description="the query as a tree, see GET /v1/nlql/schema")] = None
    params: Annotated[
        dict[str, Bound | list[Bound]],
        Field(max_length=1_000, description="values of the query's :names; a list only where IN takes one"),
    ] = {}
    limit: Annotated[int | None, Field(ge=0, description="rows wanted, instead of the query's own LIMIT")] = None
    field_types: Annotated[
        dict[str, str], Field(max_length=1_000, description='types of metadata, over the corpus\'s own: {"released.on": "date"}')
    ] = {}
    reranker: Annotated[
        Literal[False] | Name | None,
        Field(description="who orders the best rows: a registered name, cross-encoder:MODEL; false: nobody; null: who is called default"),
    ] = None
    rerank_factor: Annotated[int | None, Field(ge=1, le=MAX_FACTOR, description=f"so many times LIMIT are reranked ({RERANK_FACTOR})")] = (
        None
    )
    rerank_query: Annotated[
        str | None, Field(max_length=MAX_QUERY_CHARS, description="the reranker's question instead of the first score's text")
    ] = None
    strict: Annotated[bool, Field(description="plain NLQL: what Sondage adds is an error")] = False
    explain: Annotated[bool, Field(description="the plan alone; nothing is run")] = False
    generation: Annotated[int | None, Field(ge=1, lt=10**16, description="a kept generation to ask instead of the newest")] = None
    budget_ms: Annotated[int, Field(ge=1, le=60_000, description="time for the whole answer; WITHIN in the query may shorten it")] = 10_000

    @model_validator(mode="after")
    def _asked_once(self) -> "QueryRequest":
        if (self.text is None) == (self.ir is None):
            raise PydanticCustomError("asked_once", "give the query as text, or as ir, and not both")
        return self


class RowEntry(Edge):
    """The entry that a row is of: where its document lies."""

    source: Printable
    path: Printable
    size_bytes: int
    mtime: float


class Row(Edge):
    """One row. id: within the corpus; doc_id: the entry's path, which of a pushed document is the id that it was pushed under. kind:
    document, chunk, sentence or span. content: normalised text of the unit, of a document its whole original text. scores: by alias of LET
    that is a number, and `rerank`. ordinal: of the unit in its document, from 0. span: first, matching and last ordinal, of kind span.
    hash, start, end: bytes [start, end) of the document's rendition."""

    id: Printable
    doc_id: Printable
    kind: Literal["document", "chunk", "sentence", "span"]
    content: Printable
    metadata: dict[str, Any] = {}
    scores: dict[str, float] = {}
    ordinal: int = 0
    span: tuple[int, int, int] | None = None
    entry: RowEntry | None = None
    hash: str = ""
    start: int = 0
    end: int = 0


class FacetValue(Edge):
    """A value and how many rows have it, of all that WHERE keeps."""

    value: Any
    count: int


class Facet(Edge):
    """Counts of one expression of COUNT BY, most frequent first. n_values: how many there are, of which `values` may be the first."""

    expr: str
    values: list[FacetValue]
    n_values: int


class QueryRerank(Edge):
    """What became of reranking. done: rows stand in the reranker's order. partial: the time was over when n of them were scored, which
    changed places among themselves; the others stand where they stood."""

    state: Literal["done", "partial"]
    name: str
    query: str | None = None
    n: int = 0
    reason: str = ""
    ms: float = 0.0


class Looked(Edge):
    """Of EVIDENCE or EVALUE, how many documents the search behind it brought; of others the value is null."""

    expr: str
    documents: int
    complete: bool


class QueryAnswer(Edge):
    """Rows in order. complete: whether all shards and spaces were looked at in full; where not, coverage says which and why, and the rows
    are those of the rest. plan: where it was asked for, and then there are no rows. freshness: what is known to have changed in the sources
    since; rows are those of the generation."""

    corpus: str
    generation: int
    rows: list[Row]
    facets: list[Facet] = []
    complete: bool = True
    coverage: list[Coverage] = []
    rerank: QueryRerank | None = None
    looked_at: list[Looked] = []
    plan: dict[str, Any] | None = None
    timings_ms: dict[str, float] = {}
    freshness: FreshnessInfo | None = None


def query_request(value: Any) -> QueryRequest:
    """Decoded JSON as a request. Raises InvalidRequest with the places of what is wrong."""
    from serve.problems import invalid

    try:
        return QueryRequest.model_validate(value)
    except ValidationError as error:
        raise invalid(error.errors(), QueryRequest) from None
