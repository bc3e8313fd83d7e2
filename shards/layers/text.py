"""Text: strings, regular expressions and their combinations, line by line over the renditions themselves. There is no index.

Raw score of a document: how many of its lines match (of a pattern over lines: matches); its span is the first match. A surprise is
how unlikely one match is in a line (`shards/text_chance.py`); further matching lines add nothing to it, since lines of one document
are not independent.
"""

import re
from collections.abc import Sequence

import numpy as np

from shards.chance import ChanceModel, add_statistics, count_texts
from shards.documents import Documents, Entries
from shards.layers.contract import Encodings, Layer, Progress, Reader, Request
from shards.linescan import LineCounts, scan, spans
from shards.plan import SpaceQuery
from shards.text_form import QUERY_FORMAT, form_of
from shards.text_pattern import Exact, Leaf, TextQuery, Within, leaves
from shards.text_query import check_patterns, query_of
from shards.types import Array, Arrays, Budget, Found, Scored

_COUNTS = ("n_bytes", "trigrams", "trigram_counts", "words", "word_counts")


class Text(Layer):
    """Lines that hold a string or match a regular expression."""

    name = "text"
    granularity = "line"
    null = "rarity"
    query_format = QUERY_FORMAT
    cost = "reads the text in scope: 1 to 3 GB/s a core"
    written_form = (
        '{"pattern": "…", "regex": true}: a regular expression (RE2) that a line which answers the question would hold; only where such '
        "lines have a form of their own"
    )

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
            return Text.build(self, documents, entries, lines >= 0)
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
        return self.statistics(Text.build(self, documents, entries), documents, entries)

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> Reader:
        return TextReader(arrays["lines"], documents, live)

    def collect(self, parts: Sequence[tuple[int, Arrays]]) -> ChanceModel:
        return ChanceModel.collect(parts)

    def prepare(self, request: Request, statistics: ChanceModel) -> SpaceQuery | None:
        form = form_of(request)
        if form is None:
            return None
        query, asked, log_p = query_of(form, statistics)
        return SpaceQuery("", asked, query, log_p)

    def check_form(self, request: Request) -> None:
        if (form := form_of(request)) is not None:
            check_patterns(form)

    def highlights(self, query: SpaceQuery) -> Sequence[tuple[str, bool, bool]]:
        return [_highlight(leaf) for leaf in leaves(query.payload.formula)]

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

    def narrow(self, query: TextQuery, wanted: Array) -> tuple[Array, Array | None]:
        """Rows to look at, (rows,) bool, and stretches of the text to look at in them (`shards.linescan.scan`), None for all.

        What is left out cannot match. Here nothing is: an index may know better.
        """
        return wanted, None

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -np.inf) -> Found:
        scope = self._live if allowed is None else self._live & allowed
        counts, found = self._count(query.payload, self._searchable & scope, budget)
        rows = np.flatnonzero(counts)
        rows = rows[np.argsort(-counts[rows], kind="stable")[:k]].astype(np.int32)
        return Found(
            rows,
            counts[rows].astype(np.float64),
            *spans(self._documents, query.payload, found, rows),
            n_matched=int(counts.sum()),
            moments=None,
            rows_covered=int(found.complete.sum()),
            rows_total=int(scope.sum()),
        )

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        wanted = np.zeros(len(self._documents), np.bool_)
        wanted[rows] = True
        counts, found = self._count(query.payload, self._searchable & wanted, budget)
        counts = counts[rows]
        scores = np.where(found.complete[rows], np.where(counts > 0, counts.astype(np.float64), -np.inf), np.nan)
        matched = counts > 0
        starts, ends = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        starts[matched], ends[matched] = spans(self._documents, query.payload, found, rows[matched])
        return Scored(scores, starts, ends)

    def _count(self, query: TextQuery, wanted: Array, budget: Budget) -> tuple[Array, LineCounts]:
        """Matches of the wanted rows, (rows,) int64, 0 of those not read to the end; and all that was found."""
        rows, ranges = self.narrow(query, wanted)
        found = scan(self._documents, rows, query, budget, ranges)
        found.complete[wanted & ~rows] = True
        return np.where(found.complete, found.counts, 0), found

    def scan(self, query: SpaceQuery) -> tuple[Array, Array]:
        raise TypeError("layer text has a null of rarity: there are no scores of units without a match")


def _highlight(leaf: Leaf) -> tuple[str, bool, bool]:
    if isinstance(leaf, Exact):
        return leaf.body.decode("utf-8", "replace"), False, leaf.ignore_case
    if isinstance(leaf, Within):  # what stands there unchanged
        return leaf.pieces or re.escape(leaf.text), True, leaf.ignore_case
    return leaf.pattern, True, leaf.ignore_case
