"""Spaces that are built where they are used: what is built when, and that nothing is lost, doubled or built without need."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine import Engine, paths, write_files
from test_encoders import save_static, word_pieces

from serve.calibrate import Calibrator
from shards import layer_queue, usage
from shards.building import NEIGHBOURS, SAMPLE, UNIT, Building, Catalogue, Weights, choose, to_evict
from shards.building_cost import Spent, ledger, spend
from shards.endpoint_settings import Usage
from shards.errors import BadSpec, Cancelled, NotFound
from shards.identity import content_hash
from shards.invariants import of_statistics
from shards.layer_builder import LayerBuilder, Step
from shards.layer_queue import Order, give, state, take, taken
from shards.layers import SpaceSpec, create
from shards.layers.contract import Resources
from shards.manifest import corpus_store
from shards.segment import Tombstones
from shards.store import open_store
from shards.usage import HALF_LIFE_S, Recorder, UsageCounts, folder_key

NOW = 1_800_000_000.0
WORDS = ("amber", "basalt", "cobalt", "dolomite", "ebony", "garnet")


def store_of(name: str):
    return open_store(f"memory://{name}")


# --- specs -------------------------------------------------------------------------------------------------------------------


def test_a_spec_says_that_a_space_is_built_where_it_is_used_and_its_id_does_not():
    spec = SpaceSpec.parse("near=dense:built=used,unit_bytes=500@docs/**")
    assert (spec.built, spec.params, spec.scope) == ("used", {"unit_bytes": 500}, ("docs/**",))
    with pytest.raises(BadSpec, match="built is 'some'"):
        SpaceSpec.parse("dense:built=some")
    with pytest.raises(BadSpec, match="keeps no encodings"):
        create(SpaceSpec.parse("bm25:built=used"), Resources())


# --- usage -------------------------------------------------------------------------------------------------------------------


def test_usage_halves_in_a_week_and_is_told_of_documents_and_their_folders():
    counts = UsageCounts()
    counts.used([(b"a" * 20, "docs/x.md"), (b"b" * 20, "docs/y.md")], NOW)
    counts.used([(b"a" * 20, "docs/x.md")], NOW + HALF_LIFE_S)
    assert counts.document(b"a" * 20, NOW + HALF_LIFE_S).weight == pytest.approx(1.5)
    assert counts.document(b"b" * 20, NOW + HALF_LIFE_S).weight == pytest.approx(0.5)
    assert counts.folder(folder_key("docs"), NOW + 2 * HALF_LIFE_S).weight == pytest.approx(1.0)
    assert counts.document(b"c" * 20, NOW).weight == 0
    again = UsageCounts.parse(counts.dump())
    assert again.document(b"a" * 20, NOW + HALF_LIFE_S).weight == pytest.approx(1.5)


def test_usage_keeps_the_heaviest_and_names_no_path():
    counts = UsageCounts()
    for i in range(10_000):
        counts.used([(content_hash(b"%d" % i), f"f{i}/secret-plan.txt")] * (3 if i == 7 else 1), NOW)
    counts.prune(NOW)
    assert len(counts.documents) == usage.MOST_DOCUMENTS and len(counts.folders) == usage.MOST_FOLDERS
    assert counts.document(content_hash(b"7"), NOW).weight == 3
    assert b"secret" not in counts.dump() and len(counts.dump()) < 400_000


def test_two_coordinators_count_together_and_the_file_of_one_that_is_gone_is_taken_over():
    store, now = store_of("usage-two"), [NOW]
    one, two = (Recorder(store.child, clock=lambda: now[0]) for _ in range(2))
    for recorder in (one, one, two):
        recorder.used("c", 1, [(b"a" * 20, "a.txt")])
        recorder.flush()
    inside = store.child("c")
    assert len(inside.list("usage/")) == 2 and usage.read(inside).document(b"a" * 20, NOW).weight == 3
    now[0] += usage.ORPHAN_S + 1
    two.used("c", 1, [(b"b" * 20, "b.txt")])
    two.flush()
    assert len(inside.list("usage/")) == 1 and usage.read(inside).document(b"a" * 20, NOW).weight == pytest.approx(3, rel=0.01)
    one.used("c", 1, [(b"a" * 20, "a.txt")])
    one.flush()  # finds that it was taken over, and counts from nothing
    assert usage.read(inside).document(b"a" * 20, now[0]).weight < 3.1


def test_what_others_counted_is_read_once_and_never_much_at_a_time(monkeypatch):
    """Each is some milliseconds in which a server answers nothing, and a store that was served often has many."""
    store, reads, real = store_of("usage-many"), [], usage._read
    for i in range(4):
        other = Recorder(store.child, clock=lambda: NOW)
        other.used("c", 1, [(b"%d" % i * 20, "a.txt")])
        other.flush()
    monkeypatch.setattr(usage, "_read", lambda inside, name: reads.append(name) or real(inside, name))
    mine = Recorder(store.child, clock=lambda: NOW)
    for n in (1, 2, 3, 4, 4, 4):
        mine.used("c", 1, [(b"m" * 20, "m.txt")])
        mine.flush()
        assert len(reads) == len(set(reads)) == n
    monkeypatch.setattr(usage, "MOST_DOCUMENTS", 1)
    mine.used("c", 1, [(b"n" * 20, "m.txt")])
    mine.flush()
    kept = mine._counts["c"].documents
    assert list(kept) == [(b"m" * 20).hex()], "what was not written is forgotten here, too"


def test_an_erased_document_leaves_what_was_counted_and_ordered_also_in_memory():
    store = store_of("usage-erase")
    recorder, inside = Recorder(store.child, clock=lambda: NOW), store.child("c")
    recorder.used("c", 1, [(b"a" * 20, "d/a.txt"), (b"b" * 20, "d/b.txt")])
    recorder.flush()
    give(inside, Order(kind="pin", space="dense", globs=("d/a.txt",), at=NOW))
    give(inside, Order(kind="build", space="dense", globs=("d/**",), at=NOW))
    assert usage.erase(inside, [b"a" * 20]) == 1 and layer_queue.erase(inside, ["d/a.txt"])
    recorder.used("c", 1, [(b"b" * 20, "d/b.txt")])
    recorder.flush()
    told = b"".join(inside.read(name) for name in inside.list())
    assert (b"a" * 20).hex().encode() not in told and b"d/a.txt" not in told
    assert usage.read(inside).document(b"b" * 20, NOW).weight >= 1
    assert [one.globs for one in state(inside).builds] == [("d/**",)] and not state(inside).pins


def test_usage_that_is_switched_off_is_forgotten():
    store = store_of("usage-off")
    recorder, inside = Recorder(store.child, clock=lambda: NOW), store.child("c")
    recorder.used("c", 1, [(b"a" * 20, "a.txt")])
    recorder.flush()
    give(inside, Order(kind="usage", on=False, at=NOW))
    recorder.used("c", 1, [(b"a" * 20, "a.txt")])
    recorder.flush()
    assert inside.list("usage/") == []
    silent = Recorder(store.child, enabled=False)
    silent.used("other", 1, [(b"a" * 20, "a.txt")])
    silent.flush()
    assert store.child("other").list() == []


# --- orders ------------------------------------------------------------------------------------------------------------------


def test_orders_add_up_and_are_folded_without_a_change():
    inside = store_of("orders").child("c")
    give(inside, Order(kind="build", space="dense", globs=("a/**",), at=NOW))
    give(inside, Order(kind="pin", space="dense", globs=("b/**",), at=NOW))
    give(inside, Order(kind="limits", space="dense", bytes=10, cost_per_day=0.5, at=NOW))
    give(inside, Order(kind="evict", space="dense", globs=("a/**",), at=NOW))
    queue = state(inside)
    assert not queue.builds and [one.globs for one in queue.pins] == [("b/**",)]
    assert [one.globs for one in queue.evictions] == [("a/**",)]
    assert (queue.limits["dense"].bytes, queue.limits["dense"].encodings_per_day, queue.limits["dense"].cost_per_day) == (10, None, 0.5)
    layer_queue.fold(inside)
    assert state(inside) == queue
    give(inside, Order(kind="cancel", space="dense", at=NOW))
    after = state(inside)
    assert after.number == 5 and not (after.pins or after.evictions or after.builds)
    for _ in range(layer_queue.FOLDED):
        give(inside, Order(kind="build", space="dense", globs=("c/**",), at=NOW))
    assert len(state(inside).builds) == 1 and len(inside.list("building/")) < layer_queue.FOLDED


def test_a_unit_is_leased_by_one_builder_until_the_lease_ends():
    inside = store_of("units").child("c")
    documents = [b"a" * 20, b"b" * 20]
    assert take(inside, "0" * 16, documents, NOW) is not None
    assert take(inside, "0" * 16, documents, NOW + 1) is None
    assert taken(inside, NOW + 1) == {"0" * 16: set(documents)}
    assert taken(inside, NOW + layer_queue.UNIT_S + 1) == {}  # its builder died
    assert take(inside, "0" * 16, documents, NOW + layer_queue.UNIT_S + 1) is not None


def test_what_encoding_took_adds_up_over_builders_and_days():
    inside = store_of("ledger").child("c")
    one, two, space = "a" * 32, "b" * 32, "0" * 16
    for builder, at in ((one, NOW), (one, NOW), (two, NOW), (one, NOW + 86_400)):
        spend(inside, builder, space, Spent.of(32, 1.5, Usage(requests=1, tokens_in=10, cost=0.001)), at)
    found = list(ledger(inside).values())
    assert found == [Spent(96, 4.5, 3, 30, 0.003), Spent(32, 1.5, 1, 10, 0.001)]
    assert len(inside.list("building/spent/")) == 3
    spend(inside, one, space, Spent(1, 1.0), NOW + 40 * 86_400)
    assert len(ledger(inside)) == 1


# --- deciding ----------------------------------------------------------------------------------------------------------------


def corpus_of(n: int) -> Catalogue:
    keys = sorted(content_hash(b"%d" % i) for i in range(n))
    hashes = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 20)
    return Catalogue(hashes, np.full(n, 1_000, np.int64), [f"d{i % 10}/f{i}.txt" for i in range(n)])


def empty(catalogue: Catalogue, **more) -> Building:
    none = np.zeros(len(catalogue), bool)
    return replace(Building("dense", np.ones(len(catalogue), bool), none, none, none), **more)


def weights_of(catalogue: Catalogue, shown: list[int], queue: layer_queue.Queue) -> Weights:
    counts = UsageCounts()
    counts.used([(catalogue.hashes[row].tobytes(), catalogue.paths[row]) for row in shown], NOW)
    return Weights.of(catalogue, counts, queue, "dense", NOW)


def test_orders_come_before_the_sample_that_before_what_was_shown_and_that_before_its_neighbours():
    catalogue, queue = corpus_of(1_000), layer_queue.Queue().after(1, Order(kind="build", space="dense", globs=("d3/**",), at=NOW))
    shown = [905, 915, 905]
    weights, reasons, building = weights_of(catalogue, shown, queue), [], empty(catalogue)
    kept, first = building.kept.copy(), {}
    while (unit := choose(catalogue, replace(building, kept=kept), queue, weights)) is not None:
        assert len(unit.rows) <= UNIT and not kept[unit.rows].any()
        kept[unit.rows] = True
        reasons.append(unit.reason)
        first.setdefault(unit.reason, unit.rows)
    assert list(dict.fromkeys(reasons)) == ["asked for", "sample", "shown", "neighbours"]
    assert all(catalogue.paths[row].startswith("d3/") for row in first["asked for"])
    assert first["shown"].tolist() == [905, 915]
    assert {catalogue.paths[row].split("/")[0] for row in first["neighbours"]} == {"d5"}
    others = kept & ~catalogue.in_globs(("d3/**",))
    assert kept[:SAMPLE].all() and NEIGHBOURS * 1_000 <= others.sum() < NEIGHBOURS * 1_000 + UNIT


def test_limits_of_a_day_end_building_also_of_what_was_asked_for():
    catalogue = corpus_of(200)
    queue = layer_queue.Queue().after(1, Order(kind="build", space="dense", at=NOW))
    daily = queue.after(2, Order(kind="limits", space="dense", encodings_per_day=40, at=NOW))
    weights = weights_of(catalogue, [], daily)
    assert len(choose(catalogue, empty(catalogue, encoded_today=30), daily, weights).rows) == 10
    assert choose(catalogue, empty(catalogue, encoded_today=40), daily, weights) is None
    paid = queue.after(2, Order(kind="limits", space="dense", cost_per_day=1.0, at=NOW))
    assert choose(catalogue, empty(catalogue, cost_today=0.99), paid, weights) is not None
    assert choose(catalogue, empty(catalogue, cost_today=1.0), paid, weights) is None


def test_a_limit_of_bytes_drops_what_was_shown_least_and_nothing_that_is_pinned():
    catalogue, built = corpus_of(100), np.ones(100, bool)
    queue = layer_queue.Queue().after(1, Order(kind="pin", space="dense", globs=("d1/**",), at=NOW))
    queue = queue.after(2, Order(kind="limits", space="dense", bytes=50_000, at=NOW))
    gone = to_evict(catalogue, empty(catalogue, built=built, bytes=100_000), queue, weights_of(catalogue, [2, 12], queue))
    kept = {catalogue.paths[row].split("/")[0] for row in np.flatnonzero(~gone)}
    assert 55 <= gone.sum() <= 56 and not gone[[2, 12]].any() and {"d1", "d2"} <= kept
    assert not gone[[row for row in range(100) if row % 10 == 1]].any()
    assert not to_evict(catalogue, empty(catalogue, built=built, bytes=50_000), queue, weights_of(catalogue, [], queue)).any()


def test_what_was_evicted_is_not_built_again_until_it_is_shown_again():
    catalogue, counts = corpus_of(300), UsageCounts()
    counts.used([(catalogue.hashes[9].tobytes(), catalogue.paths[9])], NOW)
    queue = layer_queue.Queue().after(1, Order(kind="evict", space="dense", at=NOW + 1))
    queue = queue.after(2, Order(kind="evicted", space="dense", order=1, at=NOW + 1))
    assert choose(catalogue, empty(catalogue), queue, Weights.of(catalogue, counts, queue, "dense", NOW + 2)) is None
    counts.used([(catalogue.hashes[9].tobytes(), catalogue.paths[9])], NOW + 3)
    unit = choose(catalogue, empty(catalogue), queue, Weights.of(catalogue, counts, queue, "dense", NOW + 3))
    assert (unit.reason, unit.rows.tolist()) == ("shown", [9])


# --- building ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    files = {f"d{i % 5}/f{i}.txt": f"{WORDS[i % 6]} and {WORDS[(i * 7 + 1) % 6]} number {i}\n" for i in range(200)}
    return write_files(tmp_path_factory.mktemp("src"), files)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(save_static(tmp_path_factory.mktemp("model") / "m", word_pieces()))


class Clock:
    """Each look at it takes a second, so that what is encoded is published soon."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def builder_of(engine: Engine, clock=None) -> LayerBuilder:
    return LayerBuilder(engine.store, "c", engine.cache, engine.resources, clock=clock or Clock(), sleep=lambda _: None)


def steps(builder: LayerBuilder, go_on=None) -> Iterator[Step]:
    for _ in range(100):
        step = builder.step(go_on)
        yield step
        if step.kind == "idle" and builder.status()["static"]["built"] == builder.status()["static"]["spent"]["documents"]:
            return
    raise AssertionError("it does not end")


def static_of(engine: Engine) -> tuple[str, int, int]:
    answer = engine.search("cobalt", layers=["static"])
    (told,) = [one for one in answer.coverage if one.layer == "static"]
    return told.state, told.covered, told.total


def test_a_space_grows_where_it_is_asked_for_is_merged_with_new_files_and_becomes_whole(source, model, tmp_path):
    """One corpus from nothing to a whole space. What it holds of a document is at any time what a whole space holds of it."""
    spec = f"static:built=used,model={model}"
    engine, inside = Engine(tmp_path, ("text", spec)), None
    outcome = engine.index(source, calibrate=False)
    inside = corpus_store(engine.store, "c")
    assert outcome.encoded["static"] == 0 and static_of(engine) == ("building", 0, 200)
    give(inside, Order(kind="build", space="static", globs=("d3/**",), at=NOW))
    builder = builder_of(engine)
    told = list(steps(builder))
    assert {step.reason for step in told if step.kind == "encoded"} == {"asked for", "sample"}
    state_, covered, total = static_of(engine)
    far = builder.status()["static"]
    assert (state_, total) == ("building", 200) and covered == far["built"] == far["spent"]["documents"] and SAMPLE < covered < 200
    assert far["waiting"] == 0 and far["bytes"] > 0
    whole = Engine(tmp_path / "whole", ("text", f"static:model={model}"))
    whole.index(source, calibrate=False)
    in_folder = {"query": "cobalt number", "layers": ["static"], "paths": ["d3/**"], "k": 40, "keep_all": True}
    ours, theirs = (e.search_many([in_folder])[0] for e in (engine, whole))
    assert paths(ours) == paths(theirs) and len(ours.hits) == 40
    assert ours.coverage[0].state == "ready"  # all that is in scope is built
    # A new file gives a segment of its own, which has the space for none; invariants of tombstones and statistics hold.
    (source / "d3" / "f3.txt").rename(source / "d3" / "moved.txt")
    write_files(source, {"d3/new.txt": "garnet and cobalt, new\n", "d0/f0.txt": "amber, changed\n"})
    engine.index(source, layers=(), calibrate=False)
    generation = engine.generation()
    for page in generation.pages:
        for ref in page.segments:
            dead = Tombstones.files(engine.store.child("c"), ref)
            assert list(of_statistics(generation.spaces["static"], generation.segment(ref), ref, dead)) == []
    list(steps_of_new(builder))
    assert builder.status()["static"]["waiting"] == 0
    # Built for all: what is missing is encoded, and nothing else.
    built = builder.status()["static"]["built"]
    outcome = engine.index(source, layers=(f"static:model={model}",), calibrate=False)
    assert outcome.changed and outcome.encoded["static"] == 201 - built
    assert static_of(engine) == ("ready", 201, 201)
    assert not engine.index(source, layers=(), calibrate=False).changed


def steps_of_new(builder: LayerBuilder) -> Iterator[Step]:
    for _ in range(20):
        yield builder.step()


def test_a_builder_that_dies_at_any_batch_costs_no_encoding_twice_and_another_goes_on(source, model, tmp_path):
    engine = Engine(tmp_path, ("text", f"static:built=used,model={model}"))
    engine.index(source, calibrate=False)
    give(corpus_store(engine.store, "c"), Order(kind="build", space="static", globs=("d1/**",), at=NOW))
    clock, calls = Clock(), []

    def dies(*_: object) -> None:
        calls.append(1)
        if len(calls) in (1, 3):
            raise Cancelled("killed")

    died = 0
    for _ in range(60):
        builder = builder_of(engine, clock)  # a process of its own each time: nothing is remembered
        try:
            builder.step(dies)
        except Cancelled:
            died += 1
            clock.now += layer_queue.UNIT_S
    list(steps_of_new(builder))
    far = builder.status()["static"]
    assert died == 2 and far["waiting"] == 0 and far["built"] == far["spent"]["documents"] >= SAMPLE


def test_pins_stay_when_all_else_is_evicted_and_the_next_index_run_brings_nothing_back(source, model, tmp_path):
    engine = Engine(tmp_path, ("text", f"static:built=used,model={model}"))
    engine.index(source, calibrate=False)
    inside, builder = corpus_store(engine.store, "c"), builder_of(engine)
    give(inside, Order(kind="pin", space="static", globs=("d2/f2.txt",), at=NOW))
    list(steps(builder))
    assert builder.status()["static"]["built"] >= SAMPLE
    give(inside, Order(kind="evict", space="static", at=NOW + 10_000))
    assert builder.step().kind == "evicted"
    list(steps_of_new(builder))
    assert builder.status()["static"]["built"] == 1 and static_of(engine)[1] == 1
    write_files(source, {"d4/later.txt": "ebony, later\n"})
    assert engine.index(source, layers=(), calibrate=False).encoded["static"] == 0
    assert static_of(engine)[1] == 1


def test_a_builder_whose_segment_was_replaced_meanwhile_publishes_what_is_left_to_publish(source, model, tmp_path):
    engine = Engine(tmp_path, ("text", f"static:built=used,model={model}"))
    engine.index(source, calibrate=False)
    builder = builder_of(engine)
    assert builder.step().kind == "encoded"
    opened = builder._open()
    write_files(source, {"d1/meanwhile.txt": "amber, meanwhile\n"})
    engine.index(source, layers=(), calibrate=False)  # another generation, in which the segment is what it was
    step = builder._publish(opened, True)
    assert step is not None and step.generation == 3
    assert static_of(engine)[1] == UNIT and paths(engine.search("meanwhile", layers=["text"])) == ["d1/meanwhile.txt"]
    with pytest.raises(NotFound):
        Engine(tmp_path / "none").generation()


def test_null_models_are_fitted_once_the_sample_of_a_space_is_published_and_before_its_neighbours_are_encoded(source, model, tmp_path):
    engine = Engine(tmp_path, ("bm25", f"static:built=used,model={model}"))
    engine.index(source)
    assert set(engine.generation().nulls.spaces) == {"bm25"}, "nothing is built of the other"
    told: list[str] = []

    def calibrator(report):
        def fit(generation):
            told.append(generation.root.generation)
            return Calibrator(1, report)(generation)

        return fit

    def builder() -> LayerBuilder:
        return LayerBuilder(
            engine.store, "c", engine.cache, engine.resources, clock=Clock(), sleep=lambda _: None, calibrator=calibrator
        )  # fmt: skip

    first = builder()
    kinds = [step.kind for step in steps(first)]
    fitted = engine.generation()
    assert kinds.count("fitted") == len(told) == 1 and kinds[kinds.index("fitted") - 1] == "published"
    assert set(fitted.nulls.spaces) == {"bm25", "static"} and fitted.nulls.spaces["static"].n_docs == SAMPLE
    assert fitted.root.null_version == 2
    assert [builder().step().kind, first.step().kind] == ["idle", "idle"] and len(told) == 1
