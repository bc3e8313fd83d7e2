"""Where the formulas of a text are: LaTeX between its delimiters, `<math>` elements, and what is plainly a formula without any.

Spans are bytes of the text, of what is between the delimiters. Each line of an `align` is a formula of its own.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from shards import formula_symbols as symbols

MAX_FORMULA_BYTES = 16_384  # between two delimiters; farther apart they do not belong together
MAX_MATHML_BYTES = 262_144
_DISPLAYED = (
    "equation align gather eqnarray multline flalign alignat displaymath math empheq subequations dmath IEEEeqnarray "
    "aligned gathered split eqnarray"
).split()
_LATEX = re.compile(
    rb"(?P<math><(?P<prefix>(?:\w+:)?)math\b[^<>]*>)|(?P<display>(?<!\\)\$\$)|(?P<inline>(?<![\\$])\$(?![\s$]))"
    rb"|(?<!\\)\\(?P<bracket>\[)(?!\d+(?:pt|ex|em|mm|cm)\])|(?<!\\)\\(?P<paren>\()"
    rb"|\\begin\s*\{(?P<environment>" + "|".join(sorted(set(_DISPLAYED))).encode() + rb")(?P<star>\*?)\}"
)
_BEGINNINGS = (b"$", b"\\(", b"\\[", b"\\begin", b"<math", b":math")  # what `_LATEX` can begin with, or hold first
_PREFIXED = re.compile(rb"<\w{1,16}$")
_CLOSING = re.compile(rb"(?<![\\\s])\$(?!\d)")
_TEXT_GROUP = re.compile(
    rb"\\(?:text|mathrm|operatorname|mbox|textrm|textit|textbf|hbox|begin|end|mathbf|mathit|label|tag|mathsf)\w*\*?\s*\{[^{}]*\}"
)
_BLANK_LINE = re.compile(rb"\n[ \t]*\r?\n")
_TEX = re.compile(rb"\\(?:documentclass|usepackage|begin\{document\}|(?:sub)*section\*?\{|chapter\*?\{)")
_MANY = 3  # certain formulas in a code file after which its other dollars are formulas, too
_COLON = ord(":")
_SHELL = re.compile(rb"^[A-Z_][A-Z0-9_]+\b|^\{|[;`]|\$\(|^\w+[/.]\w+[/.]")


@dataclass(frozen=True, slots=True)
class Found:
    """A formula in a text: bytes [start, end). notation: "latex", "mathml" or "typed" (without delimiters)."""

    start: int
    end: int
    notation: str


def find(text: bytes, is_code: bool = False) -> list[Found]:
    """The formulas of a text, in order; no two overlap. is_code: dollars and brackets mean other things there, so only what can be nothing
    but a formula is taken."""
    found = list(_delimited(text, is_code))
    if is_code and (len(found) >= _MANY or _TEX.search(text)):
        found = list(_delimited(text, False))  # marked up so much that it looks like code
    if not is_code:
        found += _typed(text, found)
    return sorted(found, key=lambda formula: formula.start)


def _delimited(text: bytes, is_code: bool) -> Iterator[Found]:
    at = 0
    nexts = dict.fromkeys(_BEGINNINGS, -1)  # finding strings is some hundred times as fast as searching the pattern
    while (place := _next(text, at, nexts)) < len(text):
        at = place + 1
        if text[place] == _COLON:
            if text.startswith(b":math:`", place) and (end := text.find(b"`", place + 7, place + MAX_FORMULA_BYTES)) > 0:
                yield Found(*_stripped(text, place + 7, at := end), "latex")
                continue
            prefix = _PREFIXED.search(text, max(place - 17, 0), place)
            place = prefix.start() if prefix else place
        match = _LATEX.match(text, place)
        if not match:
            continue
        start = at = match.end()
        if match["math"] is not None:
            closing = text.find(b"</" + match["prefix"] + b"math", start, start + MAX_MATHML_BYTES)
            if closing >= 0 and not match["math"].endswith(b"/>"):
                yield Found(match.start(), at := text.find(b">", closing) + 1 or len(text), "mathml")
            continue
        if match["inline"]:
            end = _end_of_inline(text, start, is_code)
            if end < 0 or not _is_math(text[start:end], is_code):
                continue
            at = end + 1
        else:
            if match["environment"]:
                closing = b"\\end{" + match["environment"] + match["star"] + b"}"
            else:
                closing = b"$$" if match["display"] else b"\\]" if match["bracket"] else b"\\)"
            end = text.find(closing, start, start + MAX_FORMULA_BYTES)
            if end < 0 or (not match["environment"] and _BLANK_LINE.search(text, start, end)):
                continue
            if is_code and not match["environment"] and not _is_math(text[start:end], True):
                continue
            at = end + len(closing)
        yield from _lines(text, start, end)


def _next(text: bytes, at: int, nexts: dict[bytes, int]) -> int:
    """Where the next beginning is, from `at` on; nexts: what was found so far."""
    for beginning, place in nexts.items():
        if place < at:
            found = text.find(beginning, at)
            nexts[beginning] = found if found >= 0 else len(text)
    return min(nexts.values())


def _end_of_inline(text: bytes, start: int, is_code: bool) -> int:
    """Where an inline formula ends: pandoc's rule (no blank before, no digit behind), within the paragraph; -1 if nowhere."""
    closing = _CLOSING.search(text, start + 1, start + MAX_FORMULA_BYTES) if text[start : start + 1] != b"$" else None
    if not closing or _BLANK_LINE.search(text, start, closing.start()) or (is_code and b"\n" in text[start : closing.start()]):
        return -1
    return closing.start()


def _is_math(body: bytes, is_code: bool) -> bool:
    """Whether what stands between two dollars is mathematics, not prices, and not the names of a shell."""
    if is_code:
        commands = [match.decode() for match in re.findall(rb"\\([a-zA-Z]{2,})", body)]
        known = any(command in _COMMANDS for command in commands) or bool(re.search(rb"[A-Za-z0-9)}]\^[A-Za-z0-9{\\]", body))
        return known and not _SHELL.search(body)
    words = re.findall(rb"(?<![\\A-Za-z])[A-Za-z]{4,}", _TEXT_GROUP.sub(b" ", body))
    if b"\\" in body or b"^" in body or b"_" in body:
        return len(words) <= 2 + len(body) // 40
    return not _SHELL.search(body) and sum(word.decode() not in symbols.FUNCTIONS for word in words) <= 1 + body.count(b"=")


_TABLES = (
    symbols.LETTERS, symbols.CONSTANTS, symbols.RELATIONS, symbols.ADDITIVE, symbols.MULTIPLICATIVE, symbols.BIG, symbols.PREFIX,
    symbols.OPENING, symbols.CLOSING, symbols.ALPHABETS, symbols.ACCENTS,
)  # fmt: skip
# Less those that mean other things in paths and regular expressions.
_COMMANDS = (
    frozenset(command for table in _TABLES for command in table)
    | symbols.FUNCTIONS
    | frozenset("frac dfrac tfrac sqrt binom mathrm mathbf left over choose quad pmod".split())
) - frozenset("to in bot top star sim div mod card vol res im ord end ast".split())


def _lines(text: bytes, start: int, end: int) -> Iterator[Found]:
    """The lines of a formula, where it has some that do not belong to a matrix or a fraction."""
    depth, begun, at = 0, start, start
    for match in re.finditer(rb"\\begin\s*\{(\w+)\*?\}|\\end\s*\{(\w+)\*?\}|\\\\|\\.|[{}]", text[start:end], re.DOTALL):
        piece = match.group()
        if match[1] or match[2]:
            name = (match[1] or match[2]).decode()
            if name not in _DISPLAYED:
                depth += 1 if match[1] else -1
        elif piece in b"{}" and len(piece) == 1:
            depth += 1 if piece == b"{" else -1
        elif piece == b"\\\\" and depth <= 0:
            at = start + match.start()
            if text[begun:at].strip(b" \t\r\n&"):
                yield Found(*_stripped(text, begun, at), "latex")
            begun = start + match.end()
    if text[begun:end].strip(b" \t\r\n&"):
        yield Found(*_stripped(text, begun, end), "latex")


def _stripped(text: bytes, start: int, end: int) -> tuple[int, int]:
    body = text[start:end]
    return start + len(body) - len(body.lstrip()), end - len(body) + len(body.rstrip())


# --- without delimiters ---------------------------------------------------------------------------------------------------------------

_MAX_LINE_BYTES = 2_000
_TYPED_SIGN = re.compile(rb"\^|=|[<>]\s|\\[a-zA-Z]|\xe2[\x81-\xbf]|\xc2[\xb2\xb3\xb7\xb9]|\xc3[\x97\xb7]|[\xce\xcf][\x80-\xbf]")
_ATOM = re.compile(r"[A-Za-z]|\d|[α-ωΑ-Ω∞∑∫√π]")
_RELATION = re.compile(r"[=<>≤≥≠≈≡∈→]|\\(?:le|ge|ne|leq|geq|neq|approx|equiv|in|to|sim|subset\w*|iff|implies)\b")
_OPERATION = re.compile(r"\^|\\(?:frac|dfrac|sqrt|sum|int|prod|lim|binom)\b|[A-Za-z\d)]\s*[+*/·−×-]\s*[A-Za-z\d(\\]|[∑∫√∂∇]|[²³]")
_NEVER = re.compile(r"https?:|www\.|[@#`\"]|::|--|==|\.\w*\*|\[\^|\(\?|\\[wdsbWDSB](?![a-zA-Z])|^\s*[-=*_~+^|]{3,}|\.\.\.$")
_ENGLISH = frozenset("a i an as at be by do go he if in is it me my no of on or so to up us we".split())
_TRIM = ".,;:!? \t\r"


def _typed(text: bytes, taken: list[Found]) -> Iterator[Found]:
    """Formulas without delimiters: stretches of a line with a relation or an operation between letters, and no words."""
    edges = [(formula.start, formula.end) for formula in taken]
    at = 0
    while match := _TYPED_SIGN.search(text, at):
        start = text.rfind(b"\n", 0, match.start()) + 1
        end = text.find(b"\n", match.start())
        end = at = len(text) if end < 0 else end
        if end - start > _MAX_LINE_BYTES:
            continue
        if edges and any(a < end and start < b for a, b in edges):
            continue  # the writer knows delimiters
        line = text[start:end].decode("utf-8", "replace")
        for low, high in typed_stretches(line):
            before, stretch = line[:low], line[low:high]
            begin = start + len(before.encode("utf-8", "replace"))
            yield Found(begin, begin + len(stretch.encode("utf-8", "replace")), "typed")


def typed_stretches(line: str) -> Iterator[tuple[int, int]]:
    """Which parts of a line are formulas though nothing marks them: (start, end) in characters."""
    if "\\" in line and is_latex(line):
        low = len(line) - len(line.lstrip())
        yield low, len(line.rstrip(_TRIM))
        return
    words = [(match.start(), match.end()) for match in re.finditer(r"\S+", line)]
    run: list[tuple[int, int]] = []
    for low, high in [*words, (len(line), len(line))]:
        word = line[low:high]
        if word and _may_belong(word):
            run.append((low, high))
            continue
        while run and line[run[0][0] : run[0][1]].strip(_TRIM + "()").lower() in ("", "a", "i", "-", "*", "and") and len(run) > 1:
            del run[0]
        while run and line[run[-1][0] : run[-1][1]].strip(_TRIM).lower() in ("", "a", "i", "-", "*"):
            del run[-1]
        if run:
            begin, end = run[0][0], run[-1][1]
            stretch = line[begin:end].rstrip(_TRIM)
            if is_typed(stretch):
                yield begin, begin + len(stretch)
        run = []


def _may_belong(word: str) -> bool:
    """Whether a word without blanks can be part of a formula: single letters, numbers, signs and functions."""
    if _NEVER.search(word):
        return False
    for run in re.findall(r"\\?[A-Za-z]+", word):
        if run[0] == "\\":
            if run[1:] not in _COMMANDS and run[1:] not in symbols.STYLES:
                return False
        elif run in symbols.SPELT or run in symbols.LETTERS or run in ("pi", "dx", "dy", "dt", "infinity", "mod"):
            continue
        elif len(run) > 2 or run.lower() in _ENGLISH - {"a", "i"}:
            return False
    return not re.search(r"[A-Za-z]\.[A-Za-z]|\w'\w|[^\x00-\x7f]{2}[^\x00-\x7f]{2}", word)


def is_typed(text: str) -> bool:
    """Whether a text by itself is a formula: letters, and a relation or an operation between them."""
    if not 3 <= len(text) <= 500 or _NEVER.search(text) or not re.search(r"[A-Za-zα-ωΑ-Ω\\]", text):
        return False
    if not all(_may_belong(word) for word in text.split()):
        return False
    has_relation, has_operation = _RELATION.search(text), _OPERATION.search(text)
    if not (has_relation or has_operation):
        return False
    if text.count("(") != text.count(")"):
        return False
    operands = len(_ATOM.findall(text))
    if operands < 2 or re.search(r"[=<>]\s*$|^\s*[=<>*/^]", text):
        return False
    # a-b, and/or, 1/2: a stroke alone is no sign of mathematics
    return bool(has_relation or re.search(r"\^|\\|[+*·×∑∫√∂∇²³]", text)) and bool(has_operation or operands >= 2)


def has_words(text: str) -> bool:
    """Whether a text says something in words, beside what formulas say in words."""
    words = re.findall(r"\\?[A-Za-z]{4,}", re.sub(r"\\(?:text|mathrm|operatorname|mbox|begin|end)\*?\s*\{[^{}]*\}", " ", text))
    return any(word[0] != "\\" and word not in symbols.SPELT and word not in symbols.LETTERS for word in words)


def is_latex(text: str) -> bool:
    """Whether a text by itself is LaTeX mathematics: its commands are, and what else it says are not words."""
    commands = re.findall(r"\\([a-zA-Z]+)", text)
    if not commands or re.search(r"\\(?:section|usepackage|documentclass|item|cite|caption|newcommand|includegraphics|n|t)\b", text):
        return False
    known = sum(command in _COMMANDS or command in symbols.STYLES or command in symbols.NAMES for command in commands)
    named = re.sub(r"\\(?:text|mathrm|operatorname|mbox|textrm|begin|end|label|tag|mathbf|mathcal|mathbb)\*?\s*\{[^{}]*\}", " ", text)
    words = [word for word in re.findall(r"\\?[A-Za-z]{4,}", named) if word[0] != "\\" and word not in symbols.SPELT]
    return known >= len(commands) / 2 and known > 0 and len(words) <= len(commands) / 3
