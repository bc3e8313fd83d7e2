"""The `sondage` command, put together from the files that answer its questions.

Only typer is imported at once: everything else when a command needs it, so that help and completion take no time.
"""

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from jobs import (
    agents,
    commands_jobs,
    commands_open,
    commands_push,
    commands_search,
    commands_serve,
    commands_status,
    external_search,
    keys,
    query,
    top,
    upkeep,
)
from jobs.failing import OK, STOPPED, UNREAD, tell, tell_usage, wants_json
from shards.errors import SondageError

# As help shows them: under which heading, in which order.
SECTIONS = {
    "Ask": ("search", "query", "explain", "document"),
    "Fill": ("open", "index", "put", "rm", "external"),
    "Look": ("status", "layers", "top", "history", "diff"),
    "Serve": ("serve", "mcp", "deploy", "scale", "keys"),
    "Keep": ("gc", "verify", "export", "import", "erase"),
    "Measure": ("evaluate", "tune", "bench"),
}
UsageError: Any = typer.BadParameter.__mro__[1]  # click's; typer brings a click of its own, and names no more of it than this
EPILOG = (
    "Exit codes are grep's: 0 found or done, 1 nothing found (or something is damaged or left), 2 error; 130 after Ctrl-C. With --json "
    "stdout is one JSON document, and an error is one on stderr."
)


class Unread(Exception):
    """Whoever read the output went away. No OSError, for which click would end with 1: nothing found."""


def summary(command: Any) -> str:
    """The first sentence of a command's help."""
    return re.split(r"(?<=[.?]) |\n", (command.help or "").strip(), maxsplit=1)[0]


class Sections(TyperGroup):
    """The commands under headings."""

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:
        listed = {name for names in SECTIONS.values() for name in names}
        others = tuple(name for name in self.list_commands(ctx) if name not in listed)
        for heading, names in {**SECTIONS, "Other": others}.items():
            there = [(name, summary(self.commands[name])) for name in names if name in self.commands]
            if there:
                with formatter.section(heading):
                    formatter.write_dl(there, col_max=12)

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _read():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: typer.Context) -> Any:
        with _read():
            return super().invoke(ctx)


@contextmanager
def _read() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise Unread from None


app = typer.Typer(
    name="sondage",
    cls=Sections,
    help="Search any corpus in many layers at once. Every hit says where it is, which layers found it, and how surprising that is.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"sondage {version('sondage')}")
        raise typer.Exit


@app.callback()
def sondage(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version.")] = False,
) -> None:
    """What belongs to no command."""


for part in (
    commands_search, commands_open, commands_push, commands_status, commands_jobs, commands_serve,
    agents, external_search, keys, top, upkeep,
):  # fmt: skip
    part.add(app)
query.register(app)
for command in app.registered_commands:
    if "Exit code" not in (command.callback.__doc__ or ""):
        command.epilog = "Exit codes: 0 done, 2 error."


def main(arguments: list[str] | None = None) -> int:
    """The entry point. Returns the exit code; errors of ours are one message on stderr."""
    words = sys.argv[1:] if arguments is None else arguments
    as_json = wants_json(words)
    try:
        code = typer.main.get_command(app).main(words, "sondage", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except SondageError as error:
        return tell(error, as_json)
    except UsageError as error:
        usage = f"{error.ctx.get_usage()}\n" if error.ctx is not None else ""
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
            return error.exit_code
        return tell_usage(error.format_message(), as_json, usage)
    except (Unread, BrokenPipeError):
        # Python would say at its end that it cannot write what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except (KeyboardInterrupt, typer.Abort):
        return STOPPED
    except SystemExit as end:  # argparse's way to end, in jobs, and that of completion
        return end.code if isinstance(end.code, int) else 2 if end.code else OK
    except Exception:  # not 1, which would say that nothing was found
        traceback.print_exc()
        print("sondage: this should not have happened; please report the lines above.", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
