"""Opening corpora that a request names: which sources may be named, who carries the orders out, and how far they are.

Orders lie in the store (`shards/open_order.py`), so one that was taken is carried out, whoever dies: each server looks for those that
nobody is at. The work is done by a process beside the server.
"""

import asyncio
import logging
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from pydantic_core import to_json

from serve.bodies import decode, read_body, until_gone
from serve.corpora_schema import OpeningAnswer, OpenRequest
from serve.intake import model_of
from serve.models_named import check_layers
from serve.openapi import in_place
from serve.problems import Forbidden, Unsupported
from shards.errors import NoCorpus, SondageError, SourceError
from shards.layers import SpaceSpec
from shards.manifest import check_corpus, latest_generation
from shards.open_order import Opening, OpenOrder, look, place, under_way

if TYPE_CHECKING:
    from serve.generations import Generations
    from serve.guard import Guard
    from shards.store import Store

logger = logging.getLogger(__name__)

LOOK_S = 5.0  # between looks for orders that nobody is at: two listings for each corpus
FOLLOW_S = 0.1  # between looks at what those that are carried out here have published
AT_ONCE = 2  # processes; further orders wait
TRIES = 5  # of one order by this server, each a process that died or could not write; then the next server is waited for

Start = Callable[[str, str], "subprocess.Popen[bytes]"]  # corpus, source


class Openings:
    """Carries out orders to open corpora. Belongs to one event loop; use `async with`.

    generations: what is served, moved on at once. start: a process that carries out the order of a corpus's source, and outlives this one
    if need be. roots: sources that may be named, each with all below it; anywhere: whether any other may be, too, because nobody but this
    machine's user can ask. changed: orders for sources in which searches have met changes; called in a thread, every `LOOK_S`.
    """

    def __init__(
        self,
        store: "Store",
        generations: "Generations",
        start: Start,
        roots: Sequence[str] = (),
        anywhere: Callable[[], bool] = lambda: False,
        changed: Callable[["Store"], Sequence[tuple[str, OpenOrder]]] = lambda _: (),
    ):
        self.store, self.generations, self.start, self.roots, self.anywhere = store, generations, start, roots, anywhere
        self._changed = changed
        self._running: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        self._tries: dict[tuple[str, str], int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._rehearsal: asyncio.Task[None] | None = None
        self.problems: dict[str, str] = {}  # by corpus

    async def __aenter__(self) -> "Openings":
        self._tasks.add(asyncio.create_task(self._every(LOOK_S, self._look)))
        self._tasks.add(asyncio.create_task(self._every(FOLLOW_S, self._follow)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *filter(None, [self._rehearsal]), return_exceptions=True)
        for process in self._running.values():  # the order stays, and what was read is kept for whoever takes it up
            process.terminate()
        for process in self._running.values():
            await asyncio.to_thread(process.wait)

    async def open(self, asked: OpenRequest) -> OpeningAnswer:
        """Take an order, and begin. Raises BadSpec, Conflict, Forbidden, StoreError."""
        layers = asked.layers or ()
        for text in layers:
            SpaceSpec.parse(text)
        source = asked.source
        order = OpenOrder(url=self.allowed(source.root), source=source.name, include=source.include, exclude=source.exclude, layers=layers)
        await asyncio.to_thread(place, self.store, asked.corpus, order)
        self._tries.pop((asked.corpus, source.name), None)
        self._begin(asked.corpus, source.name)
        if self._rehearsal is None and not self.generations.current:  # else what searches need of code was loaded
            self._rehearsal = asyncio.create_task(asyncio.to_thread(self._rehearse))
        return await self.look(asked.corpus, source.name)

    def _rehearse(self) -> None:
        """Load what a first search takes, while the corpus is listed and read by others."""
        from shards.progressive import CHEAP
        from shards.rehearsal import ask, make

        ask(make(CHEAP, self.generations.resources))

    async def look(self, corpus: str, source: str) -> OpeningAnswer:
        """How far a source is. Raises NoCorpus for one that was never opened."""
        found = await asyncio.to_thread(look, self.store, check_corpus(corpus), source)
        if found is None:
            raise NoCorpus(f"Source {source!r} of corpus {corpus!r} was not opened here. Open it: POST /v1/corpora.", corpus=corpus)
        return told(corpus, source, found, time.time())

    def allowed(self, root: str) -> str:
        """The root, a local one resolved, if it may be opened. Raises Forbidden, which does not tell whether it is there."""
        place = _resolved(root)
        if self.anywhere():
            return place
        tops = [_resolved(known).rstrip("/") for known in self.roots]
        # `::` chains file systems: what begins like a root may end anywhere.
        if "::" not in place and ".." not in place.split("/") and any(place == top or place.startswith(top + "/") for top in tops):
            return place
        raise Forbidden(
            f"Source {root!r} may not be opened over HTTP on this server. It lets in what lies below its SONDAGE_OPEN_ROOTS; index others "
            "with `sondage index` or `sondage open --store` where the files are."
        )

    # --- carrying out ------------------------------------------------------------------------------------------------------

    def _begin(self, corpus: str, source: str) -> None:
        key = corpus, source
        if key not in self._running and len(self._running) < AT_ONCE and self._tries.get(key, 0) < TRIES:
            self._tries[key] = self._tries.get(key, 0) + 1
            self._running[key] = self.start(corpus, source)
            logger.info("corpus=%s source=%s event=opening process=%d", corpus, source, self._running[key].pid)

    async def _look(self) -> None:
        """Take up the orders that nobody is at; and place those for sources that searches saw change."""
        for corpus, order in await asyncio.to_thread(self._changed, self.store):
            await asyncio.to_thread(place, self.store, corpus, order)
            self._tries.pop((corpus, order.source), None)
        now = time.time()
        for corpus, order, opening in await asyncio.to_thread(self._orders):
            if not opening.is_carried_out(now):
                self._begin(corpus, order.source)

    def _orders(self) -> list[tuple[str, OpenOrder, Opening]]:
        names = [name for name in self.store.folders() if _is_corpus(name)]
        return [(corpus, *found) for corpus in names for found in under_way(self.store, corpus)]

    async def _follow(self) -> None:
        """Serve what was published, and see who has ended."""
        for key, process in list(self._running.items()):
            corpus, source = key
            newest = await asyncio.to_thread(latest_generation, self.store, corpus)
            served = self.generations.current.get(corpus)
            if newest is not None and (served is None or served.root.generation < newest):
                await self.generations.move(corpus)
            if process.poll() is None:
                continue
            del self._running[key]
            opening = await asyncio.to_thread(look, self.store, corpus, source)
            self.problems.pop(corpus, None)
            if opening is not None and opening.reason:
                self.problems[corpus] = opening.reason

    async def _every(self, seconds: float, act: Callable[[], Any]) -> None:
        while True:
            try:
                await act()
            except (SondageError, OSError) as error:  # the store may be back the next time
                logger.warning("event=opening_not_looked_at reason=%s", error)
            await asyncio.sleep(seconds)


def told(corpus: str, source: str, opening: Opening, now: float) -> OpeningAnswer:
    """How far an order is, for callers. now: seconds since 1970."""
    seconds = max(0.0, (opening.at if opening.is_over else now) - opening.begun)
    total = opening.held + opening.pending
    return OpeningAnswer(
        corpus=corpus,
        source=source,
        state=opening.stage,
        listed=opening.listed,
        held=opening.held,
        pending=opening.pending,
        coverage=opening.held / total if total and opening.generation else float(opening.stage == "done"),
        generation=opening.generation,
        seconds=round(seconds, 3),
        files_per_s=round(opening.held / seconds, 1) if seconds else 0.0,
        reason=opening.reason,
    )


def _resolved(root: str) -> str:
    """A folder of this machine without links, a URL as it is."""
    return root if "://" in root else os.path.realpath(os.path.expanduser(root))


def _is_corpus(name: str) -> bool:
    try:
        return bool(check_corpus(name))
    except SondageError:
        return False


def add_opening_routes(app: FastAPI, openings: "Callable[[], Openings | None]", guard: "Guard", **common: Any) -> None:
    """The routes, on an application. openings: who carries orders out, once the application has started; common: as for `app.post`."""

    def taking() -> Openings:
        if (there := openings()) is None:
            raise SourceError("This server opens no corpora. Ask one that was started by `sondage serve`, or run `sondage index`.")
        return there

    failures = common.pop("responses", {})
    answers = {"response_model": None, **common}

    @app.post(
        "/v1/corpora",
        status_code=202,
        responses={202: {"model": OpeningAnswer}, **failures},
        dependencies=[Depends(guard.needs("admin"))],
        openapi_extra={
            "requestBody": {"required": True, "content": {"application/json": {"schema": in_place(OpenRequest.model_json_schema())}}}
        },
        **answers,
    )
    async def open_corpus(request: Request) -> Response:
        """Open a corpus: read a source that the server can reach, and serve it while it is read. The same order twice is one."""
        # A browser sends this type to another origin only after asking, and nobody here says yes.
        if (kind := request.headers.get("content-type", "").partition(";")[0].strip().lower()) != "application/json":
            raise Unsupported(f"Content-Type is {kind or 'missing'}; an order comes as application/json.")
        asked = model_of(OpenRequest, decode(await read_body(request)))
        guard.sees(request, asked.corpus)
        check_layers(asked.layers or ())
        answer = await until_gone(request, taking().open(asked))
        return Response(to_json(answer.model_dump()), 202, media_type="application/json")

    @app.get(
        "/v1/corpora/{corpus}",
        responses={200: {"model": OpeningAnswer}, **failures},
        dependencies=[Depends(guard.needs("read"))],
        **answers,
    )
    async def opening(
        request: Request,
        corpus: Annotated[str, Path(min_length=1, max_length=128)],
        source: Annotated[str, Query(min_length=1, max_length=128)] = "main",
    ) -> Response:
        """How far the opening of a corpus is."""
        guard.sees(request, corpus)
        answer = await until_gone(request, taking().look(corpus, source))
        return Response(to_json(answer.model_dump()), media_type="application/json")
