"""A store served by this process: serve."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from shards.errors import SondageError


class BadAddress(SondageError):
    """The address cannot be listened on."""


def add(app: typer.Typer) -> None:
    """Put the command of this module into the `sondage` command."""
    app.command()(serve)


def serve(
    store: Annotated[str | None, typer.Option(help="Index to serve (SONDAGE_STORE).")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (SONDAGE_HOST, 127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port, 0 for any (SONDAGE_PORT, 8765).")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File of keys, followed as it changes (SONDAGE_API_KEY_FILE).")] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM file; none: plain HTTP (SONDAGE_TLS_CERTIFICATE).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (SONDAGE_TLS_KEY).")] = None,
    plugin: Annotated[list[str] | None, typer.Option(help="Module that registers functions, embedders, …; repeatable.")] = None,
    audit: Annotated[str | None, typer.Option(help="Where each request is told of: a file, or stderr (SONDAGE_AUDIT).")] = None,
) -> None:
    """Serve a store from this process, without Ray."""
    import socket

    import uvicorn

    from jobs.keys import following
    from jobs.settings import Settings
    from serve.connections import options
    from serve.http import create_app
    from serve.keys import KeyRing
    from serve.local import local_coordinator, local_pushes

    given = {"api_key_file": api_key_file, "tls_certificate": tls_certificate, "tls_key": tls_key, "audit": audit}
    settings = Settings.load(store=store, host=host, port=port, plugins=plugin or None, **given)
    front = settings.front_settings()
    ring = KeyRing(front.api_keys, front.limits)
    application = create_app(
        local_coordinator(settings.host_settings(), front.poll_s, front.rerank, translate=front.translate),
        ring,
        lambda _: following(settings, ring),
        local_pushes,
        audit=front.audit,
        reranker=front.rerank.model if front.rerank else None,
    )
    config = uvicorn.Config(application, log_level="warning", **options(front.tls))
    try:
        family = socket.AF_INET6 if ":" in front.host else socket.AF_INET
        listener = socket.create_server((front.host, front.port), family=family)
    except OSError as error:
        raise BadAddress(f"Cannot listen on {front.host} port {front.port}: {error.strerror}. Give another with --port.") from None
    with listener:
        url = front.model_copy(update={"port": listener.getsockname()[1]}).url
        print(f"Serving {settings.store_url()} at {url} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        uvicorn.Server(config).run(sockets=[listener])
