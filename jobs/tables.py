"""Numbers as people read them, in columns; on a screen that is too narrow for these, below one another."""

import math

from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_TEXTS = frozenset(
    {"layer", "asked", "asked by", "why", "null model", "granularity", "origin", "query", "cost", "host", "hosts", "state", "circuit"}
    | {"reason", "dial", "default", "meaning", "asked", "covers", "published", "by", "changed", "kind", "value"}
)


def table(*columns: str) -> Table:
    """An empty table without lines: what is not known to be text stands to the right."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, overflow="fold", justify="left" if column in _TEXTS else "right")
    return made


def put(out: Console, made: Table, indent: int = 0) -> None:
    """Print a table so far in; on a terminal where its columns would be cut within words, each row as a list of what its columns say."""
    least = indent + Measurement.get(out, out.options.update(width=10_000), made).minimum
    if not out.is_terminal or least <= out.width:
        out.print(Padding(made, (0, 0, 0, indent), expand=False) if indent else made)
        return
    names = [str(column.header) for column in made.columns]
    wide = max(map(len, names), default=0)
    for row in zip(*(column.cells for column in made.columns), strict=True):
        for name, cell in zip(names, row, strict=True):
            text = Text.from_markup(cell) if isinstance(cell, str) else cell
            if isinstance(text, Text) and text.plain:
                out.print(Text.assemble((f"{name:<{wide}}  ", "dim"), text))
        out.print()


def evalue(value: float) -> str:
    """An E-value as E=3e-7, E=0.04, E=2.5, E=130: two digits are what it is worth."""
    if math.isnan(value):
        return "E=?"
    if value < 1e-300:
        return "E<1e-300"
    if value < 0.001 or value >= 1e6:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"E={mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"E={value:.0f}" if value >= 10 else f"E={value:.2g}"


def number(value: float | None, form: str = ".2f") -> str:
    """A number in this format; "" for none."""
    return "" if value is None else format(value, form)
