"""`sondage query`, and what a plugin adds: from an index run to rows on the command line."""

import json

import pytest

from jobs.cli import main
from jobs.query import parameter, question_of
from jobs.settings import Settings
from shards.errors import BadQuery, BadSpec

PLUGIN = """
import sondage

@sondage.embedder("command-letters")
class Letters:
    model_id, dim = "command-letters", 26

    def embed(self, texts):
        return [[float(text.lower().count(chr(97 + i))) for i in range(26)] for text in texts]

@sondage.reranker("command-shortest")
def shortest(question, rows):
    return sorted(rows, key=lambda row: len(row.content))
"""


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    """(arguments that name the store, the plugin's file)"""
    folder = tmp_path_factory.mktemp("command")
    (folder / "plugin.py").write_text(PLUGIN)
    source = folder / "notes"
    source.mkdir()
    (source / "a.md").write_text("---\nday: 2024-3-1\ntopic: sea\n---\nThe tide is high. Ships wait.\n")
    (source / "b.md").write_text("---\nday: 2024-12-24\ntopic: land\n---\nSnow falls. Nobody waits for the tide here.\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SONDAGE_CACHE", str(folder / "cache"))
        store = str(folder / "store")
        layers = ["--layer", "bm25", "--layer", "content=embedded:embedder=command-letters,unit=sentence"]
        asked = ["index", "--corpus", "notes", "--source", str(source), "--store", store, "--local", *layers]
        assert main([*asked, "--plugin", str(folder / "plugin.py"), "--field-type", "day=date"]) == 0
        assert main([*asked, "--plugin", str(folder / "plugin.py"), "--field-type", "day=dates"]) == 2
        yield ["--store", store, "--plugin", str(folder / "plugin.py")]


def asked(indexed, capsys, *arguments):
    capsys.readouterr()
    code = main(["query", *arguments, *indexed])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_rows_are_shown_for_people_and_for_programs(indexed, capsys):
    text = "SELECT SENTENCE LET rel = SIMILARITY(content, 'tide') WHERE content CONTAINS :word ORDER BY rel DESC"
    code, out, _ = asked(indexed, capsys, text, "--param", "word=tide")
    assert code == 0 and "The tide is high." in out and "a.md" in out
    code, out, _ = asked(indexed, capsys, text, "--param", "word=tide", "--limit", "1", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and [(row["doc_id"], row["content"]) for row in rows] == [("a.md", "The tide is high.")]
    assert asked(indexed, capsys, text, "--param", "word=nothing")[0] == 1


def test_field_types_stated_by_an_index_run_hold_and_a_query_may_say_otherwise(indexed, capsys):
    text = "SELECT DOCUMENT WHERE day > '2024-06-01'"
    _, out, _ = asked(indexed, capsys, text, "--json")
    assert [row["doc_id"] for row in json.loads(out)["rows"]] == ["b.md"]
    _, out, _ = asked(indexed, capsys, text, "--json", "--field-type", "day=text")
    assert [row["doc_id"] for row in json.loads(out)["rows"]] == ["a.md", "b.md"]


def test_a_plan_is_shown_and_nothing_is_run(indexed, capsys):
    code, out, _ = asked(indexed, capsys, "SELECT SENTENCE LET r = SIMILARITY(content, 'x')", "--explain", "--json")
    assert code == 0 and json.loads(out)["recall"] == "exact-flat"
    code, out, _ = asked(indexed, capsys, "EXPLAIN SELECT SENTENCE WHERE topic == 'sea'")
    assert code == 0 and "meta.topic" in out


def test_a_registered_reranker_orders_and_an_error_points_at_its_place(indexed, capsys):
    text = "SELECT SENTENCE LET r = SIMILARITY(content, 'tide') WHERE content LIKE '%.' LIMIT 2"
    code, out, _ = asked(indexed, capsys, text, "--reranker", "command-shortest", "--json")
    assert {row["content"] for row in json.loads(out)["rows"]} == {"Snow falls.", "Ships wait."}
    code, out, err = asked(indexed, capsys, "SELECT SENTENCE WHERE year = 3")
    assert (code, out) == (2, "") and "SELECT SENTENCE WHERE year = 3\n" in err and err.rstrip().endswith("^")
    assert asked(indexed, capsys, "SELECT SENTENCE WHERE x IN (1)", "--strict")[0] == 2


def test_parameters_are_json_or_text_and_a_query_may_be_a_tree():
    assert [parameter(text) for text in ("n=3", ":a=x y", "l=[1, 2]", 'q="3"')] == [("n", 3), ("a", "x y"), ("l", [1, 2]), ("q", "3")]
    assert question_of(' {"select": {"unit": "document"}}') == {"select": {"unit": "document"}}
    for wrong in (lambda: parameter("n"), lambda: question_of("{select}")):
        with pytest.raises(BadQuery):
            wrong()


def test_plugins_are_named_in_the_environment_and_one_that_is_not_there_is_an_error():
    settings = Settings.load({"SONDAGE_PLUGINS": "nowhere.to.be.found, other.py", "SONDAGE_STORE": "memory://plugins"})
    assert settings.plugins == ("nowhere.to.be.found", "other.py")
    with pytest.raises(BadSpec, match=r"nowhere\.to\.be\.found"):
        settings.host_settings()
