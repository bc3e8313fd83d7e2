"""Memory is measured: pages of mapped files that were touched, arrays that readers made."""

import asyncio
import gc
import mmap
import os

import numpy as np
import pytest
from engine import Engine, write_files

from cluster.host import Host
from cluster.local import LocalSearcher
from serve.coordinator import Coordinator
from serve.schema import SearchRequest
from serve.status import memory_of
from shards import arrays as array_files
from shards.memory import Mapped, mapped, private_bytes, process_bytes, resident_bytes, uncollected

MB = 1 << 20
AROUND = 2 << 20  # what the kernel may map beside one page that is touched: 64 kB, or with large folios 2 MB

needs_pagemap = pytest.mark.skipif(not os.access("/proc/self/pagemap", os.R_OK), reason="this system does not tell which pages are there")


@pytest.fixture
def file(tmp_path):
    """An array file of 32 MB, whose mapping nobody has touched."""
    path = tmp_path / "arrays"
    path.write_bytes(array_files.dump({"a": np.ones(16 * MB, np.uint8), "b": np.ones(4 * MB, np.float32)}))
    return path


@needs_pagemap
def test_resident_are_the_pages_that_were_touched(file):
    arrays, _ = array_files.load(file)
    size = file.stat().st_size
    untouched = mapped(arrays.values())  # its header was read
    assert untouched.size == size and untouched.resident <= AROUND
    arrays["b"][: MB : mmap.PAGESIZE // 8].sum()  # 4 MB in its midst
    assert 4 * MB <= mapped(arrays.values()).resident <= 4 * MB + 2 * AROUND
    arrays["a"].sum()
    arrays["b"].sum()
    assert size <= mapped(arrays.values()).resident < size + mmap.PAGESIZE


@needs_pagemap
def test_the_kernel_says_the_same_of_the_whole_file_elsewhere(file):
    arrays, _ = array_files.load(file)
    arrays["b"][: 3 * MB // 4].sum()
    told, name = {}, b""
    with open("/proc/self/smaps", "rb") as lines:
        for line in lines:
            head, *rest = line.split(None, 5)
            if b"-" in head and not head.endswith(b":"):
                name = rest[4].strip() if len(rest) > 4 else b""
            elif head == b"Rss:":
                told[name] = told.get(name, 0) + 1024 * int(rest[0])
    assert 3 * MB <= mapped(arrays.values()).resident == told[os.fsencode(file)]


@needs_pagemap
def test_pages_that_were_given_back_are_not_counted():
    memory = mmap.mmap(-1, 4 * MB)
    memory.write(b"x" * 4 * MB)
    whole = np.frombuffer(memory, np.uint8)
    assert resident_bytes(whole.ctypes.data, len(whole)) == 4 * MB
    memory.madvise(mmap.MADV_DONTNEED, 0, 3 * MB)
    assert resident_bytes(whole.ctypes.data, len(whole)) == MB


def test_a_file_counts_once_however_many_arrays_are_views_of_it(file):
    arrays, _ = array_files.load(file)
    views = [arrays["a"], arrays["a"][5:], arrays["b"].reshape(2, -1), arrays["b"][::2]]
    assert mapped(views).size == file.stat().st_size
    assert mapped([np.zeros(5), np.frombuffer(b"12345678", np.uint8)]) == Mapped(0, 0)


def test_allocated_arrays_count_once_and_mapped_ones_not(file):
    from shards.types import Found

    arrays, _ = array_files.load(file)
    own = np.zeros(1000)
    found = Found(own, own[10:], own.reshape(10, 100), arrays["a"], 0, None, 0, 0)
    assert private_bytes([found]) == 8000
    assert private_bytes([found, own, [own]]) == 8000 + [own].__sizeof__() + 16  # a list's header, with the collector's
    assert private_bytes([arrays["a"], arrays["b"][3:]]) == 0
    assert private_bytes([np.frombuffer(bytes(500), np.uint8)[7:]]) == 500


def test_an_object_may_tell_what_a_library_allocated_for_it():
    from shards.types import Budget

    class Index(Budget):
        nbytes = 123

    Index.__module__ = "shards.somewhere"
    assert private_bytes([Index()]) == 123


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    engine = Engine(folder, ["names", "bm25", "words=bm25:unit_bytes=200", "late=bm25@none/**"])
    files = {f"{i}.txt": f"word{i} and words of document {i}. " * 40 for i in range(60)}
    engine.index(write_files(folder / "source", files), calibrate=False, n_shards=2)
    made = Host(engine.store.url, {}, str(folder / "cache"), 1 << 30)
    return made, engine


def test_a_host_tells_what_each_space_takes_once_for_all_generations(host):
    made, engine = host
    assert made.memory() == {}
    root = engine.generation().root
    made.warm("c", root.generation, range(2))
    spaces = {ref.name: ref.space_id for ref in root.spaces}
    told = made.memory()["c"]
    files = {}
    for page in engine.generation().pages:
        for segment in page.segments:
            for role, file in segment.files.items():
                files[role] = files.get(role, 0) + file.size
    assert {name: told[space]["mapped"] for name, space in spaces.items()} == {
        name: files[f"layer/{space}"] for name, space in spaces.items()
    }
    assert told["text"]["mapped"] == files["text"]
    assert told["documents"]["mapped"] == files["docs"] + files["entries"]
    readers = [v.readers[spaces["words"]] for n in range(2) for v in made.shard("c", root.generation, n).views]
    assert told[spaces["words"]]["private"] == private_bytes(readers) > sum(reader.n_units for reader in readers)
    write_files(engine.folder / "source", {"new.txt": "One more document."})
    engine.index(engine.folder / "source", calibrate=False)
    made.warm("c", engine.generation().root.generation, range(2))
    again = made.memory()["c"]
    added = {f.name: f.size for p in engine.generation().pages for s in p.segments for role, f in s.files.items() if role == "text"}
    assert len(added) == 3 and again["text"]["mapped"] == sum(added.values())  # two generations are open, of the old files once


@needs_pagemap
def test_status_sums_what_hosts_tell_of_each_space(host):
    made, engine = host

    async def status():
        coordinator = Coordinator(engine.store, LocalSearcher(made), engine.resources, engine.cache)
        await coordinator.search(SearchRequest(corpus="c", query="words of document", budget_ms=60_000))
        return await coordinator.status()

    state = asyncio.run(status())
    layers = {layer["name"]: layer for layer in state["corpora"]["c"]["layers"]}
    told = made.memory()["c"]
    for layer in layers.values():
        assert (layer["mapped_bytes"], layer["private_bytes"]) == (told[layer["space"]]["mapped"], told[layer["space"]]["private"])
        assert 0 < layer["resident_bytes"] <= layer["mapped_bytes"] + 3 * mmap.PAGESIZE  # three files, each of which ends within a page
        assert layer["private_bytes"] > 0
    assert layers["bm25"]["statistics_bytes"] > 60 * 8  # a number for each term at least
    assert state["corpora"]["c"]["memory"]["text"]["resident_bytes"] > 0
    (host_state,) = state["hosts"]
    assert host_state["memory"]["c"] and host_state["rss_bytes"] > 10 * MB


def test_what_status_tells_is_measured_now_and_then_and_when_other_shards_are_open(host, monkeypatch):
    _, engine = host
    fresh = Host(engine.store.url, {}, str(engine.folder / "cache"), 1 << 30)
    measured = []
    monkeypatch.setattr(fresh, "memory", lambda: measured.append(1) or Host.memory(fresh))
    assert fresh.status()["memory"] == {}
    fresh._measuring_s = 0.0  # as if it had taken no time
    fresh.shard("c", engine.generation().root.generation, 0)
    told = fresh.status()["memory"]
    assert told["c"]["text"]["mapped"] > 0 and len(measured) == 2
    fresh._measuring_s = 1000.0  # as if it had taken long
    fresh.shard("c", engine.generation().root.generation, 1)
    assert fresh.status()["memory"] == told and len(measured) == 2
    fresh._measured_at -= 1000.0 / 0.01
    assert fresh.status()["memory"]["c"]["text"]["mapped"] > told["c"]["text"]["mapped"]


def test_what_several_hosts_hold_is_summed_and_what_one_cannot_tell_is_unknown():
    one = {"memory": {"c": {"s": {"mapped": 10, "resident": 4, "private": 1}}}}
    two = {"memory": {"c": {"s": {"mapped": 20, "resident": 8, "private": 2}, "text": {"mapped": 5, "resident": None, "private": 0}}}}
    other = {"memory": {"d": {"s": {"mapped": 99, "resident": 99, "private": 99}}}}
    assert memory_of("c", [one, two, other, {}]) == {
        "s": {"mapped_bytes": 30, "resident_bytes": 12, "private_bytes": 3},
        "text": {"mapped_bytes": 5, "resident_bytes": None, "private_bytes": 0},
    }


def test_a_process_knows_its_own_size():
    size = process_bytes()
    assert size is None or size > 10 * MB


def test_garbage_is_collected_again_after_the_last_of_those_who_put_it_off_unless_it_was_off():
    with uncollected():
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
        gc.disable()
    assert gc.isenabled()
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
