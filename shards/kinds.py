"""What a text looks like, from its bytes alone: code, prose of some language, or data."""

from collections import Counter

import numpy as np

SAMPLE_BYTES = 16_384  # nothing behind is looked at
# What a kind may begin with where the text behind it is language, which follows: plain text, and what files of formats are made of
# (`shards/formats/registry.py`). Without a language such a file is read as data or code are.
PROSE_FAMILIES = frozenset({"prose", "pages", "document", "slides", "sheets", "chapters", "cells"})
_SLICES, _SLICE_BYTES = 4, 1_024  # taken evenly from a longer sample: a licence at the top must not decide

# Function words, none of which is a keyword of a common programming language (no `for`, `in`, `is`, `not`, `this`).
_FUNCTION_WORDS = {
    "english": "the of a to that be are was it by an which have has at on you we but were their been its they can will would "
    "may also these those when than he she his her such there our more some any about into who what how should could between",
    "german": "der die das und den dem des ein eine einer eines einem einen ist sind nicht mit auf für von zu im sich auch es "
    "an als nach wie bei aus oder dass war werden wird wurde durch über zum zur sie er ich wir haben hat kann noch nur um am "
    "vom",
    "french": "le la les de des du et un une est dans que qui pour par sur au aux avec ce cette ces il elle ils ne pas plus se "
    "sont été ou être ont son sa ses leur mais comme nous vous je à d l qu n s",
    "spanish": "el la los las de del y un una es en que por para con se no su sus al lo como más pero fue son este esta entre "
    "también ha sobre desde ser cuando donde muy sin hasta hay era",
    "italian": "il lo la i gli le di del della dei delle e un una è in che per con non si da nel nella sono come più ma anche "
    "al alla dal dalla su ha questo questa tra essere loro stato dell l",
    "portuguese": "o a os as de do da dos das e um uma é em no na nos nas que por para com não se ao à mais como mas foi são "
    "seu sua ou pelo pela entre também ser tem até isso",
    "dutch": "de het een en van in is dat op te zijn met voor niet aan er om ook als maar bij door naar uit worden wordt werd "
    "die over tot hij ze wij je kan heeft hebben deze dit nog geen meer",
    "swedish": "och att det som en på är av för med den till inte ett om har de var från vid kan men så eller ska hade sig när "
    "nu även efter också blev denna detta",
    "danish": "og at det som en på er af for med den til ikke et om har de var fra ved kan men så eller skal havde sig når nu "
    "også efter blev denne dette der jeg",
    "norwegian": "og at det som en på er av for med den til ikke et om har de var fra ved kan men så eller skal hadde seg når "
    "nå også etter ble denne dette jeg hvor",
    "finnish": "ja on ei että se joka oli ovat hän kun mutta myös sen tai niin kuin ole mukaan jonka jotka sekä vain voi ollut",
    "romanian": "și de la în cu pe un o este nu să din care pentru a al ale mai sau sunt fost prin dar ca lui cel cea după",
    "turkish": "ve bir bu da de için ile olarak olan daha çok gibi en ne ki ya ise kadar sonra değil var her o ama tarafından",
    "hungarian": "a az és hogy nem is egy ez volt meg de csak már mint vagy el azt ki még lehet kell ha van",
    "russian": "и в не на что с по как это из к а за от но для же он она они его или так был была было были при до бы если "
    "также",
}  # fmt: skip
_WORDS = {language: frozenset(text.encode().split()) for language, text in _FUNCTION_WORDS.items()}
# Told apart from other languages by these too, but no sign of prose.
_ENGLISH_IN_CODE = frozenset(b"and as for from if in is not or this with while then".split())
_KEYWORDS = frozenset(
    b"def return import self none elif else const var let function int void char static struct include define endif ifdef "
    b"ifndef true false null nil args str len class public private try except catch raise throw local fi done esac "
    b"echo typeof async await lambda bool unsigned typedef extern sizeof enum print printf foreach endforeach "
    b"endfunction elseif sub my undef isinstance param params init func fn impl pub mut px".split()
)
_LISTED = _KEYWORDS.union(_ENGLISH_IN_CODE, *_WORDS.values())
_LOWERED_WORDS = bytes(b + 32 if 65 <= b <= 90 else b if b >= 128 or chr(b).isalnum() or b == 95 else 32 for b in range(256))


def _table(*classes: bytes) -> bytes:
    """A class for each byte: 1 for those of the first string, and so on; else 0."""
    table = bytearray(256)
    for number, members in enumerate(classes, 1):
        for byte in members:
            table[byte] = number
    return bytes(table)


_WEIGHT_OF_PROSE = 18.0
_DIGIT, _MARK, _FOREIGN, _BLANK = 1, 2, 3, 4
_CLASSES = _table(b"0123456789", b"{}[]();=_", bytes(range(128, 256)), b" ")
_ENDS_LINE_OF_CODE = np.frombuffer(_table(b"{};:,()[]"), np.uint8)

_CJK = ((0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7AF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
_SCRIPTS = {  # of languages that have the script (almost) to themselves among Snowball's
    "cjk": _CJK, "russian": ((0x400, 0x52F),), "greek": ((0x370, 0x3FF),), "arabic": ((0x600, 0x6FF),),
    "hindi": ((0x900, 0x97F),), "tamil": ((0xB80, 0xBFF),), "armenian": ((0x530, 0x58F),),
}  # fmt: skip


def kind_of(text: bytes | memoryview) -> str:
    """What a rendition looks like: "code", "data", "prose:cjk" (Chinese, Japanese, Korean) or "prose:" and a Snowball language.

    text: UTF-8. Markup and configuration count as code where marks and keywords outweigh words. Data is what has neither:
    tables of numbers, encoded bytes, nothing at all. Prose of no known language is called English.
    """
    sample = bytes(text[:SAMPLE_BYTES])
    if len(sample) > _SLICES * _SLICE_BYTES:
        step = (len(sample) - _SLICE_BYTES) // (_SLICES - 1)
        sample = b"\n".join(sample[at : at + _SLICE_BYTES] for at in range(0, _SLICES * step, step))
    if b"\r" in sample:
        sample = sample.replace(b"\r\n", b"\n")
    words = sample.translate(_LOWERED_WORDS).split()
    if not words:
        return "data"
    classes = sample.translate(_CLASSES)  # counting bytes of a translation is the fastest way to a histogram
    foreign = classes.count(_FOREIGN) / len(sample)
    n_printed = len(sample) - classes.count(_BLANK)
    # Encoded bytes and sequences have runs far longer than the words of any language written with spaces.
    if (foreign < 0.3 and n_printed > 20 * len(words)) or classes.count(_DIGIT) > 0.3 * n_printed:
        return "data"
    counts = Counter(filter(_LISTED.__contains__, words))
    n_words = max(len(words), len(sample) // 10)  # Chinese has few spaces
    evidence = _code_evidence(sample, classes.count(_MARK), counts, n_words)
    if evidence > _WEIGHT_OF_PROSE * sum(counts.values()) / n_words:  # whatever the language
        return "code"
    by_language = {name: sum(map(counts.__getitem__, counts.keys() & own)) for name, own in _WORDS.items()}
    if evidence > _WEIGHT_OF_PROSE * max(by_language.values()) / n_words:
        return "code"
    by_language["english"] += sum(map(counts.__getitem__, counts.keys() & _ENGLISH_IN_CODE))
    language = max(by_language, key=by_language.__getitem__)  # the first of equals: English
    if by_language[language] < 0.05 * len(words):
        language = "english"
    return f"prose:{(_script(sample) if foreign > 0.2 else '') or language}"


def _code_evidence(sample: bytes, n_marks: int, counts: Counter[bytes], n_words: int) -> float:
    """How much speaks for code, on the scale of `_WEIGHT_OF_PROSE` times the share of function words.

    A logistic regression, rounded: fitted on 1,700 source files in nine languages and 2,700 passages and manuals. It takes
    350 of the 352 modules of the standard library for code and none of 2,194 passages of collections in English and German;
    what it misses elsewhere is both at once (headers that are one comment, manuals that are one example).
    """
    codes = np.frombuffer(sample, np.uint8)
    breaks = np.flatnonzero(codes[:-2] == 0x0A)
    n_lines = len(breaks) + 8  # a title that ends with a bracket is no sign of anything
    line_ends = np.count_nonzero(_ENDS_LINE_OF_CODE[codes[breaks - 1]]) / n_lines
    first, second = codes[breaks + 1], codes[breaks + 2]
    indented = np.count_nonzero((first == 0x09) | ((first == 0x20) & (second == 0x20))) / n_lines
    keywords = sum(map(counts.__getitem__, counts.keys() & _KEYWORDS)) / n_words
    return 46 * min(keywords, 0.2) + 6 * min(n_marks / len(codes), 0.15) + 3.5 * line_ends + 4.5 * indented - 0.6


def _script(sample: bytes) -> str:
    """The language whose script prevails among characters beyond Latin, "" where none does."""
    points = np.frombuffer(sample.decode("utf-8", "ignore").encode("utf-32-le"), np.uint32)
    beyond = points[points >= 0x370]
    shares = {
        name: sum(np.count_nonzero((beyond >= low) & (beyond <= high)) for low, high in ranges)
        for name, ranges in _SCRIPTS.items()
    }
    best = max(shares, key=shares.__getitem__)
    # Punctuation (from U+2000 on, and full-width forms) belongs to no script.
    return best if shares[best] * 2 > len(beyond) and len(beyond) * 5 > len(points) else ""
