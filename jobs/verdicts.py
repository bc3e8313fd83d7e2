"""Whether verdict and E-values can be trusted: queries whose right verdict is known, asked like any others.

Nonsense must come back as none: random strings, the corpus's own words in random order, questions that other collections ask.
Titles of documents must not, nor judged queries.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jobs import datasets
from jobs.datasets import Judged
from jobs.metrics import Verdicts
from shards.probes import Probe, count_words, random_strings, shuffle_words, word_pools

if TYPE_CHECKING:
    from serve.schema import SearchAnswer

SALT = b"evaluation"  # other draws than those that null models are fitted on
MIN_TITLE_WORDS = 3
N_POOLS = 5_000  # documents that words are drawn from
RANDOM, SHUFFLED, TITLES, JUDGED = "random strings", "shuffled words", "known: titles", "judged queries"
REMOVED = "judged, their relevant documents removed"
FOREIGN = "foreign: "
ALL_FOREIGN = FOREIGN + "all"
# XQuAD is 240 paragraphs of SQuAD's dev set with their questions, in twelve languages: they answer one another's questions.
_SQUAD = re.compile(r"[sx]quad", re.IGNORECASE)


def questions(judged: Judged, corpus: Path, foreign: Sequence[Path], n: int) -> dict[str, list[str]]:
    """Up to n queries of each kind, of foreign ones n a folder on average. corpus: a BEIR corpus file; foreign: BEIR folders. Raises
    BadDataset."""
    titles = [title for title, _ in _documents(corpus) if count_words(title) >= MIN_TITLE_WORDS]
    kinds = {
        RANDOM: list(random_strings(n, SALT)),
        **shuffled_questions(judged, corpus, n),
        **foreign_questions(judged, foreign, n * len(foreign)),
        TITLES: titles[:: max(len(titles) // n, 1)][:n],  # spread over the file, which may be sorted
    }
    return {kind: texts for kind, texts in kinds.items() if texts}


def shuffled_questions(judged: Judged, corpus: Path, n: int) -> dict[str, list[str]]:
    """n queries of words of the corpus in senseless order, as long as the judged ones. corpus: a BEIR file. Raises BadDataset."""
    asked = [Probe(b"", text) for text in judged.queries.values()]
    documents = itertools.islice(_documents(corpus), N_POOLS)
    bodies = [(str(i).encode(), f"{title}\n{text}".encode("utf-8", "replace")) for i, (title, text) in enumerate(documents)]
    return {SHUFFLED: list(shuffle_words(word_pools(bodies, SALT), asked, SALT, n))}


def _documents(corpus: Path) -> Iterator[tuple[str, str]]:
    return ((record.get("title") or "", record.get("text") or "") for record in datasets.read_documents(corpus))


def foreign_questions(judged: Judged, folders: Sequence[Path], total: int) -> dict[str, list[str]]:
    """So many queries of BEIR folders together, or a few more: as many of each as of the others, if it has so many, spread over its file.

    Raises BadDataset for a folder that is known to ask about the same passages.
    """
    kinds: dict[str, list[str]] = {}
    for folder in folders:
        name = folder.resolve().name
        others = list(datasets.read_queries(datasets.find(folder, "queries.jsonl")).values())
        if related(judged.name, name) or not set(others).isdisjoint(judged.queries.values()):
            raise datasets.BadDataset(f"{name} and {judged.name} share passages, so its questions are not foreign. Name another folder.")
        kinds[FOREIGN + name] = others
    most = max(map(len, kinds.values()), default=0)
    each = next((n for n in range(1, most + 1) if sum(min(n, len(texts)) for texts in kinds.values()) >= total), most)
    return {kind: texts[:: max(len(texts) // max(each, 1), 1)][:each] for kind, texts in kinds.items()}


def related(a: str, b: str) -> bool:
    """Whether collections of these names share passages, or translations of them."""
    return a == b or (_SQUAD.match(a) is not None and _SQUAD.match(b) is not None)


def is_foreign(found: Verdicts) -> bool:
    """Whether these are another collection's queries."""
    return found.kind.startswith(FOREIGN)


def measure_verdicts(
    kinds: Mapping[str, Sequence[str]], ask: Callable[[str], "SearchAnswer"], progress: Callable[[str, int, int, str], None]
) -> list[Verdicts]:
    """Asks them all. ask: a search with all hits kept, whatever its verdict, and with `explain`, for its margin."""
    found = []
    for kind, texts in kinds.items():
        answers = []
        for i, text in enumerate(texts):
            answers.append(ask(text))
            progress(f"verdicts, {kind}", i + 1, len(texts), "queries")
        found.append(collect(kind, answers))
    return found


def collect(kind: str, answers: Iterable["SearchAnswer"]) -> Verdicts:
    """What is kept of answers to queries of one kind."""
    counts, rows = Counter(strong=0, weak=0, none=0), []
    for answer in answers:
        counts[answer.verdict] += 1
        best = answer.hits[0].evalue if answer.hits else np.inf
        rows.append((best, np.nan if answer.answerable is None else answer.answerable))
    evalues, answerable = np.array(rows, np.float64).reshape(-1, 2).T
    ks = distance_from_uniform(-np.expm1(-evalues)) if kind == SHUFFLED and rows else None
    return Verdicts(kind, dict(counts), ks, evalues, answerable)


def distance_from_uniform(values: Sequence[float] | np.ndarray) -> float:
    """The Kolmogorov-Smirnov statistic of values against the uniform distribution on [0, 1]."""
    ordered, n = np.sort(np.asarray(values, np.float64)), len(values)
    steps = np.arange(n + 1) / n
    return float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))
