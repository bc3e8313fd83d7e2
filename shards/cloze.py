"""Known items made hard: does a space find the place a sentence was taken from, once the sentence is gone from it?

The inverse cloze task of Lee, Chang & Toutanova 2019 (section 4), here as a test instead of a pre-training: a probe is a sentence of
the corpus, the passage around it without the sentence is what should be found, all documents compete. It needs no labels, and
unlike the plain known-item test it does not reward a space for finding the very words of the sentence.

People do repeat some words of what answers them. As Lee et al. leave the sentence where it is in one of ten examples, so that words
count for something, an echo can be left here: a quarter of the sentence's words, in two of five sources.
"""

import re
from collections.abc import Iterable, Sequence

from shards.documents import Documents
from shards.kinds import kind_of
from shards.probes import Probe, choose_probes, echo, prose_in_code, sentences, words_of

WINDOW_BYTES = 2_000  # of text around the sentence: about a passage, so that its cost does not grow with documents
MIN_PROBES = 64  # of prose; with fewer, what code there is must do
MIN_WORDS = 20  # that must be left around it
# Measured on collections with judgements: without echoes the evidence of bm25 + static on SQuAD, whose questions repeat much, falls
# 0.010 nDCG@10 below bm25 alone, with these 0.003. With more of them, or longer ones, CISI and TheoremQA, whose questions repeat
# little, lose more than SQuAD gains.
ECHO_SOURCES, ECHO_WORDS = (1, 3), 0.25  # which of each five sources, and how likely each word stays


def cloze_probes(documents: Sequence[tuple[bytes, bytes]], n_probes: int) -> tuple[Probe, ...]:
    """Probes that read like what people ask: sentences; of code, what is written between it, as far as there is enough of that.

    documents: (content hash, rendition) in the order of `rank_hashes`. (Lines of code are found again by their names alone. Docstrings
    asked of the standard library's functions: evidence of bm25 + dense had nDCG@10 .506 with these as probes, dense alone .511.)
    """

    def pieces(text: str) -> list[str]:
        return prose_in_code(text) if kind_of(text.encode()) == "code" else sentences(text)

    probes = choose_probes(documents, n_probes=n_probes, pieces=pieces)
    return probes if len(probes) >= MIN_PROBES else choose_probes(documents, n_probes=n_probes)


def mask(rendition: bytes, sentence: str) -> bytes | None:
    """The text around a probe's sentence, without it; None where it is not found as it stands, or too little is left.

    Words may be parted by anything that is no letter or digit, since probes are shown without code's punctuation.
    """
    text = rendition.decode("utf-8", "replace")
    pattern = re.compile(r"[\W_]*".join(map(re.escape, words_of(sentence))))
    found = pattern.search(text)
    if found is None:
        return None
    before, after = text[max(0, found.start() - WINDOW_BYTES // 2) : found.start()], text[found.end() : found.end() + WINDOW_BYTES // 2]
    left = pattern.sub(" ", f"{before} {after}").strip()
    return left.encode() if len(words_of(left)) >= MIN_WORDS else None


def masked_documents(
    probes: Iterable[Probe], renditions: dict[bytes, bytes], echoes: bool = False, limit: int | None = None
) -> tuple[list[Probe], Documents]:
    """Probes that can be masked, the first `limit`, and what is left of their sources, as documents under the sources' hashes.

    renditions: of the probes' sources, by content hash. echoes: whether two of five, code aside, keep some words of the sentence. Kinds
    are those of what is left.
    """
    kept: list[Probe] = []
    items = []
    for probe in probes:
        if len(kept) == limit:
            break
        left = mask(renditions[probe.source], probe.text)
        if left is not None:
            kind = kind_of(left)
            if echoes and kind != "code" and len(kept) % 5 in ECHO_SOURCES:  # code repeats a comment's words in its names anyway
                left += f" {echo(probe, ECHO_WORDS)}".encode()
            kept.append(probe)
            items.append((probe.source, left, kind))
    return kept, Documents.pack(items)
