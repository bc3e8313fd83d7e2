"""Run conformance cases of NLQL: `python jobs/conform.py --corpus FILE --cases FILE [--shards N] [--http]`.

Each case is asked of the engine in this process, or with --http of a real server that serves what an engine has written. What
judges an answer (compare.py) and what the cases embed, rerank and call (embedding.py) is taken from beside the cases. Failing cases are
printed with their reason; the last line is `N passed, N failed`, and the exit code 1 where any failed. Queries are plain NLQL: what
Sondage adds to the language is refused (`strict`), as the cases want it.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

if not __package__:  # run as a file: the project's root is where the packages are
    sys.path[:1] = [str(Path(__file__).resolve().parent.parent)]

from shards.errors import SondageError
from shards.nlql.errors import NLQLError
from shards.plugins import PROCESS, Plugins

if TYPE_CHECKING:
    from serve.client.corpus import CorpusEngine
    from serve.client.http import Client

EMBEDDER, RERANKER = "conformance", "overlap"  # names that the test functions' module gives nothing to, and that cases name
PATIENCE_S = 60.0  # of a query over HTTP and of the server's start


class BadCases(SondageError):
    """The files are not those of a conformance set."""


@dataclass(slots=True)
class Overlap:
    """The cases' reranker, which notes what it was handed."""

    score: Any
    saw: int | None = None
    question: str | None = None

    def rerank(self, question: str, rows: Sequence[Any]) -> list[Any]:
        self.saw, self.question = len(rows), question
        for row in rows:
            row.scores["rerank"] = self.score(question, row.content)
        return sorted(rows, key=lambda row: -row.scores["rerank"])

    def forget(self) -> None:
        self.saw = self.question = None


class HashEmbedder:
    """The cases' embedding as an embedder. module: embedding.py."""

    def __init__(self, module: ModuleType):
        self._module = module
        self.model_id, self.dim = EMBEDDER, int(module.DIM)

    def embed(self, texts: Sequence[str]) -> Any:
        return self._module.embed_many(texts)


class Asked(Protocol):
    """Who is asked a case."""

    overlap: Overlap

    def ask(self, query: Any, settings: Mapping[str, Any], call: Mapping[str, Any]) -> Sequence[Any]:
        """Rows. settings: the case's engine; call: its limit, reranker and rerank_query."""

    def explain(self, query: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The plan."""


@dataclass
class InProcess:
    """An engine for each kind of settings, made when it is first needed: rows are values of one query, so that no case can tell."""

    documents: Sequence[Mapping[str, Any]]
    module: ModuleType
    n_shards: int
    stack: ExitStack
    overlap: Overlap
    _engines: dict[str, "CorpusEngine"] = field(default_factory=dict)

    def ask(self, query: Any, settings: Mapping[str, Any], call: Mapping[str, Any]) -> Sequence[Any]:
        reranker = self.overlap if call.get("reranker") == RERANKER else None
        return self._engine(settings).search(  # type: ignore[return-value]
            query, limit=call.get("limit"), reranker=reranker, rerank_query=call.get("rerank_query"), strict=True
        )

    def explain(self, query: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        return self._engine(settings).explain(query, strict=True)

    def _engine(self, settings: Mapping[str, Any]) -> "CorpusEngine":
        key = json.dumps(settings, sort_keys=True)
        if key not in self._engines:
            engine = filled(self.module, self.documents, settings, shards=self.n_shards, reranker=self._reranker(settings))
            self._engines[key] = self.stack.enter_context(engine)
        return self._engines[key]

    def _reranker(self, settings: Mapping[str, Any]) -> Overlap | None:
        return self.overlap if settings.get("reranker") == RERANKER else None


def filled(module: ModuleType, documents: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], **about: Any) -> "CorpusEngine":
    """An engine as a case's settings say, with the documents in it."""
    from serve.client.corpus import CorpusEngine

    engine = CorpusEngine(
        HashEmbedder(module),
        granularity=settings["granularity"],
        field_types=settings.get("field_types"),
        rerank_factor=settings.get("rerank_factor", 5),
        **about,
    )
    for name in settings.get("functions", ()):
        engine.register_function(name, module.FUNCTIONS[name])
    try:
        engine.add_documents(documents)
        engine.flush()
    except BaseException:
        engine.discard()
        engine.close()
        raise
    return engine


@dataclass
class OverHttp:
    """A server over a store with a corpus for each granularity, which an engine wrote."""

    documents: Sequence[Mapping[str, Any]]
    module: ModuleType
    n_shards: int
    store: str
    client: "Client"
    overlap: Overlap
    _made: set[str] = field(default_factory=set)

    def ask(self, query: Any, settings: Mapping[str, Any], call: Mapping[str, Any]) -> Sequence[Any]:
        return self._query(query, settings, call).rows

    def explain(self, query: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        return self._query(query, settings, {}, explain=True).plan

    def _query(self, query: Any, settings: Mapping[str, Any], call: Mapping[str, Any], **more: Any) -> Any:
        fields = {
            "field_types": settings.get("field_types", {}),
            "reranker": call.get("reranker", settings.get("reranker")),
            "rerank_factor": settings.get("rerank_factor"),
            "limit": call.get("limit"),
            "rerank_query": call.get("rerank_query"),
            "strict": True,
        }
        return self.client.query(query, self._corpus(settings["granularity"]), budget_ms=int(1e3 * PATIENCE_S), **fields, **more)

    def _corpus(self, granularity: str) -> str:
        if granularity not in self._made:
            settings = {"granularity": granularity}
            filled(self.module, self.documents, settings, shards=self.n_shards, store=self.store, corpus=granularity).close()
            self._made.add(granularity)
        return granularity


@contextmanager
def serving(store: str, plugins: Plugins) -> Iterator["Client"]:
    """A client of a server of this process over a store, on a port of its own."""
    import socket

    import uvicorn

    from cluster.settings import HostSettings
    from serve.client.http import Client
    from serve.http import create_app
    from serve.local import local_coordinator

    settings = HostSettings(store_url=store, cache_dir=Path(store) / "cache")
    config = uvicorn.Config(create_app(local_coordinator(settings, plugins=plugins)), log_level="warning")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="conformance-server")
        thread.start()
        try:
            with Client(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


def registered(module: ModuleType, overlap: Overlap) -> Plugins:
    """What a plugin for these cases registers."""
    plugins = Plugins(PROCESS)
    for name, call in module.FUNCTIONS.items():
        plugins.add_function(name, call)
    plugins.add_embedder(EMBEDDER, HashEmbedder(module))
    plugins.reranker(RERANKER)(overlap)
    return plugins


@contextmanager
def answering(http: bool, documents: Sequence[Mapping[str, Any]], module: ModuleType, n_shards: int) -> Iterator[Asked]:
    """Who is to be asked."""
    overlap = Overlap(module.overlap_score)
    with ExitStack() as stack:
        if not http:
            yield InProcess(documents, module, n_shards, stack, overlap)
            return
        store = stack.enter_context(tempfile.TemporaryDirectory(prefix="sondage-conform-"))
        client = stack.enter_context(serving(store, registered(module, overlap)))
        yield OverHttp(documents, module, n_shards, store, client, overlap)


def outcome(asked: Asked, case: Mapping[str, Any]) -> dict[str, Any]:
    """What became of a case, as compare.py takes it."""
    settings, call, query = case["engine"], case.get("call") or {}, case.get("query", case.get("ir"))
    if case["op"] == "parse":
        from serve.nlql.json_ir import query_to_dict
        from serve.nlql.parser import parse

        return _or_error(lambda: {"ir": query_to_dict(parse(query, strict=True))})
    if case["op"] == "explain":
        return _or_error(lambda: {"plan": asked.explain(query, settings)})
    for before in case.get("before") or ():
        earlier = {"query": before} if isinstance(before, str) else before
        _or_error(lambda earlier=earlier: {"rows": asked.ask(earlier["query"], settings, earlier)})
    asked.overlap.forget()
    found = _or_error(lambda: {"rows": [row_of(row) for row in asked.ask(query, settings, call)]})
    return found | {"reranker_saw": asked.overlap.saw, "reranker_query": asked.overlap.question}


def row_of(row: Any) -> dict[str, Any]:
    """A row as compare.py takes it."""
    told = {name: getattr(row, name) for name in ("doc_id", "kind", "ordinal", "content", "metadata")}
    return told | {"scores": dict(row.scores)} | ({} if row.span is None else {"span": list(row.span)})


def _or_error(work: Any) -> dict[str, Any]:
    try:
        return work()
    except NLQLError as error:
        return {"error": {"category": error.category, "line": error.line, "column": error.column, "message": str(error)}}
    except Exception as error:  # outside of the family: a defect, which the case is to show
        return {"error": {"category": f"uncaught:{type(error).__name__}", "line": None, "column": None, "message": str(error)}}


def judged(case: Mapping[str, Any], actual: Mapping[str, Any], compare: Any, mode: str) -> tuple[str, str]:
    """The verdict of compare.py; of rerank cases, what the reranker was handed and asked counts, too.

    As documented it is handed LIMIT x rerank_factor rows; the peer, every row where anything but one score orders them (B3), and fewer
    documents, since it counts units (B1).
    """
    verdict, reason = compare(case, actual, mode)
    expected = case["expect"]
    if verdict != "pass" or "reranker_saw" not in expected or (case.get("peer_bug") and mode == "documented"):
        return verdict, reason
    want, got = ({name: told.get(name) for name in ("reranker_saw", "reranker_query")} for told in (expected, actual))
    if mode == "documented" and want["reranker_saw"] is not None:
        want["reranker_saw"] = _handed_over(case)
    return (verdict, reason) if want == got else ("fail", f"want {want} got {got}")


def _handed_over(case: Mapping[str, Any]) -> int:
    """How many rows a case's reranker is handed, as documented."""
    from serve.nlql.json_ir import query_from_dict
    from serve.nlql.parser import parse

    query = parse(case["query"]) if "query" in case else query_from_dict(case["ir"])
    limit = (case.get("call") or {}).get("limit", query.limit)
    total = int(case["expect"]["total_without_limit"])
    return total if limit is None else min(limit * case["engine"].get("rerank_factor", 5), total)


def run(asked: Asked, cases: Sequence[Mapping[str, Any]], compare: Any, mode: str = "documented") -> Iterator[tuple[str, str, str]]:
    """(id, pass, fail or skip, reason) of every case."""
    for case in cases:
        verdict, reason = judged(case, outcome(asked, case), compare, mode)
        yield case["id"], verdict, reason


def beside(cases: Path, name: str) -> ModuleType:
    """A module that lies beside the cases. Raises BadCases."""
    where = cases.resolve().parent / name
    if not where.is_file():
        raise BadCases(f"There is no {name} beside {cases}. Keep the files of a conformance set together.")
    spec = importlib.util.spec_from_file_location(f"conformance_{where.stem}", where)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(path: Path, key: str) -> list[dict[str, Any]]:
    """The list under a key of a JSON file. Raises BadCases."""
    try:
        value = json.loads(path.read_bytes())
        return value if isinstance(value, list) else value[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadCases(f"{path} is no file of a conformance set: {type(error).__name__}: {error}.") from None


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="conform.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--corpus", type=Path, required=True, metavar="FILE", help="documents, in the order in which they are added")
    p.add_argument("--cases", type=Path, required=True, metavar="FILE", action="append", help="cases (repeatable)")
    p.add_argument("--shards", type=int, default=1, metavar="N", help="shards of the corpus (default: 1)")
    p.add_argument("--http", action="store_true", help="ask a server")
    p.add_argument(
        "--mode", choices=("documented", "peer"), default="documented", help="where the peer has a defect: what it documents, or does"
    )
    p.add_argument("--only", metavar="TEXT", help="cases whose id has this in it")
    return p


def main(argv: list[str] | None = None) -> int:
    """The command. Returns the exit code: 0 all passed, 1 some failed, 2 error."""
    args = parser().parse_args(argv)
    counts = {"pass": 0, "fail": 0, "skip": 0}
    try:
        documents = read(args.corpus, "documents")
        module = beside(args.cases[0], "embedding.py")
        compare = beside(args.cases[0], "compare.py").compare
        cases = [case for path in args.cases for case in read(path, "cases") if not args.only or args.only in case["id"]]
        queries = {case["id"]: case.get("query") or json.dumps(case.get("ir")) for case in cases}
        with answering(args.http, documents, module, args.shards) as asked:
            for name, verdict, reason in run(asked, cases, compare, args.mode):
                counts[verdict] += 1
                if verdict != "pass":
                    print(f"{verdict.upper()} {name}: {reason}\n    {queries[name]}", flush=True)
    except SondageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{counts['pass']} passed, {counts['fail']} failed")
    return 1 if counts["fail"] else 0


if __name__ == "__main__":
    sys.exit(main())
