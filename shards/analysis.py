"""What counts as the same word: a token's text becomes search terms, by the language of the document it stands in.

An analyser is a function of the token alone, so a segment analyses each distinct token once, however often it occurs. Code and
prose meet: both give a word's stem and, beside an identifier, its parts. Prose is split too because it speaks of code (README
files, docstrings) and of `IL6` and `mTORC1`: nDCG@10 on scifact 0.697 with parts, 0.686 without.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise

import numpy as np

from shards.kinds import PROSE_FAMILIES
from shards.types import Array

# A word as analysed: its term, followed by the terms of its parts if it is an identifier of several (`getUserName`).
Word = tuple[str, ...]

TOKEN_BYTES = rb"[A-Za-z0-9_\x80-\xff]+"  # what `shards.token_kernels` takes for one token; non-ASCII is looked at here
MAX_WORD_CHARS = 128  # longer runs are encoded data, not words
REMEMBERED = 32_768  # tokens of questions, with their words; about 10 MB
MAX_PARTS = 12  # likewise: base64 and hexadecimal digests fall into dozens of "parts"

# Letters, digits and the marks that belong to them, which `\w` lacks: vowel signs of Hebrew, Arabic, Indic scripts, Thai, Burmese,
# Khmer. Signs of Indian punctuation among them are no part of words.
_MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc"
    "\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0900-\u0963\u0966-\u096f\u0971-\u0df3\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ecd"
    "\u102b-\u103e\u1056-\u1059\u105e-\u1060\u1062-\u1064\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d\u17b4-\u17d3\u17dd"
)
_WORD = re.compile(f"[\\w{_MARKS}]+")
_ASCII_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
# Runs of scripts that are written without spaces: Thai, Lao, Burmese, Khmer, kana, Han, Hangul (with spaces, but of compounds).
_UNSPACED = re.compile(
    "([\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ecd\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u109a-\u109d\u1780-\u17d3\u17d7\u17dc\u17dd"
    "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+)"
)
_CHARACTER = re.compile(f".[{_MARKS}]*", re.DOTALL)  # as a reader sees it: with what stands above and below
_DIACRITICS = re.compile("[\u0300-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u064b-\u065f\u0670]")


@dataclass(frozen=True, slots=True, order=True)
class Analyser:
    """How the tokens of documents in one language become terms. language: a Snowball algorithm, "" for no stemming."""

    language: str

    def analyse(self, tokens: Sequence[str]) -> list[list[Word]]:
        """The words of each token, in order; a token of no letters or digits has none.

        Words are case-folded, stemmed, then stripped of accents (stemmers need them); runs of Chinese, Japanese, Korean, Thai, Lao,
        Burmese and Khmer become overlapping bigrams of characters, each a word (as in Lucene's CJKAnalyzer), because they are
        written unspaced.
        """
        pieces, sizes, n_words = _split(tokens)
        terms = iter(self._terms(pieces))
        of_word = iter(sizes)
        return [[tuple(islice(terms, size)) for size in islice(of_word, n)] for n in n_words]

    def recall(self, tokens: Sequence[str]) -> list[tuple[Word, ...]]:
        """The same, each token remembered: for questions, whose words recur."""
        return [_words(self.language, token) for token in tokens]

    def analyse_bytes(self, text: Array, starts: Array, sizes: Array) -> "FlatTerms":
        """The same of many distinct tokens, flat: for vocabularies. ASCII is split by compiled code: half the time.

        text: (bytes,) uint8, UTF-8; starts, sizes: (t,) int64, where each token is
        """
        from shards.analysis_kernels import CHAR_KINDS, split_words
        from shards.token_kernels import WORD_BYTES, tokenise

        folded, piece_starts, piece_ends, n_terms = split_words(text, starts, sizes, CHAR_KINDS, MAX_WORD_CHARS, MAX_PARTS)
        # Each piece is a unit of one token to the tokeniser, which numbers the distinct ones.
        numbers, _, first, length, _ = tokenise(folded, piece_starts, piece_ends, np.zeros(len(piece_starts), np.uint8), WORD_BYTES)
        chars = str(memoryview(folded), "ascii")
        pieces = [chars[start:end] for start, end in zip(first.tolist(), (first + length).tolist(), strict=True)]
        n_atoms = np.where(n_terms > 1, n_terms - 1, n_terms)  # one word a token, and the first of several terms is no atom

        others = np.flatnonzero(n_terms < 0)
        view = memoryview(text)
        places = zip(starts[others].tolist(), sizes[others].tolist(), strict=True)
        more, of_words, n_words = _split(str(view[start : start + size], "utf-8", "replace") for start, size in places)
        token, of_word = np.repeat(others, n_words), np.array(of_words, np.int32)
        n_terms[others] = n_atoms[others] = 0
        np.add.at(n_terms, token, of_word)
        np.add.at(n_atoms, token, np.maximum(of_word - 1, 1))
        is_other = np.zeros(len(starts), np.bool_)
        is_other[others] = True
        is_other = np.repeat(is_other, n_terms)
        merged = np.empty(len(is_other), np.int64)
        merged[~is_other] = numbers
        merged[is_other] = np.arange(len(pieces), len(pieces) + len(more))
        return FlatTerms(self._terms(pieces + more), merged, n_terms, n_atoms)

    def _terms(self, pieces: list[str]) -> list[str]:
        if self.language:
            import Stemmer

            # A new one each time: a PyStemmer object must not be shared by threads. Its cache helps only repeated words.
            pieces = Stemmer.Stemmer(self.language, 0).stemWords(pieces)
        return [piece if piece.isascii() else _strip_accents(piece) for piece in pieces]


@dataclass(frozen=True, slots=True)
class FlatTerms:
    """Terms of many tokens, flat, because a tuple per word keeps Python's garbage collector busy.

    terms: may repeat (two inflections of one word). numbers: (p,) int64, indices into terms, one token after the other.
    n_terms, n_atoms: (t,) int32, how many of them are each token's, and how many places of the text it stands for.
    """

    terms: list[str]
    numbers: Array
    n_terms: Array
    n_atoms: Array


def _split(tokens: Iterable[str]) -> tuple[list[str], list[int], list[int]]:
    """The pieces that become terms, one token after the other; how many each word has; how many words each token has."""
    pieces: list[str] = []
    sizes: list[int] = []
    n_words: list[int] = []
    for token in tokens:
        before = len(sizes)
        if token.isascii():
            _add_word(token, pieces, sizes)
        else:
            _add_text(token, pieces, sizes)
        n_words.append(len(sizes) - before)
    return pieces, sizes, n_words


def _add_text(token: str, pieces: list[str], sizes: list[int]) -> None:
    """Words of a token with characters beyond ASCII, which may hold punctuation and several scripts."""
    for run in _WORD.findall(unicodedata.normalize("NFKC", token)):
        for i, piece in enumerate(_UNSPACED.split(run)):
            if i % 2 == 0:
                _add_word(piece, pieces, sizes)
            else:
                chars = piece if piece.isalpha() else _CHARACTER.findall(piece)
                bigrams = [a + b for a, b in pairwise(chars)] or [piece]
                pieces += bigrams
                sizes += [1] * len(bigrams)


def _add_word(word: str, pieces: list[str], sizes: list[int]) -> None:
    """A word, case-folded, and its parts; nothing for a run too long or of underscores alone."""
    if len(word) > MAX_WORD_CHARS:
        return
    folded = word.casefold()
    before = len(pieces)
    pieces.append(folded)
    if not word.isalpha() or folded != word:
        if not word.strip("_"):
            pieces.pop()
            return
        parts = identifier_parts(word)
        if len(parts) <= MAX_PARTS and (len(parts) > 1 or parts[0] != folded):
            pieces += parts
    sizes.append(len(pieces) - before)


def identifier_parts(word: str) -> list[str]:
    """The parts of an identifier, case-folded: `HTTPServer2_fooBar` gives http, server, 2, foo, bar."""
    if word.isascii():
        return [part.lower() for part in _ASCII_PARTS.findall(word)]
    parts: list[str] = []
    previous = ""
    for i, char in enumerate(word):
        kind = "" if char == "_" else "digit" if char.isdigit() else "upper" if char.isupper() else "lower"
        next_is_lower = word[i + 1 : i + 2].islower()
        changes = kind != previous and (kind, previous) != ("lower", "upper")
        if kind and (changes or (kind == previous == "upper" and next_is_lower)):
            parts.append(char)
        elif kind:
            parts[-1] += char
        previous = kind
    return [part.casefold() for part in parts]


def atoms(word: Word) -> Word:
    """The terms that stand at successive places of the text: the parts of an identifier, else the word itself."""
    return word[1:] or word


def is_unspaced(text: str) -> bool:
    """Whether a text is all of scripts that are written without spaces."""
    return _UNSPACED.fullmatch(text) is not None


@lru_cache(maxsize=REMEMBERED)
def _words(language: str, token: str) -> tuple[Word, ...]:
    (words,) = Analyser(language).analyse([token])
    return tuple(words)


@lru_cache(maxsize=256)
def analyser_of(kind: str, language: str = "auto", stem: bool = True) -> Analyser:
    """The analyser of a document kind (`Documents.kind_names`).

    language: "auto" takes that of the kind ("prose:german"), or a Snowball algorithm for all prose. Code and data are read as
    English, as are the Latin words in Chinese, Japanese and Korean text; an unknown language is not stemmed.
    """
    family, _, spoken = kind.partition(":")
    prose = family in PROSE_FAMILIES
    if prose and language != "auto":
        spoken = language
    elif not prose or spoken == "cjk":
        spoken = "english"
    return Analyser(spoken if stem and spoken in languages() else "")


@lru_cache(maxsize=1)
def languages() -> frozenset[str]:
    """The languages that can be stemmed."""
    import Stemmer

    return frozenset(Stemmer.algorithms())


def _strip_accents(term: str) -> str:
    """Without Latin, Greek and Cyrillic diacritics and the points of Hebrew and Arabic; marks of other scripts carry meaning and stay."""
    return unicodedata.normalize("NFC", _DIACRITICS.sub("", unicodedata.normalize("NFD", term)))
