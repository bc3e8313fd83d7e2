"""Queries for rows over shards: the same rows, order and scores wherever documents lie, and those of the obvious definition."""

import random
from dataclasses import replace

import numpy as np
import pytest
from row_corpus import CONTENT, Corpus, Document, Plain, by, compare, essence, meta, plain_order, plain_rows

from shards.layers.vectors import vector_arrays
from shards.nlql import ir
from shards.nlql.answers import Insertion
from shards.nlql.context import Context
from shards.nlql.errors import ExecutionError, NLQLTypeError
from shards.nlql.merging import merge_rows
from shards.nlql.plan import Cut, Given, RowPlan, Scorer
from shards.nlql.scan import run_rows
from shards.nlql.units import normalise
from shards.types import Budget

SENTENCES = {"content": ("embedded", {"embedder": "words"})}
CHUNKS = {"content": ("embedded", {"embedder": "words", "unit": "chunk"})}
WORDS = "agents plan tasks tools memory vector index stores banana bread loaf soup tomato recall speed query words note".split()


def random_documents(rng: random.Random, n: int) -> list[Document]:
    """Some with the same text under several paths, some empty, mixed metadata."""
    found: list[Document] = []
    for i in range(n):
        if found and rng.random() < 0.15:
            text = rng.choice(found).text
        else:
            text = " ".join(
                " ".join(rng.choices(WORDS, k=rng.randrange(1, 7))).capitalize() + rng.choice(". |! |? |\n|。").replace("|", "")
                for _ in range(rng.randrange(6))
            )
        metadata = {"year": rng.choice([2021, 2022, "2023", 2024.5]), "topic": rng.choice(["food", "ai", None]), "rank": rng.randrange(4)}
        found.append(Document(f"doc-{i}", text, {key: value for key, value in metadata.items() if rng.random() < 0.9}))
    return found


def portions_of(rng: random.Random, documents: list[Document], n: int) -> list[list[Document]]:
    """In order of insertion, in portions; before each document that comes late, another text stood at its path."""
    cuts = sorted(rng.sample(range(1, len(documents)), n - 1))
    portions = [documents[a:b] for a, b in zip([0, *cuts], [*cuts, len(documents)], strict=True)]
    earlier = [replace(document, text=document.text + " Outdated words.") for portion in portions[1:] for document in portion[::2]]
    doomed = [Document(f"gone-{i}", "Banana bread stays. Agents go.") for i in range(3)]
    return [[*earlier, *doomed, *portions[0]], *portions[1:-1], [replace(d, text=None) for d in doomed] + portions[-1]]


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return random_documents(random.Random(9), 60)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory, documents) -> dict[str, Corpus]:
    rng = random.Random(4)
    made = {}
    for name, n_shards, n_portions in (("one", 1, 1), ("three", 3, 3), ("four", 4, 2)):
        portions = [documents] if n_portions == 1 else portions_of(rng, documents, n_portions)
        made[name] = Corpus(tmp_path_factory.mktemp(name), portions, n_shards, SENTENCES)
    return made


def answers(corpora: dict[str, Corpus], plan: RowPlan) -> list:
    """The answer of each corpus, by one host and by one for each shard, which all must be the same."""
    found = [answer for corpus in corpora.values() for answer in (corpus.rows(plan), corpus.together(plan))]
    for answer in found[1:]:
        assert essence(answer) == essence(found[0])
        assert (answer.n_matched, answer.truncated, answer.facets) == (found[0].n_matched, found[0].truncated, found[0].facets)
    return found


RELEVANCE, OTHER = ir.Ref("#0"), ir.Ref("#1")
FILTERS = [
    (),
    (compare(meta("topic"), "==", "food"),),
    (compare(RELEVANCE, ">", 0.1),),
    (compare(meta("rank"), ">=", 2), compare(RELEVANCE, ">=", 0.0)),
    (ir.Call("CONTAINS", (CONTENT, ir.Literal("banana"))), compare(meta("year"), "!=", 2022)),
    (ir.Or((compare(OTHER, ">", 0.3), ir.Call("LIKE", (CONTENT, ir.Literal("%soup%"))))),),
    (ir.Not(compare(meta("topic"), "==", None)), compare(ir.Call("LENGTH", (CONTENT,)), "<", 40)),
]
ORDERS = [
    (),
    (by(RELEVANCE),),
    (by(meta("rank"), False), by(RELEVANCE)),
    (by(meta("year")), by(CONTENT, False)),
    (by(ir.Ref("both")),),
]


@pytest.mark.parametrize("order", ORDERS, ids=range(len(ORDERS)))
@pytest.mark.parametrize("wanted", FILTERS, ids=range(len(FILTERS)))
def test_rows_are_those_of_the_obvious_definition_on_any_placement(corpora, documents, wanted, order):
    one = corpora["one"]
    texts = {"#0": "banana bread recall", "#1": "tomato soup"}
    scorers = [one.similarity(name, "content", text) for name, text in texts.items()]
    both = ir.Binding("both", ir.And((compare(RELEVANCE, ">", 0.2), compare(OTHER, ">", 0.2))))
    plan = RowPlan("sentence", Cut("sentence", "content"), scorers=tuple(scorers), filter=wanted, order_by=order, let=(both,))
    context = Context(let={"both": both.expr})
    expected = plain_order(plain_rows(documents, "sentence", texts, one.embedder), plan, context)
    for n_rows in (None, 7):
        found = answers(corpora, replace(plan, n_rows=n_rows))[0]
        assert [(row.entry.path, row.ordinal, row.content) for row in found.rows()] == [
            (row.document.path, row.ordinal, row.content) for row in expected[:n_rows]
        ]
        assert found.n_matched == len(expected)
        for row, plain in zip(found.rows(), expected, strict=False):
            assert row.scores == pytest.approx(plain.scores, abs=1e-12)
            assert row.entry.metadata == plain.metadata
            assert normalise(plain.document.text.encode()[row.start : row.end].decode()) == row.content
        assert {(status.space, status.state) for status in found.status} == {("rows", "ready"), ("content", "ready")}


def best_first(rows: list[Plain]) -> list[Plain]:
    return list({row.document.path: row for row in reversed(rows)}.values())[::-1]


@pytest.mark.parametrize("order", ORDERS[:3], ids=range(3))
def test_documents_are_as_many_as_wanted_each_by_its_best_unit(corpora, documents, order):
    """B1: no cut in units comes before."""
    texts = {"#0": "banana bread recall", "#1": "tomato soup"}
    scorers = tuple(corpora["one"].similarity(name, "content", text) for name, text in texts.items())
    length = ir.Binding("length", ir.Call("LENGTH", (CONTENT,)))
    plan = RowPlan("document", Cut("sentence", "content"), scorers=scorers, order_by=order, let=(length,))
    ordered = plain_order(plain_rows(documents, "sentence", texts, corpora["one"].embedder), plan, Context(let={"length": length.expr}))
    expected: dict[str, Plain] = {}
    for row in ordered:
        expected.setdefault(row.document.path, row)
    for n_rows in (None, 12):
        found = answers(corpora, replace(plan, n_rows=n_rows))[0]
        assert [row.entry.path for row in found.rows()] == list(expected)[:n_rows]
        assert found.n_matched == len(expected)
        for row, plain in zip(found.rows(), expected.values(), strict=False):
            assert (row.content, row.ordinal, row.start, row.end) == (plain.document.text, 0, 0, len(plain.document.text.encode()))
            assert row.scores == pytest.approx(plain.scores, abs=1e-12)
            assert row.let == {"length": len(plain.content)}  # B14: of the unit that was found


def test_a_chunk_of_a_sentence_index_joins_what_is_left_of_a_document_best_first(corpora, documents):
    texts = {"#0": "banana bread recall"}
    scorers = (corpora["one"].similarity("#0", "content", texts["#0"]),)
    plan = RowPlan("chunk", Cut("sentence", "content"), scorers=scorers, filter=(compare(RELEVANCE, ">", 0.0),), order_by=(by(RELEVANCE),))
    expected: dict[str, list[str]] = {}
    for row in plain_order(plain_rows(documents, "sentence", texts, corpora["one"].embedder), plan, Context()):
        expected.setdefault(row.document.path, []).append(row.content)
    found = answers(corpora, replace(plan, n_rows=9))[0]
    assert [(row.entry.path, row.content) for row in found.rows()] == [(path, " ".join(parts)) for path, parts in expected.items()][:9]
    assert any(len(parts) > 1 for parts in list(expected.values())[:9])


def test_a_span_shows_the_neighbours_of_the_same_document_whether_they_pass_or_not(corpora, documents):
    plan = RowPlan("sentence", Cut("sentence", "content"), window=1, filter=(ir.Call("CONTAINS", (CONTENT, ir.Literal("banana"))),))
    rows = plain_rows(documents, "sentence", {}, corpora["one"].embedder)
    found = list(answers(corpora, plan)[0].rows())
    expected = []
    for row in rows:
        if "banana" in row.content.lower():
            own = [other for other in rows if other.document.path == row.document.path]
            inside = [other for other in own if abs(other.ordinal - row.ordinal) <= 1]
            span = (inside[0].ordinal, row.ordinal, inside[-1].ordinal)
            expected.append((row.document.path, row.ordinal, " ".join(other.content for other in inside), span))
    assert [(row.entry.path, row.ordinal, row.content, row.span) for row in found] == expected
    assert {span[2] - span[0] for *_, span in expected} == {0, 1, 2}


def test_facets_count_all_rows_that_pass_whatever_is_returned(corpora, documents):
    plan = RowPlan(
        "sentence", Cut("sentence", "content"), filter=(compare(meta("rank"), ">=", 1),), n_rows=2, facets=(meta("topic"), meta("year"))
    )
    rows = [row for row in plain_rows(documents, "sentence", {}, corpora["one"].embedder) if (row.metadata.get("rank") or 0) >= 1]
    found = answers(corpora, plan)[0]
    assert len(found) == 2
    for facet, name in zip(found.facets, ("topic", "year"), strict=True):
        values = [row.metadata.get(name) for row in rows]
        assert dict(facet) == {value: values.count(value) for value in set(values)}
        assert [n for _, n in facet] == sorted((n for _, n in facet), reverse=True)


def test_a_scope_and_given_documents_bound_the_rows(corpora, documents):
    from shards.identity import content_hash
    from shards.plan import Glob

    chosen = next(d for d in documents if d.text.strip())
    among = content_hash(chosen.text.encode())
    found = answers(corpora, RowPlan("document", Cut("sentence", "content"), among=among))[0]
    same = [d.path for d in documents if d.text == chosen.text]
    assert [row.entry.path for row in found.rows()] == same
    found = answers(corpora, RowPlan("document", Cut("sentence", "content"), where=Glob("doc-1?"), among=None))[0]
    assert [row.entry.path for row in found.rows()] == [
        d.path for d in documents if d.path[:5] == "doc-1" and len(d.path) == 6 and d.text.strip()
    ]


def test_scores_that_the_coordinator_made_are_joined_by_content(corpora, documents):
    from shards.identity import content_hash

    numbers = {content_hash(d.text.encode()): float(i) for i, d in enumerate(documents[:20])}
    plan = RowPlan(
        "document", Cut("sentence", "content"), scorers=(Scorer("#0", "given", given=Given.of(numbers)),), order_by=(by(RELEVANCE),)
    )
    found = [(row.entry.path, row.scores["#0"]) for row in answers(corpora, plan)[0].rows()]
    some = [(path, score) for path, score in found if score is not None]
    assert some == sorted(some, key=lambda pair: -pair[1]) and len(found) > len(some) > 10
    assert all(path in {d.path for d in documents} for path, _ in found)
    for path, score in some:
        text = next(d.text for d in documents if d.path == path)
        assert numbers[content_hash(text.encode())] == score


def test_a_row_that_cannot_be_judged_fails_the_query_in_the_same_way_everywhere(corpora, documents):
    """`year > 2020` raises on the text "2023" nowhere; on a topic that is text everywhere, first in order of insertion."""
    plan = RowPlan("sentence", Cut("sentence", "content"), filter=(compare(meta("rank"), ">=", 2), compare(meta("topic"), ">", 3)))
    raised = []
    for corpus in corpora.values():
        for run in (corpus.rows, corpus.together):
            with pytest.raises(NLQLTypeError) as caught:
                run(plan)
            raised.append(str(caught.value))
    first = next(d for d in documents if (d.metadata.get("rank") or 0) >= 2 and d.metadata.get("topic") and d.text.strip())
    assert set(raised) == {raised[0]} and first.metadata["topic"] in raised[0]
    calm = replace(plan, filter=(compare(meta("rank"), ">=", 9), compare(meta("topic"), ">", 3)))
    assert len(answers(corpora, calm)[0]) == 0


def test_an_answer_of_too_many_rows_is_refused_with_the_remedy(corpora, monkeypatch):
    monkeypatch.setattr("shards.nlql.merging.MOST_ROWS", 50)
    plan = RowPlan("sentence", Cut("sentence", "content"))
    for corpus in corpora.values():
        with pytest.raises(ExecutionError, match=r"more than 50 rows.*LIMIT"):
            corpus.rows(plan)
        assert len(corpus.rows(replace(plan, n_rows=50))) == 50
    monkeypatch.setattr("shards.nlql.merging.MOST_BYTES", 1 << 6)
    with pytest.raises(ExecutionError, match="MB of text"):
        corpora["three"].rows(replace(plan, n_rows=50))


def test_an_answer_that_ran_out_of_time_says_so_and_holds_no_wrong_row(corpora):
    one = corpora["three"]
    plan = RowPlan("sentence", Cut("sentence", "content"), scorers=(one.similarity("#0", "content", "soup"),), order_by=(by(RELEVANCE),))
    answer = one.rows(plan, Budget(-1.0))
    assert len(answer) == 0
    assert {(status.space, status.state) for status in answer.status} == {("rows", "late"), ("content", "late")}


def test_sentences_of_a_chunk_index_are_scored_as_sentences(tmp_path, documents):
    """B4: conditions and scores are of the sentence that is returned; encoded once, however often it is asked for."""
    corpus = Corpus(tmp_path, [documents[:30], documents[30:]], 2, CHUNKS)
    texts = {"#0": "banana bread recall"}
    scorer = corpus.similarity("#0", "content", texts["#0"], encode=True)
    plan = RowPlan(
        "sentence", Cut("sentence"), scorers=(scorer,), filter=(compare(RELEVANCE, ">", 0.1),), order_by=(by(RELEVANCE),), n_rows=15
    )
    expected = plain_order(plain_rows(documents, "sentence", texts, corpus.embedder), plan, Context())
    asked = corpus.embedder.n_asked
    answer = corpus.rows(plan)
    assert [(row.entry.path, row.ordinal, row.content) for row in answer.rows()] == [
        (row.document.path, row.ordinal, row.content) for row in expected[:15]
    ]
    assert 0 < answer.n_encoded == corpus.embedder.n_asked - asked
    assert corpus.rows(plan).n_encoded == 0


def test_rows_of_passages_and_finer_ones_that_take_the_score_of_their_passage(tmp_path):
    long = " ".join(f"Sentence {i} is about {'soup' if i % 9 == 4 else 'agents'} and more words." for i in range(60))
    corpus = Corpus(
        tmp_path,
        [[Document("long", long), Document("short", "Tomato soup.")]],
        1,
        {"own": ("embedded", {"embedder": "words", "unit": "passage"})},
    )
    scorer = corpus.similarity("#0", "own", "soup")
    passages = list(corpus.rows(RowPlan("chunk", Cut("passage", "own"), scorers=(scorer,))).rows())
    assert len(passages) > 3 and [row.ordinal for row in passages[:-1]] == list(range(len(passages) - 1))
    for row in passages:
        vector = corpus.embedder.vector(row.content)
        asked = corpus.embedder.vector("soup")
        assert row.scores["#0"] == pytest.approx(vector @ asked / np.linalg.norm(vector) / np.linalg.norm(asked), abs=1e-6)
    for row in corpus.rows(RowPlan("sentence", Cut("sentence"), scorers=(scorer,))).rows():
        over = [p.scores["#0"] for p in passages if p.entry.path == row.entry.path and p.start < row.end and row.start < p.end]
        assert row.scores["#0"] == max(over)


def test_entries_are_ordered_by_time_then_source_then_path_with_row_numbers_as_numbers():
    paths = ["a.jsonl#2", "a.jsonl#10", "a.jsonl", "b", "a.jsonl#010"]
    order = sorted(paths, key=lambda path: Insertion.of(1, "s", path))
    assert order == ["a.jsonl", "a.jsonl#2", "a.jsonl#010", "a.jsonl#10", "b"]
    assert Insertion.of(1, "z", "z") < Insertion.of(2, "a", "a")


def with_sketches(corpus: Corpus) -> None:
    """As merging leaves the space: a segment that was written in haste has no sketches."""
    space = corpus.generation.spaces["content"]
    for view in (view for shard in corpus.shards for view in shard.views):
        a = view.segment.layer(space.id)
        arrays = vector_arrays(a["vectors"], a["row_units"], a["starts"], a["ends"], a["in_scope"])
        view.readers[space.id] = space.layer.open(arrays, view.segment.documents, view.segment.entries, view.live_docs)
    assert all(reader.sketched() for shard in corpus.shards for view in shard.views for reader in view.readers.values())


@pytest.mark.parametrize("sketched", [True, False])
def test_the_best_rows_are_found_without_scoring_all_and_are_the_same(tmp_path, monkeypatch, sketched):
    """Over more documents than sketches are worth, with ties: texts that occur under several paths."""
    monkeypatch.setattr("shards.vector_sketches.LEAST_UNITS", 64)
    monkeypatch.setattr("shards.nlql.narrowing.LEAST_UNITS", 64)
    rng = random.Random(11)
    words = [f"w{i}" for i in range(400)]
    found = [Document(f"d{i}", ". ".join(" ".join(rng.choices(words, k=4)) for _ in range(3)), {"rank": i % 5}) for i in range(600)]
    found += [Document(f"copy-{i}", found[i].text, {"rank": 7}) for i in range(0, 120, 3)]
    corpus = Corpus(tmp_path, [found], 1, SENTENCES)
    if sketched:
        with_sketches(corpus)
    asked = found[9].text.split(". ")[1]  # whose own document stands there twice
    base = RowPlan("sentence", Cut("sentence", "content"), scorers=(corpus.similarity("#0", "content", asked),), order_by=(by(RELEVANCE),))
    plans = [
        replace(base, unit=unit, n_rows=n, filter=wanted)
        for unit in ("sentence", "document")
        for n in (1, 2, 30)
        for wanted in ((), (compare(meta("rank"), "!=", 3),), (compare(meta("rank"), "==", 7),))
    ]
    plans += [replace(plan, order_by=(by(meta("rank")), by(RELEVANCE))) for plan in plans]
    quick = [corpus.rows(plan) for plan in plans]
    monkeypatch.setattr("shards.nlql.scan.narrowed", lambda *_: None)
    for plan, answer in zip(plans, quick, strict=True):
        slow = corpus.rows(plan)
        assert essence(answer) == essence(slow)
        assert (answer.n_matched, answer.truncated, answer.n_scored <= slow.n_scored) == (slow.n_matched, slow.truncated, True)
    fewer = [plan for plan, answer in zip(plans, quick, strict=True) if answer.n_scored < 300]
    assert len(fewer) >= 14 and any(len(plan.order_by) == 2 for plan in fewer)


def test_scores_of_layers_are_those_of_searches_and_null_where_a_document_has_none(tmp_path, documents):
    from shards.identity import as_keys
    from shards.plan import Everything, Plan
    from shards.shard import search

    layers = SENTENCES | {name: (name, {}) for name in ("bm25", "names", "text")} | {"mine": ("vectors", {"dim": 3, "given": "mine"})}
    vectors = {f"doc-{i}": np.array([[i, 1.0, 2.0]], np.float32) for i in range(0, 60, 4)}
    corpus = Corpus(tmp_path, [documents[:40], documents[40:]], 2, layers, vectors)
    asked = {
        "#0": (corpus.question("bm25", "banana bread"), None),
        "#1": (corpus.question("names", "", glob="doc-1*"), None),
        "#2": (corpus.question("text", "", pattern="soup"), None),
        "#3": (corpus.question("mine", "", vector=[1.0, 0.0, 0.0]), -2.0),
    }
    scorers = tuple(Scorer(name, "document", query, missing) for name, (query, missing) in asked.items())
    answer = corpus.rows(RowPlan("document", Cut("sentence", "content"), scorers=scorers))
    everything = search(corpus.shards, Plan(Everything(), tuple(query for query, _ in asked.values()), 1_000, 0), Budget())
    by_hash = {key.tobytes(): row for key, row in zip(as_keys(everything.hashes), everything.scores, strict=True)}
    assert len(answer) > 40
    for row in answer.rows():
        found = by_hash.get(row.entry.hash, np.full(4, -np.inf))
        for i, (name, (_, missing)) in enumerate(asked.items()):
            if name == "#1":  # a layer over entries: of this very one
                assert (row.scores[name] is not None) == row.entry.path.startswith("doc-1")
            else:
                assert row.scores[name] == (float(found[i]) if np.isfinite(found[i]) else missing)
    assert {len({row.scores[name] for row in answer.rows()}) > 1 for name in asked} == {True}
    assert {status.space for status in answer.status} == {"rows", "bm25", "names", "text", "mine"}


def test_what_is_pushed_later_has_a_later_time_however_fast_it_comes(monkeypatch):
    from shards import pushlog

    monkeypatch.setattr(pushlog.time, "time_ns", lambda: 5)  # a clock that stands still
    times = [pushlog.now_ns() for _ in range(100)]
    assert times == sorted(set(times))


def test_documents_that_a_space_lacks_are_rows_without_a_score_and_coverage_says_so(tmp_path, documents):
    corpus = Corpus(tmp_path, [documents[:30], documents[30:]], 1, SENTENCES)
    space = corpus.generation.spaces["content"]
    scorer = corpus.similarity("#0", "content", "soup")
    plan = RowPlan("sentence", Cut("sentence", "content"), scorers=(scorer,), order_by=(by(RELEVANCE),))
    whole = {(row.entry.path, row.ordinal): row for row in corpus.rows(plan).rows()}
    late = next(view for view in corpus.shards[0].views if view.live_entries.sum() == 30)  # as a push leaves a dear space
    reader = late.readers.pop(space.id)
    answer = corpus.rows(plan)
    rows = list(answer.rows())
    assert {(row.entry.path, row.ordinal): (row.start, row.end, row.content) for row in rows} == {
        key: (row.start, row.end, row.content) for key, row in whole.items()
    }
    scored = [row for row in rows if row.scores["#0"] is not None]
    assert 0 < len(scored) < len(rows) and rows[: len(scored)] == scored
    assert all(row.scores == whole[row.entry.path, row.ordinal].scores for row in scored)
    (status,) = [status for status in answer.status if status.space == "content"]
    assert status.state == "absent" and 0 < status.covered < status.total
    late.readers[space.id] = reader
    assert essence(corpus.rows(plan)) == essence(corpus.rows(replace(plan, n_rows=1_000))) == [*_essence_of(whole)]


def _essence_of(rows: dict) -> list:
    return [
        (row.entry.path, row.ordinal, row.start, row.end, row.content, row.span, tuple(row.scores.items()), tuple(row.let.items()))
        for row in rows.values()
    ]


def test_no_rows_are_wanted_and_the_matches_are_counted_all_the_same(corpora):
    for unit in ("sentence", "document", "chunk"):
        plan = RowPlan(unit, Cut("sentence", "content"), filter=(compare(meta("rank"), ">=", 1),), n_rows=0)
        answer = answers(corpora, plan)[0]
        assert len(answer) == 0 and answer.n_matched > 10 and answer.truncated


def test_an_alias_that_fails_on_a_row_is_left_out_there_and_nowhere_else(corpora, documents):
    import pickle

    let = (ir.Binding("late", compare(meta("year"), ">", 2021)), ir.Binding("big", compare(meta("topic"), ">", 1)))
    plan = RowPlan("document", Cut("sentence", "content"), let=let)
    for answer in (answers(corpora, plan)[0], pickle.loads(pickle.dumps(corpora["three"].rows(plan)))):
        for row in answer.rows():
            assert ("big" in row.let) == (row.entry.metadata.get("topic") is None)
            assert "late" in row.let


class Steps(Budget):
    """A time budget that ends after it was looked at so often."""

    def __init__(self, n: int):
        super().__init__()
        self.n = n

    @property
    def expired(self) -> bool:
        self.n -= 1
        return self.n < 0


def test_rows_that_are_sorted_by_their_texts_are_read_within_the_time(tmp_path, documents, monkeypatch):
    monkeypatch.setattr("shards.nlql.scan.FEW_ROWS", 8)
    monkeypatch.setattr("shards.nlql.scan.SLICE_S", 0.0)  # so no slice grows
    corpus = Corpus(tmp_path, [documents[:20], documents[20:]], 2, SENTENCES)
    length = ir.Call("LENGTH", (CONTENT,))
    plan = RowPlan("sentence", Cut("sentence", "content"), order_by=(by(length),))
    tested = replace(plan, filter=(compare(length, ">", 12),))
    for asked in (plan, tested):
        whole, sizes = essence(corpus.together(asked)), set()
        for n in range(0, 80, 3):
            answer = merge_rows([run_rows(corpus.shards, asked, Steps(n), corpus.plugins)], asked)
            rows = essence(answer)
            assert [row for row in whole if row in rows] == rows
            assert (len(rows) < len(whole)) == any(status.state == "late" for status in answer.status)
            sizes.add(len(rows))
        assert len(sizes) > 4


def test_wherever_the_time_ends_the_rows_so_far_are_right_and_the_rest_is_told(tmp_path, documents, monkeypatch):
    monkeypatch.setattr("shards.layers.vectors_reader._SLICE_COMPONENTS", 48 * 10)  # ten units between two looks at the clock
    corpus = Corpus(tmp_path, [documents[:20], documents[20:]], 2, SENTENCES)
    plan = RowPlan(
        "sentence",
        Cut("sentence", "content"),
        scorers=(corpus.similarity("#0", "content", "banana bread"),),
        filter=(compare(ir.Call("LENGTH", (CONTENT,)), ">", 12), compare(RELEVANCE, ">", -1)),
        order_by=(by(RELEVANCE),),
    )
    whole = essence(corpus.together(plan))
    sizes = set()
    for n in range(40):
        answer = merge_rows([run_rows(corpus.shards, plan, Steps(n), corpus.plugins)], plan)
        rows = essence(answer)
        assert [row for row in whole if row in rows] == rows
        late = [status for status in answer.status if status.space == "rows" and status.state == "late"]
        assert bool(late) == (len(rows) < len(whole)) or len(rows) == len(whole)
        assert all(status.covered < status.total and status.reason for status in late)
        sizes.add(len(rows))
    assert len(sizes) > 4 and max(sizes) == len(whole)


def test_paths_of_many_entries_are_those_of_each():
    from shards.segment import pack_entries
    from shards.types import Entry

    names = ["a", "", "folder/ünicode.txt", "odd\udcff.bin", "b" * 300]
    entries = pack_entries(Entry("s", name, bytes([i]) * 20, 1, i) for i, name in enumerate(names))
    for rows in ([0, 1, 2, 3, 4], [4, 0], [1], []):
        rows = np.array(rows, np.int64)
        assert entries.paths(rows) == [entries.path(row) for row in rows.tolist()]


def test_entries_of_one_time_stand_in_order_of_their_paths_in_one_segment_and_over_several(tmp_path):
    """As a table's rows do, and files of an archive."""
    paths = ["t.csv#10", "t.csv#9", "t.csv", "b/z", "b/a", "t.csv#100", "u#1", "a"]
    documents = [Document(path, f"Text of {path} here.") for path in paths]
    order = [Insertion.of(1_001, "pushed", path).path for path in sorted(paths, key=lambda path: Insertion.of(1_001, "pushed", path))]
    assert order == ["a", "b/a", "b/z", "t.csv", "t.csv#9", "t.csv#10", "t.csv#100", "u#1"]
    for name, n_shards, portions in (
        ("one", 1, [documents]),
        ("two", 1, [documents[::2], documents[1::2]]),
        ("four", 2, [documents[:3], documents[3:]]),
    ):
        (tmp_path / name).mkdir()
        corpus = Corpus(tmp_path / name, portions, n_shards, SENTENCES, still=True)
        for answer in (corpus.rows(RowPlan("document", Cut("sentence"))), corpus.together(RowPlan("document", Cut("sentence")))):
            assert [row.entry.path for row in answer.rows()] == order
