"""Where the query shows in an excerpt: character ranges to mark.

A word of the query is marked as a whole word, whatever its case and accents, in its inflected forms (equal Snowball stems, or
a few letters more), and as a part of an identifier (`header` in `parseHeader` and `parse_header`). A pattern of the text layer
is marked where RE2 finds it, in linear time.
"""

import re
import threading
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from shards.errors import BadQuery

MAX_MARKS = 200  # per excerpt: more no longer help a reader, and every one is sent
MAX_WORDS = 64  # of a query: each excerpt is compared with all of them
MIN_STEM_CHARS = 4  # shorter words are marked only as they are: "is" is not a form of "island"
MAX_SUFFIX_CHARS = 4  # "auto" marks "autos", not "automatically"

_WORD = re.compile(r"(\w[\w\u0300-\u036f]*)")  # decomposed accents belong to their word
_PART = re.compile(r"[^\W\d_a-z]+(?![a-z])|[^\W\d_]?[^\W\d_A-Z]+|\d+")  # of an identifier: HTTP|Server, parse|_|header, utf|8
# Scripts written without spaces: a word is looked for anywhere. Thai, Lao, Burmese, Khmer, kana, Han.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
# Words that nobody looks for; only left out while the query has others.
_FUNCTION_WORDS = frozenset(
    """
    a an and are as at be been but by can could did do does for from had has have how i if in into is it its me my not of on
    or our s should so t than that the their them then there these they this those to us was we were what when where which
    while who whose why will with would you your
    """.split()
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A text layer's own form: a literal, or a regular expression in RE2's syntax."""

    text: str
    regex: bool = False
    ignore_case: bool = False


class Highlighter:
    """One query's marks, compiled once and applied to every excerpt.

    words: of the query (see `query_words`). patterns: of the text layer. Raises BadQuery for a pattern that RE2 cannot compile.
    """

    def __init__(self, words: Iterable[str] = (), patterns: Sequence[Pattern] = ()):
        self.words = tuple(dict.fromkeys(word.casefold() for word in words if word))[:MAX_WORDS]
        self._folded = frozenset(map(fold, self.words))
        self._prefixes = tuple(w for w in self._folded if len(w) >= MIN_STEM_CHARS and w.isalpha())
        self._unspaced = [re.compile(re.escape(w)) for w in self.words if _UNSPACED.search(w)]
        self._patterns = [_compile(pattern) for pattern in patterns if pattern.text]
        # language -> token -> ranges of it to mark, of tokens that have any: excerpts of one answer are made of the same words
        self._marked: dict[str, dict[str, tuple[tuple[int, int], ...]]] = {}
        # language -> when it was asked, and tokens that share a key with a word, see `_Tokens`
        self._likely: dict[str, tuple[int, set[str]]] = {}
        self._keys: dict[str, frozenset[str]] = {}  # language -> what a form of a word has at least one of
        self._stems: dict[str, frozenset[str]] = {}  # language -> stems of the words

    def marks(self, text: str, kind: str = "") -> list[tuple[int, int]]:
        """Ranges [start, end) of characters of `text`: ascending, disjoint, not touching, none empty, at most MAX_MARKS.

        kind: of the document ("prose:german"); where it names no language of Snowball's, words are stemmed as English ones.
        """
        found: list[tuple[int, int]] = []
        for pattern in (*self._patterns, *self._unspaced):
            found += _spans(pattern, text)
        if self._folded:
            language = _language(kind.partition(":")[2])
            if language not in self._marked:
                self._learn(language)
            marked, known = self._marked[language], _tokens_of(language)
            pieces = _WORD.split(text)  # what lies between tokens, a token, what lies between, …
            tokens = pieces[1::2]
            distinct = set(tokens)
            known.add(distinct)
            if self._likely.get(language, (-1,))[0] != known.version:  # also when others have added tokens meanwhile
                self._likely[language] = known.with_any(self._keys[language])
            for token in (distinct & self._likely[language][1]) - marked.keys():
                marked[token] = self._in_token(_token(token, language), language)
            if any(map(marked.get, distinct)):
                ends = list(accumulate(map(len, pieces)))
                found += [(at + a, at + b) for at, token in zip(ends[::2], tokens, strict=False) for a, b in marked.get(token, ())]
        return _disjoint(found)[:MAX_MARKS]

    def _learn(self, language: str) -> None:
        """What tokens of a language are compared with."""
        stems = frozenset(_stem(word, language) for word in self.words if len(word) >= MIN_STEM_CHARS)
        self._marked[language], self._stems[language] = {}, stems
        self._keys[language] = self._folded | stems | {word[:MIN_STEM_CHARS] for word in self._prefixes}

    def _in_token(self, token: "_Token", language: str) -> tuple[tuple[int, int], ...]:
        """The ranges of a token to mark: the whole, or parts of an identifier."""
        whole, *parts = token.pieces
        if self._is_form(whole, language):
            return ((whole.start, whole.end),)
        return tuple((part.start, part.end) for part in parts if self._is_form(part, language))

    def _is_form(self, piece: "_Piece", language: str) -> bool:
        """Whether a piece is a form of one of the words."""
        folded = piece.folded
        if folded in self._folded:
            return True
        if len(folded) < MIN_STEM_CHARS:
            return False
        if folded.startswith(self._prefixes) and any(
            folded.startswith(w) and len(folded) - len(w) <= MAX_SUFFIX_CHARS for w in self._prefixes
        ):
            return True
        return piece.stem in self._stems[language]


class _Piece(NamedTuple):
    """A token, or a part of one: where it stands in the token, without case and accents, and its stem ("" for a short one)."""

    start: int
    end: int
    folded: str
    stem: str


class _Token(NamedTuple):
    """A token, then its parts where it is an identifier of several. keys: of each piece what a word that it is a form of must
    share with it: the folded piece itself, its stem, or its beginning."""

    pieces: tuple[_Piece, ...]
    keys: frozenset[str]


class _Tokens:
    """The tokens of a language seen lately, by the keys that a word which they are forms of has at least one of. Texts are made of
    the same words, and comparing all of them with each query was most of highlighting's cost. Safe for several threads."""

    MOST = 1 << 16  # tokens; then all are forgotten

    def __init__(self, language: str):
        self._language, self._lock = language, threading.Lock()
        self.version = 0  # grows with what is known
        self._known: set[str] = set()
        self._by_key: dict[str, list[str]] = {}

    def add(self, tokens: set[str]) -> None:
        """Remembers tokens."""
        if tokens <= self._known:
            return
        with self._lock:
            if len(self._known) + len(tokens) > self.MOST:
                self._known, self._by_key = set(), {}
            for token in tokens - self._known:
                for key in _token(token, self._language).keys:
                    self._by_key.setdefault(key, []).append(token)
            self._known |= tokens
            self.version += 1

    def with_any(self, keys: Iterable[str]) -> tuple[int, set[str]]:
        """The version, and the known tokens that have one of the keys."""
        with self._lock:
            return self.version, {token for key in keys for token in self._by_key.get(key, ())}


@lru_cache(maxsize=64)
def _tokens_of(language: str) -> _Tokens:
    return _Tokens(language)


@lru_cache(maxsize=1 << 14)
def _token(token: str, language: str) -> _Token:
    spans = [match.span() for match in _PART.finditer(token)]
    pieces = []
    for start, end in [(0, len(token)), *(spans if len(spans) > 1 else ())]:
        piece = token[start:end]
        folded = fold(piece)
        pieces.append(_Piece(start, end, folded, _stem(piece.casefold(), language) if len(folded) >= MIN_STEM_CHARS else ""))
    keys = {key for piece in pieces for key in (piece.folded, piece.folded[:MIN_STEM_CHARS], piece.stem or piece.folded)}
    return _Token(tuple(pieces), frozenset(keys))


def _stem(word: str, language: str) -> str:
    return fold(_stemmer(language).stemWord(word))  # stemmers need the accents, so these go afterwards


def _stemmer(language: str) -> Any:
    import Stemmer

    if (stemmer := getattr(_stemmers, language, None)) is None:
        stemmer = Stemmer.Stemmer(language, 0)
        setattr(_stemmers, language, stemmer)
    return stemmer


_stemmers = threading.local()  # a stemmer must not cross threads


@lru_cache(maxsize=64)
def _language(name: str) -> str:
    """The Snowball language of that name, else English."""
    import Stemmer

    return name if name in Stemmer.algorithms() else "english"


def query_words(query: str) -> tuple[str, ...]:
    """The words of a query worth marking, in lower case, in order, each once: without English function words if others remain."""
    found = (m.group().casefold() for m, _ in zip(_WORD.finditer(query), range(MAX_WORDS * 4), strict=False))
    words = tuple(dict.fromkeys(found))
    return tuple(w for w in words if w not in _FUNCTION_WORDS) or words


def fold(word: str) -> str:
    """A word without case and accents: "Éclair" and "E\u0301CLAIR" are both "eclair", "Straße" is "strasse"."""
    if word.isascii():
        return word.lower()
    decomposed = unicodedata.normalize("NFKD", word.casefold())
    return "".join(c for c in decomposed if not unicodedata.combining(c)).casefold()


@lru_cache(maxsize=256)
def _compile(pattern: Pattern) -> Any:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = not pattern.ignore_case
    options.literal = not pattern.regex
    try:
        # Multi-line, as the text layer looks at lines: ^ and $ are those of a line of the excerpt.
        return re2.compile("(?m)" + pattern.text if pattern.regex else pattern.text, options=options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        reason = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise BadQuery(
            f"Pattern {pattern.text!r} is no RE2 regular expression: {reason}. RE2 has no backreferences and lookarounds."
        ) from None


def _spans(pattern: Any, text: str) -> list[tuple[int, int]]:
    spans = (m.span() for m, _ in zip(pattern.finditer(text), range(MAX_MARKS * 2), strict=False))
    return [span for span in spans if span[0] < span[1]]


def _disjoint(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sorted, with overlapping and touching ranges joined."""
    out: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out
