"""Sketches of vectors: they rule out only what scores cannot reach, so results are those of brute force, bit for bit."""

import tracemalloc

import numba
import numpy as np
import pytest
from test_vectors import Hashed, ask, random_units, segment_of, sketch_everywhere

from shards import arrays as array_files
from shards import sketch_kernels, vector_sketches
from shards.encoders import unit_rows
from shards.layers.vectors import vector_arrays
from shards.layers.vectors_reader import VectorReader, kernel_rows
from shards.sketch_kernels import BLOCK, HALF_BLOCK, largest, turn
from shards.types import Budget
from shards.vector_sketches import Sketch, _signs

SKETCH_ARRAYS = ("codes", "gains", "errors", "finer_codes", "finer_gains", "finer_errors", "reach")


def turned(vector: np.ndarray) -> np.ndarray:
    """A vector as sketches see it, by the compiled loop."""
    signs = _signs(len(vector))
    values = np.zeros(signs.shape[1])
    values[: len(vector)] = vector
    turn(values, signs, np.empty_like(values))
    return values


def both_ways(reader: VectorReader, query, allowed, k: int, floor: float = -np.inf) -> list[tuple]:
    """What a search gives through the sketch, and by scoring everything."""
    sketch, results = reader._sketch, []
    assert sketch is not None
    for reader._sketch in (sketch, None):
        f = reader.search(query, allowed, k, Budget(), floor)
        places = (f.rows.tolist(), f.scores.tobytes(), f.starts.tolist(), f.ends.tolist())
        results.append((*places, f.n_matched, f.moments, f.rows_covered, f.rows_total))
    reader._sketch = sketch
    return results


def crowd(seed: int, n: int, dim: int) -> np.ndarray:
    """Clusters, some closer than four bits can tell; equal vectors, zeros, and some a unit in the last place apart."""
    rng = np.random.default_rng([seed, n, dim])
    around = random_units(seed, 8, dim)[rng.integers(8, size=n)]
    vectors = unit_rows(around + rng.standard_normal((n, dim)) * rng.choice([0.0001, 0.01, 0.5]))
    vectors[rng.integers(n, size=n // 10)] = vectors[0]
    close = rng.integers(n, size=n // 10)
    vectors[close] = vectors[1]
    vectors[close, rng.integers(dim, size=len(close))] *= np.float32(1 + 2.0**-23)
    vectors[rng.integers(n, size=5)] = 0.0
    return vectors


# --- codes -------------------------------------------------------------------------------------------------------------------


def test_turning_is_two_changes_of_sign_and_two_hadamard_transforms_with_blocks_dealt_out_between():
    """As FORMAT.md has it, by numpy and matrices, for 3 blocks of 128."""
    matrix = np.ones((1, 1))
    while len(matrix) < 128:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    vector = np.random.default_rng(0).standard_normal(300)
    signs = _signs(300)
    assert signs.shape == (2, 384) and set(signs.ravel()) == {-1.0, 1.0}
    first = (np.pad(vector, (0, 84)) * signs[0]).reshape(3, 128) @ matrix / np.sqrt(128)
    dealt = first.ravel().reshape(128, 3).T.ravel()
    second = (dealt * signs[1]).reshape(3, 128) @ matrix / np.sqrt(128)
    np.testing.assert_allclose(turned(vector), second.ravel(), atol=1e-14)


@pytest.mark.parametrize("dim", [1, 7, 128, 300, 1024])
def test_turning_keeps_products_and_levels_components(dim):
    left, right = np.random.default_rng(dim).standard_normal((2, dim))
    assert turned(left) @ turned(right) == pytest.approx(left @ right, abs=1e-10)
    peak = np.zeros(dim)
    peak[0] = 1.0
    assert np.abs(turned(peak)).max() < 0.4  # of 128 components or more, none keeps it all


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("dim", [5, 100, 384])
def test_codes_stand_for_the_vectors_within_their_error(dim, dtype):
    vectors = crowd(0, 500, dim).astype(dtype)
    centre = vectors.astype(np.float64).mean(axis=0)
    sketch = Sketch.of(kernel_rows(vectors), centre)
    left = np.array([turned(row) for row in vectors.astype(np.float64) - centre])
    size, lengths = left.shape[1], np.linalg.norm(left, axis=1)
    near = np.zeros_like(left)
    for codes, gains, errors in (sketch.coarse, sketch.fine):
        assert (codes.dtype, codes.shape) == (np.uint8, (500, size // 2))
        blocks = codes.reshape(500, -1, HALF_BLOCK)
        numbers = np.concatenate([blocks & 15, blocks >> 4], axis=2).reshape(500, -1) - 7.5
        near += numbers * gains.astype(np.float64)[:, None]
        assert np.linalg.norm(near, axis=1).max() <= sketch.reach
        wrong = np.linalg.norm(left - near, axis=1)
        assert (wrong <= errors).all()
        assert (errors <= wrong + 1e-6).all()
        assert (wrong <= 0.25 * lengths + 1e-7).all()  # each time a quarter at most is left
        lengths = wrong


@pytest.mark.parametrize("portable", [False, True])
def test_products_of_codes_are_exact_on_any_processor(portable, monkeypatch):
    """The largest there are, too, by the instructions of this processor and by those of any. Compiled here: kept code has one of them."""
    product = sketch_kernels._code_product
    if portable:
        monkeypatch.setattr(sketch_kernels, "_dot_avx2", sketch_kernels._dot_portable)

    @numba.njit
    def products(codes, asked, out):
        for i in range(len(codes)):
            out[i] = product(codes.ctypes.data + i * codes.shape[1], asked.ctypes.data, codes.shape[1] // HALF_BLOCK)

    for n_blocks in (1, 3, 8):
        rng = np.random.default_rng(n_blocks)
        codes = rng.integers(256, size=(40, n_blocks * HALF_BLOCK)).astype(np.uint8)
        codes[0], codes[1] = 255, 0
        blocks = codes.reshape(40, n_blocks, HALF_BLOCK).astype(np.int64)
        whole = np.concatenate([blocks & 15, blocks >> 4], axis=2).reshape(40, -1)
        for asked in (rng.integers(-127, 128, n_blocks * BLOCK), np.full(n_blocks * BLOCK, -127), np.full(n_blocks * BLOCK, 127)):
            out = np.empty(40, np.int32)
            products(codes, asked.astype(np.int8), out)
            assert out.tolist() == (whole @ asked).tolist()


@pytest.mark.parametrize("n", [1, 7, 100, 1000])
def test_the_largest_are_found_among_ties(n):
    rng = np.random.default_rng(n)
    for values in (rng.integers(20, size=3000).astype(np.float32), np.sort(rng.random(3000)).astype(np.float32), np.zeros(50, np.float32)):
        values[rng.integers(len(values), size=20)] = -np.inf
        places = largest(values, n)
        expected = np.sort(values[values > -np.inf])[-n:]
        assert len(set(places.tolist())) == len(places)
        assert np.sort(values[places]).tolist() == expected.tolist()


# --- searching ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dim", [3, 64, 256])
def test_sketches_never_change_a_result(seed, dim, monkeypatch):
    """Documents of none to eight passages, deleted ones, filters, floors, any number of hits, any slicing; also float16."""
    rng = np.random.default_rng([seed, dim])
    counts = rng.integers(0, 9, 500)
    vectors = crowd(seed, counts.sum(), dim).astype(np.float16 if seed == 3 else np.float32)
    sketch_everywhere(monkeypatch)
    _, reader = segment_of(vectors, counts, rng.random(500) < rng.choice([0.6, 1.0]))
    for query in (*random_units(seed + 100, 2, dim), vectors[0].astype(np.float32)):
        for slice_bytes in (1 << 24, 10 * reader._sketch.coarse.codes.shape[1]):
            monkeypatch.setattr(vector_sketches, "_SLICE_BYTES", slice_bytes)
            for k in (1, 10, 100, 1000):
                for allowed in (None, rng.random(500) < 0.5, np.arange(500) == 7):
                    by_sketch, by_all = both_ways(reader, ask(query), allowed, k)
                    assert by_sketch == by_all, (seed, dim, k)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e15, 1e30])
def test_vectors_of_any_length_are_searched_exactly(scale, monkeypatch):
    """Inner products as they are (`metric=dot`): lengths from nothing to what float32 can hold."""
    sketch_everywhere(monkeypatch)
    rng = np.random.default_rng(1)
    vectors = (random_units(0, 800, 40) * (rng.random((800, 1)) ** 4) * scale).astype(np.float32)
    _, reader = segment_of(vectors, [2] * 400)
    for query in (vectors[3], vectors[3] / scale):
        for k in (1, 20):
            by_sketch, by_all = both_ways(reader, ask(query), None, k)
            assert by_sketch == by_all


def test_what_is_below_the_floor_may_be_left_out_and_nothing_else(monkeypatch):
    sketch_everywhere(monkeypatch)
    _, reader = segment_of(crowd(0, 900, 32), [3] * 300)
    query = ask(random_units(1, 1, 32)[0])
    everything = reader.search(query, None, 50, Budget())
    for place in (0, 9, 49):
        floor = float(everything.scores[place])
        found = reader.search(query, None, 50, Budget(), floor)
        reach = everything.scores >= floor
        assert found.rows[: reach.sum()].tolist() == everything.rows[reach].tolist()
        assert (found.n_matched, found.moments) == (everything.n_matched, everything.moments)
        assert len(reader.search(query, None, 50, Budget(), np.nextafter(everything.scores[0], 2)).rows) == 0


def test_a_sketch_leaves_few_vectors_to_be_scored(monkeypatch):
    """Of 20,000 alike in all directions, about as many as are wanted."""
    vectors = random_units(0, 20_000, 128)
    sketch = Sketch.of(vectors, vectors.astype(np.float64).mean(axis=0))
    query = random_units(1, 1, 128)[0]
    asked = sketch._asked(query.astype(np.float64))
    most, of_row, row_units = np.empty(20_000, np.float32), np.empty(20_000, np.float32), np.arange(20_001)
    all_rows = np.ones(20_000, bool)
    sketch_kernels.most_of_rows(tuple(sketch.coarse), row_units, all_rows, 0, 20_000, asked.numbers, asked.terms, most, of_row)
    least, finer = sketch_kernels._bounds_of_units(
        tuple(sketch.coarse), tuple(sketch.fine), np.arange(20_000), asked.numbers, asked.finer, asked.finer_terms
    )
    exact = vectors.astype(np.float64) @ query.astype(np.float64)
    assert (exact <= finer).all() and (exact <= most).all() and (least <= exact).all()
    tenth = np.sort(exact)[-10]
    assert 10 <= (finer >= tenth).sum() < 20 < (most >= tenth).sum() < 600


def test_an_ended_budget_leaves_out_whole_documents_only(monkeypatch):
    sketch_everywhere(monkeypatch, slice_bytes=2 * 64)
    _, reader = segment_of(random_units(0, 12, 4), [3, 0, 4, 5])

    class Clock:
        looks = 2

        @property
        def expired(self):
            self.looks -= 1
            return self.looks < 0

    found = reader.search(ask(random_units(1, 1, 4)[0]), None, 10, Clock())
    assert found.rows.tolist() == [0]  # slices are of whole documents: the first alone, then the empty one
    assert (found.n_matched, found.rows_covered, found.rows_total) == (3, 2, 4)
    assert found.moments.n == 12
    nothing = reader.search(ask(random_units(1, 1, 4)[0]), None, 10, Budget(-1))
    assert (len(nothing.rows), nothing.n_matched, nothing.rows_covered) == (0, 0, 0)


# --- in segments -------------------------------------------------------------------------------------------------------------


def test_a_segment_of_an_older_build_is_read_as_a_new_one():
    """Its arrays have no codes: they are made when it is opened, with the same bits."""
    vectors = random_units(0, 3_000, 24, 0.5)
    arrays, reader = segment_of(vectors, [1] * 3_000)
    old = {name: array for name, array in arrays.items() if name not in SKETCH_ARRAYS}
    older = VectorReader(old, np.ones(3_000, bool))
    assert [array.tobytes() for array in older._sketch.coarse] == [arrays[name].tobytes() for name in ("codes", "gains", "errors")]
    query = ask(random_units(1, 1, 24)[0])
    assert both_ways(older, query, None, 10) == both_ways(reader, query, None, 10)


def test_an_old_segment_merges_with_a_new_one_as_if_built_together(monkeypatch):
    sketch_everywhere(monkeypatch)
    layer = Hashed()
    vectors, row_units = random_units(0, 60, 12), np.arange(61)
    spans, scope = np.arange(60), np.ones(60, bool)
    whole = vector_arrays(vectors, row_units, spans, spans + 1, scope)
    parts = []
    for rows in (np.arange(0, 60, 2), np.arange(1, 60, 2)):
        part = vector_arrays(vectors[rows], np.arange(31), spans[rows], spans[rows] + 1, scope[rows])
        parts.append((part, rows.astype(np.int32)))
    for name in SKETCH_ARRAYS:
        del parts[0][0][name]
    merged = layer.merge(parts, range(60), None)
    assert set(merged) == set(whole)
    assert array_files.dump(merged) == array_files.dump(whole)
    assert merged["codes"].shape == (60, 64)


@pytest.mark.parametrize(("n", "kept"), [(40, False), (2_047, False), (2_048, True)])
def test_small_segments_keep_no_sketch(n, kept):
    arrays, reader = segment_of(random_units(0, n, 48), [1] * n)
    assert arrays["codes"].shape == ((n, 64) if kept else (0, 0))
    assert (reader._sketch is not None) == kept


def test_vectors_and_codes_are_searched_where_they_lie(tmp_path):
    """A mapped file of 24 MB: neither way of searching may copy it."""
    n, dim = 12_000, 384
    vectors = np.zeros((n, dim), np.float32)
    vectors[np.arange(n), np.arange(n) % dim] = 1
    arrays, _ = segment_of(vectors, [1] * n)
    (tmp_path / "vectors").write_bytes(array_files.dump(arrays))
    mapped, _ = array_files.load(tmp_path / "vectors")
    reader = VectorReader(mapped, np.ones(n, bool))
    both_ways(reader, ask(vectors[0]), None, 10)  # compiles
    tracemalloc.start()
    by_sketch, by_all = both_ways(reader, ask(vectors[0]), None, 10)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert by_sketch == by_all
    assert peak < vectors.nbytes / 10


# --- in haste ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "dtype"), [(7, np.float32), (128, np.float16), (300, np.float32)])
def test_a_sketch_made_in_haste_finds_what_scoring_everything_finds(dim, dtype, monkeypatch):
    """Also of clusters closer than its codes can tell, of rows without passages, within a scope, from a floor, and cut off by the time."""
    sketch_everywhere(monkeypatch)
    monkeypatch.setattr(vector_sketches, "_MOST_ERROR", 1.0)
    rng = np.random.default_rng(dim)
    for seed, vectors in enumerate((crowd(1, 400, dim), random_units(2, 400, dim, 0.1))):
        counts = rng.multinomial(400, np.full(150, 1 / 150)).tolist()
        row_units = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        spans = (np.arange(400), np.arange(400) + 1, np.ones(150, bool))
        reader = VectorReader(vector_arrays(vectors.astype(dtype), row_units, *spans, hasty=True), rng.random(150) < 0.9)
        slow = VectorReader(vector_arrays(vectors.astype(dtype), row_units, *spans, hasty=True), reader._live)
        slow._is_hasty = False
        assert reader.sketched() and not slow.sketched()
        for k in (1, 3, 40, 200):
            for asked in (vectors[seed], random_units(k, 1, dim)[0], np.zeros(dim)):
                for allowed, floor in ((None, -np.inf), (rng.random(150) < 0.5, 0.2)):
                    rows, scores = reader.best(ask(asked), allowed, k, Budget(), floor)
                    expected = slow.best(ask(asked), allowed, k, Budget())
                    high = expected[1] >= floor
                    assert (rows.tolist(), scores.tobytes()) == (expected[0][high].tolist(), expected[1][high].tobytes())
        assert reader.best(ask(vectors[0]), None, 5, Budget(0.0))[0].tolist() == []


def test_no_sketch_is_made_in_haste_of_vectors_that_lie_along_one_axis():
    """Four bits for the one component leave nothing for the others."""
    vectors = np.random.default_rng(0).standard_normal((3_000, 64)).astype(np.float32)
    assert Sketch.in_haste(vectors) is not None
    vectors[:, 0] *= 100
    assert Sketch.in_haste(vectors) is None
    assert Sketch.in_haste(np.ones((3_000, 64), np.float32)) is None  # of no length at all, less their mean
