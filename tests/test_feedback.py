"""Chosen spans: questions drawn towards them, evidence that stays honest, and the terms that set them apart."""

import asyncio
import math
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine import Engine, paths, write_files
from pydantic import ValidationError

from cluster.host import Host
from cluster.local import LocalSearcher
from serve.coordinator import Coordinator
from serve.feedback_schema import TermsRequest
from serve.problems import InvalidRequest, validated
from shards import bm25_feedback
from shards.candidates import merge, nothing, without
from shards.errors import BadQuery, NotFound
from shards.examples import Example, Term, log_likelihood_ratio
from shards.layers.contract import Request
from shards.layers.vectors import Static

SHOCK = "shock waves in supersonic flow meet the boundary layer of a blunt body, heat transfer number {i}"
CAKE = "how to bake a cake with flour sugar and butter, variety {i}, in a warm oven"
LAW = "the court decided that contract {i} was void under the statute, and costs were awarded"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    files = {f"shock{i}.txt": SHOCK.format(i=i) for i in range(6)} | {f"cake{i}.txt": CAKE.format(i=i) for i in range(8)}
    files |= {f"law{i}.txt": LAW.format(i=i) for i in range(26)}
    engine = Engine(tmp_path_factory.mktemp("feedback"), layers=("bm25", "static", "text"))
    engine.index(write_files(engine.folder / "source", files), calibrate=False)
    return engine


def spans(answer, n: int) -> list[str]:  # type: ignore[no-untyped-def]
    return [f"{hit.hash}:{hit.start}-{hit.end}" for hit in answer.hits[:n]]


# --- reformulating ---------------------------------------------------------------------------------------------------------------


def test_feedback_finds_what_shares_words_with_chosen_spans_and_not_these_again(corpus: Engine) -> None:
    first = corpus.search("blunt", layers=["bm25"], keep_all=True, k=6)
    chosen = first.hits[0]
    answer = corpus.search(
        "void", feedback=[f"{chosen.hash}:{chosen.start}-{chosen.end}"], layers=["bm25"], keep_all=True, k=5, explain=True
    )
    assert all(path.startswith("shock") for path in paths(answer)) and chosen.hash not in {hit.hash for hit in answer.hits}
    assert {"shock", "supersonic", "boundary"} <= set(answer.feedback.terms) and answer.feedback.spans == 1
    (bm25,) = (layer for layer in answer.layers if layer.asked is not None)
    assert bm25.asked_by == "feedback" and "supersonic" in bm25.because and "void" in bm25.asked


def test_without_a_query_chosen_spans_are_the_question(corpus: Engine) -> None:
    chosen = corpus.search("butter", keep_all=True).hits[0]
    answer = corpus.search("", feedback=[chosen.hash], keep_all=True, k=7, explain=True)
    assert sorted(paths(answer)) == sorted(f"cake{i}.txt" for i in range(8) if f"cake{i}.txt" != chosen.entries[0].path)
    assert {layer.name: layer.asked_by for layer in answer.layers if layer.asked} == {"bm25": "feedback", "static": "feedback"}
    assert set(answer.feedback.spaces) == {"bm25", "static"}


def test_a_vector_goes_towards_the_mean_of_the_texts_and_keeps_its_length(corpus: Engine) -> None:
    layer = corpus.generation().spaces["static"].layer
    asked = layer.prepare(Request("void contract"), None)
    texts = [Example(SHOCK, "prose"), Example(CAKE, "prose")]
    drawn = layer.reformulate(asked, texts, None).query.payload
    mean = layer.encoder.encode_documents([SHOCK, CAKE]).astype(np.float64).mean(axis=0)
    expected = asked.payload + mean
    assert np.allclose(drawn, expected / np.linalg.norm(expected) * np.linalg.norm(asked.payload), atol=1e-6)
    assert layer.reformulate(asked, [Example("", "prose")], None) is None


def test_moments_are_those_of_the_new_question(corpus: Engine) -> None:
    """So z, and surprise with it, has the null of what was asked: mean and deviation over all units, computed here by hand."""
    plain = corpus.search("void", layers=["bm25"], keep_all=True, explain=True, k=40)
    drawn = corpus.search("void", layers=["bm25"], keep_all=True, explain=True, k=40, feedback=[plain.hits[0].hash])
    of_plain, of_drawn = (next(x.evidence for x in answer.layers if x.name == "bm25") for answer in (plain, drawn))
    assert of_plain.n == of_drawn.n == 40
    scores = [next(s.score for s in hit.signals if s.layer == "bm25") for hit in drawn.hits]
    assert of_drawn.mean > of_plain.mean and min(scores) <= of_drawn.mean <= max(scores)
    top = drawn.hits[0].signals[0]
    assert top.z == pytest.approx((top.score - of_drawn.mean) / of_drawn.sd)


def test_the_expansion_is_the_divergence_of_texts_from_the_corpus() -> None:
    terms = [
        Term("rare", ("rare",), rate=0.5, n_examples=1, df=1, n_units=99, ratio=0.0),
        Term("common", ("common",), rate=0.5, n_examples=1, df=98, n_units=99, ratio=0.0),
        Term("absent", ("absent",), rate=0.001, n_examples=1, df=98, n_units=99, ratio=0.0),
    ]
    weights = bm25_feedback.expansion(terms, average_length=10.0)
    background = {df: -math.log1p(-(df + 0.5) / 100) / 10 for df in (1, 98)}
    rare, common = (0.5 * math.log(0.5 / background[df]) for df in (1, 98))
    assert weights == pytest.approx({"rare": 1.0, "common": common / rare})
    assert list(bm25_feedback.expansion(terms, 10.0, n_terms=1)) == ["rare"]


def test_documents_taken_out_leave_moments_and_coverage() -> None:
    hashes = np.arange(60, dtype=np.uint8).reshape(3, 20)
    one = nothing(1)
    columns = {"starts": np.zeros((3, 1), int), "ends": np.ones((3, 1), int), "generated": np.ones((3, 1), bool)}
    three = replace(one, hashes=hashes, scores=np.arange(3.0)[:, None], **columns)
    left = without(merge([three], 10), {hashes[1].tobytes()})
    assert left.scores[:, 0].tolist() == [0.0, 2.0] and len(left.starts) == 2 and left.status == three.status
    assert without(three, set()) is three


@pytest.mark.parametrize("coupling", ["evidence", "joint", "rrf"])
def test_pages_of_feedback_hang_together(corpus: Engine, coupling: str) -> None:
    chosen = corpus.search("shock", keep_all=True).hits[0].hash
    asked = {"query": "shock", "feedback": [chosen], "keep_all": True, "layers": ["bm25", "static"], "coupling": coupling}
    whole, first = corpus.search_many([asked | {"k": 8}, asked | {"k": 4}])
    (second,) = corpus.search_many([asked | {"k": 4, "cursor": first.cursor}])
    assert paths(first) + paths(second) == paths(whole)


def test_drawn_questions_do_not_depend_on_the_number_of_shards(corpus: Engine) -> None:
    other = Engine(corpus.folder / "three", layers=("bm25", "static", "text"))
    other.index(corpus.folder / "source", calibrate=False, n_shards=3)
    first = corpus.search("shock", keep_all=True).hits[0]
    asked = {"feedback": [f"{first.hash}:{first.start}-{first.end}"], "keep_all": True, "k": 12}
    one, three = (engine.search("void", **asked) for engine in (corpus, other))
    assert [(h.hash, [(s.layer, s.score) for s in h.signals]) for h in one.hits] == [
        (h.hash, [(s.layer, s.score) for s in h.signals]) for h in three.hits
    ]
    assert one.feedback == three.feedback


# --- terms -----------------------------------------------------------------------------------------------------------------------


def test_the_likelihood_ratio_is_dunnings() -> None:
    """Against the sum 2 k ln(k / expected) over the four cells, which is the same (G test)."""
    k, n, df, n_units = 3, 4, 10, 100
    cells = np.array([[k, n - k], [df - k, n_units - n - df + k]], float)
    expected = cells.sum(1, keepdims=True) * cells.sum(0, keepdims=True) / cells.sum()
    assert log_likelihood_ratio(k, n, df, n_units) == pytest.approx(2 * (cells * np.log(cells / expected)).sum())
    assert log_likelihood_ratio(1, 4, 50, 100) == 0.0  # rarer among the texts
    assert log_likelihood_ratio(4, 4, 4, 100) > log_likelihood_ratio(4, 4, 8, 100) > log_likelihood_ratio(2, 4, 8, 100) > 0
    assert log_likelihood_ratio(2, 2, 2, 2) == 0.0  # all there is


def suggest(corpus: Engine, **fields):  # type: ignore[no-untyped-def]
    async def run():  # type: ignore[no-untyped-def]
        host = Host(corpus.store.url, {}, str(corpus.folder / "cache"), corpus.cache_bytes)
        host.store = corpus.store
        coordinator = Coordinator(corpus.store, LocalSearcher(host), corpus.resources, corpus.cache)
        return await coordinator.suggest_terms(TermsRequest(corpus="c", budget_ms=30_000, **fields))

    return asyncio.run(run())


def test_terms_that_set_spans_apart_are_those_the_rest_lacks(corpus: Engine) -> None:
    hits = corpus.search("supersonic", layers=["bm25"], keep_all=True, k=4)
    answer = suggest(corpus, spans=spans(hits, 3), k=30)
    found = {term.term: term for term in answer.terms}
    assert answer.read == 3 and answer.layer == "bm25"
    assert {"supersonic", "shock", "waves", "blunt"} <= set(found) and not {"the", "a", "court"} & set(list(found)[:8])
    assert (found["shock"].spans, found["shock"].df, found["shock"].n_units) == (3, 6, 40)
    assert [t.ratio for t in answer.terms] == sorted((t.ratio for t in answer.terms), reverse=True)


def test_terms_of_a_querys_hits_leave_its_own_words_out(corpus: Engine) -> None:
    terms = [term.term for term in suggest(corpus, query="supersonic").terms]
    assert "supersonic" not in terms and len(terms) > 3


# --- what is wrong ---------------------------------------------------------------------------------------------------------------


def test_spans_that_are_none_are_refused_with_their_place(corpus: Engine) -> None:
    with pytest.raises(InvalidRequest, match=r"feedback\[1\].*HASH:START-END"):
        validated({"corpus": "c", "query": "x", "feedback": ["a" * 40, "b"]})
    with pytest.raises(InvalidRequest, match="ends behind its start"):
        validated({"corpus": "c", "query": "x", "feedback": ["a" * 40 + ":5-5"]})
    with pytest.raises(InvalidRequest, match="without combine"):
        validated({"corpus": "c", "feedback": ["a" * 40], "combine": {"union": [{"search": {"query": "a"}}, {"search": {"query": "b"}}]}})
    with pytest.raises(NotFound, match="Take spans from hits") as error:
        corpus.search("x", feedback=["a" * 40])
    assert error.value.at == "feedback[0]"
    with pytest.raises(ValidationError, match="give spans of hits, or a query"):
        TermsRequest(corpus="c")


def test_a_corpus_without_words_says_what_it_lacks(tmp_path: Path) -> None:
    engine = Engine(tmp_path, layers=("text",))
    engine.index(write_files(tmp_path / "source", {"a.txt": "some words"}), calibrate=False)
    with pytest.raises(BadQuery, match="layer bm25"):
        suggest(engine, query="words")


def test_a_space_that_takes_too_long_to_change_is_asked_the_query_alone(corpus: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its encoder, a remote one say, comes back only when the shards are asked already; the other space has changed."""
    released = threading.Event()
    search = LocalSearcher.search

    async def released_by_now(*arguments):  # type: ignore[no-untyped-def]
        released.set()
        return await search(*arguments)

    chosen = corpus.search("butter", keep_all=True, layers=["bm25"]).hits[0].hash
    monkeypatch.setattr(LocalSearcher, "search", released_by_now)
    monkeypatch.setattr(Static, "dear", True)
    monkeypatch.setattr(Static, "reformulate", lambda *_: released.wait(60) and None)
    answer = corpus.search("oven", feedback=[chosen], keep_all=True, budget_ms=1_000)
    assert set(answer.feedback.spaces) == {"bm25"} and "time for it was over" in answer.feedback.left_out["static"]
