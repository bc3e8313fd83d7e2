"""Spans that a caller chose, what became of a question by them, and terms, as they cross HTTP."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from serve.edge import MAX_QUERY_CHARS, Edge, Printable

MAX_SPANS = 32  # of one request; each is read from a host
_SPELT = re.compile(r"([0-9a-f]{40})(?::(\d{1,18})-(\d{1,18}))?")


def _from_text(value: Any) -> Any:
    """HASH or HASH:START-END as fields."""
    if not isinstance(value, str):
        return value
    if (spelt := _SPELT.fullmatch(value)) is None:
        raise PydanticCustomError("span", "a span is HASH or HASH:START-END, the hash of 40 hexadecimal digits as in a hit")
    document, start, end = spelt.groups()
    return {"hash": document} if start is None else {"hash": document, "start": int(start), "end": int(end)}


class Span(Edge):
    """Bytes [start, end) of a document's rendition; no end: to its own."""

    hash: Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
    start: Annotated[int, Field(ge=0, lt=2**63)] = 0
    end: Annotated[int | None, Field(ge=0, lt=2**63)] = None

    @model_validator(mode="after")
    def _forward(self) -> "Span":
        if self.end is not None and self.end <= self.start:
            raise PydanticCustomError("span_order", "a span ends behind its start, not at {end}", {"end": self.end})
        return self

    def __str__(self) -> str:
        return self.hash if self.end is None else f"{self.hash}:{self.start}-{self.end}"


SpanRef = Annotated[Span, BeforeValidator(_from_text, json_schema_input_type=Span | str)]


class FeedbackInfo(Edge):
    """How chosen spans changed the question. spans: that were read; terms: words that are asked beside the query's own, heaviest first;
    spaces: of each space whose question changed, how, for people; left_out: why those of other spaces did not."""

    spans: int
    terms: tuple[Printable, ...] = ()
    spaces: dict[str, Printable] = {}
    left_out: dict[str, str] = {}


class TermsRequest(Edge):
    """Which terms set spans, or what a query finds, apart from the corpus."""

    corpus: Annotated[str, Field(min_length=1, max_length=128, description="name of the corpus")]
    spans: Annotated[tuple[SpanRef, ...], Field(max_length=MAX_SPANS, description='"HASH:START-END" or fields; of hits')] = ()
    query: Annotated[str, Field(max_length=MAX_QUERY_CHARS, description="instead of spans: those of its first 10 hits")] = ""
    k: Annotated[int, Field(ge=1, le=200, description="terms wanted")] = 20
    generation: Annotated[int | None, Field(ge=1, lt=10**16, description="a kept generation instead of the newest")] = None
    budget_ms: Annotated[int, Field(ge=1, le=60_000, description="time for the whole answer")] = 2_000

    @model_validator(mode="after")
    def _one_way(self) -> "TermsRequest":
        if bool(self.spans) == bool(self.query.strip()):
            raise PydanticCustomError("asked_twice", "give spans of hits, or a query whose hits are looked at")
        return self


class SuggestedTerm(Edge):
    """term: as it stands in the texts, the most frequent of `forms`. ratio: Dunning's log-likelihood ratio of how many spans hold it
    against how many units of the corpus (above 10.8: p < .001 for one term). spans: how many hold it; df, n_units: of the corpus."""

    term: Printable
    forms: tuple[Printable, ...]
    ratio: float
    spans: int
    df: int
    n_units: int


class TermsAnswer(Edge):
    """The most telling terms first. read: spans that were looked at; layer: the space whose analysis and statistics they are by."""

    corpus: str
    generation: int
    layer: str
    read: int
    terms: tuple[SuggestedTerm, ...]
