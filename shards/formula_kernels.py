"""The compiled loops of formulas: symbol pairs of trees, how many two formulas share, and which variables stand for which.

A **pair** is (ancestor, descendant, edges between them), where variables and numbers are only that: Zanibbi et al. 2016, section 3.1
(symbol pairs with wildcards). Its key is a hash of the three. A sign alone is a pair of a kind, too: where trees differ throughout,
formulas of the same signs still have something in common.

Everything that is added up is a whole number, so sums have the same bits in any order.
"""

import numpy as np

from shards.compiled import jit
from shards.formula_trees import OPERATOR_ROOT

LAYOUT_WINDOW, OPERATOR_WINDOW = 2, 3  # longest path of a pair, edges
SIGN_WEIGHT, LAYOUT_WEIGHT, OPERATOR_WEIGHT = 1, 1, 2  # what a pair counts; nearer ones are the more numerous anyway
MAX_PAIRS = 4096  # of one formula
MAX_VARIABLES = 32  # of one formula that can stand for others; more are only themselves
MAX_TF = 255
BETTER_TREE = 0.88  # what the tree that sees more counts for
# What a pair counts, of FULL, when its variables are others under the one-to-one renaming, when its numbers are others, and when only
# the kinds of its signs agree.
FULL, RENAMED, OTHER_NUMBER, OTHER_NAME = 16, 14, 7, 3
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ONE, _TWO, _THREE = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0xD6E8FEB86659FD93)
_VARIABLE, _NUMBER = np.uint64(1), np.uint64(2)
_KIND = np.uint64(62)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


@jit
def mixed(value):
    """splitmix64's finaliser: Steele, Lea & Flood 2014."""
    value = (value ^ (value >> _S30)) * _ONE
    value = (value ^ (value >> _S27)) * _TWO
    return value ^ (value >> _S31)


@jit
def generalised(label):
    """The label, or that of its kind where it is a variable or a number."""
    kind = label >> _KIND
    return label if kind == np.uint64(0) else kind * _GOLDEN


@jit
def pairs_of(labels, parents, edges, keys, ancestors, descendants, weights):
    """Writes a formula's pairs and gives their number. labels, parents, edges: its nodes (`formula_trees.Trees`).

    keys: uint64; ancestors, descendants: int16 places of the two nodes (equal for a sign alone); weights: uint8.
    """
    n = 0
    for i in range(len(labels)):
        own = generalised(labels[i])
        in_layout = edges[i] < OPERATOR_ROOT
        if in_layout and n < MAX_PAIRS:
            keys[n] = mixed(own + _THREE)
            ancestors[n] = descendants[n] = i
            weights[n] = SIGN_WEIGHT
            n += 1
        path, j = np.uint64(1), i
        for _step in range(LAYOUT_WINDOW if in_layout else OPERATOR_WINDOW):
            if np.int64(parents[j]) == j or n >= MAX_PAIRS:
                break
            path = mixed(path * _GOLDEN + np.uint64(edges[j]))
            j = np.int64(parents[j])
            keys[n] = mixed(generalised(labels[j]) * _TWO + mixed(own * _GOLDEN + path))
            ancestors[n], descendants[n] = j, i
            weights[n] = LAYOUT_WEIGHT if in_layout else OPERATOR_WEIGHT
            n += 1
    return n


@jit
def tree_of(weight):
    """0 for the layout tree, 1 for the operator tree: told by what a pair counts."""
    return 1 if weight == OPERATOR_WEIGHT else 0


@jit
def all_pairs(node_offsets, node_labels, labels, parents, edges):
    """The pairs of many formulas: keys uint64 and units int32, in order of unit; and what each unit's count in all, (u, 2) int32: those of
    its layout and of its operators.

    node_offsets: (u + 1,); node_labels: (nodes,) number of each node's label among `labels`
    """
    n_units = len(node_offsets) - 1
    keys, ancestors, descendants = np.empty(MAX_PAIRS, np.uint64), np.empty(MAX_PAIRS, np.int16), np.empty(MAX_PAIRS, np.int16)
    weights = np.empty(MAX_PAIRS, np.uint8)
    capacity = 8 * len(node_labels) + 16
    all_keys, all_units, totals = np.empty(capacity, np.uint64), np.empty(capacity, np.int32), np.zeros((n_units, 2), np.int32)
    done = 0
    for unit in range(n_units):
        lo, hi = node_offsets[unit], node_offsets[unit + 1]
        n = pairs_of(labels[node_labels[lo:hi]], parents[lo:hi], edges[lo:hi], keys, ancestors, descendants, weights)
        for i in range(n):
            all_keys[done + i] = keys[i]
            all_units[done + i] = unit
            totals[unit, tree_of(weights[i])] += weights[i]
        done += n
    return all_keys[:done], all_units[:done], totals


@jit
def counted(numbers, units, n_keys):
    """Postings: (n_keys + 1,) int64 offsets into units int32, ascending, and how often each holds the key, uint8.

    numbers: (p,) int32, of the key of each pair; units: (p,) int32, ascending
    """
    offsets = np.zeros(n_keys + 1, np.int64)
    last = np.full(n_keys, -1, np.int32)
    for i in range(len(numbers)):
        if last[numbers[i]] != units[i]:
            last[numbers[i]] = units[i]
            offsets[numbers[i] + 1] += 1
    for key in range(n_keys):
        offsets[key + 1] += offsets[key]
    following = offsets[:-1].copy()
    posting_units, posting_tfs = np.empty(offsets[-1], np.int32), np.zeros(offsets[-1], np.uint8)
    last[:] = -1
    for i in range(len(numbers)):
        key = numbers[i]
        if last[key] != units[i]:
            last[key] = units[i]
            posting_units[following[key]] = units[i]
            following[key] += 1
        if posting_tfs[following[key] - 1] < MAX_TF:
            posting_tfs[following[key] - 1] += np.uint8(1)
    return offsets, posting_units, posting_tfs


@jit
def add_shared(starts, stops, posting_units, posting_tfs, counts, rarities, weights, shared_rarity, shared_weight):
    """Adds up what each unit shares with a question: per key of it, the lesser of both counts, times its weights.

    starts, stops: (k,) int64, the postings of each key; counts: (k,) how often the question has it; rarities, weights: (k,) int32.
    shared_rarity, shared_weight: (u, 2) int32, by tree, zeros at first
    """
    for key in range(len(starts)):
        tree = tree_of(weights[key])
        for i in range(starts[key], stops[key]):
            n = min(np.int32(posting_tfs[i]), counts[key])
            shared_rarity[posting_units[i], tree] += n * rarities[key]
            shared_weight[posting_units[i], tree] += n * weights[key]


@jit
def overlap(shared_rarity, asked, shared_weight, held):
    """How much of a question a formula has and how much else, in [0, 1]; all four: (2,) whole numbers, of the layout and of the operators.

    Of each tree the share of the question that is found, by rarity (recall), times the fourth root of the share of the formula that was
    asked for, by weight (precision). Dice's coefficient weighs both alike, and so leaves out the formula that holds all that was asked as
    a part: 0.04 where it is fifty times as large, here 0.38. nDCG@10 of `jobs/formula_families.py`, seeds 0 to 2: 0.974 against 0.970
    for an F measure with recall twice as heavy and 0.971 for the square root. Then the mean of both trees, in which the one that sees
    more counts more: one notation turned into another changes the layout, what cannot be parsed spoils the operators.
    """
    low, high = 1.0, 0.0
    for tree in range(2):
        value = 0.0
        if shared_rarity[tree] > 0 and shared_weight[tree] > 0:
            recall, precision = shared_rarity[tree] / asked[tree], shared_weight[tree] / held[tree]
            value = recall * np.sqrt(np.sqrt(precision))
        if tree == 1 and asked[1] == 0 and held[1] == 0:
            value = low
        low, high = min(low, value), max(high, value)
    return BETTER_TREE * high + (1.0 - BETTER_TREE) * low


@jit
def row_bounds(unit_rows, shared_rarity, shared_weight, totals, asked, cut, wanted, bounds):
    """The best overlap of each wanted row's units, where it reaches the cut: written to bounds (rows,) float64; and how many units do."""
    n_matched = 0
    for unit in range(len(unit_rows)):
        row = unit_rows[unit]
        if wanted[row] and (shared_weight[unit, 0] or shared_weight[unit, 1]):
            bound = overlap(shared_rarity[unit], asked, shared_weight[unit], totals[unit])
            if bound >= cut:
                n_matched += 1
                bounds[row] = max(bounds[row], bound)
    return n_matched


@jit
def variables_of(labels, slots, variables):
    """The distinct variables of a formula in order of first occurrence; gives their number.

    slots: (n,) int16, which one each node is, else -1
    """
    n = 0
    for i in range(len(labels)):
        slots[i] = -1
        if labels[i] >> _KIND == _VARIABLE:
            for slot in range(n):
                if variables[slot] == labels[i]:
                    slots[i] = slot
                    break
            if slots[i] < 0 and n < MAX_VARIABLES:
                variables[n] = labels[i]
                slots[i] = n
                n += 1
    return n


@jit
def _same(asked_label, asked_slot, label, slot, renaming):
    """What is left of FULL where a question's sign meets a formula's of the same kind; renaming: (v,) the slot each variable stands for."""
    if asked_label >> _KIND == _VARIABLE and asked_slot >= 0:
        if slot < 0 or renaming[asked_slot] != slot:
            return OTHER_NAME
        return FULL if asked_label == label else RENAMED
    if asked_label == label:
        return FULL
    return OTHER_NUMBER if asked_label >> _KIND == _NUMBER else OTHER_NAME


@jit
def _renaming(groups, n, firsts, lasts, labels, slots, n_of_key, asked, n_asked_variables, variables, n_variables, support, renaming):
    """Which variable of the formula each of the question's stands for, one to one: greedily, those first that meet in most pairs.

    groups, firsts, lasts: (n,) key, ancestor and descendant of the formula's pairs that the question has too.
    support: scratch, (v, v) int64.
    Ties go to the same letter, then to those that come first in their formulas.
    """
    support[:n_asked_variables, :n_variables] = 0
    for i in range(n):
        key = groups[i]
        a, d = firsts[i], lasts[i]
        lo, hi = asked.pair_offsets[key], asked.pair_offsets[key + 1]
        worth = np.int64(asked.rarities[key]) * 64 // max(n_of_key[key], hi - lo)
        for j in range(lo, hi):
            qa, qd = asked.ancestors[j], asked.descendants[j]
            once = worth
            for q, c in ((qa, a), (qd, d)):
                if asked.labels[q] >> _KIND == _NUMBER and asked.labels[q] != labels[c]:
                    once = worth // 2
            if asked.slots[qd] >= 0 and slots[d] >= 0:
                support[asked.slots[qd], slots[d]] += once
            if qa != qd and asked.slots[qa] >= 0 and slots[a] >= 0:
                support[asked.slots[qa], slots[a]] += once
    for q in range(n_asked_variables):
        renaming[q] = -1
        for c in range(n_variables):
            support[q, c] = support[q, c] * 8 + (support[q, c] if asked.variables[q] == variables[c] else 0)
    for _round in range(min(n_asked_variables, n_variables)):
        best, best_q, best_c = np.int64(0), -1, -1
        for q in range(n_asked_variables):
            for c in range(n_variables):
                if support[q, c] > best:
                    best, best_q, best_c = support[q, c], q, c
        if best_q < 0:
            break
        renaming[best_q] = best_c
        support[best_q, :n_variables] = 0
        support[:n_asked_variables, best_c] = 0


@jit
def _agreement(groups, n, firsts, lasts, labels, slots, asked, renaming, order, used, taken, by_rarity, by_weight):
    """Writes what question and formula share under a renaming, FULL for a pair that is the same, to (2,) by_rarity and by_weight, by tree.

    Pairs of one key are matched one to one, those that agree most first. order, used, taken: scratch.
    """
    by_rarity[:] = by_weight[:] = 0
    for i in range(n):
        used[i] = False
    # The formula's pairs in order of key: a counting sort into `order`.
    n_keys = len(asked.keys)
    offsets = np.zeros(n_keys + 1, np.int32)
    for i in range(n):
        offsets[groups[i] + 1] += 1
    for key in range(n_keys):
        offsets[key + 1] += offsets[key]
    following = offsets[:-1].copy()
    for i in range(n):
        order[following[groups[i]]] = i
        following[groups[i]] += 1
    for key in range(n_keys):
        if offsets[key] == offsets[key + 1]:
            continue
        lo, hi = asked.pair_offsets[key], asked.pair_offsets[key + 1]
        for j in range(lo, hi):
            taken[j] = False
        for level in (FULL, RENAMED, OTHER_NUMBER, OTHER_NAME):
            for j in range(lo, hi):
                if taken[j]:
                    continue
                qa, qd = asked.ancestors[j], asked.descendants[j]
                for at in range(offsets[key], offsets[key + 1]):
                    i = order[at]
                    if used[i]:
                        continue
                    a, d = firsts[i], lasts[i]
                    grade = min(
                        _same(asked.labels[qa], asked.slots[qa], labels[a], slots[a], renaming),
                        _same(asked.labels[qd], asked.slots[qd], labels[d], slots[d], renaming),
                    )
                    if grade >= level:
                        used[i] = taken[j] = True
                        by_rarity[tree_of(asked.weights[key])] += grade * asked.rarities[key]
                        by_weight[tree_of(asked.weights[key])] += grade * asked.weights[key]
                        break


@jit
def row_scores(asked, units, rows, cut, best_scores, best_units):
    """The best unit of each row and its score, -inf where no unit's overlap reaches the cut.

    asked: `formula_matching.Asked`; units: `formula_matching.Units`; rows: (m,) int32; best_scores: (m,) float64; best_units: (m,) int32
    """
    keys, groups = np.empty(MAX_PAIRS, np.uint64), np.empty(MAX_PAIRS, np.int32)
    firsts, lasts = np.empty(MAX_PAIRS, np.int16), np.empty(MAX_PAIRS, np.int16)
    weights = np.empty(MAX_PAIRS, np.uint8)
    order, used = np.empty(MAX_PAIRS, np.int32), np.empty(MAX_PAIRS, np.bool_)
    taken = np.empty(len(asked.ancestors), np.bool_)
    n_of_key = np.empty(len(asked.keys), np.int32)
    variables, renaming = np.empty(MAX_VARIABLES, np.uint64), np.empty(MAX_VARIABLES, np.int16)
    support = np.empty((MAX_VARIABLES, MAX_VARIABLES), np.int64)
    rarity, weight, totals = np.zeros(2, np.int64), np.zeros(2, np.int64), np.zeros(2, np.int64)
    n_asked_variables = len(asked.variables)
    for at in range(len(rows)):
        best_scores[at], best_units[at] = -np.inf, 0
        for unit in range(units.row_units[rows[at]], units.row_units[rows[at] + 1]):
            lo, hi = units.node_offsets[unit], units.node_offsets[unit + 1]
            labels = units.labels[units.node_labels[lo:hi]]
            n_pairs = pairs_of(labels, units.parents[lo:hi], units.edges[lo:hi], keys, firsts, lasts, weights)
            n_of_key[:] = 0
            n = 0
            rarity[:] = weight[:] = 0
            for i in range(n_pairs):
                key = np.searchsorted(asked.keys, keys[i])
                if key == len(asked.keys) or asked.keys[key] != keys[i]:
                    continue
                n_of_key[key] += 1
                if n_of_key[key] <= min(asked.counts[key], MAX_TF):
                    rarity[tree_of(asked.weights[key])] += asked.rarities[key]
                    weight[tree_of(asked.weights[key])] += asked.weights[key]
                groups[n] = key
                firsts[n], lasts[n] = firsts[i], lasts[i]
                n += 1
            totals[:] = units.totals[unit]
            bound = overlap(rarity, asked.totals, weight, totals)
            if bound < cut or bound <= best_scores[at]:
                continue
            slots = np.empty(hi - lo, np.int16)
            n_variables = variables_of(labels, slots, variables)
            _renaming(
                groups, n, firsts, lasts, labels, slots, n_of_key, asked, n_asked_variables, variables, n_variables, support, renaming
            )
            _agreement(groups, n, firsts, lasts, labels, slots, asked, renaming, order, used, taken, rarity, weight)
            score = overlap(rarity, FULL * asked.totals, weight, FULL * totals)
            if score > best_scores[at]:
                best_scores[at], best_units[at] = score, unit


@jit(fastmath={"reassoc"})
def cosines(vectors, squares, units, question, found):
    """Cosines of units' vectors and a question's, 0 where one has no vector: written to found, (m,) float64.

    vectors: (u, dim) float32, whole numbers; squares: (u,) float64, their squared lengths; question: (dim,) float64, whole numbers. Every
    sum is a whole number that float64 holds, so any order of adding gives the same bits.
    """
    asked = 0.0
    for d in range(len(question)):
        asked += question[d] * question[d]
    for i in range(len(units)):
        product = 0.0
        for d in range(len(question)):
            product += np.float64(vectors[units[i], d]) * question[d]
        size = squares[units[i]] * asked
        found[i] = product / np.sqrt(size) if size > 0.0 else 0.0
