"""The searcher without Ray: one host in this process, threads, deadlines, an end to the queue."""

import asyncio
import threading

import pytest
from light_host import N_SHARDS, LightHost

from cluster.batching import Overloaded
from cluster.local import LocalSearcher
from shards.errors import NotFound, StoreError
from shards.identity import content_hash
from shards.plan import Everything, Plan, SpaceQuery

TEXTS = [b"a fish", b"a bird", b"fish and fish"]


class GatedHost(LightHost):
    """A host whose calls wait until the test opens the gate; it notes the time that each was given."""

    def __init__(self, store_url):
        super().__init__(store_url)
        self.gate, self.given = threading.Event(), []

    def search(self, requests):
        self.given.append(requests[0].plan.budget_s)
        assert self.gate.wait(30)
        return super().search(requests)

    def document(self, *asked):
        assert self.gate.wait(30)
        return super().document(*asked)


@pytest.fixture
def host(tmp_path):
    for i, text in enumerate(TEXTS):
        (tmp_path / f"{i}.txt").write_bytes(text)
    gated = GatedHost(str(tmp_path))
    yield gated
    gated.gate.set()


def plan(budget_s=20.0):
    return Plan(Everything(), (SpaceQuery("count", "fish", {"word": "fish"}),), budget_s=budget_s)


def run(host, story, **options):
    searcher = LocalSearcher(host, **options)
    try:
        asyncio.run(story(searcher))
    finally:
        host.gate.set()
        searcher.close()


def test_one_host_answers_for_all_shards(host):
    async def story(searcher):
        host.gate.set()
        (answer,) = await searcher.search("c", 1, N_SHARDS, plan())
        assert {h.tobytes() for h in answer.hashes} == {content_hash(TEXTS[0]), content_hash(TEXTS[2])}
        assert [s.shard for s in answer.status] == list(range(N_SHARDS))
        assert sum((await searcher.warm("c", 1, N_SHARDS)).docs.values()) == 3
        assert set(await searcher.details("c", 1, N_SHARDS, {content_hash(TEXTS[1]): ()})) == {content_hash(TEXTS[1])}
        assert (await searcher.document("c", 1, N_SHARDS, content_hash(TEXTS[1]), 2)).text == "bird"
        with pytest.raises(NotFound):
            await searcher.document("c", 1, N_SHARDS, bytes(20))
        assert (await searcher.status())["hosts"][0]["state"] == "ready"

    run(host, story)


def test_a_search_that_overruns_is_late_on_every_shard(host):
    async def story(searcher):
        (answer,) = await searcher.search("c", 1, N_SHARDS, plan(0.05))
        assert {(s.state, s.covered) for s in answer.status} == {("late", 0)}
        assert [s.shard for s in answer.status] == list(range(N_SHARDS))
        assert "no answer within 0.05 s" in answer.status[0].reason

    run(host, story)


def test_a_document_that_cannot_be_read_in_time_is_an_error_that_says_so(host):
    async def story(searcher):
        with pytest.raises(StoreError, match=r"could not be read within 0\.05 s"):
            await searcher.document("c", 1, N_SHARDS, content_hash(TEXTS[0]), budget_s=0.05)

    run(host, story)


def test_a_caller_that_gave_up_leaves_its_thread_busy_and_the_next_one_waits_for_it(host):
    async def story(searcher):
        await searcher.search("c", 1, N_SHARDS, plan(0.05))
        waits = asyncio.ensure_future(searcher.search("c", 1, N_SHARDS, plan()))
        await asyncio.sleep(0)
        assert len(host.given) == 1
        host.gate.set()
        assert len((await waits)[0].hashes) == 2
        assert host.given[0] < 0.05 and host.given[1] < 20.0

    run(host, story, threads=1)


def test_beyond_the_queue_callers_are_refused(host):
    async def story(searcher):
        asked = [asyncio.ensure_future(searcher.search("c", 1, N_SHARDS, plan())) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="1 calls are waiting"):
            await searcher.search("c", 1, N_SHARDS, plan())
        host.gate.set()
        await asyncio.gather(*asked)

    run(host, story, threads=1, queue=1)


def test_who_has_least_time_goes_first_and_a_turn_that_nobody_takes_goes_to_the_next(host):
    async def story(searcher):
        first = asyncio.ensure_future(searcher.search("c", 1, N_SHARDS, plan()))
        await asyncio.sleep(0)
        waits = [asyncio.ensure_future(searcher.search("c", 1, N_SHARDS, plan(s))) for s in (19.0, 12.0, 15.0, 0.01)]
        given_up = asyncio.ensure_future(searcher.search("c", 1, N_SHARDS, plan(9.0)))
        assert {status.state for status in (await waits.pop())[0].status} == {"late"}
        given_up.cancel()
        host.gate.set()
        await asyncio.gather(first, *waits)
        assert [round(seconds + 0.02) for seconds in host.given] == [20, 12, 15, 19]

    run(host, story, threads=1)
