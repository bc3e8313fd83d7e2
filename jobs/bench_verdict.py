"""How often the verdict is right on the standard library: nonsense must come back as none, the library's own docstrings must not.

The like for judged collections is `jobs/evaluate.py --nonsense`. Questions of a foreign collection are those of `--foreign`, folders in
BEIR layout.
"""

import itertools
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from jobs import datasets, verdicts
from jobs.bench_corpus import copy_of_stdlib, queries_of_stdlib, texts_of_stdlib
from jobs.bench_index import build
from jobs.progress import Progress
from shards.errors import BadSpec

LAYERS = "names,text,bm25,static"
N_NONSENSE, N_KNOWN = 100, 300
BARS = {"nonsense, % none at least": 95.0, "known, % none at most": 5.0, "KS of E at most": 0.10}
KNOWN = "known: docstrings"


def bench_verdict(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Per kind of query: how many, verdicts in %, KS of E for shuffled words."""
    import sondage

    asked = questions(options.foreign, options.nonsense)
    with tempfile.TemporaryDirectory(prefix="sondage-bench-") as scratch:
        source, store = copy_of_stdlib(Path(scratch) / "src"), str(Path(scratch) / "store")
        progress("index for verdicts", 0, 1, "corpora")
        build(source, store, LAYERS)
        progress("index for verdicts", 1, 1, "corpora")
        with sondage.Engine(store) as engine:
            engine.status()  # waits until it is open
            found = verdicts.measure_verdicts(
                asked, lambda text: engine.search(text, "stdlib", k=1, keep_all=True, budget_ms=60_000), progress
            )
    rows: dict[str, Any] = {}
    for kind in found:
        n = sum(kind.counts.values())
        rows[kind.kind] = {"queries": n} | {f"% {verdict}": round(100 * count / n, 1) for verdict, count in kind.counts.items()}
        if kind.ks is not None:
            rows[kind.kind]["KS of E"] = round(kind.ks, 3)
    nonsense = [kind for kind in found if kind.kind != KNOWN]
    together = sum(kind.counts["none"] for kind in nonsense) / sum(sum(kind.counts.values()) for kind in nonsense)
    return {"layers": LAYERS, "bars": BARS, "nonsense, % none": round(100 * together, 1), "kinds": rows}


def questions(foreign: list[Path], n: int) -> dict[str, list[str]]:
    """Queries by kind; n of each kind of nonsense. Raises BadDataset, BadSpec."""
    if n < 1:
        raise BadSpec(f"--nonsense {n}: ask at least one query of each kind.")
    from shards.probes import Probe, random_strings, shuffle_words, word_pools

    known = queries_of_stdlib(N_KNOWN, 1)[:N_KNOWN]
    bodies = [(str(i).encode(), text.encode("utf-8", "replace")) for i, text in enumerate(texts_of_stdlib(16 << 20))]
    kinds = {
        "random strings": list(random_strings(n, verdicts.SALT)),
        "shuffled words": list(shuffle_words(word_pools(bodies, verdicts.SALT), [Probe(b"", text) for text in known], verdicts.SALT, n)),
    }
    for folder in foreign:
        others = datasets.read_queries(datasets.find(folder, "queries.jsonl"))
        kinds[f"foreign: {folder.resolve().name}"] = list(itertools.islice(others.values(), n))
    return kinds | {KNOWN: known}
