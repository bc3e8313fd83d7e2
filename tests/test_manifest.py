"""Generations: what a root says, and that it becomes visible at once, once, and whole."""

import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from faults import Crash, FaultyStore
from pydantic import ValidationError

from shards import manifest
from shards.errors import AlreadyExists, BadSpec, Corrupt, NotFound, StoreError
from shards.manifest import (
    FileRef,
    Root,
    SegmentRef,
    ShardPage,
    ShardRef,
    SourceRef,
    SpaceRef,
    corpus_store,
    latest_generation,
    list_corpora,
    publish,
    read_page,
    read_root,
    write_page,
)
from shards.store import Store, open_store
from shards.tree import rows

FILE = FileRef.of("segments/s1/docs.safetensors", b"bytes")


@pytest.fixture
def store() -> Store:
    return open_store(f"memory://{uuid.uuid4().hex}")


def segment(**changes: Any) -> SegmentRef:
    fields = {
        "id": "s1", "buckets": (0, 4096), "n_docs": 2, "n_entries": 3, "text_bytes": 40,
        "files": {"docs": FILE, "layer/bm25": FILE}, "spaces": {"bm25": "0123456789abcdef"},
    }  # fmt: skip
    return SegmentRef(**(fields | changes))


def root(corpus: str = "news", generation: int = 1, **changes: Any) -> Root:
    fields = {
        "corpus": corpus, "generation": generation, "parent": generation - 1 or None, "created": "2026-01-02T03:04:05Z",
        "shards": (ShardRef(shard=0, buckets=(0, 4096), page=FILE, n_docs=2, n_entries=3),),
        "spaces": (SpaceRef(name="bm25", layer="bm25", params={"k1": 1.2}, scope=(), space_id="0123456789abcdef",
                            origin="source", granularity="passage", null="moments"),),
        "sources": {"main": SourceRef(url="/data", include=("**/*.py",), tree=FILE, n_entries=3)},
        "n_docs": 2, "n_entries": 3, "text_bytes": 40, "counters": {"listed": 3},
    }  # fmt: skip
    return Root(**(fields | changes))


def test_a_page_is_named_by_its_content_and_comes_back_equal(store: Store) -> None:
    page = ShardPage(shard=0, buckets=(0, 2048), segments=(segment(buckets=(0, 100)), segment(id="s2", buckets=(0, 2048))))
    ref = write_page(store, page)
    data = store.read(ref.name)
    assert ref.name == f"pages/{hashlib.sha256(data).hexdigest()}.json"
    assert ref == write_page(store, ShardPage.model_validate_json(data))
    assert read_page(store, ref, ShardPage) == page


def test_a_page_is_read_from_the_store_once(store: Store) -> None:
    counting = FaultyStore(store)
    ref = write_page(counting, ShardPage(shard=7, buckets=(0, 4096), segments=()))
    assert read_page(counting, ref, ShardPage) is read_page(counting, ref, ShardPage)
    assert counting.reads() == [ref.name]


def test_a_damaged_page_is_reported_with_its_name_and_the_remedy(store: Store) -> None:
    ref = write_page(store, ShardPage(shard=8, buckets=(0, 4096), segments=()))
    whole = store.read(ref.name)
    for damaged, found in ((whole[:-1], "bytes, the manifest says"), (whole.replace(b"8", b"9", 1), "checksum")):
        store.write(ref.name, damaged)
        with pytest.raises(Corrupt, match=found) as caught:
            read_page(store, ref, ShardPage)
        assert ref.name in str(caught.value) and "rebuild" in str(caught.value)


def test_a_published_root_is_the_newest_generation(store: Store) -> None:
    assert latest_generation(store, "news") is None
    for generation in (1, 2, 11):
        publish(store, root(generation=generation, parent=None))
    assert latest_generation(store, "news") == 11
    assert read_root(store, "news", 2) == root(generation=2, parent=None)
    assert corpus_store(store, "news").list("roots/")[-1] == "roots/0000000000000011.json"


def test_of_two_who_publish_a_generation_the_second_is_told_to_rebase(store: Store) -> None:
    publish(store, root(n_docs=1))
    with pytest.raises(AlreadyExists, match=r"Generation 1 of corpus 'news'.*publish the next"):
        publish(store, root(n_docs=2))
    assert read_root(store, "news", 1).n_docs == 1


def test_a_crash_while_publishing_leaves_the_old_generation_or_the_new_one(store: Store) -> None:
    publish(store, root())
    for after, newest in ((False, 1), (True, 2)):
        with pytest.raises(Crash):
            publish(FaultyStore(store, fail_at=1, after=after), root(generation=2))
        assert latest_generation(store, "news") == newest
        assert read_root(store, "news", newest).generation == newest


def test_corpora_are_the_folders_with_a_published_generation(store: Store) -> None:
    for name in ("wiki", "news"):
        publish(store, root(name))
    write_page(corpus_store(store, "unfinished"), ShardPage(shard=0, buckets=(0, 4096), segments=()))
    store.write("_other/roots/0000000000000001.json", b"{}")
    assert list_corpora(store) == ["news", "wiki"]


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "-x", "ä", "x" * 129, "a b", "a\n"])
def test_a_corpus_name_that_is_no_folder_name_is_refused(store: Store, name: str) -> None:
    for act in (corpus_store, latest_generation):
        with pytest.raises(BadSpec, match="Corpus name"):
            act(store, name)


def test_a_root_of_a_newer_format_is_refused_with_the_remedy(store: Store) -> None:
    publish(store, root())
    inside = corpus_store(store, "news")
    newer = json.loads(inside.read("roots/0000000000000001.json")) | {"format": 3, "invented_later": True}
    inside.write("roots/0000000000000001.json", json.dumps(newer).encode())
    with pytest.raises(StoreError, match=r"'news', generation 1 .* has format 3; this build reads 1 to 2\. Upgrade, or index"):
        read_root(store, "news", 1)


def test_a_missing_generation_names_corpus_and_store(store: Store) -> None:
    with pytest.raises(NotFound, match=f"'news' has no generation 5 in store {store.url}"):
        read_root(store, "news", 5)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{}", b'{"format":1}'])
def test_a_root_that_is_no_manifest_is_corrupt(store: Store, data: bytes) -> None:
    store.write("news/roots/0000000000000001.json", data)
    with pytest.raises(Corrupt, match=r"roots/0000000000000001\.json"):
        read_root(store, "news", 1)


def test_a_root_copied_under_another_name_is_corrupt(store: Store) -> None:
    publish(store, root())
    store.write("copy/roots/0000000000000001.json", store.read("news/roots/0000000000000001.json"))
    with pytest.raises(Corrupt, match="says it is generation 1 of 'news'"):
        read_root(store, "copy", 1)


def shard(number: int, low: int, high: int) -> ShardRef:
    return ShardRef(shard=number, buckets=(low, high), page=FILE, n_docs=0, n_entries=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: root(shards=(shard(0, 0, 2048),)), "do not cover"),
        (lambda: root(shards=(shard(0, 0, 2048), shard(1, 2000, 4096))), "do not cover"),
        (lambda: root(shards=(shard(0, 2048, 4096), shard(1, 0, 2048))), "do not cover"),
        (lambda: root(shards=(shard(0, 0, 2048), shard(0, 2048, 4096))), "same number"),
        (lambda: shard(0, 5, 5), "empty or outside"),
        (lambda: shard(0, 0, 4097), "empty or outside"),
        (lambda: root(parent=1), "cannot come from"),
        (lambda: root(generation=0), "greater than 0"),
        (lambda: root(created="yesterday"), "pattern"),
        (lambda: root(invented=1), "not permitted"),
        (lambda: segment(n_dead_docs=3), "more dead"),
        (lambda: ShardPage(shard=0, buckets=(0, 10), segments=(segment(buckets=(0, 11)),)), "covers buckets"),
        (lambda: FileRef(name="x", size=-1, sha256="0" * 64), "greater than or equal to 0"),
        (lambda: FileRef(name="x", size=1, sha256="../etc"), "pattern"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make()


def test_equal_manifests_have_equal_bytes_whatever_the_order_they_were_filled_in() -> None:
    one = segment(files={"docs": FILE, "text": FILE}, spaces={"a": "1", "b": "2"})
    other = segment(files={"text": FILE, "docs": FILE}, spaces={"b": "2", "a": "1"})
    assert manifest.encode(one) == manifest.encode(other)


def test_a_generation_written_by_format_1_is_read_for_ever() -> None:
    store = open_store(Path(__file__).parent / "fixtures" / "format-1")
    assert list_corpora(store) == ["news"]
    got = read_root(store, "news", 1)
    assert got.format == 1 and got.spaces[0].params == {"k1": 1.2} and got.counters == {"listed": 3}
    inside = corpus_store(store, "news")
    page = read_page(inside, got.shards[0].page, ShardPage)
    assert page.segments[0].files["docs"] == FILE
    tree = got.sources["main"].tree
    assert tree is not None
    assert [row.path for row in rows(inside, tree)] == ["a.py", "b\udcff.py"]
    assert [(row.size_bytes, row.etag, row.metadata) for row in rows(inside, tree)] == [(1, "", {}), (2, "etag", {"k": [1]})]
