"""Where matches of a pattern over lines may begin, told by compiled loops, so that RE2 need not read all text.

RE2 reads 0.3 GB/s. Lines in which the first line of a match may stand are found like those of any pattern (1.5 to 2 GB/s), and from the
start of each an automaton is followed over the lines behind it, which nearly always says whether a match begins there
(`shards.text_automaton.OverLines`). Lines too many are found rather than too few; RE2 decides, and says where a match ends.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shards.documents import Documents
from shards.text_automaton import OverLines
from shards.text_finders import follower
from shards.text_pieces import Part, on_all_cores, pieces
from shards.types import Array, Budget

MAX_AHEAD = 4096  # bytes behind the start of a line that are followed, and of all lines of a piece together as many as it has
NEAR_BYTES = 1 << 10  # RE2 reads so many in the time that it takes to begin anew


@dataclass(frozen=True, slots=True)
class Starts:
    """Lines in which matches may begin, by their line feeds in the document, and where those of each row are among them: feeds (n,),
    edges (rows + 1,) int64. read, some: (rows,) bool, the rows that were read to the end, and those that have such lines."""

    feeds: Array
    edges: Array
    read: Array
    some: Array

    def of(self, row: int) -> list[int]:
        feeds: list[int] = self.feeds[self.edges[row] : self.edges[row + 1]].tolist()
        return feeds


def starts_in(documents: Documents, wanted: Array, known: OverLines, budget: Budget) -> Starts:
    """Where in the wanted rows matches may begin."""
    from shards.text_kernels import may_begin

    table, matched = known.begins.table, np.uint64(known.begins.matched)
    find_lines = follower(known.lines)

    def find(part: Part) -> Array:
        feeds = find_lines(part.text, budget) + part.starts[0]
        stops = documents.ends[np.searchsorted(documents.ends, feeds)] + 1
        return feeds[may_begin(documents.text, feeds, stops, table, matched, np.uint64(MAX_AHEAD), np.uint64(len(part.text)))]

    read = np.zeros(len(documents), np.bool_)
    found = [np.zeros(0, np.int64)]
    for part, feeds in on_all_cores(pieces(documents, wanted), find, budget):
        if feeds is None:
            break
        read[part.done_low : part.done_high] = True
        found.append(feeds)
    feeds = np.concatenate(found)
    rows = np.searchsorted(documents.ends, feeds)
    edges = np.searchsorted(rows, np.arange(len(documents) + 1))
    return Starts(feeds - documents.starts[rows], edges, read, np.diff(edges) > 0)


def matches_of(regex: Any, text: bytes, feeds: Sequence[int], budget: Budget) -> Iterator[Any]:
    """The matches in a text, none of them empty, one behind the other.

    feeds: of the lines in which one may begin, ascending; that of the last line may be the text's end.
    """
    if len(feeds) * NEAR_BYTES >= len(text):
        return regex.finditer(text)  # type: ignore[no-any-return]
    return _from_starts(regex, text, feeds, budget)


def _from_starts(regex: Any, text: bytes, feeds: Sequence[int], budget: Budget) -> Iterator[Any]:
    matches: Iterator[Any] = iter(())
    behind, read = 0, -NEAR_BYTES
    for feed in feeds:
        while behind <= feed and not budget.expired:
            start = text.rfind(b"\n", behind, feed) + 1 or behind
            if start - read >= NEAR_BYTES:
                matches = regex.finditer(text, start)
            match = next(matches, None)
            if match is None:
                return  # RE2 has read all that follows
            yield match
            behind = read = match.end()
