"""A regular expression as a finite automaton over bytes that says which lines match: one table look-up a byte, whatever the pattern.

RE2 has such an automaton too, but tells each match to Python (1.5 us), and follows one place at a time, so that each look-up waits
for the one before (0.4 GB/s). A table of our own is followed at four places at once and counts lines itself (`shards/text_kernels.py`,
1.5 to 2 GB/s). It says which lines match, nothing else: where in a line is asked of RE2, for the lines that are shown. Of a pattern
over lines two automata say where matches may begin (`OverLines`).

Construction: Thompson 1968 (an automaton with choices from the parse tree), then sets of its states (Rabin & Scott 1959), where
what stands before and behind decides which assertions hold. Semantics are RE2's with `never_nl`: `\\w \\d \\s \\b` are ASCII, `.` is
a character of UTF-8 other than a line feed; a line ends before b"\\n" or b"\\r\\n". What is not sure to mean the same (or would be
too large) has no automaton: then RE2 answers.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from typing import Any

import numpy as np

from shards.regexes import parse
from shards.types import Array

MAX_NODES = 4096  # of the automaton with choices
MAX_MOVES = 16_384  # states times classes of bytes: some 50 ms to build; `[ab].{20}c` would have a million states
_START, _WORD, _OTHER, _END = range(4)  # what stands before (line start, word byte, other byte) or behind (line end, …) a place
_ALL = (1 << 256) - 1
_CONTINUATION = sum(1 << byte for byte in range(0x80, 0xC0))


def _mask(low: int, high: int) -> int:
    """The bytes low … high as a set of bits."""
    return (1 << high + 1) - (1 << low)


_DIGITS = _mask(48, 57)
_WORDS = _DIGITS | _mask(65, 90) | _mask(97, 122) | 1 << 95
_SPACES = sum(1 << byte for byte in b"\t\n\f\r ")
_CATEGORIES = {  # as bits of ASCII; a complement holds all characters beyond ASCII
    op.CATEGORY_DIGIT: (_DIGITS, False),
    op.CATEGORY_NOT_DIGIT: (_DIGITS, True),
    op.CATEGORY_SPACE: (_SPACES, False),
    op.CATEGORY_NOT_SPACE: (_SPACES, True),
    op.CATEGORY_WORD: (_WORDS, False),
    op.CATEGORY_NOT_WORD: (_WORDS, True),
}
_ASCII = _mask(0, 127)
_LINE_FEED = 1 << 10
_BEGINS = (op.AT_BEGINNING, op.AT_BEGINNING_LINE, op.AT_BEGINNING_STRING)
_ENDS = (op.AT_END, op.AT_END_LINE, op.AT_END_STRING)
_FOLDS_BEYOND_ASCII = {"k": "\u212a", "s": "\u017f"}  # under (?i) RE2 takes the Kelvin sign for k and the long s for s


class _Unsure(Exception):
    """The pattern may mean something else to RE2, or is too large."""


class _Feeds(Enum):
    """What a line feed is to a class of characters that has it."""

    REFUSED = auto()  # no character: matches stay within a line
    END = auto()  # the end of what is looked at: whatever the pattern wants behind it is taken to be there
    TAKEN = auto()  # a character like others


@dataclass(frozen=True, slots=True)
class Automaton:
    """table: (n_states * 256,) uint32, by state + byte the next state, states being multiples of 256. At the start of a line the
    state is 0, or `matched` if the line before matched: the greatest state, reached by the line feeds of matching lines alone.
    """

    table: Array
    matched: int


class _Nodes:
    """The automaton with choices, built from its end to its beginning: each part is given what follows it.

    masks[i]: bytes that node i consumes, 0 for a node that consumes none; then `nexts[i]` are the choices, `asserts[i]` a condition.
    """

    def __init__(self, feeds: _Feeds) -> None:
        self.feeds, self.dotall = feeds, False
        self.masks: list[int] = []
        self.nexts: list[tuple[int, ...]] = []
        self.asserts: list[Any] = []
        self.match = self.add(0)

    def add(self, mask: int, *nexts: int, condition: Any = None) -> int:
        if len(self.masks) >= MAX_NODES:
            raise _Unsure
        self.masks.append(mask)
        self.nexts.append(nexts)
        self.asserts.append(condition)
        return len(self.masks) - 1

    def sequence(self, items: list[Any], behind: int, fold: bool) -> int:
        for code, argument in reversed(items):
            behind = self.item(code, argument, behind, fold)
        return behind

    def item(self, code: Any, argument: Any, behind: int, fold: bool) -> int:
        if code is op.LITERAL:
            return self.characters([(argument, argument)], False, behind, fold)
        if code is op.NOT_LITERAL:
            return self.characters([(argument, argument)], True, behind, fold)
        if code is op.ANY:
            return self.characters([] if self.dotall else [(10, 10)], True, behind, False)
        if code is op.IN:
            return self.bracket(argument, behind, fold)
        if code is op.BRANCH:
            return self.add(0, *(self.sequence(list(branch), behind, fold) for branch in argument[1]))
        if code is op.SUBPATTERN:
            _, on, off, body = argument
            if (on | off) & ~(re.IGNORECASE | re.MULTILINE | re.DOTALL):
                raise _Unsure
            outside, self.dotall = self.dotall, (self.dotall or bool(on & re.DOTALL)) and not off & re.DOTALL
            inside = self.sequence(list(body), behind, (fold or bool(on & re.IGNORECASE)) and not off & re.IGNORECASE)
            self.dotall = outside
            return inside
        if code in (op.MAX_REPEAT, op.MIN_REPEAT):
            return self.repeat(int(argument[0]), argument[1], list(argument[2]), behind, fold)
        if code is op.AT:
            return self.add(0, behind, condition=argument)
        raise _Unsure

    def repeat(self, low: int, high: Any, body: list[Any], behind: int, fold: bool) -> int:
        if high is op.MAXREPEAT:
            loop = self.add(0, behind)
            behind = loop
            self.nexts[loop] = (self.sequence(body, loop, fold), *self.nexts[loop])
        else:
            exit_ = behind
            for _ in range(int(high) - low):
                behind = self.add(0, self.sequence(body, behind, fold), exit_)
        for _ in range(low):
            behind = self.sequence(body, behind, fold)
        return behind

    def bracket(self, items: list[Any], behind: int, fold: bool) -> int:
        negated = items[0][0] is op.NEGATE
        ranges: list[tuple[int, int]] = []
        ascii_, beyond = 0, False
        for code, argument in items[1:] if negated else items:
            if code is op.CATEGORY:
                if fold and argument is op.CATEGORY_NOT_WORD:
                    raise _Unsure  # RE2 leaves out what folds to a letter (U+212A, U+017F), but only of this class
                mask, complement = _CATEGORIES[argument]
                ascii_ |= _ASCII & ~mask if complement else mask
                beyond |= complement
            else:
                ranges.append((argument, argument) if code is op.LITERAL else argument)
        if beyond:
            ranges.append((0x80, 0x10FFFF))
        ranges += [(byte, byte) for byte in range(128) if ascii_ >> byte & 1]
        return self.characters(ranges, negated, behind, fold)

    def characters(self, ranges: list[tuple[int, int]], negated: bool, behind: int, fold: bool) -> int:
        """One character within some ranges of code points, or without."""
        if fold:
            if any(high >= 0x80 and (low, high) != (0x80, 0x10FFFF) for low, high in ranges):
                raise _Unsure  # what else such a character folds to is known to RE2
            ascii_ = {chr(c) for low, high in ranges for c in range(low, min(high, 127) + 1)}
            both = {c.lower() for c in ascii_} | {c.upper() for c in ascii_}
            both |= {_FOLDS_BEYOND_ASCII[c] for c in both & _FOLDS_BEYOND_ASCII.keys()}
            ranges = [(ord(c), ord(c)) for c in both] + [r for r in ranges if r[1] >= 0x80]
        merged: list[list[int]] = []
        for low, high in sorted(ranges):
            if merged and low <= merged[-1][1] + 1:
                merged[-1][1] = max(merged[-1][1], high)
            else:
                merged.append([low, high])
        if negated:
            edges = [-1, *(edge for low, high in merged for edge in (low, high)), 0x110000]
            merged = [[a + 1, b - 1] for a, b in zip(edges[::2], edges[1::2], strict=True) if a + 1 < b]
        ascii_mask = 0
        choices = []
        for low, high in merged:
            if low < 0x80:
                ascii_mask |= _mask(low, min(high, 0x7F))
            if high >= 0x80:
                choices += self.beyond_ascii(max(low, 0x80), high, behind)
        if ascii_mask & _LINE_FEED and self.feeds is not _Feeds.TAKEN:
            ascii_mask &= ~_LINE_FEED
            if self.feeds is _Feeds.END:
                choices.append(self.add(0, self.match, condition=op.AT_END_LINE))
        if ascii_mask:
            choices.append(self.add(ascii_mask, behind))
        return choices[0] if len(choices) == 1 else self.add(0, *choices)

    def beyond_ascii(self, low: int, high: int, behind: int) -> list[int]:
        """Nodes for the characters low … high, two bytes and more. Renditions are valid UTF-8, so all of them is a simple thing."""
        tail = [behind]
        for _ in range(3):
            tail.append(self.add(_CONTINUATION, tail[-1]))
        if (low, high) == (0x80, 0x10FFFF):
            return [self.add(_mask(0xC2, 0xDF), tail[1]), self.add(_mask(0xE0, 0xEF), tail[2]), self.add(_mask(0xF0, 0xF4), tail[3])]
        nodes = []
        for n, (least, greatest) in enumerate(((0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF)), start=1):
            a, b = max(low, least), min(high, greatest)
            if a <= b:
                nodes += self.same_length(_utf8(a, n), _utf8(b, n), tail)
        return nodes

    def same_length(self, low: bytes, high: bytes, tail: list[int]) -> list[int]:
        """Nodes for byte strings of one length between two others, where all but the first are continuation bytes."""
        rest = len(low) - 1
        if not rest:
            return [self.add(_mask(low[0], high[0]), tail[0])]
        least, greatest = b"\x80" * rest, b"\xbf" * rest
        if low[0] == high[0]:
            return [self.add(1 << low[0], node) for node in self.same_length(low[1:], high[1:], tail)]
        first, last, nodes = low[0], high[0], []
        if low[1:] != least:
            nodes += [self.add(1 << first, node) for node in self.same_length(low[1:], greatest, tail)]
            first += 1
        if high[1:] != greatest:
            nodes += [self.add(1 << last, node) for node in self.same_length(least, high[1:], tail)]
            last -= 1
        if first <= last:
            nodes.append(self.add(_mask(first, last), tail[rest]))
        return nodes


def _utf8(code_point: int, n_continuations: int) -> bytes:
    """A code point in UTF-8, surrogates too: they never occur, but ranges may begin or end with one."""
    tail = [0x80 | code_point >> 6 * i & 0x3F for i in reversed(range(n_continuations))]
    return bytes([(0xC0, 0xE0, 0xF0)[n_continuations - 1] | code_point >> 6 * n_continuations, *tail])


def _holds(condition: Any, before: int, behind: int) -> bool:
    if condition in _BEGINS:
        return before == _START
    if condition in _ENDS:
        return behind == _END
    if condition in (op.AT_BOUNDARY, op.AT_NON_BOUNDARY):
        return ((before == _WORD) != (behind == _WORD)) == (condition is op.AT_BOUNDARY)
    raise _Unsure


class _States:
    """States of the result: sets of nodes that a byte may be consumed by, as bits, with the kind of byte before.

    After b"\\r" nobody knows yet whether it was the line's last byte or the first of b"\\r\\n": such a state also holds the one
    before, which decides if a line feed comes.
    """

    def __init__(self, nodes: _Nodes, start: int):
        self.nodes, self.start = nodes, start
        conditions = set(nodes.asserts)
        self.asks_start = bool(conditions & set(_BEGINS))
        self.asks_words = bool(conditions & {op.AT_BOUNDARY, op.AT_NON_BOUNDARY})
        self.classes, self.class_of = self._byte_classes()
        self.kinds = [_END if byte == 10 else _WORD if self.asks_words and _WORDS >> byte & 1 else _OTHER for byte in self.classes]
        self._moves: dict[tuple[int, int, int], tuple[int, bool]] = {}

    def _byte_classes(self) -> tuple[list[int], Array]:
        """A byte of each class that the pattern cannot tell apart, and the class of each byte: (256,) int64."""
        masks = sorted({mask for mask in self.nodes.masks if mask} | {1 << 10, 1 << 13} | ({_WORDS} if self.asks_words else set()))
        seen: dict[tuple[int, ...], int] = {}
        class_of = np.zeros(256, np.int64)
        classes: list[int] = []
        for byte in range(256):
            key = tuple(mask >> byte & 1 for mask in masks)
            if key not in seen:
                seen[key] = len(classes)
                classes.append(byte)
            class_of[byte] = seen[key]
        return classes, class_of

    def _move(self, node: int, before: int, class_: int) -> tuple[int, bool]:
        """From one node, over one byte: the nodes behind it as bits, and whether the match was complete before it."""
        key = (node, before, class_)
        if key not in self._moves:
            byte, kind = self.classes[class_], self.kinds[class_]
            found, done, stack, seen = 0, False, [node], {node}
            while stack:
                at = stack.pop()
                if self.nodes.masks[at]:
                    if self.nodes.masks[at] >> byte & 1:
                        found |= 1 << self.nodes.nexts[at][0]
                    continue
                if at == self.nodes.match:
                    done = True
                if self.nodes.asserts[at] is None or _holds(self.nodes.asserts[at], before, kind):
                    fresh = set(self.nodes.nexts[at]) - seen
                    seen |= fresh
                    stack += fresh
            self._moves[key] = found, done
        return self._moves[key]

    def move(self, state: tuple[int, int], class_: int) -> tuple[tuple[int, int], bool]:
        """The state after a byte, and whether the line is known to match by what came before it."""
        found, done = self.behind(*state, class_)
        return (found | 1 << self.start, self.kinds[class_]), done  # a match may begin anywhere

    def behind(self, members: int, before: int, class_: int) -> tuple[int, bool]:
        """Over one byte from some nodes: those behind them, and whether a match was complete before it."""
        found = 0
        while members:
            low = members & -members
            nodes, done = self._move(low.bit_length() - 1, before, class_)
            if done:
                return found, True
            found |= nodes
            members ^= low
        return found, False


def _determinise(states: _States) -> Automaton:
    feed, return_ = int(states.class_of[10]), int(states.class_of[13])
    first = (1 << states.start, _START if states.asks_start else _OTHER)
    known = "known"  # the line matches, whatever follows
    ends: dict[Any, bool] = {known: True}

    def matches_at_end(state: Any) -> bool:
        if state not in ends:
            ends[state] = states.move(state, feed)[1]
        return ends[state]

    numbers: dict[Any, int] = {(first, None): 0}
    queue: list[Any] = [(first, None)]
    rows: list[list[int]] = []
    matched = -1  # its number is known at the end
    while len(rows) < len(queue):
        state, pending = queue[len(rows)]
        row = []
        for class_ in range(len(states.classes)):
            if class_ == feed:
                row.append(matched if matches_at_end(state if pending is None else pending) else 0)
                continue
            after: Any = known
            if state != known:
                after, done = states.move(state, class_)
                after = known if done else after
            may_end_line = class_ == return_ and states.nodes.feeds is _Feeds.REFUSED  # over lines only b"\n" ends one
            held = state if may_end_line and matches_at_end(state) != matches_at_end(after) else None
            key = (after, held)
            if key not in numbers:
                numbers[key] = len(queue)
                queue.append(key)
                if len(queue) * len(states.classes) > MAX_MOVES:
                    raise _Unsure
            row.append(numbers[key])
        rows.append(row)
    rows.append(rows[0])
    table = np.array(rows, np.int64)
    table[table == matched] = len(rows) - 1
    return Automaton((table * 256).astype(np.uint32)[:, states.class_of].ravel(), (len(rows) - 1) * 256)


def _determinise_begins(states: _States) -> Automaton:
    """See `OverLines.begins`."""
    feed = int(states.class_of[10])
    behind_feed = _START if states.asks_start else _OTHER
    first = (1 << states.start, behind_feed, True)  # nodes, what stands before, whether a match may still begin here
    dead, known = -2, -1  # their numbers are known at the end
    numbers = {first: 0}
    queue = [first]
    rows: list[list[int]] = []
    while len(rows) < len(queue):
        members, before, begins = queue[len(rows)]
        row = []
        for class_ in range(len(states.classes)):
            found, done = states.behind(members, before, class_)
            inside = begins and class_ != feed
            if inside:
                found |= 1 << states.start
            key = (found, behind_feed if class_ == feed else states.kinds[class_], inside)
            if done:
                row.append(known)
            elif not found:
                row.append(dead)
            else:
                if key not in numbers:
                    numbers[key] = len(queue)
                    queue.append(key)
                    if len(queue) * len(states.classes) > MAX_MOVES:
                        raise _Unsure
                row.append(numbers[key])
        rows.append(row)
    n = len(rows)
    table = np.array([*rows, [n] * len(states.classes), [n + 1] * len(states.classes)], np.int64)
    table[table == dead], table[table == known] = n, n + 1
    return Automaton((table * 256).astype(np.uint32)[:, states.class_of].ravel(), (n + 1) * 256)


@lru_cache(maxsize=32)  # a table may take a megabyte
def automaton(pattern: str, ignore_case: bool) -> Automaton | None:
    """The automaton of a pattern that RE2 takes; None where it is too large, or where Python's parser might read it otherwise."""
    tree = _tree(pattern)
    try:
        return None if tree is None else _determinise(_states(tree, ignore_case, _Feeds.REFUSED))
    except (_Unsure, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class OverLines:
    """Where matches of a pattern over lines may begin. Both say too much rather than too little.

    lines: of the lines in which what a match has of its first line may stand.
    begins: followed from the start of a line on, over the lines behind it, is at `matched` once a match that begins in that line is
    complete, at `matched` - 256 once none can be. A line feed behind the text counts as part of it.
    """

    lines: Automaton
    begins: Automaton


@lru_cache(maxsize=32)
def over_lines(pattern: str, ignore_case: bool) -> OverLines | None:
    """Of a pattern that RE2 takes and that matches no empty string; None as for `automaton`."""
    tree = _tree(pattern)
    if tree is None or not tree.getwidth()[0]:
        return None
    try:
        lines = _determinise(_states(tree, ignore_case, _Feeds.END))
        return OverLines(lines, _determinise_begins(_states(tree, ignore_case, _Feeds.TAKEN)))
    except (_Unsure, RecursionError):
        return None


def _tree(pattern: str) -> Any:
    """The parse tree, None where a flag may mean something else to RE2."""
    tree = parse(pattern)
    return None if tree is None or tree.state.flags & ~(re.IGNORECASE | re.MULTILINE | re.DOTALL | re.UNICODE) else tree


def _states(tree: Any, ignore_case: bool, feeds: _Feeds) -> _States:
    nodes = _Nodes(feeds)
    nodes.dotall = bool(tree.state.flags & re.DOTALL)
    return _States(nodes, nodes.sequence(list(tree), nodes.match, ignore_case or bool(tree.state.flags & re.IGNORECASE)))
