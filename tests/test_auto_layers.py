"""Layers that a new corpus gets when nobody names any: by what it holds, what is here, and what takes no time to speak of."""

import json
import re
from pathlib import Path

import pytest
from engine import write_files

from jobs.auto_layers import (
    LIMIT_S,
    RULES,
    TRIGRAM_BYTES,
    UNKNOWN_BYTES,
    Choice,
    Holding,
    Machine,
    choose,
    holds_smiles,
    missing_on,
    told,
)
from jobs.index import of_cluster, run_index
from shards.errors import NotFound
from shards.formats.registry import NONE
from shards.layers import REGISTRY
from shards.layers.contract import Resources
from shards.listing import Listed
from shards.rows import RowRule

MB = 1_000_000
TWO, GPU = Machine(2), Machine(2, 1)
CHEAP = ["names", "text", "bm25", "static"]


def chosen(holding: Holding, machine: Machine = TWO, missing=lambda layer: "", **more) -> list[str]:
    return [choice.layer for choice in choose(holding, machine, missing, **more) if choice.chosen]


def test_there_is_a_rule_for_every_layer():
    assert {rule.layer for rule in RULES} == set(REGISTRY)


@pytest.mark.parametrize(
    ("holding", "machine", "layers"),
    [
        (Holding(), TWO, [*CHEAP, "dense", "sparse"]),
        (Holding(100, 200_000), TWO, [*CHEAP, "dense", "sparse"]),  # 9 s and 2.5 s
        (Holding(100, 600_000), TWO, [*CHEAP, "dense"]),  # 27 s and 7.5 s: more than half a minute together
        (Holding(100, MB), TWO, [*CHEAP, "sparse"]),  # 45 s and 12.5 s
        (Holding(100, 10 * MB), TWO, CHEAP),
        (Holding(100, 10 * MB), Machine(64), [*CHEAP, "dense", "sparse"]),
        (Holding(100, 10 * MB), GPU, [*CHEAP, "dense", "sparse"]),
        (Holding(100, 1000 * MB), GPU, ["names", "text", "trigram", "bm25", "static"]),
        (Holding(100, TRIGRAM_BYTES - 1), TWO, CHEAP),
        (Holding(100, 100_000, code_bytes=90_000), TWO, ["names", "text", "bm25", "structure", "symbols", "static", "dense", "sparse"]),
        (Holding(100, 240 * MB, code_bytes=240 * MB), TWO, ["names", "text", "trigram", "bm25", "structure", "static"]),  # 40 s to parse
        (Holding(100, 200_000, n_formulas=1), TWO, ["names", "text", "bm25", "formula", "formula_ngrams", "static", "dense", "sparse"]),
        (Holding(9, 100_000, data_bytes=90_000, molecules=True), TWO, ["names", "text", "bm25", "fingerprint"]),
        (Holding(100, 100_000, data_bytes=89_000), TWO, [*CHEAP, "dense", "sparse"]),
        (Holding(100, 100_000, data_bytes=90_000), TWO, ["names", "text", "bm25"]),  # tables, logs
        (Holding(100, 100_000, n_images=50), TWO, [*CHEAP, "image", "dense", "sparse"]),  # 5 s and 4.5 s and 1.3 s
        (Holding(900, 100_000, n_images=290), TWO, [*CHEAP, "image"]),  # 29 s
        (Holding(900, 100_000, n_images=900), TWO, [*CHEAP, "dense", "sparse"]),
    ],
)
def test_what_is_chosen(holding, machine, layers):
    assert chosen(holding, machine) == layers


def test_what_is_not_here_is_left_out_with_the_reason_and_takes_no_time_from_others():
    holding = Holding(100, 600_000)
    choices = {c.layer: c for c in choose(holding, TWO, lambda layer: "not installed: pip install x." if layer == "dense" else "")}
    assert choices["dense"] == Choice("dense", False, "not installed: pip install x.")
    assert choices["sparse"].chosen
    assert chosen(holding, missing=lambda layer: "away") == []


def test_each_layer_has_a_reason():
    choices = choose(Holding(1200, 650_000, n_images=1000), TWO, lambda layer: "")
    some = ("bm25", "image", "dense", "sparse", "late")
    assert told(choice for choice in choices if choice.layer in some) == [
        "layer bm25 chosen: words are counted at 7 MB/s",
        "layer image left out: 1,000 images would take about 100 s on 2 cores, 30 s are left: name it to have it",
        "layer dense chosen: 650.0 kB of text take about 30 s on 2 cores",
        "layer sparse left out: 650.0 kB of text would take about 8 s on 2 cores, 0 s are left: name it to have it",
        "layer late left out: it takes forty times the text, and gains only with a model trained for it: name one, late:model=…",
    ]
    assert all(choice.reason for choice in choices) and len(choices) == len(RULES)


def test_what_is_not_worth_asking_is_not_asked():
    asked = []
    choose(Holding(1, 1000 * MB), TWO, lambda layer: asked.append(layer) or "")
    assert asked == ["names", "text", "trigram", "bm25", "static"]


def test_a_layer_that_is_named_is_left_to_the_caller():
    assert chosen(Holding(1, 1000), named=["dense", "mine"]) == [*CHEAP, "sparse"]


def test_holdings_are_told_from_names_and_sizes():
    files = ["a.md", "b.py", "c.csv", "d.PNG", "e.zip", "f.jpeg", "huge.log", "unknown", "rows.jsonl#3"]
    sizes = [10, 20, 30, 400, 500, 600, 7_000, -1, 40]
    listed = [Listed(path, size, 1) for path, size in zip(files, sizes, strict=True)]
    expected = Holding(9, text_bytes=100 + UNKNOWN_BYTES, data_bytes=70, n_images=2, code_bytes=20, n_formulas=1)
    assert Holding.of(listed, 6_000, formats=NONE) == expected
    assert Holding.of([Listed("a/B.SDF", 5, 1)], 6_000).molecules and not expected.molecules
    assert Holding.of(listed, 6_000).text_bytes == 100 + UNKNOWN_BYTES + 500 // 4, "an archive is read, and holds some text"


def test_a_model_that_is_not_here_is_told_with_its_remedy(tmp_path):
    missing = missing_on(Resources(models=tmp_path))
    assert missing("bm25") == missing("names") == ""
    assert "hf download" in missing("image")  # CLIP is in no package


def test_a_package_that_is_not_here_is_told_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("jobs.auto_layers.find_spec", lambda name: None)
    assert missing_on(Resources(models=tmp_path))("image") == "PIL cannot be imported: pip install 'sondage[image]'"
    assert missing_on(Resources(models=tmp_path))("fingerprint") == "rdkit cannot be imported: pip install 'sondage[chem]'"
    assert missing_on(Resources(models=tmp_path))("bm25") == ""


@pytest.mark.parametrize(
    ("rule", "path", "data", "found"),
    [
        ("*.csv:text=name", "a.csv", b"name,SMILES\nx,\ny,CCO\n", True),
        ("*.csv:text=name,meta=name", "a.csv", b"name,smiles\nx,CCO\n", False),  # not kept
        ("*.csv:text=smiles", "a.csv", b"name,smiles\nx,CCO\n", False),  # text, not metadata
        ("*.csv:text=smiles,meta=smiles", "a.csv", b"name,smiles\nx,CCO\n", True),
        ("*.csv:text=name", "a.csv", b"name,formula\nx,C2H6O\n", False),
        ("*.jsonl:text=name", "a.jsonl", b'{"name": "x"}\n{"name": "y", "smiles": "C"}\n', True),
        ("*.txt:text=name", "a.txt", b"smiles", False),
        ("*.csv:text=name", "other.tsv", b"name\tsmiles\nx\tC\n", False),
        ("*.csv:text=name", "gone.csv", None, False),
    ],
)
def test_a_table_has_molecules_if_a_rule_keeps_its_column_of_smiles(rule, path, data, found):
    def read(asked):
        assert asked == path
        if data is None:
            raise NotFound("it is gone")
        return data

    assert holds_smiles([Listed(path, 10, 1)], [RowRule.parse(rule)], read) is found


def index(folder, capsys, *more: str) -> dict:
    fixed = ["--corpus", "c", "--source", str(folder / "source"), "--store", str(folder / "store"), "--local", "--json"]
    assert run_index([*fixed, *more]) == 0
    return json.loads(capsys.readouterr().out)


def layers_of(folder) -> list[str]:
    from shards.manifest import latest_generation, read_root
    from shards.store import open_store

    store = open_store(str(folder / "store"))
    return sorted(ref.name for ref in read_root(store, "c", latest_generation(store, "c")).spaces)


def test_a_new_corpus_gets_what_suits_it_and_later_runs_keep_that(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SONDAGE_CACHE", str(tmp_path / "cache"))
    write_files(tmp_path / "source", {f"{i}.csv": f"id,name\n{i},harbour {i}\n" for i in range(30)})
    first = index(tmp_path, capsys)
    assert layers_of(tmp_path) == ["bm25", "names", "text"]
    assert "layer dense left out: 100% of the bytes are data, not language" in first["notes"]
    write_files(tmp_path / "source", {"prose.txt": "Now there is much more to read here. " * 1000})
    for more, notes in (((), []), (("--layers", "auto"), ["the corpus keeps its layers; name others to add them"])):
        assert [note for note in index(tmp_path, capsys, *more)["notes"] if "layer" in note] == notes
        assert layers_of(tmp_path) == ["bm25", "names", "text"]
    index(tmp_path, capsys, "--layers", "auto,words=bm25:k1=2")
    assert layers_of(tmp_path) == ["bm25", "names", "text", "words"]


def test_auto_and_named_layers_go_together(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SONDAGE_CACHE", str(tmp_path / "cache"))
    write_files(tmp_path / "source", {f"{i}.csv": f"id,name\n{i},harbour {i}\n" for i in range(30)})
    index(tmp_path, capsys, "--layers", "auto", "--layer", "bm25:k1=2,b=0.5", "--layer", "more=bm25")
    assert layers_of(tmp_path) == ["bm25", "more", "names", "text"]


@pytest.mark.ray
def test_on_ray_the_machine_is_all_nodes_of_the_cluster(cluster, namespace):
    import ray

    there = ray.cluster_resources()
    assert of_cluster(namespace) == Machine(int(there["CPU"]), int(there.get("GPU", 0))) and there["CPU"] >= 2


def test_the_rule_in_the_readme_is_this_one():
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    (said,) = re.findall(r"### Which layers a new corpus gets\n(.*?)\n##", readme, re.DOTALL)
    rules = {rule.layer: rule for rule in RULES}
    assert re.findall(r"`(\w+)`", said.partition("- `late`, ")[0]) == [
        "names", "text", "bm25", "trigram", "structure", "symbols", "formula", "formula_ngrams", "fingerprint", "smiles",
        "static", "image", "dense", "sparse", "static",
    ]  # fmt: skip
    assert all(f"`{rule.layer}`" in said for rule in RULES)
    assert f"at most {LIMIT_S:.0f} s" in said
    assert f"from {TRIGRAM_BYTES // 10**6} MB of text on" in said and f"{rules['symbols'].core_rate / 1e6:.0f} MB of code a second" in said
    rates = [int(n) for n in re.search(r"at (\d+) and (\d+) kB of text and (\d+) images a second", said).groups()]
    assert rates == [rules["dense"].core_rate / 1e3, rules["sparse"].core_rate / 1e3, rules["image"].core_rate]
    rates = [int(n) for n in re.search(r"or (\d+) and (\d+) MB and (\d+)\s+images a GPU", said).groups()]
    assert rates == [rules["dense"].gpu_rate / 1e6, rules["sparse"].gpu_rate / 1e6, rules["image"].gpu_rate]
