"""What has changed in a source, by what its listing says and what was known of each file: linear in the files listed.

A million of them: neither the tree nor the listing is held a second time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shards.corpus import Listed, Listing
from shards.delta import Change
from shards.tree import TreeRow, entry_of, same_row, sort_key, table_mark, table_of
from shards.worker import Staged

_LIMIT = "limit_bytes"  # in the row of a file that was skipped for its size: what was allowed then
_RACY = "racy"  # in place of the etag of a file that may have changed without its time telling: no listing gives it


@dataclass(frozen=True, slots=True)
class Compared:
    """suspects: files that are new or may have changed; known: what was known of these, by path; gone: rows whose file is gone.

    rows: what was known of the rows of tables that are suspect, by the table's path.
    """

    suspects: list[Listed]
    known: dict[str, TreeRow]
    gone: list[TreeRow]
    rows: dict[str, list[TreeRow]] = field(default_factory=dict)

    def unlisted(self, row: TreeRow, tables_gone: set[str]) -> None:
        """A row whose path is not listed. Rows of tables never are: they go with their table, which comes before them."""
        table = table_of(row)
        if table is None:
            self.gone.append(row)
            if not row.hash:
                tables_gone.add(row.path)
        elif table in tables_gone:
            self.gone.append(row)
        elif table in self.known:
            self.rows.setdefault(table, []).append(row)


def compare(listing: Listing, rows: Iterable[TreeRow], max_file_bytes: int) -> Compared:
    """A listing beside what was known, both in order of the paths' bytes: they are walked together, and only differences are kept."""
    found = Compared([], {}, [])
    tables_gone: set[str] = set()
    remaining = iter(rows)
    row = next(remaining, None)
    for file in listing.files:
        while row is not None and row.path != file.path and sort_key(row) < sort_key(file):
            found.unlisted(row, tables_gone)
            row = next(remaining, None)
        if row is None or row.path != file.path:
            found.suspects.append(file)
            continue
        if _may_differ(file, row, max_file_bytes):
            found.suspects.append(file)
            found.known[row.path] = row
        row = next(remaining, None)
    while row is not None:
        found.unlisted(row, tables_gone)
        row = next(remaining, None)
    # What could not be listed is not gone.
    found.gone[:] = [row for row in found.gone if not row.path.startswith(listing.incomplete_prefixes)]
    return found


def _may_differ(file: Listed, row: TreeRow, max_file_bytes: int) -> bool:
    same = row.size_bytes == file.size_bytes and row.mtime_ns == file.mtime_ns and row.etag == file.etag and file.is_marked
    # The latter: skipped for its size, which is allowed now.
    return not same or (not row.hash and row.metadata.get(_LIMIT, file.size_bytes) < file.size_bytes <= max_file_bytes)


def change_of(
    source: str,
    compared: Compared,
    staged: Sequence[Staged],
    max_file_bytes: int,
) -> Change:
    """What is to be changed now that the suspects were read: entries to add and to remove, rows to write and to delete.

    A file that failed keeps what was known of it, so that the next run tries again.
    """
    hashes = {path: key for result in staged for path, key in result.hashes.items()}
    metadata = {path: about for result in staged for path, about in result.metadata.items()}
    tables = {table: (paths, result.sizes) for result in staged for table, paths in result.rows.items()}
    failed = {path for result in staged for path in result.failed}
    racy = {path for result in staged for path in result.racy}
    change = Change()

    def delete(row: TreeRow) -> None:
        change.deletes.append(row.path)
        if row.hash:
            change.removed.append(entry_of(source, row))

    def put(row: TreeRow, before: TreeRow | None) -> None:
        change.upserts.append(row)
        if before is not None and before.hash:
            change.removed.append(entry_of(source, before))
        if row.hash:
            change.added.append(entry_of(source, row))

    for row in compared.gone:
        delete(row)
    for file in compared.suspects:
        if file.path in failed:
            continue
        before, key = compared.known.get(file.path), hashes.get(file.path)
        about = {_LIMIT: max_file_bytes} if file.size_bytes > max_file_bytes else metadata.get(file.path, {})
        etag = _RACY if file.path in racy else file.etag
        row = TreeRow(file.path, key.hex() if key else "", file.size_bytes, file.mtime_ns, etag, about)
        if before is None or not same_row(before._replace(etag=etag), row):
            put(row, before)
        elif before.etag != etag:
            change.settled.append(row)
        known = {row.path: row for row in compared.rows.get(file.path, ())}
        paths, sizes = tables.get(file.path, ((), {}))
        for path in paths:
            # Without the time of the file: a row that stays as it is costs nothing, whatever becomes of the others.
            row = TreeRow(path, hashes[path].hex(), sizes[path], 0, table_mark(file.path), metadata.get(path, {}))
            before = known.pop(path, None)
            if before is None or not same_row(before, row):
                put(row, before)
        for row in known.values():
            delete(row)
    return change


def n_moved(change: Change) -> int:
    """How many of the added entries have the content of one that is removed elsewhere."""
    removed = {(entry.hash, entry.path) for entry in change.removed}
    contents = {key for key, _ in removed}
    return sum(entry.hash in contents and (entry.hash, entry.path) not in removed for entry in change.added)
