"""Null models: tables computed by hand, sums that merge over any split, and calibration on random scores."""

import json
import math

import numpy as np
import pytest
from scipy.stats import gumbel_r, kstest, norm

from serve.calibrate import N_AT_LENGTH, at_length
from shards.corpus_nulls import CorpusNulls
from shards.errors import Corrupt
from shards.nulls import (
    MIN_KNOWN_ITEMS,
    FusedNull,
    ProbeRank,
    ProbeScan,
    SpaceNull,
    ZHistogram,
    evidence_cap,
    fit_space,
    known_item_gate,
    log_signal_evalue,
    median_sd,
    merge_moments,
    normal_surprise,
    soft_cap,
    standardise,
    surprise,
)
from shards.probes import Probe
from shards.types import Moments


def fit(scores, rows, sources, parts=None, home=()):
    """The null of a space whose probe i scores scores[i] on the units; rows: documents of the units; parts: a split of units."""
    parts = [np.arange(len(rows))] if parts is None else parts

    def split(i):
        return [(scores[i][part], rows[part], sources[i]) for part in parts]

    scans = [ProbeScan.merge([ProbeScan.of(*piece) for piece in split(i)]) for i in range(len(scores))]
    median = median_sd(scans)
    ranks = [ProbeRank.merge([ProbeRank.of(*piece, scans[i], median) for piece in split(i)]) for i in range(len(scores))]
    return fit_space(scans, ranks, [(n_words, scans[i].best) for i, n_words in enumerate(home)])


def random_space(seed=0, n_probes=40, n_units=500, lift=6.0):
    """Gaussian scores; each probe's own document (two units) is lifted by `lift` sd."""
    rng = np.random.default_rng(seed)
    rows = np.repeat(np.arange(n_units // 2), 2).astype(np.int32)
    sources = rng.choice(n_units // 2, n_probes, replace=False).tolist()
    scores = rng.normal(3.0, 0.5, (n_probes, n_units))
    for i, source in enumerate(sources):
        scores[i][rows == source] += 0.5 * lift
    return scores, rows, sources


def test_merged_moments_are_those_of_all_scores_in_any_order_of_the_parts():
    scores = np.random.default_rng(3).normal(5, 2, 1000)
    parts = [Moments.of(scores[:10]), None, Moments.of(scores[10:700]), Moments(), Moments.of(scores[700:])]
    merged = merge_moments(parts)
    assert merged == merge_moments(parts[::-1])
    assert merged.n == 1000
    assert merged.mean == pytest.approx(scores.mean(), rel=1e-14)
    assert merged.m2 == pytest.approx(((scores - scores.mean()) ** 2).sum(), rel=1e-13)
    assert merge_moments([None, Moments()]) is None


def test_z_uses_the_floor_where_a_query_scores_everything_alike():
    moments = Moments.of(np.array([1.0, 3.0]))  # mean 2, sd 1
    assert standardise(np.array([4.0, -np.inf]), moments).tolist() == [2.0, -np.inf]
    assert standardise(np.array([4.0]), moments, sd_floor=4.0).tolist() == [0.5]
    assert np.isnan(standardise(np.array([np.nan]), moments)).all()
    assert standardise(np.array([4.0]), None).tolist() == [-np.inf]


def test_histogram_counts_and_sums_are_exact_and_parts_can_be_subtracted():
    z = np.array([-1e9, -0.5, 0.0, 1e-12, -1e-12, 0.25, 3.0, 1e9])
    whole = ZHistogram.of(z)
    assert whole.n == 8
    assert whole.counts[768] == 3  # rounding around 0 does not leave the middle bin
    assert whole.counts[0] == whole.counts[-1] == 1
    rest = whole - ZHistogram.of(z[2:5])
    expected = ZHistogram.of(z[:2]) + ZHistogram.of(z[5:])
    assert np.array_equal(rest.counts, expected.counts)
    assert np.array_equal(rest.sums, expected.sums)
    assert ZHistogram.of(z[5:7]).sums.sum() == round(3.25 * 2**20)


def test_table_by_hand():
    """One probe, 2,000 other units: 1,600 at z 0, 380 at z 1, 20 at z 8. At most 30 make the tail, so it begins above 1."""
    z = np.repeat([0.0, 1.0, 8.0], [1600, 380, 20])
    scan = ProbeScan(Moments(2000, 0.0, 2000.0), math.nan, 8.0, 2000)
    null = fit_space([scan], [ProbeRank(ZHistogram.of(z), 0, 0)])
    assert null.n_probes == 1
    assert null.surprises[0] == 0.0
    # between the bins of 0 and 1, surprise is -ln of the share that scored 1 or more
    assert null.surprise(np.array([0.5])) == pytest.approx([math.log(2000 / 400)], abs=1e-12)
    u = np.sinh((round(math.asinh(1) * 64) + 0.5) / 64)  # upper edge of the bin of 1: 20 are above, 8 - u on average
    assert null.knots[-1] == pytest.approx(u)
    assert null.tail_scale == pytest.approx(8 - u, abs=1e-6)
    assert null.surprise(np.array([u, 8.0])) == pytest.approx([math.log(100), math.log(100) + 1], abs=1e-6)
    assert null.surprise(np.array([-5.0, -np.inf])).tolist() == [0.0, 0.0]
    assert np.isnan(null.surprise(np.array([np.nan]))).all()
    assert null.cap == pytest.approx(math.log(2000) + 2)


def test_surprise_grows_without_ties_up_to_the_cap():
    null = fit(*random_space())
    z = np.array([2.0, 3.0, 4.0, 6.0, 10.0, 100.0, 1e4, 1e6])
    nats = null.surprise(z)
    assert (np.diff(nats) > 0).all()
    assert nats[-1] < null.cap
    assert null.surprise(np.array([np.inf])) == pytest.approx([null.cap])
    assert soft_cap(np.array([3.0, 8.9, 10.0]), 10.0) == pytest.approx([3.0, 8.9, 9.5])


def test_p_of_null_scores_is_uniform():
    print("seed 11")
    rng = np.random.default_rng(11)
    null = fit(rng.normal(0, 1, (64, 2000)), np.arange(2000, dtype=np.int32), [None] * 64)
    fresh = rng.normal(20, 7, 5000)
    p = np.exp(-surprise(null, fresh, Moments.of(rng.normal(20, 7, 100_000))))
    assert kstest(p, "uniform").statistic < 0.03
    z = np.array([1.0, 2.0, 3.0, 3.5])  # and in the tail, too
    assert null.surprise(z) == pytest.approx(-norm.logsf(z), rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_null_model_does_not_depend_on_how_units_are_split(seed):
    print(f"seed {seed}")
    scores, rows, sources = random_space(seed)
    rng = np.random.default_rng(seed)
    shard_of = rng.integers(0, 7, 250)[rows]  # documents, not units, are dealt out
    parts = [np.flatnonzero(shard_of == shard) for shard in rng.permutation(7)]
    one, many = fit(scores, rows, sources, home=[5] * 40), fit(scores, rows, sources, parts, home=[5] * 40)
    assert one.known_item == many.known_item
    assert one.knots.tolist() == many.knots.tolist()
    assert one.surprises.tolist() == many.surprises.tolist()  # from integer counts
    assert one.home_maxima.tolist() == many.home_maxima.tolist()
    assert one.tail_scale == pytest.approx(many.tail_scale, rel=1e-6)  # z is summed in steps of 2^-20
    assert one.median_sd == pytest.approx(many.median_sd, rel=1e-13)


def test_known_item_rank_counts_documents_by_their_best_unit():
    rows = np.array([0, 0, 1, 1, 2, 3], np.int32)
    scores = np.array([9.0, 8.0, 7.0, 1.0, 7.0, 2.0])
    scan = ProbeScan.of(scores, rows, 1)
    assert (scan.own, scan.best, scan.n_docs) == (7.0, 9.0, 4)
    rank = ProbeRank.of(scores, rows, 1, scan, scan.moments.sd)
    assert (rank.above, rank.tied) == (1, 1)  # document 0 above (once, not per unit), document 2 tied
    assert rank.histogram.n == 4  # units of document 1 left out


def test_gate_is_open_for_a_space_that_finds_known_items_and_shut_for_noise_hubs_and_constants():
    assert fit(*random_space(lift=6.0)).gate == 1.0
    assert fit(*random_space(lift=0.0)).gate == 0.0
    scores, rows, sources = random_space()
    hub = np.tile(np.linspace(0, 1, len(rows)), (len(scores), 1))
    assert fit(hub, rows, sources).gate < 0.2
    constant = fit(np.ones_like(scores), rows, sources)
    assert constant.gate == 0.0
    assert np.isfinite(constant.surprise(np.array([0.0]))).all()


def test_gate_formula():
    chance = math.log(1000) / 1000
    assert known_item_gate(2 * chance, 1000) == 0.0
    assert known_item_gate(3.5 * chance, 1000) == pytest.approx(0.5)
    assert known_item_gate(1.0, 1000) == 1.0
    assert [known_item_gate(1.0, n) for n in (0, 1, 2, 3, 5, 17)] == [1.0] * 6
    assert known_item_gate(math.nan, 1000) == 1.0


def test_too_few_known_items_leave_the_gate_open_and_unmeasured():
    scores, rows, sources = random_space(lift=0.0)
    few = [source if i < MIN_KNOWN_ITEMS - 1 else None for i, source in enumerate(sources)]
    null = fit(scores, rows, few)
    assert math.isnan(null.known_item)
    assert null.gate == 1.0


def test_conformal_p_is_the_rank_among_probes_of_similar_length():
    scan = ProbeScan(Moments(100, 0.0, 100.0), math.nan, 0.0, 100)
    home = [(2, 1.0 + i) for i in range(64)]
    home += [(20, 101.0 + i) for i in range(64)]
    null = fit_space([scan], [ProbeRank(ZHistogram.of(np.zeros(100)), 0, 0)], home)
    assert null.conformal_p(-np.inf, 1) == 1 / 65
    assert null.conformal_p(32.5, 2) == 33 / 65
    assert null.conformal_p(32.5, 15) == 1 / 65  # nothing for a sentence
    assert null.conformal_p(1000.0, 15) == 1.0


def test_spaces_too_small_for_a_table_have_none_and_fall_back_on_the_normal_tail():
    scores, rows, _sources = random_space()
    assert fit(scores[:, :20], rows[:20], [0] * 40) is None
    assert fit(scores[:0], rows, []) is None
    assert fit_space([ProbeScan.merge([])], [ProbeRank.merge([])]) is None
    z = np.array([0.0, 2.0, -np.inf])
    assert normal_surprise(z, 1000) == pytest.approx([math.log(2), -norm.logsf(2.0), 0.0])
    one = surprise(None, np.array([7.0, -np.inf, np.nan]), Moments.of(np.array([7.0])))
    assert one[:2] == pytest.approx([math.log(2), 0.0])
    assert np.isnan(one[2])
    assert surprise(None, np.array([]), None).tolist() == []
    assert (surprise(None, np.array([1.0, 1e300]), Moments(25, 0.0, 25.0)) <= evidence_cap(25)).all()


def test_a_scan_that_is_not_one_finite_number_per_unit_is_refused():
    with pytest.raises(ValueError, match="one row per unit"):
        ProbeScan.of(np.zeros(2), np.zeros(3, np.int32), None)
    with pytest.raises(ValueError, match="not finite"):
        ProbeScan.of(np.array([0.0, -np.inf]), np.zeros(2, np.int32), None)
    empty = ProbeScan.of(np.zeros(0), np.zeros(0, np.int32), None)
    assert (empty.moments.n, empty.best, empty.n_docs) == (0, -math.inf, 0)


def test_signal_evalue_is_p_times_units():
    assert np.exp(log_signal_evalue(np.array([math.log(1000.0)]), 10)) == pytest.approx([0.01])


def test_gumbel_fit_by_hand_and_its_growth():
    fit = FusedNull.fit(np.arange(8.0), [5] * 8, 1000, ["b", "a"])
    beta = (2 * 2.5 - 3.5) / math.log(2)  # b0 = 3.5, b1 = sum i x_i / (7 * 8) = 140 / 56
    mu = 3.5 - np.euler_gamma * beta
    assert fit.mean == (3.5,) and fit.spaces == ("a", "b") and fit.max_words == 5
    for n_words in (1, 5, 80, None):  # of one length nothing is learnt about others
        assert fit.log_evalue(np.array([mu, mu + 2 * beta]), 1000, n_words) == pytest.approx([0.0, -2.0])
    assert fit.log_evalue(np.array([mu + 2 * beta]), 10_000) == pytest.approx([-2.0 + math.log(10)])
    assert fit.log_evalue(np.array([-1e9]), 1000) == pytest.approx([math.log(1000)])
    assert FusedNull.fit(np.arange(7.0), [5] * 7, 1000, []) is None
    assert FusedNull.fit(np.zeros(20), [5] * 20, 1000, []).log_evalue(np.array([0.0]), 1000)[0] >= -1.0


def test_fused_evalue_of_null_maxima_is_calibrated():
    print("seed 5")
    rng = np.random.default_rng(5)
    fit = FusedNull.fit(gumbel_r.rvs(12, 1.7, 128, random_state=rng), [8] * 128, 1000, [])
    e = np.exp(fit.log_evalue(gumbel_r.rvs(12, 1.7, 5000, random_state=rng), 1000))
    assert kstest(-np.expm1(-e), "uniform").statistic < 0.1


def test_fused_evalue_is_calibrated_for_every_length():
    print("seed 6")
    rng = np.random.default_rng(6)

    def evidence(n_words):  # as measured: short queries vary most
        x = np.log(n_words)
        return gumbel_r.rvs(8 + 1.1 * x - 0.4 * x * x, 2.6 * np.exp(-0.35 * x), random_state=rng)

    lengths = np.tile([1, 2, 3, 4, 6, 8, 12, 20, 30, 40], 40)
    fit = FusedNull.fit(evidence(lengths), lengths, 1000, [])
    for n_words in (2, 8, 40):
        e = np.exp(fit.log_evalue(evidence(np.full(2000, n_words)), 1000, n_words))
        assert kstest(-np.expm1(-e), "uniform").statistic < 0.12
    assert fit.log_evalue(np.array([9.0]), 1000, 400) == fit.log_evalue(np.array([9.0]), 1000, 40)


def test_fused_evalue_holds_for_pasted_paragraphs_where_evidence_falls_no_further():
    print("seed 8")
    rng = np.random.default_rng(8)

    def evidence(n_words):  # means and spreads as on cisi: they fall up to some fifty words and hardly further
        x, at = np.log(n_words), np.log([2, 5, 11, 22, 37, 57, 110, 250])
        scale = np.interp(x, at, [3.8, 2.0, 1.9, 1.3, 1.0, 1.0, 0.9, 0.9]) * np.sqrt(6) / np.pi
        return (
            np.interp(x, at, [10.6, 12.3, 11.5, 10.8, 9.6, 9.2, 8.65, 8.6])
            + gumbel_r.rvs(-np.euler_gamma, 1.0, len(x), random_state=rng) * scale
        )

    short, long = np.tile([1, 2, 3, 4, 6, 8, 12, 20, 30, 40], 30), np.tile([50, 75, 100, 150, 200, 300], 8)
    lengths = np.concatenate([short, long])
    fit = FusedNull.fit(evidence(lengths), lengths, 1000, [])
    distances = []
    for n_words in (2, 4, 5, 8, 15, 30, 65, 120, 250):
        e = np.exp(fit.log_evalue(evidence(np.full(2000, n_words)), 1000, n_words))
        distances.append(kstest(-np.expm1(-e), "uniform").statistic)
    assert np.mean(distances) < 0.1, distances


def test_queries_at_length_are_spread_evenly_whatever_the_number_of_sentences():
    for n in (1, 5, 128):
        made = at_length([Probe(b"", "ten words " * 5) for _ in range(n)])
        assert [p.n_words for p in made[:6]] == [20, 30, 40, 60, 80, 120] and len(made) == N_AT_LENGTH
    assert at_length([]) == []


def test_json_round_trip_is_exact_and_small():
    scores, rows, sources = random_space(2, n_probes=128, n_units=2000)
    space = fit(scores, rows, sources, home=range(1, 129))
    hollow = fit(scores, rows, [None] * 128)
    fused = FusedNull((0.1, 0.2), (1 / 7, -0.3), 0.1 + 0.2, 1 / 3, 9, ("bm25", "dense"), 40)
    nulls = CorpusNulls(7, {"dense": space, "bm25": hollow}, fused, 1000)
    back = CorpusNulls.from_bytes(nulls.to_bytes())
    assert back.to_bytes() == nulls.to_bytes()
    assert (back.version, back.n_docs, back.fused) == (7, 1000, nulls.fused)
    for name, null in nulls.spaces.items():
        for field in SpaceNull.__slots__:
            assert np.array_equal(getattr(back.spaces[name], field), getattr(null, field), equal_nan=True), field
        assert len(json.dumps(null.to_json())) < 65_536
    assert CorpusNulls.from_bytes(CorpusNulls(1, {}, None, 0).to_bytes()).fused is None
    with pytest.raises(ValueError, match="Refit"):
        CorpusNulls.from_bytes(b'{"format": 99}')
    with pytest.raises(Corrupt, match="null models is not a readable array file"):
        CorpusNulls.from_bytes(b"cut short")


def test_null_models_of_format_1_are_read_without_what_told_nonsense():
    fused = {"mu": 8.0, "beta": 1.5, "n_docs": 9, "spaces": ["bm25"]}
    old = {"format": 1, "version": 3, "n_docs": 9, "fused": fused, "spaces": {}, "weights": {"bm25": 1.0}, "answerability": {"names": []}}
    nulls = CorpusNulls.from_bytes(json.dumps(old).encode())
    assert nulls.answerability is None and nulls.weights == {"bm25": 1.0}
    assert nulls.fused.log_evalue(np.array([8.0, 9.5]), 9, 30).tolist() == [0.0, -1.0]


def test_the_largest_table_stays_below_64_kb():
    rng = np.random.default_rng(0)
    z = np.concatenate([rng.normal(0, 1, 100_000), np.exp(rng.uniform(0, 11, 100_000))])  # a tail over five decades
    scan = ProbeScan(Moments(200_000, 0.1, 200_000.0), math.nan, 1 / 3, 1000)
    null = fit_space([scan], [ProbeRank(ZHistogram.of(z), 0, 0)], [(7, scan.best)] * 256)
    assert len(json.dumps(null.to_json())) < 65_536


def test_a_probe_without_any_other_match_keeps_its_minus_infinity():
    scan = ProbeScan(Moments(100, 0.0, 1.0), 3.0, -math.inf, 1)
    null = fit_space([scan], [ProbeRank(ZHistogram.of(np.zeros(100)), 0, 0)], [(3, scan.best)])
    assert SpaceNull.from_json(json.loads(json.dumps(null.to_json(), allow_nan=False))).home_maxima.tolist() == [-math.inf]
