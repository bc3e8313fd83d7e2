"""Searching one segment's molecules: every one is compared, and those that may hold a fragment are matched, best first."""

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from shards import rdkit_molecules
from shards.arrays import unpack_string
from shards.layers.fingerprint import MOLECULE, OUTSIDE, MoleculeQuestion
from shards.plan import SpaceQuery
from shards.rdkit_molecules import SKELETON_BYTES
from shards.types import Array, Arrays, Budget, Found, Moments, Scored

if TYPE_CHECKING:
    from rdkit.Chem import Mol

_SLICE_UNITS = 1 << 16  # between two looks at the clock: 0.7 ms
SAME_SKELETON = 0.5


class FingerprintReader:
    """See `shards.layers.contract.Reader`. arrays: as `Fingerprint.build` makes them."""

    def __init__(self, arrays: Arrays, live: Array):
        self._arrays = arrays
        states = arrays["states"]
        self._live = np.asarray(live, bool)
        self._built = self._live & (states != OUTSIDE)
        self._rows = np.flatnonzero(states == MOLECULE)  # of each unit
        self._units = np.full(len(states), -1, np.int64)  # of each row
        self._units[self._rows] = np.arange(len(self._rows))
        self._live_units = np.flatnonzero(self._live[self._rows])
        self.n_units = len(self._live_units)

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -np.inf) -> Found:
        question: MoleculeQuestion = query.payload
        wanted = self._live if allowed is None else self._live & allowed
        scores = self._similarities(question, self._live_units, budget)
        units = self._live_units[: len(scores)]
        # Behind the last molecule looked at no row has been.
        end = len(self._live) if len(scores) == self.n_units else int(self._rows[self._live_units[len(scores)]])
        open_ = wanted[self._rows[units]] & (scores > 0)
        if question.fragment:
            open_[open_] = self._may_hold(question, units[open_])
        n_matched, n_left = int(np.count_nonzero(open_)), 0
        places = np.flatnonzero(open_ & (scores >= floor))
        places = places[np.argsort(-scores[places], kind="stable")]
        if question.fragment:
            places, n_left = self._best_that_hold(question, units, places, k, budget)
        places = places[:k]
        nowhere = np.zeros(len(places), np.int64)
        return Found(
            rows=self._rows[units[places]].astype(np.int32),
            scores=scores[places],
            starts=nowhere,
            ends=nowhere,
            n_matched=n_matched,
            moments=Moments.of(scores),
            rows_covered=int(np.count_nonzero((wanted & self._built)[:end])) - n_left,
            rows_total=int(np.count_nonzero(wanted)),
        )

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        question: MoleculeQuestion = query.payload
        scores = np.where(self._built[rows], -np.inf, np.nan)
        at = np.flatnonzero(self._built[rows] & (self._units[rows] >= 0))
        units = self._units[rows[at]]
        found = self._similarities(question, units, budget)
        scores[at[len(found) :]] = np.nan
        at, units = at[: len(found)], units[: len(found)]
        found = np.where(found > 0, found, -np.inf)
        if question.fragment:
            open_ = np.flatnonzero((found > 0) & self._may_hold(question, units))
            held = np.full(len(found), -np.inf)
            for i in open_.tolist():
                held[i] = np.nan if budget.expired else found[i] if self._holds(question, int(units[i])) else -np.inf
            found = held
        scores[at] = found
        nowhere = np.zeros(len(rows), np.int64)
        return Scored(scores, nowhere, nowhere)

    def scan(self, query: SpaceQuery) -> tuple[Array, Array]:
        """Similarities of all live molecules, whether or not they hold the fragment asked for."""
        rows = self._rows[self._live_units].astype(np.int32)
        return self._similarities(query.payload, self._live_units, Budget()), rows

    @property
    def rows(self) -> Array:
        """Live rows that are molecules: (m,) int64, ascending."""
        return self._rows[self._live_units]

    def question_of(self, row: int) -> MoleculeQuestion:
        """What asks for the neighbours of a row's molecule."""
        return MoleculeQuestion(self._arrays["bits"][self._units[row]].copy())

    def _similarities(self, question: MoleculeQuestion, units: Array, budget: Budget) -> Array:
        """Raw scores without the filter: (m,) float64, m smaller than asked when the budget ends."""
        from shards import tanimoto_kernels

        query = question.screen if question.by_pattern else question.bits
        names = ("pattern", "pattern_set") if question.by_pattern else ("bits", "counts")
        bits, counts = (self._arrays[name] for name in names)
        n_query = int(np.bitwise_count(query).sum()) if query is not None else 0
        scores = np.empty(len(units))
        for start in range(0, len(units), _SLICE_UNITS):
            if budget.expired:
                return scores[:start]
            part = units[start : start + _SLICE_UNITS]
            if query is None:
                scores[start : start + _SLICE_UNITS] = self._same_keys(question.key, part)
            else:
                tanimoto_kernels.similarities(bits, counts, part, query, n_query, scores[start : start + _SLICE_UNITS])
        return scores

    def _same_keys(self, key: bytes, units: Array) -> Array:
        """1 for the key itself, or its skeleton where no more is asked; else 1/2 for the same skeleton."""
        same = self._arrays["keys"][units] == np.frombuffer(key.ljust(self._arrays["keys"].shape[1]), np.uint8)
        skeleton = same[:, :SKELETON_BYTES].all(axis=1)
        if len(key) == SKELETON_BYTES:
            return skeleton.astype(np.float64)
        return np.where(same.all(axis=1), 1.0, SAME_SKELETON * skeleton)

    # --- substructures -------------------------------------------------------------------------------------------------------

    def _may_hold(self, question: MoleculeQuestion, units: Array) -> Array:
        """Which molecules have all pattern bits of the fragment: (m,) bool. The others cannot hold it."""
        from shards import tanimoto_kernels

        found = np.empty(len(units), np.bool_)
        tanimoto_kernels.holding(self._arrays["pattern"], units, question.screen, found)
        return found

    def _best_that_hold(self, question: MoleculeQuestion, units: Array, places: Array, k: int, budget: Budget) -> tuple[Array, int]:
        """The first k of these places, best first, whose molecules hold the fragment; and how many were not tried for want of time."""
        held = []
        for i, place in enumerate(places.tolist()):
            if len(held) == k:
                break
            if budget.expired:
                return np.array(held, np.int64), len(places) - i
            if self._holds(question, int(units[place])):
                held.append(place)
        return np.array(held, np.int64), 0

    def _holds(self, question: MoleculeQuestion, unit: int) -> bool:
        text = unpack_string(self._arrays["texts"], self._arrays["text_offsets"], unit).decode()
        return rdkit_molecules.stored(text).HasSubstructMatch(_pattern(question.fragment, question.smarts))


@lru_cache(maxsize=64)  # a host asks each of its segments
def _pattern(text: str, smarts: bool) -> "Mol":
    return rdkit_molecules.fragment(text, smarts)
