"""Documents of this process straight into a generation: `shards.bulk`."""

from pathlib import Path

import numpy as np

from shards.bulk import Batch, BulkWriter, put
from shards.cache import FileCache
from shards.generation import Generation
from shards.layers import SpaceSpec, create, space_id
from shards.layers.contract import Resources
from shards.manifest import latest_generation
from shards.push import Applier
from shards.pushlog import SOURCE, Operation
from shards.store import LocalStore, open_store

SPECS = (SpaceSpec("names", "names"), SpaceSpec("own", "vectors", {"dim": 2}))


def writer(store, folder: Path, n_shards: int = 1) -> BulkWriter:
    resources = Resources()
    specs = {spec.name: (spec, space_id(spec, create(spec, resources))) for spec in SPECS}
    return BulkWriter(store, "c", FileCache(folder, 1 << 20), resources, specs, n_shards)


def batch(*operations: Operation) -> Batch:
    made = Batch()
    for operation in operations:
        made.add(operation)
    return made


def entries(store, folder: Path) -> dict[str, dict]:
    """By path, the metadata of what the newest generation holds."""
    opened = Generation.open(store, FileCache(folder, 1 << 20), "c", None, Resources())
    found = {}
    for shard in opened.root.shards:
        for view in opened.shard(shard.shard).views:
            held = view.segment.entries
            found |= {held.path(row): held.metadata.get(int(held.places[row])) for row in np.flatnonzero(view.live_entries).tolist()}
    return found


def test_a_batch_is_one_generation_with_one_segment(tmp_path: Path):
    store = open_store(tmp_path / "store")
    made = writer(store, tmp_path / "cache")
    root = made.publish(batch(*(put(f"d{i}", f"Text {i}.", {"n": i}, i + 1) for i in range(40))))
    assert (root.generation, root.n_docs, root.sources[SOURCE].n_entries) == (1, 40, 40)
    assert entries(store, tmp_path / "cache") == {f"d{i}": {"n": i} for i in range(40)}
    assert sum(len(page.segments) for page in Generation.open(store, made._writer.cache, "c", 1, Resources()).pages) == 1


def test_the_last_of_an_id_counts_and_what_says_nothing_new_makes_no_generation(tmp_path: Path):
    store = open_store(tmp_path / "store")
    made = writer(store, tmp_path / "cache", n_shards=2)
    first = put("a", "One.", {}, 1)
    made.publish(batch(put("a", "Zero.", {}, 1), first, put("b", "Two.", {}, 2)))
    assert made.publish(batch(first)) is None
    assert made.publish(batch(Operation("never there"))) is None
    assert latest_generation(store, "c") == 1
    root = made.publish(batch(put("a", "One more.", {"v": 2}, 3), Operation("b")))
    assert (root.generation, root.n_docs) == (2, 1)
    assert entries(store, tmp_path / "cache") == {"a": {"v": 2}}


def test_own_vectors_are_kept_where_those_of_pushes_are(tmp_path: Path):
    store = open_store(tmp_path / "store")
    made = writer(store, tmp_path / "cache")
    made.publish(batch(put("a", "One.", {}, 1, {"own": np.array([[3.0, 4.0]], np.float32)})))
    made.publish(batch(put("b", "Two.", {}, 2)))
    opened = Generation.open(store, made._writer.cache, "c", None, Resources())
    assert opened.statistics("own").n_units == 1
    assert any(name.startswith("given-") for name in store.child("c").folders("encodings"))


def test_it_writes_on_top_of_what_was_pushed_meanwhile(tmp_path: Path):
    from shards.journal import Journal
    from shards.manifest import corpus_store

    store = open_store(tmp_path / "store")
    made = writer(store, tmp_path / "cache")
    made.publish(batch(put("a", "One.", {}, 1)))
    Journal(corpus_store(store, "c"), lambda: 0).submit(put("b", "Pushed.", {}, 2)).result()
    Applier(store, "c", FileCache(tmp_path / "other", 1 << 20), Resources()).apply()
    root = made.publish(batch(put("c", "Three.", {}, 3)))
    assert (root.n_docs, root.sources[SOURCE].applied) == (3, 1)
    assert set(entries(store, tmp_path / "cache")) == {"a", "b", "c"}


def test_a_store_that_nobody_wants_later_waits_for_no_disk(tmp_path: Path, monkeypatch):
    def never(_descriptor):
        raise AssertionError("synced")

    monkeypatch.setattr("os.fsync", never)
    store = open_store(tmp_path / "store", sync=False)
    assert isinstance(store, LocalStore)
    store.child("inner").write("a/b", b"1")
    store.create("c", b"2")
    store.write_many({"d/e": b"3"})
    assert sorted(store.list()) == ["c", "d/e", "inner/a/b"]


def test_vectors_written_in_haste_are_found_and_judged_like_others():
    from shards.layers.vectors import vector_arrays
    from shards.layers.vectors_reader import VectorReader
    from shards.plan import SpaceQuery
    from shards.types import Budget

    n = 700  # more than a sketch needs
    vectors = np.random.default_rng(5).standard_normal((n, 4)).astype(np.float32)
    spans = (np.arange(n + 1), np.zeros(n, np.int64), np.ones(n, np.int64), np.ones(n, bool))
    live = np.arange(n) % 7 > 0
    found = []
    for hasty in (False, True):
        arrays = vector_arrays(vectors, *spans, hasty)
        assert (len(arrays["mean"]) == 0) == hasty
        found.append(VectorReader(arrays, live).search(SpaceQuery("own", "", np.array([1.0, 2.0, 0.0, -1.0])), None, 5, Budget()))
    whole, quick = found
    assert whole.rows.tolist() == quick.rows.tolist()
    assert whole.scores.tolist() == quick.scores.tolist()
    assert quick.moments.n == whole.moments.n == live.sum()
    assert np.allclose([quick.moments.mean, quick.moments.m2], [whole.moments.mean, whole.moments.m2])
