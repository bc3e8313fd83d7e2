"""BM25 over passages: the words of the question, weighted by how rare they are in the whole corpus.

    score(unit) = sum over terms of idf * tf / (tf + k1 (1 - b + b length/average length))
    idf = ln(1 + (N - df + 0.5) / (df + 0.5))

Robertson & Zaragoza 2009, section 3; idf and the missing factor (k1 + 1) as in Lucene's BM25Similarity, so idf > 0 always and
the score is below the sum of the idfs. N, df and the average are of the whole generation and travel with the question: a
segment knows nothing that could make its scores differ from another's.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field, field_validator, model_validator

from shards import bm25_feedback as feedback
from shards import bm25_grammar as grammar
from shards.analysis import Analyser, analyser_of, languages
from shards.arrays import pack_strings, unpack_string
from shards.bm25_question import MAX_TERMS, Reading, Weights, tokens_of, where_of
from shards.bm25_statistics import MAX_FORMS, Statistics, WordList
from shards.documents import Documents, Entries
from shards.errors import BadQuery
from shards.examples import Example, Reformulated, Term
from shards.layers import contract
from shards.layers.bm25_reader import BM25Reader, Question
from shards.plan import SpaceQuery
from shards.postings import TITLE, build_postings, merge_postings, term_frequencies, term_hash, words_of
from shards.routing import WORDS
from shards.types import Array, Arrays

MAX_CHARS = 32_768  # characters of a question that are looked at
ASKED_TERMS, MAX_ASKED_CHARS = 24, 300  # terms, and characters of what must hold, shown to people


class BM25(contract.Layer):
    """Words by rarity, over passages."""

    name = "bm25"
    version = 2
    shapes = WORDS
    granularity = "passage"
    null = "moments"
    query_format = (
        'words; or a query: "a phrase", +must, -not, AND OR NOT, prefix*, one NEAR/5 other, title: body: path:; as a form {"query": text}, '
        '{"phrase": text}, {"terms": [words]}, {"also": [words beside those of the query]}'
    )
    cost = "index about a third of the text; a millisecond for half a million passages"
    written_form = (
        '{"also": ["word", …]}: up to 12 words that texts which answer the question are likely to hold beside its own words: '
        "synonyms, technical terms, names"
    )

    class Params(contract.Params):
        k1: Annotated[float, Field(gt=0, le=10, description="how soon repetition stops counting")] = 1.2
        b: Annotated[float, Field(ge=0, le=1, description="how much a long unit is held against it; 0 not at all")] = 0.75
        title_weight: Annotated[int, Field(ge=1, le=20, description="how often each word of a title counts")] = 2
        unit_bytes: Annotated[int, Field(ge=100, le=1_000_000, description="length of a passage, bytes")] = 3000
        overlap_bytes: Annotated[int, Field(ge=0, description="bytes that neighbouring passages share")] = 0
        stem: Annotated[bool, Field(description="whether inflected forms are one word")] = True
        language: Annotated[str, Field(description='of prose: "auto" or a Snowball algorithm')] = "auto"
        stop_words: Annotated[tuple[str, ...], Field(description="words of a question that are not asked for")] = ()

        @field_validator("language")
        @classmethod
        def _known(cls, value: str) -> str:
            if value != "auto" and value not in languages():
                raise ValueError(f'choose "auto" or one of {", ".join(sorted(languages()))}')
            return value

        @model_validator(mode="after")
        def _overlap_fits(self) -> "BM25.Params":
            if self.overlap_bytes > self.unit_bytes // 4:
                raise ValueError(f"overlap_bytes is {self.overlap_bytes}; expected at most a quarter of unit_bytes")
            return self

    def _analyser(self, kind: str) -> Analyser:
        return analyser_of(kind, self.params.language, self.params.stem)

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: contract.Encodings | None = None,
        progress: contract.Progress | None = None,
    ) -> Arrays:
        from shards.units import passages

        units = passages(documents, self.params.unit_bytes, self.params.overlap_bytes, scope)
        in_scope = np.ones(len(documents), np.bool_) if scope is None else np.asarray(scope, np.bool_)
        steps = iter(range(3))
        step: Callable[[str], None] = (lambda name: progress(name, next(steps), 3)) if progress else (lambda _name: None)
        title_weight = self.params.title_weight
        return build_postings(documents, units.rows, units.starts, units.ends, in_scope, self._analyser, title_weight, step)

    def merge(
        self, parts: Sequence[tuple[Arrays, Array]], documents: Documents, entries: Entries, held: Sequence[tuple[int, Arrays]] = ()
    ) -> Arrays:
        return merge_postings(parts, len(documents))

    def statistics(self, arrays: Arrays, documents: Documents, entries: Entries, rows: Array | None = None) -> Arrays:
        unit_rows, lengths = arrays["unit_rows"], arrays["unit_lengths"]
        chosen = None
        if rows is not None:
            of_row = np.zeros(len(documents), np.bool_)
            of_row[rows] = True
            chosen = of_row[unit_rows]
            unit_rows, lengths = unit_rows[chosen], lengths[chosen]
        terms, frequencies = term_frequencies(arrays, chosen)
        per_kind = np.bincount(documents.kinds[unit_rows], minlength=len(documents.kind_names))
        per_language: Counter[str] = Counter()
        for kind, n_units in zip(documents.kind_names, per_kind.tolist(), strict=True):
            per_language[self._analyser(kind).language] += n_units
        spoken = sorted(language for language, n_units in per_language.items() if n_units)
        blob, offsets = pack_strings([language.encode() for language in spoken])
        return {
            "n_units": np.array([len(unit_rows)], np.int64),
            "total_length": np.array([lengths.sum(dtype=np.int64)], np.int64),
            "terms": terms,
            "frequencies": frequencies,
            **words_of(arrays, chosen),
            "language_blob": blob,
            "language_offsets": offsets,
            "language_units": np.array([per_language[language] for language in spoken], np.int64),
        }

    def recount(self, documents: Documents, entries: Entries) -> Arrays:
        return self.statistics(self.build(documents, entries), documents, entries)

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> BM25Reader:
        analysers = [self._analyser(kind) for kind in documents.kind_names]
        return BM25Reader(arrays, documents, live, self.params.k1, self.params.b, self.params.title_weight, analysers)

    def collect(self, parts: Sequence[tuple[int, Arrays]]) -> Statistics:
        n_units = total_length = 0
        per_language: Counter[str] = Counter()
        tables = [np.zeros(0, np.uint64)]
        signed = [np.zeros(0, np.int64)]
        for sign, part in parts:
            n_units += sign * int(part["n_units"][0])
            total_length += sign * int(part["total_length"][0])
            for i, count in enumerate(part["language_units"].tolist()):
                per_language[unpack_string(part["language_blob"], part["language_offsets"], i).decode()] += sign * count
            tables.append(part["terms"])
            signed.append(sign * part["frequencies"].astype(np.int64))
        terms, place = np.unique(np.concatenate(tables), return_inverse=True)
        frequencies = np.zeros(len(terms), np.int64)
        np.add.at(frequencies, place, np.concatenate(signed))
        used = frequencies > 0
        spoken = sorted((language, count) for language, count in per_language.items() if count > 0)
        words = tuple(WordList(part["word_blob"], part["word_offsets"]) for sign, part in parts if sign > 0)
        names, counts = tuple(language for language, _ in spoken), tuple(count for _, count in spoken)
        return Statistics(terms[used], frequencies[used], n_units, total_length, names, counts, words)

    def prepare(self, request: contract.Request, statistics: Statistics) -> SpaceQuery | None:
        query, note = _understand(request)
        query, paths = grammar.split_paths(query)
        reading = Reading(query, statistics, frozenset(word.casefold() for word in self.params.stop_words))
        weights = reading.weights()
        scored = _heaviest(weights.of_words)
        by_hash = _by_hash(scored, weights)
        if not by_hash:
            return None
        pinned, condition = reading.conditions()
        question = Question(
            terms=np.array([key for key, _ in by_hash], np.uint64),
            weights=np.array([weight for _, weight in by_hash], np.float32),
            average_length=statistics.average_length,
            pinned=pinned,
            condition=condition,
            marks=reading.marks(all_words=bool(request.form)) if request.form or reading.prefixes() else (),
        )
        asked = _asked(scored, weights, reading, note)
        where = where_of(paths)
        if where is not None:
            asked += f", {' and '.join(map(grammar.describe, paths))}"
        return SpaceQuery("", asked, question, reading.log_p(), weights.most, where)

    def check_form(self, request: contract.Request) -> None:
        _understand(request)

    def terms_of(self, examples: Sequence[Example], statistics: Statistics) -> list[Term]:
        return feedback.terms_of(examples, statistics, self._analyser)

    def reformulate(self, query: SpaceQuery | None, examples: Sequence[Example], statistics: Statistics) -> Reformulated | None:
        """See `shards.bm25_feedback`. What must hold of a query goes on to hold."""
        terms = {term.term: term for term in self.terms_of(examples, statistics)}
        added = feedback.expansion(terms.values(), statistics.average_length)
        if not added:
            return None
        asked: Question | None = query.payload if query is not None else None
        weights = {} if asked is None else dict(zip(asked.terms.tolist(), asked.weights.tolist(), strict=True))
        own = frozenset(weights)
        loudest = 1.0 if asked is None else feedback.most_asked(asked.terms, asked.weights, statistics)
        gained = {term: feedback.WEIGHT * loudest * share * statistics.idf(terms[term].df) for term, share in added.items()}
        for term, weight in gained.items():
            weights[term_hash(term)] = weights.get(term_hash(term), 0.0) + weight
        keys = sorted(weights)
        arrays = {"terms": np.array(keys, np.uint64), "weights": np.array([weights[key] for key in keys], np.float32)}
        question = Question(**arrays, average_length=statistics.average_length) if asked is None else replace(asked, **arrays)
        words = tuple(terms[term].forms[0] for term in added if term_hash(term) not in own)
        shown = " ".join(words[:ASKED_TERMS]) + (" …" if len(words) > ASKED_TERMS else "")
        told = f"{len(examples)} chosen texts added: {shown}" if words else f"{len(examples)} chosen texts weighed its words"
        before = SpaceQuery("", "", question, most=0.0) if query is None else query
        asked_now = ", and ".join(filter(None, [before.asked, told]))
        most = None if before.most is None else before.most + sum(gained.values())
        return Reformulated(replace(before, asked=asked_now, payload=question, most=most, feedback=told), words)

    def highlights(self, query: SpaceQuery) -> Sequence[tuple[str, bool, bool]]:
        marks: Sequence[tuple[str, bool, bool]] = query.payload.marks
        return marks

    def surprise(self, query: SpaceQuery, scores: Array) -> Array:
        """Of words that must stand together and do: by chance they seldom would. Else nothing beyond z."""
        return np.where(np.isfinite(scores), -(query.log_p or 0.0), 0.0)


def _understand(request: contract.Request) -> tuple[grammar.Clauses, str]:
    """What is asked, and what people should know of how it was read. Raises BadQuery for a wrong form."""
    form = dict(request.form)
    query, phrase, terms, also = (form.pop(key, None) for key in ("query", "phrase", "terms", "also"))
    if form:
        unknown = ", ".join(map(repr, sorted(form)))
        known = "'query' or 'phrase' (text), 'terms' or 'also' (list of words)"
        raise BadQuery(f"bm25 does not know {unknown}. Its form has {known}.")
    if also is not None:
        if query or phrase or terms or not (isinstance(also, (list, tuple)) and also and all(isinstance(word, str) for word in also)):
            raise BadQuery(f"bm25: also is {also!r}; expected a list of words, asked beside those of the query, and no other form.")
        own = {token.casefold() for token in tokens_of(request.text[:MAX_CHARS])}
        further = " ".join(word for word in also if word.casefold() not in own)[:MAX_CHARS]
        said, note = _understand(replace(request, form={}))
        return replace(said, rank=(*said.rank, grammar.Words(further))), note
    if phrase is not None and not (isinstance(phrase, str) and tokens_of(phrase)):
        raise BadQuery(f"bm25: phrase is {phrase!r}; expected a text with at least one word.")
    if terms is not None and not (isinstance(terms, (list, tuple)) and terms and all(isinstance(term, str) for term in terms)):
        raise BadQuery(f"bm25: terms is {terms!r}; expected a list of words.")
    if query is not None:
        if not isinstance(query, str) or phrase is not None or terms is not None:
            raise BadQuery("bm25: 'query' is a text and says all: give it without 'phrase' and 'terms', or those without it.")
        return grammar.parse(query), ""
    if phrase is not None or terms is not None:
        phrases = (grammar.Phrase(phrase),) if phrase is not None else ()
        return grammar.Clauses(phrases, (grammar.Words(" ".join(terms)[:MAX_CHARS]),) if terms is not None else ()), ""
    understood, why = grammar.understood(request.text)
    if understood is not None:
        return understood, ""
    notes = [f"as plain words, for {why}"] if why else []
    if (n_chars := len(request.text)) > MAX_CHARS:
        notes.append(f"from the first {MAX_CHARS} of {n_chars} characters")
    return grammar.Clauses(rank=(grammar.Words(request.text[:MAX_CHARS]),)), ", ".join(notes)


def _heaviest(weights: dict[str, float]) -> list[str]:
    """The terms that are scored, in the question's order."""
    if len(weights) <= MAX_TERMS:
        return list(weights)
    heaviest = set(sorted(weights, key=lambda term: (-weights[term], term_hash(term)))[:MAX_TERMS])
    return [term for term in weights if term in heaviest]


def _by_hash(scored: Sequence[str], weights: Weights) -> list[tuple[int, float]]:
    """Hash and weight of each term, ascending: the canonical order of summation."""
    if not weights.of_prefixes:
        return sorted((term_hash(term), weights.of_words[term]) for term in scored)
    total = dict(weights.of_prefixes)
    for term in scored:
        total[term] = total.get(term, 0.0) + weights.of_words[term]
    return sorted((term_hash(term), weight) for term, weight in total.items())


def _asked(scored: Sequence[str], weights: Weights, reading: Reading, note: str) -> str:
    """The question as people read it: terms, what must hold, and what was left out."""
    shown = [f"{term.removeprefix(TITLE)} in the title" if term.startswith(TITLE) else term for term in scored[:ASKED_TERMS]]
    parts = [" ".join(shown)] if shown else []
    if len(scored) > ASKED_TERMS:
        parts.append(f"and {len(scored) - ASKED_TERMS} more terms")
    if len(weights.of_words) > len(scored):
        parts.append(f"the {len(scored)} most telling of {len(weights.of_words)} terms")
    for prefix in reading.prefixes():
        of_all = f"the {MAX_FORMS} most frequent of {prefix.n_terms}" if prefix.n_terms > len(prefix.terms) else f"{prefix.n_terms}"
        parts.append(f"{prefix.text}* ({of_all} terms)")
    if reading.query.must:
        must = grammar.describe(grammar.All(reading.query.must) if len(reading.query.must) > 1 else reading.query.must[0])
        parts.append(f"where {must if len(must) <= MAX_ASKED_CHARS else must[:MAX_ASKED_CHARS] + ' …'}")
    return ", ".join([*parts, *filter(None, [note])])
