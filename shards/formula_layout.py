"""A formula as it is laid out: rows of signs with scripts and parts. What LaTeX and MathML are read into, and trees are made from."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from shards import formula_symbols as symbols
from shards.formula_symbols import CONCRETE, NUMBER, VARIABLE

MAX_SIGNS = 128  # signs of a formula that are read: what is longer is a page, and found by its beginning
MAX_DEPTH = 24  # of scripts, fractions and groups within one another

Row = list["Sign"]


@dataclass(slots=True)
class Sign:
    """One sign of a row.

    role: "atom", "relation", "additive", "multiplicative", "big" (sums and integrals), "prefix", "postfix", "function", "open",
        "close", "bar", "separator", "prime", "fraction", "root", "binomial", "matrix" (its lines are, too), "group" (braces: invisible).
    kind: CONCRETE, VARIABLE or NUMBER. parts: numerator and denominator; radicand and index; lines of cells (`grid`); what a group holds.
    sub, sup: scripts, also those above and below. accents: hats and the like, innermost first.
    """

    label: str
    role: str
    kind: int = CONCRETE
    parts: tuple[Row, ...] = ()
    sub: Row = field(default_factory=list)
    sup: Row = field(default_factory=list)
    accents: list[str] = field(default_factory=list)


def sign_of(name: str) -> Sign | None:
    """The sign of a command (without its backslash) or of a character; None for what nobody knows."""
    name = symbols.UNICODE.get(name, name)
    for table, role in (
        (symbols.RELATIONS, "relation"), (symbols.ADDITIVE, "additive"), (symbols.MULTIPLICATIVE, "multiplicative"),
        (symbols.BIG, "big"), (symbols.PREFIX, "prefix"), (symbols.OPENING, "open"), (symbols.CLOSING, "close"), (symbols.BARS, "bar"),
    ):  # fmt: skip
        if name in table:
            return Sign(table[name], role)
    if name in symbols.LETTERS:
        label = symbols.LETTERS[name]
        return Sign(label, "atom", VARIABLE)
    if name in symbols.CONSTANTS:
        label = symbols.CONSTANTS[name]
        return Sign(label, "atom", VARIABLE if label in "lij" else CONCRETE)
    if name in symbols.FUNCTIONS:
        return Sign(name, "function")
    if name.startswith(("mathbb ", "mathcal ")):
        return Sign(f"{name[4:].strip()}", "atom", VARIABLE)
    if len(name) == 1:
        if name.isalpha():
            return Sign(name, "atom", VARIABLE)
        if name.isdigit():
            return Sign(name, "atom", NUMBER)
        if name in ",;":
            return Sign(",", "separator")
        if name in "!%":
            return Sign(name, "postfix")
        if name == "'":
            return Sign("′", "prime")
        if name == "?":
            return Sign(name, "atom", VARIABLE)
    return None


def grid(lines: Sequence[Sequence[Row]]) -> tuple[Row, ...]:
    """The parts of a matrix: a sign for each line, whose parts are its cells. Without lines a square would be one long line."""
    cells = [tuple(cell for cell in line if cell) for line in lines]
    return tuple([Sign("line", "matrix", parts=line)] for line in cells if line)


def named(word: str, is_text: bool = False) -> Sign:
    """A word set upright: a function if it is one, a letter if it is one, else a name; of text, a word."""
    word = word.strip()
    if len(word) == 1 and (known := sign_of(word)):
        return known
    if word in symbols.FUNCTIONS:
        return Sign(word, "function")
    if is_text:
        return Sign(f"text {word.casefold()}", "atom")
    return Sign(word, "function") if word.isalpha() else Sign(word, "atom", VARIABLE)


def spelt(run: str, typed: bool) -> Row:
    """Letters that follow one another: a function, a Greek letter (where nobody could type it), a word, or variables side by side."""
    if run in symbols.SPELT:
        return [Sign(run, "function")]
    if typed and (run in symbols.LETTERS or run in ("pi", "infinity", "infty")):
        known = sign_of(run)
        return [known] if known else []
    if len(run) >= 4:
        for size in (6, 3, 2):  # sinx
            if typed and run[:size] in symbols.SPELT and len(run) - size <= 2:
                return [Sign(run[:size], "function"), *(Sign(letter, "atom", VARIABLE) for letter in run[size:])]
        return [Sign(run, "atom", VARIABLE)]
    return [Sign(letter, "atom", VARIABLE) for letter in run]


def count(row: Row) -> int:
    """How many signs a row holds, with all that hangs on them."""
    total, pending = 0, [row]
    while pending:
        signs = pending.pop()
        total += len(signs)
        for sign in signs:
            pending += [sign.sub, sign.sup, *sign.parts]
    return total
