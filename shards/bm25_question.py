"""What a segment is asked for a query: terms with weights, what must hold, and the chance of it.

Terms that stand for one word share one idf, that of their summed frequencies: what the analysers of several languages make of it, so
that a word is not held to be rare because only a few documents are German; and all words that begin with a prefix. A form that occurs
in more units than its languages have is another language's word, and is not meant: the Spanish stem of "does" is no Spanish word in an
English corpus of which one document looks Spanish (nDCG@10 of squad2_dev .8866, without such forms .8876).
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from shards import bm25_grammar as grammar
from shards.analysis import TOKEN_BYTES, Analyser, atoms, is_unspaced
from shards.bm25_matching import AllOf, AnyOf, Condition, Holds, NotOf, OutsideTitle, Stands
from shards.bm25_statistics import Statistics
from shards.phrases import Operand, Together
from shards.plan import And, Glob, Not, Or, Predicate
from shards.postings import TITLE, term_hash, title_term
from shards.types import Array

MAX_TERMS = 256  # distinct terms scored, those of prefixes aside; a longer question keeps those of most weight
MAX_PREFIXES = 8  # that rank; each is up to 6 kB of the question
MAX_PHRASE_TOKENS = 64  # a longer quotation is verified by its beginning

_TOKEN = re.compile(TOKEN_BYTES)
_GLOB = re.compile(r"[*?\[{/]")

Key = tuple[int, ...]  # token, word, part: what stands for one thing that is asked


class Weights(NamedTuple):
    """Of each known term its weight, in the question's order; of those of prefixes likewise; and the sum over all that is asked, what
    the corpus lacks included (its idf is the largest): what a passage that says all of it would score at most."""

    of_words: dict[str, float]
    of_prefixes: dict[str, float]
    most: float


class Beginning(NamedTuple):
    """A prefix: the terms it stands for, most frequent first, and how many there are in all."""

    text: str
    terms: tuple[str, ...]
    n_terms: int


def tokens_of(text: str) -> list[str]:
    """Tokens as `shards.token_kernels` finds them in documents."""
    return [token.decode() for token in _TOKEN.findall(text.encode("utf-8", "replace"))]


@dataclass
class Reading:
    """A query as the corpus's languages read it. stop_words: case-folded, what only ranks and is not asked for."""

    query: grammar.Clauses
    statistics: Statistics
    stop_words: frozenset[str] = frozenset()
    _prefixes: dict[tuple[str, bool], Beginning] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.analysers = [Analyser(language) for language in self.statistics.languages]

    # --- what ranks --------------------------------------------------------------------------------------------------------

    def weights(self) -> Weights:
        """Each term's weight: idf times how often its word is asked for, summed over the words it stands for."""
        counts: Counter[str] = Counter()
        in_title: Counter[str] = Counter()
        beginnings: list[tuple[str, bool]] = []
        quoted: set[str] = set()
        for part, name, must in _sought(self.query):
            tokens = tokens_of(part.text)
            if isinstance(part, grammar.Prefix) and not _spelt_out(part.text):
                tokens, beginning = tokens[:-1], (part.text, name == "title")
                beginnings += [beginning] if beginning not in beginnings else []
            (in_title if name == "title" else counts).update(tokens)
            if self.stop_words and (must or isinstance(part, grammar.Phrase)):
                quoted.update(token.casefold() for token in tokens)
        left_out = self.stop_words - quoted
        if left_out:
            counts = Counter({token: n for token, n in counts.items() if token.casefold() not in left_out})
        of_words, most = self._weigh(counts, title=False)
        if in_title:
            of_titles, more = self._weigh(in_title, title=True)
            of_words, most = of_words | of_titles, most + more
        of_prefixes: dict[str, float] = {}
        for text, title in beginnings[:MAX_PREFIXES]:
            found = self.beginning(text, title)
            frequency = self.statistics.frequency_of(found.terms)
            weight = self.statistics.idf(sum(frequency.values()))
            most += weight
            for term in found.terms:
                of_prefixes[term] = of_prefixes.get(term, 0.0) + weight
        return Weights(of_words, of_prefixes, most)

    def marks(self, all_words: bool) -> tuple[tuple[str, bool, bool], ...]:
        """What is sought as it shows in a text (`Layer.highlights`): words that begin so; and all_words: every word."""
        found: dict[str, None] = {}
        for part, _, _ in _sought(self.query):
            if not (all_words or isinstance(part, grammar.Prefix)):
                continue
            tokens = tokens_of(part.text)[:MAX_PHRASE_TOKENS]
            for i, token in enumerate(tokens):
                begins = isinstance(part, grammar.Prefix) and i == len(tokens) - 1
                if all_words or begins:
                    found["".join((r"\b" * token[0].isascii(), re.escape(token), r"\w*" if begins else r"\b" * token[-1].isascii()))] = None
        return tuple((pattern, True, True) for pattern in found)

    def _weigh(self, counts: Mapping[str, int], title: bool) -> tuple[dict[str, float], float]:
        """Weights and their sum, see `weights`, of words in one field."""
        asked = self._forms(counts, title)
        frequency = self.statistics.frequency_of(list({term for _, forms in asked for term in forms}))
        idf = self.statistics.idf
        weights: dict[str, float] = {}
        most = 0.0
        for n_asked, forms in asked:
            if len(forms) == 1:  # nearly always
                (term,) = forms
                df = frequency.get(term, 0)
                known = forms if 0 < df <= forms[term] else ()
                weight = n_asked * idf(df if known else 0)
            else:
                known = sorted(term for term, limit in forms.items() if 0 < frequency.get(term, 0) <= limit)
                weight = n_asked * idf(sum([frequency[term] for term in known]))
            most += weight
            for term in known:
                weights[term] = weights.get(term, 0.0) + weight
        return weights, most

    def _forms(self, counts: Mapping[str, int], title: bool) -> list[tuple[int, dict[str, int]]]:
        """What is asked, word for word and part for part: how often, and the forms of it with how many units their languages have."""
        mark = TITLE if title else ""
        if len(self.analysers) == 1:
            (analyser,), (n_units,) = self.analysers, self.statistics.units_of
            words_of = zip(counts.values(), analyser.recall(list(counts)), strict=True)
            return [(n, {mark + term: n_units}) for n, words in words_of for word in words for term in word]
        forms: dict[Key, dict[str, int]] = {}
        for analyser, n_units in zip(self.analysers, self.statistics.units_of, strict=True):
            for t, words in enumerate(analyser.recall(list(counts))):
                for w, word in enumerate(words):
                    for p, term in enumerate(word):
                        limits = forms.setdefault((t, w, p), {})
                        limits[mark + term] = limits.get(mark + term, 0) + n_units
        n_asked = list(counts.values())
        return [(n_asked[key[0]], forms[key]) for key in sorted(forms)]

    def beginning(self, text: str, title: bool) -> Beginning:
        """What the last word of a prefix stands for. One of a script without spaces, of more than a character, is a phrase: none."""
        if (text, title) not in self._prefixes:
            tokens = tokens_of(text)
            words = Analyser("").recall(tokens)[-1:] if tokens else []
            folded = words[-1][-1][0] if words and words[-1] else ""
            terms, n = self.statistics.beginning_with(folded, title) if folded and not _spelt_out(text) else ([], 0)
            self._prefixes[text, title] = Beginning(text, tuple(terms), n)
        return self._prefixes[text, title]

    def prefixes(self) -> list[Beginning]:
        """Those that were looked at."""
        return list(self._prefixes.values())

    # --- what must hold ----------------------------------------------------------------------------------------------------

    def conditions(self) -> tuple[Together | None, Condition | None]:
        """What must hold: the first thing that must stand together, which says where in a document the hit is; and all else."""
        pinned: Together | None = None
        others: list[Condition] = []
        for node in self.query.must:
            if pinned is None and isinstance(node, grammar.Phrase | grammar.Near) and (together := self._together(node, "")):
                pinned = together
            elif (condition := self._condition(node, "")) is not None:
                others.append(condition)
        return pinned, _joined(AllOf, others)

    def _condition(self, node: grammar.Node, name: str) -> Condition | None:
        """What a node asks of a document; None where it has no word. name: of the field, "" for the whole text."""
        match node:
            case grammar.Clauses(must=must, rank=rank):
                return self._joined(AllOf, must, name) if must else self._joined(AnyOf, rank, name)
            case grammar.All(of=parts):
                return self._joined(AllOf, parts, name)
            case grammar.Any(of=parts):
                return self._joined(AnyOf, parts, name)
            case grammar.Not(of=inner):
                condition = self._condition(inner, name)
                return None if condition is None else NotOf(condition)
            case grammar.Field(name=of_field, of=inner):
                return self._condition(inner, of_field)
            case grammar.Words() | grammar.Prefix() if (words := self._one_word(node, name)) is not None:
                return words
            case grammar.Words() | grammar.Prefix() | grammar.Phrase() | grammar.Near():
                together = self._together(node, name)
                return None if together is None else Stands(together)
        raise AssertionError(node)

    def _joined(self, of_all: type[AllOf] | type[AnyOf], nodes: Sequence[grammar.Node], name: str) -> Condition | None:
        return _joined(of_all, [c for node in nodes if (c := self._condition(node, name)) is not None])

    def _one_word(self, node: grammar.Words | grammar.Prefix, name: str) -> Condition | None:
        """The condition of what is one word, decided by postings alone; None of several, which must stand together.

        An identifier of several parts is there as it stands, or all its parts are.
        """
        tokens = tokens_of(node.text)
        if isinstance(node, grammar.Prefix) and not _spelt_out(node.text):
            if len(tokens) != 1:
                return None
            terms = self.beginning(node.text, name == "title").terms
            return Holds(_hashed(terms)) if name == "title" else _holds(terms, name)
        readings = [[word for words in analyser.recall(tokens) for word in words] for analyser in self.analysers]
        if any(len(words) > 1 for words in readings) or not any(readings):
            return None
        forms: dict[str, int] = {}
        for words, n_units in zip(readings, self.statistics.units_of, strict=True):
            for term in words[0][:1] if words else ():
                forms[term] = forms.get(term, 0) + n_units
        frequency = self.statistics.frequency_of(list(forms))
        whole = _holds([term for term, n_units in forms.items() if 0 < frequency.get(term, 0) <= n_units], name)
        parts = {words[0]: AllOf(tuple(_holds((part,), name) for part in words[0][1:])) for words in readings if words and words[0][1:]}
        return AnyOf((whole, *parts.values())) if parts else whole

    def _together(self, node: grammar.Leaf | grammar.Near, name: str) -> Together | None:
        """What must stand together, as each analyser reads it; None where no word is left of it."""
        parts, distances = (node.of, node.distances) if isinstance(node, grammar.Near) else ((node,), ())
        operands: dict[str, tuple[Operand, ...]] = {}
        for analyser in self.analysers:
            read = tuple(self._operand(part, analyser, name) for part in parts)
            if all(read):
                operands[analyser.language] = read
        return Together(operands, distances, name) if operands else None

    def _operand(self, part: grammar.Leaf, analyser: Analyser, name: str) -> Operand:
        tokens = tokens_of(part.text)[:MAX_PHRASE_TOKENS]
        last: Operand = ()
        if isinstance(part, grammar.Prefix) and not _spelt_out(part.text):
            # Places hold words of the text, whichever field they are in.
            tokens, last = tokens[:-1], (self.beginning(part.text, False).terms,)
        return (*((term,) for words in analyser.recall(tokens) for word in words for term in atoms(word)), *last)

    # --- where, and how likely ---------------------------------------------------------------------------------------------

    def log_p(self) -> float | None:
        """ln of the chance that a unit of average length has all that must stand together, if words followed one another independently;
        None where nothing must.

        A word's rate comes from the share of units that hold it, 1 - exp(-rate) for a Poisson count. The likeliest language counts. What
        is near may stand at twice as many places as the distance, on either side.
        """
        asked = [t for node in self.query.must if isinstance(node, grammar.Phrase | grammar.Near) and (t := self._together(node, ""))]
        if not asked:
            return None
        length, n_units = self.statistics.average_length, self.statistics.n_units
        total = 0.0
        for together in asked:
            slots = {slot for operands in together.operands.values() for operand in operands for slot in operand}
            frequency = self.statistics.frequency_of(sorted({term for slot in slots for term in slot}))
            share = {slot: min(sum(frequency.get(term, 0) for term in slot) + 0.5, n_units) / (n_units + 1) for slot in slots}
            of_language = [
                math.log(length) + sum(math.log(-math.log1p(-share[slot]) / length) for operand in operands for slot in operand)
                for operands in together.operands.values()
            ]
            total += min(max(of_language) + sum(math.log(2 * distance) for distance in together.distances), 0.0)
        return total


def where_of(paths: Sequence[grammar.Node]) -> Predicate | None:
    """The scope that paths of a query say; None where there are none."""
    return And(tuple(map(_predicate, paths))) if paths else None


def _predicate(node: grammar.Node) -> Predicate:
    match node:
        case grammar.Path(pattern=pattern) if _GLOB.search(pattern):
            return Glob(pattern)
        case grammar.Path(pattern=pattern):
            return Or((Glob(f"*{pattern}*"), Glob(f"**/*{pattern}*/**")))
        case grammar.Not(of=inner):
            return Not(_predicate(inner))
        case grammar.Any(of=parts):
            return Or(tuple(map(_predicate, parts)))
        case grammar.All(of=parts) | grammar.Clauses(must=parts):
            return And(tuple(map(_predicate, parts)))
    raise AssertionError(node)


def _sought(node: grammar.Node, name: str = "", must: bool = False) -> Iterator[tuple[grammar.Leaf, str, bool]]:
    """What ranks, in the query's order: words, prefixes, phrases, each with its field and whether something depends on it."""
    match node:
        case grammar.Clauses(must=needed, rank=rank):
            for child in needed:
                yield from _sought(child, name, True)
            for child in rank:
                yield from _sought(child, name, must)
        case grammar.All(of=children) | grammar.Any(of=children):
            for child in children:
                yield from _sought(child, name, must)
        case grammar.Field(name=of_field, of=child):
            yield from _sought(child, of_field, must)
        case grammar.Near(of=parts):
            for part in parts:
                yield part, name, True
        case grammar.Words() | grammar.Prefix() | grammar.Phrase():
            yield node, name, must


def _holds(terms: Sequence[str], name: str) -> Condition:
    """That one of these terms occurs in a field."""
    body, in_title = _hashed(terms), _hashed([title_term(term) for term in terms])
    if name == "title":
        return Holds(in_title)
    return OutsideTitle(body, in_title) if name == "body" else Holds(body)


def _hashed(terms: Sequence[str]) -> Array:
    return np.array([term_hash(term) for term in terms], np.uint64)


def _joined(of_all: type[AllOf] | type[AnyOf], conditions: Sequence[Condition]) -> Condition | None:
    return None if not conditions else conditions[0] if len(conditions) == 1 else of_all(tuple(conditions))


def _spelt_out(text: str) -> bool:
    """Whether a prefix ends in two characters or more of a script without spaces, where any text is found as a phrase."""
    return len(text) > 1 and is_unspaced(text[-2:])
