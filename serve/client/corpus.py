"""A corpus of one's own in this process: `sondage.Engine(embedder, …)`, without a server, on the code that shards run everywhere."""

import os
import shutil
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cluster.settings import HostSettings
from serve.schema import SearchAnswer, SearchRequest
from shards import plugins as registry
from shards.errors import BadQuery, BadSpec
from shards.memory import uncollected
from shards.plugins import PROCESS, Plugins

from .documents import SPACE, Document, Documents
from .engine import Engine
from .filling import FLUSH_DOCUMENTS, Filling, Spaces

if TYPE_CHECKING:
    from serve.nlql.execute import Outcome

LOOK_S = 0.5  # between looks for what others wrote to the store
BUDGET_MS = 60_000  # nobody else waits for this process's time
PORTION = 500  # documents that are added between two garbage collections


class CorpusEngine(Engine):
    """One corpus that this process fills and asks in NLQL. Safe for several threads. Close it, or use `with`.

    embedder: has model_id, dim and embed(texts), see `shards.plugins.Embedder`; vectors are made of unit length. store: a folder,
    s3://bucket/prefix or memory://name that keeps the corpus, to be opened again or served as it is; None: a temporary folder that goes
    with the engine. granularity: what is embedded: "chunk" (the default), "sentence", or the name of a splitter. field_types: types of
    metadata by dotted path, {"released.on": "date"}. reranker: has rerank(question, rows), or is a function of these; it gets the
    `rerank_factor` x LIMIT best rows. named_embedders: of vectors that SIMILARITY(vec.NAME, …) asks. normalizer: what is made of a text
    before it is stored. layers: further spaces, as `sondage index --layer` takes them: `["bm25"]` for BM25(content, "…"). shards: of a
    new corpus, for a cluster that is to serve it. options: of an S3 store, `shards.store_s3.S3Options`.

    What is added waits in memory until a search, `flush`, `close`, or until it is much. It is durable when these return.
    """

    def __init__(
        self,
        embedder: Any,
        *,
        store: str | os.PathLike[str] | None = None,
        corpus: str = "default",
        granularity: str | None = None,
        field_types: Mapping[str, str] | None = None,
        reranker: Any = None,
        rerank_factor: int = 5,
        named_embedders: Mapping[str, Any] | None = None,
        normalizer: Callable[[str], str] | None = None,
        layers: Sequence[str] = (),
        shards: int = 1,
        options: Mapping[str, Any] | None = None,
        cache: str | os.PathLike[str] | None = None,
        threads: int = 2,
    ):
        """Raises RegistryError for an embedder that lacks something, BadSpec for a store whose corpus was made with another."""
        self.corpus, self.field_types, self.rerank_factor = corpus, dict(field_types or {}), rerank_factor
        self.plugins = Plugins(PROCESS)
        self._embedder = registry.checked("of this engine", embedder)
        named = {name: registry.checked(name, made) for name, made in (named_embedders or {}).items()}
        if taken := {SPACE, "default", embedder.model_id} & set(named):
            raise BadSpec(f"A named embedder cannot be called {taken.pop()!r}, which stands for the text's own vectors. Name it otherwise.")
        self.plugins.add_embedder(embedder.model_id, embedder)
        for name, made in named.items():
            self.plugins.add_embedder(name, made, overwrite=True)
        if reranker is not None:
            self.plugins.reranker("engine")(reranker)
        self._reranker = "engine" if reranker is not None else None
        self._temporary, self._has_layers = store is None, bool(layers)
        folder = tempfile.mkdtemp(prefix="sondage-") if store is None else None
        self._remove = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True) if folder else None
        own = Path(cache).expanduser() if cache is not None else Path(folder or "~/.cache/sondage").expanduser()
        self._making = Documents(embedder, named, normalizer)
        self._filling: Filling | None = None
        self._looked_at = 0.0
        settings = HostSettings(
            store_url=f"{folder}/store" if folder else os.fspath(store or ""),
            store_options={"sync": False} if folder else dict(options or {}),
            cache_dir=own / "files",
            models_dir=Path("~/.cache/sondage/models").expanduser(),
            threads=threads,
        )
        # Nothing is looked for in between: a search sees what is flushed before it.
        self._begin(settings, poll_s=1e9, plugins=self.plugins)
        try:
            self._making.warm()
            spaces = Spaces(embedder, named, granularity, tuple(layers))
            self._filling = Filling(self._coordinator.generations, corpus, spaces, shards, self._making, self._move)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __len__(self) -> int:
        """Documents, those that wait included."""
        self.flush()
        return self._wait(self._coordinator.generations.get(self.corpus)).root.n_entries

    @property
    def granularity(self) -> str:
        """What is embedded."""
        return self._fill.granularity

    @property
    def _fill(self) -> Filling:
        assert self._filling is not None  # but in __init__
        return self._filling

    # --- adding ------------------------------------------------------------------------------------------------------------------

    def add_text(
        self, text: str, *, id: str | None = None, metadata: Mapping[str, Any] | None = None, source: str | None = None, vectors: Any = None
    ) -> str:
        """A text under an id, or one that is made; returns the id. What was under it before is replaced, wholly.

        source: where it comes from, kept as metadata. vectors: see `Document`.
        """
        key = uuid.uuid4().hex if id is None else id
        self.add(Document(key, text, dict(metadata or {}), source, vectors))
        return key

    def add(self, document: "Document | Mapping[str, Any] | Sequence[Any]") -> str:
        """One document, as `add_documents` takes many; returns its id."""
        return self.add_documents([document])[0]

    def add_documents(self, documents: Iterable["Document | Mapping[str, Any] | Sequence[Any]"], batch: int = FLUSH_DOCUMENTS) -> list[str]:
        """Many documents: `Document`s, mappings with their fields, or (id, text) or (id, text, metadata); returns their ids.

        Written when `batch` of them wait, or when they take much memory.
        """
        ids: list[str] = []
        given = iter(documents)
        while True:
            portion: list[Any] = []
            try:
                portion += islice(given, PORTION)  # where this fails, what came before stands in it
            finally:
                with uncollected():
                    for document in portion:
                        operation, units = self._making.of(document)
                        self._fill.add(operation, units, batch)
                        ids.append(operation.path)
            if not portion:
                return ids

    def add_file(self, path: str | os.PathLike[str], *, id: str | None = None, metadata: Mapping[str, Any] | None = None) -> str:
        """A file of text or of any format that is read here (PDF, Office, HTML, …), under its path as it is given; returns the id.

        Raises SourceError where it cannot be read, BadQuery where nothing in it is text.
        """
        operation = self._making.file(path, id, metadata)
        self._fill.add(operation)
        return operation.path

    def add_files(self, paths: Iterable[str | os.PathLike[str]], *, metadata: Mapping[str, Any] | None = None) -> list[str]:
        """Several files; returns their ids."""
        return [self.add_file(path, metadata=metadata) for path in paths]

    def add_image(
        self,
        image: bytes | str | os.PathLike[str],
        *,
        id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        source: str | None = None,
    ) -> str:
        """An image, as bytes or a file, embedded by the embedder's `embed_images` beside texts; returns its id.

        Its row's content are the words that the file brings along, else its name or id. Raises BadQuery for what is no image.
        """
        operation, vector = self._making.image(image, id, metadata, source)
        self._fill.add(operation, vector)
        return operation.path

    def add_multivector(
        self, id: str, *, content: str, named: Mapping[str, str | bytes | Any], metadata: Mapping[str, Any] | None = None
    ) -> str:
        """A text with vectors of other views of it, which SIMILARITY(vec.NAME, …) asks; returns the id.

        named: by the name of a named embedder: a text or the bytes of an image for it to embed, or a vector.
        """
        operation, units = self._making.of(Document(id, content, dict(metadata or {}), None, None, named))
        self._fill.add(operation, units)
        return id

    def delete(self, id: str) -> None:  # type: ignore[override]
        """Take a document away. That there is none is no error."""
        self._fill.add(self._making.removal(id))

    def flush(self) -> None:
        """Write what waits: durable, and searchable, when it returns. Raises EmbeddingError, StoreError; then it waits on."""
        self._fill.flush()

    def discard(self) -> int:
        """Forget what waits, such as a document that the embedder fails on; returns how many documents that were."""
        return self._fill.discard()

    def settle(self) -> None:
        """Join segments, and fit the null models that evidence of searches (and EVIDENCE in queries) rests on."""
        self._fill.settle()

    def close(self) -> None:
        """Write what waits and stop; a temporary store is gone. Where layers were asked for, null models are fitted before."""
        if self._loop.is_closed():
            return
        try:
            if self._filling is not None and not self._temporary:
                self.settle() if self._has_layers else self.flush()
        finally:
            if self._filling is not None:
                self._filling.close()
            self._making.close()
            super().close()
            if self._remove is not None:
                self._remove()

    # --- asking ------------------------------------------------------------------------------------------------------------------

    def search(  # type: ignore[override]
        self,
        query: Any,
        *,
        limit: int | None = None,
        reranker: Any = None,
        rerank_query: str | None = None,
        params: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> "Sequence[Any] | SearchAnswer":
        """The rows of a query in NLQL: text, a tree (`ir.Query` or JSON), or what a builder has made.

        Rows are values of this query: nothing changes them later. reranker: an object, a registered name, or False for none. params: of
        :names. fields: others of `serve.nlql.schema.QueryRequest`. A `SearchRequest` is searched for by evidence, as `Client.search`.
        """
        if isinstance(query, SearchRequest):
            self._catch_up()
            return super().search(query.model_copy(update={"corpus": self.corpus}))
        return self._run(query, limit, reranker, rerank_query, params, fields).rows

    def query(self, text: Any, corpus: str = "", **fields: Any) -> Any:
        """As `Client.query`, of this engine's corpus."""
        self._catch_up()
        return super().query(text, corpus or self.corpus, **fields)

    def search_ir(self, ir: Mapping[str, Any], *, limit: int | None = None, **asked: Any) -> "Sequence[Any]":
        """As `search`, of a tree in JSON, such as a model writes it by `function_tool`."""
        return self.search(dict(ir), limit=limit, **asked)  # type: ignore[return-value]

    def explain(self, query: Any, **asked: Any) -> dict[str, Any]:
        """The plan of a query; nothing is run."""
        asked = {"limit": None, "reranker": None, "rerank_query": None, "params": None} | asked
        named = {name: asked.pop(name) for name in ("limit", "reranker", "rerank_query", "params")}
        plan = self._run(query, named["limit"], named["reranker"], named["rerank_query"], named["params"], asked | {"explain": True}).plan
        assert plan is not None
        return plan

    def status(self) -> dict[str, Any]:
        """What there is: corpus, generation, documents (and how many wait), units, spaces, the store."""
        self._catch_up()
        generation = self._wait(self._coordinator.generations.get(self.corpus))
        root = generation.root
        return {
            "corpus": self.corpus,
            "store": self._settings.store_url,
            "generation": root.generation,
            "documents": root.n_entries,
            "units": generation.statistics(SPACE).n_units,
            "granularity": self.granularity,
            "embedder": {"model_id": self._embedder.model_id, "dim": self._embedder.dim},
            "spaces": {ref.name: ref.layer for ref in root.spaces},
            "metadata_left_out": dict(self._making.left_out),
        }

    # --- extending ---------------------------------------------------------------------------------------------------------------

    def register_function(self, name: str, call: Callable[..., Any] | None = None, **about: Any) -> Any:
        """A function of this engine's queries, as `shards.plugins.Plugins.function` takes it; a decorator where `call` is left out."""
        if call is None:
            return self.plugins.function(name, **about)
        self.plugins.add_function(name, call, **about)
        return call

    def register_type(
        self,
        name: str,
        parse: Callable[[str], Any] | None = None,
        *,
        compare: Callable[[Any, Any, str], bool] | None = None,
        overwrite: bool = False,
    ) -> Any:
        """A type that literals and `field_types` may name; a decorator where `parse` is left out."""
        if parse is None:
            return self.plugins.value_type(name, compare=compare, overwrite=overwrite)
        self.plugins.add_type(name, parse, compare, overwrite)
        return parse

    def register_splitter(self, name: str, cut: Callable[[str], Iterable[Any]] | None = None, *, overwrite: bool = False) -> Any:
        """A splitter for `granularity`, or in place of "sentence" or "chunk"; a decorator where `cut` is left out."""
        register = self.plugins.splitter(name, overwrite=overwrite)
        return register if cut is None else register(cut)

    def function_schema(self) -> dict[str, Any]:
        """The JSON Schema of a query's tree, with the functions there are."""
        from serve.nlql.function_schema import function_schema
        from shards.nlql import functions

        return function_schema(functions.names(self.plugins))

    def function_tool(self, name: str = "nlql_query") -> dict[str, Any]:
        """The same as a tool for language models, in OpenAI's form."""
        from serve.nlql.function_schema import function_tool
        from shards.nlql import functions

        return function_tool(name, functions.names(self.plugins))

    # --- within ------------------------------------------------------------------------------------------------------------------

    def _run(
        self,
        query: Any,
        limit: int | None,
        reranker: Any,
        rerank_query: str | None,
        params: Mapping[str, Any] | None,
        fields: dict[str, Any],
    ) -> "Outcome":
        from serve.nlql.execute import run
        from serve.problems import InvalidRequest

        self._catch_up()
        plugins = self.plugins
        name = self._reranker if reranker is None else reranker
        if name is not None and name is not False and not isinstance(name, str):
            plugins = Plugins(self.plugins)
            plugins.reranker("call")(name)
            name = "call"
        given = {
            "corpus": self.corpus,
            "limit": limit,
            "field_types": self.field_types,
            "reranker": name,
            "rerank_factor": self.rerank_factor,
            "rerank_query": rerank_query,
            "params": dict(params or {}),
            "budget_ms": BUDGET_MS,
        }
        try:
            request = _request(query, given | fields)
        except InvalidRequest as error:
            raise BadQuery(str(error), at=error.at) from None
        return self._wait(run(self._coordinator, request, plugins))

    def _catch_up(self) -> None:
        """What was added before is found, also what others added to a store."""
        if not self._fill.catch_up() and not self._temporary and time.monotonic() - self._looked_at > LOOK_S:
            self._move()

    def _move(self) -> None:
        self._looked_at = time.monotonic()
        self._wait(self._coordinator.generations.move(self.corpus))


def _request(query: Any, fields: Mapping[str, Any]) -> Any:
    """A query of any form as a request. Raises InvalidRequest, SchemaError."""
    from .asking import as_query

    return as_query(query, "", fields)
