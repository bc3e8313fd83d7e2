"""The names layer against the obvious way, and what "go to file" users expect to come first."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_contract import LayerContract

from shards.errors import BadQuery
from shards.identity import content_hash
from shards.layers.contract import Request, Resources
from shards.layers.names import Names
from shards.plan import glob_regex
from shards.segment import pack_entries
from shards.types import Budget, Entry

PATHS = [
    "shutil.py", "asyncio/queues.py", "multiprocessing/queues.py", "asyncio/__init__.py", "json/__init__.py", "json/decoder.py",
    "http/server.py", "src/HttpServer.java", "src/HTTPServerTest.java", "docs/quick start.md", "Makefile", "test/test_shutil.py",
    "email/mime/text.py", "notes/naïve.txt", "a[1].txt", "README", "old/README.md", "distutils/archive_util.py",
]  # fmt: skip


class TestNamesContract(LayerContract):
    def make_layer(self):
        return Names(Names.Params(), Resources())

    def requests(self):
        forms = [{"glob": "src/*_[0-9].*"}, {"name": "beta_7.py"}, {"fuzzy": "srcb1"}]
        return [Request("alpha"), Request("src/*.py"), Request("old alp md"), *(Request("", form, True) for form in forms)]


def layer():
    return Names(Names.Params(), Resources())


def reader_of(paths):
    """Reader, statistics, and the paths in the order of its rows."""
    entries = pack_entries(Entry("test", path, content_hash(path.encode("utf-8", "surrogateescape")), 0, 0) for path in paths)
    names = layer()
    arrays = names.build(None, entries)
    statistics = names.collect([(1, names.statistics(arrays, None, entries))])
    reader = names.open(arrays, None, entries, np.ones(len(entries), bool))
    return reader, statistics, [entries.path(row) for row in range(len(entries))]


def ranked(paths, request):
    """(path, score) found for a request, best first."""
    reader, statistics, order = reader_of(paths)
    found = reader.search(layer().prepare(request, statistics), None, 1000, Budget())
    return [(order[row], score) for row, score in zip(found.rows, found.scores, strict=True)]


def slow_tier(path: str, text: str) -> int:
    fold = text == text.lower()
    path, base = (path.lower(), path.lower().rpartition("/")[2]) if fold else (path, path.rpartition("/")[2])
    if path == text:
        return 6
    if base == text:
        return 5
    if path.endswith("/" + text):
        return 3
    if "." in base and base.rpartition(".")[0] == text:
        return 4
    if text in path:
        return 2

    def is_subsequence(word):
        letters = iter(path)
        return all(letter in letters for letter in word)

    return 1 if all(map(is_subsequence, text.split())) else 0


NAMES = st.text(alphabet="abA_/.1", min_size=1, max_size=8).filter(lambda text: text.strip("/") == text)


@settings(max_examples=150)
@given(st.lists(NAMES, min_size=1, max_size=8, unique=True), st.text(alphabet="abA/. 1", min_size=1, max_size=4))
def test_each_path_is_in_the_tier_that_a_slow_reading_of_the_rules_gives(paths, text):
    text = re.sub(r"^(\./|/| )+", "", text.strip())
    if not text:
        return
    found = dict(ranked(paths, Request(text, explicit=True)))
    expected = {path: tier for path in paths if (tier := slow_tier(path, text))}
    assert {path: math.floor(score) for path, score in found.items()} == expected


@pytest.mark.parametrize(
    ("text", "best"),
    [
        ("shutil.py", "shutil.py"),
        ("./shutil.py", "shutil.py"),
        ("/asyncio/queues.py", "asyncio/queues.py"),
        ("queues.py", "asyncio/queues.py"),
        ("decoder", "json/decoder.py"),
        ("mime/text.py", "email/mime/text.py"),
        ("asynqu", "asyncio/queues.py"),
        ("queues multi", "multiprocessing/queues.py"),
        ("htse", "src/HttpServer.java"),  # all of it in the last segment
        ("ht/se", "http/server.py"),
        ("HS", "src/HttpServer.java"),
        ("HSTest", "src/HTTPServerTest.java"),
        ("quick start.md", "docs/quick start.md"),
        ("makefile", "Makefile"),
        ("naïve", "notes/naïve.txt"),
        ("readme", "README"),
    ],
)
def test_what_people_type_brings_up_the_file_they_mean(text, best):
    assert ranked(PATHS, Request(text))[0][0] == best


@pytest.mark.parametrize(
    ("better", "worse", "text"),
    [
        ("src/foo_bar.py", "src/fooxbar.py", "fbar"),
        ("src/fooBar.py", "src/foobar.py", "fbar"),
        ("src/tab.py", "src/taxxb.py", "stab"),
        ("xyz/ab_cd.py", "ab_cd/xyz.py", "abcd"),  # the last segment counts most
        ("xyz/abcd_e.py", "xyz/w/abcd_e.py", "abce"),  # of equals the shorter path
    ],
)
def test_starts_of_words_and_runs_count_more(better, worse, text):
    found = dict(ranked([better, worse], Request(text)))
    assert 1 < found[worse] < found[better] < 2


@settings(max_examples=100)
@given(st.lists(NAMES, min_size=1, max_size=8, unique=True), st.sampled_from(["*", "a*", "**/a", "a/*", "?", "[ab]*", "{a,b}*"]))
def test_globs_find_what_the_scope_means_by_them(paths, glob):
    expected = {path: 6.0 for path in paths if glob_regex(glob).fullmatch(path)}
    assert dict(ranked(paths, Request("", {"glob": glob, "case": "sensitive"}, True))) == expected
    expected = {path: 6.0 for path in paths if glob_regex(glob).fullmatch(path.lower())}
    assert dict(ranked(paths, Request("", {"glob": glob}, True))) == expected


@pytest.mark.parametrize("form", [{"glob": "**"}, {"substring": "a"}, {"fuzzy": "a"}, {"name": "a"}])
def test_hidden_paths_are_found_unless_that_is_said(form):
    paths = ["a", ".a", "b/.a/a", ".b/a", "c/a", "x.a/a", "c/.a"]
    everything = {path for path, _ in ranked(paths, Request("", form, True))}
    assert everything >= {"a", "b/.a/a", ".b/a", "c/a", "x.a/a"}
    shown = {path for path, _ in ranked(paths, Request("", {**form, "hidden": False}, True))}
    assert shown == {path for path in everything if not any(segment.startswith(".") for segment in path.split("/"))}


def test_paths_that_are_no_unicode_are_globbed_like_others():
    odd = [b"x/\xff.py".decode("utf-8", "surrogateescape"), b"\xfe/y.py".decode("utf-8", "surrogateescape")]
    paths = [*odd, *(f"x/{i}.py" for i in range(3000)), "y.txt"]
    assert sorted(path for path, _ in ranked(paths, Request("", {"glob": "x/?.py"}, True))) == sorted(
        [odd[0], *(f"x/{i}.py" for i in range(10))]
    )


def test_a_name_is_a_whole_path_or_its_last_segment_and_nothing_less():
    assert [path for path, _ in ranked(PATHS, Request("", {"name": "queues.py"}))] == [
        path for path, _ in ranked(PATHS, Request("queues.py")) if path.endswith("/queues.py")
    ]
    assert ranked(PATHS, Request("", {"name": "queues"})) == []
    assert ranked(PATHS, Request("", {"name": "readme"})) == [("README", 6 + 6 / 7)]


def test_common_text_is_a_glob_a_path_or_nothing():
    _, statistics, _ = reader_of(PATHS)
    prepare = layer().prepare
    assert prepare(Request("**/*.py"), statistics).asked == "paths like **/*.py, any case"
    assert prepare(Request("**/*.PY"), statistics).asked == "paths like **/*.PY"
    assert prepare(Request("a[1"), statistics).asked == "paths with 'a[1', any case"  # no glob: its bracket is open
    assert prepare(Request("HttpS"), statistics).asked == "paths with 'HttpS'"
    assert prepare(Request("how do I copy a tree?"), statistics) is None
    assert prepare(Request("x" * 257), statistics) is None
    assert prepare(Request("   "), statistics) is None
    assert prepare(Request("/"), statistics) is None


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("", {"glob": "a[1"}), "unclosed '\\['"),
        (Request("a[1", explicit=True), "unclosed '\\['"),
        (Request("", {"globb": "a"}), "globb: Extra inputs"),
        (Request("", {"glob": "a", "name": "b"}), "has 2 of glob, name, substring, fuzzy"),
        (Request("", {"name": 3}), "name: Input should be a valid string"),
        (Request("", {"fuzzy": " "}), "nothing to look for"),
        (Request(" ", explicit=True), "nothing to look for"),
        (Request("", {"fuzzy": "\ud800"}), "surrogate"),
        (Request("x" * 5000, explicit=True), "5000 characters"),
    ],
)
def test_a_form_that_cannot_be_understood_says_what(request_, message):
    with pytest.raises(BadQuery, match=message):
        layer().prepare(request_, reader_of(PATHS)[1])


def many_paths() -> list[str]:
    rng = np.random.default_rng(7)
    words = ["core", "util", "parser", "index", "store", "query", "http", "client", "server", "model", "view", "test", "base"]
    pick = lambda n: [words[i] for i in rng.integers(len(words), size=n)]  # noqa: E731
    paths = {"/".join(pick(int(rng.integers(1, 4)))) + f"/{'_'.join(pick(2))}.py" for _ in range(800)}
    return sorted(paths | {"core/shutil_quux.py"})


def surprises(paths, text):
    reader, statistics, _ = reader_of(paths)
    query = layer().prepare(Request(text, explicit=True), statistics)
    return layer().surprise(query, reader.search(query, None, 1000, Budget()).scores)


def test_an_exact_name_is_strong_evidence_and_scattered_letters_are_none():
    paths = many_paths()
    n = len(paths)
    assert surprises(paths, "core/shutil_quux.py")[0] > math.log(n) + 10
    assert surprises(paths, "shutil_quux")[0] > math.log(n) + 5
    for text in ("ctp", "sq", "py", "core", "*.py"):
        assert surprises(paths, text).max(initial=0) < math.log(n), text
    for question in ("how do clients use the query store", "where is the parser of http", "copy a tree of files"):
        assert surprises(paths, question).max(initial=0) < 2, question


def test_a_better_tier_is_never_less_surprising():
    _, statistics, _ = reader_of(many_paths())
    for text in ("shutil_quux.py", "core/index", "x", "query store"):
        query = layer().prepare(Request(text), statistics)
        of_tier = layer().surprise(query, np.array([-np.inf, 1.0, 1.7, 1.999, 2.5, 3.5, 4.5, 5.5, 6.9]))
        assert of_tier[0] == 0
        assert (np.diff(of_tier) >= 0).all()


@pytest.mark.parametrize(
    ("order", "text"),
    [
        (["x/sort.py", "x/resort.py", "sort/x.py", "resort/x.py"], "sor"),
        (["x/reSort.py", "x/resort.py", "a_sort/x.py"], "sor"),
    ],
)
def test_a_part_of_the_last_segment_comes_first_and_there_the_beginning_of_a_word(order, text):
    assert [path for path, _ in ranked(order[::-1], Request("", {"substring": text}, True))] == order


def test_scattered_letters_are_as_surprising_as_their_quality_is_rare():
    """Among 20,000 random paths a share of at most e^-s matches a word with surprise s or more, and the bound is no empty one.

    One nat is allowed for: words that share letters are not met independently of one another.
    """
    rng = np.random.default_rng(3)
    letters = list("aeinorst") + list("bcdlmu")

    def word(low, high):
        return "".join(rng.choice(letters, rng.integers(low, high)))

    paths = sorted({"/".join(word(3, 9) for _ in range(rng.integers(1, 4))) + ".py" for _ in range(20_000)})
    reader, statistics, _ = reader_of(paths)
    names, seen = layer(), 0
    for text in [word(4, 8) for _ in range(12)] + [f"{word(3, 5)} {word(3, 5)}" for _ in range(6)]:
        query = names.prepare(Request(text, explicit=True), statistics)
        found = reader.search(query, None, len(paths), Budget())
        fuzzy = found.scores < 2
        surprises = names.surprise(query, found.scores)
        for nats in range(1, 9):
            n = int((surprises[fuzzy] >= nats).sum())
            assert n <= 3 + len(paths) * math.exp(1 - nats), (text, nats, n)
            seen += n * (nats > 3)
    assert seen > 20


class Ticks(Budget):
    """A budget of so many looks at the clock."""

    def __init__(self, looks):
        self.looks = looks

    @property
    def expired(self):
        self.looks -= 1
        return self.looks < 0


@pytest.mark.parametrize("text", ["q", "*q*"])
def test_at_the_deadline_the_paths_looked_at_are_counted(monkeypatch, text):
    monkeypatch.setattr("shards.layers.names._BATCH_ROWS", 10)
    monkeypatch.setattr("shards.layers.names._GLOB_BATCH_ROWS", 10)
    reader, statistics, _ = reader_of([f"q{i}" for i in range(95)])
    query = layer().prepare(Request(text), statistics)
    for looks, covered in ((0, 0), (1, 10), (9, 90), (100, 95)):
        found = reader.search(query, None, 1000, Ticks(looks))
        assert (found.rows_covered, found.n_matched, found.rows_total) == (covered, covered, 95)
        scored = reader.score(query, np.arange(95, dtype=np.int32), Ticks(looks)).scores
        assert np.isnan(scored).sum() == 95 - covered


def test_the_chance_that_letters_follow_one_another_is_that_of_all_short_texts_counted():
    from itertools import product

    from shards import path_kernels

    chances = {"a": 0.5, "b": 0.3, "-": 0.2}
    total = np.ones(6)
    path_kernels.waiting_times(np.array([chances["a"], chances["b"], chances["a"]]), total)
    for n in range(6):
        texts = ["".join(letters) for letters in product(chances, repeat=n)]
        expected = sum(math.prod(map(chances.get, text)) for text in texts if re.search("a.*b.*a", text))
        assert total[n] == pytest.approx(expected, abs=1e-12)
