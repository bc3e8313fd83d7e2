"""What a shell may complete: corpora, layers, couplings, asked of the store or server that the command line names so far.

Whoever presses the tab key waits: what takes longer than 0.3 s, or fails, is left out without a word.
"""

import json
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeVar

import typer

if TYPE_CHECKING:
    from jobs.settings import Settings

PATIENCE_S = 0.3

T = TypeVar("T")


def corpora(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of corpora that begin so."""
    return _beginning(incomplete, within(PATIENCE_S, lambda: list(spaces(ctx.params))) or [])


def layers(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the corpus's spaces that begin so; without a corpus, of all corpora; without those, of all layers there are."""
    found = within(PATIENCE_S, lambda: spaces(ctx.params)) or {}
    corpus = ctx.params.get("corpus")
    names = found[corpus] if corpus in found else sorted({name for there in found.values() for name in there})
    return _beginning(incomplete, names or all_layers())


def couplings(incomplete: str) -> list[str]:
    """Names of couplings that begin so."""
    from typing import get_args

    from serve.edge import CouplingName

    return _beginning(incomplete, get_args(CouplingName))


def all_layers() -> list[str]:
    """Every layer that there is."""
    from shards.layers import REGISTRY

    return sorted(REGISTRY)


def within(patience_s: float, look: Callable[[], T]) -> T | None:
    """What `look` gives; None where it takes longer or raises. It goes on in a thread that does not keep the process alive."""
    found: list[T] = []

    def attempt() -> None:
        try:
            found.append(look())
        except Exception:  # whatever it is: a shell has no place to say so
            return

    thread = threading.Thread(target=attempt, name="complete", daemon=True)
    thread.start()
    thread.join(patience_s)
    return found[0] if found else None


def spaces(given: "dict[str, Any]") -> dict[str, list[str]]:
    """The names of spaces by corpus. given: url and store as far as they stand on the command line. Raises whatever it meets."""
    from jobs.settings import Settings

    settings = Settings.load(url=given.get("url"), store=given.get("store"))
    if given.get("store") or (settings.store and not settings.url):
        return stored_spaces(settings)
    return served_spaces(settings)


def stored_spaces(settings: "Settings") -> dict[str, list[str]]:
    """Of a store: from the newest root of each corpus, as shards/FORMAT.md describes it. The models of `shards.manifest`, which would
    check it, take as long to be imported as there is time in all."""
    from shards.store import open_store

    store = open_store(settings.store_url(), **settings.store_options())
    found = {}
    for corpus in store.folders():
        inside = store.child(corpus)
        if roots := [name for name in inside.list("roots/") if re.fullmatch(r"roots/\d{16}\.json", name)]:
            found[corpus] = [space["name"] for space in json.loads(inside.read(max(roots)))["spaces"]]
    return found


def served_spaces(settings: "Settings") -> dict[str, list[str]]:
    """Of a server, by its status. Without httpx, which takes 0.1 s to be imported."""
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.parse import urlsplit

    place = urlsplit(settings.url or f"http://127.0.0.1:{settings.port}")
    if place.scheme == "https":
        import ssl

        trust = ssl.create_default_context(cafile=settings.ca_file)
        connection: HTTPConnection = HTTPSConnection(place.hostname or "", place.port, timeout=PATIENCE_S, context=trust)
    else:
        connection = HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)
    key = settings.api_key.get_secret_value() if settings.api_key else None
    with closing(connection):
        connection.request("GET", f"{place.path.rstrip('/')}/v1/status", headers={"Authorization": f"Bearer {key}"} if key else {})
        state = json.loads(connection.getresponse().read())
    return {corpus: [layer["name"] for layer in told["layers"]] for corpus, told in state["corpora"].items()}


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
