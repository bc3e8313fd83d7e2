"""What the care of a store says, for people: generations, what was freed, what is damaged, what was erased."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.text import Text

from jobs.failing import printable
from jobs.progress import amount
from jobs.render import visible
from jobs.status_tables import some
from jobs.tables import put, table
from jobs.terminal import Screen

if TYPE_CHECKING:
    from shards.changes import PathChange
    from shards.collect import Collected
    from shards.erase import Erased
    from shards.history import Kept
    from shards.repair import Repaired
    from shards.verify import Damage, Verified

MARKS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow"), "renamed": (">", "cyan"), "touched": (".", "dim")}


def history(out: Screen, found: "Sequence[Kept]") -> None:
    """A row for each generation, the newest first: when, by whom, what it changed, what it takes."""
    made = table("generation", "published", "by", "documents", "entries", "size", "alone", "changed")
    for one in found:
        if one.problem:
            made.add_row(str(one.generation), "", "", "", "", "", "", f"[red]cannot be read: {escape(one.problem)}[/]")
            continue
        when = one.created.removesuffix("+00:00").removesuffix("Z").replace("T", " ")
        held = f"{one.documents:,}", f"{one.entries:,}", amount(one.size_bytes, "bytes"), amount(one.own_bytes, "bytes")
        made.add_row(str(one.generation), when, escape(one.by), *held, escape(visible(changed(one.changed))))
    put(out, made)
    for one in found:
        for reader in one.readers:
            out.print(Text(f"generation {one.generation} is read by {reader}", "dim"))
    out.print(Text("times in UTC; alone: what deleting this generation would free", "dim"))


def changed(by_source: Mapping[str, Mapping[str, int]]) -> str:
    """ "added 3, removed 1"; of several sources with their names."""
    said = {source: ", ".join(f"{kind} {n:,}" for kind, n in counts.items()) for source, counts in by_source.items() if counts}
    return "; ".join(f"{source}: {what}" if len(by_source) > 1 else what for source, what in said.items()) or "nothing"


def diff(out: Screen, found: "Sequence[PathChange]") -> None:
    """A line for each path, + added, - removed, ~ changed, > renamed, . touched."""
    for change in found:
        mark, style = MARKS[change.kind]
        path = f"{change.old_path} -> {change.path}" if change.old_path else change.path
        text = f"{change.source}/{path}".encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        out.print(Text.assemble((f"{mark} ", style), visible(text)))


def collected(out: Screen, corpus: str, done: "Collected") -> None:
    """What is gone, or would go, and what stays for whom."""
    did = "would remove" if done.dry_run else "removed"
    out.print(Text(f"{corpus}: {did} generations {numbers(done.removed)}; kept {numbers(done.kept)}"))
    freed = table("kind", "files", "size")
    for kind, n in sorted(done.files.items()):
        freed.add_row(escape(kind), f"{n:,}", amount(done.size_bytes.get(kind, 0), "bytes"))
    if done.files:
        freed.add_row("in all", f"{sum(done.files.values()):,}", amount(sum(done.size_bytes.values()), "bytes"))
        put(out, freed)
    for number, readers in sorted(done.held.items()):
        out.print(Text(f"generation {number} is read by {', '.join(readers)}", "yellow"))
    if done.young_files:
        out.print(Text(f"{done.young_files:,} files stay for a run that began at {done.young_since}", "yellow"))


def verified(out: Screen, corpus: str, found: "Verified", done: "Repaired | None", left: "Sequence[Damage]") -> None:
    """What was read, what is damaged, what was mended, what is left."""
    out.print(Text(f"{corpus}: {found.files:,} files, {amount(found.size_bytes, 'bytes')}, of generations {numbers(found.generations)}"))
    for damage in found.damages:
        out.print(Text(f"  {damage.name} {damage.found}; generations {numbers(list(damage.generations))}: {damage.consequence}", "red"))
    for note in found.notes:
        out.print(Text(f"  {note}", "dim"))
    if done:
        made = [*(f"put back {file}" for file in done.restored), *(f"deleted {file}" for file in done.removed)]
        for line in [*made, *(f"made anew: {what}" for what in done.rebuilt), *(f"read again: {path}" for path in done.reread)]:
            out.print(Text(f"  {printable(line)}", "green"))
        for lost in done.lost:
            out.print(Text(printable(f"  lost: {lost.hash}, which lay at {', '.join(path for _, path in lost.places)}"), "red"))
        hint = "; they belong to old generations: sondage gc --keep 1" if left else ""
        out.print(Text(f"  {len(left):,} damaged files are left{hint}", "red" if left else "green"))
    elif not found.damages:
        out.print(Text("nothing is damaged", "green"))
    else:
        out.print(Text("sondage verify --repair mends what can be mended", "dim"))


def erased(out: Screen, corpus: str, done: "Erased") -> None:
    """What is gone, and the proof."""
    out.print(Text(f"{corpus}: erased {some(len(done.documents), 'document')}; removed generations {numbers(done.removed_generations)}"))
    out.print(Text(f"  read {done.proven_files:,} files, {amount(done.proven_bytes, 'bytes')}, from beginning to end:"))
    for trace in done.traces:
        of_others = f"  {trace.name} holds {trace.what}, of another document"
        out.print(Text(of_others, "dim") if trace.shared else Text(f"  {trace.name} holds {trace.what}: NOT ERASED, run this again", "red"))
    if done.complete:
        out.print(Text("  nothing of the erased documents is left", "green"))
    for note in done.notes:
        out.print(Text(f"  {note}", "dim"))


def numbers(those: Sequence[int]) -> str:
    return ", ".join(map(str, those)) or "none"
