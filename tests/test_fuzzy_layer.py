"""The fuzzy layer: misspelt words find what was meant, in work that goes by the vocabulary, with an honest null."""

import math

import numpy as np
import pytest
from engine import Engine, paths, write_files
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_contract import LayerContract

from shards.arrays import pack_strings
from shards.documents import Documents
from shards.errors import BadQuery
from shards.fuzzy_levels import near
from shards.fuzzy_places import smallest_window
from shards.fuzzy_vocabulary import Vocabulary
from shards.identity import content_hash
from shards.layers.contract import Request, Resources
from shards.layers.fuzzy import Fuzzy
from shards.layers.fuzzy_reader import Question
from shards.plan import SpaceQuery
from shards.postings import term_hash
from shards.types import Budget


class TestFuzzyContract(LayerContract):
    def make_layer(self):
        return Fuzzy(Fuzzy.Params(unit_bytes=300), Resources())

    def requests(self):
        forms = [{"text": "parseJsno clodu"}, {"text": "htpserver", "edits": 1}, {"text": "naive rivr loadfile", "parts": False}]
        return [Request("gamam", explicit=True), Request("delta stoen cloud", explicit=True), *(Request("", f, True) for f in forms)]


def layer(**params):
    return Fuzzy(Fuzzy.Params(**params), Resources())


def opened(bodies, **params):
    """Reader, vocabulary and documents of some texts."""
    documents = Documents.pack((content_hash(body.encode()), body.encode(), "prose:english") for body in bodies)
    fuzzy = layer(**params)
    arrays = fuzzy.build(documents, None)
    statistics = fuzzy.collect([(1, fuzzy.statistics(arrays, documents, None))])
    return fuzzy.open(arrays, documents, None, np.ones(len(documents), bool)), statistics, documents


def vocabulary(words) -> Vocabulary:
    """Of words that one passage each holds."""
    by_hash = sorted((term_hash(word), word) for word in words)
    blob, offsets = pack_strings([word.encode() for _, word in by_hash])
    hashes = np.array([key for key, _ in by_hash], np.uint64)
    counts = {"n_units": np.array([len(by_hash)]), "frequencies": np.ones(len(by_hash), np.uint32)}
    return Vocabulary.collect([(1, {"term_hashes": hashes, "word_blob": blob, "word_offsets": offsets, **counts})])


def osa(one: str, other: str) -> int:
    """Optimal string alignment by its recurrence."""
    table = [[i + j if i * j == 0 else 0 for j in range(len(other) + 1)] for i in range(len(one) + 1)]
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            same = one[i - 1] == other[j - 1]
            table[i][j] = min(table[i - 1][j] + 1, table[i][j - 1] + 1, table[i - 1][j - 1] + (not same))
            if i > 1 and j > 1 and one[i - 1] == other[j - 2] and one[i - 2] == other[j - 1]:
                table[i][j] = min(table[i][j], table[i - 2][j - 2] + 1)
    return table[-1][-1]


LETTERS = st.text(alphabet="abcdé", min_size=3, max_size=8)


@settings(max_examples=60, deadline=None)
@given(st.sets(LETTERS, min_size=1, max_size=30), LETTERS, st.integers(0, 3))
def test_the_words_within_some_edits_are_those_that_the_definition_gives(words, asked, edits):
    known = vocabulary(words)
    numbers, distances = known.near(asked, edits)
    every = {word: osa(asked, word) for word in words}
    found = dict(zip(known.words(numbers), distances.tolist(), strict=True))
    assert found == {word: d for word, d in every.items() if d <= edits}


@settings(max_examples=60, deadline=None)
@given(
    st.sets(st.text(alphabet="abcd", min_size=6, max_size=12), min_size=1, max_size=30), st.text(alphabet="abcd", min_size=5, max_size=8)
)
def test_the_words_that_have_it_as_a_part_are_those_that_rapidfuzz_finds_among_all(words, asked):
    from rapidfuzz.fuzz import partial_ratio

    known = vocabulary(words)
    every = {word for word in words if len(word) >= len(asked)}
    exact = set(known.words(known.containing(asked, 0)))
    assert exact == {word for word in every if asked in word}
    least = 100 * (len(asked) - 1) / len(asked) - 0.01
    near = set(known.words(known.containing(asked, 1)))
    assert near == {word for word in every if partial_ratio(asked, word) >= least} >= exact


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("playwrite", ["playwrights"]),  # not `pwrite`: three mistakes are too many for six letters
        ("generaly", ["generally", "general"]),  # a letter left out before one that the word does not have
        ("politican", ["politician", "political"]),
        ("grammer", ["grammar", "programmer"]),  # a whole word with a mistake before a part without one
        ("wether", ["whether", "wetherby"]),
        ("dissapear", ["disappear", "disappears"]),  # of parts, the whole
        ("python3x", ["python3", "python2"]),
    ],
)
def test_of_words_equally_near_the_likelier_mistake_comes_first(asked, expected):
    known = vocabulary(["pwrite", "playwrights", "generally", "general", "politician", "political", "grammar", "programmer", "whether",
                        "wetherby", "disappear", "disappears", "python2", "python3"])  # fmt: skip
    assert known.words(near(known, asked, 3, True).numbers)[: len(expected)] == expected
    assert asked != "playwrite" or len(near(known, asked, 3, True).numbers) == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_passage_scores_the_sum_over_words_of_the_best_that_it_has(seed):
    rng = np.random.default_rng(seed)
    words = [f"{a}{b}{c}" for a in "abc" for b in "xyz" for c in "mn"]
    bodies = [" ".join(rng.choice(words, rng.integers(0, 12))) + f" doc{i}" for i in range(200)]
    reader, statistics, documents = opened(bodies, unit_bytes=100)
    query = layer().prepare(Request("axm byn czz", explicit=True), statistics)
    question: Question = query.payload
    expected = np.full(len(documents), -np.inf)
    for row in range(len(documents)):
        held = set(bytes(documents.content(row)).decode().split())
        for slot in range(question.n_slots):
            of_slot = [s for s, j, t in zip(question.scores, question.slots, question.texts, strict=True) if j == slot and t in held]
            if of_slot:
                expected[row] = max(expected[row], 0.0) + max(of_slot)
    assert reader.score(query, np.arange(len(documents)), Budget()).scores.tobytes() == expected.tobytes()
    found = reader.search(query, None, 1000, Budget())
    assert dict(zip(found.rows.tolist(), found.scores.tolist(), strict=True)) == {
        row: score for row, score in enumerate(expected.tolist()) if score > 0
    }


class Ticks(Budget):
    """A budget of so many looks at the clock."""

    def __init__(self, looks):
        self.looks = looks

    @property
    def expired(self):
        self.looks -= 1
        return self.looks < 0


def test_a_deadline_leaves_documents_out_whole_and_counts_them(monkeypatch):
    monkeypatch.setattr("shards.layers.fuzzy_reader.WINDOW", 10)
    reader, statistics, _ = opened([("mistake and more of it " * 20 + "\n") * (1 + i % 3) + str(i) for i in range(40)], unit_bytes=200)
    query = layer().prepare(Request("mistkae", explicit=True), statistics)
    all_scores = reader.score(query, np.arange(40), Budget()).scores
    before = -1
    for looks in range(0, 30, 3):
        found = reader.search(query, None, 100, Ticks(looks))
        assert len(found.rows) == found.rows_covered >= before
        assert found.scores.tobytes() == all_scores[found.rows].tobytes()
        before = found.rows_covered
    assert before == 40


def surprise_of(statistics, reader, text):
    query = layer().prepare(Request(text, explicit=True), statistics)
    return query, layer().surprise(query, reader.search(query, None, 10_000, Budget()).scores)


def test_a_long_misspelt_word_is_a_certainty_and_a_short_one_noise():
    rng = np.random.default_rng(5)
    words = ["".join(rng.choice(list("aeioustrnl"), rng.integers(3, 8))) for _ in range(800)]
    reader, statistics, _ = opened([" ".join(rng.choice(words, 20)) for _ in range(500)] + ["an establishmentarian at home"])
    assert surprise_of(statistics, reader, "establshmentarain")[1].max() > math.log(501) + 10
    assert surprise_of(statistics, reader, "tsr")[1].max() < 2
    n, counts = 0, np.zeros(8)
    for _ in range(150):  # words that are no misspellings of any, made as those of the corpus were
        word = "".join(rng.choice(list("aeioustrnl"), rng.integers(4, 9)))
        if not statistics.frequency_of(word):
            surprises = surprise_of(statistics, reader, word)[1]
            counts += [(surprises >= nats).sum() for nats in range(1, 9)]
            n += 501
    assert n > 20_000
    assert (counts / n <= 1.5 * np.exp(-np.arange(1.0, 9.0)) + 3 / n).all(), counts / n


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("one two three", ["two"], "two"),
        ("two x one two", ["one", "two"], "one two"),
        ("getUserName user name", ["name", "user"], "UserName"),
        ("platform form", ["form"], "form"),
        ("platform", ["form"], "form"),
        ("HTTPServer", ["server", "absent"], "Server"),
        ("nothing", ["absent"], None),
    ],
)
def test_a_span_is_the_shortest_piece_with_all_words(text, words, expected):
    window = smallest_window(text.encode(), [word.encode() for word in words])
    assert (None if window is None else text[slice(*window)]) == expected
    if text.startswith("platform "):
        assert window[0] == 9


def test_the_common_text_is_asked_only_for_words_that_the_corpus_lacks():
    many = " ".join(f"known{chr(97 + i)}" for i in range(20))
    _, statistics, _ = opened([many, "a heap is the tree of parts", "getUserName(account)", "binary search"])
    prepare = layer().prepare
    assert prepare(Request("binary tree"), statistics) is None
    assert prepare(Request("userName"), statistics) is None  # an identifier whose parts are known
    assert prepare(Request("of a 12 --"), statistics) is None
    refining = prepare(Request("binary treee"), statistics)
    assert not refining.payload.generates
    assert refining.asked == "treee (like tree); in what other layers find"
    assert prepare(Request(f"{many} treee"), statistics).asked.startswith("treee (like")  # however late it comes
    assert prepare(Request("treee"), statistics).payload.generates  # nobody else finds anything by words
    assert prepare(Request("binary tree", explicit=True), statistics).payload.generates
    assert prepare(Request("zzzzzz"), statistics).asked == "zzzzzz (like no word of the corpus)"


def test_a_question_that_only_refines_finds_nothing_and_scores_as_if_it_did():
    reader, statistics, _ = opened(["binary tree", "a tree of life", "nothing"])
    refining = layer().prepare(Request("binary treee"), statistics)
    found = reader.search(refining, None, 10, Budget())
    assert (len(found.rows), found.rows_covered, found.rows_total) == (0, 3, 3)
    named = SpaceQuery("", "", Question(**{f: getattr(refining.payload, f) for f in Question.__slots__} | {"generates": True}), 0.0)
    rows = np.arange(3)
    assert reader.score(refining, rows, Budget()).scores.tobytes() == reader.score(named, rows, Budget()).scores.tobytes()
    assert len(reader.search(named, None, 10, Budget()).rows) == 2


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"text": "a 1 --"}, "no word of 3 to 40 letters"),
        ({"txt": "word"}, "txt: Extra inputs"),
        ({"text": "word", "edits": 4}, "edits: Input should be less than or equal to 3"),
        ({"text": "word", "parts": "yes"}, "parts: Input should be a valid boolean"),
    ],
)
def test_a_form_that_cannot_be_understood_says_what(form, message):
    with pytest.raises(BadQuery, match=message):
        layer().prepare(Request("", form), vocabulary(["word"]))


def test_forms_narrow_what_a_word_may_stand_for():
    known = vocabulary("distance distances distant instance outdistanced disturb".split())
    asked = lambda **form: set(layer().prepare(Request("", {"text": "distanse", **form}), known).payload.texts)  # noqa: E731
    assert asked() == {"distance", "distances", "distant", "instance", "outdistanced"}
    assert asked(parts=False) == {"distance", "distances", "distant", "instance"}
    assert asked(edits=1, parts=False) == {"distance"}
    assert asked(edits=0, parts=False) == set()


def test_a_long_question_is_looked_up_by_its_first_words():
    known = vocabulary(["word", "other"])
    many = layer().prepare(Request(" ".join(f"wor{chr(97 + i)}" for i in range(26)), explicit=True), known)
    assert many.asked.count("like") == 16
    names = layer().prepare(Request(" ".join(f"getWord{chr(97 + i)}ordOtherThing" for i in range(26)), explicit=True), known)
    assert names.payload.n_asked <= 24


FILES = {
    "heap.md": "# Heaps\n\nA heap is a tree whose root is the smallest of all its elements, by a comparison.\n",
    "decoder.py": "class JSONDecodeError(ValueError):\n    pass\n\n\ndef raise_decode_error(document, position):\n    pass\n",
    "music.md": "Shostakovich wrote fifteen symphonies and as many quartets.\n",
    "caching.md": "An LRU cache drops what was used least recently; its eviction costs nothing.\n",
    **{f"noise/{i}.md": f"Note {i} speaks of weather, ships and the price of corn in year {1800 + i}.\n" for i in range(30)},
}


def test_answers_do_not_depend_on_shards_and_say_what_was_asked(tmp_path):
    source = write_files(tmp_path / "files", FILES)
    named = {"layers": ["fuzzy"], "explain": True, "keep_all": True}
    asked = [
        {"query": "Shostakovitch", **named}, {"query": "symphonys quartetts", **named}, {"forms": {"fuzzy": {"text": "JSONDecodeEror"}}},
        {"query": "evicton of the cache", "explain": True, "keep_all": True}, {"query": "smallst elemnts", "keep_all": True},
        {"query": "wether shps", "k": 40, **named},
    ]  # fmt: skip
    answers = {}
    for n_shards in (1, 3):
        engine = Engine(tmp_path / str(n_shards), ("bm25", "fuzzy"))
        engine.index(source, n_shards=n_shards)
        answers[n_shards] = engine.search_many(asked)
    one, three = ([[(h.hash, h.start, h.end, [(s.layer, s.score) for s in h.signals]) for h in a.hits] for a in answers[n]] for n in (1, 3))
    assert one == three
    found = [paths(answer)[0] for answer in answers[1][:5]]
    assert found == ["music.md", "music.md", "decoder.py", "caching.md", "heap.md"]
    assert len(answers[1][5].hits) == 30
    assert answers[1][0].hits[0].excerpt.text.startswith("Shostakovich")
    marked = engine.search("Shostakovitch", layers=["fuzzy"], keep_all=True, highlight=True).hits[0].excerpt
    assert [marked.text[start:end] for start, end in marked.marks] == ["Shostakovich"]
    (refined,) = (info for info in answers[1][3].layers if info.name == "fuzzy")
    assert (refined.asked, refined.n_matched) == ("evicton (like eviction); in what other layers find", 0)
    assert "fuzzy" in {signal.layer for signal in answers[1][3].hits[0].signals}


def test_words_are_the_same_whatever_is_copied_and_counted_at_once(monkeypatch):
    from shards import fuzzy_vocabulary, fuzzy_words
    from shards.arrays import pack_strings
    from shards.postings import term_hashes

    monkeypatch.setattr(fuzzy_words, "PORTION", 2)
    monkeypatch.setattr(fuzzy_vocabulary, "COUNTED", 5)
    parts = []
    for words in (["bridge", "éclair", "river"], ["bridge", "straße", "ünder", "water", "rain"], []):
        ordered = [words[i].encode() for i in np.argsort(term_hashes(words))]
        blob, offsets = pack_strings(ordered)
        hashes = np.sort(term_hashes(words))
        counts = {"frequencies": np.ones(len(words), np.uint32), "n_units": np.array([1])}
        parts.append((1, {"term_hashes": hashes, "word_blob": blob, "word_offsets": offsets, **counts}))
    found = fuzzy_vocabulary.Vocabulary.collect(parts)
    assert sorted(found.words(np.arange(7))) == ["bridge", "rain", "river", "straße", "water", "éclair", "ünder"]
    assert found.sizes(np.arange(7)).tolist() == [len(word) for word in found.words(np.arange(7))]
    assert found.frequency_of("bridge") == 2
