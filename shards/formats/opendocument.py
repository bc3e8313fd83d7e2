"""OpenDocument texts and presentations: paragraphs, headings, lists, tables, notes, and equations as the MathML that they are."""

from collections.abc import Iterator
from xml.etree import ElementTree

from shards.formats.markup import one_line_math
from shards.formats.packages import Package, attribute, local
from shards.formats.reader import DAMAGED, Read, Unreadable, flowing
from shards.pages import PAGE_BREAK

_MATHML = "http://www.w3.org/1998/Math/MathML"
_DEPTH = 200  # of elements in one another; Python's stack ends at some hundred


def load() -> None:
    """Nothing: the standard library does."""


def read(name: str, data: bytes, unpacked_bytes: int) -> Read:
    """The text, with `PAGE_BREAK` between slides, or between pages where the writing program noted their ends. Raises Unreadable."""
    package = Package(data, unpacked_bytes)
    try:
        root = package.tree("content.xml")
    except KeyError:
        raise Unreadable(DAMAGED) from None
    body = next((element for element in root.iter() if local(element) == "body"), None)
    if body is None:
        raise Unreadable(DAMAGED)
    if name == "odp":
        pages = ["".join(_text(page, package, 0)) for page in body.iter() if local(page) == "page"]
    else:
        pages = "".join(_text(body, package, 0)).split("\f")
    facts = {"slides" if name == "odp" else "pages": len(pages) if len(pages) > 1 else None} | _facts(package)
    return Read(PAGE_BREAK.decode().join(map(flowing, pages)), facts)


def _text(element: ElementTree.Element, package: Package, depth: int) -> Iterator[str]:
    """What an element shows, piece by piece."""
    if depth > _DEPTH:
        raise RecursionError
    name = local(element)
    if name in ("tracked-changes", "annotation", "sequence-decls", "forms", "variable-decls", "thumbnail"):
        return
    if name == "s":
        yield " " * min(int(attribute(element, "c", "1") or 1), 100)
    elif name == "tab":
        yield "\t"
    elif name == "line-break":
        yield "\n"
    elif name == "soft-page-break":
        yield "\f"
    elif name == "object":
        yield _equation(attribute(element, "href"), package)
    elif name == "table-row":
        cells = [cell for cell in element if local(cell) in ("table-cell", "covered-table-cell")]
        yield "\t".join(" ".join("".join(_inside(cell, package, depth + 1)).split()) for cell in cells) + "\n"
    else:
        if name == "h":
            yield "\n\n" + "#" * min(int(attribute(element, "outline-level", "1") or 1), 6) + " "
        elif name == "list-item":
            yield "\n- "
        elif name == "table":
            yield "\n\n"
        elif name == "note":
            yield " ("
        yield from _inside(element, package, depth)
        if name == "note":
            yield ") "
        elif name in ("p", "h"):
            yield "\n\n"
        elif name in ("table", "list"):
            yield "\n"


def _inside(element: ElementTree.Element, package: Package, depth: int) -> Iterator[str]:
    if element.text:
        yield _collapsed(element.text)
    for child in element:
        yield from _text(child, package, depth + 1)
        if child.tail:
            yield _collapsed(child.tail)


def _collapsed(text: str) -> str:
    """White space as OpenDocument means it (part 3, section 6.1.2): runs count as one blank."""
    words = " ".join(text.split())
    return (" " if text[:1].isspace() else "") + words + (" " if words and text[-1:].isspace() else "")


def _equation(reference: str, package: Package) -> str:
    """The MathML of an object that is an equation; nothing for other objects."""
    name = f"{reference.removeprefix('./').rstrip('/')}/content.xml"
    if name not in package.names:
        return ""
    tree = package.tree(name)
    if local(tree) != "math":
        return ""
    ElementTree.register_namespace("", _MATHML)
    for element in tree.iter():
        element.tail = None
    return one_line_math(ElementTree.tostring(tree, "unicode"))


def _facts(package: Package) -> dict[str, str | None]:
    if "meta.xml" not in package.names:
        return {}
    said = {local(element): element.text for element in package.tree("meta.xml").iter()}
    return {"title": said.get("title"), "author": said.get("creator") or said.get("initial-creator"), "created": said.get("creation-date")}
