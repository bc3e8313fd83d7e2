"""Queries of NLQL from text to rows: in this process and over HTTP, over three shards."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice

import httpx
import numpy as np
import pytest
from scripted_coordinator import running
from tiny_cross_encoder import cross_encoder

import sondage
from cluster.settings import HostSettings
from serve.keys import new_key
from serve.limits import Limits
from serve.local import local_coordinator
from serve.nlql.execute import run
from serve.nlql.outcome import Outcome, Rows
from serve.nlql.schema import QueryAnswer, QueryRequest
from serve.nlql.second_stage import Model
from shards.cross_encoder import CrossEncoder
from shards.errors import ModelMissing, StoreError
from shards.layers.contract import Resources
from shards.manifest import corpus_store
from shards.nlql import field_types, ir
from shards.nlql.answers import RowAnswer, RowEntry
from shards.nlql.errors import ExecutionError, NLQLTypeError, ParseError, PlanError
from shards.plugins import PROCESS
from shards.store import open_store
from shards.types import Budget, LayerStatus

WORDS = ("rust", "crab", "moon", "tide", "pan", "salt")


class Words:
    """Counts of six words: products that can be worked out by hand."""

    model_id, dim = "test-words", len(WORDS)

    def embed(self, texts):
        return [[float(text.lower().count(word)) for word in WORDS] for text in texts]


DOCUMENTS = [
    (
        "sea",
        "The moon pulls the tide. A crab hides under a pan. Salt stays.",
        {"topic": "sea", "year": 2024, "day": "2024-3-1", "code": "7"},
    ),
    ("cook", "Put salt into the pan. The crab turns red.", {"topic": "food", "year": 2023, "day": "2024-12-24", "code": "x"}),
    ("code", "Rust has a crab. Its name is Ferris.", {"topic": "code", "year": 2025, "tags": ["rust", "crab"]}),
    ("sky", "The moon is far. The moon is bright.", {"topic": "sky", "year": 2024}),
    ("old", "Iron rusts near the sea. Rust is red.", {"topic": "sea", "year": 1999}),
]
SIMILAR = "SELECT SENTENCE LET rel = SIMILARITY(content, 'crab moon')"


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> HostSettings:
    folder = tmp_path_factory.mktemp("nlql")
    PROCESS.add_embedder(Words.model_id, Words(), overwrite=True)
    made = sondage.Engine(
        Words(), store=folder / "store", corpus="notes", granularity="sentence", shards=3, layers=["bm25", "text"], cache=folder / "cache"
    )
    with made as engine:
        engine.add_documents({"id": name, "text": text, "metadata": metadata} for name, text, metadata in DOCUMENTS)
    return HostSettings(store_url=str(folder / "store"), cache_dir=folder / "files")


@pytest.fixture(scope="module")
def engine(settings) -> Iterator[sondage.Engine]:
    with sondage.Engine(settings.store_url, cache=settings.cache_dir) as opened:
        yield opened


@pytest.fixture(scope="module")
def client(settings) -> Iterator[sondage.Client]:
    with running(local_coordinator(settings)) as url, sondage.connect(url) as connected:
        yield connected


def contents(answer):
    return [row.content for row in answer.rows]


# --- rows --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (
            f"{SIMILAR} LIMIT 3",
            [("cook", "The crab turns red.", 0.7071), ("sky", "The moon is far.", 0.7071), ("sky", "The moon is bright.", 0.7071)],
        ),
        (f"{SIMILAR} WHERE rel > 0.1 AND topic == 'food'", [("cook", "The crab turns red.", 0.7071)]),
        (f"{SIMILAR} WHERE year == '2024' ORDER BY year, rel DESC LIMIT 1 OFFSET 1", [("sky", "The moon is bright.", 0.7071)]),
        (
            "SELECT SENTENCE WHERE content CONTAINS 'moon' ORDER BY LENGTH(content) DESC LIMIT 2",
            [("sea", "The moon pulls the tide.", None), ("sky", "The moon is bright.", None)],
        ),
        ("SELECT SENTENCE WHERE tags HAS 'rust' LIMIT 1", [("code", "Rust has a crab.", None)]),
        ("SELECT DOCUMENT WHERE content CONTAINS 'red' ORDER BY year", [("old", DOCUMENTS[4][1], None), ("cook", DOCUMENTS[1][1], None)]),
        ("SELECT SPAN(SENTENCE, 1) WHERE content CONTAINS 'Ferris'", [("code", "Rust has a crab. Its name is Ferris.", None)]),
        ("SELECT CHUNK WHERE topic == 'sky'", [("sky", "The moon is far. The moon is bright.", None)]),
    ],
)
def test_rows_are_the_same_in_process_and_over_http(query, expected, engine, client):
    told, found = client.query(query, "notes"), engine.query(query, "notes")
    assert told.rows == found.rows and told.complete
    assert [(row.doc_id, row.content) for row in told.rows] == [(name, text) for name, text, _ in expected]
    assert [row.scores.get("rel") for row in told.rows] == [None if rel is None else pytest.approx(rel, abs=1e-4) for *_, rel in expected]


def test_a_row_says_where_it_lies(client):
    row = client.query("SELECT SPAN(SENTENCE, 1) WHERE content == 'A crab hides under a pan.'", "notes").rows[0]
    assert (row.id, row.kind, row.ordinal, row.span) == ("sea#span:1~1", "span", 1, (0, 1, 2))
    assert (row.entry.source, row.entry.path, row.doc_id, row.metadata["year"]) == ("pushed", "sea", "sea", 2024)
    assert client.document(row.hash, "notes").text[row.start : row.end].startswith("The moon pulls")


def test_order_of_insertion_is_kept_over_shards(client):
    assert [row.doc_id for row in client.query("SELECT DOCUMENT", "notes").rows] == [name for name, *_ in DOCUMENTS]


def test_facets_count_all_rows_that_where_keeps(client):
    answer = client.query("SELECT DOCUMENT WHERE year > 2000 LIMIT 1 COUNT BY topic, year > 2023", "notes")
    assert len(answer.rows) == 1
    assert [facet.expr for facet in answer.facets] == ["topic", "year > 2023"]
    assert {value.value: value.count for value in answer.facets[0].values} == {"sea": 1, "food": 1, "code": 1, "sky": 1}
    assert [(value.value, value.count) for value in answer.facets[1].values] == [(True, 3), (False, 1)]


def test_a_tree_a_builder_and_the_text_give_the_same(client):
    text = "SELECT DOCUMENT WHERE year >= 2024 AND content CONTAINS 'moon' ORDER BY year LIMIT 2"
    year = sondage.field("year")
    built = sondage.select("document").where(year >= 2024, sondage.content.contains("moon")).order_by(year).limit(2)
    rows = client.query(text, "notes").rows
    assert rows and client.query(built, "notes").rows == client.query(built.build(), "notes").rows == rows
    assert client.query(client.explain_query(text, "notes")["ir"], "notes").rows == rows


def test_parameters_and_a_limit_of_the_call_go_into_the_query(client):
    asked = {"params": {"q": "moon", "years": [2024, 1999]}, "limit": 1}
    answer = client.query("SELECT SENTENCE WHERE year IN (:years) ORDER BY SIMILARITY(content, :q) DESC LIMIT 5", "notes", **asked)
    assert contents(answer) == ["The moon is far."]


# --- scores of layers and evidence -------------------------------------------------------------------------------------------


def test_scores_of_layers_are_those_of_the_document_and_null_where_it_has_none(client):
    answer = client.query(
        "SELECT DOCUMENT LET lines = REGEX(content, 'r(us|e)[td]'), words = BM25(content, 'crab') WHERE words != null ORDER BY words DESC",
        "notes",
    )
    hits = client.search("crab", "notes", layers=["bm25"], keep_all=True, k=10).hits
    bm25 = {hit.entries[0].path: hit.signals[0].score for hit in hits}
    assert {row.doc_id: row.scores["words"] for row in answer.rows} == pytest.approx(bm25)
    assert {row.doc_id: row.scores.get("lines") for row in answer.rows} == {"sea": None, "cook": 1.0, "code": 1.0}


def test_evidence_is_what_a_search_says_of_the_document(client):
    text = "SELECT DOCUMENT LET e = EVIDENCE(content, 'salt pan', 'bm25'), v = EVALUE(content, 'salt pan', 'bm25') ORDER BY e DESC"
    answer = client.query(text, "notes")
    hits = client.search("salt pan", "notes", layers=["bm25"], keep_all=True, k=10).hits
    found = {hit.entries[0].path: (hit.fused, hit.evalue) for hit in hits}
    assert {row.doc_id: (row.scores["e"], row.scores["v"]) for row in answer.rows if row.scores} == found
    assert {row.doc_id for row in answer.rows} == {name for name, *_ in DOCUMENTS}  # null where nothing was found
    assert [(looked.documents, looked.complete) for looked in answer.looked_at] == [(len(found), True)] * 2


def test_each_text_is_embedded_once(settings, monkeypatch):
    seen = []
    monkeypatch.setattr(Words, "embed", lambda self, texts, embed=Words.embed: seen.extend(texts) or embed(self, texts))
    text = "SELECT SENTENCE LET a = SIMILARITY(content, 'moon'), b = similarity(content, 'moon') WHERE SIMILARITY(content, 'moon') > 0"
    with sondage.Engine(settings.store_url, cache=settings.cache_dir) as engine:
        engine.query("SELECT DOCUMENT", "notes")  # opens the corpus, for which each space is asked something
        seen.clear()
        assert len(engine.query(text, "notes").rows) == 3
    assert seen == ["moon"]


# --- errors ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "kind", "status", "category", "column"),
    [
        ("SELECT SENTENCE WHERE year = 3", ParseError, 400, "syntax", 28),
        ("SELECT SENTENCE WHERE NOPE(content)", PlanError, 422, "plan", 23),
        ("SELECT SENTENCE WHERE code > 5", NLQLTypeError, 422, "type", 28),
        ("SELECT SENTENCE LET a = BM25(content, 'x', 'nope')", PlanError, 422, "plan", 44),
    ],
)
def test_errors_are_the_same_in_process_and_over_http_and_point_at_their_place(query, kind, status, category, column, engine, client):
    with pytest.raises(kind) as here:
        engine.query(query, "notes")
    with pytest.raises(kind) as there:
        client.query(query, "notes")
    assert str(here.value) == str(there.value)
    assert (there.value.category, there.value.line, there.value.column) == (category, 1, column)
    answer = httpx.post(f"{client.url}/v1/query", json={"corpus": "notes", "text": query})
    problem = answer.json()["error"]
    assert (answer.status_code, problem["kind"], problem["category"]) == (status, f"nlql_{category}", category)
    line, caret = problem["caret"].split("\n")
    assert line.strip() == query and caret.index("^") - 2 == column - 1


def test_a_tree_that_is_none_is_refused_with_its_place_in_the_tree(client):
    body = {"corpus": "notes", "ir": {"select": {"unit": "sentence"}, "where": {"node": "call", "args": []}}}
    problem = httpx.post(f"{client.url}/v1/query", json=body).json()["error"]
    assert (problem["kind"], problem["at"][:5]) == ("nlql_schema", "where")


def test_a_request_is_text_or_tree_and_knows_its_fields(client):
    for body, says in (({"corpus": "notes"}, "text, or as ir"), ({"corpus": "notes", "text": "x", "parms": {}}, "did you mean 'params'")):
        answer = httpx.post(f"{client.url}/v1/query", json=body)
        assert answer.status_code == 422 and says in answer.json()["error"]["message"]


# --- plans -------------------------------------------------------------------------------------------------------------------


def test_explain_runs_nothing_and_says_what_was_asked(client):
    for answer in (client.query(f"EXPLAIN {SIMILAR}", "notes"), client.query(SIMILAR, "notes", explain=True)):
        assert answer.rows == [] and answer.plan["asked"] == [{"space": "content", "asked": "crab moon", "text": "crab moon"}]
        assert answer.plan["cost"]["vectors"] == 11 and answer.plan["cost"]["bytes"] == 11 * 4 * len(WORDS)


def test_the_schema_for_tools_has_the_functions_there_are(client, engine):
    told = client.nlql_schema("notes")
    assert told == engine.nlql_schema("notes")
    assert {"SIMILARITY", "CONTAINS", "BM25", "EVIDENCE"} <= set(told["functions"]) and "LATE" not in told["functions"]
    assert told["tool"]["function"]["parameters"] == told["schema"]


# --- reranking ---------------------------------------------------------------------------------------------------------------


def test_a_reranker_gets_limit_times_factor_rows_and_its_order_counts(client):
    handed = []

    def shortest(question, rows):
        handed.append((question, [row.content for row in rows]))
        for row in rows:
            row.scores["rerank"] = -len(row.content)
        return sorted(rows, key=lambda row: len(row.content))

    PROCESS.rerankers.add("shortest", shortest, overwrite=True)
    answer = client.query(f"{SIMILAR} LIMIT 1", "notes", reranker="shortest", rerank_factor=3)
    assert handed.pop() == ("crab moon", ["The crab turns red.", "The moon is far.", "The moon is bright."])
    assert contents(answer) == ["The moon is far."] and answer.rows[0].scores["rerank"] == -16
    assert (answer.rerank.state, answer.rerank.name, answer.rerank.n) == ("done", "shortest", 3)
    client.query(f"{SIMILAR} ORDER BY year LIMIT 1", "notes", reranker="shortest", rerank_factor=3, rerank_query="mine")
    question, rows = handed.pop()
    assert (question, rows[0]) == ("mine", "The crab turns red.")  # of 2023: the best by score are handed over in the order of ORDER BY
    assert contents(client.query(f"{SIMILAR} LIMIT 1", "notes", reranker=False)) == ["The crab turns red."]
    client.query("SELECT SENTENCE LIMIT 1", "notes", reranker="shortest")
    assert not handed  # no score, so nothing to rerank by
    with pytest.raises(sondage.SondageError, match=r"No reranker is registered as 'nope'. Known: .*shortest"):
        client.query(SIMILAR, "notes", reranker="nope")


# --- HTTP --------------------------------------------------------------------------------------------------------------------


def test_rows_come_as_lines_where_these_are_asked_for(client):
    with client.query_rows(f"{SIMILAR} LIMIT 3", "notes") as stream:
        rows = list(stream)
    assert rows == client.query(f"{SIMILAR} LIMIT 3", "notes").rows
    answer = httpx.post(f"{client.url}/v1/query", json={"corpus": "notes", "text": SIMILAR}, headers={"Accept": "application/x-ndjson"})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert answer.headers["content-type"] == "application/x-ndjson" and [*lines[-1]] == ["end"] and lines[-1]["end"]["rows"] == []
    assert len(lines) == 1 + 11


def test_a_key_for_another_corpus_learns_nothing_of_this_one(settings):
    now = datetime.now(UTC)
    other, others = new_key(now, scopes=("read",), corpora=("x*",))
    mine, limited = new_key(now, scopes=("read",), limits=Limits(k=2, budget_ms=9_000, rerank_depth=0))
    with running(local_coordinator(settings), (others, limited)) as url:
        ask = {"corpus": "notes", "text": "SELECT DOCUMENT LIMIT 2"}
        with httpx.Client(base_url=url, headers={"X-API-Key": other}) as stranger:
            refused = [stranger.post("/v1/query", json=ask | {"corpus": corpus}) for corpus in ("notes", "nowhere")]
            assert [answer.status_code for answer in refused] == [404, 404]
            assert refused[0].json()["error"]["message"].replace("notes", "nowhere") == refused[1].json()["error"]["message"]
            assert stranger.get("/v1/nlql/schema?corpus=notes").status_code == 404
        assert httpx.post(f"{url}/v1/query", json=ask).status_code == 401
        with httpx.Client(base_url=url, headers={"X-API-Key": mine}) as owner:
            assert len(owner.post("/v1/query", json=ask).json()["rows"]) == 2
            for more, at in (
                ({"limit": 3}, "limit"),
                ({"text": "SELECT DOCUMENT"}, "limit"),
                ({"budget_ms": 9_001}, "budget_ms"),
                ({"text": f"{SIMILAR} LIMIT 1", "reranker": "shortest"}, "reranker"),
            ):
                answer = owner.post("/v1/query", json=ask | more)
                assert (answer.status_code, answer.json()["error"]["at"]) == (422, at)


def test_queries_are_counted(client):
    client.query("SELECT DOCUMENT LIMIT 1", "notes")
    text = httpx.get(f"{client.url}/metrics").text
    assert "sondage_queries_total{" in text and 'step="scatter"' in text


# --- what holds for the corpus -----------------------------------------------------------------------------------------------


def test_field_types_of_the_corpus_hold_until_a_request_says_otherwise(settings, tmp_path):
    store = corpus_store(open_store(settings.store_url), "notes")
    query = "SELECT DOCUMENT WHERE day != null ORDER BY day"
    with sondage.Engine(settings.store_url, cache=settings.cache_dir) as engine:
        assert [row.doc_id for row in engine.query(query, "notes").rows] == ["cook", "sea"]  # 2024-3-1 is no ISO date, so text
    field_types.state(store, {"day": "date"}, PROCESS)
    try:
        with sondage.Engine(settings.store_url, cache=settings.cache_dir) as engine:
            assert [row.doc_id for row in engine.query(query, "notes").rows] == ["sea", "cook"]
            later = "SELECT DOCUMENT WHERE day > '2024-06-01'"
            assert [row.doc_id for row in engine.query(later, "notes").rows] == ["cook"]
            assert engine.explain_query(later, "notes")["field_types"] == {"day": "date"}
            assert len(engine.query(later, "notes", field_types={"day": "text"}).rows) == 2
    finally:
        field_types.state(store, {"day": "any"}, PROCESS)


# --- what was not looked at --------------------------------------------------------------------------------------------------


def test_an_answer_that_lacks_a_shard_says_so(settings):
    late = LayerStatus("rows", 2, "late", 0, 3, "host h: no answer within 1 s")

    async def ask():
        async with opened(settings) as coordinator:
            rows = coordinator.searcher.rows

            async def without_the_last(corpus, generation, n_shards, plan):
                found = await rows(corpus, generation, n_shards, plan)
                kept = [replace(answer, status=tuple(s for s in answer.status if s.shard != 2)) for answer in found]
                return [*kept, RowAnswer(status=(late,), names=found[0].names, scores=np.zeros((len(found[0].names), 0)))]

            coordinator.searcher.rows = without_the_last
            return await run(coordinator, QueryRequest(corpus="notes", text="SELECT DOCUMENT"))

    answer = asyncio.run(ask()).answer()
    assert not answer.complete
    assert [(part.layer, part.shard, part.reason) for part in answer.coverage if part.state == "late"] == [("rows", 2, late.reason)]


@asynccontextmanager
async def opened(settings):
    async with local_coordinator(settings) as coordinator:
        await coordinator.until_warm()
        yield coordinator


def test_sentences_of_many_chunks_are_encoded_for_the_best_documents_alone(monkeypatch):
    monkeypatch.setattr("serve.nlql.plan.ENCODED_CHUNKS", 1)
    monkeypatch.setattr("serve.nlql.execute.ENCODED_FACTOR", 2)
    seen = []
    monkeypatch.setattr(Words, "embed", lambda self, texts, embed=Words.embed: seen.extend(texts) or embed(self, texts))
    with sondage.Engine(Words(), granularity="chunk") as engine:
        engine.add_documents({"id": name, "text": text} for name, text, _ in DOCUMENTS)
        engine.flush()
        seen.clear()
        rows = engine.search(f"{SIMILAR} LIMIT 1")
        assert [(row.doc_id, row.content) for row in rows] == [("sky", "The moon is far.")]
        # Only the sentences of two documents; those of all five where there is no LIMIT to go by.
        assert {text for text in seen if text != "crab moon"} <= {sentence for name in ("sky", "sea") for sentence in sentences(name)}
        assert len(engine.search(SIMILAR)) == 11
        assert "10 x as many documents" in engine.explain(f"{SIMILAR} LIMIT 1")["notes"][1]
        (looked,) = engine._run(f"{SIMILAR} LIMIT 1", None, None, None, None, {}).looked_at
        assert (looked.documents, looked.complete) == (2, True)


def sentences(name):
    text = next(text for other, text, _ in DOCUMENTS if other == name)
    return [f"{part}." for part in text.rstrip(".").split(". ")]


def test_a_reranker_called_default_orders_what_says_nothing_of_one(engine):
    PROCESS.rerankers.add("default", lambda question, rows: list(reversed(rows)), overwrite=True)
    try:
        answer = engine.query(f"{SIMILAR} LIMIT 1", "notes", rerank_factor=2)
        assert (answer.rerank.name, contents(answer)) == ("default", ["The moon is far."])
        assert engine.query(f"{SIMILAR} LIMIT 1", "notes", reranker=False).rerank is None
        assert engine.explain_query(f"{SIMILAR} LIMIT 1", "notes")["rerank"] == "default"
    finally:
        PROCESS.rerankers.remove("default")


@pytest.mark.parametrize(
    ("reranker", "says"),
    [
        (lambda question, rows: rows[0].no_such_thing, "failed: AttributeError"),
        (lambda question, rows: [*rows, rows[0]], "a row twice"),
        (lambda question, rows: ["mine"], "rows that it was not given"),
    ],
)
def test_a_reranker_that_fails_is_an_error_of_the_query(engine, reranker, says):
    PROCESS.rerankers.add("broken", reranker, overwrite=True)
    with pytest.raises(ExecutionError, match=says):
        engine.query(SIMILAR, "notes", reranker="broken")


def test_examples_of_the_description_are_requests(client):
    described = httpx.get(f"{client.url}/openapi.json").json()["paths"]["/v1/query"]["post"]
    for example in described["requestBody"]["content"]["application/json"]["examples"].values():
        QueryRequest.model_validate(example["value"])
    assert set(described["responses"]["200"]["content"]) == {"application/json", "application/x-ndjson"}


def test_a_name_that_nobody_can_write_is_refused_in_a_tree(client):
    for name in ("#0", "\0by0"):
        ir = {"select": {"unit": "document"}, "let": [{"name": name, "expr": {"node": "literal", "value": 1}}]}
        answer = httpx.post(f"{client.url}/v1/query", json={"corpus": "notes", "ir": ir})
        assert answer.status_code == 422 and answer.json()["error"]["kind"] in ("nlql_plan", "nlql_schema")


def test_a_path_that_is_not_utf8_is_shown_with_replacement_characters():
    entry = RowEntry("here", "caf\udce9.md", b"h" * 20, 3, 10**9, {"a": float("inf")})
    found = RowAnswer(
        (entry,), np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int64), np.full(1, 3), ("abc",), scores=np.zeros((0, 1))
    )
    outcome = Outcome("c", 1, Rows(found, ir.Select("sentence"), False))
    (row,) = json.loads(outcome.json())["rows"]
    assert (row["doc_id"], row["id"], row["metadata"]) == ("caf\ufffd.md", "caf\ufffd.md#sentence:0", {"a": None})
    assert QueryAnswer.model_validate_json(outcome.json()).rows[0].entry.mtime == 1.0


def test_a_cross_encoder_orders_rows_by_what_it_says_of_their_text(engine, client, tmp_path):
    model = str(cross_encoder(tmp_path / "model"))
    asked = {"reranker": f"cross-encoder:{model}", "rerank_factor": 2, "budget_ms": 60_000}
    answer = engine.query(f"{SIMILAR} LIMIT 2", "notes", **asked)
    best = [row.content for row in engine.query(f"{SIMILAR} LIMIT 4", "notes").rows]
    said = dict(CrossEncoder(model, Resources()).scores("crab moon", best, Budget()))
    expected = sorted(best, key=lambda content: -said[best.index(content)])[:2]
    assert contents(answer) == expected and [row.scores["rerank"] for row in answer.rows] == sorted(said.values(), reverse=True)[:2]
    assert (answer.rerank.state, answer.rerank.n) == ("done", 4)
    with pytest.raises(sondage.SondageError, match="is no name of a model"):  # no folder by request
        client.query(SIMILAR, "notes", **asked)
    with pytest.raises(ModelMissing):
        client.query(SIMILAR, "notes", reranker="cross-encoder:nobody/nothing")


def test_rows_that_a_cross_encoder_had_no_time_for_stay_where_they_were():
    class Slow:
        def scores(self, query, passages, budget):
            yield 2, 5.0
            yield 0, 1.0

    entries = tuple(RowEntry("here", name, name.encode() * 20, 1, 0, {}) for name in "abcd")
    zeros = np.zeros(4, np.int64)
    found = RowAnswer(entries, np.arange(4, dtype=np.int32), zeros.astype(np.int32), zeros, zeros + 1, "abcd", scores=np.zeros((0, 4)))
    rows = list(Rows(found, ir.Select("document"), False))
    model = Model(Slow(), Budget())
    assert [row.id for row in model.rerank("q", rows)] == ["c", "b", "a", "d"]
    assert (model.n, rows[2].scores, rows[1].scores) == (2, {"rerank": 5.0}, {})


def test_rows_that_end_in_an_error_say_so_in_their_last_line(client, monkeypatch):
    def broken(self):
        yield from islice(map(self.__getitem__, range(len(self))), 2)
        raise StoreError("The disk is gone.")

    monkeypatch.setattr(Rows, "__iter__", broken)
    stream = client.query_rows(f"{SIMILAR} LIMIT 5", "notes")
    with pytest.raises(StoreError, match="The disk is gone"):
        list(stream)
