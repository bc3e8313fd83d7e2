"""The engine that fills and asks a corpus of its own in this process."""

import re
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

import sondage
from shards.errors import BadQuery, BadSpec
from shards.nlql.errors import EmbeddingError, NLQLTypeError, ParseError, RegistryError
from shards.plugins import PROCESS

TOOLS = "SELECT SENTENCE LET rel = SIMILARITY(content, 'agents call tools') ORDER BY rel DESC LIMIT 2"


class Words:
    """An embedder: a text's words, each in one of 64 places; not of unit length. asked: all texts so far."""

    model_id, dim = "words", 64

    def __init__(self):
        self.asked = []

    def embed(self, texts):
        self.asked += texts
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.lower()):
                vectors[row, zlib.crc32(word.encode()) % self.dim] += 3
        return vectors

    def embed_images(self, files):
        return self.embed(["a red square" for _ in files])


@pytest.fixture
def engine():
    with sondage.Engine(Words(), granularity="sentence") as made:
        made.add_text("Agents call tools. They plan.", id="a", metadata={"year": 2024, "tags": ["ai"], "on": "2024-03-01"})
        made.add_text("Bread needs flour. Mash bananas.", id="b", metadata={"year": 2020, "on": "2020-5-1"})
        made.add_text("Tools are called by agents!", id="c", metadata={"year": 2021})
        yield made


def ids(rows):
    return [row.id for row in rows]


def test_what_was_added_before_a_search_is_found_by_it(engine):
    assert ids(engine.search(TOOLS)) == ["a#sentence:0", "c#sentence:0"]
    engine.add_text("Agents call tools", id="d")
    assert ids(engine.search(TOOLS)) == ["a#sentence:0", "d#sentence:0"]
    assert len(engine) == 4


def test_scores_are_cosines_whatever_lengths_an_embedder_gives(engine):
    first = engine.search(TOOLS)[0]
    assert first.scores["rel"] == pytest.approx(1.0, abs=1e-6)


def test_an_id_that_is_added_again_is_replaced_wholly(engine):
    engine.search(TOOLS)
    engine.add_text("Nothing else.", id="a", metadata={"page": 7})
    rows = engine.search("SELECT SENTENCE WHERE meta.page == 7 OR meta.year == 2024")
    assert [(row.id, row.content, row.metadata) for row in rows] == [("a#sentence:0", "Nothing else.", {"page": 7})]
    engine.add_text("First.", id="e")
    engine.add_text("Second, which counts.", id="e")
    assert [row.content for row in engine.search("SELECT DOCUMENT WHERE content CONTAINS 'second'")] == ["Second, which counts."]
    assert len(engine) == 4


def test_a_document_that_was_taken_away_is_not_found(engine):
    engine.delete("a")
    engine.delete("nobody knows this one")
    assert [row.doc_id for row in engine.search(TOOLS)] == ["c", "b"]
    engine.flush()
    engine.delete("c")
    assert {row.doc_id for row in engine.search(TOOLS)} == {"b"}


def test_rows_keep_the_order_in_which_documents_were_added(engine):
    engine.flush()
    engine.add_documents([("z", "One."), ("y", "Two."), ("a2", "Three.")])
    assert [row.doc_id for row in engine.search("SELECT DOCUMENT")] == ["a", "b", "c", "z", "y", "a2"]


def test_documents_come_in_several_forms(engine):
    given = [
        sondage.Document("d1", "One here.", {"n": 1}, "https://example.org/1"),
        {"id": "d2", "text": "Two here.", "metadata": {"n": 2}},
        ("d3", "Three here."),
    ]
    assert engine.add_documents(iter(given), batch=2) == ["d1", "d2", "d3"]
    rows = engine.search("SELECT DOCUMENT WHERE content CONTAINS 'here'")
    assert [(row.doc_id, row.metadata) for row in rows] == [
        ("d1", {"n": 1, "source": "https://example.org/1"}),
        ("d2", {"n": 2}),
        ("d3", {}),
    ]
    made = engine.add_text("With an id of its own.")
    assert engine.search("SELECT DOCUMENT WHERE content CONTAINS 'of its own'")[0].doc_id == made


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("d",), "is no document"),
        ({"id": "d", "txt": "x"}, "Fields are: id, text, metadata"),
        (("", "x"), "id '' cannot be used"),
        (("d\n", "x"), "cannot be used"),
        (("d", b"x"), "type bytes. Files go to add_file"),
        (("d", "x", ["no"]), "metadata is of type list"),
        (("d", "\ud800"), "half of one"),
    ],
)
def test_what_is_no_document_is_refused_when_it_is_added(engine, given, told):
    with pytest.raises(BadQuery, match=re.escape(told)):
        engine.add(given)
    assert len(engine) == 3


def test_many_at_once_give_the_same_rows_as_one_by_one_and_as_on_three_shards():
    documents = [(f"d{i}", f"Part {i} of many. Number {i % 7} comes.", {"n": i % 5}) for i in range(60)]
    query = "SELECT SENTENCE LET rel = SIMILARITY(content, 'number 3 comes') WHERE meta.n < 4 ORDER BY rel DESC, meta.n LIMIT 25"
    found = []
    for shards in (1, 3):
        with sondage.Engine(Words(), granularity="sentence", shards=shards) as bulk:
            bulk.add_documents(documents)
            found.append([(row.id, row.scores) for row in bulk.search(query)])
    with sondage.Engine(Words(), granularity="sentence") as single:
        for document in documents[:20]:
            single.add(document)
            single.flush()
        single.add_documents(documents[20:], batch=7)
        found.append([(row.id, row.scores) for row in single.search(query)])
    assert len(found[0]) == 25
    assert found[0] == found[1] == found[2]


def test_rows_belong_to_one_query_whatever_other_threads_ask(engine):
    """Of the peer, rows are the stored objects: another query's scores came and went on them."""

    def reranker(question, rows):
        for row in rows:
            row.scores["rerank"] = float(len(question))
        return rows[::-1]

    queries = [
        (f"SELECT SENTENCE LET s{n} = SIMILARITY(content, 'tools {n}') WHERE s{n} > -2 ORDER BY s{n} DESC, content", n) for n in range(6)
    ]
    alone = {n: [(row.id, dict(row.scores)) for row in engine.search(query)] for query, n in queries}
    kept = engine.search(queries[0][0])
    wrong = []

    def ask(query, n):
        for turn in range(15):
            rows = engine.search(query, reranker=reranker if turn % 3 == 0 else None)
            told = [(row.id, dict(row.scores)) for row in rows]
            expected = alone[n]
            if turn % 3 == 0:
                expected = [(name, {**scores, "rerank": float(len(f"tools {n}"))}) for name, scores in reversed(alone[n])]
            if told != expected:
                wrong.append((n, turn, told))

    threads = [threading.Thread(target=ask, args=asked) for asked in queries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert [(row.id, row.scores) for row in kept] == alone[0]


def test_adding_and_asking_go_on_at_the_same_time(engine):
    def add(first):
        for number in range(first, first + 5):
            engine.add_text(f"Thread text {number}.", id=f"t{number}")
            assert f"t{number}" in {row.doc_id for row in engine.search("SELECT DOCUMENT WHERE content CONTAINS 'thread text'")}

    threads = [threading.Thread(target=add, args=(first,)) for first in (0, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(engine) == 13


# --- persistence -------------------------------------------------------------------------------------------------------------------


def test_a_store_is_opened_again_and_asked_as_it_is_by_the_engine_of_stores(tmp_path: Path):
    store = tmp_path / "store"
    with sondage.Engine(Words(), store=store, corpus="notes", granularity="sentence", shards=2, layers=["bm25"]) as engine:
        engine.add_text("Agents call tools. They plan.", id="a", metadata={"year": 2024})
        engine.add_text("Bread needs flour.", id="b")
    embedder = Words()
    with sondage.Engine(embedder, store=store, corpus="notes") as engine:
        assert engine.granularity == "sentence"
        expected = [(row.id, row.scores) for row in engine.search(TOOLS)]
        assert expected[0][0] == "a#sentence:0"
        engine.add_text("Agents call tools. They plan.", id="c")
        assert len(engine) == 3
        assert set(embedder.asked) == {"agents call tools"}  # texts that the corpus has are not embedded again
        engine.delete("c")
    PROCESS.add_embedder("words", Words())
    try:
        with sondage.Engine(store) as served:
            answer = served.query(TOOLS, "notes")
            assert [(row.id, row.scores) for row in answer.rows] == expected
            ranked = "SELECT DOCUMENT LET b = BM25(content, 'flour') ORDER BY b DESC LIMIT 1"
            assert [row.doc_id for row in served.query(ranked, "notes").rows] == ["b"]
            assert served.search("flour", "notes").hits[0].entries[0].path == "b"
    finally:
        PROCESS._embedders.remove("words")


def test_a_corpus_is_not_filled_by_another_embedder_or_in_other_pieces(tmp_path: Path):
    with sondage.Engine(Words(), store=tmp_path, granularity="sentence") as engine:
        engine.add_text("One.", id="a")

    class Other(Words):
        model_id = "others"

    with pytest.raises(BadSpec, match=r"was embedded by 'words' \(64 numbers\), and vectors of 'others'"):
        sondage.Engine(Other(), store=tmp_path)
    with pytest.raises(BadSpec, match="has embedded every sentence, not every chunk"):
        sondage.Engine(Words(), store=tmp_path, granularity="chunk")


def test_two_engines_fill_one_store(tmp_path: Path):
    with sondage.Engine(Words(), store=tmp_path, granularity="sentence") as one, sondage.Engine(Words(), store=tmp_path) as other:
        one.add_text("From the first.", id="a")
        one.flush()
        other.add_text("From the second.", id="b")
        other.flush()
        one.add_text("From the first again.", id="c")
        assert [row.doc_id for row in one.search("SELECT DOCUMENT")] == ["a", "b", "c"]


def test_a_temporary_store_goes_with_its_engine():
    engine = sondage.Engine(Words())
    engine.add_text("One.", id="a")
    folder = Path(engine.status()["store"])
    assert folder.is_dir()
    engine.close()
    assert not folder.exists()
    engine.close()


# --- vectors -----------------------------------------------------------------------------------------------------------------------


class OnlyQuestions(Words):
    """Knows no text of a document."""

    def embed(self, texts):
        if texts != ["which way"]:
            raise LookupError(f"no vector of {texts[0]!r}")
        return np.eye(1, self.dim)


def test_vectors_that_come_with_documents_are_what_is_compared():
    vectors = np.zeros((3, 64), np.float32)
    vectors[0, 0], vectors[1, 1], vectors[2, :2] = 1, 5, 2
    with sondage.Engine(OnlyQuestions(), granularity="sentence") as engine:
        engine.add_text("One. Two. Three.", id="a", vectors=vectors)
        engine.add_text("One. Two. Three.", id="b", vectors=vectors[[1, 1, 1]])  # the same text with others
        engine.add_text("Alone.", id="c", vectors=[0.0] * 63 + [1.0])
        rows = engine.search("SELECT SENTENCE LET rel = SIMILARITY(content, 'which way') ORDER BY rel DESC LIMIT 3")
        assert [(row.id, round(row.scores["rel"], 4)) for row in rows] == [
            ("a#sentence:0", 1.0), ("a#sentence:2", 0.7071), ("a#sentence:1", 0.0)
        ]  # fmt: skip


def test_a_document_with_too_few_vectors_is_named_and_the_others_are_kept():
    with sondage.Engine(OnlyQuestions(), granularity="sentence") as engine:
        engine.add_text("Good.", id="good", vectors=np.ones(64))
        engine.add_text("One. Two.", id="short", vectors=np.ones((1, 64)))
        with pytest.raises(BadQuery, match=r"'short' has 2 units \(sentence\) and came with 1 vectors"):
            engine.flush()
        assert [row.doc_id for row in engine.search("SELECT DOCUMENT")] == ["good"]
        with pytest.raises(BadQuery, match=r"'x': vectors of shape \(1, 3\); expected \(units, 64\)"):
            engine.add_text("One.", id="x", vectors=[[1, 2, 3]])
        with pytest.raises(BadQuery, match="'x': a number of its vectors is not finite"):
            engine.add_text("One.", id="x", vectors=[np.nan] * 64)


def test_what_an_embedder_fails_on_waits_until_it_can_or_is_discarded():
    embedder = OnlyQuestions()
    with sondage.Engine(embedder, granularity="sentence") as engine:
        engine.flush()
        engine.add_text("Unknown.", id="a")
        with pytest.raises(EmbeddingError, match=r"LookupError: .*no vector of 'Unknown.'"):
            engine.search("SELECT SENTENCE")
        engine.add_text("Known.", id="b", vectors=np.ones(64))
        with pytest.raises(EmbeddingError):
            engine.flush()
        assert engine.discard() == 2
        assert list(engine.search("SELECT SENTENCE")) == []


def test_named_vectors_are_asked_through_their_own_embedder():
    class Titles(Words):
        model_id, dim = "titles", 32

    with sondage.Engine(Words(), granularity="sentence", named_embedders={"title": Titles()}) as engine:
        engine.add_multivector("a", content="Long text. Of two sentences.", named={"title": "agents"}, metadata={"n": 1})
        engine.add_multivector("b", content="Other text.", named={"title": Titles().embed(["bread"])[0]})
        engine.add_text("Without a title.", id="c")
        rows = engine.search("SELECT DOCUMENT LET t = SIMILARITY(vec.title, 'agents') ORDER BY t DESC")
        assert [(row.doc_id, round(row.scores["t"], 4)) for row in rows] == [("a", 1.0), ("b", 0.0), ("c", -2.0)]
        with pytest.raises(BadQuery, match=r"no named embedder 'abstract'\. Known: title"):
            engine.add_multivector("d", content="x", named={"abstract": "y"})
    with pytest.raises(BadSpec, match="cannot be called 'words'"):
        sondage.Engine(Words(), named_embedders={"words": Titles()})


def test_images_are_found_beside_texts(tmp_path: Path):
    image = pytest.importorskip("PIL.Image").new("RGB", (8, 8), "red")
    image.save(tmp_path / "square.png")
    with sondage.Engine(Words()) as engine:
        engine.add_text("A text about bread.", id="t")
        engine.add_image(tmp_path / "square.png", id="i", metadata={"kind": "picture"})
        found = engine.search("SELECT CHUNK LET rel = SIMILARITY(content, 'a red square') ORDER BY rel DESC LIMIT 1")[0]
        assert (found.doc_id, found.content, round(found.scores["rel"], 4)) == ("i", "square.png", 1.0)
        assert found.metadata["kind"] == "picture"
        assert engine.media(found.hash, engine.corpus)[:4] == b"\x89PNG"
        with pytest.raises(BadQuery, match="no image that can be read"):
            engine.add_image(b"text", id="x")


def test_files_are_read_as_an_index_job_reads_them(tmp_path: Path):
    (tmp_path / "a.md").write_text("---\nyear: 2023\n---\nFrom a file. It has front matter.", "utf-8")
    (tmp_path / "b.txt").write_bytes("Grüße".encode("utf-16"))
    with sondage.Engine(Words(), granularity="sentence") as engine:
        names = engine.add_files([tmp_path / "a.md", tmp_path / "b.txt"], metadata={"from": "disk"})
        assert names == [(tmp_path / "a.md").as_posix(), (tmp_path / "b.txt").as_posix()]
        row = engine.search("SELECT SENTENCE WHERE meta.year == 2023 AND content CONTAINS 'From a file'")[0]
        assert (row.doc_id, row.metadata) == (names[0], {"from": "disk", "year": 2023})
        assert [row.content for row in engine.search("SELECT SENTENCE WHERE content CONTAINS 'grüße'")] == ["Grüße"]


# --- what users add ----------------------------------------------------------------------------------------------------------------


def test_functions_of_an_engine_shadow_those_of_the_process(engine):
    sondage.function("OWN_TEST_LENGTH")(lambda text: 0)
    try:
        assert list(engine.search("SELECT SENTENCE WHERE OWN_TEST_LENGTH(content) > 0")) == []

        @engine.register_function("own_test_length")
        def length(text):
            return len(text)

        rows = engine.search("SELECT SENTENCE WHERE own_test_length(content) == 10")
        assert [row.content for row in rows] == ["They plan."]
        with pytest.raises(RegistryError, match="already"):
            engine.register_function("OWN_TEST_LENGTH", len)
        assert "OWN_TEST_LENGTH" in str(engine.function_tool())
    finally:
        PROCESS.functions.remove("OWN_TEST_LENGTH")


def test_a_splitter_is_a_granularity():
    with sondage.Engine(Words(), granularity="line") as engine:
        engine.add_text("one\ntwo\nthree", id="a")
        with pytest.raises(RegistryError, match="'line'"):
            engine.search("SELECT SENTENCE")
        engine.register_splitter("line", str.splitlines)
        assert [row.content for row in engine.search("SELECT SENTENCE")] == ["one", "two", "three"]
        assert engine.status()["units"] == 3


def test_a_splitter_takes_the_place_of_the_built_in_one():
    with sondage.Engine(Words(), granularity="sentence") as engine:
        engine.register_splitter("sentence", lambda text: text.split(";"))
        engine.add_text("One. Still one; two", id="a")
        assert [row.content for row in engine.search("SELECT SENTENCE")] == ["One. Still one", "two"]


def test_types_compare_as_they_were_registered_to():
    with sondage.Engine(Words(), field_types={"version": "version"}) as engine:
        engine.add_documents([(f"v{text}", f"Version {text}", {"version": text}) for text in ("1.9", "1.10", "1.2")])
        engine.register_type("version", lambda text: tuple(map(int, text.split("."))))
        rows = engine.search("SELECT DOCUMENT WHERE meta.version > '1.2' ORDER BY meta.version DESC")
        assert [row.doc_id for row in rows] == ["v1.10", "v1.9"]


def test_the_reranker_of_an_engine_can_be_replaced_and_left_out():
    saw = []

    def backwards(question, rows):
        saw.append((question, len(rows)))
        return sorted(rows, key=lambda row: row.doc_id, reverse=True)

    with sondage.Engine(Words(), reranker=backwards, rerank_factor=2) as engine:
        engine.add_documents([(f"d{i}", f"agents call tools {'x ' * i}") for i in range(6)])
        query = "SELECT DOCUMENT LET rel = SIMILARITY(content, 'agents call tools') LIMIT 2"
        assert [row.doc_id for row in engine.search(query)] == ["d3", "d2"]
        assert [row.doc_id for row in engine.search(query, reranker=False)] == ["d0", "d1"]
        assert [row.doc_id for row in engine.search(query, reranker=lambda question, rows: rows, rerank_query="why")] == ["d0", "d1"]
        engine.search(query, rerank_query="which")
        assert saw == [("agents call tools", 4), ("which", 4)]


def test_a_normalizer_changes_what_is_stored():
    with sondage.Engine(Words(), normalizer=lambda text: text.replace("-", " ")) as engine:
        engine.add_text("agents-call-tools", id="a")
        assert engine.search("SELECT DOCUMENT")[0].content == "agents call tools"


# --- queries ------------------------------------------------------------------------------------------------------------------------


def test_a_query_is_text_a_tree_or_what_a_builder_makes(engine):
    from serve.nlql.builder import F, Meta, content, select, similarity

    built = select("sentence").let("rel", similarity(content, "agents call tools")).where(Meta("year") > 2020).order_by(F("rel"), desc=True)
    tree = {
        "select": {"unit": "sentence"},
        "where": {
            "node": "compare",
            "op": "==",
            "left": {"node": "path", "root": "meta", "segments": ["year"]},
            "right": {"node": "literal", "value": 2020},
        },
    }
    assert ids(engine.search(built, limit=2)) == ["a#sentence:0", "c#sentence:0"]
    assert ids(engine.search_ir(tree)) == ["b#sentence:0", "b#sentence:1"]
    assert ids(engine.search_ir(tree, limit=1)) == ["b#sentence:0"]
    assert ids(engine.search("SELECT SENTENCE WHERE meta.year == :year", params={"year": 2021})) == ["c#sentence:0"]


def test_a_plan_is_told_and_nothing_is_run(engine):
    plan = engine.explain("SELECT SENTENCE LET rel = SIMILARITY(content, 'x') WHERE rel > 0.5 AND meta.year == 2024 LIMIT 3")
    assert plan["scores"][0]["query"] == "x"
    assert plan["limit"] == 3
    assert plan["pushed_filter"]["left"]["segments"] == ["year"]


def test_errors_say_where_in_the_query_they_are(engine):
    with pytest.raises(ParseError) as caught:
        engine.search("SELECT SENTENCE WHERE")
    assert caught.value.line == 1
    with pytest.raises(NLQLTypeError):
        engine.search("SELECT SENTENCE WHERE meta.tags > 1")
    with pytest.raises(BadQuery, match="budget_ms"):
        engine.search("SELECT SENTENCE", budget_ms=-1)


def test_an_engine_without_documents_answers_without_rows():
    with sondage.Engine(Words()) as engine:
        assert list(engine.search("SELECT CHUNK LET rel = SIMILARITY(content, 'x') LIMIT 3")) == []
        assert len(engine) == 0
        assert list(engine.search("SELECT CHUNK LIMIT 3")) == []
        assert engine.status()["documents"] == 0


def test_metadata_that_cannot_be_kept_is_left_out_and_counted(engine):
    engine.add_text("Odd.", id="odd", metadata={"kept": 1, "what": object()})
    assert engine.search("SELECT DOCUMENT WHERE meta.kept == 1")[0].metadata == {"kept": 1}
    assert engine.status()["metadata_left_out"] == {"metadata left out: a value of type object": 1}


def test_evidence_is_searched_for_where_there_are_layers():
    with sondage.Engine(Words(), layers=["bm25"]) as engine:
        engine.add_documents([(f"d{i}", f"Document {i} about {'flour' if i == 3 else 'other things'}.") for i in range(8)])
        engine.settle()
        answer = engine.search(sondage.SearchRequest(corpus="default", query="flour"))
        assert answer.hits[0].entries[0].path == "d3"
