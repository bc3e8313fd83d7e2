"""The real coordinator over what an experiment has made: other shards, other spaces, other null models, or spaces that are asked wrong.

It answers as an engine does (`jobs.evaluate.Asked`), in this process. Nothing of it is published: stores stay as they are, but for
copies that an experiment writes into.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from cluster.host import Opened
from cluster.protocol import EVERYWHERE, Spans
from serve.coordinator import Coordinator
from serve.generations import Generations
from shards.errors import BadSpec
from shards.generation import Generation
from shards.layers.contract import Layer, Request, Resources
from shards.on_the_fly import OnTheFly
from shards.plan import Plan, Predicate, SpaceQuery
from shards.shard import Shard, Space, search
from shards.types import EXCERPT_BYTES, Budget, Candidates, Detail, LinesAround

if TYPE_CHECKING:
    from jobs.settings import Settings
    from serve.anytime.learned import OfCorpus
    from serve.schema import SearchAnswer
    from shards.cache import FileCache
    from shards.documents import Documents
    from shards.store import Store
    from shards.types import Arrays


class Laboratory:
    """Searches of one opened generation, which has the spaces and null models that questions are prepared and judged by, over shards."""

    def __init__(self, generation: Generation, shards: Sequence[Shard], resources: Resources, on_the_fly: OnTheFly | None = None):
        self.generation, self.searcher = generation, OverShards(shards, on_the_fly)
        self._loop = asyncio.new_event_loop()
        self._coordinator = Coordinator(generation.store, self.searcher, resources, generation.cache)
        self._coordinator.generations = OneGeneration(generation, resources)

    def search(self, query: str, corpus: str = "", **fields: Any) -> "SearchAnswer":
        """As `Client.search`; there is but one corpus."""
        from serve.schema import SearchRequest

        corpus = self.generation.root.corpus
        return self._loop.run_until_complete(self._coordinator.search(SearchRequest(query=query, corpus=corpus, **fields)))

    @property
    def learned(self) -> "OfCorpus":
        """What searches have taught of what layers take and change."""
        return self._coordinator.learned.of(self.generation.root.corpus)

    def status(self) -> dict[str, Any]:
        """Nothing runs here that could be told of."""
        return {"corpora": {}, "hosts": []}

    def close(self) -> None:
        """Ends the event loop."""
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def __enter__(self) -> "Laboratory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OneGeneration(Generations):
    """Always the same one, whatever is asked for, and it is open."""

    def __init__(self, generation: Generation, resources: Resources):
        async def nothing(_: Generation) -> None:
            """Shards are open, and nobody waits."""

        async def warm(_: Generation) -> Opened:
            return Opened()

        super().__init__(generation.store, resources, generation.cache, 1.0, warm, nothing)
        self._current[generation.root.corpus] = generation

    async def get(self, corpus: str, number: int | None = None) -> Generation:
        return self._current[corpus]


class OverShards:
    """`cluster.protocol.Searcher` over opened shards, each searched by itself and sent by itself, as by hosts that hold one each.

    What was found last is found again without a search when the very same questions are asked of the same scope, for another coupling,
    say: searches are functions of these alone, unless documents are scored on the fly.
    """

    def __init__(self, shards: Sequence[Shard], on_the_fly: OnTheFly | None = None):
        self.shards, self._on_the_fly = list(shards), on_the_fly
        self._last: tuple[tuple[SpaceQuery, ...], Predicate, int, list[Candidates]] | None = None

    async def search(self, corpus: str, generation: int, n_shards: int, plan: Plan) -> list[Candidates]:
        if self._last is not None and self._on_the_fly is None:
            queries, where, n_candidates, found = self._last
            same = len(queries) == len(plan.queries) and all(map(_same_question, queries, plan.queries))
            if same and where == plan.where and n_candidates == plan.n_candidates:
                return found
        asked = replace(plan, n_details=0)
        found = [search([shard], asked, Budget(plan.budget_s), self._on_the_fly) for shard in self.shards]
        self._last = (plan.queries, plan.where, plan.n_candidates, found)
        return found

    @property
    def found(self) -> list[Candidates]:
        """What was sent last."""
        return self._last[3] if self._last is not None else []

    async def details(
        self,
        corpus: str,
        generation: int,
        n_shards: int,
        spans: Spans,
        words: tuple[str, ...] = (),
        excerpt_size: int | LinesAround = EXCERPT_BYTES,
        where: Predicate = EVERYWHERE,
        budget_s: float = 10.0,
        queries: Sequence[SpaceQuery] = (),
    ) -> dict[bytes, Detail]:
        found = {}
        for key, wanted in spans.items():
            for shard in self.shards:
                if (detail := shard.detail(key, wanted, words, excerpt_size, where, queries)) is not None:
                    found[key] = detail
                    break
        return found

    async def warm(self, corpus: str, generation: int, n_shards: int) -> Opened:
        return Opened()

    async def status(self) -> dict[str, Any]:
        return {"hosts": []}


def _same_question(a: SpaceQuery, b: SpaceQuery) -> bool:
    """By the identity of what was prepared: `Remembering` gives the same object for the same text."""
    return (a.space, a.asked, a.where) == (b.space, b.asked, b.where) and a.payload is b.payload


# --- layers of experiments --------------------------------------------------------------------------------------------------------


class Remembering:
    """A layer that prepares each question once, and builds what is not in any segment (texts that cloze probes hide a sentence of) once.
    In all else it is the layer itself."""

    def __init__(self, layer: Layer):
        self._layer = layer
        self._prepared: dict[tuple[str, bool, frozenset[str]], SpaceQuery | None] = {}
        self._built: dict[tuple[bytes, bytes, bytes], Arrays] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def prepare(self, request: Request, statistics: Any) -> SpaceQuery | None:
        if request.form:
            return self._layer.prepare(request, statistics)
        key = (request.text, request.explicit, frozenset(request.shapes))
        if key not in self._prepared:
            self._prepared[key] = self._layer.prepare(request, statistics)
        return self._prepared[key]

    def build(self, documents: "Documents", entries: Any, scope: Any = None, known: Any = None, progress: Any = None) -> "Arrays":
        if known is not None or len(entries):
            return self._layer.build(documents, entries, scope, known, progress)
        key = (documents.hashes.tobytes(), documents.text.tobytes(), b"" if scope is None else scope.tobytes())
        if key not in self._built:
            self._built[key] = self._layer.build(documents, entries, scope)
        return self._built[key]


class AskedOther:
    """A layer that some texts reach changed. other: the text that this space is asked in place of the one given."""

    def __init__(self, layer: Layer, other: Callable[[str], str]):
        self._layer, self._other = layer, other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def prepare(self, request: Request, statistics: Any) -> SpaceQuery | None:
        return self._layer.prepare(replace(request, text=self._other(request.text)), statistics)


def with_layers(generation: Generation, wrap: Callable[[Space], Any]) -> Generation:
    """The generation with its spaces' layers wrapped; shards that are open keep the layers that they were opened with."""
    spaces = {name: replace(space, layer=cast(Layer, wrap(space))) for name, space in generation.spaces.items()}
    return _varied(generation, generation.root, spaces)


def with_spaces(generation: Generation, names: Sequence[str]) -> Generation:
    """The generation as if it had these spaces alone."""
    root = generation.root.model_copy(update={"spaces": tuple(ref for ref in generation.root.spaces if ref.name in names)})
    return _varied(generation, root, {name: space for name, space in generation.spaces.items() if name in names})


def refitted(store: "Store", generation: Generation, resources: Resources, report: Callable[[str, int, int, str], None]) -> Generation:
    """The generation with null models fitted anew on its spaces. store: the root of a copy, into which they are written."""
    from serve.calibrate import Calibrator
    from shards.rewriting import fitted

    root = fitted(store, generation.cache, resources, generation.root, lambda _: Calibrator(report=report)(generation))
    return _varied(generation, root, generation.spaces)


def _varied(generation: Generation, root: Any, spaces: Mapping[str, Space]) -> Generation:
    """With another root and other spaces, over the same opened segments."""
    return Generation(root, generation.store, generation.cache, dict(spaces), generation.segments)


# --- stores -----------------------------------------------------------------------------------------------------------------------


@contextmanager
def copied(settings: "Settings", corpus: str) -> Iterator["Settings"]:
    """Settings whose store is a copy of one corpus, for as long as it lasts. Files are written once, so links do. Raises BadSpec for a
    store that is no folder."""
    url = settings.store_url()
    if "://" in url:
        raise BadSpec(f"Experiments change a copy of the index, for which it must lie in a folder, not in {url}. Give --store FOLDER.")
    with tempfile.TemporaryDirectory(prefix="sondage-experiment-", dir=_beside(Path(url))) as folder:
        shutil.copytree(Path(url) / corpus, Path(folder) / corpus, copy_function=_link)
        yield settings.model_copy(update={"store": folder})


def _beside(store: Path) -> Path | None:
    """A folder on the same file system as the store, where links can be made; None for the system's own."""
    return store.parent if os.access(store.parent, os.W_OK) else None


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


@contextmanager
def opened(settings: "Settings", corpus: str) -> Iterator[tuple["Store", "FileCache", Generation]]:
    """The newest generation of a corpus with its store and cache, its layers remembering what they were asked. Raises NotFound."""
    from shards.cache import FileCache
    from shards.store import open_store

    store = open_store(settings.store_url(), **settings.store_options())
    cache = FileCache(settings.host_settings().cache_dir, settings.cache_bytes)
    generation = Generation.open(store, cache, corpus, None, settings.resources())
    yield store, cache, with_layers(generation, lambda space: Remembering(space.layer))


def shards_of(generation: Generation) -> list[Shard]:
    """All shards of a generation, opened."""
    return [generation.shard(ref.shard) for ref in generation.root.shards]
