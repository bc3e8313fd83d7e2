"""A formula's two trees as arrays: the symbol layout tree (what is written where) and the operator tree (what is done to what).

Layout: Zanibbi et al. 2016 (Tangent-3, SIGIR), section 3: a sign's children are the next sign of its row, its scripts and its parts.
Operators: Davila & Zanibbi 2017 (Tangent-S, SIGIR), section 3. Both are kept, for each finds what the other misses: the first does not
care what is an operator and what its operands, the second not for notation and order.
"""

import hashlib
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shards.formula_layout import Row
from shards.formula_operators import Node, operator_tree
from shards.formula_symbols import CONCRETE
from shards.types import Array

MAX_NODES = 400  # of both trees; a layout has at most `MAX_SIGNS` signs
NEXT, ABOVE, BELOW, OVER, UNDER, WITHIN, INDEX, CELL, ACCENT = range(1, 10)
LAYOUT_ROOT, OPERATOR_ROOT = 0, 16  # edges of roots; all edges of operator trees are greater than the second
_PART_EDGES = {"fraction": (OVER, UNDER), "binomial": (OVER, UNDER), "root": (WITHIN, INDEX), "group": (WITHIN,)}


class Trees(NamedTuple):
    """Nodes of the layout tree, then of the operator tree, each before its children; n of them.

    labels: (n,) uint64, hash of the label, whose two highest bits are its kind (CONCRETE, VARIABLE, NUMBER)
    parents: (n,) uint16, place of the parent among the nodes; a root is its own. edges: (n,) uint8, from the parent
    """

    labels: Array
    parents: Array
    edges: Array


@lru_cache(maxsize=1 << 16)
def label_hash(label: str, kind: int) -> int:
    """62 bits of BLAKE2b below the kind: a document must not be able to pose as another sign."""
    digest = int.from_bytes(hashlib.blake2b(label.encode("utf-8", "replace"), digest_size=8).digest(), "little")
    return (digest >> 2) | (kind << 62)


def trees_of(row: Row) -> Trees:
    """Both trees of a row."""
    nodes: list[tuple[str, int, int, int]] = []  # label, kind, parent, edge
    _lay_out(nodes, row, -1, LAYOUT_ROOT)
    tree = operator_tree(row)
    if tree:
        pending = [(tree, -1, OPERATOR_ROOT)]
        while pending and len(nodes) < MAX_NODES:
            node, parent, edge = pending.pop()
            at = _add(nodes, node.label, node.kind, parent, edge)
            pending.extend((child, at, edge) for edge, child in reversed(node.children))
    labels = np.array([label_hash(label, kind) for label, kind, _, _ in nodes], np.uint64)
    parents = np.array([parent for _, _, parent, _ in nodes], np.uint16)
    edges = np.array([edge for _, _, _, edge in nodes], np.uint8)
    return Trees(labels, parents, edges)


def _add(nodes: list[tuple[str, int, int, int]], label: str, kind: int, parent: int, edge: int) -> int:
    at = len(nodes)
    nodes.append((label, kind, at if parent < 0 else parent, edge))
    return at


def _lay_out(nodes: list[tuple[str, int, int, int]], row: Row, parent: int, edge: int) -> None:
    for sign in row:
        if len(nodes) >= MAX_NODES:
            return
        if sign.role == "group" and not sign.parts:
            continue
        at = parent = _add(nodes, sign.label or sign.role, sign.kind, parent, edge)
        edge = NEXT
        for accent in sign.accents:
            _add(nodes, f"accent {accent}", CONCRETE, at, ACCENT)
        edges = _PART_EDGES.get(sign.role, ())
        for i, part in enumerate(sign.parts):
            _lay_out(nodes, part, at, edges[i] if i < len(edges) else CELL)
        if sign.sub:
            _lay_out(nodes, sign.sub, at, BELOW)
        if sign.sup:
            _lay_out(nodes, sign.sup, at, ABOVE)


def spelled(node: Node | None) -> str:
    """An operator tree as text, for people and tests: `=(+(a b) c)`, operands that may change places in order of their text."""
    if node is None:
        return ""
    parts = [(edge, spelled(child)) for edge, child in node.children]
    return node.label + (f"({' '.join(text for _, text in sorted(parts))})" if parts else "")
