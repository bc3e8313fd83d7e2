"""The formulas of a segment as arrays: found, read into trees, and their pairs inverted into postings.

Of each formula (unit): unit_rows int32, ascending; unit_starts, unit_ends int64, bytes of the rendition; unit_totals (u, 2) int32, what
the pairs of its layout and of its operators count. Its nodes (`formula_trees.Trees`): node_offsets (u + 1,) int64 into node_labels int32
(into `labels`, uint64, ascending), node_parents uint16, node_edges uint8. Postings of pairs: term_hashes, term_offsets, posting_units,
posting_tfs (`shards.postings`). in_scope (rows,) bool.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np

from shards.documents import Documents
from shards.formula_finding import Found, find
from shards.formula_latex import read_latex
from shards.formula_mathml import read_mathml
from shards.formula_trees import Trees, trees_of
from shards.postings import sealed
from shards.types import Array, Arrays

ROWS_BETWEEN_STEPS = 256


@lru_cache(maxsize=1 << 14)
def trees_of_text(text: str, notation: str) -> Trees:
    """The trees of one formula as written; `$n$` stands in a paper a thousand times, hence the cache."""
    return trees_of(read_mathml(text) if notation == "mathml" else read_latex(text, typed=notation == "typed"))


def index_documents(documents: Documents, in_scope: Array, step: Callable[[int, int], None] = lambda _done, _all: None) -> Arrays:
    """The arrays of the documents in scope, (rows,) bool. step: told how many rows of how many are read, may raise Cancelled."""
    rows = np.flatnonzero(in_scope)
    is_code = [kind.partition(":")[0] == "code" for kind in documents.kind_names]
    places: list[tuple[int, int, int]] = []
    trees: list[Trees] = []
    for i, row in enumerate(rows.tolist()):
        if not i % ROWS_BETWEEN_STEPS:
            step(i, len(rows))
        text = bytes(documents.content(row))
        for formula, tree in read_all(text, find(text, is_code[documents.kinds[row]])):
            places.append((row, formula.start, formula.end))
            trees.append(tree)
    table = np.array(places, np.int64).reshape(-1, 3)
    labels = np.concatenate([np.zeros(0, np.uint64), *(tree.labels for tree in trees)])
    vocabulary, numbers = np.unique(labels, return_inverse=True)
    return _inverted(
        table[:, 0].astype(np.int32), table[:, 1], table[:, 2], np.array([len(tree.labels) for tree in trees], np.int64), vocabulary,
        numbers.astype(np.int32), np.concatenate([np.zeros(0, np.uint16), *(tree.parents for tree in trees)]),
        np.concatenate([np.zeros(0, np.uint8), *(tree.edges for tree in trees)]), in_scope,
    )  # fmt: skip


def read_all(text: bytes, found: Iterable[Found]) -> Iterable[tuple[Found, Trees]]:
    """Each formula with its trees; those of which nothing can be read are left out."""
    for formula in found:
        trees = trees_of_text(text[formula.start : formula.end].decode("utf-8", "replace"), formula.notation)
        if len(trees.labels):
            yield formula, trees


def _inverted(
    rows: Array, starts: Array, ends: Array, sizes: Array, labels: Array, node_labels: Array, parents: Array, edges: Array, in_scope: Array
) -> Arrays:
    from shards import formula_kernels as kernels

    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    keys, units, totals = kernels.all_pairs(offsets, sealed(node_labels), sealed(labels), sealed(parents), sealed(edges))
    hashes, numbers = np.unique(keys, return_inverse=True)
    term_offsets, posting_units, posting_tfs = kernels.counted(numbers.astype(np.int32), units, len(hashes))
    return {
        "unit_rows": rows, "unit_starts": starts, "unit_ends": ends, "unit_totals": totals, "node_offsets": offsets, "labels": labels,
        "node_labels": node_labels, "node_parents": parents, "node_edges": edges, "term_hashes": hashes, "term_offsets": term_offsets,
        "posting_units": posting_units, "posting_tfs": posting_tfs, "in_scope": np.asarray(in_scope, np.bool_),
    }  # fmt: skip


def joined(parts: Sequence[tuple[Arrays, Array]], n_rows: int) -> Arrays:
    """The arrays of the joined segment, as from its documents. parts: (arrays, (rows,) int32 new row of each old one, -1 where dropped).

    Trees are carried over and their pairs made anew: no formula is read again.
    """
    in_scope = np.zeros(n_rows, np.bool_)
    labels = np.unique(np.concatenate([np.zeros(0, np.uint64), *(arrays["labels"] for arrays, _ in parts)]))
    names = ("rows", "starts", "ends", "sizes", "nodes")
    columns: dict[str, list[Array]] = {name: [np.zeros(0, np.int64)] for name in names}
    node_labels, parents, edges = [np.zeros(0, np.int32)], [np.zeros(0, np.uint16)], [np.zeros(0, np.uint8)]
    n_nodes = 0
    for arrays, new_rows in parts:
        in_scope[new_rows[new_rows >= 0]] = arrays["in_scope"][new_rows >= 0]
        rows = new_rows[arrays["unit_rows"]]
        kept = np.flatnonzero(rows >= 0)
        sizes = np.diff(arrays["node_offsets"])
        new = (rows[kept], arrays["unit_starts"][kept], arrays["unit_ends"][kept], sizes[kept], arrays["node_offsets"][:-1][kept] + n_nodes)
        for name, column in zip(names, new, strict=True):
            columns[name].append(column)
        node_labels.append(np.searchsorted(labels, arrays["labels"]).astype(np.int32)[arrays["node_labels"]])
        parents.append(arrays["node_parents"])
        edges.append(arrays["node_edges"])
        n_nodes += len(arrays["node_labels"])
    rows, starts, ends, sizes, nodes = (np.concatenate(columns[name]) for name in names)
    order = np.argsort(rows, kind="stable")  # a document's formulas stay in the order in which they stand there
    rows, starts, ends, sizes, nodes = rows[order], starts[order], ends[order], sizes[order], nodes[order]
    before = np.cumsum(sizes) - sizes
    taken = np.repeat(nodes - before, sizes) + np.arange(sizes.sum())
    numbers = np.concatenate(node_labels)[taken]
    used, numbers = np.unique(numbers, return_inverse=True)
    return _inverted(
        rows.astype(np.int32), starts.astype(np.int64), ends.astype(np.int64), sizes.astype(np.int64), labels[used],
        numbers.astype(np.int32), np.concatenate(parents)[taken], np.concatenate(edges)[taken], in_scope,
    )  # fmt: skip
