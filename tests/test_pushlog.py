"""The log of pushed documents: one order for all, nothing acknowledged is lost, nothing is done twice."""

import random
import threading

import numpy as np
import pytest
from faults import Crash, FaultyStore

from shards import arrays, pushlog
from shards.errors import AlreadyExists, Conflict, Corrupt, StoreError
from shards.identity import content_hash
from shards.journal import IDS_KEPT, LOOK_S, SURE_S, Journal
from shards.manifest import Root, SourceRef
from shards.pushlog import Operation, collectable, dump, entry_name, erase, last, read
from shards.segment import read_pack
from shards.store import Store, open_store
from shards.worker import sorted_hashes


def put(path: str, text: str = "", id: str = "", **more) -> Operation:
    body = (text or path).encode()
    return Operation(path, content_hash(body), body, "prose:english", len(body), 5, id=id, **more)


@pytest.fixture
def store(tmp_path) -> Store:
    return open_store(tmp_path / "store")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def journal(store: Store, applied: int = 0, clock=None) -> Journal:
    return Journal(store, lambda: applied, clock or Clock())


def paths(store: Store) -> list[list[str]]:
    entries = []
    while entry := read(store, len(entries) + 1):
        entries.append([o.path for o in entry.operations])
    return entries


# --- bytes -------------------------------------------------------------------------------------------------------------------


def test_an_entry_is_read_as_it_was_written(store):
    vectors = {"mine": np.arange(6, dtype=np.float32).reshape(2, 3)}
    operations = (
        put("a/ü.txt", "zwei Wörter", id="k1", metadata={"n": 1, "s": "ä"}, vectors=vectors),
        Operation("gone.txt", mtime_ns=7),
        put("b.txt", "zwei Wörter", vectors={"mine": -vectors["mine"][:1]}),
    )
    store.create(entry_name(1), dump(operations, 12.5, ("names", "bm25:k1=2")))
    entry = read(store, 1)
    assert (entry.operations, entry.created, entry.layers) == (operations, 12.5, ("names", "bm25:k1=2"))
    assert [entry.operations[i].vectors["mine"].tolist() for i in (0, 2)] == [[[0, 1, 2], [3, 4, 5]], [[0, -1, -2]]]
    assert entry.operations[1].hash == entry.operations[1].text == b""
    assert read(store, 2) is None


def test_an_entry_is_a_pack_of_its_documents(store):
    store.create(entry_name(1), dump([put("a", "first"), Operation("b"), put("c", "second"), put("d", "first")], 0.0))
    pack = read_pack(store, entry_name(1), sorted_hashes([content_hash(b"second")]))
    assert [bytes(pack.content(row)) for row in range(len(pack))] == [b"second"]
    assert pack.kind_names[pack.kinds[0]] == "prose:english"


def test_every_flipped_bit_of_an_entry_is_noticed_and_the_remedy_named(store):
    data = dump([put("a", "some text", id="x", vectors={"v": np.ones((1, 2), np.float32)})], 3.0, ["names"])
    for at in range(len(data)):
        store.write(entry_name(1), data[:at] + bytes([data[at] ^ 0x11]) + data[at + 1 :])
        with pytest.raises(Corrupt, match=r"log/0000000000000001.*Restore it from a copy"):
            read(store, 1)
    for size in range(0, len(data), 7):
        store.write(entry_name(1), data[:size])
        with pytest.raises(Corrupt):
            read(store, 1)


def test_an_entry_of_a_newer_build_is_refused_with_the_remedy(store, monkeypatch):
    monkeypatch.setattr(pushlog, "LOG_FORMAT", 2)
    data = dump([put("a")], 0.0)
    monkeypatch.setattr(pushlog, "LOG_FORMAT", 1)
    store.create(entry_name(1), data)
    with pytest.raises(StoreError, match=r"log format 2; this build reads 1. Upgrade"):
        read(store, 1)


def test_a_damaged_entry_can_be_taken_out_so_that_the_log_goes_on(store):
    store.create(entry_name(1), b"rubbish")
    store.create(entry_name(2), dump([put("b")], 0.0))
    pushlog.take_out(store, 1)
    assert paths(store) == [[], ["b"]]


# --- the end of the log ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("applied", "entries"), [(0, 0), (0, 1), (0, 7), (5, 0), (5, 1), (5, 2), (5, 3), (5, 100)])
def test_the_end_of_the_log_is_found_by_asking_for_few_names(store, applied, entries):
    for number in range(applied + 1, applied + entries + 1):
        store.write(entry_name(number), b"")
    asked = FaultyStore(store)
    assert last(asked, applied) == applied + entries
    assert len(asked.operations) <= 2 * (entries.bit_length() + 1)


def test_the_first_entry_is_number_one_and_the_next_ones_follow(store):
    log = journal(store)
    assert [log.append(put(name)).position for name in "abc"] == [1, 2, 3]
    assert paths(store) == [["a"], ["b"], ["c"]]


def test_a_log_that_was_collected_goes_on_where_it_ended(store):
    assert journal(store, applied=41).append(put("a")).position == 42


# --- many at once ------------------------------------------------------------------------------------------------------------


class Gate(FaultyStore):
    """Holds the first create back until it is told."""

    def __init__(self, inner: Store):
        super().__init__(inner)
        self.begun, self.go = threading.Event(), threading.Event()

    def create(self, name: str, data: bytes) -> None:
        self.begun.set()
        assert self.go.wait(20)
        super().create(name, data)


def test_all_who_wait_ride_in_the_next_entry_in_their_order(store):
    gate = Gate(store)
    log = journal(gate)
    first = log.submit(put("first"))
    assert gate.begun.wait(20)
    rest = [log.submit(put(f"p{i}")) for i in range(20)]
    gate.go.set()
    assert first.result(20).position == 1
    assert {f.result(20).position for f in rest} == {2}
    assert paths(store) == [["first"], [f"p{i}" for i in range(20)]]


def test_an_entry_is_not_made_larger_than_one_can_wait_for(store, monkeypatch):
    monkeypatch.setattr("shards.journal.ENTRY_OPERATIONS", 3)
    gate = Gate(store)
    log = journal(gate)
    futures = [log.submit(put("0"))]
    assert gate.begun.wait(20)
    futures += [log.submit(put(f"{i}")) for i in range(1, 8)]
    gate.go.set()
    assert [f.result(20).position for f in futures] == [1, 2, 2, 2, 3, 3, 3, 4]


def test_two_journals_on_one_log_lose_nothing_and_agree_on_the_order(store):
    """As two replicas do: each finds the other's entries taken and goes on behind them."""
    n, barrier = 40, threading.Barrier(2)
    positions: dict[str, int] = {}

    def push(me: str) -> None:
        log = journal(store)
        barrier.wait(20)
        for i in range(n):
            positions[f"{me}{i}"] = log.append(put(f"{me}{i}", id=f"{me}{i}")).position

    threads = [threading.Thread(target=push, args=(me,)) for me in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert positions == {path: i + 1 for i, entry in enumerate(paths(store)) for path in entry}
    assert len(positions) == 2 * n
    for me in "ab":
        assert sorted(range(n), key=lambda i: positions[f"{me}{i}"]) == list(range(n))


# --- repeated requests -------------------------------------------------------------------------------------------------------


def test_a_request_that_is_repeated_with_its_id_is_performed_once(store):
    log = journal(store)
    first = log.append(put("a", "one", id="k"))
    log.append(put("a", "two"))
    assert log.append(put("a", "one", id="k")) == pushlog_receipt(first.position)
    assert paths(store) == [["a"], ["a"]]


def pushlog_receipt(position: int):
    from shards.journal import Receipt

    return Receipt(position, repeated=True)


def test_another_process_recognises_a_repeated_request(store):
    journal(store).append(put("a", id="k"))
    journal(store).append(put("b"))
    other = journal(store)
    assert other.append(put("a", id="k")) == pushlog_receipt(1)
    journal(store).append(put("c", id="m"))  # while the other believes that the log ends before
    assert other.append(put("c", id="m")) == pushlog_receipt(3)
    assert other.append(put("d", id="n")).position == 4


def test_twins_in_one_entry_are_one_operation(store):
    gate = Gate(store)
    log = journal(gate)
    log.submit(put("first"))
    assert gate.begun.wait(20)
    futures = [log.submit(put("a", id="k")), log.submit(put("a", id="k")), log.submit(put("other", id="k"))]
    gate.go.set()
    assert futures[0].result(20).position == 2
    assert futures[1].result(20) == pushlog_receipt(2)
    with pytest.raises(Conflict, match="'k' was given to another operation"):
        futures[2].result(20)
    assert paths(store) == [["first"], ["a"]]


@pytest.mark.parametrize(
    "other",
    [
        put("b", "one", id="k"),
        put("a", "two", id="k"),
        put("a", "one", id="k", metadata={"n": 1}),
        put("a", "one", id="k", vectors={"v": np.ones((1, 2), np.float32)}),
        Operation("a", id="k"),
    ],
)
def test_an_id_that_named_another_operation_is_refused(store, other):
    log = journal(store)
    log.append(put("a", "one", id="k"))
    with pytest.raises(Conflict, match="Give each operation an id of its own"):
        log.append(other)
    assert log.append(put("c")).position == 2  # the log goes on


def test_ids_are_forgotten_after_so_many_entries(store, monkeypatch):
    monkeypatch.setattr("shards.journal.IDS_KEPT", 3)
    log = journal(store)
    log.append(put("a", id="k"))
    for name in "bc":
        log.append(put(name))
    assert log.append(put("a", id="k")).repeated
    log.append(put("d"))
    assert log.append(put("a", id="k")).position == 5
    assert IDS_KEPT >= 1000


# --- death and failure -------------------------------------------------------------------------------------------------------


def test_a_crash_at_any_store_operation_loses_nothing_acknowledged(tmp_path):
    counting = FaultyStore(open_store(tmp_path / "count"))
    log = journal(counting)
    for name in "abc":
        log.append(put(name, id=name))
    for fail_at in range(1, len(counting.operations) + 1):
        for after in (False, True):
            inner = open_store(tmp_path / f"s{fail_at}{after}")
            log = journal(FaultyStore(inner, fail_at, after))
            acknowledged = []
            with pytest.raises(Crash):
                for name in "abc":
                    acknowledged.append((log.append(put(name, id=name)).position, name))
            heir = journal(inner)
            assert all(paths(inner)[position - 1] == [name] for position, name in acknowledged)
            for name in "abc":  # the caller repeats all of it
                heir.append(put(name, id=name))
            assert paths(inner) == [["a"], ["b"], ["c"]]


class Failing(FaultyStore):
    """Fails the creates told; with `after`, having done it all the same."""

    def __init__(self, inner: Store, fails: int, after: bool):
        super().__init__(inner)
        self.fails, self.does = fails, after

    def create(self, name: str, data: bytes) -> None:
        if self.fails:
            self.fails -= 1
            if self.does:
                self.inner.create(name, data)
            raise StoreError("the network is gone")
        super().create(name, data)


@pytest.mark.parametrize("done", [False, True])
def test_a_failed_write_is_told_and_the_next_one_goes_on_in_order(store, done):
    log = journal(Failing(store, 1, done))
    with pytest.raises(StoreError, match="the network is gone"):
        log.append(put("a", id="k"))
    again = log.append(put("a", id="k"))
    assert (again.position, again.repeated) == (1, done)
    assert log.append(put("b")).position == 2


def test_a_write_that_took_too_long_is_not_acknowledged(store):
    clock = Clock()

    class Slow(FaultyStore):
        def create(self, name: str, data: bytes) -> None:
            super().create(name, data)
            clock.now += SURE_S + 1

    with pytest.raises(StoreError, match="Push it again"):
        journal(Slow(store), clock=clock).append(put("a"))


def test_a_writer_that_slept_looks_where_the_log_ends(store):
    """Asleep for two days, while its next number was made by another, applied and collected."""
    clock, applied = Clock(), [0]
    sleeper = Journal(store, lambda: applied[0], clock)
    sleeper.append(put("a"))
    journal(store).append(put("b"))
    applied[0] = 2
    for number in (1, 2):
        store.delete(entry_name(number))
    clock.now += LOOK_S + 1
    assert sleeper.append(put("c")).position == 3


def test_a_log_that_is_applied_and_collected_while_its_end_is_looked_for_goes_on_behind(store):
    """Its entries are old, but were applied only now."""
    answers = iter([0, 7, 7])
    assert Journal(store, lambda: next(answers), Clock()).append(put("a")).position == 8


# --- collecting and erasing --------------------------------------------------------------------------------------------------


def root(applied: int | None) -> Root:
    sources = {} if applied is None else {"pushed": SourceRef(url="push:", applied=applied)}
    return Root(
        corpus="c", generation=1, created="2026-01-01T00:00:00Z", shards=(), spaces=(), sources=sources, n_docs=0, n_entries=0, text_bytes=0
    )


def test_entries_are_collectable_once_every_kept_generation_holds_them_and_they_are_a_day_old(store):
    for number, created in [(3, 0.0), (4, 100.0), (5, 200.0), (6, 86_500.0), (7, 86_600.0)]:
        store.create(entry_name(number), dump([put("a")], created))
    names = [entry_name(n) for n in range(8)]
    day = pushlog.KEPT_S
    assert collectable(store, [root(6), root(7)], 10 * day) == names[3:7]
    assert collectable(store, [root(6), root(4)], 10 * day) == names[3:5]
    assert collectable(store, [root(6), root(None)], 10 * day) == []
    assert collectable(store, [root(7)], day + 150) == names[3:5]
    assert collectable(store, [root(7)], day - 1) == []
    assert collectable(store, [], 10 * day) == []


def test_erasing_removes_a_documents_bytes_and_nothing_else(store):
    secret = put("s.txt", "a secret nobody may read", metadata={"from": "confidant"}, vectors={"v": np.full((1, 2), 0.625, np.float32)})
    other = put("o.txt", "other text", vectors={"v": np.ones((1, 2), np.float32)})
    store.create(entry_name(1), dump([secret, other], 4.0, ["names"]))
    store.create(entry_name(2), dump([other], 5.0))
    assert erase(store, secret.hash) == [entry_name(1)]
    data = store.read(entry_name(1))
    for trace in (secret.text, b"confidant", np.float32(0.625).tobytes()):
        assert trace not in data
    entry = read(store, 1)
    assert entry.operations == (Operation("s.txt", mtime_ns=5), other)
    assert entry.operations[1].vectors["v"].tolist() == [[1, 1]]
    assert (entry.created, entry.layers) == (4.0, ("names",))
    assert erase(store, secret.hash) == []


def test_random_logs_read_back(store):
    rng = random.Random(5)
    log = journal(store)
    expected = []
    for i in range(60):
        operation = Operation(f"p{rng.randrange(9)}") if rng.random() < 0.3 else put(f"p{rng.randrange(9)}", f"text {rng.randrange(20)}")
        expected.append(operation)
        assert log.append(operation).position == i + 1
    assert [read(store, i + 1).operations[0] for i in range(60)] == expected


def test_entries_are_ordinary_array_files(store):
    data = dump([put("a", "text")], 0.0)
    found, metadata = arrays.parse(data, "entry")
    assert sorted(found) == ["ends", "hashes", "kinds", "operations", "starts", "text"]
    assert metadata["log_format"] == "1"


def test_creating_an_entry_is_exclusive(store):
    store.create(entry_name(1), dump([put("a")], 0.0))
    with pytest.raises(AlreadyExists):
        store.create(entry_name(1), dump([put("b")], 0.0))
