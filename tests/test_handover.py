"""What searches encode of documents that answers show is found by whoever builds the space."""

import time

import numpy as np
import pytest
from test_on_the_fly import Corpus, loaded

from shards.encodings import PackedEncodings
from shards.handover import Handover
from shards.layer_queue import Order, give
from shards.segment import pack_entries
from shards.shard import Space, search
from shards.store import open_store
from shards.types import Budget
from shards.usage import Recorder

PREFIX = "encodings/id"


class Searched:
    """A search that found five documents without an index, of which two were shown."""

    def __init__(self, name: str):
        self.store = open_store(f"memory://{name}")
        self.corpus = Corpus()
        self.space = Space("s", "id", self.corpus.layer, built="used")
        self.rows = np.flatnonzero(~self.corpus.built)[:5]
        self.hashes = self.corpus.documents.hashes[self.rows]
        on_the_fly = loaded(self.corpus)
        search([self.corpus.shard(self.corpus.built)], self.corpus.plan(rows=self.rows), Budget(), on_the_fly)
        self.recorder = Recorder(lambda _: self.store)
        self.handover = Handover(lambda _: self.store, on_the_fly)

    def show(self, *of: int) -> None:
        self.recorder.used("c", 1, [(self.hashes[i].tobytes(), "a/b") for i in of])
        self.recorder.flush()

    def kept(self) -> list[bool]:
        return (~PackedEncodings(self.store, PREFIX).lacking(self.hashes)).tolist()


def test_a_builder_finds_what_a_search_encoded_of_documents_that_were_shown_and_nothing_else():
    one = Searched("handed")
    assert one.handover.now("c", [one.space]) == 0, "nothing was shown yet"
    one.show(1, 4)
    assert one.handover.now("c", [one.space]) == 2
    assert one.kept() == [False, True, False, False, True]
    n_encoded = len(one.corpus.layer.encoder.texts)
    wanted = np.isin(np.arange(len(one.corpus.documents)), one.rows[[1, 4]])
    one.corpus.layer.build(one.corpus.documents, pack_entries(()), wanted, PackedEncodings(one.store, PREFIX))
    assert len(one.corpus.layer.encoder.texts) == n_encoded, "all was found"
    assert one.handover.now("c", [one.space]) == 0, "handed over once"
    one.show(0)
    assert one.handover.now("c", [one.space]) == 1


@pytest.mark.parametrize("kind", ["evict", "usage"])
def test_what_was_evicted_since_it_was_shown_is_not_handed_over_nor_anything_where_use_is_not_counted(kind):
    one = Searched(kind)
    one.show(0, 1)
    order = Order(kind="evict", space="s", at=time.time() + 1) if kind == "evict" else Order(kind="usage", on=False)
    give(one.store, order)
    assert one.handover.now("c", [one.space]) == 0
    assert one.kept() == [False] * 5


def test_what_is_no_longer_kept_in_memory_is_not_handed_over():
    one = Searched("full")
    one.show(0, 1, 2, 3, 4)
    kept = one.handover._on_the_fly._kept
    kept._most = 0
    kept.put("another", {b"x" * 20: np.zeros((1, 4), np.float32)})
    assert one.handover.now("c", [one.space]) == 0
