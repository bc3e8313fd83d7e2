"""Where a command's result goes: colours and links as far as they are seen, a pager for what is longer than the screen, JSON.

On stdout there is the result and nothing else. Without a terminal nothing but colours, links and wrapping is missing.
"""

import io
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import gethostname
from typing import Any, NoReturn
from urllib.parse import quote

from rich.console import Console
from rich.style import Style
from rich.text import Text

UNBROKEN = 10_000  # columns where there is no terminal: programs want one line a row, however long


class Screen(Console):
    """A console that tells whether links can be followed on it, and leaves a closed pipe to whoever runs the command."""

    def __init__(self, links: bool, **options: Any):
        super().__init__(highlight=False, soft_wrap=True, **options)
        self.links = links and not self.is_dumb_terminal

    def on_broken_pipe(self) -> NoReturn:
        raise  # the error that is being handled, where rich would end the process with 1, which says that nothing was found

    def linked(self, text: Text, file: Path) -> Text:
        """The text as a link (OSC 8) to a file of this machine, where a terminal will see it."""
        if self.links:
            text.stylize(Style(link=f"file://{gethostname()}{quote(str(file.absolute()))}"))
        return text


def console(color: str = "auto", file: Any = None, like: Console | None = None) -> Screen:
    """Where to print. color: auto (a terminal, unless NO_COLOR is set), always, never. file: instead of stdout, dressed for `like`."""
    options: dict[str, Any] = {"auto": {}, "always": {"force_terminal": True}, "never": {"color_system": None}}[color]
    on_terminal = sys.stdout.isatty()
    if like is not None:
        options |= {"force_terminal": True, "width": like.width, "height": like.height}
        options.setdefault("color_system", like.color_system)
    width = {} if on_terminal or "width" in options else {"width": UNBROKEN}
    return Screen(on_terminal and color != "never", file=file, **options, **width)


@contextmanager
def shown(color: str = "auto", paged: bool | None = None) -> Iterator[Screen]:
    """A console for a command's whole result. paged: in a pager; None: if it is longer than the screen. Only ever on a terminal."""
    out = console(color)
    if paged is False or not (sys.stdin.isatty() and sys.stdout.isatty()) or not (command := pager()):
        yield out
        return
    kept = io.StringIO()
    inside = console(color, kept, out)
    inside.links = out.links
    try:
        yield inside
    finally:
        text = kept.getvalue()
        if paged or rows(text, out.width) >= out.height:
            # Other pagers than less show control sequences as letters.
            page(text if command[0].rpartition("/")[2] == "less" else Text.from_ansi(text).plain + "\n", command)
        else:
            out.file.write(text)
            out.file.flush()


def rows(text: str, width: int) -> int:
    """How many rows of a screen a text with control sequences takes."""
    return sum(max(1, -(-line.cell_len // width)) for line in Text.from_ansi(text).split("\n"))


def pager() -> list[str]:
    """The pager's command: [] where there is none, or it is `cat`."""
    from jobs.settings import Settings

    command = shlex.split(Settings.load().pager)
    if not command or command[0] == "cat" or shutil.which(command[0]) is None:
        return []
    if command[0].rpartition("/")[2] == "less":
        command.insert(1, "-R")  # colours, whatever the user's LESS says
    return command


def page(text: str, command: list[str]) -> None:
    """Show a text in a pager, until it ends. It may end before it has read all."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, errors="replace") as process:
        while True:
            try:
                process.communicate(text)
                return
            except KeyboardInterrupt:  # the pager's to handle: it shares the terminal
                continue


def print_json(value: Any) -> None:
    """JSON on stdout: indented for people, one line for programs."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=not sys.stdout.isatty()))
