"""How likely a line (or document) matches a text query by chance: the leaves' chances joined as the query joins them.

AND multiplies and OR adds, as if parts were independent; NOT is nearly nothing, for most lines lack what one looks for. A string
within some edits is as likely as all its variants together. Estimates are expected numbers of matches in a line (`shards/chance.py`).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from shards.chance import ChanceModel, fold, log_p_literal
from shards.text_pattern import AllOf, AnyOf, Formula, Leaf, NotOf
from shards.types import Array

# Lines of a document, for the chance that it holds something somewhere. How many documents there are is not among the corpus's sums;
# a wrong guess by some factor adds the factor's logarithm once for each further part that must be in the document.
LINES_PER_DOCUMENT = 200
_LEAST_NOT = math.log(0.5)  # an expected number is an upper bound of a chance, so 1 - p is not to be trusted far


def log_p_within(model: ChanceModel, text: str, edits: int, word: bool = False) -> float:
    """ln of the expected number of strings in a line that are `text` but for up to `edits` characters; at most 0.

    With P = p_1 … p_m the chance of the string, byte by byte, leaving byte i out or exchanging it for any other divides by p_i; a byte
    put in costs nothing at any of m - 1 places. So e edits add P times the sum over n of 2^n E_n(1/p) C(m - 2 + e - n, e - n), where
    E_n is the elementary symmetric polynomial: all choices of n bytes.
    """
    body = fold(text.encode())
    exact = log_p_literal(model, body, word)
    if model.n_units <= 0 or not edits:
        return exact
    costs = [-model.log_letters(body[i : i + 1], body[max(i - 2, 0) : i]) for i in range(len(body))]
    choices = np.full(edits + 1, -np.inf)  # ln E_n of the bytes so far
    choices[0] = 0.0
    for cost in costs:
        choices[1:] = np.logaddexp(choices[1:], choices[:-1] + cost)
    logs = [
        choices[n] + n * math.log(2) + math.log(math.comb(max(len(body) - 2 + e - n, 0), e - n) or 1)
        for e in range(1, edits + 1)
        for n in range(e + 1)
    ]
    edges = 2 * model.log_boundary if word else 0.0
    variants = math.log(model.mean_bytes) - sum(costs) + edges + float(np.logaddexp.reduce(logs))
    return min(float(np.logaddexp(exact, variants)), 0.0)


def log_p_formula(formula: Formula, log_p: Callable[[Leaf], float], unit: str) -> float:
    """ln of the chance of a match in one line, from those of the leaves; of documents: the expected number of them, per line."""
    if unit == "line":
        return _joined(formula, log_p)
    lines = math.log(LINES_PER_DOCUMENT)
    return _joined(formula, lambda leaf: min(log_p(leaf) + lines, 0.0)) - lines


def _joined(formula: Formula, log_p: Callable[[Leaf], float]) -> float:
    match formula:
        case AllOf(of=parts):
            return sum(_joined(part, log_p) for part in parts)
        case AnyOf(of=parts):
            return min(float(np.logaddexp.reduce([_joined(part, log_p) for part in parts])), 0.0)
        case NotOf(of=part):
            p = math.exp(_joined(part, log_p))
            return max(math.log1p(-p), _LEAST_NOT) if p < 1 else 0.0  # a chance of 1 is one that is not known
    return log_p(formula)


def rare_places(model: ChanceModel, body: bytes) -> tuple[int, int]:
    """Places of the two bytes of a string that are rarest in the corpus, in ascending order (the same twice for one byte)."""
    chances: Array = model.unigram[np.frombuffer(fold(body), np.uint8)]
    order: Sequence[int] = np.argsort(chances, kind="stable").tolist()
    distinct = [i for i in order if body[i] != body[order[0]]] or order[1:] or order
    first, second = sorted((order[0], distinct[0]))
    return first, second
