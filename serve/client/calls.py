"""Every route as a value: what is sent, and how its answer is read. No I/O, so that `Client` and `AsyncClient` cannot drift apart."""

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from urllib.parse import quote

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from serve.corpora_schema import OpeningAnswer, OpenRequest
from serve.links import parameters_of
from serve.problems import invalid, place
from serve.push_schema import BulkAnswer, PushAnswer, PushParameters
from serve.schema import DocumentAnswer, Ready, SearchAnswer, SearchRequest
from shards.errors import BadQuery

from .pushing import document_body
from .refusals import Refused

if TYPE_CHECKING:
    from serve.feedback_schema import TermsAnswer
    from serve.layer_orders import LayersAnswer
    from serve.nlql.builder import QueryBuilder
    from serve.nlql.schema import QueryAnswer, QueryRequest
    from shards.nlql.ir import Query

    Asked = str | Query | QueryBuilder | Mapping[str, Any] | QueryRequest

ANSWER_S = 30.0  # for calls without a budget of their own
SLACK_S = 10.0  # beyond a search's own budget: the network, and a server that opens its shards first
PUSH_S = 60.0  # for what is pushed to become durable, and a portion of some megabytes to arrive

JSON = {"content-type": "application/json"}
DOCUMENT_TYPE = "application/vnd.sondage.document+json"
LINES_TYPE = "application/x-ndjson"

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Parameters = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request. It reads, or bears ids, so that it may be sent again.

    path: percent-encoded. read: makes the answer of a body. budget_s: what is to be done is done by then; slack_s: the answer may come
    so much later. answers: statuses beside 2xx that are answers and no errors. shorter: the same call, to be done within so many seconds.
    """

    method: str
    path: str
    read: Callable[[bytes], T]
    budget_s: float = ANSWER_S
    slack_s: float = 0.0
    parameters: Parameters = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    answers: frozenset[int] = frozenset()
    shorter: "Callable[[float], Call[T]] | None" = None


# --- searching ---------------------------------------------------------------------------------------------------------------


def search(request: SearchRequest) -> Call[SearchAnswer]:
    """As a link where it fits into one."""
    parameters = parameters_of(request)
    call = Call("GET", "/v1/search", _model(SearchAnswer), request.budget_ms / 1e3, SLACK_S, parameters or ())
    if parameters is None:
        call = replace(call, method="POST", headers=JSON, content=_asked(request))
    return replace(call, shorter=lambda seconds: search(request.model_copy(update={"budget_ms": _budget_ms(seconds, request.budget_ms)})))


def search_stream(request: SearchRequest) -> Call[bytes]:
    """The same, answered again and again, better each time (`streams`)."""
    headers = {**JSON, "accept": LINES_TYPE}
    return replace(
        Call("POST", "/v1/search", bytes, request.budget_ms / 1e3, SLACK_S, (), headers, _asked(request)),
        shorter=lambda seconds: search_stream(request.model_copy(update={"budget_ms": _budget_ms(seconds, request.budget_ms)})),
    )


def query(request: "QueryRequest") -> "Call[QueryAnswer]":
    """A query of NLQL, or its plan."""
    from serve.nlql.schema import QueryAnswer

    return replace(
        Call("POST", "/v1/query", _model(QueryAnswer), request.budget_ms / 1e3, SLACK_S, (), JSON, _asked(request)),
        shorter=lambda seconds: query(request.model_copy(update={"budget_ms": _budget_ms(seconds, request.budget_ms)})),
    )


def query_rows(request: "QueryRequest") -> Call[bytes]:
    """The same, answered row by row (`streams`)."""
    headers = {**JSON, "accept": LINES_TYPE}
    return replace(
        Call("POST", "/v1/query", bytes, request.budget_ms / 1e3, SLACK_S, (), headers, _asked(request)),
        shorter=lambda seconds: query_rows(request.model_copy(update={"budget_ms": _budget_ms(seconds, request.budget_ms)})),
    )


def query_of(text: "Asked", corpus: str, fields: Mapping[str, Any]) -> "QueryRequest":
    """The arguments of `query` as a request. Raises InvalidRequest, NLQLError."""
    from .asking import as_query

    return as_query(text, corpus, fields)


def nlql_schema(corpus: str | None, strict: bool) -> Call[dict[str, Any]]:
    return Call("GET", "/v1/nlql/schema", _values, parameters=_stated(corpus=corpus, strict=strict or None))


def suggest_terms(**fields: Any) -> "Call[TermsAnswer]":
    """fields: of `TermsRequest`. Raises InvalidRequest."""
    from serve.feedback_schema import TermsAnswer, TermsRequest

    try:
        request = TermsRequest.model_validate(fields)
    except ValidationError as error:
        raise invalid(error.errors(), TermsRequest) from None
    return replace(
        Call("POST", "/v1/suggest_terms", _model(TermsAnswer), request.budget_ms / 1e3, SLACK_S, (), JSON, _asked(request)),
        shorter=lambda seconds: suggest_terms(**fields | {"budget_ms": _budget_ms(seconds, request.budget_ms)}),
    )


def document(hash: str, corpus: str, start: int | None, end: int | None, generation: int | None) -> Call[DocumentAnswer]:
    """Raises BadQuery for what is no content hash."""
    where = f"/v1/documents/{_hash(hash)}"
    return Call("GET", where, _model(DocumentAnswer), parameters=_stated(corpus=corpus, start=start, end=end, generation=generation))


def media(hash: str, corpus: str, generation: int | None) -> Call[bytes]:
    """Raises BadQuery for what is no content hash."""
    return Call("GET", f"/v1/documents/{_hash(hash)}/media", bytes, parameters=_stated(corpus=corpus, generation=generation))


# --- pushing -----------------------------------------------------------------------------------------------------------------


def put(
    path: str,
    content: str | bytes,
    metadata: Mapping[str, Any] | None,
    corpus: str,
    vectors: Mapping[str, Any] | None,
    id: str | None,
    asked: PushParameters,
) -> Call[PushAnswer]:
    """Raises BadQuery for a path that an address would change, and for what is not JSON."""
    try:
        body = json.dumps(document_body(content, metadata, vectors), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise BadQuery(f"The document for path {path!r} is not JSON: {error}.") from None
    return _push("PUT", _place(corpus, path), PushAnswer, asked, _numbered(id) | {"content-type": DOCUMENT_TYPE}, body)


def delete(path: str, corpus: str, id: str | None, asked: PushParameters) -> Call[PushAnswer]:
    """Raises BadQuery for a path that an address would change."""
    return _push("DELETE", _place(corpus, path), PushAnswer, asked, _numbered(id))


def put_lines(lines: Sequence[bytes], corpus: str, asked: PushParameters) -> Call[BulkAnswer]:
    """One portion of a bulk push; each line bears an id."""
    return _push("POST", _place(corpus), BulkAnswer, asked, {"content-type": LINES_TYPE}, b"\n".join(lines))


def _push(
    method: str, where: str, answer: type[Model], asked: PushParameters, headers: Mapping[str, str], content: bytes | None = None
) -> Call[Model]:
    parameters = [(name, _written(value)) for name, value in asked.model_dump(exclude_defaults=True).items()]
    return Call(method, where, _model(answer), asked.timeout_ms / 1e3 + PUSH_S, 0.0, parameters, headers, content)


def _numbered(id: str | None) -> dict[str, str]:
    """A retry must not be another operation: the id is made before the first try."""
    return {"idempotency-key": id or uuid.uuid4().hex}


def open_corpus(
    corpus: str, root: str, include: Sequence[str], exclude: Sequence[str], source: str, layers: Sequence[str] | None
) -> Call[OpeningAnswer]:
    """Sent twice it is one order. Raises InvalidRequest."""
    body = {"corpus": corpus, "source": {"root": root, "include": list(include), "exclude": list(exclude), "name": source}}
    try:
        request = OpenRequest.model_validate(body | ({"layers": list(layers)} if layers is not None else {}))
    except ValidationError as error:
        raise invalid(error.errors(), OpenRequest) from None
    return Call("POST", "/v1/corpora", _model(OpeningAnswer), headers=JSON, content=_asked(request))


def opening(corpus: str, source: str) -> Call[OpeningAnswer]:
    return Call("GET", f"/v1/corpora/{quote(corpus, safe='')}", _model(OpeningAnswer), parameters=_stated(source=source))


# --- the server --------------------------------------------------------------------------------------------------------------


def layers(corpus: str, fields: Mapping[str, Any]) -> "Call[LayersAnswer]":
    """fields: of `LayersRequest`. Given twice, an order says the same. Raises InvalidRequest."""
    from serve.layer_orders import LayersAnswer, LayersRequest

    try:
        request = LayersRequest.model_validate(dict(fields))
    except ValidationError as error:
        raise invalid(error.errors(), LayersRequest) from None
    return Call("POST", f"/v1/corpora/{quote(corpus, safe='')}/layers", _model(LayersAnswer), headers=JSON, content=_asked(request))


def status() -> Call[dict[str, Any]]:
    return Call("GET", "/v1/status", _values)


def metrics() -> Call[str]:
    return Call("GET", "/metrics", bytes.decode)


def alive() -> Call[bool]:
    return Call("GET", "/healthz", lambda body: bool(_values(body)["status"] == "ok"))


def ready() -> Call[Ready]:
    """A server that is not ready says so, which is no failure of the call."""
    return Call("GET", "/readyz", _model(Ready), answers=frozenset({503}))


# --- parts -------------------------------------------------------------------------------------------------------------------


def _model(kind: type[Model]) -> Callable[[bytes], Model]:
    def read(body: bytes) -> Model:
        try:
            return kind.model_validate_json(body)
        except ValidationError as error:
            first = error.errors()[0]
            raise not_understood(f"{place(first['loc'])}: {first['msg']}") from error

    return read


def _values(body: bytes) -> dict[str, Any]:
    try:
        value = from_json(body)
    except ValueError as error:
        raise not_understood(str(error)) from error
    if not isinstance(value, dict):
        raise not_understood("no JSON object")
    return cast(dict[str, Any], value)


def not_understood(what: str) -> Refused:
    """An answer that is not what was to come."""
    return Refused(f"The server answered what this client does not understand ({what}). Is it another version of Sondage?", 502)


def _asked(request: BaseModel) -> bytes:
    """What the caller left open stays open: a key's limits may then lower it (`serve.limits.within`)."""
    return request.model_dump_json(exclude_unset=True).encode()


def _budget_ms(seconds: float, most: int) -> int:
    return max(1, min(most, int(1e3 * seconds)))


def _stated(**parameters: Any) -> Parameters:
    return [(name, _written(value)) for name, value in parameters.items() if value is not None]


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _hash(hash: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{40}", hash):
        raise BadQuery(f"{hash!r} is no content hash: expected 40 hex digits, as in a hit.")
    return hash


def _place(corpus: str, path: str | None = None) -> str:
    where = f"/v1/corpora/{quote(corpus, safe='')}/documents"
    if path is None:
        return where
    if not path or any(part in ("", ".", "..") for part in path.split("/")):
        raise BadQuery(f"Path {path[:80]!r} has an empty part, `.` or `..`. Use parts separated by single slashes.", at="path")
    return f"{where}/{quote(path, safe='/')}"
