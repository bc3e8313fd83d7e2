"""What status tells of a corpus: its size, its layers with what they take on disk and in the hosts' memory, what waits to be done."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from serve.answers import describe
from shards.generation import Generation
from shards.memory import private_bytes
from shards.merging import merge_debt


def corpus_status(generation: Generation, hosts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The generation that answers. hosts: as `Searcher.status` gives them."""
    root = generation.root
    layer_bytes: dict[str, int] = {}
    # A segment that several shards cut ranges from lies in the store once.
    for role, _, size in {(r, f.name, f.size) for page in generation.pages for s in page.segments for r, f in s.files.items()}:
        layer_bytes[role] = layer_bytes.get(role, 0) + size
    memory = memory_of(root.corpus, hosts)
    return {
        "generation": root.generation,
        "created": root.created,
        "docs": root.n_docs,
        "entries": root.n_entries,
        "text_bytes": root.text_bytes,
        "shards": [{"shard": s.shard, "buckets": s.buckets, "docs": s.n_docs, "entries": s.n_entries} for s in root.shards],
        "segments": sum(len(page.segments) for page in generation.pages),
        "dead_docs": sum(r.n_dead_docs for page in generation.pages for r in page.segments),
        "debt": [asdict(debt) for debt in merge_debt(generation.pages)],
        "null_version": root.null_version,
        "sources": {name: ref.model_dump(exclude={"tree"}) for name, ref in root.sources.items()},
        "layers": [
            describe(space, generation, sum(layer_bytes.get(f"{kind}/{space.id}", 0) for kind in ("layer", "stats")))
            | memory.get(space.id, NOTHING)
            | {"statistics_bytes": private_bytes([generation.statistics(space.name)])}
            for space in generation.spaces.values()
        ],
        "memory": {what: memory.get(what, NOTHING) for what in ("text", "documents")},
    }


NOTHING: dict[str, int | None] = {"mapped_bytes": 0, "resident_bytes": 0, "private_bytes": 0}


def memory_of(corpus: str, hosts: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int | None]]:
    """What all hosts hold of a corpus in memory, summed: by space id, and as "text" and "documents" (see `Host.memory`).

    A sum of which one host cannot tell its part is None.
    """
    total: dict[str, dict[str, int | None]] = {}
    for host in hosts:
        for what, parts in host.get("memory", {}).get(corpus, {}).items():
            sums = total.setdefault(what, dict(NOTHING))
            for name, size in parts.items():
                before = sums[f"{name}_bytes"]
                sums[f"{name}_bytes"] = None if before is None or size is None else before + size
    return total
