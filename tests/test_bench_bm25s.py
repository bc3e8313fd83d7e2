"""bm25 is judged beside bm25s over the same terms, and ties are judged in no order."""

import itertools
import json
from functools import partial

import numpy as np
import pytest

from jobs import bench, bench_query
from jobs.bench_bm25s import asked_terms, judge, ndcg_of_ties, opened, ranked_by_bm25, ranked_by_bm25s, read_collection
from jobs.metrics import measure

needs_peers = pytest.mark.skipif(not bench_query.PEERS_PYTHON.exists(), reason="needs the peers' environment: bash infra/peers")

# Plain words of one language: no identifiers, whose lengths are counted otherwise. d3 and d4 say the same in another order.
DOCUMENTS = {
    "d1": ("spring tide", "The harbour waits for the spring tide and for the moon that brings it."),
    "d2": ("harbour lights", "Along the harbour the lights are lit before the tide comes in and the boats return from the sea."),
    "d3": ("", "The old boats are mended here with tar and rope."),
    "d4": ("", "Here the old boats are mended with rope and tar."),
    "d5": ("salt", "Where the sea is let in over the flats it leaves salt behind, which was worth more than the fish."),
}
QUERIES = {"q1": "when does the tide of the spring tides come", "q2": "who mended the boats with tar", "q3": "salt from the sea"}
QRELS = [("q1", "d1", 2), ("q1", "d2", 1), ("q2", "d4", 1), ("q3", "d5", 1)]


def written(folder, documents=DOCUMENTS, queries=QUERIES, qrels=QRELS):
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": name, "title": title, "text": text} for name, (title, text) in documents.items()]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": q, "text": text}) + "\n" for q, text in queries.items()))
    (folder / "qrels" / "test.tsv").write_text("".join(f"{q}\t{d}\t{grade}\n" for q, d, grade in qrels))
    return folder


@pytest.fixture(scope="module")
def harbour(tmp_path_factory):
    return written(tmp_path_factory.mktemp("collections") / "harbour")


@needs_peers
def test_bm25_and_bm25s_give_the_same_scores_to_plain_words_of_one_language(harbour):
    collection = read_collection(harbour)
    for dials in ({}, {"title_weight": 1}):
        space = opened(collection.documents, dials)
        assert space.statistics.languages == ("english",)
        for ours, theirs in zip(ranked_by_bm25(collection, space), ranked_by_bm25s(collection, space), strict=True):
            assert len(ours[0]) >= 2
            assert ours[0].tolist() == theirs[0].tolist()
            np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)


@needs_peers
def test_the_bench_tells_no_difference_where_there_is_none_and_what_ties_leave_open(harbour, tmp_path, capsys):
    out = tmp_path / "figures.json"
    assert bench.main(["bm25s", "--dataset", str(harbour), "--json", str(out)]) == 0
    found = json.loads(out.read_text())["bm25s"]["harbour"]
    assert (found["documents"], found["contents"], found["queries"]) == (5, 5, 3)
    alike = {"ndcg@10": 0.0, "p": 1.0, "better": 0, "worse": 0}
    assert found["differences"]["bm25 over bm25s"] == found["differences"]["bm25, titles once over bm25s, titles once"] == alike
    # d4 is first or second: 1, or 1 / log2(3).
    second = 1 / np.log2(3)
    assert found["ndcg@10"]["bm25"] == found["ndcg@10"]["bm25s"] == round((1 + (1 + second) / 2 + 1) / 3, 5)
    for name in ("bm25", "bm25s"):
        assert found["queries whose value ties leave open"][name] == {"n": 1, "worst": round((2 + second) / 3, 5), "best": 1.0}


def test_a_content_under_two_names_is_found_under_both(tmp_path):
    text = "Salt is won from the sea."
    collection = read_collection(written(tmp_path / "twice", {**DOCUMENTS, "d6": ("", text), "d7": ("", text)}))
    assert (len(collection.numbers), len(collection.documents)) == (7, 6)
    numbers, scores = ranked_by_bm25(collection, opened(collection.documents, {}))[list(QUERIES).index("q3")]
    of = dict(zip(numbers.tolist(), scores.tolist(), strict=True))
    assert of[collection.numbers["d6"]] == of[collection.numbers["d7"]] > 0


def test_a_question_is_asked_of_the_peer_as_often_as_it_says_a_word_without_what_the_corpus_lacks(harbour):
    collection = read_collection(harbour)
    space = opened(collection.documents, {})
    (tide,) = asked_terms("tide", space)
    assert asked_terms("tides, lighthouses and the tide", space).count(tide) == 2
    assert asked_terms("lighthouses", space) == []


def test_a_query_without_hits_counts_nothing(harbour):
    collection = read_collection(harbour)
    nothing = (np.zeros(0, np.int64), np.zeros(0))
    assert [values.tolist() for values in judge([nothing] * 3, collection)] == [[0.0] * 3] * 3


@pytest.mark.parametrize("seed", range(5))
def test_ties_are_judged_as_the_mean_over_all_their_orders(seed):
    rng = np.random.default_rng(seed)
    # Four groups of ties, of which one lies across the tenth place.
    scores = np.repeat([5.0, 4.0, 3.0, 2.0], [3, 5, 1, 3])
    gains = rng.integers(0, 3, len(scores)).astype(float)
    grades = np.array([*gains, 2.0])
    groups = [np.flatnonzero(scores == score) for score in (5.0, 4.0, 3.0, 2.0)]
    orders = [[*itertools.chain(*parts)] for parts in itertools.product(*map(partial(map, list), map(itertools.permutations, groups)))]
    values = [one(gains[order], grades) for order in orders]
    mixed = rng.permutation(len(scores))
    found = ndcg_of_ties(scores[mixed], gains[mixed], grades)
    np.testing.assert_allclose(found, [np.mean(values), min(values), max(values)], rtol=1e-12)


def one(gains, grades):
    """nDCG@10 of an order without ties, as evaluations measure it."""
    run = {"q": {str(i): float(-i) for i in range(len(gains))}}
    judged = {str(i): int(gain) for i, gain in enumerate(gains)} | {"lacking": int(grades[-1])}
    return measure(run, {"q": judged}, ["q"])["ndcg@10"][0]


def test_without_a_collection_or_the_peers_the_bench_says_what_to_do(harbour, monkeypatch, capsys):
    assert bench.main(["bm25s"]) == 2
    assert "--dataset DIR" in capsys.readouterr().err
    monkeypatch.setattr(bench_query, "PEERS_PYTHON", bench_query.ROOT / "absent" / "python")
    assert bench.main(["bm25s", "--dataset", str(harbour)]) == 2
    assert "bash infra/peers" in capsys.readouterr().err
