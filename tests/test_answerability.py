"""Answered or nonsense: a regression with a hand-made separation, and what the verdict makes of both."""

import json
from dataclasses import replace

import numpy as np
from test_evidence import MOMENTS, N_DOCS, NULLS, candidates, exact, similar

from serve.answerable import feature_names, features
from serve.evidence import fuse
from serve.verdict import judge
from shards.answerability import MIN_EXAMPLES, REFUSED, Answerability
from shards.probes import Probe, random_strings, swap_words
from shards.word_order import WordFacts


def kinds(n=200, seed=4):
    """Two features; order nonsense lacks the first, topic nonsense the second."""
    rng = np.random.default_rng(seed)
    answered = rng.normal([2.0, 2.0], 0.5, (n, 2))
    return answered, {"order": rng.normal([-1.0, 2.0], 0.5, (n, 2)), "topic": rng.normal([2.0, -1.0], 0.5, (n, 2))}


def fitted(**changes):
    answered, senseless = kinds()
    return Answerability.fit(["a", "b"], ["bm25"], changes.get("answered", answered), changes.get("senseless", senseless))


def test_each_kind_of_nonsense_is_refused_by_its_own_test():
    learnt = fitted()
    margins = learnt.margins(np.array([-1.0, 2.0]))
    assert margins["order"] < 0 < margins["topic"]
    margins = learnt.margins(np.array([2.0, -1.0]))
    assert margins["topic"] < 0 < margins["order"]
    assert min(learnt.margins(np.array([2.0, 2.0])).values()) > 0


def test_the_threshold_refuses_the_share_of_the_answered_that_it_may():
    learnt, (answered, _) = fitted(), kinds()
    for kind in ("order", "topic"):
        refused = sum(learnt.margins(row)[kind] < 0 for row in answered)
        assert abs(refused - REFUSED[kind] * len(answered)) <= 1


def test_with_too_few_of_any_kind_nothing_is_learnt():
    answered, senseless = kinds()
    assert fitted(answered=answered[: MIN_EXAMPLES - 1]) is None
    assert fitted(senseless=senseless | {"topic": senseless["topic"][: MIN_EXAMPLES - 1]}) is None


def test_the_last_bits_of_features_change_nothing():
    answered, _ = kinds()
    assert fitted().to_json() == fitted(answered=answered * (1 + 1e-13)).to_json()


def test_a_constant_feature_says_nothing():
    answered, senseless = kinds()

    def wide(a):
        return np.column_stack([a, np.ones(len(a))])

    learnt = Answerability.fit(["a", "b", "c"], ["bm25"], wide(answered), {k: wide(v) for k, v in senseless.items()})
    assert learnt.tests["order"][2] == learnt.tests["topic"][2] == 0.0


def test_what_was_learnt_survives_json():
    learnt = fitted()
    assert Answerability.from_json(json.loads(json.dumps(learnt.to_json())), None) == learnt


def test_a_test_learns_nothing_from_what_it_must_not_look_at():
    answered, senseless = kinds()
    learnt = Answerability.fit(["a", "b"], ["bm25"], answered, senseless, unused={"topic": {"b"}})
    assert learnt.tests["topic"][1] == 0.0 != learnt.tests["order"][1]


def test_swapped_sentences_keep_common_words_and_know_no_own_rare_one():
    probes = [Probe(bytes([i]) * 20, f"the cat{i} of the dog{i}") for i in range(40)]
    swapped = swap_words(probes, {"the", "of"})
    assert len(swapped) == 40 and swapped == swap_words(probes, {"the", "of"})
    assert all(text.split()[0] == "the" and text.split()[2:4] == ["of", "the"] for text in swapped)
    assert sum(text == probe.text for text, probe in zip(swapped, probes, strict=True)) < 3
    backwards = [text for text in swapped if "tac" in text or "god" in text]
    assert 0 < len(backwards) <= 20
    assert swap_words(probes, {word for probe in probes for word in probe.text.split()}) == ()


def test_random_strings_are_of_the_lengths_promised():
    strings = random_strings(60)
    assert {len(text.split()) for text in strings} == {1, 2, 3, 4, 5, 6}
    assert {len(word) for text in strings for word in text.split()} == set(range(4, 13))
    assert len(set(strings)) == 60


SPACES = similar("bm25", "dense")


def taught(near=-1.0):
    """Null models that refuse a query where bm25 finds less than `near`, as topic nonsense."""
    names = feature_names(("bm25", "dense"))
    ones = tuple(1.0 if name == "bm25 near" else 0.0 for name in names)
    zeros = (0.0,) * len(names)
    learnt = Answerability(
        tuple(names), ("bm25", "dense"), zeros, (1.0,) * len(names), {"order": zeros, "topic": ones}, {"order": -1.0, "topic": near}, None
    )
    return replace(NULLS, answerability=learnt)


def judged(scores, nulls, spaces=SPACES, silent=(), **more):
    moments = [None if space.null == "rarity" else MOMENTS for space in spaces]
    fused = fuse(candidates(scores, moments), spaces, nulls, N_DOCS, silent)
    return judge(fused, spaces, nulls, **{"text": "what is this about"} | more)


def test_features_have_the_names_they_are_learnt_under():
    fused = fuse(candidates([[3.0, 1.0], [-np.inf, 2.0]], [MOMENTS, MOMENTS]), SPACES, NULLS, N_DOCS)
    half = [replace(SPACES[0], most=6.0), SPACES[1]]
    facts = features(fused, half, ("bm25", "dense"), "two words", WordFacts(pair_sum=-2.5, unknown=0.5))
    values = dict(zip(feature_names(("bm25", "dense")), facts, strict=True))
    assert values["bm25 near"] == 0.5 and values["dense near"] == 2.0 and values["length"] == np.log(2)
    assert values["bm25 top 10 near"] == 0.5 and values["dense top 10 near"] == 1.5
    assert values["pair order sum"] == -2.5 and values["unknown words"] == 0.5
    assert values["dense best in bm25"] == 0.0 and values["bm25 best in dense"] == fused.surprises[0, 1]
    assert values["dense top 10 in bm25"] == fused.surprises[:, 0].mean()


def test_what_was_learnt_decides_between_none_and_the_rest():
    assert judged([[3.0, 3.0]], taught(near=2.0))[0] == "weak"
    verdict, why = judged([[3.0, 3.0]], taught(near=4.0))
    assert verdict == "none" and "something else" in why
    assert judged([[30.0, 3.0]], taught(near=40.0))[0] == "none"  # much evidence for one document is none for an answer
    assert judged([[3.0, 3.0]], taught(near=4.0), explicit=True)[0] == "weak"
    assert judged([[3.0, 3.0]], taught(near=4.0), text=None)[0] == "weak"


def test_exact_matches_rarer_than_chance_are_believed_all_the_same():
    assert judged([[3.0, 3.0, 1.0]], taught(near=4.0), [*SPACES, exact("text", 40.0)])[0] == "strong"
    assert judged([[3.0, 3.0, 1.0]], taught(near=4.0), [*SPACES, exact("text", 0.5)])[0] == "none"


def test_only_the_same_spaces_over_the_whole_corpus_are_judged_by_what_was_learnt():
    nulls = taught(near=4.0)
    assert judged([[3.0]], nulls, similar("dense"))[0] == "weak"
    assert judged([[3.0]], nulls, similar("dense"), silent=["bm25"])[0] == "none"
    assert judged([[3.0, 3.0]], nulls, similar("bm25", "dense", n_units=N_DOCS // 2))[0] == "weak"
    assert judged([[3.0, 3.0]], nulls, [replace(SPACES[0], whole=False), SPACES[1]])[0] == "weak"
