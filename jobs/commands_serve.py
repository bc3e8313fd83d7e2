"""A store served by this machine: serve."""

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shards.errors import SondageError

if TYPE_CHECKING:
    from jobs.settings import Settings
    from serve.coordinator import Coordinator
    from serve.corpora import Openings
    from serve.keys import KeyRing
    from serve.settings import FrontSettings


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
    """Serve a store from this machine, without Ray: one process answers, another one beside it searches."""
    import socket
    from functools import partial

    import uvicorn

    from cluster.building import LocalBuilders
    from cluster.pauses import FRONT_SWITCH_S, SWITCH_S, keep_short
    from cluster.sockets import AVAILABLE
    from jobs.keys import following
    from jobs.settings import Settings
    from serve.building import building
    from serve.connections import options
    from serve.http import create_app
    from serve.keys import KeyRing
    from serve.local import local_coordinator, local_pushes

    given = {"api_key_file": api_key_file, "tls_certificate": tls_certificate, "tls_key": tls_key, "audit": audit}
    settings = Settings.load(store=store, host=host, port=port, plugins=plugin or None, **given)
    front = settings.front_settings()
    ring = KeyRing(front.api_keys, front.limits)
    host_settings = settings.host_settings()
    builders = partial(LocalBuilders, host_settings, "serve.building") if front.builders else None
    application = create_app(
        local_coordinator(host_settings, front.poll_s, front.rerank, translate=front.translate, apart=True),
        ring,
        lambda _: following(settings, ring),
        local_pushes,
        opening=lambda coordinator: openings_of(settings, front, ring, coordinator),
        audit=front.audit,
        reranker=front.rerank.model if front.rerank else None,
        building=partial(building, builders=builders, counted=front.count_usage),
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
        keep_short(FRONT_SWITCH_S if AVAILABLE else SWITCH_S)  # as its host is a process of its own, or not
        uvicorn.Server(config).run(sockets=[listener])


def openings_of(settings: "Settings", front: "FrontSettings", ring: "KeyRing", coordinator: "Coordinator") -> "Openings":
    """Who opens corpora beside a coordinator of this process: any source while only this machine can ask, and needs no key for it."""
    from jobs.open_corpus import start
    from serve.corpora import Openings
    from serve.settings import is_loopback

    def begin(corpus: str, source: str) -> "subprocess.Popen[bytes]":
        return start(settings.store_url(), corpus, source, settings.plugins)

    def anywhere() -> bool:
        return not front.open_roots and ring.is_open and is_loopback(front.host)

    return Openings(coordinator.store, coordinator.generations, begin, front.open_roots, anywhere, coordinator.freshness.orders)
