"""Whom a request comes from, and whether it may: the key, its scope and its corpora, before anything else is done for it."""

import ipaddress
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer
from pydantic_core import to_json

from serve.keys import Caller, KeyRing, ScopeName
from serve.limits import Limits, n_searches, timely, within
from serve.problem_answers import trail_of
from serve.problems import Forbidden, Unauthorized
from serve.schema import SearchRequest

if TYPE_CHECKING:
    from serve.nlql.schema import QueryRequest

_FORWARDED = ("forwarded", "x-forwarded-for")  # with which a proxy says for whom it asks


class Guard:
    """Lets requests in. Those that it lets in have a caller, whose limits they keep until `serve.problem_answers.Envelope` ends them."""

    def __init__(self, keys: KeyRing):
        self.keys = keys

    def admit(self, request: Request, wanted: ScopeName, *, all_corpora: bool = False) -> Caller:
        """The caller of a request, which begins herewith. Raises Unauthorized, Forbidden, Limited."""
        trail = trail_of(request)
        if self.keys.is_open:
            refuse_rebinding(trail.headers.get(b"host", b"").decode("latin-1"))
        caller = self.keys.find(key_given(trail.headers))
        trail.key = caller.id
        if all_corpora and not caller.sees_all:
            raise Forbidden(f"The API key {caller.id} sees some corpora only; this tells of all of them together. Use another key.")
        caller.begin(wanted, self.keys.clock())
        trail.caller = caller
        return caller

    def needs(self, wanted: ScopeName, *, all_corpora: bool = False) -> Callable[..., Coroutine[Any, Any, None]]:
        """`admit` as a dependency of a route, of which /openapi.json tells."""
        bearer = HTTPBearer(auto_error=False, description="an API key, where the server has some")
        header = APIKeyHeader(name="X-API-Key", auto_error=False)

        async def guard(
            request: Request,
            _bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
            _header: Annotated[str | None, Depends(header)],
        ) -> None:
            self.admit(request, wanted, all_corpora=all_corpora)

        return guard

    def sees(self, request: Request, corpus: str) -> Caller:
        """The caller of an admitted request, if it may know of the corpus. Raises NoCorpus, the same whether there is such a one.

        Nothing was looked up before, so neither does the time tell.
        """
        trail = trail_of(request)
        trail.corpus = corpus
        caller = trail.caller
        assert caller is not None
        if not caller.sees(corpus):
            raise caller.no_corpus(corpus)
        return caller

    def weigh(self, request: Request, asked: SearchRequest) -> SearchRequest:
        """A search of an admitted request, as far as its caller may ask it. Raises NoCorpus, OverLimit."""
        caller = self.sees(request, asked.corpus)
        trail_of(request).query = asked.query
        if caller.bucket is not None and (more := n_searches(asked) - 1):
            caller.bucket.owe(more, self.keys.clock())
        return within(asked, caller.limits)

    def weigh_query(self, request: Request, asked: "QueryRequest") -> "tuple[QueryRequest, Limits]":
        """A query of an admitted request with its time, as far as its caller may ask it, and what else it must keep to, which planning
        tells. Raises NoCorpus, OverLimit."""
        caller = self.sees(request, asked.corpus)
        trail_of(request).query = asked.text if asked.text is not None else to_json(asked.ir).decode()
        return timely(asked, caller.limits), caller.limits

    def owe(self, request: Request, n_requests: int) -> None:
        """The caller of an admitted request did as much as so many more."""
        caller = trail_of(request).caller
        if n_requests and caller is not None and caller.bucket is not None:
            caller.bucket.owe(n_requests, self.keys.clock())

    def knows(self, request: Request) -> bool:
        """Whether a request comes from somebody who may know why a server is not ready: with a key, or from this machine itself."""
        if self.keys.is_open:
            return True
        try:
            self.keys.find(key_given(trail_of(request).headers))
        except Unauthorized:
            own = request.client is not None and _is_loopback(request.client.host)
            return own and not any(name in request.headers for name in _FORWARDED)
        return True


def key_given(headers: Mapping[bytes, bytes]) -> str:
    """The API key of a request, "" without one; as FastAPI's HTTPBearer and APIKeyHeader find it."""
    if key := headers.get(b"x-api-key"):
        return key.decode("latin-1")
    scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
    return credentials.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refuse_rebinding(host: str) -> None:
    """Without API keys, only addresses and names without a dot may stand in the Host header. Raises Forbidden.

    A web page elsewhere can let its own domain point to 127.0.0.1 and then read what a browser on this machine may read (DNS
    rebinding). Its requests bear that domain, which has a dot and is no address.
    """
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    name = name.strip("[]").rstrip(".")
    if "." not in name or name.endswith(".localhost"):
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise Forbidden(
            f"Without an API key this server does not answer to the name {name!r}, which a foreign web page could have chosen. "
            "Ask it by its address, or start it with an API key."
        ) from None
