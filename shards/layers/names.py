"""Names: paths of entries, by glob, by exact name, or as one types into an editor's "go to file".

Raw score: tier + quality. Tiers, in `shards.fuzzy_kernels`: 6 the whole path, 5 its last segment, 4 that without extension, 3 its
end from a segment's start, 2 a part, 1 fuzzy (each word a subsequence). Quality in [0, 1): the share of the path that a literal
covers, or the mean of the words' fuzzy scores as shares of the best possible. A path that matches a glob scores 6.

Surprise: -ln of the chance that a random path of the corpus matches a random text like this one in that tier or a better one,
from trigrams of paths; for tier 1 see `_log_p_fuzzy`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from shards.arrays import pack_strings
from shards.chance import ChanceModel, add_statistics, count_texts, fold
from shards.documents import Documents, Entries
from shards.errors import BadQuery
from shards.layers.contract import Encodings, Layer, Progress, Reader, Request
from shards.plan import SpaceQuery, glob_regex
from shards.regexes import log_p_pattern
from shards.types import Array, Arrays, Budget, Found, Scored

MAX_AUTO_CHARS = 256
MAX_AUTO_WORDS = 3  # more words are a question; letters in order are found in any long path
MAX_CHARS = 4096
N_LENGTHS = 256  # path lengths in bytes that are told apart; longer ones count as 255
N_TIERS = 7  # tier 0: no match
EXACT_TIER, GLOB_SCORE = 5, 6.0
_BATCH_ROWS = 4096  # 2 ms of fuzzy matching
_GLOB_BATCH_ROWS = 1024  # Python's re: 1 us a path


class Form(BaseModel):
    """The form of the names space: one of glob, name (a whole path or its last segment), fuzzy."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    glob: str | None = None
    name: str | None = None
    fuzzy: str | None = None


@dataclass(frozen=True, slots=True)
class PathPattern:
    """What is looked for: a glob, or a text with its words (folded if `ignore_case`). lowest: least tier wanted.

    log_ps: (7,) by tier, ln of the chance that a random path matches in this tier or a better one.
    """

    glob: str = ""
    text: bytes = b""
    words: tuple[bytes, ...] = ()
    ignore_case: bool = False
    lowest: int = 1
    log_ps: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PathStatistics:
    """Trigrams of all paths, and how many paths have each length in bytes: (256,) int64."""

    chance: ChanceModel
    lengths: Array

    @property
    def n_units(self) -> int:
        return self.chance.n_units


class Names(Layer):
    """Paths that look like the query."""

    name = "names"
    granularity = "path"
    over = "entries"
    null = "rarity"
    query_format = 'part of a path, a glob, or {"glob": …} | {"name": …} | {"fuzzy": …}'
    cost = "reads all paths in scope: about 0.1 to 0.4 us each, globs 1 us"

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: Encodings | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        """masks: (rows,) uint64, which bytes a path holds; built: (rows,) bool, the scope; and the statistics of these paths."""
        from shards import fuzzy_kernels

        built = np.ones(len(entries), np.bool_) if scope is None else scope.astype(np.bool_)
        masks = np.zeros(len(entries), np.uint64)
        fuzzy_kernels.byte_masks(entries.path_blob, entries.path_offsets, masks)
        return {"masks": masks, "built": built, **_count(entries, np.flatnonzero(built))}

    def merge(
        self, parts: Sequence[tuple[Arrays, Array]], documents: Documents, entries: Entries, held: Sequence[tuple[int, Arrays]] = ()
    ) -> Arrays:
        """Sums. Where rows are dropped and `held` does not say what they held, the paths are counted anew."""
        built, masks = np.zeros(len(entries), np.bool_), np.zeros(len(entries), np.uint64)
        dropped = False
        for arrays, new_rows in parts:
            kept = new_rows >= 0
            built[new_rows[kept]] = arrays["built"][kept]
            masks[new_rows[kept]] = arrays["masks"][kept]
            dropped |= bool(arrays["built"][~kept].any())
        if dropped and not held:
            return {"masks": masks, "built": built, **_count(entries, np.flatnonzero(built))}
        held = held or [(1, arrays) for arrays, _ in parts]
        total = add_statistics(held)
        counts = {name: total[name].astype(np.uint32) for name in ("trigrams", "trigram_counts", "words", "word_counts")}
        lengths = sum((sign * part["lengths"].astype(np.int64) for sign, part in held), np.zeros(N_LENGTHS, np.int64))
        n_units = np.array([built.sum()], np.int64)
        return {
            "masks": masks,
            "built": built,
            "n_units": n_units,
            "lengths": lengths.astype(np.uint32),
            "n_bytes": total["n_bytes"],
            **counts,
        }

    def statistics(self, arrays: Arrays, documents: Documents, entries: Entries, rows: Array | None = None) -> Arrays:
        if rows is not None:
            return _count(entries, rows[arrays["built"][rows]])
        return {name: array for name, array in arrays.items() if name not in ("masks", "built")}

    def recount(self, documents: Documents, entries: Entries) -> Arrays:
        return self.statistics(self.build(documents, entries), documents, entries)

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> Reader:
        return NamesReader(arrays, entries, live)

    def collect(self, parts: Sequence[tuple[int, Arrays]]) -> PathStatistics:
        lengths = np.zeros(N_LENGTHS, np.int64)
        for sign, part in parts:
            lengths += sign * part["lengths"].astype(np.int64)
        return PathStatistics(ChanceModel.collect(parts), lengths)

    def prepare(self, request: Request, statistics: PathStatistics) -> SpaceQuery | None:
        kind, text = _what(request)
        if not kind:
            return None
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadQuery(f"Names: the text has a lone surrogate at position {error.start}. Send valid Unicode.") from None
        if kind == "glob":
            pattern = glob_regex(text).pattern
            log_p = log_p_pattern(statistics.chance, f"^{pattern}$")
            payload = PathPattern(glob=text, log_ps=(0.0, *[log_p] * (N_TIERS - 1)))
            return SpaceQuery("", f"paths like {text}", payload, log_p)
        ignore_case = not any(c.isupper() for c in text)
        body = fold(text.encode()) if ignore_case else text.encode()
        words = tuple(body.split())
        lowest = EXACT_TIER if kind == "name" else 1
        log_ps = _log_ps(statistics, fold(body), tuple(map(fold, words)))
        payload = PathPattern(text=body, words=words, ignore_case=ignore_case, lowest=lowest, log_ps=log_ps)
        asked = f"paths named {text!r}" if kind == "name" else f"paths with {text!r}"
        return SpaceQuery("", asked + (", any case" if ignore_case else ""), payload, log_ps[lowest])

    def surprise(self, query: SpaceQuery, scores: Array) -> Array:
        """By tier. A fuzzy match has the full surprise of its tier only at quality 1, and none at 1/2 or below.

        So that letters scattered over a path prove nothing. Measured with words that no path holds (868 paths of the standard
        library, 1,500 queries of 1, 2 and 3 words each): a surprise of
        5 nats or more has a chance of e^-9.0, e^-11.9, < e^-14 per path.
        """
        log_ps = np.array(query.payload.log_ps)
        found = scores >= 1
        tiers = np.where(found, scores, 0).astype(np.int64)
        surprises = 0.0 - log_ps[tiers]
        share = np.clip(2 * (np.where(found, scores, 1.0) - 1) - 1, 0.0, 1.0)
        return np.where(tiers == 1, surprises * share, surprises)


class NamesReader:
    """Matches the paths of one segment."""

    def __init__(self, arrays: Arrays, entries: Entries, live: Array):
        self._entries = entries
        self._masks = arrays["masks"]
        self._live = live.astype(np.bool_)
        self._searchable = self._live & arrays["built"]
        self.n_units = int(self._searchable.sum())

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -np.inf) -> Found:
        scope = self._live if allowed is None else self._live & allowed
        rows = np.flatnonzero(self._searchable & scope)
        scores = self._match(query.payload, rows, budget)
        matched = np.flatnonzero(scores > 0)  # nan is not
        best = matched[np.argsort(-scores[matched], kind="stable")[:k]]
        nowhere = np.zeros(len(best), np.int64)
        covered = int((~np.isnan(scores)).sum())
        return Found(rows[best].astype(np.int32), scores[best], nowhere, nowhere, len(matched), None, covered, int(scope.sum()))

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        scores = np.full(len(rows), np.nan)
        searchable = np.flatnonzero(self._searchable[rows])
        scores[searchable] = self._match(query.payload, rows[searchable].astype(np.int64), budget)
        nowhere = np.zeros(len(rows), np.int64)
        return Scored(scores, nowhere, nowhere)

    def scan(self, query: SpaceQuery) -> tuple[Array, Array]:
        raise TypeError("layer names has a null of rarity: there are no scores of paths without a match")

    def _match(self, pattern: PathPattern, rows: Array, budget: Budget) -> Array:
        """(m,) float64: tier + quality of each row, -inf without a match, nan behind the deadline. rows: (m,) int64."""
        from shards import fuzzy_kernels

        scores = np.full(len(rows), np.nan)
        text = np.frombuffer(pattern.text, np.uint8)
        words, word_offsets = pack_strings(list(pattern.words))
        batch = _GLOB_BATCH_ROWS if pattern.glob else _BATCH_ROWS
        blob, offsets = self._entries.path_blob, self._entries.path_offsets
        for low in range(0, len(rows), batch):
            if budget.expired:
                break
            part = rows[low : low + batch]
            if pattern.glob:
                regex = glob_regex(pattern.glob)
                scores[low : low + batch] = [GLOB_SCORE if regex.fullmatch(self._entries.path(row)) else -np.inf for row in part]
            else:
                fuzzy_kernels.match_paths(
                    blob, offsets, self._masks, part, text, words, word_offsets, pattern.ignore_case, pattern.lowest,
                    scores[low : low + batch],
                )  # fmt: skip
        return scores


def _count(entries: Entries, rows: Array) -> Arrays:
    """Statistics of some paths: those of `chance.count_texts`, "n_units" and "lengths", (256,) uint32."""
    starts, ends = entries.path_offsets[rows], entries.path_offsets[rows + 1]
    counts, _ = count_texts(entries.path_blob, starts, ends)
    lengths = np.bincount(np.minimum(ends - starts, N_LENGTHS - 1), minlength=N_LENGTHS).astype(np.uint32)
    return {"n_units": np.array([len(rows)], np.int64), "lengths": lengths, **counts}


def _what(request: Request) -> tuple[str, str]:
    """("glob" | "name" | "fuzzy", text), or ("", "") where the common text is no path. Raises BadQuery."""
    if request.form:
        try:
            form = Form(**request.form)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise BadQuery(f"Names form: {problems}. Expected {Names.query_format}.") from None
        given = [(kind, text) for kind, text in form.model_dump().items() if text is not None]
        if len(given) != 1:
            raise BadQuery(f"Names form has {len(given)} of glob, name, fuzzy. Give exactly one.")
        kind, text = given[0][0], given[0][1].strip()
    else:
        kind, text = "fuzzy", request.text.strip()
        if not request.explicit and (not text or len(text) > MAX_AUTO_CHARS or len(text.split()) > MAX_AUTO_WORDS):
            return "", ""
        if any(c in text for c in "*?[") and not any(c.isspace() for c in text):
            try:
                glob_regex(text)
                kind = "glob"
            except BadQuery:
                if request.explicit:
                    raise
    if kind != "glob":
        text = re.sub(r"^(?:\./|/|\s)+", "", text)  # paths are relative to their source's root
    if not text:
        if not request.explicit and not request.form:
            return "", ""
        raise BadQuery("Names: nothing to look for. Give part of a path, or a glob.")
    if len(text) > MAX_CHARS:
        raise BadQuery(f"Names: the text has {len(text)} characters; at most {MAX_CHARS} are allowed. Shorten it.")
    return kind, text


def _log_ps(statistics: PathStatistics, text: bytes, words: tuple[bytes, ...]) -> tuple[float, ...]:
    """ln of the chance that a random path matches in tier 0, 1, …, 6 or a better one; text, words: folded."""
    model = statistics.chance
    if model.n_units <= 0:
        return (0.0,) * N_TIERS
    per_path = math.log(model.mean_bytes)
    log_ps = [0.0] * N_TIERS
    log_ps[6] = per_path + model.log_run(b"\n" + text + b"\n")
    log_ps[5] = -math.inf if b"/" in text else per_path + model.log_run(b"/" + text + b"\n")
    log_ps[4] = -math.inf if b"/" in text else per_path + _log_either(model, b"/" + text + b".", b"\n" + text + b".")
    log_ps[3] = per_path + model.log_run(b"/" + text + b"\n") if b"/" in text else -math.inf
    log_ps[2] = per_path + model.log_run(text)
    for tier in range(5, 1, -1):  # in this tier or a better one
        log_ps[tier] = float(np.logaddexp(log_ps[tier], log_ps[tier + 1]))
    log_ps[1] = float(np.logaddexp(_log_p_fuzzy(statistics, words), log_ps[2]))
    return tuple(min(log_p, 0.0) for log_p in log_ps)


def _log_either(model: ChanceModel, one: bytes, other: bytes) -> float:
    return float(np.logaddexp(model.log_run(one), model.log_run(other)))


def _log_p_fuzzy(statistics: PathStatistics, words: tuple[bytes, ...]) -> float:
    """ln of the chance that all words are subsequences of a random path: independent bytes, as long as the corpus's paths.

    A word of m letters sits in a path of n bytes if the waiting times for its letters, one after another, add up to at most n.
    """
    from shards import fuzzy_kernels

    unigram = statistics.chance.unigram
    total = np.ones(N_LENGTHS)
    for word in words:
        fuzzy_kernels.waiting_times(unigram[np.frombuffer(word, np.uint8)], total)
    p = float((total * statistics.lengths).sum()) / max(int(statistics.lengths.sum()), 1)
    return math.log(p) if p > 0 else -math.inf
