"""Kept encodings: found again by content, read by the byte, compacted without loss."""

import numpy as np
import pytest

from shards import encodings as encodings_module
from shards.encodings import PackedEncodings
from shards.errors import Corrupt
from shards.identity import content_hash
from shards.layers.contract import Encodings
from shards.store import Store, open_store


def key(i: int) -> bytes:
    return content_hash(str(i).encode())


def vectors(i: int) -> np.ndarray:
    """Document i has i modulo 4 vectors of 3 numbers."""
    return np.full((i % 4, 3), i, np.float32)


def hashes_of(numbers) -> np.ndarray:
    return np.frombuffer(b"".join(key(i) for i in numbers), np.uint8).reshape(-1, 20)


def check(kept: Encodings, known, unknown=()) -> None:
    found = kept.get(hashes_of([*known, *unknown]))
    assert set(found) == {key(i) for i in known}
    for i in known:
        assert found[key(i)].dtype == np.float32
        np.testing.assert_array_equal(found[key(i)], vectors(i))


class Watched(Store):
    """A store elsewhere: nothing to map, and all reads on record."""

    def __init__(self, inner: Store):
        self.inner, self.url = inner, inner.url
        self.reads: list[tuple[str, int | None, int | None]] = []

    def read(self, name, start=None, end=None):
        self.reads.append((name, start, end))
        return self.inner.read(name, start, end)

    def write(self, name, data):
        self.inner.write(name, data)

    def create(self, name, data):
        self.inner.create(name, data)

    def list(self, prefix=""):
        return self.inner.list(prefix)

    def folders(self, folder=""):
        return self.inner.folders(folder)

    def size(self, name):
        return self.inner.size(name)

    def delete(self, name):
        self.inner.delete(name)

    def child(self, folder):
        return Watched(self.inner.child(folder))


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    return open_store(tmp_path / "store") if request.param == "local" else open_store(f"memory://{tmp_path.name}-{request.node.name}")


def test_what_was_put_is_found_and_nothing_else(store):
    kept = PackedEncodings(store, "encodings/space")
    check(kept, [], range(5))
    kept.put({key(i): vectors(i) for i in range(10)})
    kept.put({key(i): vectors(i) for i in range(10, 13)})
    check(kept, range(13), range(13, 20))
    check(PackedEncodings(store, "encodings/space/"), range(13))
    check(PackedEncodings(store, "encodings/other"), [], range(13))
    kept.put({})
    assert kept.get(np.zeros((0, 20), np.uint8)) == {}
    assert len(store.list("encodings/")) == 2


def test_a_space_whose_name_begins_with_anothers_is_another(store):
    PackedEncodings(store, "encodings/a").put({key(1): vectors(1)})
    check(PackedEncodings(store, "encodings/ab"), [], [1])
    PackedEncodings(store, "encodings/ab").put({key(2): vectors(2)})
    check(PackedEncodings(store, "encodings/a"), [1], [2])


def test_the_same_documents_make_the_same_pack(store):
    for order in (range(10), reversed(range(10))):
        PackedEncodings(store, "encodings/space").put({key(i): vectors(i) for i in order})
    assert len(store.list("encodings/")) == 1


@pytest.mark.parametrize(("dtype", "shape"), [(np.float32, (2, 5)), (np.int8, (3, 4)), (np.uint16, (7,)), (np.float16, (0, 9))])
def test_other_kinds_of_encodings_keep_their_form(store, dtype, shape):
    """Token weights of sparse layers and token vectors of late ones are kept here too."""
    value = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    kept = PackedEncodings(store, "encodings/space")
    kept.put({key(1): value, key(2): value[:1]})
    found = kept.get(hashes_of([1, 2]))
    assert found[key(1)].dtype == dtype
    assert found[key(1)].shape == shape
    np.testing.assert_array_equal(found[key(1)], value)
    np.testing.assert_array_equal(found[key(2)], value[:1])


def test_only_hashes_and_the_wanted_rows_are_read(store, monkeypatch):
    """A thousand documents of 30 kB each; two neighbours and one far away are wanted."""
    monkeypatch.setattr(encodings_module, "_opened", {})
    watched = Watched(store)
    big = np.ones((20, 384), np.float32)
    order = sorted(range(1000), key=key)
    PackedEncodings(watched, "encodings/space").put({key(i): big for i in order})
    monkeypatch.setattr(encodings_module, "_opened", {})
    watched.reads.clear()
    kept = PackedEncodings(watched, "encodings/space")
    assert len(kept.get(hashes_of([order[10], order[11], order[900]]))) == 3
    sizes = [end - start for _, start, end in watched.reads]
    assert sizes == [4096, 20_000, 8_008, 2 * big.nbytes, big.nbytes]
    watched.reads.clear()
    assert kept.get(hashes_of([2000])) == {}
    assert watched.reads == []  # what was read of a pack is remembered


def test_compaction_keeps_everything_in_fewer_packs(store):
    kept = PackedEncodings(store, "encodings/space")
    for i in range(20):
        kept.put({key(i): vectors(i), key(i + 1): vectors(i + 1)})  # neighbours overlap: written by two processes, say
    assert kept.compact(max_packs=20) == 20
    assert kept.compact(max_packs=10) == len(store.list("encodings/")) == 5
    check(kept, range(21), range(21, 25))
    assert kept.compact(max_packs=1) == len(store.list("encodings/")) == 1
    check(PackedEncodings(store, "encodings/space"), range(21))
    assert kept.compact(max_packs=1) == 1


def test_large_packs_are_left_alone_by_compaction(store, monkeypatch):
    kept = PackedEncodings(store, "encodings/space")
    kept.put({key(i): vectors(i) for i in range(100)})
    (large,) = store.list("encodings/")
    for i in range(100, 110):
        kept.put({key(i): vectors(i)})
    monkeypatch.setattr(encodings_module, "_PACK_BYTES", 500)
    assert kept.compact(max_packs=4) == len(store.list("encodings/"))
    assert large in store.list("encodings/")
    check(kept, range(110))


def test_a_reader_survives_a_compaction_between_its_list_and_its_read(store, monkeypatch):
    """1. The reader lists packs a and b. 2. Another process joins them into c and deletes them. 3. The reader reads a."""
    writer, reader = (PackedEncodings(store, "encodings/space") for _ in range(2))
    writer.put({key(1): vectors(1)})
    writer.put({key(2): vectors(2)})
    listed = PackedEncodings._packs

    def then_compact(self):
        packs = listed(self)
        if self is reader and len(packs) == 2:
            writer.compact(max_packs=1)
        return packs

    monkeypatch.setattr(PackedEncodings, "_packs", then_compact)
    check(reader, [1, 2])


def test_a_crash_while_compacting_loses_nothing(store, monkeypatch):
    """The joined pack is written, then the process dies before it deletes the others."""
    kept = PackedEncodings(store, "encodings/space")
    for i in range(4):
        kept.put({key(i): vectors(i)})
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "delete", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            kept.compact(max_packs=1)
    check(kept, range(4))
    assert kept.compact(max_packs=1) == 1
    check(kept, range(4))


@pytest.mark.parametrize(
    "damage", [lambda data: data[:6], lambda data: b"\xff" * len(data), lambda data: data[:-1], lambda data: data[:300]]
)
def test_a_damaged_pack_is_named(tmp_path, damage, monkeypatch):
    monkeypatch.setattr(encodings_module, "_opened", {})
    store = open_store(tmp_path)
    kept = PackedEncodings(store, "encodings/space")
    kept.put({key(i): vectors(i) for i in range(1, 4)})
    (name,) = store.list("encodings/")
    (tmp_path / name).write_bytes(damage((tmp_path / name).read_bytes()))
    monkeypatch.setattr(encodings_module, "_opened", {})
    with pytest.raises(Corrupt, match=name):
        PackedEncodings(store, "encodings/space").get(hashes_of(range(1, 4)))


@pytest.mark.s3
def test_encodings_are_kept_on_s3(s3_server):
    store = open_store(f"s3://{s3_server.bucket()}/index", **s3_server.options)
    kept = PackedEncodings(store, "encodings/space")
    kept.put({key(i): vectors(i) for i in range(10)})
    kept.put({key(i): vectors(i) for i in range(10, 20)})
    check(kept, range(20), [20])
    assert kept.compact(max_packs=1) == 1
    check(kept, range(20))
