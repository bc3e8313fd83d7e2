"""What has changed in a source, by what its listing says and what was known of each file: linear in the files listed."""

from collections.abc import Mapping, Sequence

from shards.corpus import Listed, Listing
from shards.delta import Change
from shards.tree import TreeRow
from shards.types import Entry
from shards.worker import Staged

_LIMIT = "limit_bytes"  # in the row of a file that was skipped for its size: what was allowed then
_RACY = "racy"  # in place of the etag of a file that may have changed without its time telling: no listing gives it


def compare(listing: Listing, old: Mapping[str, TreeRow], max_file_bytes: int) -> tuple[list[Listed], list[TreeRow]]:
    """Files that are new or may have changed, and rows whose file is gone. old: what was known, by path."""
    suspects: list[Listed] = []
    gone = dict(old)
    for file in listing.files:
        row = gone.pop(file.path, None)
        same = row is not None and (row.size_bytes, row.mtime_ns, row.etag) == (file.size_bytes, file.mtime_ns, file.etag)
        # The latter: skipped for its size, which is allowed now.
        if not same or row.metadata.get(_LIMIT, file.size_bytes) < file.size_bytes <= max_file_bytes:
            suspects.append(file)
    # What could not be listed is not gone.
    return suspects, [row for row in gone.values() if not row.path.startswith(listing.incomplete_prefixes)]


def change_of(
    source: str,
    suspects: Sequence[Listed],
    old: Mapping[str, TreeRow],
    gone: Sequence[TreeRow],
    staged: Sequence[Staged],
    max_file_bytes: int,
) -> Change:
    """What is to be changed now that the suspects were read: entries to add and to remove, rows to write and to delete.

    A file that failed keeps what was known of it, so that the next run tries again.
    """
    hashes = {path: key for result in staged for path, key in result.hashes.items()}
    failed = {path for result in staged for path in result.failed}
    racy = {path for result in staged for path in result.racy}
    change = Change()
    for row in gone:
        change.deletes.append(row.path)
        if row.hash:
            change.removed.append(_entry(source, row))
    for file in suspects:
        if file.path in failed:
            continue
        before, key = old.get(file.path), hashes.get(file.path)
        metadata = {_LIMIT: max_file_bytes} if file.size_bytes > max_file_bytes else {}
        etag = _RACY if file.path in racy else file.etag
        row = TreeRow(file.path, key.hex() if key else "", file.size_bytes, file.mtime_ns, etag, metadata)
        if before is not None and before._replace(etag=etag) == row:
            if before != row:
                change.settled.append(row)
            continue
        change.upserts.append(row)
        if before is not None and before.hash:
            change.removed.append(_entry(source, before))
        if key:
            change.added.append(_entry(source, row))
    return change


def n_moved(change: Change) -> int:
    """How many of the added entries have the content of one that is removed elsewhere."""
    removed = {(entry.hash, entry.path) for entry in change.removed}
    contents = {key for key, _ in removed}
    return sum(entry.hash in contents and (entry.hash, entry.path) not in removed for entry in change.added)


def _entry(source: str, row: TreeRow) -> Entry:
    return Entry(source, row.path, bytes.fromhex(row.hash), row.size_bytes, row.mtime_ns)
