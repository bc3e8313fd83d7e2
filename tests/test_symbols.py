"""The symbols layer: what is defined and used where, against Python's own parser and by hand."""

import sysconfig
from pathlib import Path

import numpy as np
import pytest
from layer_contract import LayerContract

from jobs.bench_syntax import seen_by_ast, seen_by_symbols
from shards.documents import Documents
from shards.errors import BadQuery
from shards.identity import content_hash
from shards.layers.contract import Request, Resources
from shards.layers.symbols import Symbols
from shards.segment import pack_entries
from shards.syntax_process import Parsers, Task
from shards.syntax_query import wanted_by_text
from shards.syntax_trees import REASONS
from shards.types import Budget, Entry

WORDS = ["load", "loadFile", "load_file", "HTTPServer", "server", "tree", "Tree", "node", "merge", "sort_tree", "parse"]


class TestSymbolsContract(LayerContract):
    n_documents = 30

    def make_layer(self):
        return Symbols(Symbols.Params(), Resources())

    def documents(self, rng):
        items = []
        for i in range(self.n_documents):
            lines = [f"# {i}"]
            for _ in range(int(rng.integers(0, 12))):
                a, b, c = rng.choice(WORDS, 3)
                lines += [f"class {a}:", f"    def {b}(self): return {c}()", f"{c} = {a}.{b}"]
            suffix = ("py", "py", "txt", "js")[i % 4]
            paths = tuple(f"{folder}/{WORDS[i % len(WORDS)]}_{i}.{suffix}" for folder in ("src", "old")[: 1 + i % 2])
            items.append((b"" if i == 5 else "\n".join(lines).encode(), "code", paths))
        return items

    def requests(self):
        forms = [
            {"name": "tree"},
            {"name": "load", "references": True},
            {"name": "node", "kind": "class"},
            {"name": "load", "scope": "Tree"},
        ]
        return [Request("load_file"), Request("src.Tree.merge"), Request("def parse"), *(Request("", form, True) for form in forms)]


# --- what Python's own parser sees ----------------------------------------------------------------------------------------------

STDLIB = Path(sysconfig.get_path("stdlib"))
# tree-sitter reads test_compile.py with errors, by which it loses two classes.
FILES = ["test/test_compile.py", "typing.py", "dataclasses.py", "json/decoder.py", "test/test_coroutines.py"]
FILES += [f"asyncio/{name}.py" for name in ("events", "base_events", "locks")]


@pytest.mark.parametrize("name", [name for name in FILES if (STDLIB / name).exists()])
def test_every_function_method_and_class_of_the_standard_library_is_listed(name):
    text = (STDLIB / name).read_bytes()
    assert seen_by_symbols(text) == seen_by_ast(text.decode())


def test_a_function_in_a_broken_file_is_still_listed():
    broken = b"class Cart:\n    def add(self):\n        return (1,\n\n    def total(self):\n        pass\n\n"
    broken += b"def free(:\n    x = '''def text(): pass\n"
    names = {path for _, path, _ in seen_by_symbols(broken)}
    assert {"Cart", "Cart.add", "Cart.total", "free"} <= names and not any("text" in name for name in names)


# --- looking up -----------------------------------------------------------------------------------------------------------------

TREE = {
    "asyncio/events.py": "class AbstractEventLoop:\n    def call_soon(self, cb): pass\ndef get_event_loop(): pass\n",
    "asyncio/base.py": "class BaseEventLoop(AbstractEventLoop):\n    def call_soon(self, cb): self.Call_Soon()\n"
    "    def call_soon_threadsafe(self): pass\n",
    "gui/loop.js": "class Loop { callSoon(f) { f() } }\nfunction Call_Soon() {}\n",
    "json/__init__.py": "def load(f): return call_soon(f) or call_soon(call_soon)\n",
    "pickle.py": "def load(f): pass\nclass load_all: pass\n",
    "noise.py": "class A:\n" + "".join(f"    def m{i}(self): return self.recall_sooner\n" for i in range(40)),
}


class Index:
    """A tree in one segment; `ask` gives paths with the text of what was found, best first."""

    def __init__(self, tree: dict[str, str]):
        bodies = {path: text.encode() for path, text in tree.items()}
        self.documents = Documents.pack((content_hash(body), body, "code") for body in bodies.values())
        self.entries = pack_entries(Entry("main", path, content_hash(body), 1, 0) for path, body in bodies.items())
        self.paths = {content_hash(body): path for path, body in bodies.items()}
        self.layer = Symbols(Symbols.Params(), Resources())
        self.arrays = self.layer.build(self.documents, self.entries)
        self.statistics = self.layer.collect([(1, self.layer.statistics(self.arrays, self.documents, self.entries))])
        self.reader = self.layer.open(self.arrays, self.documents, self.entries, np.ones(len(bodies), bool))

    def find(self, text: str = "", **form):
        query = self.layer.prepare(Request(text, form, True), self.statistics)
        return query, self.reader.search(query, None, 100, Budget())

    def ask(self, text: str = "", **form) -> list[str]:
        _, found = self.find(text, **form)
        places = zip(found.rows, found.starts, found.ends, strict=True)
        return [f"{self.paths[self.documents.hashes[row].tobytes()]} {self.words(row, start, end)}" for row, start, end in places]

    def words(self, row: int, start: int, end: int) -> str:
        return " ".join(bytes(self.documents.content(row)[start:end]).decode().partition("\n")[0].split()[:2]).partition("(")[0].rstrip(":")

    def surprise(self, text: str = "", **form) -> float:
        query, found = self.find(text, **form)
        return float(self.layer.surprise(query, found.scores[:1])[0])


@pytest.fixture(scope="module")
def index():
    return Index(TREE)


def test_the_name_itself_comes_before_other_cases_styles_and_parts(index):
    assert index.ask("Call_Soon")[:1] == ["gui/loop.js function Call_Soon"]
    found = index.ask("call_soon")
    assert sorted(found[:2]) == ["asyncio/base.py def call_soon", "asyncio/events.py def call_soon"]
    assert found[2] == "gui/loop.js function Call_Soon"  # and not callSoon in the same file
    assert index.ask("callSoon")[0] == "gui/loop.js callSoon"
    assert index.ask("soon_threadsafe") == ["asyncio/base.py def call_soon_threadsafe"]
    assert not index.ask("all_soon") and not index.ask("recall_sooner")


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ("asyncio.events.AbstractEventLoop.call_soon", "asyncio/events.py def call_soon"),
        ("AbstractEventLoop.call_soon", "asyncio/events.py def call_soon"),
        ("BaseEventLoop.call_soon()", "asyncio/base.py def call_soon"),
        ("asyncio::base::call_soon", "asyncio/base.py def call_soon"),
        ("json.load", "json/__init__.py def load"),
        ("pickle.load", "pickle.py def load"),
        ("elsewhere.load", None),
        ("class load_all", "pickle.py class load_all"),
    ],
)
def test_what_stands_before_a_name_chooses_among_its_definitions(index, asked, first):
    found = index.ask(asked)
    assert found and (first is None or found[0] == first)


def test_forms_choose_kind_scope_and_uses(index):
    assert index.ask(name="load", kind="class") == ["pickle.py class load_all"]
    assert index.ask(name="call_soon", scope="BaseEventLoop") == ["asyncio/base.py def call_soon"]
    assert index.ask(name="load", scope="json") == ["json/__init__.py def load"]
    assert not index.ask(name="load", scope="yaml") and not index.ask(name="call_soon", scope="AbstractEventLoop.BaseEventLoop")
    assert index.ask(name="call_soon", references=True) == ["json/__init__.py call_soon", "asyncio/base.py Call_Soon"]
    assert index.ask(name="AbstractEventLoop", references=True) == ["asyncio/base.py AbstractEventLoop"]


def test_a_rare_name_is_a_surprise_and_a_common_one_is_noise(index):
    assert index.surprise("get_event_loop") > 15
    assert index.surprise(name="self", references=True) < 2
    bare, scoped, whole = (index.surprise(f"{outer}call_soon") for outer in ("", "AbstractEventLoop.", "asyncio.events.AbstractEventLoop."))
    assert scoped - bare > 10 and 0 < whole - scoped <= 6.01  # paths are not counted, so they say little
    query, found = index.find("load")
    surprises = index.layer.surprise(query, found.scores)
    assert (np.argsort(-surprises, kind="stable") == np.arange(len(found.rows))).all()
    assert 0 < surprises[0] - float(index.layer.surprise(query, np.array([4.0]))[0]) < 0.01
    assert index.surprise("threadsafe") < index.surprise("call_soon_threadsafe")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("foo", ("foo", (), ())),
        ("a.b.foo", ("foo", ("a", "b"), ())),
        ("Foo::bar", ("bar", ("Foo",), ())),
        ("foo()", ("foo", (), ())),
        ("def foo", ("foo", (), ("function", "method", "macro"))),
        ("async def foo(self, x):", ("foo", (), ("function", "method", "macro"))),
        ("class Bar", ("Bar", (), ("class",))),
        ("public static class Bar {", ("Bar", (), ("class",))),
        ("fn x(", ("x", (), ("function", "method", "macro"))),
        ("func (r *T) Name", ("Name", ("T",), ("function", "method", "macro"))),
        ("func (r *List[K]) Len() int", ("Len", ("List",), ("function", "method", "macro"))),
        ("struct point", ("point", (), ("struct",))),
        ("class action lawsuit", None),
        ("how is it done", None),
        ("f($A)", None),
        ("a b", None),
        ("12", None),
        ("", None),
        ("x" * 300, None),
    ],
)
def test_common_text_is_a_name_a_path_or_the_head_of_a_definition(text, expected):
    wanted = wanted_by_text(text)
    assert (wanted and (wanted.name, wanted.prefix, wanted.kinds)) == expected


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"nam": "x"}, "Expected a name"),
        ({"name": ""}, "the name is empty"),
        ({"name": "x", "kind": "fun"}, "kind 'fun' is unknown. Choose from: function, method"),
        ({"name": "x", "kind": "class", "references": True}, "uses of a name have no kind"),
        ({"name": "x" * 300}, "has 300 characters"),
        ({"name": "\udc80x"}, "lone surrogate at position 0"),
    ],
)
def test_a_form_that_cannot_be_understood_is_told(index, form, message):
    with pytest.raises(BadQuery, match=message):
        index.find(**form)


def test_prose_is_no_question_unless_the_space_was_named(index):
    assert index.layer.prepare(Request("how is it done"), index.statistics) is None
    with pytest.raises(BadQuery, match="is no name of code"):
        index.layer.prepare(Request("how is it done", {}, True), index.statistics)


# --- limits and changes ---------------------------------------------------------------------------------------------------------


def test_what_is_not_parsed_is_counted_with_its_reason_and_not_covered():
    long_line = "var x = 1;" * 3000
    index = Index({"a.js": long_line, "b.py": "def f(): pass\n" + "# x\n" * 300_000, "c.py": "def g(): pass\n", "d.json": "[1]"})
    assert index.layer.facts(index.statistics)["not_parsed"] == {"larger than 1 MiB": 1, "a line of more than 20,000 bytes": 1}
    _, found = index.find("g")
    assert (found.rows_covered, found.rows_total) == (2, 4)


def test_a_document_that_the_parser_would_not_end_with_is_given_up_and_the_others_are_parsed():
    parsers = Parsers(1, seconds=0.25)
    endless, fine = b"<!--" * 2500, b"int f(void) { return 1; }\n"  # minutes, read as C
    tasks = [Task(number, bytes([number]), text, "c") for number, text in enumerate([fine, endless, fine])]
    answers = {answer.number: answer for answer in parsers.each(iter(tasks), Budget())}
    parsers.close()
    assert [REASONS[answers[number].reason] for number in range(3)] == ["", "takes too long to parse", ""]
    assert answers[2].found.definitions[0].name == b"f"


def test_a_parser_that_was_killed_while_it_waited_costs_nothing():
    parsers = Parsers(1)
    task = Task(0, b"\0", b"x = 1\n", "python")
    first = list(parsers.each(iter([task]), Budget()))
    parsers._processes[0].popen.kill()
    parsers._processes[0].popen.wait()
    assert list(parsers.each(iter([task]), Budget())) == first
    parsers.close()


def test_large_documents_with_large_answers_pass_one_another():
    parsers = Parsers(1)
    text = "".join(f"name_{number:0100} = use_{number:0100}\n" for number in range(1_500)).encode()  # 300 kB, of which as much comes back
    tasks = [Task(number, b"\0", text if number < 3 else b"x = 1\n", "python") for number in range(6)]
    answers = list(parsers.each(iter(tasks), Budget(60)))
    parsers.close()
    assert [len(answer.found.definitions) for answer in answers] == [1_500] * 3 + [1] * 3


class ThreeLooks(Budget):
    """Time for three looks at the clock, and none to wait."""

    def __init__(self):
        super().__init__(0)
        self.left = 3

    @property
    def expired(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_answers_that_nobody_waited_for_do_not_reach_the_next_question():
    parsers = Parsers(1)
    tasks = [Task(number, b"\0", f"x{number} = 1\n".encode(), "python") for number in range(6)]
    assert list(parsers.each(iter(tasks), ThreeLooks())) == []  # two are asked, and not answered yet
    for answer in parsers.each(iter(tasks[2:]), Budget()):
        assert answer.number == 2
        break
    again = [answer.found.definitions[0].name for answer in parsers.each(iter(tasks[3:]), Budget())]
    parsers.close()
    assert again == [b"x3", b"x4", b"x5"]


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ("a.txt", "a.py", 1),  # parsed when the new path is joined to it
        ("a.py", "a.txt", 0),
        ("a.py", None, 1),  # joined while its new path lies elsewhere still
        (None, "a.py", 1),
    ],
)
def test_symbols_follow_a_renamed_file_when_segments_are_joined(first, then, expected):
    layer = Symbols(Symbols.Params(), Resources())
    body = b"def f(): pass\n"
    documents = Documents.pack([(content_hash(body), body, "code")])
    before, after = (pack_entries([Entry("main", path, content_hash(body), 1, 0)] if path else []) for path in (first, then))
    arrays = layer.build(documents, before)
    assert REASONS[arrays["reasons"][0]] == ("" if first else "renamed before the space was built")
    merged = layer.merge([(arrays, np.zeros(1, np.int32))], documents, after)
    assert len(merged["names"]) == expected and merged["reasons"].tolist() == [0]
    if then:
        built = layer.build(documents, after)
        assert sorted(merged) == sorted(built)
        for name in merged:
            np.testing.assert_array_equal(merged[name], built[name])
