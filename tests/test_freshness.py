"""Files that changed, came or went since they were indexed: what a search says of them before anybody indexes again."""

import asyncio
import os
from contextlib import asynccontextmanager

import numpy as np
import pytest
from engine import Engine, paths, write_files

from cluster.host import Host
from cluster.local import LocalSearcher
from serve.coordinator import Coordinator
from serve.freshness import prefixes_of
from serve.nlql.schema import QueryRequest
from serve.schema import SearchRequest
from shards import tree
from shards.errors import NotFound
from shards.freshness import CHANGED, CURRENT, UNCHECKED, VANISHED, Known, LocalCheck, entry_state
from shards.local_folder import LocalFolder
from shards.roots import Source
from shards.types import Budget

FILES = {f"{i % 3}/day-{i}.txt": f"The lantern of day {i} shines on granite {7 * i}.\n" for i in range(12)}


def indexed(folder, files=FILES, layers=("names", "text", "bm25"), **options):
    engine = Engine(folder, layers)
    engine.index(write_files(folder / "source", files), **options)
    return engine


@asynccontextmanager
async def coordinator_of(engine):
    host = Host(engine.store.url, {}, str(engine.folder / "cache"), engine.cache_bytes)
    coordinator = Coordinator(engine.store, LocalSearcher(host), engine.resources, engine.cache)
    try:
        yield coordinator
    finally:
        await coordinator.close()


def ask(engine, *queries, **request):
    """Answers of one coordinator, whose sources are looked at whole for each."""

    async def run():
        async with coordinator_of(engine) as coordinator:
            said = {"corpus": "c", "budget_ms": 30_000, "keep_all": True, "freshness": "strict"} | request
            return [await coordinator.search(SearchRequest(query=query, **said)) for query in queries]

    return asyncio.run(run())


def freshness_of(answer):
    return {hit.entries[0].path: hit.freshness for hit in answer.hits}


def test_an_edited_file_is_found_by_what_it_says_now_and_not_by_what_it_said(tmp_path):
    engine = indexed(tmp_path)
    (tmp_path / "source/2/day-5.txt").write_text("A zeppelin over the harbour.\n")
    new, old, names = ask(engine, "zeppelin", "lantern of day 5", "day-5.txt")
    assert freshness_of(new) == {"2/day-5.txt": "live"} and new.hits[0].excerpt.text == "A zeppelin over the harbour.\n"
    assert "2/day-5.txt" not in freshness_of(old) and set(freshness_of(old).values()) == {"current"}
    assert freshness_of(names)["2/day-5.txt"] == "live"
    assert (new.freshness.checked, new.freshness.of, new.freshness.changed, new.freshness.live) == (12, 12, 1, 1)
    assert new.certificate.final and new.freshness.layers == ["bm25", "names", "text"]  # all layers that were asked know it
    (trusted,) = ask(engine, "lantern of day 5", freshness="trust")
    assert "2/day-5.txt" in freshness_of(trusted) and set(freshness_of(trusted).values()) == {"unchecked"} and trusted.freshness is None


def test_the_text_of_a_live_hit_is_read_by_its_hash_and_marked(tmp_path):
    engine = indexed(tmp_path)
    old = engine.search("lantern of day 4", layers=["text"]).hits[0]
    (tmp_path / "source/2/day-5.txt").write_text("A zeppelin over the harbour of Mörk.\n")

    async def run():
        async with coordinator_of(engine) as coordinator:
            search = SearchRequest(corpus="c", query="zeppelin", budget_ms=30_000, freshness="strict")
            (hit,) = (await coordinator.search(search)).hits
            whole, part = await coordinator.document("c", hit.hash), await coordinator.document("c", hit.hash, 32, 34)
            with pytest.raises(NotFound):
                await coordinator.document("c", hit.hash, generation=1)
            return hit, whole, part, await coordinator.document("c", old.hash)

    hit, whole, part, indexed_one = asyncio.run(run())
    assert (hit.freshness, whole["text"], whole["live"]) == ("live", "A zeppelin over the harbour of Mörk.\n", True)
    assert (part["text"], whole["entries"][0]["path"], indexed_one["live"]) == ("ö", "2/day-5.txt", False)


def test_what_takes_no_live_files_says_how_many_there_are_and_drops_what_is_gone(tmp_path):
    engine = indexed(tmp_path)
    (tmp_path / "source/2/day-5.txt").write_text("A zeppelin over the harbour.\n")
    (tmp_path / "source/1/day-4.txt").unlink()

    async def run():
        async with coordinator_of(engine) as coordinator:
            said = {"corpus": "c", "budget_ms": 30_000, "k": 20, "keep_all": True, "freshness": "strict"}
            tree = {"union": [{"search": {"query": "lantern", "layers": ["bm25"]}}]}
            combined = await coordinator.search(SearchRequest(combine=tree, **said))
            joint = await coordinator.search(SearchRequest(query="lantern", layers=["bm25"], coupling="joint", **said))
            rows = await coordinator.query(QueryRequest(corpus="c", text='SELECT DOCUMENT WHERE CONTAINS(content, "lantern")'))
            return combined, joint, rows

    combined, joint, rows = asyncio.run(run())
    for answer in (combined, joint, rows):
        assert (answer.freshness.changed, answer.freshness.vanished, answer.freshness.live) == (1, 1, 0)
    for answer in (combined, joint):
        assert "1/day-4.txt" not in paths(answer) and freshness_of(answer)["2/day-5.txt"] == "changed"
    assert not joint.certificate.final and len(rows.rows) == 12


def test_a_deleted_file_is_no_hit_and_others_take_its_place(tmp_path):
    engine = indexed(tmp_path)
    (before,) = ask(engine, "lantern", k=5)
    gone = paths(before)[0]
    (tmp_path / "source" / gone).unlink()
    (after,) = ask(engine, "lantern", k=5)
    assert paths(after) == [*paths(before)[1:], paths(ask(engine, "lantern", k=6)[0])[4]] and after.freshness.vanished == 1


def test_a_file_that_goes_after_the_check_is_dropped_when_it_would_be_shown(tmp_path):
    engine = indexed(tmp_path)

    async def run():
        async with coordinator_of(engine) as coordinator:
            asked = SearchRequest(corpus="c", query="lantern", k=5, budget_ms=30_000, keep_all=True)
            before = await coordinator.search(asked)
            check = coordinator.freshness._corpora["c"].checks["main"]
            check.whole_s = 1e6  # so nothing is looked at again
            (tmp_path / "source" / paths(before)[0]).unlink()
            (tmp_path / "source" / paths(before)[1]).write_text("changed\n")
            return before, await coordinator.search(asked)

    before, after = asyncio.run(run())
    assert paths(before)[0] not in paths(after) and len(after.hits) == 5 and after.freshness.dropped == 1
    assert freshness_of(after)[paths(before)[1]] == "changed" and after.freshness.changed == 0


def test_a_renamed_file_is_found_at_its_new_place_alone(tmp_path):
    engine = indexed(tmp_path)
    os.rename(tmp_path / "source/1/day-4.txt", tmp_path / "source/1/moved.txt")
    by_text, by_name = ask(engine, "lantern of day 4", "moved.txt")
    assert [e.path for hit in by_text.hits for e in hit.entries].count("1/moved.txt") == 1
    assert "1/day-4.txt" not in {e.path for hit in by_text.hits for e in hit.entries}
    assert paths(by_name)[0] == "1/moved.txt" and by_name.hits[0].freshness == "live"


def test_new_files_count_only_where_a_listing_would_take_them(tmp_path):
    engine = indexed(tmp_path, FILES | {".gitignore": "*.log\nbuild/\n"}, exclude=("private/**",))
    new = {"deep/er/new.txt": "quasar one\n", "0/a.log": "quasar two\n", "build/b.txt": "quasar three\n", "private/c.txt": "quasar four\n"}
    write_files(tmp_path / "source", new)
    (answer,) = ask(engine, "quasar")
    assert freshness_of(answer) == {"deep/er/new.txt": "live"} and answer.freshness.new == 1


def test_layers_that_were_not_built_for_a_changed_file_show_it_as_it_was(tmp_path):
    engine = indexed(tmp_path, layers=("names", "text", "static", "vectors:dim=2"))
    from serve.freshness_joining import joined
    from shards.candidates import nothing

    (tmp_path / "source/0/day-0.txt").write_text("The lantern of day 0, mended.\n")

    async def run():
        async with coordinator_of(engine) as coordinator:
            asked = SearchRequest(corpus="c", query="lantern", budget_ms=30_000, keep_all=True, freshness="strict")
            await coordinator.search(asked)
            return coordinator.freshness._corpora["c"].seen

    seen = asyncio.run(run())
    (old,) = seen.dead
    assert seen.dead[old] is False and seen.replaced[old] == seen.live.hashes and "vectors" not in seen.live.spaces
    from shards.plan import Everything, Plan, SpaceQuery
    from shards.types import Candidates

    def of_host(generated):
        row = np.frombuffer(old, np.uint8).reshape(1, 20)
        zeros = np.zeros((1, 2), np.int64)
        return Candidates(row, np.array([generated]), np.array([[2.0, 3.0]]), zeros, zeros, (None, None), np.zeros(2, np.int64), ())

    plan = Plan(Everything(), (SpaceQuery("text", "", None), SpaceQuery("vectors", "", None)))
    (kept,) = joined(plan, [of_host([True, True])], None, seen)
    assert kept.generated.tolist() == [[False, True]] and np.isnan(kept.scores[0, 0]) and kept.scores[0, 1] == 3.0
    (dropped,) = joined(plan, [of_host([True, False])], None, seen)
    assert len(dropped.hashes) == 0 and len(joined(plan, [nothing(2)], None, seen)[0].hashes) == 0


def test_a_source_that_is_gone_or_empty_is_no_deletion(tmp_path):
    engine = indexed(tmp_path)
    os.rename(tmp_path / "source", tmp_path / "away")
    for _ in range(2):
        (answer,) = ask(engine, "lantern")
        assert len(answer.hits) == 10 and set(freshness_of(answer).values()) == {"unchecked"}
        assert answer.freshness.vanished == 0 and "main: " in answer.freshness.reason and not answer.certificate.final
        (tmp_path / "source").mkdir(exist_ok=True)


def test_a_file_that_was_touched_only_is_no_change(tmp_path):
    engine = indexed(tmp_path)
    os.utime(tmp_path / "source/0/day-0.txt", (1, 1))
    (answer,) = ask(engine, "lantern of day 0")
    assert answer.freshness.changed == 0 and answer.freshness.live == 0 and answer.certificate.final


def check_of(engine, **clocks):
    generation = engine.generation()
    ref = generation.root.sources["main"]
    known = Known.of(tree.rows(generation.store, ref.tree))
    return LocalCheck(LocalFolder(Source("main", ref.url)), known, **clocks)


class EndsAfter(Budget):
    """A budget that ends when it was looked at so often."""

    def __init__(self, looks):
        self.looks = looks

    @property
    def expired(self):
        self.looks -= 1
        return self.looks < 0


def test_a_check_whose_time_ends_goes_on_where_it_ended(tmp_path):
    engine = indexed(tmp_path)
    (tmp_path / "source/2/day-5.txt").write_text("another\n")
    (tmp_path / "source/1/day-1.txt").unlink()
    now = [100.0]
    check = check_of(engine, clock=lambda: now[0])
    folders = check.within(())
    seen = []
    for _ in range(4):
        now[0] += 1
        is_whole = check.sweep(EndsAfter(1), folders, since_s=100.0)
        seen.append(check.n_seen(folders, 100.0)[0])
    assert is_whole and sorted(seen) == seen and len(set(seen)) >= 3 and seen[-1] == 12
    states = {check.known.path(row).decode(): int(check.state[row]) for row in range(12)}
    assert {path for path, state in states.items() if state != CURRENT} == {"1/day-1.txt", "2/day-5.txt"}
    assert states["1/day-1.txt"] == VANISHED and states["2/day-5.txt"] == CHANGED
    assert check.n_seen(folders, 104.5) == (0, 12) and check.within(prefixes_of(["1/**"])).tolist() == [2]
    now[0] = 1000.0
    assert check.is_due(folders)


def test_most_files_gone_is_taken_for_a_fault(tmp_path):
    engine = indexed(tmp_path, {f"{i}.txt": f"lantern {i}\n" for i in range(30)})
    for i in range(25):
        (tmp_path / f"source/{i}.txt").unlink()
    (answer,) = ask(engine, "lantern", k=30)
    assert "most of its files are gone" in answer.freshness.reason and not answer.certificate.final


def test_a_change_is_ordered_once_where_the_source_was_opened_and_nobody_is_at_it(tmp_path):
    from shards.open_order import Opening, OpenOrder, tell

    engine = indexed(tmp_path)

    async def run():
        async with coordinator_of(engine) as coordinator:
            asked = SearchRequest(corpus="c", query="lantern", budget_ms=30_000, freshness="strict")
            rounds = []
            for text in ("one\n", "one and two\n", None, None):
                if text:
                    (tmp_path / "source/0/day-0.txt").write_text(text)
                await coordinator.search(asked)
                rounds.append(coordinator.freshness.orders(engine.store))
            return rounds

    assert asyncio.run(run()) == [[], [], [], []]  # an index job read it, and knows how
    tell(engine.store, "c", "main", Opening(stage="done"))
    order = OpenOrder(url=str(tmp_path / "source"), source="main")
    (tmp_path / "source/0/day-0.txt").write_text("zero\n")
    assert asyncio.run(run()) == [[], [], [("c", order)], []]


@pytest.mark.s3
def test_a_bucket_is_compared_by_its_listing_where_a_strict_check_is_asked_for(s3_server, tmp_path, monkeypatch):
    import s3fs

    bucket, options = s3_server.bucket(), s3_server.options
    s3 = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    for path, text in FILES.items():
        s3.pipe_file(f"{bucket}/p/{path}", text.encode())
    engine = Engine(tmp_path)
    engine.index(f"s3://{bucket}/p", source_options=options)
    monkeypatch.setattr("serve.freshness_looking.STORAGE_OPTIONS", options)
    s3.pipe_file(f"{bucket}/p/2/day-5.txt", b"another\n")
    s3.rm_file(f"{bucket}/p/1/day-1.txt")
    s3.pipe_file(f"{bucket}/p/0/new.txt", b"new\n")
    (strict,) = ask(engine, "lantern", k=12)
    told = strict.freshness
    assert (told.checked, told.of, told.changed, told.vanished, told.new) == (12, 12, 1, 1, 1)
    assert "1/day-1.txt" not in paths(strict) and len(strict.hits) == 11 and not strict.certificate.final
    (checked,) = ask(engine, "lantern", k=12, freshness="check")
    assert len(checked.hits) == 12 and checked.freshness.checked == 0 and "strict" in checked.freshness.reason


def test_prefixes_are_the_folders_that_globs_begin_with():
    assert prefixes_of(["docs/**", "!docs/x/*"]) == (b"docs/",)
    assert prefixes_of(["docs/**", "*.py"]) == () == prefixes_of([])


def test_one_file_is_as_its_size_and_time_say(tmp_path):
    root = os.fsencode(tmp_path) + b"/"
    (tmp_path / "a").write_text("abc")
    status = os.stat(tmp_path / "a")
    assert entry_state(root, "a", 3, status.st_mtime_ns) == CURRENT
    assert entry_state(root, "a", 4, status.st_mtime_ns) == CHANGED
    assert entry_state(root, "b", 3, 1) == VANISHED
    assert entry_state(root + b"nowhere/", "b", 3, 1) == UNCHECKED


@pytest.mark.parametrize("freshness", ["check", "strict"])
def test_a_kept_generation_is_answered_as_it_was(tmp_path, freshness):
    engine = indexed(tmp_path)
    (tmp_path / "source/2/day-5.txt").unlink()
    (answer,) = ask(engine, "lantern of day 5", freshness=freshness, generation=1)
    assert "2/day-5.txt" in paths(answer) and "kept generation" in answer.freshness.reason
