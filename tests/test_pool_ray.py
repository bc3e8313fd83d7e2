"""Encoding on actors: with a share of a GPU where the cluster has one, told as it goes."""

import logging

import pytest
from tiny_bert import save_bert

from jobs import pool
from jobs.pool import RayPool, WorkerSettings
from shards.cache import FileCache
from shards.corpus import Source
from shards.layers import SpaceSpec
from shards.layers.contract import Resources
from shards.store import open_store
from shards.update import Options, Updater

pytestmark = pytest.mark.ray


def test_segments_are_built_where_the_gpus_are_and_progress_comes_back(cluster, tmp_path, caplog, monkeypatch):
    """The node says that it has a GPU, which is all that placing needs; torch finds none there and encodes on its cores."""
    source, model = tmp_path / "source", save_bert(tmp_path / "bert")
    source.mkdir()
    for i in range(80):
        (source / f"{i}.txt").write_text(f"alpha {i} stone river tree sort merge node edge 42 cloud")
    heard: list[tuple] = []
    monkeypatch.setattr(pool, "LOOK_S", 0.05)
    caplog.set_level(logging.INFO, "jobs.pool")
    resources = Resources(tmp_path / "models")

    def workers(store, specs) -> RayPool:
        settings = WorkerSettings(store.url, {}, tmp_path / "cache", 1 << 30, specs, resources)
        return RayPool(settings, report=lambda *told: heard.append(told))

    options = Options("c", Source("main", str(source)), (SpaceSpec("dense", "dense", {"model": str(model)}),), n_shards=3)
    node = cluster.add_node(num_cpus=2, num_gpus=1, object_store_memory=80 * 2**20, wait=True)
    try:
        cache = FileCache(tmp_path / "cache", 1 << 30)
        outcome = Updater(open_store(str(tmp_path / "store")), cache, resources, workers).run(options)
    finally:
        cluster.remove_node(node)
    assert outcome.encoded == {"dense": 80}
    assert any("event=workers_started n=2 threads=1 gpu_share=0.5" in record.getMessage() for record in caplog.records)
    assert {(step, unit) for step, _, _, unit in heard} == {("encode dense", "passages")}
    assert heard[-1][1:3] == (80, 80)
    assert [told[1] for told in heard] == sorted(told[1] for told in heard)
