"""What is made of files that are no text, and that no file of them does harm."""

import os
import signal
from email.message import EmailMessage
from pathlib import Path

import format_files
import pytest
from test_places import place_at
from tiny_clip import pdf

from jobs.bench_formats import mutilated, probed
from shards import pages
from shards.errors import BadSpec
from shards.formats.process import Extracted, Extractors, Limits
from shards.formats.registry import ALL, FORMATS, NONE, format_named, format_of, parse_formats
from shards.identity import content_hash
from shards.renditions import Skipped

SHARED = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "documents"
FILES = format_files.files(pdf(["The harbour lies open.", "The lighthouse stands."], title="The coast"))
RENDERED = {path: data for path, data in FILES.items() if not format_of(path).is_archive}
EQUATION = r"x^2+y^2=\theta"


@pytest.fixture(scope="module")
def extractors():
    with Extractors() as opened:
        yield opened


def read(extractors: Extractors, path: str, data: bytes) -> Extracted | Skipped | None:
    return extractors.read(format_of(path), data)


def texts(found: Extracted) -> list[str]:
    """Its pages, slides and so on."""
    return found.text.decode().split("\n\f")


# --- what a text looks like --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "kind", "facts", "pieces"),
    [
        ("a.pdf", "pages:english", {"pages": 2, "title": "The coast"}, ["The harbour lies open.", "The lighthouse stands."]),
        ("a.docx", "document:english", {"pages": 2},
         [f"Ships lie in the harbour.\n\nFor ${EQUATION}$, it holds.\n\n$${EQUATION}$$",
          "The lighthouse stands on page two.\n\nShip\tTons\nAda\t311"]),
        ("a.pptx", "slides:english", {"slides": 2}, ["Ships lie in the harbour", f"The lighthouse of ${EQUATION}$ rays"]),
        ("a.xlsx", "sheets:english", {"sheets": ["Ships", "Lights & Co"]},
         ["Ships!A1:B2\nName\tTons\nharbour\t311", "Lights & Co!B3:C4\nTower\tHeight\nlighthouse\t27.5",
          "Lights & Co!B40:D40\n\t\tfar below"]),
        ("a.odt", "document:english", {"pages": 2, "title": "Ships of old"},
         ["## Ships\n\nThey lie in  the harbour.\n\n- one\n\n- two\n\n"
          "So <math><semantics><msup><mi>x</mi><mn>2</mn></msup></semantics></math> holds.", "The lighthouse.\n\nAda\t311"]),
        ("a.odp", "slides:english", {"slides": 2}, ["The harbour", "The lighthouse"]),
        ("a.epub", "chapters:english", {"title": "The coast", "chapters": 2},
         ["# Ships\n\nIn the harbour.", "# Towers\n\nThe lighthouse has $x^2$ rays."]),
        ("a.html", "prose:english", {"title": "The coast"},
         ["Home About\n\n# Ships\n\nShips lie in the harbour at dawn.\n\n- one\n- two\n\nShip\tTons\nAda\t311\n\nIt holds that\n\n"
          "$$x^{2} < y$$\n\nand <math><msup><mi>a</mi><mn>2</mn></msup></math>.\n\nif a:\n    b()\n\nGöteborg & 中"]),
        ("a.rtf", "document:english", {"title": "The coast"}, ["Ships in the harbour of Göteborg.\nThe lighthouse 中 stands."]),
        ("a.ipynb", "cells", {"cells": 2, "language": "python"},
         ["# The harbour\nwhere $x^2$ holds", "def lighthouse():\n\n\n    return 311\n\nshining\n\nbold\n\nValueError: no light"]),
        ("a.eml", "prose:english",
         {"subject": "Ships in the harbour of Göteborg", "from": "Ada <ada@example.org>", "to": "bo@example.org",
          "date": "2024-02-20T10:15:00+01:00", "attachments": ["chart.bin"]},
         ["Subject: Ships in the harbour of Göteborg\nFrom: Ada <ada@example.org>\nTo: bo@example.org\n"
          "Date: Tue, 20 Feb 2024 10:15:00 +0100\n\nThe lighthouse stands.\nGrüße\n\nAttachment: chart.bin"]),
        ("a.csv", "prose:cjk", {"encoding": "cp932"}, ["名前,年齢,住所\n佐藤太郎,30,東京\n三木英子,25,大阪\n髙橋淳,35,名古屋"]),
        ("a.xml", "prose:russian", {"encoding": "cp1251"},
         ['<?xml version="1.0" encoding="windows-1251"?>\n<корабль>гавань</корабль>']),
    ],
)  # fmt: skip
def test_a_file_is_the_text_that_people_see_in_it(extractors, path, kind, facts, pieces):
    found = read(extractors, path, FILES[path])
    assert texts(found) == pieces
    assert (found.kind, found.facts) == (kind, {format_of(path).name: facts})


def test_an_equation_that_a_page_holds_twice_is_read_once(extractors):
    math = '<math><semantics><mi>x</mi><annotation encoding="application/x-tex">x_1</annotation></semantics></math>'
    katex = f'<span class="katex">{math}<span class="katex-html" aria-hidden="true"><span>x<span>1</span></span></span></span>'
    found = read(extractors, "a.html", f"<p>So {katex} and {math}<img alt=x_1> and <img alt=ship>.<svg><g><svg/></g></svg></p>end".encode())
    assert found.text.decode() == "So $x_1$ and $x_1$ and ship .\n\nend"


def test_words_in_word_stay_whole_and_apart_whatever_their_lettering(extractors):
    run = '<w:r>{}<w:t xml:space="preserve">{}</w:t></w:r>'.format
    bold = "<w:rPr><w:b/></w:rPr>"
    body = (
        '<w:p><w:pPr><w:pStyle w:val="Heading2"/></w:pPr>' + run("", "Towers") + "</w:p>"
        f"<w:p>{run(bold, 'light')}{run('', 'house')}<w:r><w:tab/><w:t>a</w:t><w:noBreakHyphen/><w:t>b</w:t><w:br/><w:t>c</w:t></w:r></w:p>"
        f"<w:p><w:ins>{run('', 'new')}</w:ins><w:del><w:r><w:delText>old</w:delText></w:r></w:del></w:p>"
        f"<w:sdt><w:sdtContent><w:p><w:pPr><w:numPr/></w:pPr>{run('', 'one of *many*')}</w:p></w:sdtContent></w:sdt>"
        f"<w:tbl><w:tr><w:tc><w:p>{run(bold, 'ce')}{run('', 'll')}</w:p><w:p>{run('', 'two')}</w:p></w:tc>"
        "<w:tc><w:p/></w:tc></w:tr></w:tbl>"
    )
    found = read(extractors, "a.docx", format_files.docx(body))
    assert texts(found) == ["## Towers\n\nlighthouse\ta-b\nc\n\nnew\n\n- one of *many*\n\ncell two"]


@pytest.mark.parametrize(
    ("omml", "tex"),
    [
        ("<m:f><m:num>{a}</m:num><m:den>{b}</m:den></m:f>", r"\frac{a}{b}"),
        ('<m:f><m:fPr><m:type m:val="lin"/></m:fPr><m:num>{a}</m:num><m:den>{b}</m:den></m:f>', "a/b"),
        ("<m:rad><m:deg>{b}</m:deg><m:e>{a}</m:e></m:rad>", r"\sqrt[b]{a}"),
        ('<m:nary><m:naryPr><m:chr m:val="∑"/></m:naryPr><m:sub>{a}</m:sub><m:sup>{b}</m:sup><m:e>{a}</m:e></m:nary>', r"\sum_{a}^{b} a"),
        ("<m:nary><m:sub/><m:sup/><m:e>{a}</m:e></m:nary>", r"\int a"),
        ('<m:d><m:dPr><m:begChr m:val="["/><m:endChr m:val=""/></m:dPr><m:e>{a}</m:e><m:e>{b}</m:e></m:d>', r"\left[a|b\right."),
        ("<m:m><m:mr><m:e>{a}</m:e><m:e>{b}</m:e></m:mr><m:mr><m:e>{b}</m:e></m:mr></m:m>", r"\begin{matrix}a & b \\ b\end{matrix}"),
        ("<m:func><m:fName><m:r><m:t>sin</m:t></m:r></m:fName><m:e>{a}</m:e></m:func>", r"\sin a"),
        ("<m:limLow><m:e><m:r><m:t>max</m:t></m:r></m:e><m:lim>{a}</m:lim></m:limLow>", "max_{a}"),
        ('<m:acc><m:accPr><m:chr m:val="⃗"/></m:accPr><m:e>{a}</m:e></m:acc>', r"\vec{a}"),
        ('<m:bar><m:barPr><m:pos m:val="top"/></m:barPr><m:e>{a}</m:e></m:bar>', r"\overline{a}"),
        ("<m:sPre><m:sub>{a}</m:sub><m:sup>{b}</m:sup><m:e>{a}</m:e></m:sPre>", "{}_a^ba"),
        ("<m:r><m:rPr><m:nor/></m:rPr><m:t>if so</m:t></m:r>", r"\text{if so}"),
        ("<m:r><m:t>𝑥≤π−1%</m:t></m:r>", r"x\leq \pi -1\%"),
    ],
)
def test_equations_of_office_are_latex(omml, tex):
    from xml.etree import ElementTree

    from shards.formats.equations import latex

    a, b = (f"<m:r><m:t>{letter}</m:t></m:r>" for letter in "ab")
    assert latex(ElementTree.fromstring(f"<m:oMath {format_files.M}>{omml.format(a=a, b=b)}</m:oMath>")) == tex


@pytest.mark.parametrize("path", ["a.csv", "a.xml"])
def test_text_that_is_utf8_or_western_is_what_it_was_without_formats(extractors, path):
    western = "Größe;Straße\nMüller;3\nJürgen;4\n".encode("cp1252")
    few = ["café;été\n".encode("latin-1"), "señor,1\n".encode("cp1252"), b"100 \x80\n"]
    assert [read(extractors, path, data) for data in ("Größe,3\n".encode(), "Größe\n".encode("utf-16"), western, b"", *few)] == [None] * 7


@pytest.mark.parametrize(("encoding", "text"), [
    ("gb18030", "姓名,年龄\n张三,30\n李四,25\n"), ("cp949", "이름,나이\n홍길동,30\n김영희,25\n"), ("big5", "姓名,年齡\n張三,30\n李四,25\n"),
    ("cp1251", "имя,возраст\nИван Петров,30\nМария Сидорова,25\n"), ("euc_jp", "名前,住所\n佐藤太郎さん,東京のまち\nすずき,おおさか\n"),
])  # fmt: skip
def test_tables_of_other_scripts_are_known_by_how_their_bytes_fall(extractors, encoding, text):
    assert read(extractors, "a.csv", text.encode(encoding)).text.decode() == text.rstrip()


def test_a_file_of_another_content_than_its_name_says_is_like_any_other(extractors):
    assert read(extractors, "a.pdf", b"This is no PDF at all.") is None
    assert read(extractors, "a.ipynb", b'{"cells": 3}') is None
    assert read(extractors, "a.eml", b"A note, not a letter.\n") is None


# --- what has no text --------------------------------------------------------------------------------------------------------


def ole(stream: bytes) -> bytes:
    """The head of a compound file and a sector of it, which begins so."""
    return b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504) + stream.ljust(512, b"\0")


@pytest.mark.parametrize(
    ("path", "data", "reason"),
    [
        ("a.docx", FILES["a.docx"][:-40], "DOCX that is damaged"),
        ("a.docx", b"\0\1\2\3", "DOCX that is damaged"),
        ("a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600) + "EncryptedPackage".encode("utf-16-le"), "DOCX that wants a password"),
        ("a.xlsx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "EncryptedPackage".encode("utf-16-le"), "XLSX that wants a password"),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "DOC that is damaged"),
        ("a.doc", ole(b"\xec\xa5\xc1\0" + bytes(6) + b"\xf0\x13"), "DOC that wants a password"),
        ("a.doc", ole(b"\xec\xa5\xc1\0" + bytes(6) + b"\xf0\x12"), "DOC that is damaged"),
        ("a.xls", ole(b"\x09\x08\x10\0\0\x06\x05\0" + bytes(12) + b"\x2f\0\x36\0"), "XLS that wants a password"),
        ("a.xls", ole(b"\x09\x08\x10\0\0\x06\x05\0" + bytes(12) + b"\x86\0\0\0\x2f\0\x36\0"), "XLS that wants a password"),
        ("a.xls", ole(b"\x09\x08\x10\0\0\x06\x05\0" + bytes(12) + b"\xe1\0\x36\0"), "XLS that is damaged"),
        ("a.ppt", ole(b"\0\0\xf6\x0f\x1c\0\0\0\x14\0\0\0\xdf\xc4\xd1\xf3"), "PPT that wants a password"),
        ("a.ppt", ole(b"\0\0\xf6\x0f\x1c\0\0\0\x14\0\0\0\x5f\xc0\x91\xe3"), "PPT that is damaged"),
        ("a.pdf", b"%PDF-1.4 and nothing else", "PDF that is damaged"),
        ("a.pdf", pdf([""]), "PDF without text: its pages are pictures"),
        ("a.html", b"<p> <img src=a.png>", "HTML without text"),
        ("a.epub", format_files.zipped({"mimetype": "application/epub+zip"}), "EPUB that is damaged"),
        ("a.epub", format_files.epub("OPS/text/c%202.xhtml"), "EPUB that wants a password"),
        ("a.xlsx", format_files.xlsx(("Empty", {})), "XLSX without text"),
    ],
)
def test_what_cannot_be_read_is_skipped_with_its_reason(extractors, path, data, reason):
    assert read(extractors, path, data) == Skipped(reason)


def test_a_book_whose_fonts_alone_are_encrypted_is_read(extractors):
    assert texts(read(extractors, "a.epub", format_files.epub("OPS/font.otf"))) == texts(read(extractors, "a.epub", FILES["a.epub"]))


def test_of_a_mail_in_html_alone_the_text_is_read_and_of_one_in_another_both(extractors):
    outer, inner = EmailMessage(), EmailMessage()
    inner["Subject"], inner["From"] = "Old news", "bo@example.org"
    inner.set_content("<p>The <b>light</b>house<br>fell.</p><script>x()</script>", subtype="html")
    outer["Subject"] = "Fwd"
    outer.set_content("See below.")
    outer.add_attachment(inner)
    found = read(extractors, "a.eml", outer.as_bytes())
    assert found.text.decode() == "Subject: Fwd\n\nSee below.\n\nSubject: Old news\nFrom: bo@example.org\n\nThe lighthouse\nfell."


def test_a_pdf_of_pictures_is_a_document_for_spaces_that_look_at_pages(extractors):
    found = extractors.read(format_named("pdf"), pdf(["", ""]), with_pictures=True)
    assert (found.text, found.kind, found.facts) == (b"\n\f", "pages", {"pdf": {"pages": 2}})


def test_a_zip_bomb_is_not_unpacked():
    bomb = format_files.zipped({"word/document.xml": bytes(3 << 20)})
    assert len(bomb) < 4_000
    with Extractors(Limits(unpacked_bytes=2 << 20)) as extractors:
        assert read(extractors, "a.docx", bomb) == Skipped("DOCX that unpacks to more than 2 MiB")
        assert read(extractors, "a.odt", FILES["a.odt"]).kind == "document:english"


def test_a_file_that_takes_too_long_or_too_much_is_given_up_and_the_next_one_is_read():
    with Extractors(Limits(seconds=0.0)) as extractors:
        assert read(extractors, "a.rtf", FILES["a.rtf"]) == Skipped("RTF that takes longer than 0 s to read")
    huge = format_files.xlsx(("Far", {"A1": "here", "XFD1048576": "there"}))  # as a table 17 billion cells
    with Extractors(Limits(memory_bytes=200 << 20, text_bytes=150)) as extractors:
        assert read(extractors, "b.xlsx", FILES["a.xlsx"]).kind == "sheets:english"
        assert "memory" in read(extractors, "a.xlsx", huge).reason
        assert read(extractors, "b.xlsx", FILES["a.xlsx"]).kind == "sheets:english"
        assert read(extractors, "a.html", FILES["a.html"]) == Skipped("HTML of more than 150 bytes of text")


def test_a_process_that_dies_is_replaced_and_its_file_read_again():
    with Extractors() as extractors:
        first = read(extractors, "a.html", FILES["a.html"])
        os.kill(extractors._idle[0]._popen.pid, signal.SIGKILL)
        assert read(extractors, "a.html", FILES["a.html"]) == first
        assert extractors.started == 2
        read(extractors, "a.eml", FILES["a.eml"])
        assert extractors.started == 2, "one process reads many files"


@pytest.mark.parametrize("path", sorted(RENDERED))
def test_mutilated_files_give_a_text_or_a_reason(extractors, path):
    """`python jobs/bench.py formats --folder DIR --mutants 100` does it with more, and with files of one's own."""
    for seed in range(6):
        found = read(extractors, path, mutilated(FILES[path], seed))
        assert found is None or isinstance(found, Skipped | Extracted), f"seed {seed}"
        if isinstance(found, Skipped):
            assert found.reason.startswith(format_of(path).title), f"seed {seed}: {found.reason}"
        elif found is not None:
            assert found.text.decode().strip() and "\0" not in found.text.decode(), f"seed {seed}"
    assert extractors.started < 5


def test_strings_that_files_are_known_to_hold_are_looked_for_and_placed(tmp_path):
    (tmp_path / "a.pptx").write_bytes(FILES["a.pptx"])
    (tmp_path / "a.html").write_bytes(FILES["a.html"])
    probes = tmp_path / "probes.tsv"
    probes.write_text("a.pptx\tThe lighthouse of\na.pptx\tno such words\na.html\tin the harbour\n")
    assert probed(tmp_path, probes) == {
        "found": 2,
        "lacking": ["a.pptx\tno such words"],
        "places": {"a.pptx\tThe lighthouse of": "slide 2", "a.html\tin the harbour": ""},
    }
    probes.write_text("b.pdf\tmissing\n")
    with pytest.raises(BadSpec, match="is not a file of a known format"):
        probed(tmp_path, probes)


# --- identity ----------------------------------------------------------------------------------------------------------------


def test_the_hash_covers_the_content_the_reader_its_version_and_its_librarys():
    known = format_named("rtf")
    from importlib.metadata import version

    said = f"rtf\0{known.version}\0striprtf {version('striprtf')}\0".encode()
    assert known.identity(b"x") == content_hash(said + content_hash(b"x"))
    assert len({known.identity(b"x"), known.identity(b"y"), format_named("html").identity(b"x")}) == 3


def test_a_pdf_is_the_same_document_whether_a_space_looks_at_its_pages_or_not(extractors):
    data = FILES["a.pdf"]
    seen, found = pages.read_pages(data), extractors.read(format_named("pdf"), data)
    assert (found.text, found.hash, found.kind, found.facts) == (seen.text, seen.hash, seen.kind, seen.facts)


def test_formats_are_known_by_their_suffixes_and_chosen_by_name():
    paths = ("x/a.PDF", "a.tar.gz", "a.gz", ".pdf", "pdf", "a.b.docx", "a.md", "a.py", "b.zip!/c.xls")
    assert [known and known.name for known in map(format_of, paths)] == ["pdf", "tar", None, None, None, "docx", None, None, "xls"]
    assert format_of("a.pdf", NONE) is None
    assert len({suffix for known in FORMATS for suffix in known.suffixes}) == sum(len(known.suffixes) for known in FORMATS)
    assert parse_formats("all") == ALL and parse_formats("none") == NONE and parse_formats("pdf, docx") == {"pdf", "docx"}
    assert parse_formats("-html") == parse_formats("all,-html") == ALL - {"html"}
    for wrong in ("", "pfd"):
        with pytest.raises(BadSpec, match="Choose all, none, or from pdf, docx"):
            parse_formats(wrong)


# --- public files ------------------------------------------------------------------------------------------------------------

PLACES = {  # by hand, from what the programs that made the files show
    "314b0a30-5b04-470b-b9f7-eed2c2bec74a": "page 2",
    "49e168b7-d2ae-407f-a055-2167576f39a1": "page 2",
    "AutoGen: Enabling Next-Gen LLM Applications via Multi-Agent Conversation": "page 1",
    "6ff4173b-42a5-4784-9b19-f49caff4d93d": "Sheet1!B14",
    "2cdda5c8-e50e-4db4-b5f0-9722a649f455": "slide 2",
    "1b92870d-e3b5-4e65-8153-919f4ff45592": "slide 3",
    "Test Notebook": "cell 1",
    "Large language models (LLMs) are powerful tools that can generate natural language texts": "",
    "Large language models (LLMs) are becoming a crucial building block": "page 1",
    "JavaScript Code Example": "page 1",
    "Two-Column Document with Lorem Ipsum": "page 1",
}


def test_every_probe_is_found_in_its_file_with_its_page_or_cell(extractors):
    if not (SHARED / "probes.tsv").exists():
        pytest.skip("the folder of public documents is not here; files written here are read all the same")
    for line in (SHARED / "probes.tsv").read_text().splitlines():
        name, probe = line.split("\t")
        found = read(extractors, name, (SHARED / name).read_bytes())
        at = found.text.find(probe.encode())
        assert at >= 0, f"{probe!r} is not in {name}"
        assert place_at(found.kind, found.text, at) == PLACES[probe], name
