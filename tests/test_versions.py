"""Arrays of another version or model are never searched as if they were this one's."""

import pytest
from engine import Engine, paths, write_files
from test_update import FILES

from shards.errors import ModelMissing
from shards.layers.bm25 import BM25


def test_a_layer_of_another_version_is_left_out_says_so_and_is_rebuilt_by_the_next_run(tmp_path, monkeypatch):
    source = write_files(tmp_path / "src", FILES)
    engine = Engine(tmp_path, ("text", "bm25"))
    engine.index(source)
    before = engine.generation().spaces["bm25"].id
    monkeypatch.setattr(BM25, "version", BM25.version + 1)
    answer = engine.search("Cobalt blue is a pigment")
    assert [s.layer for hit in answer.hits for s in hit.signals] == ["text"]
    (info,) = [layer for layer in answer.layers if layer.name == "bm25"]
    assert info.asked is None and "run the index job again" in info.reason
    with pytest.raises(ModelMissing, match="bm25"):
        engine.search("pigment", layers=["bm25"])
    outcome = engine.index(source, layers=())
    assert outcome.changed and (outcome.added, outcome.removed) == (0, 0)
    assert engine.generation().spaces["bm25"].id != before
    assert paths(engine.search("pigment", layers=["bm25"])) == ["copy.txt"]


def test_a_model_that_changed_under_an_index_silences_its_space_only(tmp_path, monkeypatch):
    source = write_files(tmp_path / "src", FILES)
    engine = Engine(tmp_path, ("text", "bm25"))
    engine.index(source)
    monkeypatch.setattr(BM25, "fingerprint", lambda self: "another model")
    answer = engine.search("Cobalt blue is a pigment")
    assert paths(answer) == ["copy.txt"]
    (info,) = [layer for layer in answer.layers if layer.name == "bm25"]
    assert "not the one" in info.reason
