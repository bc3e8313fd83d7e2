"""What is different between two generations, by source and path: from the trees alone, reading only pages that differ."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from shards import tree
from shards.manifest import Root
from shards.store import Store
from shards.tree import TreeRow

Kind = Literal["added", "removed", "changed", "renamed", "touched"]
KINDS: tuple[Kind, ...] = ("added", "removed", "changed", "renamed", "touched")


@dataclass(frozen=True, slots=True)
class PathChange:
    """One path that differs. old_path: where a renamed document lay before, "" of others. hash: of the newer content, hex.

    renamed: the same content at another path of the same source. touched: the same content, but other facts of the file.
    """

    source: str
    kind: Kind
    path: str
    hash: str
    old_path: str = ""


def changes(store: Store, a: Root | None, b: Root) -> Iterator[PathChange]:
    """What b has other than a, source by source, paths in order of their bytes; renamed ones last. a: None for nothing at all.

    store: the corpus's. Files without text count as absent. Holds the rows of one source that differ, not its tree.
    """
    for source in sorted({*b.sources, *(a.sources if a else ())}):
        old = a.sources[source].tree if a is not None and source in a.sources else None
        new = b.sources[source].tree if source in b.sources else None
        added: dict[str, list[TreeRow]] = defaultdict(list)
        removed: list[TreeRow] = []
        for path, x, y in _differences(store, old, new):
            x, y = (row if row is not None and row.hash else None for row in (x, y))
            if x is not None and y is not None:
                same = x.hash == y.hash and x.metadata == y.metadata
                yield PathChange(source, "touched" if same else "changed", path, y.hash)
            elif y is not None:
                added[y.hash].append(y)
            elif x is not None:
                removed.append(x)
        renamed = []
        for row in removed:
            if twins := added.get(row.hash):
                renamed.append(PathChange(source, "renamed", twins.pop(0).path, row.hash, row.path))
            else:
                yield PathChange(source, "removed", row.path, row.hash)
        for row in sorted((row for rows in added.values() for row in rows), key=lambda row: row.path.encode("utf-8", "surrogateescape")):
            yield PathChange(source, "added", row.path, row.hash)
        yield from renamed


def _differences(store: Store, a: tree.FileRef | None, b: tree.FileRef | None) -> Iterator[tuple[str, TreeRow | None, TreeRow | None]]:
    if a is not None and b is not None:
        yield from tree.diff(store, a, b)
    elif a is not None:
        yield from ((row.path, row, None) for row in tree.rows(store, a))
    elif b is not None:
        yield from ((row.path, None, row) for row in tree.rows(store, b))


def counts(changed: Iterator[PathChange]) -> dict[str, dict[str, int]]:
    """How many changes of each kind each source has: {source: {kind: n}}, kinds without any left out."""
    found: dict[str, dict[str, int]] = {}
    for change in changed:
        of_source = found.setdefault(change.source, {})
        of_source[change.kind] = of_source.get(change.kind, 0) + 1
    return found
