"""What somebody probably meant who wrote something that NLQL does not have."""

import re

from shards.nlql.ir import COMPARISONS

VALUE = "a value"  # what an expression begins with, in messages
OPERATOR = "an operator (==, <, CONTAINS, …)"  # what may stand behind a value
INFIX = "an operator (CONTAINS, LIKE, …)"  # what may stand behind the right side of a comparison
OPERATORS = frozenset("CONTAINS MATCH LIKE HAS IN BETWEEN IS".split())
KEYWORDS = frozenset("SELECT LET WHERE ORDER BY ASC DESC LIMIT AND OR CONTAINS MATCH LIKE".split())
EXTENSIONS = frozenset("EXPLAIN IN BETWEEN IS HAS OFFSET WITHIN COUNT".split())  # Sondage's own

_WORDS = {
    "FROM": "A query names no corpus; it is given beside the query.",
    "JOIN": "There are no joins.",
    "GROUP": "There is no GROUP BY; `COUNT BY` after LIMIT counts rows by a value.",
    "HAVING": "There is no HAVING.",
    "DISTINCT": "There is no DISTINCT; SELECT DOCUMENT gives each document once.",
    "TOP": "Write LIMIT at the end.",
    "NULLS": "Rows without a value come last in both directions.",
    "CASE": "There is no CASE.",
    "CAST": "There are no casts; write the type before a text: DATE '2024-01-01'.",
    "AS": "Values get names in LET: LET name = expression.",
    "ILIKE": "LIKE minds case; CONTAINS does not, nor does LOWER(x) LIKE '…'.",
    "RLIKE": "Regular expressions: x MATCH '…'.",
    "REGEXP": "Regular expressions: x MATCH '…'.",
    "NOT": "NOT stands before the whole condition: NOT x LIKE '…'.",
}
_SIGNS = {
    "=": "`=` binds names in LET; to compare, write `==`.",
    "<>": "Write `!=`.",
    ";": "A query ends without a semicolon.",
    "&&": "Write AND.",
    "&": "Write AND.",
    "||": "Write OR.",
    "|": "Write OR.",
    "!": "Write NOT, or `!=` to compare.",
    "`": "Names are not quoted.",
    "*": "A query has no list of columns, and no arithmetic.",
    "+": "There is no arithmetic.",
    "-": "There is no arithmetic, and a name has no dash.",
    "--": "There are no comments in plain NLQL.",
    "/": "There is no arithmetic.",
    "%": "There is no arithmetic; in LIKE, % stands inside the text.",
    "?": "A parameter is written `:name`.",
    "$": "A parameter is written `:name`.",
    "@": "A parameter is written `:name`.",
    ":": "A parameter is written `:name`.",
    "[": "A list of values stands in round brackets: x IN (1, 2).",
    "{": "A list of values stands in round brackets: x IN (1, 2).",
    "“": "Texts stand in plain quotes, ' or \".",
    "”": "Texts stand in plain quotes, ' or \".",
    "„": "Texts stand in plain quotes, ' or \".",
    "‘": "Texts stand in plain quotes, ' or \".",
    "’": "Texts stand in plain quotes, ' or \".",
    "´": "Texts stand in plain quotes, ' or \".",
    "«": "Texts stand in plain quotes, ' or \".",
    "\u00a0": "It looks like a blank; write a plain one.",
    "\u3000": "It looks like a blank; write a plain one.",
}  # fmt: skip
_CLAUSES = frozenset("LET WHERE ORDER LIMIT OFFSET WITHIN COUNT".split())
_LAST_WORD = re.compile(r"\b[A-Z]+\Z")
_EXPONENT = re.compile(r"[eE][0-9]*\Z")
_SPEAKS_OF_EXTENSIONS = ("COUNT BY", ":name", " IN ")  # hints of no use where they are refused


def hint_of(found: str, before: str, wanted: list[str], strict: bool) -> str:
    """One sentence for what was found where none of `wanted` is; "" if there is nothing to say. before: the query up to there."""
    upper = found.upper()
    if strict and (upper in EXTENSIONS or found == ":"):
        what = "Parameters are" if found == ":" else f"{upper} is"
        return f"{what} not part of plain NLQL, which `strict` asks for."
    if found != upper and any(upper in label.split() or (upper in OPERATORS and label in (OPERATOR, INFIX)) for label in wanted):
        return f"Keywords are upper case: {upper}."
    if INFIX in wanted and found in COMPARISONS:
        return "One comparison compares two values: a < b AND b < c."
    if "AND" in wanted:
        word = _LAST_WORD.search(before)
        if word and word.group() in KEYWORDS:
            return f"{word.group()} was read as a name, because a value was expected there."
        if before.endswith(("\\'", '\\"')):
            return "A backslash is a plain character: a text with quotes in it stands in the other kind of quotes."
        if before[-1:].isdigit() and _EXPONENT.match(found):
            return "A number is written in full: it has no exponent."
    if found in _CLAUSES:
        return f"Clauses stand in this order: LET, WHERE, ORDER BY, LIMIT{'' if strict else ', OFFSET, then WITHIN and COUNT BY'}."
    if VALUE in wanted and found in ("+", "."):
        return "A number begins with a digit or a minus."
    hint = _WORDS.get(upper) or _SIGNS.get(found, "")
    return "" if strict and any(part in hint for part in _SPEAKS_OF_EXTENSIONS) else hint
