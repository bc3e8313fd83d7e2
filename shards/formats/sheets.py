"""Spreadsheets, read by calamine: rows as lines, cells between tabs, so that a byte's cell is found by counting.

A sheet is cut into blocks where more than `GAP` rows are empty. A block is a line that says where its cells lie, `Sheet1!B3:D7`, as
formulas write it, then a line for each row from there on; between two blocks stands `PAGE_BREAK`.
"""

import datetime
import io
from collections.abc import Iterable, Iterator
from typing import Any

from shards.formats.compound import OLE, wants_password
from shards.formats.packages import Package
from shards.formats.reader import DAMAGED, PASSWORD, Read, Unreadable
from shards.pages import PAGE_BREAK
from shards.places import cell_name

GAP = 8  # empty rows that cost less than another header


def load() -> None:
    """Import what is needed. Raises ImportError."""
    import python_calamine  # noqa: F401


def read(_name: str, data: bytes, unpacked_bytes: int) -> Read:
    """The blocks of all sheets, in order. Raises Unreadable."""
    import python_calamine

    if not data.startswith(OLE):
        Package(data, unpacked_bytes)
    elif wants_password(data):  # of an XLS calamine says no more than that it is none
        raise Unreadable(PASSWORD)
    blocks: list[str] = []
    try:
        book = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(data))
        names = [sheet.name for sheet in book.sheets_metadata if sheet.typ == python_calamine.SheetTypeEnum.WorkSheet]
        for name in names:
            sheet = book.get_sheet_by_name(name)
            if sheet.start is not None:
                blocks += _blocks(name, sheet.start, sheet.to_python(skip_empty_area=True))
    except python_calamine.PasswordError:
        raise Unreadable(PASSWORD) from None
    except (python_calamine.CalamineError, python_calamine.XmlError, python_calamine.ZipError):
        raise Unreadable(DAMAGED) from None
    return Read(PAGE_BREAK.decode().join(blocks), {"sheets": names})


def _blocks(name: str, start: tuple[int, int], rows: Iterable[list[Any]]) -> Iterator[str]:
    first, lines, n_empty = 0, [], 0
    for number, row in enumerate(rows):
        line = "\t".join(map(_shown, row)).rstrip("\t")
        n_empty = 0 if line else n_empty + 1
        if n_empty > GAP and lines:
            yield _block(name, start, first, lines)
            lines = []
        if line and not lines:
            first = number
        if line or lines:
            lines.append(line)
    if lines:
        yield _block(name, start, first, lines)


def _block(name: str, start: tuple[int, int], first: int, lines: list[str]) -> str:
    while not lines[-1]:
        lines.pop()
    row, width = start[0] + first, max(line.count("\t") for line in lines) + 1
    ends = f"{cell_name(row, start[1])}:{cell_name(row + len(lines) - 1, start[1] + width - 1)}"
    return "\n".join([f"{_one_line(name)}!{ends}", *lines])


def _shown(value: Any) -> str:
    """A cell's value as people read it, on one line."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ") if value.time() != datetime.time() else value.date().isoformat()
    return _one_line(str(value))


def _one_line(text: str) -> str:
    return " ".join(text.split())
