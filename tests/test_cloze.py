"""Cloze probes: a passage without the sentence that asks for it."""

import pytest

from shards.cloze import MIN_WORDS, mask, masked_documents
from shards.probes import Probe

AROUND = "The harbour was quiet. {} Gulls sat on the wall, and the ferry had not come for an hour or more because of the fog at sea."


def test_the_sentence_is_gone_and_its_surroundings_stay():
    sentence = "Nobody had seen the lighthouse keeper since March"
    left = mask(AROUND.format(f"{sentence}.").encode(), sentence)
    assert b"lighthouse" not in left and b"harbour" in left and b"ferry" in left


@pytest.mark.parametrize("written", ["the_lighthouse_keeper(seen, by=nobody)", "the lighthouse\n  keeper seen by # nobody"])
def test_words_may_be_parted_by_anything_but_words(written):
    left = mask(AROUND.format(written).encode(), "the lighthouse keeper seen by nobody")
    assert b"keeper" not in left


def test_every_occurrence_in_the_window_is_removed():
    left = mask(AROUND.format("A red buoy drifts past. A red buoy drifts past.").encode(), "A red buoy drifts past")
    assert b"buoy" not in left


def test_a_long_document_is_cut_to_a_window():
    text = "filler words here " * 5_000 + "The one sentence asked for is this." + " more filler words" * 5_000
    assert len(mask(text.encode(), "The one sentence asked for is this")) < 2_100


def test_what_cannot_be_masked_is_left_out():
    assert mask(b"something else entirely", "not in there at all") is None
    assert mask(b"Too short. The sentence is all there is.", "The sentence is all there is") is None
    assert MIN_WORDS > 10
    good = AROUND.format("Nobody had seen the keeper since March.").encode()
    probes = [Probe(b"a" * 20, "Nobody had seen the keeper since March"), Probe(b"b" * 20, "never written anywhere here")]
    kept, documents = masked_documents(probes, {b"a" * 20: good, b"b" * 20: good})
    assert [p.source for p in kept] == [b"a" * 20] and documents.hashes[0].tobytes() == b"a" * 20


def test_scripts_without_spaces_are_masked_too():
    text = "港口很安静。" * 10 + "从三月起就没有人见过灯塔看守人。" + "海鸥坐在墙上。" * 10
    left = mask(text.encode(), "从三月起就没有人见过灯塔看守人")
    assert "灯塔" not in left.decode() and "海鸥" in left.decode()
