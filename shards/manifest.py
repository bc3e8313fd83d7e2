"""What a generation consists of: a small root, published atomically, over content-addressed pages.

FORMAT.md describes the bytes. Nothing here is ever changed in place: a new generation shares the pages it did not touch.
"""

import hashlib
import json
import re
import threading
from collections import OrderedDict
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from shards.errors import AlreadyExists, BadSpec, Corrupt, Gone, NotFound, StoreError
from shards.identity import N_BUCKETS
from shards.store import Store

# 1: first published format.
# 2: epochs of the writer's lease, the position of a source in the log of pushed documents, metadata in typed columns,
#    several tombstone files of one segment.
FORMAT_VERSION = 2
OLDEST_READABLE = 1

_CORPUS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _nonempty(buckets: tuple[int, int]) -> tuple[int, int]:
    low, high = buckets
    if not 0 <= low < high <= N_BUCKETS:
        raise ValueError(f"bucket range [{low}, {high}) is empty or outside 0 to {N_BUCKETS}")
    return buckets


Buckets = Annotated[tuple[int, int], AfterValidator(_nonempty)]  # [low, high)
M = TypeVar("M", bound=Model)


class FileRef(Model):
    """One file of the corpus: its name in the corpus's store, its length in bytes, its SHA-256 in hex."""

    name: str
    size: NonNegativeInt
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @classmethod
    def of(cls, name: str, data: bytes) -> "FileRef":
        """The reference to these bytes under this name."""
        return cls(name=name, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def _several(value: Any) -> Any:
    """Format 1 has one file of tombstones or null."""
    return () if value is None else (value,) if isinstance(value, dict | FileRef) else value


class SegmentRef(Model):
    """A segment, or the part of one that lies in `buckets`: after resharding, two shards may refer to parts of the same.

    n_docs, n_entries, text_bytes: of the covered part, dead ones included. n_dead_docs, n_dead_entries: of these, how many the
    tombstones bury. files: by role: "docs", "text", "entries", "meta" and "zones" where there is metadata, and per space
    "layer/<space>" and "stats/<space>".
    spaces: the id of each space's arrays; a space whose id in the root differs is absent here.
    tombstones: files of disjoint rows, oldest first (`shards/tombstones.py`).
    """

    id: str
    buckets: Buckets
    n_docs: NonNegativeInt
    n_entries: NonNegativeInt
    text_bytes: NonNegativeInt
    files: dict[str, FileRef]
    spaces: dict[str, str]
    tombstones: Annotated[tuple[FileRef, ...], BeforeValidator(_several)] = ()
    n_dead_docs: NonNegativeInt = 0
    n_dead_entries: NonNegativeInt = 0

    @model_validator(mode="after")
    def _no_more_dead_than_there_are(self) -> Self:
        if self.n_dead_docs > self.n_docs or self.n_dead_entries > self.n_entries:
            raise ValueError(f"segment {self.id!r} has more dead documents or entries than it has")
        return self


class ShardPage(Model):
    """All segments of one shard, oldest first."""

    shard: NonNegativeInt
    buckets: Buckets
    segments: tuple[SegmentRef, ...]

    @model_validator(mode="after")
    def _segments_inside(self) -> Self:
        low, high = self.buckets
        for segment in self.segments:
            if not low <= segment.buckets[0] < segment.buckets[1] <= high:
                raise ValueError(f"segment {segment.id!r} covers buckets {segment.buckets} of {self.buckets}")
        return self


class ShardRef(Model):
    """One shard in the root. n_docs, n_entries: live ones."""

    shard: NonNegativeInt
    buckets: Buckets
    page: FileRef
    n_docs: NonNegativeInt
    n_entries: NonNegativeInt


class SpaceRef(Model):
    """A space of the corpus, with its dials resolved; the fields are those of `SpaceSpec` and `Layer`.

    version, fingerprint: of the layer and its model when the arrays were made; other ones make other arrays. built: as in `SpaceSpec`;
    left out where it is "all", so that the roots of corpora without partly built spaces are those that older builds write and read.
    """

    name: str
    layer: str
    params: dict[str, Any]
    scope: tuple[str, ...]
    space_id: str
    origin: Literal["source", "derived"]
    granularity: str
    null: Literal["moments", "rarity"]
    version: PositiveInt = 1
    fingerprint: str = ""
    built: Literal["all", "used"] = "all"

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        if self.built == "all":
            del fields["built"]
        return fields


class SourceRun(Model):
    """What a run of the index job met in a source. Counts are of files.

    skipped: listed, or seen while listing, and left out, by reason. unread: could not be read or looked at, by reason in one word;
    such files are in the index as they were before. examples: some of these, with path and reason, for people. odd: what was left out
    of metadata and of tables, by reason.
    """

    listed: NonNegativeInt = 0
    skipped: dict[str, NonNegativeInt] = Field(default_factory=dict)
    unread: dict[str, NonNegativeInt] = Field(default_factory=dict)
    examples: tuple[str, ...] = ()
    odd: dict[str, NonNegativeInt] = Field(default_factory=dict)


class SourceRef(Model):
    """A source of the corpus; tree: the root of its Merkle tree (shards/tree.py), None before the first listing.

    applied: of the source of pushed documents, the number of the last entry of its log that this generation holds.
    last_run: of the index job, the last that published a change of this source; None of pushed documents.
    pending: files that were listed and are in no generation yet, because the source is read portion by portion; the next complete run
    reads them. Left out where it is 0, so that other roots are those that older builds write and read.
    """

    url: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    tree: FileRef | None = None
    n_entries: NonNegativeInt = 0
    applied: NonNegativeInt = 0
    last_run: SourceRun | None = None
    pending: NonNegativeInt = 0

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = dump(self)
        if not self.pending:
            fields.pop("pending", None)
        return fields


class Root(Model):
    """One generation: everything there is to know before the first page is read.

    parent: the generation this one was made from. created: UTC, ISO 8601. shards: by bucket; together they cover all buckets, or
    there are none. nulls: the null models' file, whose version is null_version. n_docs, n_entries: live ones.
    text_bytes: of all segments, dead ones included.
    counters: what the job that made it did, for status (listed, hashed, encoded, …).
    epoch: of the writer's lease under which it was published (`shards/lease.py`); 0 where there was none.
    """

    format: int = FORMAT_VERSION
    corpus: str
    generation: PositiveInt
    parent: PositiveInt | None = None
    created: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)$")]
    shards: tuple[ShardRef, ...]
    spaces: tuple[SpaceRef, ...]
    sources: dict[str, SourceRef]
    nulls: FileRef | None = None
    null_version: NonNegativeInt = 0
    n_docs: NonNegativeInt
    n_entries: NonNegativeInt
    text_bytes: NonNegativeInt
    counters: dict[str, int] = Field(default_factory=dict)
    epoch: NonNegativeInt = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.parent is not None and self.parent >= self.generation:
            raise ValueError(f"generation {self.generation} cannot come from generation {self.parent}")
        edges = [edge for shard in self.shards for edge in shard.buckets]
        if (edges and (edges[0], edges[-1]) != (0, N_BUCKETS)) or edges[1:-1:2] != edges[2::2]:
            raise ValueError(f"the shards' bucket ranges do not cover 0 to {N_BUCKETS} once and in order: {edges}")
        if len({shard.shard for shard in self.shards}) != len(self.shards):
            raise ValueError("two shards have the same number")
        if len({space.name for space in self.spaces}) != len(self.spaces):
            raise ValueError("two spaces have the same name")
        return self


def encode(model: Model) -> bytes:
    """Canonical JSON: keys sorted, no spaces, ASCII. Equal models give equal bytes."""
    return json.dumps(model.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def check(data: bytes, ref: FileRef, store: Store) -> bytes:
    """`data` itself, if it is what the reference promises. Raises Corrupt."""
    if len(data) != ref.size:
        raise store.corrupt(ref.name, f"has {len(data)} bytes, the manifest says {ref.size}")
    if hashlib.sha256(data).hexdigest() != ref.sha256:
        raise store.corrupt(ref.name, f"does not have the checksum {ref.sha256} that the manifest states")
    return data


def write_page(store: Store, model: Model) -> FileRef:
    """A page, named by its content, in the corpus's store."""
    data = encode(model)
    ref = FileRef.of(f"pages/{hashlib.sha256(data).hexdigest()}.json", data)
    store.write(ref.name, data)
    return ref


# A host reads the pages of its shards again with every generation, nearly all of them unchanged. 256 pages of a few dozen
# segments are some megabytes.
_N_CACHED = 256
_pages: OrderedDict[tuple[str, type[Model]], Model] = OrderedDict()
_pages_lock = threading.Lock()


def read_page(store: Store, ref: FileRef, kind: type[M]) -> M:
    """A page, checked and parsed; kept by checksum, since equal checksums are equal pages. Raises NotFound, Corrupt."""
    key = (ref.sha256, kind)
    with _pages_lock:
        if key in _pages:
            _pages.move_to_end(key)
            return _pages[key]  # type: ignore[return-value]
    page = _parse(check(store.read(ref.name), ref, store), kind, ref.name, store)
    with _pages_lock:
        _pages[key] = page
        while len(_pages) > _N_CACHED:
            _pages.popitem(last=False)
    return page


def parse_page(data: bytes, name: str, store: Store) -> ShardPage:
    """A shard's page from its bytes. Raises Corrupt."""
    return _parse(data, ShardPage, name, store)


def check_corpus(corpus: str) -> str:
    """The name itself, if a corpus may bear it. Raises BadSpec."""
    if not _CORPUS.fullmatch(corpus):
        raise BadSpec(f"Corpus name {corpus!r} is not allowed. Use 1 to 128 of A-Z a-z 0-9 . _ -, no sign first.")
    return corpus


def corpus_store(store: Store, corpus: str) -> Store:
    """The part of the store that holds one corpus. Raises BadSpec for a name no corpus can bear."""
    return store.child(check_corpus(corpus))


def list_corpora(store: Store) -> list[str]:
    """The corpora with at least one published generation, sorted."""
    return [name for name in store.folders() if _CORPUS.fullmatch(name) and latest_generation(store, name)]


def latest_generation(store: Store, corpus: str) -> int | None:
    """The number of the newest published generation; None where there is none. Raises BadSpec."""
    names = corpus_store(store, corpus).list("roots/")
    return max((int(match[1]) for name in names if (match := re.fullmatch(r"roots/(\d{16})\.json", name))), default=None)


def read_root(store: Store, corpus: str, generation: int) -> Root:
    """The root of one generation.

    Raises NotFound (Gone where it was collected), Corrupt, and StoreError for a format that this build cannot read.
    """
    inside = corpus_store(store, corpus)
    name = _root_name(generation)
    try:
        data = inside.read(name)
    except NotFound:
        raise _no_generation(store, corpus, generation) from None
    try:
        version = json.loads(data)["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"Root {name!r} in store {inside.url} is no manifest ({error}). Delete it to go back by one.") from None
    if version not in range(OLDEST_READABLE, FORMAT_VERSION + 1):
        reads = str(FORMAT_VERSION) if OLDEST_READABLE == FORMAT_VERSION else f"{OLDEST_READABLE} to {FORMAT_VERSION}"
        raise StoreError(
            f"Corpus {corpus!r}, generation {generation} in store {store.url} has format {version}; this build reads {reads}. "
            "Upgrade, or index the corpus into another store."
        )
    root = _parse(data, Root, name, inside)
    if (root.corpus, root.generation) != (corpus, generation):
        raise Corrupt(
            f"Root {name!r} in store {inside.url} says it is generation {root.generation} of {root.corpus!r}. "
            "Copy a corpus under its own name and whole, or index again."
        )
    return root


def _no_generation(store: Store, corpus: str, generation: int) -> NotFound:
    """The error for a generation without a root: Gone where there were later ones, so that it was collected."""
    kept = [int(match[1]) for name in corpus_store(store, corpus).list("roots/") if (match := re.fullmatch(r"roots/(\d{16})\.json", name))]
    if not kept:
        return NotFound(f"Corpus {corpus!r} has no generation {generation} in store {store.url}, nor any. Build it with `sondage index`.")
    named = ", ".join(map(str, kept)) if len(kept) <= 20 else f"{kept[0]}, …, {', '.join(map(str, kept[-10:]))}"
    if generation > kept[-1]:
        return NotFound(f"Corpus {corpus!r} has no generation {generation} in store {store.url} yet. Kept are: {named}.")
    return Gone(f"Generation {generation} of corpus {corpus!r} in store {store.url} was collected. Kept are: {named}.")


def publish(store: Store, root: Root) -> None:
    """Make a generation visible, atomically. Everything it refers to must have been written before.

    Raises AlreadyExists when somebody else published this generation first; rebase on theirs and try the next number.
    """
    try:
        corpus_store(store, root.corpus).create(_root_name(root.generation), encode(root))
    except AlreadyExists:
        raise AlreadyExists(
            f"Generation {root.generation} of corpus {root.corpus!r} in store {store.url} was published by somebody else. "
            "Apply the changes to it and publish the next one."
        ) from None


def _root_name(generation: int) -> str:
    return f"roots/{generation:016d}.json"


def _parse(data: bytes, kind: type[M], name: str, store: Store) -> M:
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
        raise store.corrupt(name, f"is not a readable {kind.__name__} ({problems})") from None
