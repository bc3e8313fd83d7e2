"""Which segments are to be merged, and how much waits: a decision from manifest pages alone.

Every change writes a segment of its own, so that it costs what it changed; merging keeps their number small. Segments are in
tiers by the size of what lives in them: tier 0 below `FLOOR_BYTES`, each further one `FAN` times larger. `FAN` segments of a tier
are merged, together with all of lower tiers, into one of a higher tier. So a document is rewritten at most once a tier, 7 times on
its way to a segment of `FULL_BYTES`, and a shard has fewer than `FAN` segments in each of 7 tiers, and full ones. Full segments
are not merged any more. Any segment of which at least half is dead, and `FLOOR_BYTES` of it, is written anew without what died:
this costs less than what was deleted.

Only segments of the same spaces are merged, so that none is lost: those that lack one wait for an index job to fill them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shards.manifest import SegmentRef, ShardPage

FAN = 4
FLOOR_BYTES = 64 << 10
FULL_BYTES = 64 << 20  # four times as much is what a worker holds in memory a few times over
ROW_BYTES = 128  # what an entry or a document without text is taken to weigh: path, hash, places

Group = tuple[SegmentRef, ...]


@dataclass(frozen=True, slots=True)
class Debt:
    """What waits to be merged in one shard. merges: the groups that are due; bytes: what lives in them and is to be written.

    dead_documents, dead_entries, dead_bytes: of all segments, whether due or not.
    """

    shard: int
    n_segments: int
    merges: int
    bytes: int
    dead_documents: int
    dead_entries: int
    dead_bytes: int


def merge_debt(pages: Iterable[ShardPage]) -> list[Debt]:
    """What waits in each shard."""
    found = []
    for page in pages:
        groups = due(page.segments)
        found.append(
            Debt(
                shard=page.shard,
                n_segments=len(page.segments),
                merges=len(groups),
                bytes=sum(live_bytes(ref) for group in groups for ref in group),
                dead_documents=sum(ref.n_dead_docs for ref in page.segments),
                dead_entries=sum(ref.n_dead_entries for ref in page.segments),
                dead_bytes=sum(dead_bytes(ref) for ref in page.segments),
            )
        )
    return found


def due(segments: Sequence[SegmentRef]) -> list[Group]:
    """Groups of a shard's segments that are to be merged, each into one; disjoint, those first that take least to write."""
    groups: list[Group] = []
    alike: dict[frozenset[tuple[str, str]], list[SegmentRef]] = {}
    for ref in segments:
        alike.setdefault(frozenset(ref.spaces.items()), []).append(ref)
    for refs in alike.values():
        chosen = _crowded([ref for ref in refs if live_bytes(ref) < FULL_BYTES])
        if chosen:
            groups.append(tuple(ref for ref in refs if ref in chosen))
        groups += [(ref,) for ref in refs if ref not in chosen and _mostly_dead(ref)]
    return sorted(groups, key=lambda group: (sum(map(live_bytes, group)), group[0].id))


def in_portions(segments: Sequence[SegmentRef]) -> list[Group]:
    """Segments that must all be rewritten, in groups of the same spaces and of a size that a worker can hold."""
    groups: list[Group] = []
    alike: dict[frozenset[tuple[str, str]], list[SegmentRef]] = {}
    for ref in segments:
        alike.setdefault(frozenset(ref.spaces.items()), []).append(ref)
    for refs in alike.values():
        portion: list[SegmentRef] = []
        for ref in refs:
            if portion and sum(map(live_bytes, portion)) + live_bytes(ref) > FAN * FULL_BYTES:
                groups.append(tuple(portion))
                portion = []
            portion.append(ref)
        groups.append(tuple(portion))
    return groups


def live_bytes(ref: SegmentRef) -> int:
    """About how much lives in what a reference covers: text, dead documents taken to be of average length, and rows."""
    living = ref.n_docs - ref.n_dead_docs
    text = ref.text_bytes * living // ref.n_docs if ref.n_docs else 0
    return text + ROW_BYTES * (living + ref.n_entries - ref.n_dead_entries)


def dead_bytes(ref: SegmentRef) -> int:
    """Likewise how much is dead."""
    text = ref.text_bytes * ref.n_dead_docs // ref.n_docs if ref.n_docs else 0
    return text + ROW_BYTES * (ref.n_dead_docs + ref.n_dead_entries)


def _mostly_dead(ref: SegmentRef) -> bool:
    return dead_bytes(ref) >= max(live_bytes(ref), FLOOR_BYTES)


def _tier(ref: SegmentRef) -> int:
    size, tier = live_bytes(ref), 0
    while size >= FLOOR_BYTES:
        size //= FAN
        tier += 1
    return tier


def _crowded(refs: Sequence[SegmentRef]) -> list[SegmentRef]:
    """The segments of the lowest tier that has too many, and of those below; none where no tier has."""
    tiers = {id(ref): _tier(ref) for ref in refs}
    for tier in sorted(set(tiers.values())):
        if sum(t == tier for t in tiers.values()) >= FAN:
            return [ref for ref in refs if tiers[id(ref)] <= tier]
    return []
