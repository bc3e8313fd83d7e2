"""BM25 over passages: the words of the question, weighted by how rare they are in the whole corpus.

    score(unit) = sum over terms of idf * tf / (tf + k1 (1 - b + b length/average length))
    idf = ln(1 + (N - df + 0.5) / (df + 0.5))

Robertson & Zaragoza 2009, section 3; idf and the missing factor (k1 + 1) as in Lucene's BM25Similarity, so idf > 0 always and
the score is below the sum of the idfs. N, df and the average are of the whole generation and travel with the question: a
segment knows nothing that could make its scores differ from another's.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field, field_validator, model_validator

from shards.analysis import TOKEN_BYTES, Analyser, analyser_of, atoms, languages
from shards.arrays import pack_strings, unpack_string
from shards.documents import Documents, Entries
from shards.errors import BadQuery
from shards.layers import contract
from shards.layers.bm25_reader import BM25Reader, Phrase, Question
from shards.plan import SpaceQuery
from shards.postings import build_postings, merge_postings, term_frequencies, term_hash
from shards.types import Array, Arrays

MAX_TERMS = 256  # distinct terms scored; a longer question keeps those of most weight
MAX_CHARS = 32_768  # characters of a question that are looked at
MAX_PHRASES = 16
MAX_PHRASE_TOKENS = 64  # a longer quotation is verified by its beginning
ASKED_TERMS = 24  # terms shown to people

_TOKEN = re.compile(TOKEN_BYTES)
_QUOTED = re.compile('"([^"]*)"|\u201c([^\u201d]*)\u201d|\u201e([^\u201c\u201d]*)[\u201c\u201d]')


@dataclass(frozen=True, slots=True)
class Statistics:
    """What BM25 knows of the whole corpus.

    terms: (t,) uint64 term hashes, ascending; frequencies: (t,) int64, units that hold the term
    n_units, total_length: units of the corpus and their words. languages: those of the analysers in use, sorted
    """

    terms: Array
    frequencies: Array
    n_units: int
    total_length: int
    languages: tuple[str, ...]

    def frequency_of(self, terms: Sequence[str]) -> dict[str, int]:
        """In how many units each term occurs; only terms that do."""
        keys = np.array([term_hash(term) for term in terms], np.uint64)
        places = np.searchsorted(self.terms, keys)
        places[places == len(self.terms)] = 0
        known = self.terms[places] == keys if len(self.terms) else np.zeros(len(keys), np.bool_)
        return {terms[i]: int(self.frequencies[places[i]]) for i in np.flatnonzero(known)}

    def idf(self, frequency: int) -> float:
        """Lucene's idf of a term that so many units hold."""
        df = min(frequency, self.n_units)
        return math.log1p((self.n_units - df + 0.5) / (df + 0.5))


class BM25(contract.Layer):
    """Words by rarity, over passages."""

    name = "bm25"
    granularity = "passage"
    null = "moments"
    query_format = 'words; "quoted phrases" must occur as they stand; {"phrase": text} or {"terms": [words]}'
    cost = "index about a third of the text; a millisecond for half a million passages"

    class Params(contract.Params):
        k1: Annotated[float, Field(gt=0, le=10, description="how soon repetition stops counting")] = 1.2
        b: Annotated[float, Field(ge=0, le=1, description="how much a long unit is held against it; 0 not at all")] = 0.75
        unit_bytes: Annotated[int, Field(ge=100, le=1_000_000, description="length of a passage, bytes")] = 2000
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
        return build_postings(documents, units.rows, units.starts, units.ends, in_scope, self._analyser, step)

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
            "language_blob": blob,
            "language_offsets": offsets,
            "language_units": np.array([per_language[language] for language in spoken], np.int64),
        }

    def recount(self, documents: Documents, entries: Entries) -> Arrays:
        return self.statistics(self.build(documents, entries), documents, entries)

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> BM25Reader:
        analysers = [self._analyser(kind) for kind in documents.kind_names]
        return BM25Reader(arrays, documents, live, self.params.k1, self.params.b, analysers)

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
        spoken = tuple(sorted(language for language, count in per_language.items() if count > 0))
        return Statistics(terms[used], frequencies[used], n_units, total_length, spoken)

    def prepare(self, request: contract.Request, statistics: Statistics) -> SpaceQuery | None:
        text, quoted = _understand(request)
        analysers = [Analyser(language) for language in statistics.languages]
        counts = Counter(_tokens(text[:MAX_CHARS]))
        if self.params.stop_words:
            stop_words = {word.casefold() for word in self.params.stop_words}
            stop_words -= {word.casefold() for words in quoted for word in words}
            counts = Counter({token: n for token, n in counts.items() if token.casefold() not in stop_words})
        weights, most = _weights(counts, analysers, statistics)
        if not weights:
            return None
        scored = list(weights)  # in the question's order
        if len(weights) > MAX_TERMS:
            heaviest = set(sorted(weights, key=lambda term: (-weights[term], term_hash(term)))[:MAX_TERMS])
            scored = [term for term in weights if term in heaviest]
        by_hash = sorted((term_hash(term), weights[term]) for term in scored)
        phrases = tuple(phrase for words in quoted if (phrase := _phrase(words, analysers)))
        question = Question(
            terms=np.array([key for key, _ in by_hash], np.uint64),
            weights=np.array([weight for _, weight in by_hash], np.float32),
            average_length=statistics.total_length / statistics.n_units or 1.0,
            phrases=phrases,
            # Twice the bytes as asked, and some: other spacing, longer inflections.
            phrase_bytes=2 * max((len(" ".join(words).encode()) for words in quoted), default=0) + 64 if phrases else 0,
        )
        log_p = _log_p(phrases, statistics) if phrases else None
        return SpaceQuery("", _asked(scored, len(weights), len(text), quoted), question, log_p, most)

    def surprise(self, query: SpaceQuery, scores: Array) -> Array:
        """Of a quoted phrase that stands there: by chance its words would seldom follow one another. Else nothing beyond z."""
        return np.where(np.isfinite(scores), -(query.log_p or 0.0), 0.0)


def _understand(request: contract.Request) -> tuple[str, list[list[str]]]:
    """The text whose words count, and the quoted phrases in it as tokens. Raises BadQuery for a wrong form."""
    form = dict(request.form)
    phrase, terms = form.pop("phrase", None), form.pop("terms", None)
    if form:
        unknown = ", ".join(map(repr, sorted(form)))
        raise BadQuery(f"bm25 does not know {unknown}. Its form has 'phrase' (text) or 'terms' (list of words).")
    if phrase is not None and not (isinstance(phrase, str) and _tokens(phrase)):
        raise BadQuery(f"bm25: phrase is {phrase!r}; expected a text with at least one word.")
    if terms is not None and not (isinstance(terms, (list, tuple)) and terms and all(isinstance(term, str) for term in terms)):
        raise BadQuery(f"bm25: terms is {terms!r}; expected a list of words.")
    if phrase is not None or terms is not None:
        quotes = [phrase] if phrase is not None else []
        text = " ".join([*quotes, *(terms or ())])
    else:
        text = request.text
        quotes = [next(filter(None, groups), "") for groups in _QUOTED.findall(text)]
    quoted = [tokens[:MAX_PHRASE_TOKENS] for quote in quotes if (tokens := _tokens(quote))]
    return text, quoted[:MAX_PHRASES]


def _tokens(text: str) -> list[str]:
    """Tokens as `shards.token_kernels` finds them in documents."""
    return [token.decode() for token in _TOKEN.findall(text.encode("utf-8", "replace"))]


def _weights(counts: Mapping[str, int], analysers: list[Analyser], statistics: Statistics) -> tuple[dict[str, float], float]:
    """Each known term's weight: idf times its count in the question, summed over the words it stands for. And the sum over all
    words, unknown ones (whose idf is the largest) included: what a passage that says all of it would score at most.

    What the analysers make of one word are forms of that word: they share the idf of their summed frequencies, so that a word
    is not held to be rare because only a few documents are German.
    """
    forms: dict[tuple[int, int, int], set[str]] = {}  # (token, word, part) -> terms
    for analyser in analysers:
        for t, words in enumerate(analyser.recall(list(counts))):
            for w, word in enumerate(words):
                for p, term in enumerate(word):
                    forms.setdefault((t, w, p), set()).add(term)
    frequency = statistics.frequency_of(list({term for terms in forms.values() for term in terms}))
    weights: dict[str, float] = {}
    most = 0.0
    n_asked = list(counts.values())
    for (t, _, _), terms in sorted(forms.items()) if len(analysers) > 1 else forms.items():  # one goes through them in order
        known = sorted(terms & frequency.keys()) if len(terms) > 1 else [term for term in terms if term in frequency]
        weight = n_asked[t] * statistics.idf(sum([frequency[term] for term in known]))
        most += weight
        for term in known:
            weights[term] = weights.get(term, 0.0) + weight
    return weights, most


def _phrase(tokens: list[str], analysers: list[Analyser]) -> Phrase:
    """The phrase as each analyser reads it; empty if it has no word at all."""
    phrase: Phrase = {}
    for analyser in analysers:
        terms = tuple(term for words in analyser.recall(tokens) for word in words for term in atoms(word))
        if terms:
            phrase[analyser.language] = terms
    return phrase


def _log_p(phrases: tuple[Phrase, ...], statistics: Statistics) -> float:
    """ln of the chance that a unit of average length holds all phrases, if words followed one another independently.

    A word's rate comes from the share of units that hold it, 1 - exp(-rate) for a Poisson count. The likeliest language counts.
    """
    length = statistics.total_length / statistics.n_units or 1.0
    total = 0.0
    for phrase in phrases:
        frequency = statistics.frequency_of(sorted({term for terms in phrase.values() for term in terms}))
        of_language = []
        for terms in phrase.values():
            shares = [min(frequency.get(term, 0) + 0.5, statistics.n_units) / (statistics.n_units + 1) for term in terms]
            of_language.append(math.log(length) + sum(math.log(-math.log1p(-share) / length) for share in shares))
        total += min(max(of_language), 0.0)
    return total


def _asked(scored: list[str], n_known: int, n_chars: int, quoted: list[list[str]]) -> str:
    """The question as people read it: terms, phrases, and what was left out."""
    parts = [" ".join(scored[:ASKED_TERMS])]
    if len(scored) > ASKED_TERMS:
        parts.append(f"and {len(scored) - ASKED_TERMS} more terms")
    if n_known > len(scored):
        parts.append(f"the {len(scored)} most telling of {n_known} terms")
    if n_chars > MAX_CHARS:
        parts.append(f"from the first {MAX_CHARS} of {n_chars} characters")
    parts += [f'"{" ".join(words[:ASKED_TERMS])}"' for words in quoted]
    return ", ".join(parts)
