"""Experiments on a real index: junk in a copy of it, wrong lists, an expert alone, shards by topic, what a query costs."""

import json

import numpy as np
import pytest
from test_encoders import save_static, word_pieces

from jobs import evaluate, questions, stress
from jobs.datasets import Judged
from jobs.laboratory import Laboratory, copied, opened, shards_of, with_spaces
from jobs.progress import Progress
from jobs.settings import Settings
from jobs.splits import document_vectors, measure_splits, rbo, topics
from shards.layers.contract import Request

TOPICS = {
    "tide": "The tide rises twice a day because the moon pulls the sea",
    "bread": "Bread rises when yeast turns sugar into gas, and sourdough needs no yeast from a shop",
    "harbour": "The harbour master closes the gate of the dock at low water",
    "loom": "A loom holds the warp threads under tension while the weft is woven through",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A collection of 48 documents and 12 judged queries, and a store where it is indexed with two spaces."""
    top = tmp_path_factory.mktemp("experiments")
    folder = top / "pages"
    (folder / "qrels").mkdir(parents=True)
    documents = [(f"{t}{i}", f"{text}, as page {i} of {i * 7 + 3} tells.") for t, text in TOPICS.items() for i in range(12)]
    queries = {f"{t}{i}": f"{' '.join(TOPICS[t].split()[i % 3 : i % 3 + 4])} page {i}" for t in TOPICS for i in (2, 5, 9)}
    (folder / "corpus.jsonl").write_text("".join(json.dumps({"_id": d, "text": text}) + "\n" for d, text in documents))
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": q, "text": text}) + "\n" for q, text in queries.items()))
    (folder / "qrels" / "test.tsv").write_text("q\td\tscore\n" + "".join(f"{q}\t{q}\t1\n" for q in queries))
    return top


@pytest.fixture(scope="module")
def settings(place):
    return Settings(store=str(place / "stores" / "pages"), cache=place / "cache")


@pytest.fixture(scope="module")
def layers(place):
    return ["--layer", "bm25", "--layer", f"static:model={save_static(place / 'model', word_pieces())}"]


@pytest.fixture(scope="module")
def found(place, settings, layers):
    """All further questions of the command, as its report tells them."""
    other = place / "others"
    other.mkdir()
    (other / "queries.jsonl").write_text('{"_id": "1", "text": "who won the cup"}\n{"_id": "2", "text": "symptoms of a fever"}\n')
    words = ["--dataset", str(place / "pages"), *layers, "--store", settings.store, "--foreign", str(other), "--calibration", "10"]
    words += ["--answerability", "--predictors", "--stress", "--splits", "1,3", "--costs", "--couplings", "evidence,rrf"]
    args = evaluate.parser().parse_args(words)
    with pytest.MonkeyPatch.context() as patch:  # fitting null models takes most of the time
        patch.setattr(stress, "SETS", {name: stress.SETS[name] for name in ("all three", "two colluding")})
        return evaluate.evaluate(args, settings, Progress())


@pytest.fixture(scope="module")
def judged(place) -> Judged:
    return evaluate.datasets.read_beir(place / "pages")


def section(found, key):
    return next(section for section in found.sections if section.key == key)


def test_every_question_has_its_section(found):
    assert [s.key for s in found.sections] == ["calibration", "answerability", "predictors", "stress", "splits", "costs"]
    assert section(found, "calibration").figures["shuffled words"]["queries"] == 10
    assert section(found, "answerability").figures["queries"] == 12
    assert section(found, "predictors").figures["WIG of bm25"].keys() == {"Kendall", "Pearson", "Spearman"}


def test_junk_costs_evidence_next_to_nothing_and_a_key_alone_keeps_what_it_has(found):
    figures = section(found, "stress").figures
    assert set(figures["junk"]) == {"all three", "two colluding"}
    assert figures["clean"]["evidence"] == pytest.approx(next(r for r in found.runs if r.name == "evidence").mean("ndcg@10"))
    assert all(change["rrf"] < -0.01 and change["evidence"] > change["rrf"] for change in figures["junk"].values())
    assert figures["flaky"]["evidence"] < figures["clean"]["evidence"]
    expert = figures["lone expert"]
    assert expert["alone"] == expert["kept"]["evidence"] == 1.0 and expert["queries"] > 0


def test_shards_by_topic_give_the_same_first_hundred(found):
    for n, got in section(found, "splits").figures.items():
        assert got["identical"] == got["queries"] == 12 and got["rbo"] == pytest.approx(1.0) and got["ndcg_difference"] == 0.0
        assert len(got["documents"]) == int(n) and sum(got["documents"]) == 48
    assert section(found, "splits").figures["3"]["log_e_difference"] < 1e-9


def test_costs_are_told_by_coupling_and_number_of_spaces(found):
    costs = section(found, "costs").figures
    asked = [(cost["coupling"], cost["spaces"]) for cost in costs["costs"]]
    assert asked == [("evidence", ["bm25"]), ("rrf", ["bm25"]), ("evidence", ["bm25", "static"]), ("rrf", ["bm25", "static"])]
    assert all(cost["ms fuse"] > 0 for cost in costs["costs"]) and costs["costs"][0]["bytes"] < costs["costs"][2]["bytes"]
    assert set(costs["null_state_bytes"]) == {"bm25", "static"}


def test_the_store_is_as_it_was_and_no_copy_is_left(place, found):
    assert sorted(path.name for path in place.iterdir()) == ["cache", "model", "others", "pages", "stores"]
    assert [path.name for path in (place / "stores").iterdir()] == ["pages"]


def test_a_laboratory_answers_as_the_engine_does(settings, judged, found):
    import sondage

    fields = {"k": 20, "highlight": False, "keep_all": True, "freshness": "trust"}  # a laboratory has no files
    with (
        sondage.Engine(settings.store, cache=settings.cache) as engine,
        opened(settings, "pages") as (_, _, generation),
        Laboratory(generation, shards_of(generation), settings.resources()) as laboratory,
    ):
        for text in judged.queries.values():
            expected = engine.search(text, "pages", **fields)
            for _ in range(2):  # the second time nothing is searched for
                got = laboratory.search(text, **fields)
                assert got.hits == expected.hits and got.verdict == expected.verdict
            one = laboratory.search(text, layers=["bm25"], **fields)
            assert one.hits == engine.search(text, "pages", layers=["bm25"], **fields).hits
            inside = laboratory.search(text, where={"path": {"glob": "tide*"}}, **fields)
            assert inside.hits and all(hit.entries[0].path.startswith("tide") for hit in inside.hits)


def test_wrong_questions_are_as_many_as_asked_for_and_never_the_right_one(settings, judged):
    with opened(settings, "pages") as (_, _, generation):

        def asked(rate):
            wrong = stress.asked_wrong(generation, judged, rate)
            spaces = [(name, wrong.spaces[name].layer) for name in sorted(wrong.spaces)]
            return [
                (name, text, layer.prepare(Request(text), generation.statistics(name)).asked)
                for name, layer in spaces
                for text in judged.queries.values()
            ]

        right = [question for *_, question in asked(0.0)]
        every = [question for *_, question in asked(1.0)]
        some = [question for *_, question in asked(0.4)]
    assert all(a != b for a, b in zip(right, every, strict=True))
    assert 3 <= sum(a != b for a, b in zip(right, some, strict=True)) <= 16 and some != right
    with opened(settings, "pages") as (_, _, generation):
        kept = stress.asked_wrong(generation, judged, 1.0, but=["bm25"])
        assert kept.spaces["bm25"].layer is generation.spaces["bm25"].layer


def test_rank_biased_overlap_by_hand():
    assert rbo("abc", "abc") == pytest.approx(1.0) and rbo("abc", "xyz") == 0.0 and rbo("", "") == 1.0
    # agreements at depths 1, 2, 3: 0, 1, 1
    assert rbo("abc", "bac", 0.5) == pytest.approx(1.0 * 0.5**3 + 0.5 / 0.5 * (0.5**2 + 0.5**3))


def test_topics_are_found_and_are_the_same_in_every_run(settings, found):
    rng = np.random.default_rng(3)
    centres = np.eye(4) * 10
    vectors = np.concatenate([centre + rng.normal(0, 0.1, (9, 4)) for centre in centres])
    groups = topics(vectors, 4)
    assert [len(set(groups[i : i + 9])) for i in range(0, 36, 9)] == [1, 1, 1, 1] and len(set(groups)) == 4
    assert (groups == topics(vectors, 4)).all()
    assert set(topics(np.zeros((5, 2)), 3)) == {0}  # all the same
    with copied(settings, "pages") as mine, opened(mine, "pages") as (_, _, generation):
        hashes, means = document_vectors(generation)
        assert hashes.shape == (48, 20) and means.shape[0] == 48
        with pytest.raises(Exception, match="index a space that has such"):
            document_vectors(with_spaces(generation, ["bm25"]))


@pytest.mark.parametrize(("words", "message"), [
    (["--dataset", "x", "--splits", "1,none"], "not a list of shard counts"),
    (["--dataset", "x", "--calibration", "0"], "--calibration N takes N >= 1"),
    (["--dataset", "x", "--http", "http://x", "--stress"], "--stress looks into an index"),
    (["--qrels", "x", "--answerability"], "asked of a corpus"),
    (["--corpus", "x", "--calibration"], "give --dataset or --docstrings"),
])  # fmt: skip
def test_what_cannot_be_asked_is_said_before_any_work(words, message):
    with pytest.raises(evaluate.BadSpec, match=message):
        questions.check(evaluate.parser().parse_args(words))


def test_splits_of_a_store_that_is_no_folder_are_refused(judged, tmp_path):
    with pytest.raises(evaluate.BadSpec, match="must lie in a folder"):
        measure_splits(Settings(store="memory://x", cache=tmp_path), "pages", judged, [1], Progress())


def test_a_suite_asks_each_collection_with_the_others_as_foreign(place, settings, layers, found):
    args = evaluate.parser().parse_args(["--suite", str(place / "pages"), str(place / "pages"), "--dataset", "x"])
    with pytest.raises(evaluate.BadSpec, match="--suite names its collections itself"):
        evaluate.evaluate_suite(args, settings, Progress())
    words = ["--suite", str(place / "pages"), *layers, "--couplings", "evidence,rrf", "--store", str(place / "stores"), "--limit", "2"]
    suite = evaluate.evaluate_suite(evaluate.parser().parse_args(words), settings, Progress())
    assert suite.sections[0].figures["evidence"]["collections"].keys() == {"pages"}
    assert all(run.run is not None and len(run.run) == 2 for run in suite.evaluations[0].runs)
