"""What requests may cost: how many, how many at once, how dear a single one."""

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, ValidationError

from serve.edge import Edge
from serve.problems import OverLimit
from shards.errors import BadSpec

if TYPE_CHECKING:
    from serve.nlql.schema import QueryRequest
    from serve.schema import SearchRequest


class Limits(Edge):
    """Of a deployment, and of single keys. Null: no limit but those of the request's schema. Those of requests hold for each key in each
    coordinator's process; without keys, for all callers together."""

    requests_per_s: Annotated[float | None, Field(gt=0, le=1e6, description="in the long run; sub-queries count as requests")] = None
    burst: Annotated[float | None, Field(ge=1, le=1e6, description="that may come at once; null: those of one second")] = None
    concurrent: Annotated[int | None, Field(ge=1, le=100_000, description="requests under way at once")] = None
    budget_ms: Annotated[int | None, Field(ge=1, le=60_000, description="that a search may ask for")] = None
    k: Annotated[int | None, Field(ge=1, le=1_000, description="hits that a search may ask for")] = None
    searches: Annotated[int | None, Field(ge=1, le=16, description="sub-queries of one request")] = None
    rerank_depth: Annotated[int | None, Field(ge=0, le=200, description="hits that a model may read; 0: requests may name none")] = None
    translate: Annotated[int | None, Field(ge=0, le=1, description="0: requests may not let a model write forms")] = None
    form_chars: Annotated[int | None, Field(ge=0, description="of all that forms hold: patterns, rules, images")] = None

    @classmethod
    def parse(cls, text: str, origin: str = "limits") -> Self:
        """From NAME=NUMBER,… as on a command line. Raises BadSpec."""
        pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
        try:
            return cls.model_validate({name.strip(): value.strip() for name, _, value in pairs})
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise BadSpec(f"{origin}: {problems}. Write NAME=NUMBER,…; there are: {', '.join(cls.model_fields)}.") from None

    def narrowed(self, own: "Limits") -> "Limits":
        """These, but for what `own` states."""
        return self.model_copy(update=own.model_dump(exclude_none=True))

    def __str__(self) -> str:
        return ",".join(f"{name}={value:g}" for name, value in self.model_dump(exclude_none=True).items())


class TokenBucket:
    """Lets through `rate` in a second in the long run, and `burst` at once. Seconds are the caller's, of a clock that only goes forward."""

    __slots__ = ("at", "burst", "rate", "tokens")

    def __init__(self, rate: float, burst: float):
        self.rate, self.burst = rate, burst
        self.tokens, self.at = burst, -1.0

    def take(self, n: float, now: float) -> float:
        """Takes n tokens, or none where there are too few: then the seconds until there are enough; else 0."""
        self._refill(now)
        if self.tokens < n:
            return (n - self.tokens) / self.rate
        self.tokens -= n
        return 0.0

    def owe(self, n: float, now: float) -> None:
        """Takes n tokens whether they are there or not: what was begun is done, and the next has to wait longer."""
        self._refill(now)
        self.tokens -= n

    def _refill(self, now: float) -> None:
        if self.at >= 0.0:
            self.tokens = min(self.burst, self.tokens + max(0.0, now - self.at) * self.rate)
        self.at = now


def within(asked: "SearchRequest", limits: Limits) -> "SearchRequest":
    """The request, with what it leaves to the server (`budget_ms`, `k`) lowered to the limits. Raises OverLimit where it asks for more."""
    lowered: dict[str, Any] = {}
    for field in ("budget_ms", "k"):
        most, wanted = getattr(limits, field), getattr(asked, field)
        if most is not None and wanted > most:
            if field in asked.model_fields_set:
                raise _over(f"{field}: {wanted} is over the limit, {most}.", field)
            lowered[field] = most
    if limits.searches is not None and (n := n_searches(asked)) > limits.searches:
        raise _over(f"combine: has {n} sub-queries; the limit is {limits.searches}.", "combine")
    if limits.rerank_depth is not None and asked.rerank and asked.rerank.depth > limits.rerank_depth:
        raise _over(f"rerank.depth: {asked.rerank.depth} is over the limit, {limits.rerank_depth}.", "rerank.depth")
    if limits.translate == 0 and asked.translate:
        raise _over("translate: no model writes forms for this key.", "translate")
    if limits.form_chars is not None and (n := form_chars(asked)) > limits.form_chars:
        raise _over(f"forms: hold {n:,} characters; the limit is {limits.form_chars:,}.", "forms")
    return asked.model_copy(update=lowered) if lowered else asked


def timely(asked: "QueryRequest", limits: Limits) -> "QueryRequest":
    """The query, with the time that it leaves to the server lowered to the limit. Raises OverLimit where it asks for more."""
    most = limits.budget_ms
    if most is None or asked.budget_ms <= most:
        return asked
    if "budget_ms" in asked.model_fields_set:
        raise _over(f"budget_ms: {asked.budget_ms} is over the limit, {most}.", "budget_ms")
    return asked.model_copy(update={"budget_ms": most})


def check_query(n_rows: int | None, n_reranked: int | None, n_searches: int, limits: Limits) -> None:
    """Raises OverLimit for a query that asks for more rows, hands a reranker more, or searches more often than its caller may. None: all
    rows that there are."""
    if limits.k is not None and (n_rows is None or n_rows > limits.k):
        wanted = "all rows" if n_rows is None else f"{n_rows:,} rows"
        raise _over(f"LIMIT: the query asks for {wanted}; the limit is {limits.k:,}.", "limit")
    if limits.rerank_depth is not None and n_reranked != 0 and (n_reranked is None or n_reranked > limits.rerank_depth):
        wanted = "all rows" if n_reranked is None else f"{n_reranked:,} rows"
        raise _over(f"reranker: would be given {wanted}; the limit is {limits.rerank_depth:,}.", "reranker")
    if limits.searches is not None and n_searches > limits.searches:
        raise _over(f"EVIDENCE: the query needs {n_searches} searches; the limit is {limits.searches}.", "text")


def _over(problem: str, at: str) -> OverLimit:
    return OverLimit(f"{problem} Ask for less, or with a key that may have more.", at=at)


def n_searches(asked: "SearchRequest") -> int:
    """Sub-queries of a request, 1 of a plain one."""
    if asked.combine is None:
        return 1
    from serve.algebra_schema import places

    return sum(1 for _ in places(asked.combine))


def form_chars(asked: "SearchRequest") -> int:
    """Characters of all texts in a request's forms, those of sub-queries included."""
    from serve.algebra_schema import places

    forms: list[Any] = [asked.forms]
    if asked.combine is not None:
        forms += [place.search.search.forms for place in places(asked.combine)]
    total = 0
    while forms:
        found = forms.pop()
        if isinstance(found, str):
            total += len(found)
        elif isinstance(found, dict):
            forms += found.values()
        elif isinstance(found, list | tuple):
            forms += found
    return total
