"""What a thousand shards would cost: arithmetic over what was measured, checked by hand."""

from argparse import ArgumentTypeError

import pytest
from engine import write_files

from jobs.bench_cluster import stages
from jobs.passage_corpus import linked
from jobs.scaling_model import extrapolated

MEASURED = {
    "in one process": {
        "answer_kb of a shard": 10.0,
        "merge_ms of a part": 0.5,
        "search_ms of a shard": 1.0,
        "search_ms of a million passages": 2.0,
        "index_bytes of a passage": 1_000,
        "terms": {"heaps_k": 10.0, "heaps_b": 0.5, "bytes of a term": 20.0},
    },
    "calls": {"cpu_ms of a call": 1.5},
}


def test_a_tree_costs_a_node_the_square_root_of_what_one_coordinator_costs():
    (small, large) = extrapolated(MEASURED, (8, 800))
    # 800 shards on 100 hosts: 100 calls of 1.5 + 0.5 ms, or 10 of them and each of these 10 more.
    assert (large["hosts"], large["flat_ms"], large["flat_per_s of a core"], large["answer_kb"]) == (100, 200.0, 5, 1000)
    assert (large["tree_ms of a node"], large["tree_calls"]) == (20.0, 110)
    # 8 shards of 10 million passages: 8 x (1 + 10 x 2) ms, wherever the others are.
    assert large["search_cpu_ms of a host"] == small["search_cpu_ms of a host"] == 168
    assert (large["passages"], large["index_tb"]) == (8_000_000_000, 8.0)
    assert large["terms_gb"] == round(10 * 8_000_000_000**0.5 * 20 / 1e9, 2)
    assert (small["hosts"], small["flat_ms"], small["tree_calls"]) == (1, 2.0, 1)  # nobody stands between


def test_a_run_works_on_links_and_leaves_the_kept_corpus_as_it_is(tmp_path):
    kept = write_files(tmp_path / "kept", {"c/segments/a": "one", "c/root/1.json": "{}"})
    copy = linked(kept, tmp_path / "copy")
    assert (copy / "c/segments/a").samefile(kept / "c/segments/a")
    (copy / "c/root/2.json").write_text("{}")
    assert sorted(path.name for path in (kept / "c/root").iterdir()) == ["1.json"]


def test_stages_are_chosen_by_name():
    assert stages("scale,flood") == ["scale", "flood"]
    with pytest.raises(ArgumentTypeError, match="moon: choose from scale, flood, model"):
        stages("moon")
