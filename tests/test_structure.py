"""The structure layer: the same matches as ast-grep itself, in documents of the right language."""

import json
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from engine import Engine, age, paths, write_files
from layer_contract import LayerContract

from jobs.bench_syntax import PATTERNS, config_of, form_of
from shards.documents import Documents
from shards.errors import BadQuery
from shards.identity import content_hash
from shards.layers.contract import Request, Resources
from shards.layers.structure import Structure
from shards.segment import pack_entries
from shards.syntax_patterns import question_of, required_words
from shards.syntax_trees import TREE_BYTES, Trees, byte_offsets, spans_of
from shards.types import Budget, Entry


class TestStructureContract(LayerContract):
    n_documents = 24

    def make_layer(self):
        return Structure(Structure.Params(), Resources())

    def documents(self, rng):
        words = ["load", "tree", "node", "merge", "naïve"]
        items = []
        for i in range(self.n_documents):
            lines = [f"# {i}"]
            for _ in range(int(rng.integers(0, 12))):
                a, b, c = rng.choice(words, 3)
                lines += [f"{a}({b}, {c})", f"{c} = {a}({b})"]
            suffix = ("py", "py", "txt", "rb")[i % 4]
            places = tuple(f"{folder}/f{i}.{suffix}" for folder in ("src", "old")[: 1 + i % 2])
            items.append((b"" if i == 5 else "\n".join(lines).encode(), "code", places))
        return items

    def requests(self):
        forms = [
            {"pattern": "tree($A)", "language": "python"},
            {"pattern": "$A = naïve($B)"},
            {"rule": {"kind": "call", "has": {"field": "function", "regex": "^merge$"}}, "language": "Python"},
            {"rule": "language: ruby\nrule:\n  pattern: node($A, $B)\n"},
        ]
        return [Request("load($A, $B)"), *(Request("", form, True) for form in forms)]


class Index:
    """A tree in one segment."""

    def __init__(self, tree: dict[str, bytes]):
        self.documents = Documents.pack((content_hash(body), body, "code") for body in tree.values())
        self.entries = pack_entries(Entry("main", path, content_hash(body), 1, 0) for path, body in tree.items())
        self.paths = {content_hash(body): path for path, body in tree.items()}
        self.layer = Structure(Structure.Params(), Resources())
        self.arrays = self.layer.build(self.documents, self.entries)
        self.statistics = self.layer.collect([(1, self.layer.statistics(self.arrays, self.documents, self.entries))])
        self.reader = self.layer.open(self.arrays, self.documents, self.entries, np.ones(len(self.documents), bool))

    def query(self, text: str = "", **form):
        return self.layer.prepare(Request(text, form, True), self.statistics)

    def ask(self, text: str = "", **form) -> dict[str, tuple[int, str]]:
        """By path how many nodes match, and the text of the first."""
        found = self.reader.search(self.query(text, **form), None, 10_000, Budget())
        return {
            self.paths[self.documents.hashes[row].tobytes()]: (int(score), bytes(self.documents.content(row)[start:end]).decode())
            for row, score, start, end in zip(found.rows, found.scores, found.starts, found.ends, strict=True)
        }


STDLIB = Path(sysconfig.get_path("stdlib"))
FILES = "asyncio/base_events asyncio/locks dataclasses json/decoder unittest/case threading os test/test_threading test/test_contextlib"


@pytest.fixture(scope="module")
def stdlib():
    return Index({f"{name}.py": (STDLIB / f"{name}.py").read_bytes() for name in FILES.split() if (STDLIB / f"{name}.py").exists()})


@pytest.fixture(scope="module")
def trees(stdlib):
    from ast_grep_py import SgRoot

    rows = {stdlib.paths[key.tobytes()]: row for row, key in enumerate(stdlib.documents.hashes)}
    return {path: SgRoot(bytes(stdlib.documents.content(row)).decode(), "python").root() for path, row in rows.items()}


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: json.dumps(pattern)[:40])
def test_patterns_and_rules_match_the_same_nodes_as_ast_grep(stdlib, trees, pattern):
    expected = {}
    for path, root in trees.items():
        if found := root.find_all(config_of(pattern)):
            expected[path] = (len(found), found[0].text())
    assert stdlib.ask(**form_of(pattern)) == expected


def test_spans_are_bytes_where_characters_are_not():
    text = "größe = 1\nprint('é', größe)\n".encode()
    [(start, end)] = spans_of(Trees().root(b"", text, "python"), text, {"rule": {"pattern": "print($$$A)"}})
    assert text[start:end].decode() == "print('é', größe)"
    assert byte_offsets(b"ascii") is None and byte_offsets("aé".encode()).tolist() == [0, 1, 3]


MIXED = {
    "a.py": b"def area(x):\n    return width(x)\nprint(width(1))\n",
    "a.js": b"function area(x) { return width(x) }\n",
    "a.go": b"package a\nfunc area(x int) int { return width(x) }\n",
    "a.txt": b"width(x)\n",
    "tool": b"#!/usr/bin/env python3\nwidth(2)\n",
    "big.py": b"width(3)\n" + b"# x\n" * 300_000,
}


@pytest.fixture(scope="module")
def mixed():
    return Index(MIXED)


def test_a_pattern_is_asked_in_every_language_that_can_read_it_or_in_the_one_named(mixed):
    assert {path: n for path, (n, _) in mixed.ask("width($A)").items()} == {"a.py": 2, "a.js": 1, "a.go": 1, "tool": 1}
    assert set(mixed.ask(pattern="width($A)", language="js")) == {"a.js"}
    assert set(mixed.ask(pattern="def $F($$$A): $$$B")) == {"a.py"}
    assert "in 25 languages" in mixed.query("width($A)").asked and "in go" in mixed.query(pattern="width($A)", language="Go").asked
    assert set(mixed.ask(rule={"language": "Go", "rule": {"kind": "function_declaration"}, "id": "any", "message": "m"})) == {"a.go"}


def test_what_is_not_parsed_is_not_covered(mixed):
    found = mixed.reader.search(mixed.query("width($A)"), None, 10, Budget())
    assert (found.rows_covered, found.rows_total) == (5, 6)
    assert mixed.reader.search(mixed.query("height($A)"), None, 10, Budget()).rows_covered == 6  # it lacks the word, so nothing is open


def test_common_text_is_asked_only_with_metavariables(mixed):
    for text in ("width", "width(x)", "how wide is it", "costs $5", "$x^2$"):
        assert mixed.layer.prepare(Request(text), mixed.statistics) is None
    assert mixed.layer.prepare(Request("width($A)"), mixed.statistics) is not None


def test_rare_words_surprise_and_a_pattern_without_words_says_nothing(mixed):
    layer = mixed.layer
    surprises = [float(layer.surprise(mixed.query(text), np.ones(1))[0]) for text in ("$A($B)", "width($A)", "set_cloexec_flag($A)")]
    assert surprises[0] == 0 and surprises[0] <= surprises[1] < surprises[2] and surprises[2] > 20


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"rule": {"pattern": "os.path.join($A, $$$B)"}}, [("join",), ("os",), ("path",)]),
        ({"rule": {"pattern": "$A.b($C)"}}, []),
        ({"rule": {"pattern": {"context": "class A { $F }", "selector": "field_definition"}}}, []),
        ({"rule": {"pattern": {"context": "foo($A)", "strictness": "signature"}}}, []),
        ({"rule": {"kind": "call", "regex": "^foo_(a|b)$"}}, [("foo_",)]),
        ({"rule": {"kind": "call", "regex": "(?i)foo"}}, []),
        ({"rule": {"all": [{"pattern": "foo()"}, {"inside": {"pattern": "bar()"}}]}}, [("bar",), ("foo",)]),
        ({"rule": {"any": [{"pattern": "foo()"}, {"pattern": "bar.baz()"}]}}, [("baz", "foo")]),
        ({"rule": {"any": [{"pattern": "foo()"}, {"kind": "call"}]}}, []),
        ({"rule": {"pattern": "call($A)", "not": {"pattern": "call(secret)"}}}, [("call",)]),
        ({"rule": {"pattern": "$A()"}, "constraints": {"A": {"regex": "^spam"}}}, [("spam",)]),
    ],
)
def test_words_are_required_only_where_every_match_holds_them(config, words):
    assert list(required_words(config)) == words


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({}, "give one of pattern and rule"),
        ({"pattern": "a", "rule": {"kind": "x"}}, "give one of pattern and rule"),
        ({"pattern": " "}, "the pattern is empty"),
        ({"pattern": "f($A)", "language": "cobol"}, "language 'cobol' is unknown. Choose from: bash, c, cpp"),
        ({"rule": "a: [", "language": "c"}, "the rule is not YAML"),
        ({"rule": "just text", "language": "c"}, "the rule is not an object"),
        ({"rule": {"rule": {"kind": "x"}, "fixx": 1}}, "a rule file has no fixx"),
        ({"rule": {"kind": "no_such_kind"}, "language": "c"}, "in c: .*no_such_kind"),
        ({"pattern": "a" * 9000}, "at most 8192 are allowed"),
        ({"patern": "a"}, "patern: Extra inputs"),
    ],
)
def test_a_form_that_cannot_be_asked_is_told(mixed, form, message):
    with pytest.raises(BadQuery, match=f"(?s){message}"):
        if form:
            mixed.query(**form)
        else:
            question_of(form)


def test_trees_are_kept_up_to_a_size():
    kept = Trees(max_bytes=TREE_BYTES * 25)
    texts = [f"x = {number}000\n".encode() for number in range(4)]  # 9 bytes each: two fit
    for text in texts:
        kept.root(text, text, "python")
    assert list(kept._kept) == [(text, "python") for text in texts[2:]] and kept.n_bytes == TREE_BYTES * 18
    kept.root(b"large", b"x = 1\n" * 10, "python")
    assert kept.n_bytes == TREE_BYTES * 18


def test_a_renamed_file_is_of_its_new_language_before_segments_are_joined(tmp_path):
    source = write_files(tmp_path / "source", {"a.txt": "width(1)\n", "b.py": "def other(): return height(2)\n"})
    engine = Engine(tmp_path, layers=("structure", "symbols"))
    age(source)
    engine.index(source, calibrate=False)
    assert paths(engine.search("width($A)", layers=["structure"])) == []
    (source / "a.txt").rename(source / "a.py")
    engine.index(source, calibrate=False, allow_shrink=True)
    answers = engine.search_many([{"query": "width($A)"}, {"query": "b.other"}, {"query": "width($A)", "layers": ["structure"]}])
    assert [paths(answer) for answer in answers] == [["a.py"], ["b.py"], ["a.py"]]
    assert all(answer.complete for answer in answers)


def test_answers_do_not_depend_on_the_number_of_shards(tmp_path):
    files = {f"asyncio/{path.name}": path.read_bytes() for path in sorted((STDLIB / "asyncio").glob("[b-l]*.py"))}
    source = write_files(tmp_path / "source", files)
    asked = [
        {"query": "call_soon"},
        {"query": "asyncio.locks.Lock.acquire"},
        {"query": "class Lock"},
        {"query": "super().__init__($$$A)"},
        {"query": "", "forms": {"symbols": {"name": "loop", "references": True}}},
        {"query": "", "forms": {"structure": {"pattern": "raise $E($$$A)"}, "symbols": {"name": "get"}}},
    ]
    answers = []
    for n_shards in (1, 3):
        engine = Engine(tmp_path / str(n_shards), layers=("structure", "symbols"))
        engine.index(source, calibrate=False, n_shards=n_shards)
        answers.append(
            [
                [
                    (hit.hash, hit.start, hit.end, hit.fused, [(s.layer, s.score, s.start, s.end) for s in hit.signals])
                    for hit in answer.hits
                ]
                for answer in engine.search_many([one | {"k": 50} for one in asked])
            ]
        )
    assert answers[0] == answers[1] and all(answers[0])
