"""What a query's structure admits: a slow obvious reading of every text says the same, and moments stay those of the words."""

import re
from itertools import product

import numpy as np
import pytest
from engine import Engine, paths, write_files
from layer_contract import LayerContract, pack
from test_bm25 import corpus, found, make

from serve.highlight import Highlighter, Pattern
from shards import bm25_grammar as grammar
from shards.analysis import TOKEN_BYTES, Analyser, atoms
from shards.errors import BadQuery
from shards.layers.contract import Request
from shards.titles import title_of
from shards.types import Budget, Moments


def query(text: str) -> Request:
    return Request("", {"query": text})


class TestBM25QueriesContract(LayerContract):
    def make_layer(self):
        return make(unit_bytes=300)

    def requests(self):
        return [
            query("alpha AND (river OR stone) NOT gamma"),
            query("+sort* tree -delta"),
            query("river NEAR/3 stone merge"),
            query('alpha ("river stone" OR "beta gamma") -"tree sort"'),
            query("title:alpha OR body:sorted"),
        ]

    def test_scan_gives_the_scores_behind_search_and_its_moments(self, seed):
        """But for what must stand together: then the score is that of the passage in which it does, perhaps not the best."""
        _, segment, _, reader, queries = self.whole(seed)
        for asked in queries:
            units, rows = reader.scan(asked)
            assert len(units) == len(rows) == reader.n_units
            scores = self.all_scores(reader, asked, len(segment.keys))
            best = np.full(len(segment.keys), -np.inf)
            np.maximum.at(best, rows, units)
            matched = scores > -np.inf
            if asked.payload.pinned is None:
                assert best[matched].tobytes() == scores[matched].tobytes()
            else:
                assert (best[matched] >= scores[matched]).all() and set(scores[matched]) <= set(units)
            self.check_moments(reader.search(asked, None, 5, Budget()).moments, Moments.of(units))


# --- a slow obvious reading ------------------------------------------------------------------------------------------------


class Slow:
    """One English document: its text as the places of its words, with the title's end."""

    def __init__(self, text: str):
        first, last = title_of(text.encode(), "prose:english")
        self.everything, self.title, self.body = (self.read(t) for t in (text, text[first:last], text[last:]))

    @staticmethod
    def read(text: str) -> list[str]:
        tokens = [t.decode() for t in re.findall(TOKEN_BYTES, text.encode())]
        return [atom for words in Analyser("english").recall(tokens) for word in words for atom in atoms(word)]

    def places(self, leaf: grammar.Node, words: list[str]) -> list[tuple[int, int]]:
        """First and last place of each occurrence."""
        if isinstance(leaf, grammar.Prefix):
            return [(i, i) for i, word in enumerate(words) if word.startswith(leaf.text)]
        wanted = self.read(leaf.text)
        return [(i, i + len(wanted) - 1) for i in range(len(words)) if words[i : i + len(wanted)] == wanted]

    def holds(self, node: grammar.Node, words: list[str]) -> bool:
        match node:
            case grammar.Clauses(must=must, rank=rank):
                return all(self.holds(n, words) for n in must) if must else any(self.holds(n, words) for n in rank)
            case grammar.All(of=parts):
                return all(self.holds(n, words) for n in parts)
            case grammar.Any(of=parts):
                return any(self.holds(n, words) for n in parts)
            case grammar.Not(of=part):
                return not self.holds(part, words)
            case grammar.Field(name=name, of=part):
                return self.holds(part, self.title if name == "title" else self.body)
            case grammar.Near(of=parts, distances=distances):
                for chain in product(*(self.places(part, words) for part in parts)):
                    gaps = [max(b[0] - a[1], a[0] - b[1]) for a, b in zip(chain, chain[1:], strict=False)]
                    if all(0 < gap <= distance for gap, distance in zip(gaps, distances, strict=True)):
                        return True
                return False
        return bool(self.places(node, words))

    def is_ranked(self, sought: list[grammar.Node]) -> bool:
        """Whether it has a word that ranks, in any field."""
        parts = [part for leaf in sought for part in getattr(leaf, "of", (leaf,))]
        prefixes = [part for part in parts if isinstance(part, grammar.Prefix)]
        words = [grammar.Words(word) for part in parts if part not in prefixes for word in part.text.split()]
        return any(self.places(word, self.everything) for word in (*prefixes, *words))


# Each its own stem.
WORDS = ["cat", "dog", "owl", "emu", "carp", "dove", "catfish"]
LEAVES = [*WORDS, "ca*", "do*", '"cat dog"', '"owl emu cat"', "cat NEAR/2 owl", "emu NEAR/1 dog NEAR/3 cat", "do* NEAR/2 owl", "title:cat",
          'title:"dog owl"', "body:owl", 'body:"cat dog"', "title:do*", "body:do*", "title:(cat NEAR/2 owl)"]  # fmt: skip


def random_query(rng: np.random.Generator, depth: int = 0) -> str:
    if depth == 3 or rng.random() < 0.3:
        return str(rng.choice(LEAVES))
    left, right = (random_query(rng, depth + 1) for _ in range(2))
    return str(rng.choice([f"({left}) AND ({right})", f"({left}) OR ({right})", f"({left}) NOT ({right})", f"+({left}) {right}"]))


@pytest.mark.parametrize("seed", [0, 1])
def test_documents_found_are_those_that_a_slow_obvious_reading_admits(seed):
    print("seed", seed)
    rng = np.random.default_rng(seed)
    texts = set()
    for i in range(120):
        title = " ".join(rng.choice(WORDS, rng.integers(1, 4))) + "\n\n" if i % 2 else ""
        texts.add(title + " ".join(rng.choice(WORDS, rng.integers(1, [8, 60][i % 2]), p=np.arange(7, 0, -1) / 28)))
    ask = corpus(*texts, layer=make(unit_bytes=100))
    slow = {text: Slow(text) for text in texts}
    n_found = 0
    for _ in range(40):
        text = random_query(rng)
        tree = grammar.parse(text)
        sought = [leaf for leaf, positive in grammar.leaves(tree) if positive]
        admitted = {t for t, document in slow.items() if document.holds(tree, document.everything) and document.is_ranked(sought)}
        got = found(ask(query(text), k=1000))
        assert got == admitted, text
        n_found += len(got)
    assert n_found > 300


# --- one by one --------------------------------------------------------------------------------------------------------------


def test_words_that_are_required_or_excluded_decide_and_the_others_rank():
    ask = corpus("cat dog", "cat owl", "dog owl", "emu")
    assert found(ask(query("cat AND dog"))) == {"cat dog"}
    assert found(ask(query("+cat dog"))) == {"cat dog", "cat owl"}
    assert ask(query("+cat dog"))[0][0] == "cat dog"
    assert found(ask(query("cat -dog"))) == {"cat owl"}
    assert found(ask("cat NOT dog")) == {"cat owl"}  # a common text is read so, too
    assert found(ask(query("cat OR emu"))) == {"cat dog", "cat owl", "emu"}
    assert ask(query("+zebra cat")) == []
    assert dict(ask(query("+cat -owl")))["cat dog"] == dict(ask("cat"))["cat dog"]  # excluded words score nothing


def test_conditions_are_met_by_documents_not_by_passages():
    filler = " ".join(f"w{i}" for i in range(200))
    ask = corpus(f"cat {filler} dog", f"cat {filler} owl", layer=make(unit_bytes=100))
    assert found(ask(query("cat AND dog"))) == {f"cat {filler} dog"}
    assert found(ask(query("cat -dog"))) == {f"cat {filler} owl"}


def test_moments_are_those_of_the_words_whatever_must_hold():
    ask = corpus("cat dog", "cat owl", "dog owl", "the cat and the owl")
    plain, *others = (
        ask.reader.search(ask.layer.prepare(query(text), ask.statistics), None, 10, Budget())
        for text in ("cat owl", "+cat +owl", "cat AND owl", '+"cat owl"', "cat NEAR/9 owl", "cat owl -dog", "cat (owl OR dog)")
    )
    assert all(other.moments == plain.moments for other in others[:-1])
    assert others[-1].moments != plain.moments  # dog ranks, too
    assert [len(other.rows) for other in others] == [2, 2, 1, 2, 2, 4]
    assert all((other.rows_covered, other.rows_total) == (4, 4) for other in others)


def test_a_prefix_stands_for_all_words_that_begin_so_with_one_idf():
    ask = corpus("medical", "medicine it", "medication dogs", "media", "it dogs")
    assert found(ask("medic* cats")) == {"medical", "medicine it", "medication dogs"}
    asked = ask.layer.prepare(Request("medic*"), ask.statistics)
    assert asked.payload.weights.tolist() == [np.float32(ask.statistics.idf(3))] * 2
    assert "medic* (2 terms)" in asked.asked
    assert found(ask(query("dogs AND medic*"))) == {"medication dogs"}
    assert found(ask(query("dogs -medic*"))) == {"it dogs"}
    assert ask("zebr*") is None


def test_a_prefix_that_reaches_beyond_where_a_stemmer_cuts_finds_its_words():
    ask = corpus("the university", "universities", "a library", "generalization", "unit")
    assert found(ask("universit*")) == {"the university", "universities"}
    assert found(ask("universities*")) == {"the university", "universities"}
    assert found(ask("librar*")) == {"a library"}
    assert found(ask("generaliz*")) == {"generalization"}
    german = corpus(("die Universität", "prose:german"), ("der Universalgelehrte", "prose:german"))
    assert found(german("Universitä*")) == {"die Universität"}
    code = corpus(("def getUserName(): pass", "code"), ("get_user()", "code"))
    assert found(code("getUs*")) == {"def getUserName(): pass"}


def test_a_prefix_of_chinese_is_any_text_that_it_begins():
    ask = corpus(("我们使用中文分词", "prose:cjk"), ("中国文学", "prose:cjk"), ("文中", "prose:cjk"))
    assert found(ask(query("中*"))) == {"我们使用中文分词", "中国文学"}
    assert found(ask(query("+中文* 文学"))) == {"我们使用中文分词"}
    assert found(ask(query("+使用中文"))) == {"我们使用中文分词"}
    assert found(ask(query("中国 OR 文中"))) == {"中国文学", "文中"}


def test_the_most_frequent_words_are_meant_where_too_many_begin_alike(monkeypatch):
    from shards import bm25_statistics
    from shards.layers import bm25

    monkeypatch.setattr(bm25_statistics, "MAX_FORMS", 2)
    monkeypatch.setattr(bm25, "MAX_FORMS", 2)
    ask = corpus("abca abcc", "abca x", "abcb abcc", "abcd y", "abcc z", layer=make(stem=False))
    assert found(ask("abc*")) == {"abca abcc", "abca x", "abcb abcc", "abcc z"}
    assert "abc* (the 2 most frequent of 4 terms)" in ask.layer.prepare(Request("abc*"), ask.statistics).asked


def test_words_of_deleted_documents_begin_nothing():
    layer = make()
    segment = pack([(b"retrieval", "prose:english", ("a",)), (b"other words", "prose:english", ("b",))], layer)
    arrays = layer.build(segment.documents, segment.entries)
    dead = np.array([row for row in range(2) if bytes(segment.documents.content(row)) == b"retrieval"], np.int32)
    parts = [
        (1, layer.statistics(arrays, segment.documents, segment.entries)),
        (-1, layer.statistics(arrays, segment.documents, segment.entries, dead)),
    ]
    assert layer.prepare(Request("retriev*"), layer.collect(parts)) is None
    assert layer.prepare(Request("retriev*"), layer.collect(parts[:1])) is not None


def test_near_words_stand_within_so_many_words_on_either_side():
    ask = corpus("cat a b dog", "dog cat", "cat a b c dog", "cats and dogs")
    assert found(ask("cat NEAR/3 dog")) == {"cat a b dog", "dog cat", "cats and dogs"}
    assert found(ask("cat NEAR/1 dog")) == {"dog cat"}
    assert found(ask('"a b" NEAR/1 dog')) == {"cat a b dog"}
    assert found(ask("cat NEAR/1 cat")) == set()  # two of them


def test_near_words_are_found_across_the_borders_of_passages_and_through_long_stretches_without_words():
    filler = " ".join(f"w{i}" for i in range(200))
    texts = [f"{filler} {'x' * n} cat {'- ' * 300} a dog {filler}" for n in range(0, 100, 13)]
    ask = corpus(*texts, f"{filler} cat a b c dog {filler}", layer=make(unit_bytes=100))
    assert found(ask("cat NEAR/2 dog")) == found(ask("dog NEAR/2 cat")) == set(texts)


def test_what_stands_near_is_surprising_and_what_is_wider_less():
    ask = corpus(*(f"{'x ' * 50} cat {'y ' * i} dog" for i in range(40)), "unrelated words")

    def surprise(text: str) -> float:
        return ask.layer.surprise(ask.layer.prepare(query(text), ask.statistics), np.ones(1))[0]

    assert surprise('+"cat dog"') > surprise("cat NEAR/2 dog") > surprise("cat NEAR/8 dog") >= 0
    assert surprise("+cat +dog") == 0


def test_titles_are_a_field_and_count_as_often_as_their_weight():
    texts = ("# Cat care\n\nAll about dogs.", "# Dog care\n\nAll about cats.", "cat\n\ncat cat")
    ask = corpus(*texts, layer=make(title_weight=1))
    assert found(ask("title:cat")) == {texts[0], texts[2]}
    assert found(ask("title:cats AND care")) == {texts[0]}
    assert found(ask("body:cat")) == {texts[1], texts[2]}
    assert found(ask(query("cat -body:cat"))) == {texts[0]}
    assert found(ask('title:"cat care"')) == {texts[0]}
    assert found(ask("title:car* -cat")) == set() and found(ask("title:car* -dog")) == set()
    assert found(ask("title:do*")) == {texts[1]}
    weighted = corpus("cat dog\n\nowl emu emu", "owl cat\n\ndog emu emu", "fish", layer=make(title_weight=3, stem=False))
    # lengths 5 + 2 * 2 = 9 twice, and 1: average 19/3; a word of the title counts three times
    norm = 1.2 * (0.25 + 0.75 * 9 / (19 / 3))
    idf = weighted.statistics.idf(2)
    assert weighted("dog") == [
        ("cat dog\n\nowl emu emu", pytest.approx(idf * 3 / (3 + norm), rel=1e-6)),
        ("owl cat\n\ndog emu emu", pytest.approx(idf * 1 / (1 + norm), rel=1e-6)),
    ]


def test_a_form_that_another_language_makes_is_not_meant_where_it_is_that_language_s_own_word():
    """The Spanish stem of `does` is `do`, which in an English corpus is the English word."""
    english = [f"nothing to do {i}" for i in range(8)] + ["it does"]
    ask = corpus(*english, ("corremos con ellos", "prose:spanish"))
    assert found(ask("does")) == {"it does"}
    assert found(ask("corremos")) == found(ask("corren")) == {"corremos con ellos"}


def test_what_is_sought_is_marked_in_excerpts_and_what_is_excluded_is_not():
    ask = corpus("cats", "dogs", "retrieval and Retrievers, 中文")
    prepared = ask.layer.prepare(query('retriev* OR "c++ dog" OR 中文 OR -emu'), ask.statistics)
    marks = Highlighter((), [Pattern(*mark) for mark in ask.layer.highlights(prepared)])
    text = "Retrievers like dog, C++ and 中文; emus and dogmas"
    assert [text[a:b] for a, b in marks.marks(text)] == ["Retrievers", "dog", "C", "中文"]
    assert ask.layer.highlights(ask.layer.prepare(Request("retriev* cats"), ask.statistics)) == ((r"\bretriev\w*", True, True),)
    assert ask.layer.highlights(ask.layer.prepare(Request("cats"), ask.statistics)) == ()


def test_a_form_with_a_query_is_read_strictly_and_a_common_text_never_fails():
    ask = corpus("cat and (dog", "and")
    with pytest.raises(BadQuery, match=r"at character 8, '\(dog': this parenthesis is not closed"):
        ask(query("cat AND (dog"))
    assert found(ask("cat AND (dog")) == {"cat and (dog", "and"}
    assert "as plain words, for the query is not understood" in ask.layer.prepare(Request("cat AND (dog"), ask.statistics).asked.lower()
    with pytest.raises(BadQuery, match="without 'phrase'"):
        ask(Request("", {"query": "cat", "phrase": "cat"}))
    with pytest.raises(BadQuery, match="seeks nothing"):
        ask(query("-cat"))


def test_the_question_says_how_it_was_read():
    ask = corpus("# Big red dogs\n\ncats", "owl")
    prepared = ask.layer.prepare(Request('+"big red" (cat OR do*) -owl title:dogs'), ask.statistics)
    assert prepared.asked.endswith('do* (1 terms), where "big red" and (cat or do*) and not owl and title: dogs')
    assert prepared.asked.startswith("big red cat dog in the title")


def test_the_deadline_holds_while_conditions_are_looked_up_and_texts_read():
    ask = corpus(*[f"big {i} red" for i in range(20)], "big red", "red owl")
    asked = ask.layer.prepare(query('big AND red AND NOT owl AND ("big red" OR "red big")'), ask.statistics)

    class Looks:
        def __init__(self, n):
            self.left = n

        @property
        def expired(self):
            self.left -= 1
            return self.left < 0

    complete = ask.reader.search(asked, None, 10, Looks(10_000))
    assert (len(complete.rows), complete.rows_covered, complete.rows_total) == (1, 22, 22)
    for n in range(0, 60, 3):
        fresh = ask.layer.open(ask.layer.build(ask.segment.documents, ask.segment.entries), ask.segment.documents, ask.segment.entries,
                               np.ones(22, bool))  # fmt: skip
        late = fresh.search(asked, None, 10, Looks(n))
        assert set(late.rows.tolist()) <= set(complete.rows.tolist())
        assert late.rows_covered == 22 or set(late.rows.tolist()) <= set(range(22))
        scored = fresh.score(asked, np.arange(22, dtype=np.int32), Looks(n)).scores
        assert set(np.flatnonzero(scored > -np.inf).tolist()) <= set(complete.rows.tolist())


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paths")
    files = {
        "src/net/sock.py": "connect the socket",
        "docs/net.md": "connect a socket",
        "docs/old/plug.md": "connect the plug",
        "b.md": "see",
    }
    made = Engine(folder, ("names", "bm25"))
    made.index(write_files(folder / "src", files), n_shards=2)
    return made


def test_paths_narrow_what_this_space_finds_and_no_other(engine):
    def bm25(text: str) -> set[str]:
        answer = engine.search(text, layers=["bm25"], keep_all=True)
        return set(paths(answer))

    assert bm25("connect path:docs/**") == {"docs/net.md", "docs/old/plug.md"}
    assert bm25("connect path:net") == {"docs/net.md", "src/net/sock.py"}
    assert bm25("connect -path:docs/**") == {"src/net/sock.py"}
    assert bm25("connect (path:src/** OR path:old)") == {"src/net/sock.py", "docs/old/plug.md"}
    assert bm25("connect AND socket AND path:*.md") == {"docs/net.md"}
    answer = engine.search("connect path:docs/**", layers=["bm25", "names"], forms={"names": {"glob": "**/*.py"}}, keep_all=True)
    signals = {hit.entries[0].path: {signal.layer for signal in hit.signals} for hit in answer.hits}
    assert signals["src/net/sock.py"] == {"names"}  # a candidate of another space is no match of this one
