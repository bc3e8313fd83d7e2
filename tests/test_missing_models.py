"""An index run on a machine that lacks a model: the other layers go on, searches say what is missing, a later run catches up."""

from pathlib import Path

import pytest
from engine import Engine, paths, write_files
from test_encoders import save_static, word_pieces
from test_two_jobs import contents
from test_update import FILES

from shards.errors import ModelMissing


@pytest.fixture
def model(tmp_path) -> Path:
    return Path(save_static(tmp_path / "model", word_pieces()))


def test_a_run_without_the_model_of_a_space_indexes_in_the_others_and_a_later_one_catches_up(tmp_path, model):
    engine = Engine(tmp_path, ("names", "bm25", f"meaning=static:model={model}"))
    source = write_files(tmp_path / "src", FILES)
    engine.index(source)
    before = engine.generation().root
    away = model.rename(tmp_path / "away")
    (source / "a.txt").write_text("Dolomite was found in the war.\n")
    outcome = engine.index(source, layers=())
    assert [note for note in outcome.notes if "Layer 'meaning' cannot be built here" in note and str(model) in note]
    after = engine.generation().root
    assert after.generation == 2 and after.spaces == before.spaces
    answer = engine.search("dolomite", layers=["bm25"])
    assert paths(answer) == ["a.txt"] and answer.complete
    assert not engine.index(source, layers=()).changed

    away.rename(model)
    answer = engine.search("dolomite")
    assert {(c.layer, c.state) for c in answer.coverage} >= {("bm25", "ready"), ("meaning", "absent")} and not answer.complete
    caught_up = engine.index(source, layers=())
    assert caught_up.changed and caught_up.encoded["meaning"] == 1 and engine.search("dolomite").complete
    other = Engine(tmp_path / "scratch", engine.layers)
    other.index(source)
    assert contents(engine) == contents(other)


def test_a_model_that_is_named_in_the_run_or_without_which_nothing_is_built_is_an_error(tmp_path, model):
    engine = Engine(tmp_path, (f"static:model={model}",))
    source = write_files(tmp_path / "src", FILES)
    engine.index(source)
    model.rename(tmp_path / "away")
    for layers in ((), engine.layers):
        with pytest.raises(ModelMissing, match="There is no model"):
            engine.index(source, layers=layers)
    assert engine.generation().root.generation == 1
