"""When a call is made again, how long that waits, and with how much time: no server, no clock."""

from datetime import UTC, datetime

import httpx
import pytest

from serve.client.calls import Call, delete, put, query, search, suggest_terms
from serve.client.refusals import Refused, Unreachable, retry_after_s
from serve.client.tries import Answer, Retries, Tries
from serve.nlql.schema import QueryRequest
from serve.problems import kind_of
from serve.push_schema import PushParameters
from serve.schema import SearchRequest
from shards.errors import BadQuery, EndpointError, NotFound, SondageError
from shards.nlql.errors import ParseError

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
REFUSED = httpx.ConnectError("refused")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def tries(call: Call, retries: Retries | None = None, timeout_s: float | None = None, draw: float = 0.0) -> tuple[Tries, Clock]:
    clock = Clock()
    made = Tries(call, "http://x", retries or Retries(), timeout_s, clock, lambda: draw, NOW.timestamp)
    return made, clock


def said(status: int, kind: str = "store_error", after: str | None = None, **more) -> Answer:
    body = httpx.Response(status, json={"error": {"kind": kind, "message": "No.", **more}}).content
    headers = httpx.Headers({"x-request-id": "0123456789abcdef"} | ({} if after is None else {"retry-after": after}))
    return Answer(status, headers, body)


ASKED = search(SearchRequest(corpus="a", query="x", budget_ms=5_000))


# --- how often, and how long between -----------------------------------------------------------------------------------------


def test_refused_connections_are_tried_again_after_pauses_that_double_up_to_a_limit():
    made, _ = tries(Call("GET", "/", bytes, budget_s=60.0), Retries(9))
    assert [made.broken(REFUSED) for _ in range(9)] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.5, 2.5, 2.5]
    with pytest.raises(Unreachable, match="Nothing answers at http://x"):
        made.broken(REFUSED)


def test_those_turned_away_together_do_not_come_back_together():
    assert [tries(ASKED, draw=draw)[0].broken(REFUSED) for draw in (0.0, 0.5, 1.0)] == pytest.approx([0.05, 0.075, 0.1])
    assert [tries(ASKED, draw=draw)[0].refused(said(429, after="2")) for draw in (0.0, 1.0)] == pytest.approx([2.0, 2.05])


@pytest.mark.parametrize(("after", "wait_s"), [("3", 3.0), ("Mon, 30 Nov 2026 12:00:02 GMT", 2.0), ("soon", 0.05), (None, 0.05)])
@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_says_when_is_taken_at_its_word(status, after, wait_s):
    assert tries(ASKED)[0].refused(said(status, after=after)) == wait_s


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("0", 0.0), ("120", 120.0), ("Mon, 30 Nov 2026 11:00:00 GMT", 0.0), ("-1", None), ("1.5", None), ("", None), ("²", None)],
)
def test_retry_after_is_a_number_of_seconds_or_a_date(header, seconds):
    assert retry_after_s(header, NOW.timestamp()) == seconds


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 410, 413, 415, 422, 424, 500, 502])
def test_other_refusals_stay_as_they_are(status):
    with pytest.raises(SondageError):
        tries(ASKED)[0].refused(said(status, after="1"))


@pytest.mark.parametrize("error", [httpx.ReadTimeout("late"), httpx.PoolTimeout("all in use"), httpx.UnsupportedProtocol("ftp")])
def test_what_took_its_time_or_cannot_work_is_not_tried_again(error):
    with pytest.raises(Unreachable):
        tries(ASKED)[0].broken(error)


def test_no_retries_means_none():
    with pytest.raises(Unreachable):
        tries(ASKED, Retries(0))[0].broken(REFUSED)


# --- within which time -------------------------------------------------------------------------------------------------------


def test_nobody_waits_for_what_would_come_after_the_budget_and_the_error_says_when_to_come():
    with pytest.raises(SondageError) as caught:
        tries(ASKED)[0].refused(said(429, "overloaded", after="5"))  # of a budget of 5 s nothing would be left
    assert (type(caught.value).__name__, caught.value.retry_after_s) == ("Overloaded", 5.0)
    assert tries(ASKED, Retries(within_s=30.0))[0].refused(said(429, after="5")) == 5.0
    assert tries(ASKED, timeout_s=8.0)[0].refused(said(429, after="5")) == 5.0
    with pytest.raises(SondageError):
        tries(ASKED, timeout_s=2.0)[0].refused(said(429, after="2"))


def budget(call: Call) -> int:
    return int(dict(call.parameters).get("budget_ms", 2_000))  # which a link leaves out


def test_a_later_try_is_asked_to_be_done_in_what_is_left():
    made, clock = tries(ASKED)
    assert budget(made.call) == 5_000
    clock.now += made.refused(said(503, after="2"))
    made.again()
    assert budget(made.call) == 3_000
    clock.now += made.refused(said(503, after="1"))
    made.again()
    assert budget(made.call) == 2_000


def test_the_callers_time_bounds_the_first_try_too_and_all_of_them_together():
    made, clock = tries(ASKED, timeout_s=1.5)
    assert budget(made.call) == 1_500 and made.timeout().read == 1.5
    clock.now += 1.0
    assert made.timeout().read == pytest.approx(0.5)
    clock.now += 1.0
    with pytest.raises(Unreachable, match="did not answer in time"):
        made.check()


def test_an_answer_may_take_longer_than_its_budget_by_the_way_it_has_to_go():
    made, clock = tries(ASKED)
    clock.now += 14.9
    made.check()
    clock.now += 0.2
    with pytest.raises(Unreachable):
        made.check()


def test_who_would_wait_for_a_busy_server_does_not_wait_longer_for_one_that_hangs():
    made, clock = tries(ASKED, Retries(within_s=30.0))
    assert made.timeout().read == 15.0 and budget(made.call) == 5_000
    clock.now += 1.0 + made.refused(said(503, after="20"))
    made.again()
    assert made.timeout().read == 15.0 and budget(made.call) == 5_000
    clock.now += 15.1
    with pytest.raises(Unreachable):
        made.check()


def test_queries_and_terms_are_shortened_likewise():
    for call in (
        query(QueryRequest(corpus="a", text="SELECT CHUNK", budget_ms=4_000)),
        suggest_terms(corpus="a", query="x", budget_ms=4_000),
    ):
        made, clock = tries(call)
        clock.now += made.refused(said(503, after="3"))
        made.again()
        assert b'"budget_ms":1000' in (made.call.content or b"")


def test_what_a_caller_leaves_open_stays_open_so_that_a_keys_limits_may_lower_it():
    plain = search(SearchRequest(corpus="a", query="x", forms={"text": {"pattern": "x"}}))
    assert b"budget_ms" not in plain.content and b'"k"' not in plain.content


# --- sent twice, done once ---------------------------------------------------------------------------------------------------


def test_every_push_has_an_id_before_its_first_try_and_keeps_it():
    for call in (put("p", "text", None, "c", None, None, PushParameters()), delete("p", "c", None, PushParameters())):
        made, _ = tries(call)
        first = made.call.headers["idempotency-key"]
        made.refused(said(503))
        made.again()
        assert made.call.headers["idempotency-key"] == first and len(first) == 32
    assert put("p", "text", None, "c", None, "mine", PushParameters()).headers["idempotency-key"] == "mine"


# --- errors ------------------------------------------------------------------------------------------------------------------


def error_of(answer: Answer) -> SondageError:
    with pytest.raises(SondageError) as caught:
        tries(ASKED, Retries(0))[0].refused(answer)
    return caught.value


def test_errors_are_of_the_classes_of_the_process_that_raised_them_with_the_number_of_the_request():
    error = error_of(said(404, "not_found"))
    assert type(error) is NotFound and (str(error), error.request_id) == ("No.", "0123456789abcdef")
    broken = error_of(said(422, "bad_query", at="where.a"))
    assert type(broken) is BadQuery and broken.at == "where.a"


def test_every_class_of_error_crosses_http():
    """Also those whose constructors take more, and those of modules that a client has not loaded."""
    import cluster.batching  # noqa: F401
    import shards.nlql.errors  # noqa: F401

    classes, crossed = [SondageError], 0
    for known in classes:
        classes += known.__subclasses__()
        if known.__module__.partition(".")[0] in ("shards", "cluster", "serve") and known not in (Unreachable, Refused):
            assert kind_of(type(error_of(said(known.status, kind_of(known))))) == kind_of(known)
            crossed += 1
    assert crossed > 30 and EndpointError in classes


def test_an_error_in_a_query_keeps_its_place():
    error = error_of(said(400, "nlql_syntax", line=2, column=7, category="syntax", expected=["a number"], caret="…"))
    assert type(error) is ParseError and (error.line, error.column, error.expected) == (2, 7, ("a number",))
    assert str(error) == "Line 2, column 7: No."


def test_a_kind_that_is_not_known_here_and_fields_that_are_not_are_no_obstacle():
    error = error_of(said(418, "teapot", at="pot", colour="brown"))
    assert type(error) is Refused and (error.status, error.kind, error.at, str(error)) == (418, "teapot", "pot", "No.")


@pytest.mark.parametrize("body", [b"", b"<html>Bad gateway</html>", b"[]", b'{"error": "no"}', b'{"error": {"kind": "x"}}', b"\xff"])
def test_what_is_no_answer_of_sondage_is_told(body):
    error = error_of(Answer(502, httpx.Headers(), body))
    assert "http://x answered 502 without a reason. Is it a Sondage server?" in str(error)
