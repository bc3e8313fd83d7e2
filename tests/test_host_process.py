"""A host in a process of its own: it answers as one within, is started again when it ends, and ends with who started it."""

import asyncio
import os
import pickle
import signal

import pytest
from light_host import N_SHARDS
from scripted_coordinator import eventually

from cluster.host import HostRequest
from cluster.host_process import HostGone, HostProcess
from cluster.local import LocalSearcher
from cluster.pauses import CALM_S, is_calm
from cluster.settings import HostSettings
from cluster.sockets import AVAILABLE
from cluster.standing_back import Precedence, StandingBack
from shards.errors import BadSpec, NotFound
from shards.plan import Everything, Plan, SpaceQuery

apart = pytest.mark.skipif(not AVAILABLE, reason="this system has no such sockets")


def plan(budget_s=20.0):
    return Plan(Everything(), (SpaceQuery("count", "fish", {"word": "fish"}),), budget_s=budget_s)


@apart
def test_a_host_apart_answers_is_started_again_when_it_ends_and_ends_with_its_server(tmp_path):
    host = HostProcess(HostSettings(store_url=str(tmp_path), cache_dir=tmp_path / "cache"))
    try:
        first = host.status()["pid"]
        assert first == host.pid != os.getpid()
        assert host.warm("none", 1, [0]).docs == {}
        with pytest.raises(NotFound, match="none"):
            host.document("none", 1, bytes(20))
        (answer,) = host.search([HostRequest("none", 1, (0,), plan())])
        assert [status.state for status in answer.status] == ["failed"]
        os.kill(first, signal.SIGINT)  # as a terminal does to all at once: its server goes on until it has answered
        os.kill(first, signal.SIGTERM)
        assert host.status()["pid"] == first
        os.kill(first, signal.SIGKILL)
        eventually(lambda: host.pid == 0)
        assert host.status()["pid"] == host.pid not in (0, first)
        host._process.stdin.close()  # as the kernel does when the server ends, however it does
        assert host._process.wait(20) == 0
    finally:
        host.close()
    with pytest.raises(HostGone):
        host.status()


@apart
def test_a_host_apart_that_cannot_be_made_says_why(tmp_path):
    with pytest.raises(BadSpec, match="nowhere_to_be_found"):
        HostProcess(HostSettings(store_url=str(tmp_path), cache_dir=tmp_path / "cache", plugins=("nowhere_to_be_found",)))


class GoneHost:
    """A host whose process ends in each call."""

    def search(self, requests):
        raise HostGone("it ended")

    rows = details = search

    def cancel(self, keys):
        pass


def test_what_a_host_that_ended_had_is_missing_and_never_an_error():
    from shards.nlql.plan import Cut, RowPlan

    async def story(searcher):
        (answer,) = await searcher.search("c", 1, N_SHARDS, plan())
        assert [status.shard for status in answer.status] == list(range(N_SHARDS))
        assert {(status.state, status.reason) for status in answer.status} == {("missing", "it ended")}
        (rows,) = await searcher.rows("c", 1, N_SHARDS, RowPlan("sentence", Cut("sentence")))
        assert {status.state for status in rows.status} == {"missing"}
        assert await searcher.details("c", 1, N_SHARDS, {bytes(20): ()}) == {}

    searcher = LocalSearcher(GoneHost())
    try:
        asyncio.run(story(searcher))
    finally:
        searcher.close()


def test_a_search_stands_back_for_texts_of_hits_and_never_beyond_its_own_end():
    precedence = Precedence()
    patient, short, over = StandingBack(100.0, precedence), StandingBack(0.002, precedence), StandingBack(-1.0, precedence)
    with precedence.taken():
        assert over.expired
        assert short.expired, "it stood until its time was over"
        assert not patient.sooner(1.0).expired and 98 < patient.remaining_s < 100
    assert precedence.n == 0 and not patient.expired


def test_a_calm_moment_is_one_in_which_a_process_hardly_works():
    def clock(*seconds):
        return iter(seconds).__next__

    slept = []
    assert is_calm(slept.append, clock(5.0, 5.0)) and slept == [CALM_S]
    assert not is_calm(slept.append, clock(5.0, 5.0 + CALM_S / 2))


def test_what_hosts_send_most_of_arrives_as_it_was():
    from shards.types import Derived, Detail, Entry, Excerpt, LayerStatus

    entry = Entry("s", "a/b.txt", b"h" * 20, 7, 8, "e", {"year": 2020})
    excerpts = {(1, 2): Excerpt(0, 3, 1, "abc", ((0, "page 1"),), 4)}
    detail = Detail(b"h" * 20, (entry,), 7, "prose", excerpts, (Derived("v", "context", "extractive", "t", 0, 3),))
    status = LayerStatus("bm25", 3, "late", 1, 2, "why", 0.5)
    assert pickle.loads(pickle.dumps((detail, status), 5)) == (detail, status)
