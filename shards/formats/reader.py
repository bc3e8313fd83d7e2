"""The process that reads files: one request after the other on standard input, answers on standard output.

A request is two lengths (32 bits each, little-endian), a JSON object with the format's name and the limits, and the file. An answer has
the same frame: {"facts": …} and the text in UTF-8, or {"skipped": reason}, or {"plain": true} where the file is text like any other.
"""

import importlib
import json
import os
import re
import resource
import signal
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

_HEAD = struct.Struct("<II")
_READERS = {
    "pdf": "portable", "docx": "ooxml", "pptx": "ooxml", "doc": "office", "ppt": "office", "msg": "office", "rtf": "rtf",
    "xlsx": "sheets", "xls": "sheets", "odt": "opendocument", "odp": "opendocument", "epub": "books", "html": "markup",
    "ipynb": "notebooks", "eml": "mail", "csv": "encodings", "xml": "encodings",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Read:
    """What a reader made of a file. text: its rendition; as str, without `cleaned`."""

    text: str | bytes = field(repr=False)
    facts: dict[str, Any] = field(default_factory=dict)


class Unreadable(Exception):
    """The file has no text for us; the message says in a phrase why: "that is damaged"."""


class Plain(Exception):
    """The file is text like any other."""


PASSWORD, DAMAGED = "that wants a password", "that is damaged"


def main() -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, it is meant for who asked: a file must not be blamed for it
    source, target = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)  # what a library prints must not get among the answers
    while head := source.read(_HEAD.size):
        head_bytes, data_bytes = _HEAD.unpack(head)
        asked, data = json.loads(source.read(head_bytes)), source.read(data_bytes)
        if len(data) < data_bytes:
            return
        answer, text = _answer(asked, data)
        body = json.dumps(answer).encode()
        target.write(_HEAD.pack(len(body), len(text)) + body)
        target.write(text)
        target.flush()


def _answer(asked: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    name = asked["format"]
    try:
        module = importlib.import_module(f"shards.formats.{_READERS[name]}")
        module.load()
    except ImportError as error:
        return {"skipped": f"that cannot be read here: {error.name} is not installed"}, b""
    _limit(asked)
    try:
        made = module.read(name, data, asked["unpacked_bytes"])
        text = made.text if isinstance(made.text, bytes) else cleaned(made.text)
    except Plain:
        return {"plain": True}, b""
    except Unreadable as error:
        return {"skipped": str(error)}, b""
    except MemoryError:
        return {"skipped": f"that needs more than {asked['memory_bytes'] >> 20:,} MiB to be read", "leave": True}, b""
    except RecursionError:
        return {"skipped": "that is nested too deeply"}, b""
    except Exception:  # readers of damaged files raise whatever their code runs into
        return {"skipped": DAMAGED}, b""
    if len(text) > asked["text_bytes"]:
        return {"skipped": f"of more than {asked['text_bytes']:,} bytes of text"}, b""
    return {"facts": _printable(made.facts)}, text


def _limit(asked: dict[str, Any]) -> None:
    """Bound this process from now on. What hangs is killed from outside, and by the system if nobody is there any more."""
    used = 1 << 30
    with suppress(OSError), open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    spent = os.times()
    for what, bound in (
        (resource.RLIMIT_AS, used + asked["memory_bytes"]),
        (resource.RLIMIT_CPU, int(spent.user + spent.system + 2 * asked["seconds"]) + 5),
    ):
        with suppress(ValueError, OSError):  # a tighter limit that this process was started under stays
            resource.setrlimit(what, (bound, resource.getrlimit(what)[1]))


_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_NO_BREAKS = re.compile(r"[\x0c\x0b]")


def cleaned(text: str) -> bytes:
    """UTF-8 with line feeds as the only line ends, without control characters but tabs and the form feeds between pages."""
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).rstrip().encode()


def flowing(text: str) -> str:
    """Running text without form feeds, blanks at lines' ends, and more than one empty line in a row."""
    text = _NO_BREAKS.sub("\n", text.replace("\r\n", "\n").replace("\r", "\n"))
    text = re.sub(r"[ \t\u00a0]+(?=\n)", "", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _printable(facts: dict[str, Any]) -> dict[str, Any]:
    """Without empty values; texts on one line, of at most a thousand characters."""
    kept: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, dict):
            value = _printable(value)
        elif isinstance(value, str):
            value = _one_line(value)
        elif isinstance(value, list):
            value = [_one_line(str(item)) for item in value[:100] if str(item).strip()]
        if value not in ("", None, [], {}):
            kept[name] = value
    return kept


def _one_line(text: str) -> str:
    return " ".join(_CONTROLS.sub("", text).split())[:1000]
