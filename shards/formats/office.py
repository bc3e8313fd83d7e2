"""Office files of before 2007 and Outlook's messages, read by kreuzberg."""

import re
from typing import Any

from shards.formats.compound import OLE, wants_password
from shards.formats.reader import DAMAGED, PASSWORD, Read, Unreadable, flowing
from shards.pages import PAGE_BREAK

_TYPES = {"doc": "application/msword", "ppt": "application/vnd.ms-powerpoint", "msg": "application/vnd.ms-outlook"}
_PAGE = "\ue0f1"  # of private use
_MARK = re.compile(f"{_PAGE}[0-9]+{_PAGE}")


def load() -> None:
    """Import what is needed. Raises ImportError."""
    import kreuzberg  # noqa: F401


def read(name: str, data: bytes, _unpacked_bytes: int) -> Read:
    """The text, with `PAGE_BREAK` between slides. Raises Unreadable."""
    import kreuzberg

    if not data.startswith(OLE):
        raise Unreadable(DAMAGED)
    if wants_password(data):
        raise Unreadable(PASSWORD)
    try:
        made = kreuzberg.extract_bytes_sync(data, _TYPES[name], _config(kreuzberg))
    except kreuzberg.KreuzbergError:
        raise Unreadable(DAMAGED) from None
    before, *pieces = _MARK.split(made.content)
    pieces = [before + pieces[0], *pieces[1:]] if pieces else [before]  # a slide's mark stands before it, also before the first
    return Read(PAGE_BREAK.decode().join(map(flowing, pieces)), _facts(name, made.metadata))


def _config(kreuzberg: Any) -> Any:
    return kreuzberg.ExtractionConfig(
        use_cache=False,
        disable_ocr=True,
        enable_quality_processing=False,  # which would rewrite the text
        output_format="plain",
        # Marks, and not the offsets that it gives as well: these are some bytes off (4.10.4).
        pages=kreuzberg.PageConfig(insert_page_markers=True, marker_format=f"\n\n{_PAGE}{{page_num}}{_PAGE}\n\n"),
        concurrency=kreuzberg.ConcurrencyConfig(max_threads=1),
    )


def _facts(name: str, metadata: dict[str, Any]) -> dict[str, Any]:
    said = {"title": "title", "author": "authors", "subject": "subject", "keywords": "keywords", "created": "created_at"}
    said |= {"from": "from_email", "to": "to_emails"} if name == "msg" else {"modified": "modified_at"}
    return {ours: metadata.get(theirs) for ours, theirs in said.items()}
