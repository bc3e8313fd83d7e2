"""The search tools elsewhere that this process knows by name: asking one gives results that a corpus can take."""

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from serve.external.asking import ask_http, ask_mcp
from serve.external.failure import ExternalFailure
from serve.external.mapping_schema import MAX_RESULTS, HttpSource, McpSource, Source
from serve.external.results import Fetched, results_of
from serve.external.shipped import SHIPPED
from shards.errors import BadQuery, BadSpec, SondageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_SOURCE: TypeAdapter[HttpSource | McpSource] = TypeAdapter(Source)


class ExternalError(SondageError):
    """A search tool elsewhere did not do what it was asked for."""

    status = 502


class Searches(Protocol):
    """What may be registered beside mappings (`shards.plugins`, `externals`): own code that asks something."""

    def fetch(self, query: str, n: int) -> Fetched: ...


class Sources:
    """Sources by name. now: seconds since 1970. registered: others, by name."""

    def __init__(
        self,
        sources: Mapping[str, HttpSource | McpSource],
        registered: Mapping[str, Searches] | None = None,
        now: Callable[[], float] = time.time,
    ):
        self._sources, self._registered, self._now = dict(sources), dict(registered or {}), now

    @property
    def names(self) -> list[str]:
        return sorted({*self._sources, *self._registered})

    def described(self) -> str:
        """Each with what is found there, for whoever chooses."""
        return "; ".join(f"{name} ({about})" if (about := self._about(name)) else name for name in self.names)

    def _about(self, name: str) -> str:
        if name in self._sources:
            return self._sources[name].about
        return " ".join((getattr(self._registered[name], "about", "") or "").split())[:300]

    def fetch(self, name: str, query: str, n: int = 10) -> Fetched:
        """The first n results. Raises BadQuery for a name that is none, ExternalError where the tool fails."""
        if not query.strip() or not 1 <= n <= MAX_RESULTS:
            raise BadQuery(f"Give a question, and n from 1 to {MAX_RESULTS}.")
        if name in self._registered:
            return self._registered[name].fetch(query, n)
        source = self._sources.get(name)
        if source is None:
            known = ", ".join(self.names) or "none is configured; see SONDAGE_EXTERNAL"
            raise BadQuery(f"There is no external source {name!r}. Choose from: {known}.", at="source")
        ask = ask_http if isinstance(source, HttpSource) else ask_mcp
        try:
            items, notes = ask(source, query, n)
        except ExternalFailure as failure:
            said = str(failure)
            secret = source.key.get_secret_value()
            raise ExternalError(f"External source {name!r}: {said.replace(secret, '***') if secret else said}") from None
        fetched = datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        results, more = results_of(name, items[:n], source.fields, source.bounds.text_chars, query, fetched)
        return Fetched(tuple(results), (*notes, *more))


def sources_of(stated: Any, origin: str) -> dict[str, HttpSource | McpSource]:
    """Sources as a file states them, name -> fields, with `use: NAME` for a shipped mapping. Raises BadSpec, which shows no value."""
    if not isinstance(stated, dict):
        raise BadSpec(f"{origin} is no mapping. Write `name:`, and below it `use: openalex` and `key: …`, or a mapping of your own.")
    found: dict[str, HttpSource | McpSource] = {}
    for name, fields in stated.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(fields, dict):
            raise BadSpec(f"{origin}: {name!r} is no source. A name has letters, digits, _ and -, and below it stand fields.")
        own = dict(fields)
        use = own.pop("use", None)
        if use is not None and use not in SHIPPED:
            raise BadSpec(f"{origin}, {name}: there is no mapping {use!r}. Choose from: {', '.join(sorted(SHIPPED))}, or write one.")
        try:
            found[name] = _SOURCE.validate_python({**SHIPPED.get(use, {}), **own})
        except ValidationError as error:
            told = error.errors(include_input=False, include_url=False)
            problems = "; ".join(f"{'.'.join(map(str, e['loc'][1:])) or 'it'}: {e['msg']}" for e in told[:5])
            raise BadSpec(f"{origin}, {name}: {problems}.") from None
    return found
