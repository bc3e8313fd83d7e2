"""Cutting text into passages, compiled: one pass backwards through the second half of each window."""

import numpy as np

from shards.compiled import jit

# Kinds of places to cut, best last.
CHARACTER, SPACE, SENTENCE, LINE, OPENING, BLANK, BLANK_OPENING = range(7)


@jit
def _is_space(c):
    return c == 32 or (9 <= c <= 13)


@jit
def _wide_mark(text, low, end):
    """What three-byte character ends at `end`: 2 for 。！？｡．, 1 for the commas 、，；：, 3 for closing quotes and brackets."""
    if end - low < 3:
        return 0
    a, b, c = text[end - 3], text[end - 2], text[end - 1]
    if a == 0xE3 and b == 0x80:
        if c == 0x82:  # 。
            return 2
        if c == 0x81:  # 、
            return 1
        if c == 0x8D or c == 0x8F or c == 0x91:  # 」 』 】
            return 3
    elif a == 0xEF and b == 0xBC:
        if c == 0x81 or c == 0x9F or c == 0x8E:  # ！ ？ ．
            return 2
        if c == 0x8C or c == 0x9B or c == 0x9A:  # ， ； ：
            return 1
        if c == 0x89:  # ）
            return 3
    elif a == 0xEF and b == 0xBD and c == 0xA1:  # ｡
        return 2
    elif a == 0xE2 and b == 0x80:
        if c == 0x99 or c == 0x9D:  # ’ ”
            return 3
        if c == 0xA6:  # …
            return 2
    return 0


@jit
def _ends_sentence(text, low, end, statements):
    """Whether text[low:end] ends a sentence, closing quotes and brackets aside, or (statements) with one of ; { } ) ] :"""
    for _ in range(4):
        if end <= low:
            return False
        c = text[end - 1]
        if c == 46 or c == 33 or c == 63:  # . ! ?
            return True
        if statements and (c == 59 or c == 123 or c == 125 or c == 41 or c == 93 or c == 58):
            return True
        if c >= 0x80:
            mark = _wide_mark(text, low, end)
            if mark == 2:
                return True
            if mark != 3:
                return False
            end -= 3
        elif c == 41 or c == 34 or c == 39 or c == 93 or c == 42 or c == 95 or c == 96:  # ) " ' ] * _ `
            end -= 1
        else:
            return False
    return False


@jit
def _kind_of_gap(text, low, left, right, breaks):
    """The kind of the white space text[left:right], which holds `breaks` line breaks; `low` is where its passage starts."""
    if breaks == 0:
        return SENTENCE if _ends_sentence(text, low, left, False) else SPACE
    c = text[right]
    unindented = text[right - 1] == 10 and not (c == 41 or c == 93 or c == 125)  # ) ] }
    if breaks >= 2:
        return BLANK_OPENING if unindented else BLANK
    if unindented and (
        c == 35 or c == 64 or c == 92 or c == 61 or c == 60 or _ends_sentence(text, low, left, True)  # # @ \ = <
    ):
        return OPENING
    return LINE


@jit
def _best_cut(text, low, floor, limit, end):
    """Where the passage that starts at `low` ends: in (floor, limit], at the last place of the best kind.

    text[low:end] starts and ends with no white space, and limit < end. Returns the end and where the text goes on.
    """
    best, cut, onward = -1, limit, limit
    right = limit  # where the text goes on after a gap at `limit`
    while _is_space(text[right]):
        right += 1
    breaks = 0
    for i in range(limit, right):
        breaks += text[i] == 10
    at = limit
    while at > floor:
        c = text[at - 1]
        if _is_space(c):
            breaks += c == 10
            at -= 1
            continue
        if _is_space(text[at]):  # text[at:right] is a gap
            kind = _kind_of_gap(text, low, at, right, breaks)
            if kind > best:
                best, cut, onward = kind, at, right
                if kind == BLANK_OPENING:
                    break
            breaks = 0
        elif c >= 0x80 and best < SENTENCE:
            mark = _wide_mark(text, low, at)
            if mark == 2 or (mark == 1 and best < SPACE):
                after = at
                while after + 3 <= limit and _wide_mark(text, at, after + 3) == 3:
                    after += 3
                if not _is_space(text[after]):
                    best, cut, onward = SENTENCE if mark == 2 else SPACE, after, after
        right = at - 1
        at -= 1
    if best < 0:
        while cut > floor + 1 and text[cut] & 0xC0 == 0x80:
            cut -= 1
        onward = cut
        while _is_space(text[onward]):
            onward += 1
        while _is_space(text[cut - 1]):
            cut -= 1
    return cut, onward


@jit
def _overlap_start(text, low, cut, onward, overlap, half):
    """Where the next passage starts so that it repeats at most `overlap` bytes before `cut`."""
    first = max(cut - overlap, low + 1)
    word, character, broken = -1, -1, text[first - 1] == 10
    for i in range(first, cut):
        c = text[i]
        if _is_space(c):
            broken |= c == 10
        elif broken:
            word = i
            break
        elif word < 0 and _is_space(text[i - 1]):
            word = i
        elif character < 0 and c & 0xC0 != 0x80:
            character = i
    start = word if word >= 0 else character
    # A gap so wide that the repeated piece could not reach the text behind it: repeat nothing.
    return start if start >= 0 and onward - start <= half else onward


@jit
def cut_passages(text, doc_starts, doc_ends, doc_rows, unit, overlap):
    """The passages of documents; see `shards.units.passages`.

    text: (bytes,) uint8; doc_starts, doc_ends: (n,) int64 places in it; doc_rows: (n,) int32
    Returns rows (u,) int32, starts and ends (u,) int64 relative to the document's start.
    """
    half = unit // 2
    capacity = np.int64(0)
    for i in range(len(doc_starts)):
        capacity += (doc_ends[i] - doc_starts[i]) // (half - overlap - 4) + 1  # 4: a character may straddle the limit
    rows = np.empty(capacity, np.int32)
    starts = np.empty(capacity, np.int64)
    ends = np.empty(capacity, np.int64)
    n = 0
    for i in range(len(doc_starts)):
        base, end = doc_starts[i], doc_ends[i]
        while end > base and _is_space(text[end - 1]):
            end -= 1
        low = base
        while low < end and _is_space(text[low]):
            low += 1
        while low < end:
            if end - low <= unit:
                cut, onward = end, end
            else:
                cut, onward = _best_cut(text, low, low + half, low + unit, end)
                if 5 * (end - onward) < unit and 4 * (end - low) <= 5 * unit:
                    cut, onward = end, end
            rows[n], starts[n], ends[n] = doc_rows[i], low - base, cut - base
            n += 1
            low = onward if overlap == 0 or onward >= end else _overlap_start(text, low, cut, onward, overlap, half)
    return rows[:n].copy(), starts[:n].copy(), ends[:n].copy()
