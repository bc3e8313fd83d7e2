"""Whether verdict and E-values can be trusted: queries whose right verdict is known, asked like any others.

Nonsense must come back as none: random strings, the corpus's own words in random order, questions that other collections ask.
Titles of documents must not. And of senseless queries the best hit's E must be what it says: 1 - exp(-E) uniform between 0 and 1.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def questions(judged: Judged, corpus: Path, foreign: Iterable[Path], n: int) -> dict[str, list[str]]:
    """Up to n queries of each kind. corpus: a BEIR corpus file; foreign: BEIR folders. Raises BadDataset.

    Shuffled queries are as long as the judged ones.
    """
    documents = [(record.get("title") or "", record.get("text") or "") for record in datasets.read_documents(corpus)]
    asked = [Probe(b"", text) for text in judged.queries.values()]
    bodies = [(str(i).encode(), f"{title}\n{text}".encode("utf-8", "replace")) for i, (title, text) in enumerate(documents[:N_POOLS])]
    titles = [title for title, _ in documents if count_words(title) >= MIN_TITLE_WORDS]
    kinds = {
        "random strings": list(random_strings(n, SALT)),
        "shuffled words": list(shuffle_words(word_pools(bodies, SALT), asked, SALT, n)),
    }
    for folder in foreign:
        others = datasets.read_queries(datasets.find(folder, "queries.jsonl"))
        kinds[f"foreign: {folder.resolve().name}"] = list(itertools.islice(others.values(), n))
    # spread over the file, which may be sorted
    kinds["known: titles"] = titles[:: max(len(titles) // n, 1)][:n]
    return {kind: texts for kind, texts in kinds.items() if texts}


def measure_verdicts(
    kinds: Mapping[str, Sequence[str]], ask: Callable[[str], "SearchAnswer"], progress: Callable[[str, int, int, str], None]
) -> list[Verdicts]:
    """Asks them all. ask: a search with all hits kept, whatever its verdict."""
    found = []
    for kind, texts in kinds.items():
        counts, p = Counter(strong=0, weak=0, none=0), []
        for i, text in enumerate(texts):
            answer = ask(text)
            counts[answer.verdict] += 1
            p.append(-np.expm1(-answer.hits[0].evalue) if answer.hits else 1.0)
            progress(f"verdicts, {kind}", i + 1, len(texts), "queries")
        found.append(Verdicts(kind, dict(counts), distance_from_uniform(p) if kind == "shuffled words" else None))
    return found


def distance_from_uniform(values: Sequence[float]) -> float:
    """The Kolmogorov-Smirnov statistic of values against the uniform distribution on [0, 1]."""
    ordered, n = np.sort(np.asarray(values, np.float64)), len(values)
    steps = np.arange(n + 1) / n
    return float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))
