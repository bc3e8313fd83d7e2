"""RTF, read by striprtf: kreuzberg 4.10 puts a blank wherever the lettering changes, also within a word."""

import re

from shards.formats.reader import Read, flowing
from shards.pages import PAGE_BREAK

_CODE_PAGE = re.compile(rb"\\ansicpg(\d+)")
_TITLE = re.compile(r"{\\title ([^{}\\]*)}")
_PAGE = re.compile(r"\\page(?![a-z])")
_PAGE_END = "\ue0f1"  # of private use: stands for the end of a page while the rest is read


def load() -> None:
    """Import what is needed. Raises ImportError."""
    import striprtf.striprtf  # noqa: F401


def read(_name: str, data: bytes, _unpacked_bytes: int) -> Read:
    """The text, with `PAGE_BREAK` where the file ends a page."""
    from striprtf.striprtf import rtf_to_text

    said = _CODE_PAGE.search(data[:4096])
    encoding = f"cp{int(said[1])}" if said else "cp1252"
    source = data.decode("cp1252", "replace")  # RTF itself is ASCII: what is not stands there as \'e9 or \u233
    text = rtf_to_text(_PAGE.sub(_PAGE_END, source), encoding=encoding, errors="replace")
    pages = [flowing(page) for page in text.replace("\u2028", "\n").split(_PAGE_END)]
    title = _TITLE.search(source)
    return Read(PAGE_BREAK.decode().join(pages), {"title": title[1] if title else "", "pages": len(pages) if len(pages) > 1 else None})
