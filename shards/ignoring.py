"""What .gitignore files say about a path, as git says it.

Not pathspec: it answers for files with their whole path, and ranks patterns that match a parent folder below those that match
the file. Asked folder by folder, which is what prunes a walk, it errs (`*` with `!src/` loses src; tests/test_corpus.py compares
with git itself). Rules are from gitignore(5) and git's wildmatch.c; matching is bytewise, as there.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

IGNORE_FILES = (b".gitignore", b".sondageignore")  # in rising precedence within one folder

_CLASSES = {
    b"alnum": b"0-9A-Za-z", b"alpha": b"A-Za-z", b"blank": b" \\t", b"cntrl": b"\\x00-\\x1f\\x7f", b"digit": b"0-9",
    b"graph": b"!-~", b"lower": b"a-z", b"print": b" -~", b"punct": b"!-/:-@\\[-`{-~", b"space": b"\\t-\\r ",
    b"upper": b"A-Z", b"xdigit": b"0-9A-Fa-f",
}  # fmt: skip


class _NeverMatches(Exception):
    """git keeps a malformed pattern and lets it match nothing."""


@dataclass(frozen=True, slots=True)
class _Rule:
    regex: re.Pattern[bytes]
    negated: bool
    folders_only: bool
    by_name: bool  # matched against the last segment, else against the path from the ignore file's folder


class IgnoreRules:
    """The rules of one folder's ignore files; a later rule overrules an earlier one."""

    __slots__ = ("_any_name", "_any_path", "_rules")

    def __init__(self, text: bytes):
        rules = list(_parse(text))
        self._rules = rules[::-1]
        # Most paths match no rule: one alternation says so at once.
        self._any_name = _alternation([rule for rule in rules if rule.by_name])
        self._any_path = _alternation([rule for rule in rules if not rule.by_name])

    def verdict(self, path: bytes, name: bytes, is_folder: bool) -> bool | None:
        """Whether the path (relative to this folder; `name` its last segment) is ignored; None if no rule speaks of it."""
        if not ((self._any_name and self._any_name.fullmatch(name)) or (self._any_path and self._any_path.fullmatch(path))):
            return None
        for rule in self._rules:
            if (is_folder or not rule.folders_only) and rule.regex.fullmatch(name if rule.by_name else path):
                return not rule.negated
        return None


Chain = tuple[tuple[int, IgnoreRules], ...]  # (length of the folder's path with its slash, its rules), the deepest first


def ignored(chain: Chain, path: bytes, name: bytes, is_folder: bool) -> bool:
    """Whether the rules of all folders above ignore this path. Its parents must have been asked before: they prune."""
    for base, rules in chain:
        verdict = rules.verdict(path[base:], name, is_folder)
        if verdict is not None:
            return verdict
    return False


def _alternation(rules: list[_Rule]) -> re.Pattern[bytes] | None:
    return re.compile(b"|".join(b"(?:%b)" % rule.regex.pattern for rule in rules), re.DOTALL) if rules else None


def _parse(text: bytes) -> Iterator[_Rule]:
    for line in text.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        line = line.removesuffix(b"\r")
        if line.startswith(b"#"):
            continue
        while line.endswith(b" ") and (len(line) - 1 - len(line[:-1].rstrip(b"\\"))) % 2 == 0:
            line = line[:-1]  # trailing spaces go, unless the first is escaped
        negated = line.startswith(b"!")
        pattern = line[1:] if negated else line
        folders_only = pattern.endswith(b"/")
        pattern = pattern.removesuffix(b"/")
        if not pattern:
            continue
        by_name = b"/" not in pattern
        try:
            body = _segment(pattern) if by_name else _path(pattern.removeprefix(b"/"))
        except _NeverMatches:
            continue
        yield _Rule(re.compile(body, re.DOTALL), negated, folders_only, by_name)


def _path(pattern: bytes) -> bytes:
    """A pattern with slashes. Between two `**` the earliest fit is as good as any, so those groups are atomic: no pattern
    takes more than quadratic time, whoever wrote it."""
    groups: list[list[bytes]] = [[]]
    segments = _split_segments(pattern)
    for segment in segments:
        if len(segment) > 1 and not segment.strip(b"*"):  # to git, three stars are two
            groups.append([])
        else:
            groups[-1].append(_segment(segment))
    out = [b"".join(part + b"/" for part in groups[0])] if len(groups) > 1 else []
    for group in groups[1:-1]:
        if group:
            out.append(b"(?>(?:[^/]+/)*?%b/)" % b"/".join(group))
    last = b"/".join(groups[-1])
    if len(groups) > 1:
        last = b"(?:.*/)?" + last if groups[-1] else b".+"
    return b"".join(out) + last


def _split_segments(pattern: bytes) -> list[bytes]:
    """Split at slashes, but not at one inside brackets: git lets a class hold it, and then match nothing with it."""
    segments, start, i = [], 0, 0
    while i < len(pattern):
        if pattern[i : i + 1] == b"\\":
            i += 2 if pattern[i + 1 : i + 2] != b"/" else 1
            continue
        if pattern[i : i + 1] == b"[":
            i = _class_end(pattern, i)
        elif pattern[i : i + 1] == b"/":
            segments.append(pattern[start:i])
            start = i + 1
        i += 1
    return [*segments, pattern[start:]]


def _class_end(pattern: bytes, start: int) -> int:
    """Position of the `]` that closes the class at `start`."""
    i = start + 1
    if pattern[i : i + 1] in (b"!", b"^"):
        i += 1
    first = True
    while i < len(pattern):
        c = pattern[i : i + 1]
        if c == b"]" and not first:
            return i
        first = False
        if c == b"\\":
            i += 1
        elif pattern[i : i + 2] == b"[:":
            end = pattern.find(b"]", i + 2)
            if end < 0:
                raise _NeverMatches
            if pattern[end - 1 : end] == b":" and end - 1 >= i + 2:
                i = end
        i += 1
    raise _NeverMatches


def _segment(segment: bytes) -> bytes:
    """A pattern without slashes as a regular expression over bytes."""
    pieces: list[list[bytes]] = [[]]  # between stars
    i = 0
    while i < len(segment):
        c = segment[i : i + 1]
        if c == b"*":
            if pieces[-1] or len(pieces) == 1:
                pieces.append([])  # a run of stars is one star
        elif c == b"?":
            pieces[-1].append(b"[^/]")
        elif c == b"[":
            end = _class_end(segment, i)
            pieces[-1].append(_class(segment[i + 1 : end]))
            i = end
        elif c == b"\\":
            i += 1
            if i == len(segment):
                raise _NeverMatches
            pieces[-1].append(re.escape(segment[i : i + 1]))
        else:
            pieces[-1].append(re.escape(c))
        i += 1
    joined = [b"".join(piece) for piece in pieces]
    if len(joined) == 1:
        return joined[0]
    # A piece between two stars has one length, so its earliest fit is as good as any: atomic, no backtracking.
    middle = b"".join(b"(?>[^/]*?%b)" % piece for piece in joined[1:-1])
    return joined[0] + middle + b"[^/]*" + joined[-1]


def _class(body: bytes) -> bytes:
    """The inside of a bracket expression as a regular expression for one byte; a slash is never matched."""
    negated = body[:1] in (b"!", b"^")
    i = 1 if negated else 0
    members: set[int] = set()
    previous = -1  # start of a range, if a dash comes next
    while i < len(body):
        if body[i : i + 2] == b"[:" and (end := body.find(b":]", i + 2)) >= 0:
            name = body[i + 2 : end]
            if name not in _CLASSES:
                raise _NeverMatches
            members.update(b for b in range(256) if re.match(b"[" + _CLASSES[name] + b"]", bytes([b])))
            previous, i = -1, end + 2
            continue
        is_range = body[i : i + 1] == b"-" and previous >= 0 and i + 1 < len(body)
        i += is_range
        if body[i : i + 1] == b"\\":
            i += 1
        c = body[i]
        members.update(range(previous, c + 1) if is_range else (c,))
        previous = -1 if is_range else c
        i += 1
    if negated:
        members = set(range(256)) - members
    members.discard(0x2F)
    if not members:
        raise _NeverMatches
    return b"[" + b"".join(b"\\x%02x" % b for b in sorted(members)) + b"]"
