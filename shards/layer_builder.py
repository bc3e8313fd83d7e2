"""Building spaces where they are used, one step at a time: what one process does for one corpus, without Ray or HTTP.

A step encodes a unit of documents, whose encodings are kept by content hash and are durable when it ends; or publishes a generation
whose segments have rows for what is encoded; or fits null models; or evicts. Deciding is `shards/building.py`. Everything that matters
lies in the store: any number of builders may work on a corpus, in any processes, and one that dies costs the portion that it was
encoding.
"""

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

import numpy as np

from shards import layer_queue, usage
from shards.building import Building, Catalogue, Reason, Weights, choose, to_evict, wants
from shards.building_cost import Spent, ledger, spend, today
from shards.cache import FileCache
from shards.delta import Specs
from shards.documents import Documents
from shards.drafts import Draft, Makers, specs_of
from shards.encodings import PackedEncodings
from shards.endpoint_settings import Usage
from shards.errors import AlreadyExists, Cancelled, NotFound, SondageError
from shards.generation import Generation
from shards.given import folder
from shards.identity import HASH_BYTES, as_keys, find_rows
from shards.layer_queue import Order, Queue
from shards.layers.contract import Progress, Resources
from shards.lease import WAIT_S, Clock, Sleep
from shards.manifest import SegmentRef, corpus_store, latest_generation
from shards.media import KeptMedia
from shards.partial import built_rows, with_rows
from shards.sampled_nulls import SampledNulls
from shards.segment import Segment, Tombstones, pack_entries
from shards.store import Store
from shards.types import Array
from shards.writing import Calibrate, Executor, Report, Writer

logger = logging.getLogger(__name__)

PUBLISH_S = 10.0  # between two generations of what was built, unless so many documents wait:
PUBLISH_DOCUMENTS = 256
PUBLISH_SHARE = 0.1  # of a builder's time that publishing may take: arrays of a large segment are written whole


@dataclass(frozen=True, slots=True)
class Step:
    """What a step did. documents: that it was about; seconds: that it took; generation: that was published."""

    kind: Literal["encoded", "published", "fitted", "evicted", "idle"]
    space: str = ""
    documents: int = 0
    reason: str = ""
    seconds: float = 0.0
    generation: int | None = None


@dataclass(slots=True)
class _Known:
    """Kept encodings that count what is put to them."""

    inner: PackedEncodings
    encoded: int = 0
    spent: Usage = field(default_factory=Usage)

    def get(self, hashes: Array) -> dict[bytes, Array]:
        return self.inner.get(hashes)

    def put(self, encodings: Mapping[bytes, Array]) -> None:
        self.encoded += len(encodings)
        self.inner.put(encodings)

    def spend(self, more: Usage) -> None:
        self.spent += more


@dataclass(frozen=True)
class _Opened:
    """The newest generation as a builder sees it. at: of each segment reference, the catalogue's rows of its live documents with their
    rows in the segment; built: by space name, (n,) bool."""

    generation: Generation
    catalogue: Catalogue
    at: Sequence[tuple[SegmentRef, Array, Array]]
    built: dict[str, Array]
    kept: dict[str, Array]


class LayerBuilder:
    """Builds the spaces of one corpus that are built where they are used. For one thread at a time.

    root_store: the store's root. clock: the time of day in seconds. calibrator: makes what fits null models; None: nobody does. Spaces that
    cannot be made here are left to others.
    """

    def __init__(
        self,
        root_store: Store,
        corpus: str,
        cache: FileCache,
        resources: Resources,
        clock: Clock = time.time,
        sleep: Sleep = time.sleep,
        wait_s: float = WAIT_S,
        calibrator: Callable[[Report], Calibrate] | None = None,
    ):
        self.root_store, self.corpus, self.cache, self.resources = root_store, corpus, cache, resources
        self.store = corpus_store(root_store, corpus)
        self._clock = clock
        self._writer = Writer(
            root_store, corpus, cache, resources, _no_workers, None, clock=clock, sleep=sleep, wait_s=wait_s, purpose="layers"
        )
        self._nulls = SampledNulls(self._writer, self.store, calibrator, clock)
        self._makers = Makers(corpus, resources)
        self._segments: dict[str, Segment] = {}
        self._opened: _Opened | None = None
        self._hopeless: dict[str, set[bytes]] = {}  # by space id: documents that were encoded and have no encoding still
        self._published_at, self._publishing_s = -np.inf, 0.0
        self._id = uuid.uuid4().hex

    # --- a step --------------------------------------------------------------------------------------------------------------

    def step(self, go_on: Progress | None = None) -> Step:
        """Do what is most due. go_on: told now and then how far encoding is; may wait, and raise Cancelled.

        Raises what the store and the lease raise: try again. A space that fails is logged and left until the process starts anew.
        """
        opened = self._open()
        if opened is None:
            return Step("idle")
        queue = layer_queue.state(self.store)
        counts = usage.read(self.store) if queue.usage else usage.UsageCounts()
        taken = layer_queue.taken(self.store, self._clock())
        spent = today(self.store, self._clock())
        for name in opened.built:
            building = self._building(opened, name, taken, spent)
            weights = Weights.of(opened.catalogue, counts, queue, name, self._clock())
            if (step := self._evict(opened, building, queue, weights)) is not None:
                return step
        if (step := self._publish(opened, False)) is not None:
            return step
        if (step := self._fit(opened, go_on)) is not None:
            return step
        for name in opened.built:
            building = self._building(opened, name, taken, spent)
            weights = Weights.of(opened.catalogue, counts, queue, name, self._clock())
            unit = choose(opened.catalogue, building, queue, weights)
            if unit is not None and (step := self._encode(opened, name, unit.rows, unit.reason, go_on)) is not None:
                return step
        return self._publish(opened, True) or Step("idle")

    def status(self) -> dict[str, dict[str, object]]:
        """By space: how far it is, what it took and how long what was asked for will take, in seconds, if that is known.

        waiting: of what was asked for what is not encoded; due: all that is to be encoded or published, what use suggests included.
        """
        opened = self._open()
        if opened is None:
            return {}
        queue, spent = layer_queue.state(self.store), ledger(self.store)
        counts = usage.read(self.store) if queue.usage else usage.UsageCounts()
        now, told = self._clock(), {}
        taken = layer_queue.taken(self.store, now)
        for name, built in opened.built.items():
            space = opened.generation.spaces[name].id
            scope = self._scope(opened, name)
            done = (built | opened.kept[name]) & scope
            asked = opened.catalogue.meant((*queue.builds, *queue.pins), name) & scope
            total = sum((part for (_, of), part in spent.items() if of == space), Spent())
            each_s = total.seconds / total.documents if total.documents else None
            waiting = int(np.count_nonzero(asked & ~done))
            limits = queue.limits.get(name)
            building = self._building(opened, name, taken, {})
            weights = Weights.of(opened.catalogue, counts, queue, name, now)
            due = opened.kept[name] & ~built & scope
            for want in wants(opened.catalogue, building, queue, weights):
                due[want.rows] = True
            told[name] = {
                "built": int(np.count_nonzero(built & scope)),
                "documents": int(np.count_nonzero(scope)),
                "bytes": self._bytes(opened, space),
                "waiting": waiting,
                "due": int(np.count_nonzero(due)),
                "running": len(taken.get(space, ())),
                "builds": [list(one.globs) for one in queue.builds if one.space == name],
                "pins": [list(one.globs) for one in queue.pins if one.space == name],
                "evictions": [list(one.globs) for one in queue.evictions if one.space == name],
                "limits": limits.model_dump() if limits is not None else {},
                "usage": queue.usage,
                "encoded_today": today(self.store, now).get(space, Spent()).documents,
                "spent": asdict(total),
                "remaining_s": round(waiting * each_s, 1) if each_s is not None else None,
            }
        return told

    # --- what is there ---------------------------------------------------------------------------------------------------------

    def _open(self) -> _Opened | None:
        number = latest_generation(self.root_store, self.corpus)
        if number is None:
            return None
        if self._opened is not None and self._opened.generation.root.generation == number:
            return self._opened
        generation = Generation.open(self.root_store, self.cache, self.corpus, number, self.resources, dict(self._segments))
        generation.segments = self._segments
        specs = specs_of(generation.root)
        names = [ref.name for ref in generation.root.spaces if ref.built == "used" and self._makers.maker(ref.name, specs)]
        if not names:
            self._opened = _Opened(generation, Catalogue(np.zeros((0, HASH_BYTES), np.uint8), np.zeros(0, np.int64), []), [], {}, {})
            return self._opened
        refs = [ref for page in generation.pages for ref in page.segments]
        living = {ref.id for ref in refs}
        for gone in [key for key in self._segments if key not in living]:
            del self._segments[gone]
        hashes, sizes, rows = [np.zeros((0, HASH_BYTES), np.uint8)], [np.zeros(0, np.int64)], []
        path_of: dict[bytes, str] = {}
        for ref in refs:
            segment = generation.segment(ref)
            live = _live(segment, ref, self.store)
            rows.append(live)
            documents, entries = segment.documents, segment.entries
            hashes.append(documents.hashes[live])
            sizes.append((documents.ends - documents.starts)[live])
            for row in range(len(entries)):
                path_of.setdefault(entries.hashes[row].tobytes(), entries.path(row))
        stacked, lengths = np.concatenate(hashes), np.concatenate(sizes)
        order = np.argsort(as_keys(stacked), kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        at, first = [], 0
        for ref, live in zip(refs, rows, strict=True):
            at.append((ref, place[first : first + len(live)], live))
            first += len(live)
        stacked = stacked[order]
        catalogue = Catalogue(stacked, lengths[order], [path_of.get(key.tobytes(), "") for key in stacked])
        built: dict[str, Array] = {}
        kept: dict[str, Array] = {}
        for name in names:
            space = generation.spaces[name]
            built[name] = np.zeros(len(catalogue), np.bool_)
            for ref, places, live in at:
                has = built_rows(self.store, ref, space.id)
                if len(has):
                    built[name][places] = has[live]
            kept[name] = ~PackedEncodings(self.store, folder(space.layer, space.id)).lacking(stacked)
        self._opened = _Opened(generation, catalogue, at, built, kept)
        return self._opened

    def _scope(self, opened: _Opened, name: str) -> Array:
        globs = opened.generation.spaces[name].scope
        return opened.catalogue.in_globs(globs)

    def _building(self, opened: _Opened, name: str, taken: Mapping[str, set[bytes]], spent: Mapping[str, Spent]) -> Building:
        space = opened.generation.spaces[name].id
        away = sorted(taken.get(space, set()) | self._hopeless.get(space, set()))
        busy = np.zeros(len(opened.catalogue), np.bool_)
        if away:
            rows = find_rows(opened.catalogue.hashes, np.frombuffer(b"".join(away), np.uint8).reshape(-1, HASH_BYTES))
            busy[rows[rows >= 0]] = True
        so_far = spent.get(space, Spent())
        return Building(
            name, self._scope(opened, name), opened.built[name], opened.kept[name], busy,
            self._bytes(opened, space), so_far.documents, so_far.cost,
        )  # fmt: skip

    def _bytes(self, opened: _Opened, space: str) -> int:
        files = {ref.files[role].name: ref.files[role].size for ref, _, _ in opened.at for role in (f"layer/{space}",) if role in ref.files}
        return sum(files.values())

    # --- encoding --------------------------------------------------------------------------------------------------------------

    def _encode(self, opened: _Opened, name: str, rows: Array, reason: Reason, go_on: Progress | None) -> Step | None:
        """Encode a unit; None where another builder is at it. The encodings are durable when it returns."""
        space = opened.generation.spaces[name].id
        layer = self._makers.maker(name, specs_of(opened.generation.root))
        assert layer is not None
        hashes = opened.catalogue.hashes[rows]
        lease = layer_queue.take(self.store, space, [key.tobytes() for key in hashes], self._clock())
        if lease is None:
            return None
        begun = self._clock()
        known = _Known(PackedEncodings(self.store, folder(layer, space)))
        try:
            documents = replace(self._texts(opened, rows), media=KeptMedia(self.store))
            layer.build(documents, pack_entries(()), None, known, go_on)
            self._without_units(known.inner, space, hashes)
        except Cancelled:
            raise
        except SondageError as error:
            logger.warning("corpus=%s space=%s event=not_encoded reason=%s", self.corpus, name, error)
            self._hopeless.setdefault(space, set()).update(key.tobytes() for key in hashes)
        finally:
            self.store.delete(lease)
        seconds = self._clock() - begun
        opened.kept[name][rows] = ~known.inner.lacking(hashes)
        spend(self.store, self._id, space, Spent.of(known.encoded, seconds, known.spent), self._clock())
        logger.info("corpus=%s space=%s event=encoded documents=%d reason=%s seconds=%.3f", self.corpus, name, len(rows), reason, seconds)
        return Step("encoded", name, len(rows), reason, seconds)

    def _texts(self, opened: _Opened, rows: Array) -> Documents:
        items = []
        for ref, places, live in opened.at:
            mine = live[np.isin(places, rows)]
            part = opened.generation.segment(ref).some(mine.astype(np.int32))
            items += [(part.hashes[i].tobytes(), bytes(part.content(i)), part.kind_names[part.kinds[i]]) for i in range(len(part))]
        return Documents.pack(items)

    def _without_units(self, known: PackedEncodings, space: str, hashes: Array) -> None:
        """Documents that have no passage are kept as such, so that they count as built; what form that has, another document says."""
        empty = hashes[known.lacking(hashes)]
        if not len(empty):
            return
        some = next(iter(known.get(hashes).values()), None)
        if some is None:
            self._hopeless.setdefault(space, set()).update(key.tobytes() for key in empty)
        else:
            known.put({key.tobytes(): some[:0] for key in empty})

    # --- publishing ------------------------------------------------------------------------------------------------------------

    def _publish(self, opened: _Opened, idle: bool) -> Step | None:
        """Publish what is encoded and in no segment yet, where that is due. idle: there is nothing else to do."""
        waiting = {name: opened.kept[name] & ~opened.built[name] & self._scope(opened, name) for name in opened.built}
        n = sum(int(np.count_nonzero(rows)) for rows in waiting.values())
        since = self._clock() - self._published_at
        least = self._publishing_s / PUBLISH_SHARE
        if not n or since < least or not (idle or n >= PUBLISH_DOCUMENTS or since >= PUBLISH_S):
            return None
        wanted = {name: opened.built[name] | waiting[name] for name in waiting if waiting[name].any()}
        return self._replace(opened, wanted, "published", n)

    def _fit(self, opened: _Opened, go_on: Progress | None) -> Step | None:
        name = self._nulls.due(opened.generation, opened.catalogue, opened.built)
        begun = self._clock()
        if not name or (root := self._nulls.fit(opened.generation, name, go_on)) is None:
            return None
        self._opened = None
        seconds = self._clock() - begun
        logger.info("corpus=%s generation=%d event=fitted space=%s seconds=%.3f", self.corpus, root.generation, name, seconds)
        return Step("fitted", name, int(np.count_nonzero(opened.built[name])), "", seconds, root.generation)

    def _evict(self, opened: _Opened, building: Building, queue: Queue, weights: Weights) -> Step | None:
        """Drop what is to go, encodings and all, else the next index run would put it back."""
        gone = to_evict(opened.catalogue, building, queue, weights)
        orders = [one for one in queue.evictions if one.space == building.space]
        step = None
        if gone.any():
            step = self._replace(opened, {building.space: building.built & ~gone}, "evicted", int(np.count_nonzero(gone)))
            if step is None:
                return None  # others published first: the next step looks again
        named = opened.catalogue.meant(orders, building.space) & ~opened.catalogue.meant(queue.pins, building.space)
        gone |= named & opened.kept[building.space]
        if gone.any():
            space = opened.generation.spaces[building.space]
            if space.layer.kept is None and space.layer.given is None:  # else they are others', too, or cannot be made again
                PackedEncodings(self.store, folder(space.layer, space.id)).forget(opened.catalogue.hashes[gone])
                self._opened = None
        for one in orders:
            layer_queue.give(self.store, Order(kind="evicted", space=one.space, globs=one.globs, order=one.number, at=one.at))
        return step or (Step("evicted", building.space, int(np.count_nonzero(gone))) if gone.any() else None)

    def _replace(self, opened: _Opened, wanted: Mapping[str, Array], kind: Literal["published", "evicted"], n: int) -> Step | None:
        """Publish a generation in which spaces are built for these documents; None where others published first: look again.

        Segments that others replaced or buried rows of meanwhile are left for the next time.
        """
        begun = self._clock()
        specs = specs_of(opened.generation.root)
        changed: dict[tuple[str, tuple[int, int]], tuple[SegmentRef, SegmentRef]] = {}
        try:
            for ref, places, live in opened.at:
                new = ref
                for name, rows in wanted.items():
                    before = opened.built[name][places]
                    if (rows[places] == before).all() and opened.generation.segment(ref).has(specs[name][1]):
                        continue
                    layer = self._makers.maker(name, specs)
                    assert layer is not None
                    segment = opened.generation.segment(ref)
                    has = built_rows(self.store, ref, specs[name][1])
                    mask = has.copy() if len(has) else np.zeros(len(segment), np.bool_)
                    mask[live] = rows[places]
                    known = PackedEncodings(self.store, folder(layer, specs[name][1]))
                    new = with_rows(segment, new, name, specs[name][1], layer, mask, known)
                if new is not ref:
                    changed[ref.id, ref.buckets] = ref, new
            with self._writer.lease() as held:
                newest = self._writer.newest()
                assert newest is not None
                pages, found = [], 0
                for page in newest.pages:
                    refs = []
                    for ref in page.segments:
                        old, new = changed.get((ref.id, ref.buckets), (None, ref))
                        found += old == ref
                        refs.append(new if old == ref else ref)
                    pages.append(page.model_copy(update={"segments": tuple(refs)}))
                if not found:
                    return None
                draft = Draft(specs_of(newest.root), build=frozenset())
                root = self._writer.publish(held, self._writer.root(newest, draft, pages, {}), newest.root)
        except (AlreadyExists, NotFound) as error:
            logger.info("corpus=%s event=build_not_published reason=%s", self.corpus, error)
            return None
        finally:
            self._writer.forget()
            self._opened = None
        self._published_at = self._clock()
        self._publishing_s = self._published_at - begun
        logger.info("corpus=%s generation=%d event=%s documents=%d seconds=%.3f", self.corpus, root.generation, kind, n, self._publishing_s)
        return Step(kind, ",".join(sorted(wanted)), n, "", self._publishing_s, root.generation)


def _live(segment: Segment, ref: SegmentRef, store: Store) -> Array:
    """Rows of the documents that live in what a reference covers: (m,) int64."""
    live = np.zeros(len(segment), np.bool_)
    live[slice(*segment.rows_in(ref.buckets, segment.hashes))] = True
    live[Tombstones.read(store, ref).documents] = False
    return np.flatnonzero(live)


def _no_workers(store: Store, specs: Specs) -> Executor:
    raise AssertionError("a layer builder builds no segments")
