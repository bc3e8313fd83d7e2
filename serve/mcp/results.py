"""What each tool gives as structured content: the schemas that clients are told. `text` of an item may be shortened, `left_out` says so."""

from typing import Any

from pydantic import BaseModel, Field


class FoundHit(BaseModel):
    """id: HASH:START-END, what read_span, `like` and suggest_terms take. evalue: how many documents this good chance alone would give.
    layers: who found it, the loudest first."""

    id: str
    path: str
    line: int
    place: str = ""
    evalue: float
    layers: list[str] = []
    metadata: dict[str, Any] = {}
    entries: int = 1
    text: str = ""


class Found(BaseModel):
    """verdict: strong, weak, or none: then there is no answer here. complete: whether all layers and shards were searched. final: whether
    what was not searched can change these hits no more."""

    corpus: str
    verdict: str
    reason: str
    complete: bool = True
    final: bool = True
    notes: list[str] = []
    hits: list[FoundHit]
    left_out: str = ""


class FoundRow(BaseModel):
    """A row of a query. id: HASH:START-END for read_span. doc_id: the document's path."""

    id: str
    doc_id: str
    kind: str
    scores: dict[str, float] = {}
    metadata: dict[str, Any] = {}
    text: str = ""


class PlanText(BaseModel):
    text: str


class Rows(BaseModel):
    """Rows in the query's order; facets by expression, [value, count]. plan: where it was asked for, instead of rows."""

    corpus: str
    complete: bool = True
    facets: dict[str, list[list[Any]]] = {}
    rows: list[FoundRow]
    plan: list[PlanText] = []
    left_out: str = ""


class Piece(BaseModel):
    """Bytes [start, end) of a document of size_bytes. next: the id that continues, "" at the end."""

    id: str
    path: str
    start: int
    end: int
    size_bytes: int
    next: str = ""
    text: str


class CorpusFacts(BaseModel):
    """layers: names, by what they are asked."""

    corpus: str
    documents: int
    generation: int
    layers: list[str]
    text: str = ""


class Corpora(BaseModel):
    corpora: list[CorpusFacts]
    left_out: str = ""


class Problem(BaseModel):
    what: str
    text: str = ""


class State(BaseModel):
    """ready: whether searches can be answered; problems: what is wrong, none if nothing is."""

    ready: bool
    hosts: int
    problems: list[Problem]
    left_out: str = ""


class TermFound(BaseModel):
    """ratio: Dunning's log-likelihood ratio; spans: of those looked at, how many hold it; df: passages of the corpus that do."""

    term: str
    ratio: float
    spans: int
    df: int


class Terms(BaseModel):
    corpus: str
    read: int
    terms: list[TermFound]
    left_out: str = ""


class Added(BaseModel):
    """id: for read_span. searchable: whether searches find it already; durable it is in any case."""

    corpus: str
    path: str
    id: str
    searchable: bool
    notes: list[str] = Field(default_factory=list)


class FetchedHit(BaseModel):
    path: str
    title: str = ""
    url: str = ""
    date: str = ""
    text: str = ""


class Fetched(BaseModel):
    """found: results of the external tool, which are in the corpus now, with `external` (its name), `url` and `fetched` as metadata."""

    source: str
    corpus: str
    accepted: int
    searchable: bool
    notes: list[str] = []
    found: list[FetchedHit]
    left_out: str = ""
