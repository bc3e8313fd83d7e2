"""Weights from judgements: the measure, the fit, and an honest word on what it gains."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from engine import write_files

from jobs import metrics, tune
from jobs.tuning import Judgements, bootstrap_interval, ideal_dcg, learnt, ndcg, with_weights
from jobs.tuning import tune as tune_weights
from shards.weights import MIN_CHOICES


def one_relevant(surprises, relevant):
    """Queries with one relevant document each: surprises (q, d, s); relevant: its row."""
    surprises = np.array(surprises, np.float64)
    gains = np.zeros(surprises.shape[:2])
    gains[np.arange(len(gains)), relevant] = 1
    return Judgements(surprises, surprises.sum(axis=2), gains, np.ones(len(gains)))


def made(seed, signal, q=80, d=60):
    """Chance is exponential; the relevant document is `signal` nats louder on average in each space."""
    rng = np.random.default_rng(seed)
    surprises = rng.exponential(1, (q, d, len(signal)))
    relevant = rng.integers(0, d, q)
    surprises[np.arange(q), relevant] += rng.exponential(1, (q, len(signal))) * signal
    return one_relevant(surprises, relevant)


@pytest.mark.parametrize("seed", range(6))
def test_ndcg_is_that_of_the_evaluator_ties_and_empty_places_included(seed):
    rng = np.random.default_rng(seed)
    q, d = 12, int(rng.integers(1, 40))
    scores = rng.integers(0, 6, (q, d)) / 2.0  # many ties, many zeros
    grades = rng.integers(0, 3, (q, d)) * (rng.random((q, d)) < 0.3)
    ideal = np.array([ideal_dcg(row.tolist()) for row in grades])
    names = [f"{d - i:03}" for i in range(d)]  # trec_eval breaks ties by id descending: the first row first
    run = {str(i): {n: float(s) for n, s in zip(names, scores[i], strict=True) if s > 0} for i in range(q)}
    qrels = {str(i): {n: int(g) for n, g in zip(names, grades[i], strict=True)} for i in range(q)}
    expected = metrics.measure(run, qrels, [str(i) for i in range(q)])["ndcg@10"]
    np.testing.assert_allclose(ndcg(scores, grades.astype(float), ideal), expected, atol=1e-12)


def test_the_best_weights_are_found_where_they_are_known():
    """Chance is Exp(1) and a relevant document's surprise Exp(1 / b): then the log likelihood ratio is (1 - 1 / b) nats a nat of surprise
    and no other sum ranks better (Neyman & Pearson 1933). b = 5, 2, 1: weights in the ratio .8 : .5 : 0."""
    rng = np.random.default_rng(4)
    surprises = rng.exponential(1, (600, 50, 3))
    surprises[:, 0] = rng.exponential([5.0, 2.0, 1.0], (600, 3))
    weights = learnt(one_relevant(surprises, [0] * 600), np.ones(3))
    assert weights == pytest.approx([1.0, 0.625, 0.0], abs=0.1)


def test_noise_gets_next_to_nothing_and_the_gain_is_told():
    found = tune_weights(made(1, np.array([4.0, 3.0, 0.0, 0.0]), q=200), np.ones(4), folds=4)
    assert found.weights.max() == 1.0 and (found.weights[2:] <= 0.3).all() and (found.weights[:2] >= 0.5).all()
    assert found.helps and found.interval[0] > 0 and found.p < 0.05
    assert found.own.mean() < found.cross_validated.mean()
    assert found.gain == pytest.approx(found.cross_validated.mean() - found.own.mean())
    assert tune.conclusion(found).startswith("gain: +0.")


def test_where_the_corpus_knows_best_there_is_no_gain_and_that_is_said():
    found = tune_weights(made(2, np.array([3.0, 3.0]), q=40), np.ones(2), folds=5)
    assert not found.helps and found.interval[0] <= 0 <= found.interval[1]
    assert tune.conclusion(found).startswith("no gain: ") and tune.conclusion(found).endswith("Leave the weights to the corpus")


def test_from_too_few_relevant_documents_nothing_is_learnt():
    judged = made(3, np.array([4.0, 0.0]), q=MIN_CHOICES - 1)
    assert learnt(judged, np.array([1.0, 0.4])).tolist() == [1.0, 0.4]
    found = tune_weights(judged, np.array([1.0, 1.0]), folds=3)
    assert (found.gain, found.interval, found.p) == (0.0, (0.0, 0.0), 1.0)


def test_a_query_is_never_measured_with_weights_that_have_seen_it():
    """Each fold's weights are those learnt from the other folds alone, computed here for one query at a time."""
    judged, own = made(5, np.array([2.0, 0.5]), q=24), np.ones(2)
    found = tune_weights(judged, own, folds=24)
    alone = [with_weights(judged.of(np.array([i])), learnt(judged.of(np.delete(np.arange(24), i)), own))[0] for i in range(24)]
    assert found.cross_validated.tolist() == alone
    assert len(found.of_folds) == 24


def test_the_interval_covers_the_mean_of_normal_values_as_often_as_it_says():
    rng = np.random.default_rng(3)
    covered = [low <= 0.0 <= high for low, high in (bootstrap_interval(rng.normal(0, 1, 60), i, n=250) for i in range(200))]
    assert 0.90 <= np.mean(covered) <= 0.98
    assert bootstrap_interval(np.full(5, 0.25)) == (0.25, 0.25)


# --- the command -------------------------------------------------------------------------------------------------------------

WORDS = "river stone cloud weather bread oven engine wheel harbour sail tower bridge garden window letter market".split()


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """24 documents and 16 questions about them, in a store with names and bm25."""
    folder = tmp_path_factory.mktemp("tune")
    files = {
        f"{i}.md": f"The {WORDS[i % 16]} and the {WORDS[(3 * i + 1) % 16]}, seen from number {i}, with a {WORDS[(5 * i + 2) % 16]}." * 2
        for i in range(24)
    }
    source = write_files(folder / "src", files)
    from jobs import index
    from jobs.progress import Progress
    from jobs.settings import Settings

    store = str(folder / "store")
    line = ["--corpus", "notes", "--source", str(source), "--store", store, "--local", "--layers", "names,bm25"]
    with (folder / "progress").open("w") as out:
        outcome = index.run(index.parser().parse_args(line), Settings.load(store=store), Progress(out))
    assert not outcome.failed
    write_files(folder, {
        "queries.tsv": "".join(f"q{i}\tthe {WORDS[i]} with a {WORDS[(5 * i + 2) % 16]}\n" for i in range(16)),
        "qrels.tsv": "".join(f"q{i}\t{i}.md\t1\n" for i in range(16)),
    })  # fmt: skip
    return folder


def arguments(collection, *more):
    files = ["--queries", str(collection / "queries.tsv"), "--qrels", str(collection / "qrels.tsv")]
    return [*files, "--store", str(collection / "store"), "--folds", "4", *more]


def test_the_command_writes_weights_that_a_search_takes(collection, capsys, monkeypatch):
    import sondage

    learn, learnt = tune.run, []
    monkeypatch.setattr(tune, "run", lambda *given: learnt.append(learn(*given)) or learnt[0])
    code = tune.run_tune(arguments(collection, "--out", str(collection / "w.json")))
    out = capsys.readouterr().out
    monkeypatch.setattr(tune, "run", lambda *given: learnt[0])  # not once more
    assert tune.run_tune(arguments(collection, "--json")) == code
    assert json.loads(capsys.readouterr().out) == json.loads((collection / "w.json").read_text())
    written = json.loads((collection / "w.json").read_text())
    assert code == (0 if written["helps"] else 1)
    assert written["corpus"] == "notes" and written["queries"] == 16 and written["folds"] == 4 and "bm25" in written["weights"]
    assert set(written["gain"]) == {"mean", "95 %", "p"}
    assert set(written["ndcg@10"]) == {"own", "tuned, on its own queries", "cross-validated"}
    assert "nDCG@10 with the corpus's own weights" in out and ("gain: " in out or "they lose: " in out)
    with sondage.Engine(str(collection / "store")) as engine:
        answer = engine.search("the river with a cloud", "notes", weights=written["weights"], k=30, explain=True, keep_all=True)
        tuned_sum = [sum(written["weights"].get(s.layer, 1.0) * s.surprise for s in hit.signals) for hit in answer.hits]
        assert tuned_sum == sorted(tuned_sum, reverse=True) and len(tuned_sum) > 3


def test_what_is_refitted_offline_is_what_a_search_ranks_by(collection):
    """The baseline's nDCG@10 is that of plain searches."""
    import sondage
    from jobs import datasets
    from jobs.progress import Progress
    from jobs.settings import Settings

    args = tune.parser().parse_args(arguments(collection))
    with (collection / "more").open("w") as out:
        _, _, found = tune.run(args, Settings.load(store=args.store), Progress(out))
    judged = datasets.judged("j", datasets.read_queries(args.queries), datasets.read_qrels(args.qrels), args.qrels)
    run = {}
    with sondage.Engine(str(collection / "store")) as engine:
        for query, text in judged.queries.items():
            hits = engine.search(text, "notes", k=100, keep_all=True).hits
            run[query] = {e.path: -float(rank) for rank, hit in enumerate(hits) for e in hit.entries}
    expected = metrics.measure(run, judged.qrels, list(judged.queries))["ndcg@10"]
    np.testing.assert_allclose(found.own, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"--folds": "1"}, "--folds must be at least 2"),
        ({"--limit": "5"}, "5 judged queries tell too little of others; give at least 10."),
        ({"--qrels": "other.tsv"}, "None of the documents judged in other was found. Are their ids the paths of this corpus?"),
        ({"--corpus": "nope"}, "No corpus 'nope'"),
    ],
)
def test_what_cannot_be_learnt_from_is_told_with_the_remedy(collection, capsys, change, says):
    (collection / "other.tsv").write_text("".join(f"q{i}\tnowhere-{i}\t1\n" for i in range(16)))
    line = arguments(collection)
    for option, value in change.items():
        line += [option, str(collection / value) if option == "--qrels" else value]
    assert tune.run_tune(line) == 2
    assert says in capsys.readouterr().err


def test_neither_queries_nor_a_folder_is_told(capsys):
    assert tune.run_tune(["--store", "/nowhere"]) == 2
    assert "Nothing to learn from. Give --dataset DIR, or --queries FILE and --qrels FILE." in capsys.readouterr().err


def test_a_document_in_two_places_counts_at_both_and_ties_fall_by_hash():
    def hit(key, *paths):
        return SimpleNamespace(hash=key, entries=[SimpleNamespace(source="main", path=path) for path in paths])

    rows = tune._rows([hit("b", "x.md", "y.md"), hit("a", "z.md")], {"y.md": 2, "z.md": -1})
    assert [(found.hash, grade) for found, grade in rows] == [("a", 0), ("b", 0), ("b", 2)]
