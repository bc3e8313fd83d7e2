"""A next generation that says what the newest says over files made anew: how repairs and erasures are published."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Protocol

from shards import lease, manifest
from shards.cache import FileCache
from shards.errors import AlreadyExists
from shards.generation import Generation
from shards.layers.contract import Resources
from shards.manifest import FORMAT_VERSION, Root, ShardPage, ShardRef, SourceRef
from shards.store import Store
from shards.writing import Calibrate, keep_nulls, require


class Held(Protocol):
    """The writer's lease, see `shards.lease.Lease`."""

    epoch: int

    def renew(self) -> None: ...

    def check(self, newest: Root | None) -> None: ...


# In these a fence (`shards.lease`) differs from the generation that it repeats.
_OF_A_FENCE = ("format", "generation", "parent", "created", "epoch")

Hold = Callable[[str], AbstractContextManager[Held]]  # purpose -> the writer's lease of the corpus


def holding(store: Store, corpus: str) -> Hold:
    """Takes the writer's lease of a corpus as everybody does. store: the store's root."""
    return lambda purpose: lease.hold(store, corpus, purpose)


def successor(store: Store, parent: Root, pages: Sequence[ShardPage], sources: Mapping[str, SourceRef]) -> Root:
    """The root after `parent` with these pages and sources, not yet published; its pages are written. store: the corpus's."""
    shards = []
    for page, before in zip(pages, parent.shards, strict=True):
        ref = manifest.write_page(store, page)
        if ref == before.page:
            shards.append(before)
            continue
        n_docs = sum(part.n_docs - part.n_dead_docs for part in page.segments)
        n_entries = sum(part.n_entries - part.n_dead_entries for part in page.segments)
        shards.append(ShardRef(shard=page.shard, buckets=page.buckets, page=ref, n_docs=n_docs, n_entries=n_entries))
    return parent.model_copy(
        update={
            "format": FORMAT_VERSION,
            "generation": parent.generation + 1,
            "parent": parent.generation,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "shards": tuple(shards),
            "sources": dict(sources),
            "n_docs": sum(shard.n_docs for shard in shards),
            "n_entries": sum(shard.n_entries for shard in shards),
            "text_bytes": sum(part.text_bytes for page in pages for part in page.segments),
        }
    )


def fitted(store: Store, cache: FileCache, resources: Resources, root: Root, calibrate: Calibrate | None) -> Root:
    """The root with null models fitted on its own documents; with none where nobody fits them. store: the store's root."""
    data = calibrate(Generation.of_root(root, store, cache, resources)) if calibrate else None
    if data is None:
        return root.model_copy(update={"nulls": None})
    file = keep_nulls(manifest.corpus_store(store, root.corpus), data)
    counters = {**root.counters, "docs_at_fit": root.n_docs}
    return root.model_copy(update={"nulls": file, "null_version": root.null_version + 1, "counters": counters})


def publish(store: Store, parent: Root, root: Root, hold: Hold, purpose: str, damaged: bool = False) -> Root:
    """Publish what `successor` made of `parent`, under the writer's lease. store: the store's root. damaged: files of the parent may be
    missing, so that it is no help in telling which of the new root's are there.

    Raises AlreadyExists where another generation was published meanwhile: start over on it. NotFound where a file that it refers to
    was collected: start over.
    """
    with hold(purpose) as held:
        newest = manifest.read_root(store, parent.corpus, manifest.latest_generation(store, parent.corpus) or 0)
        if newest.model_copy(update={name: getattr(parent, name) for name in _OF_A_FENCE}) != parent:
            raise AlreadyExists(
                f"Corpus {parent.corpus!r}: generation {newest.generation} was published while generation {parent.generation} was "
                "worked on. Run the command again."
            )
        require(manifest.corpus_store(store, parent.corpus), root, None if damaged else newest)
        held.check(newest)
        root = root.model_copy(update={"generation": newest.generation + 1, "parent": newest.generation, "epoch": held.epoch})
        manifest.publish(store, root)
    return root
