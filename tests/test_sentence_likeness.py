"""How much like a sentence a query is, and the null of fused evidence that goes by it."""

import json
import random

import numpy as np
import pytest
from scipy.stats import gumbel_r, kstest

from shards import arrays
from shards.answerability import MIN_EXAMPLES, Answerability
from shards.corpus_nulls import CorpusNulls
from shards.nulls import FusedNull
from shards.sentence_likeness import SentenceLikeness
from shards.word_order import WordFacts, WordOrder

COLOURS = ["red", "green", "blue", "grey"]


def sentence(i):
    return f"the {COLOURS[i % 4]} of the {COLOURS[i // 4 % 4]} is a {COLOURS[i // 16 % 4]}"


@pytest.fixture(scope="module")
def words():
    bodies = [sentence(i).encode() for i in range(13_000)]
    ends = np.cumsum([len(body) + 1 for body in bodies]) - 1
    starts = ends - [len(body) for body in bodies]
    text = np.frombuffer(b"".join(body + b"\n" for body in bodies), np.uint8)
    return WordOrder.fit([(text, starts.astype(np.int64), ends.astype(np.int64))])


@pytest.fixture(scope="module")
def likeness(words):
    """Fitted on sentences and on the same words in any order."""
    return SentenceLikeness.fit([seen(words, sentence(i)) for i in range(64)], [seen(words, shuffled(i)) for i in range(64)])


def shuffled(i):
    parts = sentence(i).split()
    random.Random(i).shuffle(parts)
    return " ".join(parts)


def seen(words, text):
    return words.look(text), len(text.split())


def test_sentences_are_told_from_the_same_words_in_any_order(words, likeness):
    of_sentences = [likeness.of(*seen(words, sentence(i))) for i in range(100, 164)]
    of_shuffled = [likeness.of(*seen(words, shuffled(i))) for i in range(100, 164)]
    assert np.mean(of_sentences) > 0.9 and np.mean(of_shuffled) < 0.2


def test_with_too_few_of_either_kind_nothing_is_learnt():
    few, many = [(WordFacts(), 3)] * (MIN_EXAMPLES - 1), [(WordFacts(), 3)] * MIN_EXAMPLES
    assert SentenceLikeness.fit(few, many) is None and SentenceLikeness.fit(many, few) is None
    assert SentenceLikeness.fit(many, many).of(WordFacts(), 3) == pytest.approx(0.5)


def test_evalues_of_both_kinds_mean_what_they_say_where_sentences_find_more():
    rng = np.random.default_rng(4)

    def evidence(kind, n):
        return gumbel_r.rvs(10 + 4 * kind, np.exp(0.3 * kind), n, random_state=rng)

    kinds = np.repeat([0.0, 1.0], [400, 150])
    best = np.concatenate([evidence(0.0, 400), evidence(1.0, 150)])
    shares = np.where(kinds == 1.0, 1 / 150, 1 / 400)
    fit = FusedNull.fit(best, [7] * 550, 1000, ["bm25"], kinds, shares)
    for kind in (0.0, 1.0):
        e = np.exp(fit.log_evalue(evidence(kind, 4000), 1000, 7, kind))
        assert kstest(-np.expm1(-e), "uniform").statistic < 0.08
    blind = FusedNull.fit(best[:400], [7] * 400, 1000, ["bm25"])
    assert np.mean(np.exp(blind.log_evalue(evidence(1.0, 4000), 1000, 7, 1.0)) <= 0.1) > 0.5


def test_only_the_ratio_of_shares_matters():
    best, kinds = np.array([3.0, 4.0, 6.0, 5.0] * 2 + [9.0, 12.0] * 4), np.repeat([0.0, 1.0], 8)
    once = FusedNull.fit(best, [5] * 16, 100, [], kinds, np.ones(16))
    weighed = FusedNull.fit(best, [5] * 16, 100, [], kinds, np.full(16, 0.25))
    assert once == weighed


def test_the_corpus_tells_the_likeness_of_a_query_and_keeps_it(words, likeness):
    learnt = Answerability((), (), (), (), {}, {}, words)
    fused = FusedNull((8.0,), (0.0,), 0.0, 1.5, 9, ("bm25",), 40, (3.0, 0.2))
    nulls = CorpusNulls(1, {}, fused, 9, answerability=learnt, likeness=likeness)
    again = CorpusNulls.from_bytes(nulls.to_bytes())
    assert (again.likeness, again.fused) == (likeness, fused)
    assert again.likeness_of(sentence(5)) == nulls.likeness_of(sentence(5)) > 0.8 > 0.2 > nulls.likeness_of("is is the of a red a")
    assert CorpusNulls(1, {}, fused, 9, likeness=likeness).likeness_of(sentence(5)) == 0.0


def test_null_models_of_format_3_hold_for_sentences_as_for_shuffled_words():
    value = {"format": 3, "version": 1, "n_docs": 9, "spaces": {}, "answerability": None}
    value["fused"] = {"mean": [0.0], "log_scale": [0.0], "mu": 8.0, "beta": 1.5, "n_docs": 9, "spaces": ["bm25"], "max_words": 1}
    nulls = CorpusNulls.from_bytes(arrays.dump({}, {"nulls": json.dumps(value)}))
    assert nulls.likeness is None and nulls.likeness_of("how long is it") == 0.0
    assert nulls.fused.log_evalue(np.array([9.5]), 9, 30, 1.0).tolist() == [-1.0]
