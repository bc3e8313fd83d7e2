"""Learn from judgements what each layer of a corpus should count, and say honestly whether that helps.

Without judgements the corpus teaches itself (cloze probes). This is for who has some: every judged query is searched once, then weights
are learnt from all queries and, to know what they are worth on others, from all but one of --folds parts of them. The weights come as
JSON that `sondage search --weights @FILE` takes, and `weights` of a request.
"""

import argparse
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if not __package__:  # run as a file: the project's root is where the packages are
    sys.path[:1] = [str(Path(__file__).resolve().parent.parent)]

from jobs import datasets
from jobs.arguments import Parser
from jobs.asking import BUDGET_MS, Asked
from jobs.datasets import BadDataset, Judged
from jobs.failing import tell
from jobs.progress import Progress
from jobs.settings import Settings
from jobs.tuning import Judgements, Tuning, ideal_dcg, tune
from shards.errors import BadSpec, SondageError

if TYPE_CHECKING:
    from serve.schema import Hit, SearchAnswer

MIN_QUERIES = 10  # fewer tell nothing of other queries, however they are cut into parts


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = Parser(
        prog="sondage tune",
        description=__doc__,
        epilog="Exit code: 0 the weights help, 1 they do not, or nobody can tell, 2 error.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--dataset", type=Path, metavar="DIR", help="queries and judgements of a folder in BEIR layout")
    p.add_argument("--split", default="test", help="which judgements of it: qrels/SPLIT.tsv (default: test)")
    p.add_argument("--queries", type=Path, metavar="FILE", help="BEIR's JSON lines, TREC topics, or lines id<TAB>text")
    p.add_argument("--qrels", type=Path, metavar="FILE", help="BEIR's three columns or TREC's four; documents are named by their paths")
    p.add_argument("--limit", type=int, metavar="N", help="only the first N judged queries")
    p.add_argument("--store", help="where the index lies (SONDAGE_STORE)")
    p.add_argument("--http", metavar="URL", help="ask this server instead")
    p.add_argument("--corpus", "-c", help="name of the corpus, indexed already (SONDAGE_CORPUS, or the only one)")
    p.add_argument("--layers", help="comma-separated names of the layers to weigh (default: what a search asks by itself)")
    p.add_argument("--folds", type=int, default=5, help="parts of the queries for cross-validation (default: 5)")
    p.add_argument("--seed", type=int, default=0, help="of parts, bootstrap and signs (default: 0)")
    p.add_argument("--out", type=Path, metavar="FILE", help="write the weights, and what they gain, as JSON")
    p.add_argument("--json", action="store_true", help="print these on stdout instead of tables")
    return p


def run(args: argparse.Namespace, settings: Settings, progress: Progress) -> tuple[str, list[str], Tuning]:
    """The corpus, its spaces in order of name, and their tuning. Raises SondageError."""
    judged = _judged(args)
    with closing(_opened(args, settings)) as asked:
        corpus = _corpus(args, asked)
        layers = args.layers.split(",") if args.layers else "auto"
        answers = _answers(asked, corpus, layers, judged, progress)
    names, evidence, own = read(answers, judged)
    progress("learning", 0, 1, "tunings")
    found = tune(evidence, own, min(args.folds, len(judged.queries)), args.seed)
    progress("learning", 1, 1, "tunings")
    return corpus, names, found


def _judged(args: argparse.Namespace) -> Judged:
    if args.folds < 2 or (args.limit is not None and args.limit < 1):
        raise BadSpec("--folds must be at least 2 and --limit at least 1: weights are tried on queries that they were not tuned on.")
    if args.dataset:
        judged = datasets.read_beir(args.dataset, args.split)
    elif args.queries and args.qrels:
        judged = datasets.judged(args.qrels.stem, datasets.read_queries(args.queries), datasets.read_qrels(args.qrels), args.qrels)
    else:
        raise BadSpec("Nothing to learn from. Give --dataset DIR, or --queries FILE and --qrels FILE.")
    kept = list(judged.queries)[: args.limit]
    if len(kept) < MIN_QUERIES:
        raise BadSpec(f"{len(kept)} judged queries tell too little of others; give at least {MIN_QUERIES}.")
    return Judged(judged.name, {q: judged.queries[q] for q in kept}, {q: judged.qrels[q] for q in kept})


def _opened(args: argparse.Namespace, settings: Settings) -> Asked:
    import sondage

    if args.http and args.store:
        raise BadSpec("Both --http and --store are given. Name the server or the store, not both.")
    if args.http:
        return sondage.connect(args.http, settings.api_key.get_secret_value() if settings.api_key else None, settings.ca_file)
    return sondage.Engine(
        settings.store_url(),
        settings.store_options(),
        settings.cache,
        settings.cache_bytes,
        settings.threads,
        settings.endpoint_settings(),
        models=settings.models_dir(),
    )


def _corpus(args: argparse.Namespace, asked: Asked) -> str:
    from jobs.connecting import only_corpus

    return args.corpus or only_corpus(asked.status())


def _answers(asked: Asked, corpus: str, layers: Sequence[str] | str, judged: Judged, progress: Progress) -> "dict[str, SearchAnswer]":
    """What every space says of all that any has on its list, for each query. Raises BadDataset naming a query not answered in full."""
    answers = {}
    for i, (query, text) in enumerate(judged.queries.items()):
        answer = asked.search(
            text, corpus, layers=layers, coupling="none", k=100, explain=True, keep_all=True, highlight=False, budget_ms=BUDGET_MS
        )
        if answer.coverage and not answer.complete:
            raise BadDataset(f"Query {query!r} was not fully answered; weights learnt from a part would be those of a part. Try again.")
        answers[query] = answer
        progress(f"asking {corpus}", i + 1, len(judged.queries), "queries")
    return answers


def read(answers: "Mapping[str, SearchAnswer]", judged: Judged) -> tuple[list[str], Judgements, np.ndarray]:
    """Spaces, (q, d, s) evidence with its judgements, and what the corpus lets the spaces count, (s,), as in most answers.

    Raises BadDataset where no judged document was found at all: then ids do not belong to these documents.
    """
    asked = [[info for info in answer.layers if info.evidence is not None] for answer in answers.values()]
    names = sorted({info.name for infos in asked for info in infos})
    if not names:
        raise BadDataset("No query asked any space anything. Does the corpus have layers for these queries?")
    column = {name: s for s, name in enumerate(names)}
    weights = {name: [info.evidence.weight for infos in asked for info in infos if info.name == name] for name in names}
    rows = {query: _rows(answer.hits, judged.qrels[query]) for query, answer in answers.items()}
    shape = len(answers), max(map(len, rows.values()), default=0)
    surprises, own, gains = np.zeros((*shape, len(names))), np.zeros(shape), np.zeros(shape)
    for q, found in enumerate(rows.values()):
        for d, (hit, grade) in enumerate(found):
            own[q, d], gains[q, d] = hit.fused, grade
            for signal in hit.signals:
                surprises[q, d, column[signal.layer]] = signal.surprise
    if not gains.any():
        raise BadDataset(f"None of the documents judged in {judged.name} was found. Are their ids the paths of this corpus?")
    ideal = np.array([ideal_dcg(list(judged.qrels[query].values())) for query in answers])
    return names, Judgements(surprises, own, gains, ideal), np.array([float(np.median(weights[name])) for name in names])


def _rows(hits: "Sequence[Hit]", grades: Mapping[str, int]) -> "list[tuple[Hit, int]]":
    """Documents as they are judged, with their grades: a hit counts at each place where it lies. In the order in which ties fall."""
    found: dict[str, tuple[Hit, int]] = {}
    for hit in sorted(hits, key=lambda hit: hit.hash):
        for entry in hit.entries:
            name = datasets.document_id(entry.source, entry.path)
            found.setdefault(name, (hit, max(grades.get(name, 0), 0)))
    return list(found.values())


# --- what is told ---------------------------------------------------------------------------------------------------------------


def as_json(corpus: str, names: Sequence[str], found: Tuning) -> dict[str, Any]:
    """What `--out` writes: `weights` for requests, and what they are worth."""
    low, high = found.interval
    return {
        "corpus": corpus,
        "weights": {name: round(float(weight), 4) for name, weight in zip(names, found.weights, strict=True)},
        "helps": found.helps,
        "queries": len(found.own),
        "folds": len(found.of_folds),
        "ndcg@10": {
            "own": _mean(found.own),
            "tuned, on its own queries": _mean(found.best),
            "cross-validated": _mean(found.cross_validated),
        },
        "gain": {"mean": round(found.gain, 5), "95 %": [round(low, 5), round(high, 5)], "p": round(found.p, 5)},
    }


def _mean(values: np.ndarray) -> float:
    return round(float(values.mean()), 5)


def print_report(names: Sequence[str], found: Tuning) -> None:
    """Tables and the conclusion, on stdout."""
    from jobs.tables import table
    from jobs.terminal import console

    out = console()
    weights = table("layer", "the corpus's own", "tuned", "least in a fold", "most")
    for s, name in enumerate(names):
        in_folds = found.of_folds[:, s]
        weights.add_row(name, f"{found.start[s]:.2f}", f"{found.weights[s]:.2f}", f"{in_folds.min():.2f}", f"{in_folds.max():.2f}")
    out.print(weights)
    out.print(f"nDCG@10 with the corpus's own weights     {found.own.mean():.4f}")
    out.print(f"tuned, on the queries it was tuned on     {found.best.mean():.4f}")
    out.print(f"tuned, on queries it has not seen         {found.cross_validated.mean():.4f}  ({len(found.of_folds)} folds)")
    out.print(conclusion(found))


def conclusion(found: Tuning) -> str:
    """What to do, in one sentence."""
    low, high = found.interval
    said = f"{found.gain:+.4f} nDCG@10 on unseen queries, 95 % interval {low:+.4f} to {high:+.4f}, p = {found.p:.2g}"
    if found.helps:
        return f"gain: {said}"
    worse = "they lose" if high < 0 else "no gain"
    return f"{worse}: {said}. Leave the weights to the corpus"


# --- the command ----------------------------------------------------------------------------------------------------------------


def run_tune(argv: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    args = parser().parse_args(argv)
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        with Progress() as progress:
            corpus, names, found = run(args, Settings.load(store=args.store), progress)
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(as_json(corpus, names, found), indent=2) + "\n", encoding="utf-8")
    except (SondageError, OSError) as error:
        return tell(error, args.json, "sondage tune")
    except KeyboardInterrupt:
        print("sondage tune: stopped.", file=sys.stderr)
        return 130
    if args.json:
        print(json.dumps(as_json(corpus, names, found)))
    else:
        print_report(names, found)
    return 0 if found.helps else 1


if __name__ == "__main__":
    sys.exit(run_tune())
