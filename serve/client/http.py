"""A client of Sondage's HTTP interface."""

import json
import os
import re
import ssl
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from serve.links import parameters_of
from serve.problems import error_of, place
from serve.push_schema import BulkAnswer, PushAnswer, PushParameters
from serve.schema import DocumentAnswer, ProblemAnswer, SearchAnswer, SearchRequest
from shards.errors import BadQuery, BadSpec, SondageError

from . import as_request
from .pushing import Item, document_body, joined, parameters, portions

CONNECT_TIMEOUT_S = 5.0  # a server on this planet accepts within 1 s; the rest is for one that is busy
ANSWER_TIMEOUT_S = 30.0  # for calls without a budget of their own
BUDGET_SLACK_S = 10.0  # beyond a search's own budget: the network, and a server that opens its shards first
PUSH_S = 60.0  # for what is pushed to become durable, and a portion of some megabytes to arrive
RETRY_WAITS_S = (0.1, 0.3)  # after a refused connection: a restarted proxy is back within that, an absent one is soon reported

Answer = TypeVar("Answer", bound=BaseModel)


class Unreachable(SondageError):
    """Nobody answers at the server's address, or not in time."""

    status = 503


class Refused(SondageError):
    """The server refused, for a reason that has no class of its own here. kind, at: as it said; status: its HTTP code."""

    def __init__(self, message: str, status: int, kind: str = "", at: str | None = None):
        super().__init__(message, at=at)
        self.status, self.kind = status, kind


class Client:
    """Calls one server; safe for several threads. Close it, or use `with`.

    url: `http://host:port` or `https://…`. api_key: sent as a bearer token where given. ca_file: PEM file of who vouches for the server;
    none: the public authorities.
    """

    def __init__(self, url: str, api_key: str | None = None, ca_file: str | os.PathLike[str] | None = None):
        """Raises BadSpec for an address that is no HTTP URL, or a file that is no certificate."""
        if not re.match(r"https?://[^/]", url):
            raise BadSpec(f"The server's address {url!r} is no URL. Write http://host:port.")
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        # No proxies or .netrc of the environment: loopback is not asked through a proxy, nor given foreign passwords.
        trust: ssl.SSLContext | bool = True
        if ca_file is not None:
            try:
                trust = ssl.create_default_context(cafile=ca_file)
            except OSError as error:
                raise BadSpec(f"{os.fspath(ca_file)} holds no certificate (PEM): {error.strerror or error}.") from None
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=False, verify=trust)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def search(self, query: str | SearchRequest = "", corpus: str = "", **fields: Any) -> SearchAnswer:
        """One search: a whole SearchRequest, or its query, corpus and other fields (`k=5, layers=["bm25"], paths=["*.py"]`).

        Raises the errors of `shards.errors` that the server reports, and Unreachable.
        """
        request = as_request(query, corpus, fields)
        patience_s = request.budget_ms / 1e3 + BUDGET_SLACK_S
        parameters = parameters_of(request)
        if parameters is None:
            body = self._call("POST", "/v1/search", patience_s, content=request.model_dump_json())
        else:
            body = self._call("GET", "/v1/search", patience_s, params=parameters)
        return self._read(SearchAnswer, body)

    def status(self) -> dict[str, Any]:
        """The corpora with their layers, and the hosts."""
        return from_json(self._call("GET", "/v1/status", ANSWER_TIMEOUT_S))

    def document(
        self, hash: str, corpus: str, start: int | None = None, end: int | None = None, generation: int | None = None
    ) -> DocumentAnswer:
        """A document's text by its content hash (40 hex digits), or the bytes [start, end) of it; of any kept generation."""
        asked = {"corpus": corpus, "start": start, "end": end, "generation": generation}
        parameters = {name: value for name, value in asked.items() if value is not None}
        if not re.fullmatch(r"[0-9a-f]{40}", hash):
            raise BadQuery(f"{hash!r} is no content hash: expected 40 hex digits, as in a hit.")
        return self._read(DocumentAnswer, self._call("GET", f"/v1/documents/{hash}", ANSWER_TIMEOUT_S, params=parameters))

    def media(self, hash: str, corpus: str, generation: int | None = None) -> bytes:
        """The image that a document is, as a file, by its content hash; of a large one a reduced JPEG."""
        asked = {"corpus": corpus} | ({} if generation is None else {"generation": generation})
        if not re.fullmatch(r"[0-9a-f]{40}", hash):
            raise BadQuery(f"{hash!r} is no content hash: expected 40 hex digits, as in a hit.")
        return self._call("GET", f"/v1/documents/{hash}/media", ANSWER_TIMEOUT_S, params=asked)

    def put(
        self,
        path: str,
        content: str | bytes,
        metadata: Mapping[str, Any] | None = None,
        *,
        corpus: str,
        vectors: Mapping[str, Any] | None = None,
        id: str | None = None,
        wait: bool = False,
        create: bool = False,
        layers: Sequence[str] | None = None,
        timeout_s: float = 10.0,
    ) -> PushAnswer:
        """Put a document at a path; returns when it is durable. Text, or bytes of any kind that can be rendered.

        metadata: JSON values, shown with hits and filtered by. vectors: own ones, by space. id: of this operation, which is performed
        once however often it is sent; one is made if none is given. wait: until it is searchable here, for at most `timeout_s`; the
        answer says whether it is. create: make the corpus if there is none, with these layers.
        """
        headers = {"Idempotency-Key": id or uuid.uuid4().hex, "Content-Type": "application/vnd.sondage.document+json"}
        body = json.dumps(document_body(content, metadata, vectors))
        where = _place(corpus, path)
        return self._push(PushAnswer, "PUT", where, parameters(wait, create, layers, timeout_s), content=body, headers=headers)

    def delete(self, path: str, *, corpus: str, id: str | None = None, wait: bool = False, timeout_s: float = 10.0) -> PushAnswer:
        """Take away what was put at a path; as `put`."""
        headers = {"Idempotency-Key": id or uuid.uuid4().hex}
        return self._push(PushAnswer, "DELETE", _place(corpus, path), parameters(wait, False, None, timeout_s), headers=headers)

    def put_many(
        self,
        items: Iterable[Item],
        *,
        corpus: str,
        wait: bool = False,
        create: bool = False,
        layers: Sequence[str] | None = None,
        timeout_s: float = 10.0,
    ) -> BulkAnswer:
        """Put (and delete) many documents: (path, content), (path, content, metadata), or mappings with the fields of a line:
        `path`, `content` (or `text`, `base64`), `metadata`, `vectors`, `id`, `op` ("put" or "delete").

        Sent in portions of some megabytes. What is wrong with single items stands in `errors` of the answer; the others are durable.
        """
        headers = {"Content-Type": "application/x-ndjson"}
        asked = parameters(wait, create, layers, timeout_s)
        answers: list[tuple[int, BulkAnswer]] = []
        n_lines = 0
        for portion in portions(items):
            body = b"\n".join(portion)
            answers.append((n_lines, self._push(BulkAnswer, "POST", _place(corpus), asked, content=body, headers=headers)))
            n_lines += len(portion)
        return joined(corpus, answers)

    def _push(self, kind: type[Answer], method: str, where: str, asked: PushParameters, **content: Any) -> Answer:
        query = asked.model_dump(exclude_defaults=True)
        return self._read(kind, self._call(method, where, asked.timeout_ms / 1e3 + PUSH_S, params=query, **content))

    def _call(self, method: str, path: str, patience_s: float, **content: Any) -> bytes:
        """The body of a 2xx answer. Every call reads, or bears ids, so one that found no server is made again."""
        timeout = httpx.Timeout(patience_s, connect=CONNECT_TIMEOUT_S)
        for wait_s in (*RETRY_WAITS_S, None):
            try:
                response = self._http.request(method, path, timeout=timeout, **content)
                break
            except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError) as error:
                if wait_s is None:
                    raise Unreachable(self._explain(error)) from error
                time.sleep(wait_s)
            except httpx.HTTPError as error:
                raise Unreachable(self._explain(error)) from error
        if response.is_success:
            return response.content
        raise self._error(response)

    def _read(self, model: type[Answer], body: bytes) -> Answer:
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            first = error.errors()[0]
            raise Refused(
                f"{self.url} answered what this client does not understand ({place(first['loc'])}: {first['msg']}). "
                "Is it another version of Sondage?",
                502,
            ) from error

    def _explain(self, error: httpx.HTTPError) -> str:
        if isinstance(error, httpx.ConnectError):
            return (
                f"Nothing answers at {self.url} ({error}). Start a server with `sondage serve --store URL`, or on a Ray cluster "
                "with `sondage deploy --store URL`; or search without one: `sondage search --store URL`, in Python "
                "`sondage.Engine(store=URL)`."
            )
        if isinstance(error, httpx.TimeoutException):
            return f"{self.url} did not answer in time ({type(error).__name__}). It may be opening shards: see `sondage status`."
        return f"The connection to {self.url} broke ({error or type(error).__name__}). Try again; its log may say why."

    def _error(self, response: httpx.Response) -> SondageError:
        try:
            problem = ProblemAnswer.model_validate_json(response.content).error
        except ValidationError:
            said = f"{response.status_code} {response.reason_phrase}"
            return Refused(f"{self.url} answered {said} without a reason. Is it a Sondage server?", response.status_code)
        known = error_of(problem.kind, problem.message, problem.at)
        after = response.headers.get("retry-after", "")
        if known is not None and after.isdecimal():
            known.retry_after_s = float(after)
        return known or Refused(problem.message, response.status_code, problem.kind, problem.at)


def _place(corpus: str, path: str | None = None) -> str:
    """Where documents of a corpus are pushed to. Raises BadQuery for a path that an address would change."""
    where = f"/v1/corpora/{quote(corpus, safe='')}/documents"
    if path is None:
        return where
    if not path or any(part in ("", ".", "..") for part in path.split("/")):
        raise BadQuery(f"Path {path[:80]!r} has an empty part, `.` or `..`. Use parts separated by single slashes.", at="path")
    return f"{where}/{quote(path, safe='/')}"
