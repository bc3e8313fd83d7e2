"""SMILES as text without RDKit; SDF files as tables; molecules from a file to a hit."""

from pathlib import Path

import pytest
from engine import Engine

from shards import rdkit_molecules
from shards.molecules import looks_meant, parse_smiles

CHEM = Path(__file__).resolve().parents[2] / "shared" / "data" / "chem"
needs_rdkit = pytest.mark.skipif(not rdkit_molecules.available(), reason=f"RDKit is not installed: {rdkit_molecules.REMEDY}")


@pytest.mark.parametrize(
    ("text", "atoms", "rings", "meant"),
    [
        ("C", 1, 0, False), ("CCO", 3, 0, False), ("c1ccccc1", 6, 1, True), ("CC(=O)O", 4, 0, True), ("[Na+].[Cl-]", 2, 0, True),
        ("C[C@@H](N)C(=O)O", 6, 0, True), ("F/C=C/F", 4, 0, True), ("C%12CCCC%12", 5, 1, True), ("[13CH4]", 1, 0, False),
        ("CBr", 2, 0, False), ("C1CC2CCC1C2", 7, 2, True), ("N#Cc1ccccc1", 8, 1, True), ("C=1CCCCC=1", 6, 1, True), ("C=C", 2, 0, False),
    ],
)  # fmt: skip
def test_a_smiles_is_counted_without_a_chemistry_package(text, atoms, rings, meant):
    found = parse_smiles(text)
    assert (found.n_atoms, found.n_rings, looks_meant(found)) == (atoms, rings, meant)


@pytest.mark.parametrize(
    "text",
    ["", "hello", "C1CC", "C(C", "C)C", "C()C", "(C)", "C=", "=C", "C==C", "c", "cc", "cocoon", "C1C1", "[Xx]", "[C", "1CC1", "C.", ".C",
     "C++", "f(x)", "Cl2x", "C=1CCCCC#1", "*", "CC O", "O(n)", "[a-z]", "C(.C)"],
)  # fmt: skip
def test_what_is_no_smiles_is_refused(text):
    assert parse_smiles(text) is None


def test_half_a_thousand_open_rings_and_branches_are_read_in_linear_time():
    assert parse_smiles("C(" * 5_000) is None
    assert parse_smiles("C(" * 5_000 + "C" + ")" * 5_000).n_atoms == 5_001
    assert parse_smiles("c1ccccc1" * 1_000).n_rings == 1_000


@needs_rdkit
def test_all_that_rdkit_reads_of_real_tables_is_a_well_formed_smiles():
    import csv

    if not CHEM.is_dir():
        pytest.skip(f"{CHEM} is not there: the collections lie beside the repository on the developers' machines only")
    for name in ("esol_delaney.csv", "toxcast_dsstox.csv"):
        with open(CHEM / name, newline="") as file:
            for row in list(csv.DictReader(file))[::15]:
                if rdkit_molecules.molecule(row["smiles"]) is not None:
                    assert parse_smiles(row["smiles"].strip()) is not None, row["smiles"]


# --- SDF -----------------------------------------------------------------------------------------------------------------------


def sdf_of(smiles: str, title: str, **items: object) -> str:
    from rdkit import Chem

    molecule = Chem.MolFromSmiles(smiles)
    molecule.SetProp("_Name", title)
    data = "".join(f">  <{key}>  (1)\n{value}\n\n" for key, value in items.items())
    return f"{Chem.MolToMolBlock(molecule)}{data}$$$$\n"


@needs_rdkit
def test_each_molecule_of_an_sdf_file_is_a_row_with_smiles_and_key():
    from shards.rows import MOLECULES, read_table

    text = sdf_of("CCO", "ethanol", MELTING=-114.1, CAS="64-17-5") + sdf_of("c1ccccc1", "benzene", MELTING=5.5, NOTE="two\nlines")
    table = read_table("a/b.SDF", text.replace("\n", "\r\n").encode(), MOLECULES, {})
    ethanol, benzene = table.rows
    assert (ethanol.id, benzene.id) == ("ethanol", "benzene") and not table.odd
    assert ethanol.text == "ethanol\nSMILES: CCO\nInChIKey: LFQSCWFLJHTTHZ-UHFFFAOYSA-N\nMELTING: -114.1\nCAS: 64-17-5"
    assert ethanol.metadata["MELTING"] == -114.1 and ethanol.metadata["smiles"] == "CCO" and ethanol.metadata["name"] == "ethanol"
    assert benzene.metadata["NOTE"] == "two\nlines" and benzene.metadata["inchikey"].startswith("UHOVQNZJYSORNB")


@needs_rdkit
def test_a_damaged_molecule_is_kept_by_its_text_and_titles_that_repeat_name_nothing():
    from shards.rows import MOLECULES, read_table

    good = sdf_of("CCO", "same", NOTE="drinkable")
    broken = good.replace(" C ", " Q9", 1)
    table = read_table("x.sdf", (good + broken + good[: good.index("M  END")]).encode(), MOLECULES, {})
    assert [row.id for row in table.rows] == ["1", "2", "3"]
    assert [row.metadata.get("smiles") for row in table.rows] == ["CCO", None, None]
    assert "drinkable" in table.rows[1].text
    assert table.odd == {"molecule that RDKit cannot read": (2, "row 2")}
    assert read_table("x.sdf", b"", MOLECULES, {}).rows == []


# --- from a file to a hit --------------------------------------------------------------------------------------------------------

NAMES_TABLE = """dtxsid,name,inchikey,smiles
D1,Aspirin,BSYNRYMUTXBXSQ-UHFFFAOYSA-N,CC(=O)Oc1ccccc1C(=O)O
D2,Ethanol,LFQSCWFLJHTTHZ-UHFFFAOYSA-N,CCO
D3,Benzene,UHOVQNZJYSORNB-UHFFFAOYSA-N,c1ccccc1
D4,Nothing,,
D5,Broken,,C1CC
"""
MEASURED_TABLE = """compound,SMILES,solubility
acetylsalicylic acid,OC(=O)c1ccccc1OC(C)=O,-1.7
salicylic acid,O=C(O)c1ccccc1O,-1.8
phenol,Oc1ccccc1,0.0
"""


@needs_rdkit
def test_a_name_leads_to_a_key_the_key_to_the_molecule_elsewhere_and_that_to_its_neighbours(tmp_path):
    from shards.rows import RowRule

    source = tmp_path / "source"
    source.mkdir()
    (source / "names.csv").write_text(NAMES_TABLE)
    (source / "measured.csv").write_text(MEASURED_TABLE)
    (source / "more.sdf").write_text(sdf_of("CC(=O)Oc1ccccc1C(=O)OC", "methyl acetylsalicylate", LOGP=1.4))
    (source / "world.sdf").write_text("<sdf version='1.6'><world name='robots'/></sdf>\n")
    engine = Engine(tmp_path, layers=("text", "bm25", "fingerprint"))
    rules = (
        RowRule.parse("names.csv:text=name+inchikey,id=dtxsid,meta=name+inchikey+smiles"),
        RowRule.parse("measured.csv:text=compound"),
    )
    engine.index(source, n_shards=2, rows=rules)

    def paths(answer):
        return [hit.entries[0].path for hit in answer.hits]

    by_name, words, robots = engine.search_many([{"query": "Aspirin"}, {"query": "how soluble is phenol"}, {"query": "robots"}])
    assert paths(by_name)[0] == "names.csv#D1" and paths(robots) == ["world.sdf"]
    asked = {info.name: info for info in words.layers}
    assert (
        asked["fingerprint"].asked is None and asked["fingerprint"].reason == "asked by itself only where the query looks like a molecule"
    )
    key, smiles = (by_name.hits[0].entries[0].metadata[name] for name in ("inchikey", "smiles"))

    same, near, typed, rings = engine.search_many(
        [
            {"forms": {"fingerprint": {"inchikey": key}}},
            {"forms": {"fingerprint": {"smiles": smiles}}},
            {"query": smiles},
            {"forms": {"fingerprint": {"smiles": smiles, "substructure": "C(=O)OC"}}},
        ]
    )
    assert set(paths(same)) == {"names.csv#D1", "measured.csv#1"}
    assert set(paths(near)[:3]) == {"names.csv#D1", "measured.csv#1", "more.sdf#methyl acetylsalicylate"}
    assert {hit.signals[0].score for hit in near.hits[:2]} == {1.0}
    assert paths(typed)[:3] == paths(near)[:3]
    assert typed.read_as.keys() == {"molecule"}
    told = {info.name: info for info in typed.layers}
    assert told["fingerprint"].asked == "molecules like CC(=O)Oc1ccccc1C(=O)O"
    assert told["bm25"].asked is None and "looks like a molecule (a SMILES of 13 atoms)" in told["bm25"].reason
    assert told["text"].asked is not None
    assert set(paths(rings)) == {"names.csv#D1", "measured.csv#1", "more.sdf#methyl acetylsalicylate"}
    assert engine.generation().statistics("fingerprint").n_units == 7
    assert engine.generation().statistics("fingerprint").n_unreadable == 1


@needs_rdkit
def test_molecules_are_found_alike_on_any_number_of_shards(tmp_path):
    from shards.rows import RowRule

    heads = ("C", "CC", "OCC", "NCC", "c1ccccc1", "Oc1ccc(cc1)", "Clc1cccc(c1)", "C1CCCCC1")
    tails = ("O", "N", "C(=O)O", "C(=O)N", "C#N", "S(=O)(=O)N", "c1ccncc1", "C(F)(F)F")
    (tmp_path / "source").mkdir()
    table = "id,name,smiles\n" + "".join(f"{i}{j},molecule {i} {j},{h}{t}\n" for i, h in enumerate(heads) for j, t in enumerate(tails))
    (tmp_path / "source" / "all.csv").write_text(table)
    answers = []
    for n_shards in (1, 4, 16):
        engine = Engine(tmp_path / str(n_shards), layers=("fingerprint",))
        engine.index(tmp_path / "source", n_shards=n_shards, rows=(RowRule.parse("*.csv:text=name,id=id"),))
        forms = ({"smiles": "Oc1ccccc1C(=O)O"}, {"smarts": "[#7]"}, {"smiles": "CCO", "substructure": "C#N"}, {"inchikey": "A" * 14})
        found = engine.search_many([{"forms": {"fingerprint": form}, "k": 40, "explain": True} for form in forms])
        nulls = engine.generation().nulls
        assert nulls.spaces["fingerprint"].n_units == 64 and nulls.spaces["fingerprint"].n_probes == 64
        answers.append(found)
    for others in answers[1:]:
        for one, other in zip(answers[0], others, strict=True):
            assert one.verdict == other.verdict
            for a, b in zip(one.hits, other.hits, strict=True):
                assert (a.hash, a.entries, a.signals[0].score) == (b.hash, b.entries, b.signals[0].score)
                assert (a.fused, a.evalue) == pytest.approx((b.fused, b.evalue), rel=1e-9)
