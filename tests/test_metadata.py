"""What files say about themselves, from front matter and sidecars to a filter."""

import json
import os

import pytest
from engine import Engine, paths

from shards import metadata
from shards.metadata import clean, front_matter, sidecar


@pytest.mark.parametrize(
    ("text", "found", "reasons"),
    [
        ("---\ntitle: Fog\ntags: [sea, bell]\nyear: 1999\n---\nText\n", {"title": "Fog", "tags": ["sea", "bell"], "year": 1999}, []),
        ("---\r\ndraft: yes\r\nrate: 0.5\r\n---\r\n", {"draft": True, "rate": 0.5}, []),
        ("\ufeff---\na: {b: {c: 1}}\n...\n", {"a": {"b": {"c": 1}}}, []),
        ('+++\ntitle = "Fog"\n[author]\nname = "Ida"\n+++\nText', {"title": "Fog", "author": {"name": "Ida"}}, []),
        ("---\nday: 2024-05-01\nat: 2024-05-01T12:00:00+02:00\nlocal: 2024-05-01 12:00:00\n---\n",
         {"day": "2024-05-01", "at": "2024-05-01T10:00:00Z", "local": "2024-05-01T12:00:00Z"}, []),
        ("+++\nat = 2024-05-01T12:00:00.5Z\nclock = 07:30:00\n+++\n", {"at": "2024-05-01T12:00:00.500000Z", "clock": "07:30:00"}, []),
        ("no front matter\n---\na: 1\n---\n", {}, []),
        ("---\nA rule, and no second one.\n", {}, []),
        ("---\nOnly text between rules.\n---\n", {}, []),
        ("---\n- a\n- list\n---\n", {}, []),
        ("---\n---\nText", {}, []),
        ("--- \na: 1\n---\n", {"a": 1}, []),
        ("----\na: 1\n----\n", {}, []),
        ("---\na: [1\n---\n", {}, ["front matter is not valid YAML"]),
        ("---\na: 2024-02-30\n---\n", {}, ["front matter is not valid YAML"]),
        ("---\n? [a, b]\n: 1\n---\n", {}, ["front matter is not valid YAML"]),
        ("+++\na = \n+++\n", {}, ["front matter is not valid TOML"]),
        ("---\na: !!python/object:os.system x\n---\n", {}, ["front matter is not valid YAML"]),
        ("---\na: .nan\nb: 1\nc: null\n---\n", {"b": 1}, ["metadata left out: a number that is not finite"]),
        ("---\na: " + "x" * 40_000 + "\nb: 1\n---\n", {"b": 1}, ["metadata left out: a text of more than 32,768 characters"]),
        ("---\na: " + "[" * 200 + "]" * 200 + "\n---\n", None, ["metadata left out: nested deeper than 8"]),
        ("---\n1: one\nnull: x\n---\n", {"1": "one"}, ["metadata left out: a key that is no text"]),
        ("---\na: 99999999999999999999999\n---\n", {}, ["metadata left out: an integer beyond 64 bits"]),
    ],
)  # fmt: skip
def test_front_matter_is_what_stands_between_the_first_two_marks(text, found, reasons):
    got = front_matter(text.encode(), "notes/a.md")
    assert got[1] == reasons
    if found is not None:
        assert got[0] == found


def test_documents_of_yaml_are_no_front_matter():
    manifest = b"---\nkind: Service\n---\nkind: Pod\n"
    assert front_matter(manifest, "k8s/all.yaml") == ({}, []) and front_matter(manifest, "k8s/all.YML") == ({}, [])
    assert front_matter(manifest, "k8s.md")[0] == {"kind": "Service"}


def test_a_billion_laughs_cost_nothing():
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    found, reasons = front_matter(("---\n" + "\n".join(lines) + "\n---\n").encode(), "a.md")
    assert reasons and len(json.dumps(found)) < 100_000
    assert front_matter(b"---\na: &a [*a]\n---\n", "a.md")[1] == ["metadata left out: nested deeper than 8"]


@pytest.mark.parametrize(
    ("data", "found", "reasons"),
    [
        (b'{"a": 1, "b": {"c": [1.5]}}', {"a": 1, "b": {"c": [1.5]}}, []),
        (b"\xef\xbb\xbf{}", {}, []),
        (b"[1]", {}, ["sidecar is not a JSON object"]),
        (b"{", {}, ["sidecar is not valid JSON"]),
        (b"\xff", {}, ["sidecar is not valid JSON"]),
        (b"[" * 100_000, {}, ["sidecar is not valid JSON"]),
        (b'{"a": NaN, "b": Infinity}', {}, ["metadata left out: a number that is not finite"]),
        (b" " * (1 << 20) + b"{}", {}, ["sidecar is larger than 1,048,576 bytes"]),
    ],
)
def test_a_sidecar_is_one_json_object(data, found, reasons):
    assert sidecar(data) == (found, reasons)


def test_whatever_is_cleaned_can_be_written_as_json():
    odd = {1: "a", None: 2, "b": {"c": {1, 2}, "d": b"x"}, "e": object(), "f": [None, 1, {"g": float("inf")}], "h" * 600: 1, "k": 10**5000}
    found, reasons = clean(odd)
    assert found == {"1": "a", "b": {}, "f": [1, {}]} and json.dumps(found, allow_nan=False)
    assert len(reasons) == 7
    assert clean({"a": list(range(10_000))})[1] == ["metadata left out: more than 4,096 values"]


# --- from files to filters ---------------------------------------------------------------------------------------------------------


def write(folder, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        os.utime(folder / name, ns=(1_700_000_000_000_000_000 + len(text),) * 2)


NOTES = {
    "fog.md": "---\ntitle: Fog\nyear: 1999\nauthor: {name: Ida}\ntags: [sea, bell]\n---\nThe bell on the pier rings in fog.\n",
    "salt.md": "The salt was boiled at the pier.\n",
    "salt.md.meta.json": '{"year": 2005, "author": {"name": "Per"}, "draft": true}',
    "lost.meta.json": '{"about": "the pier, and nothing that is here"}',
    "broken.md": "---\ntitle: [\n---\nA broken pier.\n",
}


def found(engine: Engine, where) -> list[str]:
    return sorted(paths(engine.search("pier", where=where, layers=["text"])))


@pytest.fixture
def notes(tmp_path):
    write(tmp_path / "notes", NOTES)
    engine = Engine(tmp_path)
    return engine, tmp_path / "notes", engine.index(tmp_path / "notes", calibrate=False)


def test_front_matter_and_sidecars_can_be_filtered_by_and_are_no_documents_of_their_own(notes):
    engine, _, outcome = notes
    assert outcome.odd == {"front matter is not valid YAML": (1, "broken.md")}
    assert outcome.added == 4  # a sidecar without its subject is a file like any other
    assert found(engine, None) == ["broken.md", "fog.md", "lost.meta.json", "salt.md"]
    assert found(engine, {"year": {">": 2000}}) == ["salt.md"]
    assert found(engine, {"author.name": "Ida"}) == ["fog.md"]
    assert found(engine, {"tags": {"has": "bell"}}) == ["fog.md"] and found(engine, {"tags": "bell"}) == []
    assert found(engine, {"author": {"exists": False}}) == ["broken.md", "lost.meta.json"]
    hit = engine.search("pier", where={"draft": True}).hits[0]
    assert hit.entries[0].metadata == {"author": {"name": "Per"}, "draft": True, "year": 2005}
    assert engine.search("title: Fog", layers=["text"]).hits  # front matter stays in the text


def test_a_change_of_a_sidecar_alone_changes_metadata_and_encodes_nothing(notes):
    engine, folder, _ = notes
    write(folder, {"salt.md.meta.json": '{"year": 1850}'})
    outcome = engine.index(folder, calibrate=False)
    assert (outcome.changed, outcome.hashed, outcome.added, outcome.removed) == (True, 1, 1, 1)
    assert (outcome.documents_added, outcome.documents_removed) == (0, 0) and not any(outcome.encoded.values())
    assert found(engine, {"year": {"<": 1900}}) == ["salt.md"] and found(engine, {"year": 2005}) == []
    assert not engine.index(folder, calibrate=False).changed
    (folder / "salt.md.meta.json").unlink()
    engine.index(folder, calibrate=False)
    assert found(engine, {"year": {"exists": True}}) == ["fog.md"]
    (folder / "salt.md").unlink()
    write(folder, {"salt.md.meta.json": '{"said": "of the pier"}'})
    assert engine.index(folder, calibrate=False).documents_added == 1  # without its subject it is a file again
    assert "salt.md.meta.json" in found(engine, None)


def test_what_a_file_says_moves_with_it_through_renames_edits_and_merges(notes):
    engine, folder, _ = notes
    (folder / "fog.md").rename(folder / "mist.md")
    assert engine.index(folder, calibrate=False).renamed == 1
    for i in range(12):  # more segments than a shard keeps
        write(folder, {f"more{i}.md": f"---\nnumber: {i}\n---\nPier number {i}.\n"})
        engine.index(folder, calibrate=False)
    assert found(engine, {"author.name": "Ida"}) == ["mist.md"]
    assert found(engine, {"number": {">=": 10}}) == ["more10.md", "more11.md"]
    assert found(engine, {"number": {"<": 2}, "path": {"glob": "*1.md"}}) == ["more1.md"]


def test_metadata_of_another_type_is_a_change(notes):
    engine, folder, _ = notes
    write(folder, {"salt.md.meta.json": '{"year": 2005.0, "author": {"name": "Per"}, "draft": 1}'})
    assert engine.index(folder, calibrate=False).added == 1
    assert found(engine, {"draft": True}) == [] and found(engine, {"draft": 1}) == ["salt.md"]


def test_a_user_may_call_a_field_as_a_row_of_the_tree_calls_its_own(notes):
    engine, folder, _ = notes
    write(folder, {"salt.md.meta.json": '{"limit_bytes": "none"}'})
    engine.index(folder, calibrate=False)
    assert not engine.index(folder, calibrate=False).changed
    assert found(engine, {"limit_bytes": "none"}) == ["salt.md"]
    assert metadata.SIDECAR == ".meta.json"


def test_what_a_document_looks_like_can_be_filtered_by_unless_its_metadata_says_otherwise(tmp_path):
    german = "Die Flut kommt, und das Wasser steigt bis an den Deich, wo die Leute am Pier stehen und warten.\n"
    code = "import os\n\ndef pier(a, b):\n    return os.path.join(a, b)\n\nif __name__ == '__main__':\n    print(pier('a', 'b'))\n"
    write(tmp_path / "notes", {"de.txt": german, "pier.py": code, "says.md": "---\nlanguage: norwegian\nkind: poem\n---\n" + german})
    engine = Engine(tmp_path)
    engine.index(tmp_path / "notes", calibrate=False)
    assert found(engine, {"language": "german"}) == ["de.txt"]
    assert found(engine, {"language": "norwegian"}) == found(engine, {"kind": "poem"}) == ["says.md"]
    assert found(engine, {"kind": "code"}) == ["pier.py"]
    assert found(engine, {"language": {"exists": False}}) == ["pier.py"]
    assert found(engine, {"kind": {"!=": "code"}}) == ["de.txt", "says.md"]
    (tmp_path / "notes/pier.py").rename(tmp_path / "notes/quay.py")  # its document lies in another segment now
    engine.index(tmp_path / "notes", calibrate=False)
    assert found(engine, {"kind": "code"}) == ["quay.py"]
