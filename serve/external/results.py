"""What a search tool elsewhere found, as documents: a place by its id there, a text, and where and when it comes from."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from serve.external.mapping_schema import Fields, read

MAX_ID_CHARS, MAX_URL_CHARS, MAX_TITLE_CHARS = 2_000, 2_000, 1_000
_SAFE = re.compile(r"[^A-Za-z0-9._-]+")
_URL = re.compile(r"https?://[^\s]+")


@dataclass(frozen=True, slots=True)
class Result:
    """path: where it is put, the same for the same id. metadata: source "external" (`meta.source` of a query; the filter field `source` is
    the corpus's source), external: the name of the tool, url, fetched (when), id, query, and the mapping's own."""

    path: str
    title: str
    text: str
    url: str
    date: str
    metadata: dict[str, Any]

    def line(self) -> dict[str, Any]:
        """As `put_many` takes it."""
        content = f"{self.title}\n\n{self.text}" if self.title and self.text else self.title or self.text
        return {"path": self.path, "content": content, "metadata": self.metadata}


@dataclass(frozen=True, slots=True)
class Fetched:
    """Results in the order they came; notes: what was left out or cut, for people."""

    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()

    def lines(self) -> list[dict[str, Any]]:
        """As `put_many` takes them."""
        return [result.line() for result in self.results]


def results_of(
    source: str, items: Sequence[Any], fields: Fields, text_chars: int, query: str, fetched: str
) -> tuple[list[Result], list[str]]:
    """Items of an answer as results, each id once; notes on those that are none. fetched: ISO 8601."""
    found: dict[str, Result] = {}
    n_without, n_cut = 0, 0
    for item in items:
        id_ = _text(read(item, fields.id))[:MAX_ID_CHARS]
        title, text = _line(read(item, fields.title))[:MAX_TITLE_CHARS], _text(read(item, fields.text))
        if not id_ or not (title or text):
            n_without += 1
            continue
        n_cut += len(text) > text_chars
        url = _line(read(item, fields.url))[:MAX_URL_CHARS]
        date = _line(read(item, fields.date))[:40]
        metadata: dict[str, Any] = {"source": "external", "external": source, "id": id_, "query": query[:500], "fetched": fetched}
        metadata |= {"url": url} if _URL.fullmatch(url) else {}
        metadata |= {name: value for name, value in (("title", title), ("date", date)) if value}
        for name, place in fields.metadata.items():
            if values := [_scalar(value) for value in read(item, place)[:50]]:
                metadata.setdefault(name, values[0] if len(values) == 1 else values)
        path = place_of(source, id_)
        found.setdefault(path, Result(path, title, text[:text_chars], metadata.get("url", ""), date, metadata))
    notes = [f"{n_without} results had no id, or neither title nor text"] if n_without else []
    notes += [f"{n_cut} texts were cut at {text_chars:,} characters"] if n_cut else []
    return list(found.values()), notes


def place_of(source: str, id_: str) -> str:
    """A path that stands for an id: readable where it can be, and told from all others by a digest."""
    digest = hashlib.sha256(id_.encode()).hexdigest()[:12]
    readable = _SAFE.sub("_", id_.removeprefix("https://").removeprefix("http://")).strip("._")[:80]
    return f"external/{_SAFE.sub('_', source)}/{readable or 'result'}-{digest}"


def _text(values: Sequence[Any]) -> str:
    return _sound("\n".join(value if isinstance(value, str) else str(value) for value in values if not isinstance(value, dict | list)))


def _line(values: Sequence[Any]) -> str:
    """The first value, in one line."""
    return " ".join(_text(values[:1]).split())


def _scalar(value: Any) -> Any:
    return value if isinstance(value, bool | int | float) else _sound(str(value))[:1_000]


def _sound(text: str) -> str:
    """JSON can hold halves of characters, and NUL."""
    return text.encode("utf-8", "replace").decode().replace("\0", "")
