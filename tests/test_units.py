"""Cutting documents: passages against a slow obvious version, lines against str.split."""

import random
import re
import subprocess
import sys

import numpy as np
import pytest

from shards.documents import Documents
from shards.errors import BadSpec
from shards.identity import content_hash
from shards.units import lines, passages

SPACE = rb"[\t-\r ]"
CLOSING = "(?:[)\"'\\]*_`]|’|”|」|』|】|）){0,3}".encode()
SENTENCE = re.compile("(?:[.!?]|。|！|？|．|｡|…)".encode() + CLOSING + rb"\Z")
STATEMENT = re.compile("(?:[.!?;{})\\]:]|。|！|？|．|｡|…)".encode() + CLOSING + rb"\Z")
WIDE = re.compile("(?:(?P<stop>。|！|？|．|｡|…)|、|，|；|：)(?:’|”|」|』|】|）)*".encode())


def pack(*texts: bytes) -> Documents:
    return Documents.pack((content_hash(text), text, "prose:english") for text in texts)


def cut(text: bytes, unit: int, overlap: int = 0) -> list[bytes]:
    units = passages(pack(text), unit, overlap)
    return [text[a:b] for a, b in zip(units.starts, units.ends, strict=True)]


def cut_slowly(text: bytes, unit: int, overlap: int) -> list[tuple[int, int]]:
    """The rules of `passages` one after the other, with regular expressions."""
    end = len(text.rstrip(b"\t\n\v\f\r "))
    low = len(text) - len(text.lstrip(b"\t\n\v\f\r "))
    found: list[tuple[int, int]] = []
    while low < end:
        stop, onward = end, end
        if end - low > unit:
            places: list[tuple[int, int, int]] = []  # kind, end, where the text goes on
            for gap in re.finditer(SPACE + rb"+", text[:end]):
                left, right = gap.span()
                if low + unit // 2 < left <= low + unit:
                    breaks = gap.group().count(b"\n")
                    opens = gap.group().endswith(b"\n") and text[right : right + 1] not in (b")", b"]", b"}")
                    begins = STATEMENT.search(text[low:left]) or text[right : right + 1] in (b"#", b"@", b"\\", b"=", b"<")
                    if breaks >= 2:
                        kind = 6 if opens else 5
                    elif breaks:
                        kind = 4 if opens and begins else 3
                    else:
                        kind = 2 if SENTENCE.search(text[low:left]) else 1
                    places.append((kind, left, right))
            for mark in WIDE.finditer(text[low:]):
                at = low + mark.start() + 3  # the mark itself; closing brackets follow as far as the window reaches
                if low + unit // 2 < at <= low + unit:
                    after = low + mark.end()
                    while after > low + unit:
                        after -= 3
                    if not re.match(SPACE, text[after : after + 1]):
                        places.append((2 if mark["stop"] else 1, after, after))
            if places:
                _, stop, onward = max(places)
            else:
                stop = low + unit
                while text[stop] & 0xC0 == 0x80:
                    stop -= 1
                onward = end - len(text[stop:end].lstrip(b"\t\n\v\f\r "))
                stop = low + len(text[low:stop].rstrip(b"\t\n\v\f\r "))
            if end - onward < unit / 5 and end - low <= 1.25 * unit:
                stop, onward = end, end
        found.append((low, stop))
        if overlap and onward < end:
            first = max(stop - overlap, low + 1)
            starts = [m.end() for m in re.finditer(SPACE + rb"+", text[first - 1 : stop])]
            starts = [first - 1 + at for at in starts if at < stop - first + 1]
            line_starts = [at for at in starts if re.search(rb"\n" + SPACE + rb"*\Z", text[first - 1 : at])]
            inside = [at for at in range(first, stop) if text[at] & 0xC0 != 0x80 and not re.match(SPACE, text[at : at + 1])]
            start = (line_starts or starts or inside or [onward])[0]
            onward = start if onward - start <= unit // 2 else onward
        low = onward
    return found


def random_text(draw: random.Random) -> bytes:
    pieces = [
        "word", "a", "Satz. ", "Really?! ", '"said." ', " ", " ", " ", "\n", "\n", "\n\n", "\r\n", "\r\n\r\n", "    ",
        "\n    ", "\t", "def f(x):\n", "}\n", ")\n", "# Heading\n", "@dec\n", "ä", "日本", "文。", "句、", "終。」", "！",
        "…", "😀", "x" * 40, " " * 50, "\n" * 7, "\f", "return 1;\n", "\u3000", "\x00", "’", "”",
    ]  # fmt: skip
    weights = [draw.random() ** 3 for _ in pieces]  # every text has a flavour of its own
    return "".join(draw.choices(pieces, weights, k=draw.randint(0, 200))).encode()


def test_passages_equal_those_of_the_obvious_version():
    seed = 20261129  # change it to look for more
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(60):
        documents = pack(*(random_text(draw) for _ in range(5)))
        unit = draw.randint(32, 300)
        overlap = draw.choice([0, 0, unit // 4, draw.randint(0, unit // 4)])
        units = passages(documents, unit, overlap)
        expected = [
            (row, start, end)
            for row in range(len(documents))
            for start, end in cut_slowly(bytes(documents.content(row)), unit, overlap)
        ]
        assert list(zip(*(column.tolist() for column in units), strict=True)) == expected, (unit, overlap)
        assert [column.dtype for column in units] == [np.int32, np.int64, np.int64]


def test_no_passage_splits_a_character_or_exceeds_five_quarters_and_none_loses_text():
    seed = 20261129  # change it to look for more
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(200):
        text, unit = random_text(draw), draw.randint(32, 200)
        pieces = cut(text, unit)
        for piece in pieces:
            piece.decode()  # raises inside a character
            assert piece == piece.strip() != b""
            assert len(piece) <= 1.25 * unit
        assert re.sub(SPACE, b"", b"".join(pieces)) == re.sub(SPACE, b"", text)


@pytest.mark.parametrize(
    ("text", "passages_of_40"),
    [
        ("", []),
        (" \r\n\t\n ", []),
        ("  short \n", ["short"]),
        # a blank line wins over later line ends
        ("one one one one one one\n\ntwo two\nthree three three", ["one one one one one one", "two two\nthree three three"]),
        # one before an unindented line wins over a later one inside a body
        ("    aaaaaaaaa aaaaaaaaaaaaaa\n\ndef f():\n\n    bbb bbbb", ["aaaaaaaaa aaaaaaaaaaaaaa", "def f():\n\n    bbb bbbb"]),
        # a definition begins after a statement, whose closing bracket stays with it
        ("    call(aaaaaaaaaaaaaaaaaa)\n)\ndef g(): return bbbb", ["call(aaaaaaaaaaaaaaaaaa)\n)", "def g(): return bbbb"]),
        ("text text text text text text\n# Heading\nmore more", ["text text text text text text", "# Heading\nmore more"]),
        ("a line that has no mark\nof a sentence in it so long", ["a line that has no mark", "of a sentence in it so long"]),
        ('It is said "that is all." Then more words', ['It is said "that is all."', "Then more words"]),
        ("只有三个字的句子在这里。第二句也不算长，可是没有完", ["只有三个字的句子在这里。", "第二句也不算长，可是没有完"]),
        ("x" * 70, ["x" * 40, "x" * 30]),
        ("ä" * 30, ["ä" * 20, "ä" * 10]),
        ("😀" * 11, ["😀" * 11]),  # 44 bytes: the rest of 4 would be a sliver
        ("word " * 8 + "end", ["word word word word word word word word end"]),
        ("a" * 30 + " " * 100 + "b", ["a" * 30, "b"]),  # joined, it would be too large
    ],
)  # fmt: skip
def test_where_passages_are_cut(text, passages_of_40):
    assert [piece.decode() for piece in cut(text.encode(), 40)] == passages_of_40


def test_overlap_repeats_whole_lines_or_words():
    text = b"\n".join(b"line %d has words" % i for i in range(10))
    assert cut(text, 70, 17) == [
        b"line 0 has words\nline 1 has words\nline 2 has words\nline 3 has words",
        b"line 3 has words\nline 4 has words\nline 5 has words\nline 6 has words",
        b"line 6 has words\nline 7 has words\nline 8 has words\nline 9 has words",
    ]
    assert cut(b"aaaa bbbb cccc dddd eeee ffff gggg hhhh iiii", 32, 7) == [
        b"aaaa bbbb cccc dddd eeee ffff",
        b"ffff gggg hhhh iiii",
    ]


def test_a_documents_passages_do_not_depend_on_its_neighbours():
    draw = random.Random(7)
    texts = [random_text(draw) for _ in range(20)]
    together = pack(*texts)
    units = passages(together, 80, 10)
    for row in range(len(together)):
        alone = passages(pack(bytes(together.content(row))), 80, 10)
        mine = units.rows == row
        assert units.starts[mine].tolist() == alone.starts.tolist()
        assert units.ends[mine].tolist() == alone.ends.tolist()


def test_only_documents_in_scope_are_cut():
    documents = pack(b"one", b"two", b"three")
    assert passages(documents, 100, scope=np.array([True, False, True])).rows.tolist() == [0, 2]
    assert len(passages(documents, 100, scope=np.zeros(3, bool)).rows) == 0
    assert len(passages(pack(), 100).rows) == 0


@pytest.mark.parametrize(
    ("unit", "overlap", "says"), [(10, 0, "unit_bytes is 10"), (100, 26, "expected 0 to 25"), (100, -1, "-1")]
)
def test_sizes_out_of_range_are_refused(unit, overlap, says):
    with pytest.raises(BadSpec, match=says):
        passages(pack(b"x"), unit, overlap)


def test_lines_are_those_of_an_editor():
    texts = [b"", b"\n", b"a", b"a\n", b"a\r\nb\r\n\r\n", b"\n\nx", "ä\u2028b\rc\n".encode(), b"\r\n", b"\r"]
    documents = pack(*texts)
    units = lines(documents)
    for row in range(len(documents)):
        text = bytes(documents.content(row))
        expected = [line.removesuffix(b"\r") for line in text.split(b"\n")]
        expected = expected[:-1] if not text or text.endswith(b"\n") else expected
        mine = units.rows == row
        assert [text[a:b] for a, b in zip(units.starts[mine], units.ends[mine], strict=True)] == expected
    assert len(lines(pack()).rows) == 0


def test_numba_is_imported_only_when_passages_are_cut():
    code = "import sys, shards.units; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
