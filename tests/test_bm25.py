"""BM25: hand-computed scores, a slow obvious version, phrases, analysers side by side, and the contract of every layer."""

import math
import re
from collections import Counter

import numpy as np
import pytest
from layer_contract import LayerContract, pack, random_documents

from shards.analysis import TOKEN_BYTES, analyser_of, atoms
from shards.errors import BadQuery, BadSpec
from shards.layers import SpaceSpec, create
from shards.layers.bm25 import BM25, MAX_TERMS
from shards.layers.contract import Request, Resources
from shards.types import Budget

IDF_1_OF_3 = math.log(1 + 2.5 / 1.5)
IDF_2_OF_3 = math.log(1 + 1.5 / 2.5)


def make(**params) -> BM25:
    return BM25(BM25.Params(**params), Resources())


def corpus(*texts: str | tuple[str, str], layer: BM25 | None = None):
    """A one-segment corpus: `ask(request, k)` gives [(text, score)]; texts with their kind, else English prose."""
    layer = layer or make()
    items = [(t.encode(), "prose:english", ("p",)) if isinstance(t, str) else (t[0].encode(), t[1], ("p",)) for t in texts]
    segment = pack(items, layer)
    arrays = layer.build(segment.documents, segment.entries)
    statistics = layer.collect([(1, layer.statistics(arrays, segment.documents, segment.entries))])
    reader = layer.open(arrays, segment.documents, segment.entries, np.ones(len(items), bool))

    def ask(request: Request | str, k: int = 10):
        query = layer.prepare(Request(request) if isinstance(request, str) else request, statistics)
        if query is None:
            return None
        found = reader.search(query, None, k, Budget())
        scored = reader.score(query, found.rows, Budget())
        assert scored.scores.tobytes() == found.scores.tobytes()
        assert scored.starts.tolist() == found.starts.tolist()
        texts_found = [bytes(segment.documents.content(row)).decode() for row in found.rows]
        return list(zip(texts_found, found.scores.tolist(), strict=True))

    ask.layer, ask.statistics, ask.reader, ask.segment = layer, statistics, reader, segment
    return ask


def found(answer) -> set[str]:
    return {text for text, _ in answer}


class TestBM25Contract(LayerContract):
    def make_layer(self):
        return make(unit_bytes=300)

    def requests(self):
        return [
            Request("alpha"),
            Request("river stones and sorted trees"),
            Request("loadFile parse_json utf8"),
            Request("id7 id8"),
            Request("naive"),
            Request("", {"terms": ["merge", "gamma"]}),
        ]


def test_scores_of_three_tiny_documents_equal_those_computed_by_hand():
    ask = corpus("cat dog", "cat cat cat bird", "fish owl emu", layer=make(stem=False))
    # lengths 2, 4, 3: average 3, so the norms are 1.2 (0.25 + 0.75 length/3) = 0.9, 1.5, 1.2
    (first, high), (second, low) = ask("cat")
    assert (first, second) == ("cat cat cat bird", "cat dog")
    assert high == pytest.approx(IDF_2_OF_3 * 3 / (3 + 1.5), rel=1e-6)
    assert low == pytest.approx(IDF_2_OF_3 * 1 / (1 + 0.9), rel=1e-6)
    assert ask("dog cat")[0] == ("cat dog", pytest.approx((IDF_1_OF_3 + IDF_2_OF_3) / 1.9, rel=1e-6))


def test_moments_count_the_documents_that_score_nothing():
    ask = corpus("cat dog", "cat cat cat bird", "fish owl emu")
    moments = ask.reader.search(ask.layer.prepare(Request("fish"), ask.statistics), None, 10, Budget()).moments
    score = IDF_1_OF_3 / 2.2
    assert moments.n == 3
    assert moments.mean == pytest.approx(score / 3, rel=1e-6)
    assert moments.m2 == pytest.approx(score**2 * 2 / 3, rel=1e-6)


def slow_scores(layer: BM25, segment, request: str) -> dict[int, float]:
    """The definition, in dictionaries: best unit score of each row that holds a word of the request."""
    params = layer.params
    analysers = [analyser_of(kind) for kind in segment.documents.kind_names]

    def words(data: bytes, analyser):
        return [w for ws in analyser.analyse([t.decode() for t in re.findall(TOKEN_BYTES, data)]) for w in ws]

    from shards.units import passages

    units = passages(segment.documents, params.unit_bytes)
    bags, lengths = [], []
    for row, start, end in zip(units.rows, units.starts, units.ends, strict=True):
        of_unit = words(bytes(segment.documents.content(row)[start:end]), analysers[segment.documents.kinds[row]])
        bags.append(Counter(term for word in of_unit for term in word))
        lengths.append(sum(len(atoms(word)) for word in of_unit))
    average = sum(lengths) / len(lengths)
    forms: dict = {}
    for analyser in analysers:
        for i, word in enumerate(words(request.encode(), analyser)):
            for part, term in enumerate(word):
                forms.setdefault((i, part), set()).add(term)
    best: dict[int, float] = {}
    for row, bag, length in zip(units.rows.tolist(), bags, lengths, strict=True):
        score = 0.0
        for terms in forms.values():
            df = min(len(bags), sum(sum(term in b for b in bags) for term in terms))
            idf = math.log(1 + (len(bags) - df + 0.5) / (df + 0.5))
            for term in terms:
                tf = min(bag[term], 255)
                score += idf * tf / (tf + params.k1 * (1 - params.b + params.b * length / average))
        if score:
            best[row] = max(best.get(row, 0), score)
    return best


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_scores_equal_the_slow_obvious_version(seed):
    print("seed", seed)
    layer = make(unit_bytes=200)
    segment = pack(random_documents(np.random.default_rng(seed), 40), layer)
    arrays = layer.build(segment.documents, segment.entries)
    statistics = layer.collect([(1, layer.statistics(arrays, segment.documents, segment.entries))])
    reader = layer.open(arrays, segment.documents, segment.entries, np.ones(len(segment.keys), bool))
    for request in ("alpha alpha stones", "parse_json loadFile", "utf8 naïve HTTPServer", "merge edge 42 id3"):
        result = reader.search(layer.prepare(Request(request), statistics), None, 1000, Budget())
        expected = slow_scores(layer, segment, request)
        assert dict(zip(result.rows.tolist(), result.scores.tolist(), strict=True)) == pytest.approx(expected, rel=1e-5)


def test_code_and_prose_meet_in_stems_and_parts():
    ask = corpus(("def getUserName(): pass", "code"), "how the user names things", ("x = user_names", "code"))
    assert len(ask("user name")) == 3
    assert ask("getUserName")[0][0] == "def getUserName(): pass"


def test_forms_of_one_word_in_two_languages_share_one_idf():
    english = ["the laufen club"] * 1 + [f"nothing {i} here" for i in range(8)]
    ask = corpus(*english, ("wir laufen", "prose:german"), ("sie laufen gern", "prose:german"))
    weights = ask.layer.prepare(Request("laufen"), ask.statistics).payload.weights
    assert len(weights) == 2  # laufen (English), lauf (German)
    assert weights[0] == weights[1] == np.float32(ask.statistics.idf(3))


def test_quoted_words_must_stand_one_after_the_other():
    ask = corpus("the big red dog", "a red big dog", "big, red: cat", "big dogs are red")
    assert found(ask('"big red"')) == {"the big red dog", "big, red: cat"}
    assert found(ask('dog "big red"')) == {"the big red dog", "big, red: cat"}
    assert ask('dog "big red"')[0][0] == "the big red dog"
    assert found(ask("\u201cred dog\u201d")) == {"the big red dog"}
    assert found(ask(Request("", {"phrase": "big dog"}))) == {"big dogs are red", "a red big dog"}
    assert found(ask('"big red" "red dog"')) == {"the big red dog"}
    assert ask('"dog big red"') == []
    assert ask('"big zebra"') == []
    assert len(ask('"big red')) == 4  # an unclosed quotation is just words


def test_a_phrase_scores_as_its_words_do():
    ask = corpus("the big red dog", "a red big dog", "something else")
    assert dict(ask('"big red"'))["the big red dog"] == dict(ask("big red"))["the big red dog"]


def test_a_phrase_may_cross_the_border_of_two_passages():
    filler = " ".join(f"w{i}" for i in range(200))
    for position in range(0, 100, 7):
        words = f"{filler} {'x' * position} alpha beta {filler}"
        ask = corpus(words, "alpha x beta", layer=make(unit_bytes=100))
        assert found(ask('"alpha beta"')) == {words}


def test_a_phrase_in_code_matches_the_parts_of_an_identifier():
    ask = corpus(("getUserName()", "code"), ("get_user(name)", "code"), ("userNameGet()", "code"))
    assert found(ask('"user name"')) == {"getUserName()", "get_user(name)", "userNameGet()"}
    assert found(ask('"get user name"')) == {"getUserName()", "get_user(name)"}


def test_only_the_k_best_phrase_matches_come_back_even_when_better_rows_lack_the_phrase():
    texts = [f"red big red big filler{i}" for i in range(5)] + [f"big red {'pad ' * (i + 5)}" for i in range(4)]
    ask = corpus(*[t.replace("red big red big", "red x big") for t in texts[:5]], *texts[5:])
    assert [t for t, _ in ask('"big red"', 2)] == texts[5:7]


@pytest.mark.parametrize("kind", ["prose:cjk", "code"])
def test_chinese_is_found_by_any_two_neighbouring_characters(kind):
    ask = corpus(("我们使用中文分词", kind), ("中国文学", kind), ("日本語のテキスト", kind))
    assert found(ask("中文")) == {"我们使用中文分词"}
    assert found(ask('"使用中文"')) == {"我们使用中文分词"}
    assert ask("英文") is None


def test_nothing_is_asked_where_no_word_is_known():
    ask = corpus("cat dog")
    assert ask("zebra") is None
    assert ask("") is None
    assert ask("?! --") is None
    assert found(ask("zebra dog")) == {"cat dog"}


def test_stop_words_are_a_dial_of_the_question():
    assert corpus("the cat", "a dog", layer=make(stop_words=("the",)))("The") is None
    assert found(corpus("the cat", "a dog")("The")) == {"the cat"}
    assert found(corpus("the cat", "a dog", layer=make(stop_words=("the",)))('"the"')) == {"the cat"}  # unless it is quoted


def test_a_megabyte_of_question_keeps_its_most_telling_words_and_says_so():
    texts = [" ".join(f"w{j}" for j in range(i, i + 50)) for i in range(0, 1000, 25)]
    ask = corpus(*texts)
    query = ask.layer.prepare(Request(" ".join(f"w{i % 1000}" for i in range(200_000))), ask.statistics)
    assert len(query.payload.terms) == MAX_TERMS
    assert f"the {MAX_TERMS} most telling of 2001 terms" in query.asked
    assert "from the first 32768 of 977999 characters" in query.asked
    assert len(query.asked) < 500


def test_long_runs_of_encoded_data_are_no_words():
    blob = "QUJD" * 100
    ask = corpus((f"key = {blob}", "code"), ("key = 1", "code"))
    assert ask(blob) is None
    assert len(ask("key")) == 2


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"phrase": ""}, "at least one word"),
        ({"phrase": 3}, "expected a text"),
        ({"terms": "cat"}, "expected a list of words"),
        ({"terms": []}, "expected a list of words"),
        ({"pharse": "cat"}, "bm25 does not know 'pharse'"),
    ],
)
def test_a_wrong_form_is_refused_with_what_is_expected(form, message):
    with pytest.raises(BadQuery, match=message):
        corpus("cat")(Request("", form))


def test_wrong_dials_are_refused_with_the_choices():
    with pytest.raises(BadSpec, match=r'choose "auto" or one of .*german'):
        create(SpaceSpec("bm25", "bm25", {"language": "klingon"}), Resources())
    with pytest.raises(BadSpec, match="k1"):
        create(SpaceSpec("bm25", "bm25", {"k1": -1}), Resources())
    with pytest.raises(BadSpec, match="a quarter of unit_bytes"):
        create(SpaceSpec("bm25", "bm25", {"unit_bytes": 400, "overlap_bytes": 101}), Resources())


def test_statistics_of_tombstones_subtract_to_nothing_when_all_rows_are_dead():
    ask = corpus("cat dog", ("x = catDog", "code"))
    segment, layer = ask.segment, ask.layer
    arrays = layer.build(segment.documents, segment.entries)
    everything = layer.statistics(arrays, segment.documents, segment.entries)
    dead = layer.statistics(arrays, segment.documents, segment.entries, np.arange(2, dtype=np.int32))
    left = layer.collect([(1, everything), (-1, dead)])
    assert (left.n_units, left.total_length, len(left.terms), left.languages) == (0, 0, 0, ())
    assert layer.prepare(Request("cat"), left) is None


def test_a_deadline_in_the_middle_leaves_whole_rows_only(monkeypatch):
    """The clock runs out after the first window: rows of that window are scored fully, the others are not covered."""
    from shards.layers import postings_reader

    monkeypatch.setattr(postings_reader, "WINDOW", 4)
    monkeypatch.setattr(postings_reader, "SLICE_POSTINGS", 1)
    ask = corpus(*[f"cat {i} " + "x " * 30 * (i % 4) for i in range(20)], layer=make(unit_bytes=100))
    query = ask.layer.prepare(Request("cat"), ask.statistics)

    class TwoLooks:
        looks = 0

        @property
        def expired(self):
            self.looks += 1
            return self.looks > 2

    result = ask.reader.search(query, None, 100, TwoLooks())
    complete = ask.reader.search(query, None, 100, Budget())
    assert complete.rows_covered == complete.rows_total == 20
    assert 0 < result.rows_covered < result.rows_total == 20
    assert result.moments.n == 8
    assert set(result.rows.tolist()) == {row for row in complete.rows.tolist() if row < result.rows_covered}
    scores = dict(zip(complete.rows.tolist(), complete.scores.tolist(), strict=True))
    assert all(scores[row] == score for row, score in zip(result.rows.tolist(), result.scores.tolist(), strict=True))


def test_building_tells_its_progress_and_can_be_cancelled():
    layer = make()
    segment = pack(random_documents(np.random.default_rng(0), 5), layer)
    steps = []
    layer.build(segment.documents, segment.entries, progress=lambda *step: steps.append(step))
    assert steps == [("tokenise", 0, 3), ("analyse", 1, 3), ("invert", 2, 3)]


def test_repetition_beyond_255_counts_as_255():
    ask = corpus("cat " * 255 + "dog " * 45, "cat " * 300, "owl " * 300, layer=make(stem=False))
    scores = [score for _, score in ask("cat")]
    assert len(scores) == 2 and scores[0] == scores[1]


def test_the_deadline_holds_while_phrases_are_verified():
    """Time runs out after the words are scored and one document is read: the unread candidates are not covered."""
    ask = corpus(*[f"big {i} red" for i in range(20)], "big red")
    query = ask.layer.prepare(Request('"big red"'), ask.statistics)

    class Looks:
        def __init__(self, n):
            self.left = n

        @property
        def expired(self):
            self.left -= 1
            return self.left < 0

    complete = ask.reader.search(query, None, 10, Looks(1000))
    assert (len(complete.rows), complete.rows_covered, complete.rows_total) == (1, 21, 21)
    late = ask.reader.search(query, None, 10, Looks(8))
    assert 0 < late.rows_covered < late.rows_total == 21
    scored = ask.reader.score(query, np.arange(21, dtype=np.int32), Looks(8)).scores
    assert np.isnan(scored).any() and not np.isnan(scored).all()


def test_tokens_equal_those_of_a_regular_expression():
    """Enough distinct tokens to make the table grow twice, in two groups that share no numbers."""
    from shards.token_kernels import WORD_BYTES, tokenise

    rng = np.random.default_rng(0)
    pieces = [[b"w%d%s" % (n, "é".encode() * (n % 3)) for n in rng.integers(60_000, size=100_000)] for _ in range(2)]
    bodies = [b" (".join(words) for words in pieces]
    text = np.frombuffer(b"\n".join(bodies), np.uint8)
    starts = np.array([0, len(bodies[0]) + 1])
    ends = np.array([len(bodies[0]), len(text)])
    tokens, offsets, type_starts, type_sizes, type_groups = tokenise(text, starts, ends, np.array([0, 1], np.uint8), WORD_BYTES)
    words = [text[s : s + n].tobytes() for s, n in zip(type_starts, type_sizes, strict=True)]
    assert len({(word, group) for word, group in zip(words, type_groups.tolist(), strict=True)}) == len(words)
    for group, body in enumerate(bodies):
        numbers = tokens[offsets[group] : offsets[group + 1]]
        assert [words[number] for number in numbers] == re.findall(TOKEN_BYTES, body)
        assert set(type_groups[numbers]) == {group}


def search_in_the_long_way(reader, query, allowed, k):
    """Rows, scores and number of matches as `search` gives them, from the scores of all units."""
    scores, rows = reader.scan(query)
    best = np.zeros(rows.max() + 1)
    np.maximum.at(best, rows, scores)
    best[~allowed[: len(best)]] = 0
    order = [row for row in np.lexsort((np.arange(len(best)), -best)) if best[row] > 0][:k]
    return order, best[order].tolist(), int((scores[allowed[rows]] > 0).sum())


@pytest.mark.parametrize("dense_share", [0, 1 / 8, 2])
def test_the_best_rows_are_found_though_lesser_ones_are_passed_over(dense_share, monkeypatch):
    """Enough equal scores for the candidates to be thinned out many times, rows of several units, some rows dead; with all terms
    dense, the frequent ones, none."""
    from shards.layers import bm25_reader

    monkeypatch.setattr(bm25_reader, "DENSE_SHARE", dense_share)
    rng = np.random.default_rng(3)
    layer = make(unit_bytes=100)
    words = ["cat", "dog", "owl", "emu", *(f"filler{i}" for i in range(20))]
    texts = [" ".join([f"name{i}", *rng.choice(words, rng.integers(1, 60))]) for i in range(3000)]
    ask = corpus(*texts, layer=layer)
    n_rows = len(ask.segment.documents)
    live = rng.random(n_rows) < 0.9
    arrays = layer.build(ask.segment.documents, ask.segment.entries)
    assert len(arrays["unit_rows"]) > 2 * n_rows
    reader = layer.open(arrays, ask.segment.documents, ask.segment.entries, live)
    allowed = rng.random(n_rows) < 0.5
    for request in ("cat", "dog cat owl", "filler3 emu emu"):
        query = layer.prepare(Request(request), ask.statistics)
        for k in (1, 10, 500, 5000):
            for scope in (None, allowed):
                result = reader.search(query, scope, k, Budget())
                expected = search_in_the_long_way(reader, query, live if scope is None else live & scope, k)
                assert (result.rows.tolist(), result.scores.tolist(), result.n_matched) == expected


def test_dense_lists_change_no_bit_of_a_score(monkeypatch):
    from shards.layers import bm25_reader

    layer = make(unit_bytes=100, b=1.0)
    segment = pack(random_documents(np.random.default_rng(5), 60), layer)
    arrays = layer.build(segment.documents, segment.entries)
    statistics = layer.collect([(1, layer.statistics(arrays, segment.documents, segment.entries))])
    query = layer.prepare(Request("alpha river stones merge gamma utf8"), statistics)
    scores = []
    for share in (0, 0.1, 2):
        monkeypatch.setattr(bm25_reader, "DENSE_SHARE", share)
        reader = layer.open(arrays, segment.documents, segment.entries, np.ones(len(segment.keys), bool))
        scores.append(reader.scan(query)[0].tobytes())
    assert scores[0] == scores[1] == scores[2]


def test_moments_of_equal_scores_have_no_spread():
    ask = corpus("cat dog", "cat owl", "cat emu")
    moments = ask.reader.search(ask.layer.prepare(Request("cat"), ask.statistics), None, 10, Budget()).moments
    assert (moments.n, moments.m2) == (3, 0.0)
