"""The compiled loops over sketches: four bits a component, and how far a score from them can be from the canonical one.

Nothing here decides a score: sketches say which vectors need to be scored at all.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from shards.compiled import jit
from shards.vector_kernels import LANES, _inner_product, component

AHEAD = 4  # vectors that are fetched while one is scored
BLOCK = 128  # components that are turned together, and that 64 bytes of codes hold
HALF_BLOCK = BLOCK // 2
_CLIP = 0.95  # of the largest component is the end of the scale. Less is better for coarse codes (error of real vectors less their
# mean, .73 long: .083; at .92 to .6, whichever is best for each, .075), but the few components that it cuts spoil fine ones (.006; .015)
_ROUNDING = 1e-9  # relative; covers what sums in float64 lose here and in canonical scores (1e-12 at 65,536 components)

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


@intrinsic
def _code_product(_context, codes, query, n_blocks):
    """Sum over n blocks of code x query, int32, exact. codes: address of 64 n bytes; query: address of 128 n int8.

    Byte b of a block has component b in its low four bits, and component 64 + b in its high ones. On x86 with AVX2 by
    vpmaddubsw, which nothing else makes LLVM use and which is as fast as memory here (300k x 384: 2.0 ms on one core, the
    portable form 4.4, plain loops 5.5); it cannot saturate, as 2 x 15 x 128 is less than 2^15.
    """

    def generate(context, builder, _signature, arguments):
        features = str(context.codegen().magic_tuple()[2]).split(",")
        dot = _dot_avx2 if "+avx2" in features else _dot_portable
        return _over_blocks(builder, *arguments, dot)

    return types.int32(types.uintp, types.uintp, types.intp), generate


@intrinsic
def _fetch(_context, address):
    """Has the 64 bytes at an address brought from memory, and does not wait for them."""

    def generate(_context, builder, _signature, arguments):
        pointer = builder.inttoptr(arguments[0], _I8.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type] + [_I32] * 3)
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(fetch, [pointer, ir.Constant(_I32, 0), ir.Constant(_I32, 3), ir.Constant(_I32, 1)])  # to read, to be kept, data
        return ir.Constant(_I32, 0)

    return types.int32(types.uintp), generate


def _vector(of, n):
    return ir.VectorType(of, n)


def _all(of, n, value):
    return ir.Constant(_vector(of, n), [value] * n)


def _over_blocks(builder, codes, query, n_blocks, dot):
    """A loop that adds up what `dot` gives for a block, 8 x int32."""
    lanes, before = _vector(_I32, 8), builder.block
    body, after = builder.append_basic_block("block"), builder.append_basic_block("after")
    builder.branch(body)
    builder.position_at_end(body)
    number, total = builder.phi(_I64), builder.phi(lanes)
    low = builder.add(codes, builder.mul(number, ir.Constant(_I64, HALF_BLOCK)))
    asked = builder.add(query, builder.mul(number, ir.Constant(_I64, BLOCK)))
    added = builder.add(total, dot(builder, low, asked))
    following = builder.add(number, ir.Constant(_I64, 1))
    for phi, first, again in ((number, ir.Constant(_I64, 0), following), (total, _all(_I32, 8, 0), added)):
        phi.add_incoming(first, before)
        phi.add_incoming(again, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, n_blocks), body, after)
    builder.position_at_end(after)
    n = 8
    while n > 1:
        n //= 2
        unused = ir.Constant(added.type, ir.Undefined)
        halves = [ir.Constant(_vector(_I32, n), list(range(at, at + n))) for at in (0, n)]
        added = builder.add(*(builder.shuffle_vector(added, unused, half) for half in halves))
    return builder.extract_element(added, ir.Constant(_I32, 0))


def _pieces(builder, codes, query, width):
    """The block in pieces of so many components: (codes, query), each (width) x int8."""

    def load(address, at):
        address = builder.add(address, ir.Constant(_I64, at))
        return builder.load(builder.inttoptr(address, _vector(_I8, width).as_pointer()), align=1)

    for at in range(0, HALF_BLOCK, width):
        both = load(codes, at)
        yield builder.and_(both, _all(_I8, width, 15)), load(query, at)
        yield builder.lshr(both, _all(_I8, width, 4)), load(query, HALF_BLOCK + at)


def _dot_avx2(builder, codes, query):
    def call(name, result, arguments):
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.avx2.{name}"), arguments)

    total = _all(_I16, 16, 0)
    for code, asked in _pieces(builder, codes, query, 32):
        total = builder.add(total, call("pmadd.ub.sw", _vector(_I16, 16), [code, asked]))
    return call("pmadd.wd", _vector(_I32, 8), [total, _all(_I16, 16, 1)])


def _dot_portable(builder, codes, query):
    total = _all(_I16, 8, 0)  # of 16 products of at most 15 x 128
    for code, asked in _pieces(builder, codes, query, 8):
        product = builder.mul(builder.zext(code, _vector(_I16, 8)), builder.sext(asked, _vector(_I16, 8)))
        total = builder.add(total, product)
    return builder.sext(total, _vector(_I32, 8))


@jit
def turn(values, signs, spare):
    """Turns (p,) float64 in place: twice change signs, then Walsh-Hadamard in blocks of 128; between, the blocks are dealt out like cards.

    After it components are alike in size, whatever they were, so that four bits serve each equally (Ailon & Chazelle 2009;
    Gao & Long 2024, section 3.1.2). Products are kept. p: a multiple of 128; signs: (2, p) float64; spare: (p,), overwritten.
    """
    n_blocks = len(values) // BLOCK
    for turned in range(2):
        for i in range(len(values)):
            values[i] *= signs[turned, i]
        half = 1
        while half < BLOCK:
            for start in range(0, len(values), 2 * half):
                for i in range(start, start + half):
                    low, high = values[i], values[i + half]
                    values[i], values[i + half] = low + high, low - high
            half *= 2
        if turned == 0:
            for i in range(len(values)):
                spare[i % n_blocks * BLOCK + i // n_blocks] = values[i]
            values[:] = spare
    for i in range(len(values)):
        values[i] /= BLOCK


@jit
def _product(left, right, lanes):
    """Of two float64 vectors whose length is a multiple of LANES, in one order."""
    lanes[:] = 0.0
    for start in range(0, len(left), LANES):
        for lane in range(LANES):
            lanes[lane] += left[start + lane] * right[start + lane]
    total = 0.0
    for lane in range(LANES):
        total += lanes[lane]
    return total


@jit
def make_sketches(vectors, centre, signs, coarse, fine):
    """Each row's sketch: row - centre, turned, is near gain x (code - 7.5), no further than error, and nearer with the finer codes of
    what these leave over. Returns the longest of gain x (code - 7.5), both together.

    vectors: (u, dim), as kernels take them; centre: (dim,) float64; signs: see `turn`
    coarse, fine: (codes (u, p / 2) uint8, gains (u,) float32, errors (u,) float32), written
    """
    size = signs.shape[1]
    values, spare, rounded, lanes = np.empty(size), np.empty(size), np.empty(size), np.empty(LANES)
    longest = 0.0
    for row in range(len(vectors)):
        values[len(centre) :] = 0.0
        for i in range(len(centre)):
            values[i] = component(vectors[row, i]) - centre[i]
        turn(values, signs, spare)
        length = np.sqrt(_product(values, values, lanes))
        spare[:] = values
        coarse[1][row] = _code(values, _CLIP, rounded, coarse[0][row], lanes)
        coarse[2][row] = _no_less(np.sqrt(_product(values, values, lanes)) + _ROUNDING * length)
        fine[1][row] = _code(values, 1.0, rounded, fine[0][row], lanes)
        fine[2][row] = _no_less(np.sqrt(_product(values, values, lanes)) + _ROUNDING * length)
        for i in range(size):
            spare[i] -= values[i]
        longest = max(longest, np.sqrt(_product(spare, spare, lanes)), length + np.float64(coarse[2][row]))
    return longest * (1.0 + _ROUNDING)


@jit
def make_coarse(vectors, centre, coarse):
    """Each row's coarse code alone, without turning: row - centre is near gain x (code - 7.5), no further than error.

    vectors: (u, dim), as kernels take them; centre: (dim,) float64; coarse: as in `make_sketches`, written
    Returns the longest of gain x (code - 7.5), and the share of lengths that errors are, squares added up.
    """
    size = 2 * coarse[0].shape[1]
    values, rounded, lanes = np.zeros(size), np.empty(size), np.empty(LANES)
    longest, left, all_of_it = 0.0, 0.0, 0.0
    for row in range(len(vectors)):
        values[len(centre) :] = 0.0
        for i in range(len(centre)):
            values[i] = component(vectors[row, i]) - centre[i]
        square = _product(values, values, lanes)
        coarse[1][row] = _code(values, _CLIP, rounded, coarse[0][row], lanes)
        rest = _product(values, values, lanes)
        coarse[2][row] = _no_less(np.sqrt(rest) + _ROUNDING * np.sqrt(square))
        longest = max(longest, np.sqrt(square) + np.float64(coarse[2][row]))
        left, all_of_it = left + rest, all_of_it + square
    return longest * (1.0 + _ROUNDING), np.sqrt(left / all_of_it) if all_of_it > 0.0 else 1.0


@jit
def _code(values, clip, rounded, codes, lanes):
    """Writes the codes of values, (p,) float64, and leaves in `values` what they do not say. Returns the gain.

    clip: which part of the largest value is the end of the scale. The gain is the best there is: <values, code> / <code, code>.
    """
    top = 0.0
    for value in values:
        top = max(top, abs(value))
    step, gain = top * clip / 7.5, np.float32(0.0)
    rounded[:] = 0.5
    if step > 0.0:
        for i in range(len(values)):
            rounded[i] = min(max(np.floor(values[i] / step), -8.0), 7.0) + 0.5
        gain = np.float32(_product(values, rounded, lanes) / _product(rounded, rounded, lanes))
    for block in range(len(values) // BLOCK):
        for i in range(HALF_BLOCK):
            low, high = rounded[block * BLOCK + i], rounded[block * BLOCK + HALF_BLOCK + i]
            codes[block * HALF_BLOCK + i] = np.uint8(np.int64(low + 7.5) | np.int64(high + 7.5) << 4)
    for i in range(len(values)):
        values[i] -= np.float64(gain) * rounded[i]
    return gain


@jit
def _no_less(bound):
    """A float64 as float32, rounded up: a unit in the last place is 1.2e-7 of the number."""
    return np.float32(bound + abs(bound) * 1.3e-7 + 1e-44)


@jit
def most_of_rows(coarse, row_units, wanted, first, last, asked, terms, most, most_of_row):
    """What the units of rows first : last can score at most, written to `most` (u,) float32, and for each row the most of its units'.

    coarse: as in `make_sketches`; row_units: (r + 1,) int64; wanted: (r,) bool, others get -inf, as rows without units do
    asked: (p,) int8; terms: (base, step, length): a unit scores base + step x gain x <code - 7.5, asked> +- error x length, and
        base has what else can be wrong; most_of_row: (r,) float32, written
    """
    codes, gains, errors = coarse
    base, step, length = terms
    codes_at, asked_at, n_bytes = codes.ctypes.data, asked.ctypes.data, codes.shape[1]
    n_blocks, middle = n_bytes // HALF_BLOCK, _middle(asked)
    for row in range(first, last):
        best = np.float32(-np.inf)
        if wanted[row]:
            for unit in range(row_units[row], row_units[row + 1]):
                product = _code_product(codes_at + unit * n_bytes, asked_at, n_blocks) - middle
                most[unit] = _no_less(base + step * np.float64(gains[unit]) * product + np.float64(errors[unit]) * length)
                best = max(best, most[unit])
        most_of_row[row] = best


@jit
def _middle(asked):
    """What a code of 7.5 everywhere would give."""
    total = 0.0
    for value in asked:
        total += value
    return 7.5 * total


@jit
def _bounds_of_units(coarse, fine, units, asked, finer_asked, terms):
    """Between what units can score by both codes: (least (m,) float64, most (m,) float32).

    asked, finer_asked: (p,) int8, the question and what rounding it left, rounded again; terms: (middle, step, finer step, length, other):
        a score is middle + what codes and question say +- (error x length + other)
    """
    base, step, finer_step, length, other = terms
    n_bytes = coarse[0].shape[1]
    n_blocks, middle, finer_middle = n_bytes // HALF_BLOCK, _middle(asked), _middle(finer_asked)
    least, most = np.empty(len(units), np.float64), np.empty(len(units), np.float32)
    for i in range(len(units)):
        near = base
        for codes, gains, _errors in (coarse, fine):
            at, gain = codes.ctypes.data + units[i] * n_bytes, np.float64(gains[units[i]])
            near += step * gain * (_code_product(at, asked.ctypes.data, n_blocks) - middle)
            near += finer_step * gain * (_code_product(at, finer_asked.ctypes.data, n_blocks) - finer_middle)
        error = np.float64(fine[2][units[i]]) * length + other
        least[i], most[i] = near - error, _no_less(near + error)
    return least, most


@jit
def _kth(values, k):
    """The k-th largest of (m,) float64, m >= k."""
    return np.partition(values, len(values) - k)[len(values) - k]


@jit
def largest(values, n):
    """Places of the n largest of (m,) float32, in no order, which of equals is not said; fewer where there are not so many above -inf."""
    room = max(4 * n, 64)
    places, kept = np.empty(room, np.int64), np.empty(room, np.float32)
    n_kept, floor = 0, np.float32(-np.inf)
    for i in range(len(values)):
        if values[i] > floor:
            places[n_kept], kept[n_kept] = i, values[i]
            n_kept += 1
            if n_kept == room:
                n_kept, floor = _keep_largest(places, kept, n_kept, n)
    if n_kept > n:
        n_kept, _ = _keep_largest(places, kept, n_kept, n)
    return places[:n_kept]


@jit
def _keep_largest(places, kept, n_kept, n):
    """Leaves the n largest of the first n_kept; returns (n, the smallest of them)."""
    floor = np.partition(kept[:n_kept], n_kept - n)[n_kept - n]
    ties = n
    for i in range(n_kept):
        ties -= kept[i] > floor
    left = 0
    for i in range(n_kept):
        tie = kept[i] == floor
        if kept[i] > floor or (tie and ties > 0):
            ties -= tie
            places[left], kept[left] = places[i], kept[i]
            left += 1
    return left, floor


@jit
def best_rows(vectors, sketch, query, question, row_units, most, most_of_row, n_rows, k, floor):
    """The rows among the first n_rows that can be of the k best and score `floor` at least: (units (m,) int64, scores (m,) float64), in
    order of row, each row's best unit, the first of equals, and its canonical score; all rows that score as the k-th best or more.

    vectors: (u, dim), as kernels take them; sketch: (coarse, fine); query: (dim,) float64 that holds float32 values
    question: (asked, finer_asked, terms) of `_bounds_of_units`; most, most_of_row: of `most_of_rows`

    A floor that k rows reach rules out what cannot reach it. It rises three times: by fine codes of the rows that are best by
    coarse ones, then by scores of those that are best by fine ones, each time dearer to read and fewer.
    """
    seeds = largest(most_of_row[:n_rows], 2 * k)
    if len(seeds) >= k:
        units = np.empty(len(seeds), np.int64)
        for i in range(len(seeds)):
            units[i] = row_units[seeds[i]]
            while most[units[i]] < most_of_row[seeds[i]]:
                units[i] += 1
        least, _ = _bounds_of_units(sketch[0], sketch[1], units, question[0], question[1], question[2])
        floor = max(floor, _kth(least, k))
    left, of_row = _units_above(most, most_of_row, row_units, n_rows, floor)
    _, finer = _bounds_of_units(sketch[0], sketch[1], left, question[0], question[1], question[2])
    scores = np.full(len(left), -np.inf)
    first = np.sort(largest(finer, k + k // 4 + 8))  # of more units than rows, as some are of one row
    lanes = np.empty(LANES, np.float64)
    best, n_best = np.empty(len(first), np.float64), 0
    for i in range(len(first)):
        score = _inner_product(vectors[left[first[i]]], query, lanes)
        scores[first[i]], finer[first[i]] = score, -np.inf
        if i and of_row[first[i]] == of_row[first[i - 1]]:
            best[n_best - 1] = max(best[n_best - 1], score)
        else:
            best[n_best] = score
            n_best += 1
    if n_best >= k:
        floor = max(floor, _kth(best[:n_best], k))
    for i in range(len(left)):
        if finer[i] >= floor:
            scores[i] = _inner_product(vectors[left[i]], query, lanes)
    return _best_of_rows(left, of_row, scores, floor)


@jit
def best_rows_coarsely(vectors, query, row_units, most, most_of_row, n_rows, k, floor):
    """As `best_rows`, by coarse codes alone: what these do not rule out is scored."""
    seeds = largest(most_of_row[:n_rows], 2 * k)
    lanes = np.empty(LANES, np.float64)
    if len(seeds) >= k:
        best = np.full(len(seeds), -np.inf)
        for i in range(len(seeds)):
            for unit in range(row_units[seeds[i]], row_units[seeds[i] + 1]):
                best[i] = max(best[i], _inner_product(vectors[unit], query, lanes))
        floor = max(floor, _kth(best, k))
    left, of_row = _units_above(most, most_of_row, row_units, n_rows, floor)
    scores = np.empty(len(left))
    start, n_bytes = vectors.ctypes.data, vectors.shape[1] * vectors.itemsize
    for i in range(len(left)):
        if i + AHEAD < len(left):  # they lie apart: without this, half of the time is waited for memory
            for at in range(0, n_bytes, 64):
                _fetch(start + left[i + AHEAD] * n_bytes + at)
        scores[i] = _inner_product(vectors[left[i]], query, lanes)
    return _best_of_rows(left, of_row, scores, floor)


@jit
def _best_of_rows(units, rows, scores, floor):
    """Of units that score `floor` each row's best, the first of equals: (units, scores). rows: ascending; results move to the front."""
    n_found, before, at = 0, -1, 0
    for i in range(len(units)):
        if not scores[i] >= floor or scores[i] == -np.inf:
            continue
        if rows[i] != before:
            before, at = rows[i], n_found
            n_found += 1
            units[at], scores[at] = units[i], scores[i]
        elif scores[i] > scores[at]:
            units[at], scores[at] = units[i], scores[i]
    return units[:n_found], scores[:n_found]


@jit
def _units_above(most, most_of_row, row_units, n_rows, floor):
    """Units of wanted rows that can score `floor`, and their rows: (m,) int64 each, ascending."""
    n = 0
    for row in range(n_rows):
        if most_of_row[row] >= floor and most_of_row[row] > -np.inf:
            for unit in range(row_units[row], row_units[row + 1]):
                n += most[unit] >= floor
    units, rows = np.empty(n, np.int64), np.empty(n, np.int64)
    n = 0
    for row in range(n_rows):
        if most_of_row[row] >= floor and most_of_row[row] > -np.inf:
            for unit in range(row_units[row], row_units[row + 1]):
                if most[unit] >= floor:
                    units[n], rows[n] = unit, row
                    n += 1
    return units, rows
