"""Where a byte of a rendition stands in the file that it was made from: on which page, slide or sheet, in which cell or chapter.

All that is needed stands in the rendition: `PAGE_BREAK` between pages, and at the head of each block of a sheet where its cells lie.
"""

import re
from collections.abc import Iterator

from shards.pages import PAGE_BREAK

_NUMBERED = {"pages": "page", "document": "page", "slides": "slide", "chapters": "chapter", "cells": "cell"}
_SHEETS = "sheets"
_HEADER = re.compile(r"(.*)!([A-Z]{1,3})([0-9]{1,7}):[A-Z]{1,3}[0-9]{1,7}")
_FEED = PAGE_BREAK[-1:]
_HEADER_BYTES = 1024  # a sheet's name has 31 characters


def places_in(kind: str, text: bytes | memoryview, start: int, end: int) -> tuple[tuple[int, str], ...]:
    """The places that the piece [start, end) of a rendition goes through, with the offset in the piece where each begins.

    A place: "page 3", "slide 4", "Sheet2!B7", "chapter 2", "cell 5"; none in files that have no places. kind: of the document
    (`Documents.kind_names`). Word-processor files that know no page breaks are one piece, and have none.
    """
    family = kind.partition(":")[0]
    if family == _SHEETS:
        return tuple(_cells(bytes(text), start, end))
    what = _NUMBERED.get(family)
    if what is None:
        return ()
    whole = bytes(text)
    if family == "document" and _FEED not in whole:
        return ()
    number, found = 1 + whole.count(_FEED, 0, start), []
    at = start
    while at >= 0:
        found.append((at - start, f"{what} {number}"))
        number += 1
        at = whole.find(_FEED, at, end) + 1 or -1
    return tuple(found)


def cell_name(row: int, column: int) -> str:
    """A cell as spreadsheets name it: row 0 and column 27 are AB1."""
    letters, column = "", column + 1
    while column:
        column, rest = divmod(column - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return f"{letters}{row + 1}"


def _cells(text: bytes, start: int, end: int) -> Iterator[tuple[int, str]]:
    """The cells that a piece goes through; in the header of a block, its sheet."""
    block = text.rfind(_FEED, 0, start) + 1
    row = text.count(b"\n", block, start)
    column = text.count(b"\t", text.rfind(b"\n", block, start) + 1, start) if row else 0
    said = _header(text, block)
    yield 0, _named(said, row, column)
    for at in range(start, end):
        match text[at]:
            case 0x0C:
                said, row, column = _header(text, at + 1), 0, 0
            case 0x0A:
                row, column = row + 1, 0
            case 0x09:
                column += 1
            case _:
                continue
        yield at + 1 - start, _named(said, row, column)


def _header(text: bytes, block: int) -> re.Match[str] | None:
    return _HEADER.fullmatch(text[block : block + _HEADER_BYTES].split(b"\n", 1)[0].decode("utf-8", "replace"))


def _named(said: re.Match[str] | None, row: int, column: int) -> str:
    """row: lines of the block before, of which the first is its header."""
    if said is None:
        return ""
    sheet, letters, digits = said.groups()
    if not row:
        return sheet
    first = 0
    for letter in letters:
        first = 26 * first + ord(letter) - ord("A") + 1
    return f"{sheet}!{cell_name(int(digits) + row - 2, first - 1 + column)}"
