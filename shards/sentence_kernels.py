"""Cutting text into sentences and chunks of them, compiled: one pass forwards over UTF-8 bytes."""

import numpy as np

from shards.compiled import jit


@jit
def _space(text, at, end):
    """How many bytes the white space that stands at a place has, as Python's `str.isspace` has it; 0: none stands there."""
    c = text[at]
    if c == 32 or 9 <= c <= 13 or 28 <= c <= 31:
        return 1
    if c < 0xC2 or c > 0xE3:
        return 0
    if c == 0xC2:
        return 2 if at + 1 < end and (text[at + 1] == 0x85 or text[at + 1] == 0xA0) else 0
    if at + 2 >= end:
        return 0
    b, d = text[at + 1], text[at + 2]
    if c == 0xE2:
        if b == 0x80 and (0x80 <= d <= 0x8A or d == 0xA8 or d == 0xA9 or d == 0xAF):
            return 3
        return 3 if b == 0x81 and d == 0x9F else 0
    if c == 0xE3:
        return 3 if b == 0x80 and d == 0x80 else 0
    return 3 if c == 0xE1 and b == 0x9A and d == 0x80 else 0


@jit
def _wide_stop(text, at, end):
    """Whether one of 。！？… stands at a place."""
    if at + 2 >= end:
        return False
    a, b, c = text[at], text[at + 1], text[at + 2]
    if a == 0xE3:
        return b == 0x80 and c == 0x82
    if a == 0xEF:
        return b == 0xBC and (c == 0x81 or c == 0x9F)
    return a == 0xE2 and b == 0x80 and c == 0xA6


@jit
def cut_sentences(text, doc_starts, doc_ends, doc_rows):
    """The sentences of documents, without white space at their ends, and how long they are; see `shards.nlql.units`.

    text: (bytes,) uint8; doc_starts, doc_ends: (n,) int64 places in it; doc_rows: (n,) int32
    Returns rows (u,) int32, starts and ends (u,) int64 relative to the document's start, and lengths (u,) int64: characters, where runs
    of blank, tab, U+00A0 and U+3000 count as one.
    """
    capacity, n = np.int64(1024), 0
    rows, starts, ends, lengths = (
        np.empty(capacity, np.int32), np.empty(capacity, np.int64), np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    )  # fmt: skip
    for i in range(len(doc_starts)):
        base, end = doc_starts[i], doc_ends[i]
        at = base
        while at < end:
            size = _space(text, at, end)
            if size > 0:
                at += size
                continue
            start, last = at, at  # `last`: where what is no white space ends so far
            length, length_to_last = 0, 0
            blank = False  # whether the last character was one of those that runs of count as one
            while at < end:
                c = text[at]
                if 32 < c < 0x80 and c != 46 and c != 33 and c != 63:  # nearly all, and what follows would do the same, ten times as long
                    at += 1
                    length += 1
                    last, length_to_last, blank = at, length, False
                    continue
                size = _space(text, at, end)
                if size > 0:
                    if c == 10:
                        at += 1
                        break
                    joins = c == 32 or c == 9 or c == 0xE3 or (c == 0xC2 and text[at + 1] == 0xA0)
                    if not (joins and blank):
                        length += 1
                    blank = joins
                    at += size
                    continue
                blank = False
                if _wide_stop(text, at, end):
                    at += 3
                    last, length = at, length + 1
                    length_to_last = length
                    break
                if c & 0xC0 != 0x80:
                    length += 1
                at += 1
                last, length_to_last = at, length
                if (c == 46 or c == 33 or c == 63) and at < end and _space(text, at, end) > 0:
                    break
            if n == capacity:
                capacity *= 2
                rows, starts, ends, lengths = (
                    _grown(rows, capacity), _grown(starts, capacity), _grown(ends, capacity), _grown(lengths, capacity)
                )  # fmt: skip
            rows[n], starts[n], ends[n], lengths[n] = doc_rows[i], start - base, last - base, length_to_last
            n += 1
    return rows[:n].copy(), starts[:n].copy(), ends[:n].copy(), lengths[:n].copy()


@jit
def _grown(values, capacity):
    grown = np.empty(capacity, values.dtype)
    grown[: len(values)] = values
    return grown


@jit
def join_sentences(rows, lengths, most):
    """Which sentence begins a chunk: as many as `most` characters hold when they are joined by one blank, of one document.

    rows: (n,) int32 and lengths: (n,) int64, of sentences. Returns (n,) bool.
    """
    begins = np.zeros(len(rows), np.bool_)
    current = 0
    for i in range(len(rows)):
        if i == 0 or rows[i] != rows[i - 1] or current + lengths[i] + 1 > most:
            begins[i] = True
            current = lengths[i]
        else:
            current += lengths[i] + 1
    return begins


@jit
def copy_plain(text, starts, ends, is_ascii, copied):
    """Copies spans one after another, each followed by a line break; of those that are not plain only the line break.

    Plain: without white space but single blanks, none at either end, and without control characters; is_ascii: and without anything that
    is not ASCII. text: (bytes,) uint8; starts, ends: (n,) int64; copied: uint8 with room for all, written.
    Returns how many bytes were written, and (n,) bool: which are plain.
    """
    plain = np.ones(len(starts), np.bool_)
    at = 0
    for i in range(len(starts)):
        begin, blank = at, True
        for place in range(starts[i], ends[i]):
            c = text[place]
            if c < 32 or c == 127 or (c == 32 and blank) or (c >= 0x80 and (is_ascii or _space(text, place, ends[i]) > 0)):
                plain[i] = False
                break
            blank = c == 32
            copied[at] = c
            at += 1
        if blank and at > begin:
            plain[i] = False
        if not plain[i]:
            at = begin
        copied[at] = 10
        at += 1
    return at, plain
