"""Fusion: evidence adds up over spaces, and depends neither on placement nor on the plan's order."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from serve.evidence import CERTAINTY, SpaceFacts, fuse, log_combined_p
from shards.candidates import merge
from shards.corpus_nulls import CorpusNulls
from shards.nulls import FusedNull, ProbeRank, ProbeScan, fit_space, median_sd
from shards.types import Candidates, Moments

N_DOCS = 400


def keys(n, seed=0):
    hashes = np.random.default_rng(seed).integers(0, 256, (n, 20), dtype=np.uint8)
    return hashes[np.lexsort(hashes.T[::-1])]


def space_null(seed, lift=8.0):
    """A Gaussian space of 400 documents with one unit each, probes lifted by `lift` sd."""
    rng = np.random.default_rng(seed)
    rows = np.arange(N_DOCS, dtype=np.int32)
    scores = rng.normal(0, 1, (64, N_DOCS))
    scores[np.arange(64), np.arange(64)] += lift
    scans = [ProbeScan.of(scores[i], rows, i) for i in range(64)]
    ranks = [ProbeRank.of(scores[i], rows, i, scans[i], median_sd(scans)) for i in range(64)]
    return fit_space(scans, ranks, [(10, scan.best) for scan in scans])


NULLS = CorpusNulls(
    1,
    {"bm25": space_null(1), "dense": space_null(2), "junk": space_null(3, lift=0.0)},
    FusedNull((0.0,), (0.0,), 8.0, 1.5, N_DOCS, ("bm25", "dense"), 1),
    N_DOCS,
)
MOMENTS = Moments(N_DOCS, 0.0, float(N_DOCS))  # z is the score


def candidates(scores, moments, hashes=None, generated=None):
    scores = np.array(scores, np.float64)
    n, s = scores.shape
    return Candidates(
        hashes=keys(n) if hashes is None else hashes,
        generated=np.isfinite(scores) if generated is None else generated,
        scores=scores,
        starts=np.arange(n * s).reshape(n, s),
        ends=np.arange(n * s).reshape(n, s) + 5,
        moments=tuple(moments),
        n_matched=np.zeros(s, np.int64),
        status=(),
    )


def similar(*names, n_units=N_DOCS):
    return [SpaceFacts(name, "moments", n_units) for name in names]


def exact(name, nats, n_units=N_DOCS):
    return SpaceFacts(name, "rarity", n_units, surprise=lambda scores: np.where(np.isfinite(scores), nats, 0.0))


def test_fused_evidence_is_the_sum_of_surprises_weighted_by_gates():
    found = candidates([[3.0, 1.0], [0.5, 2.0], [1.0, 1.5]], [MOMENTS, MOMENTS])
    fused = fuse(found, similar("bm25", "dense"), NULLS, N_DOCS)
    by_hand = NULLS.spaces["bm25"].surprise(found.scores[:, 0]) + NULLS.spaces["dense"].surprise(found.scores[:, 1])
    assert fused.fused.tolist() == by_hand.tolist()
    assert fused.order.tolist() == np.argsort(-by_hand).tolist()
    assert fused.nulls == ("probes", "probes")
    assert fused.gates.tolist() == fused.weights.tolist() == [1.0, 1.0]
    assert fused.z.tolist() == found.scores.tolist()
    assert fused.fused_null == "gumbel"
    assert fused.log_evalues == pytest.approx(np.minimum((8.0 - by_hand) / 1.5, math.log(N_DOCS)))
    assert fused.signal_log_evalues == pytest.approx(math.log(N_DOCS) - fused.surprises)


def test_not_scored_and_no_match_are_no_evidence_but_no_harm_either():
    found = candidates([[np.nan, 3.0], [-np.inf, 3.0], [-3.0, 3.0]], [MOMENTS, MOMENTS])
    fused = fuse(found, similar("bm25", "dense"), NULLS, N_DOCS)
    assert fused.surprises[:2, 0].tolist() == [0.0, 0.0]
    assert np.isnan(fused.signal_log_evalues[:2, 0]).all()
    assert fused.fused[0] == fused.fused[1]
    assert np.isfinite(fused.fused).all()
    assert fused.best.tolist() == [1, 1, 1]


def test_ties_are_ordered_by_hash():
    found = candidates([[2.0], [5.0], [2.0], [2.0]], [MOMENTS])
    assert fuse(found, similar("bm25"), NULLS, N_DOCS).order.tolist() == [1, 0, 2, 3]


def test_a_junk_space_is_gated_out():
    found = candidates([[4.0, 0.0], [0.0, 3.3]], [MOMENTS, MOMENTS])
    fused = fuse(found, similar("dense", "junk"), NULLS, N_DOCS)
    assert fused.weights.tolist() == [1.0, 0.0]
    assert fused.order.tolist() == [0, 1]
    assert fused.best.tolist() == [0, 0]


def test_a_gated_space_still_counts_where_it_certifies_itself():
    """Its best hit is far beyond what 400 units give by chance: E <= 0.01."""
    found = candidates([[1.0, 0.0], [0.0, 40.0]], [MOMENTS, MOMENTS])
    fused = fuse(found, similar("dense", "junk"), NULLS, N_DOCS)
    assert fused.gates.tolist() == [1.0, 0.0]
    assert fused.weights[1] > 0.9
    assert fused.order.tolist() == [1, 0]


def test_where_every_space_asked_is_gated_none_is_better_and_the_ranking_stays():
    found = candidates([[1.0], [2.0], [3.0]], [MOMENTS])
    fused = fuse(found, similar("junk"), NULLS, N_DOCS)
    assert fused.weights.tolist() == [1.0]
    assert fused.order.tolist() == [2, 1, 0]


def partly(name, built=0.5):
    return SpaceFacts(name, "moments", N_DOCS, partly=True, built=built)


def test_documents_that_happen_to_have_an_index_do_not_pass_by_those_that_have_none():
    bm25, dense = [4.0, 2.2, 2.0, 1.0], [2.0, np.nan, 2.9, np.nan]
    found = candidates(np.column_stack([bm25, dense]), [MOMENTS, MOMENTS])
    fused = fuse(found, [*similar("bm25"), partly("dense")], NULLS, N_DOCS)
    alone = NULLS.spaces["bm25"].surprise(np.array(bm25))
    counts = NULLS.spaces["dense"].surprise(np.array([2.0]))[0]  # the first is looked at, the second is not: it counts up to there
    assert fused.fused.tolist() == pytest.approx([alone[0] + counts, *alone[1:]])
    assert fused.order.tolist() == [0, 1, 2, 3]
    assert fused.fused_null == "bound"  # no null was fitted on such a sum
    assert fuse(found, similar("bm25", "dense"), NULLS, N_DOCS).order.tolist()[:2] == [0, 2], "or this test shows nothing"


def test_what_a_partly_built_space_is_certain_of_counts_wherever_it_stands():
    found = candidates([[4.0, np.nan], [1.0, 40.0], [2.0, 3.0]], [MOMENTS, MOMENTS])
    fused = fuse(found, [*similar("bm25"), partly("dense")], NULLS, N_DOCS)
    assert fused.order.tolist() == [1, 0, 2]
    assert fused.surprises[1, 1] == NULLS.spaces["dense"].surprise(np.array([40.0]))[0] and fused.surprises[2, 1] == 0.0


@pytest.mark.parametrize("name", ["dense", "never fitted"])
def test_a_partly_built_space_that_cannot_be_compared_or_judged_changes_nothing(name):
    scores = [[3.0, np.nan], [1.0, 3.0]] if name in NULLS.spaces else [[3.0, 40.0], [1.0, 3.0]]
    nulls = replace(NULLS, fused=replace(NULLS.fused, spaces=("bm25",)))
    found = candidates(scores, [MOMENTS, MOMENTS])
    fused = fuse(found, [*similar("bm25"), partly(name)], nulls, N_DOCS)
    without = fuse(candidates([[3.0], [1.0]], [MOMENTS], found.hashes), similar("bm25"), nulls, N_DOCS)
    assert fused.fused.tolist() == without.fused.tolist() and fused.log_evalues.tolist() == without.log_evalues.tolist()
    assert fused.fused_null == without.fused_null == "gumbel" and fused.weights.tolist() == [1.0, 0.0]


def test_a_lone_exact_match_wins_over_noise_in_all_other_spaces():
    rng = np.random.default_rng(7)
    n = 100
    scores = np.column_stack([rng.normal(2.5, 0.8, (n, 3)), np.full(n, -np.inf)])
    scores[42] = [-1.0, -1.0, -1.0, 1.0]
    spaces = [*similar("bm25", "dense", "junk"), exact("text", 200.0)]
    fused = fuse(candidates(scores, [MOMENTS] * 3 + [None]), spaces, NULLS, N_DOCS)
    assert fused.order[0] == 42
    assert fused.nulls[3] == "rarity"
    assert CERTAINTY - 1 < fused.surprises[42, 3] < CERTAINTY
    assert fused.best[42] == 3
    assert np.isnan(fused.z[:, 3]).all()


def test_two_certain_matches_outweigh_one_and_rarer_outweighs_rare():
    scores = [[1.0, -np.inf], [1.0, 1.0], [-np.inf, 1.0]]
    fused = fuse(candidates(scores, [None, None]), [exact("names", 100.0), exact("text", 300.0)], None, N_DOCS)
    assert fused.order.tolist() == [1, 2, 0]
    assert fused.fused[1] == pytest.approx(2 * CERTAINTY, abs=0.1)
    assert fused.starts.tolist() == [0, 3, 5]  # of the rarer match


def test_the_span_comes_from_the_source_even_if_a_derived_space_is_louder():
    found = candidates([[2.0, 9.0], [-np.inf, 9.0]], [MOMENTS, MOMENTS])
    spaces = [similar("bm25")[0], SpaceFacts("dense", "moments", N_DOCS, origin="derived")]
    fused = fuse(found, spaces, NULLS, N_DOCS)
    assert fused.best.tolist() == [0, 1]
    assert fused.starts.tolist() == [0, 3]
    assert fused.ends.tolist() == [5, 8]


def test_the_plans_order_of_spaces_does_not_change_a_bit():
    rng = np.random.default_rng(1)
    scores = rng.normal(1, 1.5, (50, 3))
    one = fuse(candidates(scores, [MOMENTS] * 3), similar("bm25", "dense", "junk"), NULLS, N_DOCS)
    other = fuse(candidates(scores[:, [2, 0, 1]], [MOMENTS] * 3), similar("junk", "bm25", "dense"), NULLS, N_DOCS)
    assert one.fused.tolist() == other.fused.tolist()
    assert one.log_evalues.tolist() == other.log_evalues.tolist()
    assert (one.best + 1).tolist() == np.where(other.best == 0, 3, other.best).tolist()


def test_other_spaces_than_the_fit_knew_give_a_bound_instead_of_the_gumbel():
    found = candidates([[3.0]], [MOMENTS])
    assert fuse(found, similar("bm25"), NULLS, N_DOCS).fused_null == "bound"
    silent = fuse(found, similar("bm25"), NULLS, N_DOCS, silent=["dense"])
    assert (silent.fused_null, silent.silent) == ("gumbel", {"dense"})
    both = candidates([[3.0, 3.0, -np.inf]], [MOMENTS, MOMENTS, None])
    assert fuse(both, [*similar("dense", "bm25"), exact("text", 9.0)], NULLS, N_DOCS).fused_null == "gumbel"


def test_bound_on_combined_p_holds_for_equal_and_for_independent_spaces():
    rng = np.random.default_rng(2)
    alone = rng.exponential(1, 20_000)
    for x in (np.column_stack([alone] * 3), rng.exponential(1, (20_000, 3))):
        p = np.exp(log_combined_p(x.sum(axis=1), 3.0, 3))
        assert all((p <= level).mean() <= level * 1.1 for level in (0.01, 0.05, 0.2))
    assert log_combined_p(np.array([5.0]), 1.0, 1).tolist() == [-5.0]
    assert log_combined_p(np.array([5.0]), 0.0, 0).tolist() == [0.0]


def test_a_fresh_corpus_takes_the_normal_tail_and_says_so():
    fused = fuse(candidates([[2.0], [1.0]], [MOMENTS]), similar("bm25"), None, N_DOCS)
    assert fused.nulls == ("normal",)
    assert fused.fused_null == "bound"
    assert fused.surprises[:, 0] == pytest.approx(-norm.logsf([2.0, 1.0]))


@pytest.mark.parametrize("n_docs", [1, 2, 5, 50])
def test_tiny_corpora_rank_the_best_document_first(n_docs):
    raw = np.zeros(n_docs)
    raw[n_docs // 2] = 7.5
    scores = np.column_stack([np.where(raw > 0, raw, -np.inf), 0.1 + raw / 100])
    found = candidates(scores, [Moments.of(raw), Moments.of(scores[:, 1])])
    fused = fuse(found, similar("bm25", "dense", n_units=n_docs), None, n_docs)
    assert fused.order[0] == n_docs // 2
    assert np.isfinite(fused.fused).all()
    assert (fused.log_evalues <= math.log(n_docs)).all()


def test_no_candidates_and_no_spaces_give_empty_arrays():
    nothing = fuse(candidates(np.zeros((0, 2)), [None, None]), similar("bm25", "dense"), NULLS, N_DOCS)
    assert nothing.order.tolist() == nothing.fused.tolist() == nothing.starts.tolist() == []
    assert nothing.surprises.shape == (0, 2)
    assert fuse(candidates(np.zeros((0, 0)), []), [], None, 0).fused.tolist() == []
    lost = fuse(candidates([[1.0]], [None]), similar("bm25"), NULLS, N_DOCS)  # moments gone with their shard
    assert lost.fused.tolist() == [0.0]
    assert lost.best.tolist() == [-1]


@pytest.mark.parametrize("seed", range(8))
def test_evidence_does_not_depend_on_how_documents_are_spread_over_shards(seed):
    """Each part lists its own best 20 documents of each space; merged and fused, that is what one part would give."""
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    n, k, spaces = N_DOCS, 20, similar("bm25", "dense", "junk")
    hashes = keys(n, seed)
    scores = np.round(rng.normal(0, 1, (n, 3)), 1)  # rounded: many ties
    scores[rng.random((n, 3)) < 0.3] = -np.inf

    def answer(rows):
        mine = scores[rows]
        generated = np.zeros(mine.shape, bool)
        for j in range(3):
            order = np.lexsort((*hashes[rows].T[::-1], -mine[:, j]))[:k]
            generated[order, j] = np.isfinite(mine[order, j])
        listed = np.flatnonzero(generated.any(axis=1))
        moments = [Moments.of(np.where(np.isfinite(mine[:, j]), mine[:, j], 0.0)) for j in range(3)]
        part = candidates(mine[listed], moments, hashes[rows][listed], generated[listed])
        return replace(part, starts=part.starts * 0, ends=part.ends * 0)

    whole = fuse(merge([answer(np.arange(n))], k), spaces, NULLS, n)
    shard_of = rng.integers(0, 16, n)
    parts = [answer(np.flatnonzero(shard_of == shard)) for shard in rng.permutation(16)]
    hosts = [merge(parts[:3], k), merge(parts[3:9], k), *parts[9:]]
    for spread in (parts, parts[::-1], hosts):
        fused = fuse(merge(spread, k), spaces, NULLS, n)
        assert fused.hashes.tolist() == whole.hashes.tolist()
        assert fused.scores.tolist() == whole.scores.tolist()
        assert fused.order.tolist() == whole.order.tolist()
        assert np.exp(fused.log_evalues) == pytest.approx(np.exp(whole.log_evalues), rel=1e-12)
        signals = np.isfinite(whole.signal_log_evalues)
        assert fused.signal_log_evalues[signals] == pytest.approx(whole.signal_log_evalues[signals], abs=1e-12)


def test_learnt_weights_take_the_place_of_gates_and_the_best_space_asked_counts_fully():
    spaces = similar("bm25", "dense")
    learnt = replace(NULLS, weights={"bm25": 1.0, "dense": 0.25})
    made = candidates([[4.0, 4.0], [3.0, 5.0]], [MOMENTS, MOMENTS])
    fused = fuse(made, spaces, learnt, N_DOCS)
    assert fused.weights.tolist() == [1.0, 0.25]
    np.testing.assert_allclose(fused.fused, fused.surprises @ [1.0, 0.25])
    alone = fuse(candidates([[4.0]], [MOMENTS]), similar("dense"), learnt, N_DOCS)
    assert alone.weights.tolist() == [1.0]
    useless = replace(NULLS, weights={"bm25": 1.0, "dense": 0.0})
    assert fuse(candidates([[4.0]], [MOMENTS]), similar("dense"), useless, N_DOCS).weights.tolist() == [1.0]
    assert fuse(made, spaces, useless, N_DOCS).weights.tolist() == [1.0, 0.0]
