"""The store that the code of format 2 wrote: opened, searched and updated for ever; see `test_format.py` for format 1.

`tests/fixtures/make_format_2.py` says what is in it. What it answered then is in `answers.json`. Hits and raw scores must stay;
where fusion is changed on purpose, `make_format_2.py --answers` writes the evidence of the new one.
"""

import json
import shutil
import sys
from pathlib import Path

import pytest
from engine import Engine, paths
from test_format import assert_answered_as_then, assert_same_spaces, read_by_the_book

from shards.manifest import read_root
from shards.store import open_store
from shards.verify import verify

sys.path.append(str(Path(__file__).parent / "fixtures"))
from make_format_2 import CORPUS, LAYERS, PUSHES, REQUESTS, ROWS, WHOLE, answers, at_generation, write_generation


@pytest.fixture
def beside_the_model(monkeypatch):
    """The working folder from which the store's `near` space finds its model."""
    monkeypatch.chdir(WHOLE)


@pytest.mark.usefixtures("beside_the_model")
@pytest.mark.parametrize(("generation", "as_answered_by"), [(1, 1), (2, 2), (3, 2), (4, 4), (5, 5)])
def test_a_store_of_format_2_answers_as_it_did(tmp_path, generation, as_answered_by):
    got = answers(tmp_path, at_generation(WHOLE / "store", generation, tmp_path / "store"))
    assert_answered_as_then(REQUESTS, got, json.loads((WHOLE / "answers.json").read_text())[str(as_answered_by)])


@pytest.mark.usefixtures("beside_the_model")
def test_all_that_the_store_holds_is_as_format_md_says(tmp_path):
    shutil.copytree(WHOLE / "store", tmp_path / "store")
    engine = Engine(tmp_path, ())
    verified = verify(engine.store, CORPUS, engine.cache, engine.resources, deep=True)
    assert verified.generations == [1, 2, 3, 4, 5] and verified.damages == []


@pytest.mark.usefixtures("beside_the_model")
def test_a_store_of_format_2_is_brought_up_to_date_and_encodes_only_what_is_new(tmp_path):
    shutil.copytree(WHOLE / "store", tmp_path / "store")
    before = read_root(open_store(str(tmp_path / "store")), CORPUS, 5)
    source = write_generation(tmp_path / "files", 2)
    engine = Engine(tmp_path, LAYERS)
    outcome = engine.index(source, CORPUS, rows=ROWS)
    assert (outcome.added, outcome.removed) == (0, 0) and not any(outcome.encoded.values())
    assert_same_spaces(before, read_root(open_store(str(tmp_path / "store")), CORPUS, outcome.generation))
    (source / "notes/fog.txt").write_text("In fog the bell on the pier rings every minute.\n")
    outcome = engine.index(source, CORPUS, rows=ROWS)
    assert (outcome.hashed, outcome.added, outcome.encoded["near"]) == (1, 1, 1)
    after = read_root(open_store(str(tmp_path / "store")), CORPUS, outcome.generation)
    assert_same_spaces(before, after)
    assert after.sources["pushed"] == before.sources["pushed"]
    assert paths(engine.search("the bell in fog", CORPUS))[0] == "notes/fog.txt"
    assert paths(engine.search("the harbour opens at seven", CORPUS))[0] == "tool/web-1"


def test_a_reader_written_from_format_md_finds_every_text_by_its_path(tmp_path):
    found, statistics = read_by_the_book(WHOLE)
    folder = write_generation(tmp_path / "files", 2)
    expected = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    expected["data/latin1_\udce4.txt"] = expected["data/latin1_\udce4.txt"].decode("latin-1").encode()
    expected["data/signals.txt"] = expected["data/signals.txt"].decode("utf-16").encode()
    for line in expected.pop("signs.jsonl").splitlines():
        row = json.loads(line)
        expected[f"signs.jsonl#{row['key']}"] = row["says"].encode()
    del expected["data/logo.bin"], expected["src/expiry.py.meta.json"]
    pushed = {op.path: op.text for operations in PUSHES for op in operations}
    expected |= {path: text for path, text in pushed.items() if text}
    assert {path: text for path, (text, _) in found.items()} == expected
    total = lambda space, name: sum(sign * int(part[name].sum()) for sign, part in statistics[space])  # noqa: E731
    assert total("names", "n_units") == len(expected) and total("mine", "n_units") == 2
    assert total("text", "n_bytes") == sum(len(text) + bool(text) for text in set(expected.values()))
