"""Probes: what they are made of, and that they depend on the corpus alone."""

import hashlib

import numpy as np
import pytest

from shards.probes import (
    MAX_WORDS,
    WINDOW_BYTES,
    Probe,
    choose_probes,
    count_words,
    rank_hashes,
    sentences,
    shorten,
    shuffle_words,
    word_pools,
)


def corpus(n):
    text = "Document number {} speaks of topic {} at length. Its second sentence says nothing new at all."
    bodies = [text.format(i, i % 7).encode() for i in range(n)]
    return [(hashlib.sha256(body).digest()[:20], body) for body in bodies]


def as_array(keys):
    return np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 20)


def test_the_best_of_all_shards_best_are_the_best_of_the_corpus():
    keys = [key for key, _ in corpus(300)]
    whole = [keys[i] for i in rank_hashes(as_array(keys), b"salt")][:10]
    offers = []
    for shard in (keys[:50], keys[50:51], keys[51:]):
        offers += [shard[i] for i in rank_hashes(as_array(shard), b"salt")[:10]]
    assert [offers[i] for i in rank_hashes(as_array(offers), b"salt")][:10] == whole


def test_another_salt_ranks_otherwise_and_ties_of_eight_bytes_are_decided_by_the_rest():
    keys = [key for key, _ in corpus(50)]
    assert rank_hashes(as_array(keys), b"a").tolist() != rank_hashes(as_array(keys), b"b").tolist()
    twins = as_array([b"same8byt" + bytes([9] * 12), b"same8byt" + bytes([1] * 12)])
    assert rank_hashes(twins).tolist() == [1, 0]
    assert rank_hashes(np.zeros((0, 20), np.uint8)).tolist() == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One two three four.", []),  # too short
        ("One two three four five. And six seven eight nine ten!", ["One two three four five", "And six seven eight nine ten"]),
        ("broken over\nlines it is still one sentence", ["broken over lines it is still one sentence"]),
        ("a heading\n\nbody of text with five words", ["body of text with five words"]),
        ("def merge(self, other):\n    return self.total + other.total", ["def merge self, other return self.total other.total"]),
        ("# The user's choice is kept, well-formed or not.", ["The user's choice is kept, well-formed or not"]),
        ("1 2 3 4 5 6 7 8 9 10", []),  # a table of numbers
        ("我们的系统可以找到所有的文件。好", ["我们的系统可以找到所有的文件"]),
    ],
)
def test_sentences_are_what_could_be_asked(text, expected):
    assert sentences(text) == expected


def test_text_without_full_stops_is_cut_after_forty_words():
    pieces = sentences(" ".join(f"word{i}" for i in range(2 * MAX_WORDS + 3)))
    assert [count_words(piece) for piece in pieces] == [MAX_WORDS, MAX_WORDS]
    assert pieces[1].startswith(f"word{MAX_WORDS} ")


def test_documents_without_a_sentence_are_skipped_and_only_as_many_are_read_as_needed():
    read = []

    def ranked():
        for key, body in [(b"a" * 20, b"short."), *corpus(10)]:
            read.append(key)
            yield key, memoryview(body)

    probes = choose_probes(ranked(), b"salt", 3)
    assert [probe.source for probe in probes] == [key for key, _ in corpus(3)]
    assert all(probe.text.encode() in body for probe, (_, body) in zip(probes, corpus(3), strict=True))
    assert len(read) == 4
    assert choose_probes(corpus(2), b"salt") == choose_probes(iter(corpus(2)), b"salt")
    assert choose_probes([], b"salt") == ()
    assert choose_probes(corpus(2), b"salt", 0) == ()


def test_of_a_long_document_one_window_is_read_even_if_it_cuts_a_character():
    body = "Ünïcode wörds ärè evèrywherê hère. ".encode() * (3 * WINDOW_BYTES // 30)
    (probe,) = choose_probes([(b"k" * 20, body)])
    assert probe.text in body.decode()


def test_shuffled_queries_have_the_lengths_of_probes_and_words_of_many_documents():
    documents = corpus(40)
    probes = choose_probes(documents, b"salt", 5)
    pools = word_pools(documents, b"salt")
    queries = shuffle_words(pools, probes, b"salt", 12)
    assert queries == shuffle_words(pools, probes, b"salt", 12)
    assert len(set(queries)) == 12
    assert [count_words(query) for query in queries] == [probes[i % 5].n_words for i in range(12)]
    vocabulary = set(b" ".join(body for _, body in documents).decode().replace(".", " ").split())
    assert {word for query in queries for word in query.split()} <= vocabulary
    assert word_pools([(b"k" * 20, b"...")]) == []
    assert shuffle_words([], probes) == ()
    assert shuffle_words(pools, ()) == ()


def test_parts_of_probes_have_one_to_eight_words_and_keep_their_source():
    probes = choose_probes(corpus(20), b"salt", 20)
    parts = shorten(probes, b"salt")
    assert [part.n_words for part in parts] == [1 + i % 8 for i in range(20)]
    assert all(part.source == probe.source and part.text in probe.text for part, probe in zip(parts, probes, strict=True))
    assert shorten([Probe(b"k" * 20, "only")] * 8)[7].text == "only"
