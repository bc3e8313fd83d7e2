"""Belief operators over calibrated evidence: and, or, not, weighted sum, as the inference networks of INQUERY and Indri have them.

INQUERY's belief in a document is 0.4 + 0.6 tf idf, Indri's a smoothed language model's probability: both depend on the collection, and
neither says how often chance gives as much. Here a belief comes from the E-value, which is calibrated: where chance gives E documents with
so much evidence and one is really there, the share of real ones among those found is

    b = 1 / (1 + E)

(one minus the false discovery rate of Efron 2010, section 2.2, with one document expected). So E = 1 is even odds, E = 1/3 is 3/4, and what
says nothing of a document, for which all n documents of the corpus do as well, is the prior 1 / (1 + n). The logit of b is -ln E.

Operators are the closed forms of the link matrices of Turtle & Croft 1991 (section 4.2), with independent operands:

    and  b1 b2 …        or  1 - (1 - b1)(1 - b2) …        not  1 - b        wsum  (w1 b1 + w2 b2 + …) / (w1 + w2 + …)

as #and, #or, #not, #wsum of INQUERY and Indri (Metzler & Croft 2004, section 3). What comes out is a belief, so it has an E again:
(1 - b) / b. Everything is kept as a pair (ln b, ln(1 - b)), because E-values reach 10^-300 and 1 - b would be rounded away.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shards.types import Array


@dataclass(frozen=True, slots=True, eq=False)
class Beliefs:
    """Of n documents. log_yes, log_no: (n,) float64, ln b and ln(1 - b)."""

    log_yes: Array
    log_no: Array

    @classmethod
    def of_evalues(cls, log_evalues: Array) -> "Beliefs":
        """From ln E: (n,) float64, -inf for certainty."""
        return cls(-np.logaddexp(0.0, log_evalues), -np.logaddexp(0.0, -log_evalues))

    @property
    def log_evalues(self) -> Array:
        """ln E of a belief: (n,) float64."""
        return self.log_no - self.log_yes

    def __invert__(self) -> "Beliefs":
        return Beliefs(self.log_no, self.log_yes)


def all_hold(operands: Sequence[Beliefs]) -> Beliefs:
    """and: the product."""
    log_yes = np.sum([belief.log_yes for belief in operands], axis=0)
    return Beliefs(log_yes, _log_complement(log_yes, np.logaddexp.reduce([belief.log_no for belief in operands])))


def any_holds(operands: Sequence[Beliefs]) -> Beliefs:
    """or: by de Morgan."""
    return ~all_hold([~belief for belief in operands])


def weighted_mean(operands: Sequence[Beliefs], weights: Sequence[float]) -> Beliefs:
    """wsum. weights: at least one above 0; they are divided by their sum."""
    with np.errstate(divide="ignore"):  # a weight of 0 takes no part
        shares = np.log(np.asarray(weights, np.float64)) - np.log(float(np.sum(weights)))
    yes = [share + belief.log_yes for share, belief in zip(shares, operands, strict=True)]
    no = [share + belief.log_no for share, belief in zip(shares, operands, strict=True)]
    return Beliefs(np.logaddexp.reduce(yes), np.logaddexp.reduce(no))


def _log_complement(log_yes: Array, log_sum: Array) -> Array:
    """ln(1 - e^log_yes) of a product. log_sum: ln of the sum of the factors' complements, which it is to all digits where they are small:
    1 - (1 - a)(1 - b) = a + b - ab, and ab is below rounding there."""
    with np.errstate(divide="ignore"):
        exact = np.log(-np.expm1(log_yes))
    return np.where(log_yes > -1e-12, log_sum, exact)
