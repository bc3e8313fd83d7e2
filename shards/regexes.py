"""What a regular expression says of itself before it runs: how likely a match is by chance, and what every match must hold.

Both walk the parse tree that Python's own parser gives. Patterns run in RE2, whose syntax differs at the margins; where the
parsers might disagree, or the pattern cannot be parsed, there is no tree: then chance is 1 and nothing is required.
"""

import math
import re
from collections.abc import Iterator, Sequence
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import numpy as np

from shards.chance import WORD_BYTES, ChanceModel, edge_words, fold
from shards.types import Array

# Inside a class these mean something else to RE2 (`[[:alpha:]]`) or will to Python, which warns of them; `x{,3}` is a text to RE2.
_AMBIGUOUS = ("[[", "[:", "--", "&&", "~~", "||", "{,")
_FOLDS_BEYOND_ASCII = "ks"  # RE2's (?i) also matches U+212A (Kelvin sign) for k and U+017F (long s) for s

_BYTES = np.arange(256)
_CATEGORIES = {  # RE2: ASCII only; folded bytes
    op.CATEGORY_DIGIT: (_BYTES >= 48) & (_BYTES <= 57),
    op.CATEGORY_SPACE: np.isin(_BYTES, [9, 10, 12, 13, 32]),
    op.CATEGORY_WORD: WORD_BYTES & (_BYTES < 128),
}
_CATEGORIES |= {
    op.CATEGORY_NOT_DIGIT: ~_CATEGORIES[op.CATEGORY_DIGIT],
    op.CATEGORY_NOT_SPACE: ~_CATEGORIES[op.CATEGORY_SPACE],
    op.CATEGORY_NOT_WORD: ~_CATEGORIES[op.CATEGORY_WORD],
}
_LEAD_BYTES = _BYTES >= 0xC2  # a character beyond ASCII, seen from its first byte
_LINES_SPANNED = 50  # by a repeat between two other parts, where it takes line feeds
_LINE_STARTS = (op.AT_BEGINNING, op.AT_BEGINNING_LINE, op.AT_BEGINNING_STRING)
_LINE_ENDS = (op.AT_END, op.AT_END_LINE, op.AT_END_STRING)


def parse(pattern: str) -> Any:
    """The parse tree of Python's `re._parser`; None where RE2 might read the pattern otherwise."""
    if any(mark in pattern for mark in _AMBIGUOUS):
        return None
    try:
        return _parser.parse(pattern)
    except (re.error, RecursionError, OverflowError):
        return None


def ignores_case(pattern: str) -> bool:
    """Whether some part of the pattern switches case off: `(?i)`, `(?i:…)`, `(?s-mi:…)` (rather too often true)."""
    return re.search(r"\(\?[a-zA-Z-]*i", pattern) is not None


def log_p_pattern(model: ChanceModel, pattern: str, multiline: bool = False) -> float:
    """ln of the expected number of matches in one unit of a pattern as rare as this one; at most 0, 0 if it says nothing.

    Concatenation multiplies, alternatives add, a class has the mass of its bytes (`ChanceModel.next_byte`), a repeat between two
    other parts adds up its lengths (`foo.*bar`: bar may begin anywhere behind), at the pattern's ends only its least number
    counts, `^` and `$` are line feeds. Look-around and back-references do not exist in RE2. multiline: classes take line feeds.
    """
    tree = parse(pattern)
    if tree is None or model.n_units <= 0:
        return 0.0
    try:
        return min(math.log(model.mean_bytes) + _Walk(model, multiline).sequence(list(tree), b"", True, True)[0], 0.0)
    except RecursionError:
        return 0.0


Context = bytes | Array  # what stands before: folded bytes (b"" if unknown, the last two matter), or (256,) bool, one of these


class _Walk:
    """Adds up ln p over a parse tree."""

    def __init__(self, model: ChanceModel, multiline: bool = False):
        self.model = model
        self.multiline = multiline
        self.longest = math.ceil(model.mean_bytes * (_LINES_SPANNED if multiline else 1))  # bytes that a repeat may pass over

    def next(self, context: Context) -> Array:
        return self.model.next_byte(context) if isinstance(context, bytes) else self.model.next_after(context)

    def run(self, run: bytes, context: Context) -> float:
        if isinstance(context, bytes):
            return self.model.log_run(run, context)
        first = self.model.next_after(context)[run[0]] / self.model.unigram[run[0]]
        return self.model.log_run(run) + math.log(first)

    def sequence(self, items: Sequence[Any], context: Context, first: bool, last: bool) -> tuple[float, Context]:
        """ln p of items in a row, and the context behind them. first, last: nothing of the pattern stands before, behind."""
        total, i = 0.0, 0
        while i < len(items):
            run, edges, after = self.literals(items, i, context)
            if after > i:
                if run:
                    total += self.run(run, context) + edges
                    context = ((context if isinstance(context, bytes) else b"") + run)[-2:]
                i = after
                continue
            cost, context = self.item(*items[i], context, first and i == 0, last and i == len(items) - 1)
            total += cost
            i += 1
        return total, context

    def literals(self, items: Sequence[Any], i: int, context: Context) -> tuple[bytes, float, int]:
        """The run of characters and anchors from item i: its bytes, ln of the chance of its `\\b`, the item behind it."""
        run, opening, closing = b"", False, False
        while i < len(items) and items[i][0] in (op.LITERAL, op.AT):
            code, argument = items[i]
            if code is op.LITERAL:
                run += fold(chr(argument).encode("utf-8", "surrogatepass"))
                closing = False
            elif argument in _LINE_STARTS + _LINE_ENDS:
                if not (run.endswith(b"\n") or (not run and isinstance(context, bytes) and context.endswith(b"\n"))):
                    run += b"\n"
            elif argument is op.AT_BOUNDARY:
                opening, closing = opening or not run, bool(run)
            i += 1
        start, end = edge_words(run)
        return run, opening * self.model.log_edge(start) + closing * self.model.log_edge(end), i

    def item(self, code: Any, argument: Any, context: Context, first: bool, last: bool) -> tuple[float, Context]:
        if code is op.SUBPATTERN:
            return self.sequence(list(argument[-1]), context, first, last)
        if code is op.BRANCH:
            logs = [self.sequence(list(branch), context, first, last)[0] for branch in argument[1]]
            return min(float(np.logaddexp.reduce(logs)), 0.0), b""
        if code in (op.MAX_REPEAT, op.MIN_REPEAT):
            return self.repeat(int(argument[0]), int(argument[1]), list(argument[2]), context, first or last)
        if code in (op.IN, op.NOT_LITERAL, op.ANY):
            allowed = _bytes_of(code, argument, self.multiline)
            return math.log(max(float(self.next(context)[allowed].sum()), 1e-12)), allowed
        return 0.0, b""

    def repeat(self, low: int, high: int, body: list[Any], context: Context, outermost: bool) -> tuple[float, Context]:
        start, behind = self.sequence(body, context, False, False)
        again = min(self.sequence(body, behind, False, False)[0], 0.0)  # the second and later times
        cost = start + (low - 1) * again if low else 0.0
        if not outermost:
            spare = min(high - low, self.longest)
            steps = [again] * spare if low else [start, *[again] * (spare - 1)][:spare]
            cost += float(np.logaddexp.reduce([0.0, *np.cumsum(steps)]))
        return cost, behind if low else b""


def _bytes_of(code: Any, argument: Any, multiline: bool = False) -> Array:
    """(256,) bool: the folded first bytes that a class, a negated character or a dot lets through; line feeds if `multiline`."""
    allowed = np.zeros(256, np.bool_)
    if code is op.ANY:
        allowed[:] = True
    elif code is op.NOT_LITERAL:
        allowed[:] = True
        if argument < 128:
            allowed[ord(chr(argument).lower())] = False
    else:
        negated = argument[0][0] is op.NEGATE
        for kind, value in argument[1:] if negated else argument:
            if kind is op.CATEGORY:
                allowed |= _CATEGORIES[value]
                continue
            low, high = (value, value) if kind is op.LITERAL else value
            for code_point in range(low, min(high, 127) + 1):
                allowed[ord(chr(code_point).lower())] = True
            if high >= 128:
                allowed |= _LEAD_BYTES
        if negated:
            allowed = ~allowed | _LEAD_BYTES
    allowed[10] &= multiline
    return allowed


def required_literals(pattern: str, ignore_case: bool) -> list[bytes]:
    """Strings that stand in every match, longest first; [] if none are known. With `ignore_case` folded, for folded text."""
    tree = parse(pattern)
    if tree is None:
        return []
    found = {run for run in _runs(list(tree), ignore_case) if run}
    return sorted(found, key=lambda run: (-len(run), run))


def _runs(items: Sequence[Any], ignore_case: bool) -> Iterator[bytes]:
    run = b""
    for code, argument in items:
        char = chr(argument) if code is op.LITERAL else ""
        if char and not (ignore_case and (not char.isascii() or char.lower() in _FOLDS_BEYOND_ASCII)):
            run += fold(char.encode("utf-8", "surrogatepass")) if ignore_case else char.encode("utf-8", "surrogatepass")
            continue
        if code is op.AT:
            continue
        yield run
        run = b""
        if code is op.SUBPATTERN:
            yield from _runs(list(argument[-1]), ignore_case)
        elif code in (op.MAX_REPEAT, op.MIN_REPEAT) and argument[0] >= 1:
            yield from _runs(list(argument[2]), ignore_case)
    yield run
