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
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from pydantic import ValidationError

if not __package__:  # run as a file: the project's root is where the packages are
    sys.path[:1] = [str(Path(__file__).resolve().parent.parent)]

from jobs import datasets, docstrings, questions, verdicts
from jobs.arguments import Parser
from jobs.asking import BUDGET_MS, Asked, scores_of
from jobs.datasets import BadDataset, Judged
from jobs.failing import tell
from jobs.indexed import DEFAULT_LAYERS, indexed, specs_of, sweep
from jobs.metrics import METRICS, Comparison, Evaluation, Measured, Verdicts, compare, measure
from jobs.progress import Progress
from jobs.sections import Section
from jobs.settings import Settings
from jobs.suite import OF, Suite, together
from serve.edge import Coupling, CouplingName, spelt
from shards.errors import BadSpec, SondageError
from shards.layers import REGISTRY, SpaceSpec

if TYPE_CHECKING:
    from serve.schema import SearchAnswer

N_NONSENSE = 100
COUPLINGS = get_args(CouplingName)  # ways in which layers can be brought together; as text also with a field of their own: rrf:k=2


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = Parser(
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
    what.add_argument("--suite", nargs="+", default=[], type=Path, metavar="DIR",
                      help="instead, several folders in BEIR layout, and --docstrings if given, one after the other: queries of each are "
                      "foreign to the others; --store is a folder with a store named like each")  # fmt: skip
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
    where.add_argument("--couplings", default="evidence",
                       help=f"of all layers: {', '.join(COUPLINGS)}, rrf:k=2 (default: evidence)")  # fmt: skip
    where.add_argument("--shards", type=int, help="number of shards (default: 1, or as it is)")
    where.add_argument("--depth", type=int, default=100, help="hits per query (default: 100)")
    where.add_argument("--sweep", action="append", default=[], metavar="LAYER.DIAL=A,B,C",
                       help="index a layer once for each value: quality against bytes and time (repeatable)")  # fmt: skip
    where.add_argument("--among", action="append", default=[], metavar="A,B",
                       help="couplings of these layers alone, too (repeatable)")  # fmt: skip
    questions.add_options(p)
    p.add_argument("--compare", "--run", action="append", default=[], type=Path, metavar="FILE",
                   help="a TREC run, or the --json of an earlier evaluation, to be set beside the others (repeatable)")  # fmt: skip
    p.add_argument("--runs", type=Path, metavar="DIR", help="write each ranking there as a TREC run")
    p.add_argument("--json", type=Path, metavar="FILE", help="write all figures, also per query; -: on stdout, instead of tables")
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
    questions.check(args)
    kinds = _kinds(args, judged)
    told: list[Verdicts] = []
    further: list[Section] = []
    if args.dataset or args.corpus or args.http:
        specs = specs_of(args)
        sweeps = [variant for text in args.sweep for variant in sweep(text, specs)]
        store, corpus = indexed(args, settings, specs, sweeps, progress)
        with closing(_open(args, settings, store)) as asked:
            text = next(iter(judged.queries.values()))
            about = _corpus(asked, corpus, text)
            couplings = [name for name in args.couplings.split(",") if name]
            names = [spec.name for spec in specs]
            rankings = _rankings(corpus, about, names, couplings, [among.split(",") for among in args.among])
            if sweeps:
                rankings += _variants(f"{corpus}.sweep", _corpus(asked, f"{corpus}.sweep", text), sweeps)
            searched = [_ask(asked, ranking, judged, args.depth, progress) for ranking in rankings]
            plain = _plain_search(asked, corpus, about, names)
            told = verdicts.measure_verdicts(kinds, plain, progress)
            if questions.any_asked(args):
                there = [layer["name"] for layer in about["layers"]]
                here = settings.model_copy(update={"store": store or settings.store})
                further = questions.ask(args, here, asked, plain, corpus, there, judged, progress)
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
        sections=further,
    )


def evaluate_suite(args: argparse.Namespace, settings: Settings, progress: Progress) -> Suite:
    """Every collection of a suite, and what they say together. Raises SondageError."""
    if args.dataset or args.queries or args.qrels or args.corpus or args.compare:
        raise BadSpec("--suite names its collections itself: leave --dataset, --queries, --qrels, --corpus and --run out.")
    folders = list(args.suite)
    if args.docstrings:
        folders.append(_made_of_code(args, settings))
    for folder in folders:  # a folder that is none is told now, not after an hour
        datasets.read_beir(folder, args.split)
    found = []
    for folder in folders:
        name = folder.resolve().name
        wanted = args.nonsense is not None or args.calibration is not None or args.answerability
        others = [other for other in folders if wanted and not verdicts.related(name, other.resolve().name)]
        mine = vars(args) | {"dataset": folder, "docstrings": None, "foreign": [*args.foreign, *others]}
        mine["store"] = str(Path(args.store) / name) if args.store else None
        mine["runs"] = args.runs / name if args.runs else None
        progress(f"collection {name}", len(found) + 1, len(folders), "collections")
        found.append(evaluate(argparse.Namespace(**mine), settings.model_copy(update={"store": mine["store"]}), progress))
    return together(found, args.seed)


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
    for text in filter(None, args.couplings.split(",")):
        try:
            Coupling.model_validate(spelt(text))
        except ValidationError:
            raise BadSpec(f"Unknown coupling {text!r}. Choose from: {', '.join(COUPLINGS)}; rrf takes k, as in rrf:k=2.") from None
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
    if args.nonsense is None and (not args.foreign or args.calibration is not None or args.answerability):
        return {}
    n = N_NONSENSE if args.nonsense is None else args.nonsense
    if not args.dataset or n < 1:
        raise BadSpec("--nonsense N and --foreign DIR take N >= 1 and the documents of --dataset or --docstrings.")
    return verdicts.questions(judged, datasets.find(args.dataset, "corpus.jsonl"), args.foreign, n)


# --- asking ---------------------------------------------------------------------------------------------------------------------


def _open(args: argparse.Namespace, settings: Settings, store: str | None) -> Asked:
    import sondage

    if args.http:
        return sondage.connect(args.http, settings.api_key.get_secret_value() if settings.api_key else None, settings.ca_file)
    settings = settings.model_copy(update={"store": store or settings.store})
    return sondage.Engine(
        settings.store_url(),
        settings.store_options(),
        settings.cache,
        settings.cache_bytes,
        settings.threads,
        settings.endpoint_settings(),
        models=settings.models_dir(),
    )


def _corpus(asked: Asked, corpus: str, text: str) -> dict[str, Any]:
    """What `status` says of the corpus, which is searched once before: so it is open, whatever else the store holds. Raises
    NotFound, naming the corpora there are."""
    asked.search(text, corpus, k=1, budget_ms=BUDGET_MS)
    return asked.status()["corpora"][corpus]


def _rankings(
    corpus: str, about: Mapping[str, Any], layers: Sequence[str], couplings: Sequence[str], among: Sequence[Sequence[str]] = ()
) -> list[_Ranking]:
    """One of each layer (of all that the corpus has, if none is named), and of each coupling of them and of each choice of layers
    (`among`). Raises BadSpec."""
    sizes = {layer["name"]: layer["bytes"] for layer in about["layers"]}
    layers = layers or list(sizes)
    for name in (*layers, *itertools.chain(*among)):
        if name not in sizes:
            raise BadSpec(f"Corpus {corpus!r} has no layer {name!r}. Choose from: {', '.join(sorted(sizes))}.")
    rankings = [_Ranking(name, "layer", corpus, {"layers": [name]}, sizes[name]) for name in layers]
    for chosen in (layers, *among):
        # All that there are, asked for as a user would: then the verdict is that of a plain search, too.
        asked = "auto" if set(chosen) == set(sizes) else list(chosen)
        size = sum(sizes[name] for name in chosen)
        suffix = f"{OF}{'+'.join(chosen)}" if chosen is not layers else ""
        if len(chosen) > 1:  # else there is nothing to be coupled with
            rankings += [_Ranking(f"{c}{suffix}", "coupling", corpus, {"layers": asked, "coupling": c}, size) for c in couplings]
    return rankings


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


def _plain_search(asked: Asked, corpus: str, about: Mapping[str, Any], layers: Sequence[str]) -> Callable[..., "SearchAnswer"]:
    """A search of these layers as a user would ask for it, by name only where the corpus has others: whoever names layers wants
    their matches, whatever the verdict. It takes further fields of the request."""
    others = {layer["name"] for layer in about["layers"]} - set(layers)
    named = {"layers": list(layers)} if layers and others else {}
    fields = {"k": 1, "budget_ms": BUDGET_MS, "highlight": False, "keep_all": True, "explain": True, **named}
    return lambda text, **more: asked.search(text, corpus, **{**fields, **more})


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
    """Pairs of runs, in nDCG@10; couplings are compared with others, not others with them. Of couplings only evidence is compared with
    all: with ten of them nobody would read the rest."""
    ordered = sorted(runs, key=lambda run: run.kind != "coupling")
    pairs = [(a, b) for a, b in itertools.combinations(ordered, 2) if a.kind != "coupling" or a.name.partition(OF)[0] == "evidence"]
    # without evidence the couplings that there are stand against the layers
    return [_compared(a, b, seed) for a, b in pairs or itertools.combinations(ordered, 2)]


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
        run = evaluate_suite if args.suite else evaluate
        with Progress() as progress:
            found = run(args, Settings.load(store=args.store), progress)
        for path, write in ((args.json, report.as_json), (args.html, report.as_html)):
            if path and str(path) != "-":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(write(found), encoding="utf-8")
    except (SondageError, OSError) as error:
        return tell(error, str(args.json) == "-", "sondage evaluate")
    except KeyboardInterrupt:
        print("sondage evaluate: stopped; what was indexed is kept, the next run goes on from here.", file=sys.stderr)
        return 130
    if str(args.json) == "-":
        print(report.as_json(found))
    else:
        report.print_tables(found)
    return 0


if __name__ == "__main__":
    sys.exit(run_evaluate())
