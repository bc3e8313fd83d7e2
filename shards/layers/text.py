"""Text: exact strings and regular expressions, line by line over the renditions themselves. There is no index.

Raw score of a document: how many of its lines match; its span is the first match. A surprise is how unlikely one match is in
a line (`shards/chance.py`); further matching lines add nothing to it, since lines of one document are not independent.
"""

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from shards.chance import ChanceModel, add_statistics, count_texts, fold, log_p_literal
from shards.documents import Documents, Entries
from shards.errors import BadQuery
from shards.layers.contract import Encodings, Layer, Progress, Reader, Request
from shards.linescan import SPARSE_LOG_P, LinePattern, compile_regex, scan
from shards.plan import SpaceQuery
from shards.regexes import ignores_case, log_p_pattern, required_literals
from shards.types import Array, Arrays, Budget, Found, Scored

MAX_AUTO_BYTES = 200  # a longer query is a question or a paste; as one literal it is not worth a scan unless asked for
MAX_PATTERN_BYTES = 4096
_COUNTS = ("n_bytes", "trigrams", "trigram_counts", "words", "word_counts")
_NOT_LETTERS = re.compile(r"\\[pP]\{[^}]*\}|\\[pP].|\\x\{[^}]*\}|\\.|\(\?P?<[^>]*>|\(\?[a-zA-Z-]*", re.DOTALL)


class Form(BaseModel):
    """The form of the text space. case: "smart" counts case if the pattern has a capital letter; word: only whole words."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    pattern: str
    regex: bool = False
    word: bool = False
    case: Literal["smart", "sensitive", "ignore"] = "smart"


class Text(Layer):
    """Lines that hold a string or match a regular expression."""

    name = "text"
    granularity = "line"
    null = "rarity"
    query_format = 'a string, or {"pattern": …, "regex": false, "word": false, "case": "smart" | "sensitive" | "ignore"}'
    cost = "reads the text in scope: 0.3 to 3 GB/s a core"

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: Encodings | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        """lines: (rows,) int32, lines of each document, -1 outside the scope; and the statistics of `chance.count_texts`."""
        rows = np.arange(len(documents)) if scope is None else np.flatnonzero(scope)
        counts, n_lines = count_texts(documents.text, documents.starts[rows], documents.ends[rows])
        lines = np.full(len(documents), -1, np.int32)
        lines[rows] = n_lines
        return {"lines": lines, **counts}

    def merge(
        self, parts: Sequence[tuple[Arrays, Array]], documents: Documents, entries: Entries, held: Sequence[tuple[int, Arrays]] = ()
    ) -> Arrays:
        """Sums. Where rows are dropped and `held` does not say what they held, a new count (150 MB/s)."""
        lines = np.full(len(documents), -1, np.int32)
        dropped = False
        for arrays, new_rows in parts:
            kept = new_rows >= 0
            lines[new_rows[kept]] = arrays["lines"][kept]
            dropped |= bool((arrays["lines"][~kept] >= 0).any())
        if dropped and not held:
            return self.build(documents, entries, lines >= 0)
        total = add_statistics(held or [(1, arrays) for arrays, _ in parts])
        counts = {name: total[name].astype(np.uint32) for name in _COUNTS if name != "n_bytes"}
        return {"lines": lines, "n_bytes": total["n_bytes"], **counts}

    def statistics(self, arrays: Arrays, documents: Documents, entries: Entries, rows: Array | None = None) -> Arrays:
        lines = arrays["lines"]
        if rows is None:
            counts = {name: arrays[name] for name in _COUNTS}
        else:
            rows = rows[lines[rows] >= 0]
            counts, _ = count_texts(documents.text, documents.starts[rows], documents.ends[rows])
            lines = lines[rows]
        return {"n_units": np.array([lines[lines > 0].sum(dtype=np.int64)], np.int64), **counts}

    def recount(self, documents: Documents, entries: Entries) -> Arrays:
        return self.statistics(self.build(documents, entries), documents, entries)

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> Reader:
        return TextReader(arrays["lines"], documents, live)

    def collect(self, parts: Sequence[tuple[int, Arrays]]) -> ChanceModel:
        return ChanceModel.collect(parts)

    def prepare(self, request: Request, statistics: ChanceModel) -> SpaceQuery | None:
        form = _form_of(request)
        if form is None:
            return None
        body = _encode(form.pattern)
        ignore_case = form.case == "ignore" or (form.case == "smart" and not _has_capital(form))
        model = statistics
        asked = f"/{form.pattern}/" if form.regex else f"{form.pattern!r}"
        asked += (" as a word" if form.word else "") + (", any case" if ignore_case else "")
        if not form.regex and not form.word and (body.isascii() or not ignore_case):
            # ASCII letters fold alone, as in grep: K does not match the Kelvin sign. Only this much is worth memmem's speed.
            payload = LinePattern(literal=fold(body) if ignore_case else body, ignore_case=ignore_case)
            return SpaceQuery("", asked, payload, log_p_literal(model, body))
        ignore_case = ignore_case or (form.regex and form.pattern.startswith("(?i)"))
        regex = _regex_of(form, ignore_case)
        # Where case is off for a part only, what is required cannot be looked for in one way.
        required = required_literals(regex, ignore_case) if ignore_case or not ignores_case(regex) else []
        rarest_log_p, rarest = min(((log_p_literal(model, run), run) for run in required), default=(0.0, b""))
        payload = LinePattern(regex=regex, ignore_case=ignore_case, required=rarest, sparse=rarest_log_p < SPARSE_LOG_P)
        log_p = log_p_pattern(model, regex) if form.regex else log_p_literal(model, body, word=True)
        return SpaceQuery("", asked, payload, log_p)

    def highlights(self, query: SpaceQuery) -> Sequence[tuple[str, bool, bool]]:
        pattern = query.payload
        if pattern.regex:
            return [(pattern.regex, True, pattern.ignore_case)]
        return [(pattern.literal.decode("utf-8", "replace"), False, pattern.ignore_case)]

    def surprise(self, query: SpaceQuery, scores: Array) -> Array:
        """The same for one matching line and for many: -ln p of a match in a line."""
        return np.where(scores >= 1, -(query.log_p or 0.0), 0.0)


class TextReader:
    """Scans the renditions of one segment."""

    def __init__(self, lines: Array, documents: Documents, live: Array):
        self._documents = documents
        self._live = live.astype(np.bool_)
        self._searchable = self._live & (lines >= 0)
        self.n_units = int(lines[self._searchable].sum(dtype=np.int64))

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -np.inf) -> Found:
        scope = self._live if allowed is None else self._live & allowed
        found = scan(self._documents, self._searchable & scope, query.payload, budget)
        counts = np.where(found.complete, found.counts, 0)
        rows = np.flatnonzero(counts)
        rows = rows[np.argsort(-counts[rows], kind="stable")[:k]].astype(np.int32)
        return Found(
            rows,
            counts[rows].astype(np.float64),
            found.starts[rows],
            found.ends[rows],
            n_matched=int(counts.sum()),
            moments=None,
            rows_covered=int(found.complete.sum()),
            rows_total=int(scope.sum()),
        )

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        wanted = np.zeros(len(self._documents), np.bool_)
        wanted[rows] = True
        found = scan(self._documents, self._searchable & wanted, query.payload, budget)
        counts = found.counts[rows].astype(np.float64)
        scores = np.where(found.complete[rows], np.where(counts > 0, counts, -np.inf), np.nan)
        scores[~self._searchable[rows]] = np.nan  # not looked at: outside what the space was built for
        matched = scores > 0
        return Scored(scores, np.where(matched, found.starts[rows], 0), np.where(matched, found.ends[rows], 0))

    def scan(self, query: SpaceQuery) -> tuple[Array, Array]:
        raise TypeError("layer text has a null of rarity: there are no scores of units without a match")


def _form_of(request: Request) -> Form | None:
    """What is asked, or None where the common text is nothing to look for literally. Raises BadQuery."""
    if request.form:
        try:
            form = Form(**request.form)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise BadQuery(f"Text form: {problems}. Expected {Text.query_format}.") from None
    else:
        text = request.text.strip()
        if not request.explicit and (not text or "\n" in text or len(text.encode("utf-8", "replace")) > MAX_AUTO_BYTES):
            return None
        form = Form(pattern=text)
    if not form.pattern:
        raise BadQuery("Text: the pattern is empty. Give a string or a regular expression to look for.")
    if "\n" in form.pattern:
        at = form.pattern.index("\n")
        raise BadQuery(f"Text: the pattern has a line feed at position {at}, but matches stay within a line.")
    if (size := len(_encode(form.pattern))) > MAX_PATTERN_BYTES:
        raise BadQuery(f"Text: the pattern has {size} bytes; at most {MAX_PATTERN_BYTES} are allowed. Shorten it.")
    return form


def _encode(pattern: str) -> bytes:
    try:
        return pattern.encode()
    except UnicodeEncodeError as error:
        raise BadQuery(f"Text: the pattern has a lone surrogate at position {error.start}. Send valid Unicode.") from None


def _has_capital(form: Form) -> bool:
    letters = _NOT_LETTERS.sub("", form.pattern) if form.regex else form.pattern
    return any(c.isupper() for c in letters)


def _regex_of(form: Form, ignore_case: bool) -> str:
    """The RE2 pattern of a form. Raises BadQuery with RE2's own message."""
    import re2

    if form.regex:
        pattern = f"\\b(?:{form.pattern})\\b" if form.word else form.pattern
    else:
        edges = [r"\b" if c.isascii() and (c.isalnum() or c == "_") else "" for c in (form.pattern[0], form.pattern[-1])]
        pattern = (edges[0] if form.word else "") + re2.escape(form.pattern) + (edges[1] if form.word else "")
    try:
        if form.regex:
            compile_regex(form.pattern, ignore_case)
        compile_regex(pattern, ignore_case)
    except re2.error as error:
        raise BadQuery(_explain(form.pattern, error)) from None
    return pattern


def _explain(pattern: str, error: Exception) -> str:
    """RE2's message, where it points, and what to do."""
    raw = error.args[0] if error.args else ""
    message = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    if "too large" in message or "repetition size" in message:
        return f"Text: the regular expression {pattern!r} is too large ({message}). Use smaller counts or fewer alternatives."
    fragment = message.rpartition(": ")[2]
    at = pattern.find(fragment) if fragment and fragment != message else -1
    where = f" at position {at}" if at >= 0 else ""
    return (
        f"Text: the regular expression {pattern!r} is broken{where}: {message}. "
        'Syntax is RE2\'s (no look-around, no back-references); for an exact string leave out "regex".'
    )
