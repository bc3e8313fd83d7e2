"""How large a query may be, so that nothing that walks its tree runs out of stack or time."""

import re

from shards.nlql.errors import NLQLError, ParseError
from shards.nlql.ir import Expr, Query, children

MAX_DEPTH = 100  # levels of brackets in a text, and levels of a tree: Python has 1,000 frames, and a walk takes up to four a level
MAX_COPIES = 10_000  # nodes that BETWEEN may repeat: it is two comparisons of one value, which could double at every level
MAX_ALIASES = 1_000  # of LET
MAX_KEYS = 64  # of ORDER BY, and values of COUNT BY: each is worked out for every row that is left
MAX_ROWS = 2**31 - 1  # of LIMIT, OFFSET, windows and milliseconds: what an int32 counts

HALF = re.compile("[\ud800-\udfff]")  # of a character: JSON can say them (`"\\ud800"`), and no encoder, index or answer can take them
HALF_MESSAGE = "The text holds half of a character (a surrogate without its other half)."


def check_height(node: Expr, error: type[NLQLError] = ParseError) -> None:
    """Raises `error`, at the first node that is too deep."""
    stack = [(node, 1)]
    while stack:
        top, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise too_deep(error).placed(top.at)
        stack.extend((child, depth + 1) for child in children(top))


def check_lists(query: Query, error: type[NLQLError] = ParseError) -> None:
    """Raises `error`, at the first binding, key or value too many."""
    for clause, items, most in (
        ("LET", query.let, MAX_ALIASES),
        ("ORDER BY", query.order_by, MAX_KEYS),
        ("COUNT BY", query.count_by, MAX_KEYS),
    ):
        if len(items) > most:
            raise error(f"{clause} has {len(items):,} parts; at most {most:,} are taken.").placed(items[most].at)


def too_deep(error: type[NLQLError] = ParseError) -> NLQLError:
    return error(f"An expression has at most {MAX_DEPTH} levels. AND and OR take any number of operands on one level.")
