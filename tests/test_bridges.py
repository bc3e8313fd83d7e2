"""Bridges: keys from what one search finds, and what another is asked with them."""

import importlib.util
import math
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from engine import Engine, paths, write_files

from serve.algebra_schema import FieldKey, PatternKey, Search
from serve.bridges import MAX_KEYS, Giver, Key, asked_with, chained, keys_of_hits, keys_of_text
from shards.rows import RowRule
from shards.types import Detail, Entry, Excerpt

needs_rdkit = pytest.mark.skipif(importlib.util.find_spec("rdkit") is None, reason="RDKit is an extra")
TOXCAST = next((p for p in Path(__file__).resolve().parents[1].parent.glob("shared/data/chem/toxcast_dsstox.csv")), None)
STDLIB = Path(sysconfig.get_path("stdlib"))

# --- keys ---------------------------------------------------------------------------------------------------------------------------

PYTHON = """Traceback (most recent call last):
  File "/usr/lib/python3.11/json/__init__.py", line 346, in loads
    return _default_decoder.decode(s)
  File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode
    raise JSONDecodeError("Expecting value", s, err.value) from None
json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"""
JAVA = "java.lang.IllegalStateException: closed\n\tat org.example.io.Pool.borrow(Pool.java:41)\n\tat org.example.Main.main(Main.java:7)"
LOG = (
    "12:00:01,345 WARN asyncio: <Handle> took 0.105 s in _run_once() at /usr/lib/base_events.py:1904 on db.example.com v1.2.3 maxRetries=3"
)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("symbol", PYTHON, ["raw_decode", "loads", "JSONDecodeError", "decode"]),  # the innermost frame first
        ("symbol", JAVA, ["borrow", "main", "IllegalStateException"]),
        ("symbol", "ValueError: not enough values", ["ValueError"]),
        ("symbol", "        raise LookupError(name) from None", ["LookupError"]),
        ("symbol", "    if (ready): return fetch_all(rows)", ["fetch_all"]),
        ("symbol", "the words of a sentence, no more", []),
        ("identifier", LOG, ["_run_once", "maxRetries"]),
        ("identifier", "see os.path.join and std::vector, not e.g. example.com or a-b_c", ["os.path.join", "std::vector"]),
        ("inchikey", "(BSYNRYMUTXBXSQ-UHFFFAOYSA-N), XBSYNRYMUTXBXSQ-UHFFFAOYSA-N", ["BSYNRYMUTXBXSQ-UHFFFAOYSA-N"]),
        (PatternKey(pattern=r"code=(\w+)"), "code=E42; code=E7; code=E42", ["E42", "E7"]),
    ],
)
def test_keys_are_read_off_a_text(kind, text, expected):
    keys, more = keys_of_text(kind, text)
    assert [key.text for key in keys] == expected and more == 0
    assert all((key.fused, key.log_evalue, key.document) == (math.inf, -math.inf, b"") for key in keys)


def giver(number: int, text: str, fused: float = 5.0, **metadata) -> Giver:
    key = bytes([number]) * 20
    entry = Entry("main", f"{number}.txt", key, 1, 1, metadata=metadata)
    return Giver(key, fused, -fused, Detail(key, (entry,), len(text), "prose", {(0, 9): Excerpt(0, len(text), 1, text)}))


def test_keys_of_hits_are_distinct_and_the_best_hit_gives_its_evidence():
    hits = [giver(1, "in call_me()", 9.0), giver(2, "call_me() or call_you()", 4.0), Giver(b"\3" * 20, 3.0, -3.0, None)]
    keys, _ = keys_of_hits("identifier", hits)
    assert [(key.text, key.fused, key.log_evalue, key.path) for key in keys] == [
        ("call_me", 9.0, -9.0, "1.txt"),
        ("call_you", 4.0, -4.0, "2.txt"),
    ]


def test_keys_come_from_metadata_by_name_and_an_inchikey_wherever_it_stands():
    key = "BSYNRYMUTXBXSQ-UHFFFAOYSA-N"
    hit = giver(1, "aspirin", SMILES="CC(=O)O", ids={"InChIKey": key, "cas": 5}, tags=["a", "b"])

    def found(kind):
        return [(one.text, one.place) for one in keys_of_hits(kind, [hit])[0]]

    assert found(FieldKey(field="meta.smiles")) == [("CC(=O)O", "meta.smiles")]
    assert found(FieldKey(field="ids.cas")) == [("5", "ids.cas")]
    assert found(FieldKey(field="tags")) == [("a", "tags"), ("b", "tags")]
    assert found(FieldKey(field="path")) == [("1.txt", "path")]
    assert found(FieldKey(field="absent")) == []
    assert found("inchikey") == [(key, "ids.InChIKey")]


def test_more_keys_than_are_asked_with_are_counted():
    keys, more = keys_of_text("identifier", " ".join(f"name_{i}" for i in range(MAX_KEYS + 3)))
    assert len(keys) == MAX_KEYS and more == 3


def test_a_key_stands_where_the_template_says_so():
    template = Search.model_validate(
        {
            "search": {
                "query": "uses of $key",
                "layers": ["symbols"],
                "forms": {"symbols": {"name": "$key", "references": True}},
                "paths": ["$key"],
            }
        }
    )
    asked = asked_with(template, "f(x)").search
    assert asked.query == "uses of f(x)" and asked.forms == {"symbols": {"name": "f(x)", "references": True}}
    assert asked.paths == ("$key",)  # only what is asked is filled in, not where


def test_a_chain_has_the_evidence_of_both_links():
    fused, log_evalues = chained(Key("k", math.log(2), math.log(0.25)), np.array([math.log(2), 1000.0, 0.1]), np.log([0.25, 1e-300, 9]))
    assert fused.tolist() == pytest.approx([0.0, math.log(2), 0.0])  # 1/2 + 1/2 may be wrong: nothing is left; 1/2 + 0
    assert np.exp(log_evalues).tolist() == pytest.approx([0.5, 0.25, 9.25])
    sure = chained(Key("k", math.inf, -math.inf), np.array([3.0]), np.array([-2.0]))
    assert (sure[0].tolist(), sure[1].tolist()) == ([3.0], [-2.0])


# --- name -> InChIKey -> fingerprint ------------------------------------------------------------------------------------------------

NAMES = """dtxsid,name,inchikey
D1,Aspirin,BSYNRYMUTXBXSQ-UHFFFAOYSA-N
D2,Ethanol,LFQSCWFLJHTTHZ-UHFFFAOYSA-N
D3,Benzene,UHOVQNZJYSORNB-UHFFFAOYSA-N
"""
MEASURED = """compound,SMILES
acetylsalicylic acid,OC(=O)c1ccccc1OC(C)=O
salicylic acid,O=C(O)c1ccccc1O
methyl salicylate,COC(=O)c1ccccc1O
phenol,Oc1ccccc1
hexane,CCCCCC
ethyl alcohol,CCO
"""


def to_molecule(name: str, **more) -> dict:
    """By its InChIKey, from a row that has its name to the row that has its structure."""
    to = {"search": {"forms": {"fingerprint": {"inchikey": "$key"}}, "name": "molecule"}}
    return {"bridge": {"from": {"search": {"query": name, "layers": ["bm25"], **more}}, "key": "inchikey", "to": to, "n": 1}}


def to_neighbours(molecule: dict) -> dict:
    """By its structure, from a molecule to those like it."""
    to = {"search": {"forms": {"fingerprint": {"smiles": "$key"}}, "name": "neighbours"}}
    return {"bridge": {"from": molecule, "key": {"field": "smiles"}, "to": to, "n": 1}}


@needs_rdkit
def test_a_name_leads_over_its_inchikey_to_the_molecules_like_it(tmp_path):
    source = write_files(tmp_path / "source", {"names.csv": NAMES, "measured.csv": MEASURED})
    rules = (RowRule.parse("names.csv:text=name,id=dtxsid"), RowRule.parse("measured.csv:text=compound"))
    engine = Engine(tmp_path, ("bm25", "fingerprint"))
    engine.index(source, rows=rules, calibrate=False, n_shards=2)
    same, near = engine.search_many(
        [{"combine": tree, "explain": True} for tree in (to_molecule("aspirin"), to_neighbours(to_molecule("aspirin")))]
    )
    assert paths(same) == ["measured.csv#1"]  # names.csv has no structures: only the key leads there
    (key,) = same.combined.keys
    assert (key.key, key.path, key.place, key.part) == (
        "BSYNRYMUTXBXSQ-UHFFFAOYSA-N",
        "names.csv#D1",
        "inchikey",
        "molecule[BSYNRYMUTXBXSQ-UHFFFAOYSA-N]",
    )
    hit = same.hits[0]
    assert hit.evalue == pytest.approx(key.evalue + hit.parts[0].evalue) and key.evalue > 1000 * hit.parts[0].evalue
    assert hit.fused <= key.fused < hit.parts[0].fused  # a certain match of an uncertain key
    (asked,) = [info for info in same.layers if info.part.startswith("molecule") and info.asked]
    assert (asked.name, asked.asked_by) == ("fingerprint", "bridge") and "of names.csv#D1" in asked.because
    assert paths(near)[:3] == ["measured.csv#1", "measured.csv#2", "measured.csv#3"] and near.combined.rounds == 3
    assert [key.key for key in near.combined.keys] == ["BSYNRYMUTXBXSQ-UHFFFAOYSA-N", "OC(=O)c1ccccc1OC(C)=O"]
    assert all(hit.evalue >= near.combined.keys[0].evalue for hit in near.hits)


@needs_rdkit
def test_a_key_that_is_no_question_is_told_and_the_others_are_asked(tmp_path):
    source = write_files(tmp_path / "source", {"measured.csv": MEASURED})
    engine = Engine(tmp_path, ("bm25", "fingerprint"))
    engine.index(source, rows=(RowRule.parse("measured.csv:text=compound"),), calibrate=False)
    to = {"search": {"forms": {"fingerprint": {"smiles": "$key"}}}}
    tree = {"bridge": {"from": {"text": "smiles=C1CC smiles=CCO"}, "key": {"pattern": r"smiles=(\S+)"}, "to": to}}
    answer = engine.search(combine=tree)
    assert paths(answer)[0] == "measured.csv#6" and answer.complete
    broken, whole = answer.combined.keys
    assert broken.part is None and "no SMILES" in broken.reason and whole.part == "1[CCO]" and not whole.reason
    nothing = engine.search(combine=tree | {"bridge": tree["bridge"] | {"from": {"text": "no key here"}}})
    assert (nothing.hits, nothing.verdict, nothing.verdict_reason) == ([], "none", "no key was found")


@needs_rdkit
@pytest.mark.skipif(TOXCAST is None, reason="the chemicals' data are not here")
def test_real_names_of_chemicals_lead_to_their_molecules_and_neighbours(tmp_path):
    lines = TOXCAST.read_text().splitlines()
    wanted = [line for line in lines[1:] if any(f",{name}," in line for name in ("Acetaminophen", "Acetanilide", "Aspirin", "Acetamide"))]
    sample = [line for line in lines[1::60] if line not in wanted]
    names, structures = ["name,inchikey"], ["id,smiles"]
    for line in [*wanted, *sample]:
        first, *_, smiles, inchikey, _formula = line.split(",")
        name = line[len(first) + 1 :].rpartition(f",{smiles},")[0].rpartition(",")[0]
        names.append(f"{name},{inchikey}")
        structures.append(f"{first},{smiles}")
    tables = {"names.csv": "\n".join(names) + "\n", "structures.csv": "\n".join(structures) + "\n"}
    engine = Engine(tmp_path, ("bm25", "fingerprint"))
    rules = (RowRule.parse("names.csv:text=name"), RowRule.parse("structures.csv:text=id,id=id"))
    engine.index(write_files(tmp_path / "source", tables), rows=rules, calibrate=False)
    ids = {line.split(",")[1]: line.split(",")[0] for line in wanted}
    answers = engine.search_many([{"combine": to_neighbours(to_molecule(name)), "k": 3} for name in sorted(ids)])
    assert len(answers) >= 3
    for name, answer in zip(sorted(ids), answers, strict=True):
        assert paths(answer)[0] == f"structures.csv#{ids[name]}", name
        assert [key.place for key in answer.combined.keys] == ["inchikey", "smiles"]
    assert f"structures.csv#{ids['Acetanilide']}" in paths(answers[sorted(ids).index("Acetaminophen")])


# --- error message -> symbol -> references; identifier in a line of a log -> definition --------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Engine:
    """json and logging of the standard library, beside a log of what went wrong with them."""
    folder = tmp_path_factory.mktemp("library")
    log = "\n".join(
        [f"10:00:{i:02} INFO request {i} served" for i in range(40)] + ["10:01:00 ERROR giving up in raw_decode() after 3 tries"]
    )
    chosen = [*(STDLIB / "json").glob("*.py"), STDLIB / "logging" / "__init__.py", STDLIB / "logging" / "config.py"]
    files = {f"lib/{path.relative_to(STDLIB).as_posix()}": path.read_bytes() for path in chosen}
    source = write_files(folder / "source", {**files, "logs/service.log": log})
    engine = Engine(folder, ("text", "symbols"))
    engine.index(source, calibrate=False, n_shards=2)
    return engine


def symbols(**form) -> dict:
    return {"search": {"forms": {"symbols": {"name": "$key", **form}}, "paths": ["lib/**"], "name": "code"}}


def test_an_error_message_leads_over_its_symbol_to_where_that_is_used(library):
    pasted = {"bridge": {"from": {"text": PYTHON.splitlines()[-1]}, "key": "symbol", "to": symbols(references=True)}}
    found = library.search(combine=pasted)
    assert {"lib/json/decoder.py", "lib/json/__init__.py"} <= set(paths(found)) and found.combined.rounds == 1
    assert [(key.key, key.evalue, key.hash) for key in found.combined.keys] == [("JSONDecodeError", 0.0, None)]
    # The message alone: where it is raised, what is raised there, where that is used.
    message = {"search": {"forms": {"text": {"pattern": "Expecting value"}}, "name": "message"}}
    raised = library.search(combine={"bridge": {"from": message, "key": "symbol", "to": symbols(references=True)}}, explain=True)
    assert set(paths(raised)) == set(paths(found)) and raised.combined.rounds == 2
    (key,) = [key for key in raised.combined.keys if key.key == "JSONDecodeError"]
    assert key.path == "lib/json/decoder.py" and 0 < key.evalue < 0.01
    (asked,) = [info for info in raised.layers if info.part == "code[JSONDecodeError]"]
    assert asked.asked == "uses of JSONDecodeError" and asked.asked_by == "bridge"
    assert asked.because == "symbol 'JSONDecodeError' of lib/json/decoder.py"


def test_an_identifier_in_a_line_of_a_log_leads_to_its_definition(library):
    line = {"search": {"forms": {"text": {"pattern": "ERROR"}}, "paths": ["logs/**"], "name": "line"}}
    answer = library.search(combine={"bridge": {"from": line, "key": "identifier", "to": symbols()}})
    (hit,) = answer.hits
    source = (STDLIB / "json" / "decoder.py").read_bytes()
    assert hit.entries[0].path == "lib/json/decoder.py" and source[hit.start :].startswith(b"def raw_decode")
    assert [(key.key, key.path) for key in answer.combined.keys] == [("raw_decode", "logs/service.log")]
    assert hit.line == source[: hit.start].count(b"\n") + 1


def test_a_bridge_from_what_was_not_found_asks_nothing(library):
    nowhere = {"search": {"forms": {"text": {"pattern": "xqzvw nowhere"}}}}
    answer = library.search(combine={"bridge": {"from": nowhere, "key": "identifier", "to": symbols()}})
    assert (answer.hits, answer.verdict, answer.combined.keys, answer.combined.rounds) == ([], "none", [], 1)
    assert answer.verdict_reason == "no space found a match"
