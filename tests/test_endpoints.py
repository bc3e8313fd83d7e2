"""The client of OpenAI-compatible endpoints, against a real server on loopback that fails as it is told to."""

import logging
import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import numpy as np
import pytest
from openai_server import Fault, OpenAIServer, vector_of

from cluster.host import Host
from cluster.settings import HostSettings
from jobs.settings import Settings
from shards.endpoint_settings import EndpointSettings, Price, Usage
from shards.endpoints import Chat, Endpoint, Reply, endpoint_of
from shards.errors import BadSpec, EndpointError

KEY = "sk-a-secret-key"


@pytest.fixture
def server():
    with OpenAIServer(KEY) as running:
        yield running


class Clock:
    """Time that passes only where the client waits."""

    def __init__(self):
        self.now, self.waited = 0.0, []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds


def client(server: OpenAIServer, clock: Clock | None = None, key: str = KEY, prices=None, **options) -> Endpoint:
    clock = clock or Clock()
    settings = EndpointSettings(server.url, key, prices or {})
    options = {"jitter": lambda low, high: high, "concurrency": 1} | options
    return Endpoint(settings, "tiny", sleep=clock.sleep, clock=clock, **options)


def replies(endpoint: Endpoint, texts: list[str], **options) -> list[str]:
    """Texts of replies, or reasons of errors, in the order of the questions."""
    found = dict(endpoint.chat([Chat(text) for text in texts], **options))
    return [r.text if isinstance(r, Reply) else r.reason for _, r in sorted(found.items())]


def test_texts_are_embedded_in_batches_and_come_back_in_order(server):
    endpoint, told = client(server, batch=2, concurrency=3), []
    texts = ["a river", "stone", "cloud and river", "tree", "x"]
    vectors = endpoint.embed(texts, done=told.append)
    np.testing.assert_array_equal(vectors, np.array([vector_of(t) for t in texts], np.float32))
    assert sorted(len(body["input"]) for _, body in server.requests) == [1, 2, 2]
    assert told[-1] == 5
    assert endpoint.embed([]).shape == (0, 0)
    assert endpoint.embed(["a"], dimensions=4).shape == (1, 4)


def test_questions_are_answered_side_by_side_but_never_more_at_once_than_allowed(server):
    endpoint = client(server, concurrency=3)
    assert replies(endpoint, ["one", "two words", "three more words"]) == [
        "1 words: one",
        "2 words: two words",
        "3 words: three more words",
    ]
    replies(endpoint, [f"q {i}" for i in range(40)])
    assert server.most_at_once <= 3
    assert set(server.keys) == {f"Bearer {KEY}"}


def test_callers_of_one_client_share_what_may_be_under_way_at_once(server):
    endpoint = client(server, concurrency=2)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: replies(endpoint, [f"q {i} {j}" for j in range(10)]), range(4)))
    assert [len(texts) for texts in found] == [10] * 4
    assert server.most_at_once <= 2


def test_the_roles_and_limits_of_a_question_are_sent(server):
    endpoint = client(server)
    ((_, reply),) = endpoint.chat([Chat("many words in here", system="be brief", max_tokens=2, options={"seed": 7})])
    assert (reply.text, reply.cut) == ("4 words:", True)
    assert server.requests[0][1] == {
        "model": "tiny", "max_tokens": 2, "temperature": 0.0, "seed": 7,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "many words in here"}],
    }  # fmt: skip


@pytest.mark.parametrize(
    "fault", [Fault("status", 429), Fault("status", 500), Fault("status", 503), Fault("garbage"), Fault("cut"), Fault("hang_up")], ids=str
)
def test_what_may_pass_is_tried_again(server, fault):
    clock = Clock()
    server.faults += [fault, fault]
    endpoint = client(server, clock)
    assert replies(endpoint, ["hello"]) == ["1 words: hello"]
    assert clock.waited == [0.5, 2.0]
    assert endpoint.usage.retries == 2


def test_waits_grow_and_end(server):
    clock = Clock()
    server.faults += [Fault("status", 500, message="out of order")] * 9
    ((_, error),) = client(server, clock).chat([Chat("hello")])
    assert clock.waited == [0.5, 2.0, 8.0, 30.0]
    assert (type(error), error.reason) == (EndpointError, "failing")
    for part in (server.url, "'tiny'", "500", "out of order", "Try again later"):
        assert part in str(error)


def test_an_answer_says_how_long_to_wait_in_seconds_or_by_a_date(server):
    clock = Clock()
    server.faults += [Fault("status", 429, retry_after="17"), Fault("status", 503, retry_after="nonsense")]
    assert replies(client(server, clock), ["hello"]) == ["1 words: hello"]
    assert clock.waited == [17.0, 2.0]
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    server.faults += [Fault("status", 429, retry_after=then)]
    clock.waited.clear()
    assert replies(client(server, clock), ["hello"]) == ["1 words: hello"]
    assert 50 < clock.waited[0] <= 60


def test_one_request_that_is_told_to_wait_holds_the_others_back(server):
    """The first is told to wait 20 s and gives up; what is asked after that waits them out."""
    clock = Clock()
    server.faults += [Fault("status", 429, retry_after="20")] * 5
    endpoint = client(server, clock, waits_s=())
    assert replies(endpoint, ["a"]) == ["failing"]
    server.faults.clear()
    assert (clock.now, endpoint._not_before) == (0.0, 20.0)
    assert replies(endpoint, ["b"]) == ["1 words: b"]
    assert clock.waited == [20.0]


def test_who_asks_to_wait_for_hours_is_told_to_the_caller_at_once(server):
    clock = Clock()
    server.faults += [Fault("status", 429, retry_after="7200")]
    ((_, error),) = client(server, clock).chat([Chat("hello")])
    assert "asks to wait 7,200 s" in str(error)
    assert clock.waited == []


def test_the_budget_ends_waiting_and_what_was_not_asked_is_said_to_be_late(server):
    clock = Clock()
    server.faults += [Fault("status", 500)] * 3
    assert replies(client(server, clock), ["a", "b", "c"], budget_s=3.0) == ["late", "1 words: b", "1 words: c"]
    assert clock.waited == [0.5, 2.0]
    clock = Clock()
    assert replies(client(server, clock), ["a", "b"], budget_s=0.0) == ["late", "late"]
    with pytest.raises(EndpointError, match="the budget has ended"):
        client(server, clock).embed(["a"], budget_s=0.0)


def test_an_answer_that_drips_for_ever_is_given_up_when_its_time_is_over(server):
    """Each read is quick, so a limit of one read says nothing: the clock is looked at between pieces."""
    server.faults += [Fault("drip")] * 2
    ticks = iter(range(10_000))
    endpoint = Endpoint(EndpointSettings(server.url, KEY), "tiny", waits_s=(), timeout_s=20.0, clock=lambda: next(ticks))
    ((_, error),) = endpoint.chat([Chat("hello")])
    assert error.reason == "unreachable"
    assert "within 20 s" in str(error)


def test_a_server_that_says_nothing_is_given_up_and_named():
    with OpenAIServer() as server:
        server.faults += [Fault("slow")]
        endpoint = Endpoint(EndpointSettings(server.url), "tiny", waits_s=(), timeout_s=0.05)
        ((_, error),) = endpoint.chat([Chat("hello")])
        assert error.reason == "unreachable"
    gone = Endpoint(EndpointSettings(server.url), "tiny", waits_s=())
    ((_, error),) = gone.chat([Chat("hello")])
    assert error.reason == "unreachable"
    assert "Is it running" in str(error) and server.url in str(error)


def test_a_dead_server_is_not_asked_a_thousand_questions():
    with OpenAIServer() as server:
        pass
    clock = Clock()
    endpoint = Endpoint(EndpointSettings(server.url), "tiny", waits_s=(), concurrency=1, clock=clock)
    with pytest.raises(EndpointError, match="cannot be reached"):
        list(endpoint.chat([Chat("hello")] * 1000))


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        (Fault("status", 404, message="no such model"), "no such model. Check both"),
        (Fault("status", 403, message="not yours"), "refuses the key"),
        (Fault("status", 429, message="quota", code="insufficient_quota"), "wants to be paid"),
        (Fault("status", 307), "sends elsewhere (307), which is not followed"),
    ],
    ids=str,
)
def test_what_no_other_request_would_escape_is_raised_at_once(server, fault, part):
    server.faults += [fault] * 2
    with pytest.raises(EndpointError) as caught:
        list(client(server).chat([Chat("a"), Chat("b")]))
    assert part in str(caught.value)
    assert len(server.requests) == 1 and caught.value.is_settled


def test_a_question_that_is_refused_spoils_no_other(server):
    server.faults += [Fault("status", 400, message="too long", when=lambda body: body["messages"][0]["content"] == "b")]
    endpoint = client(server)
    assert replies(endpoint, ["a", "b", "c"]) == ["1 words: a", "refused", "1 words: c"]
    assert endpoint.usage.retries == 0


def test_the_key_stands_in_no_message_log_or_name(server, caplog):
    caplog.set_level(logging.DEBUG)
    wrong = client(server, key="sk-another-secret")
    with pytest.raises(EndpointError, match="Incorrect API key provided: \\*\\*\\*") as caught:
        list(wrong.chat([Chat("a")]))
    replies(client(server), ["a"])
    assert "sk-" not in repr(wrong.settings) + str(caught.value) + caplog.text


def test_a_parameter_that_a_model_does_not_take_is_renamed_or_left_out_from_then_on(server):
    """OpenAI's reasoning models take neither max_tokens nor a temperature."""
    server.faults += [Fault("unsupported", param="max_tokens"), Fault("unsupported", param="temperature")]
    endpoint = client(server)
    for _ in range(2):
        ((_, reply),) = endpoint.chat([Chat("hello there", max_tokens=100)])
        assert reply.text == "2 words: hello there"
    sent = [sorted(set(body) - {"model", "messages"}) for _, body in server.requests]
    renamed = ["max_completion_tokens"]
    assert sent == [["max_tokens", "temperature"], [*renamed, "temperature"], renamed, renamed]


def test_tokens_are_counted_and_priced_as_the_server_states_them(server):
    endpoint = client(server, prices={"tiny": Price(2.0, 10.0), "other": Price(1, 1)})
    ((_, reply),) = endpoint.chat([Chat("three words here")])
    assert reply.usage == Usage(1, 0, 3, 5, 0, (3 * 2.0 + 5 * 10.0) / 1e6)
    endpoint.embed(["two words", "one"])
    assert endpoint.usage == Usage(2, 0, 6, 5, 0, pytest.approx(reply.usage.cost + 3 * 2.0 / 1e6))
    assert client(server).usage.cost is None


def test_answers_without_a_count_are_counted_as_such():
    with OpenAIServer(with_usage=False) as server:
        endpoint = client(server, key="")
        replies(endpoint, ["a", "b"])
        assert endpoint.usage == Usage(2, 0, 0, 0, 2)
        assert server.keys == ["", ""]


@pytest.mark.parametrize(
    "data",
    [
        {"data": [{"index": 0, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [2.0]}]},
        {"data": [{"embedding": [1.0]}, {"embedding": [2.0, 3.0]}]},
        {"data": [{"embedding": [1.0]}, {"embedding": ["x"]}]},
        {"data": None},
        [],
    ],
    ids=str,
)
def test_vectors_that_do_not_fit_the_texts_are_refused(server, data):
    server.answer_to = lambda path, body, key: (200, data)
    with pytest.raises(EndpointError, match="cannot be read") as caught:
        client(server, waits_s=()).embed(["a", "b"])
    assert caught.value.reason == "garbage"


def test_nobody_waits_for_answers_that_are_not_wanted_any_more(server):
    """The second request hangs until the server ends; the caller stops after the first reply and goes on at once."""
    server.faults += [Fault("slow", when=lambda body: body["messages"][0]["content"] == "slow")]
    endpoint = Endpoint(EndpointSettings(server.url, KEY), "tiny", concurrency=2)
    asked = endpoint.chat([Chat("quick"), Chat("slow")])
    assert next(asked)[0] == 0
    asked.close()
    server.release()
    endpoint.close()
    assert replies(endpoint, ["again"]) == ["1 words: again"]


@pytest.mark.parametrize("url", ["", "api.openai.com/v1", "ftp://x/v1", "https://me:sk-secret@host/v1", "https://host/v1?key=sk-secret"])
def test_a_url_that_is_no_base_is_refused_without_showing_secrets(url):
    with pytest.raises(BadSpec, match="not the base URL") as caught:
        EndpointSettings(url)
    assert "sk-secret" not in str(caught.value)


def test_an_endpoint_that_was_not_set_is_named_with_the_remedy():
    with pytest.raises(EndpointError, match=r"'judge'.*It has none.*SONDAGE_ENDPOINT_URL"):
        endpoint_of({}, "judge", "tiny")
    with pytest.raises(EndpointError, match="It has: default"):
        endpoint_of({"default": EndpointSettings("http://x/v1")}, "judge", "tiny")


def test_errors_and_settings_travel_between_processes():
    error = pickle.loads(pickle.dumps(EndpointError("no", reason="late")))
    assert (str(error), error.reason, error.status) == ("no", "late", 424)
    settings = EndpointSettings("http://x/v1", KEY, {"m": Price(1, 2)})
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_client_that_is_let_go_closes_its_connections(server):
    endpoint = client(server)
    replies(endpoint, ["a"])
    inner: httpx.Client = endpoint._client
    del endpoint
    assert inner.is_closed


# --- settings ----------------------------------------------------------------------------------------------------------------


def test_the_default_endpoint_comes_from_the_environment_and_others_from_a_file(tmp_path):
    assert Settings.load({}).endpoint_settings() == {}
    file = tmp_path / "endpoints.yaml"
    file.write_text(f"judge: {{url: http://judge/v1, key: {KEY}, prices: {{big: [2.5, 10]}}}}\ndefault: {{url: http://other/v1}}\n")
    found = Settings.load({"SONDAGE_ENDPOINTS": str(file)}).endpoint_settings()
    assert found == {
        "judge": EndpointSettings("http://judge/v1", KEY, {"big": Price(2.5, 10.0)}),
        "default": EndpointSettings("http://other/v1"),
    }
    variables = {"SONDAGE_ENDPOINTS": str(file), "SONDAGE_ENDPOINT_URL": "http://here/v1", "SONDAGE_ENDPOINT_KEY": "k"}
    assert Settings.load(variables).endpoint_settings()["default"] == EndpointSettings("http://here/v1", "k")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("judge: {key: sk-secret}", "judge.url: Field required"),
        ("judge: {url: http://x/v1, keys: sk-secret}", "keys: Extra inputs"),
        ("judge: {url: http://x/v1, key: [sk-secret]}", "key: Input should be a valid string"),
        ("judge: {url: http://x/v1, prices: {m: [1]}}", "prices.m.1: Field required"),
        ("- sk-secret", "is no mapping"),
        ("judge: {url: sk-secret", "is no YAML from line"),
    ],
)
def test_a_wrong_file_of_endpoints_is_refused_without_showing_what_it_holds(tmp_path, text, problem):
    file = tmp_path / "endpoints.yaml"
    file.write_text(text)
    with pytest.raises(BadSpec) as caught:
        Settings.load({}, endpoints=file).endpoint_settings()
    assert problem in str(caught.value) and "sk-secret" not in str(caught.value)


def test_a_key_without_a_url_is_refused_rather_than_sent_somewhere():
    with pytest.raises(BadSpec, match="SONDAGE_ENDPOINT_URL"):
        Settings.load({"SONDAGE_ENDPOINT_KEY": KEY}).endpoint_settings()
    with pytest.raises(BadSpec, match=r"endpoints\.yaml cannot be read"):
        Settings.load({"SONDAGE_ENDPOINTS": "/nowhere/endpoints.yaml"}).endpoint_settings()


def test_endpoints_reach_hosts_and_their_layers(tmp_path):
    variables = {"SONDAGE_ENDPOINT_URL": "http://here/v1", "SONDAGE_ENDPOINT_KEY": KEY, "SONDAGE_STORE": str(tmp_path)}
    settings = Settings.load(variables)
    host = pickle.loads(pickle.dumps(settings.host_settings()))
    assert host.endpoints == settings.resources().endpoints == {"default": EndpointSettings("http://here/v1", KEY)}
    assert KEY not in repr(host) + repr(settings)
    assert Host(str(tmp_path), endpoints=host.endpoints).resources.endpoints == host.endpoints
    given = HostSettings(store_url="x", cache_dir=tmp_path, endpoints={"default": {"url": "http://here/v1", "key": KEY}})
    assert given.endpoints == host.endpoints
