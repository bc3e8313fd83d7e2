"""Identity and the bytes of a segment: what is written is what is read, by content and in hash order."""

import json
import random

import numpy as np
import pytest

from shards import segment
from shards.arrays import _DTYPES, assemble, dump, load, pack_strings, parse, unpack_string
from shards.cache import FileCache
from shards.documents import Documents
from shards.errors import Corrupt
from shards.identity import N_BUCKETS, as_keys, bucket_of, buckets_of, content_hash, find_rows, shard_ranges
from shards.segment import Segment, Tombstones, hash_order, pack_entries, unpack_entry
from shards.store import open_store
from shards.types import Entry, Moments, merge_moments

TEXTS = {b"one\n": "prose:english", b"": "prose:english", "zwei ä".encode(): "prose:german", b"def f(): pass": "code"}


def documents() -> Documents:
    return Documents.pack((content_hash(text), text, kind) for text, kind in TEXTS.items())


def test_the_same_content_is_the_same_document_and_lies_in_one_bucket():
    key = content_hash(b"abc")
    assert key.hex() == "ba7816bf8f01cfea414140de5dae2223b00361a3"  # FIPS 180-2, cut to 160 bits
    assert bucket_of(key) == 0xBA7 and 0 <= bucket_of(key) < N_BUCKETS


@pytest.mark.parametrize("n", [1, 2, 3, 16, 1000, 4096])
def test_shards_cover_every_bucket_once_and_evenly(n):
    ranges = shard_ranges(n)
    assert [low for low, _ in ranges] == [0, *(high for _, high in ranges[:-1])] and ranges[-1][1] == N_BUCKETS
    sizes = {high - low for low, high in ranges}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("n", [0, -1, 4097])
def test_a_shard_needs_at_least_one_bucket(n):
    with pytest.raises(ValueError, match="expected 1 to 4096"):
        shard_ranges(n)


def test_hashes_are_found_even_when_their_first_bytes_agree():
    rng = np.random.default_rng(3)
    hashes = rng.integers(0, 256, (200, 20), dtype=np.uint8)
    hashes[50:80, :8] = hashes[50, :8]
    hashes = hashes[np.argsort(as_keys(hashes))]
    assert (np.diff(buckets_of(hashes)) >= 0).all()
    wanted = np.concatenate([hashes[::7], rng.integers(0, 256, (5, 20), dtype=np.uint8)])
    found = find_rows(hashes, wanted)
    assert found.tolist() == [*range(0, 200, 7), -1, -1, -1, -1, -1]
    assert find_rows(hashes[:0], wanted).tolist() == [-1] * len(wanted)


def test_documents_are_packed_by_hash_each_once_with_a_line_feed_between():
    docs = documents()
    assert len(Documents.pack([*((content_hash(t), t, k) for t, k in TEXTS.items())] * 2)) == len(docs) == 4
    keys = [docs.hashes[i].tobytes() for i in range(4)]
    assert keys == sorted(content_hash(t) for t in TEXTS)
    for i, key in enumerate(keys):
        body = bytes(docs.content(i))
        assert content_hash(body) == key and docs.kind_names[docs.kinds[i]] == TEXTS[body]
        assert docs.text[docs.ends[i]] == ord("\n")


def entries() -> list[Entry]:
    return [
        Entry("main", "b/ä.txt", content_hash(b"one\n"), 4, 123, metadata={"tag": ["x", 1]}),
        Entry("main", "a.txt", content_hash(b"one\n"), 4, 5),
        Entry("other", "caf\udce9", content_hash(b""), 0, 7),
    ]


def test_a_segment_reads_back_what_was_written(tmp_path):
    store = open_store(str(tmp_path / "store"))
    layers = {"abc": {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}}
    stats = {"abc": {"n_units": np.array([2], np.int64)}}
    built = segment.serialise(documents(), pack_entries(entries()), layers, stats, {"bm25": "abc"})
    ref = segment.write(store, built)
    assert segment.write(store, built) == ref and ref.id == built.id  # the same piece twice has the same name
    opened = Segment(ref, store, FileCache(tmp_path / "cache", 1 << 20))
    assert [bytes(opened.documents.content(i)) for i in range(4)] == [bytes(documents().content(i)) for i in range(4)]
    assert sorted(unpack_entry(opened.entries, i).path for i in range(3)) == ["a.txt", "b/ä.txt", "caf\udce9"]
    assert opened.layer("abc")["x"].tolist() == [[0, 1, 2], [3, 4, 5]] and opened.layer("none") is None
    assert opened.statistics("abc", ref)["n_units"].tolist() == [2]
    low, high = opened.rows_in((0, N_BUCKETS), opened.documents.hashes)
    assert (low, high) == (0, 4)


def test_entries_come_back_as_they_were():
    packed = pack_entries(entries())
    back = [unpack_entry(packed, i) for i in range(len(packed))]
    assert back == sorted(entries(), key=lambda e: (e.hash, e.source, e.path))


def test_tombstones_keep_rows_and_the_statistics_they_take_away():
    dead = Tombstones(np.array([3], np.int32), np.array([], np.int32), {"abc": {"n_units": np.array([1], np.int64)}})
    back = Tombstones.load(dead.dump(), "x")
    assert back.documents.tolist() == [3] and back.entries.tolist() == [] and back.statistics["abc"]["n_units"].tolist() == [1]


def test_array_files_are_the_same_bytes_for_the_same_arrays_and_damage_is_named(tmp_path):
    arrays = {"b": np.arange(3, dtype=np.uint16), "a": np.zeros((0, 4), np.float64), "c": np.array([True])}
    data = dump(arrays, {"k": "v"})
    assert data == dump(dict(reversed(arrays.items())), {"k": "v"})
    (tmp_path / "f").write_bytes(data)
    back, metadata = load(tmp_path / "f")
    assert metadata == {"k": "v"} and {n: a.tolist() for n, a in back.items()} == {n: a.tolist() for n, a in arrays.items()}
    with pytest.raises(Corrupt, match="some/file"):
        parse(data[:9], "some/file")
    with pytest.raises(Corrupt, match="some/file"):
        parse(data[:-1], "some/file")


def test_strings_are_packed_and_found_by_number():
    blob, offsets = pack_strings([b"one", b"", b"three"])
    assert [unpack_string(blob, offsets, i) for i in range(3)] == [b"one", b"", b"three"]


def test_ranking_is_by_score_and_then_by_hash():
    hashes = np.array([[3] * 20, [1] * 20, [2] * 20], np.uint8)
    assert hash_order(hashes, np.array([1.0, 1.0, 5.0])).tolist() == [2, 1, 0]


def test_moments_of_parts_are_those_of_the_whole_in_any_order():
    rng = np.random.default_rng(5)
    values = rng.normal(3, 2, 1000)
    parts = [Moments.of(p) for p in np.split(values, [10, 500, 501])] + [Moments()]
    merged = merge_moments(parts)
    assert merged.n == 1000
    assert merged.mean == pytest.approx(values.mean(), rel=1e-14) and merged.sd == pytest.approx(values.std(), rel=1e-13)
    for seed in range(5):
        random.Random(seed).shuffle(parts)
        assert merge_moments(parts) == merged
    assert merge_moments([None, Moments()]) is None


def test_files_of_arrays_are_those_of_the_safetensors_library_byte_for_byte():
    from safetensors.numpy import save

    rng = np.random.default_rng(4)
    names = ["a", "B", "é", 'q"\\', "z/1", "\n"]
    for _ in range(200):
        arrays = {}
        for name in rng.permutation(names)[: rng.integers(7)].tolist():
            shape = tuple(rng.integers(4, size=rng.integers(1, 4)))
            array = rng.integers(2, size=shape).astype(rng.choice(list(_DTYPES.values())))
            arrays[name] = array.T if rng.random() < 0.3 else array
        about = {"kind_names": json.dumps(["prose:english", "ä\u2028"], ensure_ascii=False)} if rng.random() < 0.5 else None
        expected = save({n: np.ascontiguousarray(a) for n, a in sorted(arrays.items())}, metadata=about)
        assert bytes(assemble(arrays, about)) == dump(arrays, about) == expected
