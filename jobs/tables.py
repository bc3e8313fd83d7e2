"""Numbers as people read them, in columns."""

import math

from rich.table import Table

_TEXTS = frozenset(
    {"layer", "asked", "asked by", "why", "null model", "granularity", "origin", "query", "cost", "host", "hosts", "state", "circuit"}
    | {"reason"}
)


def table(*columns: str) -> Table:
    """An empty table without lines: what is not known to be text stands to the right."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, overflow="fold", justify="left" if column in _TEXTS else "right")
    return made


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
