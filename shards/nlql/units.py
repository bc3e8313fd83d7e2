"""How NLQL cuts documents: sentences, chunks of them, or whatever a registered splitter makes (`LANGUAGE.md`, section 9).

A unit is a span of the rendition, and its text is what normalising makes of that span: Unicode NFC, runs of blank, tab, U+00A0 and
U+3000 as one blank, several line breaks as one, white space trimmed from every line and from both ends. So no text is kept beside the
rendition, and units have the coordinates that all layers share.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from shards.documents import Documents
from shards.nlql.errors import ExecutionError
from shards.plugins import PROCESS, Plugins, Splitter
from shards.types import Array
from shards.units import Units

SENTENCE, CHUNK, DOCUMENT = "sentence", "chunk", "document"
CHUNK_CHARACTERS = 1000  # most of a chunk, unless a single sentence is longer
PORTION = 1 << 14  # units whose texts are copied at once

_BLANKS = re.compile("[ \t\u00a0\u3000]+")
_BREAKS = re.compile("\n{2,}")
_BOUNDARY = re.compile(r"(?<=[.!?])\s+|(?<=[。！？…])\s*|\n+")


def normalise(text: str) -> str:
    """The text as it is cut and shown."""
    text = _BREAKS.sub("\n", _BLANKS.sub(" ", unicodedata.normalize("NFC", text)))
    return "\n".join(line.strip() for line in text.split("\n")).strip()


def sentences(text: str) -> list[str]:
    """The sentences of a normalised text.

    A sentence ends after `.`, `!` or `?` before white space, after each of `。！？…`, and at the end of its line. So abbreviations end
    sentences, too, and a stop within closing quotes does not.
    """
    return [piece for part in _BOUNDARY.split(text) if part and (piece := part.strip())]


def chunks(text: str) -> list[str]:
    """Sentences of a normalised text joined by one blank, as many as `CHUNK_CHARACTERS` hold; a longer sentence stays whole."""
    found: list[str] = []
    for sentence in sentences(text):
        if found and len(found[-1]) + len(sentence) + 1 <= CHUNK_CHARACTERS:
            found[-1] += f" {sentence}"
        else:
            found.append(sentence)
    return found


def cut(documents: Documents, unit: str, scope: Array | None = None, plugins: Plugins = PROCESS) -> Units:
    """The units of documents, in order. scope: (rows,) bool, the documents to cut; None means all.

    unit: sentence, chunk, document (one unit each, but for those of white space alone), or the name of a registered splitter, which may
    also stand in for one of the first two. Raises RegistryError for another name, and ExecutionError for a splitter that fails.
    """
    rows = np.arange(len(documents), dtype=np.int32) if scope is None else np.flatnonzero(scope).astype(np.int32)
    splitter = plugins.splitters.find(unit)
    if splitter is None and unit in (SENTENCE, CHUNK, DOCUMENT):
        return _cut(documents, unit, rows) if scope is not None else _cut_once(documents, unit, rows)
    return _split(documents, unit, rows, plugins.splitters.get(unit) if splitter is None else splitter)


def texts(documents: Documents, unit: str, rows: Array, starts: Array, ends: Array) -> list[str]:
    """The texts of units: spans [start, end) of the renditions of these rows."""
    found: list[str] = []
    for low in range(0, len(rows), PORTION):
        found += _texts(documents, unit, *(of[low : low + PORTION] for of in (rows, starts, ends)))
    return found


def _texts(documents: Documents, unit: str, rows: Array, starts: Array, ends: Array) -> list[str]:
    from shards.sentence_kernels import copy_plain

    base = documents.starts[rows]
    copied = np.empty(int((ends - starts).sum()) + len(rows), np.uint8)
    n_bytes, plain = copy_plain(documents.text, base + starts, base + ends, unit == CHUNK, copied)  # of which 。 ends sentences, too
    together = copied[: n_bytes - 1].tobytes().decode("utf-8", "replace")
    found = together.split("\n")
    if not unicodedata.is_normalized("NFC", together):
        plain &= np.fromiter((unicodedata.is_normalized("NFC", text) for text in found), bool, len(found))
    for i in np.flatnonzero(~plain).tolist():
        found[i] = text_of(documents.content(int(rows[i])), unit, int(starts[i]), int(ends[i]))
    return found


def text_of(rendition: memoryview | bytes, unit: str, start: int, end: int) -> str:
    """The text of one unit of a rendition."""
    raw = bytes(rendition[start:end])
    text = normalise(raw.decode("utf-8", "replace"))
    return " ".join(sentences(text)) if unit == CHUNK else text


def _cut_once(documents: Documents, unit: str, rows: Array) -> Units:
    """`_cut`, remembered for the documents that came last: whoever brings vectors has them counted before a segment is built of them."""
    global _last
    key, (last_key, units) = (unit, len(documents.text), documents.hashes.tobytes()), _last
    if key != last_key:
        units = _cut(documents, unit, rows)
        _last = key, units
    return Units(*(part.copy() for part in (units.rows, units.starts, units.ends)))


_last: tuple[tuple[str, int, bytes] | None, Units] = (None, Units(*(np.zeros(0, np.int32),) * 3))


def _cut(documents: Documents, unit: str, rows: Array) -> Units:
    from shards.sentence_kernels import cut_sentences, join_sentences  # imports numba

    of, starts, ends, lengths = cut_sentences(documents.text, documents.starts[rows], documents.ends[rows], rows)
    if unit == SENTENCE or not len(of):
        return Units(of, starts, ends)
    if unit == CHUNK:
        _correct(documents, rows, of, starts, ends, lengths)
        begins = join_sentences(of, lengths, CHUNK_CHARACTERS)
    else:
        begins = np.diff(of, prepend=-1) > 0
    first = np.flatnonzero(begins)
    return Units(of[first], starts[first], ends[np.append(first[1:], len(of)) - 1])


def _correct(documents: Documents, rows: Array, of: Array, starts: Array, ends: Array, lengths: Array) -> None:
    """Counts the characters of sentences as normal form C has them, where the text is in another form."""
    edges = np.searchsorted(of, np.append(rows, np.iinfo(np.int32).max)).tolist()
    for i, row in enumerate(rows.tolist()):
        content = bytes(documents.content(row))
        if content.isascii() or unicodedata.is_normalized("NFC", content.decode("utf-8", "replace")):
            continue
        for u in range(edges[i], edges[i + 1]):
            lengths[u] = len(normalise(content[starts[u] : ends[u]].decode("utf-8", "replace")))


# --- registered splitters --------------------------------------------------------------------------------------------------------


def _split(documents: Documents, unit: str, rows: Array, splitter: Splitter) -> Units:
    found: list[tuple[int, int, int]] = []
    for row in rows.tolist():
        text = bytes(documents.content(row)).decode("utf-8", "replace")
        normal = normalise(text)
        try:
            pieces = list(splitter(normal)) if normal else []
        except Exception as error:  # code of the user's: the query or the build that it spoils says whose it is
            raise ExecutionError(f"Splitter {unit!r} failed: {type(error).__name__}: {error}.") from error
        spans = list(_located(unit, normal, pieces))
        starts, ends = _bytes_of(text, normal) if spans else ([], [])
        found += [(row, starts[a], ends[b - 1]) for a, b in spans]
    table = np.array(found, np.int64).reshape(-1, 3)
    return Units(table[:, 0].astype(np.int32), table[:, 1].copy(), table[:, 2].copy())


def _located(unit: str, text: str, pieces: Sequence[object]) -> Iterator[tuple[int, int]]:
    """Where a splitter's pieces stand in the text, without white space at their ends."""
    at = 0
    for piece in pieces:
        match piece:
            case str():
                wanted = piece.strip()
                start = text.find(wanted, at)
                if start < 0:
                    raise ExecutionError(
                        f"Splitter {unit!r} returned {wanted[:80]!r}, which does not stand in the text after the pieces before it. "
                        "Return pieces of the text as they are, in order, or (start, end) of each."
                    )
                end = start + len(wanted)
            case (int(start), int(end)) if at <= start <= end <= len(text):
                inner = text[start:end]
                start, end = start + len(inner) - len(inner.lstrip()), end - (len(inner) - len(inner.rstrip()))
            case _:
                raise ExecutionError(
                    f"Splitter {unit!r} returned {piece!r}; expected pieces of the text or (start, end) in its {len(text)} characters, "
                    "in order and without overlap."
                )
        if end > start:
            yield start, end
        at = max(at, end)


def _bytes_of(text: str, normal: str) -> tuple[list[int], list[int]]:
    """Which bytes of a text each character of what `normalise` makes of it stands for: where they begin, where they end.

    Normalising drops white space, puts a blank for others, and composes: nothing else tells the two texts apart.
    """
    places = ((character, start, end) for made, start, end in _composed(text) for character in made)
    starts, ends = [], []
    for wanted in normal:
        character, start, end = next(places)
        while character != wanted and not (wanted == " " and _BLANKS.fullmatch(character)):
            character, start, end = next(places)
        starts.append(start)
        ends.append(end)
    return starts, ends


def _composed(text: str) -> Iterator[tuple[str, int, int]]:
    """The least stretches of a text that normal form C makes something of by themselves: what it makes of each, and its bytes."""
    piece, made, start = "", "", 0
    for character in text:
        together = unicodedata.normalize("NFC", piece + character)
        if piece and not unicodedata.combining(character) and together == made + unicodedata.normalize("NFC", character):
            end = start + len(piece.encode("utf-8"))
            yield made, start, end
            piece, together, start = "", unicodedata.normalize("NFC", character), end
        piece, made = piece + character, together
    yield made, start, start + len(piece.encode("utf-8"))
