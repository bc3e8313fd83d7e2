"""The compiled search for titles: a fraction of a microsecond a document, where regular expressions in Python took five."""

import numpy as np

from shards.compiled import jit

NONE, PROSE, CODE = 0, 1, 2  # how a text is read
_LF, _CR, _TAB, _BLANK = 10, 13, 9, 32
_LICENCES = (b"copyright", b"license", b"licence", b"all rights reserved")
LICENCES = np.zeros((len(_LICENCES), 20), np.uint8)
for _row, _word in zip(LICENCES, _LICENCES, strict=True):
    _row[: len(_word)] = list(_word)
LICENCES.flags.writeable = False


@jit
def _line_end(text, at, stop):
    """Where the line that holds `at` ends."""
    while at < stop and text[at] != _LF:
        at += 1
    return at


@jit
def _past_blanks(text, at, stop):
    """The first byte from `at` on that is no space, tab or carriage return."""
    while at < stop and (text[at] == _BLANK or text[at] == _TAB or text[at] == _CR):
        at += 1
    return at


@jit
def _past_space(text, at, stop):
    """The first byte from `at` on that is no white space."""
    while at < stop and (text[at] == _BLANK or 9 <= text[at] <= 13):
        at += 1
    return at


@jit
def _trimmed(text, start, end):
    """[start, end) without blanks at either end."""
    start = _past_blanks(text, start, end)
    while end > start and (text[end - 1] == _BLANK or text[end - 1] == _TAB or text[end - 1] == _CR):
        end -= 1
    return start, end


@jit
def _is_rule(text, start, end):
    """Whether a line is three or more of one of = - ~ ^ * # _ and nothing else."""
    start, end = _trimmed(text, start, end)
    if end - start < 3:
        return False
    first = text[start]
    if first not in (61, 45, 126, 94, 42, 35, 95):
        return False
    while start < end and text[start] == first:
        start += 1
    return start == end


@jit
def _is(text, at, stop, a, b, c):
    """Whether the bytes from `at` on are these three."""
    return at + 3 <= stop and text[at] == a and text[at + 1] == b and text[at + 2] == c


@jit
def _comment(text, at, stop):
    """Where what a comment's mark at `at` introduces begins; -1 where there is no mark: # // /* * -- ; % <!--."""
    if at >= stop:
        return -1
    c = text[at]
    following = text[at + 1] if at + 1 < stop else 0
    if c in (35, 59, 37) or (c == 45 and following == 45):  # # ; % --
        while at < stop and text[at] == c:
            at += 1
        return at
    if c == 42:  # *
        while at < stop and text[at] == 42:
            at += 1
        return -1 if at < stop and text[at] == 47 else at
    if c == 47 and (following == 47 or following == 42):  # // /*
        at += 2
        while at < stop and (text[at] == following or text[at] == 33):
            at += 1
        return at
    if c == 60 and following == 33 and at + 4 <= stop and text[at + 2] == 45 and text[at + 3] == 45:  # <!--
        return at + 4
    return -1


@jit
def _front_matter(text, start, stop):
    """Its end, and the title's value in it: (end, start, end); end is `start` where there is no front matter."""
    line_end = _line_end(text, start, stop)
    if not (_is(text, start, stop, 45, 45, 45) and _past_blanks(text, start + 3, line_end) == line_end):
        return start, start, start
    first = last = start
    at = line_end + 1
    while at < stop:
        line_end = _line_end(text, at, stop)
        if _is(text, at, stop, 45, 45, 45):
            return (line_end + 1, first, last) if _past_blanks(text, at + 3, line_end) == line_end else (start, start, start)
        is_title = at + 6 <= stop and _is(text, at, stop, 116, 105, 116) and _is(text, at + 3, stop, 108, 101, 58)
        if is_title and last == first:
            first, last = _trimmed(text, at + 6, line_end)
        at = line_end + 1
    return start, start, start


@jit
def _of_prose(text, start, stop):
    """See `title_of`: front matter's title, a heading, or a first line that stands alone."""
    at, first, last = _front_matter(text, start, stop)
    if last > first:
        return first, last
    at = _past_space(text, at, stop)
    end = _line_end(text, at, stop)
    below = min(end + 1, stop)
    below_end = _line_end(text, below, stop)
    if _is_rule(text, at, end):
        end_of_rule = _line_end(text, min(below_end + 1, stop), stop)
        return _trimmed(text, below, below_end) if _is_rule(text, below_end + 1, end_of_rule) else (start, start)
    if _is_rule(text, below, below_end):
        return _trimmed(text, at, end)
    marked = at
    while marked < end and text[marked] == text[at] and (text[at] == 35 or text[at] == 61):  # # =
        marked += 1
    if 1 <= marked - at <= 6 and marked < end and (text[marked] == _BLANK or text[marked] == _TAB):
        return _trimmed(text, marked, end)
    if end < stop and _past_blanks(text, below, below_end) == below_end and _past_space(text, below, stop) < stop:
        return _trimmed(text, at, end)
    return start, start


@jit
def _of_code(text, start, stop, licences):
    """See `title_of`: the first line of a docstring that nothing but comments stands above, else of an opening comment."""
    begin = _past_space(text, start, stop)
    at = begin
    while at < stop:
        inside = _past_blanks(text, at, stop)
        ends_comment = inside + 1 < stop and text[inside] == 42 and text[inside + 1] == 47  # */
        if not (inside < stop and (text[inside] == _LF or ends_comment or _comment(text, inside, stop) >= 0)):
            break
        at = _line_end(text, inside, stop) + 1
    at = min(_past_blanks(text, at, stop), stop)
    for _ in range(2):
        if at < stop and text[at] in (114, 82, 117, 85, 98, 66):  # r R u U b B
            at += 1
    if _is(text, at, stop, 34, 34, 34) or _is(text, at, stop, 39, 39, 39):
        quote = text[at]
        at = _past_space(text, at + 3, stop)
        end = at
        while end < stop and text[end] != _LF and not _is(text, end, stop, quote, quote, quote):
            end += 1
        return _trimmed(text, at, end)
    at = begin
    opened = _comment(text, at, stop)
    if opened >= 0 and (text[at] == 47 or text[at] == 60):  # a block's first line may hold its mark alone
        past = _past_blanks(text, opened, stop)
        if past < stop and text[past] == _LF:
            at = _past_blanks(text, past + 1, stop)
            opened = _comment(text, at, stop)
    if opened < 0:
        return start, start
    end = opened
    while end < stop and text[end] != _LF and not _is(text, end, stop, 45, 45, 62):  # -->
        if text[end] == 42 and end + 1 < stop and text[end + 1] == 47:
            break
        end += 1
    first, last = _trimmed(text, opened, end)
    if first < last and text[first] == 33:  # #!
        return start, start
    for i in range(first, last):
        if i - first <= 4 and _is(text, i, last, 99, 111, 100) and _is(text, i + 3, last, 105, 110, 103):  # coding
            return start, start
        for licence in licences:
            size = 0
            while size < len(licence) and licence[size] and i + size < last and (text[i + size] | 32) == (licence[size] | 32):
                size += 1
            if size == len(licence) or licence[size] == 0:
                return start, start
    return first, last


@jit
def find_titles(text, starts, ends, readings, head_bytes, max_bytes, licences):
    """The title of each text: starts and ends in `text`, (n,) int64, equal where there is none.

    text: (bytes,) uint8; starts, ends: (n,) int64; readings: (n,) uint8, NONE, PROSE or CODE; licences: `LICENCES`
    head_bytes: of a text that are looked at; max_bytes: of a title
    """
    firsts, lasts = starts.copy(), starts.copy()
    for i in range(len(starts)):
        start, stop = starts[i], min(ends[i], starts[i] + head_bytes)
        if _is(text, start, stop, 0xEF, 0xBB, 0xBF):
            start += 3
        if readings[i] == PROSE:
            first, last = _of_prose(text, start, stop)
        elif readings[i] == CODE:
            first, last = _of_code(text, start, stop, licences)
        else:
            continue
        says = False
        for j in range(first, last):
            c = text[j]
            says |= c >= 128 or 48 <= c <= 57 or 97 <= (c | 32) <= 122
        if says and last - first <= max_bytes:
            firsts[i], lasts[i] = first, last
    return firsts, lasts
