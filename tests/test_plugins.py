"""Registries: what users add by name, for the process or for one engine."""

import pickle
import sys
from pathlib import Path

import pytest

from shards.errors import BadSpec
from shards.layers.contract import Resources
from shards.nlql.errors import RegistryError
from shards.plugins import PROCESS, Plugins, load, rerank


class Lengths:
    """An embedder."""

    model_id, dim = "lengths", 1

    def embed(self, texts):
        return [[float(len(text))] for text in texts]


def test_an_engines_names_shadow_those_of_the_process():
    process = Plugins()
    engine = Plugins(process)
    process.add_function("TWICE", lambda x: 2 * x)
    process.add_function("half", lambda x: x / 2)
    engine.add_function("twice", lambda x: x + x + 1)
    assert engine.functions.get("Twice").call(3) == 7
    assert process.functions.get("TWICE").call(3) == 6
    assert engine.functions.names() == ("HALF", "TWICE")
    engine.functions.remove("TWICE")
    assert engine.functions.get("twice").call(3) == 6


def test_a_name_is_given_once_unless_it_is_to_be_overwritten():
    plugins = Plugins()
    plugins.add_function("F", len)
    with pytest.raises(RegistryError, match=r"'F' already.*overwrite=True"):
        plugins.add_function("f", str)
    plugins.add_function("f", str, overwrite=True)
    assert plugins.functions.get("F").call is str


def test_what_is_not_registered_is_told_with_what_is():
    plugins = Plugins()
    plugins.splitter("paragraph")(str.splitlines)
    with pytest.raises(RegistryError, match=r"No splitter is registered as 'page'. Known: paragraph.*--plugin"):
        plugins.splitters.get("page")


def test_a_function_takes_as_many_arguments_as_it_says():
    plugins = Plugins()

    @plugins.function("WORDS")
    def words(text, least=0, *more):
        """How many words."""

    found = plugins.functions.get("words")
    assert (found.least, found.most, found.doc) == (1, None, "How many words.")
    plugins.add_function("CLAMP", lambda *a: a, arguments=("number", "number"), variadic=True)
    assert (plugins.functions.get("CLAMP").least, plugins.functions.get("CLAMP").most) == (1, None)
    plugins.add_function("PAIR", lambda *a: a, arguments=("text", "text"))
    assert (plugins.functions.get("PAIR").least, plugins.functions.get("PAIR").most) == (2, 2)


@pytest.mark.parametrize("name", ["", "two words", "1st", 7])
def test_a_function_needs_a_name_that_a_query_can_write(name):
    with pytest.raises(RegistryError):
        Plugins().add_function(name, len)


def test_an_embedder_is_made_when_it_is_first_needed_and_once():
    plugins, made = Plugins(), []

    def make():
        made.append(1)
        return Lengths()

    plugins.add_embedder("lengths", make)
    assert not made
    assert plugins.embedder_of("lengths") is plugins.embedder_of("lengths")
    assert made == [1]
    plugins.embedder("own")(Lengths)
    assert plugins.embedder_of("own").dim == 1


@pytest.mark.parametrize(
    ("missing", "told"), [({"embed": None}, "no method embed"), ({"model_id": ""}, "no model_id"), ({"dim": "many"}, "dim 'many'")]
)
def test_what_an_embedder_lacks_is_told(missing, told):
    plugins = Plugins()
    plugins.add_embedder("broken", type("Broken", (Lengths,), missing))
    with pytest.raises(RegistryError, match=told):
        plugins.embedder_of("broken")


def test_a_reranker_is_an_object_or_a_function():
    class Backwards:
        def rerank(self, question, rows):
            return rows[::-1]

    assert rerank(Backwards(), "q", [1, 2]) == [2, 1]
    assert rerank(lambda question, rows: sorted(rows), "q", [2, 1]) == [1, 2]


def test_the_process_registry_is_that_of_whatever_process_it_is_sent_to():
    assert pickle.loads(pickle.dumps(Resources())).plugins is PROCESS
    with pytest.raises(TypeError, match="stay in its process"):
        pickle.dumps(Resources(plugins=Plugins(PROCESS)))


def test_a_plugin_is_a_module_or_a_file_and_is_run_once(tmp_path: Path, monkeypatch):
    (tmp_path / "own_plugin.py").write_text("import shards.plugins as p\nCALLS = []\np.PROCESS.add_function('OWN_PLUGIN', len)\n")
    try:
        load(str(tmp_path / "own_plugin.py"))
        load(str(tmp_path / "own_plugin.py"))
        assert PROCESS.functions.get("own_plugin").call is len
    finally:
        PROCESS.functions.remove("OWN_PLUGIN")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        load("own_plugin")
        assert "own_plugin" in sys.modules
    finally:
        PROCESS.functions.remove("OWN_PLUGIN")
        sys.modules.pop("own_plugin", None)


def test_why_a_plugin_cannot_be_loaded_is_told(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "needs_more.py").write_text("import a_module_that_nobody_has")
    (tmp_path / "fails.py").write_text("1 / 0")
    with pytest.raises(BadSpec, match=r"'no_such_plugin' is no module that can be imported here.*PYTHONPATH"):
        load("no_such_plugin")
    with pytest.raises(BadSpec, match="needs the module 'a_module_that_nobody_has'"):
        load("needs_more")
    with pytest.raises(BadSpec, match="failed while it was imported: ZeroDivisionError"):
        load("fails")
    with pytest.raises(BadSpec, match="there is no file"):
        load(str(tmp_path / "absent.py"))
