"""Combined searches within a time: goals reach the searches inside, and what was cut off goes on."""

import asyncio

import pytest
from test_anytime import QUERY, coordinator_of, engine  # noqa: F401  # a fixture
from test_anytime import request as plain_request

from cluster.host import Host
from serve.anytime.learned import Usual
from serve.schema import SearchRequest
from shards.errors import BadQuery
from shards.shard import Shard

RAIN = {"search": {"query": "rain", "layers": ["text"]}}
RIVER = {"search": {"query": QUERY, "layers": ["bm25", "static"]}}
BRIDGE = {"bridge": {"from": RAIN, "key": {"pattern": r"of (day \d+)"}, "to": {"search": {"query": "$key", "layers": ["text"]}}}}


def request(tree, **fields):
    return SearchRequest(**{"corpus": "c", "combine": tree, "budget_ms": 30_000, "keep_all": True, "k": 60} | fields)


def essence(answer):
    told = answer.model_dump(mode="json", exclude={"timings_ms", "resumed", "continue_", "freshness"})
    told["combined"].pop("rounds")
    for part in told["combined"]["parts"]:
        part.pop("round")
    return told


def test_a_combined_search_goes_on_where_its_time_cut_a_part_off(engine, monkeypatch):  # noqa: F811
    asked_spaces, cut = [], True
    real = Shard._search_space

    def late(self, query, *rest):
        asked_spaces.append((query.space, query.finds))
        covered, total = real(self, query, *rest)
        if query.space == "bm25" and cut:
            rest[-1]._seconds = float("inf")
            return 0, total
        return covered, total

    monkeypatch.setattr(Shard, "_search_space", late)

    async def run():
        nonlocal cut
        coordinator, asked = coordinator_of(engine), request({"union": [RAIN, RIVER]})
        part = await coordinator.search(asked)
        cut = False
        asked_spaces.clear()
        again = await coordinator.search(asked.model_copy(update={"continue_": part.continue_}))
        ours = list(asked_spaces)
        lost = await coordinator.search(asked.model_copy(update={"continue_": part.continue_}))
        with pytest.raises(BadQuery, match="another request"):
            token = coordinator.unfinished.keep(None, "other", 0)
            await coordinator.search(asked.model_copy(update={"continue_": token}))
        return part, again, ours, lost, await coordinator_of(engine).search(asked)

    part, again, asked_again, lost, whole = asyncio.run(run())
    assert part.continue_ and not part.complete and {c.layer for c in part.coverage if c.state == "late"} >= {"bm25"}
    assert again.resumed and again.complete and again.continue_ is None and (lost.resumed, whole.resumed) == (False, None)
    assert ("text", True) not in asked_again and ("bm25", True) in asked_again  # what had looked everywhere only scores
    assert essence(again) == essence(whole) == essence(lost)


def test_a_question_of_a_part_that_was_not_made_in_time_is_made_when_the_search_goes_on(engine, monkeypatch):  # noqa: F811
    async def run():
        coordinator, asked = coordinator_of(engine), request({"union": [RAIN, RIVER]})
        await coordinator.open(plain_request())
        coordinator.learned.of("c").of("static").prepare_s = Usual(mean=50.0, n=100)
        part = await coordinator.search(asked.model_copy(update={"budget_ms": 2_000}))
        coordinator.learned.of("c").of("static").prepare_s = Usual()
        again = await coordinator.search(asked.model_copy(update={"continue_": part.continue_}))
        return part, again, await coordinator.search(asked)

    part, again, whole = asyncio.run(run())
    assert part.continue_ and {c.layer for c in part.coverage if c.state == "late"} == {"static"}
    assert again.complete and essence(again) == essence(whole)


def test_a_bridge_that_there_was_no_time_for_is_crossed_when_the_search_goes_on(engine, monkeypatch):  # noqa: F811
    from serve import algebra_rounds

    async def run():
        coordinator, asked = coordinator_of(engine), request({"union": [BRIDGE, RIVER]})
        monkeypatch.setattr(algebra_rounds, "LEAST_S", 1e9)
        part = await coordinator.search(asked)
        monkeypatch.setattr(algebra_rounds, "LEAST_S", 0.005)
        again = await coordinator.search(asked.model_copy(update={"continue_": part.continue_}))
        return part, again, await coordinator_of(engine).search(asked)

    part, again, whole = asyncio.run(run())
    assert part.continue_ and not part.combined.keys and any(c.state == "late" for c in part.coverage)
    assert again.combined.keys and again.complete and essence(again) == essence(whole)


def test_a_fast_combined_search_leaves_out_what_would_hardly_change_it_and_says_so(engine):  # noqa: F811
    async def run():
        coordinator = coordinator_of(engine)
        for name in ("bm25", "static"):
            for _ in range(50):
                coordinator.learned.of("c").of(name).change.add(0.01)
            coordinator.learned.of("c").of(name).search_s = Usual(mean=0.5 if name == "static" else 0.001, n=100)
        tree = {"union": [RAIN, RIVER]}
        return await coordinator.search(request(tree, goal="fast")), await coordinator.search(request(tree))

    fast, balanced = asyncio.run(run())
    assert balanced.complete and not fast.complete and fast.continue_ is None
    (left_out,) = [c for c in fast.coverage if c.state == "late"]
    assert (left_out.layer, left_out.part, left_out.covered) == ("static", "2", 0) and "fast is wanted" in left_out.reason


def test_goals_give_a_combined_search_more_candidates_and_time_to_encode(engine, monkeypatch):  # noqa: F811
    plans = []
    real = Host.search
    monkeypatch.setattr(Host, "search", lambda self, requests: plans.extend(r.plan for r in requests) or real(self, requests))

    async def run():
        coordinator = coordinator_of(engine)
        await coordinator.open(plain_request())
        plans.clear()
        for goal in ("fast", "balanced", "precise", "wide"):
            await coordinator.search(request({"union": [RAIN, RIVER]}, goal=goal, k=10))

    asyncio.run(run())
    assert [plan.n_candidates for plan in plans] == [100, 100, 100, 300]
    assert [round(plan.on_the_fly_s, 2) for plan in plans] == [0.0, 0.25, 5.0, 5.0]
