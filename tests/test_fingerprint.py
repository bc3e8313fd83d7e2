"""Molecules: the layer `fingerprint` beside RDKit itself, and the way from a table or an SDF file into it."""

import zlib

import numpy as np
import pytest
from layer_contract import LayerContract

from shards import rdkit_molecules

if not rdkit_molecules.available():
    pytest.skip(f"RDKit is not installed: {rdkit_molecules.REMEDY}", allow_module_level=True)

from layer_contract import pack

from shards.errors import BadQuery, BadSpec, ModelMissing
from shards.layers import SpaceSpec, create
from shards.layers.contract import Request, Resources
from shards.layers.fingerprint import MoleculeQuestion
from shards.plan import SpaceQuery
from shards.types import Budget

ASPIRIN, ASPIRIN_KEY = "CC(=O)Oc1ccccc1C(=O)O", "BSYNRYMUTXBXSQ-UHFFFAOYSA-N"
SMILES = {
    "aspirin": ASPIRIN,
    "salicylic acid": "O=C(O)c1ccccc1O",
    "benzoic acid": "O=C(O)c1ccccc1",
    "benzene": "c1ccccc1",
    "phenol": "Oc1ccccc1",
    "ethanol": "CCO",
    "caffeine": "CN1C=NC2=C1C(=O)N(C(=O)N2C)C",
    "L-alanine": "C[C@H](N)C(=O)O",
    "D-alanine": "C[C@@H](N)C(=O)O",
    "nicotine": "CN1CCC[C@H]1c1cccnc1",
    "paracetamol": "CC(=O)Nc1ccc(O)cc1",
    "ibuprofen": "CC(C)Cc1ccc(C(C)C(=O)O)cc1",
    "cyclohexane": "C1CCCCC1",
    "salt": "[Na+].[Cl-]",
    "water": "O",
    "ferrocene-like": "[Fe+2].c1cc[cH-]c1.c1cc[cH-]c1",
    "no molecule": "not a molecule",
    "five bonds": "C(C)(C)(C)(C)C",
}
NAMES = sorted(SMILES)


def make(**dials):
    return create(SpaceSpec("fingerprint", "fingerprint", dials), Resources())


class TestContract(LayerContract):
    n_documents = 40

    def make_layer(self):
        return make(bits=256)

    def about(self, path):
        number = zlib.crc32(path.encode())
        return {"smiles": SMILES[NAMES[number % len(NAMES)]]} if number % 5 else {"year": number % 7}

    def requests(self):
        forms = [{"smiles": ASPIRIN}, {"inchikey": ASPIRIN_KEY}, {"substructure": "c1ccccc1"}, {"smiles": "CCO", "smarts": "[OX2H]"}]
        return [Request("c1ccccc1O"), *(Request("", form) for form in forms)]


class Corpus:
    """Molecules by name, each an entry of its own: what questions find."""

    def __init__(self, smiles: dict[str, str], layer=None, column: str = "smiles"):
        self.layer = layer or make()
        items = [(name.encode(), "data", (name,)) for name in smiles]
        self.segment = pack(items, self.layer, lambda path: {column: smiles[path], "name": path})
        self.arrays = self.layer.build(self.segment.documents, self.segment.entries)
        self.reader = self.layer.open(self.arrays, self.segment.documents, self.segment.entries, np.ones(len(items), bool))
        self.statistics = self.layer.collect([(1, self.layer.statistics(self.arrays, self.segment.documents, self.segment.entries))])

    def query(self, form: dict | str, explicit: bool = True):
        request = Request(form, explicit=explicit) if isinstance(form, str) else Request("", form)
        return self.layer.prepare(request, self.statistics)

    def found(self, form: dict | str, k: int = 1000) -> dict[str, float]:
        result = self.reader.search(self.query(form), None, k, Budget())
        return {self.segment.entries.path(row): score for row, score in zip(result.rows, result.scores.tolist(), strict=True)}


@pytest.fixture(scope="module")
def corpus():
    return Corpus(SMILES)


@pytest.mark.parametrize("dials", [{}, {"radius": 3, "bits": 512}, {"chirality": True, "radius": 1}])
def test_similarities_are_those_of_rdkit_to_the_last_bit(dials):
    from rdkit import Chem, DataStructs
    from rdkit.Chem import rdFingerprintGenerator

    corpus = Corpus(SMILES, make(**dials))
    generator = rdFingerprintGenerator.GetMorganGenerator(
        radius=dials.get("radius", 2), fpSize=dials.get("bits", 2048), includeChirality=dials.get("chirality", False)
    )
    readable = {name: Chem.MolFromSmiles(smiles) for name, smiles in SMILES.items() if name not in ("no molecule", "five bonds")}
    bits = {name: generator.GetFingerprint(molecule) for name, molecule in readable.items()}
    for name in readable:
        expected = dict(zip(bits, DataStructs.BulkTanimotoSimilarity(bits[name], list(bits.values())), strict=True))
        assert corpus.found({"smiles": SMILES[name]}) == {other: score for other, score in expected.items() if score > 0}


@pytest.mark.parametrize(
    "pattern", ["c1ccccc1", "C(=O)[OX2H1]", "[#7]", "[R]", "[NX3;H2]", "c:n", "C=C", "[Na+]", "*~*~*~*", "[$(c(O)c(C))]"]
)
def test_a_substructure_filters_exactly_as_rdkit_matches(corpus, pattern):
    from rdkit import Chem

    wanted = Chem.MolFromSmarts(pattern)
    expected = {name for name, smiles in SMILES.items() if (m := _read(smiles)) is not None and m.HasSubstructMatch(wanted)}
    assert set(corpus.found({"smarts": pattern})) == expected
    assert set(corpus.found({"smarts": pattern}, k=2)) <= expected
    both = corpus.found({"smiles": ASPIRIN, "smarts": pattern})
    near = corpus.found({"smiles": ASPIRIN})
    assert both == {name: near[name] for name in near if name in expected}


def _read(smiles):
    return rdkit_molecules.molecule(smiles)


def test_a_fragment_is_the_better_explained_the_less_else_a_molecule_has(corpus):
    found = list(corpus.found({"substructure": "c1ccccc1"}))
    assert found[0] == "benzene" and found.index("phenol") < found.index("aspirin")


def test_a_key_names_a_molecule_and_its_skeleton_those_that_differ_in_stereo(corpus):
    key = rdkit_molecules.inchikey(_read(SMILES["L-alanine"]))
    assert corpus.found({"inchikey": key}) == {"L-alanine": 1.0, "D-alanine": 0.5}
    assert corpus.found(key) == corpus.found({"inchikey": key})
    assert corpus.found({"inchikey": key[:14]}) == {"L-alanine": 1.0, "D-alanine": 1.0}
    assert corpus.found({"inchikey": "A" * 14}) == {}
    assert corpus.layer.surprise(corpus.query({"inchikey": key}), np.array([1.0, -np.inf])).tolist() == [pytest.approx(45.6, abs=0.1), 0.0]


def test_words_are_no_molecules_and_what_is_asked_for_must_be_one(corpus):
    for text in ("solubility of ethanol", "coffee", "C(", "C++", "", "ZZZ", "five"):
        assert corpus.query(text, explicit=False) is None
    assert corpus.query("CC(C)(C)(C)(C)C(C)(C)C", explicit=False) is None  # well-formed, but carbon has no five bonds
    assert corpus.query("InChI=1S/C2H6O/c1-2-3/h3H,2H2,1H3", explicit=False).asked == "molecules like CCO"
    for form, said in (
        ({"smiles": "C(C"}, "no SMILES or InChI"),
        ({"smarts": "[#"}, "no SMARTS"),
        ({"substructure": "Zz"}, "no SMILES"),
        ({"substructure": "C" * 101}, "101 atoms"),
        ({"smiles": "C" * 2_001}, "no SMILES"),
        ({"smarts": ""}, "1 to 2,000 characters"),
        ({"inchikey": "aspirin"}, "no InChIKey"),
        ({"substructure": "C", "smarts": "C"}, "Expected"),
        ({"inchikey": ASPIRIN_KEY, "smiles": "C"}, "Expected"),
        ({}, "no SMILES"),
        ({"molecule": "C"}, "Extra inputs"),
    ):
        with pytest.raises(BadQuery, match=said):
            corpus.query(form or "no molecule at all")
    with pytest.raises(BadSpec, match="multiple of 64"):
        make(bits=100)


def test_what_cannot_be_read_is_counted_and_costs_nothing_else(corpus):
    assert corpus.layer.facts(corpus.statistics) == {"unreadable": 2}
    assert corpus.statistics.n_units == len(SMILES) - 2
    assert Corpus({"huge": "C" * 2_001, "small": "C", "spaced": " CCO\n"}).statistics.n_units == 2


def test_the_column_is_found_in_any_case_and_the_one_spelt_as_asked_wins():
    assert Corpus({"ethanol": "CCO"}, column="SMILES").found("OCC") == {"ethanol": 1.0}
    layer = make(column="Structure")
    segment = pack([(b"x", "data", ("x",))], layer, lambda path: {"structure": "CCO", "Structure": "CCN", "STRUCTURE": "C"})
    arrays = layer.build(segment.documents, segment.entries)
    assert arrays["texts"].tobytes() == b"CCN"


def test_a_substructure_is_the_more_surprising_the_rarer_its_rarest_bit(corpus):
    common, rare = (corpus.query({"smarts": pattern}).log_p for pattern in ("c1ccccc1", "[#7]1:[#6]:[#7]:[#6]:[#6]:1"))
    assert rare < common < 0
    assert corpus.query({"smarts": "*"}).log_p == 0.0
    assert corpus.layer.surprise(corpus.query({"smarts": "[#7]"}), np.array([0.3, -np.inf]))[1] == 0


def test_the_best_that_hold_a_fragment_are_found_before_the_time_is_up(corpus):
    """A fragment is matched best first, so a deadline between two molecules costs the worst."""

    class After:
        def __init__(self, looks):
            self.looks = looks

        @property
        def expired(self):
            self.looks -= 1
            return self.looks < 0

    query = corpus.query({"smiles": ASPIRIN, "smarts": "c1ccccc1"})
    whole = corpus.reader.search(query, None, 10, Budget())
    cut = corpus.reader.search(query, None, 10, After(3))  # one slice of similarities, two molecules
    assert cut.rows.tolist() == whole.rows[:2].tolist() and cut.moments == whole.moments
    assert whole.rows_covered == whole.rows_total and 0 < cut.rows_covered < cut.rows_total


def test_without_rdkit_the_error_says_what_to_install(monkeypatch, corpus):
    import sys

    monkeypatch.setitem(sys.modules, "rdkit", None)
    with pytest.raises(ModelMissing, match=r"pip install 'sondage\[chem\]'"):
        make().fingerprint()
    with pytest.raises(ModelMissing, match="RDKit"):
        corpus.query("CCO")
    assert corpus.query("how long does it take", explicit=False) is None


def test_questions_of_molecules_themselves_are_their_own_bits(corpus):
    row = int(corpus.reader.rows[0])
    question = corpus.reader.question_of(row)
    assert isinstance(question, MoleculeQuestion)
    found = corpus.reader.search(SpaceQuery("", "", question), None, 1, Budget())
    assert found.scores.tolist() == [1.0]
