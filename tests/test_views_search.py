"""Derived texts from the index job to the hit: constellations, verdicts, what is shown, what is paid, what is erased."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from engine import Engine, write_files
from openai_server import Fault, OpenAIServer
from test_evidence import MOMENTS, N_DOCS, NULLS, candidates, similar
from test_repair import tools
from test_views import describe, static_model

from jobs import render
from jobs.history_checks import put
from jobs.index import summary
from serve.constellations import constellations
from serve.evidence import SpaceFacts, fuse
from serve.status import of_generation
from serve.verdict import judge
from shards.endpoint_settings import EndpointSettings, Price
from shards.erase import erase, targets
from shards.errors import EndpointError
from shards.layers.contract import Resources
from shards.manifest import corpus_store
from shards.nulls import FusedNull
from shards.push import Applier
from shards.pushlog import dump, entry_name


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return static_model(tmp_path_factory.mktemp("views") / "static")


@pytest.fixture
def server():
    with OpenAIServer("sk-secret") as running:
        running.answer = describe
        yield running


# --- constellations ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_source", "of_views", "expected"),
    [
        (5.0, 5.0, "both"),
        (5.0, 2.9, "source"),
        (2.9, 5.0, "hypothesis"),
        (math.log(20), math.log(20), "both"),
        (0.0, 5.0, "hypothesis"),
        (1.0, 2.0, "hypothesis"),  # none is sure: whoever says more
        (2.0, 1.0, "source"),
        (0.0, 0.0, "source"),  # a pattern that matches everywhere
    ],
)
def test_a_constellation_says_which_spaces_saw_the_hit(of_source, of_views, expected):
    surprises = np.array([[of_source, of_views]])
    assert constellations(surprises, np.ones(2), np.array([False, True])) == [expected]


def test_a_space_that_counts_for_nothing_has_seen_nothing():
    surprises = np.array([[9.0, 9.0], [9.0, 9.0]])
    assert constellations(surprises, np.array([0.0, 1.0]), np.array([False, True])) == ["hypothesis", "hypothesis"]
    assert constellations(surprises, np.array([1.0, 0.0]), np.array([False, True])) == ["source", "source"]


# --- evidence and verdict ----------------------------------------------------------------------------------------------------


def with_views(scores, nulls=None):
    """Fused evidence of bm25, which reads the source, and dense standing in for a derived space."""
    facts = [similar("bm25")[0], SpaceFacts("dense", "moments", N_DOCS, origin="derived")]
    nulls = NULLS_OF_BOTH if nulls is None else nulls
    fused = fuse(candidates(scores, [MOMENTS, MOMENTS]), facts, nulls, N_DOCS, n_words=3)
    return fused, judge(fused, facts, nulls, text="three words here")[0]


NULLS_OF_BOTH = replace(
    NULLS,
    fused=FusedNull((0.0,), (0.0,), 6.0, 1.0, N_DOCS, ("bm25", "dense"), 1),
    fused_of_sources=FusedNull((0.0,), (0.0,), 5.0, 1.0, N_DOCS, ("bm25",), 1),
)


def test_evidence_of_the_source_is_kept_apart_and_has_its_own_null():
    fused, _ = with_views([[3.0, 6.0], [1.0, 0.5]])
    by_hand = NULLS.spaces["bm25"].surprise(np.array([3.0, 1.0]))
    assert fused.of_sources == pytest.approx(by_hand)
    assert fused.log_evalues_of_sources == pytest.approx(np.minimum((5.0 - by_hand) / 1.0, math.log(N_DOCS)))
    assert fused.derived.tolist() == [False, True]
    assert fused.fused[0] > fused.of_sources[0]


def test_without_derived_spaces_all_evidence_is_the_sources():
    fused = fuse(candidates([[3.0, 6.0], [1.0, 0.5]], [MOMENTS, MOMENTS]), similar("bm25", "dense"), NULLS, N_DOCS)
    assert fused.of_sources.tobytes() == fused.fused.tobytes()
    assert fused.log_evalues_of_sources.tobytes() == fused.log_evalues.tobytes()


@pytest.mark.parametrize("loud", [6.0, 20.0, 200.0])
def test_a_derived_space_alone_never_makes_a_verdict_strong(loud):
    """However loud: bm25 finds next to nothing, then what it finds is loud too."""
    fused, verdict = with_views([[0.1, loud], [0.2, 0.1]])
    assert fused.log_evalues.min() <= math.log(0.01)
    assert verdict == "weak"
    assert with_views([[0.1, loud]], replace(NULLS_OF_BOTH, fused_of_sources=None))[1] == "weak"
    assert with_views([[9.0, loud], [0.2, 0.1]])[1] == "strong"
    assert with_views([[9.0, 0.0], [0.2, 0.1]])[1] == "strong"


def test_a_weak_verdict_says_when_only_derived_texts_stand_out():
    facts = [similar("bm25")[0], SpaceFacts("dense", "moments", N_DOCS, origin="derived")]
    fused = fuse(candidates([[0.1, 20.0]], [MOMENTS, MOMENTS]), facts, NULLS_OF_BOTH, N_DOCS, n_words=3)
    assert "texts about documents, not the documents themselves" in judge(fused, facts, NULLS_OF_BOTH, text="three words here")[1]


def test_a_hit_is_shown_where_the_source_has_it_even_if_a_derived_text_is_louder():
    found = candidates([[2.0, 20.0], [-3.0, 20.0]], [MOMENTS, MOMENTS])
    facts = [similar("bm25")[0], SpaceFacts("dense", "moments", N_DOCS, origin="derived")]
    fused = fuse(found, facts, NULLS_OF_BOTH, N_DOCS)
    assert fused.starts[0] == found.starts[0, 0]
    quiet = int(fused.surprises[1, 0] == 0)
    assert fused.starts[1] == found.starts[1, quiet]


# --- whole engine ------------------------------------------------------------------------------------------------------------


def files(n: int = 24) -> dict[str, str]:
    topics = "river stone cloud sort merge parse json weather bread oven engine wheel harbour sail".split()
    named = [(topics[i % len(topics)], topics[(i * 5 + 1) % len(topics)], i) for i in range(n)]
    return {f"{i}.md": f"# {a}\n\nA {a} and the {b}, number {i}. What is the {b} to a {a}?\n" for a, b, i in named}


def built(tmp_path, model, server=None, prices=None, n=24, **options):
    """bm25, and views written by the server, or extracted where there is none."""
    dials = f"vector_model={model}" + (",endpoint=default,model=tiny,questions=2" if server else "")
    engine = Engine(tmp_path, layers=("bm25", f"views:{dials}"))
    if server is not None:
        engine.resources = Resources(endpoints={"default": EndpointSettings(server.url, "sk-secret", prices or {}, concurrency=2)})
    source = write_files(tmp_path / "src", files(n))
    return engine, source, engine.index(source, **options)


def hit_of(answer, path):
    return next(hit for hit in answer.hits if hit.entries[0].path == path)


def test_a_hit_tells_what_was_generated_by_whom_and_about_what(tmp_path, model, server):
    server.answer = lambda body: json.dumps(
        {"context": "all about sail", "summary": "harbour" if "# oven" in body["messages"][1]["content"] else "context"}
    )
    engine, _, _ = built(tmp_path, model, server)
    answer = engine.search("harbour", layers=["views"], k=30, explain=True)
    assert {info.name: info.origin for info in answer.layers} == {"bm25": "source", "views": "derived"}
    (signal,) = hit_of(answer, "9.md").signals
    size = hit_of(answer, "9.md").entries[0].size_bytes
    assert signal.generated.model_dump() == {"text": "harbour", "kind": "summary", "generator": "tiny", "start": 0, "end": size - 1}
    assert hit_of(answer, "9.md").constellation == "hypothesis"
    assert answer.verdict != "strong"
    shown = render.generated(hit_of(answer, "9.md"))
    assert shown == [
        f"generated summary (tiny, about bytes 0-{size - 1}): harbour",
        "hypothesis: only generated texts point here, the source itself was not found by this query",
    ]


def test_the_strongest_constellation_is_seen_by_source_and_views(tmp_path, model):
    engine, _, _ = built(tmp_path, model, calibrate=False)
    answer = engine.search("oven bread", k=30, explain=True)
    best = {hit.entries[0].path: hit.constellation for hit in answer.hits}
    signals = {hit.entries[0].path: {s.layer: s.surprise for s in hit.signals} for hit in answer.hits}
    assert set(best.values()) <= {"source", "hypothesis", "both"} and "both" in best.values()
    for path, seen in signals.items():
        sides = [seen.get(name, 0.0) >= math.log(20) for name in ("bm25", "views")]
        if any(sides):
            assert best[path] == {(True, True): "both", (True, False): "source", (False, True): "hypothesis"}[tuple(sides)]
    (generated,) = {s.generated.generator for hit in answer.hits for s in hit.signals if s.generated}
    assert generated == "extractive"


def test_the_same_hits_and_texts_come_from_any_number_of_shards(tmp_path, model, server):
    answers = []
    for n_shards in (1, 4):
        engine, _, _ = built(tmp_path / str(n_shards), model, server, n_shards=n_shards)
        answers.append(engine.search("oven bread", k=8, explain=True).hits)
        assert any(signal.generated for hit in answers[-1] for signal in hit.signals)
    one, four = (
        [(h.hash, h.start, h.end, h.constellation, [(s.layer, s.score, s.generated) for s in h.signals]) for h in hits] for hits in answers
    )
    assert one == four
    assert [hit.evalue for hit in answers[0]] == pytest.approx([hit.evalue for hit in answers[1]], rel=1e-9)


def test_what_it_cost_stands_in_the_report_and_in_status(tmp_path, model, server):
    engine, source, outcome = built(tmp_path, model, server, {"tiny": Price(2.0, 10.0)})
    usage = outcome.spent["views"]
    assert usage.requests == len(server.requests) == 24
    assert usage.cost == pytest.approx((2.0 * usage.tokens_in + 10.0 * usage.tokens_out) / 1e6)
    assert f"views asked its endpoint: 24 requests, {usage.tokens_in:,} tokens read" in summary(outcome, "c")
    statistics = engine.generation().statistics("views")
    assert (statistics.tokens_in, statistics.tokens_out) == (usage.tokens_in, usage.tokens_out)
    (facts,) = [layer["facts"] for layer in of_generation(engine.generation())["layers"] if layer["name"] == "views"]
    tokens = {"tokens_in": usage.tokens_in, "tokens_out": usage.tokens_out}
    assert facts == {"generator": "tiny", **tokens, "cost": round(usage.cost, 6)}
    assert "sk-secret" not in json.dumps(engine.generation().root.model_dump(mode="json"))
    # An edit asks for what it changed, a rename for nothing.
    (source / "1.md").write_text("# weather\n\nA weather and a wheel.\n")
    (source / "2.md").rename(source / "moved.md")
    again = engine.index(source)
    assert again.spent["views"].requests == 1
    gone = engine.generation().statistics("views")
    assert gone.tokens_in != usage.tokens_in + again.spent["views"].tokens_in  # what the deleted text cost is gone with it


def test_an_index_run_that_lost_its_endpoint_publishes_nothing_and_goes_on_with_what_is_missing(tmp_path, model, server):
    server.faults += [Fault("status", 401, when=lambda body: len(server.requests) > 20)] * 100
    with pytest.raises(EndpointError, match="refuses the key"):
        built(tmp_path, model, server, n_shards=1)
    n_asked = len(server.requests)
    server.faults.clear()
    engine, _, outcome = built(tmp_path, model, server, n_shards=1)
    assert outcome.changed and 24 - 20 <= len(server.requests) - n_asked <= 24 - 16
    assert engine.search("oven", layers=["views"]).hits


def test_a_job_without_the_endpoint_is_told_before_anything_is_read(tmp_path, model):
    engine = Engine(tmp_path, layers=("bm25", f"views:vector_model={model},endpoint=default,model=tiny"))
    source = write_files(tmp_path / "src", files(3))
    with pytest.raises(EndpointError, match="Set SONDAGE_ENDPOINT_URL"):
        engine.index(source)
    assert not [name for name in engine.store.list() if "staging" in name]


def test_pushed_documents_get_written_views_afterwards(tmp_path, model, server):
    """What is pushed is found at once by what is cheap; coverage says that views are absent until they are written."""
    engine, _, _ = built(tmp_path, model, server)
    n_asked = len(server.requests)
    inside = corpus_store(engine.store, "c")
    inside.create(entry_name(1), dump([put("pushed.md", b"# sail\n\nThe sail and the quay.\n")], 0.0))
    applier = Applier(engine.store, "c", engine.cache, engine.resources)
    applier.apply()
    answer = engine.search("quay sail", keep_all=True)
    assert answer.hits[0].entries[0].path == "pushed.md"
    assert {c.state for c in answer.coverage if c.layer == "views"} == {"absent"}
    assert len(server.requests) == n_asked
    applier.settle()
    answer = engine.search("quay sail", keep_all=True)
    assert {c.state for c in answer.coverage} == {"ready"} and len(server.requests) == n_asked + 1


def test_the_index_is_served_where_there_is_no_endpoint(tmp_path, model, server):
    engine, _, _ = built(tmp_path, model, server)
    engine.resources = Resources()
    answer = engine.search("oven", layers=["views"], k=3)
    assert answer.complete and answer.hits[0].signals[0].generated.generator == "tiny"


def test_erasing_a_document_erases_what_was_written_about_it(tmp_path, model, server):
    """The model gave away the secret in its own words, which stand in no source."""
    server.answer = lambda body: json.dumps({"summary": "a disclosed summary" if "SECRET" in body["messages"][1]["content"] else "context"})
    engine, source, _ = built(tmp_path, model, server)
    (source / "secret.md").write_text("# SECRET\n\nThe password of the vault is swordfish, keep it.\n")
    engine.index(source)
    inside = corpus_store(engine.store, "c")

    def left():
        return [name for name in inside.list() if b"a disclosed summary" in inside.read(name)]

    assert any("encodings/written-" in name for name in left()) and any("segments/" in name for name in left())
    done = erase(engine.store, "c", targets(engine.store, "c", ["secret.md"]), tools(engine))
    assert done.complete
    assert any("the endpoint was sent their text" in note for note in done.notes)
    assert left() == []
    n_asked = len(server.requests)
    engine.resources = Resources()
    assert engine.search("oven", layers=["views"]).hits
    assert len(server.requests) == n_asked  # nothing was written anew
