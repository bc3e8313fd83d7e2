"""Word and PowerPoint of today (ECMA-376): text as it stands, with equations as LaTeX and a break between pages or slides.

Read here and not by a library: kreuzberg 4.10 loses tabs and joins the words beside them, sets equations apart from their sentence, and
writes tables as Markdown; python-docx knows no equations, notes and content controls.
"""

import posixpath
import re
from collections.abc import Iterator
from xml.etree import ElementTree

from shards.formats.equations import latex
from shards.formats.packages import Package, attribute, core_facts, local
from shards.formats.reader import DAMAGED, Read, Unreadable, flowing
from shards.pages import PAGE_BREAK

_DEPTH = 300  # of elements in one another; Python's own stack ends at about a thousand calls
_SKIPPED = frozenset("del moveFrom pPr rPr tblPr tcPr trPr sectPr instrText delText Fallback txStyles bodyPr lstStyle numCache f".split())
_DRAWINGS = ("chart", "diagramData")  # kinds of parts that hold words of their own: titles and labels
_HEADING = re.compile(r"heading ?([1-9])", re.IGNORECASE)


def load() -> None:
    """Nothing: the standard library does."""


def read(name: str, data: bytes, unpacked_bytes: int) -> Read:
    """The text, with `PAGE_BREAK` between pages (where Word noted that they end) or slides. Raises Unreadable."""
    package = Package(data, unpacked_bytes)
    try:
        main = _targets(package, "", "officeDocument")[0]
        pieces = _slides(package, main) if name == "pptx" else _pages(package, main)
    except (KeyError, IndexError):
        raise Unreadable(DAMAGED) from None
    unit = "slides" if name == "pptx" else "pages"
    return Read(PAGE_BREAK.decode().join(pieces), core_facts(package) | {unit: len(pieces) if len(pieces) > 1 else None})


# --- DOCX ------------------------------------------------------------------------------------------------------------------


def _pages(package: Package, main: str) -> list[str]:
    notes = {}
    for kind in ("footnotes", "endnotes"):
        for part in _targets(package, main, kind):
            tree = package.tree(part)
            notes |= {(kind[:-1], attribute(note, "id")): note for note in tree if not attribute(note, "type")}
    words = _Words(notes, _outline_levels(package, main))
    text = "".join(words.of(package.tree(main), 0))
    around = [
        "".join(words.of(package.tree(part), 0)) for kind in ("header", "footer", "comments") for part in _targets(package, main, kind)
    ]
    pages = [flowing(page) for page in text.split("\f")]
    # Where a writer ended a page, Word notes that it ended: two breaks with nothing between are one.
    pages = [page for i, page in enumerate(pages) if page or not i]
    around += ["".join(_shown(package.tree(part), 0)) for kind in _DRAWINGS for part in _targets(package, main, kind)]
    pages[-1] = flowing("\n\n".join([pages[-1], *dict.fromkeys(filter(None, map(flowing, around)))]))
    return pages


def _outline_levels(package: Package, main: str) -> dict[str, int]:
    """Which styles are headings, and of which level (from 1), by the style's id."""
    levels: dict[str, int] = {}
    for part in _targets(package, main, "styles"):
        for style in package.tree(part):
            said = {local(element): attribute(element, "val") for element in style.iter()}
            if "outlineLvl" in said and said["outlineLvl"].isdigit() and int(said["outlineLvl"]) < 9:
                levels[attribute(style, "styleId")] = int(said["outlineLvl"]) + 1
            elif said.get("name", "").lower() == "title":
                levels[attribute(style, "styleId")] = 1
    return levels


class _Words:
    """The words of WordprocessingML. notes: by kind and id; levels: of styles that are headings."""

    def __init__(self, notes: dict[tuple[str, str], ElementTree.Element], levels: dict[str, int]):
        self._notes, self._levels = notes, levels

    def of(self, element: ElementTree.Element, depth: int) -> Iterator[str]:
        """What an element shows, piece by piece; a form feed where a page ends."""
        if depth > _DEPTH:
            raise RecursionError
        match local(element):
            case name if name in _SKIPPED:
                return
            case "t":
                yield element.text or ""
            case "tab" | "ptab":
                yield "\t"
            case "noBreakHyphen":
                yield "-"
            case "cr":
                yield "\n"
            case "br":
                yield "\f" if attribute(element, "type") == "page" else "\n"
            case "lastRenderedPageBreak":
                yield "\f"
            case "oMathPara":
                yield "".join(f"$${text}$$" for math in element if local(math) == "oMath" and (text := _tex(math)))
            case "oMath":
                yield f"${text}$" if (text := _tex(element)) else ""
            case "docPr":  # of a picture
                yield f" {attribute(element, 'descr')} "
            case "footnoteReference" | "endnoteReference" as name:
                note = self._notes.get((name.removesuffix("Reference"), attribute(element, "id")))
                if note is not None and depth < _DEPTH // 2:  # a note that refers to itself would have no end
                    yield f" ({' '.join(''.join(self._inside(note, depth + _DEPTH // 2)).split())}) "
            case "p":
                yield self._start(element)
                yield from self._inside(element, depth)
                yield "\n\n"
            case "tr":
                cells = ("".join(self._inside(cell, depth + 1)) for cell in _cells(element))
                yield "\t".join(" ".join(cell.split()) for cell in cells) + "\n"
            case "tbl" | "txbxContent":
                yield "\n\n"
                yield from self._inside(element, depth)
                yield "\n"
            case _:
                yield from self._inside(element, depth)

    def _inside(self, element: ElementTree.Element, depth: int) -> Iterator[str]:
        for child in element:
            yield from self.of(child, depth + 1)

    def _start(self, paragraph: ElementTree.Element) -> str:
        properties = next((child for child in paragraph if local(child) == "pPr"), None)
        if properties is None:
            return ""
        for said in properties:
            if local(said) == "outlineLvl" and attribute(said, "val").isdigit() and int(attribute(said, "val")) < 9:
                return "#" * (int(attribute(said, "val")) + 1) + " "
            if local(said) == "pStyle":
                style = attribute(said, "val")
                named = _HEADING.fullmatch(style)
                if level := self._levels.get(style) or (int(named[1]) if named else 0):
                    return "#" * level + " "
        return "- " if any(local(said) == "numPr" for said in properties) else ""


def _cells(row: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """The cells of a row, also those in content controls."""
    for child in row:
        if local(child) == "tc":
            yield child
        elif local(child) in ("sdt", "sdtContent", "customXml"):
            yield from _cells(child)


# --- PPTX ------------------------------------------------------------------------------------------------------------------


def _slides(package: Package, main: str) -> list[str]:
    where = _relations(package, main)
    order = [_reference(element) for element in package.tree(main).iter() if local(element) == "sldId"]
    slides = []
    for reference in order:
        name = where.get(reference, ("", ""))[1]
        if name not in package.names:
            slides.append("")
            continue
        drawn = [part for kind in (*_DRAWINGS, "notesSlide") for part in _targets(package, name, kind)]
        slides.append(flowing("\n\n".join("".join(_shown(package.tree(part), 0)) for part in (name, *drawn))))
    return slides


def _shown(element: ElementTree.Element, depth: int) -> Iterator[str]:
    """What DrawingML shows."""
    if depth > _DEPTH:
        raise RecursionError
    match local(element):
        case name if name in _SKIPPED:
            return
        case "fld":  # numbers of slides, dates
            return
        case "t":
            yield element.text or ""
        case "br":
            yield "\n"
        case "tab":
            yield "\t"
        case "oMathPara":
            yield "".join(f"$${text}$$" for math in element if local(math) == "oMath" and (text := _tex(math)))
        case "oMath":
            yield f"${text}$" if (text := _tex(element)) else ""
        case "v":  # a label of a chart
            yield f"{element.text or ''}\n"
        case "cNvPr":
            yield f"{attribute(element, 'descr')}\n\n"
        case "tr":
            cells = [cell for cell in element if local(cell) == "tc"]
            yield "\t".join(" ".join("".join(_shown(cell, depth + 1)).split()) for cell in cells) + "\n"
        case name:
            for child in element:
                yield from _shown(child, depth + 1)
            if name in ("p", "tbl"):
                yield "\n\n"


# --- both ------------------------------------------------------------------------------------------------------------------


def _tex(math: ElementTree.Element) -> str:
    return " ".join(latex(math).split())


def _relations(package: Package, part: str) -> dict[str, tuple[str, str]]:
    """What a part refers to: id -> (kind, name of the part). part: "" for the package itself."""
    folder, name = posixpath.split(part)
    try:
        tree = package.tree(posixpath.join(folder, "_rels", f"{name}.rels"))
    except KeyError:
        return {}
    found = {}
    for relation in tree:
        if attribute(relation, "TargetMode") != "External":
            target = attribute(relation, "Target")
            inside = target.lstrip("/") if target.startswith("/") else posixpath.normpath(posixpath.join(folder, target))
            found[attribute(relation, "Id")] = attribute(relation, "Type").rpartition("/")[2], inside
    return found


def _targets(package: Package, part: str, kind: str) -> list[str]:
    """The parts of a kind that a part refers to, in order."""
    return [name for of_kind, name in _relations(package, part).values() if of_kind == kind and name in package.names]


def _reference(element: ElementTree.Element) -> str:
    """`r:id`, beside which an element may have an `id` of its own."""
    return next((value for key, value in element.attrib.items() if key.endswith("}id")), "")
