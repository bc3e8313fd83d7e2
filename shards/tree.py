"""The Merkle tree of one source: what was indexed from where, so that a change costs in proportion to itself.

Rows sorted by path lie in pages whose boundaries the paths themselves decide (content-defined chunking, as in Noms' prolly
trees), and pages of references lie above them by the same rule. So equal rows give an equal tree, whatever the history; an
edit rewrites the pages it touches and their ancestors; and two trees are compared by skipping equal pages.
"""

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from shards.errors import SourceError
from shards.manifest import FileRef, check
from shards.store import Store
from shards.types import Entry


class TreeRow(NamedTuple):
    """One entry as it was indexed.

    path: relative to the source's root; undecodable bytes as surrogate escapes (`os.fsdecode`). hash: content hash, hex.
    size_bytes, mtime_ns, etag, metadata: as in `shards.types.Entry`; metadata holds JSON values and is never modified.
    """

    path: str
    hash: str
    size_bytes: int
    mtime_ns: int
    etag: str = ""
    metadata: dict[str, Any] = {}  # noqa: RUF012  shared and never written to


def entry_of(source: str, row: TreeRow) -> Entry:
    """The entry that a row of a source's tree stands for; the row must have a hash."""
    return Entry(source, row.path, bytes.fromhex(row.hash), row.size_bytes, row.mtime_ns, metadata=row.metadata)


def table_mark(table: str) -> str:
    """The etag of a row whose entry is a row of a table: no listing gives it, and it says how much of the path is the table's."""
    return f"row {len(table)}"


def table_of(row: TreeRow) -> str | None:
    """The path of the table that a row's entry is in; None of entries that are files."""
    mark, _, length = row.etag.partition(" ")
    return row.path[: int(length)] if mark == "row" and length.isdecimal() else None


class _Child(NamedTuple):
    """A reference to a page, keyed by the first path in it."""

    path: str
    sha256: str
    size: int
    n_rows: int

    @property
    def ref(self) -> FileRef:
        return FileRef(name=_name(self.sha256), size=self.size, sha256=self.sha256)


_Item = TreeRow | _Child


class Rule(NamedTuple):
    """Where a page ends: after an item whose path's hash is 0 modulo `mean`; after `least` items or more, `most` or fewer.

    Counting starts anew with each page, so what comes after a boundary does not depend on what lies before it.
    """

    least: int
    mean: int
    most: int


# 512 rows are about 60 kB. Pages of references are smaller, since each edit rewrites one per level; at least two in each, so
# that every level is at most half as long as the one below, whatever the paths.
LEAF = Rule(1, 512, 2048)
NODE = Rule(2, 64, 256)

_WINDOW = 32  # pages asked for at a time where many are needed: a few MB
_PENDING_BYTES = 64 * 2**20  # new pages kept before they are written


def build(store: Store, rows: Iterable[TreeRow]) -> FileRef:
    """The tree of these rows, in any order; its root. Raises SourceError for two rows of one path or metadata that is not JSON.

    store: the corpus's.
    """
    ordered = sorted(rows, key=sort_key)
    keys = [sort_key(row) for row in ordered]
    for i in range(1, len(keys)):
        if keys[i - 1] == keys[i]:
            raise SourceError(f"Path {ordered[i].path!r} is listed twice in one source. List each path once.")
    pages = _Pages(store)
    root = pages.raise_to_root(pages.put(0, _cut_all(0, keys, ordered)), 0)
    pages.flush()
    return root.ref


def edit(store: Store, root: FileRef, upserts: Iterable[TreeRow] = (), deletes: Iterable[str] = ()) -> FileRef:
    """The tree after adding or replacing rows and removing paths (unknown ones are ignored; an upsert wins over a delete).

    Equal, bit for bit, to building from the resulting rows. Reads and writes only pages that change, their ancestors, and
    sometimes a following page. Raises as `build` does.
    """
    changes: dict[bytes, _Item | None] = {sort_key((path,)): None for path in deletes}
    changes |= {sort_key(row): row for row in upserts}
    pages = _Pages(store)
    top, height = pages.top(root)
    for level in range(height + 1):
        if not changes:
            return root
        old, new = _edit_level(pages, top, height, level, sorted(changes.items(), key=itemgetter(0)))
        kept = set(old) & set(new)
        changes = {sort_key(child): None for child in old if child not in kept}
        changes |= {sort_key(child): child for child in new if child not in kept}
    if not changes:
        return root
    # The top level had one page, so `new` is all of it now: several pages, or one, or one with a single child, which is
    # then alone on its level and hence the root, or none.
    child = pages.raise_to_root(new, height)
    while (page := pages.load(child)).level and len(page.items) == 1:
        pages.new.pop(child.sha256, None)
        child = page.items[0]
    if child.sha256 == root.sha256:
        return root
    pages.flush()
    return child.ref


def rows(store: Store, root: FileRef, prefix: str = "") -> Iterator[TreeRow]:
    """The rows whose path begins with `prefix`, in order of their paths' bytes. Reads only pages that may hold such rows."""
    pages = _Pages(store)
    low = sort_key((prefix,))
    beyond = _after_prefix(low)

    def walk(page: _Page) -> Iterator[list[TreeRow]]:
        first = max(bisect_right(page.keys, low) - 1, 0) if page.level else bisect_left(page.keys, low)
        end = len(page.keys) if beyond is None else bisect_left(page.keys, beyond)
        if page.level == 0:
            yield page.items[first:end]
            return
        for i in range(first, end, _WINDOW):
            window = page.items[i : min(i + _WINDOW, end)]
            pages.fetch(window)
            for child in window:
                yield from walk(pages.load(child))

    for found in walk(pages.load(pages.top(root)[0])):
        yield from found


def _after_prefix(prefix: bytes) -> bytes | None:
    """The least key that is greater than all that begin with a prefix; None where there is none."""
    short = prefix.rstrip(b"\xff")
    return short[:-1] + bytes([short[-1] + 1]) if short else None


def get(store: Store, root: FileRef, path: str) -> TreeRow | None:
    """The row of one path; None where there is none. Reads one page per level."""
    pages, key = _Pages(store), sort_key((path,))
    page = pages.load(pages.top(root)[0])
    while page.level:
        page = pages.load(page.items[max(bisect_right(page.keys, key) - 1, 0)])
    i = bisect_left(page.keys, key)
    return page.items[i] if i < len(page.keys) and page.keys[i] == key else None


def find(store: Store, root: FileRef, paths: Iterable[str]) -> dict[str, TreeRow]:
    """The rows of these paths, by path; a path without one is missing. Reads each page that may hold one of them once."""
    pages = _Pages(store)
    found: dict[str, TreeRow] = {}

    def walk(page: _Page, keys: list[bytes]) -> None:
        places = [max(bisect_right(page.keys, key) - 1, 0) for key in keys]
        if page.level == 0:
            found.update((page.items[i].path, page.items[i]) for i, key in zip(places, keys, strict=True) if page.keys[i : i + 1] == [key])
            return
        wanted: dict[int, list[bytes]] = {}
        for i, key in zip(places, keys, strict=True):
            wanted.setdefault(i, []).append(key)
        children = list(wanted)
        for at in range(0, len(children), _WINDOW):
            window = children[at : at + _WINDOW]
            pages.fetch([page.items[i] for i in window])
            for i in window:
                walk(pages.load(page.items[i]), wanted[i])

    walk(pages.load(pages.top(root)[0]), sorted({sort_key((path,)) for path in paths}))
    return found


def diff(store: Store, a: FileRef, b: FileRef) -> Iterator[tuple[str, TreeRow | None, TreeRow | None]]:
    """(path, row in a or None, row in b or None) of each path whose row differs, in order. Reads only pages that differ."""
    if a.sha256 == b.sha256:
        return
    pages = _Pages(store)
    left, right = _Front(pages, a), _Front(pages, b)
    while left.stack and right.stack:
        (x_height, x_key, x), (y_height, y_key, y) = left.stack[-1], right.stack[-1]
        if x_height == y_height == 0 and x_key == y_key:
            if not same_row(x, y):
                yield y.path, x, y
            left.stack.pop()
            right.stack.pop()
        elif x == y:
            left.stack.pop()
            right.stack.pop()
        # What begins first cannot occur in the other tree from here on: a row is a difference, a page must be opened. Of two
        # that begin together the higher is opened, so that whatever is equal inside is met as a whole.
        elif (x_key, -x_height) <= (y_key, -y_height):
            for row in left.step():
                yield row.path, row, None
        else:
            for row in right.step():
                yield row.path, None, row
    while left.stack:
        for row in left.step():
            yield row.path, row, None
    while right.stack:
        for row in right.step():
            yield row.path, None, row


def references(data: bytes, name: str, store: Store) -> list[FileRef]:
    """The pages that a page refers to, from its bytes; none for a page of rows. Raises Corrupt."""
    page = _decode(data, name, store)
    return [child.ref for child in page.items] if page.level else []


def pages(store: Store, root: FileRef, known: dict[str, tuple[FileRef, ...]] | None = None) -> Iterator[FileRef]:
    """References to all pages of the tree, the root's own first. Reads pages of references alone, no rows.

    known: what lies below each page of references, by checksum; filled here, so that trees that share pages read them once.
    """
    known = {} if known is None else known
    reading = _Pages(store)

    def below(child: _Child, level: int) -> tuple[FileRef, ...]:
        if level == 0:
            return ()
        if child.sha256 not in known:
            found: list[FileRef] = []
            for item in reading.load(child).items:
                found += (item.ref, *below(item, level - 1))
            known[child.sha256] = tuple(found)
        return known[child.sha256]

    yield root
    if root.sha256 in known:
        yield from known[root.sha256]
    else:
        yield from below(*reading.top(root))


class _Front:
    """What is left of a tree in a walk from left to right: a stack, the next item on top, pages not opened until need be."""

    def __init__(self, pages: "_Pages", root: FileRef):
        self._pages = pages
        top, level = pages.top(root)
        self.stack: list[tuple[int, bytes, Any]] = [(level + 1, sort_key(top), top)]  # (height: 0 of rows; key; row or page)

    def step(self) -> list[TreeRow]:
        """Take the next item off: a row is returned, a page gives way to its items."""
        height, _, item = self.stack.pop()
        if height == 0:
            return [item]
        page = self._pages.load(item)
        self.stack.extend(zip([height - 1] * len(page.items), reversed(page.keys), reversed(page.items), strict=True))
        return []


class _Page(NamedTuple):
    level: int
    items: list[Any]  # TreeRow at level 0, else _Child
    keys: list[bytes]  # of the items, ascending


class _Pages:
    """The pages of one operation: those read, and those not yet written."""

    def __init__(self, store: Store):
        self.store = store
        self.new: dict[str, bytes] = {}  # to be written, by checksum
        self._new_bytes = 0
        self._ahead: dict[str, bytes] = {}  # read before they are needed, each taken out when it is
        self._kept: dict[str, _Page] = {}  # the root and pages of references: an edit meets them again on each level

    def top(self, root: FileRef) -> tuple[_Child, int]:
        """The root as a child, and its level."""
        page = self._kept[root.sha256] = self.load(_Child("", root.sha256, root.size, 0))
        return _child(page.level, page.items, root.sha256, root.size), page.level

    def fetch(self, children: Sequence[_Child]) -> None:
        """Read many at once; `load` then finds them here."""
        wanted = [child for child in children if child.sha256 not in self._ahead and child.sha256 not in self._kept]
        for child, data in zip(wanted, self.store.read_many([child.ref.name for child in wanted]), strict=True):
            self._ahead[child.sha256] = check(data, child.ref, self.store)

    def load(self, child: _Child) -> _Page:
        if child.sha256 in self._kept:
            return self._kept[child.sha256]
        data = self.new.get(child.sha256) or self._ahead.pop(child.sha256, None)
        if data is None:
            data = check(self.store.read(child.ref.name), child.ref, self.store)
        page = _decode(data, child.ref.name, self.store)
        if page.level:
            self._kept[child.sha256] = page
        return page

    def put(self, level: int, groups: Iterable[list[Any]]) -> list[_Child]:
        """References to new pages, one of each group of items."""
        children = []
        for items in groups:
            data = _encode(level, items)
            sha256 = hashlib.sha256(data).hexdigest()
            self.new[sha256] = data
            self._new_bytes += len(data)
            children.append(_child(level, items, sha256, len(data)))
            if self._new_bytes > _PENDING_BYTES:
                self.flush()
        return children

    def raise_to_root(self, children: list[_Child], level: int) -> _Child:
        """The root over all pages of a level; of none, the empty page."""
        if not children:
            (empty,) = self.put(0, [[]])
            return empty
        while len(children) > 1:
            level += 1
            children = self.put(level, _cut_all(level, [sort_key(child) for child in children], children))
        return children[0]

    def flush(self) -> None:
        self.store.write_many({_name(sha256): data for sha256, data in self.new.items()})
        self.new.clear()
        self._new_bytes = 0


class _Cursor:
    """A position among the pages of one level of a tree."""

    def __init__(self, pages: _Pages, top: _Child, height: int, level: int):
        self.pages = pages
        self.level = level
        self._above = _Page(height + 1, [top], [b""])
        self._stack: list[tuple[_Page, int]] = []  # from above the top down to the parent: (page, index of the child)

    @property
    def child(self) -> _Child:
        page, i = self._stack[-1]
        return page.items[i]

    @property
    def end(self) -> bytes | None:
        """The key with which the next page begins; None at the last."""
        return next((page.keys[i + 1] for page, i in reversed(self._stack) if i + 1 < len(page.keys)), None)

    def seek(self, key: bytes) -> None:
        """Go to the page that holds the key, or would."""
        self._stack.clear()
        page = self._above
        while True:
            i = max(bisect_right(page.keys, key) - 1, 0)
            self._stack.append((page, i))
            if page.level == self.level + 1:
                return
            page = self.pages.load(page.items[i])

    def advance(self) -> None:
        """Go to the next page; there must be one."""
        end = self.end
        assert end is not None
        self.seek(end)


def _edit_level(
    pages: _Pages, top: _Child, height: int, level: int, changes: list[tuple[bytes, _Item | None]]
) -> tuple[list[_Child], list[_Child]]:
    """The pages of a level that changes touch, and those that take their place.

    changes: (key, new item or None to remove it), ascending. A page is cut anew from where it begins; as soon as a new page
    ends where an old one did, the pages that follow are what they would be anyway.
    """
    keys = [key for key, _ in changes]
    cursor = _Cursor(pages, top, height, level)
    touched: deque[_Child] = deque()
    at = 0
    while at < len(keys):
        cursor.seek(keys[at])
        touched.append(cursor.child)
        at = len(keys) if cursor.end is None else bisect_left(keys, cursor.end)

    old: list[_Child] = []
    groups: list[list[_Item]] = []
    at = 0
    while at < len(keys):
        cursor.seek(keys[at])
        while touched and sort_key(touched[0]) < sort_key(cursor.child):  # came along as a following page
            touched.popleft()
        if touched and touched[0] == cursor.child:
            pages.fetch([touched.popleft() for _ in range(min(_WINDOW, len(touched)))])
        pending: list[_Item] = []
        while True:
            old.append(cursor.child)
            end = cursor.end
            stop = len(keys) if end is None else bisect_left(keys, end)
            page = pages.load(cursor.child)
            merged = dict(zip(page.keys, page.items, strict=True)) | dict(changes[at:stop])
            at = stop
            survivors = sorted(key for key, item in merged.items() if item is not None)
            complete, pending = _cut(level, survivors, [merged[key] for key in survivors], pending)
            groups += complete
            if not pending or end is None:
                break
            cursor.advance()
        if pending:
            groups.append(pending)
    return old, pages.put(level, groups)


def _cut(level: int, keys: list[bytes], items: list[Any], pending: list[Any]) -> tuple[list[list[Any]], list[Any]]:
    """Complete pages made of the items that wait for their page's end and of further ones; and what then waits."""
    least, mean, most = NODE if level else LEAF
    salt = bytes([level])  # so that paths that are boundaries on one level are not likelier to be so on the next
    groups = []
    for key, item in zip(keys, items, strict=True):
        pending.append(item)
        n = len(pending)
        if n >= least and (n == most or int.from_bytes(hashlib.blake2b(key, digest_size=8, salt=salt).digest(), "little") % mean == 0):
            groups.append(pending)
            pending = []
    return groups, pending


def _cut_all(level: int, keys: list[bytes], items: list[Any]) -> list[list[Any]]:
    groups, last = _cut(level, keys, items, [])
    return [*groups, last] if last else groups


def sort_key(item: Sequence[Any]) -> bytes:
    """What rows, like everything that begins with a path, are sorted by: the path's bytes. Raises SourceError where it has none."""
    try:
        return item[0].encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise SourceError(f"Path {item[0]!r} is neither text nor escaped bytes (surrogateescape): {error.reason}.") from None


def _name(sha256: str) -> str:
    return f"trees/{sha256}.json"


def _child(level: int, items: list[Any], sha256: str, size: int) -> _Child:
    n_rows = sum(child.n_rows for child in items) if level else len(items)
    return _Child(items[0].path if items else "", sha256, size, n_rows)


def same_row(x: TreeRow, y: TreeRow) -> bool:
    # In Python 1 == 1.0 == True, in JSON they differ.
    return x == y and (not x.metadata or _dumps(x.metadata) == _dumps(y.metadata))


_dumps = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode  # ASCII: escapes survive


def _encode(level: int, items: list[Any]) -> bytes:
    if level:
        return _dumps({"level": level, "pages": items}).encode()
    try:
        return _dumps({"level": 0, "rows": [row if row[5] else row[:5] if row[4] else row[:4] for row in items]}).encode()
    except (TypeError, ValueError):
        for row in items:
            try:
                _dumps(row)
            except (TypeError, ValueError) as error:
                raise SourceError(f"Entry {row.path!r} cannot be written as JSON ({error}). Give it JSON metadata.") from None
        raise


def _decode(data: bytes, name: str, store: Store) -> _Page:
    try:
        page = json.loads(data)
        level = page["level"]
        kind, fields = (_Child, page["pages"]) if level else (TreeRow, page["rows"])
        items = [kind(*values) for values in fields]
        return _Page(level, items, [sort_key(item) for item in items])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise store.corrupt(name, f"is not a readable tree page ({error})") from None
