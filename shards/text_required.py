"""What every match of a regular expression holds, as a formula of strings: an index of trigrams narrows the text by it.

After Cox 2012, "Regular expression matching with a trigram index": a part of a pattern is a small set of exact strings as long as
that is possible (`[Tt]est|text` is two), then a formula of what it needs. All strings are ASCII-folded; a text that is folded the
same way holds them wherever the pattern matches.
"""

import re
from collections.abc import Iterable, Sequence
from re import _constants as op  # type: ignore[attr-defined]
from typing import Any

from shards.chance import fold
from shards.regexes import parse
from shards.text_pattern import AllOf, AnyOf, Requirement

MAX_STRINGS = 16  # in one set; more say little, and each is looked up
MAX_BYTES = 64  # of one string: more trigrams narrow nothing further
_FOLDS_BEYOND_ASCII = {b"k": "\u212a".encode(), b"s": "\u017f".encode()}  # RE2's (?i): Kelvin sign, long s

_Part = tuple[frozenset[bytes] | None, list[Requirement]]  # exactly these strings; or None and what is needed
_NOTHING = frozenset([b""])


def all_of(parts: Iterable[Requirement]) -> Requirement:
    """The conjunction; None where no part says anything."""
    kept = tuple(dict.fromkeys(part for part in parts if part is not None))
    return kept[0] if len(kept) == 1 else AllOf(kept) if kept else None


def any_of(parts: Iterable[Requirement]) -> Requirement:
    """The disjunction; None where one part says nothing."""
    kept = tuple(dict.fromkeys(parts))
    if not kept or any(part is None for part in kept):
        return None
    return kept[0] if len(kept) == 1 else AnyOf(kept)


def required(pattern: str, ignore_case: bool) -> Requirement:
    """What a text must hold, ASCII-folded, for a match of a pattern that RE2 takes."""
    tree = parse(pattern)
    if tree is None:
        return None
    try:
        return _requirement(_sequence(list(tree), ignore_case or bool(tree.state.flags & re.IGNORECASE)))
    except RecursionError:
        return None


def _requirement(part: _Part) -> Requirement:
    exact, needs = part
    return all_of(needs) if exact is None else _one_of(exact)


def _one_of(strings: frozenset[bytes]) -> Requirement:
    """One of these must be there: without those that hold another one."""
    least = [s for s in strings if not any(other != s and other in s for other in strings)]
    return None if b"" in least else any_of(sorted(least))


def _joined(left: frozenset[bytes], right: frozenset[bytes]) -> frozenset[bytes] | None:
    """All concatenations; None where they would be too many or too long."""
    if len(left) * len(right) > MAX_STRINGS or max(map(len, left)) + max(map(len, right)) > MAX_BYTES:
        return None
    return frozenset(a + b for a in left for b in right)


def _sequence(items: Sequence[Any], ignore_case: bool) -> _Part:
    run, needs, whole = _NOTHING, [], True
    for code, argument in items:
        exact, more = _item(code, argument, ignore_case)
        joined = None if exact is None else _joined(run, exact)
        if joined is not None:
            run = joined
            continue
        needs += [_one_of(run), *more]
        run, whole = _NOTHING if exact is None else exact, False
    return (run, []) if whole else (None, [*needs, _one_of(run)])


def _item(code: Any, argument: Any, ignore_case: bool) -> _Part:
    if code is op.AT:
        return _NOTHING, []
    if code is op.LITERAL:
        return _character(argument, ignore_case), []
    if code is op.IN and len(argument) <= MAX_STRINGS and all(kind is op.LITERAL for kind, _ in argument):
        sets = [_character(value, ignore_case) for _, value in argument]
        strings = frozenset(s for exact in sets if exact is not None for s in exact)
        return (strings if None not in sets and len(strings) <= MAX_STRINGS else None), []
    if code is op.SUBPATTERN:
        _, on, off, body = argument
        return _sequence(list(body), (ignore_case or bool(on & re.IGNORECASE)) and not off & re.IGNORECASE)
    if code is op.BRANCH:
        parts = [_sequence(list(branch), ignore_case) for branch in argument[1]]
        strings = frozenset(s for exact, _ in parts if exact is not None for s in exact)
        if all(exact is not None for exact, _ in parts) and len(strings) <= MAX_STRINGS:
            return strings, []
        return None, [any_of(map(_requirement, parts))]
    if code in (op.MAX_REPEAT, op.MIN_REPEAT):
        return _repeat(int(argument[0]), argument[1], _sequence(list(argument[2]), ignore_case))
    return None, []


def _repeat(low: int, high: Any, body: _Part) -> _Part:
    exact = body[0]
    if not low:
        optional = high is not op.MAXREPEAT and int(high) == 1 and exact is not None and len(exact) < MAX_STRINGS
        return (exact | _NOTHING if optional and exact is not None else None), []
    if exact is not None and high is not op.MAXREPEAT and int(high) == low:
        run: frozenset[bytes] | None = _NOTHING
        for _ in range(low):
            run = None if run is None else _joined(run, exact)
        if run is not None:
            return run, []
    return None, [_requirement(body)]


def _character(code_point: int, ignore_case: bool) -> frozenset[bytes] | None:
    """A character as folded bytes. None where a text may hold it in another form, or as a line feed, which ends a unit."""
    char = chr(code_point)
    if char == "\n" or (ignore_case and not char.isascii() and (char.lower() != char or char.upper() != char)):
        return None
    body = fold(char.encode("utf-8", "surrogatepass"))
    return frozenset([body, _FOLDS_BEYOND_ASCII[body]] if ignore_case and body in _FOLDS_BEYOND_ASCII else [body])
