"""Searches within a time: rounds, goals, what was left out, and going on where a search was cut off."""

import asyncio

import pytest
from engine import Engine, write_files

from cluster.host import Host
from cluster.local import LocalSearcher
from serve.anytime.learned import OfCorpus, Usual, changes, gains, searched
from serve.anytime.planning import Waiting, could_change, is_enough, next_step
from serve.anytime.unfinished import Unfinished
from serve.coordinator import Coordinator
from serve.schema import SearchRequest
from shards.errors import BadQuery
from shards.types import LayerStatus

QUERY = "river crossing in heavy rain"
TOPICS = ["rain", "river", "bridge", "harbour", "lantern", "granite", "orchard", "weather", "crossing", "heavy"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("anytime")
    words = [f"{TOPICS[i % 10]} {TOPICS[(3 * i + 1) % 10]}" for i in range(60)]
    texts = [f"The {w} of day {i}. Nobody knew the {TOPICS[(i * 7) % 10]}.\n" for i, w in enumerate(words)]
    files = {f"{i % 5}/{w.replace(' ', '-')}-{i}.txt": text for i, (w, text) in enumerate(zip(words, texts, strict=True))}
    made = Engine(folder, layers=("names", "text", "bm25", "static"))
    made.index(write_files(folder / "source", files))
    return made


def coordinator_of(engine):
    host = Host(engine.store.url, {}, str(engine.folder / "cache"), engine.cache_bytes)
    return Coordinator(engine.store, LocalSearcher(host), engine.resources, engine.cache)


def request(**fields):
    return SearchRequest(**{"corpus": "c", "query": QUERY, "budget_ms": 30_000, "keep_all": True} | fields)


def essence(answer):
    return answer.model_dump_json(exclude={"timings_ms", "plan", "resumed", "certificate", "continue_"})


async def streamed(coordinator, asked):
    return [found async for found in coordinator.search_stream(asked)]


def test_a_search_that_grows_ends_with_the_answer_of_one_round(engine):
    async def run():
        coordinator = coordinator_of(engine)
        whole = await coordinator.search(request())
        for name in ("bm25", "static"):
            coordinator.learned.of("c").of(name).search_s = Usual(mean=0.5, n=100)
        return whole, await streamed(coordinator, request())

    whole, answers = asyncio.run(run())
    assert whole.complete and whole.certificate.final and whole.continue_ is None and len(whole.hits) == 10
    assert len(answers) == 3 and [is_last for _, is_last in answers] == [False] * (len(answers) - 1) + [True]
    assert essence(answers[-1][0]) == essence(whole)
    assert answers[1][0].hits
    for answer, _ in answers[:-1]:
        assert not answer.complete and not answer.certificate.final and answer.continue_ is None
        assert {one.state for one in answer.certificate.unseen} == {"unasked"}


def test_what_does_not_fit_into_the_time_is_not_begun_and_named_and_can_be_continued(engine):
    async def run():
        coordinator = coordinator_of(engine)
        whole = await coordinator.search(request())
        dear = coordinator.learned.of("c").of("static")
        dear.search_s = Usual(mean=50.0, n=100)
        part = await coordinator.search(request(budget_ms=2_000, explain=True))
        again = await coordinator.search(request(**{"continue": part.continue_}, budget_ms=60_000))
        lost = await coordinator.search(request(**{"continue": part.continue_}, budget_ms=60_000))
        with pytest.raises(BadQuery, match="another request"):
            other = await coordinator.search(request(budget_ms=2_000))
            await coordinator.search(request(query="bridge", **{"continue": other.continue_}))
        return whole, part, again, lost

    whole, part, again, lost = asyncio.run(run())
    assert not part.complete and not part.certificate.final
    assert {(c.layer, c.state, c.covered) for c in part.coverage if c.state != "ready"} == {("static", "late", 0)}
    assert all("not begun: it takes about 50" in c.reason for c in part.coverage if c.layer == "static")
    assert [(one.layer, one.state) for one in part.certificate.unseen] == [("static", "unasked")]
    assert 0 < part.certificate.could_change < 1 and part.certificate.at_most > 0
    planned = {space.layer: space.round for space in part.plan.spaces}
    assert planned.pop("static") is None and set(planned.values()) == {1} and "bm25" in planned
    assert again.resumed and lost.resumed is False and whole.resumed is None
    assert essence(again) == essence(whole) == essence(lost)


def test_a_space_that_was_cut_off_is_asked_anew_and_those_that_ended_are_not(engine, monkeypatch):
    from shards.shard import Shard

    searched_spaces = []
    real = Shard._search_space

    def counted(self, query, *rest):
        searched_spaces.append(query.space)
        covered, total = real(self, query, *rest)
        if query.space == "bm25" and cut:
            rest[-1].deadline = float("-inf")
            return 0, total
        return covered, total

    monkeypatch.setattr(Shard, "_search_space", counted)

    async def run():
        nonlocal cut
        coordinator = coordinator_of(engine)
        for name, gain in (("names", 0.9), ("text", 0.8), ("static", 0.7), ("bm25", 0.1)):  # so bm25 is asked last
            for _ in range(20):
                coordinator.learned.of("c").of(name).change.add(gain)
        cut = True
        part = await coordinator.search(request())
        first, cut = list(searched_spaces), False
        searched_spaces.clear()
        again = await coordinator.search(request(**{"continue": part.continue_}))
        return part, first, again, await coordinator_of(engine).search(request())

    cut = False
    part, first, again, whole = asyncio.run(run())
    assert first[-1] == "bm25" and {c.layer for c in part.coverage if c.state == "late"} == {"bm25"}
    assert searched_spaces[: len(part.coverage)].count("bm25") >= 1 and searched_spaces[0] == "bm25"
    assert essence(again) == essence(whole)


def test_fast_stops_when_the_first_hits_would_hardly_change(engine):
    async def run():
        coordinator = coordinator_of(engine)
        await coordinator.search(request())
        for name in ("names", "text", "bm25", "static"):
            for _ in range(50):
                coordinator.learned.of("c").of(name).change.add(0.01)
        coordinator.learned.of("c").of("static").search_s = Usual(mean=0.5, n=100)
        return await coordinator.search(request(goal="fast", explain=True)), await coordinator.search(request(goal="balanced"))

    fast, balanced = asyncio.run(run())
    assert balanced.complete and fast.plan.rounds == 1 and "static" not in {c.layer for c in fast.coverage if c.state == "ready"}
    assert "would change about 1 %" in fast.plan.stopped
    assert {c.reason for c in fast.coverage if c.layer == "static"} == {next(i.reason for i in fast.layers if i.name == "static")}


def test_a_wide_search_asks_what_the_query_does_not_look_like_and_lists_more(engine):
    async def run():
        coordinator = coordinator_of(engine)
        return await coordinator.search(request(query="rain", goal="wide", k=60)), await coordinator.search(request(query="rain", k=60))

    wide, balanced = asyncio.run(run())
    assert {c.layer for c in wide.coverage} >= {c.layer for c in balanced.coverage}


def test_the_most_gain_for_a_second_goes_first_and_what_does_not_fit_is_passed_over():
    waiting = [Waiting("late", 0.02, 0.06, 0.4), Waiting("bm25", 0.0, 0.003, 0.3), Waiting("dense", 0.012, 0.004, 0.3)]
    assert next_step(waiting, 0.2, 0.002, False, True).names == ("bm25", "dense", "late")
    step = next_step(waiting, 0.05, 0.002, False, True)
    assert step.names == ("bm25", "dense") and step.expected_s == pytest.approx(0.021)
    assert next_step(waiting, 0.004, 0.002, False, True).names == ("bm25",)  # late rather than nothing
    assert next_step(waiting, 0.004, 0.002, False, False).names == ()
    assert next_step(waiting, 1.0, 0.0, True, True).names == ("bm25",)
    assert next_step(waiting[::2], 1.0, 0.0, True, False).names == ("dense",)
    assert next_step([Waiting("dense", 0.012, 0.004, 0.3, ready=True)], 0.005, 0.0, False, False).names == ("dense",)


def test_what_is_left_may_change_less_than_the_goal_allows():
    assert could_change([(0.1, 1.0), (0.2, 0.5)]) == pytest.approx(1 - 0.9 * 0.9)
    assert could_change([]) == 0.0
    assert is_enough("fast", 0.19) and not is_enough("fast", 0.2)
    assert is_enough("balanced", 0.04) and not is_enough("precise", 0.0001)


def test_a_space_changes_the_hits_that_only_it_brings_and_those_that_it_lifts():
    import numpy as np

    surprises = np.array([[9.0, 0.0], [0.0, 5.0], [4.0, 0.0], [0.0, 3.0]])
    generated = surprises > 0
    assert changes(surprises, np.ones(2), generated, k=2).tolist() == [0.5, 0.5]
    assert changes(surprises, np.array([1.0, 0.0]), generated, k=2).tolist() == [1.0, 0.0]
    assert changes(np.zeros((0, 2)), np.ones(2), np.zeros((0, 2), bool)).tolist() == [0.0, 0.0]


def test_costs_are_learned_and_what_was_cut_off_counts_as_longer():
    corpus = OfCorpus()
    ready = [LayerStatus("bm25", s, "ready", 5, 5, "", 0.01) for s in (0, 1)]
    searched(corpus, ["bm25"], ready, 0.025, 1)
    assert corpus.of("bm25").search_s.mean == pytest.approx(0.02) and corpus.round_s.mean == pytest.approx(0.005)
    searched(corpus, ["bm25"], [LayerStatus("bm25", 0, "late", 1, 5, "", 0.03)], 0.03, 1)
    assert corpus.of("bm25").search_s.mean == pytest.approx(0.04) and corpus.round_s.n == 1
    for _ in range(8):
        corpus.of("bm25").change.add(0.5)
    assert gains(corpus, ["bm25", "static"], {"bm25": 1.0, "static": 0.5}) == {"bm25": 0.5, "static": pytest.approx(1 / 3)}


def test_unfinished_searches_are_kept_for_a_while_and_no_more_than_so_many():
    now = [0.0]
    kept = Unfinished(lambda: now[0], most=2)
    tokens = [kept.keep(name, "same") for name in ("a", "b", "c")]
    assert len(kept) == 2 and kept.take(tokens[0], "same") is None and kept.take(tokens[1], "same") == "b"
    now[0] = 61.0
    assert kept.take(tokens[2], "same") is None
