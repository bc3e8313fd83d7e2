"""MATCH: what Python's `re.search` finds, in bounded time.

`re` tries one way after another, and there are patterns whose ways double with each character. So a pattern is parsed by Python's
own parser and then run by whoever is safe: `re` itself where there are few ways; else RE2, linear in the text, for which the pattern is
written anew from its tree, so that nothing depends on how the two read it; else (back-references, look-around) `regex`, which stops
when told to. Whether there is a match is all that is asked, so that greedy and lazy, and the order of alternatives, make no difference.
"""

import _sre
import math
import re
import time
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property, lru_cache
from re import _casefix, _parser  # type: ignore[attr-defined]
from re import _constants as op  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from shards.nlql.errors import ExecutionError
from shards.types import Budget

FEW_WAYS = 64  # to match from one place of the text: `re` tries them all in microseconds
LIMIT_S = 0.5  # for all texts of a query together, where only `regex` can run a pattern
LONGEST = 10_000  # characters of a pattern; parsing is quadratic in nested groups
MOST_COPIES = 10_000  # of a part that is repeated a fixed number of times; `regex` writes them out

_CATEGORIES = {
    op.CATEGORY_DIGIT: r"\p{Nd}",
    op.CATEGORY_WORD: r"\p{L}\p{N}_",
    op.CATEGORY_SPACE: r"\x{9}-\x{d}\x{1c}-\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}",
}
_NOT = {op.CATEGORY_NOT_DIGIT: op.CATEGORY_DIGIT, op.CATEGORY_NOT_WORD: op.CATEGORY_WORD, op.CATEGORY_NOT_SPACE: op.CATEGORY_SPACE}
_LAST_CASED = 0x1_F000  # beyond it no script has two cases
_WORD_RANGES = {True: r"[0-9A-Za-z_]", False: r"[\p{L}\p{N}_]"}


class _Unwritable(Exception):
    """The engine that is written for has nothing like it."""


class Patience:
    """What is left of the time that one query may spend on patterns which RE2 cannot run. A `with` gives it, and takes what it took."""

    def __init__(self, budget: Budget | None = None):
        self._left_s, self._budget = LIMIT_S, budget or Budget()

    def __enter__(self) -> float:
        self._began = time.perf_counter()
        return max(min(self._left_s, self._budget.remaining_s), 0.001)

    def __exit__(self, *_: object) -> None:
        self._left_s -= time.perf_counter() - self._began


class Pattern:
    """A compiled pattern. Safe for many threads."""

    def __init__(self, text: str):
        self.text = text
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `[[a]` may mean something else one day; it does not today
            try:
                if len(text) > LONGEST:
                    raise OverflowError(f"it has more than {LONGEST:,} characters")
                self._re = re.compile(text)
                self._tree = _parser.parse(text)
                self._is_bounded = _ways(list(self._tree), is_last=True) <= FEW_WAYS
            except Exception as error:  # re.error; of absurd patterns also RecursionError, OverflowError, MemoryError
                raise ExecutionError(
                    f"MATCH cannot read the pattern {text!r:.80}: {error}. Patterns are those of Python's module re; a backslash before "
                    "a character takes it as it stands."
                ) from error

    def search(self, text: str, patience: "Patience | None" = None) -> bool:
        """Whether the pattern is found somewhere. Raises ExecutionError if that takes too long."""
        if self._is_bounded:
            return self._re.search(text) is not None
        if (fast := self._re2) is not None and fast.takes(text):
            try:
                return fast.compiled.search(text.encode()) is not None
            except UnicodeEncodeError:  # lone surrogates
                pass
        return self._slowly(text, patience or Patience())

    def _slowly(self, text: str, patience: "Patience") -> bool:
        try:
            if self._regex is not None:
                with patience as limit_s:
                    return self._regex.search(text, timeout=limit_s) is not None
            reason = "no engine runs it in bounded time"
        except TimeoutError:
            reason = f"one query may take {LIMIT_S} s for what RE2 cannot run, and that was not enough"
        except MemoryError:
            reason = "it takes too much memory"
        raise ExecutionError(
            f"MATCH gave up on the pattern {self.text!r:.80}: {reason}. Avoid back-references, look-around and repeats within repeats, "
            "or put a cheaper condition before it with AND."
        )

    @cached_property
    def _re2(self) -> "_InRE2 | None":
        import re2

        writer = _Writer(self._tree.state.flags, for_re2=True)
        try:
            options = re2.Options()
            options.log_errors = False
            compiled = re2.compile(writer.write(self._tree).encode(), options=options)  # bytes: offsets in characters are of no use
        except (_Unwritable, RecursionError, re2.error):  # re2.error: too large for it
            return None
        return _InRE2(compiled, writer.needs_ascii, writer.has_end)

    @cached_property
    def _regex(self) -> Any:
        import regex

        try:
            return regex.compile(_Writer(self._tree.state.flags, for_re2=False).write(self._tree))
        except (_Unwritable, regex.error, RecursionError, MemoryError):
            return None


class _InRE2(NamedTuple):
    """needs_ascii: it says the same as `re` of ASCII texts only. has_end: it has a `$`, which in Python also stands before a last
    line feed."""

    compiled: Any
    needs_ascii: bool
    has_end: bool

    def takes(self, text: str) -> bool:
        return (not self.needs_ascii or text.isascii()) and not (self.has_end and text.endswith("\n"))


@lru_cache(maxsize=256)
def pattern(text: str) -> Pattern:
    """A pattern, compiled once. Raises ExecutionError where it cannot be read."""
    return Pattern(text)


def _ways(items: Sequence[Any], is_last: bool = False) -> float:
    """How many ways there are, at most, to match a sequence from one place; inf where that depends on the text.

    is_last: nothing of the pattern stands behind it.
    """
    total = 1.0
    for i, (code, argument) in enumerate(items):
        ends = is_last and i == len(items) - 1
        if code is op.BRANCH:
            total *= sum(_ways(list(branch), ends) for branch in argument[1])
        elif code is op.SUBPATTERN:
            total *= _ways(list(argument[-1]), ends)
        elif code in (op.MAX_REPEAT, op.MIN_REPEAT):
            low, high, body = int(argument[0]), int(argument[1]), list(argument[2])
            each = _ways(body)
            if argument[1] is op.MAXREPEAT:
                is_single = len(body) == 1 and body[0][0] in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)
                total *= low + 1 if ends and is_single else math.inf  # nothing behind it can fail and have it tried again
            elif each > 1:
                total *= each**high * (high - low + 1) if high < 64 else math.inf
            else:
                total *= max(high - low + 1, high // 16)  # a long one costs, too
        elif code not in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN, op.AT):
            return math.inf
        if total > FEW_WAYS:
            return math.inf
    return total


class _Writer:
    """Writes a parse tree of Python's `re` for RE2 or for `regex`, in what they and `re` read alike."""

    def __init__(self, flags: int, for_re2: bool):
        self.for_re2, self.flags = for_re2, flags
        self.needs_ascii = self.has_end = False
        self.copies = 1

    def write(self, tree: Any) -> str:
        return self.sequence(list(tree))

    def sequence(self, items: Sequence[Any]) -> str:
        return "".join(self.item(code, argument) for code, argument in items)

    def item(self, code: Any, argument: Any) -> str:
        match code:
            case op.LITERAL:
                cases = self.cases(argument)
                return cases if len(self.alike(argument, argument)) == 1 else f"[{cases}]"
            case op.NOT_LITERAL:
                return f"[^{self.cases(argument)}]"
            case op.ANY:
                return "(?s:.)" if self.flags & re.DOTALL else r"[^\x{a}]" if self.for_re2 else r"[^\n]"
            case op.IN:
                return self.set(list(argument))
            case op.BRANCH:
                return f"(?:{'|'.join(self.sequence(list(branch)) for branch in argument[1])})"
            case op.SUBPATTERN:
                return self.group(*argument)
            case op.MAX_REPEAT | op.MIN_REPEAT:
                return self.repeat(*argument) + ("?" if code is op.MIN_REPEAT and not self.for_re2 else "")
            case op.AT:
                return self.place(argument)
        return self.beyond_re2(code, argument)

    def alike(self, low: int, high: int) -> list[int]:
        """Characters beside a range that match it where case is ignored; of one character, itself, too."""
        beside = [] if low < high else [low]
        if not self.flags & re.IGNORECASE:
            return beside
        cased = _cased(bool(self.flags & re.ASCII))
        places = bisect_left(cased.points, low), bisect_right(cased.points, high)
        return sorted({*beside, *(other for point in cased.points[slice(*places)] for other in cased.alike[point])})

    def cases(self, code_point: int) -> str:
        """A character, and others that differ in case, as the inside of a class."""
        return "".join(map(self.char, self.alike(code_point, code_point)))

    def char(self, code_point: int) -> str:
        if 0xD800 <= code_point < 0xE000 and self.for_re2:
            raise _Unwritable
        return f"\\x{{{code_point:x}}}" if self.for_re2 else f"\\U{code_point:08x}"

    def set(self, items: list[Any]) -> str:
        negated = bool(items) and items[0][0] is op.NEGATE
        parts = []
        for code, argument in items[1:] if negated else items:
            if code is op.LITERAL:
                parts.append(self.cases(argument))
            elif code is op.RANGE:
                beside = "".join(map(self.char, self.alike(*argument)))
                parts.append(f"{self.char(argument[0])}-{self.char(argument[1])}{beside}")
            elif argument in _NOT:
                parts.append(self.category(_NOT[argument], negated=True))
            else:
                parts.append(self.category(argument, negated=False))
        if not any(part.startswith("\0") for part in parts):
            return f"[{'^' if negated else ''}{''.join(parts)}]"
        # A class within a class cannot be negated: alternatives of one character each.
        plain = "".join(part for part in parts if not part.startswith("\0"))
        options = [f"[{plain}]"] * bool(plain) + [f"[^{part[1:]}]" for part in parts if part.startswith("\0")]
        if not negated:
            return f"(?:{'|'.join(options)})"
        if self.for_re2 and len(options) > 1:
            raise _Unwritable
        if len(options) == 1:
            return f"[{options[0][2:-1]}]"
        return f"(?!{'|'.join(options)})(?s:.)"

    def category(self, category: Any, negated: bool) -> str:
        written = _CATEGORIES[category]
        if self.flags & re.ASCII:
            written = {op.CATEGORY_DIGIT: "0-9", op.CATEGORY_WORD: "0-9A-Za-z_", op.CATEGORY_SPACE: r"\x{9}-\x{d}\x{20}"}[category]
        written = written if self.for_re2 else re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: f"\\U{found[1].zfill(8)}", written)
        return ("\0" if negated else "") + written

    def group(self, number: int | None, on: int, off: int, body: Any) -> str:
        before, self.flags = self.flags, (self.flags | on) & ~off
        written = self.sequence(list(body))
        self.flags = before
        return f"(?:{written})" if number is None or self.for_re2 else f"({written})"

    def repeat(self, low: Any, high: Any, body: Any) -> str:
        low, endless, high = int(low), high is op.MAXREPEAT, int(high)
        before = self.copies
        self.copies *= max(low, 1 if endless else high, 1)
        if self.copies > MOST_COPIES:
            raise _Unwritable
        written = f"(?:{self.sequence(list(body))}){{{low},{'' if endless else high}}}"
        self.copies = before
        return written

    def place(self, where: Any) -> str:
        match where:
            case op.AT_BEGINNING:
                return "(?m:^)" if self.flags & re.MULTILINE else r"\A"
            case op.AT_BEGINNING_STRING:
                return r"\A"
            case op.AT_END_STRING:
                return r"\z" if self.for_re2 else r"\Z"
            case op.AT_END:
                if self.flags & re.MULTILINE:
                    return "(?m:$)"
                self.has_end = True
                return r"\z" if self.for_re2 else r"(?=\n?\Z)"
            case op.AT_BOUNDARY:
                if self.for_re2:
                    self.needs_ascii = True
                    return r"\b"
                word = _WORD_RANGES[bool(self.flags & re.ASCII)]
                return f"(?:(?<={word})(?!{word})|(?<!{word})(?={word}))"
            case op.AT_NON_BOUNDARY if not self.for_re2:
                word = _WORD_RANGES[bool(self.flags & re.ASCII)]
                return f"(?:(?<={word})(?={word})|(?<!{word})(?!{word})(?!\\A\\Z))"  # Python's does not hold in an empty text
        raise _Unwritable

    def beyond_re2(self, code: Any, argument: Any) -> str:
        if self.for_re2:
            raise _Unwritable
        match code:
            case op.ASSERT | op.ASSERT_NOT:
                sign = "=" if code is op.ASSERT else "!"
                return f"(?{'<' if argument[0] < 0 else ''}{sign}{self.sequence(list(argument[1]))})"
            case op.GROUPREF:
                return f"(?{'i' if self.flags & re.IGNORECASE else ''}:\\g<{argument}>)"
            case op.GROUPREF_EXISTS:
                number, yes, no = argument
                return f"(?({number}){self.sequence(list(yes))}|{self.sequence(list(no or []))})"
            case op.ATOMIC_GROUP:
                return f"(?>{self.sequence(list(argument))})"
            case op.POSSESSIVE_REPEAT:
                return f"(?>{self.repeat(*argument)})"
            case op.FAILURE:
                return "(?!)"
        raise _Unwritable


class _Cased(NamedTuple):
    """points: characters that have other cases, ascending; alike: all of these of each, itself among them."""

    points: list[int]
    alike: dict[int, frozenset[int]]


@lru_cache(maxsize=2)
def _cased(ascii_only: bool) -> _Cased:
    """What `re` takes for the same where case is ignored: what has one lower case, or lower cases that share an upper one.

    RE2 and `regex` know more such pairs (Turkish i, by Unicode's folding), so that classes are written out.
    """
    if ascii_only:
        alike = {point: frozenset((point | 32, point & ~32)) for point in range(128) if chr(point).isalpha()}
        return _Cased(sorted(alike), alike)
    by_lower: dict[int, set[int]] = {}
    for point in range(_LAST_CASED):
        if (lower := _sre.unicode_tolower(point)) != point:
            by_lower.setdefault(lower, {lower}).add(point)
    alike = {}
    for lower in {*by_lower, *_casefix._EXTRA_CASES}:
        alone = by_lower.get(lower, {lower})
        others = _casefix._EXTRA_CASES.get(lower, ())
        alike.update(dict.fromkeys(alone, frozenset(alone.union(*(by_lower.get(other, {other}) for other in others)))))
    return _Cased(sorted(alike), alike)
