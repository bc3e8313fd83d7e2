"""Which lines match, compiled: lines are told by the places of their line feeds. Imports numba: import this module inside functions.

Positions and states are unsigned: numba looks whether a signed index is negative, and neither loops over blocks nor the four
look-ups of `follow` would be done at once.
"""

import numpy as np

from shards.compiled import jit

_BLOCK = 64  # bytes compared at once: the inner loop becomes some vector instructions
_ONE, _BLOCK_U = np.uint64(1), np.uint64(64)
_FEED = np.uint8(10)


@jit
def line_behind(text, at, stop):
    """Where the first line feed at or behind `at` lies; `stop` where there is none."""
    while at < stop and text[at] != _FEED:
        at += _ONE
    return at


@jit
def line_feeds(text, start, stop, out):
    """All line feeds in [start, stop), as offsets from start: out (stop - start,) uint32. Returns how many."""
    n = np.uint64(0)
    for at in range(start, stop):
        out[n] = at - start
        n += np.uint64(text[np.uint64(at)] == _FEED)
    return n


@jit
def line_starts(text, feeds):
    """Where the lines begin that end with some line feeds: (n,) int64."""
    starts = np.empty(len(feeds), np.int64)
    for i in range(len(feeds)):
        starts[i] = _line_start_before(text, np.uint64(feeds[i]))
    return starts


@jit
def _line_start_before(text, at):
    while at > np.uint64(0) and text[at - _ONE] != _FEED:
        at -= _ONE
    return at


@jit
def widen(text, ranges, doc_starts, doc_stops):
    """The lines that some ranges of a text touch, within some documents, as stretches: two (n,) int64, ascending, disjoint.

    ranges: (m, 2) int64, ascending; doc_starts, doc_stops: (d,) int64, ascending, each document with its closing line feed.
    """
    starts, stops = np.empty(len(ranges) + len(doc_starts), np.int64), np.empty(len(ranges) + len(doc_starts), np.int64)
    n, done, doc = 0, np.int64(0), 0
    for i in range(len(ranges)):
        low, high = max(ranges[i, 0], done), ranges[i, 1]
        while doc < len(doc_starts) and doc_stops[doc] <= low:
            doc += 1
        k = doc
        while k < len(doc_starts) and doc_starts[k] < high:
            start = np.uint64(max(low, doc_starts[k]))
            while start > np.uint64(max(doc_starts[k], done)) and text[start - _ONE] != _FEED:
                start -= _ONE
            stop = line_behind(text, np.uint64(max(min(high, doc_stops[k]) - 1, np.int64(start))), np.uint64(doc_stops[k])) + _ONE
            starts[n], stops[n] = np.int64(start), np.int64(stop)
            done = np.int64(stop)
            n += 1
            k += 1
    return starts[:n], stops[:n]


@jit
def gather(text, starts, stops, size):
    """Stretches of a text, one behind the other: (size,) uint8."""
    out = np.empty(size, np.uint8)
    n = 0
    for i in range(len(starts)):
        for at in range(starts[i], stops[i]):
            out[n] = text[np.uint64(at)]
            n += 1
    return out


@jit
def _folded(byte):
    return byte | np.uint8(32) if np.uint8(65) <= byte <= np.uint8(90) else byte


@jit
def _is_here(text, at, literal, ignore_case):
    for i in range(len(literal)):
        byte = text[at + np.uint64(i)]
        if (_folded(byte) if ignore_case else byte) != literal[np.uint64(i)]:
            return False
    return True


@jit
def find_literal(text, start, stop, literal, first, second, ignore_case, out):
    """Lines of [start, stop) that hold a string: the offset of each one's line feed from start, into out. Returns how many.

    text[stop - 1] is a line feed. literal: (m,) uint8, folded if `ignore_case`. first, second: uint64, places of two rare bytes of
    it: blocks are compared with these alone (the "packed pair" of Gallant's memchr), what remains with the whole.
    """
    n, size = np.uint64(0), np.uint64(len(literal))
    one, two = literal[first], literal[second]
    # b"K" | 32 is b"k", but so is b"k" | 32, and b"[" | 32 is b"{": only letters get the bit, the comparison with all bytes decides
    one_case = np.uint8(32) if ignore_case and np.uint8(97) <= one <= np.uint8(122) else np.uint8(0)
    two_case = np.uint8(32) if ignore_case and np.uint8(97) <= two <= np.uint8(122) else np.uint8(0)
    at = start
    while at + _BLOCK_U + size <= stop:
        ones, twos = text[at + first : at + first + _BLOCK_U], text[at + second : at + second + _BLOCK_U]
        some = np.uint8(0)
        for i in range(_BLOCK):
            j = np.uint64(i)
            some |= np.uint8(((ones[j] | one_case) == one) & ((twos[j] | two_case) == two))
        behind = at + _BLOCK_U
        if some:
            for i in range(_BLOCK):
                j = np.uint64(i)
                if (ones[j] | one_case) == one and (twos[j] | two_case) == two and _is_here(text, at + j, literal, ignore_case):
                    feed = line_behind(text, at + j, stop)
                    out[n] = feed - start
                    n += _ONE
                    behind = feed + _ONE
                    break
        at = behind
    while at + size <= stop:
        if _is_here(text, at, literal, ignore_case):
            at = line_behind(text, at, stop)
            out[n] = at - start
            n += _ONE
        at += _ONE
    return n


@jit
def follow(text, start, stop, table, matched, out):
    """Lines of [start, stop) that an automaton takes (`shards.text_automaton`): the offsets of their line feeds from start.

    text[stop - 1] is a line feed. out: (stop - start,) uint32. Returns (4, 2) int64, the beginning and end in `out` of four pieces
    of the answer, in order: four lines far from one another are followed at once, since a look-up waits for the one before it.
    """
    a0 = start
    a1 = _line_start(text, start, start + (stop - start) // np.uint64(4), stop)
    a2 = _line_start(text, a1, start + (stop - start) // np.uint64(2), stop)
    a3 = _line_start(text, a2, start + np.uint64(3) * ((stop - start) // np.uint64(4)), stop)
    steps = min(min(a1 - a0, a2 - a1), min(a3 - a2, stop - a3))
    s0 = s1 = s2 = s3 = np.uint64(0)
    n0, n1, n2, n3 = a0 - start, a1 - start, a2 - start, a3 - start
    for step in range(steps):
        i = np.uint64(step)
        s0 = np.uint64(table[s0 + np.uint64(text[a0 + i])])
        s1 = np.uint64(table[s1 + np.uint64(text[a1 + i])])
        s2 = np.uint64(table[s2 + np.uint64(text[a2 + i])])
        s3 = np.uint64(table[s3 + np.uint64(text[a3 + i])])
        if (s0 >= matched) | (s1 >= matched) | (s2 >= matched) | (s3 >= matched):
            if s0 >= matched:
                out[n0] = a0 + i - start
                n0 += _ONE
            if s1 >= matched:
                out[n1] = a1 + i - start
                n1 += _ONE
            if s2 >= matched:
                out[n2] = a2 + i - start
                n2 += _ONE
            if s3 >= matched:
                out[n3] = a3 + i - start
                n3 += _ONE
    pieces = np.empty((4, 2), np.int64)
    pieces[0, 0], pieces[0, 1] = a0 - start, _follow_on(text, start, a0 + steps, a1, s0, table, matched, out, n0)
    pieces[1, 0], pieces[1, 1] = a1 - start, _follow_on(text, start, a1 + steps, a2, s1, table, matched, out, n1)
    pieces[2, 0], pieces[2, 1] = a2 - start, _follow_on(text, start, a2 + steps, a3, s2, table, matched, out, n2)
    pieces[3, 0], pieces[3, 1] = a3 - start, _follow_on(text, start, a3 + steps, stop, s3, table, matched, out, n3)
    return pieces


@jit
def _line_start(text, least, near, stop):
    """The first line start behind `near`, not before `least`."""
    return max(least, min(line_behind(text, near, stop) + _ONE, stop))


@jit
def _follow_on(text, start, at, stop, state, table, matched, out, n):
    while at < stop:
        state = np.uint64(table[state + np.uint64(text[at])])
        if state >= matched:
            out[n] = at - start
            n += _ONE
        at += _ONE
    return n


@jit
def follow_some(text, table, matched, out, n_lines):
    """Of some lines those that an automaton takes. out: the first n_lines are their line feeds, then those of the answer.

    Returns how many.
    """
    n = np.uint64(0)
    for k in range(n_lines):
        feed = np.uint64(out[np.uint64(k)])
        start = _line_start_before(text, feed)
        n = _follow_on(text, np.uint64(0), start, feed + _ONE, np.uint64(0), table, matched, out, n)  # n <= k: what is written was read
    return n


@jit
def may_begin(text, feeds, stops, table, matched, ahead, most):
    """In which of some lines a match over lines may begin (`shards.text_automaton.OverLines.begins`): (n,) bool.

    feeds: (n,) int64, line feeds of the lines; stops: (n,) int64, behind which each one's text is not looked at. ahead: bytes from the
    start of a line on that are looked at; most: of all lines together. Where these are not enough, a match may begin.
    """
    may = np.empty(len(feeds), np.bool_)
    dead = matched - np.uint64(256)
    for k in range(len(feeds)):
        start, stop = _line_start_before(text, np.uint64(feeds[k])), np.uint64(stops[k])
        at, end, state = start, min(start + min(ahead, most), stop), np.uint64(0)
        while at < end and state < dead:
            state = np.uint64(table[state + np.uint64(text[at])])
            at += _ONE
        may[k] = state >= matched or (state < dead and at < stop)
        most -= at - start
    return may


@jit
def _character(text, at):
    """The code point at a byte of valid UTF-8, and how many bytes it has."""
    byte = np.int64(text[at])
    if byte < 0x80:
        return byte, _ONE
    if byte < 0xE0:
        return (byte & 0x1F) << 6 | np.int64(text[at + _ONE]) & 0x3F, np.uint64(2)
    two = np.int64(text[at + _ONE]) & 0x3F
    three = np.int64(text[at + np.uint64(2)]) & 0x3F
    if byte < 0xF0:
        return (byte & 0x0F) << 12 | two << 6 | three, np.uint64(3)
    return (byte & 0x07) << 18 | two << 12 | three << 6 | np.int64(text[at + np.uint64(3)]) & 0x3F, np.uint64(4)


@jit
def _is_word_byte(byte):
    folded = byte | np.uint8(32)
    return np.uint8(97) <= folded <= np.uint8(122) or np.uint8(48) <= byte <= np.uint8(57) or byte == np.uint8(95)


@jit
def _line_within(text, at, end, ascii_, others, masks, size, edits, word, rows, nearest):
    """The edits by which a string occurs in the line [at, end): those of the first occurrence, or if `nearest` the fewest there are.
    And where the first occurrence with so few ends; if another one does at most as many characters further, there, and so on.

    Wu & Manber 1992: row j of `rows` has bit i set where the first i characters can end here with at most j edits.
    ascii_: (128,) uint64, for each character the places of the pattern where it stands, as bits; others (ascending code points),
    masks: the same beyond ASCII. word: an occurrence begins and ends at the border of a word. Returns edits + 1 if there is none.
    """
    best, best_end, n_behind = edits + 1, at, 0
    last = _ONE << np.uint64(size)
    for j in range(edits + 1):
        rows[j] = (_ONE << np.uint64(j + 1)) - _ONE  # up to j characters of the pattern left out
    after_word = False
    while True:
        ends_here = not word or at >= end or not _is_word_byte(text[at])
        if ends_here:
            if best <= edits and n_behind <= best and rows[best] & last:
                best_end, n_behind = at, 0  # `recieve` ends behind its last letter, not where two edits more would do
            for j in range(best):
                if rows[j] & last:
                    best, best_end, n_behind = j, at, 0
                    break
        if at >= end or best == 0 or (best <= edits and not nearest):
            return best, best_end
        n_behind += 1
        point, width = _character(text, at)
        if point < 128:
            mask = ascii_[point]
        else:
            k = np.searchsorted(others, point)
            mask = masks[k] if k < len(others) and others[k] == point else np.uint64(0)
        after_word = _is_word_byte(text[at])
        begins = np.uint64(0) if word and after_word else _ONE
        before = rows[0]
        rows[0] = (before & mask) << _ONE | begins
        for j in range(1, min(best, edits) + 1):
            here = rows[j]
            # a character as it stands, one too many, another one, one too few
            rows[j] = (here & mask) << _ONE | before | before << _ONE | rows[j - 1] << _ONE | begins
            before = here
        at += width


@jit
def find_within(text, start, stop, ascii_, others, masks, size, edits, word, out):
    """Lines of [start, stop) that hold a string but for some edits: the offsets of their line feeds from start. Returns how many."""
    n, at = np.uint64(0), start
    rows = np.zeros(edits + 1, np.uint64)
    while at < stop:
        feed = line_behind(text, at, stop)
        end = feed - _ONE if feed > at and text[feed - _ONE] == np.uint8(13) else feed
        if _line_within(text, at, end, ascii_, others, masks, size, edits, word, rows, False)[0] <= edits:
            out[n] = feed - start
            n += _ONE
        at = feed + _ONE
    return n


@jit
def find_within_some(text, start, stop, table, matched, ascii_, others, masks, size, edits, word, out):
    """As `find_within`, of the lines alone that an automaton takes. Returns how many."""
    n, rows = np.uint64(0), np.zeros(edits + 1, np.uint64)
    pieces = follow(text, start, stop, table, matched, out)
    for k in range(4):
        for i in range(pieces[k, 0], pieces[k, 1]):
            feed = start + np.uint64(out[np.uint64(i)])
            at = max(_line_start_before(text, feed), start)
            end = feed - _ONE if feed > at and text[feed - _ONE] == np.uint8(13) else feed
            if _line_within(text, at, end, ascii_, others, masks, size, edits, word, rows, False)[0] <= edits:
                out[n] = feed - start  # n <= i: what is written was read
                n += _ONE
    return n


@jit
def nearest_end(text, start, end, ascii_, others, masks, size, edits, word):
    """Of the line [start, end) the fewest edits, and where the first occurrence with so few ends (int64, uint64)."""
    return _line_within(text, start, end, ascii_, others, masks, size, edits, word, np.zeros(edits + 1, np.uint64), True)
