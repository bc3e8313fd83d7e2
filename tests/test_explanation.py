"""`explain`: what each space was asked and who made the question, what its evidence rests on, and tables that say so."""

import io
from dataclasses import replace

import numpy as np
import pytest
from engine import Engine, write_files
from rich.console import Console
from test_evidence import MOMENTS, N_DOCS, NULLS, candidates, exact, similar
from test_views import static_model

from jobs import explaining, render
from serve.evidence import fuse
from serve.explanation import origin, space_evidence
from serve.schema import SearchRequest
from shards.plan import SpaceQuery
from shards.routing import WORDS

WORDS_OF_TEXT = "river stone cloud weather bread oven engine wheel harbour sail tower bridge".split()


@pytest.mark.parametrize(
    ("fields", "query", "takes", "expected"),
    [
        ({"query": "cold rivers in May"}, {}, WORDS, ("rule", "the query looks like prose")),
        ({"query": "what is a cold river?"}, {}, WORDS, ("rule", "the query looks like prose (a question)")),
        ({"query": "gather"}, {}, frozenset({"identifier"}), ("rule", "the query looks like identifier (one word)")),
        ({"query": "cold rivers in May"}, {}, None, ("rule", "asked whatever the query looks like")),
        ({"query": "**/*.py"}, {}, WORDS, ("rule", "no layer takes what the query looks like, so all are asked")),
        ({"query": "rivers", "layers": ["s"]}, {}, WORDS, ("caller", "it was named")),
        ({"forms": {"s": {"glob": "*.py"}}}, {}, WORDS, ("caller", "its own form was given")),
        ({"query": "rivers", "layers": ["s"]}, {"model": "tiny"}, WORDS, ("model", "tiny read the text; it was named")),
        ({"forms": {"s": {"image": "x"}}}, {"model": "clip"}, None, ("model", "clip read the form; its own form was given")),
        ({"query": "rivers"}, {"model": "tiny", "bridge": "names -> inchikey"}, WORDS, ("bridge", "names -> inchikey")),
    ],
)
def test_the_last_translation_of_a_question_is_named_with_why_it_was_asked(fields, query, takes, expected):
    request = SearchRequest(corpus="c", **fields)
    assert origin(request, SpaceQuery("s", "asked", None, **query), takes) == expected


def test_what_evidence_rests_on_is_told_as_fusion_used_it():
    corpus = replace(NULLS, weights={"bm25": 1.0, "dense": 0.25}, cloze={"bm25": 0.9})
    spaces = [*similar("bm25", "dense"), exact("text", 9.0, n_units=77)]
    fused = fuse(candidates([[4.0, 3.0, 1.0]], [MOMENTS, MOMENTS, None]), spaces, corpus, N_DOCS)
    agreed = np.array([1.5, 0.0, np.nan])
    bm25, dense, text = (space_evidence(spaces[j], corpus, fused.moments[j], fused, j, agreed).model_dump() for j in range(3))
    assert bm25 == {
        "n_units": N_DOCS, "n": N_DOCS, "mean": 0.0, "sd": 1.0, "gate": 1.0, "learnt": 1.0, "cloze": 0.9, "certainty": 0.0, "weight": 1.0,
        "concordance": 1.5,
    }  # fmt: skip
    assert (dense["learnt"], dense["cloze"], dense["weight"], dense["concordance"]) == (0.25, None, 0.25, 0.0)
    assert (text["n_units"], text["n"], text["mean"], text["sd"], text["concordance"]) == (77, None, None, None, None)


# --- whole engine ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """The same 30 documents in one shard and in four."""
    folder = tmp_path_factory.mktemp("explained")
    model = static_model(folder / "static")
    words = WORDS_OF_TEXT
    text = {f"{i}.md": f"A {words[i % 12]} and a {words[(5 * i + 1) % 12]}, number {i}.\n" for i in range(30)}
    source, made = write_files(folder / "src", text), {}
    for n in (1, 4):
        made[n] = Engine(folder / str(n), layers=("names", "bm25", f"static:model={model}", f"views:vector_model={model}"))
        made[n].index(source, n_shards=n, calibrate=False)
    return made


@pytest.fixture(scope="module")
def answers(engines):
    asked = [
        {"query": "river weather", "explain": True},
        {"query": "river weather", "layers": ["bm25", "static"], "explain": True},
        {"forms": {"names": {"glob": "*.md"}}, "explain": True},
        {"query": "river weather"},
    ]
    return {n: engine.search_many([{"k": 8, "keep_all": True} | request for request in asked]) for n, engine in engines.items()}


def test_each_space_says_who_asked_it_what(answers):
    auto, named, form, plain = answers[1]
    told = {info.name: (info.asked_by, info.because.rpartition("; ")[2]) for info in auto.layers if info.asked is not None}
    assert told["bm25"] == ("rule", "the query looks like prose")
    assert told["static"] == ("model", "the query looks like prose")
    assert next(info.because for info in auto.layers if info.name == "static").endswith("static read the text; the query looks like prose")
    told = {info.name: (info.asked_by, info.because) for info in named.layers}
    assert told["bm25"] == ("caller", "it was named") and told["static"][0] == "model" and told["names"] == (None, "")
    assert {i.name: (i.asked_by, i.because) for i in form.layers if i.asked} == {"names": ("caller", "its own form was given")}
    assert all(info.asked_by is None and info.evidence is None and not info.because for info in plain.layers)


def test_shares_add_up_to_the_fused_evidence_and_ranks_are_those_of_the_lists(answers):
    for hit in answers[1][0].hits:
        assert sum(signal.share for signal in hit.signals) == pytest.approx(hit.fused, abs=1e-9)
        assert all(signal.share == pytest.approx(signal.weight * signal.surprise) for signal in hit.signals)
        assert hit.ranks and set(hit.ranks) <= {signal.layer for signal in hit.signals}
    best = min(answers[1][0].hits, key=lambda hit: hit.ranks.get("bm25", 99))
    assert best.ranks["bm25"] == 1
    assert all(signal.share is None and signal.z is None for hit in answers[1][3].hits for signal in hit.signals)


def test_an_explanation_does_not_depend_on_placement(answers):
    for one, four in zip(answers[1], answers[4], strict=True):
        told, elsewhere = ([(i.name, i.asked, i.asked_by, i.because) for i in answer.layers] for answer in (one, four))
        assert told == elsewhere
        for here, there in zip(one.layers, four.layers, strict=True):
            mine, theirs = (info.evidence and info.evidence.model_dump() for info in (here, there))
            assert mine == pytest.approx(theirs, abs=1e-9)
        assert [hit.ranks for hit in one.hits] == [hit.ranks for hit in four.hits]


def test_spaces_that_find_the_same_agree_more_than_by_lot(answers):
    auto = {info.name: info.evidence for info in answers[1][0].layers}
    assert auto["bm25"].concordance > 0 and auto["static"].concordance > 0
    assert auto["bm25"].n == auto["bm25"].n_units == 30 and auto["bm25"].sd > 0


# --- tables ------------------------------------------------------------------------------------------------------------------


def printed(answer, **options) -> list[str]:
    out = Console(file=io.StringIO(), width=400, color_system=None, highlight=False, soft_wrap=True)
    render.answer(out, answer, render.Places(), **options)
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


def test_the_table_of_a_hit_has_a_row_for_each_space_that_was_asked(answers):
    answer = answers[1][0]
    lines = printed(answer, explain=True)
    head = next(i for i, line in enumerate(lines) if line.split()[:5] == ["layer", "score", "rank", "z", "surprise"])
    hit = answer.hits[0]
    asked = [info for info in answer.layers if info.asked is not None]
    rows = {line.split()[0]: line.split() for line in lines[head + 1 : head + 1 + len(asked)]}
    assert set(rows) == {info.name for info in asked}
    loudest = hit.signals[0]
    row = [cell for cell in rows[loudest.layer] if cell != "(derived)"]
    assert row[1:3] == [f"{loudest.score:.4g}", str(hit.ranks[loudest.layer])]
    assert row[3:5] == [f"{loudest.z:.1f}", f"{loudest.surprise:.1f}"]
    known = next(info.evidence for info in asked if info.name == loudest.layer)
    assert row[5:8] == [f"{known.gate:.2f}", f"{known.concordance:.2f}", f"{loudest.weight:.2f}"]
    assert row[8:11] == [f"{loudest.share:.1f}", f"{loudest.share / hit.fused:.0%}", render.evalue(loudest.evalue).removeprefix("E=")]
    assert rows["views"][1] == "(derived)"
    total = f"bytes {hit.start}-{hit.end}, fused {hit.fused:.1f} nats, {render.evalue(hit.evalue)}"
    assert lines[head + 1 + len(asked)] == f"    {hit.hash} {total}"


def test_the_tables_of_spaces_say_what_was_asked_by_whom_and_what_it_rests_on(answers):
    text = "\n".join(printed(answers[1][0], explain=True))
    assert "read as: prose\n" in text
    assert "bm25    rule" in text and "static  model" in text and "static read the text; the query looks like prose" in text
    assert "layer   gate  learnt  cloze  certain  weight  concordance  scores" in text
    assert "gate" not in "\n".join(printed(answers[1][0]))


def test_no_match_is_told_from_not_looked_at(answers):
    answer = answers[1][0]
    hit = answer.hits[0].model_copy(update={"signals": answer.hits[0].signals[:1]})
    out = Console(file=io.StringIO(), width=200, color_system=None)
    silent = next(i.name for i in answer.layers if i.asked is not None and i.name != hit.signals[0].layer and i.origin == "source")
    explaining.hit(out, hit, answer.layers, {silent})
    lines = {line.split()[0]: line for line in out.file.getvalue().splitlines() if line.strip()}
    assert "not looked at" in lines[silent]
    assert sum("no match" in line for line in lines.values()) == sum(i.asked is not None for i in answer.layers) - 2


def test_a_hit_that_only_derived_texts_point_to_is_called_a_hypothesis(answers):
    hit = answers[1][0].hits[0].model_copy(update={"constellation": "hypothesis"})
    lines = printed(answers[1][0].model_copy(update={"hits": [hit]}))
    assert "  hypothesis  [" in lines[0]
    assert any("hypothesis: only generated texts point here" in line for line in lines)
    assert not any("hypothesis" in line for line in printed(answers[1][1]))
