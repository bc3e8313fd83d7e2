"""Which queries the null models are fitted on: sentences of the corpus itself, and its words in senseless order.

Probes depend on the documents and a salt alone, never on shards or segments: a shard offers its best-ranked documents, the
best of all offers are the best of the corpus, and each gives one sentence. Everything random is drawn from hashes, not
from a generator, so that the same corpus has the same null models on every machine and numpy version.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from shards.kinds import kind_of
from shards.types import Array

N_PROBES = 128  # a dial; EVIDENCE section 8: nDCG is flat from 16 to 256
N_OFFERED = 4 * N_PROBES  # documents a shard offers: some have no sentence, and shuffled queries want many sources
MIN_WORDS, MAX_WORDS = 5, 40  # shorter sentences say too little to be found again, longer ones are seldom asked
MAX_SHORT = 8  # words; longer queries are compared with whole sentences
WINDOW_BYTES = 2_048  # of a document only a window at a hashed place is read: a dozen sentences, 1 MB of 512 documents in all

# Scripts written without spaces count each character as a word: 5 to 40 of them are a sentence too.
_WORD = re.compile(r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_]+(?:['’\-][^\W_]+)*")
_LETTER = re.compile(r"[^\W\d_]")
# What code wraps around its words; apostrophes, hyphens, commas and full stops stay, as people write them.
_CODE = re.compile(r"[`{}\[\]()<>|\\/*#=+~^@$%&_;:\"]+|--+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n\s*\n")
# In code: five words or more with nothing between them but spaces, commas, full stops and the marks of line comments.
_RUN = re.compile(
    r"(?<![\w.])[^\W\d_]+(?:['’\-][^\W\d_]+)*"
    r"(?:(?:[,.]?[ \t]+|,?[ \t]*\n[ \t]*(?:#+|//+|\*+)?[ \t]*)[^\W\d_]+(?:['’\-][^\W\d_]+)*){4,39}(?![\w(\[=])"
)
_BETWEEN = re.compile(r"\s+(?:#+|//+|\*+)?\s*")
_SPACES = re.compile(r"\s+")
_ALPHABET = "abcdefghijklmnopqrstuvwxyz012345"


@dataclass(frozen=True, slots=True)
class Probe:
    """A query whose answer is known: `text` was taken from the document with content hash `source`."""

    source: bytes
    text: str

    @property
    def n_words(self) -> int:
        return count_words(self.text)


def words_of(text: str) -> list[str]:
    """The words of a text that could be looked for, as they stand."""
    return _WORD.findall(text)


def count_words(text: str) -> int:
    """How long a query is, as the null models count it."""
    return len(words_of(text))


def _draw(salt: bytes, *parts: bytes | int) -> int:
    """A uniform 64-bit integer that depends on its arguments alone."""
    digest = hashlib.blake2b(key=hashlib.blake2b(salt).digest(), digest_size=8)
    for part in parts:
        digest.update(part if isinstance(part, bytes) else part.to_bytes(8, "big"))
    return int.from_bytes(digest.digest(), "big")


def rank_hashes(hashes: Array, salt: bytes = b"") -> Array:
    """Documents in a random but reproducible order: positions in `hashes`, first the one to be asked first.

    hashes: (n, 20) uint8, distinct. Returns (n,) int64. The order of any two documents does not depend on the others, so the
    best of all shards' best are the best of the corpus.
    """
    # Content hashes are uniform already; a keyed mix (splitmix64's finaliser: Steele, Lea & Flood 2014) makes an order of
    # its own for each salt at 20 ns a document, where a cryptographic hash per document would take a second per million.
    prefix = np.ascontiguousarray(hashes[:, :8]).view(">u8").reshape(-1).astype(np.uint64)
    mixed = prefix ^ np.uint64(_draw(salt))
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    order = np.argsort(mixed, kind="stable")
    if (mixed[order][1:] == mixed[order][:-1]).any():  # 64 equal bits: decide by the whole hash
        order = np.lexsort((*hashes.T[::-1], mixed))
    return order


def sentences(text: str) -> list[str]:
    """The pieces of a rendition that could be asked: 5 to 40 words each, on one line, without code's punctuation.

    Sentences end at a full stop or blank line; longer ones are cut after 40 words. Most of a piece's words must have letters,
    which leaves tables of numbers out.
    """
    found = []
    for piece in _SENTENCE_END.split(text):
        piece = _SPACES.sub(" ", _CODE.sub(" ", piece))
        words = list(_WORD.finditer(piece))
        for first in range(0, len(words), MAX_WORDS):
            part = words[first : first + MAX_WORDS]
            if len(part) >= MIN_WORDS and 2 * sum(_has_letter(word.group()) for word in part) > len(part):
                found.append(piece[part[0].start() : part[-1].end()])
    return found


def _has_letter(word: str) -> bool:
    return word.isalpha() or (not word.isdecimal() and _LETTER.search(word) is not None)


def prose_in_code(text: str) -> list[str]:
    """What people wrote between code, 5 to 40 words each: comments, docstrings, messages. Runs that read like code are left out."""
    runs = (_BETWEEN.sub(" ", run.group()) for run in _RUN.finditer(text))
    return [run for run in runs if kind_of(run.encode()).startswith("prose")]


def window(document: bytes, rendition: bytes | memoryview, salt: bytes = b"") -> str:
    """The part of a document that is read: at a hashed place, so that long documents are not known by their beginnings alone."""
    start = 0
    if len(rendition) > WINDOW_BYTES:
        start = _draw(salt, b"window", document) % (len(rendition) - WINDOW_BYTES)
    return bytes(rendition[start : start + WINDOW_BYTES]).decode("utf-8", "ignore")


def each_probe(
    ranked: Iterable[tuple[bytes, bytes | memoryview]], salt: bytes = b"", pieces: Callable[[str], list[str]] = sentences
) -> Iterator[Probe]:
    """One sentence from each document that has one.

    ranked: (content hash, rendition) in the order of `rank_hashes`; read only as far as needed. pieces: of a text, those that could be
    asked.
    """
    for document, rendition in ranked:
        if choice := pieces(window(document, rendition, salt)):
            yield Probe(document, choice[_draw(salt, b"sentence", document) % len(choice)])


def choose_probes(
    ranked: Iterable[tuple[bytes, bytes | memoryview]],
    salt: bytes = b"",
    n_probes: int = N_PROBES,
    pieces: Callable[[str], list[str]] = sentences,
) -> tuple[Probe, ...]:
    """The first `n_probes` of `each_probe`; a small corpus gives fewer."""
    return tuple(islice(each_probe(ranked, salt, pieces), n_probes))


def shorten(probes: Sequence[Probe], salt: bytes = b"") -> tuple[Probe, ...]:
    """Parts of the probes, 1 to 8 words each: most of what people ask is shorter than a sentence, and scores lower.

    The i-th part has 1 + i % 8 words (or all of its probe's) from a random place of the i-th probe.
    """
    parts = []
    for i, probe in enumerate(probes):
        words = list(_WORD.finditer(probe.text))
        n_words = min(1 + i % MAX_SHORT, len(words))
        first = _draw(salt, b"part", i, probe.source) % (len(words) - n_words + 1)
        parts.append(Probe(probe.source, probe.text[words[first].start() : words[first + n_words - 1].end()]))
    return tuple(parts)


def echo(probe: Probe, share: float, salt: bytes = b"") -> str:
    """Some of a probe's words in their order, each kept with the probability `share`."""
    words = words_of(probe.text)
    return " ".join(word for i, word in enumerate(words) if _draw(salt, b"echo", i, probe.source) < share * 2**64)


def swap_words(probes: Sequence[Probe], common: Collection[str], salt: bytes = b"") -> tuple[str, ...]:
    """The probes' sentences about something that nobody wrote of: in good order, but not answered, as foreign questions are.

    Every word that is not common (lower case) is swapped for one of some probe's, and of every other sentence half of these are
    spelled backwards: words that the corpus does not know.
    """
    pool = [word for probe in probes for word in words_of(probe.text) if word.lower() not in common]
    if not pool:
        return ()
    swapped = []
    for i, probe in enumerate(probes):
        words = words_of(probe.text)
        for j, word in enumerate(words):
            if word.lower() not in common:
                drawn = _draw(salt, b"swap", i, j)
                words[j] = pool[drawn % len(pool)]
                if i % 2 and drawn >> 63:
                    words[j] = words[j][::-1]
        swapped.append(" ".join(words))
    return tuple(swapped)


def random_strings(n_queries: int, salt: bytes = b"") -> tuple[str, ...]:
    """Queries of letters and digits alone: 1 to 6 strings of 4 to 12 characters."""
    queries = []
    for i in range(n_queries):
        strings = []
        for j in range(1 + i % 6):
            drawn = _draw(salt, b"string", i, j)
            length, drawn = 4 + drawn % 9, drawn // 9
            strings.append("".join(_ALPHABET[drawn >> (5 * k) & 31] for k in range(length)))
        queries.append(" ".join(strings))
    return tuple(queries)


def word_pools(documents: Iterable[tuple[bytes, bytes | memoryview]], salt: bytes = b"") -> list[list[str]]:
    """The words of each document's window, of those that have any: what `shuffle_words` draws from.

    documents: (content hash, rendition) in the order of `rank_hashes`, more of them than probes where there are more.
    """
    return [words for key, body in documents if (words := words_of(window(key, body, salt)))]


def shuffle_words(
    pools: Sequence[Sequence[str]], probes: Sequence[Probe], salt: bytes = b"", n_queries: int = N_PROBES
) -> tuple[str, ...]:
    """Queries that mean nothing, for what chance alone brings: each word from a random place of a random document.

    The i-th query has as many words as the i-th probe (modulo their number). No probes or no words: no queries.
    """
    if not pools or not probes:
        return ()
    queries = []
    for i in range(n_queries):
        words = []
        for j in range(probes[i % len(probes)].n_words):
            drawn = _draw(salt, b"word", i, j)
            pool = pools[(drawn >> 32) % len(pools)]
            words.append(pool[(drawn & 0xFFFFFFFF) % len(pool)])
        queries.append(" ".join(words))
    return tuple(queries)
