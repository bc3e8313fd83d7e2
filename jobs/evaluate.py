"""Measure rankings against judgements: every layer, every coupling of layers, dials side by side, and runs of other systems.

The collection is a folder in BEIR layout (corpus.jsonl[.gz], queries.jsonl[.gz], qrels/SPLIT.tsv), or made of Python code
(--docstrings): it is indexed by the index job and searched by the engine that serves. Or queries and judgements in files, over a
corpus that is indexed already; or runs in files alone. Numbers follow trec_eval: nDCG@10 with linear gain, Recall@100, MAP, MRR,
over the judged queries.
"""

import argparse
import hashlib
import itertools
import json
import logging
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if not __package__:  # run as a file: the project's root is where the packages are
    sys.path[:1] = [str(Path(__file__).resolve().parent.parent)]

from jobs import datasets, docstrings, verdicts
from jobs.datasets import BadDataset, Judged
from jobs.metrics import METRICS, Comparison, Evaluation, Measured, Verdicts, compare, measure
from jobs.progress import Progress
from jobs.settings import Settings
from shards.errors import BadSpec, SondageError
from shards.layers import REGISTRY, SpaceSpec

if TYPE_CHECKING:
    from serve.schema import SearchAnswer

DEFAULT_LAYERS = "bm25,static"
N_NONSENSE = 100
BUDGET_MS = 60_000  # the most there is: an answer that was cut short is no measurement

# What a coupling of layers adds to a search over them; one entry per way in which layers can be brought together.
COUPLINGS: Mapping[str, Callable[[Sequence[str]], Mapping[str, Any]]] = {
    "evidence": lambda layers: {"layers": list(layers)},
}


class Asked(Protocol):
    """Who answers: `sondage.Engine` in this process, or `sondage.Client` of a server."""

    def search(self, query: str, corpus: str, **fields: Any) -> "SearchAnswer": ...
    def status(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="sondage evaluate",
        description=__doc__,
        epilog=f"Layers: {', '.join(sorted(REGISTRY))}, with dials as in `sondage index`.\n"
        "ms_p50 is the median wall time of answers with DEPTH hits and their excerpts. Verdicts are counted, but empty no ranking.\n"
        "Exit code: 0 done, 2 error.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = p.add_argument_group("what is judged")
    what.add_argument("--dataset", type=Path, metavar="DIR", help="a folder in BEIR layout")
    what.add_argument("--docstrings", nargs="?", type=Path, const=docstrings.standard_library(), metavar="DIR",
                      help="instead, the Python functions in DIR (default: the standard library), tests aside: the first sentence of "
                      f"a docstring is asked, {docstrings.MAX_QUERIES:,} at most, its function without it is to be found among "
                      f"{docstrings.MAX_DOCUMENTS:,} at most")  # fmt: skip
    what.add_argument("--split", default="test", help="which judgements: qrels/SPLIT.tsv (default: test)")
    what.add_argument("--queries", type=Path, metavar="FILE", help="BEIR's JSON lines, TREC topics, or lines id<TAB>text")
    what.add_argument("--qrels", type=Path, metavar="FILE", help="BEIR's three columns or TREC's four")
    what.add_argument("--limit", type=int, metavar="N", help="only the first N judged queries")
    what.add_argument("--nonsense", nargs="?", type=int, const=N_NONSENSE, metavar="N",
                      help="also count the verdicts on N random strings, N queries of the corpus's own words in random order, and "
                      f"N titles (default: {N_NONSENSE})")  # fmt: skip
    what.add_argument("--foreign", action="append", default=[], type=Path, metavar="DIR",
                      help="and on N queries of this other BEIR folder, which should find no answer here (repeatable)")  # fmt: skip
    where = p.add_argument_group("what is searched")
    where.add_argument("--store", help="where the index lies (default: with --dataset a folder in SONDAGE_CACHE, else SONDAGE_STORE)")
    where.add_argument("--corpus", help="name of the corpus (default: the collection's); without --dataset it is indexed already")
    where.add_argument("--http", metavar="URL", help="ask this server, which has the corpus, and index nothing")
    where.add_argument("--layers", help=f"comma-separated layer specs (default: {DEFAULT_LAYERS}, or all that the corpus has)")
    where.add_argument("--layer", action="append", default=[], metavar="SPEC", help="one more layer spec; may hold commas")
    where.add_argument("--couplings", default=",".join(COUPLINGS), help=f"of all layers: {', '.join(COUPLINGS)} (default: all)")
    where.add_argument("--shards", type=int, help="number of shards (default: 1, or as it is)")
    where.add_argument("--depth", type=int, default=100, help="hits per query (default: 100)")
    where.add_argument("--sweep", action="append", default=[], metavar="LAYER.DIAL=A,B,C",
                       help="index a layer once for each value: quality against bytes and time (repeatable)")  # fmt: skip
    p.add_argument("--compare", "--run", action="append", default=[], type=Path, metavar="FILE",
                   help="a TREC run, or the --json of an earlier evaluation, to be set beside the others (repeatable)")  # fmt: skip
    p.add_argument("--runs", type=Path, metavar="DIR", help="write each ranking there as a TREC run")
    p.add_argument("--json", type=Path, metavar="FILE", help="write all figures, also per query")
    p.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained page with plots")
    p.add_argument("--seed", type=int, default=0, help="of the randomisation tests (default: 0)")
    return p


@dataclass(frozen=True, slots=True)
class _Ranking:
    """A ranking that is to be asked for. fields: of its search requests. bytes: of its spaces; kind, parameter, value: see
    `Measured`."""

    name: str
    kind: str
    corpus: str
    fields: Mapping[str, Any]
    bytes: int
    parameter: str = ""
    value: str = ""


def evaluate(args: argparse.Namespace, settings: Settings, progress: Progress) -> Evaluation:
    """The whole evaluation. Raises SondageError."""
    if args.docstrings:
        args = argparse.Namespace(**vars(args) | {"dataset": _made_of_code(args, settings)})
    judged = _judged(args)
    given: list[Measured] = []
    for path in args.compare:  # first: a file that cannot be read is told at once
        given += _given(path, judged)
    searched: list[Measured] = []
    about: dict[str, Any] = {}
    kinds = _kinds(args, judged)
    told: list[Verdicts] = []
    if args.dataset or args.corpus or args.http:
        specs = _specs(args)
        sweeps = [variant for text in args.sweep for variant in _sweep(text, specs)]
        store, corpus = _indexed(args, settings, specs, sweeps, progress)
        with closing(_open(args, settings, store)) as asked:
            text = next(iter(judged.queries.values()))
            about = _corpus(asked, corpus, text)
            couplings = [name for name in args.couplings.split(",") if name]
            rankings = _rankings(corpus, about, [spec.name for spec in specs], couplings)
            if sweeps:
                rankings += _variants(f"{corpus}.sweep", _corpus(asked, f"{corpus}.sweep", text), sweeps)
            searched = [_ask(asked, ranking, judged, args.depth, progress) for ranking in rankings]
            if kinds:
                plain = _plain_search(asked, corpus, about, [spec.name for spec in specs])
                told = verdicts.measure_verdicts(kinds, plain, progress)
    elif not given:
        raise BadSpec("Nothing to evaluate. Give --dataset DIR, or --docstrings; or --qrels with --queries and --corpus, or --run FILE.")
    if args.runs:
        for found in searched:
            datasets.write_run(args.runs / f"{re.sub(r'[^A-Za-z0-9._-]', '_', found.name)}.trec", found.run or {}, found.name)
    taken = {run.name for run in searched}
    given = [replace(run, name=f"{run.name} (given)") if run.name in taken else run for run in given]
    runs = [run for run in searched if run.kind != "variant"] + given
    variants = [run for run in searched if run.kind == "variant"]
    return Evaluation(
        dataset=judged.name,
        shards=len(about.get("shards", ())),
        docs=about.get("docs", 0),
        text_bytes=about.get("text_bytes", 0),
        depth=args.depth,
        queries=list(judged.queries),
        runs=runs,
        variants=variants,
        comparisons=_comparisons(runs, args.seed) + _comparisons_in_sweeps(variants, args.seed),
        verdicts=told,
    )


# --- what is asked --------------------------------------------------------------------------------------------------------------


def _made_of_code(args: argparse.Namespace, settings: Settings) -> Path:
    """The folder in BEIR layout that `--docstrings` asks for, written anew: it takes seconds, and code changes."""
    if args.dataset:
        raise BadSpec("--dataset and --docstrings both name a collection. Give one of them.")
    root = args.docstrings.expanduser().resolve()
    if not root.is_dir():
        raise BadDataset(f"There is no folder {root}. Name one with Python code, or none for the standard library.")
    name = "stdlib" if root == docstrings.standard_library().resolve() else root.name
    # one folder for each root: two of the same name must not overwrite each other
    place = settings.cache.expanduser().absolute() / "evaluation" / "docstrings" / hashlib.sha256(str(root).encode()).hexdigest()[:16]
    docstrings.write_collection(root, place / f"{name}-docstrings")
    return place / f"{name}-docstrings"


def _judged(args: argparse.Namespace) -> Judged:
    if min(args.limit or 1, args.shards or 1) < 1 or args.limit == 0 or args.shards == 0 or not 1 <= args.depth <= 1_000:
        raise BadSpec("--limit and --shards must be at least 1, --depth from 1 to 1,000.")
    if unknown := [name for name in args.couplings.split(",") if name and name not in COUPLINGS]:
        raise BadSpec(f"Unknown coupling {unknown[0]!r}. Choose from: {', '.join(COUPLINGS)}.")
    if args.dataset:
        judged = datasets.read_beir(args.dataset, args.split)
        if args.queries or args.qrels:
            queries = datasets.read_queries(args.queries) if args.queries else judged.queries
            qrels = datasets.read_qrels(args.qrels) if args.qrels else judged.qrels
            judged = datasets.judged(judged.name, queries, qrels, args.qrels or args.queries)
    elif args.qrels:
        qrels = datasets.read_qrels(args.qrels)
        if args.queries:
            queries = datasets.read_queries(args.queries)
        elif args.corpus or args.http:
            raise BadSpec("Searching needs queries. Give --queries FILE, or --dataset DIR.")
        else:
            queries = dict.fromkeys(qrels, "")
        judged = datasets.judged(args.corpus or args.qrels.stem, queries, qrels, args.qrels)
    else:
        raise BadSpec("No judgements are given. Give --dataset DIR, --docstrings, or --qrels FILE.")
    kept = dict(itertools.islice(judged.queries.items(), args.limit))
    return Judged(judged.name, kept, {query: judged.qrels[query] for query in kept})


def _kinds(args: argparse.Namespace, judged: Judged) -> dict[str, list[str]]:
    """Queries whose right verdict is known; none where they were not asked for. Raises BadSpec."""
    if args.nonsense is None and not args.foreign:
        return {}
    n = N_NONSENSE if args.nonsense is None else args.nonsense
    if not args.dataset or n < 1:
        raise BadSpec("--nonsense N and --foreign DIR take N >= 1 and the documents of --dataset or --docstrings.")
    return verdicts.questions(judged, datasets.find(args.dataset, "corpus.jsonl"), args.foreign, n)


def _specs(args: argparse.Namespace) -> list[SpaceSpec]:
    """The layers asked for; none given and nothing to index: whatever the corpus has."""
    texts = [text for text in (args.layers or "").split(",") if text] + list(args.layer)
    if not texts and args.dataset and not args.http:
        texts = DEFAULT_LAYERS.split(",")
    return [SpaceSpec.parse(text) for text in texts]


def _sweep(text: str, specs: Sequence[SpaceSpec]) -> list[tuple[str, str, SpaceSpec]]:
    """(layer.dial, value, space) of each value; the other dials are those of the layer of that name, if it is asked for."""
    parameter, _, values = text.partition("=")
    name, _, dial = parameter.partition(".")
    if not name or not dial or not values:
        raise BadSpec(f"--sweep {text!r} is not LAYER.DIAL=A,B,C, e.g. bm25.k1=0.9,1.2.")
    base = next((spec for spec in specs if spec.name == name), SpaceSpec(name, name))
    variants = []
    for value in dict.fromkeys(filter(None, values.split(","))):
        named = SpaceSpec.parse(f"{name}:{dial}={value}")
        variants.append((parameter, value, SpaceSpec(f"{parameter}.{value}", base.layer, base.params | named.params, base.scope)))
    return variants


def _as_text(spec: SpaceSpec) -> str:
    """The spec as `SpaceSpec.parse` reads it."""
    dials = ",".join(f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in spec.params.items())
    return f"{spec.name}={spec.layer}" + (f":{dials}" if dials else "") + "".join(f"@{glob}" for glob in spec.scope)


def _indexed(
    args: argparse.Namespace,
    settings: Settings,
    specs: Sequence[SpaceSpec],
    sweeps: Sequence[tuple[str, str, SpaceSpec]],
    progress: Progress,
) -> tuple[str | None, str]:
    """Store and name of the corpus, brought up to date by the index job. A second run finds that nothing changed."""
    if sweeps and (args.http or not args.dataset):
        raise BadSpec("--sweep indexes the documents of --dataset, in this process. Leave --http out.")
    if args.http or not args.dataset:
        if not args.corpus and not args.dataset:
            raise BadSpec("Which corpus is to be asked? Name it with --corpus.")
        return args.store, args.corpus or _corpus_name(args.dataset)
    from jobs import index
    from shards.layers import create

    for spec in (*specs, *(spec for *_, spec in sweeps)):
        create(spec, settings.resources())  # a wrong dial is told now, not after minutes of indexing
    documents = datasets.find(args.dataset, "corpus.jsonl")
    corpus, content = args.corpus or _corpus_name(args.dataset), datasets.digest(documents)
    folder = settings.cache.expanduser().absolute() / "evaluation" / content
    archive = folder / "documents.zip"
    if not archive.exists():
        datasets.write_archive(documents, archive)
    # What a corpus's layers count for depends on all of its layers: each choice of layers is a corpus of its own.
    chosen = hashlib.sha256("\n".join(sorted(map(_as_text, specs))).encode()).hexdigest()[:8]
    store = args.store or str(folder / chosen)
    wanted = {corpus: list(specs)}
    if sweeps:
        wanted[f"{corpus}.sweep"] = [spec for *_, spec in sweeps]
    for name, spaces in wanted.items():
        line = ["--corpus", name, "--source", f"zip://{archive}", "--source-name", datasets.SOURCE_NAME, "--store", store]
        line += ["--local", "--allow-shrink"]
        line += [f"--layer={_as_text(spec)}" for spec in spaces] + ([f"--shards={args.shards}"] if args.shards else [])
        outcome = index.run(index.parser().parse_args(line), settings.model_copy(update={"store": store}), progress)
        if outcome.failed:
            path, reason = min(outcome.failed.items())
            document = datasets.document_id(datasets.SOURCE_NAME, path)
            raise BadDataset(f"{documents}: document {document!r} cannot be indexed: {reason}")
    return store, corpus


def _corpus_name(folder: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", folder.resolve().name).lstrip("._-") or "collection"


# --- asking ---------------------------------------------------------------------------------------------------------------------


def _open(args: argparse.Namespace, settings: Settings, store: str | None) -> Asked:
    import sondage

    if args.http:
        return sondage.connect(args.http, settings.api_key.get_secret_value() if settings.api_key else None)
    settings = settings.model_copy(update={"store": store or settings.store})
    return sondage.Engine(
        settings.store_url(),
        settings.store_options(),
        settings.cache,
        settings.cache_bytes,
        settings.threads,
        settings.endpoint_settings(),
    )


def _corpus(asked: Asked, corpus: str, text: str) -> dict[str, Any]:
    """What `status` says of the corpus, which is searched once before: so it is open, whatever else the store holds. Raises
    NotFound, naming the corpora there are."""
    asked.search(text, corpus, k=1, budget_ms=BUDGET_MS)
    return asked.status()["corpora"][corpus]


def _rankings(corpus: str, about: Mapping[str, Any], layers: Sequence[str], couplings: Sequence[str]) -> list[_Ranking]:
    """One of each layer (of all that the corpus has, if none is named) and of each coupling of them. Raises BadSpec."""
    sizes = {layer["name"]: layer["bytes"] for layer in about["layers"]}
    layers = layers or list(sizes)
    if unknown := [name for name in layers if name not in sizes]:
        raise BadSpec(f"Corpus {corpus!r} has no layer {unknown[0]!r}. Choose from: {', '.join(sorted(sizes))}.")
    rankings = [_Ranking(name, "layer", corpus, {"layers": [name]}, sizes[name]) for name in layers]
    if len(layers) < 2:
        return rankings  # nothing to be coupled with
    # All that there are, asked for as a user would: then the verdict is that of a plain search, too.
    everything = {"layers": "auto"} if set(layers) == set(sizes) else {}
    size = sum(sizes[name] for name in layers)
    return rankings + [_Ranking(name, "coupling", corpus, {**COUPLINGS[name](layers), **everything}, size) for name in couplings]


def _variants(corpus: str, about: Mapping[str, Any], sweeps: Sequence[tuple[str, str, SpaceSpec]]) -> list[_Ranking]:
    sizes = {layer["name"]: layer["bytes"] for layer in about["layers"]}
    return [
        _Ranking(f"{parameter}={value}", "variant", corpus, {"layers": [spec.name]}, sizes[spec.name], parameter, value)
        for parameter, value, spec in sweeps
    ]


def _ask(asked: Asked, ranking: _Ranking, judged: Judged, depth: int, progress: Progress) -> Measured:
    """All queries, one at a time. Raises BadDataset naming the query that could not be answered in full."""
    run: dict[str, dict[str, float]] = {}
    ms, verdicts = [], Counter(strong=0, weak=0, none=0)
    fields = {"k": depth, "budget_ms": BUDGET_MS, "highlight": False, "keep_all": True, **ranking.fields}
    for i, (query, text) in enumerate(judged.queries.items()):
        try:
            if not i:
                asked.search(text, ranking.corpus, **fields)  # opens files and models
            begun = time.perf_counter()
            answer = asked.search(text, ranking.corpus, **fields)
        except SondageError as error:
            raise BadDataset(f"Query {query!r} of {judged.name}, asked of {ranking.name}: {error}") from None
        ms.append(1000 * (time.perf_counter() - begun))
        if answer.coverage and not answer.complete:
            late = [c for c in answer.coverage if c.state not in ("ready", "scoped")]
            why = f"{late[0].layer} on shard {late[0].shard} is {late[0].state} {late[0].reason}" if late else "texts came too late"
            raise BadDataset(f"Query {query!r}, asked of {ranking.name}, was not fully answered: {why.strip()}. Try again.")
        verdicts[answer.verdict] += 1
        run[query] = scores_of(answer, depth)
        progress(f"asking {ranking.name}", i + 1, len(judged.queries), "queries")
    values = measure(run, judged.qrels, list(judged.queries))
    return Measured(ranking.name, ranking.kind, values, run, ms, verdicts, ranking.bytes, ranking.parameter, ranking.value)


def _plain_search(asked: Asked, corpus: str, about: Mapping[str, Any], layers: Sequence[str]) -> Callable[[str], "SearchAnswer"]:
    """A search of these layers as a user would ask for it, by name only where the corpus has others: whoever names layers wants
    their matches, whatever the verdict."""
    others = {layer["name"] for layer in about["layers"]} - set(layers)
    named = {"layers": list(layers)} if layers and others else {}
    fields = {"k": 1, "budget_ms": BUDGET_MS, "highlight": False, "keep_all": True, **named}
    return lambda text: asked.search(text, corpus, **fields)


def scores_of(answer: "SearchAnswer", depth: int) -> dict[str, float]:
    """The first `depth` documents of an answer with their fused evidence, in float32.

    A document that lies in several places counts in each. trec_eval breaks ties by document id, the engine by content hash and
    place; to measure what is served, a score that is not below the one before is made the next smaller float32.
    """
    scores: dict[str, float] = {}
    last = np.float32(np.inf)
    for hit in answer.hits:
        for entry in hit.entries:
            document = datasets.document_id(entry.source, entry.path)
            if document not in scores and len(scores) < depth:
                last = min(np.float32(hit.fused), np.nextafter(last, np.float32(-np.inf)))
                scores[document] = float(last)
    return scores


# --- beside others --------------------------------------------------------------------------------------------------------------


def _given(path: Path, judged: Judged) -> list[Measured]:
    """The rankings of a file: one of a TREC run, those of an earlier report."""
    queries = list(judged.queries)
    if path.suffix != ".json":
        run = datasets.read_run(path)
        if not any(query in run for query in queries):
            raise BadDataset(f"{path}: none of its queries is judged in {judged.name}. Is it a run of this collection?")
        return [Measured(path.stem, "given", measure(run, judged.qrels, queries), run)]
    try:
        report = json.loads(path.read_text("utf-8"))
        earlier = {name: found["per_query"] for name, found in report["runs"].items()}
        values = {name: {m: np.array([per[m][q] for q in queries], np.float64) for m in METRICS} for name, per in earlier.items()}
    except (OSError, ValueError) as error:
        raise BadDataset(f"{path} cannot be read: {error}.") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise BadDataset(f"{path}: no figures for {error}. Expected the --json of an evaluation of these very queries.") from None
    return [Measured(f"{path.stem}:{name}", "given", found) for name, found in values.items()]


def _comparisons(runs: Sequence[Measured], seed: int) -> list[Comparison]:
    """Each pair of runs, in nDCG@10; couplings are compared with others, not others with them."""
    ordered = sorted(runs, key=lambda run: run.kind != "coupling")
    return [_compared(a, b, seed) for a, b in itertools.combinations(ordered, 2)]


def _comparisons_in_sweeps(variants: Sequence[Measured], seed: int) -> list[Comparison]:
    """Each value of a dial with the first one."""
    first: dict[str, Measured] = {}
    return [
        _compared(variant, first[variant.parameter], seed)
        for variant in variants
        if first.setdefault(variant.parameter, variant) is not variant
    ]


def _compared(a: Measured, b: Measured, seed: int) -> Comparison:
    return compare(a.name, b.name, METRICS[0], a.values[METRICS[0]], b.values[METRICS[0]], seed)


# --- the command ----------------------------------------------------------------------------------------------------------------


def run_evaluate(argv: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    from jobs import report

    args = parser().parse_args(argv)
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        found = evaluate(args, Settings.load(store=args.store), Progress())
        for path, write in ((args.json, report.as_json), (args.html, report.as_html)):
            if path:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(write(found), encoding="utf-8")
    except (SondageError, OSError) as error:
        print(f"sondage evaluate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("sondage evaluate: stopped; what was indexed is kept, the next run goes on from here.", file=sys.stderr)
        return 130
    report.print_tables(found)
    return 0


if __name__ == "__main__":
    sys.exit(run_evaluate())
