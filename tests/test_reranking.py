"""The last stage: what it reads, the order it makes, what it says when it cannot, and pages that go on where the last one ended."""

import asyncio
import json
import math
import threading
from collections.abc import Iterator

import httpx
import pytest
from engine import Engine, paths, write_files
from openai_server import Fault, OpenAIServer
from scripted_coordinator import running
from tiny_cross_encoder import cross_encoder

import sondage
from cluster.host import Host
from cluster.local import LocalSearcher
from cluster.settings import HostSettings
from serve.coordinator import Coordinator
from serve.local import local_coordinator
from serve.paging import Cursor
from serve.passages import LEAST_BYTES, MOST_BYTES, trimmed, widened
from serve.problems import InvalidRequest
from serve.reranking import KeptScores, Pinned, Reranking, Stage, follow, mark_of, reordered
from serve.schema import Rerank, SearchRequest
from shards.cross_encoder import CrossEncoder
from shards.endpoint_settings import EndpointSettings
from shards.errors import BadQuery, EndpointError, ModelMissing
from shards.excerpts import excerpt
from shards.layers.contract import Resources
from shards.types import Budget

TEXTS = {
    f"{name}.txt": f"The tide {verb} the {name}.\n" + "\n".join(f"Line {i} of {name}." for i in range(70)) + "\n"
    for name, verb in zip(
        ("harbour", "island", "jetty", "kelp", "lagoon", "marsh", "nets", "ocean", "pier"),
        ("floods", "leaves", "lifts", "feeds", "fills", "soaks", "frees", "moves", "hides"),
        strict=True,
    )
}
QUERY = "tide"
ASKED = {"query": QUERY, "k": 20, "layers": ["bm25"], "keep_all": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(cross_encoder(tmp_path_factory.mktemp("cross-encoder")))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    made = Engine(folder, ["text", "bm25"])
    made.resources = Resources(models=folder / "models")
    made.index(write_files(folder / "source", TEXTS), calibrate=False)
    return made


def as_request(fields) -> SearchRequest:
    return SearchRequest(**{"corpus": "c", "budget_ms": 60_000} | fields)


def with_coordinator(engine: Engine, work, rerank: Rerank | None = None):
    """What `work` does with a coordinator over the engine's store."""

    async def run():
        host = Host(engine.store.url, {}, str(engine.folder / "cache"), 1 << 30)
        coordinator = Coordinator(engine.store, LocalSearcher(host), engine.resources, engine.cache, rerank=rerank)
        try:
            return await work(coordinator)
        finally:
            await coordinator.close()

    return asyncio.run(run())


def searches(engine: Engine, requests, rerank: Rerank | None = None):
    """Answers of one coordinator, one after the other."""

    async def one_by_one(coordinator: Coordinator):
        return [await coordinator.search(as_request(request)) for request in requests]

    return with_coordinator(engine, one_by_one, rerank)


def judged_by(model: str, query: str, texts) -> list[float]:
    """The scores of sentence-transformers itself."""
    from sentence_transformers import CrossEncoder as Peer

    return Peer(model, device="cpu", local_files_only=True).predict([(query, text) for text in texts]).tolist()


# --- the order -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "scores", "order"),
    [
        (3, {0: 0.1, 1: 0.9, 2: 0.5}, [1, 2, 0]),
        (3, {0: 0.5, 1: 0.5, 2: 0.5}, [0, 1, 2]),  # equals stay as they were
        (4, {0: 0.1, 2: 0.9, 3: 0.5}, [2, 1, 3, 0]),  # what has no text keeps its place
        (2, {}, [0, 1]),
        (0, {}, []),
    ],
)
def test_scored_hits_change_places_among_themselves(n, scores, order):
    assert reordered(n, scores) == order


def test_the_best_hits_stand_in_the_model_s_order_and_those_behind_as_they_were(engine, model):
    plain, reranked = searches(engine, [ASKED, ASKED | {"rerank": {"model": model, "depth": 5}}])
    before, after = paths(plain), paths(reranked)
    assert len(before) == 9 and after[5:] == before[5:] and sorted(after[:5]) == sorted(before[:5])
    expected = dict(zip(before[:5], judged_by(model, QUERY, [TEXTS[path].strip() for path in before[:5]]), strict=True))
    assert after[:5] == sorted(before[:5], key=lambda path: -expected[path]) != before[:5]
    for hit, path in zip(reranked.hits, after, strict=True):
        assert hit.rerank is None if path in before[5:] else hit.rerank.score == pytest.approx(expected[path], abs=1e-6)
    info = reranked.rerank
    assert (info.state, info.reason, info.n, info.depth, info.model) == ("done", "", 5, 5, model) and info.ms > 0
    assert plain.rerank is None and plain.hits[0].rerank is None


def test_evidence_stays_what_it_was(engine, model):
    plain, reranked = searches(engine, [ASKED | {"explain": True}, ASKED | {"explain": True, "rerank": {"model": model}}])
    evidence = {hit.hash: (hit.fused, hit.evalue, hit.signals, hit.start, hit.end) for hit in plain.hits}
    assert {hit.hash: (hit.fused, hit.evalue, hit.signals, hit.start, hit.end) for hit in reranked.hits} == evidence
    assert (reranked.verdict, reranked.verdict_reason, reranked.layers) == (plain.verdict, plain.verdict_reason, plain.layers)


def test_scores_and_order_do_not_depend_on_the_number_of_shards(engine, model, tmp_path):
    request = ASKED | {"rerank": {"model": model, "query": "what does the sea do?"}}
    (one,) = searches(engine, [request])
    split = Engine(tmp_path, ["text", "bm25"])
    split.resources = engine.resources
    split.index(engine.folder / "source", n_shards=4, calibrate=False)
    (four,) = searches(split, [request])
    assert [(h.hash, h.rerank) for h in one.hits] == [(h.hash, h.rerank) for h in four.hits]


def test_another_text_may_be_asked_of_the_model_than_of_the_layers(engine, model):
    text = "which one of them is green?"
    (answer,) = searches(engine, [ASKED | {"rerank": {"model": model, "query": text}}])
    expected = judged_by(model, text, [TEXTS[path].strip() for path in paths(answer)])
    assert [hit.rerank.score for hit in answer.hits] == pytest.approx(expected, abs=1e-6)


# --- what is read --------------------------------------------------------------------------------------------------------------


def test_a_line_is_widened_to_the_lines_around_it(engine, model):
    asked = {"forms": {"text": {"pattern": "Line 35 of kelp"}}, "layers": ["text"]}
    (answer,) = searches(engine, [asked | {"rerank": {"model": model, "query": "kelp"}}])
    (hit,) = answer.hits
    text = TEXTS["kelp.txt"]
    assert hit.end - hit.start < 30
    passage = text[hit.rerank.start : hit.rerank.end]
    assert passage.startswith("Line ") and text[hit.rerank.start - 1] == text[hit.rerank.end] == "\n"  # whole lines
    assert LEAST_BYTES - 40 < len(passage) <= LEAST_BYTES
    assert abs((hit.start - hit.rerank.start) - (hit.rerank.end - hit.end)) < 40  # as many before as behind


@pytest.mark.parametrize(
    ("span", "wide"),
    [((5000, 5010), (4605, 5405)), ((100, 110), (0, 800)), ((0, 0), (0, 800)), ((70, 1500), (70, 1500))],
)
def test_short_spans_are_widened_on_both_sides(span, wide):
    assert widened(*span) == wide


@pytest.mark.parametrize("text", ["word " * 1000, "ein Wörtchen\n" * 500, "潮が満ちる。" * 400, "x" * 5000])
@pytest.mark.parametrize("at", [0, 1200, 2406, 4900])
def test_what_is_added_to_a_span_ends_at_lines_or_words(text, at):
    raw = text.encode()
    a, b = widened(at, at + 12)
    shown = excerpt(memoryview(raw), a, b, (), 0)
    passage = trimmed(shown, at, at + 12, b)
    assert passage.start <= at and passage.end >= min(at + 12, len(raw)) - 3
    assert raw[passage.start : passage.end].decode() == passage.text
    if " " in text or "\n" in text:
        assert passage.start == 0 or raw[passage.start - 1 : passage.start] in (b" ", b"\n")
        assert passage.end >= len(raw) - 1 or raw[passage.end : passage.end + 1] in (b" ", b"\n")
    else:
        assert (a - 3 < passage.start <= a and b - 3 < passage.end <= b) or passage.end == len(raw)


def test_of_a_long_span_the_model_reads_where_the_words_are(tmp_path, model):
    body = "filler words here\n" * 500 + "the needle is in this line\n" + "more filler\n" * 500
    made = Engine(tmp_path, ["bm25:unit_bytes=1000000"])
    made.index(write_files(tmp_path / "source", {"a.txt": body}), calibrate=False)
    (answer,) = searches(made, [{"query": "needle", "keep_all": True, "rerank": {"model": model}}])
    (hit,) = answer.hits
    assert hit.end - hit.start > 10_000 and "needle" in body[hit.rerank.start : hit.rerank.end]
    assert hit.rerank.end - hit.rerank.start <= MOST_BYTES


def test_documents_without_text_keep_their_places(engine, model, tmp_path):
    made = Engine(tmp_path, ["names"])
    made.index(write_files(tmp_path / "source", {"tide-0.txt": "   \n", "tide-1.txt": "Ebb.", "tide-2.txt": "Flood."}), calibrate=False)
    request = {"query": "tide", "k": 3, "layers": ["names"], "keep_all": True}
    plain, answer = searches(made, [request, request | {"rerank": {"model": model}}])
    assert answer.rerank.state == "done" and answer.rerank.n == 2
    assert answer.rerank.reason == "1 hits without text keep their places"
    empty = paths(plain).index("tide-0.txt")
    assert paths(answer).index("tide-0.txt") == empty and answer.hits[empty].rerank is None


# --- when it cannot be done ----------------------------------------------------------------------------------------------------


class Interrupted(CrossEncoder):
    """A cross-encoder whose time is over after so many scores."""

    def __init__(self, model: str, resources: Resources, n: int):
        super().__init__(model, resources)
        self.n = n

    def scores(self, query: str, passages, budget: Budget) -> Iterator[tuple[int, float]]:
        for i, scored in enumerate(super().scores(query, passages, budget)):
            if i == self.n:
                budget.deadline = -math.inf
                return
            yield scored


class Broken(CrossEncoder):
    def scores(self, query: str, passages, budget: Budget) -> Iterator[tuple[int, float]]:
        yield 0, 0.5
        raise RuntimeError("the accelerator is gone")


class NotANumber(CrossEncoder):
    def scores(self, query: str, passages, budget: Budget) -> Iterator[tuple[int, float]]:
        return iter([(0, math.nan)])


def staged(engine: Engine, monkeypatch, reranker: CrossEncoder, **request):
    """A plain answer, and one with this reranker."""
    monkeypatch.setattr("serve.reranking.CrossEncoder", lambda name, resources: reranker)
    return searches(engine, [ASKED, ASKED | {"rerank": {"model": reranker.name, "depth": 6}} | request])


@pytest.mark.parametrize("n", [0, 1, 5])
def test_hits_of_which_not_all_were_scored_stay_in_the_order_of_evidence(engine, model, monkeypatch, n):
    plain, answer = staged(engine, monkeypatch, Interrupted(model, engine.resources, n))
    assert paths(answer) == paths(plain)
    assert (answer.rerank.state, answer.rerank.n) == ("partial" if n else "skipped", n)
    assert answer.rerank.reason == "the time for it was over"
    assert sum(hit.rerank is not None for hit in answer.hits) == n  # what was learnt is told


def test_a_model_that_breaks_costs_its_order_not_the_answer(engine, model, monkeypatch, caplog):
    plain, answer = staged(engine, monkeypatch, Broken(model, engine.resources))
    assert paths(answer) == paths(plain)
    assert (answer.rerank.state, answer.rerank.reason, answer.rerank.n) == ("failed", "RuntimeError: the accelerator is gone", 1)
    assert "event=rerank_failed" in caplog.text


def test_a_score_that_is_no_number_is_a_broken_model(engine, model, monkeypatch):
    with pytest.raises(ModelMissing, match="gave nan for a passage"):
        staged(engine, monkeypatch, NotANumber(model, engine.resources))


def test_without_time_nothing_is_read(engine, model):
    async def run():
        reranking = Reranking(engine.resources)
        try:
            stage = await reranking.begin(SearchRequest(corpus="c", query=QUERY, rerank={"model": model}))

            async def details(spans, size):
                raise AssertionError("read")

            return await stage.run([(bytes(20), 0, 10), (bytes([1] * 20), 0, 10)], details, Budget(0))
        finally:
            reranking.close()

    outcome = asyncio.run(run())
    assert outcome.order == [0, 1] and outcome.info.state == "skipped" and outcome.pinned == Pinned()
    assert outcome.info.reason in ("the time for it was over", "the model was still being loaded when the time was over")


def test_passages_that_no_host_gives_leave_the_order_as_it_was(engine, model):
    async def run():
        reranking = Reranking(engine.resources)
        try:
            stage = await reranking.begin(SearchRequest(corpus="c", query=QUERY, rerank={"model": model}))

            async def details(spans, size):
                return {}

            return await stage.run([(bytes(20), 0, 10), (bytes([1] * 20), 0, 10)], details, Budget())
        finally:
            reranking.close()

    info = asyncio.run(run()).info
    assert (info.state, info.reason) == ("skipped", "the passages of 2 hits could not be read in time")


def test_a_model_that_is_named_and_not_here_is_refused_with_the_remedy(engine):
    with pytest.raises(ModelMissing, match="hf download nobody/nothing") as raised:
        searches(engine, [ASKED | {"rerank": {"model": "nobody/nothing"}}])
    assert raised.value.status == 424 and raised.value.at == "rerank.model"


def test_a_model_of_the_settings_that_is_not_here_is_told_in_the_answer(engine):
    plain, answer = searches(engine, [ASKED | {"rerank": False}, ASKED], rerank=Rerank(model="nobody/nothing"))
    assert plain.rerank is None and paths(answer) == paths(plain)
    assert answer.rerank.state == "skipped" and "hf download nobody/nothing" in answer.rerank.reason


def test_files_that_cannot_be_loaded_are_a_missing_model(engine, tmp_path):
    folder = cross_encoder(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelMissing, match="no cross-encoder that can be loaded"):
        searches(engine, [ASKED | {"rerank": {"model": str(folder)}}])
    (answer,) = searches(engine, [ASKED], rerank=Rerank(model=str(folder)))
    assert answer.rerank.state == "failed" and "no cross-encoder that can be loaded" in answer.rerank.reason


def test_without_a_text_there_is_nothing_to_judge_by(engine, model):
    request = {"forms": {"text": {"pattern": "tide"}}, "layers": ["text"]}
    with pytest.raises(BadQuery, match=r"give `query`, or `rerank\.query`") as raised:
        searches(engine, [request | {"rerank": {"model": model}}])
    assert raised.value.at == "rerank.query"
    (answer,) = searches(engine, [request], rerank=Rerank(model=model))
    assert answer.rerank.state == "skipped" and answer.hits


def test_an_answer_without_hits_says_that_there_was_nothing_to_rerank(engine, model):
    (answer,) = searches(engine, [{"query": "zebra", "rerank": {"model": model}}])
    assert not answer.hits and (answer.rerank.state, answer.rerank.reason) == ("skipped", "nothing was found")


# --- pages ---------------------------------------------------------------------------------------------------------------------


def pages(engine: Engine, request, n: int, meanwhile=lambda coordinator: None):
    """The answers of n pages, each asked for with the cursor of the one before. meanwhile: called after each with the coordinator."""

    async def one_by_one(coordinator: Coordinator):
        answers, cursor = [], None
        for _ in range(n):
            answers.append(await coordinator.search(as_request(request | {"cursor": cursor})))
            cursor = answers[-1].cursor
            meanwhile(coordinator)
        return answers

    return with_coordinator(engine, one_by_one)


def test_pages_together_are_the_whole_answer(engine, model):
    request = ASKED | {"rerank": {"model": model, "depth": 5}}
    (whole,) = searches(engine, [request])
    parts = pages(engine, request | {"k": 2}, 5)
    assert [hit for part in parts for hit in part.hits] == whole.hits
    assert [part.rerank.state for part in parts] == ["done", "done", "done", "skipped", "skipped"]
    assert [part.rerank.n for part in parts] == [5, 2, 1, 0, 0]  # what a page shows
    assert parts[3].rerank.reason == "this page lies behind the 5 hits that were reranked" and parts[-1].cursor is None


def test_a_page_keeps_the_first_one_s_order_when_the_scores_are_gone_and_the_model_is_too(engine, model, tmp_path):
    request = ASKED | {"rerank": {"model": model, "depth": 9}}
    (whole,) = searches(engine, [request])

    def lose(coordinator: Coordinator) -> None:
        coordinator.reranking.kept = KeptScores()
        for held in coordinator.reranking._models.values():
            held.reranker = Interrupted(model, engine.resources, 1)

    parts = pages(engine, request | {"k": 3}, 3, lose)
    assert [hit.hash for part in parts for hit in part.hits] == [hit.hash for hit in whole.hits]
    assert [(part.rerank.state, part.rerank.n) for part in parts] == [("done", 9), ("partial", 1), ("partial", 1)]


def test_after_a_first_page_in_the_order_of_evidence_the_others_are_too(engine, model, monkeypatch):
    plain, _ = staged(engine, monkeypatch, Interrupted(model, engine.resources, 1))

    def mend(coordinator: Coordinator) -> None:
        for held in coordinator.reranking._models.values():
            held.reranker.n = 100

    parts = pages(engine, ASKED | {"k": 3, "rerank": {"model": model, "depth": 9}}, 3, mend)
    assert [path for part in parts for path in paths(part)] == paths(plain)
    assert {(p.rerank.state, p.rerank.reason) for p in parts[1:]} == {("skipped", "the first page was not reranked; its order is kept")}


def test_pages_go_on_as_they_began_when_the_settings_of_the_server_change(engine, model):
    (whole,) = searches(engine, [ASKED], rerank=Rerank(model=model, depth=9))
    (plain,) = searches(engine, [ASKED])
    for before, after, expected in ((Rerank(model=model, depth=9), None, whole), (None, Rerank(model=model, depth=9), plain)):
        found, cursor = [], None
        for settings in (before, after, after):
            (answer,) = searches(engine, [ASKED | {"k": 3, "cursor": cursor}], rerank=settings)
            found += paths(answer)
            cursor = answer.cursor
        assert found == paths(expected)


HITS = [(bytes([i] * 20), 0, 1) for i in range(4)]


def test_an_order_is_followed_only_while_the_hits_are_those_it_was_made_for():
    pinned = Pinned((2, 0, 1), mark_of(HITS[:3]))
    assert follow(HITS, pinned, 1, 2) == ([2, 0, 1, 3], "", [0, 1])
    order, reason, shown = follow(HITS[1:], pinned, 1, 2)
    assert order == [0, 1, 2] and "not those of the first page" in reason and not shown
    assert follow(HITS[:2], pinned, 0, 2)[0] == [0, 1]


def test_a_cursor_bears_the_order_of_the_deepest_reranking():
    cursor = Cursor(10**15, 10, 1000, "0123456789ab", Pinned(tuple(reversed(range(200))), "01234567"))
    text = cursor.encode()
    assert Cursor.decode(text, "0123456789ab") == cursor
    SearchRequest(corpus="c", query="q", cursor=text)  # fits
    assert Cursor.decode(Cursor(1, 2, 3, "r").encode(), "r").reranked is None
    assert Cursor.decode(Cursor(1, 2, 3, "r", Pinned()).encode(), "r").reranked == Pinned()


@pytest.mark.parametrize("places", [(0, 0), (1, 2), (255,)])
def test_a_cursor_with_an_order_that_is_none_is_refused(places):
    with pytest.raises(BadQuery, match="not one that a previous answer gave"):
        Cursor.decode(Cursor(1, 2, 3, "r", Pinned(places, "00")).encode(), "r")


def test_a_cursor_belongs_to_its_reranking(engine, model):
    first = pages(engine, ASKED | {"k": 2, "rerank": {"model": model}}, 1)[0]
    with pytest.raises(BadQuery, match="belongs to another request"):
        searches(engine, [ASKED | {"k": 2, "cursor": first.cursor}])


# --- kept scores ---------------------------------------------------------------------------------------------------------------


def test_scores_are_kept_and_the_oldest_make_room():
    kept = KeptScores(2)
    a, b, c = (KeptScores.key("model", "q", text) for text in "abc")
    kept.put(a, 1.0)
    kept.put(b, 2.0)
    assert kept.get(a) == 1.0  # used last
    kept.put(c, 3.0)
    assert (kept.get(a), kept.get(b), kept.get(c), len(kept)) == (1.0, None, 3.0, 2)


def test_a_kept_score_is_of_one_model_query_and_passage():
    keys = {KeptScores.key(*parts) for parts in (("m", "q", "p"), ("m", "qp", ""), ("mq", "", "p"), ("m", "q", "P"), ("n", "q", "p"))}
    assert len(keys) == 5


def test_a_pair_is_scored_once(engine, model, monkeypatch):
    scored = []

    class Counting(CrossEncoder):
        def scores(self, query: str, passages, budget: Budget) -> Iterator[tuple[int, float]]:
            scored.extend(passages)
            return super().scores(query, passages, budget)

    monkeypatch.setattr("serve.reranking.CrossEncoder", Counting)
    few, many = (ASKED | {"rerank": {"model": model, "depth": depth}} for depth in (3, 9))
    one, two, three = searches(engine, [few, many, many])
    assert len(scored) == len(set(scored)) == 9
    assert (one.rerank.n, two.rerank.n) == (3, 9) and two.hits == three.hits


# --- a judge -------------------------------------------------------------------------------------------------------------------


def favours(*names: str):
    """A judge that gives these names the best grades."""

    def answer(body) -> str:
        passage = json.loads(body["messages"][-1]["content"])["passage"]
        return json.dumps({"grade": max((3 - i for i, name in enumerate(names) if f"the {name}." in passage), default=0)})

    return answer


@pytest.fixture
def server():
    with OpenAIServer(key="k") as running:
        running.answer = favours("pier", "kelp")
        yield running


@pytest.fixture
def judged(engine, server, monkeypatch):
    settings = {"default": EndpointSettings(server.url, "k")}
    monkeypatch.setattr(engine, "resources", Resources(models=engine.resources.models, endpoints=settings))
    return engine


def test_a_judge_grades_and_within_a_grade_the_evidence_decides(judged, server):
    request = ASKED | {"rerank": {"model": "tiny", "endpoint": "default"}}
    plain, answer, again = searches(judged, [ASKED, request, request])
    rest = [path for path in paths(plain) if path not in ("pier.txt", "kelp.txt")]
    assert paths(answer) == ["pier.txt", "kelp.txt", *rest] == paths(again)
    assert [hit.rerank.score for hit in answer.hits] == [3, 2] + 7 * [0]
    assert len(server.requests) == 9  # the second search asked nothing


def test_an_endpoint_that_fails_costs_its_order_not_the_answer(judged, server):
    server.faults += [Fault("status", 401, message="no more") for _ in range(9)]
    plain, answer = searches(judged, [ASKED, ASKED | {"rerank": {"model": "tiny", "endpoint": "default"}}])
    assert paths(answer) == paths(plain) and answer.rerank.state == "failed"
    assert "no more" in answer.rerank.reason


def test_an_endpoint_that_is_not_in_the_settings_is_refused(judged):
    with pytest.raises(EndpointError, match="'other' of model 'tiny' is not among this process's settings") as raised:
        searches(judged, [ASKED | {"rerank": {"model": "tiny", "endpoint": "other"}}])
    assert raised.value.status == 424 and raised.value.at == "rerank.model"


def test_status_tells_of_rerankers_and_what_their_endpoints_were_asked_for(judged, server, model):
    async def before_and_after(coordinator: Coordinator):
        await coordinator.reranking.warm()
        first = await coordinator.status()
        await coordinator.search(as_request(ASKED | {"rerank": {"model": "tiny", "endpoint": "default", "depth": 3}}))
        return first, await coordinator.status()

    states = with_coordinator(judged, before_and_after, Rerank(model="nobody/nothing"))
    (missing,) = states[0]["rerankers"]
    assert (missing["model"], missing["ready"]) == ("nobody/nothing", False)
    assert "hf download nobody/nothing" in missing["reason"] == states[0]["problems"]["reranker nobody/nothing"]
    judge = states[1]["rerankers"][0]
    assert (judge["model"], judge["endpoint"], judge["ready"], judge["reason"]) == ("tiny", "default", True, "")
    assert judge["usage"]["requests"] == 3 and judge["usage"]["tokens_in"] > 0


# --- over HTTP -----------------------------------------------------------------------------------------------------------------


def test_over_http_the_server_reranks_by_its_settings_unless_it_is_told_otherwise(engine, model):
    settings = HostSettings(store_url=engine.store.url, cache_dir=engine.folder / "cache", models_dir=engine.resources.models)
    asked = {"corpus": "c", "budget_ms": 60_000} | ASKED
    with (
        running(local_coordinator(settings, rerank=Rerank(model=model, depth=5)), reranker=model) as url,
        httpx.Client(base_url=url, timeout=60) as session,
    ):
        by_itself = session.post("/v1/search", json=asked)
        never = session.post("/v1/search", json=asked | {"rerank": False}).json()
        link = session.get("/v1/search", params={"corpus": "c", "q": QUERY, "budget_ms": 60_000, "rerank": model, "depth": 3}).json()
        refused = session.post("/v1/search", json=asked | {"rerank": {"model": "nobody/nothing"}})
    body = by_itself.json()
    assert (body["rerank"]["state"], body["rerank"]["n"], never["rerank"]) == ("done", 5, None)
    assert body["hits"][0]["rerank"].keys() == {"model", "origin", "score", "start", "end"} and never["hits"][0]["rerank"] is None
    assert "rerank;dur=" in by_itself.headers["Server-Timing"]
    assert link["rerank"]["depth"] == 3
    assert refused.status_code == 424
    error = refused.json()["error"]
    assert (error["kind"], error["at"]) == ("model_missing", "rerank.model") and "hf download nobody/nothing" in error["message"]


def test_an_engine_reranks_as_it_was_told_when_it_was_opened(engine, model):
    with sondage.Engine(engine.store.url, cache=engine.folder, rerank={"model": model, "depth": 4}) as opened:
        assert opened.search(QUERY, "c", budget_ms=60_000, layers=["bm25"], keep_all=True).rerank.n == 4
    with pytest.raises(InvalidRequest, match="depth: expected greater than or equal to 1"):
        sondage.Engine(engine.store.url, cache=engine.folder, rerank={"model": model, "depth": 0})


# --- many at once --------------------------------------------------------------------------------------------------------------


def test_searches_at_once_are_answered_as_one_by_one(engine, model):
    requests = [
        ASKED | {"rerank": {"model": model, "depth": depth, "query": query}} for depth in (3, 9) for query in ("sea", "nets", "pier")
    ]

    async def together(coordinator: Coordinator):
        return await asyncio.gather(*map(coordinator.search, map(as_request, requests)))

    answers = with_coordinator(engine, together)
    assert [answer.hits for answer in answers] == [searches(engine, [request])[0].hits for request in requests]


def test_a_search_that_nobody_waits_for_any_more_stops_scoring(engine, model, monkeypatch):
    started, ended = threading.Event(), threading.Event()

    class Endless(CrossEncoder):
        def scores(self, query: str, passages, budget: Budget) -> Iterator[tuple[int, float]]:
            started.set()
            while not budget.expired:
                ended.wait(0.001)
            ended.set()
            yield from ()

    monkeypatch.setattr("serve.reranking.CrossEncoder", Endless)

    async def hang_up(coordinator: Coordinator):
        search = asyncio.create_task(coordinator.search(as_request(ASKED | {"rerank": {"model": model}})))
        assert await asyncio.to_thread(started.wait, 30)
        search.cancel()
        return await asyncio.to_thread(ended.wait, 30)

    assert with_coordinator(engine, hang_up)


def test_models_that_were_not_asked_lately_make_room(engine, model, tmp_path):
    others = [str(cross_encoder(tmp_path / str(seed), seed=seed)) for seed in (1, 2)]

    async def ask(coordinator: Coordinator):
        for name in (model, *others, model):
            answer = await coordinator.search(as_request(ASKED | {"rerank": {"model": name}}))
            assert answer.rerank.state == "done"
        return [told["model"] for told in coordinator.reranking.status()]

    assert with_coordinator(engine, ask) == [model, others[1]]


# --- time ----------------------------------------------------------------------------------------------------------------------


def test_the_search_leaves_the_last_stage_its_share():
    wanted = Rerank(model="m", share=0.25)
    assert Stage(wanted, "q", KeptScores()).share_s(2.0) == 0.5
    assert Stage(wanted, "q", KeptScores(), problem="no model").share_s(2.0) == 0.0  # nothing is kept back for nothing


# --- beside other parts of a request -----------------------------------------------------------------------------------------------


def test_the_last_stage_orders_a_combined_request_by_a_query_of_its_own(engine, model):
    tree = {"union": [{"search": {"query": "tide", "layers": ["bm25"]}}, {"search": {"query": "harbour", "layers": ["bm25"]}}]}
    rerank = {"model": model, "query": QUERY, "depth": 4}
    asked = {"combine": tree, "k": 20, "keep_all": True}
    plain, stage, first = searches(engine, [asked, asked | {"rerank": rerank}, asked | {"rerank": rerank, "k": 3}])
    assert stage.rerank.state == "done" and plain.rerank is None
    scores = [hit.rerank.score for hit in stage.hits[:4]]
    assert scores == sorted(scores, reverse=True) and len(scores) == 4
    assert {hit.hash for hit in stage.hits[:4]} == {hit.hash for hit in plain.hits[:4]}
    assert [hit.hash for hit in stage.hits[4:]] == [hit.hash for hit in plain.hits[4:]]
    (second,) = searches(engine, [asked | {"rerank": rerank, "k": 3, "cursor": first.cursor}])
    assert [hit.hash for hit in [*first.hits, *second.hits]] == [hit.hash for hit in stage.hits[:6]]
    with pytest.raises(BadQuery, match="no text to judge passages by") as error:
        searches(engine, [asked | {"rerank": {"model": model}}])
    assert error.value.at == "rerank.query"
    (skipped,) = searches(engine, [asked], rerank=Rerank(model=model))
    assert skipped.rerank.state == "skipped" and [hit.hash for hit in skipped.hits] == [hit.hash for hit in plain.hits]
