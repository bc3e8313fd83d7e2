"""Random histories in memory and on disks with real kills: what happened does not show in what an index holds and finds."""

import random
from collections import Counter

import pytest
from job_process import CONTEXT

from jobs.histories import in_memory, with_kills
from jobs.history_checks import CORPUS, Bench, check, entries_of, put
from jobs.history_model import PUSHED, Model, change, write_to_memory
from jobs.history_pushes import PushedLog, apply, submit
from shards import manifest
from shards.store import open_store


def number(request: pytest.FixtureRequest, few: int, all: int) -> int:
    return all if request.config.getoption("--all-histories") else few


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Bench:
    return Bench(tmp_path_factory.mktemp("bench"))


def test_after_any_history_in_memory_the_index_is_as_if_built_from_scratch(bench, request):
    fates: Counter[str] = Counter()
    for seed in range(number(request, 100, all=2_000)):
        print("seed", seed)
        fates += in_memory(bench, seed)
    assert min(fates[fate] for fate in ("done", "died", "failed", "overtaken", "pushed", "pushed again")) >= 5, fates


def test_after_jobs_that_were_killed_the_index_is_as_if_built_from_scratch(bench, tmp_path, request):
    fates: Counter[str] = Counter()
    for seed in range(number(request, 10, all=200)):
        print("seed", seed)
        fates += with_kills(bench, seed, tmp_path / "killed", CONTEXT)
    assert min(fates[fate] for fate in ("killed", "done", "pushed", "looks", "answers")) >= 1, fates


def published(bench: Bench, name: str):
    """A store with one source of three files, and its model."""
    store, model = open_store(f"memory://{name}"), Model()
    model.set("one", {"a": b"amber\n", "b": b"basalt\n", "c": b"amber\n"})
    write_to_memory(f"{name}-one", model, "one")
    bench.job(store, "one", f"memory://{name}-one")
    return store, model


def test_a_wrong_index_does_not_pass(bench):
    store, model = published(bench, "wrong")
    check(bench, store, model)
    model.set("one", {"a": b"amber\n", "b": b"basalt\n"})
    with pytest.raises(AssertionError, match="other files than the sources'"):
        check(bench, store, model)


def test_a_reader_that_sees_a_mixture_of_moments_says_so(bench):
    store, model = published(bench, "mixed")
    log = PushedLog(store, model)
    assert bench.look(log) == 1
    model.seen["one"] = {frozenset(), frozenset({("a", b"x" * 20)})}
    with pytest.raises(AssertionError, match="generation 1 mixes moments of source 'one'"):
        bench.look(log)


def test_a_push_that_is_not_applied_or_half_of_one_entry_is_noticed(bench):
    store, model = published(bench, "pushed")
    log = PushedLog(store, model)
    submit(store, [put("p", b"ebony\n", "first"), put("q", b"garnet\n", "second")], bench.layers)
    log.follow()
    with pytest.raises(AssertionError, match="other files than the sources'"):
        check(bench, store, model)
    apply(bench, store)
    check(bench, store, model)
    model.seen[PUSHED] = {frozenset(), *(frozenset({pair}) for state in model.seen[PUSHED] for pair in state)}
    with pytest.raises(AssertionError, match="mixes moments of source 'pushed'"):
        bench.look(log)


def test_an_acknowledgement_that_the_log_does_not_bear_out_is_noticed(bench):
    store, model = published(bench, "acknowledged")
    log = PushedLog(store, model)
    one, other = put("p", b"ebony\n", "first"), put("p", b"garnet\n", "second")
    log.note(one, submit(store, [one], bench.layers)["first"])
    log.check()
    log.note(other, 2)
    with pytest.raises(AssertionError, match="second was acknowledged at 2; the log has it at None"):
        log.check()


def test_a_root_that_counts_wrongly_is_noticed(bench):
    store, _ = published(bench, "miscounted")
    root = manifest.read_root(store, CORPUS, 1)
    manifest.publish(store, root.model_copy(update={"generation": 2, "parent": 1, "n_docs": 7}))
    with pytest.raises(AssertionError, match="the root counts wrongly"):
        entries_of(bench.newest(store))


def test_a_history_is_a_function_of_its_seed():
    def drawn(seed: int) -> list[dict[str, bytes]]:
        rng, files, states = random.Random(seed), {}, []
        for _ in range(20):
            files = change(rng, files)
            states.append(files)
        return states

    assert drawn(3) == drawn(3) != drawn(4)
    assert all(state for state in drawn(3))
    model = Model()
    for state in drawn(3):
        model.set("one", state)
    assert len(set(model.times.values())) == len(model.times)
