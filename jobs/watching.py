"""Asking again and again, and drawing each answer over the last one: `--watch`. Ctrl-C ends it; the last answer stays on the screen."""

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from rich.text import Text

from jobs.terminal import Screen, console, print_json
from shards.errors import BadQuery, SondageError

LEAST_S, MOST_S = 0.2, 86_400.0

T = TypeVar("T")
Sleep = Callable[[float], None]
Clock = Callable[[], float]
Draw = Callable[[Screen, T], None]


def looks(look: Callable[[], T], every_s: float, clock: Clock = time.monotonic, sleep: Sleep = time.sleep) -> Iterator[T | SondageError]:
    """An answer, or why there is none, every `every_s` seconds, counted from when the last was asked for; at once after one that took
    longer. What goes wrong the first time is raised: it is the command that is wrong, not the server that is away for a moment.
    """
    first = True
    while True:
        begun = clock()
        try:
            found: T | SondageError = look()
        except SondageError as error:
            if first:
                raise
            found = error
        first = False
        yield found
        sleep(max(0.0, begun + every_s - clock()))


def watch(
    look: Callable[[], T],
    draw: Draw[T],
    every_s: float,
    color: str = "auto",
    as_json: Callable[[T], Any] | None = None,
    clock: Clock = time.monotonic,
    sleep: Sleep = time.sleep,
    time_of_day: Callable[[], str] = lambda: time.strftime("%H:%M:%S"),
) -> T:
    """Draws until Ctrl-C; on a terminal each answer over the last, elsewhere one below the other. Returns the last answer.

    as_json: what is printed of an answer instead, one JSON document a line; None: it is drawn. Raises BadQuery for seconds out of range,
    and what the first look raises.
    """
    if not LEAST_S <= every_s <= MOST_S:
        raise BadQuery(f"--watch is {every_s:g}; expected {LEAST_S:g} to {MOST_S:,.0f} seconds.")
    out = console(color)
    over = out.is_terminal and sys.stdout.isatty() and as_json is None
    found: T | None = None
    with ExitStack() as screen:
        try:
            for answer in looks(look, every_s, clock, sleep):
                problem = str(answer) if isinstance(answer, SondageError) else ""
                if over and found is None:
                    screen.enter_context(whole_screen(out))
                found = found if isinstance(answer, SondageError) else answer
                head = f"every {every_s:g} s, {time_of_day()}" + (f": {problem}" if problem else "")
                if over:
                    out.file.write(frame(head, drawn(draw, found, out), out.width, out.height))
                elif problem:
                    print(f"sondage: {problem}", file=sys.stderr)
                elif as_json is not None:
                    print_json(as_json(found))
                else:
                    out.print(Text(f"-- {head}", "dim"))
                    draw(out, found)
                out.file.flush()
        except KeyboardInterrupt:
            if found is None:
                raise
    if over:
        draw(out, found)
    return found


def grow(answers: Iterator[T], draw: Draw[T], color: str = "auto") -> T:
    """Draws answers to one question as they come, each over the one before; the last stays, on the terminal's own screen. Elsewhere only
    that is drawn. Returns it; raises what the answers raise. Ctrl-C takes the last one that came."""
    out = console(color)
    over = out.is_terminal and sys.stdout.isatty()
    found: T | None = None
    with ExitStack() as screen:
        try:
            for number, answer in enumerate(answers, 1):
                if over and found is None:
                    screen.enter_context(whole_screen(out))
                found = answer
                if over:
                    out.file.write(frame(f"answer {number}", drawn(draw, answer, out), out.width, out.height))
                    out.file.flush()
        except KeyboardInterrupt:
            if found is None:
                raise
    assert found is not None, "a search has an answer"
    draw(out, found)
    return found


@contextmanager
def whole_screen(out: Screen) -> Iterator[None]:
    """The terminal's other screen, without a cursor; the first one comes back as it was."""
    out.set_alt_screen(True)
    out.show_cursor(False)
    try:
        yield
    finally:
        out.show_cursor(True)
        out.set_alt_screen(False)


def drawn(draw: Draw[T], answer: T, out: Screen) -> list[str]:
    """The lines of an answer as `out` would show them, control sequences and all, each as wide as it at most."""
    kept = io.StringIO()
    inside = console("auto" if out.color_system else "never", kept, out)
    inside.links = out.links
    inside.soft_wrap = False  # rich wraps: a line that the terminal wrapped by itself would be two rows of the screen
    draw(inside, answer)
    return kept.getvalue().splitlines()


def frame(head: str, lines: list[str], width: int, height: int) -> str:
    """One screen: from its upper left corner on, each row ended where its text ends, without a clear that would flicker."""
    room = height - 2
    if len(lines) > room:
        lines = [*lines[: room - 1], f"… {len(lines) - room + 1} more rows"]
    whole = [head[:width], *lines]
    return "\x1b[H" + "\x1b[K\n".join(whole) + "\x1b[K\x1b[J"
