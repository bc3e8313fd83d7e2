"""Some of the spaces by themselves: their weights are those of their own company, and so is the null of their sum."""

import json
from dataclasses import replace

import numpy as np
import pytest
from test_evidence import MOMENTS, N_DOCS, NULLS, candidates, exact, similar

from serve.evidence import fuse, weigh
from shards.corpus_nulls import CorpusNulls, Selection
from shards.nulls import FusedNull
from shards.weights import Choices, fit_weights, selections

ALONE = FusedNull((0.0,), (0.0,), 6.0, 1.0, N_DOCS, ("dense",), 1)
TAUGHT = replace(
    NULLS,
    weights={"bm25": 1.0, "dense": 0.25},
    selections={("bm25",): Selection({"bm25": 1.0}, None), ("dense",): Selection({"dense": 1.0}, ALONE)},
)


def test_every_choice_of_few_spaces_is_looked_at_and_of_many_the_likely_ones():
    assert list(selections(["b", "a"])) == [("a",), ("b",)]
    assert len(list(selections("abcd"))) == 2**4 - 2
    many = list(selections("abcdefgh"))
    assert {len(some) for some in many} == {1, 2, 7} and len(many) == 8 + 28 + 8


def test_weights_of_a_choice_are_fitted_to_these_spaces_alone():
    rng = np.random.default_rng(4)
    made = [(rng.exponential(1.0, 3) + rng.exponential(1.0, 3) * [6.0, 5.0, 1.0], rng.exponential(1.0, (50, 3))) for _ in range(80)]
    choices = Choices(("a", "b", "c"), made)
    assert list(choices.weights(["a", "b", "c"]).values()) == fit_weights(made).tolist()
    pair = fit_weights([(right[1:], rest[:, 1:]) for right, rest in made])
    assert choices.weights(["c", "b"]) == dict(zip("bc", pair.tolist(), strict=True)) and pair[0] == 1.0
    assert choices.weights(["b", "elsewhere"]) == {"b": 1.0}
    assert choices.weights(["elsewhere"]) == {}
    assert choices.found()["a"] > choices.found()["c"]


def test_a_space_that_was_not_asked_leaves_the_others_what_they_count_without_it():
    found = candidates([[3.0], [2.0]], [MOMENTS])
    assert weigh(found, similar("dense"), TAUGHT).weights.tolist() == [1.0]
    both = candidates([[3.0, 3.0]], [MOMENTS, MOMENTS])
    assert weigh(both, similar("bm25", "dense"), TAUGHT).weights.tolist() == [1.0, 0.25]


def test_a_space_that_failed_on_every_shard_is_as_one_that_was_not_asked():
    broken = candidates([[np.nan, 3.0], [np.nan, 2.0]], [None, MOMENTS])
    fused = fuse(broken, similar("bm25", "dense"), TAUGHT, N_DOCS)
    alone = fuse(candidates([[3.0], [2.0]], [MOMENTS]), similar("dense"), TAUGHT, N_DOCS)
    assert fused.fused.tolist() == alone.fused.tolist()
    assert fused.log_evalues.tolist() == alone.log_evalues.tolist() and fused.fused_null == "gumbel"


def test_a_space_that_had_nothing_to_ask_still_tells_what_the_others_count():
    found = candidates([[3.0]], [MOMENTS])
    weighed = weigh(found, similar("dense"), TAUGHT, silent=["bm25"])
    assert weighed.weights.tolist() == [0.25]


def test_spaces_of_matches_that_had_nothing_to_ask_change_no_evalue():
    found = candidates([[3.0, 1.0]], [MOMENTS, MOMENTS])
    quiet = fuse(found, similar("bm25", "dense"), TAUGHT, N_DOCS, silent=["text", "names"])
    assert quiet.fused_null == "gumbel"
    assert quiet.log_evalues.tolist() == fuse(found, similar("bm25", "dense"), TAUGHT, N_DOCS).log_evalues.tolist()


def test_the_evalue_of_a_choice_is_by_its_own_null_and_a_bound_where_there_is_none():
    fused = fuse(candidates([[9.0]], [MOMENTS]), similar("dense"), TAUGHT, N_DOCS)
    assert fused.fused_null == "gumbel"
    assert fused.log_evalues[0] == pytest.approx(6.0 - fused.fused[0])
    assert fuse(candidates([[9.0]], [MOMENTS]), similar("bm25"), TAUGHT, N_DOCS).fused_null == "bound"
    beside = candidates([[9.0, 1.0]], [MOMENTS, None])  # a match counts beside it, and has no part in the null
    assert fuse(beside, [*similar("dense"), exact("text", 5.0)], TAUGHT, N_DOCS).fused_null == "gumbel"


def test_choices_survive_in_the_file_of_null_models_to_the_bit():
    kept = CorpusNulls.from_bytes(TAUGHT.to_bytes())
    assert kept.selections == TAUGHT.selections
    assert kept.to_bytes() == TAUGHT.to_bytes()
    old = CorpusNulls.from_bytes(replace(TAUGHT, selections={}).to_bytes())
    assert old.selections == {} and json.loads(json.dumps(old.weights_among(["dense"]))) == {"dense": 0.25}
