"""One writer per corpus: stale ones, takeovers, crashes at every store operation, two processes."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from engine import Patience
from faults import Crash, FaultyStore

from shards import lease, manifest
from shards.errors import AlreadyExists, LeaseLost, NotFound, StoreError
from shards.lease import SKEW_S, TERM_S, hold, look
from shards.manifest import Root
from shards.store import MemoryStore, Store, open_store


class Clock:
    """A clock that stands still unless told, or somebody sleeps by it."""

    def __init__(self, now: float = 1_000_000.0):
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def root(generation: int, epoch: int = 0, **fields) -> Root:
    parent = generation - 1 or None
    base = {"corpus": "c", "parent": parent, "created": "2026-01-01T00:00:00Z", "shards": (), "spaces": (), "sources": {}}
    return Root(generation=generation, epoch=epoch, **(base | {"n_docs": 0, "n_entries": 0, "text_bytes": 0} | fields))


@pytest.fixture
def store(request) -> Store:
    found = open_store(f"memory://{request.node.name}")
    MemoryStore._files.clear()
    manifest.publish(found, root(1))
    return found


def newest(store: Store) -> Root:
    return manifest.read_root(store, "c", manifest.latest_generation(store, "c"))


def test_holders_follow_one_another_and_each_has_a_higher_epoch(store):
    epochs = []
    for _ in range(3):
        with hold(store, "c", "a test", Clock()) as held:
            epochs.append(held.epoch)
    assert epochs == [1, 2, 3]
    assert newest(store).generation == 1  # what was given back needs no fence


def test_who_waits_is_let_in_as_soon_as_the_lease_is_given_back(store):
    clock = Clock()
    first = hold(store, "c", "first", clock)
    first.__enter__()
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.sleep(seconds)
        if len(waits) == 3:
            first.__exit__(None, None, None)

    with hold(store, "c", "second", clock, sleep) as held:
        assert held.epoch == 2 and len(waits) == 3
    assert newest(store).generation == 1


def test_waiting_has_a_bound_and_the_error_says_who_writes_and_what_to_do(store):
    clock = Clock()
    with hold(store, "c", "gc", clock) as held:

        def sleep(seconds: float) -> None:
            clock.sleep(seconds)
            held.renew()  # as one does that is alive

        with (
            pytest.raises(StoreError, match=r"being written by gc on .*, process \d+; waited 90 s. Run again when it is done") as caught,
            hold(store, "c", "index", clock, sleep, wait_s=90),
        ):
            pass
        assert not isinstance(caught.value, AlreadyExists)
    assert clock.now <= 1_000_000 + 91


def others_retake(store, clock: Clock, n: int) -> Callable[[float], None]:
    """A sleep during which others, who ask just when it is free, hold the lease in turn, as servers do that take pushes. They give up where
    somebody has waited longer."""
    held = [hold(store, "c", "pushes 0", clock)]
    held[0].__enter__()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.sleep(seconds)
        assert len(slept) < 10_000
        if held:
            held.pop().__exit__(None, None, None)
        if len(slept) < n:
            following = hold(store, "c", f"pushes {len(slept)}", clock, lambda _: None, wait_s=0)
            try:
                following.__enter__()
            except StoreError as error:
                assert "others have waited for it longer" in str(error)
            else:
                held.append(following)

    sleep.slept = slept
    return sleep


def test_who_has_waited_longest_is_next_however_often_others_ask(store):
    """Others take it again the moment it is free: without tickets a waiter that looks now and then would wait until they are done."""
    clock = Clock()
    begun, sleep = clock.now, others_retake(store, clock, 1_000)
    with hold(store, "c", "index", clock, sleep):
        assert clock.now - begun <= lease.TICKET_AFTER_S + 2 * lease.PAUSES_S[1]
        assert sleep.slept[-1] <= lease.NEXT_PAUSE_S or len(sleep.slept) < 8
    assert not [name for name in store.child("c").list("lease/") if "ticket" in name]


def test_short_waits_cost_no_tickets(store):
    clock, created = Clock(), []
    inside = store.child("c")
    first = hold(store, "c", "first", clock)
    first.__enter__()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        created.extend(name for name in inside.list("lease/") if "ticket" in name)
        if clock.now > 1_000_000.3:
            first.__exit__(None, None, None)

    with hold(store, "c", "second", clock, sleep):
        assert not created


def ticket(store, since: float, until: float, who: str = "0" * 16) -> str:
    made = lease.Ticket(int(1e3 * since), int(1e3 * until), who).name
    store.child("c").create(made, b"{}")
    return made


def test_an_earlier_ticket_goes_first_and_a_later_one_does_not(store):
    clock = Clock()
    ticket(store, clock.now + 1, clock.now + 100)
    with hold(store, "c", "index", clock, wait_s=0) as held:
        assert held.epoch == 1
    ticket(store, clock.now - 1, clock.now + 100)
    with pytest.raises(StoreError, match="others have waited for it longer"), hold(store, "c", "index", clock, wait_s=0):
        pass


def test_a_waiter_that_died_holds_nobody_up_for_long_and_its_ticket_is_swept(store):
    clock = Clock()
    left = ticket(store, clock.now - 60, clock.now + lease.TICKET_S)
    begun = clock.now
    with hold(store, "c", "index", clock, clock.sleep):
        assert lease.TICKET_S <= clock.now - begun <= lease.TICKET_S + lease.PAUSES_S[1]
        assert left in store.child("c").list("lease/")  # clocks differ: its own might say that it still holds
    clock.now += SKEW_S + 1
    with hold(store, "c", "index", clock):
        assert left not in store.child("c").list("lease/")


def test_a_waiter_renews_its_ticket_and_takes_it_along_when_it_gives_up(store):
    clock, seen = Clock(), set()
    inside = store.child("c")
    with hold(store, "c", "first", clock) as held:

        def sleep(seconds: float) -> None:
            clock.sleep(seconds)
            held.renew()
            tickets = [name for name in inside.list("lease/") if "ticket" in name]
            assert len(tickets) <= 1
            seen.update(tickets)

        with pytest.raises(StoreError, match="is being written by first"), hold(store, "c", "index", clock, sleep, wait_s=20):
            pass
        assert len(seen) >= 3 and len({name.split("-")[1] for name in seen}) == 1  # of one waiter, since one time
        assert not [name for name in inside.list("lease/") if "ticket" in name]


def test_an_expired_lease_is_taken_over_and_its_holder_can_publish_no_more(store):
    """A takes the lease and stalls. B takes over, fences and publishes nothing. A wakes up and tries to publish what it made."""
    a_clock, b_clock = Clock(), Clock()
    with pytest.raises(LeaseLost, match="ended"), hold(store, "c", "a", a_clock) as a:
        b_clock.now += TERM_S + SKEW_S + 1
        with hold(store, "c", "b", b_clock) as b:
            assert (a.epoch, b.epoch) == (1, 2)
            fence = newest(store)
            assert (fence.generation, fence.parent, fence.epoch) == (2, 1, 2)
        with pytest.raises(AlreadyExists):  # A's clock says that all is well, and A does not look
            manifest.publish(store, root(2, a.epoch))
        with pytest.raises(LeaseLost, match="generation 2 was published under 2"):
            a.check(newest(store))
        a_clock.now = b_clock.now
        a.renew()


def test_a_holder_that_renews_keeps_its_lease_and_one_that_does_not_finds_it_taken(store):
    clock = Clock()
    with hold(store, "c", "a", clock) as a:
        for _ in range(20):
            clock.now += TERM_S * 0.6
            a.renew()
        assert look(store.child("c")).expires == a.expires == clock.now + TERM_S
        later = Clock(clock.now + TERM_S + SKEW_S + 1)  # of a machine whose clock is far ahead: it thinks that A has died
        with hold(store, "c", "b", later):
            clock.now += TERM_S * 0.6
            with pytest.raises(LeaseLost, match="2 was taken"):
                a.renew()


def test_clocks_may_differ_by_the_skew_that_is_stated(store):
    clock = Clock()
    with hold(store, "c", "a", clock):
        ahead = Clock(clock.now + TERM_S + SKEW_S - 0.5)
        with pytest.raises(StoreError, match="is being written by a on"), hold(store, "c", "b", ahead, lambda _: None, wait_s=0):
            pass


def test_a_takeover_that_meets_a_late_publication_fences_behind_it(store, monkeypatch):
    """B has taken over and read the newest generation; before its fence is there, A publishes: A was first, and is the last."""
    a_clock, real = Clock(), manifest.publish
    late = []

    def publish(where: Store, made: Root) -> None:
        if not late:
            late.append(True)
            real(where, root(2, 1, n_docs=5, n_entries=5))
        real(where, made)

    with hold(store, "c", "a", a_clock):
        monkeypatch.setattr(manifest, "publish", publish)
        with hold(store, "c", "b", Clock(a_clock.now + 1000)):
            assert (newest(store).generation, newest(store).epoch, newest(store).n_docs) == (3, 2, 5)


def test_what_a_holder_asked_of_a_store_that_failed_may_still_be_done_so_the_next_one_fences(store):
    clock = Clock()
    with pytest.raises(StoreError, match="no answer"), hold(store, "c", "a", clock):
        raise StoreError("no answer")
    with hold(store, "c", "b", clock):  # at once
        assert newest(store).generation == 2
    assert clock.now == 1_000_000
    with pytest.raises(NotFound), hold(store, "c", "c", clock):
        raise NotFound("nothing was asked")
    with hold(store, "c", "d", clock):
        assert newest(store).generation == 2


def test_a_crash_at_any_store_operation_lets_the_next_one_in_and_the_dead_one_publish_nothing(store):
    """At each operation of taking the lease, publishing under it and giving it back, after a holder that died before."""

    def work(where: Store, clock: Clock) -> None:
        with hold(where, "c", "a test", clock, clock.sleep) as held:
            now = newest(where)
            held.check(now)
            manifest.publish(where, root(now.generation + 1, held.epoch))

    def prepared() -> Store:
        MemoryStore._files.clear()
        manifest.publish(store, root(1))
        with pytest.raises(Crash), hold(FaultyStore(store, 4), "c", "the first to die", Clock()):
            raise Crash
        return store

    counting = FaultyStore(prepared())
    work(counting, Clock())
    assert len(counting.operations) > 10
    for fail_at in range(1, len(counting.operations) + 1):
        for after in (False, True):
            clock = Clock()
            with pytest.raises(Crash):
                work(FaultyStore(prepared(), fail_at, after), clock)
            before = newest(store)
            work(store, clock)
            assert newest(store).generation > before.generation
            assert newest(store).epoch > before.epoch
            assert look(store.child("c")).released
            numbers = [manifest.read_root(store, "c", n) for n in range(1, newest(store).generation + 1)]
            assert [r.epoch for r in numbers] == sorted(r.epoch for r in numbers)  # nobody published after a later one


class StallingStore(FaultyStore):
    """A store whose user is stopped at operation `stall_at`, before it is performed or after, while somebody else acts."""

    def __init__(self, inner: Store, stall_at: int, after: bool, act: Callable[[], object]):
        super().__init__(inner)
        self.stall_at, self.after, self.act = stall_at, after, act

    def _perform(self, method: str, name: str, *arguments):
        stalls = len(self.operations) + 1 == self.stall_at
        if stalls and not self.after:
            self.act()
        result = super()._perform(method, name, *arguments)
        if stalls and self.after:
            self.act()
        return result

    def child(self, folder: str) -> "StallingStore":
        made = StallingStore(self.inner.child(folder), self.stall_at, self.after, self.act)
        made.operations, made._folder = self.operations, f"{self._folder}{folder}/"
        return made


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("takes_over", [False, True], ids=["waits", "takes over"])
def test_whatever_moment_a_writer_stalls_at_no_publication_is_lost_or_doubled(store, after, takes_over):
    """A stalls at each of its operations, for longer than its lease; B publishes, then A goes on by a clock that stood still."""

    def add_one(where: Store, clock: Clock) -> bool:
        try:
            with hold(where, "c", "adding", clock, clock.sleep, wait_s=5 if not takes_over else 1000) as held:
                now = newest(where)
                held.check(now)
                manifest.publish(where, root(now.generation + 1, held.epoch, n_docs=now.n_docs + 1))
                return True
        except StoreError:  # lost, or waited in vain
            return False

    fates = set()
    for stall_at in range(1, 40):
        MemoryStore._files.clear()
        manifest.publish(store, root(1))
        done: list[bool] = []
        mine = add_one(StallingStore(store, stall_at, after, lambda done=done: done.append(add_one(store, Clock()))), Clock())
        if not done:
            break
        fates.add((mine, *done))
        assert newest(store).n_docs == mine + sum(done)
        chain = [manifest.read_root(store, "c", n) for n in range(1, newest(store).generation + 1)]
        assert [r.epoch for r in chain] == sorted(r.epoch for r in chain)
        assert add_one(store, Clock(3_000_000.0))
    assert stall_at == 8  # seven operations: look, take it, look again, list roots, read the newest, publish, give it back
    assert (True, True) in fates
    assert ((False, True) if takes_over else (True, False)) in fates


def test_numbers_only_grow_though_old_files_are_swept(store):
    clock = Clock()
    for _ in range(3 * lease.KEPT_FILES):
        with hold(store, "c", "a test", clock):
            pass
    names = store.child("c").list("lease/")
    assert len(names) <= 2 * lease.KEPT_FILES
    assert look(store.child("c")).epoch == 3 * lease.KEPT_FILES


def test_a_number_that_was_swept_is_nobodys(store, monkeypatch):
    """A looks, finds 1 released, and stalls. Others take 2, 3, …, and sweep. A creates 2: there is none, but that is the past."""
    inside = store.child("c")
    clock, real = Clock(), lease.look
    with hold(store, "c", "the first", clock):
        pass
    stale = [real(inside)]
    for _ in range(40):
        with hold(store, "c", "others", clock):
            pass
    for name in inside.list("lease/0000000000000002"):
        inside.delete(name)
    monkeypatch.setattr(lease, "look", lambda where: stale.pop() if stale else real(where))
    with hold(store, "c", "A", clock) as held:
        assert held.epoch == 42
    assert not inside.list("lease/0000000000000002")


def test_a_lease_file_that_cannot_be_read_holds_nobody_up(store):
    inside = store.child("c")
    inside.create("lease/0000000000000007.json", b"{")
    with hold(store, "c", "a test", Clock()) as held:
        assert held.epoch == 8 and newest(store).epoch == 8


def test_a_corpus_without_a_generation_has_nothing_to_fence_with(request):
    empty = open_store(f"memory://{request.node.name}")
    with pytest.raises(Crash), hold(FaultyStore(empty, 4), "c", "died", Clock()):
        raise Crash
    with hold(empty, "c", "a test", Clock(2e6)) as held:
        held.check(None)
    assert manifest.latest_generation(empty, "c") is None


DIES = """
import os, sys
from shards.lease import hold
from shards.store import open_store
with hold(open_store(sys.argv[1]), "c", "one that dies"):
    print("held", flush=True)
    os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="only Linux says which processes there are")
def test_a_process_of_this_machine_that_was_killed_is_not_waited_for(tmp_path):
    store = open_store(str(tmp_path))
    manifest.publish(store, root(1))
    done = subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "held\n"

    def no_sleep(seconds: float) -> None:
        raise AssertionError("it waits")

    with hold(store, "c", "a test", sleep=no_sleep) as held:
        assert held.epoch == 2 and newest(store).epoch == 2
    name = "lease/0000000000000003.json"
    body = json.loads(store.child("c").read("lease/0000000000000001.json"))
    ours = json.loads(lease._body("x", 9e9))["process"]
    store.child("c").create(name, json.dumps(body | {"process": [*ours[:3], "1"], "expires": 9e9}).encode())
    with hold(store, "c", "a test", sleep=no_sleep) as held:  # a process with our number, but it began at another time
        assert held.epoch == 4


COUNTS = """
import sys
from shards import manifest
from shards.lease import hold
from shards.store import open_store
store = open_store(sys.argv[1])
for _ in range(int(sys.argv[2])):
    with hold(store, "c", "counting") as held:
        now = manifest.read_root(store, "c", manifest.latest_generation(store, "c"))
        held.check(now)
        update = {"generation": now.generation + 1, "parent": now.generation, "n_docs": now.n_docs + 1, "epoch": held.epoch}
        manifest.publish(store, now.model_copy(update=update))
"""


def test_two_processes_and_two_threads_never_hold_it_at_once(tmp_path):
    """Each publishes on what it read under the lease; an exclusive create that fails would end its process."""
    store = open_store(str(tmp_path))
    manifest.publish(store, root(1))
    processes = [subprocess.Popen([sys.executable, "-c", COUNTS, str(tmp_path), "10"]) for _ in range(2)]
    threads = [threading.Thread(target=exec, args=(COUNTS, {"sys": sys, "__name__": "x"})) for _ in range(2)]
    argv, sys.argv = sys.argv, ["", str(tmp_path), "10"]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.argv = argv
    assert [process.wait(60) for process in processes] == [0, 0]
    assert (newest(store).n_docs, newest(store).generation, newest(store).epoch) == (40, 41, 40)


def test_a_lease_that_its_own_process_could_not_give_back_is_not_waited_for(tmp_path):
    """The disk is full when it should be released, and when it should be left: this process knows that it holds it no more."""
    store = open_store(tmp_path)

    class Full(FaultyStore):
        def write(self, name, data):
            raise StoreError("full")

        def child(self, folder):
            return Full(self.inner.child(folder))

    with pytest.raises(StoreError, match="full"), lease.hold(Full(store), "c", "test"):
        pass
    begun = Patience()
    with lease.hold(store, "c", "test", begun, begun.sleep) as held:
        assert held.epoch == 2 and begun.ahead_s < 1
        with pytest.raises(StoreError, match="is being written by test"), lease.hold(store, "c", "other", begun, begun.sleep, 5.0):
            pass
