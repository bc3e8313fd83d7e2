"""What a search tool elsewhere found, for people."""

from typing import TYPE_CHECKING, Any

from rich.text import Text

from jobs.render import visible
from jobs.terminal import shown

if TYPE_CHECKING:
    from jobs.options import Color
    from serve.external.results import Fetched
    from serve.push_schema import BulkAnswer


def show(color: "Color", fetched: "Fetched", done: "BulkAnswer | None", corpus: str) -> None:
    """Each result with its address and the place where it was put; what was left out; how many were accepted."""
    with shown(color, None) as out:
        _tell(out, fetched, done, corpus)


def _tell(out: Any, fetched: "Fetched", done: "BulkAnswer | None", corpus: str) -> None:
    for result in fetched.results:
        out.print(Text(visible(result.title or result.text[:80]), "bold"), Text(result.date, "dim"))
        for line in filter(None, (result.url, result.path)):
            out.print(Text(f"  {visible(line)}", "dim"))
    for note in (*fetched.notes, *(error.message for error in (done.errors if done else ()))):
        out.print(Text(note, "yellow"))
    if done is None:
        out.print("nothing found")
    else:
        state = f"searchable in generation {done.generation}" if done.searchable else "durable, searchable in a moment"
        out.print(f"{done.accepted:,} pushed to {corpus}, {state}")
