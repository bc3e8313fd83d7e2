"""Notebooks (nbformat 3 and 4): sources of the cells as they are, with the text that code printed or showed."""

import json
from typing import Any

from shards.formats.markup import text_of
from shards.formats.reader import Plain, Read
from shards.pages import PAGE_BREAK


def load() -> None:
    """Nothing: the standard library does."""


def read(_name: str, data: bytes, _unpacked_bytes: int) -> Read:
    """The cells with `PAGE_BREAK` between them. Raises Plain where this is no notebook."""
    try:
        book = json.loads(data)
        cells = book["cells"] if "cells" in book else [cell for sheet in book["worksheets"] for cell in sheet["cells"]]
        texts = [_cell(cell) for cell in cells]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Plain from None
    kernel = (book.get("metadata") or {}).get("kernelspec") or {}
    return Read(PAGE_BREAK.decode().join(texts), {"cells": len(texts), "language": kernel.get("language") or kernel.get("name")})


def _cell(cell: dict[str, Any]) -> str:
    parts = [_joined(cell.get("source", cell.get("input", "")))]
    for output in cell.get("outputs") or ():
        shown = output.get("data", output)
        if "text/plain" in shown or "text" in output:
            parts.append(_joined(output.get("text") or shown.get("text/plain") or ""))
        elif "text/html" in shown:
            parts.append(text_of(_joined(shown["text/html"]))[0])
        elif output.get("output_type") in ("error", "pyerr"):
            parts.append(f"{output.get('ename', '')}: {output.get('evalue', '')}")
    return "\n\n".join(part.rstrip().replace("\f", " ") for part in parts if part.strip())


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
