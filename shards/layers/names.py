"""Names: paths of entries, by glob, by exact name, or as one types into an editor's "go to file".

Raw score: tier + quality. Tiers, in `shards.path_kernels`: 6 the whole path, 5 its last segment, 4 that without extension, 3 its
end from a segment's start, 2 a part, 1 fuzzy (each word a subsequence). Quality in [0, 1): the share of the path that a literal
covers; of a part first where it lies, in the last segment before others, where a segment, word or camel hump begins before others;
of a fuzzy match the mean of the words' scores as shares of the best possible. A path that matches a glob scores 6.

Case is fd's: it counts if the pattern has a capital letter, and may be set. Globs are those of fd and .gitignore: without a slash
they speak of the last segment (`fd --glob`), with one of the whole path from the source's root (`fd --full-path --glob "$ROOT/…"`).
Hidden entries are found like all others (`fd --hidden`): what is in the corpus was decided when it was listed, by ignore files and
globs; {"hidden": false} leaves out paths of which a segment begins with a dot, as fd does by itself.

Surprise: -ln of the chance that a random path of the corpus matches a random text like this one in that tier or a better one,
from trigrams of paths; for tier 1 with that quality or a better one, see `shards.path_chance`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from shards.arrays import pack_strings
from shards.chance import ChanceModel, add_statistics, count_texts, fold
from shards.documents import Documents, Entries
from shards.errors import BadQuery
from shards.globs import has_ends, matching_at, shape
from shards.layers.contract import Encodings, Layer, Progress, Reader, Request
from shards.path_chance import N_LENGTHS, N_QUALITIES, PathModel, log_quality_tail
from shards.plan import SpaceQuery, glob_regex
from shards.regexes import log_p_pattern
from shards.routing import SHAPES
from shards.types import Array, Arrays, Budget, Found, Scored

MAX_AUTO_CHARS = 256
MAX_AUTO_WORDS = 3  # more words are a question; letters in order are found in any long path
MAX_CHARS = 4096
N_TIERS = 7  # tier 0: no match
LOWEST_TIERS = {"name": 5, "substring": 2, "fuzzy": 1}
GLOB_SCORE = 6.0
_BATCH_ROWS = 4096  # 2 ms of fuzzy matching
_GLOB_BATCH_ROWS = 16_384  # 3 ms: RE2 over many paths at once


class Form(BaseModel):
    """The form of the names space: one of glob, name (a whole path or its last segment), substring, fuzzy.

    case: "smart" counts case if the text has a capital letter. hidden: whether paths with a segment that begins with a dot are found.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    glob: str | None = None
    name: str | None = None
    substring: str | None = None
    fuzzy: str | None = None
    case: Literal["smart", "sensitive", "ignore"] = "smart"
    hidden: bool = True


@dataclass(frozen=True, slots=True)
class PathPattern:
    """What is looked for: a glob, or a text with its words (folded if `ignore_case`). lowest: least tier wanted.

    log_ps: (7,) by tier, ln of the chance that a random path matches in this tier or a better one; fuzzy_log_ps: (N_QUALITIES + 1,)
    float64, by quality, the same of tier 1.
    """

    glob: str = ""
    text: bytes = b""
    words: tuple[bytes, ...] = ()
    ignore_case: bool = False
    hidden: bool = True
    lowest: int = 1
    log_ps: tuple[float, ...] = ()
    fuzzy_log_ps: Array = field(default_factory=lambda: np.zeros(N_QUALITIES + 1), repr=False)


class Names(Layer):
    """Paths that look like the query."""

    name = "names"
    version = 2
    shapes = frozenset(SHAPES) - {"regex", "formula", "molecule"}
    granularity = "path"
    over = "entries"
    null = "rarity"
    query_format = (
        'part of a path, a glob, or {"glob" | "name" | "substring" | "fuzzy": …, "case": "smart" | "sensitive" | "ignore", "hidden": true}'
    )
    cost = "reads all paths in scope: about 0.1 to 0.4 us each, also of globs"

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: Encodings | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        """masks: (rows,) uint64, which bytes a path holds; built: (rows,) bool, the scope; and the statistics of these paths."""
        from shards import path_kernels

        built = np.ones(len(entries), np.bool_) if scope is None else scope.astype(np.bool_)
        masks = np.zeros(len(entries), np.uint64)
        path_kernels.byte_masks(entries.path_blob, entries.path_offsets, masks)
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
        last_bytes = sum(sign * part["last_bytes"] for sign, part in held)
        n_units = np.array([built.sum()], np.int64)
        return {
            "masks": masks,
            "built": built,
            "n_units": n_units,
            "lengths": lengths.astype(np.uint32),
            "last_bytes": last_bytes,
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

    def collect(self, parts: Sequence[tuple[int, Arrays]]) -> PathModel:
        lengths, last_bytes = np.zeros(N_LENGTHS, np.int64), 0
        for sign, part in parts:
            lengths += sign * part["lengths"].astype(np.int64)
            last_bytes += sign * int(part["last_bytes"][0])
        return PathModel(ChanceModel.collect(parts), lengths, last_bytes)

    def prepare(self, request: Request, statistics: PathModel) -> SpaceQuery | None:
        kind, text, case, hidden = _what(request)
        if not kind:
            return None
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadQuery(f"Names: the text has a lone surrogate at position {error.start}. Send valid Unicode.") from None
        ignore_case = case == "ignore" or (case == "smart" and not any(c.isupper() for c in text))
        how = (", any case" if ignore_case else "") + ("" if hidden else ", not hidden")
        if kind == "glob":
            log_p = log_p_pattern(statistics.chance, f"^{glob_regex(text).pattern}$")
            payload = PathPattern(text, ignore_case=ignore_case, hidden=hidden, log_ps=(0.0, *[log_p] * (N_TIERS - 1)))
            return SpaceQuery("", f"paths like {text}{how}", payload, log_p)
        body = fold(text.encode()) if ignore_case else text.encode()
        words = tuple(body.split())
        lowest = LOWEST_TIERS[kind]
        log_ps, fuzzy_log_ps = _log_ps(statistics, fold(body), tuple(map(fold, words)), lowest == 1)
        payload = PathPattern(
            text=body, words=words, ignore_case=ignore_case, hidden=hidden, lowest=lowest, log_ps=log_ps, fuzzy_log_ps=fuzzy_log_ps
        )
        asked = f"paths named {text!r}" if kind == "name" else f"paths with {text!r}"
        return SpaceQuery("", asked + how, payload, log_ps[lowest])

    def check_form(self, request: Request) -> None:
        kind, text, *_ = _what(request)
        if kind == "glob":
            glob_regex(text)

    def surprise(self, query: SpaceQuery, scores: Array) -> Array:
        """By tier, and in tier 1 by quality: letters scattered over a path prove nothing.

        Measured with 400 words of cisi that no path of the standard library holds (2,450 paths): 5, 8 and 10 nats or more have a chance of
        e^-6.5, e^-8.6 and e^-10.2 per path, of two such words e^-8.0, e^-9.8 and e^-10.1.
        """
        pattern: PathPattern = query.payload
        found = scores >= 1
        tiers = np.where(found, scores, 0).astype(np.int64)
        quality = np.where(tiers == 1, scores, 1.0) - 1
        fuzzy = pattern.fuzzy_log_ps[np.floor(quality * N_QUALITIES * (1 - 1e-9)).astype(np.int64)]
        return 0.0 - np.where(tiers == 1, fuzzy, np.array(pattern.log_ps)[tiers])


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
        """(m,) float64: tier + quality of each row, -inf without a match, nan behind the deadline. rows: (m,) int64, ascending."""
        from shards import path_kernels

        scores = np.full(len(rows), np.nan)
        text = np.frombuffer(pattern.text, np.uint8)
        words, word_offsets = pack_strings(list(pattern.words))
        batch = _GLOB_BATCH_ROWS if pattern.glob else _BATCH_ROWS
        blob, offsets = self._entries.path_blob, self._entries.path_offsets
        for low in range(0, len(rows), batch):
            if budget.expired:
                break
            part, out = rows[low : low + batch], scores[low : low + batch]
            if pattern.glob:
                out[:] = np.where(self._globbed(pattern, part), GLOB_SCORE, -np.inf)
            else:
                path_kernels.match_paths(
                    blob, offsets, self._masks, part, text, words, word_offsets, pattern.ignore_case, pattern.lowest, out
                )
            if not pattern.hidden:
                hidden = np.zeros(len(part), np.bool_)
                path_kernels.are_hidden(blob, offsets, part, hidden)
                out[hidden] = -np.inf
        return scores

    def _globbed(self, pattern: PathPattern, rows: Array) -> Array:
        """Which rows match the glob: (m,) bool. What ends otherwise than every match must is not looked at."""
        entries, ends = self._entries, shape(pattern.glob)
        found = has_ends(ends, entries.path_blob, entries.path_offsets, rows, pattern.ignore_case)
        if ends.exact:
            return found
        left = np.flatnonzero(found)
        if len(entries.odd):  # not UTF-8, which RE2 does not read
            odd = np.isin(rows[left], entries.order[entries.odd])
            regex = glob_regex(pattern.glob, pattern.ignore_case)
            for at in left[odd].tolist():
                found[at] = regex.fullmatch(entries.path(rows[at])) is not None
            left = left[~odd]
        found[left] = matching_at(pattern.glob, entries.path_blob, entries.path_offsets, rows[left], entries.path, pattern.ignore_case)
        return found


def _count(entries: Entries, rows: Array) -> Arrays:
    """Statistics of some paths: those of `chance.count_texts`, "n_units", "last_bytes" of their last segments, (1,) int64, and
    "lengths", (256,) uint32."""
    from shards import path_kernels

    starts, ends = entries.path_offsets[rows], entries.path_offsets[rows + 1]
    counts, _ = count_texts(entries.path_blob, starts, ends)
    lengths = np.bincount(np.minimum(ends - starts, N_LENGTHS - 1), minlength=N_LENGTHS).astype(np.uint32)
    last_bytes = np.array([path_kernels.count_last_bytes(entries.path_blob, starts, ends)], np.int64)
    return {"n_units": np.array([len(rows)], np.int64), "lengths": lengths, "last_bytes": last_bytes, **counts}


def _what(request: Request) -> tuple[str, str, str, bool]:
    """("glob" | "name" | "substring" | "fuzzy", text, case, hidden), or ("", …) where the common text is no path. Raises BadQuery."""
    case, hidden = "smart", True
    if request.form:
        try:
            form = Form(**request.form)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise BadQuery(f"Names form: {problems}. Expected {Names.query_format}.") from None
        case, hidden = form.case, form.hidden
        given = [(kind, getattr(form, kind)) for kind in ("glob", *LOWEST_TIERS) if getattr(form, kind) is not None]
        if len(given) != 1:
            raise BadQuery(f"Names form has {len(given)} of glob, name, substring, fuzzy. Give exactly one.")
        kind, text = given[0][0], given[0][1].strip()
    else:
        kind, text = "fuzzy", request.text.strip()
        if not request.explicit and (not text or len(text) > MAX_AUTO_CHARS or len(text.split()) > MAX_AUTO_WORDS):
            return "", "", case, hidden
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
            return "", "", case, hidden
        raise BadQuery("Names: nothing to look for. Give part of a path, or a glob.")
    if len(text) > MAX_CHARS:
        raise BadQuery(f"Names: the text has {len(text)} characters; at most {MAX_CHARS} are allowed. Shorten it.")
    return kind, text, case, hidden


def _log_ps(statistics: PathModel, text: bytes, words: tuple[bytes, ...], fuzzy: bool) -> tuple[tuple[float, ...], Array]:
    """`PathPattern.log_ps` and `fuzzy_log_ps`. text, words: folded; fuzzy: whether tier 1 is wanted."""
    model = statistics.chance
    fuzzy_log_ps = np.zeros(N_QUALITIES + 1)
    if model.n_units <= 0:
        return (0.0,) * N_TIERS, fuzzy_log_ps
    per_path = math.log(model.mean_bytes)
    log_ps = [0.0] * N_TIERS
    log_ps[6] = per_path + model.log_run(b"\n" + text + b"\n")
    log_ps[5] = -math.inf if b"/" in text else per_path + model.log_run(b"/" + text + b"\n")
    log_ps[4] = -math.inf if b"/" in text else per_path + _log_either(model, b"/" + text + b".", b"\n" + text + b".")
    log_ps[3] = per_path + model.log_run(b"/" + text + b"\n") if b"/" in text else -math.inf
    log_ps[2] = per_path + model.log_run(text)
    for tier in range(5, 1, -1):  # in this tier or a better one
        log_ps[tier] = float(np.logaddexp(log_ps[tier], log_ps[tier + 1]))
    if fuzzy:
        fuzzy_log_ps = np.minimum(np.logaddexp(log_quality_tail(statistics, words), log_ps[2]), 0.0)
        log_ps[1] = float(fuzzy_log_ps[0])
    return tuple(min(log_p, 0.0) for log_p in log_ps), fuzzy_log_ps


def _log_either(model: ChanceModel, one: bytes, other: bytes) -> float:
    return float(np.logaddexp(model.log_run(one), model.log_run(other)))
