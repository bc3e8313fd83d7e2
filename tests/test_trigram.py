"""The trigram layer finds what the text layer finds: counts, spans and surprise; and where both are asked, the text is read once."""

import importlib

import numpy as np
import pytest
import text_corpus
from engine import Engine, paths, write_files
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_contract import LayerContract
from numpy.testing import assert_array_equal
from text_patterns import forms

from shards import trigram_index
from shards.documents import Documents
from shards.identity import content_hash
from shards.layers import REGISTRY, trigram
from shards.layers.contract import Request, Resources
from shards.layers.text import Text
from shards.layers.trigram import Trigram
from shards.types import Budget

FORMS = [
    {"pattern": "parse_json"},
    {"pattern": "ID1"},
    {"pattern": "HTTPServer", "case": "ignore"},
    {"pattern": "tree", "word": True},
    {"pattern": r"^(alpha|beta) \w+", "regex": True},
    {"pattern": r"(?i)loadfile.*stone", "regex": True},
    {"pattern": r"\d+", "regex": True},
    {"all": ["river", "stone"], "none": ["cloud"]},
    {"all": ["river", {"any": ["HTTPServer", "naïve"]}], "per": "document"},
    {"pattern": r"stone\s+river", "regex": True, "multiline": True},
    {"pattern": "parse_jsno", "edits": 2},
]


def always_narrowing(patch: pytest.MonkeyPatch, block_bytes: int) -> None:
    """Blocks of some lines, and the index is asked for however few of them."""
    patch.setattr(trigram_index, "BLOCK_BYTES", block_bytes)
    patch.setattr(trigram, "FEW", 0)
    patch.setattr(trigram, "MOST", 1.0)


class TestTrigramContract(LayerContract):
    @pytest.fixture(autouse=True)
    def small_blocks(self, monkeypatch):
        always_narrowing(monkeypatch, 256)

    def make_layer(self):
        return Trigram(Trigram.Params(), Resources())

    def requests(self):
        return [Request("beta"), Request("river stone"), *(Request("", form, True) for form in FORMS)]


class Both:
    """The same documents in both layers."""

    def __init__(self, documents: Documents):
        self.documents, self.n = documents, len(documents)
        self.layers = [kind(kind.Params(), Resources()) for kind in (Text, Trigram)]
        arrays = [layer.build(documents, None) for layer in self.layers]
        each = list(zip(self.layers, arrays, strict=True))
        self.statistics = [layer.collect([(1, layer.statistics(built, documents, None))]) for layer, built in each]
        self.readers = [layer.open(built, documents, None, np.ones(self.n, bool)) for layer, built in each]

    def assert_same(self, form, allowed=None, k=50) -> int:
        """Asserts that both find the same; returns in how many lines or documents."""
        asked = [layer.prepare(Request("", form, True), s) for layer, s in zip(self.layers, self.statistics, strict=True)]
        text, narrowed = (reader.search(q, allowed, k, Budget()) for reader, q in zip(self.readers, asked, strict=True))
        for name in ("rows", "scores", "starts", "ends", "n_matched", "rows_covered", "rows_total"):
            assert_array_equal(getattr(narrowed, name), getattr(text, name), err_msg=f"{form}: {name}")
        surprises = [layer.surprise(q, text.scores).tobytes() for layer, q in zip(self.layers, asked, strict=True)]
        assert surprises[0] == surprises[1]
        return text.n_matched


@pytest.fixture(scope="module")
def library(request):
    """The standard library with --all-patterns, else some folders of it."""
    return Both(text_corpus.library(whole=request.config.getoption("--all-patterns")).documents)


CASES = [  # whose letters fold, or that need one of several strings
    r"def (get|set)_\w+\(self",
    r"class \w+Error\(",
    r"[Tt]est[Cc]ase",
    r"RFC[ -]?\d{4}",
    r"(?i)charset=",
    r"yield(?: from)? \w+$",
    r"x{3,}",
]


def test_the_300_patterns_of_the_text_layer_find_the_same_in_the_library(library):
    asked = forms() + [{"pattern": pattern, "regex": True, "case": case} for pattern in CASES for case in ("sensitive", "ignore")]
    found = [library.assert_same(form) for form in asked]
    assert len(found) == 314 and sum(map(bool, found)) > 250


def test_most_of_the_library_is_left_out_where_a_string_is_rare(library):
    layer, reader = library.layers[1], library.readers[1]
    everywhere = np.ones(library.n, bool)
    for pattern, most in (("import asyncio", 0.3), ("run_coroutine_threadsafe", 0.1), ("xqzvw", 0.0)):
        query = layer.prepare(Request("", {"pattern": pattern}, True), library.statistics[1]).payload
        _, ranges = reader.narrow(query, everywhere)
        assert np.diff(ranges, axis=1).sum() <= most * len(library.documents.text)
    unknown = layer.prepare(Request("", {"pattern": "=="}, True), library.statistics[1]).payload
    assert reader.narrow(unknown, everywhere)[1] is None


def test_forms_over_lines_documents_and_with_edits_find_the_same_in_the_library(library):
    forms = [
        {"all": ["import", {"pattern": r"as \w+$", "regex": True}], "none": ["from"]},
        {"any": ["quopri", {"all": ["email", "charset"]}], "case": "ignore"},
        {"all": ["asyncio", "subprocess"], "none": ["windows"], "per": "document"},
        {"pattern": r"try:\s+import \w+\s+except ImportError", "regex": True, "multiline": True},
        {"pattern": r"return None\n\n\nclass", "regex": True, "multiline": True},
        {"pattern": "NotImplementdError", "edits": 1},
        {"pattern": "quotedprintble", "edits": 3, "case": "ignore"},
    ]
    assert all([library.assert_same(form) for form in forms])


def test_a_scope_and_few_hits_change_nothing(library):
    allowed = np.random.default_rng(1).random(library.n) < 0.3
    assert library.assert_same({"pattern": "return"}, allowed, 3) > library.assert_same({"pattern": "ValueError"}, allowed, 3) > 0


TEXTS = st.lists(st.text(alphabet="abB \r\n.x1ék", max_size=80).map(str.encode), min_size=1, max_size=6, unique=True)
PATTERNS = st.recursive(
    st.sampled_from(["abx", "Bab", "x1", "a", "k", ".", "é", r"\w", r"\s", "[ab]", "[^a]", "^", "$", r"\b", "(?i:kab)", "x{3}"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=2).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "*?"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=6,
)


@settings(max_examples=120)
@given(TEXTS, PATTERNS, st.sampled_from(["sensitive", "ignore"]), st.booleans())
def test_any_regular_expression_finds_what_the_text_layer_finds(texts, pattern, case, multiline):
    with pytest.MonkeyPatch.context() as patch:
        always_narrowing(patch, 16)
        both = Both(Documents.pack((content_hash(text), text, "code") for text in texts))
        both.assert_same({"pattern": pattern, "regex": True, "case": case, "multiline": multiline})


# --- Beside the text layer ---------------------------------------------------------------------------------------------------

FILES = {"sea.md": "The tide comes in.\nA harbour lies at the sea.\n", "land.md": "A field of wheat, far from the tide.\n"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trigram")
    made = Engine(folder, layers=("names", "text", "trigram"))
    made.index(write_files(folder / "src", FILES), calibrate=False)
    return made


def told(answer, name):
    return next(layer for layer in answer.layers if layer.name == name)


def test_of_text_and_trigram_asked_the_same_only_one_counts_as_evidence(engine):
    both, alone = engine.search_many([{"query": "harbour lies"}, {"query": "harbour lies", "layers": ["names", "text"]}])
    assert paths(both) == paths(alone) == ["sea.md"]
    assert both.hits[0].fused == alone.hits[0].fused
    assert [signal.layer for signal in both.hits[0].signals] == ["trigram"]
    assert told(both, "text").asked is None and "'trigram' gives the same matches" in told(both, "text").reason
    assert told(both, "trigram").asked == told(alone, "text").asked
    assert told(alone, "trigram").reason == "not asked for"
    assert both.complete and {line.layer for line in both.coverage} == {"names", "trigram"}


def test_text_and_trigram_asked_different_things_are_both_asked(engine):
    answer = engine.search("tide", forms={"text": {"pattern": "wheat"}})
    assert told(answer, "text").asked == "'wheat', any case" and told(answer, "trigram").asked == "'tide', any case"


def test_text_is_still_asked_where_trigram_is_built_for_less(tmp_path):
    partial = Engine(tmp_path, layers=("text", "trigram@sea*"))
    partial.index(write_files(tmp_path / "src", FILES), calibrate=False)
    answer = partial.search("far from the tide")
    assert paths(answer) == ["land.md"]
    assert told(answer, "text").asked and told(answer, "trigram").asked


def test_hits_and_scores_do_not_depend_on_the_number_of_shards(tmp_path, monkeypatch):
    always_narrowing(monkeypatch, 256)
    files = {f"{i}.txt": f"boat {i % 7} of the harbour\n" * (i % 5 + 1) + "the tide\n" * 200 for i in range(40)}
    source = write_files(tmp_path / "src", files)
    asked = [{"query": text, "k": 40} for text in ("boat 3", "harbour", "boat", "tide")]
    found = []
    for n in (1, 4):
        engine = Engine(tmp_path / str(n), layers=("trigram",))
        engine.index(source, n_shards=n, calibrate=False)
        answers = engine.search_many(asked)
        found.append([[(h.hash, h.start, h.end, h.fused, [(s.score, s.evalue) for s in h.signals]) for h in a.hits] for a in answers])
    assert found[0] == found[1] and len(found[0][0]) == 5  # contents


def test_every_layer_that_narrows_another_names_one_of_the_same_units():
    classes = {}
    for name, place in REGISTRY.items():
        module, _, attribute = place.partition(":")
        classes[name] = getattr(importlib.import_module(module), attribute)
    pairs = {name: layer.narrows for name, layer in classes.items() if layer.narrows}
    assert pairs["trigram"] == "text"
    for name, other in pairs.items():
        assert (classes[name].granularity, classes[name].null) == (classes[other].granularity, classes[other].null)
