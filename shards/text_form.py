"""The form of a text query: what a caller may ask, checked and completed."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shards.errors import BadQuery
from shards.layers.contract import Request

MAX_AUTO_BYTES = 200  # a longer query is a question or a paste; as one literal it is not worth a scan unless asked for
MAX_PATTERN_BYTES = 4096
MAX_PATTERNS = 64  # of one form: each is looked for on its own
MAX_DEPTH = 16  # of forms within forms
MAX_EDITS = 8
MAX_WITHIN = 63  # characters: one bit each of a word of 64, and one for the beginning (`shards/text_kernels.py`)
QUERY_FORMAT = (
    'a string, or {"pattern": …, "regex": false, "word": false, "case": "smart" | "sensitive" | "ignore", "multiline": false, '
    '"edits": 0}, or instead of "pattern" "all", "any" and "none": lists of strings and such forms, and "per": "line" | "document"'
)
_NOT_LETTERS = re.compile(r"\\[pP]\{[^}]*\}|\\[pP].|\\x\{[^}]*\}|\\.|\(\?P?<[^>]*>|\(\?[a-zA-Z-]*", re.DOTALL)
_LISTS: tuple[Literal["all", "any", "none"], ...] = ("all", "any", "none")
_FLAGS = ("regex", "word", "case", "multiline", "edits")


class Form(BaseModel):
    """What is to be found: a pattern; or all of some, one of some and none of some, on one line or in one document.

    case: "smart" counts case if the pattern has a capital letter; word: only whole words; multiline: a match may span lines;
    edits: so many characters may be left out, put in or exchanged. Strings and forms within a form have its flags unless they say
    otherwise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    pattern: str | None = None
    regex: bool = False
    word: bool = False
    case: Literal["smart", "sensitive", "ignore"] = "smart"
    multiline: bool = False
    edits: int = Field(default=0, ge=0, le=MAX_EDITS)
    all: list["str | Form"] = []
    any: list["str | Form"] = []
    none: list["str | Form"] = []
    per: Literal["line", "document"] = "line"

    def parts(self, name: Literal["all", "any", "none"]) -> list["Form"]:
        """The forms of one of its lists, with the flags they inherit."""
        given: list[str | Form] = getattr(self, name)
        flags = {flag: getattr(self, flag) for flag in _FLAGS}
        whole = [Form(pattern=part) if isinstance(part, str) else part for part in given]
        return [part.model_copy(update={f: v for f, v in flags.items() if f not in part.model_fields_set}) for part in whole]

    def patterns(self) -> Iterator[Self]:
        """The forms with a pattern in it."""
        if self.pattern is not None:
            yield self
        for name in _LISTS:
            for part in self.parts(name):
                yield from part.patterns()  # type: ignore[misc]

    @property
    def ignores_case(self) -> bool:
        """Whether letters match in either case, flags within a regular expression aside."""
        if self.case != "smart":
            return self.case == "ignore"
        pattern = self.pattern or ""
        return not any(c.isupper() for c in (_NOT_LETTERS.sub("", pattern) if self.regex else pattern))


def form_of(request: Request) -> Form | None:
    """What is asked, or None where the common text is nothing to look for literally. Raises BadQuery."""
    if request.form:
        _check_depth(request.form)
        try:
            form = Form(**request.form)
        except ValidationError as error:
            raise BadQuery(f"Text form: {_problems(error)}. Expected {QUERY_FORMAT}.") from None
    else:
        text = request.text.strip()
        if not request.explicit and (not text or "\n" in text or len(text.encode("utf-8", "replace")) > MAX_AUTO_BYTES):
            return None
        form = Form(pattern=text, regex="regex" in request.shapes)
    _check(form)
    patterns = list(form.patterns())
    if len(patterns) > MAX_PATTERNS:
        raise BadQuery(f"Text: the form has {len(patterns)} patterns; at most {MAX_PATTERNS} are allowed. Join some in a regex.")
    for part in patterns:
        _check_pattern(part)
        if part.multiline and form.pattern is None and form.per == "line":
            raise BadQuery(f'Text: {part.pattern!r} may span lines, but its parts are joined on one line. Set "per": "document".')
    return form


def _check_depth(form: Mapping[str, Any]) -> None:
    level: list[Any] = [form]
    for _ in range(MAX_DEPTH):
        level = [
            part
            for node in level
            if isinstance(node, Mapping)
            for name in _LISTS
            if isinstance(node.get(name), list)
            for part in node[name]
        ]
    if level:
        raise BadQuery(f"Text: forms are nested more than {MAX_DEPTH} deep. Write the same with fewer levels.")


def _problems(error: ValidationError) -> str:
    """What is wrong and where, of a part that is no string what is wrong with it as a form."""
    told = [(".".join(str(part) for part in e["loc"] if part != "Form"), e["msg"]) for e in error.errors()]
    return "; ".join(f"{at}: {message}" for at, message in ([t for t in told if not t[0].endswith(".str")] or told)[:5])


def _check(form: Form, within: bool = False) -> None:
    lists = [name for name in _LISTS if getattr(form, name)]
    if form.pattern is not None and lists:
        raise BadQuery(f'Text: a form has "pattern" or "{lists[0]}", not both. Put the pattern into "all".')
    if form.pattern is None and not lists:
        raise BadQuery('Text: the form says nothing to look for. Give "pattern", or lists "all", "any", "none".')
    if within and form.per != "line":
        raise BadQuery('Text: "per" is said once, of the whole form. Move it to the outermost one.')
    for name in _LISTS:
        for part in form.parts(name):
            _check(part, within=True)


def _check_pattern(form: Form) -> None:
    pattern = form.pattern or ""
    if not pattern:
        raise BadQuery("Text: the pattern is empty. Give a string or a regular expression to look for.")
    if (size := len(encode(pattern))) > MAX_PATTERN_BYTES:
        raise BadQuery(f"Text: the pattern has {size} bytes; at most {MAX_PATTERN_BYTES} are allowed. Shorten it.")
    if "\n" in pattern and not form.multiline:
        at = pattern.index("\n")
        raise BadQuery(f'Text: the pattern has a line feed at position {at}, but matches stay within a line, unless "multiline" is set.')
    if not form.edits:
        return
    if form.regex or form.multiline:
        raise BadQuery(f'Text: "edits" is of a string within a line, and {pattern!r} is asked as more. Leave out "regex" and "multiline".')
    if not form.edits < len(pattern) <= MAX_WITHIN:
        raise BadQuery(
            f"Text: {pattern!r} has {len(pattern)} characters; with {form.edits} edits it needs more than {form.edits} and at most "
            f"{MAX_WITHIN}. Give fewer edits, or another string."
        )


def encode(pattern: str) -> bytes:
    """A pattern in UTF-8. Raises BadQuery for lone surrogates."""
    try:
        return pattern.encode()
    except UnicodeEncodeError as error:
        raise BadQuery(f"Text: the pattern has a lone surrogate at position {error.start}. Send valid Unicode.") from None
