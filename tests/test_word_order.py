"""How words stand together: hashes and counts by hand, order and unknown words, the corpus's own sentences held out."""

import itertools
from collections import Counter
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.background import BACKGROUND, strangers
from shards.probes import Probe, words_of
from shards.word_kernels import BYTE_KINDS, count_pairs, hash_words, number_words, pair_hashes
from shards.word_order import MIN_PAIRED, MIN_WORDS, WordFacts, WordOrder


def packed(*texts):
    bodies = [text.encode() for text in texts]
    ends = np.cumsum([len(body) + 1 for body in bodies]) - 1
    starts = ends - [len(body) for body in bodies]
    return np.frombuffer(b"".join(body + b"\n" for body in bodies), np.uint8), starts.astype(np.int64), ends.astype(np.int64)


def hashed(*texts):
    return hash_words(*packed(*texts), BYTE_KINDS)


def sentences(n=13_000):
    colours = ["red", "green", "blue", "grey"]
    return [f"the {colours[i % 4]} of the {colours[i // 4 % 4]} is a {colours[i // 16 % 4]}" for i in range(n)]


def fitted(texts):
    return WordOrder.fit([packed(*texts)])


@pytest.mark.parametrize(
    "text",
    [
        "", "   ", "Don't you see cross-linked IL6's?", "- a -b- 'c'", "foo_bar  x\u00e9y \u00fcber",
        "\u201cquoted\u201d \u2013 dash\u2026", "x\u2019s", "機器学習。カタカナ", "ไทย abc 機 x", "tail-",
    ],
)  # fmt: skip
def test_words_are_those_that_probes_are_made_of(text):
    assert len(hashed(text)[0]) - 1 == len(words_of(text))


def test_equal_words_have_equal_hashes_whatever_their_case_and_text():
    words, letters = hashed("The cat", "a2 THE cats the")
    assert words[0] == words[4] == words[6] != 0 and words[2] == words[7] == 0
    assert len(set(words.tolist())) == 5
    assert letters.tolist() == [True, True, False, False, True, True, True, False]


@given(st.lists(st.lists(st.sampled_from("abcdefg"), max_size=30), max_size=5))
def test_words_and_pairs_are_counted_as_a_dictionary_does(texts):
    words, _ = hashed(*map(" ".join, texts))
    numbers, keys, counts = number_words(words)
    assert dict(zip(keys.tolist(), counts.tolist(), strict=True)) == Counter(words[words != 0].tolist())
    assert [keys[n] if n >= 0 else 0 for n in numbers.tolist()] == words.tolist()
    pairs, pair_counts, followers = count_pairs(words, numbers, len(keys))
    expected = Counter(itertools.chain.from_iterable(itertools.pairwise(text) for text in texts))
    assert sorted(pair_counts.tolist()) == sorted(expected.values())
    of_pair = dict(zip(pairs.tolist(), pair_counts.tolist(), strict=True))
    for text in texts:
        for pair, key in zip(itertools.pairwise(text), pair_hashes(hashed(" ".join(text))[0][:-1]).tolist(), strict=True):
            assert of_pair[key] == expected[pair]
    assert sorted(followers.tolist()) == sorted(len({b for a, b in expected if a == word}) for word in {w for t in texts for w in t})


def test_many_distinct_words_and_pairs_are_counted_right():
    names = [f"w{i}" for i in range(20_000)]
    words, _ = hashed(" ".join(names), " ".join(names))
    numbers, keys, counts = number_words(words)
    assert len(keys) == 20_000 and (counts == 2).all()
    pairs, pair_counts, followers = count_pairs(words, numbers, len(keys))
    assert len(pairs) == 19_999 and (pair_counts == 2).all() and followers.sum() == 19_999


def test_words_in_the_corpus_order_score_above_the_same_words_in_another():
    order = fitted(sentences())
    right, wrong = order.look("the red of the green is a blue"), order.look("the the is of a a red of")
    assert right.class_mean > 0.5 > 0 > wrong.class_mean
    assert right.pair_mean > 0.5 > 0 > wrong.pair_mean
    assert order.look("") == WordFacts()
    assert order.look("the") == WordFacts()


def test_unknown_words_are_told_and_speak_neither_for_nor_against_the_order():
    order = fitted(sentences())
    facts = order.look("socket timeout certificate")
    assert (facts.class_mean, facts.pair_mean, facts.unknown, facts.unknown_weight) == (0.0, 0.0, 1.0, 1.0)
    facts = order.look("the red socket")
    assert facts.unknown == pytest.approx(1 / 3) and 1 / 3 < facts.unknown_weight < 1


def test_mean_sum_and_total_agree():
    facts = fitted(sentences()).look("the red of the")
    assert facts.class_sum == pytest.approx(facts.class_mean * 3**0.5)
    assert (facts.pair_sum, facts.pair_total) == pytest.approx((facts.pair_mean * 3**0.5, facts.pair_mean * 3))


def test_a_sentence_of_the_corpus_is_looked_at_as_if_it_had_not_been_there():
    own = "zebra quagga okapi kudu"
    held_out = fitted([*sentences(), own]).look(own, own=True)
    never = fitted([*sentences(), "lorem ipsum dolor sit"]).look(own)  # as many words and pairs
    assert astuple(held_out)[2:] == pytest.approx(astuple(never)[2:])  # of frequent words one more or less is nothing
    assert held_out.unknown == 1.0
    twice = fitted([*sentences(), own, own])
    assert twice.look(own, own=True).pair_sum > 1 and twice.look(own, own=True).unknown == 0.0


def test_the_same_counts_come_from_any_split_of_the_corpus():
    texts = sentences()
    one, many = fitted(texts), WordOrder.fit([packed(*texts[::2]), packed(*texts[1::2])])
    assert all(np.array_equal(a, many.to_arrays()[name]) for name, a in one.to_arrays().items())


def test_a_small_sample_shows_no_order_but_which_words_it_knows():
    assert fitted(["some words"] * (MIN_WORDS // 2 - 1)) is None
    texts = sentences(MIN_PAIRED // 8 - 1)
    assert fitted(texts).look("the red of zebra") == WordFacts(unknown=0.25, unknown_weight=pytest.approx(0.666, abs=0.001))
    assert fitted([*texts, *texts]).look("the red of zebra").pair_sum != 0.0


def test_what_was_counted_survives_storage():
    order = fitted(sentences())
    again = WordOrder.from_arrays(order.to_arrays())
    assert again.look("the red of zebra") == order.look("the red of zebra")


def test_frequent_words_are_found_among_others():
    assert fitted(sentences()).frequent_of(["the", "red", "zebra", "the red", ""]) == {"the", "red"}


def test_the_cohort_of_strangers_is_for_corpora_in_its_language():
    english = fitted([*BACKGROUND, *sentences()])
    assert strangers([], english) == BACKGROUND
    other = fitted([f"mi{i % 7} kon{i % 11} bela{i % 13} domo{i % 3} estas{i % 5}" for i in range(25_000)])
    own = [Probe(bytes([i]) * 20, f"mi{i} kon{i} bela{i} domo{i}") for i in range(12)]
    queries = strangers(own, other)
    assert len(queries) == 12 and not set(queries) & {*BACKGROUND, *(probe.text for probe in own)}


def test_strangers_are_distinct_and_of_all_lengths_of_questions():
    lengths = [len(words_of(text)) for text in BACKGROUND]
    assert len(set(BACKGROUND)) == len(BACKGROUND) and min(lengths) == 1 and max(lengths) > 20
