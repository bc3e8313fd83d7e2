"""Searches within a time: rounds, goals, what was left out, and going on where a search was cut off."""

import asyncio
import itertools
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pytest
from engine import Engine, write_files
from test_on_the_fly import Corpus

from cluster.host import Host
from cluster.local import LocalSearcher
from serve.anytime.learned import FEW_HITS, OfCorpus, Usual, changes, gains, searched
from serve.anytime.planning import Waiting, could_change, is_enough, next_step, worth_making
from serve.anytime.unfinished import Unfinished
from serve.coordinator import LATE_S, Coordinator
from serve.questions import Asking
from serve.schema import SearchRequest
from serve.writing import as_json
from shards.errors import BadQuery
from shards.layers import SpaceSpec, create
from shards.layers.contract import Request as LayerRequest
from shards.layers.contract import Resources
from shards.shard import search
from shards.types import Budget, LayerStatus

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
    return answer.model_dump_json(exclude={"timings_ms", "plan", "resumed", "certificate", "continue_", "freshness"})


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
            dear.search_s = Usual(mean=50.0, n=100)
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
            rest[-1]._seconds = float("inf")  # no time is left for finding, all that there was is for scoring
            return 0, total
        return covered, total

    monkeypatch.setattr(Shard, "_search_space", counted)

    async def run():
        nonlocal cut
        coordinator = coordinator_of(engine)
        for name, gain in (("names", 0.9), ("text", 0.8), ("static", 0.7), ("bm25", 0.0)):  # so bm25 is asked last
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
            coordinator.learned.of("c").of(name).search_s = Usual(mean=0.5 if name == "static" else 0.001, n=100)
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
    assert next_step(waiting[:1], 0.03, 0.002, False, False, try_all=True).names == ("late",)
    assert next_step(waiting[:1], 0.03, 0.002, False, False).names == ()
    assert next_step(waiting, 0.001, 0.002, False, False, try_all=True).names == ()


def test_what_fits_if_all_goes_well_is_tried_when_the_others_have_answered_and_its_question_made_meanwhile():
    sure = Waiting("bm25", 0.0, 0.003, 0.3, ready=True)
    hoped = Waiting("dense", 0.2, 0.1, 0.6, least_s=0.02)
    dear = Waiting("late", 0.3, 0.3, 0.9)
    first = next_step([sure, hoped, dear], 0.1, 0.002, False, True)
    assert first.names == ("bm25",) and worth_making([sure, hoped, dear], first, 0.1) == ["dense"]
    assert next_step([hoped, dear], 0.09, 0.002, False, False).names == ("dense",)
    assert next_step([hoped, dear], 0.015, 0.002, False, False).names == ()
    slow = Waiting("static", 0.0, 0.2, 0.9, ready=True, least_s=0.001)
    assert next_step([slow, sure, dear], 0.1, 0.002, False, True).names == ("bm25", "static")  # behind those that are sure
    usual = Waiting("dense", 0.05, 0.02, 0.6)
    assert next_step([sure, usual], 1.0, 0.002, False, True).names == ("bm25", "dense")  # one round, where there is time
    assert next_step([sure, usual], 0.1, 0.002, False, True).names == ("bm25",)  # else nobody waits for a question


def test_what_an_answer_shows_is_counted_once_and_nothing_that_was_only_tried(engine):
    from shards.manifest import corpus_store
    from shards.usage import Recorder

    async def run():
        coordinator = coordinator_of(engine)
        coordinator.usage = Recorder(lambda corpus: corpus_store(engine.store, corpus))
        await coordinator.open(request())
        tried = dict(coordinator.usage._counts)
        answers = await streamed(coordinator, request(k=3))
        return tried, answers[-1][0], coordinator.usage._counts["c"]

    tried, answer, counts = asyncio.run(run())
    assert not tried and {hit.hash for hit in answer.hits} == set(counts.documents) and len(answer.hits) == 3
    assert all(used.weight == 1.0 for used in counts.documents.values())


def test_a_question_is_made_while_hosts_work_on_the_round_before(engine, monkeypatch):
    real, begun, made = Asking.question, threading.Event(), []

    def noted(self, name):
        if name == "static":
            made.append(threading.current_thread())
            begun.set()
        return real(self, name)

    class Waits(LocalSearcher):
        async def search(self, *arguments):
            if made_now:
                assert await asyncio.to_thread(begun.wait, 30)  # the first round ends when the question is being made
            return await super().search(*arguments)

    async def run():
        coordinator = coordinator_of(engine)
        whole = await coordinator.search(request())
        coordinator.searcher = Waits(coordinator.searcher._host)
        monkeypatch.setattr(Asking, "question", noted)
        made_now.append(True)
        coordinator.learned.of("c").of("static").prepare_s = Usual(mean=20.0, n=100)  # most of the time that there is
        return whole, await coordinator.search(request(explain=True))

    made_now = []
    whole, answer = asyncio.run(run())
    assert answer.complete and answer.plan.rounds == 2 and len(made) == 1
    assert [hit.hash for hit in answer.hits] == [hit.hash for hit in whole.hits] and [h.fused for h in answer.hits] == [
        h.fused for h in whole.hits
    ]


def test_questions_of_a_round_are_made_before_those_of_later_ones_and_cheap_ones_first(engine, monkeypatch):
    """A long question is made aside for each space. When the cheapest was made, that of a later round once took its turn before the one
    that the round waited for: at 100 ms dense went unasked in one of six questions of cisi."""
    real, made = Asking.question, []

    def noted(self, name):
        made.append(name)
        return real(self, name)

    async def run():
        coordinator = coordinator_of(engine)
        asked = request(query=" ".join([QUERY] * 20), layers=["static", "bm25", "text"])
        await coordinator.search(asked)
        learned = coordinator.learned.of("c")
        learned.of("static").prepare_s = Usual(mean=0.01, n=100)
        learned.of("text").search_s = Usual(mean=30.0, n=4, last=deque([1.0, 90.0, 90.0, 90.0]))  # it fits if all goes well
        monkeypatch.setattr(Asking, "question", noted)
        return await coordinator.search(asked)

    assert asyncio.run(run()).complete
    assert made == ["bm25", "static", "text"]


def test_what_is_left_may_change_less_than_the_goal_allows():
    assert could_change([(0.1, 1.0), (0.2, 0.5)]) == pytest.approx(1 - 0.9 * 0.9)
    assert could_change([]) == 0.0
    assert is_enough("fast", 0.19) and not is_enough("fast", 0.2)
    assert not any(is_enough(goal, 0.0001) for goal in ("balanced", "precise", "wide"))


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


def test_what_scoring_others_finds_takes_is_a_cost_of_the_space(monkeypatch):
    """It once counted as what rounds take by themselves, 7 ms where `late` scored the candidates of three: too long for a second round."""
    corpus = Corpus()
    shard = corpus.shard(None, "all")
    monkeypatch.setattr("shards.shard.time", SimpleNamespace(monotonic=itertools.count().__next__))
    alone = search([shard], corpus.plan(), Budget())
    with_others = search([shard], corpus.plan(rows=range(20)), Budget())
    assert [found.status[0].seconds for found in (alone, with_others)] == [1, 2]


def test_unfinished_searches_are_kept_for_a_while_and_no_more_than_so_many():
    now = [0.0]
    kept = Unfinished(lambda: now[0], most=2)
    tokens = [kept.keep(name, "same", 10) for name in ("a", "b", "c")]
    assert len(kept) == 2 and kept.take(tokens[0], "same") is None and kept.take(tokens[1], "same") == "b"
    now[0] = 61.0
    assert kept.take(tokens[2], "same") is None
    small = Unfinished(lambda: now[0], most_bytes=25)
    tokens = [small.keep(name, "same", 10) for name in ("a", "b", "c")]
    assert small.size_bytes == 20 and [small.take(token, "same") for token in tokens] == [None, "b", "c"] and small.size_bytes == 0
    assert small.take(small.keep("huge", "same", 26), "same") is None and small.size_bytes == 0


def test_a_question_that_takes_longer_than_there_is_time_is_made_once_and_there_when_the_search_goes_on(engine, monkeypatch):
    real, may_end, made = Asking.question, threading.Event(), []

    def slow(self, name):
        if name == "static":
            made.append(threading.current_thread())
            may_end.wait(60)
        return real(self, name)

    async def run():
        coordinator = coordinator_of(engine)
        asked = {"layers": ["static"]}
        whole = await coordinator.search(request(**asked))
        monkeypatch.setattr(Asking, "question", slow)
        coordinator.learned.of("c").of("static").prepare_s = Usual(mean=0.03, n=100)  # so that it is made aside
        part = await asyncio.wait_for(coordinator.search(request(**asked, budget_ms=20)), 30)
        may_end.set()
        return whole, part, await coordinator.search(request(**asked, **{"continue": part.continue_}))

    whole, part, again = asyncio.run(run())
    assert {(c.layer, c.state) for c in part.coverage} == {("static", "late")} and not part.hits and not part.certificate.final
    assert essence(again) == essence(whole) and again.resumed
    assert len(made) == 1 and made[0] is not threading.main_thread()


def test_a_space_that_was_slow_once_is_not_left_out_for_good(engine):
    async def run():
        coordinator = coordinator_of(engine)
        await coordinator.search(request())
        coordinator.learned.of("c").of("static").search_s = slow = Usual()
        slow.add(1.0)
        return [(await coordinator.search(request(budget_ms=400))).complete for _ in range(50)]

    complete = asyncio.run(run())
    assert not complete[0] and any(complete) and complete[complete.index(True) + 1]


def test_the_first_question_of_a_corpus_teaches_nothing_since_it_loads_code(engine):
    plans = []

    class Counting(LocalSearcher):
        async def search(self, *arguments):
            plans.append(arguments[-1])
            return await super().search(*arguments)

    async def run():
        coordinator = coordinator_of(engine)
        coordinator.searcher = Counting(coordinator.searcher._host)
        await coordinator.open(request())
        return coordinator.learned.of("c").of("bm25").search_s

    assert asyncio.run(run()).n == 1 and len(plans) == 2


def test_candidates_that_were_not_scored_in_time_make_their_space_late_until_the_search_goes_on(engine, monkeypatch):
    from shards.shard import Shard

    real = Shard.score

    def cut_off(self, query, numbers, where, entries, budget):
        budget.deadline = float("-inf")
        return real(self, query, numbers, where, entries, budget)

    async def run():
        coordinator = coordinator_of(engine)
        whole = await coordinator.search(request())
        monkeypatch.setattr(Shard, "score", cut_off)
        part = await coordinator.search(request())
        monkeypatch.setattr(Shard, "score", real)
        return whole, part, await coordinator.search(request(**{"continue": part.continue_}))

    whole, part, again = asyncio.run(run())
    late = [c for c in part.coverage if c.state == "late"]
    assert late and all("candidates were not scored" in c.reason or "before" in c.reason for c in late)
    assert not part.complete and not part.certificate.final and part.certificate.could_change > 0
    assert essence(again) == essence(whole)


def test_what_more_time_does_not_mend_gives_nothing_to_go_on_with(engine, monkeypatch):
    from shards.shard import Shard

    real = Shard._search_space

    def broken(self, query, *rest):
        if query.space == "static":
            raise OSError("its file is damaged")
        return real(self, query, *rest)

    monkeypatch.setattr(Shard, "_search_space", broken)
    answer = asyncio.run(coordinator_of(engine).search(request()))
    assert {c.state for c in answer.coverage if c.layer == "static"} == {"failed"}
    assert not answer.certificate.final and answer.continue_ is None


def test_texts_of_hits_are_waited_for_no_longer_than_an_answer_may_be_late(engine, monkeypatch):
    waited, begun, real = [], [], Coordinator._begun

    class Slow(LocalSearcher):
        async def search(self, *arguments):
            found = await super().search(*arguments)
            begun[-1].budget.deadline = float("-inf")  # it took all the time that there was
            return found

        async def details(self, *arguments):
            waited.append(next(a for a in arguments if isinstance(a, float)))
            return await super().details(*arguments)

    async def kept(self, *arguments):
        begun.append(await real(self, *arguments))
        return begun[-1]

    monkeypatch.setattr(Coordinator, "_begun", kept)

    async def run():
        coordinator = coordinator_of(engine)
        coordinator.searcher = Slow(coordinator.searcher._host)
        return await coordinator.search(request())

    asyncio.run(run())
    assert waited and set(waited) == {LATE_S}


def test_what_spaces_change_is_not_learned_from_searches_whose_caller_chose_them(engine):
    async def run():
        coordinator = coordinator_of(engine)
        known = coordinator.learned.of("c")
        for fields in ({"layers": ["bm25", "static"]}, {"weights": {"bm25": 3.0}}):
            await coordinator.search(request(**fields))
        before = known.of("bm25").change.n
        await coordinator.search(request())
        return before, known.of("bm25").change.n

    assert asyncio.run(run()) == (0, 1)


def test_a_stream_ends_with_all_that_a_search_asks_however_little_is_expected_of_it(engine):
    async def run():
        coordinator = coordinator_of(engine)
        whole = await coordinator.search(request())
        for name in ("names", "text", "bm25", "static"):
            for _ in range(50):
                coordinator.learned.of("c").of(name).change.add(0.001)
            coordinator.learned.of("c").of(name).search_s = Usual(mean=0.1, n=100)
        return whole, await streamed(coordinator, request())

    whole, answers = asyncio.run(run())
    assert len(answers) > 1 and answers[-1][0].complete and essence(answers[-1][0]) == essence(whole)


def test_many_hits_are_written_in_pieces_so_that_other_answers_do_not_wait_for_them(engine, monkeypatch):
    from serve.anytime import answering

    real, pieces, turns = answering.hits_out, [], []

    def counted(page, *rest, **more):
        pieces.append((len(page), len(turns)))
        return real(page, *rest, **more)

    monkeypatch.setattr(answering, "hits_out", counted)

    async def others():
        while True:
            turns.append(True)
            await asyncio.sleep(0)

    async def run():
        other = asyncio.create_task(others())
        answer = await coordinator_of(engine).search(request(k=60))
        other.cancel()
        return answer

    answer = asyncio.run(run())
    assert len(answer.hits) == sum(n for n, _ in pieces) == 60 and max(n for n, _ in pieces) <= answering.PIECE
    assert all(after > before for (_, before), (_, after) in zip(pieces, pieces[1:], strict=False))


def test_many_hits_become_json_in_pieces_and_the_same(engine, monkeypatch):
    async def run():
        answer = await coordinator_of(engine).search(request(k=60, explain=True))
        answer = answer.model_copy(update={"verdict_reason": '"hits":[] is "hits":[] "ü', "answerable": float("inf")})
        monkeypatch.setattr("serve.writing.PIECE", 7)
        return answer, await as_json(answer), await as_json(answer.model_copy(update={"hits": answer.hits[:7]}))

    answer, whole, few = asyncio.run(run())
    assert whole == answer.model_dump_json().encode()
    assert few == answer.model_copy(update={"hits": answer.hits[:7]}).model_dump_json().encode()


def test_hits_that_there_is_no_time_to_write_are_the_next_page(engine, monkeypatch):
    from serve.anytime import answering

    real = answering.hits_out

    async def run():
        coordinator = coordinator_of(engine)
        whole = await coordinator.search(request(k=60))
        begun, real_begun = [], Coordinator._begun

        async def kept(self, *arguments):
            begun.append(await real_begun(self, *arguments))
            return begun[-1]

        def ends(*arguments, **more):
            begun[-1].budget.deadline = float("-inf")
            return real(*arguments, **more)

        monkeypatch.setattr(Coordinator, "_begun", kept)
        monkeypatch.setattr(answering, "hits_out", ends)
        part = await coordinator.search(request(k=60))
        monkeypatch.setattr(answering, "hits_out", real)
        return whole, part, await coordinator.search(request(k=60, cursor=part.cursor))

    whole, part, rest = asyncio.run(run())
    assert len(part.hits) == FEW_HITS and not part.complete and rest.complete
    assert [hit.hash for hit in part.hits + rest.hits] == [hit.hash for hit in whole.hits]


def test_a_long_question_or_an_own_form_is_made_within_the_time(engine, monkeypatch):
    real, may_end = Asking.question, threading.Event()

    def slow(self, name):
        if name == "text":
            may_end.wait(60)
        return real(self, name)

    async def run():
        coordinator = coordinator_of(engine)
        await coordinator.open(request())
        monkeypatch.setattr(Asking, "question", slow)
        asked = request(forms={"text": {"pattern": "riv.r", "regex": True}}, layers=["text", "bm25"], budget_ms=1_500)
        answer = await asyncio.wait_for(coordinator.search(asked), 30)
        may_end.set()
        return answer

    answer = asyncio.run(run())
    assert {(c.layer, c.state) for c in answer.coverage} == {("text", "late"), ("bm25", "ready")}
    assert answer.hits and answer.continue_ is not None


BAD_FORMS = [
    ("text", {"pattern": "river", "regexp": True}),
    ("text", {"pattern": "riv(er", "regex": True}),
    ("trigram", {"any": ["a", {"pattern": "b", "edits": 9}]}),
    ("names", {"glob": "*.md", "name": "a"}),
    ("names", {"glob": "[a"}),
    ("bm25", {"terms": "river"}),
    ("fuzzy", {"text": "of"}),
    ("formula", {"latex": "x^2", "mathml": "<math/>"}),
    ("formula_ngrams", {"tex": "x^2"}),
    ("symbols", {"name": "f", "kind": "river"}),
    ("structure", {"pattern": "$A", "language": "english"}),
    ("static", {"vectors": [[1.0]]}),
    ("dense", {"text": "river"}),
    ("late", {"vector": [1.0]}),
    ("sparse", {"terms": ["river"]}),
    ("fingerprint", {"inchikey": "river"}),
]


@pytest.mark.parametrize(("layer", "form"), BAD_FORMS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_form_that_is_wrong_is_refused_without_a_question_and_without_a_model(layer, form):
    with pytest.raises(BadQuery):
        create(SpaceSpec.parse(layer), Resources(models=Path("/nowhere"))).check_form(LayerRequest("", form, explicit=True))


def test_a_wrong_form_is_refused_however_little_time_there_is(engine, monkeypatch):
    made = []

    async def run():
        coordinator = coordinator_of(engine)
        await coordinator.open(request())
        monkeypatch.setattr(Asking, "question", lambda self, name: made.append(name))
        for form in ({"pattern": "riv(er", "regex": True}, {"patern": "river"}):
            with pytest.raises(BadQuery, match="Layer 'text'"):
                await coordinator.search(request(forms={"text": form}, budget_ms=20))

    asyncio.run(run())
    assert not made


def test_sub_queries_wait_for_their_questions_no_longer_than_half_of_the_time(engine, monkeypatch):
    real, may_end = Asking.question, threading.Event()

    def slow(self, name):
        if name == "static":
            may_end.wait(60)
        return real(self, name)

    async def run():
        coordinator = coordinator_of(engine)
        asked = {"query": "", "combine": {"union": [{"search": {"query": QUERY}}, {"search": {"query": "river", "layers": ["bm25"]}}]}}
        whole = await coordinator.search(request(**asked))
        static = coordinator.learned.of("c").of("static")
        static.prepare_s = Usual(mean=0.03, n=100)  # so that it is made aside
        monkeypatch.setattr(Asking, "question", slow)
        part = await asyncio.wait_for(coordinator.search(request(**asked, budget_ms=1_000)), 30)
        may_end.set()
        static.prepare_s = Usual(mean=50.0, n=100)
        unbegun = await coordinator.search(request(**asked, budget_ms=1_000))
        return whole, part, unbegun, static.left_out

    whole, part, unbegun, left_out = asyncio.run(run())
    assert whole.complete
    for answer in (part, unbegun):
        late = {(c.layer, c.reason) for c in answer.coverage if c.state == "late"}
        assert late == {("static", "the question of this space was not made in time")} and not answer.complete
        assert {hit.hash for hit in answer.hits} and {signal.layer for hit in answer.hits for signal in hit.signals} == {"bm25"}
    assert left_out == 1


def test_of_a_stream_with_little_time_nothing_is_told_that_would_make_its_end_late(engine):
    async def run():
        coordinator = coordinator_of(engine)
        await coordinator.open(request())
        for name in ("bm25", "static"):
            coordinator.learned.of("c").of(name).search_s = Usual(mean=0.5, n=100)
        coordinator.learned.of("c").answer_s = Usual(mean=20.0, n=100)
        return await streamed(coordinator, request(budget_ms=30_000))

    answers = asyncio.run(run())
    assert [is_last for _, is_last in answers] == [True] and answers[0][0].hits


def test_time_for_many_hits_is_kept_back_as_these_were_seen_to_take():
    corpus = OfCorpus()
    corpus.answered(0.006, 10)
    corpus.answered(0.3, 1000)
    assert corpus.answering_s(10) == 0.006 and corpus.answering_s(500) == pytest.approx(0.15)
