"""The layer that ARCHITECTURE.md shows: short, and as good as any other."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from engine import Engine, write_files
from layer_contract import LayerContract

from shards.layers import REGISTRY
from shards.layers.contract import Layer, Request, Resources

PAGE = Path(__file__).resolve().parents[1] / "ARCHITECTURE.md"
LINES = 40


def shown() -> str:
    return re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1)


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """The layer's file, imported as if it stood in `shards/layers/`."""
    path = tmp_path_factory.mktemp("layers") / "numbers_of_the_page.py"
    path.write_text(shown())
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = loaded
    spec.loader.exec_module(loaded)
    yield loaded
    del sys.modules[path.stem]


def test_it_has_at_most_40_lines():
    assert len([line for line in shown().splitlines() if line.strip()]) <= LINES


class TestNumbersContract(LayerContract):
    module: ModuleType

    @pytest.fixture(autouse=True)
    def loaded(self, module):
        type(self).module = module

    def make_layer(self) -> Layer:
        return self.module.Numbers(self.module.Numbers.Params(), Resources())

    def requests(self) -> list[Request]:
        return [Request("42"), Request("is it 4.2e1 or 7?"), Request("1,000")]


def test_with_one_line_in_the_registry_it_is_indexed_updated_and_searched(module, monkeypatch, tmp_path):
    monkeypatch.setitem(REGISTRY, "numbers", f"{module.__name__}:Numbers")
    source = write_files(tmp_path / "source", {f"{i}.txt": f"The sample of day {i} weighed {1000 + i}.0 grams.\n" for i in range(40)})
    engine = Engine(tmp_path, ["bm25", "numbers"])
    engine.index(source, n_shards=3)
    seen = [hit for hit in engine.search("which one has 1,017 grams?").hits if "numbers" in [signal.layer for signal in hit.signals]]
    assert [hit.entries[0].path for hit in seen] == ["17.txt"]
    write_files(source, {"17.txt": "The sample of day 17 was lost.\n"})
    engine.index(source)
    (asked,) = (layer for layer in engine.search("1,017").layers if layer.name == "numbers")
    assert (asked.n_matched, asked.n_units) == (0, 79)
