"""Asking an OpenAI-compatible endpoint: chat completions and embeddings, many at once, tried again, within a budget, counted.

The protocol is that of https://platform.openai.com/docs/api-reference (`/chat/completions`, `/embeddings`), which vLLM, llama.cpp,
Ollama, TEI and others speak too. Of it only what all of them understand is used: no streaming, vectors as JSON numbers. A
parameter that a model refuses by name (`max_tokens`, `temperature`) is renamed or left out from then on.

The key is sent in the request's header alone: it is no part of errors, logs, spaces' ids or files. Proxies are not looked up in
the environment, redirects are not followed (the key would go along).
"""

import json
import logging
import math
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from shards.endpoint_settings import EndpointSettings, Usage
from shards.errors import EndpointError
from shards.retries import GIVE_UP
from shards.types import Array

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

# Before each further attempt, half to whole of it by chance. About 45 s in all: rate limits are counted by the minute.
WAITS_S = (0.5, 2.0, 8.0, 30.0)
LONGEST_WAIT_S = 120.0  # who asks to wait longer (a quota of a day) is told to the caller instead
CONNECT_S = 10.0
MAX_ANSWER_BYTES = 64 << 20  # 2,048 vectors of 1,536 numbers are 40 MB
_TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_SETTLED = frozenset({401, 402, 403, 404, 405})  # no other request will fare better
_OPTIONAL = frozenset(
    {"max_tokens", "max_completion_tokens", "temperature", "seed", "top_p", "response_format", "logprobs", "top_logprobs"}
)


@dataclass(frozen=True, slots=True)
class Chat:
    """One question to a chat model. options: further fields of the request (`response_format`, `seed`, …)."""

    user: str
    system: str = ""
    max_tokens: int | None = None
    temperature: float | None = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def body(self, model: str) -> dict[str, Any]:
        messages = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, Any] = {"model": model, "messages": [*messages, {"role": "user", "content": self.user}]}
        stated = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        return body | {name: value for name, value in stated.items() if value is not None} | dict(self.options)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a chat model answered. cut: it stopped at `max_tokens`. usage: of this one request. choice: the whole first choice."""

    text: str
    cut: bool
    usage: Usage
    choice: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Until:
    """When a call's budget ends; moved forward when its caller goes away."""

    moment: float


def endpoint_of(endpoints: Mapping[str, EndpointSettings], name: str, model: str, **options: Any) -> "Endpoint":
    """The client of a named endpoint. Raises EndpointError where this process was given none of that name."""
    if name not in endpoints:
        known = f"It has: {', '.join(sorted(endpoints))}." if endpoints else "It has none."
        raise EndpointError(
            f"Endpoint {name!r} of model {model!r} is not among this process's settings. {known} Set SONDAGE_ENDPOINT_URL (and "
            "SONDAGE_ENDPOINT_KEY), or name it in the file of SONDAGE_ENDPOINTS.",
            reason="unknown",
        )
    return Endpoint(endpoints[name], model, **options)


class Endpoint:
    """One model of one endpoint. Safe for many threads; connections are kept. Close it, or leave it to be collected.

    concurrency, timeout_s: instead of those of the settings. batch: texts in one request for embeddings; OpenAI takes
    2,048 texts of 300,000 tokens in all. waits_s, sleep, clock, jitter: how attempts are spread (`WAITS_S`).
    """

    def __init__(
        self,
        settings: EndpointSettings,
        model: str,
        *,
        concurrency: int | None = None,
        timeout_s: float | None = None,
        batch: int = 64,
        waits_s: Sequence[float] = WAITS_S,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[float, float], float] = random.uniform,
    ):
        self.settings, self.model = settings, model
        self.concurrency = max(1, settings.concurrency if concurrency is None else concurrency)
        self.timeout_s, self.batch = settings.timeout_s if timeout_s is None else timeout_s, max(1, batch)
        self._waits_s, self._sleep, self._clock, self._jitter = tuple(waits_s), sleep, clock, jitter
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(self.concurrency)
        self._client: httpx.Client | None = None
        self._finalize: Callable[[], object] = lambda: None
        self._usage = Usage().priced(settings.prices.get(model))
        self._refused: set[str] = set()  # parameters that the model does not take
        self._not_before = -math.inf  # told by one answer, true for all requests

    def close(self) -> None:
        """End the connections; another call opens new ones."""
        with self._lock:
            self._client = None
            self._finalize()

    @property
    def usage(self) -> Usage:
        """Of everything asked through this object so far."""
        with self._lock:
            return self._usage

    # --- questions ---------------------------------------------------------------------------------------------------------

    def chat(self, chats: Sequence[Chat], budget_s: float = math.inf) -> Iterator[tuple[int, Reply | EndpointError]]:
        """Replies as they come, each with its place in `chats`; an error in place of a reply that could not be had.

        Errors that every other request would meet too (a wrong key, an unknown model, no answer to 8 questions in a row) are
        raised. When the budget ends, what is left gets an error whose reason is "late".
        """
        until = _Until(self._clock() + budget_s)
        silent = 0
        for place, reply in self._each([lambda chat=chat: self._reply(chat, until) for chat in chats], until):
            silent = silent + 1 if isinstance(reply, EndpointError) and reply.reason in ("unreachable", "failing") else 0
            if isinstance(reply, EndpointError) and (reply.is_settled or silent >= GIVE_UP):
                raise reply
            yield place, reply

    def embed(
        self,
        texts: Sequence[str],
        dimensions: int | None = None,
        budget_s: float = math.inf,
        done: Callable[[int], None] | None = None,
    ) -> Array:
        """The texts' vectors as the endpoint gives them, not scaled: (n, dim) float32; (0, 0) for no texts.

        An empty text is refused by most servers: ask for none. dimensions: asked of the model (Matryoshka), where it offers that.
        done: told how many texts are embedded; may raise Cancelled. Raises EndpointError: all or nothing.
        """
        until = _Until(self._clock() + budget_s)
        batches = [list(texts[start : start + self.batch]) for start in range(0, len(texts), self.batch)]
        vectors: dict[int, Array] = {}
        n_done = 0
        for place, part in self._each([lambda batch=batch: self._vectors(batch, dimensions, until) for batch in batches], until):
            if isinstance(part, EndpointError):
                raise part
            vectors[place] = part
            n_done += len(part)
            if done:
                done(n_done)
        dims = {part.shape[1] for part in vectors.values()}
        if len(dims) > 1:
            raise self._error(f"gave vectors of {' and '.join(map(str, sorted(dims)))} numbers. Ask one model.", "garbage")
        return np.concatenate([vectors[place] for place in range(len(batches))]) if batches else np.zeros((0, 0), np.float32)

    def _each(self, acts: Sequence[Callable[[], Any]], until: "_Until") -> Iterator[tuple[int, Any]]:
        """What each act gives, or its EndpointError, as they finish. Acts are begun only as room is made for them."""
        pool = ThreadPoolExecutor(self.concurrency, thread_name_prefix="endpoint")
        waiting = iter(enumerate(acts))
        running: dict[Future[Any], int] = {}
        try:
            for place, act in islice(waiting, self.concurrency):
                running[pool.submit(act)] = place
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    place = running.pop(future)
                    try:
                        result: Any = future.result()
                    except EndpointError as error:
                        result = error
                    yield place, result
                    for later, act in islice(waiting, 1):
                        running[pool.submit(act)] = later
        finally:  # whoever asked may have had enough: nobody waits for what is still under way
            until.moment = -math.inf
            pool.shutdown(wait=False)

    def _reply(self, chat: Chat, until: "_Until") -> Reply:
        def read(body: Any) -> tuple[str, bool, Mapping[str, Any]]:
            choice = body["choices"][0]
            text = choice["message"]["content"] or ""
            if not isinstance(text, str):
                raise TypeError("the message is no text")
            return text, choice.get("finish_reason") == "length", choice

        (text, cut, choice), usage = self._ask("/chat/completions", chat.body(self.model), read, until)
        return Reply(text, cut, usage, choice)

    def _vectors(self, texts: list[str], dimensions: int | None, until: "_Until") -> Array:
        def read(body: Any) -> Array:
            rows = body["data"]
            by_place = {row.get("index", i): row["embedding"] for i, row in enumerate(rows)}
            vectors = np.array([by_place[i] for i in range(len(texts))], np.float32)
            if len(rows) != len(texts) or vectors.ndim != 2 or not np.isfinite(vectors).all():
                raise ValueError(f"{len(rows)} vectors for {len(texts)} texts, or numbers that are none")
            return vectors

        body: dict[str, Any] = {"model": self.model, "input": texts}
        if dimensions is not None:
            body["dimensions"] = dimensions
        return self._ask("/embeddings", body, read, until)[0]

    # --- one request -------------------------------------------------------------------------------------------------------

    def _ask(self, path: str, body: dict[str, Any], read: Callable[[Any], Any], until: "_Until") -> tuple[Any, Usage]:
        """What `read` makes of the answer, and what it cost; tried again where that may help. Raises EndpointError."""
        attempt = 0
        while True:
            self._wait_for_others(until)
            asked = self._taken(body)
            after_s: float | None = None
            try:
                status, headers, data = self._post(path, asked, until)
            except EndpointError as error:
                failure = error
            else:
                if status == 200:
                    try:
                        answer = json.loads(data)
                        value = read(answer)
                    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
                        what = f"{type(error).__name__}: {error}"
                        failure = self._error(f"{path} gave an answer that cannot be read ({what}): {self._said(data)}", "garbage")
                    else:
                        return value, self._count(answer)
                else:
                    if status in (400, 422) and (name := _refused_parameter(data, asked)) is not None:
                        with self._lock:
                            self._refused.add(name)
                        logger.info("event=parameter_left_out model=%s parameter=%s", self.model, name)
                        continue
                    failure = self._failure(path, status, data)
                    after_s = _retry_after(headers)
            if after_s is not None:
                if after_s > LONGEST_WAIT_S:
                    raise self._error(f"asks to wait {after_s:,.0f} s: {failure}", "failing")
                with self._lock:
                    self._not_before = max(self._not_before, self._clock() + after_s)
            if failure.reason not in ("unreachable", "failing", "garbage") or attempt >= len(self._waits_s):
                raise failure
            wait_s = max(self._waits_s[attempt] * self._jitter(0.5, 1.0), after_s or 0.0)
            if self._clock() + wait_s >= until.moment:
                raise self._error(f"did not answer {path} within the budget. Last: {failure}", "late")
            attempt += 1
            with self._lock:
                self._usage += Usage(retries=1)
            self._sleep(wait_s)

    def _wait_for_others(self, until: "_Until") -> None:
        """Waits as long as the endpoint told another request to."""
        now = self._clock()
        if now >= until.moment or self._not_before >= until.moment:
            raise self._error("was not asked: the budget has ended. Give it more time, or ask less.", "late")
        if self._not_before > now:
            self._sleep(self._not_before - now)

    def _taken(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The request in the parameters that the model takes."""
        asked = {name: value for name, value in body.items() if name not in self._refused}
        if "max_tokens" in body and "max_tokens" in self._refused and "max_completion_tokens" not in self._refused:
            asked["max_completion_tokens"] = body["max_tokens"]  # what OpenAI's reasoning models call it
        return asked

    def _post(self, path: str, body: Mapping[str, Any], until: "_Until") -> tuple[int, Mapping[str, str], bytes]:
        left_s = until.moment - self._clock()
        # All callers of this process together: segments are built side by side, each with questions of its own.
        if not self._slots.acquire(timeout=None if left_s == math.inf else max(left_s, 0.0)):
            raise self._error("was not asked: others were until the budget ended. Give it more time, or ask less.", "late")
        try:
            return self._post_now(path, body, until)
        finally:
            self._slots.release()

    def _post_now(self, path: str, body: Mapping[str, Any], until: "_Until") -> tuple[int, Mapping[str, str], bytes]:
        import httpx

        left_s = min(self.timeout_s, until.moment - self._clock())
        ends = self._clock() + left_s
        timeout = httpx.Timeout(max(left_s, 0.001), connect=max(min(left_s, CONNECT_S), 0.001))
        try:
            with self._http().stream("POST", self.settings.url.rstrip("/") + path, json=body, timeout=timeout) as response:
                data = bytearray()
                for piece in response.iter_bytes():
                    data += piece
                    if len(data) > MAX_ANSWER_BYTES:
                        raise self._error(f"{path} answers more than {MAX_ANSWER_BYTES >> 20} MiB. Lower batch.", "refused")
                    if self._clock() >= ends:  # httpx bounds each read, and a server may send a byte at a time
                        raise httpx.ReadTimeout("the answer goes on and on", request=response.request)
                return response.status_code, response.headers, bytes(data)
        except httpx.TimeoutException as error:
            if self._clock() >= until.moment:
                raise self._error(f"did not answer {path} within the budget.", "late") from error
            raise self._error(f"did not answer {path} within {left_s:.0f} s. Is it busy?", "unreachable") from error
        except (httpx.HTTPError, UnicodeError) as error:
            what = self._said(str(error).encode() or type(error).__name__.encode())
            raise self._error(f"cannot be reached: {what}. Is it running, and is the URL right?", "unreachable") from error

    def _http(self) -> "httpx.Client":
        import httpx

        with self._lock:
            if self._client is None:
                headers = {"Authorization": f"Bearer {self.settings.key}"} if self.settings.key else {}
                limits = httpx.Limits(max_connections=self.concurrency, max_keepalive_connections=self.concurrency)
                self._client = httpx.Client(headers=headers, limits=limits, trust_env=False)
                self._finalize = weakref.finalize(self, self._client.close)
            return self._client

    def _count(self, answer: Any) -> Usage:
        stated = answer.get("usage")
        stated = stated if isinstance(stated, dict) else {}
        tokens_in, tokens_out = (_count_of(stated.get(name)) for name in ("prompt_tokens", "completion_tokens"))
        counted = Usage(1, 0, tokens_in, tokens_out, int(not stated)).priced(self.settings.prices.get(self.model))
        with self._lock:
            self._usage += counted
        return counted

    # --- what went wrong ---------------------------------------------------------------------------------------------------

    def _failure(self, path: str, status: int, data: bytes) -> EndpointError:
        said = self._said(data)
        if status in (401, 403):
            return self._error(f"refuses the key ({status}): {said}. Set SONDAGE_ENDPOINT_KEY to one it takes.", "forbidden")
        if status == 402 or (status == 429 and b"insufficient_quota" in data):
            return self._error(f"wants to be paid ({status}): {said}.", "forbidden")
        if status in _SETTLED:
            return self._error(f"does not know {path} or the model ({status}): {said}. Check both.", "forbidden")
        if status in _TRANSIENT:
            return self._error(f"fails ({status}): {said}. Try again later, or with less at once.", "failing")
        if 300 <= status < 400:
            return self._error(f"sends elsewhere ({status}), which is not followed. Write the URL it means.", "forbidden")
        return self._error(f"refuses the request ({status}): {said}.", "refused")

    def _error(self, what: str, reason: str) -> EndpointError:
        return EndpointError(f"Endpoint {self.settings.url}, model {self.model!r}, {what}", reason=reason)

    def _said(self, data: bytes) -> str:
        """What a server said, for people: its error's message where it has that form, without the key, in one line."""
        text = data[:20_000].decode("utf-8", "replace")
        try:
            error = json.loads(text)["error"]
            text = str(error["message"] if isinstance(error, dict) else error)
        except (ValueError, KeyError, TypeError):
            pass
        if self.settings.key:
            text = text.replace(self.settings.key, "***")
        text = " ".join(text.split()).rstrip(".")
        return f"{text[:300]} […]" if len(text) > 300 else text or "nothing"


def _refused_parameter(data: bytes, asked: Mapping[str, Any]) -> str | None:
    """The parameter of ours that an answer calls unsupported, by the name we know it under."""
    try:
        name = json.loads(data)["error"]["param"]
    except (ValueError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) and name in _OPTIONAL and name in asked else None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that an answer asks to wait (RFC 9110, section 10.2.3: seconds or a date)."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        import email.utils

        try:
            seconds = (email.utils.parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _count_of(value: object) -> int:
    return value if type(value) is int and value >= 0 else 0
