"""The benches run and give what they promise; how fast anything is, no test says."""

import argparse
import json
import os
import sys
from pathlib import Path

import pytest

from jobs import (
    bench,
    bench_http,
    bench_index,
    bench_query,
    bench_spaces,
    bench_structure,
    bench_tree,
    bench_trigram,
    bench_upsert,
    bench_vectors,
    bench_verdict,
    real_vectors,
)
from jobs.bench_corpus import passages_of_stdlib, queries_of_stdlib
from jobs.bench_engines import Sondage, _query
from jobs.progress import Progress
from shards import vector_sketches
from shards.errors import BadSpec

FIGURES = {"qps", "qps_wall", "p50_ms", "p99_ms", "parse_p50_ms", "build_mb_per_s", "build_mb_per_s_wall", "n_postings"}
TEXTS = ["the tide comes in", "the tide goes out, the tide", "def parse_tide(harbour): pass", "nothing of this"]


@pytest.fixture
def silent(tmp_path):
    with (tmp_path / "progress").open("w") as out:
        yield Progress(out)


@pytest.fixture
def tiny_library(tmp_path, monkeypatch):
    """A folder of three modules in place of the standard library."""
    source = tmp_path / "library"
    (source / "json").mkdir(parents=True)
    for i, name in enumerate(("json/decoder.py", "heap.py", "tide.py")):
        body = f'"""Module {i} of the library."""\n\ndef parse_header(x):\n    """Parse the header {i}."""\n    return x\n'
        (source / name).write_text(body)
        os.utime(source / name, (1e9, 1e9))  # not so young that the index job distrusts their times
    for module in (bench_index, bench_http, bench_verdict):
        monkeypatch.setattr(module, "copy_of_stdlib", lambda _folder: source)
    return source


def test_passages_are_different_ones_of_the_library_and_as_many_as_asked(silent):
    passages, how = passages_of_stdlib(200, silent)
    assert len(passages) == len(set(passages)) == 200
    assert "Python standard library" in how


def test_queries_are_sentences_and_names_always_the_same():
    queries = queries_of_stdlib(20, 10)
    assert len(queries) == len(set(queries)) == 30
    assert all(len(sentence.split()) >= 3 for sentence in queries[:20])
    assert all(name.isidentifier() for name in queries[20:])
    assert queries == queries_of_stdlib(20, 10)


def test_peers_get_the_terms_that_our_index_has(tmp_path):
    ours = Sondage()
    ours.build(TEXTS, analysed=False)
    path = tmp_path / "terms"
    ours.write_terms(path)
    rows = [json.loads(line).split() for line in path.read_text().splitlines()]
    assert [len(row) for row in rows] == [4, 6, 6, 3]  # parse_tide counts as itself and its parts
    (tide,) = ours.as_terms("tides").split()
    assert [row.count(tide) for row in rows] == [1, 2, 1, 0]
    assert ours.as_terms("unheard") == ""


def test_an_engine_answers_with_the_best_passages_and_a_time_for_each_query():
    ours = Sondage()
    ours.build(TEXTS, analysed=False)
    answer = _query(ours, ["the tide", "harbour"], 10)
    assert answer["ids"] == [[1, 0, 2], [2]]
    assert len(answer["parse_s"]) == len(answer["search_s"]) == 2
    assert answer["cpu_s"] >= 0


def test_engines_are_compared_in_processes_of_their_own(monkeypatch, silent):
    """The peers are played by our own engine, for their environment is not that of the tests."""
    monkeypatch.setattr(bench_query, "PEERS_PYTHON", Path(sys.executable))
    monkeypatch.setattr(bench_query, "PEERS", ("sondage",))
    found = bench_query.compare(60, ["parse a date", "the tide"], 1, silent)
    assert set(found) == {"corpus", "megabytes", "queries", "engines", "sondage over", "sondage, structured queries"}
    assert set(found["sondage, structured queries"]) == {"two words", *bench_query.STRUCTURES}
    assert set(found["engines"]["sondage"]) == FIGURES
    json.dumps(found)


def test_ratios_are_of_one_round_each_and_their_median_counts():
    def rounds(*cpu_s):
        return [{"cpu_s": s, "ids": [[1, 2], []]} for s in cpu_s]

    asked = {"sondage": rounds(1.0, 2.0, 4.0), "tantivy": rounds(2.0, 2.0, 12.0)}
    asked["tantivy"][0]["ids"] = [[2, 3], [5]]
    found = bench_query._ratios("tantivy", {"sondage": rounds(3.0), "tantivy": rounds(3.0)}, asked)
    assert (found["search"], found["search_bar"], found["search_met"]) == (2.0, 1.5, True)
    assert (found["build"], found["build_bar"], found["build_met"]) == (1.0, 1.3, False)
    assert found["shared of the 10 best"] == 0.25


def test_without_the_peers_the_query_bench_says_how_to_get_them(monkeypatch, capsys):
    monkeypatch.setattr(bench_query, "PEERS_PYTHON", bench_query.ROOT / "absent" / "python")
    assert bench.main(["query"]) == 2
    assert "bash infra/peers" in capsys.readouterr().err


def test_an_engine_that_does_not_start_is_named():
    engine = bench_query.EngineProcess("no such engine", Path(sys.executable))
    with pytest.raises(BadSpec, match="no such engine"):
        engine.ask(do="build", analysed=False)
        engine.ask(do="build", analysed=False)
    engine.close()


def test_http_is_measured_beside_bare_paths(tiny_library, tmp_path, capsys):
    out = tmp_path / "figures.json"
    assert bench.main(["http", "--servers", "process", "--clients", "1,2", "--seconds", "0.2", "--rounds", "1", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["machine"]["cores"] >= 1 and len(found["machine"]["load_after"]) == 3
    for n_clients in ("1", "2"):
        figures = found["http"]["servers"]["process"][n_clients]
        for path in ("search", "healthz", "bare uvicorn echo"):
            assert {"answers", "per_s", "p50_ms", "p99_ms"} <= set(figures[path])
        steps = set(figures["search"]["p50_ms of"])
        assert {"parse", "prepare", "scatter", "fuse", "excerpts", "total", "write", "http", "layer_bm25", "layer_static"} <= steps


def test_verdicts_on_the_library_are_counted_by_kind(tiny_library, tmp_path, capsys):
    foreign = tmp_path / "other"
    foreign.mkdir()
    (foreign / "queries.jsonl").write_text(json.dumps({"_id": "1", "text": "how deep is the harbour at low tide"}) + "\n")
    out = tmp_path / "figures.json"
    assert bench.main(["verdict", "--nonsense", "5", "--foreign", str(foreign), "--json", str(out)]) == 0
    kinds = json.loads(out.read_text())["verdict"]["kinds"]
    assert {kind: row["queries"] for kind, row in kinds.items() if kind != "known: docstrings"} == {
        "random strings": 5, "shuffled words": 5, "foreign: other": 1,
    }  # fmt: skip
    for row in kinds.values():
        assert abs(row["% strong"] + row["% weak"] + row["% none"] - 100) < 0.2
    assert kinds["known: docstrings"]["queries"] > 100 and 0 <= kinds["shuffled words"]["KS of E"] <= 1


def test_index_and_imports_are_measured(tiny_library, tmp_path, capsys):
    out = tmp_path / "figures.json"
    assert bench.main(["index", "--rounds", "1", "--json", str(out)]) == 0
    index = json.loads(out.read_text())["index"]
    assert set(index) == {"megabytes", "seconds", "mb_per_s", "times read and hash"}
    assert bench.main(["imports", "--rounds", "1", "--json", str(out)]) == 0
    assert "shards" in json.loads(out.read_text())["imports"]["milliseconds"]


def test_filters_are_measured_beside_plain_arrow(tmp_path, capsys):
    out = tmp_path / "figures.json"
    assert bench.main(["filter", "--entries", "9000", "--rounds", "1", "--json", str(out)]) == 0
    found = json.loads(out.read_text())["filter"]["9000"]["filters"]
    assert found["year >= 3000 (none)"]["found"] == 0 and found["year >= 3000 (none)"]["blocks compared"] == "0 of 3"
    assert found["title == one of all"]["found"] == 1 and found["glob of a folder"]["found"] == 1_000
    assert found["year >= 2020 (rises with the path)"]["blocks compared"] == "1 of 3"
    assert all(figures["ms"] > 0 for figures in found.values()) and found["price < 30"]["arrow_ms"] > 0


def test_a_layer_that_matches_is_measured_beside_the_tools_of_a_shell(tiny_library, tmp_path, monkeypatch, capsys):
    """The trigram layer on a folder of three files."""
    monkeypatch.setattr(bench_tree, "bench_folder", lambda: tmp_path)
    monkeypatch.setattr(bench_trigram, "RARE", ("header 2",))
    monkeypatch.setattr(bench_trigram, "FORMS", ((r"def \w+\(", bench_trigram.REGEX),))
    out = tmp_path / "figures.json"
    asked = ["structure", "--tree", str(tiny_library), "--parts", "trigram", "--rounds", "1", "--json", str(out)]
    assert bench.main(asked) == 0
    found = json.loads(out.read_text())["structure"]
    assert found["files"] == 3
    rows = found["parts"]["trigram"]["rows"]
    assert {row["what"] for row in rows} == {"rare: header 2", r"def \w+\(", "index built, CPU", "whole space built, CPU"}
    assert [row["note"].split(",")[0] for row in rows if row["peer"] == "rg -j1"] in (["1 lines", "3 lines"], ["not installed"] * 2)
    assert all(row["ours_ms"] > 0 for row in rows)
    assert set(found["parts"]["trigram"]["index"]["trigram"]) == {"bytes", "times the text"}
    http = found["parts"]["trigram"]["over HTTP"]["trigram"]
    assert http["questions"] == 2 and http["p50_ms"] > http["layer_p50_ms"] > 0


def test_a_program_that_is_not_installed_has_its_row_without_a_time(silent):
    bench = bench_structure.Bench(None, 1, silent)
    ours, theirs = bench.rows("nothing", int, {"no-such-program": bench.program("no-such-program"), "str": str})
    assert (ours.peer, ours.peer_ms, ours.ratio, ours.note) == ("no-such-program", None, None, "not installed")
    assert theirs.peer_ms > 0 and theirs.ratio > 0
    assert [peer for peer, _ in bench_structure._summed([ours, theirs])] == ["str"]


def test_a_tree_is_made_of_installed_text_once_and_where_that_is_too_little_varied(tmp_path, monkeypatch, silent):
    source = tmp_path / "installed"
    (source / "inside").mkdir(parents=True)
    (source / "a.py").write_text("def calculated_once(x):\n    return x\n" * 1000)
    (source / "inside" / "b.txt").write_text("the harbour\n" * 3000)
    (source / "inside" / "same.txt").write_text("the harbour\n" * 3000)
    (source / "c.so").write_bytes(b"\0elf")
    monkeypatch.setattr(bench_tree, "bench_folder", lambda: tmp_path)
    monkeypatch.setattr(bench_tree, "FOLDERS", {"packages": str(source)})
    tree = bench_tree.made_tree(0.1, silent)
    files = sorted(path.relative_to(tree.root).as_posix() for path in tree.root.rglob("*.*"))
    assert files == ["copy1/packages/a.py", "packages/a.py", "packages/inside/b.txt"]
    assert "celcaletid_unci" in (tree.root / files[0]).read_text() and "each with" not in tree.how and "1 times more" in tree.how
    made = (tree.root / files[0]).stat().st_ino
    assert bench_tree.made_tree(0.1, silent) == tree and (tree.root / files[0]).stat().st_ino == made


def test_sizes_are_whole_numbers(capsys):
    with pytest.raises(SystemExit):
        bench.main(["query", "--passages", "many"])
    assert "whole numbers" in capsys.readouterr().err


def test_an_edit_is_measured_with_the_bytes_it_moves(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_upsert, "LAYERS", ("names", "text", "bm25"))
    out = tmp_path / "figures.json"
    assert bench.main(["upsert", "--files", "30", "--rounds", "2", "--json", str(out)]) == 0
    figures = json.loads(out.read_text())["upsert"]["30 files"]
    assert figures["edit"]["files_hashed"] == 1
    assert 0 < figures["edit"]["bytes_written"] < 100_000
    assert figures["edit with an empty cache"]["bytes_read"] > figures["edit"]["bytes_read"] > 0
    assert figures["job times walking the folder"] > 1


def test_a_change_among_many_paths_is_measured(tmp_path, capsys):
    out = tmp_path / "figures.json"
    assert bench.main(["paths", "--paths", "3000", "--json", str(out)]) == 0
    found = json.loads(out.read_text())["paths"]
    assert (found["update"]["suspects"], found["diff"]["differing"]) == (10, 10)
    assert found["parse"]["rows"] >= 3000
    assert all(found[step]["peak_rss_mb"] > 10 for step in ("build", "update", "diff", "parse"))


def test_a_space_is_measured_beside_a_peer_on_real_text(tmp_path, monkeypatch, capsys):
    """A text of some passages in place of the machine's, by a static model in the models folder; faiss is the peer."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(60):
        lines = [f"The {colour} boat {i} comes in with the tide of {n} o'clock." for n in range(12) for colour in ("red", "blue")]
        (texts / f"{i}.txt").write_text("\n\n".join(lines))
    monkeypatch.setattr(real_vectors, "FOLDERS", (str(texts),) * 2)
    monkeypatch.setattr(bench_vectors, "N_ENCODED", 20)
    monkeypatch.setattr(vector_sketches, "LEAST_UNITS", 1)
    monkeypatch.setenv("SONDAGE_MODELS", str(tmp_path / "models"))
    model = Path(__file__).parent / "fixtures/format-1/whole/model"
    size, _ = bench_spaces.SPACES["static-384"]
    monkeypatch.setitem(bench_spaces.SPACES, "static-384", (size, lambda *asked: bench_vectors.static_subject(str(model), *asked)))
    out = tmp_path / "figures.json"
    assert bench.main(["spaces", "--spaces", "static-384=200", "--rounds", "1", "--json", str(out)]) == 0
    found = json.loads(out.read_text())["spaces"]
    assert set(found) == {"bars", "static-384"}
    figures = found["static-384"]
    assert figures["of these, to save time"] > 0
    assert figures["passages"] == 200 and figures["recall@10"]["ours"] == 1.0
    assert figures["other scores than brute force"].startswith("0 of")
    for k in ("10 best", "100 best"):
        assert figures[k]["ours"]["times the peer"] > 0 < figures[k]["ours, 2 threads"]["times the peer"]
    made = list((tmp_path / "models/bench").iterdir())
    assert bench.main(["spaces", "--spaces", "static-384=200", "--rounds", "1"]) == 0
    assert list((tmp_path / "models/bench").iterdir()) == made  # kept, not made again


def test_spaces_are_named_with_their_sizes():
    assert bench_spaces.sized("static-384=20,static-256") == {"static-384": 20, "static-256": bench_spaces.SPACES["static-256"][0]}
    for wrong in ("dense-9", "static-384=many", "static-384=0"):
        with pytest.raises(argparse.ArgumentTypeError, match="static-384"):
            bench_spaces.sized(wrong)
