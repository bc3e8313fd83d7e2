"""EPUB: the chapters of its spine, each an XHTML file, in reading order (EPUB 3.3, sections 5 and 6)."""

import posixpath
from urllib.parse import unquote
from xml.etree import ElementTree

from shards.formats.encodings import decoded_markup
from shards.formats.markup import text_of
from shards.formats.packages import Package, attribute, local
from shards.formats.reader import DAMAGED, PASSWORD, Read, Unreadable
from shards.pages import PAGE_BREAK

_CONTAINER, _RIGHTS = "META-INF/container.xml", "META-INF/encryption.xml"


def load() -> None:
    """Nothing: the standard library does."""


def read(_name: str, data: bytes, unpacked_bytes: int) -> Read:
    """The text of the chapters with `PAGE_BREAK` between them. Raises Unreadable."""
    package = Package(data, unpacked_bytes)
    try:
        roots = [attribute(element, "full-path") for element in package.tree(_CONTAINER).iter() if local(element) == "rootfile"]
        opf = package.tree(roots[0])
        items = {attribute(item, "id"): item for item in opf.iter() if local(item) == "item"}
        locked = _encrypted(package)
        chapters = []
        for reference in opf.iter():
            if local(reference) == "itemref" and (item := items.get(attribute(reference, "idref"))) is not None:
                name = posixpath.normpath(posixpath.join(posixpath.dirname(roots[0]), unquote(attribute(item, "href").partition("#")[0])))
                if name in locked:
                    raise Unreadable(PASSWORD)
                chapters.append(text_of(decoded_markup(package.part(name)))[0] if name in package.names else "")
    except (KeyError, IndexError):
        raise Unreadable(DAMAGED) from None
    facts = {"title": _said(opf, "title"), "author": _said(opf, "creator"), "language": _said(opf, "language"), "chapters": len(chapters)}
    return Read(PAGE_BREAK.decode().join(chapters), facts)


def _encrypted(package: Package) -> set[str]:
    """The parts that are encrypted: chapters of books that are sold so, but of others fonts at most."""
    if _RIGHTS not in package.names:
        return set()
    return {unquote(attribute(element, "URI")) for element in package.tree(_RIGHTS).iter() if local(element) == "CipherReference"}


def _said(opf: ElementTree.Element, name: str) -> str:
    return next((element.text or "" for element in opf.iter() if local(element) == name), "")
