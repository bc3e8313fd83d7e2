"""Known items made hard: does a space find the place a sentence was taken from, once the sentence is gone from it?

The inverse cloze task of Lee, Chang & Toutanova 2019 (section 4), here as a test instead of a pre-training: a probe is a sentence of
the corpus, the passage around it without the sentence is what should be found, all documents compete. It needs no labels, and
unlike the plain known-item test it does not reward a space for finding the very words of the sentence.
"""

import re
from collections.abc import Iterable

from shards.documents import Documents
from shards.probes import Probe, words_of

WINDOW_BYTES = 2_000  # of text around the sentence: about a passage, so that its cost does not grow with documents
MIN_WORDS = 20  # that must be left around it


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


def masked_documents(probes: Iterable[Probe], renditions: dict[bytes, bytes]) -> tuple[list[Probe], Documents]:
    """Probes that can be masked, and what is left of their sources, as documents under the sources' hashes.

    renditions: of the probes' sources, by content hash. Kinds are those of what is left.
    """
    from shards.kinds import kind_of

    kept, items = [], []
    for probe in probes:
        left = mask(renditions[probe.source], probe.text)
        if left is not None:
            kept.append(probe)
            items.append((probe.source, left, kind_of(left)))
    return kept, Documents.pack(items)
