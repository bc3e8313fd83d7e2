"""Couplings: the ranking that a request chooses, while evidence and verdict stay what they are."""

import json
import threading
from dataclasses import replace

import numpy as np
import pytest
import uvicorn
from engine import Engine, write_files
from scripted_coordinator import eventually

import sondage
from cluster.settings import HostSettings
from jobs import cli
from serve.classics import CLASSICS
from serve.couplings import couple, located
from serve.edge import Coupling, CouplingName, spelt
from serve.evidence import SpaceFacts, fuse
from serve.http import create_app
from serve.local import local_coordinator
from serve.problems import InvalidRequest, validated
from serve.schema import SearchAnswer, SearchRequest
from serve.selection import agreement_p, silent_spaces
from shards.candidates import merge, nothing
from shards.corpus_nulls import CorpusNulls
from shards.errors import BadQuery
from shards.nulls import ProbeRank, ProbeScan, fit_space, median_sd
from shards.types import Candidates, Moments

NAMES = CouplingName.__args__
VIEWS = [name for name in NAMES if name not in ("evidence", "joint")]  # couplings that give another order
N_DOCS = 400
MOMENTS = Moments(N_DOCS, 0.0, float(N_DOCS))  # z is the score


# --- by hand -----------------------------------------------------------------------------------------------------------------


def gaussian_null(seed: int):
    """Of a space whose 400 scores are normal, and 8 sd for what a probe is about."""
    rng, rows = np.random.default_rng(seed), np.arange(N_DOCS, dtype=np.int32)
    scores = rng.normal(0, 1, (64, N_DOCS))
    scores[np.arange(64), np.arange(64)] += 8
    scans = [ProbeScan.of(scores[i], rows, i) for i in range(64)]
    ranks = [ProbeRank.of(scores[i], rows, i, scans[i], median_sd(scans)) for i in range(64)]
    return fit_space(scans, ranks)


def nulls(**weights: float) -> CorpusNulls:
    """Spaces with a fitted null model and what the corpus taught them to count."""
    return CorpusNulls(1, {name: gaussian_null(seed) for seed, name in enumerate(weights)}, None, N_DOCS, weights)


NULLS = nulls(bm25=1.0, dense=0.5)


def found_by(scores, listed=None) -> Candidates:
    """Candidates with these scores, (n, s); hashes ascend with rows."""
    scores = np.array(scores, np.float64)
    n, s = scores.shape
    return Candidates(
        hashes=np.array([[row] * 20 for row in range(n)], np.uint8),
        generated=np.isfinite(scores) if listed is None else np.array(listed, bool),
        scores=scores,
        starts=100 * np.arange(n)[:, None] + np.arange(s),
        ends=100 * np.arange(n)[:, None] + np.arange(s) + 5,
        moments=(MOMENTS,) * s,
        n_matched=np.zeros(s, np.int64),
        status=(),
    )


def similar(*names: str) -> list[SpaceFacts]:
    return [SpaceFacts(name, "moments", N_DOCS) for name in names]


def asked(coupling="evidence", **fields) -> SearchRequest:
    return validated({"corpus": "c", "query": "q", "coupling": coupling, **fields})


def coupled(found: Candidates, spaces=None, coupling="evidence", known=NULLS, explicit=False, **fields):
    spaces = spaces or similar("bm25", "dense")
    fused = fuse(found, spaces, known, N_DOCS)
    return couple(asked(coupling, **fields), spaces, fused, found, explicit=explicit), fused


FOUND = found_by([[4.0, 0.5], [3.0, 3.0], [-np.inf, 3.5], [0.5, 1.0]], [[1, 0], [1, 1], [0, 1], [1, 1]])


def test_evidence_is_the_ranking_of_fused_evidence():
    found, fused = coupled(FOUND)
    assert found.ranking.tolist() == fused.order[fused.fused[fused.order] > 0].tolist()
    assert found.values is None and found.weights.tolist() == fused.weights.tolist() == [1.0, 0.5]


def test_weights_replace_what_the_corpus_taught_in_the_order_alone():
    found, fused = coupled(FOUND, weights={"dense": 2})
    plain, same = coupled(FOUND)
    by_hand = fused.surprises[:, 0] + 2 * fused.surprises[:, 1]
    assert found.values.tolist() == by_hand.tolist()
    assert found.ranking.tolist() == np.argsort(-by_hand, kind="stable").tolist() != plain.ranking.tolist()
    assert found.weights.tolist() == [1.0, 2.0]
    assert fused.fused.tolist() == same.fused.tolist() and fused.weights.tolist() == [1.0, 0.5]


def test_weights_as_the_corpus_taught_them_change_nothing():
    found, fused = coupled(FOUND, weights={"bm25": 1, "dense": 0.5})
    assert found.values.tolist() == fused.fused.tolist()
    assert found.ranking.tolist() == coupled(FOUND)[0].ranking.tolist()


def test_a_classic_ranks_what_is_on_a_list():
    found, fused = coupled(FOUND, coupling="rrf")
    assert found.lists.ranks.tolist() == [[1, 0], [2, 2], [0, 1], [3, 3]]
    assert found.values.tolist() == [1 / 61, 1 / 62 + 1 / 62, 1 / 61, 1 / 63 + 1 / 63]
    assert found.ranking.tolist() == [1, 3, 0, 2]
    assert found.weights.tolist() == [1.0, 1.0] and fused.weights.tolist() == [1.0, 0.5]


def test_the_rank_constant_of_rrf_is_the_caller_s():
    assert coupled(FOUND, coupling="rrf:k=0")[0].values.tolist() == [1, 1 / 2 + 1 / 2, 1, 1 / 3 + 1 / 3]


def test_a_list_of_weight_0_brings_no_hits():
    found, _ = coupled(FOUND, coupling="minmax", weights={"dense": 0})
    assert found.ranking.tolist() == [0, 1, 3]  # the third is on no other list


def test_without_fusion_lists_stand_side_by_side_and_pages_are_depths():
    """bm25 has 0, 1, 3 and dense 2, 1, 3: first what is first on one of them."""
    found, _ = coupled(FOUND, coupling="none")
    assert found.ranking.tolist() == [0, 2, 1, 3] and found.values is None
    assert found.depths.tolist() == [1, 1, 2, 3]
    assert found.page(found.ranking, 0, 1) == ([0, 2], True)
    assert found.page(found.ranking, 1, 1) == ([1], True)
    assert found.page(found.ranking, 2, 9) == ([3], False)
    assert coupled(FOUND, coupling="none", weights={"bm25": 0})[0].ranking.tolist() == [2, 1, 3]


@pytest.mark.parametrize("name", NAMES)
def test_the_order_in_which_spaces_are_asked_changes_no_bit(name):
    rng = np.random.default_rng(3)
    scores = np.where(rng.random((40, 4)) < 0.7, rng.normal(1, 2, (40, 4)), -np.inf)
    spaces = similar("bm25", "dense", "late", "static")
    known = nulls(bm25=1.0, dense=0.3, late=0.7, static=0.1)
    weights = {"late": 0.3, "static": 1.7}
    one, _ = coupled(found_by(scores), spaces, name, known, weights=weights)
    turned = [2, 0, 3, 1]
    other, _ = coupled(found_by(scores[:, turned]), [spaces[s] for s in turned], name, known, weights=weights)
    assert other.ranking.tolist() == one.ranking.tolist()
    assert (other.values is None) == (one.values is None) and (one.values is None or other.values.tolist() == one.values.tolist())
    assert other.silent == one.silent


@pytest.mark.parametrize("name", NAMES)
def test_the_number_of_shards_changes_no_bit(name):
    """16 documents of each list, of which a shard sends its own best 16."""
    rng = np.random.default_rng(4)
    scores = np.where(rng.random((90, 3)) < 0.7, rng.normal(1, 2, (90, 3)).round(1), -np.inf)
    whole = found_by(scores)
    spaces, known = similar("bm25", "dense", "late"), nulls(bm25=1.0, dense=0.3, late=0.7)
    views = []
    for n_shards in (1, 4, 16):
        shards = np.arange(90) * n_shards // 90
        parts = [merge([cut(whole, shards == shard)], 16) for shard in range(n_shards)]
        views.append(coupled(merge(parts, 16), spaces, name, known, weights={"late": 0.3})[0])
    one, *others = views
    assert len(one.ranking) > 16 and max(one.lists.ranks.max(axis=0)) == 16
    for other in others:
        assert other.ranking.tolist() == one.ranking.tolist() and other.lists.ranks.tolist() == one.lists.ranks.tolist()
        assert (other.values is None) == (one.values is None) and (one.values is None or other.values.tolist() == one.values.tolist())


def cut(found: Candidates, rows: np.ndarray) -> Candidates:
    """A shard's part. rows: (n,) bool."""
    columns = {name: getattr(found, name)[rows] for name in ("hashes", "generated", "scores", "starts", "ends")}
    share = Moments(int(rows.sum()), 0.0, float(rows.sum()))
    return replace(found, **columns, moments=(share,) * len(found.moments))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_found_is_nothing_ranked(name):
    view, _ = coupled(nothing(2), coupling=name)
    assert view.ranking.tolist() == [] and view.page(view.ranking, 0, 5) == ([], False)


def test_a_hit_that_surprises_nobody_lies_where_the_best_of_its_lists_has_it():
    found = found_by([[-9.0, -9.0], [4.0, 4.0]])
    view, fused = coupled(found, coupling="rrf")
    assert fused.best[0] == -1 and fused.fused[0] == 0
    shown = located(fused, view, found, similar("bm25", "dense"))
    assert (shown.starts[0], shown.ends[0]) == (0, 5)  # of bm25, the first by name
    assert (shown.starts[1], shown.ends[1]) == (fused.starts[1], fused.ends[1])


def test_a_pattern_that_surprises_nobody_is_shown_to_who_asked_for_it():
    everywhere = [SpaceFacts("text", "rarity", N_DOCS, surprise=lambda scores: np.zeros(len(scores)))]
    found = found_by([[1.0], [1.0]])
    assert coupled(found, everywhere)[0].ranking.tolist() == []
    assert coupled(found, everywhere, explicit=True)[0].ranking.tolist() == [0, 1]
    assert coupled(found, everywhere, weights={"text": 0}, explicit=True)[0].ranking.tolist() == []


# --- selection ---------------------------------------------------------------------------------------------------------------


def heard(found: Candidates, spaces: list[SpaceFacts], known: CorpusNulls | None) -> list[str]:
    """Names of the spaces that are listened to."""
    fused = fuse(found, spaces, known, N_DOCS)
    silent = silent_spaces(spaces, fused, found, fused.weights)
    return [space.name for space in spaces if space.name not in silent]


def listed(*columns: dict[int, float], n: int = 40, other: float = 0.0) -> Candidates:
    """Candidates of which each space lists these; other: the score of what it does not list, 0 being its average."""
    scores, lists = np.full((n, len(columns)), other), np.zeros((n, len(columns)), bool)
    for s, column in enumerate(columns):
        scores[list(column), s] = list(column.values())
        lists[list(column), s] = True
    return found_by(scores, lists)


def test_agreement_is_fishers_test_of_what_others_say():
    """Two documents of 1 and 3 nats: P(Gamma(2) >= 4) = 5 e^-4; the other column counts nothing."""
    surprises = np.array([[9.0, 1.0], [9.0, 3.0]])
    assert agreement_p(surprises, np.ones(2), [1]) == pytest.approx(5 * np.exp(-4))
    # both, the first with weight 3: (27 + 1) / 4 and (27 + 3) / 4, together 14.5
    assert agreement_p(surprises, np.array([3.0, 1.0]), [0, 1]) == pytest.approx(15.5 * np.exp(-14.5))
    assert agreement_p(surprises, np.ones(2), []) == 1.0


def test_a_space_that_stands_out_is_heard_and_one_that_neither_does_nor_agrees_is_not():
    found = listed({0: 9.0, 1: 4.0}, {20: 1.0, 21: 0.9, 22: 0.8})
    assert heard(found, similar("bm25", "dense"), nulls(bm25=0.3, dense=1.0)) == ["bm25"]


def test_a_space_that_does_not_stand_out_is_heard_if_it_finds_what_others_do():
    found = listed({0: 9.0, 1: 8.0}, {0: 1.0, 1: 0.9, 22: 0.8})
    assert heard(found, similar("bm25", "dense"), nulls(bm25=0.3, dense=1.0)) == ["bm25", "dense"]


def test_loudness_without_worth_is_not_heard():
    """Confident rubbish: what the corpus's own probes found to tell nothing."""
    found = listed({0: 9.0, 1: 4.0}, {20: 50.0})
    assert heard(found, similar("bm25", "junk"), nulls(bm25=1.0, junk=0.0)) == ["bm25"]


def test_loudness_without_a_fitted_null_model_makes_nobody_stand_out():
    """By its own scores alone any list has a peak: what is not fitted yet is heard if it agrees."""
    loud = listed({0: 9.0, 1: 4.0}, {20: 50.0, 21: 40.0})
    assert heard(loud, similar("bm25", "new"), nulls(bm25=1.0)) == ["bm25"]
    assert heard(listed({0: 9.0, 1: 4.0}, {0: 50.0}), similar("bm25", "new"), nulls(bm25=1.0)) == ["bm25", "new"]


def test_texts_about_documents_make_nobody_stand_out():
    views = SpaceFacts("views", "moments", N_DOCS, origin="derived")
    found = listed({0: 9.0, 1: 4.0}, {20: 50.0})
    assert heard(found, [*similar("bm25"), views], nulls(bm25=1.0, views=1.0)) == ["bm25"]


def test_where_nobody_stands_out_all_that_have_worth_are_heard():
    found = listed({0: 1.0, 1: 0.5}, {20: 1.0}, {30: 1.0})
    assert heard(found, similar("bm25", "dense", "junk"), nulls(bm25=1.0, dense=0.5, junk=0.0)) == ["bm25", "dense"]
    assert heard(found, similar("bm25", "dense", "junk"), None) == ["bm25", "dense", "junk"]


def test_where_nobody_stands_out_a_space_that_is_not_fitted_yet_must_agree_with_those_that_are():
    quiet = {0: 1.0, 1: 0.5}
    assert heard(listed(quiet, {20: 50.0}), similar("bm25", "new"), nulls(bm25=1.0)) == ["bm25"]
    assert heard(listed({0: 2.0, 1: 1.9}, {0: 50.0, 1: 40.0}), similar("bm25", "new"), nulls(bm25=1.0)) == ["bm25", "new"]


def test_the_silent_are_named_with_the_reason_and_count_nothing():
    found = listed({0: 9.0, 1: 4.0}, {20: 1.0, 21: 0.9, 22: 0.8}, {}, other=-np.inf)
    view, fused = coupled(found, similar("bm25", "dense", "late"), "select", nulls(bm25=0.3, dense=1.0, late=1.0))
    assert view.weights.tolist() == [0.3, 0.0, 0.0] and fused.weights.tolist() == [0.3, 1.0, 1.0]
    assert view.silent["late"] == "silent: it found nothing"
    assert "one that chance gives, too (E = 54), and its best hits are no better than any to bm25 (p = 1)" in view.silent["dense"]
    assert view.values.tolist() == (0.3 * fused.surprises[:, 0]).tolist()
    assert view.ranking.tolist() == [0, 1]


def test_where_all_are_heard_selection_is_the_ranking_of_evidence():
    found = listed({0: 9.0, 1: 8.0}, {0: 1.0, 1: 0.9, 22: 0.8})
    view, fused = coupled(found, coupling="select")
    assert not view.silent and view.values.tolist() == fused.fused.tolist()
    assert view.ranking.tolist() == coupled(found)[0].ranking.tolist()


# --- requests ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name", "k", "text"),
    [
        ("rrf", "rrf", 60, "rrf"),
        ("rrf:k=2", "rrf", 2, "rrf:k=2"),
        ({"name": "rrf"}, "rrf", 60, "rrf"),
        ({"name": "rrf", "k": 60}, "rrf", 60, "rrf"),
        ({"name": "dbsf"}, "dbsf", None, "dbsf"),
        ({"name": "dbsf", "k": None}, "dbsf", None, "dbsf"),
    ],
)
def test_one_coupling_has_one_form(given, name, k, text):
    coupling = asked(given).coupling
    assert (coupling.name, coupling.k, str(coupling)) == (name, k, text)
    assert Coupling.model_validate(spelt(str(coupling))) == coupling
    assert asked(coupling.model_dump()) == asked(given)


@pytest.mark.parametrize(
    ("fields", "at", "says"),
    [
        ({"coupling": "magic"}, "coupling.name", "'zscore', 'dbsf' or 'none'; found 'magic'"),
        ({"coupling": "minmax:k=3"}, "coupling", "only rrf has the field k"),
        ({"coupling": {"name": "rrf", "k": -1}}, "coupling.k", "greater than or equal to 0; found -1"),
        ({"coupling": "rrf:kk=3"}, "coupling.kk", "unknown field; did you mean 'k'? Known are: name, k"),
        ({"coupling": 5}, "coupling", "found 5"),
        ({"weights": {"bm25": -1}}, "weights.bm25", "greater than or equal to 0; found -1"),
        ({"weights": {"bm25": float("inf")}}, "weights.bm25", "finite"),
        ({"weights": ["bm25"]}, "weights", "dictionary"),
    ],
)
def test_what_is_no_coupling_is_refused_with_its_place(fields, at, says):
    with pytest.raises(InvalidRequest) as raised:
        validated({"corpus": "c", "query": "q", **fields})
    assert raised.value.at == at and says in str(raised.value)


# --- in the engine -----------------------------------------------------------------------------------------------------------

WORDS = (
    "amber basalt cobalt dune ember fjord glacier harbour inlet jetty kelp lagoon marsh nickel opal pebble quartz reef shale tide".split()
)
LAYERS = ("text", "bm25", "flat=bm25:b=0,k1=0.1")
QUERY = "amber tide reef"


def files() -> dict[str, str]:
    """60 texts of 20 words, some frequent and some rare."""
    rng = np.random.default_rng(11)
    often = 1 / np.arange(1, len(WORDS) + 1)
    return {
        f"{WORDS[i % 20]}/{i}.txt": " ".join(rng.choice(WORDS, rng.integers(5, 30), p=often / often.sum())) + f" number {i}.\n"
        for i in range(60)
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Engine:
    folder = tmp_path_factory.mktemp("built")
    engine = Engine(folder, LAYERS)
    engine.index(write_files(folder / "files", files()), n_shards=3)
    return engine


def essence(answer: SearchAnswer) -> list:
    return [(hit.hash, hit.coupled, hit.ranks, [(s.layer, s.score) for s in hit.signals]) for hit in answer.hits]


def test_a_view_changes_the_order_and_nothing_that_evidence_says(built):
    same = {"query": QUERY, "k": 30, "keep_all": True, "explain": True}
    plain, *views = built.search_many([same] + [same | {"coupling": name} for name in VIEWS])
    told = {hit.hash: hit for hit in plain.hits}
    assert len(told) > 20 and all(hit.coupled is None for hit in plain.hits)
    for view in views:
        assert (view.verdict, view.verdict_reason) == (plain.verdict, plain.verdict_reason)
        assert sum(hit.hash in told for hit in view.hits) > 10
        for hit in view.hits:
            if hit.hash in told:
                assert hit.model_copy(update={"coupled": None}) == told[hit.hash], view.coupling


def test_hits_descend_by_the_number_that_is_told_and_ranks_are_places_on_lists(built):
    alone = {name: built.search(QUERY, layers=[name], k=100, keep_all=True) for name in ("bm25", "flat")}
    names = [*CLASSICS, "rrf", "select"]
    for name, answer in zip(names, built.search_many([{"query": QUERY, "coupling": n, "k": 50, "keep_all": True} for n in names])):
        found = [hit.coupled for hit in answer.hits]
        assert found == sorted(found, reverse=True) and answer.coupling.name == name
        for space, own in alone.items():
            places = {hit.hash: i for i, hit in enumerate(sorted(own.hits, key=lambda h: (-h.signals[0].score, h.hash)), 1)}
            for hit in answer.hits:
                assert hit.ranks.get(space) == places.get(hit.hash)


def test_a_classic_over_http_is_what_its_formula_makes_of_the_ranks(built):
    answer = built.search(QUERY, coupling="rrf:k=2", weights={"flat": 3}, k=50, keep_all=True)
    for hit in answer.hits:
        assert hit.coupled == pytest.approx(sum((3 if space == "flat" else 1) / (2 + rank) for space, rank in hit.ranks.items()))


def test_without_fusion_hits_are_the_union_of_each_list_s_best(built):
    answer = built.search(QUERY, coupling="none", k=5, keep_all=True)
    assert all(min(hit.ranks.values()) <= 5 and hit.coupled is None for hit in answer.hits)
    for space in ("bm25", "flat"):
        assert sorted(hit.ranks[space] for hit in answer.hits if hit.ranks.get(space, 6) <= 5) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("coupling", ["evidence", "select", "rrf", "none"])
def test_pages_together_are_the_whole_answer(built, coupling):
    fields = {"query": QUERY, "coupling": coupling, "weights": {"flat": 2}, "keep_all": True}
    whole = built.search(**fields, k=20)
    first = built.search(**fields, k=10)
    second = built.search(**fields, k=10, cursor=first.cursor)
    assert len(whole.hits) >= 20 and [hit.hash for hit in first.hits + second.hits] == [hit.hash for hit in whole.hits]


def test_a_cursor_of_another_coupling_or_of_other_weights_is_refused(built):
    fields = {"query": QUERY, "k": 5, "keep_all": True}
    cursor = built.search(**fields, coupling="rrf").cursor
    assert built.search(**fields, coupling={"name": "rrf", "k": 60}, cursor=cursor).hits
    for other in ({}, {"coupling": "rrf:k=2"}, {"coupling": "none"}, {"coupling": "rrf", "weights": {"bm25": 2}}):
        with pytest.raises(BadQuery, match="belongs to another request"):
            built.search(**fields, **other, cursor=cursor)


def test_a_weight_of_no_space_is_refused_with_the_choices(built):
    with pytest.raises(BadQuery, match=r"no layer 'bm52' to be weighed. Choose from: bm25, flat, text\.") as raised:
        built.search("tide", coupling="rrf", weights={"bm52": 1})
    assert raised.value.at == "weights"


def test_lists_side_by_side_cannot_be_reranked(built):
    with pytest.raises(BadQuery, match="leaves lists side by side"):
        built.search("tide", coupling="none", rerank={"model": "some/model"})


def test_a_space_that_selection_does_not_hear_is_told_with_its_reason(built):
    answer = built.search(QUERY, coupling="select", weights={"flat": 0}, explain=True)
    told = {info.name: info for info in answer.layers}
    assert told["flat"].reason == "silent: its weight is 0, as asked for"
    assert told["flat"].weight == 0 and told["flat"].asked is not None and told["bm25"].weight > 0
    assert told["bm25"].reason == ""


def test_over_http_a_coupling_is_a_field_of_the_body_and_a_parameter_of_the_link(built):
    settings = HostSettings(store_url=str(built.folder / "store"), cache_dir=built.folder / "cache")
    server = uvicorn.Server(uvicorn.Config(create_app(local_coordinator(settings)), port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        with sondage.connect(url) as client:
            fields = {"coupling": "rrf:k=2", "weights": {"flat": 3}, "k": 20}
            by_link = client.search(QUERY, "c", **fields)
            by_body = client.search(QUERY, "c", **fields, keep_all=True)
            assert by_link.coupling == Coupling(name="rrf", k=2)
            assert [hit.coupled for hit in by_link.hits] == [hit.coupled for hit in by_body.hits] and by_link.hits
            assert essence(by_link) == essence(built.search(QUERY, **fields))
            with pytest.raises(BadQuery, match="Choose from: bm25, flat, text"):
                client.search("tide", "c", weights={"nope": 1})
    finally:
        server.should_exit = True
        thread.join(20)


# --- in the terminal ---------------------------------------------------------------------------------------------------------


def test_the_terminal_takes_a_coupling_and_weights(built, capsys, tmp_path):
    learnt = tmp_path / "learnt.json"
    learnt.write_text(json.dumps({"corpus": "c", "weights": {"flat": 3}}))
    store = ["--store", str(built.folder / "store"), "--json", "-k", "5", "--coupling", "rrf:k=2"]
    found = []
    for weights in ("flat=3", f"@{learnt}"):
        assert cli.main(["search", QUERY, *store, "--weights", weights]) == 0
        found.append([hit["coupled"] for hit in json.loads(capsys.readouterr().out)["hits"]])
    expected = built.search(QUERY, coupling="rrf:k=2", weights={"flat": 3}, k=5)
    assert found[0] == found[1] == [hit.coupled for hit in expected.hits]


def test_the_terminal_says_what_ranks_and_on_which_lists_a_hit_is(built, capsys):
    store = ["--store", str(built.folder / "store"), "-k", "2"]
    assert cli.main(["search", QUERY, *store, "--coupling", "rrf:k=2"]) == 0
    out = capsys.readouterr().out
    (first,) = built.search(QUERY, coupling="rrf:k=2", k=1).hits
    assert f"on lists {', '.join(f'{space} #{rank}' for space, rank in first.ranks.items())}]" in out.splitlines()[0]
    assert "\nranked by rrf:k=2\n" in out
    assert cli.main(["search", QUERY, *store, "--coupling", "select", "--weights", "flat=0"]) == 0
    assert "ranked by select; flat silent: its weight is 0, as asked for" in capsys.readouterr().out
    assert cli.main(["search", QUERY, *store, "--coupling", "none"]) == 0
    assert "\nlists side by side, not ranked\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--coupling", "magic"], "found 'magic'"),
        (["--weights", "flat"], "--weights 'flat' is not NAME=NUMBER"),
        (["--weights", "flat=heavy"], "weights.flat: expected a valid number"),
        (["--weights", "@nowhere.json"], "--weights @nowhere.json cannot be read"),
        (["--weights", "nope=1"], "Choose from: bm25, flat, text"),
    ],
)
def test_the_terminal_says_what_is_wrong_with_a_coupling(built, capsys, option, says):
    assert cli.main(["search", "tide", "--store", str(built.folder / "store"), *option]) == 2
    assert says in capsys.readouterr().err
