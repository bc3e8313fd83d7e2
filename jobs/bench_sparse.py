"""The sparse space of real text for `jobs.bench_spaces`, beside a product of scipy's sparse matrix and beside SparseEncoder.encode."""

import time
from typing import Any

import numpy as np

from jobs.bench_corpus import queries_of_stdlib
from jobs.bench_spaces import Subject
from jobs.progress import Progress
from jobs.real_vectors import passages_of_machine
from shards import model_files
from shards.layers.contract import Request, Resources
from shards.layers.sparse import ImpactReader, Sparse, SparseStatistics
from shards.plan import SpaceQuery
from shards.postings import build_impacts
from shards.sparse_encoder import TokenWeights
from shards.types import Array, Arrays

N_ENCODED = 600  # passages: 20 seconds of a core; more are copies of these, whose weights are varied
N_COMPARED = 100  # of them, for the rate of SparseEncoder.encode
N_QUERIES = 200
_VARIED = 0.1  # by how much at most, up or down: no two copies shall score alike


def sparse_subject(n: int, resources: Resources, progress: Progress) -> Subject:
    """n passages by the packaged SPLADE model, a passage a document, in one segment and in two.

    A query costs what its terms' postings cost, which are as many among copies as among other passages of the kind.
    """
    from scipy.sparse import csr_array

    layer = Sparse(Sparse.Params(), resources)
    weights, rate, peer_rate = _encoded(layer, min(n, N_ENCODED), resources, progress)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(np.resize(np.arange(min(n, N_ENCODED)), n))
    sizes = np.diff(weights.offsets)[chosen]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    places = np.arange(offsets[-1]) + np.repeat(weights.offsets[chosen] - offsets[:-1], sizes)
    tokens = weights.tokens[places]
    impacts = weights.weights[places] * rng.uniform(1 - _VARIED, 1 + _VARIED, len(places)).astype(np.float32)
    arrays = _segment(tokens, impacts, offsets, 0, n)
    halves = [_segment(tokens, impacts, offsets, *part) for part in ((0, n // 2), (n // 2, n))]
    matrix = csr_array((impacts, tokens.astype(np.int32), offsets), shape=(n, int(tokens.max()) + 1))
    by_token = matrix.tocsc()

    def ask(query: SpaceQuery, k: int, _n_threads: int) -> Array:
        scores = matrix @ _in_full(query, matrix.shape[1])
        best = np.argpartition(scores, -k)[-k:]
        return best[np.argsort(-scores[best])]

    def exact(query: SpaceQuery) -> Array:
        scores = np.zeros(n, np.float32)
        for token, weight in zip(query.payload.terms.tolist(), query.payload.weights, strict=True):
            if token < by_token.shape[1]:
                of = slice(by_token.indptr[token], by_token.indptr[token + 1])
                scores[by_token.indices[of]] += weight * by_token.data[of]
        return np.where(scores > 0, scores.astype(np.float64), -np.inf)

    asked = (layer.prepare(Request(text), SparseStatistics(n)) for text in queries_of_stdlib(N_QUERIES))
    return Subject(
        what=(
            f"splade-tiny, {n} passages of this machine's texts, {min(n, N_ENCODED)} of them encoded and the others copies with "
            f"varied weights; {len(tokens) / n:.0f} weights a passage; SparseEncoder.encode gives {peer_rate:.1f} a CPU second"
        ),
        n_passages=n,
        segments=[_reader(arrays)],
        halves=[_reader(half) for half in halves],
        queries=[query for query in asked if query is not None],
        exact=exact,
        peers={"scipy CSR": ask},
        moments=None,
        index_bytes=sum(array.nbytes for array in arrays.values()),
        encode_per_s=rate,
        units=lambda query: matrix @ _in_full(query, matrix.shape[1]),
    )


def _encoded(layer: Sparse, n: int, resources: Resources, progress: Progress) -> tuple[TokenWeights, float, float]:
    """Weights of n passages, and how many are encoded in a CPU second: here, and by sentence-transformers in the same process."""
    from sentence_transformers import SparseEncoder

    _, texts = passages_of_machine(n)
    peer = SparseEncoder(str(model_files.locate(layer.params.model, resources)), device="cpu")
    layer.encoder.encode_documents(texts[:10])
    peer.encode_document(texts[:10], show_progress_bar=False)
    begun = time.process_time()
    peer.encode_document(texts[:N_COMPARED], show_progress_bar=False)
    peer_s = time.process_time() - begun
    begun = time.process_time()
    weights = layer.encoder.encode_documents(texts, lambda done: progress("encode", done, n, "passages"))
    return weights, n / (time.process_time() - begun), min(n, N_COMPARED) / peer_s


def _segment(tokens: Array, impacts: Array, offsets: Array, first: int, last: int) -> Arrays:
    """The arrays of a segment of passages [first, last), a document each, which have no spans here."""
    of = slice(offsets[first], offsets[last])
    spans = np.zeros(last - first, np.int64)
    own = offsets[first : last + 1] - offsets[first]
    return build_impacts(tokens[of], impacts[of], own, np.arange(last - first), spans, spans, np.ones(last - first, bool))


def _reader(arrays: Arrays) -> ImpactReader:
    return ImpactReader(arrays, np.ones(len(arrays["in_scope"]), bool))


def _in_full(query: SpaceQuery, size: int) -> Any:
    vector = np.zeros(size, np.float32)
    known = query.payload.terms < size
    vector[query.payload.terms[known]] = query.payload.weights[known]
    return vector
