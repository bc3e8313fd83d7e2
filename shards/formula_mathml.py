"""Presentation MathML read into rows of signs, the same that LaTeX is read into; and the plainest of content MathML.

No XML parser: what stands in pages is seldom well formed, and entities are HTML's. Tags that close nothing are passed over.
"""

import html
import re
from collections.abc import Callable
from dataclasses import dataclass, field

from shards import formula_symbols as symbols
from shards.formula_latex import read_latex
from shards.formula_layout import MAX_DEPTH, MAX_SIGNS, Row, Sign, grid, named, sign_of, spelt

MAX_CHARS = 65_536  # of an element that are read: markup takes some twenty times the room of LaTeX
_PIECE = re.compile(
    r"<!--.*?-->|<(?P<close>/?)(?:[\w.-]+:)?(?P<name>[A-Za-z][\w.-]*)(?P<attributes>[^<>]*?)(?P<empty>/?)>|(?P<text>[^<]+)|<", re.DOTALL
)
_ATTRIBUTE = re.compile(r"""([\w:-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_ACCENTS = {
    "^": "^", "ˆ": "^", "¯": "¯", "‾": "¯", "―": "¯", "_": "_", "~": "~", "˜": "~", "→": "→", "\u20d7": "→", "˙": "˙", "¨": "¨", "ˇ": "ˇ",
    "˘": "˘", "⏞": "⏞", "⏟": "⏟", "´": "´", "`": "`", "←": "←",
}  # fmt: skip
_ROWS = frozenset("math mrow mstyle mpadded menclose maction semantics mtd mtr mlabeledtr merror".split())
_SILENT = frozenset("annotation annotation-xml mspace mphantom maligngroup malignmark mprescripts none".split())
_CONTENT = {
    "eq": "=", "neq": "ne", "lt": "lt", "gt": "gt", "leq": "le", "geq": "ge", "plus": "+", "minus": "-", "times": "cdot", "in": "in",
    "subset": "subset", "implies": "implies", "equivalent": "equiv", "approx": "approx", "and": "wedge", "or": "vee", "union": "cup",
    "intersect": "cap",
}  # fmt: skip


@dataclass(slots=True)
class _Element:
    name: str
    attributes: dict[str, str] = field(default_factory=dict)
    children: list["_Element"] = field(default_factory=list)
    text: str = ""


def read_mathml(markup: str) -> Row:
    """The row of a `<math>` element, or of what stands in one."""
    return _Reader().row(_tree(markup[:MAX_CHARS]))


def _tree(markup: str) -> _Element:
    root = _Element("math")
    open_elements = [root]
    for piece in _PIECE.finditer(markup):
        name = piece["name"]
        if name is None:
            if piece["text"]:
                open_elements[-1].text += piece["text"]
            continue
        name = name.lower()
        if piece["close"]:
            for depth in range(len(open_elements) - 1, 0, -1):
                if open_elements[depth].name == name:
                    del open_elements[depth:]
                    break
            continue
        attributes = {key.lower(): html.unescape(a or b) for key, a, b in _ATTRIBUTE.findall(piece["attributes"])}
        element = _Element(name, attributes)
        open_elements[-1].children.append(element)
        if not piece["empty"] and len(open_elements) < 10 * MAX_DEPTH:
            open_elements.append(element)
    return root


class _Reader:
    """`_left`: signs that may still be read."""

    def __init__(self) -> None:
        self._left, self._depth = MAX_SIGNS, 0

    def row(self, element: _Element) -> Row:
        """The signs of one element; of what lies too deep, none."""
        if self._depth >= MAX_DEPTH:
            return []
        self._depth += 1
        signs = self._read(element)
        self._depth -= 1
        return signs

    def _rows(self, children: list[_Element]) -> Row:
        signs: Row = []
        for child in children:
            new = self.row(child)
            if new and new[0].role == "prime" and signs:
                signs[-1].sup.append(new.pop(0))
            signs += new
        return signs

    def _one(self, sign: Sign | None) -> Row:
        if sign is None or not (sign.label or sign.parts) or self._left <= 0:
            return []
        self._left -= 1
        return [sign]

    def _begun(self, sign: Sign, read_parts: Callable[[], tuple[Row, ...]]) -> Row:
        """A sign, then its parts: were they read first, one that holds too much would be missing with all of it."""
        signs = self._one(sign)
        sign.parts = read_parts()
        return signs

    def _read(self, element: _Element) -> Row:
        name, children = element.name, element.children
        match name:
            case "mi" | "mn" | "mo" | "mtext" | "ms" | "ci" | "cn":
                return self._token(name, html.unescape(element.text).strip(), element.attributes)
            case "semantics" | "math":
                shown = [child for child in children if child.name not in _SILENT]
                signs = self._rows(shown[:1] if name == "semantics" else shown)
                return signs or self._tex(children)
            case "msup" | "msub" | "msubsup" | "munder" | "mover" | "munderover" | "mmultiscripts":
                return self._scripted(name, children)
            case "mfrac":
                role = "binomial" if element.attributes.get("linethickness", "").strip() in ("0", "0px", "0pt") else "fraction"
                return self._begun(Sign(role, role), lambda: tuple(self.row(child) for child in children[:2]))
            case "msqrt":
                return self._begun(Sign("√", "root"), lambda: (self._rows(children),))
            case "mroot":
                return self._begun(Sign("√", "root"), lambda: tuple(self.row(child) for child in children[:2]))
            case "mfenced":
                return self._fenced(element)
            case "mtable":
                lines = [line.children if line.name != "mtd" else [line] for line in children]
                return self._begun(Sign("matrix", "matrix"), lambda: grid([[self.row(cell) for cell in line] for line in lines]))
            case "apply":
                return self._applied(children)
            case _ if name in _SILENT:
                return []
        return self._rows(children)

    def _tex(self, children: list[_Element]) -> Row:
        """Where a page brings nothing but the source."""
        for child in children:
            if child.name == "annotation" and "tex" in child.attributes.get("encoding", "").lower():
                return read_latex(html.unescape(child.text))
            if child.children and (found := self._tex(child.children)):
                return found
        return []

    def _token(self, name: str, text: str, attributes: dict[str, str]) -> Row:
        text = "".join(c for c in text if c not in symbols.INVISIBLE)
        if not text:
            return []
        if name in ("mn", "cn"):
            return [sign for sign in read_latex(text.replace(",", "").replace(" ", ""), typed=True) if self._one(sign)]
        if name in ("mtext", "ms"):
            return self._one(named(text, is_text=True)) if any(c.isalnum() for c in text) else []
        style = attributes.get("mathvariant", "")
        alphabet = next((short for long, short in (("double", "bb"), ("script", "cal"), ("fraktur", "frak")) if long in style), "")
        known = sign_of(text)
        if known is not None:
            if known.kind and alphabet:
                known.label = f"{alphabet} {known.label}"
            return self._one(known)
        if text.isalpha():
            return [
                sign for sign in ([named(text)] if len(text) >= 2 and text in symbols.FUNCTIONS else spelt(text, True)) if self._one(sign)
            ]
        return [sign for sign in read_latex(text, typed=True) if self._one(sign)]

    def _scripted(self, name: str, children: list[_Element]) -> Row:
        rows = [self.row(child) for child in children[:1]]
        base = rows[0] if rows else []
        scripts = children[1:]
        if not base:
            base = [Sign("", "group")]
        if name == "mover" and scripts and base[-1].role != "big":
            accent = _ACCENTS.get(html.unescape(scripts[0].text).strip())
            if accent:
                if len(base) > 1:
                    base = [Sign("", "group", parts=(base,))]
                base[-1].accents.append(accent)
                return base
        if len(base) > 1 and base[-1].role != "close":
            base = [Sign("", "group", parts=(base,))]
        places = {"msup": "^", "mover": "^", "msub": "_", "munder": "_"}.get(name, "_^")
        if name == "mmultiscripts":
            places = "_^" * len(scripts)
        for place, child in zip(places, scripts, strict=False):
            if child.name == "mprescripts":
                break
            (base[-1].sup if place == "^" else base[-1].sub).extend(self.row(child))
        return base

    def _fenced(self, element: _Element) -> Row:
        signs = self._one(sign_of(element.attributes.get("open", "(")))
        separators = [c for c in element.attributes.get("separators", ",") if not c.isspace()]
        for i, child in enumerate(element.children):
            if i and separators:
                signs += self._one(sign_of(separators[min(i - 1, len(separators) - 1)]))
            signs += self.row(child)
        return signs + self._one(sign_of(element.attributes.get("close", ")")))

    def _applied(self, children: list[_Element]) -> Row:
        """Content MathML: an operator and what it is applied to, as it would be written."""
        if not children:
            return []
        operator, operands = children[0], [self.row(child) for child in children[1:] if child.name not in ("bvar", "degree")]
        grouped = [row if len(row) == 1 else [Sign("(", "open"), *row, Sign(")", "close")] for row in operands]
        if operator.name == "divide" and len(operands) == 2:
            return self._one(Sign("fraction", "fraction", parts=tuple(operands)))
        if operator.name == "root" and operands:
            return self._one(Sign("√", "root", parts=(operands[-1],)))
        if operator.name == "power" and len(operands) == 2:
            base = [Sign("", "group", parts=(operands[0],))] if len(operands[0]) != 1 else operands[0]
            base[0].sup.extend(operands[1])
            return base
        if operator.name in _CONTENT:
            signs: Row = []
            for i, (row, group) in enumerate(zip(operands, grouped, strict=True)):
                if i or (len(operands) == 1 and operator.name == "minus"):
                    signs += self._one(sign_of(_CONTENT[operator.name]))
                is_sum = any(sign.role in ("additive", "relation") for sign in row)
                signs += group if is_sum and operator.name in ("times", "minus") and (i or operator.name == "times") else row
            return signs
        head = self.row(operator) if operator.children or operator.text.strip() else self._one(named(operator.name))
        return head + [
            Sign("(", "open"),
            *[s for i, row in enumerate(operands) for s in ([Sign(",", "separator")] if i else []) + row],
            Sign(")", "close"),
        ]
