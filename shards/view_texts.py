"""Texts about sections, taken from the sections themselves: a context line and a summary. No model writes anything here.

The summary is LexRank (Erkan & Radev 2004, section 4, the continuous variant): sentences are alike as their static vectors are, and
the central ones are those that a random walk from sentence to sentence visits most. No questions are made: a rule could only turn a
heading round, which says no more than the heading, and that stands in the context line.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from shards.types import Array
from shards.view_sections import Section, sentences_of, statement_of

CONTEXT, QUESTION, SUMMARY = "context", "question", "summary"
KINDS = (CONTEXT, QUESTION, SUMMARY)  # numbered so in segments
EXTRACTIVE = "extractive"
MIN_SENTENCES = 4  # a section of fewer is its own summary
SUMMARY_CHARS, SUMMARY_SENTENCES = 400, 3
DAMPING = 0.85
_STEPS = 50  # of the power method: 0.85^50 < 0.001
_DIGITS = 6  # sums of floats differ in their last bits from one processor to another; sentences must not

Vectors = Callable[[Sequence[str]], Array]  # sentences to (n, dim) float32 of unit length


class View(NamedTuple):
    """One text about bytes [start, end) of a document. kind: of KINDS; generator: who made it."""

    start: int
    end: int
    kind: str
    generator: str
    text: str


@dataclass(frozen=True, slots=True)
class Described:
    """The views of one document, and the tokens that an endpoint read and wrote for them."""

    views: tuple[View, ...]
    tokens_in: int = 0
    tokens_out: int = 0


def context_line(section: Section) -> str:
    """Title › headings: what the section says first. "" where its text gives nothing of that."""
    places = [part for part in (section.title, *section.trail) if part]
    said = statement_of(section)
    if said and said in places:
        said = ""
    return ": ".join(filter(None, (" › ".join(dict.fromkeys(places)), said)))


def extract(sections: Sequence[Section], vectors: Vectors) -> list[list[View]]:
    """The views of each section, context line first. vectors: called once for all sentences."""
    pieces = [sentences_of(section.prose) for section in sections]
    long_ones = [sentences if len(sentences) >= MIN_SENTENCES else [] for sentences in pieces]
    flat = [sentence for sentences in long_ones for sentence in sentences]
    directions = vectors(flat) if flat else np.zeros((0, 0), np.float32)
    ends = np.cumsum([len(sentences) for sentences in long_ones])
    found = []
    for section, sentences, end in zip(sections, long_ones, ends.tolist(), strict=True):
        texts = [(CONTEXT, context_line(section))]
        if sentences:
            texts.append((SUMMARY, summary(sentences, directions[end - len(sentences) : end])))
        found.append([View(section.start, section.end, kind, EXTRACTIVE, text) for kind, text in texts if text])
    return found


def summary(sentences: Sequence[str], vectors: Array) -> str:
    """The most central sentences in the order of the text, as many as fit. vectors: (n, dim), of unit length or zero."""
    chosen: list[int] = []
    n_chars = 0
    for place in np.argsort(-centrality(vectors), kind="stable").tolist():
        if len(chosen) == SUMMARY_SENTENCES:
            break
        if not chosen or n_chars + len(sentences[place]) <= SUMMARY_CHARS:
            chosen.append(place)
            n_chars += len(sentences[place])
    return " ".join(sentences[place] for place in sorted(chosen))[: 2 * SUMMARY_CHARS]


def centrality(vectors: Array) -> Array:
    """How central each sentence is: the stationary distribution of LexRank's walk, (n,) float64, sum 1, rounded to 1e-6.

    From sentence i the walk goes to j in proportion to their cosine (negative ones are 0), or with the chance 1 - 0.85 anywhere.
    """
    n = len(vectors)
    rows = np.asarray(vectors, np.float64)
    alike = np.round(np.maximum(rows @ rows.T, 0.0), _DIGITS)
    total = alike.sum(axis=1, keepdims=True)
    steps = np.where(total > 0, alike / np.where(total > 0, total, 1.0), 1.0 / n)  # a sentence like no other leads anywhere
    share = np.full(n, 1.0 / n)
    for _ in range(_STEPS):
        share = (1 - DAMPING) / n + DAMPING * (share @ steps)
    return np.round(share, _DIGITS)


def each_extracted(documents: Iterator[tuple[int, list[Section]]], vectors: Vectors, portion: int) -> Iterator[list[tuple[int, Described]]]:
    """Portions of documents with their views. documents: (row, its sections); portion: sections taken together."""
    rows: list[tuple[int, list[Section]]] = []
    n_sections = 0
    for item in documents:
        rows.append(item)
        n_sections += len(item[1])
        if n_sections >= portion:
            yield list(_extracted(rows, vectors))
            rows, n_sections = [], 0
    if rows:
        yield list(_extracted(rows, vectors))


def _extracted(rows: list[tuple[int, list[Section]]], vectors: Vectors) -> Iterator[tuple[int, Described]]:
    found = iter(extract([section for _, sections in rows for section in sections], vectors))
    for row, sections in rows:
        yield row, Described(tuple(view for _ in sections for view in next(found)))
