"""Structure: nodes of syntax trees that match an ast-grep pattern or rule. There is no index; documents are parsed when asked.

Only documents of the pattern's language that hold every word that the pattern requires are parsed, by processes of their own
(`shards/syntax_process.py`), and those keep trees for the next question.

Raw score of a document: how many nodes match; its span is the first. Statistics and surprise are those of `text`: a match is as
unlikely as that a line holds all words that the pattern requires. A pattern without any says nothing.
"""

import json
import math
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shards import routing
from shards.chance import ChanceModel, log_p_literal
from shards.documents import Documents, Entries
from shards.errors import BadQuery
from shards.languages import NUMBERS
from shards.layers.contract import Reader, Request
from shards.layers.text import Text
from shards.plan import SpaceQuery
from shards.syntax_paths import Places, languages_of, own_places
from shards.syntax_patterns import FORM, languages_that_read, question_of, required_words
from shards.syntax_process import Task, shared_parsers
from shards.syntax_trees import refusal
from shards.types import Array, Arrays, Budget, Found, Scored

_N_KEPT = 4  # questions whose counts a reader keeps: every candidate of any space is scored after the search
_UNKNOWN, _REFUSED = -1, -2


@dataclass(frozen=True, slots=True)
class SyntaxPattern:
    """config: JSON, as ast-grep takes it. languages: numbers of those it is asked in. words: a match's document holds one of each tuple."""

    config: str
    languages: tuple[int, ...]
    words: tuple[tuple[bytes, ...], ...] = ()


class Structure(Text):
    """Syntax nodes like a pattern."""

    name = "structure"
    granularity = "node"
    query_format = FORM
    cost = "reads the text in scope, and parses what holds the pattern's words: 5 MB/s a core, trees of the last 4 MB are kept"
    shapes = frozenset({"syntax"})
    written_form = (
        '{"pattern": "…", "language": "python"}: of questions about source code, code as ast-grep matches it: $A stands for a node, '
        "$$$ for any number of them"
    )
    limits = "files of code beyond 1 MiB, in lines of over 20,000 bytes, or that take the parser over 3 s are left out"

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> Reader:
        return StructureReader(arrays["lines"], documents, live, own_places(documents, entries))

    def prepare(self, request: Request, statistics: ChanceModel) -> SpaceQuery | None:
        if not request.form and not request.explicit and "syntax" not in routing.read(request.text).shapes:
            return None
        question = question_of(request.form or {"pattern": request.text.strip()})
        languages, problem = languages_that_read(question)
        if not languages:
            if not request.form and not request.explicit:
                return None
            raise BadQuery(f"Structure: ast-grep cannot read this pattern or rule in {_listed(question.languages)}: {problem}")
        config = json.loads(question.config)
        clauses = required_words(config)
        chances = [
            min(float(np.logaddexp.reduce([log_p_literal(statistics, word.encode(), word=True) for word in clause])), 0.0)
            for clause in clauses
        ]
        rarest_first = [clause for _, clause in sorted(zip(chances, clauses, strict=True))]
        words = tuple(tuple(word.encode() for word in clause) for clause in rarest_first)
        payload = SyntaxPattern(question.config, tuple(NUMBERS[name] for name in languages), words)
        rule = config["rule"]
        what = rule["pattern"] if set(rule) == {"pattern"} and isinstance(rule["pattern"], str) else json.dumps(rule, ensure_ascii=False)
        return SpaceQuery("", f"nodes like {what} in {_listed(languages)}", payload, math.fsum(chances))

    def check_form(self, request: Request) -> None:
        question_of(request.form)

    def highlights(self, query: SpaceQuery) -> Sequence[tuple[str, bool, bool]]:
        return [(rf"\b{re.escape(word.decode())}\b", True, False) for clause in query.payload.words for word in clause]


def _listed(languages: Sequence[str]) -> str:
    return ", ".join(languages) if len(languages) < 6 else f"{len(languages)} languages"


class StructureReader:
    """Parses and matches documents of one segment. searchable: (rows,) bool, live and built for."""

    def __init__(self, lines: Array, documents: Documents, live: Array, places: Places):
        self._documents, self._places = documents, places
        self._live = live.astype(bool)
        self.searchable = self._live & (lines >= 0)
        self.n_units = int(lines[self.searchable].sum(dtype=np.int64))
        self._known: OrderedDict[SyntaxPattern, Array] = OrderedDict()  # (3, rows) int64: count or _UNKNOWN, span of the first

    def place(self, places: Places) -> None:
        """See `contract.Placed`."""
        self._places = places
        self.__dict__.pop("languages", None)
        self.forget()

    def forget(self) -> None:
        """Drop the counts that are kept: for who measures."""
        self._known.clear()

    @cached_property
    def languages(self) -> Array:
        """The language of each row by number (`shards.syntax_paths.languages_of`): (rows,) uint8."""
        return languages_of(self._documents, self._places)

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -np.inf) -> Found:
        scope = self._live if allowed is None else self._live & allowed
        counts, starts, ends = self._count(query.payload, self.searchable & scope, budget)
        looked = self.searchable & scope & (counts >= 0)
        rows = np.flatnonzero(looked & (counts > 0))
        n_matched = int(counts[rows].sum())
        rows = rows[np.argsort(-counts[rows], kind="stable")[:k]].astype(np.int32)
        return Found(rows, counts[rows].astype(np.float64), starts[rows], ends[rows], n_matched, None, int(looked.sum()), int(scope.sum()))

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        wanted = np.zeros(len(self._documents), bool)
        wanted[rows] = True
        counts, starts, ends = (column[rows] for column in self._count(query.payload, self.searchable & wanted, budget))
        scores = np.where(counts > 0, counts.astype(np.float64), np.where(counts == 0, -np.inf, np.nan))
        scores[~self.searchable[rows]] = np.nan
        return Scored(scores, np.where(scores > 0, starts, 0), np.where(scores > 0, ends, 0))

    def scan(self, query: SpaceQuery) -> tuple[Array, Array]:
        raise TypeError("layer structure has a null of rarity: there are no scores of nodes that do not match")

    def _count(self, pattern: SyntaxPattern, wanted: Array, budget: Budget) -> Array:
        """Matches of each row, and the span of the first: (3, rows) int64; counts below 0 where that is not known."""
        known = self._known.get(pattern)
        if known is None:
            known = np.zeros((3, len(self._documents)), np.int64)
            known[0, np.isin(self.languages, pattern.languages)] = _UNKNOWN
        known = known.copy()  # several threads may ask
        config, names = json.loads(pattern.config), {number: name for name, number in NUMBERS.items()}

        def tasks() -> Iterator[Task]:
            for row in np.flatnonzero(wanted & (known[0] == _UNKNOWN)).tolist():
                if budget.expired:
                    return
                text = bytes(self._documents.content(row))
                if not all(any(word in text for word in clause) for clause in pattern.words):
                    known[0, row] = 0
                elif refusal(text):
                    known[0, row] = _REFUSED
                else:
                    yield Task(row, self._documents.hashes[row].tobytes(), text, names[int(self.languages[row])], config)

        for answer in shared_parsers("search").each(tasks(), budget):
            known[:, answer.number] = (_REFUSED, 0, 0) if answer.reason or answer.error else answer.found
        self._known[pattern] = known
        while len(self._known) > _N_KEPT:
            self._known.popitem(last=False)
        return known
