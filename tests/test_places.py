"""Where a byte of a rendition stands in its file: pages, slides, chapters, cells of notebooks and of sheets."""

import pytest

from shards.excerpts import excerpt
from shards.places import cell_name, places_in

PAGES = b"one\n\x0c\n\x0cthree"
SHEETS = b"Ships!A1:B2\nName\tTons\nAda\t311\n\x0cFar & Co!AA10:AC12\nx\ty\tz\n\n\t\tend"


def place_at(kind: str, text: bytes | memoryview, at: int) -> str:
    """The place of one byte; "" where there is none."""
    return next((place for _, place in places_in(kind, text, at, at)), "")


@pytest.mark.parametrize(
    ("kind", "needle", "place"),
    [
        ("pages:english", b"one", "page 1"),
        ("pages", b"three", "page 3"),
        ("document:german", b"three", "page 3"),
        ("slides", b"three", "slide 3"),
        ("chapters:english", b"one", "chapter 1"),
        ("cells", b"three", "cell 3"),
        ("prose:english", b"three", ""),
        ("code", b"one", ""),
        ("image", b"one", ""),
    ],
)
def test_pages_and_their_like_are_counted(kind, needle, place):
    assert place_at(kind, PAGES, PAGES.index(needle)) == place


def test_a_document_that_knows_no_pages_has_none():
    assert place_at("document:english", b"one page, or ten", 5) == ""


@pytest.mark.parametrize(
    ("needle", "place"),
    [
        (b"Ships", "Ships"),
        (b"Name", "Ships!A1"),
        (b"Tons", "Ships!B1"),
        (b"Ada", "Ships!A2"),
        (b"311", "Ships!B2"),
        (b"Far", "Far & Co"),
        (b"x\t", "Far & Co!AA10"),
        (b"z\n", "Far & Co!AC10"),
        (b"end", "Far & Co!AC12"),
    ],
)
def test_cells_are_named_as_spreadsheets_name_them(needle, place):
    assert place_at("sheets", SHEETS, SHEETS.index(needle)) == place


def test_columns_go_on_after_z():
    columns = {0: "A", 25: "Z", 26: "AA", 51: "AZ", 52: "BA", 701: "ZZ", 702: "AAA", 16_383: "XFD"}
    assert {column: cell_name(0, column) for column in columns} == {column: f"{name}1" for column, name in columns.items()}
    assert cell_name(1_048_575, 0) == "A1048576"


@pytest.mark.parametrize(("kind", "text"), [("sheets", SHEETS), ("slides", PAGES), ("prose:english", PAGES)])
def test_the_places_of_a_piece_are_those_of_its_bytes(kind, text):
    for start in range(len(text)):
        for end in range(start, len(text) + 1):
            found = places_in(kind, memoryview(text), start, end)
            for at in range(start, end):
                told = [place for begins, place in found if begins <= at - start]
                assert (told[-1] if told else "") == place_at(kind, text, at)


def test_a_sheet_whose_head_is_not_one_has_no_cells():
    assert place_at("sheets", b"no head\na\tb", 10) == ""


def test_an_excerpt_bears_its_places():
    text = memoryview(SHEETS)
    shown = excerpt(text, SHEETS.index(b"Ada"), SHEETS.index(b"Ada") + 3, (), 12, "sheets")
    at = SHEETS.index(b"311") - shown.start
    assert ("Ships!B2", at) in [(place, begins) for begins, place in shown.places]
    assert excerpt(text, 0, 3, (), 12).places == ()
