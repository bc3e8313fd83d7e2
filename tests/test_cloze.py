"""Cloze probes: a passage without the sentence that asks for it."""

import pytest

from shards.cloze import MIN_PROBES, MIN_WORDS, cloze_probes, mask, masked_documents
from shards.probes import Probe, echo, words_of

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


def test_two_of_five_sources_keep_an_echo_of_their_sentence_if_asked_to():
    sentence = "Nobody had seen the old lighthouse keeper or his three grey dogs since that stormy night in early March"
    rendition = AROUND.format(f"{sentence}.").encode()
    probes = [Probe(bytes([i]) * 20, sentence) for i in range(7)]
    plain, heard = (masked_documents(probes, {p.source: rendition for p in probes}, echoes=e)[1] for e in (False, True))
    differ = [bytes(plain.content(i)) != bytes(heard.content(i)) for i in range(7)]
    assert differ == [False, True, False, True, False, False, True]
    left = bytes(heard.content(6)).decode()
    assert left == f"{bytes(plain.content(6)).decode()} {echo(probes[6], 0.25)}"


def test_an_echo_is_a_share_of_the_words_in_their_order():
    probe = Probe(b"a" * 20, " ".join(f"word{i}" for i in range(4_000)))
    kept = [int(word.removeprefix("word")) for word in words_of(echo(probe, 0.25))]
    assert kept == sorted(set(kept)) and 900 < len(kept) < 1_100
    assert echo(probe, 0.0) == "" and echo(probe, 1.0) == probe.text


CODE = """def moor(ship, at):
    # We must not tie up where the
    # ferry is about to land.
    if ship is not None and at is not None: return at.tie(ship, at.rings[{i}])
    raise HarbourError("there is no ship that could be moored")
"""


def test_of_code_people_ask_in_the_words_that_stand_between_it():
    documents = [(i.to_bytes(20, "big"), CODE.format(i=i).encode()) for i in range(MIN_PROBES)]
    probes = cloze_probes(documents, MIN_PROBES)
    assert {p.text for p in probes} == {"We must not tie up where the ferry is about to land", "there is no ship that could be moored"}


def test_where_code_is_all_there_is_code_is_asked():
    documents = [(i.to_bytes(20, "big"), f"def moor(ship, at):\n    return at.tie(ship, at.rings[{i}])\n".encode()) for i in range(9)]
    assert len(cloze_probes(documents, 9)) == 9


def test_scripts_without_spaces_are_masked_too():
    text = "港口很安静。" * 10 + "从三月起就没有人见过灯塔看守人。" + "海鸥坐在墙上。" * 10
    left = mask(text.encode(), "从三月起就没有人见过灯塔看守人")
    assert "灯塔" not in left.decode() and "海鸥" in left.decode()
