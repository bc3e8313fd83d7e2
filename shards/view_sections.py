"""What a document is made of, as far as its text tells: sections, each with the document's title and the headings above it.

All of it depends on the content alone, never on a path: one content may lie at many, and a renamed file must cost nothing.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from shards.documents import Documents
from shards.types import Array

MAX_LINE_CHARS = 160  # of a title, a heading or a sentence in a context line
_HEAD_CHARS = 4_000  # a title that comes later is none
_ATX = re.compile(r"(#{1,6}|={1,6})[ \t]+(\S.*?)[ \t]*[#=]*[ \t]*")  # Markdown; AsciiDoc
_FENCE = re.compile(r"[ \t]*(```|~~~)")
_RULE = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}[ \t]*")  # what reStructuredText and Markdown put under a heading
_FRONT_TITLE = re.compile(r"\A---[ \t]*\r?\n(?:.*\n)*?title:[ \t]*[\"']?(.+?)[\"']?[ \t]*\r?\n")
# Definitions as a line of their own, in the languages that begin them with a word. Methods of C and Java are not seen.
_DEFINITION = re.compile(
    r"([ \t]*)((?:(?:export|default|public|private|protected|internal|static|async|abstract|final|sealed|pub(?:\([a-z]+\))?|override|"
    r"virtual|inline|open|data|unsafe|const)[ \t]+)*"
    r"(?:class|def|fn|func|function|interface|struct|impl|module|namespace|trait|enum|object|record|protocol|sub|defmodule)"
    r"(?:<[^>]*>)?[ \t]+"
    r"[\w.:$<(\[].*?)[ \t]*[{:]?[ \t]*"
)
_DOCSTRING = re.compile(r"\s*[rRuUbB]?(\"\"\"|''')(.*?)\1", re.DOTALL)
_DOCSTRINGS = re.compile(r"(\"\"\"|''')(.*?)\1", re.DOTALL)
_COMMENT = re.compile(r"[ \t]*(?:#+|//+[/!]?|/\*+|\*+/?|--+|;+|%+)[ \t]?")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[^\sa-z])|(?<=[。！？])|\n\s*\n")
_MARK_UP = re.compile(r"^[ \t]*(?:[-*+>|]|\d+[.)])[ \t]+", re.MULTILINE)
_WORD = re.compile(r"[^\W\d_]")
_LICENCE = re.compile(r"copyright|licen[cs]e|all rights reserved", re.IGNORECASE)
_STOPS = ".:;,"  # a title ends without them


class Section(NamedTuple):
    """A stretch of a document: bytes [start, end) of its rendition, and what it reads.

    title: of the document, "" where its text states none. trail: the headings, or in code the definitions, that it stands under,
    outermost first, without the title. kind: of the document's content (`shards.kinds`). prose: what of the text is sentences: without
    headings; of code docstrings and comments; of data nothing.
    """

    start: int
    end: int
    title: str
    trail: tuple[str, ...]
    text: str
    kind: str
    prose: str


class _Heading(NamedTuple):
    """at: its first character, end: the one after its last. level: smaller ones hold greater ones."""

    at: int
    end: int
    level: int
    text: str


def cut(documents: Documents, section_bytes: int, scope: Array | None) -> tuple[Array, Array, Array]:
    """Where sections lie: row_sections (n + 1,), starts, ends (s,), int64. They are passages of about `section_bytes` (`shards.units`)."""
    from shards.units import passages

    units = passages(documents, section_bytes, 0, scope)
    row_sections = units.of_rows(len(documents))
    return row_sections, units.starts.astype(np.int64), units.ends.astype(np.int64)


def sections_of(content: bytes, kind: str, starts: list[int], ends: list[int]) -> list[Section]:
    """The sections of one document at these places, with its title and the headings above each."""
    text = content.decode("utf-8", "replace")
    headings = _definitions(text) if kind == "code" else _headings(text) if kind != "data" else []
    title = title_of(text, kind, headings)
    ascii_only = len(text) == len(content)  # then bytes and characters count the same
    between = _between_code(text) if kind == "code" else []
    found = []
    for start, end in zip(starts, ends, strict=True):
        first, last = (at if ascii_only else len(content[:at].decode("utf-8", "replace")) for at in (start, end))
        above = [h for h in headings if h.at <= first]
        trail = tuple(h.text for h in _open(above) if h.text != title)
        piece = text[first:last]
        if kind == "code":
            prose = "\n\n".join(_plain(text[max(a, first) : min(b, last)]) for a, b in between if a < last and b > first)
        else:
            prose = "" if kind == "data" else _without_headings(piece)
        found.append(Section(start, end, title, trail, piece, kind, prose))
    return found


def title_of(text: str, kind: str, headings: list[_Heading] | None = None) -> str:
    """What a document calls itself: in prose its front matter's title, first heading or a first line that stands alone; in code the
    first sentence of its docstring or opening comment; of data the first line. "" for none."""
    head = text[:_HEAD_CHARS]
    if kind == "data":
        return one_line(head.split("\n", 1)[0])
    if kind == "code":
        return _opening_comment(head)
    if found := _FRONT_TITLE.match(head):
        return one_line(found.group(1))
    headings = _headings(head) if headings is None else headings
    first, _, rest = head.lstrip().partition("\n")
    begin = len(head) - len(head.lstrip())
    if headings and headings[0].at <= begin:
        return headings[0].text
    stands_alone = rest.startswith(("\n", "\r\n")) and bool(rest.strip())
    if stands_alone and len(first) <= MAX_LINE_CHARS and _WORD.search(first):
        return one_line(first)
    return headings[0].text if headings and headings[0].at < _HEAD_CHARS and headings[0].level == 1 else ""


def sentences_of(prose: str) -> list[str]:
    """The sentences of a text, each on one line and once, of at least four words (or 8 characters of a script without spaces)."""
    found: dict[str, None] = {}
    for piece in _SENTENCE_END.split(_MARK_UP.sub("", prose)):
        line = " ".join(piece.split())
        if len(line.split()) >= 4 or (len(line) >= 8 and len(line.encode()) >= 2 * len(line)):
            found[line] = None
    return list(found)


def statement_of(section: Section) -> str:
    """What a section says of itself first: in code its first definition and the sentence that follows it, else its first sentence."""
    if section.kind == "code":
        for heading in _definitions(section.text):
            said = _DOCSTRING.match(section.text[heading.end :])
            what = next(iter(sentences_of(said.group(2))), "") or one_line(said.group(2)) if said else ""
            known = section.trail and heading.text == section.trail[-1]
            return one_line(what) if known else f"{heading.text}: {one_line(what)}" if what else heading.text
    named = {section.title, *section.trail}
    return next((line for line in map(one_line, sentences_of(section.prose)) if line.rstrip(_STOPS) not in named), "")


def one_line(text: str) -> str:
    """On one line, cut at a word where it is too long."""
    line = " ".join(text.split())
    if len(line) <= MAX_LINE_CHARS:
        return line
    return f"{line[:MAX_LINE_CHARS].rsplit(' ', 1)[0].rstrip(',;:.')} …"


def _without_headings(text: str) -> str:
    """Running text alone: a heading would run into the sentence after it."""
    pieces, at = [], 0
    for heading in _headings(text):
        pieces.append(text[at : heading.at])
        at = heading.end
    return "\n\n".join([*pieces, text[at:]])


def _open(headings: list[_Heading]) -> list[_Heading]:
    """Those that still hold after the last one."""
    held: list[_Heading] = []
    for heading in headings:
        while held and held[-1].level >= heading.level:
            held.pop()
        held.append(heading)
    return held


def _lines(text: str) -> Iterator[tuple[int, str]]:
    at = 0
    for line in text.split("\n"):
        yield at, line.rstrip("\r")
        at += len(line) + 1


def _headings(text: str) -> list[_Heading]:
    """Headings of Markdown, AsciiDoc and reStructuredText. Levels of underlined ones count by the order in which underlines occur."""
    found: list[_Heading] = []
    rules: dict[str, int] = {}
    in_fence = ""
    after_blank, lines = True, [*_lines(text), (len(text), "")]
    for (at, line), (below, rule) in pairwise(lines):
        if fence := _FENCE.match(line):
            in_fence = "" if in_fence == fence.group(1) else in_fence or fence.group(1)
        elif in_fence:
            pass
        elif atx := _ATX.fullmatch(line):
            found.append(_Heading(at, at + len(line), len(atx.group(1)), one_line(atx.group(2))))
        elif after_blank and _is_underlined(line, rule):
            level = rules.setdefault(rule[0], len(rules) + 1)
            found.append(_Heading(at, below + len(rule), level, one_line(line)))
        after_blank = not line.strip() or bool(_RULE.fullmatch(line))
    return found


def _is_underlined(line: str, rule: str) -> bool:
    title = line.rstrip()
    return 0 < len(title) <= MAX_LINE_CHARS and bool(_WORD.search(title) and _RULE.fullmatch(rule)) and len(rule.rstrip()) >= len(title) - 2


def _definitions(text: str) -> list[_Heading]:
    """Definitions in code, as deep as they are indented."""
    found = []
    for at, line in _lines(text):
        if definition := _DEFINITION.fullmatch(line):
            indent = len(definition.group(1).expandtabs(4))
            found.append(_Heading(at, at + len(line), indent, one_line(definition.group(2))))
    return found


def _opening_comment(head: str) -> str:
    """The first sentence of the docstring, else the comment, that code begins with; licences are none of its own."""
    lines = head.split("\n")
    n_above = next((i for i, line in enumerate(lines) if line.strip() and not _COMMENT.match(line)), len(lines))
    if said := _DOCSTRING.match("\n".join(lines[n_above:])):
        text = said.group(2)
    else:
        own = [line for line in lines[:n_above] if not line.startswith("#!") and "coding" not in line[:24]]
        plain = (_plain(line) for line in own)
        text = "\n".join(line for line in plain if not line.strip() or _WORD.search(line))
    said_first = next((line for line in _SENTENCE_END.split(text.strip()) if line.strip()), "")
    return "" if _LICENCE.search(said_first) else one_line(said_first).rstrip(_STOPS)


def _between_code(text: str) -> list[tuple[int, int]]:
    """Where something is written between code, characters [start, end): docstrings, and comments on lines of their own."""
    found = [found.span(2) for found in _DOCSTRINGS.finditer(text)]
    inside = iter([*found, (len(text) + 1, len(text) + 1)])
    begin, end = next(inside)
    block: list[tuple[int, int]] = []
    for at, line in _lines(text):
        while end <= at:
            begin, end = next(inside)
        if at < begin and _COMMENT.match(line):
            begun = block.pop()[0] if block and block[-1][1] == at - 1 else at
            block.append((begun, at + len(line)))
    return sorted([*found, *block])


def _plain(text: str) -> str:
    """A docstring or comment without its marks and without examples of an interactive session."""
    lines = [line[mark.end() :] if (mark := _COMMENT.match(line)) else line for line in text.split("\n")]
    return "\n".join("" if line.lstrip().startswith((">>>", "...")) else line.removesuffix("*/") for line in lines)
