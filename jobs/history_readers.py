"""Readers of a random history: one that opens each generation, and a coordinator that is asked while the corpus changes."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cluster.settings import HostSettings
from jobs.history_checks import CORPUS, Bench, entries_of
from jobs.history_model import WORDS
from jobs.history_pushes import PushedLog
from serve.coordinator import Coordinator
from serve.local import local_coordinator
from serve.schema import SearchRequest
from shards.errors import NotFound, StoreError

POLL_S = 0.02  # between looks for a new generation: many are met in a short history
PAUSE_S = 0.005  # between questions, so that those who write get on


@contextmanager
def watching(bench: Bench, log: PushedLog, options: Mapping[str, Any]) -> Iterator[Counter[str]]:
    """Two readers at work all the while, in a thread. Gives what they have seen, counted, when they are done; raises what they found wrong.

    options: of the store, for a host that opens it by its URL.
    """
    seen, wrong, over = Counter[str](), [], threading.Event()

    def watch() -> None:
        try:
            asyncio.run(_watch(bench, log, options, seen, over))
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
    if wrong:
        raise wrong[0]


async def _watch(bench: Bench, log: PushedLog, options: Mapping[str, Any], seen: Counter[str], over: threading.Event) -> None:
    host = HostSettings(
        store_url=log.store.url, store_options=dict(options), cache_dir=bench.folder / "host", cache_bytes=1 << 30, threads=1
    )  # fmt: skip
    rng, newest = random.Random(1), 0
    async with local_coordinator(host, POLL_S) as coordinator:
        while not over.is_set():
            try:
                number = await asyncio.to_thread(bench.look, log)
                assert number >= newest, f"generation {number} is the newest after {newest} was"
                newest = number
                seen["looks"] += 1
                seen["answers"] += await _ask(bench, log, coordinator, rng.choice(WORDS))
            except StoreError:  # the server fails them, too
                continue
            await asyncio.sleep(PAUSE_S)


async def _ask(bench: Bench, log: PushedLog, coordinator: Coordinator, word: str) -> bool:
    """Ask for a word: the answer tells all documents of its generation that hold it, and where each lies. False if there is none yet.

    An answer that says that it is not complete is taken at its word.
    """
    request = SearchRequest(corpus=CORPUS, query=word, layers=["bm25"], k=100, keep_all=True, budget_ms=60_000, freshness="trust")
    try:
        answer = await coordinator.search(request)
    except NotFound:
        return False
    if not answer.complete:
        return False
    generation = await asyncio.to_thread(bench.opened, log.store, answer.generation)
    await asyncio.to_thread(log.follow)
    expected = Counter(entry.hash.hex() for entry in entries_of(generation) if word.encode() in log.model.texts[entry.hash])
    found = {hit.hash: hit.n_entries for hit in answer.hits}
    assert found == expected, f"generation {answer.generation} was asked for {word!r} and answered {found}, not {dict(expected)}"
    return True
