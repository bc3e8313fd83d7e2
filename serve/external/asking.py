"""Asking a search tool elsewhere: over HTTP, page by page, or a tool of an MCP server; within bounds of bytes, time and number.

Only the address of the mapping is asked: redirects are not followed, and what an answer gives as its next page is a value, never an
address. Proxies and passwords of the environment are left alone.
"""

import time
from contextlib import AsyncExitStack
from typing import Any

from pydantic_core import from_json

from serve.external.failure import ExternalFailure
from serve.external.mapping_schema import HttpSource, McpSource, Paging, filled, found_at

USER_AGENT = "sondage/1 (+external)"
Found = tuple[list[Any], list[str]]


def ask_http(source: HttpSource, query: str, n: int) -> Found:
    """The results' JSON, at least n where there are so many, and notes. Raises ExternalFailure."""
    import httpx

    deadline = time.monotonic() + source.bounds.timeout_s
    paging = source.paging
    size = min(n, paging.size if paging else n)
    page: str | int = paging.first if paging else ""
    items: list[Any] = []
    with httpx.Client(trust_env=False, follow_redirects=False, headers={"User-Agent": USER_AGENT}) as client:
        for number in range(source.bounds.pages):
            answer = _page(client, source, {"query": query, "n": size, "page": page, "key": source.key.get_secret_value()}, deadline)
            new = listed(answer, source.results)
            items += new
            following = _following(paging, answer, page, number, len(items), source.results)
            if len(items) >= n or not new or following is None:
                return items, []
            page = following
    return items, [f"stopped after {source.bounds.pages} pages"]


def _page(client: Any, source: HttpSource, values: dict[str, str | int], deadline: float) -> Any:
    import httpx

    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise ExternalFailure(f"no answer within {source.bounds.timeout_s:g} s. Ask for less, or raise bounds.timeout_s.")
    params = {name: value for name, value in filled(source.params, values).items() if value != ""}  # a key that is not set
    headers = {name: str(value) for name, value in filled(source.headers, values).items() if value != ""}
    body = {"json": filled(source.body, values)} if source.body is not None else {}
    try:
        request = client.build_request(source.method, source.url, params=params, headers=headers, timeout=httpx.Timeout(left_s), **body)
        response = client.send(request, stream=True)
        try:
            data = bytearray()
            for piece in response.iter_bytes():
                data += piece
                if len(data) > source.bounds.answer_bytes:
                    raise ExternalFailure(f"its answer has more than {source.bounds.answer_bytes:,} bytes. Ask for less.")
                if time.monotonic() > deadline:  # httpx bounds each read, and a server may send a byte at a time
                    raise ExternalFailure(f"no answer within {source.bounds.timeout_s:g} s. Ask for less, or raise bounds.timeout_s.")
        finally:
            response.close()
    except httpx.TimeoutException:
        raise ExternalFailure(f"no answer within {source.bounds.timeout_s:g} s. Try again, or raise bounds.timeout_s.") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, UnicodeError) as error:
        raise ExternalFailure(f"cannot be reached: {error or type(error).__name__}. Is the address right?") from None
    return _read(response, bytes(data))


def _read(response: Any, data: bytes) -> Any:
    status = response.status_code
    if status != 200:
        said = " ".join(data[:500].decode("utf-8", "replace").split())[:200]
        after = response.headers.get("retry-after", "")
        remedy = {
            401: "Set its key.",
            403: "Set its key.",
            429: f"Wait {after} s." if after.isdecimal() else "Wait a while.",
        }.get(status, "Redirects are not followed: write the address it means." if 300 <= status < 400 else "Try again later.")
        raise ExternalFailure(f"answers {status}: {said or 'nothing'}. {remedy}")
    return decoded(data)


def decoded(data: bytes | str) -> Any:
    """JSON as values; its depth is limited. Raises ExternalFailure."""
    try:
        return from_json(data)
    except ValueError as error:
        raise ExternalFailure(f"its answer is no JSON: {error}.") from None


def listed(answer: Any, path: str) -> list[Any]:
    """The results of an answer. Raises ExternalFailure where the mapping's path leads to none."""
    found = found_at(answer, path) if path else [answer]
    if not found:
        first = path.partition(".")[0].removesuffix("[]")
        if isinstance(answer, dict) and first in answer and answer[first] in (None, []):
            return []
        keys = ", ".join(list(answer)[:10]) if isinstance(answer, dict) else type(answer).__name__
        raise ExternalFailure(f"its answer has no {path!r}, where the mapping looks for results; it has {keys}.")
    return found[0] if len(found) == 1 and isinstance(found[0], list) else found


def _following(paging: Paging | None, answer: Any, page: str | int, number: int, n_items: int, results: str) -> str | int | None:
    """What `{page}` is in the next request; None where there is none."""
    if paging is None:
        return None
    if paging.kind == "cursor":
        found = found_at(answer, paging.next or "")
        following = found[0] if found and isinstance(found[0], str | int) else None
        return None if following == page or (isinstance(following, str) and len(following) > 2_000) else following
    first = int(paging.first)
    return first + number + 1 if paging.kind == "page" else first + n_items


def ask_mcp(source: McpSource, query: str, n: int) -> Found:
    """The results' JSON of a tool of another MCP server, and notes. Raises ExternalFailure."""
    import anyio

    return anyio.run(_call, source, query, n)


async def _call(source: McpSource, query: str, n: int) -> Found:
    import anyio
    from mcp import Client, MCPError

    values: dict[str, str | int] = {"query": query, "n": n, "page": "", "key": source.key.get_secret_value()}
    try:
        with anyio.fail_after(source.bounds.timeout_s):
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(Client(await _transport(source, values, stack)))
                result = await client.call_tool(source.tool, filled(source.arguments, values))
    except TimeoutError:
        raise ExternalFailure(f"no answer within {source.bounds.timeout_s:g} s. Try again, or raise bounds.timeout_s.") from None
    except (MCPError, OSError, ExceptionGroup) as error:
        raise ExternalFailure(f"cannot be asked: {_innermost(error)}.") from None
    texts = [part.text for part in result.content if part.type == "text"]
    if result.is_error:
        raise ExternalFailure(f"its tool {source.tool!r} failed: {' '.join(' '.join(texts).split())[:300]}.")
    size = sum(map(len, texts))
    if size > source.bounds.answer_bytes:
        raise ExternalFailure(f"its answer has more than {source.bounds.answer_bytes:,} characters. Ask for less.")
    if result.structured_content is not None:
        return listed(result.structured_content, source.results), []
    return _of_texts(texts, source.results)


async def _transport(source: McpSource, values: dict[str, str | int], stack: AsyncExitStack) -> Any:
    """The way to the server: a process of its own, or HTTP with the mapping's headers and without the environment's proxies."""
    if source.command is not None:
        from mcp import StdioServerParameters, stdio_client

        env = {name: str(value) for name, value in filled(source.env, values).items()}
        program, *arguments = source.command
        return stdio_client(StdioServerParameters(command=program, args=arguments, env=env or None))
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    headers = {name: str(value) for name, value in filled(source.headers, values).items() if value != ""}
    timeout = httpx2.Timeout(source.bounds.timeout_s)
    http = httpx2.AsyncClient(headers=headers, trust_env=False, follow_redirects=False, timeout=timeout)
    return streamable_http_client(source.url or "", http_client=await stack.enter_async_context(http))


def _of_texts(texts: list[str], path: str) -> Found:
    """Results of a tool that gives text alone: JSON where it is some, else each text as one."""
    import hashlib

    items: list[Any] = []
    for text in texts:
        try:
            items += listed(decoded(text), path)
        except ExternalFailure:
            if text.strip():
                items.append({"id": hashlib.sha256(text.encode()).hexdigest()[:16], "text": text})
    return items, []


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
