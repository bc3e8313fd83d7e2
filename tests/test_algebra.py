"""Several searches as one: the tree, what its operators mean, and how few calls it takes."""

import asyncio
import json
import math
import random
import threading
from dataclasses import replace

import numpy as np
import pytest
import uvicorn
from engine import Engine, paths, write_files
from pydantic import TypeAdapter, ValidationError
from scripted_coordinator import eventually

import sondage
from cluster.host import Host
from cluster.local import LocalSearcher
from cluster.protocol import EVERYWHERE
from cluster.settings import HostSettings
from jobs import cli
from serve import coordinator, questions
from serve.algebra import Algebra, Crossed, Result, same
from serve.algebra_rounds import MAX_ASKED
from serve.algebra_schema import MAX_LEVELS, MAX_SEARCHES, Node, Tree, places
from serve.algebra_tables import by_question
from serve.algebra_text import written
from serve.bridges import MAX_KEYS, Key
from serve.coordinator import Coordinator
from serve.http import create_app
from serve.local import local_coordinator
from serve.problems import InvalidRequest, validated
from serve.schema import SearchRequest
from shards.candidates import merge
from shards.errors import BadQuery
from shards.plan import Everything, Plan, SpaceQuery
from shards.shard import search as search_shards
from shards.types import Budget, LayerStatus

TREE = TypeAdapter(Tree)


def search(query: str = "", layers=("bm25",), **more) -> dict:
    return {"search": {"query": query, **({"layers": list(layers)} if query else {}), **more}}


# --- the tree ---------------------------------------------------------------------------------------------------------------------

BRIDGE = {
    "bridge": {
        "from": {"cut": {"of": search("aspirin", ["names"]), "n": 3}},
        "key": "inchikey",
        "to": search(forms={"fingerprint": {"inchikey": "$key"}}),
    }
}


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (search("a"), 'search[bm25]("a")'),
        (search("a", ["bm25", "dense"], name="one", paths=["*.md"]), 'one: search[bm25, dense]("a", paths=["*.md"])'),
        (search(forms={"text": {"pattern": "x"}}), 'search[text]({"pattern": "x"})'),
        ({"union": [search("a"), search("b")]}, 'union(search[bm25]("a"), search[bm25]("b"))'),
        ({"and": [search("a"), {"not": search("b")}]}, 'and(search[bm25]("a"), not(search[bm25]("b")))'),
        ({"cut": {"of": search("a"), "n": 3, "evalue": 0.1}}, 'cut(search[bm25]("a"), 3, E <= 0.1)'),
        ({"fuse": {"of": [search("a"), search("b")], "coupling": "rrf:k=2"}}, 'fuse[rrf:k=2](search[bm25]("a"), search[bm25]("b"))'),
        ({"wsum": {"of": [search("a"), search("b")], "weights": [2, 1]}}, 'wsum(2 * search[bm25]("a"), 1 * search[bm25]("b"))'),
        (BRIDGE, 'bridge(cut(search[names]("aspirin"), 3), inchikey, search[fingerprint]({"inchikey": "$key"}))'),
        (
            {"bridge": {"from": {"text": "E42: x"}, "key": {"pattern": r"(E\d+)"}, "to": search("$key")}},
            r'bridge("E42: x", /(E\d+)/, search[bm25]("$key"))',
        ),
    ],
)
def test_a_tree_is_written_as_one_line_and_comes_back_from_json(tree, expected):
    node = TREE.validate_python(tree)
    assert written(node) == expected
    assert TREE.validate_json(TREE.dump_json(node)) == node


def nested(levels: int) -> dict:
    tree = search("a")
    for _ in range(levels - 1):
        tree = {"union": [tree]}
    return tree


@pytest.mark.parametrize(
    ("tree", "at", "said"),
    [
        ({"unite": [search("a")]}, "combine", "one of search, union, intersect"),
        ({"union": [search("a")], "cut": {}}, "combine", "an object with one key"),
        ({"union": []}, "combine.union", "has 0 operands; expected 1 to 16"),
        ({"seed": [search("a")]}, "combine.seed", "has 1 operands; expected 2"),
        ({"union": [{"search": {"qery": "a"}}]}, "combine.union[0].search.qery", "did you mean 'query'?"),
        ({"union": [{"search": {}}]}, "combine.union[0].search", "asks nothing"),
        ({"cut": {"of": search("a")}}, "combine.cut", "cuts nothing: give n, evalue, verdict or recall"),
        ({"cut": {"of": {"union": [search("a")]}, "recall": 0.9}}, "combine.cut", "recall is known of a search alone"),
        ({"cut": {"of": search("a", coupling="rrf"), "recall": 0.9}}, "combine.cut", "leave coupling and weights out"),
        ({"cut": {"of": search("a"), "recall": 1}}, "combine.cut.recall", "less than or equal to 0.99"),
        ({"not": search("a")}, "combine", "not stands alone"),
        ({"union": [search("a"), {"not": search("b")}]}, "combine", "not stands alone"),
        ({"or": [{"not": search("a")}]}, "combine", "at least one operand that is to be found"),
        ({"text": "a"}, "combine", "one of search"),
        ({"fuse": {"of": [search("a")], "weights": [1, 2]}}, "combine.fuse", "2 weights for 1 operands"),
        ({"fuse": {"of": [search("a")], "weights": [0]}}, "combine.fuse", "no weight above 0"),
        ({"fuse": {"of": [search("a")], "coupling": "none"}}, "combine.fuse", "a coupling of spaces"),
        ({"bridge": {"from": search("a"), "key": "symbol", "to": search("b")}}, "combine.bridge", 'write "$key"'),
        ({"bridge": {"from": search("a"), "key": "name", "to": search("$key")}}, "combine.bridge.key", "'inchikey', 'symbol' or"),
        ({"bridge": {"from": search("a"), "key": {"pattern": "x"}, "to": search("$key")}}, "combine.bridge.key", "has 0 groups"),
        ({"bridge": {"from": search("a"), "key": {"pattern": "(x"}, "to": search("$key")}}, "combine.bridge.key", "RE2"),
        ({"union": [search("a", name="n"), search("b", name="n")]}, "combine", "are named n; rename one"),
        ({"union": [{"union": [search(f"{i}{j}") for j in range(9)]} for i in range(2)]}, "combine", "18 sub-queries; at most 16"),
        (nested(MAX_LEVELS + 1), "combine", f"more than {MAX_LEVELS} levels deep"),
        (nested(100_000), "combine", f"more than {MAX_LEVELS} levels deep"),
    ],
)
def test_what_is_no_tree_is_refused_where_it_is_wrong(tree, at, said):
    with pytest.raises(InvalidRequest) as error:
        validated({"corpus": "c", "combine": tree})
    assert error.value.at == at and said in str(error.value), str(error.value)


def test_a_request_says_what_it_asks_in_one_place():
    with pytest.raises(ValidationError, match="move query, layers into them"):
        SearchRequest(corpus="c", query="a", layers=["bm25"], combine=search("b"))
    assert SearchRequest(corpus="c", combine=nested(MAX_LEVELS), k=3, paths=["*.md"]).combine is not None


def test_what_only_scores_is_what_stands_behind_then_seed_and_not():
    tree = {"union": [{"then": [search("a"), search("b")]}, {"and": [search("c"), {"not": search("d")}]}, BRIDGE]}
    found = [(p.at, p.finds, p.template) for p in places(TREE.validate_python(tree))]
    assert found == [
        ("combine.union[0].then[0]", True, False),
        ("combine.union[0].then[1]", False, False),
        ("combine.union[1].and[0]", True, False),
        ("combine.union[1].and[1].not", False, False),
        ("combine.union[2].bridge.from.cut.of", True, False),
        ("combine.union[2].bridge.to", True, True),
    ]


# --- operators, by hand -------------------------------------------------------------------------------------------------------------

A, B, C = (search(word) for word in "abc")
LN = math.log


def result(found: dict[int, tuple[float, float]], number: int = 0, verdict: str = "strong") -> Result:
    """Of five documents: by row (evidence, E)."""
    evidence, evalues = np.zeros(5), np.ones(5)
    for row, (nats, evalue) in found.items():
        evidence[row], evalues[row] = nats, evalue
    order = np.array(sorted(found, key=lambda row: -found[row][0]), np.int64)
    shown = np.where(np.isin(np.arange(5), order), number, -1)
    return Result(order, evidence, np.log(evalues), shown, verdict, f"reason {number}")


def evaluated(tree: dict, answered: dict[str, Result], crossed=None) -> tuple[list[int], list[float], list[float], Result]:
    """Rows in order, their evidence and E."""
    hashes = np.arange(5, dtype=np.uint8)[:, None].repeat(20, axis=1)
    by_node = {same(TREE.validate_python(search(word))): found for word, found in answered.items()}
    found = Algebra(hashes, 100, by_node, crossed or {}).of(TREE.validate_python(tree))
    rows = found.order.tolist()
    return rows, found.evidence[rows].tolist(), np.exp(found.log_evalues[rows]).tolist(), found


FOUND = {"a": result({0: (9, 0.01), 1: (5, 0.2), 2: (3, 2)}, 0), "b": result({1: (6, 0.1), 2: (2, 4), 3: (8, 0.02)}, 1)}


@pytest.mark.parametrize(
    ("tree", "rows", "evidence", "evalues"),
    [
        ({"union": [A, B]}, [1, 0, 3, 2], [11, 9, 8, 5], [0.2, 0.02, 0.04, 4]),  # the least of both, times two questions
        ({"intersect": [A, B]}, [1, 2], [11, 5], [0.2, 4]),  # the greatest of both
        ({"then": [A, B]}, [1, 2], [6, 2], [0.1, 4]),
        ({"seed": [A, B]}, [1, 2, 0], [6, 2, 0], [0.1, 4, 100]),  # 0 stays, though b says nothing of it
        ({"cut": {"of": A, "n": 2}}, [0, 1], [9, 5], [0.01, 0.2]),
        ({"cut": {"of": A, "evalue": 0.2}}, [0, 1], [9, 5], [0.01, 0.2]),
        ({"cut": {"of": A, "verdict": "strong"}}, [0], [9], [0.01]),
        ({"cut": {"of": A, "verdict": "weak"}}, [0], [9], [0.01]),
        ({"fuse": {"of": [A, B], "weights": [1, 2]}}, [1, 3, 0, 2], [17, 16, 9, 7], [0.2, 0.04, 0.02, 4]),
        ({"fuse": {"of": [A, B], "weights": [1, 0]}}, [0, 1, 2], [9, 5, 3], [0.01, 0.2, 2]),
        ({"select": [A, B]}, [1, 0, 3, 2], [11, 9, 8, 5], [0.2, 0.02, 0.04, 4]),
        ({"then": [{"cut": {"of": A, "n": 2}}, B]}, [1], [6], [0.1]),
        ({"intersect": [A, {"union": [A, B]}]}, [0, 1, 2], [18, 16, 8], [0.02, 0.2, 4]),
    ],
)
def test_operators_give_documents_evidence_and_evalues(tree, rows, evidence, evalues):
    found = evaluated(tree, FOUND)
    assert found[0] == rows
    assert found[1] == pytest.approx(evidence)
    assert found[2] == pytest.approx(evalues)


def test_a_document_is_shown_where_the_louder_sub_query_has_seen_it():
    assert evaluated({"union": [A, B]}, FOUND)[3].shown.tolist() == [0, 1, 0, 1, -1]
    assert evaluated({"then": [A, B]}, FOUND)[3].shown.tolist()[1:3] == [1, 1]
    assert evaluated({"seed": [A, B]}, FOUND)[3].shown.tolist()[:3] == [0, 1, 1]


def test_classic_fusion_goes_by_the_places_on_the_rankings():
    rows, evidence, _, found = evaluated({"fuse": {"of": [A, B], "coupling": "rrf:k=0"}}, FOUND)
    # a: 0, 1, 2; b: 3, 1, 2
    assert found.values[:4].tolist() == pytest.approx([1, 1 / 2 + 1 / 2, 1 / 3 + 1 / 3, 1])
    assert rows == [0, 1, 3, 2] and evidence == [9, 11, 8, 5]  # evidence is what it was


VERDICTS = {"a": result({0: (9, 0.01)}, 0, "strong"), "b": result({0: (1, 1)}, 1, "weak"), "c": result({0: (1, 1)}, 2, "none")}


@pytest.mark.parametrize(
    ("tree", "verdict", "why"),
    [
        ({"union": [B, A, C]}, "strong", "reason 0"),
        ({"or": [C, B]}, "weak", "reason 1"),
        ({"intersect": [A, B]}, "weak", "reason 1"),
        ({"intersect": [A, C]}, "none", "reason 2"),
        ({"and": [A, {"not": C}]}, "strong", "reason 0"),
        ({"then": [A, B]}, "weak", "reason 1"),
        ({"then": [C, A]}, "none", "reason 2"),
        ({"seed": [C, A]}, "none", "reason 2"),
        ({"cut": {"of": B, "evalue": 0.1}}, "none", "nothing is as good as the cut asks"),
        ({"select": [C]}, "none", "no sub-query has signal"),
    ],
)
def test_a_whole_is_as_sure_as_its_best_part_or_its_worst(tree, verdict, why):
    found = evaluated(tree, VERDICTS)[3]
    assert (found.verdict, found.why) == (verdict, why)


def test_select_leaves_out_what_has_no_signal_and_names_it():
    hashes = np.arange(5, dtype=np.uint8)[:, None].repeat(20, axis=1)
    by_node = {same(TREE.validate_python(search(word))): found for word, found in VERDICTS.items()}
    algebra = Algebra(hashes, 100, by_node, {})
    found = algebra.of(TREE.validate_python({"select": [A, C]}))
    assert found.evidence[0] == 9 and algebra.silent == {'search[bm25]("c")': "reason 2"}
    assert found.log_evalues[0] == pytest.approx(LN(0.02))  # two were asked, though one answers


def test_a_bridge_is_as_weak_as_its_links_together():
    """Two keys: one of a hit with E = 0.5 and 2 nats, one that the caller gave."""
    tree = {"bridge": {"from": {"text": "x"}, "key": "symbol", "to": search("$key")}}
    weak, sure = Key("k1", 2.0, LN(0.5)), Key("k2", math.inf, -math.inf)
    nodes = [TREE.validate_python(search(word)) for word in "ab"]
    crossed = {same(TREE.validate_python(tree)): Crossed([weak, sure], nodes, "strong", "")}
    rows, evidence, evalues, _ = evaluated(tree, FOUND, crossed)
    behind = {row: -LN(math.exp(-2) + math.exp(-nats)) for row, nats in ((0, 9), (1, 5), (2, 3))}
    assert rows == [3, 1, 2, 0]  # 8 and 6 nats by the sure key; 2 has 2 by it, and 0 less than 2 however good its match
    assert evidence == pytest.approx([8, 6, 2, behind[0]]) and behind[0] < 2 < 9
    # E of both links together, the better key, times two keys: 0 has (0.5 + 0.01) x 2
    assert evalues == pytest.approx([0.02 * 2, 0.1 * 2, min(0.5 + 2, 4) * 2, (0.5 + 0.01) * 2])


def test_behind_one_weak_key_the_order_is_still_that_of_the_second_search():
    tree = {"bridge": {"from": {"text": "x"}, "key": "symbol", "to": search("$key")}}
    crossed = {same(TREE.validate_python(tree)): Crossed([Key("k", 2.0, LN(0.5))], [TREE.validate_python(C)], "strong", "")}
    rows, evidence, _, _ = evaluated(tree, {"c": result({0: (50, 1e-9), 3: (60, 1e-12), 1: (40, 1e-6)})}, crossed)
    assert rows == [3, 0, 1] and evidence == [2.0, 2.0, 2.0]


def test_coverage_belongs_to_questions_also_where_a_space_is_asked_several():
    queries = [SpaceQuery(space, "", None) for space in ("bm25", "text", "bm25")]
    status = [LayerStatus("bm25", shard, "ready", covered, 9) for shard in (0, 1) for covered in (1 + shard, 5 + shard)]
    status += [LayerStatus("text", shard, "ready", 7, 9) for shard in (0, 1)]
    assert [[one.covered for one in told] for told in by_question(queries, status)] == [[1, 2], [7, 7], [5, 6]]


# --- on a small engine ----------------------------------------------------------------------------------------------------------------

WORDS = "amber basalt cobalt dolomite emerald feldspar garnet hematite iolite jasper".split()


def files() -> dict[str, str]:
    """Sixty notes: every fifth is about solar panels, every third about battery storage, so four are about both."""
    made = {}
    for i in range(60):
        body = " ".join(f"{WORDS[(i + j) % 10]}{WORDS[(i * 3 + j) % 10]}" for j in range(25))
        about = ("\nSolar panels on roofs.\n" if i % 5 == 0 else "") + ("\nBattery storage at home.\n" if i % 3 == 0 else "")
        made[f"notes/{i:02}.txt"] = f"Note {i}. {body}.{about}"
    return made


SOLAR, BATTERY = search("solar panels", name="solar"), search("battery storage", name="battery")
BOTH = {f"notes/{i:02}.txt" for i in (0, 15, 30, 45)}


@pytest.fixture(scope="module")
def engines(tmp_path_factory) -> dict[int, Engine]:
    folder = tmp_path_factory.mktemp("algebra")
    source = write_files(folder / "source", files())
    made = {}
    for n in (1, 2, 3, 16):
        made[n] = Engine(folder / str(n), ("names", "text", "bm25"))
        made[n].index(source, n_shards=n, calibrate=n == 2)  # shards are compared without null models, which take the most time
    return made


def asked(engine: Engine, tree: dict, **more):
    return engine.search(combine=tree, keep_all=True, **{"k": 60} | more)


def test_a_sub_query_alone_is_the_plain_search(engines):
    for own in ({"query": "solar panels", "layers": ["bm25"]}, {"query": "battery"}, {"forms": {"text": {"pattern": "on roofs"}}}):
        plain, combined = engines[2].search_many(
            [{**own, "k": 60, "explain": True}, {"combine": {"search": own}, "k": 60, "explain": True}]
        )
        assert [(h.hash, h.fused, h.evalue, h.start, h.end) for h in combined.hits] == [
            (h.hash, h.fused, h.evalue, h.start, h.end) for h in plain.hits
        ]
        assert (combined.verdict, combined.verdict_reason, combined.complete) == (plain.verdict, plain.verdict_reason, True)
        assert [info.model_copy(update={"part": ""}) for info in combined.layers if info.asked] == [i for i in plain.layers if i.asked]


def test_each_hit_tells_what_each_sub_query_says_of_it(engines):
    answer = asked(engines[3], {"union": [SOLAR, BATTERY]})
    assert len(answer.hits) == 28 and set(paths(answer)[:4]) == BOTH
    alone = {name: {h.hash: h for h in asked(engines[3], node).hits} for name, node in (("solar", SOLAR), ("battery", BATTERY))}
    for hit in answer.hits:
        assert hit.fused == pytest.approx(sum(part.fused for part in hit.parts))
        assert hit.evalue == pytest.approx(2 * min(part.evalue for part in hit.parts))
        for part in hit.parts:
            single = alone[part.name][hit.hash]
            assert (part.fused, part.evalue, part.start, part.end) == (single.fused, single.evalue, single.start, single.end)
        assert {signal.part for signal in hit.signals} <= {part.name for part in hit.parts}
    assert set(paths(asked(engines[3], {"intersect": [SOLAR, BATTERY]}))) == BOTH
    only = asked(engines[3], {"and": [SOLAR, {"not": BATTERY}]})
    assert not set(paths(only)[:8]) & BOTH and len(only.hits) == 12


class Counting(LocalSearcher):
    """Counts calls, and lets a test act before one is made."""

    def __init__(self, host: Host):
        super().__init__(host)
        self.plans: list[Plan] = []
        self.before = lambda: None

    async def search(self, corpus, generation, n_shards, plan):
        self.plans.append(plan)
        found = await super().search(corpus, generation, n_shards, plan)
        self.before()
        return found

    async def details(self, corpus, generation, n_shards, spans, words=(), excerpt_size=0, where=EVERYWHERE, budget_s=0.0, queries=()):
        """Without a deadline: how long reading takes here says nothing of what is tested."""
        return await super().details(corpus, generation, n_shards, spans, words, excerpt_size, where, 30.0, queries)


def counted(engine: Engine, tree: dict, act=None, **more):
    """The answer and the plans that were sent. act: what happens while the first answer is on its way."""

    async def run():
        host = Host(engine.store.url, {}, str(engine.folder / "cache"), engine.cache_bytes)
        host.store = engine.store
        searcher = Counting(host)
        searcher.before = act or searcher.before
        made = Coordinator(engine.store, searcher, engine.resources, engine.cache)
        request = SearchRequest(**{"corpus": "c", "combine": tree, "budget_ms": 30_000, "keep_all": True} | more)
        return await made.search(request), searcher.plans

    return asyncio.run(run())


@pytest.mark.parametrize(
    "tree",
    [
        {"union": [SOLAR, BATTERY]},
        {"fuse": {"of": [SOLAR, {"then": [BATTERY, SOLAR]}], "coupling": "rrf"}},
        {"seed": [{"cut": {"of": SOLAR, "n": 5}}, {"wsum": {"of": [BATTERY, search("note")]}}]},
        {"and": [SOLAR, {"not": {"select": [BATTERY, search("xqzvw")]}}]},
    ],
)
def test_what_waits_for_nothing_takes_one_call(engines, tree):
    answer, plans = counted(engines[2], tree)
    assert len(plans) == 1 and answer.combined.rounds == 1 and answer.complete
    names = [info.part for info in answer.layers if info.asked]
    assert len(plans[0].queries) == len(names) == len(set(names))  # one question each, what is said twice is asked once


def test_what_only_scores_reads_no_document_that_nobody_brought(engines):
    pattern = search(forms={"text": {"pattern": "home"}}, name="home")
    answer, (plan,) = counted(engines[1], {"then": [SOLAR, pattern]}, k=60)
    assert [(query.space, query.finds) for query in plan.queries] == [("bm25", True), ("text", False)]
    assert set(paths(answer)) == BOTH
    home = next(info for info in answer.layers if info.part == "home")
    assert home.n_matched == 0 and home.asked == "'home', any case"  # it has found nothing by itself


def test_seeds_stay_where_the_second_sees_nothing(engines):
    answer = asked(engines[2], {"seed": [SOLAR, BATTERY]})
    assert len(answer.hits) == 12 and set(paths(answer)[:4]) == BOTH
    assert [hit.fused > 0 for hit in answer.hits] == [True] * 4 + [False] * 8


def essence(answer) -> list:
    return [
        (h.hash, h.start, h.end, [(p.name, p.start, p.end) for p in h.parts], [(s.part, s.layer, s.score) for s in h.signals])
        for h in answer.hits
    ]


def test_combined_answers_do_not_depend_on_the_number_of_shards(engines):
    bridge = {"bridge": {"from": SOLAR, "key": {"pattern": r"Note (\d+)"}, "to": search("note $key battery", ["bm25"]), "n": 3}}
    trees = [
        {"union": [SOLAR, BATTERY]},
        {"intersect": [SOLAR, search("battery", ["bm25", "text"])]},
        {"then": [search("battery"), SOLAR]},
        {"seed": [{"cut": {"of": BATTERY, "n": 7}}, SOLAR]},
        {"fuse": {"of": [SOLAR, BATTERY], "coupling": "zscore", "weights": [1, 3]}},
        {"select": [SOLAR, BATTERY, search("xqzvw")]},
        {"wsum": {"of": [SOLAR, BATTERY, {"not": search("roofs")}], "weights": [1, 2, 0.5]}},
        bridge,
        {"union": [BATTERY, bridge]},
        {"then": [BATTERY, bridge]},
    ]
    requests = [{"combine": tree, "keep_all": True, "k": 40} for tree in trees]
    expected = engines[1].search_many(requests)
    assert all(answer.hits for answer in expected)
    for n in (3, 16):
        for one, other in zip(expected, engines[n].search_many(requests), strict=True):
            assert essence(other) == essence(one), f"{n} shards: {one.combined.expression}"
            assert other.verdict == one.verdict and [(p.name, p.documents) for p in other.combined.parts] == [
                (p.name, p.documents) for p in one.combined.parts
            ]
            assert [(key.key, key.hash, key.part) for key in other.combined.keys] == [(k.key, k.hash, k.part) for k in one.combined.keys]
            for a, b in zip(one.hits, other.hits, strict=True):
                assert (b.fused, b.evalue) == pytest.approx((a.fused, a.evalue), rel=1e-9)


def random_tree(rng: random.Random, depth: int) -> dict:
    """Any operators over searches of the notes."""
    if depth == 0 or rng.random() < 0.15:
        words = rng.choice(["solar panels", "battery storage", "note 15", "roofs", "xqzvw"])
        more = rng.choice([{}, {}, {"coupling": "rrf"}, {"coupling": "select"}, {"paths": ["notes/*5.txt"]}])
        names = search(forms={"names": {"substring": str(rng.randrange(60))}})
        return rng.choice([search(words, rng.choice([["bm25"], ["bm25", "text"]]), **more), names])
    of = [random_tree(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    operator = rng.choice(["union", "intersect", "then", "seed", "cut", "fuse", "select", "bridge", "and", "or", "wsum"])
    match operator:
        case "seed":
            return {"seed": [of[0], of[-1]]}
        case "cut":
            return {"cut": {"of": of[0], **rng.choice([{"n": rng.randint(1, 20)}, {"evalue": 3.0}, {"verdict": "weak"}])}}
        case "fuse":
            return {
                "fuse": {"of": of, "weights": list(range(1, len(of) + 1)), "coupling": rng.choice(["evidence", "rrf", "minmax", "dbsf"])}
            }
        case "bridge":
            to = rng.choice([search("note $key"), search(forms={"names": {"substring": "$key"}})])
            return {"bridge": {"from": of[0], "key": rng.choice([{"pattern": r"Note (\d+)"}, {"field": "path"}]), "to": to, "n": 2}}
        case "and" | "or" | "wsum":
            negated = [rng.choice([node, {"not": node}]) for node in of[1:]]
            return {operator: {"of": [of[0], *negated]} if operator == "wsum" else [of[0], *negated]}
    return {operator: of}


def test_random_trees_give_the_same_on_any_number_of_shards(engines):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    trees = []
    while len(trees) < 25:
        tree = random_tree(rng, 3)
        if sum(1 for _ in places(TypeAdapter(Node).validate_python(tree))) <= MAX_SEARCHES:
            trees.append({"combine": tree, "keep_all": True, "k": 60})
    for one, other in zip(engines[1].search_many(trees), engines[16].search_many(trees), strict=True):
        assert essence(other) == essence(one), one.combined.expression
        assert other.verdict == one.verdict and all(math.isfinite(h.fused) and math.isfinite(h.evalue) for h in one.hits)


def test_more_keys_than_a_request_may_ask_with_are_counted(engines):
    keys = {"bridge": {"from": {"text": " ".join(f"name_{i}" for i in range(12))}, "key": "identifier", "to": search("$key")}}
    answer = asked(engines[1], keys)
    assert len(answer.combined.keys) == MAX_KEYS
    assert answer.combined.notes == [
        f"{answer.combined.expression}: {12 - MAX_KEYS} more keys were found; the first {MAX_KEYS} were asked with."
    ]
    many = asked(engines[1], {"union": [keys | {"bridge": keys["bridge"] | {"to": search(f"$key {i}")}} for i in range(8)]})
    assert len(many.combined.parts) == MAX_ASKED == len(many.combined.keys) and len(many.combined.notes) == 8


def test_what_a_bridge_brings_is_scored_by_what_it_is_combined_with(engines):
    """The bridge's notes have no solar panels on their list of the first round; battery sees them in the second."""
    bridge = {
        "bridge": {
            "from": {"text": "Note 33"},
            "key": {"pattern": r"Note (\d+)"},
            "to": search(forms={"names": {"name": "$key.txt"}}, name="note"),
        }
    }
    answer, plans = counted(engines[2], {"intersect": [{"cut": {"of": BATTERY, "n": 1}}, bridge]})
    whole, _ = counted(engines[2], {"intersect": [BATTERY, bridge]})
    assert len(plans) == 1  # the text's keys are known before anything is asked
    assert paths(whole) == ["notes/33.txt"] and {part.name for part in whole.hits[0].parts} == {"battery", "note[33]"}
    assert paths(answer) in ([], ["notes/33.txt"])
    later = {
        "bridge": {"from": search("33", ["names"]), "key": {"pattern": r"Note (\d+)"}, "to": search(forms={"names": {"name": "$key.txt"}})}
    }
    both, plans = counted(engines[2], {"union": [SOLAR, later]})
    assert len(plans) == 2 and both.combined.rounds == 2
    again = plans[1]
    assert [query.finds for query in again.queries] == [False, True] and len(again.given) == 12 * 20
    assert "notes/33.txt" in paths(both)
    assert [info.n_matched for info in both.layers if info.part == "solar"] == [12]  # as in the round in which it was found


def test_pages_of_a_combined_request_are_one_ranking_cut_in_pieces(engines):
    tree = {"union": [SOLAR, BATTERY]}
    whole = [hit.hash for hit in asked(engines[2], tree).hits]
    found, cursor = [], None
    for _ in range(4):
        answer = asked(engines[2], tree, k=8, **({"cursor": cursor} if cursor else {}))
        found += [hit.hash for hit in answer.hits]
        cursor = answer.cursor
    assert found == whole and cursor is None
    first = asked(engines[2], tree, k=8)
    with pytest.raises(BadQuery, match="belongs to another request"):
        asked(engines[2], {"union": [BATTERY, SOLAR]}, k=8, cursor=first.cursor)


def test_a_round_that_there_is_no_time_for_is_left_out_and_named(engines, monkeypatch):
    """The first answer takes all the time there was."""
    made: list[Budget] = []

    class Told(Budget):
        __slots__ = ()

        def __init__(self, seconds: float):
            super().__init__(seconds)
            made.append(self)

    monkeypatch.setattr(coordinator, "Budget", Told)

    def time_passes() -> None:
        made[0].deadline = -math.inf

    bridge = {"bridge": {"from": search("33", ["names"]), "key": {"pattern": r"Note (\d+)"}, "to": search("$key battery", name="then")}}
    answer, plans = counted(engines[2], {"union": [SOLAR, bridge]}, act=time_passes)
    assert len(plans) == 1 and not answer.complete
    assert set(paths(answer)) <= {f"notes/{i:02}.txt" for i in range(0, 60, 5)} and answer.hits
    late = [c for c in answer.coverage if c.state == "late"]
    assert {(c.layer, c.covered) for c in late} == {("bm25", 0)} and "before the round in which this is asked" in late[0].reason
    assert answer.combined.keys == []


def test_filters_of_the_request_and_of_a_sub_query_hold_both(engines):
    tree = {"union": [search("solar panels", name="solar", paths=["notes/*0.txt"]), search("battery", name="battery")]}
    answer = asked(engines[3], tree, paths=["!notes/00.txt"])
    solar = {path for path, hit in zip(paths(answer), answer.hits, strict=True) if any(part.name == "solar" for part in hit.parts)}
    battery = {path for path, hit in zip(paths(answer), answer.hits, strict=True) if any(part.name == "battery" for part in hit.parts)}
    assert solar == {f"notes/{i}0.txt" for i in range(1, 6)}
    assert battery == {f"notes/{i:02}.txt" for i in range(3, 60, 3)}
    assert {c.total for c in answer.coverage if c.part == "solar"} < {c.total for c in answer.coverage if c.part == "battery"} | {
        0,
        1,
        2,
        3,
        4,
    }


@pytest.mark.parametrize(
    ("tree", "at", "said"),
    [
        ({"union": [search("a", ["bm52"])]}, "combine.union[0].search", "no layer 'bm52'. Choose from: bm25, names, text"),
        ({"cut": {"of": search("a", where={"n": {"~": 3}}), "n": 1}}, 'combine.cut.of.search.where.n["~"]', "unknown operator"),
        ({"union": [search(forms={"text": {"pattern": "(", "regex": True}})]}, "combine.union[0].search", "text"),
        ({"union": [search("a", coupling="joint")]}, "combine.union[0].search.coupling", "of a whole request"),
        ({"bridge": {"from": SOLAR, "key": "symbol", "to": search("$key", ["symbols"])}}, "combine.bridge.to.search", "'symbols'"),
    ],
)
def test_what_is_wrong_with_a_sub_query_is_told_with_its_place(engines, tree, at, said):
    with pytest.raises(BadQuery) as error:
        asked(engines[1], tree)
    assert error.value.at == at and said in str(error.value), (error.value.at, str(error.value))


def test_a_hosts_answer_keeps_what_was_given_and_drops_what_nobody_lists(engines):
    """Documents that a plan gives are scored by every question, on whatever shard they lie."""
    generation = engines[3].generation()
    shards = [generation.shard(ref.shard) for ref in generation.root.shards]
    prepared, _ = questions.prepare(generation, SearchRequest(corpus="c", query="solar panels", layers=["bm25"]), ["bm25"])
    every = search_shards(shards, Plan(Everything(), tuple(prepared), n_candidates=60), Budget())
    wanted = every.hashes[:2].tobytes() + b"\xff" * 20  # the last is no document
    only = tuple(replace(query, finds=False) for query in prepared)
    scored = search_shards(shards, Plan(Everything(), only, given=wanted), Budget())
    assert scored.hashes.tobytes() == wanted[:40] and not scored.generated.any()
    assert scored.scores.tolist() == every.scores[:2].tolist() and scored.moments == every.moments
    parts = [search_shards([shard], Plan(Everything(), only, given=wanted), Budget()) for shard in shards]
    merged = merge(parts, 100, wanted)
    assert merged.hashes.tobytes() == wanted[:40] and merged.scores.tolist() == scored.scores.tolist()
    assert not len(merge(parts, 100).hashes)
    late = search_shards(shards, Plan(Everything(), only, given=wanted), Budget(0))
    assert not np.isfinite(late.scores).any() and "late" in {one.state for one in late.status}


def test_the_schema_tells_the_operators():
    told = json.dumps(SearchRequest.model_json_schema())
    for operator in ("union", "intersect", "then", "seed", "cut", "fuse", "select", "bridge", "and", "or", "not", "wsum"):
        assert f'"{operator}"' in told


def test_over_http_and_in_the_terminal_a_tree_is_json(engines, capsys, tmp_path):
    engine, tree = engines[2], {"intersect": [SOLAR, BATTERY]}
    expected = essence(asked(engine, tree, k=10))
    settings = HostSettings(store_url=engine.store.url, cache_dir=engine.folder / "cache")
    server = uvicorn.Server(uvicorn.Config(create_app(local_coordinator(settings)), port=0, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        with sondage.connect(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}") as client:
            answer = client.search(corpus="c", combine=tree, keep_all=True)
            assert essence(answer) == expected and answer.combined.parts[0].name == "solar"
            with pytest.raises(InvalidRequest, match="did you mean 'query'") as error:
                client.search(corpus="c", combine={"union": [{"search": {"qery": "a"}}]})
            assert error.value.at == "combine.union[0].search.qery"
    finally:
        server.should_exit = True
        thread.join(20)
    (tmp_path / "tree.json").write_text(
        json.dumps({"union": [search(forms={"names": {"name": "33.txt"}}), search(forms={"names": {"name": "7.txt"}})]})
    )
    status = cli.main(["search", "--combine", f"@{tmp_path / 'tree.json'}", "--store", engine.store.url, "--color", "never"])
    shown = capsys.readouterr().out
    assert status == 0 and "notes/33.txt:1:" in shown and 'combined: union(search[names]({"name": "33.txt"})' in shown
