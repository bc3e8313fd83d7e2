"""Where the query shows in an excerpt: character ranges to mark.

A word of the query is marked as a whole word, whatever its case and accents, in its inflected forms (equal Snowball stems, or
a few letters more), and as a part of an identifier (`header` in `parseHeader` and `parse_header`). A pattern of the text layer
is marked where RE2 finds it, in linear time.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shards.errors import BadQuery

MAX_MARKS = 200  # per excerpt: more no longer help a reader, and every one is sent
MAX_WORDS = 64  # of a query: each excerpt is compared with all of them
MIN_STEM_CHARS = 4  # shorter words are marked only as they are: "is" is not a form of "island"
MAX_SUFFIX_CHARS = 4  # "auto" marks "autos", not "automatically"

_WORD = re.compile(r"\w[\w\u0300-\u036f]*")  # decomposed accents belong to their word
_PART = re.compile(r"[^\W\d_a-z]+(?![a-z])|[^\W\d_]?[^\W\d_A-Z]+|\d+")  # of an identifier: HTTP|Server, parse|_|header, utf|8
# Scripts written without spaces: a word is looked for anywhere. Thai, Lao, Burmese, Khmer, kana, Han.
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
# Words that nobody looks for; only left out while the query has others.
_FUNCTION_WORDS = frozenset(
    """
    a an and are as at be been but by can could did do does for from had has have how i if in into is it its me my not of on
    or our s should so t than that the their them then there these they this those to us was we were what when where which
    while who whose why will with would you your
    """.split()  # noqa: SIM905  (as a list it would fill a page)
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
        self._forms: dict[str, _Forms] = {}

    def marks(self, text: str, kind: str = "") -> list[tuple[int, int]]:
        """Ranges [start, end) of characters of `text`: ascending, disjoint, not touching, none empty, at most MAX_MARKS.

        kind: of the document ("prose:german"); where it names no language of Snowball's, words are stemmed as English ones.
        """
        found: list[tuple[int, int]] = []
        for pattern in (*self._patterns, *self._unspaced):
            found += _spans(pattern, text)
        if self._folded:
            language = kind.partition(":")[2]
            if language not in self._forms:
                self._forms[language] = _Forms(self.words, self._folded, self._prefixes, language)
            within = self._forms[language].within
            for match in _WORD.finditer(text):
                if spans := within(match.group()):
                    at = match.start()
                    found += [(at + start, at + end) for start, end in spans]
        return _disjoint(found)[:MAX_MARKS]


class _Forms:
    """Which tokens are forms of the query's words in one language. Lives for one query: a stemmer must not cross threads."""

    def __init__(self, words: Sequence[str], folded: frozenset[str], prefixes: tuple[str, ...], language: str):
        import Stemmer

        self.folded, self.prefixes = folded, prefixes
        self.stemmer = Stemmer.Stemmer(language if language in Stemmer.algorithms() else "english", 0)
        self.stems = {self.stem(word) for word in words if len(word) >= MIN_STEM_CHARS}
        self._known: dict[str, list[tuple[int, int]]] = {}  # excerpts of one answer are made of the same words

    def within(self, token: str) -> list[tuple[int, int]]:
        """The ranges of a token to mark: the whole, or parts of an identifier."""
        if (spans := self._known.get(token)) is None:
            spans = self._known[token] = _in_token(self, token)
        return spans

    def stem(self, word: str) -> str:
        return fold(self.stemmer.stemWord(word))  # stemmers need the accents, so these go afterwards

    def __contains__(self, token: str) -> bool:
        folded = fold(token)
        if folded in self.folded:
            return True
        if len(folded) < MIN_STEM_CHARS or not self.stems:
            return False
        if folded.startswith(self.prefixes) and any(
            folded.startswith(w) and len(folded) - len(w) <= MAX_SUFFIX_CHARS for w in self.prefixes
        ):
            return True
        return self.stem(token.casefold()) in self.stems


def _in_token(forms: _Forms, token: str) -> list[tuple[int, int]]:
    if token in forms:
        return [(0, len(token))]
    parts = list(_PART.finditer(token))
    return [p.span() for p in parts if p.group() in forms] if len(parts) > 1 else []


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
