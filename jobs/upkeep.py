"""Commands that look after a store: history, diff, gc, verify, export, import, erase. They work on the store itself, without a server.

Exit codes: 0 done, and nothing is wrong; 1 something is (verify found damage that is left, erase met traces); 2 error.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shards.errors import BadSpec

if TYPE_CHECKING:
    from jobs.settings import Settings
    from shards.corpus import Source
    from shards.manifest import SourceRef
    from shards.repair import Tools
    from shards.store import Store as AnyStore

Corpus = Annotated[str | None, typer.Option("--corpus", "-c", help="Corpus; may be left out where there is one.")]
Store = Annotated[str | None, typer.Option("--store", help="The index (SONDAGE_STORE).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")]


def add(app: typer.Typer) -> None:
    """Put the commands of this module into the `sondage` command."""
    for command in (history, diff, gc, verify, export, erase):
        app.command()(command)
    app.command("import")(import_)


def history(corpus: Corpus = None, store: Store = None, as_json: AsJson = False) -> None:
    """Show every kept generation: what it changed, what it takes, who reads it."""
    from jobs.progress import amount
    from shards.history import history as kept

    _, opened, name = _opened(store, corpus)
    found = kept(opened, name, time.time())
    if _json(as_json, [asdict(one) for one in found]):
        return
    for one in found:
        if one.problem:
            print(f"{one.generation:>6}  cannot be read: {one.problem}")
            continue
        size = f"{amount(one.size_bytes, 'bytes')}, {amount(one.own_bytes, 'bytes')} of it nobody else's"
        print(f"{one.generation:>6}  {one.created}  {one.documents:,} documents, {one.entries:,} entries, {size}")
        for source, counts in one.changed.items():
            print(f"        {source}: " + ", ".join(f"{kind} {n:,}" for kind, n in counts.items()))
        for reader in one.readers:
            print(f"        read by {reader}")


def diff(
    a: Annotated[int, typer.Argument(help="Generation that is compared with.")],
    b: Annotated[int, typer.Argument(help="Generation whose changes are shown.")],
    corpus: Corpus = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Show which paths were added, removed, changed and renamed between two generations."""
    from shards.changes import changes
    from shards.manifest import corpus_store, read_root

    _, opened, name = _opened(store, corpus)
    found = changes(corpus_store(opened, name), read_root(opened, name, a), read_root(opened, name, b))
    if as_json:
        _json(True, [asdict(change) for change in found])
        return
    marks = {"added": "+", "removed": "-", "changed": "~", "renamed": ">", "touched": "."}
    for change in found:
        path = f"{change.old_path} -> {change.path}" if change.old_path else change.path
        print(f"{marks[change.kind]} {change.source}/{path}".encode("utf-8", "surrogateescape").decode("utf-8", "replace"))


def gc(
    keep: Annotated[int, typer.Option("--keep", help="Generations that stay, the newest ones.")],
    older_than: Annotated[str | None, typer.Option("--older-than", help="Take only those this old: 30d, 12h, 45m.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; delete nothing.")] = False,
    corpus: Corpus = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Delete old generations that nobody reads, and files that no generation refers to."""
    from jobs.progress import Progress, amount
    from shards.collect import Policy, collect

    _, opened, name = _opened(store, corpus)
    done = collect(opened, name, Policy(keep, _seconds(older_than)), time.time(), dry_run=dry_run, report=Progress())
    if _json(as_json, asdict(done)):
        return
    print(f"{name}: {'would remove' if dry_run else 'removed'} generations {_list(done.removed)}; kept {_list(done.kept)}")
    for kind, n in sorted(done.files.items()):
        print(f"  {kind}: {n:,} files, {amount(done.size_bytes.get(kind, 0), 'bytes')}")
    for number, readers in sorted(done.held.items()):
        print(f"  generation {number} is read by {', '.join(readers)}")
    if done.young_files:
        print(f"  {done.young_files:,} files stay for a run that began at {done.young_since}")


def verify(
    deep: Annotated[bool, typer.Option("--deep", help="Also recount statistics and make arrays anew from the text.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what is damaged, and nothing else.")] = False,
    corpus: Corpus = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Read everything that the kept generations refer to, and name what is damaged."""
    from jobs.progress import Progress, amount
    from shards.repair import repair as mend
    from shards.verify import verify as check

    settings, opened, name = _opened(store, corpus)
    tools = _tools(settings, opened, name)
    found = check(opened, name, tools.cache, tools.resources, deep=deep, report=Progress())
    done = mend(opened, name, found, tools) if repair and found.damages else None
    left = check(opened, name, tools.cache, tools.resources, report=Progress()).damages if done else found.damages
    if not _json(as_json, {**asdict(found), "repaired": asdict(done) if done else None, "left": [asdict(damage) for damage in left]}):
        print(f"{name}: {found.files:,} files, {amount(found.size_bytes, 'bytes')}, of generations {_list(found.generations)}")
        for damage in found.damages:
            print(f"  {damage.name} {damage.found}; generations {_list(list(damage.generations))}: {damage.consequence}")
        for note in found.notes:
            print(f"  {note}")
        if done:
            made = [*(f"put back {file}" for file in done.restored), *(f"deleted {file}" for file in done.removed)]
            for line in [*made, *(f"made anew: {what}" for what in done.rebuilt), *(f"read again: {path}" for path in done.reread)]:
                print(f"  {line}")
            for lost in done.lost:
                print(f"  lost: {lost.hash}, which lay at {', '.join(path for _, path in lost.places)}")
            print(f"  {len(left):,} damaged files are left" + ("; they belong to old generations: sondage gc --keep 1" if left else ""))
    raise typer.Exit(1 if left else 0)


def export(
    destination: Annotated[str, typer.Argument(help="A folder, s3://bucket/prefix, or a file that ends with .tar.")],
    generation: Annotated[list[int] | None, typer.Option("--generation", help="Generation to copy; repeatable. Else the newest.")] = None,
    corpus: Corpus = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Copy generations of a corpus elsewhere, checked on the way; run again, it goes on."""
    import os

    from jobs.progress import Progress, amount
    from shards.backup import export as copy
    from shards.store_tar import write_archive

    settings, opened, name = _opened(store, corpus)
    if not destination.endswith(".tar"):
        done = copy(opened, _other(settings, destination), name, generation, time.time, Progress())
    else:
        if os.path.exists(destination):
            raise BadSpec(f"{destination} exists already. Name another file, or remove it.")
        target = write_archive(Path(f"{destination}.partial"))
        try:
            done = copy(opened, target, name, generation, time.time, Progress())
        finally:
            target.archive.close()
        os.replace(f"{destination}.partial", destination)
    if not _json(as_json, asdict(done)):
        print(f"{name}: generations {_list(done.generations)}, {done.files:,} files, {amount(done.size_bytes, 'bytes')}")


def import_(
    source: Annotated[str, typer.Argument(help="What sondage export wrote.")],
    corpus: Corpus = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Bring an exported corpus into a store that does not have it."""
    from jobs.progress import Progress, amount
    from jobs.settings import Settings
    from shards.backup import choose_corpus, restore
    from shards.store import open_store
    from shards.store_tar import TarStore, read_archive

    settings = Settings.load(store=store)
    opened = open_store(settings.store_url(), **settings.store_options())
    origin = read_archive(Path(source)) if source.endswith(".tar") else _other(settings, source)
    try:
        done = restore(origin, opened, choose_corpus(origin, corpus), Progress())
    finally:
        if isinstance(origin, TarStore):
            origin.archive.close()
    if not _json(as_json, asdict(done)):
        print(f"{done.corpus}: generations {_list(done.generations)}, {done.files:,} files, {amount(done.size_bytes, 'bytes')}")


def erase(
    what: Annotated[list[str], typer.Argument(help="Paths, or content hashes of 40 hex digits.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say which documents are meant; erase nothing.")] = False,
    corpus: Corpus = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Remove documents with every byte of them, old generations included, and prove it."""
    from jobs.progress import amount
    from shards.erase import erase as remove
    from shards.erase import targets

    settings, opened, name = _opened(store, corpus)
    doomed = targets(opened, name, what)
    if dry_run:
        shown = [{"hash": target.hash.hex(), "places": [list(place) for place in target.places]} for target in doomed]
        if not _json(as_json, shown):
            for target in doomed:
                print(f"{target.hash.hex()}  {', '.join(path for _, path in target.places)}")
        return
    done = remove(opened, name, doomed, _tools(settings, opened, name))
    if not _json(as_json, asdict(done) | {"complete": done.complete}):
        print(f"{name}: erased {len(done.documents):,} documents; removed generations {_list(done.removed_generations)}")
        print(f"  read {done.proven_files:,} files, {amount(done.proven_bytes, 'bytes')}, from beginning to end:")
        for trace in done.traces:
            print(f"  {trace.name} holds {trace.what}" + (", of another document" if trace.shared else ": NOT ERASED, run this again"))
        if done.complete:
            print("  nothing of the erased documents is left")
        for note in done.notes:
            print(f"  {note}")
    raise typer.Exit(0 if done.complete else 1)


# --- what they share ---------------------------------------------------------------------------------------------------------


def _opened(store: str | None, corpus: str | None) -> "tuple[Settings, AnyStore, str]":
    from jobs.settings import Settings
    from shards.backup import choose_corpus
    from shards.store import open_store

    settings = Settings.load(store=store)
    opened = open_store(settings.store_url(), **settings.store_options())
    return settings, opened, choose_corpus(opened, corpus or settings.corpus)


def _other(settings: "Settings", url: str) -> "AnyStore":
    from shards.store import open_store

    return open_store(url, **(settings.s3_options() if url.startswith("s3://") else {}))


def _tools(settings: "Settings", store: "AnyStore", corpus: str) -> "Tools":
    from jobs.index import _s3_storage_options
    from jobs.pool import LocalPool, WorkerSettings, cores
    from jobs.progress import Progress
    from serve.calibrate import Calibrator
    from shards.cache import FileCache
    from shards.corpus import Source
    from shards.repair import Tools
    from shards.rewriting import holding

    cache = FileCache(settings.host_settings().cache_dir, settings.cache_bytes)
    resources = settings.resources()

    def workers(inside: "AnyStore", specs: Any) -> Any:
        folder = settings.host_settings().cache_dir
        return LocalPool(WorkerSettings(inside.url, settings.store_options(), folder, settings.cache_bytes, specs, resources), cores())

    def source_of(name: str, ref: "SourceRef") -> "Source | None":
        if ref.url == "push:":
            return None
        options = _s3_storage_options(settings.s3_options()) if "s3://" in ref.url else {}
        return Source(name, ref.url, ref.include, ref.exclude, options)

    calibrate: Callable[[Any], bytes | None] = Calibrator(cores(), Progress())
    return Tools(cache, resources, workers, time.time, holding(store, corpus), calibrate, source_of, Progress())


def _seconds(text: str | None) -> float:
    if text is None:
        return 0.0
    units = {"d": 86_400, "h": 3_600, "m": 60}
    try:
        return float(text[:-1]) * units[text[-1:]]
    except (ValueError, KeyError):
        raise BadSpec(f"--older-than {text!r} is no time. Write a number and d, h or m, such as 30d.") from None


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _json(wanted: bool, value: Any) -> bool:
    if wanted:
        from jobs.cli import print_json

        print_json(value)
    return wanted
