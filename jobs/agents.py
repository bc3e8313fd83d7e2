"""`sondage mcp`: the corpora of a store or a server as tools of a language model, over stdio or streamable HTTP."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.options import Store, Url
from shards.errors import BadQuery, BadSpec

if TYPE_CHECKING:
    from jobs.settings import Settings
    from serve.mcp.tools import Options

DEFAULT_PORT = 8_766  # beside the search server's


def mcp(
    store: Store = None,
    url: Url = None,
    http: Annotated[str | None, typer.Option("--http", metavar="HOST:PORT", help="Listen there, path /mcp; none: stdin, stdout.")] = None,
    corpus: Annotated[list[str] | None, typer.Option("--corpus", "-c", help="Only this corpus; repeatable. None: all there are.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="No tool that writes: neither add nor fetch_external.")] = False,
    answers: Annotated[str, typer.Option("--answers", help="What a client is told: both, text or structured; one has more room.")] = "both",
    external: Annotated[Path | None, typer.Option("--external", help="File of search tools elsewhere (SONDAGE_EXTERNAL).")] = None,
    plugin: Annotated[list[str] | None, typer.Option(help="Module that registers functions, embedders, …; repeatable.")] = None,
    api_key_file: Annotated[Path | None, typer.Option("--api-key-file", help="Of --http: file of keys (SONDAGE_API_KEY_FILE).")] = None,
) -> None:
    """Serve corpora to agents over the Model Context Protocol: search, query, read, add. Asks the store, or the server at --url."""
    from jobs.connecting import asking
    from jobs.settings import Settings

    if answers not in ("both", "text", "structured"):
        raise BadQuery(f"--answers is {answers!r}. Choose from: both, text, structured.")
    host, port = address(http) if http is not None else (None, None)
    given = {"external": external, "api_key_file": api_key_file, "plugins": plugin or None}
    settings = Settings.load(store=store, url=url, host=host, port=port, **given)
    if http is not None:
        settings.front_settings()  # whom it would answer is told before an index is opened
    options = options_of(settings, corpus or [], read_only, answers)
    with asking(url, store) as asked:
        from serve.mcp.server import mcp_server

        server = mcp_server(asked, options)
        if http is None:
            print("Tools of Sondage on stdin and stdout (end of input ends it)", file=sys.stderr, flush=True)
            server.run("stdio")
        else:
            listen(settings, server)


def options_of(settings: "Settings", corpora: list[str], read_only: bool, answers: str) -> "Options":
    """What the tools are allowed. Raises BadSpec."""
    from serve.mcp.server import rights_of_caller
    from serve.mcp.tools import Options

    return Options(tuple(corpora), read_only, answers, rights_of_caller, settings.external_sources())


def address(text: str) -> tuple[str, int]:
    """HOST:PORT, [IPv6]:PORT, HOST or :PORT. Raises BadSpec."""
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(DEFAULT_PORT)
    if not port.isdecimal() or int(port) > 65_535:
        raise BadSpec(f"--http {text!r} is no HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}.")
    return host.strip("[]") or "127.0.0.1", int(port)


def listen(settings: "Settings", server: object) -> None:
    """Answers HTTP until Ctrl-C. Raises BadSpec for other than loopback without a key, BadAddress."""
    import asyncio
    import socket

    import uvicorn

    from jobs.commands_serve import BadAddress
    from jobs.keys import following
    from serve.connections import options
    from serve.keys import KeyRing
    from serve.mcp.server import PATH, http_application

    front = settings.front_settings()
    ring = KeyRing(front.api_keys, front.limits)
    application = http_application(server, ring)
    config = uvicorn.Config(application, log_level="warning", **options(front.tls))
    try:
        family = socket.AF_INET6 if ":" in front.host else socket.AF_INET
        listener = socket.create_server((front.host, front.port), family=family)
    except OSError as error:
        raise BadAddress(f"Cannot listen on {front.host} port {front.port}: {error.strerror}. Give another with --http.") from None
    with listener:
        at = front.model_copy(update={"port": listener.getsockname()[1]}).url
        print(f"Tools of Sondage at {at}{PATH} (Ctrl-C ends it)", file=sys.stderr, flush=True)

        async def serve() -> None:
            async with following(settings, ring):
                await uvicorn.Server(config).serve([listener])

        asyncio.run(serve())


def add(app: typer.Typer) -> None:
    app.command()(mcp)
