"""How a search tool elsewhere is asked and where in its answer things stand: a declaration, never code.

An HTTP source is a request template and paths into the JSON that comes back; an MCP source names a tool of another server. Templates are
filled with `{query}`, `{n}`, `{key}` and, for a further page, `{page}`: in values, never in the address, so nobody is asked but who the
mapping names. Answers fill nothing but texts and metadata.

A path is names joined by dots; `[]` behind a name goes through a list: `authorships[].author.display_name`. Several paths, of which the
first that leads to something counts, are a list. {"path": …, "as": "inverted_index"} puts words in their places, as OpenAlex keeps
abstracts.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, JsonValue, SecretStr, Tag, field_validator, model_validator

from serve.edge import Edge

MAX_RESULTS = 200  # of one question, whatever is asked for
_PLACE = re.compile(r"\{(query|n|key|page)\}")
Path = Annotated[str, Field(min_length=1, max_length=500)]


class Place(Edge):
    """Where a value stands, and how it is read."""

    path: Path | list[Path]
    as_: Annotated[Literal["text", "inverted_index"], Field(alias="as")] = "text"

    @property
    def paths(self) -> list[str]:
        return [self.path] if isinstance(self.path, str) else self.path


def _place(value: Any) -> Any:
    return {"path": value} if isinstance(value, str | list) else value


class Fields(Edge):
    """Where in one result its parts stand. id: by which it is known there: the same is put in the same place. A source may lack all others,
    but not both title and text."""

    id: Place
    title: Place | None = None
    text: Place | None = None
    url: Place | None = None
    date: Place | None = None
    metadata: Annotated[dict[str, Place], Field(max_length=50)] = {}

    @field_validator("id", "title", "text", "url", "date", mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return _place(value)

    @field_validator("metadata", mode="before")
    @classmethod
    def _short_ones(cls, value: Any) -> Any:
        return {name: _place(place) for name, place in value.items()} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _something_to_read(self) -> "Fields":
        if self.title is None and self.text is None:
            raise ValueError("a result needs a title or a text")
        return self


class Paging(Edge):
    """How further pages are asked for. kind: cursor (the answer says what comes next, at `next`), page (numbers) or offset (results).
    first: the value of `{page}` in the first request."""

    kind: Literal["cursor", "page", "offset"]
    first: str | int = 1
    next: Path | None = None
    size: Annotated[int, Field(ge=1, le=MAX_RESULTS, description="most results of one page; {n} is never more")] = 100

    @model_validator(mode="after")
    def _knows_next(self) -> "Paging":
        if (self.kind == "cursor") != (self.next is not None):
            raise ValueError("`next`, where the answer says what comes next, belongs to cursor, and cursor needs it")
        return self


class Bounds(Edge):
    """What may come back."""

    answer_bytes: Annotated[int, Field(ge=1_000, le=1 << 28, description="of one answer")] = 8 << 20
    text_chars: Annotated[int, Field(ge=100, le=10_000_000, description="of one result's text; the rest is cut off")] = 200_000
    timeout_s: Annotated[float, Field(gt=0, le=600, description="for all pages of one question")] = 30.0
    pages: Annotated[int, Field(ge=1, le=50)] = 5


class _Source(Edge):
    key: Annotated[SecretStr, Field(description="what {key} stands for; from settings alone")] = SecretStr("")
    results: Annotated[str, Field(max_length=500, description="path to the list of results; empty: the answer is that, or one result")] = ""
    fields: Fields
    bounds: Bounds = Bounds()
    about: Annotated[str, Field(max_length=300, description="what is found there, for models that choose")] = ""


class HttpSource(_Source):
    """A tool that answers HTTP with JSON."""

    kind: Literal["http"] = "http"
    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$", max_length=2_000, description="without query and password")]
    method: Literal["GET", "POST"] = "GET"
    headers: Annotated[dict[str, str], Field(max_length=50)] = {}
    params: Annotated[dict[str, str | int], Field(max_length=50)] = {}
    body: dict[str, JsonValue] | None = None
    paging: Paging | None = None


class McpSource(_Source):
    """A tool of another MCP server: over streamable HTTP at `url`, or of a process that is started for each question. The fields are read
    from the tool's structured content, else from its text, as JSON where it is some; else each text is a result with the fields id
    (a digest) and text."""

    kind: Literal["mcp"]
    url: Annotated[str | None, Field(pattern=r"^https?://[^\s?#@]+$", max_length=2_000)] = None
    command: Annotated[list[str] | None, Field(min_length=1, max_length=100)] = None
    headers: Annotated[dict[str, str], Field(max_length=50, description="of requests to url")] = {}
    env: Annotated[dict[str, str], Field(max_length=50, description="of the process, beside a minimal one")] = {}
    tool: Annotated[str, Field(min_length=1, max_length=200)]
    arguments: dict[str, JsonValue] = {"query": "{query}"}

    @model_validator(mode="after")
    def _one_way(self) -> "McpSource":
        if (self.url is None) == (self.command is None):
            raise ValueError("give url, or command, and not both")
        return self


Source = Annotated[
    Annotated[HttpSource, Tag("http")] | Annotated[McpSource, Tag("mcp")],
    Discriminator(lambda value: value.get("kind", "http") if isinstance(value, dict) else getattr(value, "kind", "http")),
]


def filled(template: Any, values: dict[str, str | int]) -> Any:
    """A template with its places filled, texts within lists and objects likewise; what is a place alone keeps the value's type."""
    if isinstance(template, dict):
        return {name: filled(value, values) for name, value in template.items()}
    if isinstance(template, list):
        return [filled(value, values) for value in template]
    if not isinstance(template, str):
        return template
    if template.startswith("{") and template.endswith("}") and template[1:-1] in values:
        return values[template[1:-1]]
    # In one pass: a question that holds "{key}" is a question.
    return _PLACE.sub(lambda match: str(values.get(match[1], match[0])), template)


def found_at(value: Any, path: str) -> list[Any]:
    """All values at a path, in order; none where it leads nowhere."""
    values = [value]
    for step in filter(None, path.split(".")):
        name, through = step.removesuffix("[]"), step.endswith("[]")
        values = [v[name] for v in values if isinstance(v, dict) and name in v] if name else values
        if through:
            values = [item for v in values if isinstance(v, list) for item in v]
    return [v for v in values if v is not None and v != ""]


def read(value: Any, place: Place | None) -> list[Any]:
    """What a place gives of a result: by the first of its paths that leads to something."""
    for path in place.paths if place is not None else ():
        if found := found_at(value, path):
            return [in_order(v) for v in found] if place is not None and place.as_ == "inverted_index" else found
    return []


def in_order(index: Any) -> str:
    """The text of an inverted index, {word: [places]}: "" for what is none. Places are believed up to 100,000."""
    if not isinstance(index, dict):
        return ""
    words: dict[int, str] = {}
    for word, places in index.items():
        for at in places if isinstance(places, list) else ():
            if type(at) is int and 0 <= at < 100_000:
                words[at] = str(word)
    return " ".join(words[at] for at in sorted(words))
