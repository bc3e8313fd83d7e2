"""Files of formats in a corpus: found with their page or cell, read once, read anew by a new version of their reader, and pushed."""

from dataclasses import replace

import format_files
import pytest
from engine import Engine, age, paths, write_files
from test_push_http import serving
from test_repair import tools
from tiny_clip import pdf

import sondage
from serve.problems import InvalidRequest
from shards.formats import registry
from shards.formats.members import Budget, Left, Member, members
from shards.formats.registry import ALL, format_named
from shards.manifest import corpus_store
from shards.repair import repair
from shards.verify import verify

FILES = format_files.files(pdf(["The harbour lies open.", "The lighthouse stands."]))
LAYERS = ("names", "text")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """An engine over all files of formats, and a text."""
    folder = tmp_path_factory.mktemp("formats")
    engine = Engine(folder, LAYERS)
    source = write_files(folder / "src", FILES | {"b.txt": "A lighthouse in plain text.", "broken.docx": FILES["a.docx"][:300]})
    age(source)
    return engine, source, engine.index(source, calibrate=False)


def test_every_file_is_found_by_what_it_says_with_its_page_slide_chapter_or_cell(corpus):
    engine, _, outcome = corpus
    assert outcome.skipped == {"DOCX that is damaged": 1}
    answer = engine.search(forms={"text": {"pattern": "lighthouse"}}, k=30)
    assert {hit.entries[0].path: hit.place for hit in answer.hits} == {
        "a.docx": "page 2", "a.eml": "", "a.epub": "chapter 2", "a.ipynb": "cell 2", "a.odp": "slide 2", "a.odt": "page 2",
        "a.pdf": "page 2", "a.pptx": "slide 2", "a.rtf": "", "a.xlsx": "Lights & Co!B4", "b.txt": "",
    }  # fmt: skip
    assert [hit.place for hit in engine.search(forms={"text": {"pattern": "27.5"}}).hits] == ["Lights & Co!C4"]


def test_members_of_archives_are_entries_below_their_archive(corpus):
    engine, _, outcome = corpus
    members_of = {f"{archive}!/a/{name}" for archive in ("a.zip", "a.tar.gz") for name in ("ship.html", "notes.txt")}
    assert outcome.rows == len(members_of)
    (hit,) = engine.search(forms={"text": {"pattern": "The harbour lies open.$", "regex": True}}, paths=["*.zip!/**"]).hits
    assert {entry.path for entry in hit.entries} == {"a.zip!/a/notes.txt", "a.tar.gz!/a/notes.txt"}
    found = engine.search(forms={"text": {"pattern": "It holds that"}}).hits[0]
    assert {entry.path for entry in found.entries} == {"a.html", "a.zip!/a/ship.html", "a.tar.gz!/a/ship.html"}, "one content, one document"


def test_files_are_read_once_and_anew_only_by_a_new_version_of_their_reader(corpus, monkeypatch):
    engine, source, _ = corpus
    again = engine.index(source, calibrate=False, layers=())
    assert (again.hashed, again.changed) == (0, False)
    newer = replace(format_named("epub"), version=2)
    monkeypatch.setitem(registry._BY_SUFFIX, ".epub", newer)
    changed = engine.index(source, calibrate=False, layers=())
    assert (changed.hashed, changed.documents_added, changed.documents_removed) == (1, 1, 1)
    assert paths(engine.search(forms={"text": {"pattern": "lighthouse has"}})) == ["a.epub"]


def test_without_formats_such_files_are_text_or_skipped_and_texts_never_change(tmp_path):
    files = {name: FILES[name] for name in ("a.docx", "a.html", "a.zip")} | {"b.txt": "Plain.", "c.md": "# Head", "d.csv": "a,b\n1,2\n"}
    engine = Engine(tmp_path, LAYERS)
    source = write_files(tmp_path / "src", files)
    age(source)
    first = engine.index(source, calibrate=False, formats=registry.NONE)
    assert (first.documents_added, first.skipped) == (4, {"binary": 2})
    assert len(engine.search(forms={"text": {"pattern": "<script>"}}).hits) == 1
    second = engine.index(source, calibrate=False, layers=())
    assert (second.documents_added, second.documents_removed, second.skipped) == (3, 1, {}), "the page became the text in it"
    assert second.hashed == 4, "and what has no format was not read again, but for a table that might not have been UTF-8"
    assert engine.search(forms={"text": {"pattern": "<script>"}}).hits == []


def test_a_member_that_goes_leaves_the_index_and_one_that_stays_costs_nothing(tmp_path):
    engine = Engine(tmp_path, LAYERS)
    source = write_files(tmp_path / "src", {"a.zip": format_files.zipped({"one.txt": "First.", "two.txt": "Second."})})
    engine.index(source, calibrate=False)
    write_files(source, {"a.zip": format_files.zipped({"two.txt": "Second.", "three.txt": "Third."})})
    changed = engine.index(source, calibrate=False, layers=())
    assert (changed.documents_added, changed.documents_removed) == (1, 1)
    assert sorted(paths(engine.search(forms={"names": {"glob": "**/*.txt"}}, k=9))) == ["a.zip!/three.txt", "a.zip!/two.txt"]


def test_texts_that_are_lost_are_made_again_from_the_files(tmp_path):
    engine = Engine(tmp_path, LAYERS)
    files = {"a.docx": FILES["a.docx"], "p.zip": format_files.zipped({"b.html": FILES["a.html"]})}
    source = write_files(tmp_path / "src", files)
    age(source)
    engine.index(source, calibrate=False)
    inside = corpus_store(engine.store, "c")
    (name,) = [name for name in inside.list("segments/") if name.endswith("/text")]
    whole = inside.read(name)
    inside.write(name, whole.replace(b"lighthouse", b"??????????").replace(b"at dawn", b"at ????"))
    repair(engine.store, "c", verify(engine.store, "c", engine.cache, engine.resources), tools(engine))
    assert inside.read(name) == whole


# --- archives ----------------------------------------------------------------------------------------------------------------


def opened(path: str, data: bytes, budget: Budget | None = None, max_file_bytes: int = 1 << 20) -> list[Member | Left]:
    known = registry.format_of(path)
    return list(members(path, data, known, ALL, max_file_bytes, budget or Budget()))


def test_archives_in_one_another_are_opened_three_deep():
    data = format_files.zipped({"x.txt": "deep"})
    for inner in ("c.zip", "b.tar.gz"):
        data = format_files.tarred({inner: data}) if inner == "c.zip" else format_files.zipped({inner: data})
    assert opened("a.zip", data) == [Member("a.zip!/b.tar.gz!/c.zip!/x.txt", b"deep")]
    fourth = opened("z.zip", format_files.zipped({"a.zip": data}))
    assert fourth == [Left("z.zip!/a.zip!/b.tar.gz!/c.zip", "more than 3 archives in one another")]


def test_of_a_bomb_the_beginning_is_read_and_no_more_than_the_budget():
    files = {f"{i}.txt": bytes(1000) for i in range(10)}
    archives = {"a.zip": format_files.zipped(files), "a.tar.gz": format_files.tarred(files), "a.tar": format_files.tarred(files, "w")}
    for path, data in archives.items():
        found = opened(path, data, Budget(unpacked_bytes=3500))
        assert [m.path for m in found if isinstance(m, Member)] == [f"{path}!/{i}.txt" for i in range(3)]
        assert isinstance(found[-1], Left) and found[-1].path == path and "unpacks to more than" in found[-1].reason
    assert isinstance(opened("a.zip", format_files.zipped(files), Budget(members=2))[-1], Left)


def test_what_is_wrong_with_one_member_or_with_the_archive_is_told():
    whole = format_files.zipped({"big.txt": bytes(5000), "ok.txt": "fine"})
    left, read = opened("a.zip", whole, max_file_bytes=4999)
    assert (left, read) == (Left("a.zip!/big.txt", "larger than 4,999 bytes"), Member("a.zip!/ok.txt", b"fine"))
    encrypted = whole
    for head in (b"PK\x01\x02\x14\x03\x14\0", b"PK\x03\x04\x14\0"):  # the flag for it, in the directory and before each member
        encrypted = encrypted.replace(head + b"\0", head + b"\1")
    assert [left.reason for left in opened("a.zip", encrypted)] == ["wants a password"] * 2
    assert opened("a.zip", b"PK and nothing") == [Left("a.zip", "zip that is damaged")]
    cut = format_files.tarred({"one.txt": b"1" * 2000, "two.txt": b"2" * 20_000}, "w")[:9_000]
    assert [type(found) for found in opened("a.tar", cut)] == [Member, Left]
    assert opened("a.tar", b"no tar") == [Left("a.tar", "tar that is damaged")]


# --- pushed ------------------------------------------------------------------------------------------------------------------


def test_a_pushed_file_goes_through_the_same_reader(tmp_path):
    with serving(tmp_path) as url, sondage.connect(url) as session:
        session.put("report.docx", FILES["a.docx"], corpus="c", layers=list(LAYERS), create=True, wait=True)
        session.put("page.html", "<b>a lighthouse as text</b>", corpus="c", wait=True)
        answer = session.search("lighthouse", corpus="c", layers=["text"])
        assert {(hit.entries[0].path, hit.place) for hit in answer.hits} == {("report.docx", "page 2"), ("page.html", "")}
        assert "<b>" in next(hit for hit in answer.hits if hit.entries[0].path == "page.html").excerpt.text, "a text is what it is"
        with pytest.raises(InvalidRequest, match="XLSX that is damaged"):
            session.put("broken.xlsx", FILES["a.xlsx"][:200], corpus="c")
        with pytest.raises(InvalidRequest, match="An archive is many documents"):
            session.put("a.zip", FILES["a.zip"], corpus="c")
