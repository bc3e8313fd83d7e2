"""A chat model fills layers' own forms of a question: each read by its layer's parser, kept, told, and never needed for an answer."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine import Engine, paths, write_files
from openai_server import Fault, OpenAIServer

from cluster.host import Host
from cluster.local import LocalSearcher
from serve.coordinator import Coordinator
from serve.limits import Limits, within
from serve.problems import InvalidRequest, OverLimit, validated
from serve.schema import SearchAnswer, SearchRequest
from serve.translation import read_reply
from serve.translation_schema import Translate
from shards.endpoint_settings import EndpointSettings
from shards.errors import BadQuery, EndpointError
from shards.layers.contract import Resources

QUESTION = "what reads the time stamps of web servers"
FILES = {
    "dates.py": "def parse_http_date(text):\n    return strptime(text, RFC_1123)\n",
    "other.py": "def bake(cake):\n    return cake\n",
    "notes.md": "# Energy\n\nThe energy is $E = m c^2$ of a body at rest.\n",
    **{f"law{i}.md": f"The court decided that contract number {i} was void.\n" for i in range(20)},
}
FORMS = {
    "text": {"pattern": r"def \w*date", "regex": True},
    "bm25": {"also": ["strptime", "RFC", "timestamp"]},
    "structure": {"pattern": "def $NAME($$$): return strptime($$$)", "language": "python"},
    "formula": {"latex": "E = m c^2"},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    engine = Engine(tmp_path_factory.mktemp("translation"), layers=("bm25", "text", "structure", "formula", "symbols"))
    engine.index(write_files(engine.folder / "source", FILES), calibrate=False)
    return engine


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(key="secret") as server:
        server.answer = lambda body: json.dumps(FORMS)
        yield server


def asked(corpus: Engine, server: OpenAIServer, *requests: dict[str, Any], default: str | None = "tiny") -> list[SearchAnswer]:
    """Answers of one coordinator whose endpoint is the server."""

    async def run() -> list[SearchAnswer]:
        host = Host(corpus.store.url, {}, str(corpus.folder / "cache"), corpus.cache_bytes)
        host.store = corpus.store
        resources = Resources(endpoints={"default": EndpointSettings(server.url, "secret")})
        by = Translate(model=default) if default else None
        coordinator = Coordinator(corpus.store, LocalSearcher(host), resources, corpus.cache, translate=by)
        try:
            wanted = {"corpus": "c", "budget_ms": 30_000, "keep_all": True, "query": QUESTION, "translate": True}
            return [await coordinator.search(SearchRequest(**wanted | request)) for request in requests]
        finally:
            await coordinator.close()

    return asyncio.run(run())


def test_a_model_writes_forms_that_find_what_the_words_do_not(corpus: Engine, server: OpenAIServer) -> None:
    plain, answer = asked(corpus, server, {"translate": False}, {"explain": True})
    assert "dates.py" not in paths(plain)[:1] and paths(answer)[0] == "dates.py"
    told = answer.translation
    assert told is not None and told.state == "done" and told.forms == FORMS and told.dropped == {} and plain.translation is None
    by = {layer.name: (layer.asked_by, layer.because) for layer in answer.layers}
    for name, form in FORMS.items():
        assert by[name][0] == "model" and by[name][1] == f"tiny wrote the form {json.dumps(form, ensure_ascii=False)}"
    ((path, body),) = server.requests
    offered = json.loads(body["messages"][1]["content"])
    assert path.endswith("/chat/completions") and offered["question"] == QUESTION
    assert set(offered["forms"]) == {"bm25", "text", "structure", "formula", "symbols"} and server.keys == ["Bearer secret"]


def test_the_words_of_the_question_go_on_to_be_asked(corpus: Engine, server: OpenAIServer) -> None:
    (answer,) = asked(corpus, server, {"layers": ["bm25"], "query": "void contract"})
    (asked_now,) = (layer.asked for layer in answer.layers if layer.name == "bm25")
    assert asked_now == "void contract strptime rfc"


def test_forms_that_their_layers_cannot_read_are_dropped_and_told(corpus: Engine, server: OpenAIServer) -> None:
    wrong = {
        "text": {"pattern": "(unclosed", "regex": True},
        "structure": {"pattern": "def ((", "language": "klingon"},
        "formula": {"latex": "x" * 3_000},
        "bm25": {"also": "no list"},
        "symbols": {"name": "parse_http_date"},
        "invented": {"a": 1},
    }
    server.answer = lambda body: json.dumps(wrong)
    (answer,) = asked(corpus, server, {})
    told = answer.translation
    assert told is not None and told.forms == {"symbols": {"name": "parse_http_date"}}
    assert set(told.dropped) == {"text", "structure", "formula", "bm25", "invented"} and "2,000 characters" in told.dropped["formula"]
    assert paths(answer)[0] == "dates.py"


def test_the_same_question_is_translated_once(corpus: Engine, server: OpenAIServer) -> None:
    first, second, other, *_ = asked(corpus, server, {}, {"k": 3}, {"query": "which court"}, {"translate": {"model": "other"}})
    assert [a.translation.state for a in (first, second, other)] == ["done", "cached", "done"]  # type: ignore[union-attr]
    assert [body["model"] for _, body in server.requests] == ["tiny", "tiny", "other"]


def test_a_callers_own_form_is_not_replaced(corpus: Engine, server: OpenAIServer) -> None:
    (answer,) = asked(corpus, server, {"forms": {"text": {"pattern": "cake"}}, "explain": True})
    assert answer.translation is not None and "text" not in answer.translation.forms
    assert next(layer.asked_by for layer in answer.layers if layer.name == "text") == "caller"


@pytest.mark.parametrize(
    ("said", "reason"),
    [("I would rather not.", "no forms in JSON"), ("", "no forms in JSON"), ("{}", "no form that can be asked"), ("[1, 2]", "no forms")],
)
def test_a_model_that_answers_badly_leaves_the_question_as_it_was(corpus: Engine, server: OpenAIServer, said: str, reason: str) -> None:
    server.answer = lambda body: said
    plain, answer = asked(corpus, server, {"translate": False}, {})
    assert answer.translation is not None and answer.translation.state in ("failed", "nothing") and reason in answer.translation.reason
    assert paths(answer) == paths(plain)


def test_a_model_that_is_late_is_not_waited_for(corpus: Engine, server: OpenAIServer) -> None:
    server.faults.append(Fault("slow"))
    (answer,) = asked(corpus, server, {"budget_ms": 1_000, "translate": {"model": "tiny", "share": 0.1}})
    assert answer.translation is not None and answer.translation.state == "late" and answer.hits
    server.release()


def test_an_endpoint_that_refuses_is_told_without_its_key(corpus: Engine, server: OpenAIServer) -> None:
    server.faults.append(Fault("status", 401, message="bad key secret"))
    (answer,) = asked(corpus, server, {})
    assert answer.translation is not None and answer.translation.state == "failed" and answer.hits
    assert "refuses the key" in answer.translation.reason and "secret" not in answer.translation.reason


def test_who_translates_must_be_known(corpus: Engine, server: OpenAIServer) -> None:
    with pytest.raises(BadQuery, match="SONDAGE_TRANSLATE"):
        asked(corpus, server, {}, default=None)
    with pytest.raises(EndpointError, match=r"'elsewhere'.*not among"):
        asked(corpus, server, {"translate": {"model": "m", "endpoint": "elsewhere"}})


@pytest.mark.parametrize(
    ("reply", "forms"),
    [
        ('{"text": {"pattern": "a"}}', {"text": {"pattern": "a"}}),
        ('```json\n{"text": {"pattern": "{"}}\n```', {"text": {"pattern": "{"}}),
        ('<think>{"a": {}} perhaps</think> {"b": {"c": 1}}', {"b": {"c": 1}}),
        ('{"text": "no form"}', None),
        ("{" * 5_000, None),
        ("nothing", None),
    ],
)
def test_forms_are_read_from_whatever_stands_around_them(reply: str, forms: Any) -> None:
    assert read_reply(reply) == forms


def test_a_wrong_translator_is_told_with_its_place() -> None:
    with pytest.raises(InvalidRequest, match=r"translate\.modell: unknown field; did you mean 'model'") as error:
        validated({"corpus": "c", "query": "x", "translate": {"modell": "m"}})
    assert error.value.at == "translate.model"


def test_a_key_may_be_kept_from_asking_a_model() -> None:
    asked = SearchRequest(corpus="c", query="x", translate=True)
    assert within(asked, Limits()) is asked
    with pytest.raises(OverLimit) as error:
        within(asked, Limits.parse("translate=0"))
    assert error.value.at == "translate"


def test_settings_name_who_translates(tmp_path: Path) -> None:
    from jobs.settings import Settings

    settings = Settings.load({"SONDAGE_TRANSLATE": "gpt", "SONDAGE_TRANSLATE_ENDPOINT": "own"})
    assert settings.front_settings().translate == Translate(model="gpt", endpoint="own")
    assert Settings.load({}).front_settings().translate is None
