"""Fuzzy: passages that hold words like the asked ones: misspelt words, names and identifiers, whole, in parts or run together.

The question's words are looked up in the vocabulary of the whole corpus, once, by rapidfuzz (`shards/fuzzy_vocabulary.py`); what each may
stand for goes to the shards as words with scores, and there postings give the passages. So work goes by the vocabulary and by what is
found, never by the text, and a score has the same bits wherever a passage lies.

Raw score of a passage: the sum, over the words asked, of the surprise (nats) of the best word it has for each (`shards/fuzzy_levels.py`).
Words count in any order, those that a passage has beside them do not count against it, and each mistake costs what it costs in that
word. rapidfuzz's own scores of whole texts cannot say that: against a passage `token_set_ratio` sees a misspelt word as another word
(a passage that lacks it and is shorter scores better), `partial_ratio` knows one order only, and `WRatio` is the larger of the two times
constants. Here they work where they are strong, on single words: OSA distance, and `partial_ratio` for parts.

Roles: asked by name or by its form it finds passages and scores those of others. Of the common text it only scores what others found, and
only by words that the corpus does not have, since those that it has are for the exact layers; where it has none of them, nobody else
finds anything by words, and then it looks for passages, too.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from shards.analysis import TOKEN_BYTES, Analyser, Word, atoms
from shards.documents import Documents, Entries
from shards.errors import BadQuery
from shards.fuzzy_levels import MAX_EDITS, Near, near
from shards.fuzzy_vocabulary import Vocabulary
from shards.fuzzy_words import build_words, frequencies_of, is_word, merge_words
from shards.layers import contract
from shards.layers.fuzzy_reader import FuzzyReader, Question
from shards.plan import SpaceQuery
from shards.routing import WORDS
from shards.types import Array, Arrays

MAX_WORDS, MAX_SLOTS = 16, 24  # words of a question, and parts of them, that are looked up, each some milliseconds
MAX_READ = 256  # words of a question that are read at all: whether the corpus has one takes microseconds
MAX_CHARS = 32_768
MAX_SHOWN, MAX_MARKED = 4, 16  # words that one of the question's is told to stand for, and that are marked in excerpts

_TOKEN = re.compile(TOKEN_BYTES)


class Form(BaseModel):
    """The form of the fuzzy space. edits: most mistakes in a word (fewer in short ones); parts: also find words as parts of others."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: str
    edits: Annotated[int, Field(ge=0, le=MAX_EDITS)] = MAX_EDITS
    parts: bool = True


class Fuzzy(contract.Layer):
    """Words that look like the asked ones."""

    name = "fuzzy"
    version = 2  # 1: parts of words before words with a mistake, and three mistakes in words of any length
    granularity = "passage"
    null = "rarity"
    shapes = WORDS - {"formula"}
    query_format = 'words, misspelt or not; {"text": …, "edits": 0 to 3, "parts": true}'
    cost = "index about a third of the text; some milliseconds a word for 100,000 different words"

    class Params(contract.Params):
        unit_bytes: Annotated[int, Field(ge=100, le=1_000_000, description="length of a passage, bytes")] = 800

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: contract.Encodings | None = None,
        progress: contract.Progress | None = None,
    ) -> Arrays:
        from shards.units import passages

        units = passages(documents, self.params.unit_bytes, 0, scope)
        in_scope = np.ones(len(documents), np.bool_) if scope is None else np.asarray(scope, np.bool_)
        steps = iter(range(3))
        step: Callable[[str], None] = (lambda name: progress(name, next(steps), 3)) if progress else (lambda _name: None)
        return build_words(documents, units, in_scope, step)

    def merge(
        self, parts: Sequence[tuple[Arrays, Array]], documents: Documents, entries: Entries, held: Sequence[tuple[int, Arrays]] = ()
    ) -> Arrays:
        return merge_words(parts, len(documents))

    def statistics(self, arrays: Arrays, documents: Documents, entries: Entries, rows: Array | None = None) -> Arrays:
        chosen, n_units = None, len(arrays["unit_rows"])
        if rows is not None:
            of_row = np.zeros(len(documents), np.bool_)
            of_row[rows] = True
            chosen = of_row[arrays["unit_rows"]]
            n_units = int(chosen.sum())
        return {"n_units": np.array([n_units], np.int64), **frequencies_of(arrays, chosen)}

    def recount(self, documents: Documents, entries: Entries) -> Arrays:
        return self.statistics(self.build(documents, entries), documents, entries)

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> FuzzyReader:
        return FuzzyReader(arrays, documents, live)

    def collect(self, parts: Sequence[tuple[int, Arrays]]) -> Vocabulary:
        return Vocabulary.collect(parts)

    def prepare(self, request: contract.Request, statistics: Vocabulary) -> SpaceQuery | None:
        form = _form_of(request)
        words = _words_of(form.text)
        asked = bool(request.form) or request.explicit
        known = [_is_known(statistics, word) for word in words]
        if not asked:
            words = [word for word, is_known in zip(words, known, strict=True) if not is_known]
        slots = _slots(statistics, words[:MAX_WORDS], form)
        if not slots:
            return None
        found = [(word, of_word) for word, of_word in slots if len(of_word.numbers)]
        n_near = [len(of_word.numbers) for _, of_word in found]
        numbers = np.concatenate([of_word.numbers for _, of_word in found] or [np.zeros(0, np.int64)]).astype(np.int64)
        question = Question(
            hashes=statistics.hashes[numbers],
            slots=np.repeat(np.arange(len(found), dtype=np.int32), n_near),
            scores=np.concatenate([of_word.scores for _, of_word in found] or [np.zeros(0)]),
            texts=tuple(statistics.words(numbers)),
            n_slots=len(found),
            n_asked=len(slots),
            generates=asked or not any(known),
        )
        least = [-float(of_word.scores[-1]) for _, of_word in found]
        log_p = min(float(np.logaddexp.reduce(least)), 0.0) if least else 0.0
        return SpaceQuery("", _asked(statistics, slots, question.generates), question, log_p)

    def check_form(self, request: contract.Request) -> None:
        _form_of(request)

    def exhaustive(self, query: SpaceQuery) -> SpaceQuery:
        """Asked to find passages even where it only has to score those of others."""
        question: Question = query.payload
        return query if question.generates else replace(query, payload=replace(question, generates=True))

    def highlights(self, query: SpaceQuery) -> Sequence[tuple[str, bool, bool]]:
        question: Question = query.payload
        first = np.searchsorted(question.slots, np.arange(question.n_slots + 1)).tolist()
        marked = [question.texts[low : min(high, low + MAX_MARKED)] for low, high in zip(first, first[1:])]
        return [("|".join(map(re.escape, words)), True, True) for words in marked if words]

    def surprise(self, query: SpaceQuery, scores: Array) -> Array:
        """-ln of the chance that the surprises of so many independent words add up to the score: a gamma tail (Fisher's method)."""
        found = np.isfinite(scores) & (scores > 0)
        total = np.where(found, scores, 0.0)
        terms, tail = np.ones_like(total), np.ones_like(total)
        for i in range(1, query.payload.n_asked):
            terms = terms * total / i
            tail = tail + terms
        return np.where(found, np.maximum(total - np.log(tail), 0.0), 0.0)


def _form_of(request: contract.Request) -> Form:
    if not request.form:
        form = Form(text=request.text)
    else:
        try:
            form = Form(**request.form)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise BadQuery(f"Fuzzy form: {problems}. Expected {Fuzzy.query_format}.") from None
        if not _words_of(form.text):
            raise BadQuery(f"Fuzzy: {form.text!r} has no word of 3 to 40 letters. Give words, names or identifiers.")
    return form


def _words_of(text: str) -> list[Word]:
    """The words of a question, each with its parts, without repetition."""
    tokens = [token.decode() for token in _TOKEN.findall(text[:MAX_CHARS].encode("utf-8", "replace"))]
    words = dict.fromkeys(word for of_token in Analyser("").recall(tokens) for word in of_token)
    return [word for word in words if any(map(is_word, word))][:MAX_READ]


def _is_known(vocabulary: Vocabulary, word: Word) -> bool:
    """Whether the corpus has a word, or all parts of an identifier."""
    return vocabulary.frequency_of(word[0]) > 0 or (
        len(word) > 1 and all(vocabulary.frequency_of(part) > 0 for part in word[1:] if is_word(part))
    )


def _slots(vocabulary: Vocabulary, words: Sequence[Word], form: Form) -> list[tuple[str, Near]]:
    """Each word asked, an identifier's parts singly, and what it may stand for.

    What an identifier as a whole, or two neighbouring words run together, may stand for speaks for each of its parts with an equal share.
    """
    slots: list[tuple[str, Near]] = []
    places: list[list[int]] = []  # of each word, its slots
    for word in words:
        parts = [part for part in atoms(word) if is_word(part)] or [word[0]]
        if len(slots) + len(parts) > MAX_SLOTS:
            break
        places.append(list(range(len(slots), len(slots) + len(parts))))
        slots += [(part, near(vocabulary, part, form.edits, form.parts)) for part in parts]
    wholes = [(word[0], of_word) for word, of_word in zip(words, places) if len(of_word) > 1]
    for i in range(len(places) - 1):
        wholes.append((words[i][0] + words[i + 1][0], places[i] + places[i + 1]))
    for whole, of_whole in wholes:
        if is_word(whole) and len((found := near(vocabulary, whole, form.edits, False)).numbers):
            for at in of_whole:
                slots[at] = slots[at][0], _united(slots[at][1], Near(found.numbers, found.scores / len(of_whole)))
    return slots


def _united(one: Near, other: Near) -> Near:
    """Both, each word with the better of its scores."""
    best = dict(zip(other.numbers.tolist(), other.scores.tolist(), strict=True))
    for number, score in zip(one.numbers.tolist(), one.scores.tolist(), strict=True):
        best[number] = max(score, best.get(number, -math.inf))
    order = sorted(best, key=lambda number: (-best[number], number))
    return Near(np.array(order, np.int64), np.array([best[number] for number in order]))


def _asked(vocabulary: Vocabulary, slots: Sequence[tuple[str, Near]], generates: bool) -> str:
    """The question as people read it: what each word was taken for."""
    told = []
    for word, found in slots:
        others = vocabulary.words(found.numbers[:MAX_SHOWN])
        more = f" and {len(found.numbers) - MAX_SHOWN} more" if len(found.numbers) > MAX_SHOWN else ""
        told.append(f"{word} (like {', '.join(others)}{more})" if others else f"{word} (like no word of the corpus)")
    return ", ".join(told) + ("" if generates else "; in what other layers find")
