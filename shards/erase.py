"""Removing documents so that no byte of them is left in the store, and proving it.

Order: a generation without them is published (the segments that held them are written anew, trees lose their rows, null models are
fitted anew); encodings, staging files and the log of pushed documents are cleansed; every generation that held them goes, whoever
reads it, with all files that nobody refers to any more. After a crash anywhere, running it again goes on. `erased/` tells hosts which
files to forget that they hold copies of.
"""

import gzip
import hashlib
import json
import logging
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from shards import layer_queue, pushlog, rewriting, tree, usage
from shards.collect import Policy, collect
from shards.delta import Living, Specs
from shards.encodings import PackedEncodings
from shards.errors import AlreadyExists, BadSpec, Corrupt, EndpointError, ModelMissing, NotFound
from shards.generation import Generation, spec_of
from shards.given import WRITTEN
from shards.identity import HASH_BYTES
from shards.layers import create, space_id
from shards.layers.contract import Resources
from shards.manifest import Root, SegmentRef, ShardPage, SourceRef, corpus_store, latest_generation, read_page
from shards.media import KeptMedia
from shards.references import References, generations, hashes_in, manifest_files
from shards.repair import Tools
from shards.salvage import columns, piece
from shards.segment import Segment, pack_entries
from shards.store import Store
from shards.tombstones import bury
from shards.worker import SegmentTask, sorted_hashes

logger = logging.getLogger(__name__)

ATTEMPTS = 5
_HASH = re.compile(r"[0-9a-f]{40}")
_N_LINES, _LINE_BYTES = 16, 24  # of each document so many of its longest lines are looked for, if they are that long at least


@dataclass(frozen=True, slots=True)
class Target:
    """A document that is to go. places: (source, path) wherever a kept generation or the log has it. text: its rendition, media: the
    image or PDF file it was made from, if found."""

    hash: bytes
    places: tuple[tuple[str, str], ...]
    text: bytes | None
    media: bytes | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Bytes of a document that a file holds. what: which. shared: they belong to another document that says the same."""

    name: str
    what: str
    shared: bool


@dataclass(slots=True)
class Erased:
    """What was done and found. proven: files that were read from beginning to end afterwards, with their bytes.

    traces: where bytes of the documents were met; none but shared ones, or they are not erased. notes: what cannot be seen from here.
    """

    documents: list[str] = field(default_factory=list)
    places: list[tuple[str, str]] = field(default_factory=list)
    generation: int | None = None
    removed_generations: list[int] = field(default_factory=list)
    segments: int = 0
    encodings: int = 0
    staging: int = 0
    log_entries: list[str] = field(default_factory=list)
    cached_files: int = 0
    proven_files: int = 0
    proven_bytes: int = 0
    traces: list[Trace] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether nothing is left."""
        return all(trace.shared for trace in self.traces)


def targets(store: Store, corpus: str, wanted: Sequence[str]) -> list[Target]:
    """The documents that are meant by paths and content hashes (40 hex digits), in any kept generation or the log.

    A path means every content that it had. Raises NotFound for what is nowhere; BadSpec where such a content lies at other paths,
    too, which would lose it: name its hash to mean all of them.
    """
    inside = corpus_store(store, corpus)
    references = References(store, corpus)
    places: dict[bytes, set[tuple[str, str]]] = {}
    for source, path, key in _all_places(inside, references):
        places.setdefault(key, set()).add((source, path))
    meant: dict[bytes, str] = {}
    for name in wanted:
        if _HASH.fullmatch(name):
            found = [bytes.fromhex(name)]  # also one that is nowhere: then an erasure that was cut off is finished, and proven
        else:
            found = [key for key, of_key in places.items() if any(path == name for _, path in of_key)]
            if not found:
                raise NotFound(
                    f"No kept generation of corpus {corpus!r} has anything at path {name!r}; paths are relative to their source. To finish "
                    "an erasure that was cut off, name the content hash."
                )
        meant |= dict.fromkeys(found, name)
    for key, name in meant.items():
        others = sorted({path for _, path in places.get(key, ()) if path not in wanted})
        if others and key.hex() not in wanted:
            raise BadSpec(
                f"The content of {name!r} lies at {', '.join(map(repr, others[:5]))}{' and more' * (len(others) > 5)}, too. "
                f"To erase it everywhere, name its hash: {key.hex()}."
            )
    texts = _texts(inside, references, list(meant))
    media = KeptMedia(inside).get(sorted_hashes(list(meant)))
    return [Target(key, tuple(sorted(places.get(key, ()))), texts.get(key), media.get(key)) for key in sorted(meant)]


def erase(store: Store, corpus: str, doomed: Sequence[Target], tools: Tools) -> Erased:
    """Erase these documents from a corpus. store: the store's root. Raises StoreError and what the lease raises; run it again then."""
    inside = corpus_store(store, corpus)
    keys = [target.hash for target in doomed]
    outcome = Erased([key.hex() for key in keys], sorted({place for target in doomed for place in target.places}))
    references = References(store, corpus)
    # What hosts may hold copies of, noted before anything goes.
    files = {file.sha256 for ref in _holding(inside, _all_segments(references), keys) for _, file in manifest_files(ref)}
    note = json.dumps({"files": sorted(files)}, sort_keys=True).encode()
    if files:
        inside.write(f"erased/{hashlib.sha256(note).hexdigest()[:24]}.json", note)
    for attempt in range(ATTEMPTS):
        try:
            outcome.generation = _publish_without(store, corpus, keys, tools, outcome)
            break
        except (AlreadyExists, NotFound):
            if attempt == ATTEMPTS - 1:
                raise
    for key in keys:
        outcome.log_entries += pushlog.erase(inside, key)
    for space in inside.folders("encodings"):
        n_packs = PackedEncodings(inside, f"encodings/{space}").forget(sorted_hashes(keys))
        outcome.encodings += n_packs
        if n_packs and space.startswith(WRITTEN):
            outcome.notes.append(
                "A model wrote texts about them, which are erased; the endpoint was sent their text, and may have kept it."
            )
    usage.erase(inside, keys)
    layer_queue.erase(inside, {path for _, path in outcome.places})
    outcome.staging = _cleanse_staging(inside, keys)
    condemned = _tainted(inside, References(store, corpus), keys)
    policy = Policy(max(len(generations(store, corpus)), 1), young=True, condemned=condemned)
    done = collect(store, corpus, policy, tools.clock(), hold=lambda: tools.hold("erase"), report=tools.report)
    outcome.removed_generations = done.removed
    outcome.cached_files = tools.cache.forget(files)
    prove(inside, doomed, outcome, tools.report)
    outcome.notes.append("Hosts forget their copies when they next open a generation; until then, or a restart, they hold them mapped.")
    if inside.local_path("x") is None:
        outcome.notes.append("If the bucket keeps old versions of objects, it still has them: end those there.")
    else:
        outcome.notes.append("The disk may keep deleted blocks until they are used again; snapshots and backups are their owners'.")
    sources = sorted({source for source, _ in outcome.places if source != pushlog.SOURCE})
    if sources:
        outcome.notes.append(f"The next index run reads again what source {', '.join(sources)} still has: delete or exclude it there.")
    return outcome


# --- where it lies -----------------------------------------------------------------------------------------------------------


def _readable(references: References) -> Iterator[Root]:
    for number in generations(references.store, references.corpus):
        try:
            yield references.root(number)
        except Corrupt:
            continue


def _all_places(inside: Store, references: References) -> Iterator[tuple[str, str, bytes]]:
    """(source, path, hash) of all that the kept generations and the log say, some more than once."""
    seen: set[str] = set()
    for root in _readable(references):
        for name, source in root.sources.items():
            for ref in tree.pages(inside, source.tree) if source.tree else ():
                if (key := f"{name}/{ref.sha256}") not in seen:
                    seen.add(key)
                    if not tree.references(inside.read(ref.name), ref.name, inside):
                        yield from ((name, row.path, bytes.fromhex(row.hash)) for row in tree.rows(inside, ref) if row.hash)
    for entry in _log(inside):
        yield from ((pushlog.SOURCE, o.path, o.hash) for o in entry.operations if o.hash)


def _log(inside: Store) -> Iterator[pushlog.LogEntry]:
    for name in inside.list("log/"):
        entry = pushlog.read(inside, int(name.removeprefix("log/").partition(".")[0]))
        if entry is not None:
            yield entry


def _all_segments(references: References) -> list[SegmentRef]:
    """Every segment that a kept generation refers to, once."""
    return list({ref.id: ref for root in _readable(references) for ref in references.segments(root)}.values())


def _holding(inside: Store, segments: Sequence[SegmentRef], keys: Sequence[bytes]) -> list[SegmentRef]:
    """Those whose files name one of the documents, dead or alive, as a document or in an entry."""
    wanted = set(keys)
    return [ref for ref in segments if any(wanted & _named(inside, ref, role) for role in ("docs", "entries"))]


def _named(inside: Store, ref: SegmentRef, role: str) -> set[bytes]:
    data = hashes_in(inside, ref, role).tobytes()
    return {data[i : i + HASH_BYTES] for i in range(0, len(data), HASH_BYTES)}


def _texts(inside: Store, references: References, keys: Sequence[bytes]) -> dict[bytes, bytes]:
    """The renditions of documents, from wherever they lie."""
    found: dict[bytes, bytes] = {}
    for ref in _holding(inside, _all_segments(references), keys):
        documents = columns(inside, ref)
        for row in range(len(documents)):
            if (key := documents.hashes[row].tobytes()) in keys and key not in found:
                found[key] = piece(inside, ref, documents, row)[1]
    for entry in _log(inside):
        found |= {o.hash: o.text for o in entry.operations if o.hash in keys and o.hash not in found}
    return found


def _tainted(inside: Store, references: References, keys: Sequence[bytes]) -> frozenset[int]:
    """The kept generations that hold one of the documents, or null models that were fitted while they did; or cannot be read."""
    holding = {ref.id for ref in _holding(inside, _all_segments(references), keys)}
    wanted = {key.hex() for key in keys}
    tainted: set[int] = set()
    nulls: set[str] = set()
    roots = list(_readable(references))
    for root in roots:
        in_segments = any(ref.id in holding for ref in references.segments(root))
        in_trees = any(row.hash in wanted for source in root.sources.values() if source.tree for row in tree.rows(inside, source.tree))
        if in_segments or in_trees:
            tainted.add(root.generation)
            nulls |= {root.nulls.name} if root.nulls else set()
    tainted |= {root.generation for root in roots if root.nulls and root.nulls.name in nulls}
    unreadable = set(generations(references.store, references.corpus)) - {root.generation for root in roots}
    return frozenset(tainted | unreadable)


# --- taking it away ----------------------------------------------------------------------------------------------------------


def _publish_without(store: Store, corpus: str, keys: Sequence[bytes], tools: Tools, outcome: Erased) -> int | None:
    """Publish the newest generation without the documents; None where it does not hold them."""
    inside = corpus_store(store, corpus)
    references = References(store, corpus)
    root = references.root(latest_generation(store, corpus) or 0)
    if root.generation not in _tainted(inside, references, keys):
        return None
    generation = Generation.of_root(root, store, tools.cache, tools.resources)
    held = {ref.id for ref in _holding(inside, list(references.segments(root)), keys)}
    specs = _made_here(root, tools.resources)
    left_out = sorted({ref.name for ref in root.spaces} - set(specs))
    outcome.segments = len(held)
    tasks: list[SegmentTask] = []
    pages: list[ShardPage] = []
    for shard in root.shards:
        page = read_page(inside, shard.page, ShardPage)
        kept = []
        for ref in page.segments:
            if ref.id in held:
                buried = _bury(inside, generation, ref, keys, tools)
                key = hashlib.sha256(buried.model_dump_json().encode()).digest()
                tasks.append(SegmentTask(page.shard, page.buckets, (), sorted_hashes([]), pack_entries(()), (buried,), {}, key))
            else:
                kept.append(ref)
        pages.append(page.model_copy(update={"segments": tuple(kept)}))
    workers = tools.workers(inside, specs)
    try:
        for result in workers.run("build", tasks):
            if result.ref is not None:
                page = pages[result.shard]
                pages[result.shard] = page.model_copy(update={"segments": (*page.segments, result.ref)})
    finally:
        workers.close()
    sources = {name: _source(inside, source, keys, outcome) for name, source in root.sources.items()}
    following = rewriting.successor(inside, root, pages, sources)
    if root.nulls is not None:
        following = rewriting.fitted(store, tools.cache, tools.resources, following, tools.calibrate)
    if left_out:
        outcome.notes.append(f"Not on this machine: the model of {', '.join(left_out)}; the next index run fills it in again.")
    return rewriting.publish(store, root, following, tools.hold, "erase").generation


def _made_here(root: Root, resources: Resources) -> Specs:
    """The spaces of a generation that this machine can write anew."""
    made: Specs = {}
    for ref in root.spaces:
        try:
            if space_id(spec_of(ref), create(spec_of(ref), resources)) == ref.space_id:
                made[ref.name] = (spec_of(ref), ref.space_id)
        except (EndpointError, ModelMissing):
            continue
    return made


def _bury(inside: Store, generation: Generation, ref: SegmentRef, keys: Sequence[bytes], tools: Tools) -> SegmentRef:
    """A reference with the documents and their entries dead; writing it anew then leaves them out."""
    view = Living(Segment(ref, inside, tools.cache), ref, inside)
    rows = view.rows_of(sorted_hashes(list(keys)))
    entries = [row for _, row in view.entries_of(sorted_hashes(list(keys)))]
    return bury(inside, generation, ref, rows[rows >= 0].astype(np.int32), np.array(entries, np.int32))


def _source(inside: Store, source: SourceRef, keys: Sequence[bytes], outcome: Erased) -> SourceRef:
    """A source without rows of the documents, and without what the last run said of their paths."""
    wanted = {key.hex() for key in keys}
    paths = [row.path for row in tree.rows(inside, source.tree) if row.hash in wanted] if source.tree else []
    update: dict[str, object] = {}
    if paths and source.tree is not None:
        update = {"tree": tree.edit(inside, source.tree, deletes=paths), "n_entries": source.n_entries - len(paths)}
    if source.last_run is not None:
        said = tuple(text for text in source.last_run.examples if not any(path in text for _, path in outcome.places))
        update["last_run"] = source.last_run.model_copy(update={"examples": said})
    return source.model_copy(update=update)


def _cleanse_staging(inside: Store, keys: Sequence[bytes]) -> int:
    """Delete staged files that name a document, each with its list; a run that needs them reads again."""
    names = inside.list("staging/")
    stems = {name.split(".")[0] for name in names if _mentions(inside.read(name), keys)}
    doomed = [name for name in names if name.split(".")[0] in stems]
    inside.delete_many(sorted(doomed, key=lambda name: (name.endswith(".pack"), name)))
    return len(doomed)


def _mentions(data: bytes, keys: Sequence[bytes]) -> bool:
    return any(key in data or key.hex().encode() in data for key in keys)


# --- proof -------------------------------------------------------------------------------------------------------------------


def prove(inside: Store, doomed: Sequence[Target], outcome: Erased, report: Callable[[str, int, int, str], None]) -> None:
    """Read every file that is left, as it is and decompressed, and look for the documents: whole, by their longest lines, by hash.

    A text that is left may say the same as an erased one: such traces are marked as shared where the file has no document of that hash.
    """
    needles = [(what, needle) for target in doomed for what, needle in _needles(target)]
    hashes = [target.hash for target in doomed]
    names = [name for name in inside.list() if not name.startswith("erased/")]
    for i, name in enumerate(names):
        try:
            data = inside.read(name)
        except NotFound:  # another's, tidied away meanwhile
            continue
        outcome.proven_files += 1
        outcome.proven_bytes += len(data)
        for part in _expanded(data):
            outcome.traces += [Trace(name, f"the hash {key.hex()}", False) for key in hashes if _mentions(part, [key])]
            texts = name.startswith(("segments/", "log/", "staging/")) and not _mentions(part, hashes)
            outcome.traces += [Trace(name, what, texts) for what, needle in needles if needle in part]
        report("prove", i + 1, len(names), "files")


def _needles(target: Target) -> Iterator[tuple[str, bytes]]:
    if target.media is not None:
        # As a whole: pieces, such as a font of a PDF, may be another's too.
        yield f"the image or file of {target.hash.hex()}", target.media
    if target.text is None:
        return
    if len(target.text.strip()) >= _LINE_BYTES:
        yield f"the whole text of {target.hash.hex()}", target.text
    lines = sorted({line.strip() for line in target.text.splitlines() if len(line.strip()) >= _LINE_BYTES}, key=len, reverse=True)
    for line in lines[:_N_LINES]:
        if line != target.text:
            yield f"a line of {target.hash.hex()}", line


def _expanded(data: bytes) -> Iterator[bytes]:
    """The bytes, and what they unpack to if they are compressed."""
    yield data
    for magic, unpack in ((b"\x1f\x8b", gzip.decompress), (b"\x78", zlib.decompress)):
        if data.startswith(magic):
            try:
                yield unpack(data)
            except (OSError, EOFError, zlib.error):  # began like it by accident
                continue
