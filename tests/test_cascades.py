"""What a cut loses, by the corpus's own probes; and what an answer that was cut short says that it lacks."""

import asyncio
import json
import math
import random

import numpy as np
import pytest
from engine import Engine, write_files
from pydantic import TypeAdapter
from test_evidence import MOMENTS, N_DOCS, NULLS, candidates, similar

from cluster.host import Host
from cluster.local import LocalSearcher
from jobs import render
from jobs.certificates import Cut as CutShort
from jobs.certificates import compared, of_certificates, of_cuts, withheld
from serve.algebra import Algebra, Result, same
from serve.algebra_schema import Tree
from serve.algebra_text import written
from serve.cascades import cuts, stage, told
from serve.certificate import Judged, certificate, unseen
from serve.coordinator import Coordinator
from serve.evidence import CERTAINTY, fuse
from serve.schema import SearchRequest
from shards.cascades import DEPTHS, Recall, wilson
from shards.corpus_nulls import CorpusNulls
from shards.layers import SpaceSpec, create
from shards.layers.contract import Resources
from shards.plan import SpaceQuery
from shards.types import LayerStatus
from shards.weights import Choices

TREE = TypeAdapter(Tree)
# Of 20 probes 10 are found first, 6 more among the first 4, 2 more among the first 30; two never.
RANKS = [np.float64(rank) for rank in [1] * 10 + [3.5] * 6 + [27.0] * 2 + [math.inf] * 2]
RECALL = Recall.of_ranks(RANKS)


def nulls(recalls) -> CorpusNulls:
    return CorpusNulls(1, {}, None, 100, recalls=recalls)


# --- recall by probes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "of", "low", "high"), [(8, 10, 0.4902, 0.9433), (0, 20, 0.0, 0.1611), (20, 20, 0.8389, 1.0), (5, 10, 0.2366, 0.7634)]
)
def test_an_interval_is_wilsons_and_no_point_at_either_end(n, of, low, high):
    found = wilson(n, of)
    assert (found.share, found.low, found.high) == pytest.approx((n / of, low, high), abs=1e-4)
    assert math.isnan(wilson(0, 0).share)


def test_the_depth_for_a_recall_is_the_least_at_which_the_lower_end_of_its_interval_reaches_it():
    assert [round(RECALL.at(depth).low, 2) for depth in (1, 4, 30)] == [0.30, 0.58, 0.70]
    assert [RECALL.depth_for(share) for share in (0.29, 0.31, 0.58, 0.59, 0.69, 0.71)] == [1, 4, 4, 30, 30, None]
    assert [RECALL.at(depth).share for depth in (1, 3, 4, 7, 29, 30, 1_000)] == [0.5, 0.5, 0.8, 0.8, 0.8, 0.9, 0.9]
    assert Recall.of_ranks(RANKS[:15]) is None  # too few probes tell nothing


def test_what_probes_found_is_kept_with_the_null_models_and_may_be_absent_in_older_files():
    kept = nulls({("a", "b"): RECALL, ("a",): RECALL})
    again = CorpusNulls.from_bytes(kept.to_bytes())
    assert again.recalls == kept.recalls and again.to_bytes() == kept.to_bytes()
    assert json.loads(json.dumps(RECALL.to_json())) == {"within": list(RECALL.within), "n_probes": 20}  # no numbers of numpy
    assert CorpusNulls.from_bytes(nulls({}).to_bytes()).recall_among(["a"]) is None
    assert again.recall_among(["b", "a", "derived"]) == RECALL  # what nobody could try adds nothing
    assert again.recall_among(["b"]) is None and again.recall_among([]) is None


def test_the_rank_of_a_known_item_is_by_the_weighted_sum_of_the_spaces_that_are_asked():
    """In space a the right document is second of three, in b, which counts as much, far ahead; where no space sees it, it is not found."""
    rng = np.random.default_rng(3)
    print("seed 3")
    sharp = [(np.array([5.0, 9.0]), np.array([[6.0, 0.0], [1.0, 1.0]]) + rng.uniform(0, 0.1, (2, 2))) for _ in range(30)]
    blind = [(np.zeros(2), np.array([[1.0, 1.0]])) for _ in range(10)]
    choices = Choices(("a", "b"), sharp + blind)
    assert choices.recall(["b"]).within == (30,) * len(DEPTHS) and choices.recall(["b"]).n_probes == 40
    assert choices.recall(["a", "b"]).at(1).share == 0.75
    alone = Choices(("a", "b"), [(np.array([5.0, 9.0]), np.array([[6.0, 0.0], [1.0, 1.0], [4.0, 0.0], [5.0, 0.0]]))] * 20)
    assert alone.recall(["b"]).at(1).share == 1.0
    assert alone.weights(["a"]) and alone.recall(["a"]).within[:4] == (0, 0, 20, 20)  # 1 + one above + half of one tied: 2.5
    assert Choices((), []).recall(["a"]) is None


# --- cuts ---------------------------------------------------------------------------------------------------------------------------


def cut_of(**fields):
    return TREE.validate_python({"cut": {"of": {"search": {"query": "a", "layers": ["x"]}}, **fields}})


def test_a_cut_to_a_recall_goes_as_deep_as_probes_say_and_tells_it():
    cut = cut_of(recall=0.58)
    known = stage(cut, {"x": "moments"}, nulls({("x",): RECALL}))
    assert written(cut) == 'cut(search[x]("a"), recall 0.58)' and known.depth == 4 and known.reason == ""
    hashes = np.arange(6, dtype=np.uint8)[:, None].repeat(20, axis=1)
    found = Result(np.arange(6), np.arange(6.0, 0, -1), np.zeros(6), np.zeros(6, np.int64), "strong", "")
    algebra = Algebra(hashes, 100, {same(cut.cut.of): found}, {}, {same(cut): known.depth})
    assert algebra.of(cut).order.tolist() == [0, 1, 2, 3] and algebra.kept == {same(cut): (4, 6)}
    answer = told(cut, known, algebra.kept[same(cut)])
    assert (answer.depth, answer.documents, answer.of, answer.recall, answer.probes) == (4, 4, 6, 0.8, 20)
    assert (answer.low, answer.high) == pytest.approx((0.5840, 0.9193), abs=1e-3)
    assert render.cut(answer) == 'cut(search[x]("a"), recall 0.58): 4 of 6 documents; recall 0.80 (0.58 to 0.92, by 20 probes)'


@pytest.mark.parametrize(
    ("fields", "kept", "depth", "recall"),
    [
        ({"n": 4}, (4, 6), 4, 0.8),
        ({"n": 40}, (6, 6), 40, 0.9),
        ({"n": 2, "recall": 0.58}, (2, 6), 2, 0.5),  # the lesser of both
        ({"evalue": 0.1}, (3, 6), 3, 0.5),  # as of a cut at the documents that it left
        ({"evalue": 0.1}, (6, 6), None, None),  # nothing was cut
        ({"n": 4, "evalue": 0.1}, (1, 6), 1, 0.5),
        ({"n": 4}, None, 4, 0.8),
    ],
)
def test_every_cut_of_a_search_tells_the_recall_at_its_depth(fields, kept, depth, recall):
    cut = cut_of(**fields)
    answer = told(cut, stage(cut, {"x": "moments"}, nulls({("x",): RECALL})), kept)
    assert (answer.depth, answer.recall, answer.reason) == (depth, recall, "")


@pytest.mark.parametrize(
    ("spaces", "recalls", "share", "reason"),
    [
        ({"x": "moments"}, {}, 0.9, "no probe has tried these layers by themselves; nothing was cut for it"),
        ({"text": "rarity"}, {("x",): RECALL}, 0.9, "no probe has tried these layers by themselves; nothing was cut for it"),
        (None, {("x",): RECALL}, 0.9, "its search was not asked: the time budget ended; nothing was cut for it"),
        ({"x": "moments"}, {("x",): RECALL}, 0.95, "probes find 90% of what they seek among the first 100, 70% for sure"),
    ],
)
def test_a_recall_that_nobody_can_promise_cuts_nothing_and_says_why(spaces, recalls, share, reason):
    cut = cut_of(recall=share)
    known = stage(cut, spaces, nulls(recalls))
    answer = told(cut, known, (6, 6))
    assert known.depth is None and answer.depth is None and answer.recall is None and answer.reason.startswith(reason)


def test_beside_layers_without_probes_a_documents_place_may_be_better():
    known = stage(cut_of(n=4), {"x": "moments", "text": "rarity"}, nulls({("x",): RECALL}))
    assert known.recall == RECALL and "may stand higher" in known.reason
    by_lists = TREE.validate_python({"cut": {"of": {"search": {"query": "a", "coupling": "rrf"}}, "n": 4}})
    assert stage(by_lists, {"x": "moments"}, nulls({("x",): RECALL})).recall is None
    assert len(list(cuts(TREE.validate_python({"then": [json.loads(cut_of(n=4).model_dump_json()), {"search": {"query": "b"}}]})))) == 1


# --- certificates, by hand ------------------------------------------------------------------------------------------------------------


LAYER, STATIC = (create(SpaceSpec.parse(name), Resources()) for name in ("bm25", "static"))


def status(state: str, covered: int, total: int = 100) -> LayerStatus:
    return LayerStatus("x", 0, state, covered, total, "why")


def test_what_a_space_has_not_looked_at_counts_in_proportion():
    x = Judged("x", LAYER, 100, 1.0, 1.0, 0.4)

    def change(state, covered, lacking=None):
        return unseen([x], [status(state, covered)], {}, lacking)[0].change

    assert change("late", 0) == 0.4 and change("late", 75) == pytest.approx(0.1)
    assert change("late", 100) == 0.4  # it looked everywhere, and how much it did not score nobody knows
    assert change("late", 100, {"x": 0.25}) == pytest.approx(0.1)
    assert unseen([x], [status("ready", 100)], {}) == [] and unseen([x], [], {"x": "too dear"})[0].state == "unasked"


@pytest.mark.parametrize(("share", "exact_to", "final"), [(0.99, 2, True), (1.01, 1, False), (0.0, 2, True)])
def test_a_rank_is_certain_as_far_as_it_lies_above_all_that_an_unasked_space_could_add(share, exact_to, final):
    """Space bm25 gives three documents evidence; dense, which was not asked, may add `share` of the second's lead over the third."""
    found = candidates([[3.4], [2.4], [2.1]], [MOMENTS])
    fused = fuse(found, similar("bm25"), NULLS, N_DOCS)
    first, second, third = (float(fused.surprises[row, 0]) for row in (0, 1, 2))
    assert first - second > second - third > 0
    cap = NULLS.spaces["dense"].cap
    dense = Judged("dense", STATIC, N_DOCS, 0.0, share * (second - third) / cap, 0.3)
    spaces, asked = [Judged("bm25", LAYER, N_DOCS, 1.0, 1.0, 0.7), dense], [SpaceQuery("bm25", "", None)]
    made = certificate(spaces, asked, found, fused, NULLS, {"dense": "too dear"}, wanted=2, n_candidates=100, by_evidence=True)
    assert (made.exact_to, made.at_most) == (exact_to, pytest.approx(share * (second - third)))
    assert made.could_change == pytest.approx(0.3)
    phrase = Judged("dense", LAYER, N_DOCS, 0.0, 1.0, 0.3)  # bm25 may yet be asked for a phrase, of which no null model knows the rarest
    made = certificate([spaces[0], phrase], asked, found, fused, NULLS, {"dense": "-"}, wanted=2, n_candidates=100, by_evidence=True)
    assert made.at_most == CERTAINTY > cap
    by_lists = certificate(spaces, asked, found, fused, NULLS, {"dense": "too dear"}, wanted=2, n_candidates=100, by_evidence=False)
    assert by_lists.exact_to == 0 and not by_lists.final


def test_where_nothing_was_found_yet_all_may_change():
    x = Judged("x", LAYER, 100, 1.0, 1.0, 0.4)
    made = certificate([x], [SpaceQuery("x", "", None)], None, None, None, {"x": "late"}, wanted=10, n_candidates=100, by_evidence=True)
    assert not made.final and made.exact_to == 0 and made.could_change == 1.0


def test_an_experiment_counts_certificates_that_lied():
    honest = [CutShort(False, 2, 0.1 * i, 0.1 * i, 5) for i in range(10)]
    section = of_certificates([*honest, CutShort(True, 10, 0.0, 0.0, 10)])
    assert [target.met for target in section.targets] == [True, True, True] and section.figures["final"] == 1
    lied = of_certificates([*honest, CutShort(True, 10, 0.0, 0.3, 4)])
    assert [target.measured for target in lied.targets[:2]] == [1.0, 1.0]
    table = of_cuts(Choices(("a",), [(np.array([5.0]), np.array([[1.0], [6.0]]))] * 20), {("a",): [[1, 3], [math.inf]]})
    assert table.rows[0][:3] == ["a", "0.8", "2"] and table.figures["cuts"][0]["judged"] == pytest.approx(1 / 3)


# --- on a small corpus ----------------------------------------------------------------------------------------------------------------

THINGS = "lantern harbour granite orchard weather anchor meadow copper thimble walnut saddle candle ribbon pebble feather kettle".split()


def text_of(i: int) -> str:
    """Of a few things each, so that what is said of them in one sentence tells where the others stand."""
    rng = random.Random(i)
    about = rng.sample(THINGS, 4)
    said = [" ".join(rng.choice(about) for _ in range(11)) for _ in range(3)]
    return f"The {said[0]} of house number {i}. Nobody in {said[1]} saw it. Later a {said[2]} came to pass there.\n"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cascades")
    made = Engine(folder, layers=("names", "text", "bm25", "static"))
    made.index(write_files(folder / "source", {f"{i}.txt": text_of(i) for i in range(48)}))
    return made


def test_a_combined_search_tells_how_much_its_first_stage_keeps(engine):
    first = {"cut": {"of": {"search": {"query": "walnut saddle in the harbour", "layers": ["bm25"]}}, "recall": 0.5}}
    answer = engine.search(combine={"then": [first, {"search": {"query": "copper", "layers": ["static"]}}]}, keep_all=True, k=60)
    known = engine.generation().nulls.recall_among(["bm25"])
    (cut,) = answer.combined.cuts
    assert cut.probes == known.n_probes >= 16 and cut.depth == known.depth_for(0.5) < cut.of
    assert cut.documents == cut.depth >= len(answer.hits) and cut.recall == round(known.at(cut.depth).share, 4) >= 0.5
    assert cut.low < cut.recall < cut.high


def test_an_answer_that_is_called_final_is_the_answer_of_all_layers(engine):
    """Whatever layers are withheld: ranks that are called certain stay, and so does what is called final."""
    print("seed 5")
    rng = random.Random(5)

    async def run():
        host = Host(engine.store.url, {}, str(engine.folder / "cache"), engine.cache_bytes)
        coordinator = Coordinator(engine.store, LocalSearcher(host), engine.resources, engine.cache)
        learned, found = coordinator.learned.of("c"), []
        for i in range(60):
            text = f"house number {i}" if i % 3 == 0 else " ".join(rng.choice(THINGS) for _ in range(3))
            forms = {"text": {"pattern": f"number {i}."}} if i % 3 == 0 else {}
            layers = ["names", "text", "bm25", "static"]
            asked = {"corpus": "c", "query": text, "forms": forms, "layers": layers, "k": 10, "budget_ms": 30_000}
            request = SearchRequest(**asked, keep_all=True, freshness="trust")
            full = await coordinator.search(request)
            names = sorted({one.layer for one in full.coverage})
            with withheld(learned, rng.sample(names, rng.randint(1, len(names) - 1))):
                part = await coordinator.search(request)
            found.append(compared(part, full))
        return found

    found = asyncio.run(run())
    assert sum(one.exact_to > 0 for one in found) > 4 and all(one.same_to >= one.exact_to for one in found)
    assert sum(one.same_to == 0 for one in found) > 4  # there was something to be wrong about
