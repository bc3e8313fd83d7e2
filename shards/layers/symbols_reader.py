"""One segment's definitions and uses, searched by name."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shards.languages import KINDS
from shards.layers.matched_rows import MatchedRows, Matches
from shards.plan import SpaceQuery
from shards.syntax_arrays import OUTSIDE
from shards.syntax_paths import Paths, Places, module_of
from shards.types import Array, Arrays, Budget

# How much of a tie of names a definition of each kind takes: what others call comes before what only holds a value.
_WEIGHTS = {
    "scope": 0.0, "method": 0.7, "constant": 0.6, "variable": 0.5, "selector": 0.5, "block": 0.5, "property": 0.4,
}  # fmt: skip
WEIGHTS = np.array([_WEIGHTS.get(kind, 0.9) for kind in KINDS])
_BATCH = 256  # definitions whose scopes are compared between two looks at the clock: 5 ms


@dataclass(frozen=True, slots=True)
class NamePattern:
    """What is looked for. exact: the name; words: see `syntax_query.words_of`; prefix: folded names before it, outermost first.

    kinds: numbers of those wanted, () for any. strict: all of `prefix` must enclose it. references: uses are asked for.
    log_ps: (5,) by tier, ln of the chance that a random unit has such a name; scope_log_ps, path_log_ps: that the last i names of the
        prefix are scopes around it in its file, or parts of its path.
    """

    exact: bytes
    words: bytes
    prefix: tuple[str, ...] = ()
    kinds: tuple[int, ...] = ()
    strict: bool = False
    references: bool = False
    log_ps: tuple[float, ...] = ()
    scope_log_ps: tuple[float, ...] = (0.0,)
    path_log_ps: tuple[float, ...] = (0.0,)


class SymbolsReader(MatchedRows):
    """Finds names. n_units: definitions of live rows."""

    def __init__(self, arrays: Arrays, live: Array, places: Places):
        row_units = arrays["row_units"]
        real = np.concatenate([[0], np.cumsum(arrays["kinds"] > 0)])
        n_units = int((real[row_units[1:]] - real[row_units[:-1]])[live].sum())
        super().__init__((arrays["languages"] != OUTSIDE) & (arrays["reasons"] == 0), live, n_units, self._find)
        self._arrays, self._places, self._n_rows = arrays, places, len(live)
        self._paths: Paths | None = None
        self._last: tuple[NamePattern, Matches] | None = None

    def place(self, places: Places) -> None:
        """See `contract.Placed`."""
        self._places, self._paths = places, None
        self.forget()

    def forget(self) -> None:
        """Drop what the last question found: for who measures."""
        self._last = None

    def _find(self, query: SpaceQuery, budget: Budget) -> Matches | None:
        pattern: NamePattern = query.payload
        last = self._last
        if last is not None and last[0] == pattern:
            return last[1]
        tiers = self._tiers(pattern)
        found = self._uses(pattern, tiers) if pattern.references else self._definitions(pattern, tiers, budget)
        if found is not None:
            self._last = pattern, found  # one assignment: readers serve many threads
        return found

    def _tiers(self, pattern: NamePattern) -> Array:
        """How well each name of the segment matches: (names,) uint8."""
        from shards import syntax_kernels

        tiers = np.zeros(len(self._arrays["name_offsets"]) - 1, np.uint8)
        exact, words = (np.frombuffer(part, np.uint8) for part in (pattern.exact, pattern.words))
        syntax_kernels.name_tiers(self._arrays["name_blob"], self._arrays["name_offsets"], exact, words, tiers)
        return tiers

    def _definitions(self, pattern: NamePattern, tiers: Array, budget: Budget) -> Matches | None:
        """The best definition of each row: its tier, and as a fraction names of the prefix that enclose it, those of them that do so in the
        file (`agreement_of` tells both), and a weight by kind and depth."""
        from shards import syntax_kernels

        arrays = self._arrays
        wanted = np.zeros(len(KINDS), bool)
        wanted[list(pattern.kinds) if pattern.kinds else slice(1, None)] = True
        units = np.flatnonzero(wanted[arrays["kinds"]] & (tiers[arrays["names"]] > 0))
        rows = np.searchsorted(arrays["row_units"], units, "right") - 1
        depths = np.zeros(len(units), np.int64)
        syntax_kernels.depths(arrays["backs"], units, depths)
        agreed, inside = np.zeros(len(units)), np.zeros(len(units))
        if pattern.prefix:
            for at, (unit, row) in enumerate(zip(units.tolist(), rows.tolist(), strict=True)):
                if at % _BATCH == 0 and budget.expired:
                    return None
                agreed[at], inside[at] = self._agreement(pattern.prefix, unit, row)
            if pattern.strict:
                kept = agreed == len(pattern.prefix)
                units, rows, depths, agreed, inside = units[kept], rows[kept], depths[kept], agreed[kept], inside[kept]
        weights = WEIGHTS[arrays["kinds"][units]] / (1 + 0.05 * np.minimum(depths, 10))
        base = len(pattern.prefix) + 1
        scores = tiers[arrays["names"][units]] + (agreed + (inside + weights) / base) / base
        return Matches.of_units(self._n_rows, rows, scores, arrays["starts"][units], arrays["ends"][units])

    def _agreement(self, prefix: tuple[str, ...], unit: int, row: int) -> tuple[int, int]:
        """How many names of a prefix, from its end on, enclose a definition in this order: scopes in the file, then parts of its path; and
        how many of these are scopes."""
        arrays = self._arrays
        scopes = []
        at = unit
        while back := int(arrays["backs"][at]):
            at -= back
            name = int(arrays["names"][at])
            raw = arrays["name_blob"][arrays["name_offsets"][name] : arrays["name_offsets"][name + 1]].tobytes()
            scopes.append(raw.decode("utf-8", "replace").lower())
        if self._paths is None:
            self._paths = Paths(self._places)
        inside = _matched(prefix, iter(scopes))
        paths = self._paths.of(row)
        outside = max((_matched(prefix[: len(prefix) - inside], reversed(module_of(path.lower()))) for path in paths), default=0)
        return inside + outside, inside

    def _uses(self, pattern: NamePattern, tiers: Array) -> Matches:
        """The best-matching name that each row uses: tier + n / (n + 8) for n uses; its first use is the span."""
        arrays = self._arrays
        names = np.flatnonzero(tiers)
        offsets = arrays["use_offsets"].astype(np.int64)
        at = np.concatenate([np.arange(offsets[name], offsets[name + 1]) for name in names]) if len(names) else np.zeros(0, np.int64)
        of = np.repeat(names, offsets[names + 1] - offsets[names])
        counts, lengths = arrays["use_counts"][at].astype(np.int64), np.diff(arrays["name_offsets"].astype(np.int64))[of]
        starts = arrays["use_firsts"][at].astype(np.int64)
        rows = arrays["use_rows"][at].astype(np.int64)
        return Matches.of_units(self._n_rows, rows, tiers[of] + counts / (counts + 8.0), starts, starts + lengths, counts)


def _matched(prefix: tuple[str, ...], enclosing: Iterator[str]) -> int:
    """How many names, from the last on, stand in this order, innermost first, be there others between."""
    n = 0
    for name in reversed(prefix):
        if name not in enclosing:  # goes on behind the one that was found
            break
        n += 1
    return n


def agreement_of(scores: Array, n_prefix: int) -> tuple[Array, Array]:
    """What scores of definitions say: names of the prefix that enclose each, and those that do so in its file, (m,) int64 each."""
    share = np.modf(scores)[0] * (n_prefix + 1)
    agreed = share.astype(np.int64)
    return agreed, ((share - agreed) * (n_prefix + 1)).astype(np.int64)
