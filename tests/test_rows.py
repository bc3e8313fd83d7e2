"""Rows of tables as documents: what is read of JSON Lines, CSV and Parquet, and what an update of a table costs."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from engine import Engine, paths

from shards import lease
from shards.backup import restore
from shards.collect import Policy, collect
from shards.encodings import PackedEncodings
from shards.errors import BadSpec
from shards.manifest import corpus_store
from shards.rows import RowRule, Table, read_table
from shards.store import open_store

RULE = RowRule.parse("*:text=body,id=id,vector=emb->mine")


@pytest.mark.parametrize(
    ("spelt", "rule"),
    [
        ("*.jsonl:text=body", RowRule("*.jsonl", ("body",))),
        ("a/*.csv:text=title+body,id=key", RowRule("a/*.csv", ("title", "body"), "key")),
        (
            "x.parquet:id=i,text=t,vector=e->mine,vector=f,meta=a+b.c",
            RowRule("x.parquet", ("t",), "i", (("e", "mine"), ("f", "f")), ("a", "b.c")),
        ),
    ],
)
def test_a_rule_names_files_and_columns(spelt, rule):
    assert RowRule.parse(spelt) == rule
    assert RowRule.parse(str(rule)) == rule


@pytest.mark.parametrize(
    ("spelt", "said"),
    [
        ("*.jsonl", "names no files"),
        ("*.jsonl:", "names no text column"),
        (":text=a", "names no files"),
        ("*.jsonl:id=a", "names no text column"),
        ("*.jsonl:text=a,colour=b", "'colour=b' is none of text=, id=, vector=, meta="),
        ("*.jsonl:text=a,id=b,id=c", "two columns of ids"),
        ("*.jsonl:text=a,vector=->x", "names no column"),
        ("[a:text=a", "unclosed"),
    ],
)
def test_a_rule_that_cannot_be_understood_says_how_to_write_one(spelt, said):
    with pytest.raises(BadSpec) as caught:
        RowRule.parse(spelt)
    assert said in str(caught.value)


def read(name: str, data: bytes, rule: RowRule = RULE) -> Table:
    return read_table(name, data, rule, {"mine": 2})


def shown(table: Table) -> list[tuple]:
    return [(row.id, row.text, row.metadata, {n: v.tolist() for n, v in row.vectors.items()}) for row in table.rows]


def test_json_lines_give_a_row_each_and_odd_ones_are_counted():
    lines = [
        '{"id": "a", "body": "one", "n": 1, "deep": {"x": [1, 2]}, "emb": [1, 2]}',
        '{"id": 7, "body": "two", "emb": [[1, 2], [3, 4]], "none": null}',
        "",
        "not JSON",
        "[1, 2]",
        '{"id": "a", "body": "again"}',
        '{"body": "nameless"}',
        '{"id": true, "body": "odd name"}',
        '{"id": "t", "body": 5}',
        '{"id": "u"}',
        '{"id": "v", "body": "three", "emb": [1, 2, 3], "x": NaN}',
        '{"id": "w", "body": "four", "emb": "no"}',
        '{"id": "\\ud800", "body": "no path"}',
        '{"id": "big", "body": "five", "blob": "' + "x" * 40_000 + '"}',
        '{"id": "a#b/c", "body": "six \\ud800"}',
    ]
    table = read("d.jsonl", "\n".join(lines).encode())
    assert shown(table) == [
        ("a", "one", {"id": "a", "n": 1, "deep": {"x": [1, 2]}}, {"mine": [[1, 2]]}),
        ("7", "two", {"id": 7}, {"mine": [[1, 2], [3, 4]]}),
        ("v", "three", {"id": "v"}, {}),
        ("w", "four", {"id": "w"}, {}),
        ("big", "five", {"id": "big"}, {}),
        ("a#b/c", "six \ud800", {"id": "a#b/c"}, {}),
    ]
    assert table.odd == {
        "line that is not JSON": (1, "row 3"),
        "line that is no JSON object": (1, "row 4"),
        "row whose id occurs before": (1, "row 5"),
        "row without an id": (1, "row 6"),
        "row whose id is no text or integer": (2, "row 7"),
        "row without text": (2, "row 8"),
        "vector left out: a vector has 3 numbers, expected 2": (1, "row 10"),
        "metadata left out: a number that is not finite": (1, "row 10"),
        "vector left out: expected a list of numbers, or a list of such lists": (1, "row 11"),
        "metadata left out: a text of more than 32,768 characters": (1, "row 13"),
    }


def test_csv_columns_have_the_type_that_all_their_fields_have():
    data = (
        "id,body,n,x,flag,code,mixed,author.name\r\n"
        'a,"one, with\r\na line",1,1.5,true,007,1,Ida\r\n'
        "b,two,-2,2,FALSE,12,x,\r\n"
        "c,three,,,,,,\r\n"
        "d,too few\r\n"
        "e,too,m,a,n,y,y,y,y\r\n"
        "\r\n"
        "c,again,1,1,true,1,1,1\r\n"
    )
    table = read("t.csv", data.encode("utf-8-sig"), RowRule.parse("*:text=body,id=id"))
    assert shown(table) == [
        (
            "a",
            "one, with\r\na line",
            {"id": "a", "n": 1, "x": 1.5, "flag": True, "code": "007", "mixed": "1", "author": {"name": "Ida"}},
            {},
        ),
        ("b", "two", {"id": "b", "n": -2, "x": 2.0, "flag": False, "code": "12", "mixed": "x"}, {}),
        ("c", "three", {"id": "c"}, {}),
    ]
    assert table.odd == {
        "row with another number of fields than the header": (2, "row 4"),
        "row whose id occurs before": (1, "row 6"),
    }


def test_other_delimiters_encodings_and_large_fields_of_csv_are_read():
    rule = RowRule.parse("*:text=body")
    assert shown(read("t.tsv", b"body\tn\nx\t1\n", rule)) == [("1", "x", {"n": 1}, {})]
    assert shown(read("t.csv", "body;n\nä;1\n".encode("utf-16"), rule)) == [("1", "ä", {"n": 1}, {})]
    assert len(read("t.csv", b'body,n\n"' + b"x" * 10_000_000 + b'",1\n', rule).rows[0].text) == 10_000_000
    assert read("t.csv", b"\0binary", rule).reason == "binary"
    assert read("t.csv", b"", rule).rows == []
    assert read("t.txt", b"x", rule).reason.startswith("not a table: choose from jsonl")
    vector = read("t.csv", b'id,body,emb\n1,x,"[1, 2]"\n2,y,[1\n', RULE)
    assert [list(row.vectors) for row in vector.rows] == [["mine"], []] and sum(n for n, _ in vector.odd.values()) == 1


def parquet(**columns) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue().to_pybytes()


def test_parquet_keeps_types_and_vectors():
    data = parquet(
        id=[1, 2, None],
        body=["one", "two", "three"],
        emb=pa.array([[1, 2], [3, 4], None], pa.list_(pa.float32(), 2)),
        at=pa.array([1_714_557_600_123_456_789, None, 0], pa.timestamp("ns", "UTC")),
        tags=[["a", "b"], None, []],
        about=[{"x": 1.5}, {"x": float("nan")}, None],
        raw=[b"x", None, None],
    )
    table = read("t.parquet", data)
    assert shown(table) == [
        ("1", "one", {"id": 1, "at": "2024-05-01T10:00:00.123456Z", "tags": ["a", "b"], "about": {"x": 1.5}}, {"mine": [[1, 2]]}),
        ("2", "two", {"id": 2, "about": {}}, {"mine": [[3, 4]]}),
    ]
    assert set(table.odd) == {
        "row without an id",
        "metadata left out: a value of type bytes",
        "metadata left out: a number that is not finite",
    }
    assert read("t.parquet", data[:-20]).reason == "not readable as Parquet"
    assert read("t.parquet", b"").reason == "not readable as Parquet"


# --- from tables to hits -------------------------------------------------------------------------------------------------------------

LAYERS = ("names", "text", "bm25", "mine=vectors:dim=2")
ROWS = (RowRule.parse("*.jsonl:text=body,id=id,vector=emb->mine"),)


def write(folder, rows: list[dict], name: str = "log.jsonl") -> None:
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / name).write_text(text)
    os.utime(folder / name, ns=(1_700_000_000_000_000_000 + len(text),) * 2)


def row(i: int, **more) -> dict:
    return {"id": i, "body": f"Ship {i} lay at the pier.", "n": i, "emb": [1.0, i / 10], **more}


@pytest.fixture
def log(tmp_path):
    write(tmp_path / "source", [row(i) for i in range(40)])
    (tmp_path / "source" / "pier.txt").write_text("The pier itself.\n")
    os.utime(tmp_path / "source" / "pier.txt", ns=(1_700_000_000_000_000_000,) * 2)
    engine = Engine(tmp_path, LAYERS)
    return engine, tmp_path / "source", engine.index(tmp_path / "source", rows=ROWS, calibrate=False)


def test_a_row_is_an_entry_with_its_text_its_columns_and_its_vector(log):
    engine, _, outcome = log
    assert (outcome.added, outcome.rows, outcome.hashed, outcome.odd) == (41, 40, 2, {})
    hits = engine.search("ship pier", where={"n": {">=": 37}}, layers=["bm25"]).hits
    assert sorted(hit.entries[0].path for hit in hits) == ["log.jsonl#37", "log.jsonl#38", "log.jsonl#39"]
    assert hits[0].entries[0].metadata.keys() == {"id", "n"}
    near = engine.search(layers=["mine"], forms={"mine": {"vector": [0.0, 2.0]}}, k=3)
    assert paths(near) == ["log.jsonl#39", "log.jsonl#38", "log.jsonl#37"]
    assert found_at(engine, {"ext": "jsonl"}) == 40 and found_at(engine, {"path": {"glob": "log.jsonl#1?"}}) == 10


def found_at(engine: Engine, where) -> int:
    return len(engine.search("pier", where=where, layers=["text"], k=100).hits)


def test_a_document_without_a_vector_is_not_in_the_space_and_coverage_says_so(log):
    engine, _, _ = log
    answer = engine.search(layers=["mine"], forms={"mine": {"vector": [1.0, 0.0]}}, k=100)
    (coverage,) = [space for space in answer.coverage if space.layer == "mine"]
    assert (coverage.covered, coverage.total) == (40, 41) and "not built for all documents" in coverage.reason


def test_an_update_of_a_table_costs_the_rows_that_changed(log):
    engine, source, _ = log
    rows = [row(i) for i in range(40)]
    rows[3]["body"] = "Ship 3 has left the pier."
    rows[5]["n"] = -5
    rows[7]["emb"] = [0.0, -1.0]
    del rows[9]
    write(source, [row(99), *rows])
    outcome = engine.index(source, rows=ROWS, calibrate=False)
    assert (outcome.added, outcome.removed) == (4, 4)  # one row is new, one gone; three changed, one of these in its metadata alone
    assert (outcome.documents_added, outcome.documents_removed) == (3, 3)
    assert found_at(engine, {"n": -5}) == 1 and found_at(engine, {"n": 9}) == 0 and found_at(engine, {"n": 99}) == 1
    assert paths(engine.search(layers=["mine"], forms={"mine": {"vector": [0.0, -1.0]}}, k=1)) == ["log.jsonl#7"]
    assert not engine.index(source, rows=ROWS, calibrate=False).changed
    (source / "log.jsonl").rename(source / "old.jsonl")
    outcome = engine.index(source, rows=ROWS, calibrate=False, allow_shrink=True)  # most entries are gone from their paths
    assert (outcome.renamed, outcome.documents_added, outcome.documents_removed) == (40, 0, 0)


def test_after_updates_everything_is_as_if_it_had_been_indexed_at_once(log, tmp_path):
    engine, source, _ = log
    rng = np.random.default_rng(3)
    rows = {i: row(i) for i in range(40)}
    for step in range(8):
        for i in rng.integers(0, 60, 6).tolist():
            if i in rows and rng.random() < 0.5:
                del rows[i]
            else:
                rows[i] = row(i, n=step, emb=[1.0, float(rng.integers(1, 9))])
        write(source, list(rows.values()))
        engine.index(source, rows=ROWS, calibrate=False)
    anew = Engine(tmp_path / "anew", LAYERS)
    anew.index(source, rows=ROWS, calibrate=False)
    for request in (
        {"query": "ship pier"},
        {"layers": ["mine"], "forms": {"mine": {"vector": [1.0, 0.3]}}},
        {"query": "pier", "where": {"n": {">": 3}}},
    ):
        one, two = (e.search(**request, k=100).model_dump() for e in (engine, anew))
        for answer in (one, two):
            answer["hits"] = sorted(({"hash": h["hash"], "entries": h["entries"]} for h in answer["hits"]), key=lambda h: h["hash"])
        assert one["hits"] == two["hits"]


def test_without_its_rule_a_table_is_a_file_and_with_another_it_is_read_anew(log):
    engine, source, _ = log
    outcome = engine.index(source, calibrate=False)
    assert (outcome.added, outcome.removed) == (1, 40)
    assert sorted(set(paths(engine.search("pier", layers=["bm25"])))) == ["log.jsonl", "pier.txt"]
    outcome = engine.index(source, rows=(RowRule.parse("*.jsonl:text=body,id=id,meta=n"),), calibrate=False)
    assert (outcome.added, outcome.removed) == (40, 1)
    assert "mine" not in engine.search("pier", layers=["bm25"]).hits[0].entries[0].metadata


def test_another_metric_loses_no_vector(log):
    engine, source, _ = log
    layers = ("names", "text", "bm25", "mine=vectors:dim=2,metric=dot")
    outcome = engine.index(source, rows=ROWS, layers=layers, calibrate=False)
    assert outcome.changed and outcome.hashed == 0 and outcome.reused["mine"] == 40
    answer = engine.search(layers=["mine"], forms={"mine": {"vector": [0.0, 10.0]}}, k=1)
    assert paths(answer) == ["log.jsonl#39"] and answer.hits[0].signals[0].score == pytest.approx(39.0)


def test_a_table_that_gives_vectors_nobody_takes_is_refused_before_anything_is_read(tmp_path):
    write(tmp_path / "source", [row(1)])
    with pytest.raises(BadSpec, match=r"takes no vectors named 'mine'\. It takes: none yet\. Add a space, e\.g\. --layer mine=vectors"):
        Engine(tmp_path).index(tmp_path / "source", rows=ROWS)


def test_what_a_sidecar_says_of_a_table_is_said_of_each_row(log):
    engine, source, _ = log
    (source / "log.jsonl.meta.json").write_text('{"year": 1850, "n": "hidden"}')
    engine.index(source, rows=ROWS, calibrate=False)
    assert found_at(engine, {"year": 1850}) == 40 and found_at(engine, {"n": 3}) == 1


def test_a_space_of_given_vectors_has_a_null_made_of_what_documents_would_ask(tmp_path):
    write(tmp_path / "source", [row(i) for i in range(40)])
    engine = Engine(tmp_path, LAYERS)
    engine.index(tmp_path / "source", rows=ROWS)
    null = engine.generation().nulls.spaces["mine"]
    assert null.n_units == 40 and null.n_probes == 40 and np.isnan(null.known_item) and null.gate == 1.0 and not len(null.home_maxima)
    hit = engine.search(layers=["mine"], forms={"mine": {"vector": [0.0, 1.0]}}).hits[0]
    assert hit.entries[0].path == "log.jsonl#39" and hit.signals[0].surprise > 0


def test_a_copy_of_a_corpus_keeps_what_callers_gave(log, tmp_path):
    engine, source, _ = log
    copy = open_store(str(tmp_path / "copy/store"))
    restore(engine.store, copy, "c")
    there = Engine(tmp_path / "copy", ("names", "text", "bm25", "mine=vectors:dim=2,metric=dot"), store=copy)
    assert there.index(source, rows=ROWS, calibrate=False).reused["mine"] == 40


def test_collecting_drops_vectors_of_documents_that_are_gone_and_no_others(log):
    engine, source, _ = log
    inside = corpus_store(engine.store, "c")
    (folder,) = inside.folders("encodings")
    kept = PackedEncodings(inside, f"encodings/{folder}")
    write(source, [row(i) for i in range(20, 40)])
    engine.index(source, rows=ROWS, calibrate=False)
    collect(engine.store, "c", Policy(1), 1_900_000_000.0, hold=lambda: lease.hold(engine.store, "c", "gc"))
    segments = [segment for page in engine.generation().pages for segment in page.segments]
    hashes = np.concatenate([engine.generation().segment(segment).documents.hashes for segment in segments])
    assert len(kept.get(hashes)) == 20
    layers = ("names", "text", "bm25", "mine=vectors:dim=2,metric=dot")
    assert engine.index(source, rows=ROWS, layers=layers, calibrate=False).reused["mine"] == 20
