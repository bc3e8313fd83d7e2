"""Symbols: what code defines and where it uses it, from syntax trees, found by name.

Raw score of a document: tier + quality of its best definition. Tiers: 4 the name itself, 3 in another case, 2 the same words in
another style (`callSoon` for `call_soon`), 1 its words in a row among others (`call_soon_threadsafe`). Quality in [0, 1): how many
of the names before it (`asyncio.events` in `asyncio.events.get_event_loop`) enclose it, in the file or by its path; then what it is
and how deep it lies. Of uses: tier + n / (n + 8) for n of them.

Surprise: -ln of the chance that a random name of the corpus's code is such a name, by how often it stands there (definitions and
uses), else by its letters (`shards/chance.py`); scopes around it count as further ones, parts of its path 3 nats at most.
"""

import importlib.util
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shards.chance import ChanceModel, count_texts, fold
from shards.documents import Documents, Entries
from shards.errors import BadQuery, ModelMissing
from shards.languages import KINDS, LANGUAGES
from shards.layers.contract import Encodings, Layer, Progress, Reader, Request
from shards.layers.symbols_reader import NamePattern, SymbolsReader, agreement_of
from shards.plan import SpaceQuery
from shards.syntax_arrays import OUTSIDE, assemble, join, occurrences
from shards.syntax_paths import languages_of, own_places, placed
from shards.syntax_process import NO_PARSER, Task, shared_parsers
from shards.syntax_query import FORM, Wanted, wanted_by_form, wanted_by_text, words_of
from shards.syntax_symbols import DocumentSymbols
from shards.syntax_trees import REASONS, refusal
from shards.types import Array, Arrays, Budget

_N_KINDS, _N_REASONS = 32, 16  # room in statistics for more of them
_TIE = 0.01  # nats between the best and the worst quality: nothing beside what any other space says
_MAX_PATH = 3.0  # nats for a part of the path: how many paths have it is not counted, and all may lie in one folder
_ELSEWHERE = 6  # in REASONS
_PORTION = 200  # documents between two reports of progress


@dataclass(frozen=True, slots=True)
class SymbolStatistics:
    """n_units: definitions; kinds: how many of each kind; reasons: documents by why they were not parsed; chance: of all names."""

    n_units: int
    kinds: Array
    reasons: Array
    chance: ChanceModel


class Symbols(Layer):
    """Definitions of a name, or the documents that use it."""

    name = "symbols"
    granularity = "definition"
    null = "rarity"
    monotone = False  # scores order by tier, then by the names that enclose; surprise adds both
    query_format = FORM
    cost = "parses 3 MB/s a core when built; a search reads the distinct names, about 2 ms for 30 MB of code"
    shapes = frozenset({"definition", "identifier"})
    written_form = (
        '{"name": "…"}, or {"name": "…", "references": true}: the name of a function, class, constant or type that the question is about: '
        "where it is defined, or used"
    )
    limits = "files of code beyond 1 MiB, in lines of over 20,000 bytes, or that take the parser over 3 s are left out"

    def check(self) -> None:
        if importlib.util.find_spec("ast_grep_py") is None:
            raise ModelMissing(NO_PARSER)

    # --- building ------------------------------------------------------------------------------------------------------------

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: Encodings | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        """As described in FORMAT.md. Raises ModelMissing without ast-grep-py."""
        places = own_places(documents, entries)
        languages = languages_of(documents, places)
        if scope is not None:
            languages[~np.asarray(scope, bool)] = OUTSIDE
        arrays = self._built(documents, languages, progress)
        arrays["reasons"][~placed(documents, places) & (languages != OUTSIDE)] = _ELSEWHERE
        return arrays

    def _built(self, documents: Documents, languages: Array, progress: Progress | None = None) -> Arrays:
        """Arrays of documents of which the languages are known."""
        reasons = np.zeros(len(documents), np.uint8)
        rows = [row for row in range(len(documents)) if 0 < languages[row] <= len(LANGUAGES) and LANGUAGES[languages[row] - 1].definitions]

        def tasks() -> Iterator[Task]:
            for row in rows:
                text = bytes(documents.content(row))
                if reason := refusal(text):
                    reasons[row] = reason
                elif text:
                    yield Task(row, documents.hashes[row].tobytes(), text, LANGUAGES[languages[row] - 1].name)

        found: dict[int, DocumentSymbols] = {}
        for answer in shared_parsers("build").each(tasks(), Budget()):
            if answer.reason:
                reasons[answer.number] = answer.reason
            else:
                found[answer.number] = answer.found
            if progress is not None and len(found) % _PORTION == 0:
                progress("parse", len(found), len(rows))
        return assemble(found, languages, reasons)

    def merge(
        self, parts: Sequence[tuple[Arrays, Array]], documents: Documents, entries: Entries, held: Sequence[tuple[int, Arrays]] = ()
    ) -> Arrays:
        """Joined; what is of another language by the paths it has now is parsed anew. What has its path elsewhere stays as it is."""
        places = own_places(documents, entries)
        languages = languages_of(documents, places)
        here = placed(documents, places)
        before, reasons = np.full(len(documents), OUTSIDE, np.uint8), np.zeros(len(documents), np.uint8)
        for arrays, new_rows in parts:
            kept = new_rows >= 0
            before[new_rows[kept]], reasons[new_rows[kept]] = arrays["languages"][kept], arrays["reasons"][kept]
        moved = here & (before != OUTSIDE) & ((languages != before) | (reasons == _ELSEWHERE))
        languages = np.where(moved, languages, before)
        kept_parts = [(arrays, np.where((new_rows >= 0) & ~moved[new_rows], new_rows, -1)) for arrays, new_rows in parts]
        if moved.any():
            again = self._built(documents, np.where(moved, languages, OUTSIDE))
            kept_parts.append((again, np.where(moved, np.arange(len(documents)), -1)))
        return join(kept_parts, languages)

    # --- statistics ----------------------------------------------------------------------------------------------------------

    def statistics(self, arrays: Arrays, documents: Documents, entries: Entries, rows: Array | None = None) -> Arrays:
        n = len(arrays["languages"])
        wanted = np.ones(n, bool) if rows is None else np.bincount(rows, minlength=n).astype(bool)
        kinds = np.bincount(arrays["kinds"][np.repeat(wanted, np.diff(arrays["row_units"]))], minlength=_N_KINDS)
        reasons = np.bincount(arrays["reasons"][wanted & (arrays["languages"] != OUTSIDE)], minlength=_N_REASONS)
        offsets, counts = arrays["name_offsets"].astype(np.int64), occurrences(arrays, wanted)
        names, _ = count_texts(arrays["name_blob"], np.repeat(offsets[:-1], counts), np.repeat(offsets[1:], counts))
        return {
            "n_units": np.array([kinds[1:].sum()], np.int64),
            "kinds": kinds.astype(np.int64),
            "reasons": reasons.astype(np.int64),
            **names,
        }

    def collect(self, parts: Sequence[tuple[int, Arrays]]) -> SymbolStatistics:
        chance = ChanceModel.collect(parts)
        kinds, reasons = np.zeros(_N_KINDS, np.int64), np.zeros(_N_REASONS, np.int64)
        for sign, part in parts:
            kinds += sign * part["kinds"]
            reasons += sign * part["reasons"]
        return SymbolStatistics(chance.n_units, kinds, reasons, chance)

    def facts(self, statistics: SymbolStatistics) -> Mapping[str, Any]:
        kinds = {kind: int(n) for kind, n in zip(KINDS[1:], statistics.kinds[1:], strict=False) if n}
        return {"definitions": kinds, "not_parsed": {why: int(n) for why, n in zip(REASONS[1:], statistics.reasons[1:], strict=False) if n}}

    # --- serving -------------------------------------------------------------------------------------------------------------

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> Reader:
        return SymbolsReader(arrays, live, own_places(documents, entries))

    def prepare(self, request: Request, statistics: SymbolStatistics) -> SpaceQuery | None:
        wanted = wanted_by_form(dict(request.form)) if request.form else wanted_by_text(request.text)
        if wanted is None:
            if request.explicit:
                raise BadQuery(f"Symbols: {request.text!r} is no name of code. Expected {FORM}.")
            return None
        log_ps = _log_ps(statistics, wanted)
        outer = [
            min(_log_name(statistics.chance, fold(name.encode())), 0.0) if statistics.n_units > 0 else 0.0 for name in wanted.prefix[::-1]
        ]
        payload = NamePattern(
            exact=wanted.name.encode(), words=words_of(wanted.name), prefix=tuple(name.lower() for name in wanted.prefix),
            kinds=tuple(KINDS.index(kind) for kind in wanted.kinds), strict=wanted.strict, references=wanted.references,
            log_ps=log_ps, scope_log_ps=_sums(outer), path_log_ps=_sums([max(log_p, -_MAX_PATH) for log_p in outer]),
        )  # fmt: skip
        what = "uses" if wanted.references else " or ".join(wanted.kinds) or "definitions"
        where = f" in {'.'.join(wanted.prefix)}" if wanted.prefix else ""
        return SpaceQuery("", f"{what} of {wanted.name}{where}", payload, log_ps[1])

    def check_form(self, request: Request) -> None:
        wanted_by_form(dict(request.form))

    def highlights(self, query: SpaceQuery) -> Sequence[tuple[str, bool, bool]]:
        words = query.payload.words.decode()
        return [("_*".join(map(re.escape, words)) if words else re.escape(query.payload.exact.decode()), True, True)]

    def surprise(self, query: SpaceQuery, scores: Array) -> Array:
        """By tier, and by how many names of the prefix enclose it; quality only orders what is equal in these."""
        pattern = query.payload
        found = scores >= 1
        tiers = np.where(found, scores, 0).astype(np.int64)
        log_ps = np.array(pattern.log_ps)[tiers]
        if pattern.prefix and not pattern.references:
            agreed, inside = agreement_of(np.where(found, scores, 0.0), len(pattern.prefix))
            by_path = np.array(pattern.path_log_ps)
            log_ps = log_ps + np.array(pattern.scope_log_ps)[inside] + by_path[agreed] - by_path[inside]
        return np.where(found, _TIE * np.modf(scores)[0] - log_ps, 0.0)


def _sums(log_ps: Sequence[float]) -> tuple[float, ...]:
    """Of the first i, for i from 0."""
    return tuple(np.cumsum([0.0, *log_ps]).tolist())


def _log_ps(statistics: SymbolStatistics, wanted: Wanted) -> tuple[float, ...]:
    """ln of the chance that a random definition, or use, has such a name: in tier 0, 1, …, 4 or a better one."""
    model = statistics.chance
    if statistics.n_units <= 0 or model.n_bytes <= 0:
        return (0.0,) * 5
    n_names = float(model.counts[(model.trigrams & 255) == 10].sum())  # each ends with a line feed
    name, words = fold(wanted.name.encode()), words_of(wanted.name)
    exact = _log_name(model, name)
    same = exact if words in (name, b"") else float(np.logaddexp(exact, _log_name(model, words)))
    inside = [math.log(model.n_bytes / n_names) + model.log_run(run) for run in {name, words} if run]
    part = float(np.logaddexp.reduce([same, *inside])) if words else same
    more = 0.0
    if wanted.kinds:
        share = sum(int(statistics.kinds[KINDS.index(kind)]) for kind in wanted.kinds)
        more = math.log(max(share, 1) / statistics.n_units)
    if wanted.references:  # a unit has several
        more = math.log(n_names / statistics.n_units)
    return tuple(min(log_p + more, 0.0) for log_p in (0.0, part, same, exact, exact))


def _log_name(model: ChanceModel, name: bytes) -> float:
    """ln of the chance that a random name of the corpus's code is this one, folded: by its letters, or as often as it is seen."""
    frequent = model.log_word(name) + math.log(model.n_bytes / max(float(model.word_counts.sum()), 1.0))
    return max(model.log_letters(name + b"\n", b"\n\n"), frequent)
