"""The bench of fusion: its peer is right, its workload is what shards send, and null models stay as small as they are said to."""

from argparse import Namespace

import numpy as np
import pytest

from jobs import bench_fusion
from jobs.bench_fusion import RRF_K, merged_lists, most_bytes, null_bytes, nulls, parts, reciprocal_ranks
from jobs.bench_fusion import bench_fusion as run
from jobs.progress import Progress
from shards.candidates import merge
from shards.corpus_nulls import CorpusNulls


def test_every_step_is_timed_beside_the_peer(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_fusion, "N_SHARDS", 2)
    monkeypatch.setattr(bench_fusion, "N_LISTED", 5)
    monkeypatch.setattr(bench_fusion, "POOLS", {"few": 8, "many": 40})
    with (tmp_path / "progress").open("w") as out:
        figures = run(Progress(out), Namespace(rounds=1, seed=0, store=None))
    assert figures["spaces"] == 8 and set(figures["ms"]) == {"few", "many"}
    for taken in figures["ms"].values():
        assert {"merge", "weigh", "whole", "RRF by dict, lists merged"} < set(taken)
        assert all(figure["p50"] >= figure["least"] >= 0 for figure in taken.values() if isinstance(figure, dict))


def test_parts_are_what_shards_send():
    """Hashes ascend and are distinct, lists are as long as they may be, and what a space has not matched is -inf."""
    for part in parts(30, n_shards=2, n_listed=6):
        rows = [h.tobytes() for h in part.hashes]
        assert rows == sorted(set(rows)) and part.generated.any(axis=1).all()
        assert part.generated.sum(axis=0).max() <= 6
        assert np.isfinite(part.scores[part.generated]).all()
    found = merge(parts(30, n_shards=2, n_listed=6), 6)
    assert found.generated.sum(axis=0).max() == 6


def test_the_peer_is_reciprocal_rank_fusion_of_the_merged_lists():
    shards = [[[(-3.0, b"a"), (-1.0, b"b")], [(-9.0, b"b")]], [[(-2.0, b"c")], [(-10.0, b"c")]]]
    lists = merged_lists(shards, 2)
    assert lists == [[b"a", b"c"], [b"c", b"b"]]
    first, second = 1 / (RRF_K + 1), 1 / (RRF_K + 2)
    assert reciprocal_ranks(lists) == [(-(second + first), b"c"), (-first, b"a"), (-second, b"b")]


def test_a_null_model_is_never_larger_than_its_construction_allows():
    made = nulls(n_probes=40, n_units=300)
    sizes = null_bytes(made, {"dense": 8 * 384})
    assert sizes["of the corpus, words and all"] >= max(sizes["of spaces"].values())
    assert sizes["most per space and shard"] == max(sizes["of spaces"][n] + (8 * 384 if n == "dense" else 0) for n in sizes["of spaces"])
    assert CorpusNulls.from_bytes(made.to_bytes()).spaces.keys() == made.spaces.keys()
    for name, null in made.spaces.items():
        assert sizes["of spaces"][name] <= most_bytes(null.n_units, 0)


@pytest.mark.parametrize("n_units", [10**3, 10**6, 10**9])
def test_it_stays_below_64_kb_whatever_scores_are_like(n_units):
    assert most_bytes(n_units, 1_024) <= 64 << 10
