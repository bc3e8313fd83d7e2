"""Static vectors of real text for `jobs.bench_spaces`, beside faiss: its flat index, and its compressed ones with exact re-scoring."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from jobs.bench_spaces import Subject
from jobs.progress import Progress
from jobs.real_vectors import RealVectors, passages_of_machine, real_vectors
from shards.encoders import StaticEncoder
from shards.errors import BadSpec
from shards.layers.contract import Resources
from shards.layers.vectors import vector_arrays
from shards.layers.vectors_reader import VectorReader
from shards.plan import SpaceQuery
from shards.types import Array, Arrays
from shards.vector_moments import VectorMoments
from shards.vector_sketches import sketch_arrays

N_ENCODED = 5_000  # passages whose encoding is timed
N_RESCORED = 200  # of what faiss's codes bring, as in KERNELS.md
_TRAINED_ON = 50_000  # vectors
Ask = Callable[[SpaceQuery, int, int], Any]


def static_subject(model: str, n: int, resources: Resources, progress: Progress) -> Subject:
    """n passages by a static model, in one segment and in two. Raises BadSpec without faiss."""
    real = real_vectors(n, model, resources, progress)
    n_rows = len(real.row_units) - 1
    middle = int(np.searchsorted(real.row_units, n // 2))
    progress("segments", 0, 2, "of")
    arrays = _segment(real, 0, n_rows)
    progress("segments", 2, 2, "of")
    whole = VectorReader(arrays, np.ones(n_rows, bool))
    halves = [VectorReader(_segment(real, *rows), np.ones(rows[1] - rows[0], bool)) for rows in ((0, middle), (middle, n_rows))]
    of_all = VectorMoments(n, arrays["mean"], arrays["scatter"])

    def exact(query: SpaceQuery) -> Array:
        scores, _ = whole.scan(query)
        return np.maximum.reduceat(scores, real.row_units[:-1])

    return Subject(
        what=real.how,
        n_passages=n,
        segments=[whole],
        halves=halves,
        queries=[SpaceQuery("", "", query) for query in real.queries[::2] if query.any()],
        exact=exact,
        peers=_peers(real.vectors, progress),
        moments=lambda query: of_all.along(query.payload.astype(np.float64)),
        index_bytes=sum(array.nbytes for array in arrays.values()),
        encode_per_s=_encoding_rate(model, resources),
        units=lambda query: real.vectors @ query.payload,
        sketch_bytes=sum(arrays[name].nbytes for name in sketch_arrays(np.zeros((0, 0), np.float32), np.zeros(0))),
    )


def _segment(real: RealVectors, first: int, last: int) -> Arrays:
    """The arrays of a segment of documents first : last, whose passages have no spans here."""
    offsets = real.row_units[first : last + 1]
    vectors = real.vectors[offsets[0] : offsets[-1]]
    spans = np.zeros(len(vectors), np.int64)
    return vector_arrays(vectors, offsets - offsets[0], spans, spans, np.ones(last - first, bool))


def _encoding_rate(model: str, resources: Resources) -> float:
    _, texts = passages_of_machine(N_ENCODED)
    encoder = StaticEncoder(model, resources)
    encoder.encode_documents(texts[:10])
    begun = time.thread_time()
    encoder.encode_documents(texts)
    return len(texts) / (time.thread_time() - begun)


def _peers(vectors: Array, progress: Progress) -> dict[str, Ask]:
    try:
        import faiss
    except ImportError as error:
        raise BadSpec("Spaces of vectors are measured beside faiss, which is not here. Run: pip install faiss-cpu") from error
    dim = vectors.shape[1]
    codes = {
        f"PQ fast-scan {dim // 4}x4, {N_RESCORED} re-scored": faiss.IndexPQFastScan(dim, dim // 4, 4, faiss.METRIC_INNER_PRODUCT),
        f"RaBitQ, {N_RESCORED} re-scored": faiss.IndexRaBitQ(dim, faiss.METRIC_INNER_PRODUCT),
    }
    flat = faiss.IndexFlatIP(dim)
    for i, index in enumerate([flat, *codes.values()]):
        index.train(np.ascontiguousarray(vectors[:_TRAINED_ON]))
        for start in range(0, len(vectors), 100_000):
            index.add(np.ascontiguousarray(vectors[start : start + 100_000]))
        progress("peers", i + 1, 1 + len(codes), "indexes")

    def ask_flat(query: SpaceQuery, k: int, n_threads: int) -> Array:
        faiss.omp_set_num_threads(n_threads)
        return flat.search(query.payload[None], k)[1][0]

    def ask_codes(index: Any) -> Ask:
        def ask(query: SpaceQuery, k: int, n_threads: int) -> Array:
            faiss.omp_set_num_threads(n_threads)
            places = index.search(query.payload[None], max(N_RESCORED, 2 * k))[1][0]
            places = places[places >= 0]
            return places[np.argsort(-(vectors[places] @ query.payload), kind="stable")[:k]]

        return ask

    return {"faiss FlatIP": ask_flat} | {f"faiss {name}": ask_codes(index) for name, index in codes.items()}
