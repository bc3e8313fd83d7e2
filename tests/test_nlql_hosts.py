"""Queries for rows through hosts: in this process, over sockets' pickles, on Ray; what could not be asked is told."""

import asyncio
import pickle
import random
import threading
from dataclasses import replace

import pytest
from ray_cluster import fresh_namespace, until
from row_corpus import Corpus, by, compare, essence, meta
from test_nlql_rows import SENTENCES, random_documents

from cluster.host import Host, RowsRequest
from cluster.local import LocalSearcher
from cluster.settings import ClusterSettings, HostSettings
from shards.nlql import ir
from shards.nlql.answers import RowAnswer
from shards.nlql.errors import NLQLTypeError
from shards.nlql.merging import merge_rows
from shards.nlql.plan import Cut, RowPlan

N_SHARDS = 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    documents = random_documents(random.Random(3), 50)
    return Corpus(tmp_path_factory.mktemp("rows"), [documents[:30], documents[30:]], N_SHARDS, SENTENCES)


@pytest.fixture
def host(corpus, tmp_path) -> Host:
    return Host(corpus.store.url, {}, str(tmp_path / "cache"), 1 << 30, plugins=corpus.plugins)


def plan_of(corpus: Corpus, **more) -> RowPlan:
    scorer = corpus.similarity("#0", "content", "banana bread")
    return RowPlan("sentence", Cut("sentence", "content"), scorers=(scorer,), order_by=(by(ir.Ref("#0")),), n_rows=8, budget_s=30.0, **more)


def generation_of(corpus: Corpus) -> int:
    return corpus.generation.root.generation


def coverage(answer: RowAnswer) -> list[tuple[str, int, str]]:
    return [(status.space, status.shard, status.state) for status in answer.status]


def test_a_host_answers_a_batch_as_shards_do_and_answers_travel(corpus, host):
    plans = [plan_of(corpus), plan_of(corpus, filter=(compare(meta("topic"), "==", "food"),), facets=(meta("year"),))]
    requests = [RowsRequest("c", generation_of(corpus), tuple(range(N_SHARDS)), plan) for plan in plans]
    for plan, request in zip(plans, requests, strict=True):
        assert pickle.loads(pickle.dumps(request)).shards == request.shards
        (answer,) = host.rows([request])
        expected = corpus.rows(plan)
        for found in (merge_rows([answer], plan), merge_rows([pickle.loads(pickle.dumps(answer))], plan)):
            assert essence(found) == essence(expected)
            assert (found.facets, found.n_matched) == (expected.facets, expected.n_matched)
    assert [len(answer) for answer in host.rows(requests)] == [8, len(corpus.rows(plans[1]))]


def test_what_a_row_raises_comes_back_as_it_was(corpus, host):
    plan = plan_of(corpus, filter=(compare(meta("topic"), ">", 3),))
    with pytest.raises(NLQLTypeError) as expected:
        corpus.rows(plan)
    (answer,) = host.rows([RowsRequest("c", generation_of(corpus), tuple(range(N_SHARDS)), plan)])
    with pytest.raises(NLQLTypeError) as caught:
        merge_rows([pickle.loads(pickle.dumps(answer))], plan)
    assert str(caught.value) == str(expected.value)


def test_a_shard_that_cannot_be_opened_costs_its_rows_and_is_told(corpus, host, monkeypatch):
    opened = Host.shard

    def broken(self, name, generation, number):
        if number == 2:
            raise OSError("the disk is gone")
        return opened(self, name, generation, number)

    monkeypatch.setattr(Host, "shard", broken)
    plan = replace(plan_of(corpus), n_rows=None)
    answer = merge_rows(host.rows([RowsRequest("c", generation_of(corpus), tuple(range(N_SHARDS)), plan)]), plan)
    expected = merge_rows([one for shard, one in enumerate(_by_shard(corpus, plan)) if shard != 2], plan)
    assert essence(answer) == essence(expected)
    lost = [(status.space, status.state, status.reason) for status in answer.status if status.shard == 2]
    assert lost == [("content", "failed", "the disk is gone"), ("rows", "failed", "the disk is gone")]
    assert {status.state for status in answer.status if status.shard != 2} == {"ready"}


def _by_shard(corpus: Corpus, plan: RowPlan) -> list:
    from shards.nlql.scan import run_rows
    from shards.types import Budget

    return [run_rows([shard], plan, Budget(), corpus.plugins) for shard in corpus.shards]


def test_a_searcher_of_this_process_gives_the_rows_and_keeps_the_time(corpus, host):
    gate = threading.Event()

    class Waiting(Host):
        def rows(self, requests):
            gate.wait(30)
            return super().rows(requests)

    waiting = Waiting(corpus.store.url, {}, str(host.cache.folder), 1 << 30, plugins=corpus.plugins)
    searcher = LocalSearcher(waiting)

    async def story():
        plan = plan_of(corpus)
        late = await searcher.rows("c", generation_of(corpus), N_SHARDS, replace(plan, budget_s=0.05))
        assert {(s.space, s.shard, s.state) for s in late[0].status} == {
            (n, i, "late") for n in ("rows", "content") for i in range(N_SHARDS)
        }
        assert len(late[0]) == 0
        gate.set()
        found = merge_rows(await searcher.rows("c", generation_of(corpus), N_SHARDS, plan), plan)
        assert essence(found) == essence(corpus.rows(plan))

    try:
        asyncio.run(story())
    finally:
        gate.set()
        searcher.close()


@pytest.mark.ray
def test_hosts_on_ray_give_the_rows_that_one_process_gives(corpus, cluster, tmp_path):
    from cluster.searcher import RaySearcher

    settings = HostSettings(store_url=corpus.store.url, cache_dir=tmp_path, memory_bytes=100 * 2**20)

    async def story(namespace: str):
        async with RaySearcher(ClusterSettings(namespace=namespace), settings) as searcher:
            membership = searcher.controller.membership
            await until(lambda: [membership.state(node) for node in membership.nodes] == ["ready"] * 2)
            for plan in (plan_of(corpus), replace(plan_of(corpus), unit="document", facets=(meta("topic"),))):
                answers = await searcher.rows("c", generation_of(corpus), N_SHARDS, plan)
                found, expected = merge_rows(answers, plan), corpus.rows(plan)
                assert len(answers) == 2
                assert essence(found) == essence(expected)
                assert found.facets == expected.facets
                assert coverage(found) == coverage(expected)
            wrong = plan_of(corpus, filter=(compare(meta("topic"), ">", 3),))
            with pytest.raises(NLQLTypeError):
                merge_rows(await searcher.rows("c", generation_of(corpus), N_SHARDS, wrong), wrong)

    with fresh_namespace("rows") as namespace:
        asyncio.run(story(namespace))
