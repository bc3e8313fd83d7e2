"""PDF, as `shards/pages.py` reads it."""

from shards import pages
from shards.formats.reader import DAMAGED, PASSWORD, Plain, Read, Unreadable
from shards.renditions import Skipped


def load() -> None:
    """Import what is needed. Raises ImportError."""
    import pypdfium2  # noqa: F401


def read(_name: str, data: bytes, _unpacked_bytes: int) -> Read:
    """The text of pages with `PAGE_BREAK` between them. Raises Unreadable."""
    found = pages.read_pages(data)
    if found is None:
        raise Plain
    if isinstance(found, Skipped):
        raise Unreadable(PASSWORD if "password" in found.reason else "without pages" if "without" in found.reason else DAMAGED)
    return Read(found.text, found.facts["pdf"])
