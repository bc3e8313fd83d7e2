"""What a document defines and which names it uses, from its syntax tree and the table of its language (`shards/languages.py`)."""

import re
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from shards.languages import BY_NAME, KINDS, LOCALS, TYPES, Definition, Language
from shards.syntax_trees import byte_offsets, parse

if TYPE_CHECKING:
    from ast_grep_py import SgNode

MAX_NAME_BYTES = 255
_MAX_HEADERS = 2_000  # of one file with errors
_HEADERS = {
    word: Definition(kind)
    for kind, words in {
        "function": "def fn func fun function sub", "class": "class object contract", "interface": "interface protocol", "trait": "trait",
        "struct": "struct", "enum": "enum", "module": "module namespace",
    }.items()
    for word in words.split()
}  # fmt: skip
_MODIFIERS = "async|public|private|protected|static|final|abstract|export|default|pub|override|open|internal|unsafe|const"
_HEADER = re.compile(rf"^([ \t]*)((?:(?:{_MODIFIERS})\s+)*({'|'.join(_HEADERS)})\s+([^\W\d]\w*))(?=\s*[(:{{<\[])", re.M)
_NEVER = 1 << 62
_KIND_NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
_VARIABLE = _KIND_NUMBERS["variable"]
_SCOPES = re.compile(r"::|\\|(?<=\w)[.:](?=\w)")  # between the parts of a qualified name
_ARGUMENTS = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")  # of a generic type
_LISTS = frozenset({"pattern_list", "tuple_pattern", "list_pattern", "expression_list", "variable_list", "identifiers"})
_DECLARATORS = frozenset({"parenthesized_declarator", "reference_declarator", "attributed_declarator"})  # have no field
_POINTERS = frozenset({"pointer_declarator", "reference_declarator"})


class Defined(NamedTuple):
    """A definition: kind as a place in KINDS, its bytes [start, end); back: how far before it in the list the one around it is, 0: none."""

    name: bytes
    kind: int
    start: int
    end: int
    back: int


class Used(NamedTuple):
    """Where a name is used, definitions of it aside: the first byte of the first use, and how many there are."""

    first: int
    count: int


class DocumentSymbols(NamedTuple):
    """Of one document: definitions in order of the text, an enclosing one before what it encloses; uses by name."""

    definitions: list[Defined]
    uses: dict[bytes, Used]


class _Met(NamedTuple):
    """A node that defines something: its range in characters, and its names, each as (scopes and name, whether they were received)."""

    start: int
    end: int
    definition: Definition
    names: list[tuple[list[str], int]]
    receivers: list[str]


class _Open(NamedTuple):
    """A definition whose end is not reached."""

    end: int
    index: int
    kind: str


def symbols_of(text: bytes, name: str) -> DocumentSymbols:
    """Definitions and uses of a document that can be parsed (`syntax_trees.refusal`). 5 MB/s.

    Of a tree with errors also the headers count that no node holds. name: of the language.
    """
    source, language = text.decode(), BY_NAME[name]
    root = parse(source, language)
    offsets = byte_offsets(text)
    identifiers, table = frozenset(language.identifiers), language.definitions
    met: list[_Met] = []
    places: list[tuple[str, int, int]] = []
    broken = False
    for node in root.find_all({"rule": {"any": [{"kind": kind} for kind in (*language.node_kinds, "ERROR")]}}):
        kind = node.kind()
        if kind in table and (one := _met(node, table[kind])) is not None:
            met.append(one)
        if kind in identifiers:
            at = node.range()
            places.append((node.text(), at.start.index, at.end.index))
        broken |= kind == "ERROR"
    if broken:
        met = _mended(source, root, language, met)
    listing = _Listing()
    for one in met:
        listing.add(one)
    names = {end for one in met for _, end in one.names}
    uses: dict[str, list[int]] = {}
    for name, start, end in places:
        if end in names:
            continue
        if (kept := uses.get(name)) is None:
            uses[name] = [start, 1]
        else:
            kept[1] += 1
    definitions = listing.definitions
    if offsets is not None:
        definitions = [d._replace(start=int(offsets[d.start]), end=int(offsets[d.end])) for d in definitions]
        uses = {name: [int(offsets[start]), n] for name, (start, n) in uses.items()}
    used = {raw: Used(*at) for name, at in uses.items() if 0 < len(raw := name.encode()) <= MAX_NAME_BYTES and b"\n" not in raw}
    return DocumentSymbols(definitions, used)


def _met(node: "SgNode", candidates: tuple[Definition, ...]) -> _Met | None:
    """What a node defines; None where no definition fits, or it has no name."""
    for definition in candidates:
        if definition.when is None or _is(node, *definition.when):
            names = [(parts, name.range().end.index) for name in _walk(node, definition.name) if (parts := _parts(name.text()))]
            if not names:
                return None
            received = [_parts(each.text()) for each in _walk(node, definition.scope)] if definition.scope else []
            at = node.range()
            return _Met(at.start.index, at.end.index, definition, names, [parts[-1] for parts in received if parts])
    return None


class _Listing:
    """Definitions met so far, in order of the text."""

    def __init__(self) -> None:
        self.definitions: list[Defined] = []
        self._open: list[_Open] = []

    def add(self, met: _Met) -> None:
        """List what a node defines, if anybody outside the function around it can see it."""
        start, end, definition, names, receivers = met
        while self._open and self._open[-1].end <= start:
            self._open.pop()
        inside = self._open[-1].kind if self._open else ""
        if (definition.outside or definition.kind in LOCALS) and any(o.kind in ("function", "method") for o in self._open):
            return
        outer = len(self._open)
        for parts, _ in names:
            del self._open[outer:]
            kind = definition.kind
            until = _NEVER if definition.whole_file else end
            for scope in (*receivers, *parts[:-1]):
                self._push(scope, "module" if kind == "module" else "scope", start, end, until)
            if kind == "function" and (receivers or parts[:-1] or inside in TYPES):
                kind = "method"
            elif kind == "variable":
                constant = parts[-1].isupper() and len(parts[-1]) > 1
                kind = "constant" if constant else "property" if inside in TYPES else "variable"
            self._push(parts[-1], kind, start, end, until)

    def _push(self, name: str, kind: str, start: int, end: int, open_until: int) -> None:
        raw, number = name.encode(), _KIND_NUMBERS[kind]
        if self._open and (last := self.definitions[self._open[-1].index]).name == raw and last.end == end and last.kind == _VARIABLE:
            self.definitions[self._open[-1].index] = last._replace(kind=number)  # `local f = function …`: a function, not one in a variable
            self._open[-1] = _Open(open_until, self._open[-1].index, kind)
            return
        back = len(self.definitions) - self._open[-1].index if self._open else 0
        self._open.append(_Open(open_until, len(self.definitions), kind))
        self.definitions.append(Defined(raw, number, start, end, back))


def _mended(source: str, root: "SgNode", language: Language, met: list[_Met]) -> list[_Met]:
    """What a tree with errors shows, and the headers that begin a line, stand in no string or comment, and are of no node.

    In Python a definition ends where the indentation does; elsewhere that of a header with its line, since there is no telling where
    its brackets close.
    """
    indented = language.name == "python"
    known = {one.start: at for at, one in enumerate(met)}
    mended = list(met)
    for match in islice(_HEADER.finditer(source), _MAX_HEADERS):
        start = match.start(2)
        end = source.find("\n", match.end())
        end = len(source) if end < 0 else end
        if indented:
            behind = re.compile(rf"\n(?=[ \t]{{0,{len(match[1])}}}([^\s#)\]}}]))")
            end = next((at.start() for at in behind.finditer(source, end) if not _is_quoted(root, at.start(1))), len(source))
        if (at := known.get(start)) is not None:
            mended[at] = met[at]._replace(end=end if indented else met[at].end)
        elif not _is_quoted(root, start):
            mended.append(_Met(start, end, _HEADERS[match[3]], [([match[4]], match.end(4))], []))
    return sorted(mended, key=lambda one: (one.start, -one.end))


def _is_quoted(node: "SgNode", at: int) -> bool:
    """Whether a character stands in a string or a comment."""
    while True:
        if any(word in node.kind() for word in ("string", "comment", "heredoc")):
            return True
        for child in node.children():
            if child.range().end.index > at:
                if child.range().start.index > at:
                    return False
                node = child
                break
        else:
            return False


def _parts(text: str) -> list[str]:
    """A qualified name as scopes and name: `geo::Box<int>::size` as geo, Box, size. [] if it is no name."""
    name = text.strip().strip("\"'`")
    if not name.startswith("operator"):
        shorter = None
        while shorter != name:
            shorter, name = name, _ARGUMENTS.sub("", name)
    name = name.lstrip("*&") if name[:1] in "*&" and name[1:2].isalpha() else name
    name = re.sub(r"\s+", "", name)
    parts = [part for part in _SCOPES.split(name) if part]
    parts = [part for part in parts if part not in ("prototype", "module", "exports", "this", "self")] or parts[-1:]
    return parts if all(_is_name(part) for part in parts) else []


def _is_name(part: str) -> bool:
    return len(part) <= MAX_NAME_BYTES and not any(c in part for c in "(){};,\n\"'")


def _is(node: "SgNode", way: str, wanted: frozenset[str]) -> bool:
    """Whether the node at the end of a way is of one of these kinds, or reads so."""
    for reached in _walk(node, way):
        if reached.kind() in wanted:
            return True
        at = reached.range()
        if at.end.index - at.start.index < 32 and reached.text() in wanted:
            return True
    return False


def _walk(node: "SgNode", way: str) -> "list[SgNode]":
    """The nodes at the end of a way (`languages.Definition`)."""
    nodes = [node]
    for step in way.split("/"):
        nodes = [reached for each in nodes for reached in _step(each, step)]
        if not nodes:
            break
    return [inner for each in nodes for inner in (each.named_children() if each.kind() in _LISTS else (each,))]


def _step(node: "SgNode", step: str) -> "list[SgNode]":
    if step == ".":
        return [node]
    if step == "0":
        return node.named_children()[:1]
    if step == "unpointed*":
        while node.kind() in _POINTERS and (inner := _field(node, "declarator")) is not None:
            node = inner
        return [node]
    if step.endswith("*"):
        while reached := _step(node, step[:-1]):
            node = reached[0]
        return [node]
    if step.startswith("each"):
        return _children(node, step[4:]) if step[4] == "<" else [child for child in node.field_children(step[4:]) if child.is_named()]
    if step[0] == "<":
        return _children(node, step)[:1]
    return [inner] if (inner := _field(node, step)) is not None else []


def _field(node: "SgNode", name: str) -> "SgNode | None":
    inner = node.field(name)
    if inner is None and name == "declarator" and node.kind() in _DECLARATORS and (children := node.named_children()):
        return children[-1]
    return inner


def _children(node: "SgNode", step: str) -> "list[SgNode]":
    kinds = step[1:-1].split("|")
    return [child for child in node.named_children() if child.kind() in kinds]
