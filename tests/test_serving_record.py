"""How a corpus is to be served: numbered records, of which the highest holds, and which one of several writers gets to write."""

import json
import threading
import uuid

import pytest
from pydantic import ValidationError

from shards import serving_record
from shards.errors import AlreadyExists, Corrupt, NotFound, StoreError
from shards.serving_record import KEPT_RECORDS, newest, read, succeed
from shards.store import Store, open_store


@pytest.fixture
def store() -> Store:
    return open_store(f"memory://{uuid.uuid4().hex}")


def test_without_a_record_the_deployment_decides(store):
    assert newest(store) is None


def test_the_newest_record_holds_and_says_who_wrote_it_when_and_why(store):
    succeed(store, 0, 1, by="ann", reason="asked for", clock=lambda: 0.0)
    written = succeed(store, 1, 2, (1, 4), by="ben", reason="hosts search 90% of the time", clock=lambda: 86_400.0)
    assert newest(store) == written
    assert (written.number, written.replicas, written.bounds, written.automatic) == (2, 2, (1, 4), True)
    assert (written.created, written.by, written.reason) == ("1970-01-02T00:00:00Z", "ben", "hosts search 90% of the time")
    assert read(store, 1).bounds == (1, 1) and not read(store, 1).automatic


def test_the_bytes_are_those_that_format_md_describes(store):
    succeed(store, 0, 2, (1, 4), by="a", reason="b", clock=lambda: 0.0)
    assert store.list("serving/") == ["serving/00000001.json"]
    assert store.read("serving/00000001.json") == (
        b'{"by":"a","created":"1970-01-01T00:00:00Z","format":1,"max_replicas":4,"min_replicas":1,"number":1,"reason":"b","replicas":2}'
    )


def test_of_two_who_decide_at_once_one_reads_what_the_other_decided(store):
    outcomes, gate = [], threading.Barrier(8)

    def decide(replicas: int) -> None:
        gate.wait()
        try:
            outcomes.append(succeed(store, 0, replicas))
        except AlreadyExists:
            outcomes.append(None)

    threads = [threading.Thread(target=decide, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (written,) = [outcome for outcome in outcomes if outcome is not None]
    assert newest(store) == written and len(outcomes) == 8


@pytest.mark.parametrize(("replicas", "bounds"), [(1, (2, 3)), (4, (2, 3)), (2, (3, 2)), (0, None)])
def test_replicas_outside_of_their_bounds_are_not_written(store, replicas, bounds):
    with pytest.raises(ValidationError):
        succeed(store, 0, replicas, bounds)
    assert newest(store) is None


def test_old_records_are_swept_and_their_numbers_not_given_again(store):
    for number in range(KEPT_RECORDS + 6):
        succeed(store, number, 1)
    assert len(store.list("serving/")) == KEPT_RECORDS
    with pytest.raises(AlreadyExists, match=r"Serving record 3 in store .* was written by somebody else"):
        succeed(store, 2, 9)  # by one who slept through all that
    assert newest(store).number == KEPT_RECORDS + 6 and len(store.list("serving/")) == KEPT_RECORDS
    with pytest.raises(NotFound):
        read(store, 3)


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        (b"no JSON", Corrupt, "is no serving record"),
        (b'{"format": 2}', StoreError, "has format 2; this build reads 1. Upgrade, or write another with `sondage scale`"),
        (b'{"format": 1, "number": 1}', Corrupt, "cannot be read: Field required"),
    ],
)
def test_a_record_that_cannot_be_read_says_so_and_how_to_get_rid_of_it(store, body, error, says):
    store.create("serving/00000001.json", body)
    with pytest.raises(error, match=says):
        newest(store)
    succeed(store, 1, 2)  # which is the remedy
    assert newest(store).replicas == 2


def test_names_that_are_no_records_are_not_counted(store):
    store.write("serving/notes.txt", b"")
    store.write("serving/1.json", json.dumps({"format": 1}).encode())
    assert serving_record.newest_number(store.list("serving/")) == 0
