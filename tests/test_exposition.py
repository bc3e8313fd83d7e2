"""Histograms, and the text that Prometheus reads: what is written is what its own parser reads back."""

import math
import random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serve.exposition import BOUNDS_S, Family, Histogram, exposition


def filled(*seconds: float) -> Histogram:
    made = Histogram()
    for value in seconds:
        made.observe(value)
    return made


def test_a_value_on_a_bound_counts_below_it_as_prometheus_has_it():
    at = BOUNDS_S.index(0.01)
    assert filled(0.01).counts[at] == 1 and filled(0.010001).counts[at + 1] == 1
    assert filled(1e9).counts[-1] == 1 and filled(0.0).counts[0] == 1


def test_a_quantile_lies_straight_between_the_bounds_around_it():
    histogram = filled(0.015, 0.016, 0.04, 0.04)  # two in (0.01, 0.02], two in (0.02, 0.05]
    assert histogram.quantile(0.5) == pytest.approx(0.02)
    assert histogram.quantile(0.25) == pytest.approx(0.015)
    assert histogram.quantile(0.75) == pytest.approx(0.035)
    assert filled().quantile(0.5) is None
    assert filled(1e9).quantile(0.5) == BOUNDS_S[-1]


@pytest.mark.parametrize("seed", range(5))
def test_a_quantile_is_in_the_bucket_of_the_true_one(seed):
    values = sorted(random.Random(seed).lognormvariate(-4, 1.5) for _ in range(500))
    histogram = filled(*values)
    for q in (0.5, 0.95, 0.99):
        true, told = values[math.ceil(q * len(values)) - 1], histogram.quantile(q)
        bucket = next(i for i, bound in enumerate(BOUNDS_S) if true <= bound)
        assert (BOUNDS_S[bucket - 1] if bucket else 0.0) <= told <= BOUNDS_S[bucket], f"seed {seed}, quantile {q}"


def test_what_came_since_is_the_difference_and_after_a_restart_everything():
    before = filled(0.01, 0.3)
    after = before.copy()
    after.observe(0.3)
    assert (after.since(before).n, after.since(before).total) == (1, pytest.approx(0.3))
    assert before.n == 2  # the copy is one
    assert filled(0.3).since(before).counts == filled(0.3).counts  # less of something than before: counting began anew
    assert after.since(None).counts == after.counts


def test_the_text_reads_back_as_it_was_by_prometheus_own_parser():
    names = ["plain", 'with "quotes"', "back\\slash", "two\nlines", "ünï"]
    things = {(name,): i for i, name in enumerate(names)}
    families = [
        Family("sondage_things_total", "counter", "Things,\nin two lines \\ with a backslash.", ("kind",), things),
        Family("sondage_share", "gauge", "A share.", (), {(): 0.25}),
        Family("sondage_limit", "gauge", "None.", ("a", "b"), {("x", "y"): math.inf, ("x", "z"): math.nan}),
        Family("sondage_nothing_total", "counter", "Never met."),
        Family("sondage_took_seconds", "histogram", "Latency.", ("layer",), {("bm25",): filled(0.0001, 0.015, 99.0)}),
    ]  # fmt: skip
    read = {family.name: family for family in text_string_to_metric_families(exposition(families, {"coordinator": "a-1"}))}
    back = read["sondage_things"]
    assert {sample.labels["kind"]: sample.value for sample in back.samples} == {name: float(i) for i, name in enumerate(names)}
    assert back.documentation == "Things,\nin two lines \\ with a backslash." and back.type == "counter"
    assert all(sample.labels["coordinator"] == "a-1" for family in read.values() for sample in family.samples)
    assert [sample.value for sample in read["sondage_share"].samples] == [0.25]
    limits = {sample.labels["b"]: sample.value for sample in read["sondage_limit"].samples}
    assert limits["y"] == math.inf and math.isnan(limits["z"])
    assert read["sondage_nothing"].samples == []
    took = read["sondage_took_seconds"]
    buckets = [(float(s.labels["le"]), s.value) for s in took.samples if s.name.endswith("_bucket")]
    assert [bound for bound, _ in buckets] == [*BOUNDS_S, math.inf]
    assert [n for _, n in buckets] == sorted(n for _, n in buckets) and buckets[-1][1] == 3  # cumulative
    assert dict(buckets)[0.01] == 1 and dict(buckets)[0.02] == 2
    assert {s.name: s.value for s in took.samples if not s.name.endswith("_bucket")} == {
        "sondage_took_seconds_count": 3, "sondage_took_seconds_sum": pytest.approx(99.0151),
    }  # fmt: skip


def test_a_sample_has_a_value_for_each_label():
    with pytest.raises(ValueError):
        exposition([Family("sondage_things", "gauge", "Things.", ("a", "b"), {("only one",): 1})], {})
