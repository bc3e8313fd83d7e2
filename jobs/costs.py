"""What a query costs the coordinator, by coupling and by how many spaces are asked, and what hosts send it; and what null models take.

Answers are those of the engine in this process. What hosts send is measured as it would be sent: pickled.
"""

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs.asking import BUDGET_MS
from jobs.laboratory import Laboratory, opened, shards_of
from jobs.sections import Section, Target

if TYPE_CHECKING:
    from jobs.datasets import Judged
    from jobs.settings import Settings

N_QUERIES = 100
K = 10
STATE_BYTES = 64 << 10  # a null model may take, beside the matrices that vectors' moments come from
STEPS = ("fuse", "excerpts")  # the coordinator's own; what it asks is asked a second time, and then is not searched for again


def measure_costs(
    settings: "Settings",
    corpus: str,
    judged: "Judged",
    couplings: Mapping[str, Mapping[str, Any]],
    progress: Callable[[str, int, int, str], None],
) -> Section:
    """Medians over queries, each asked once before. couplings: what each adds to a request. Raises NotFound."""
    asked = list(islice(judged.queries.values(), N_QUERIES))
    rows, figures = [], []
    with opened(settings, corpus) as (_, _, generation):
        names = sorted(generation.spaces)
        with Laboratory(generation, shards_of(generation), settings.resources()) as laboratory:
            for n in range(1, len(names) + 1):
                for coupling, fields in couplings.items():
                    found = _cost(laboratory, asked, names[:n], fields)
                    figures.append({"coupling": coupling, "spaces": names[:n], **found})
                    times = (f"{found[f'ms {step}']:.2f}" for step in STEPS)
                    rows.append([coupling, str(n), *times, f"{found['bytes']:,.0f}"])
                progress("costs", n, len(names), "numbers of spaces")
        nulls = generation.nulls
    state = {name: len(json.dumps(null.to_json())) for name, null in nulls.spaces.items()} if nulls else {}
    whole = len(nulls.to_bytes()) if nulls else 0
    note = "; ".join(f"{name} {size:,} bytes" for name, size in state.items())
    return Section(
        "costs",
        "What a query costs",
        ("coupling", "spaces", *(f"{step}, ms p50" for step in STEPS), "bytes sent by hosts"),
        rows,
        {"queries": len(asked), "costs": figures, "null_state_bytes": state, "null_file_bytes": whole},
        f"First {K} hits, {len(asked)} queries. Null models: {note or 'none'}; with all that is learnt of the corpus {whole:,} bytes.",
        targets=[Target("null model of a space, bytes", max(state.values(), default=0), STATE_BYTES, at_least=False)],
    )


def _cost(laboratory: Laboratory, asked: Sequence[str], names: Sequence[str], fields: Mapping[str, Any]) -> dict[str, float]:
    plain = {"k": K, "budget_ms": BUDGET_MS, "highlight": False, "keep_all": True, "layers": list(names), **fields}
    laps: dict[str, list[float]] = {step: [] for step in STEPS}
    sizes = []
    for text in asked:
        laboratory.search(text, **plain)  # what is asked for the first time is prepared
        answer = laboratory.search(text, **plain)
        for step in STEPS:
            laps[step].append(answer.timings_ms.get(step, 0.0))
        sizes.append(len(pickle.dumps(laboratory.searcher.found)))
    return {f"ms {step}": float(np.median(times)) for step, times in laps.items()} | {"bytes": float(np.median(sizes))}
