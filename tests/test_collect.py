"""Collecting: what goes, what stays for readers and runs under way, and that a crash at any operation leaves every root whole."""

import itertools
import os
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

import pytest
from engine import Engine, paths, write_files
from faults import Crash, FaultyStore

from shards import lease
from shards.collect import Collected, Policy
from shards.collect import collect as collect_under_lease
from shards.encodings import PackedEncodings
from shards.errors import BadSpec, Corrupt, Gone, LeaseLost, NotFound
from shards.manifest import corpus_store
from shards.readers import LEASE_S, SKEW_S, Reader, readings
from shards.references import References, generations, root_name
from shards.store import Store, open_store

NOW = 1_900_000_000.0  # long after whatever was indexed here was staged
FILES = {"a.txt": "The amber room was lost in the war.\n", "b.txt": "Cobalt blue is a pigment.\n", "c.txt": "Basalt is a rock.\n"}


def collect(store: Store, corpus: str, policy: Policy, now: float, **options) -> Collected:
    """Under a lease whose clock goes on while one waits for it, so that a crashed run's lease is over at once."""
    seconds = [now]
    options.setdefault("hold", lambda: lease.hold(store, corpus, "gc", lambda: seconds[0], lambda s: seconds.append(seconds.pop() + s)))
    return collect_under_lease(store, corpus, policy, now, **options)


def three_generations(tmp_path: Path, store: Store | None = None) -> Engine:
    """Generation 1: three files; 2: a.txt edited; 3: b.txt gone."""
    engine = Engine(tmp_path, store=store)
    source = write_files(tmp_path / "src", FILES)
    for path in source.iterdir():
        os.utime(path, (1, 1))  # the same trees, hence the same operations, every time
    engine.index(source, calibrate=False)
    (source / "a.txt").write_text("The amber room was found again.\n")
    os.utime(source / "a.txt", (2, 2))
    engine.index(source, calibrate=False)
    (source / "b.txt").unlink()
    engine.index(source, calibrate=False)
    return engine


def whole(store: Store, corpus: str = "c") -> list[int]:
    """The kept generations, every file of which is there."""
    references = References(store, corpus)
    inside = corpus_store(store, corpus)
    there = set(inside.list())
    kept = generations(store, corpus)
    for number in kept:
        missing = set(references.files(references.root(number))) - there
        assert not missing, f"generation {number} lacks {missing}"
    return kept


def unused(store: Store, corpus: str = "c") -> set[str]:
    """Files that no kept generation refers to, of those that only generations refer to."""
    references = References(store, corpus)
    used = {name for number in generations(store, corpus) for name in references.files(references.root(number))}
    names = corpus_store(store, corpus).list()
    return {name for name in names if not name.startswith(("roots/", "encodings/", "lease/")) and name not in used}


def test_generations_beyond_the_newest_go_with_every_file_that_only_they_had(tmp_path):
    engine = three_generations(tmp_path)
    planned = collect(engine.store, "c", Policy(2), NOW, dry_run=True)
    assert whole(engine.store) == [1, 2, 3]
    done = collect(engine.store, "c", Policy(2), NOW)
    assert (done.removed, done.kept) == ([1], [2, 3]) == (planned.removed, planned.kept)
    assert (done.files, done.size_bytes) == (planned.files, planned.size_bytes)
    assert done.files["roots"] == 1 and done.files["trees"] >= 1 and done.size_bytes["trees"] > 0
    assert whole(engine.store) == [2, 3] and not unused(engine.store)
    collect(engine.store, "c", Policy(1), NOW)
    assert whole(engine.store) == [3] and not unused(engine.store)
    assert paths(engine.search("found again", layers=["bm25"])) == ["a.txt"]
    assert not collect(engine.store, "c", Policy(1), NOW).files


def test_a_collected_generation_says_so_and_names_those_kept(tmp_path):
    engine = three_generations(tmp_path)
    collect(engine.store, "c", Policy(2), NOW)
    with pytest.raises(Gone, match=r"Generation 1 of corpus 'c' .* was collected\. Kept are: 2, 3\.") as error:
        engine.generation(number=1)
    assert error.value.status == 410
    with pytest.raises(NotFound, match=r"no generation 9 .* yet\. Kept are: 2, 3\."):
        engine.generation(number=9)


def test_younger_generations_stay_whatever_their_number(tmp_path):
    engine = three_generations(tmp_path)
    created = datetime.fromisoformat(engine.generation(number=2).root.created).timestamp()
    assert collect(engine.store, "c", Policy(1, older_than_s=86_400.0), created + 86_000, dry_run=True).removed == []
    assert collect(engine.store, "c", Policy(1, older_than_s=86_400.0), created + 86_500).removed == [1, 2]


def test_nothing_may_be_kept_is_refused_and_so_is_a_corpus_that_is_not_there(tmp_path):
    with pytest.raises(BadSpec, match="--keep 0 would leave nothing"):
        Policy(0)
    with pytest.raises(NotFound, match="no corpus 'nowhere'"):
        collect(open_store(str(tmp_path)), "nowhere", Policy(1), NOW)


def test_a_generation_that_a_reader_holds_stays_until_the_lease_ends(tmp_path):
    engine = three_generations(tmp_path)
    inside = corpus_store(engine.store, "c")
    reader = Reader(inside, "export to a tape", clock=lambda: NOW)
    assert reader.hold([1])
    done = collect(engine.store, "c", Policy(1), NOW)
    assert (done.removed, done.held, done.kept) == ([2], {1: ["export to a tape"]}, [1, 3])
    assert whole(engine.store) == [1, 3] and unused(engine.store) == set(inside.list("readers/"))
    # Clocks may differ: a lease holds a little longer than it says.
    assert collect(engine.store, "c", Policy(1), NOW + LEASE_S + SKEW_S - 2).removed == []
    assert collect(engine.store, "c", Policy(1), NOW + LEASE_S + SKEW_S + 2).removed == [1]
    assert inside.list("readers/") == []


def test_renewing_leaves_one_lease_and_giving_back_none(tmp_path):
    inside = open_store(str(tmp_path)).child("c")
    time = [NOW]
    with Reader(inside, "me", clock=lambda: time[0]) as reader:
        reader.hold([3])
        first = inside.list("readers/")
        reader.renew()
        assert inside.list("readers/") == first, "written anew only when a third of its time is over"
        time[0] += LEASE_S / 2
        reader.renew()
        (second,) = inside.list("readers/")
        assert second != first[0] and [r.expires for r in readings(inside, time[0])] == [NOW + 1.5 * LEASE_S]
        reader.hold([3, 4])
        assert [r.generations for r in readings(inside, time[0])] == [{3, 4}]
    assert inside.list("readers/") == []


class ReadOnly(FaultyStore):
    """Refuses what would change it."""

    def write(self, name: str, data: bytes) -> None:
        from shards.errors import StoreError

        raise StoreError(f"Cannot write {name!r}: read-only.")


def test_a_store_that_may_only_be_read_is_no_error_for_a_reader(tmp_path):
    inside = open_store(str(tmp_path)).child("c")
    reader = Reader(ReadOnly(inside), "me", clock=lambda: NOW)
    assert not reader.hold([1]) and "read-only" in reader.problem
    reader.release()


def test_a_lease_that_cannot_be_read_holds_everything(tmp_path):
    engine = three_generations(tmp_path)
    stamp = f"{datetime.fromtimestamp(NOW + 100, UTC):%Y%m%dT%H%M%S}"
    corpus_store(engine.store, "c").write(f"readers/{'0' * 32}-{stamp}.json", b"\x00")
    assert collect(engine.store, "c", Policy(1), NOW).removed == []


def test_a_lease_that_is_renewed_while_it_is_looked_for_is_not_missed(tmp_path):
    """The reader renews between the collector's listing and its reading: the old name is gone, the new one was not listed."""
    inside = open_store(str(tmp_path)).child("c")
    time = [NOW]
    reader = Reader(inside, "me", clock=lambda: time[0])
    reader.hold([1])

    class Meanwhile(FaultyStore):
        def read(self, name, start=None, end=None):
            if time[0] == NOW:
                time[0] += LEASE_S / 2
                reader.renew()
            return super().read(name, start, end)

    assert [r.generations for r in readings(Meanwhile(inside), NOW)] == [{1}]


def test_reader_and_collector_cannot_miss_each_other(tmp_path):
    """A reader may come at any operation of the collector: either it finds the root gone, or the generation stays whole."""
    n_operations = 1
    at = 0
    while at < n_operations:
        at += 1
        engine = three_generations(tmp_path / str(at), open_store(f"memory://meet-{at}"))
        inside = corpus_store(engine.store, "c")
        found: list[bool] = []

        class Arriving(FaultyStore):
            def _perform(self, method, name, *arguments):
                if len(self.operations) + 1 == at:  # noqa: B023  used within this round only
                    Reader(inside, "late", clock=lambda: NOW).hold([1])  # noqa: B023
                    found.append(inside.exists(root_name(1)))  # noqa: B023
                return super()._perform(method, name, *arguments)

            def child(self, folder):
                child = Arriving(self.inner.child(folder))
                child.operations, child._folder = self.operations, f"{self._folder}{folder}/"
                return child

        store = Arriving(engine.store)
        collect(store, "c", Policy(1), NOW)
        n_operations = len(store.operations)
        kept = whole(engine.store)
        assert 3 in kept and (1 in kept or not any(found)), f"operation {at}"


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_operation_leaves_every_root_whole_and_the_next_run_finishes(tmp_path, after):
    kept_at: list[list[int]] = []
    for fail_at in itertools.count(1):
        engine = three_generations(tmp_path / str(fail_at), open_store(f"memory://collect-{fail_at}-{after}"))
        try:
            collect(FaultyStore(engine.store, fail_at, after), "c", Policy(1), NOW)
            break
        except Crash:
            kept_at.append(whole(engine.store))
        assert paths(engine.search("found again", layers=["bm25"])) == ["a.txt"]
        collect(engine.store, "c", Policy(1), NOW + 1)
        assert whole(engine.store)[1:] == [] and not unused(engine.store)
        assert paths(engine.search("found again", layers=["bm25"])) == ["a.txt"]
    assert len(kept_at) > 20 and kept_at[0] == [1, 2, 3] and kept_at[-1] == [3]


def test_files_of_a_run_under_way_stay(tmp_path):
    """A run that has staged files may have built a segment that no root names yet; a day later nobody wants it any more."""
    engine = three_generations(tmp_path)
    inside = corpus_store(engine.store, "c")
    stamp = f"{datetime.fromtimestamp(NOW - 3600, UTC):%Y%m%dT%H%M%S}"
    inside.write(f"staging/{stamp}-{'0' * 24}.pack", b"x")
    inside.write("segments/000000000000000000000000/docs", b"built but not published")
    done = collect(engine.store, "c", Policy(1), NOW)
    assert (done.young_files, done.young_since) == (1, stamp) and done.removed == [1, 2]
    assert unused(engine.store) == {f"staging/{stamp}-{'0' * 24}.pack", "segments/000000000000000000000000/docs"}
    done = collect(engine.store, "c", Policy(1), NOW + 86_400)
    assert done.files == {"segments": 1, "staging": 1} and not unused(engine.store)


def test_a_generation_that_cannot_be_read_stops_everything_unless_it_goes(tmp_path):
    """Without its root nobody knows which files it needs."""
    engine = three_generations(tmp_path)
    inside = corpus_store(engine.store, "c")
    inside.write(root_name(2), b"{")
    with pytest.raises(Corrupt):
        collect(engine.store, "c", Policy(2), NOW)
    assert generations(engine.store, "c") == [1, 2, 3]
    collect(engine.store, "c", Policy(1), NOW)
    assert whole(engine.store)[1:] == [] and not unused(engine.store)


def test_encodings_of_documents_that_no_generation_holds_go(tmp_path):
    engine = three_generations(tmp_path)
    inside = corpus_store(engine.store, "c")
    (space,) = [s.space_id for s in engine.generation().root.spaces if s.name == "bm25"]
    import numpy as np

    held = {document: np.ones((1, 2), np.float32) for document in _documents(engine, 3)}
    gone = {bytes([n]) * 20: np.ones((1, 2), np.float32) for n in range(5)}
    kept = PackedEncodings(inside, f"encodings/{space}")
    kept.put(held)
    kept.put(gone)
    kept.put(dict(list(held.items())[:1] + list(gone.items())))
    PackedEncodings(inside, "encodings/0123456789abcdef").put(held)
    assert collect(engine.store, "c", Policy(3), NOW).files == {"encodings": 3}
    wanted = np.frombuffer(b"".join([*held, *gone]), np.uint8).reshape(-1, 20)
    assert set(kept.get(wanted)) == set(held)
    assert inside.folders("encodings") == [space] or not inside.list("encodings/0123456789abcdef/")


def _documents(engine: Engine, number: int) -> list[bytes]:
    generation = engine.generation(number=number)
    return [
        key.tobytes()
        for ref in generation.root.shards
        for view in generation.shard(ref.shard).views
        for key in view.segment.documents.hashes[view.live_docs]
    ]


def test_what_is_not_a_manifests_is_left_to_its_owner(tmp_path):
    engine = three_generations(tmp_path)
    inside = corpus_store(engine.store, "c")
    inside.write("notes/mine.txt", b"not ours")
    collect(engine.store, "c", Policy(1), NOW)
    assert inside.read("notes/mine.txt") == b"not ours"


def test_whoever_loses_the_writers_lease_deletes_nothing_more(tmp_path):
    engine = three_generations(tmp_path)

    class Lost:
        def renew(self) -> None:
            raise LeaseLost("somebody else has it")

    with pytest.raises(LeaseLost):
        collect(engine.store, "c", Policy(1), NOW, hold=lambda: nullcontext(Lost()))
    assert whole(engine.store) == [1, 2, 3]
