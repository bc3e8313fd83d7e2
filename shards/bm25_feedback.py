"""A BM25 question drawn towards examples: their most telling terms are asked beside it, weighted.

Expansion by the divergence of the examples' language from the corpus's, added as Rocchio does (1971, "Relevance feedback in information
retrieval"): Carpineto, de Mori, Romano & Bigi 2001, "An information-theoretic approach to automatic query expansion" (KLD):

    score(t) = p(t | examples) ln(p(t | examples) / p(t | corpus))
    weight(t) = idf(t) (count(t) + WEIGHT max count score(t) / max score),    count: how often the question asks for a term

p(t | examples) is the mean over examples of the term's share of their words, as in RM3 (Abdul-Jaleel et al. 2004), so that a long one has
no louder voice. p(t | corpus) comes from document frequency, which is what is kept: a term that a share s of the units holds stands
-ln(1 - s) times in one (Poisson).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np

from shards.analysis import Analyser
from shards.bm25_question import tokens_of
from shards.bm25_statistics import Statistics
from shards.examples import Example, Term, log_likelihood_ratio
from shards.types import Array

N_TERMS, WEIGHT = 60, 1.0
MAX_TOKENS = 1_000  # of an example that are looked at: those of `MAX_EXAMPLE_BYTES`


def terms_of(examples: Sequence[Example], statistics: Statistics, analyser_of: Callable[[str], Analyser]) -> list[Term]:
    """Each term of the examples that the corpus holds. analyser_of: by the kind of text, as documents are read."""
    counts: dict[str, list[float]] = {}
    forms: dict[str, Counter[str]] = {}
    for example in examples:
        tokens = tokens_of(example.text)[:MAX_TOKENS]
        of_words = [(token, set(chain.from_iterable(words))) for token, words in zip(tokens, analyser_of(example.kind).recall(tokens))]
        here = Counter(term for _, terms in of_words for term in terms)
        total = sum(here.values())
        for term, n in here.items():
            counts.setdefault(term, []).append(n / total)
        for token, terms in of_words:
            for term in terms:
                forms.setdefault(term, Counter())[token.casefold()] += 1
    frequency = statistics.frequency_of(list(counts))
    n, n_units = len(examples), statistics.n_units
    return [
        Term(
            term=term,
            forms=tuple(form for form, _ in forms[term].most_common()),
            rate=sum(counts[term]) / n,
            n_examples=len(counts[term]),
            df=df,
            n_units=n_units,
            ratio=log_likelihood_ratio(len(counts[term]), n, df, n_units),
        )
        for term, df in frequency.items()
    ]


def expansion(terms: Iterable[Term], average_length: float, n_terms: int = N_TERMS) -> dict[str, float]:
    """The terms to be asked beside a question, heaviest first, with weights up to 1: `score(t) / max score`."""
    scores = {term.term: divergence for term in terms if (divergence := _divergence(term, average_length)) > 0.0}
    heaviest = sorted(scores, key=lambda term: (-scores[term], term))[:n_terms]
    return {term: scores[term] / scores[heaviest[0]] for term in heaviest}


def most_asked(terms: Array, weights: Array, statistics: Statistics) -> float:
    """How often a question asks for the term that it asks for most often, from its weights: (t,) hashes ascending, (t,) float32."""
    places = np.minimum(np.searchsorted(statistics.terms, terms), max(len(statistics.terms) - 1, 0))
    idf = [statistics.idf(df) for df in statistics.frequencies[places].tolist()]
    return max((weight / rarity for weight, rarity in zip(weights.tolist(), idf, strict=True)), default=1.0)


def _divergence(term: Term, average_length: float) -> float:
    """p ln(p / q), p the term's share of the examples' words, q of the corpus's."""
    share = min(term.df + 0.5, term.n_units) / (term.n_units + 1)
    background = -math.log1p(-share) / max(average_length, 1.0)
    return term.rate * math.log(term.rate / background)
