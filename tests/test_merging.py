"""Merging: bounded work, visible debt, nothing lost beside changes, and sums that stay exact."""

import math
import random

import numpy as np
import pytest
from engine import Engine, write_files
from faults import Crash, FaultyStore
from test_encoders import save_static, word_pieces
from test_two_jobs import contents, from_scratch
from test_update import FILES, WORDS, edit_at_random, random_files
from test_writing import push, writer_of

from shards.compaction import _replaced as replaced
from shards.compaction import merge_step
from shards.drafts import Tally, specs_of
from shards.manifest import FileRef, SegmentRef, ShardPage
from shards.merging import FAN, FLOOR_BYTES, FULL_BYTES, due, live_bytes, merge_debt
from shards.segment import Tombstones, pack_entries
from shards.store import open_store
from shards.worker import SegmentTask, sorted_hashes

FILE = FileRef.of("f", b"x")


def segment(name: str, size: int, dead: float = 0.0, spaces: tuple[str, ...] = ("a",)) -> SegmentRef:
    return SegmentRef(
        id=name, buckets=(0, 4096), n_docs=10, n_entries=10, text_bytes=size, files={"docs": FILE}, spaces={s: s for s in spaces},
        n_dead_docs=int(10 * dead), n_dead_entries=int(10 * dead),
    )  # fmt: skip


def names(groups) -> list[str]:
    return ["".join(ref.id for ref in group) for group in groups]


@pytest.mark.parametrize(
    ("segments", "groups"),
    [
        ([], []),
        ([segment("a", 10), segment("b", 10), segment("c", 10)], []),
        ([segment("a", 10), segment("b", 10), segment("c", 10), segment("d", 10)], ["abcd"]),
        # Four of one tier take those of lower tiers along, and leave those of higher ones.
        ([segment(n, 100_000) for n in "abcd"] + [segment("e", 10), segment("f", 9_000_000)], ["abcde"]),
        # Small ones first: what they become may not be due any more.
        ([segment(n, 100_000) for n in "abcd"] + [segment(n, 10) for n in "efgh"], ["efgh"]),
        # Full segments are left alone, unless half of one is dead.
        ([segment(n, 2 * FULL_BYTES) for n in "abcde"], []),
        ([segment("a", 2 * FULL_BYTES, dead=0.5), segment("b", 2 * FULL_BYTES, dead=0.4)], ["a"]),
        ([segment("a", 10, dead=0.9)], []),  # not worth a generation
        # Of other spaces: never together.
        ([segment("a", 10), segment("b", 10), segment("c", 10, spaces=("x",)), segment("d", 10, spaces=("x",))], []),
        ([segment(n, 10) for n in "abcd"] + [segment(n, 20, spaces=("x",)) for n in "efgh"], ["abcd", "efgh"]),
    ],
)
def test_which_segments_are_merged(segments, groups):
    assert names(due(segments)) == groups


@pytest.mark.parametrize("seed", range(4))
def test_a_document_is_rewritten_a_bounded_number_of_times_and_segments_stay_few(seed):
    """3,000 changes of all sizes: simulated on references alone."""
    rng = random.Random(seed)
    refs: list[SegmentRef] = []
    written = merged = 0
    for i in range(3000):
        size = int(10 ** rng.uniform(1, 6))
        refs.append(segment(f"s{i}", size))
        written += live_bytes(refs[-1])
        while groups := due(refs):
            (group, *_) = groups
            assert len(group) >= FAN
            gone = {ref.id for ref in group}
            made = segment(f"m{i}", sum(ref.text_bytes for ref in group))
            merged += live_bytes(made)
            refs = [ref for ref in refs if ref.id not in gone] + [made]
        n_tiers = math.ceil(math.log(FULL_BYTES / FLOOR_BYTES, FAN)) + 1
        assert sum(live_bytes(ref) < FULL_BYTES for ref in refs) <= (FAN - 1) * n_tiers + 1
    assert merged <= 7 * written


def test_what_waits_is_told_per_shard():
    page = ShardPage(shard=3, buckets=(0, 4096), segments=tuple(segment(n, 1000, dead=0.2) for n in "abcd"))
    (debt,) = merge_debt([page])
    assert (debt.shard, debt.n_segments, debt.merges) == (3, 4, 1)
    assert (debt.dead_documents, debt.dead_entries) == (8, 8)
    assert debt.bytes == 4 * (800 + 128 * 16) and debt.dead_bytes == 4 * (200 + 128 * 4)


def sums(engine: Engine) -> dict[str, bytes]:
    """Corpus-wide statistics of every space, as comparable bytes."""
    generation = engine.generation()
    return {name: repr(_plain(generation.statistics(name))).encode() for name in sorted(generation.spaces)}


def _plain(value) -> object:
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tolist())
    fields = getattr(value, "__dataclass_fields__", None)
    # What does not compare is no sum: bm25's lists of words, as they lie in the segments.
    return {name: _plain(getattr(value, name)) for name, field in fields.items() if field.compare} if fields else value


@pytest.mark.parametrize("seed", [1, 2])
def test_sums_and_answers_equal_those_of_an_index_from_scratch_through_insert_delete_and_merge(seed, tmp_path):
    print("seed", seed)
    rng = random.Random(seed)
    static = f"static:model={save_static(tmp_path / 'model', word_pieces())}"
    layers = ("names", "text", "bm25", static)
    source = write_files(tmp_path / "src", random_files(rng, 40))
    engine = Engine(tmp_path, layers)
    merges = dropped = 0
    for step in range(14):
        n_shards = rng.choice([None, None, 1, 2, 3])  # pieces of a segment come to lie on one page again
        outcome = engine.index(source, calibrate=False, allow_shrink=True, n_shards=n_shards)
        merges += outcome.merged
        dropped += sum(ref.n_dead_docs for page in engine.generation().pages for ref in page.segments)
        if step % 4 == 3 or step == 13:
            scratch = Engine(tmp_path / f"scratch{step}", layers)
            scratch.index(source, calibrate=False)
            assert sums(engine) == sums(scratch)
            assert contents(engine) == contents(scratch)
            assert all(not debt.merges for debt in merge_debt(engine.generation().pages))
        edit_at_random(rng, source)
    assert merges > 0 and dropped > 0
    (space,) = [space for space in engine.generation().spaces.values() if space.name == "static"]
    for page in engine.generation().pages:  # moments, too, are those of the vectors that are there
        for ref in page.segments:
            arrays = engine.generation().segment(ref).layer(space.id)
            if len(arrays["mean"]):
                x = arrays["vectors"].astype(np.float64)
                np.testing.assert_allclose(arrays["mean"], x.mean(axis=0), rtol=0, atol=1e-12)


def test_a_merge_is_a_generation_that_says_the_same(tmp_path):
    source = write_files(tmp_path / "src", FILES)
    engine = Engine(tmp_path)
    engine.index(source)
    writer = writer_of(engine)
    for i in range(FAN - 1):
        push(writer, {f"p{i}": f"{WORDS[i]} is number {i}.\n"}, applied=i + 1)
    before, root = contents(engine), engine.generation().root
    merged = merge_step(writer)
    assert (merged.generation, merged.parent) == (root.generation + 1, root.generation)
    assert (merged.sources, merged.spaces, merged.n_docs) == (root.sources, root.spaces, root.n_docs)
    assert [len(page.segments) for page in engine.generation().pages] == [1]
    assert contents(engine) == before
    assert merge_step(writer) is None
    writer.close()


def test_pieces_of_one_segment_on_one_page_are_merged_as_what_they_are(tmp_path):
    """Shards were split and joined again, so a page refers to a segment twice, of which a merge may take one piece or both."""
    engine = Engine(tmp_path)
    source = write_files(tmp_path / "src", {f"d{i}.txt": f"{WORDS[i % len(WORDS)]} is number {i}.\n" for i in range(40)})
    for n_shards in (1, 2, 1):
        engine.index(source, n_shards=n_shards, calibrate=False)
    writer = writer_of(engine)
    for i in range(FAN - 2):
        push(writer, {f"p{i}": f"{WORDS[i]} is number {i}.\n"}, applied=i + 1)
    (page,), before = engine.generation().pages, contents(engine)
    assert [ref.id for ref in page.segments].count(page.segments[0].id) == 2
    one = page.segments[1:]  # the second piece and what was pushed
    newest = engine.generation()
    built = writer.build(
        [SegmentTask(0, page.buckets, (), sorted_hashes([]), pack_entries(()), one, {}, b"one piece")], specs_of(newest.root), Tally()
    )
    (after,) = replaced(newest, page, one, built[0])
    assert sum(ref.n_docs for ref in after.segments) == newest.root.n_docs
    assert merge_step(writer) is not None and [len(page.segments) for page in engine.generation().pages] == [1]
    assert contents(engine) == before
    writer.close()


def test_a_merge_larger_than_allowed_waits(tmp_path):
    engine = Engine(tmp_path)
    engine.index(write_files(tmp_path / "src", FILES))
    writer = writer_of(engine)
    for i in range(FAN - 1):
        push(writer, {f"p{i}": f"{WORDS[i]} is number {i}.\n"}, applied=i + 1)
    assert merge_step(writer, max_bytes=100) is None
    assert [debt.merges for debt in merge_debt(engine.generation().pages)] == [1]
    assert merge_step(writer, max_bytes=100_000) is not None
    writer.close()


def test_what_is_deleted_and_added_while_segments_are_merged_stays_so(tmp_path, monkeypatch):
    """A merge is built; before it is published, somebody deletes one of its documents, renames another, and adds one."""
    source = write_files(tmp_path / "src", FILES)
    engine = Engine(tmp_path)
    engine.index(source)
    writer, other = writer_of(engine), writer_of(engine)
    for i in range(FAN - 1):
        push(writer, {f"p{i}": f"{WORDS[i]} is number {i}.\n", f"r{i}": f"{WORDS[-i - 1]} stays.\n"}, applied=i + 1)
    real = writer.lease

    def lease():
        push(other, {"q": f"{WORDS[2]} is number 2.\n", "new": "Kyanite.\n"}, ("p1", "p2"), applied=9)
        return real()

    monkeypatch.setattr(writer, "lease", lease)
    merged = merge_step(writer)
    assert merged.sources["pushed"].applied == 9
    (one, _) = engine.generation().pages[0].segments
    assert one.n_dead_docs == 1 and one.n_dead_entries == 2  # p1's document; the entries of p1 and p2
    found, entries = contents(engine)
    assert sorted(path for name, path, *_ in entries if name == "pushed") == ["new", "p0", "q", "r0", "r1", "r2"]
    scratch = Engine(tmp_path / "scratch")
    scratch.index(source)
    own = writer_of(scratch)
    texts = {"p0": f"{WORDS[0]} is number 0.\n", "q": f"{WORDS[2]} is number 2.\n", "new": "Kyanite.\n"}
    push(own, texts | {f"r{i}": f"{WORDS[-i - 1]} stays.\n" for i in range(FAN - 1)})
    assert contents(scratch) == (found, entries)
    assert sums(scratch) == sums(engine)
    for made in (writer, other, own):
        made.close()


def test_two_that_merge_the_same_segments_merge_them_once(tmp_path, monkeypatch):
    engine = Engine(tmp_path)
    engine.index(write_files(tmp_path / "src", FILES))
    writer, other = writer_of(engine), writer_of(engine)
    for i in range(FAN - 1):
        push(writer, {f"p{i}": f"{WORDS[i]} is number {i}.\n"}, applied=i + 1)
    before, real = contents(engine), writer.lease

    def lease():
        assert merge_step(other) is not None
        return real()

    monkeypatch.setattr(writer, "lease", lease)
    assert merge_step(writer) is None
    assert contents(engine) == before
    for made in (writer, other):
        made.close()


def test_a_crash_at_any_operation_of_a_merge_loses_nothing(tmp_path):
    engine = Engine(tmp_path, store=open_store("memory://merging"))
    engine.index(write_files(tmp_path / "src", FILES))
    writer = writer_of(engine)
    for i in range(FAN - 1):
        push(writer, {f"p{i}": f"{WORDS[i]} is number {i}.\n"}, applied=i + 1)
    files = dict(type(engine.store)._files)
    before = contents(engine)
    counting = Engine(tmp_path, store=FaultyStore(engine.store))
    assert merge_step(writer_of(counting)) is not None
    for fail_at in range(1, len(counting.store.operations) + 1, 2):
        type(engine.store)._files.clear()
        type(engine.store)._files.update(files)
        dying = Engine(tmp_path, store=FaultyStore(engine.store, fail_at))
        with pytest.raises(Crash):
            merge_step(writer_of(dying))
        assert contents(engine) == before
        engine.index(tmp_path / "src", layers=())
        assert contents(engine) == before
        assert all(not debt.merges for debt in merge_debt(engine.generation().pages))
    writer.close()


def test_tombstones_of_many_deletions_are_few_files_of_which_each_change_writes_a_small_one(tmp_path):
    texts = {f"{i:03}.txt": " ".join(f"{WORDS[i % 16]}{i}x{j}" for j in range(100)) for i in range(140)}
    source = write_files(tmp_path / "src", texts)
    engine = Engine(tmp_path)
    engine.index(source, calibrate=False)
    written = []
    for i in range(60):
        (source / f"{i:03}.txt").unlink()
        engine.index(source, calibrate=False)
        (ref,) = engine.generation().pages[0].segments
        files = Tombstones.files(engine.generation().store, ref)
        written.append(ref.tombstones[-1].size)
        assert len(files) <= 8
        assert sum(len(file.documents) for file in files) == ref.n_dead_docs == i + 1
    print(sum(written), sum(file.size for file in ref.tombstones))
    assert sum(written) < 60 * sum(file.size for file in ref.tombstones) / 2 / 3  # a third of what one file of them all would take
    assert contents(engine) == from_scratch(tmp_path / "scratch", ("main", source))
