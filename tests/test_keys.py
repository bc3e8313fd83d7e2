"""API keys: how they are made, kept and told from guesses, what each may do and how fast, and the file that holds them."""

import asyncio
import json
import stat
from datetime import UTC, datetime, timedelta

import pytest

from jobs import cli
from jobs.keys import add_key, following, moment
from jobs.settings import Settings, read_keys
from serve.keys import Caller, Key, KeyRing, as_keys, new_key, visible_status
from serve.limits import Limits, TokenBucket, within
from serve.problems import Forbidden, Limited, OverLimit, Unauthorized
from serve.schema import Rerank, SearchRequest
from serve.settings import FrontSettings
from shards.errors import BadSpec, NoCorpus

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


class Clock:
    """Seconds that stand still until they are moved."""

    def __init__(self, now: float = 0.0):
        self.now = now

    def __call__(self) -> float:
        return self.now


def ring(*keys: Key | str, limits: Limits | None = None, clock: Clock | None = None, day: Clock | None = None) -> KeyRing:
    return KeyRing(as_keys(keys), limits or Limits(), clock or Clock(), day or Clock(NOW.timestamp()))


# --- telling keys ------------------------------------------------------------------------------------------------------------


def test_a_key_opens_and_what_is_kept_of_it_does_not_hold_it():
    key, kept = new_key(NOW, scopes=("read",))
    _, key_id, secret = key.split("_", 2)
    assert (kept.id, len(secret)) == (key_id, 43)  # 32 bytes
    assert secret not in kept.model_dump_json() and ring(kept).find(key).key == kept
    assert kept.salt != new_key(NOW, scopes=("read",))[1].salt


@pytest.mark.parametrize("change", ["cut", "added", "other secret", "other id", "secret alone", "blank"])
def test_a_guess_opens_nothing(change):
    key, kept = new_key(NOW, scopes=("read",))
    other, kept_other = new_key(NOW, scopes=("read",))
    guess = {
        "cut": key[:-1], "added": key + "A", "other secret": f"sondage_{kept.id}_{other[17:]}",
        "other id": f"sondage_{kept_other.id}_{key[17:]}", "secret alone": key[17:], "blank": f" {key}",
    }[change]  # fmt: skip
    with pytest.raises(Unauthorized, match="not one of this server's"):
        ring(kept).find(guess)


def test_keys_in_the_clear_open_everything_as_they_did():
    keys = ring("first", "second")
    assert [keys.find(text).id for text in ("first", "second")] == ["plain-1", "plain-2"]
    assert keys.find("first").scopes == {"read", "write", "admin"} and keys.find("first").sees("anything")
    with pytest.raises(Unauthorized):
        keys.find("plain-1")


def test_a_key_ends_when_it_expires_or_is_revoked():
    key, kept = new_key(NOW, scopes=("read",), expires=NOW + timedelta(hours=1))
    day = Clock(NOW.timestamp() + 3599)
    keys = ring(kept, day=day)
    assert keys.find(key).id == kept.id
    day.now += 1
    with pytest.raises(Unauthorized, match=f"{kept.id} has expired"):
        keys.find(key)
    keys.replace([kept.model_copy(update={"expires": None, "revoked": NOW})])
    with pytest.raises(Unauthorized, match=f"{kept.id} was revoked"):
        keys.find(key)


def test_a_server_that_lost_its_last_key_still_asks_for_one():
    keys = ring("only")
    keys.replace([])
    with pytest.raises(Unauthorized):
        keys.find("only")
    assert not keys.is_open and ring().is_open


def test_two_keys_of_one_id_are_refused():
    _, kept = new_key(NOW, scopes=("read",))
    with pytest.raises(BadSpec, match=f"Two API keys have the ID {kept.id}"):
        as_keys([kept, kept])
    taken = as_keys(["x"])[0]
    assert [key.id for key in as_keys([taken, "y"])] == ["plain-1", "plain-2"]  # and those in the clear take another


# --- what they may -----------------------------------------------------------------------------------------------------------


def test_no_scope_includes_another():
    for scope in ("read", "write", "admin"):
        caller = Caller(new_key(NOW, scopes=(scope,))[1], Limits())
        for wanted in ("read", "write", "admin"):
            if wanted == scope:
                caller.begin(wanted, 0.0)
            else:
                with pytest.raises(Forbidden, match=f"has the scope {scope}; this wants {wanted}"):
                    caller.begin(wanted, 0.0)


@pytest.mark.parametrize(
    ("corpora", "seen", "unseen"),
    [
        (None, ("a", "b"), ()),
        (("a",), ("a",), ("ab", "A", "b", "*", "")),
        (("team-*", "x"), ("team-1", "team-", "x"), ("team", "my-team-1", "xx")),
        (("a.b",), ("a.b",), ("axb",)),
    ],
)
def test_a_key_sees_the_corpora_that_it_names(corpora, seen, unseen):
    caller = Caller(new_key(NOW, scopes=("read",), corpora=corpora)[1], Limits())
    assert all(caller.sees(corpus) for corpus in seen) and not any(caller.sees(corpus) for corpus in unseen)


def test_status_of_a_restricted_key_says_nothing_of_what_it_does_not_see():
    state = {
        "store": "s3://firm/index", "corpora": {"a": {"docs": 1}, "b": {"docs": 2}}, "hosts": [{"memory": {"b": {}}}],
        "placement": {"b": {}}, "problems": {"a": "1", "a/dense": "2", "the log of a": "3", "b": "4", "b/dense": "5", "store": "6"},
    }  # fmt: skip
    restricted = Caller(new_key(NOW, scopes=("read",), corpora=("a",))[1], Limits())
    told = visible_status(state, restricted)
    assert told == {"corpora": {"a": {"docs": 1}}, "hosts": [], "problems": {"a": "1", "a/dense": "2", "the log of a": "3"}}
    assert visible_status(state, Caller(None, Limits())) is state


def test_an_unseen_corpus_and_none_are_told_alike():
    caller = Caller(new_key(NOW, scopes=("read",), corpora=("a", "team-*"))[1], Limits())
    error = caller.no_corpus("b")
    assert isinstance(error, NoCorpus) and str(error) == "No corpus 'b'. This key sees: a, team-*."


# --- how much ----------------------------------------------------------------------------------------------------------------


def test_a_bucket_lets_through_its_burst_and_then_its_rate():
    bucket = TokenBucket(rate=2.0, burst=3.0)
    assert [bucket.take(1.0, 10.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert bucket.take(1.0, 10.25) == 0.25  # what was refused cost nothing
    assert bucket.take(1.0, 10.5) == 0.0
    assert bucket.take(3.0, 100.0) == 0.0 and bucket.take(1.0, 100.0) == 0.5  # no more than the burst is saved up
    bucket.owe(4.0, 100.0)
    assert bucket.take(1.0, 101.0) == 1.5
    assert bucket.take(1.0, 50.0) == 1.5  # a clock that goes back gives nothing


def test_a_key_has_a_rate_and_a_number_of_requests_at_once():
    caller = Caller(new_key(NOW, scopes=("read",), limits=Limits(requests_per_s=2, burst=2, concurrent=1))[1], Limits(concurrent=9))
    caller.begin("read", 0.0)
    with pytest.raises(Limited, match="may have 1 requests under way") as busy:
        caller.begin("read", 0.0)
    caller.end()
    caller.begin("read", 0.0)
    caller.end()
    with pytest.raises(Limited, match="2 requests a second") as fast:
        caller.begin("read", 0.1)
    assert (busy.value.retry_after_s, round(fast.value.retry_after_s, 3), caller.under_way) == (1.0, 0.4, 0)
    caller.begin("read", 0.5)


def test_limits_of_a_key_go_before_those_of_the_deployment():
    deployment = Limits.parse("k=50,budget_ms=1000")
    caller = Caller(new_key(NOW, scopes=("read",), limits=Limits(k=100))[1], deployment)
    assert (caller.limits.k, caller.limits.budget_ms, str(caller.limits)) == (100, 1000, "budget_ms=1000,k=100")
    with pytest.raises(BadSpec, match=r"SONDAGE_LIMITS: kk: .*there are: requests_per_s, burst"):
        Limits.parse("kk=3", "SONDAGE_LIMITS")
    with pytest.raises(BadSpec, match="k: Input should be greater than or equal to 1"):
        Limits.parse("k=0")


def test_a_request_keeps_a_place_in_its_limits_when_the_keys_are_read_again():
    key, kept = new_key(NOW, scopes=("read",), limits=Limits(concurrent=1))
    keys = ring(kept)
    keys.find(key).begin("read", 0.0)
    keys.replace([kept])
    with pytest.raises(Limited):
        keys.find(key).begin("read", 0.0)


SEARCH = {"search": {"query": "x", "forms": {"text": {"pattern": "1234567"}}}}


@pytest.mark.parametrize(
    ("limits", "asked", "at"),
    [
        ("budget_ms=500", {"budget_ms": 501}, "budget_ms"),
        ("k=5", {"k": 6}, "k"),
        ("searches=2", {"combine": {"union": [SEARCH, SEARCH, SEARCH]}}, "combine"),
        ("rerank_depth=10", {"query": "x", "rerank": Rerank(model="a/b", depth=11)}, "rerank.depth"),
        ("rerank_depth=0", {"query": "x", "rerank": Rerank(model="a/b", depth=1)}, "rerank.depth"),
        ("form_chars=20", {"combine": {"union": [SEARCH, SEARCH, SEARCH]}}, "forms"),
        ("form_chars=8", {"forms": {"text": {"all": ["12345", {"pattern": "6789"}]}}}, "forms"),
    ],
)
def test_a_request_that_asks_for_more_than_its_key_may_is_refused_with_the_place(limits, asked, at):
    with pytest.raises(OverLimit) as refused:
        within(SearchRequest(corpus="a", **asked), Limits.parse(limits))
    assert refused.value.at == at
    generous = limits.partition("=")[0] + ("=21" if "form_chars" in limits else "=600" if "budget" in limits else "=16")
    assert within(SearchRequest(corpus="a", **asked), Limits.parse(generous)).corpus == "a"


def test_what_a_request_leaves_open_is_lowered_to_the_limits():
    asked = within(SearchRequest(corpus="a", query="x"), Limits(k=5, budget_ms=500))
    assert (asked.k, asked.budget_ms) == (5, 500)
    untouched = SearchRequest(corpus="a", query="x", k=3, budget_ms=100)
    assert within(untouched, Limits(k=5, budget_ms=500)) is untouched


# --- the file ----------------------------------------------------------------------------------------------------------------


def run(capsys, *words: object) -> tuple[int, str, str]:
    code = cli.main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def test_keys_are_added_listed_and_revoked(tmp_path, capsys):
    file = tmp_path / "secret" / "keys"
    code, out, err = run(capsys, "keys", "add", "the agent", "--file", file, "--scopes", "read,write", "--corpora", "tools,team-*",
                         "--expires", "90d", "--limits", "requests_per_s=5,k=50")  # fmt: skip
    key = out.strip()
    assert code == 0 and "shown this once" in err and key not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = ring(*read_keys(file)).find(key).key
    assert (kept.name, kept.scopes, kept.corpora, kept.limits) == (
        "the agent", ("read", "write"), ("tools", "team-*"), Limits(requests_per_s=5, k=50),
    )  # fmt: skip
    run(capsys, "keys", "add", "me", "--file", file)
    code, out, _ = run(capsys, "keys", "list", "--file", file)
    assert code == 0 and f"{kept.id}  the agent: read,write; tools,team-*; requests_per_s=5,k=50; made 20" in out and "; expires 20" in out
    code, out, _ = run(capsys, "keys", "list", "--file", file, "--json")
    assert next(sorted(each) for each in json.loads(out)) == ["corpora", "created", "expires", "id", "limits", "name", "scopes"]

    code, out, _ = run(capsys, "keys", "revoke", kept.id, "--file", file)
    assert code == 0 and "sondage deploy" in out
    with pytest.raises(Unauthorized, match="was revoked"):
        ring(*read_keys(file)).find(key)
    code, _, err = run(capsys, "keys", "revoke", "0badc0de", "--file", file)
    assert code == 2 and f"There are: {kept.id}, " in err
    assert len(read_keys(file)) == 2


def test_keys_in_the_clear_go_on_working_and_are_made_hashes_on_demand(tmp_path, capsys):
    file = tmp_path / "keys"
    old = "0123456789abcdef0123456789abcdef"
    file.write_text(f"# ours\n{old}\n")
    file.chmod(0o640)
    _, _, err = run(capsys, "keys", "add", "new", "--file", file)
    assert "1 keys stand there in the clear, and may do everything. Run `sondage keys hash`" in err
    assert ring(*read_keys(file)).find(old).sees_all
    code, out, _ = run(capsys, "keys", "hash", "--file", file)
    assert code == 0 and "1 keys are kept as hashes" in out and old not in file.read_text()
    assert file.read_text().startswith("# ours\n") and stat.S_IMODE(file.stat().st_mode) == 0o640
    assert ring(*read_keys(file)).find(old).scopes == {"read", "write", "admin"}
    file.write_text("short\n")
    code, _, err = run(capsys, "keys", "hash", "--file", file)
    assert code == 2 and "line 1: the key has 5 characters" in err and file.read_text() == "short\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--scopes", "read,root"], "scopes.1"),
        (["--scopes", ""], "scopes"),
        (["--corpora", "../x"], "corpora.0"),
        (["--expires", "soon"], "is no time"),
        (["--expires", "2020-01-01"], "is over"),
        (["--limits", "q=1"], "--limits: q"),
    ],
)
def test_a_key_that_makes_no_sense_is_not_made(tmp_path, capsys, words, says):
    code, out, err = run(capsys, "keys", "add", "x", "--file", tmp_path / "keys", *words)
    assert (code, out) == (2, "") and says in err and not (tmp_path / "keys").exists()


def test_a_line_that_cannot_be_read_is_named_and_not_shown(tmp_path):
    file = tmp_path / "keys"
    add_key(file, "x", "read", None, None, "", NOW)
    file.write_text(file.read_text().replace('"read"', '"secret-thing"') + "{broken-secret\n")
    with pytest.raises(BadSpec, match="line 1: scopes") as refused:
        read_keys(file)
    assert "secret" not in str(refused.value).replace(str(file), "")


def test_times_are_told_as_spans_or_dates():
    assert moment("12h", NOW) == NOW + timedelta(hours=12)
    assert moment("4w", NOW) == NOW + timedelta(days=28)
    assert moment("2027-01-31", NOW) == datetime(2027, 1, 31, tzinfo=UTC)


def test_a_server_follows_its_file_of_keys(tmp_path):
    file = tmp_path / "keys"
    first = add_key(file, "first", "read", None, None, "", NOW)
    settings = Settings.load({"SONDAGE_API_KEY_FILE": str(file)})
    keys = ring(*settings.keys())

    async def story() -> None:
        async with following(settings, keys, look_s=0.001):
            second = add_key(file, "second", "read", None, None, "", NOW)
            while len(keys._callers) < 2:
                await asyncio.sleep(0.001)
            assert keys.find(first).id != keys.find(second).id
            good = file.read_text()
            file.write_text("{broken\n")
            await asyncio.sleep(0.02)
            assert keys.find(second)  # the keys there were go on
            file.write_text(good.splitlines()[1] + "\n")
            while len(keys._callers) > 1:
                await asyncio.sleep(0.001)
            with pytest.raises(Unauthorized):
                keys.find(first)

    asyncio.run(asyncio.wait_for(story(), 20))


def test_settings_of_a_deployment_hold_no_key_in_the_clear():
    front = Settings.load({"SONDAGE_API_KEYS": "a-very-secret-key", "SONDAGE_LIMITS": "k=7"}, host="0.0.0.0").front_settings()
    assert front.limits.k == 7 and "a-very-secret-key" not in front.model_dump_json() + repr(front)
    with pytest.raises(BadSpec, match="TLS takes two files"):
        Settings.load({"SONDAGE_TLS_KEY": "x"}).front_settings()
    assert FrontSettings(tls_certificate="/a", tls_key="/b").url == "https://127.0.0.1:8765"
