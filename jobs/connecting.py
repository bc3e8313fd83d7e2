"""Who answers a command: a server, or an engine over a store in this process."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from shards.errors import BadQuery, NotFound

if TYPE_CHECKING:
    from jobs.settings import Settings
    from serve.layer_orders import LayersAnswer
    from serve.nlql.schema import QueryAnswer
    from serve.push_schema import BulkAnswer
    from serve.schema import DocumentAnswer, SearchAnswer, SearchRequest


PATIENCE_S = 30.0  # for which a command goes on asking a server that is too busy to begin: who typed it would only type it again


class Asked(Protocol):
    """A `sondage.Client` of a server, or a `sondage.Engine` in this process."""

    def search(self, query: "SearchRequest") -> "SearchAnswer": ...
    def search_stream(self, query: "SearchRequest") -> "Iterator[SearchAnswer]": ...
    def query(self, text: Any, corpus: str = "", **fields: Any) -> "QueryAnswer": ...
    def explain_query(self, text: Any, corpus: str = "", **fields: Any) -> dict[str, Any]: ...
    def status(self) -> dict[str, Any]: ...
    def document(self, hash: str, corpus: str, start: int | None, end: int | None, generation: int | None) -> "DocumentAnswer": ...
    def media(self, hash: str, corpus: str, generation: int | None) -> bytes: ...
    def put_many(self, items: "Iterable[Any]", *, corpus: str, wait: bool, create: bool, layers: list[str] | None) -> "BulkAnswer": ...
    def order_layers(self, corpus: str, **order: Any) -> "LayersAnswer": ...
    def close(self) -> None: ...


def ask(url: str | None, store: str | None) -> Asked:
    """Whoever answers: the server or store named on the command line, else that of the environment, else this machine's server."""
    from jobs.settings import Settings

    if url and store:
        raise BadQuery("Both --url and --store are given. Name the server or the store, not both.")
    settings = Settings.load(url=url, store=store)
    if store or (settings.store and not settings.url):
        return engine(settings)
    import sondage

    key = settings.api_key.get_secret_value() if settings.api_key else None
    url = settings.url or f"http://127.0.0.1:{settings.port}"
    return sondage.connect(url, key, settings.ca_file, retries=sondage.Retries(within_s=PATIENCE_S))


@contextmanager
def asking(url: str | None, store: str | None) -> Iterator[Asked]:
    """The same, closed at the end."""
    asked = ask(url, store)
    try:
        yield asked
    finally:
        asked.close()


def engine(settings: "Settings") -> Asked:
    """An engine over the store of the settings."""
    import sondage

    settings.load_plugins()
    return sondage.Engine(
        settings.store_url(),
        settings.store_options(),
        settings.cache,
        settings.cache_bytes,
        settings.threads,
        settings.endpoint_settings(),
        settings.last_stage(),
        settings.models_dir(),
        settings.translator(),
    )


def only_corpus(state: dict[str, Any]) -> str:
    """The corpus that is meant when none is named. Raises BadQuery unless there is exactly one."""
    from jobs.settings import Settings

    known = sorted(state.get("corpora", {}))
    if named := Settings.load().corpus:
        return named
    if len(known) == 1:
        return known[0]
    if known:
        raise BadQuery(f"There are several corpora: {', '.join(known)}. Name one with --corpus.")
    raise BadQuery(no_corpus_yet(state))


def named_corpus(corpus: str | None, state: dict[str, Any]) -> str:
    """The corpus named, or else the only one. Raises NotFound with a guess for one that is not among those told."""
    from jobs.suggesting import meant

    chosen = corpus or only_corpus(state)
    known = sorted(state.get("corpora", {}))
    if chosen not in known and chosen not in state.get("problems", {}):
        if not known:
            raise NotFound(no_corpus_yet(state), at="corpus")
        raise NotFound(f"There is no corpus {chosen!r}. {meant(chosen, known)}There are: {', '.join(known)}.", at="corpus")
    return chosen


def no_corpus_yet(state: dict[str, Any]) -> str:
    """What to say of a store without any: that it is misspelt, where nothing is there and something like-named is."""
    from pathlib import Path

    from jobs.suggesting import meant_path

    store = str(state.get("store", "the store"))
    guess = meant_path(store) if store.startswith("/") and not Path(store).exists() else ""
    return f"There is no corpus in {store} yet. {guess}Build one with `sondage index`."
