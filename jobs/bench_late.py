"""Late interaction for `jobs.bench_spaces`: tokens of real passages by MiniLM, beside torch's products over all of them."""

import time
from typing import Any

import numpy as np

from jobs.bench_spaces import Subject
from jobs.progress import Progress
from jobs.real_vectors import passages_of_machine
from shards.documents import Documents
from shards.identity import content_hash
from shards.late_tokens import Tokens
from shards.layers.contract import Request, Resources
from shards.layers.late import Late
from shards.probes import choose_probes, rank_hashes
from shards.segment import pack_entries
from shards.types import Array, Budget

N_QUERIES = 60
N_CANDIDATES = 100  # what a search of all spaces brings to be scored


def late_subject(n: int, resources: Resources, progress: Progress) -> Subject:
    """About n passages, each a document of its own (equal texts are one), encoded anew: 20 to 40 a second on two idle cores."""
    import torch

    _, texts = passages_of_machine(n)
    documents = Documents.pack((content_hash(text.encode()), text.encode(), "") for text in texts)
    layer, entries = Late(Late.Params(unit_bytes=1 << 20), resources), pack_entries([])
    begun = time.monotonic()
    arrays = layer.build(documents, entries, progress=progress)
    seconds = time.monotonic() - begun
    reader = layer.open(arrays, documents, entries, np.ones(len(documents), bool))
    statistics = layer.collect([(1, layer.statistics(arrays, documents, entries))])
    order = rank_hashes(documents.hashes).tolist()
    ranked = ((documents.hashes[row].tobytes(), documents.content(row)) for row in order)
    asked = [layer.prepare(Request(probe.text), statistics) for probe in choose_probes(ranked, n_probes=N_QUERIES)]
    queries = [query for query in asked if query is not None]
    tokens = Tokens(arrays["tokens"], arrays["scales"], np.diff(arrays["unit_tokens"]))
    padded = torch.nn.utils.rnn.pad_sequence(
        [torch.from_numpy(part) for part in np.split(tokens.dequantised(), tokens.offsets[1:-1])], batch_first=True
    )  # fmt: skip
    rows = np.sort(np.array(order[:N_CANDIDATES], np.int32))

    def exact(query: Any) -> Array:
        scores, at = reader.scan(query)
        best = np.full(len(documents), -np.inf)
        np.maximum.at(best, at, scores)
        return best

    def by_torch(query: Any, k: int, n_threads: int) -> Any:
        torch.set_num_threads(n_threads)
        question = torch.from_numpy(query.payload.vectors.astype(np.float32))
        return torch.topk(torch.matmul(padded, question.T).amax(dim=1).sum(dim=1), min(k, len(padded))).indices.numpy()

    mean = len(tokens.codes) / max(len(tokens.counts), 1)
    return Subject(
        what=f"all-MiniLM-L6-v2, {tokens.codes.shape[1]} dimensions, {mean:.0f} tokens a passage of this machine's texts",
        n_passages=len(tokens.counts),
        segments=[reader],
        halves=(),
        queries=queries,
        exact=exact,
        peers={"torch over all, padded": by_torch, f"our score of {N_CANDIDATES}": lambda q, k, n: reader.score(q, rows, Budget())},
        moments=None,
        index_bytes=sum(array.nbytes for array in arrays.values()),
        encode_per_s=len(tokens.counts) / seconds,
    )
