"""Who saw a hit: spaces that read the source, or derived ones alone, which see texts about it and give a hypothesis, or both."""

import math
from typing import Literal

import numpy as np

from shards.types import Array

Constellation = Literal["source", "hypothesis", "both"]

SEEN_SURPRISE = math.log(20)  # nats: a score that one document in twenty has by chance; below, a space has not seen it


def constellations(surprises: Array, weights: Array, derived: Array) -> list[Constellation]:
    """Of each document. surprises: (n, s) nats; weights: (s,) what each space counts; derived: (s,) bool, which do not see the source.

    A space has seen a document that surprises it (p <= 0.05), unless it counts for nothing. Where none has, whichever side gave more
    evidence; a match that surprises nobody is the source's.
    """
    counted = weights > 0
    seen = (surprises >= SEEN_SURPRISE) & counted
    by_source, by_derived = seen[:, ~derived].any(axis=1), seen[:, derived].any(axis=1)
    shares = surprises * weights
    quiet = ~by_source & ~by_derived
    by_derived |= quiet & (shares[:, derived].sum(axis=1) > shares[:, ~derived].sum(axis=1))
    by_source |= ~by_derived
    names: tuple[Constellation, ...] = ("source", "hypothesis", "both")
    return [names[i] for i in np.where(by_derived, np.where(by_source, 2, 1), 0).tolist()]
