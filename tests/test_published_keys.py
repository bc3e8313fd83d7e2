"""Keys that the coordinators of a cluster follow: published by hand, in the store, hashed; what was revoked opens nothing from then on."""

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime

import httpx
import pytest
from scripted_coordinator import Scripted, eventually, running

from jobs import cli
from jobs.deploy import parser
from jobs.keys import add_key, following, publish_first, publish_keys, revoke_key
from jobs.settings import Settings, read_keys
from serve import published_keys
from serve.keys import KeyRing, new_key
from serve.limits import Limits
from serve.problems import Unauthorized
from serve.published_keys import newest, publish
from shards.errors import AlreadyExists, BadSpec, Corrupt, StoreError
from shards.manifest import list_corpora
from shards.store import open_store

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.fixture
def settings(tmp_path) -> Settings:
    given = {"SONDAGE_API_KEY_FILE": str(tmp_path / "keys"), "SONDAGE_STORE": str(tmp_path / "store"), "SONDAGE_FOLLOW_KEYS": "1"}
    return Settings.load(given)


@pytest.fixture
def store(settings):
    return open_store(settings.store_url())


def added(settings: Settings, name: str) -> str:
    return add_key(settings.api_key_file, name, "read", None, None, "", NOW)


def key_id(key: str) -> str:
    return key.split("_")[1]


def opens(ring: KeyRing, key: str) -> bool:
    with suppress(Unauthorized):
        return bool(ring.find(key))
    return False


# --- publishing --------------------------------------------------------------------------------------------------------------


def test_what_is_published_is_hashes_and_no_corpus(settings, store):
    key = added(settings, "shop")
    assert newest(store) is None
    publish_keys(settings, NOW)
    record = newest(store)
    assert (record.number, [kept.name for kept in record.keys]) == (1, ["shop"])
    assert key.split("_", 2)[2].encode() not in store.read("_keys/00000001.json")
    assert list_corpora(store) == []


def test_what_was_revoked_stays_revoked_even_if_an_older_file_is_published(settings, store):
    first, second = added(settings, "first"), added(settings, "second")
    older = settings.api_key_file.read_text()
    revoke_key(settings.api_key_file, key_id(first), NOW)
    publish_keys(settings, NOW)
    settings.api_key_file.write_text(older)
    publish_keys(settings, NOW)
    revoked = {kept.id: kept.revoked is not None for kept in newest(store).keys}
    assert revoked == {key_id(first): True, key_id(second): False}
    settings.api_key_file.write_text("\n".join(line for line in older.splitlines() if key_id(second) in line))
    publish_keys(settings, NOW)
    assert {kept.id for kept in newest(store).keys} == {key_id(first), key_id(second)}


def test_deploying_publishes_only_where_nothing_is_published(settings, store):
    added(settings, "first")
    publish_first(settings)
    added(settings, "second")
    publish_first(settings)
    assert [kept.name for kept in newest(store).keys] == ["first"]
    front = settings.front_settings()
    assert front.follow_keys and [kept.name for kept in front.api_keys] == ["first"]  # not those of the file
    assert parser().parse_args(["--follow-keys"]).follow_keys is True and parser().parse_args([]).follow_keys is None


def test_without_a_file_and_without_a_record_there_is_nothing_to_follow(settings):
    nameless = settings.model_copy(update={"api_key_file": None})
    with pytest.raises(BadSpec, match="No file of keys is named, and none are published yet"):
        publish_first(nameless)


@pytest.mark.parametrize("clear", ["file", "environment"])
def test_keys_in_the_clear_are_not_published(settings, store, clear):
    added(settings, "shop")
    if clear == "file":
        with settings.api_key_file.open("a") as file:
            file.write("hunter2\n")
    else:
        settings = settings.model_copy(update={"api_keys": ("hunter2",)})
    with pytest.raises(BadSpec, match="their hashes could be guessed"):
        publish_keys(settings, NOW)
    assert newest(store) is None


def test_two_who_publish_at_once_do_not_overwrite_one_another(store, monkeypatch):
    publish(store, [new_key(NOW, scopes=("read",))[1]], NOW)
    before = newest(store)
    publish(store, [new_key(NOW, scopes=("read",))[1]], NOW)
    monkeypatch.setattr(published_keys, "newest", lambda _: before)
    with pytest.raises(AlreadyExists, match="publish again"):
        publish(store, [], NOW)


def test_old_records_are_swept_and_damaged_ones_are_named(store):
    for _ in range(published_keys.KEPT_RECORDS + 3):
        publish(store, [], NOW)
    assert len(store.list("_keys/")) == published_keys.KEPT_RECORDS
    store.create("_keys/00000099.json", b"{")
    with pytest.raises(Corrupt, match=r"_keys/00000099.json.*sondage keys publish"):
        newest(store)


def test_the_command_publishes_and_says_so(settings, capsys):
    key = added(settings, "shop")
    named = ["--file", str(settings.api_key_file), "--store", settings.store_url()]
    assert cli.main(["keys", "publish", *named]) == 0
    assert "1 keys are published" in capsys.readouterr().out
    assert cli.main(["keys", "revoke", key_id(key), "--file", str(settings.api_key_file)]) == 0
    assert "sondage keys publish" in capsys.readouterr().out


# --- following ---------------------------------------------------------------------------------------------------------------


def test_a_revoked_key_opens_nothing_soon_after_without_a_restart(settings):
    key, other = added(settings, "first"), added(settings, "second")
    publish_first(settings)
    ring = KeyRing(settings.keys(), Limits())
    with running(Scripted(), ring, beside=lambda _: following(settings, ring, look_s=0.01)) as url, httpx.Client(base_url=url) as http:

        def status(given: str) -> int:
            return http.get("/v1/status", headers={"x-api-key": given}).status_code

        assert (status(key), status(other)) == (200, 200)
        revoke_key(settings.api_key_file, key_id(key), NOW)
        publish_keys(settings, NOW)
        eventually(lambda: status(key) == 401)
        assert status(other) == 200


def follow(store, ring: KeyRing, story, look_s: float = 0.001) -> None:
    async def following_it() -> None:
        async with published_keys.following(store, ring, look_s):
            await story()

    asyncio.run(asyncio.wait_for(following_it(), 20))


def test_a_server_that_starts_has_what_was_published_and_not_what_it_was_deployed_with(settings, store):
    """Its key was revoked since; a coordinator that dies is started with the settings of the deployment."""
    key = added(settings, "first")
    deployed = settings.keys()
    revoke_key(settings.api_key_file, key_id(key), NOW)
    publish_keys(settings, NOW)
    ring = KeyRing(deployed, Limits())
    assert opens(ring, key)

    async def story() -> None:
        assert not opens(ring, key)

    follow(store, ring, story, look_s=60.0)


def test_while_no_keys_could_be_read_nobody_is_let_in_and_then_those_of_the_record_are(settings, store, caplog):
    key = added(settings, "first")
    ring = KeyRing(read_keys(settings.api_key_file), Limits())

    async def story() -> None:
        assert not opens(ring, key) and "nobody is let in" in caplog.text
        publish_keys(settings, NOW)
        while not opens(ring, key):
            await asyncio.sleep(0.001)

    with caplog.at_level(logging.WARNING):
        follow(store, ring, story)


def test_even_a_ring_without_keys_is_closed_to_all_once_it_follows(store):
    ring = KeyRing((), Limits())

    async def story() -> None:
        assert not ring.is_open and not opens(ring, "")

    follow(store, ring, story, look_s=60.0)


def test_a_store_that_is_away_changes_nothing(settings, store):
    key = added(settings, "first")
    publish_keys(settings, NOW)
    ring, looks = KeyRing((), Limits()), []

    class Away(type(store)):
        def list(self, prefix: str = ""):
            looks.append(prefix)
            if len(looks) > 2:
                raise StoreError("It is away.")
            return super().list(prefix)

    async def story() -> None:
        while len(looks) < 6:
            await asyncio.sleep(0.001)
        assert opens(ring, key)

    follow(Away(store.root), ring, story)
