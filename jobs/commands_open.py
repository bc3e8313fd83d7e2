"""A folder that is to be searched at once: open."""

import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.options import AsJson, Store, Url
from shards.errors import BadQuery, SondageError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from jobs.settings import Settings
    from serve.corpora_schema import OpeningAnswer

LOOK_S = 0.2  # between looks at how far it is


def add(app: typer.Typer) -> None:
    """Put the command of this module into the `sondage` command."""
    app.command("open")(open_)


def open_(
    source: Annotated[str, typer.Argument(help="Folder or fsspec URL, as the server sees it: /path, s3://bucket/prefix, …")],
    corpus: Annotated[str | None, typer.Option("--corpus", "-c", help="Name of the corpus; none: after the folder.")] = None,
    layers: Annotated[str | None, typer.Option("--layers", help="Comma-separated; none: by what it holds and what is here.")] = None,
    include: Annotated[list[str] | None, typer.Option("--include", metavar="GLOB", help="Only paths that match; repeatable.")] = None,
    exclude: Annotated[list[str] | None, typer.Option("--exclude", metavar="GLOB", help="No paths that match; repeatable.")] = None,
    source_name: Annotated[str, typer.Option("--source-name", help="A corpus may have several sources.")] = "main",
    wait: Annotated[bool, typer.Option("--wait", help="Return when all is read and built, not when searches are answered.")] = False,
    url: Url = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Search a folder at once: its first part can be searched within seconds, while the rest is read and further layers are built.

    With --store, a process of this machine goes on after the command has ended; without, the server's does.
    """
    from jobs.progress import Progress
    from jobs.settings import Settings

    name = corpus or Settings.load().corpus or name_of(source)
    wanted = layers.split(",") if layers is not None else None
    if url and store:
        raise BadQuery("Both --url and --store are given. Name the server or the store, not both.")
    settings = Settings.load(url=url, store=store)
    globs = include or [], exclude or []
    alone = store is not None or (settings.store is not None and not settings.url)
    look = (begin_here if alone else begin_there)(settings, name, source, globs, source_name, wanted)
    with Progress() as progress:
        answer = look()
        while answer.state not in ("done", "failed") and (wait or not answer.generation):
            total = answer.held + answer.pending
            progress("open" if answer.held else "list", answer.held, total if answer.held else answer.listed, "files")
            time.sleep(LOOK_S)
            answer = look()
    if answer.state == "failed":
        raise SondageError(answer.reason)
    if as_json:
        from jobs.terminal import print_json

        print_json(answer.model_dump(mode="json"))
        return
    rate = f", {answer.files_per_s:,.0f} files/s" if answer.files_per_s else ""
    print(f"{name}: generation {answer.generation} after {answer.seconds:.1f} s holds {answer.held:,} files of {source}{rate}.")
    if answer.pending or answer.state != "done":
        left = f"{answer.pending:,} files are still to be read, and layers" if answer.pending else "Layers are still"
        print(f"  {left} to be built; searches say what they cover. Search now:")
    print(f"  sondage search --corpus {name}{f' --store {store}' if store else ''}{f' --url {url}' if url else ''} QUERY")


def begin_there(
    settings: "Settings", corpus: str, source: str, globs: tuple[list[str], list[str]], name: str, layers: list[str] | None
) -> "Callable[[], OpeningAnswer]":
    """Order it of the server of the settings; returns who says how far it is."""
    import os

    import sondage
    from jobs.connecting import PATIENCE_S

    key = settings.api_key.get_secret_value() if settings.api_key else None
    where = settings.url or f"http://127.0.0.1:{settings.port}"
    client = sondage.connect(where, key, settings.ca_file, retries=sondage.Retries(within_s=PATIENCE_S))
    root = os.path.abspath(source) if "://" not in source and os.path.isdir(source) else source  # the server runs elsewhere
    client.open_corpus(corpus, root, include=globs[0], exclude=globs[1], source=name, layers=layers)
    return lambda: client.opening(corpus, name)


def begin_here(
    settings: "Settings", corpus: str, source: str, globs: tuple[list[str], list[str]], name: str, layers: list[str] | None
) -> "Callable[[], OpeningAnswer]":
    """Order it in the store of the settings, and start a process that carries it out; returns who says how far it is."""
    import os

    from jobs.index import where_it_may_be
    from jobs.open_corpus import start
    from serve.corpora import told
    from shards.layers import SpaceSpec
    from shards.open_order import OpenOrder, look, place
    from shards.store import open_store

    for text in layers or ():
        SpaceSpec.parse(text)
    if guess := where_it_may_be(source):
        raise BadQuery(f"There is no {source}. {guess}")
    root = source if "://" in source else os.path.abspath(os.path.expanduser(source))
    store = open_store(settings.store_url(), **settings.store_options())
    place(store, corpus, OpenOrder(url=root, source=name, include=tuple(globs[0]), exclude=tuple(globs[1]), layers=tuple(layers or ())))
    found = look(store, corpus, name)
    is_at_it = found is not None and found.is_carried_out(time.time())
    process = None if is_at_it else start(settings.store_url(), corpus, name, settings.plugins)

    def how_far() -> "OpeningAnswer":
        ended = process is not None and process.poll() is not None
        opening = look(store, corpus, name)
        assert opening is not None
        if ended and not opening.is_over:
            reason = opening.reason or "its process ended"
            raise StoreError(f"Corpus {corpus!r} was not opened: {reason.rstrip('.')}. Run it again; it goes on from here.")
        return told(corpus, name, opening, time.time())

    return how_far


def name_of(source: str) -> str:
    """A corpus's name after its folder. Raises BadQuery where there is none to be had."""
    import os

    last = (source if "://" in source else os.path.abspath(os.path.expanduser(source))).rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", last).lstrip("._-")[:128]
    if not name:
        raise BadQuery(f"{source!r} gives no name for a corpus. Name it with --corpus.")
    return name
