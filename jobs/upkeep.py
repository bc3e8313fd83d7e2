"""Commands that look after a store: history, diff, gc, verify, export, import, erase. They work on the store itself, without a server.

Exit codes: 0 done, and nothing is wrong; 1 something is (verify found damage that is left, erase met traces); 2 error.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.options import AsJson, Color, Colors, Corpus, Paged
from jobs.options import StoreAlone as Store
from shards.errors import BadSpec

if TYPE_CHECKING:
    from jobs.progress import Progress
    from jobs.settings import Settings
    from shards.corpus import Source
    from shards.manifest import SourceRef
    from shards.repair import Tools
    from shards.store import Store as AnyStore


def add(app: typer.Typer) -> None:
    """Put the commands of this module into the `sondage` command."""
    for command in (history, diff, gc, verify, export, erase):
        app.command()(command)
    app.command("import")(import_)


def history(corpus: Corpus = None, store: Store = None, as_json: AsJson = False, color: Colors = Color.auto, paged: Paged = None) -> None:
    """Show every kept generation: when and by whom it was published, what it changed, what it takes, who reads it."""
    from shards.history import history as kept

    _, opened, name = _opened(store, corpus)
    found = kept(opened, name, time.time())
    if _json(as_json, [asdict(one) for one in found]):
        return
    from jobs import store_tables
    from jobs.terminal import shown

    with shown(color.value, paged) as out:
        store_tables.history(out, found)


def diff(
    a: Annotated[int, typer.Argument(help="Generation that is compared with.")],
    b: Annotated[int, typer.Argument(help="Generation whose changes are shown.")],
    corpus: Corpus = None,
    store: Store = None,
    as_json: AsJson = False,
    color: Colors = Color.auto,
    paged: Paged = None,
) -> None:
    """Show which paths were added, removed, changed and renamed between two generations."""
    from shards.changes import changes
    from shards.manifest import corpus_store, read_root

    _, opened, name = _opened(store, corpus)
    found = list(changes(corpus_store(opened, name), read_root(opened, name, a), read_root(opened, name, b)))
    if _json(as_json, [asdict(change) for change in found]):
        return
    from jobs import store_tables
    from jobs.terminal import shown

    with shown(color.value, paged) as out:
        store_tables.diff(out, found)


def gc(
    keep: Annotated[int, typer.Option("--keep", help="Generations that stay, the newest ones.")],
    older_than: Annotated[str | None, typer.Option("--older-than", help="Take only those this old: 30d, 12h, 45m.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; delete nothing.")] = False,
    corpus: Corpus = None,
    store: Store = None,
    as_json: AsJson = False,
    color: Colors = Color.auto,
) -> None:
    """Delete old generations that nobody reads, and files that no generation refers to."""
    from jobs.progress import Progress
    from shards.collect import Policy, collect

    _, opened, name = _opened(store, corpus)
    with Progress() as progress:
        done = collect(opened, name, Policy(keep, _seconds(older_than)), time.time(), dry_run=dry_run, report=progress)
    if _json(as_json, asdict(done)):
        return
    from jobs import store_tables
    from jobs.terminal import console

    store_tables.collected(console(color.value), name, done)


def verify(
    deep: Annotated[bool, typer.Option("--deep", help="Also recount statistics and make arrays anew from the text.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Mend what is damaged, and nothing else.")] = False,
    corpus: Corpus = None,
    store: Store = None,
    as_json: AsJson = False,
    color: Colors = Color.auto,
) -> None:
    """Read everything that the kept generations refer to, and name what is damaged.

    Exit codes: 0 nothing is damaged, or no longer; 1 damage is left; 2 error.
    """
    from jobs.progress import Progress
    from shards.repair import repair as mend
    from shards.verify import verify as check

    settings, opened, name = _opened(store, corpus)
    with Progress() as progress:
        tools = _tools(settings, opened, name, progress)
        found = check(opened, name, tools.cache, tools.resources, deep=deep, report=progress)
        done = mend(opened, name, found, tools) if repair and found.damages else None
        left = check(opened, name, tools.cache, tools.resources, report=progress).damages if done else found.damages
    if not _json(as_json, {**asdict(found), "repaired": asdict(done) if done else None, "left": [asdict(damage) for damage in left]}):
        from jobs import store_tables
        from jobs.terminal import console

        store_tables.verified(console(color.value), name, found, done, left)
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
    with Progress() as progress:
        if not destination.endswith(".tar"):
            done = copy(opened, _other(settings, destination), name, generation, time.time, progress)
        else:
            if os.path.exists(destination):
                raise BadSpec(f"{destination} exists already. Name another file, or remove it.")
            target = write_archive(Path(f"{destination}.partial"))
            try:
                done = copy(opened, target, name, generation, time.time, progress)
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
        with Progress() as progress:
            done = restore(origin, opened, choose_corpus(origin, corpus), progress)
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
    color: Colors = Color.auto,
) -> None:
    """Remove documents with every byte of them, old generations included, and prove it.

    Exit codes: 0 nothing of them is left; 1 something is; 2 error.
    """
    from jobs.progress import Progress
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
    with Progress() as progress:
        done = remove(opened, name, doomed, _tools(settings, opened, name, progress))
    if not _json(as_json, asdict(done) | {"complete": done.complete}):
        from jobs import store_tables
        from jobs.terminal import console

        store_tables.erased(console(color.value), name, done)
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


def _tools(settings: "Settings", store: "AnyStore", corpus: str, progress: "Progress") -> "Tools":
    from jobs.index import s3_storage_options
    from jobs.pool import LocalPool, WorkerSettings, cores
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
        options = s3_storage_options(settings.s3_options()) if "s3://" in ref.url else {}
        return Source(name, ref.url, ref.include, ref.exclude, options)

    calibrate: Callable[[Any], bytes | None] = Calibrator(cores(), progress)
    return Tools(cache, resources, workers, time.time, holding(store, corpus), calibrate, source_of, progress)


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
        from jobs.terminal import print_json

        print_json(value)
    return wanted
