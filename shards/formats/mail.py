"""Mail (RFC 5322 and MIME): who wrote what to whom and when, the text of the message, and the names of what is attached."""

import email
import email.policy
from contextlib import suppress
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from typing import Any, cast

from shards.formats.markup import text_of
from shards.formats.reader import Plain, Read, flowing

_HEADERS = ("Subject", "From", "To", "Cc", "Date")
_MESSAGES, _DEPTH = 200, 20  # parts that are read, and how deep: a message in a message


def load() -> None:
    """Nothing: the standard library does."""


def read(_name: str, data: bytes, _unpacked_bytes: int) -> Read:
    """The headers that people see, then the text. Raises Plain for what has no header of a mail."""
    message = cast(EmailMessage, email.message_from_bytes(data, policy=email.policy.default))
    said = _said(message)
    if not said.keys() & {"Subject", "From", "To", "Date"}:
        raise Plain
    pieces = ["\n".join(f"{name}: {value}" for name, value in said.items())]
    attached: list[str] = []
    _read(message, pieces, attached, 0)
    if attached:
        pieces.append("\n".join(f"Attachment: {name}" for name in attached))
    facts: dict[str, Any] = {name.lower(): value for name, value in said.items()} | {"attachments": attached}
    with suppress(ValueError, TypeError, OverflowError):
        facts["date"] = parsedate_to_datetime(said.get("Date", "")).isoformat()
    return Read(flowing("\n\n".join(pieces)), facts)


def _said(message: EmailMessage) -> dict[str, str]:
    """Headers in their order here. One that cannot be parsed is left out."""
    found = {}
    for name in _HEADERS:
        try:
            value = " ".join(str(message.get(name, "")).split())
        except Exception:  # the parsers of single headers raise whatever malformed ones make them run into
            continue
        if value:
            found[name] = value
    return found


def _read(message: EmailMessage, pieces: list[str], attached: list[str], depth: int) -> None:
    if depth > _DEPTH or len(pieces) > _MESSAGES:
        return
    kind = message.get_content_type()
    if message.is_multipart():
        parts = [cast(EmailMessage, part) for part in message.get_payload()]
        if kind == "multipart/alternative":  # the same in several forms: the plainest that has text
            texts = [part for part in parts if part.get_content_type() == "text/plain"] or parts[-1:]
            parts = texts[:1]
        elif kind == "message/rfc822":
            pieces += ["\n".join(f"{name}: {value}" for name, value in _said(part).items()) for part in parts]
        for part in parts:
            _read(part, pieces, attached, depth + 1)
        return
    name = message.get_filename()
    if name:
        attached.append(" ".join(name.split()))
    if message.get_content_disposition() != "attachment" and kind in ("text/plain", "text/html"):
        text = _text(message)
        pieces.append(text_of(text)[0] if kind == "text/html" else text)


def _text(message: EmailMessage) -> str:
    payload = message.get_payload(decode=True) or b""
    assert isinstance(payload, bytes)
    charset = message.get_content_charset() or "utf-8"
    try:
        return payload.decode(charset, "replace")
    except (LookupError, UnicodeError):
        return payload.decode("utf-8", "replace")
