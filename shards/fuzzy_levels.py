"""What a word of the question may stand for, and how surprising each is: levels of likeness, from the word itself to a part of another.

The surprise of a level is -ln of the chance that a random passage holds a word that this near to a random word like the asked one: by
the letters of the corpus's words (`_log_near`), or by how often words this near really occur, if that is more. So a misspelt long word is
hardly less certain than a literal, and a short one, near to which there is always something, says nothing.
"""

import math
import re
from typing import NamedTuple

import numpy as np

from shards.chance import MIN_WORD_COUNT
from shards.fuzzy_vocabulary import Vocabulary
from shards.types import Array

MAX_EDITS = 3
MIN_PART_CHARS = 5  # parts of words are sought for a word of this length, with a mistake from the next length on
MIN_MISSPELT_PART_CHARS = 8
MAX_NEAR = 48  # words taken for one that was asked
KINDS_OF_EDIT = 4  # insert, drop, replace, swap
MISTAKE = 3.0  # nats that a letter of the alphabet, another first letter, and another number is less likely: one in 20
LEAST = 1e-3  # of a match that surprises nobody, so that it is a match
_DIGITS = re.compile(r"\d")


class Near(NamedTuple):
    """Words of the vocabulary that one may stand for, by score descending: numbers (m,) int64; scores (m,) float64, nats."""

    numbers: Array
    scores: Array


def edits_of(n_chars: int, most: int = MAX_EDITS) -> int:
    """How many mistakes a word of this length may have: none below 3 characters, 1 below 6, 2 below 8, else 3."""
    return min(most, int(n_chars >= 3) + int(n_chars >= 6) + int(n_chars >= 8))


def near(vocabulary: Vocabulary, word: str, most_edits: int, parts: bool) -> Near:
    """What a word may stand for. parts: also words that it is a part of."""
    edits = edits_of(len(word), most_edits)
    near_by, distances = vocabulary.near(word, edits)
    # Who writes a short word makes few mistakes in it, however long it gets: `playwrite` is `playwright` rather than `pwrite`.
    likely = np.array([distance <= edits_of(size, most_edits) for size, distance in zip(vocabulary.sizes(near_by), distances)], np.bool_)
    near_by, distances = near_by[likely], distances[likely]
    part_edits = int(parts and most_edits > 0 and len(word) >= MIN_MISSPELT_PART_CHARS)
    containing = vocabulary.containing(word, part_edits) if parts and len(word) >= MIN_PART_CHARS else near_by[:0]
    numbers = np.union1d(near_by, containing)
    if not len(numbers):
        return Near(numbers, np.zeros(0))
    log_ps = np.array(_log_near(vocabulary, word.encode(), edits, part_edits))
    rising = np.maximum.accumulate(log_ps[:-1])
    # Parts where they are as rare, but below a single mistake: who writes `wether` means `whether`, though `wetherbe` is rarer.
    log_ps[-1] = max(log_ps[-1], rising[min(1, edits)])
    by_kind = np.argsort(np.append(rising, log_ps[-1]), kind="stable")
    level_of = np.argsort(by_kind)
    levels = np.full(len(numbers), len(by_kind))
    levels[np.searchsorted(numbers, near_by)] = level_of[distances]
    at = np.searchsorted(numbers, containing)
    levels[at] = np.minimum(levels[at], level_of[-1])  # `pharaohs` is two edits from `pharao`, and has it as a part
    n_passages = np.bincount(levels, vocabulary.frequencies[numbers], len(by_kind))
    surprises = _surprises(log_ps[by_kind], n_passages, max(vocabulary.n_units, 1))
    order, place = _by_likelihood(vocabulary, word, numbers, levels, int(level_of[-1]))
    # Of two words equally near the likelier comes first, within the upper half of what lies between this level and the next.
    following = np.append(surprises[1:], 0.0)
    levels, numbers = levels[order], numbers[order]
    scores = surprises[levels] - (surprises - following)[levels] / 2 * place
    return Near(numbers[:MAX_NEAR], scores[:MAX_NEAR])


def _surprises(log_ps: Array, n_passages: Array, n_units: int) -> Array:
    """Of each level, falling: (l,) float64. log_ps: by letters; n_passages: (l,) float64, in how many passages the words of a level are."""
    often = np.maximum(np.cumsum(n_passages) - MIN_WORD_COUNT, 0.0) / n_units
    with np.errstate(divide="ignore"):
        surprises = -np.minimum(np.maximum(np.logaddexp.accumulate(log_ps), np.log(often)), 0.0)
    return np.maximum(surprises, LEAST * np.arange(len(surprises), 0, -1))


def _log_near(vocabulary: Vocabulary, word: bytes, edits: int, part_edits: int) -> list[float]:
    """ln of the expected number of words of a random passage that are this word with 0, 1, … edits; last, that have it as a part."""
    model = vocabulary.letters
    run = word + b"\n"
    chances = [[float(model.next_byte((b"\n\n" + run)[i + 2 - back : i + 2])[byte]) for back in (0, 1, 2)] for i, byte in enumerate(run)]
    n_words = max(vocabulary.words_per_unit, 1e-9)
    near = _edited(chances, edits, 0)
    part = sum(_edited(chances[:-1], part_edits, 1)) * model.mean_bytes
    return [math.log(max(n_words * p, 1e-300)) for p in (*near, part)]


def _edited(chances: list[list[float]], edits: int, known: int) -> list[float]:
    """The chance of letters with exactly 0, 1, … edits in them, over all places that the edits can have.

    An edit, of any kind, frees a letter; what follows it is as likely as it is without the letters before. chances: of each letter, by
    how many letters before it are known: 0, 1, 2. known: what is known of those before the first: 0 two, 1 none, 2 one.
    """
    reached = [[0.0, 0.0, 0.0] for _ in range(edits + 1)]  # by edits so far, and by what is known of the letters before, as above
    reached[0][known] = 1.0
    for alone, after_one, after_two in chances:
        for e in range(edits, -1, -1):
            both, none, one = reached[e]
            edited = KINDS_OF_EDIT * sum(reached[e - 1]) if e else 0.0
            reached[e] = [both * after_two + one * after_one, edited, none * alone]
    return [sum(of_edits) for of_edits in reached]


def _by_likelihood(vocabulary: Vocabulary, word: str, numbers: Array, levels: Array, level_of_parts: int) -> tuple[Array, Array]:
    """The order of words by level, then by how likely they were meant: (m,) int64; and the place of each among those of its level,
    in [0, 1): (m,) float64.

    A noisy channel (Kernighan, Church & Gale 1990): how often the word is written, times the chance of the mistake. A letter that is
    left out, doubled or displaced is the one that it is; one that the word does not have is one of an alphabet. The first letter is
    seldom wrong (Pollock & Zamora 1984), what is numbered otherwise is another thing, and nobody leaves out half a word by mistake.
    """
    words = vocabulary.words(numbers)
    letters, digits = set(word), _DIGITS.findall(word)
    foreign = np.array([len(letters.difference(other)) for other in words])
    other_first = np.array([other[0] != word[0] for other in words])
    other_number = np.array([_DIGITS.findall(other) != digits for other in words])
    is_part = (levels == level_of_parts) & (vocabulary.sizes(numbers) > len(word))
    likely = np.log(vocabulary.frequencies[numbers]) - MISTAKE * (foreign + other_first + other_number + is_part)
    order = np.lexsort((vocabulary.hashes[numbers], -likely, levels))
    counts = np.bincount(levels)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    levels = levels[order]
    return order, (np.arange(len(order)) - first[levels]) / counts[levels]
