"""Which further questions an evaluation asks of a corpus beside its rankings, and who answers them.

E, answerability and predictors are asked of whoever serves, in this process or over HTTP, as a user would ask. What changes an index
(`stress`, `splits`, `partly_built`) or looks into the coordinator (`costs`) does so here, on a copy or on the generation itself, by the
same code.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobs import answered, calibration, datasets, verdicts
from jobs.indexed import specs_of
from jobs.metrics import Verdicts
from jobs.sections import Section
from shards.errors import BadSpec

if TYPE_CHECKING:
    from jobs.asking import Asked
    from jobs.datasets import Judged
    from jobs.progress import Progress
    from jobs.settings import Settings
    from serve.schema import SearchAnswer

N_CALIBRATION = 1_000  # shuffled queries: KS of true uniforms is then below 0.04 in 19 of 20 runs; and half as many foreign ones
SPLITS = "1,4,16"
ALONE = ("stress", "splits", "costs", "study", "certificates", "partly_built")  # what is done in this process, on files


def add_options(p: argparse.ArgumentParser) -> None:
    """The options that ask for each."""
    group = p.add_argument_group("further questions")
    group.add_argument("--calibration", nargs="?", type=int, const=N_CALIBRATION, metavar="N",
                       help="is E what it says? On N held-out shuffled queries and, with --foreign, half as many foreign ones "
                       f"(default: {N_CALIBRATION:,})")  # fmt: skip
    group.add_argument("--answerability", action="store_true",
                       help="does the engine know what is answered here? Judged queries against those of --foreign, and against themselves "
                       "with their relevant documents filtered away")  # fmt: skip
    group.add_argument("--stress", action="store_true", help="junk spaces, wrong lists, one expert alone; in a copy of the index")
    group.add_argument("--splits", nargs="?", const=SPLITS, metavar="N,…", help=f"shards by topic (default: {SPLITS}); in a copy")
    group.add_argument("--costs", action="store_true", help="time and bytes of a query by coupling and number of spaces")
    group.add_argument("--predictors", action="store_true", help="WIG, NQC, SMV and clarity beside E and the margin, against nDCG@10")
    group.add_argument("--certificates", action="store_true",
                       help="answers with layers withheld: is what is called final so, is as much new as expected? And the recall of cuts, "
                       "stated beside that of judged documents")  # fmt: skip
    group.add_argument("--partly-built", action="append", default=[], metavar="LAYER",
                       help="what a layer is worth while little of it is built, as where built=used: none, some and all of the documents, "
                       "the rest scored on the fly; in a copy (repeatable)")  # fmt: skip
    group.add_argument(
        "--study",
        action="store_true",
        help="variants of fusion that were tried, with their curves; with --foreign also how well what is answered could be told at best",
    )


def any_asked(args: argparse.Namespace) -> bool:
    """Whether any of them is asked for."""
    return args.calibration is not None or args.answerability or args.predictors or any(getattr(args, name) for name in ALONE)


def check(args: argparse.Namespace) -> None:
    """Raises BadSpec for what cannot be asked, before any work is done."""
    counts(args)
    if args.calibration is not None and args.calibration < 1:
        raise BadSpec("--calibration N takes N >= 1.")
    if any_asked(args) and not (args.dataset or args.docstrings or args.corpus):
        raise BadSpec("Further questions are asked of a corpus: give --dataset, --docstrings or --corpus.")
    for option, asked in (("calibration", args.calibration is not None), ("partly-built", args.partly_built)):
        if asked and not (args.dataset or args.docstrings):
            raise BadSpec(f"--{option} shuffles the words of documents: give --dataset or --docstrings.")
    if args.http and (alone := [name for name in ALONE if getattr(args, name)]):
        option = alone[0].replace("_", "-")
        raise BadSpec(f"--{option} looks into an index, which a server does not show. Leave --http out, and name the --store.")


def counts(args: argparse.Namespace) -> list[int]:
    """Numbers of shards of `--splits`. Raises BadSpec."""
    try:
        found = [int(text) for text in (args.splits or "").split(",") if text]
    except ValueError:
        found = [0]
    if any(not 1 <= n <= 256 for n in found):
        raise BadSpec(f"--splits {args.splits!r} is not a list of shard counts from 1 to 256, such as {SPLITS}.")
    return found


def ask(
    args: argparse.Namespace,
    settings: "Settings",
    asked: "Asked",
    plain: Callable[..., "SearchAnswer"],
    corpus: str,
    spaces: Sequence[str],
    judged: "Judged",
    progress: "Progress",
) -> list[Section]:
    """All that is asked for. settings: with the store that was searched; plain: a search as a user asks it, with all hits kept and
    `explain`; spaces: of the corpus. Raises SondageError."""
    found = _of_verdicts(args, plain, judged, progress)
    documents = datasets.find(args.dataset, "corpus.jsonl") if args.dataset else None
    if args.predictors:
        from jobs.predictors import measure_predictors

        found.append(measure_predictors(asked, corpus, judged, spaces, documents, progress))
    if args.stress:
        from jobs.stress import measure_stress

        found.append(measure_stress(settings, corpus, judged, _couplings("evidence", "rrf"), progress))
    if args.splits:
        from jobs.splits import measure_splits

        found.append(measure_splits(settings, corpus, judged, counts(args), progress))
    if args.costs:
        from jobs.costs import measure_costs

        found.append(measure_costs(settings, corpus, judged, _couplings("evidence", *args.couplings.split(",")), progress))
    if args.certificates:
        from jobs.certificates import measure_certificates

        found += measure_certificates(settings, corpus, judged, args.seed, progress)
    for name in args.partly_built:
        from jobs.partly_built import measure_partly_built

        assert documents is not None, "checked: there is a collection"
        among = [spec.name for spec in specs_of(args)] or spaces
        found.append(measure_partly_built(settings, corpus, judged, name, among, documents, progress))
    if args.study:
        from jobs import answered_study, fusion_study

        found += fusion_study.run(args, settings, corpus, judged, progress)
        found += answered_study.run(args, settings, corpus, judged, progress)
    return found


def _of_verdicts(args: argparse.Namespace, plain: Callable[..., "SearchAnswer"], judged: "Judged", progress: "Progress") -> list[Section]:
    """What queries say whose right verdict is known; each kind is asked once for all questions about it."""
    told: list[Verdicts] = []
    total = (args.calibration or N_CALIBRATION) // 2
    if args.calibration is not None:
        documents = datasets.find(args.dataset, "corpus.jsonl")
        told += verdicts.measure_verdicts(verdicts.shuffled_questions(judged, documents, args.calibration), plain, progress)
    if args.calibration is not None or args.answerability:
        told += verdicts.measure_verdicts(verdicts.foreign_questions(judged, args.foreign, total), plain, progress)
    found = [] if args.calibration is None else [calibration.section(told)]
    if args.answerability:
        told += verdicts.measure_verdicts({verdicts.JUDGED: list(judged.queries.values())}, plain, progress)
        told.append(answered.ask_without_answers(plain, judged, progress))
        found.append(answered.section(told))
    return found


def _couplings(*texts: str) -> Mapping[str, Mapping[str, Any]]:
    """What each coupling adds to a request, by its text, in this order."""
    return {text: {"coupling": text} for text in dict.fromkeys(filter(None, texts))}
