"""Whether there is an answer here: strong, weak or none, and why.

All thresholds are levels of tests against the corpus's own probes and queries without an answer; nothing is tuned per collection and
no labels are needed. Where the corpus has learnt to tell its own sentences from nonsense (`shards.answerability`), that decides
"none". Otherwise "none", which empties the answer, takes two findings: chance alone gives hits this good, and some space finds less
than it finds for almost any of the corpus's own sentences of this length. A small corpus has learnt too little to refuse by that alone:
there it takes all three, and chance must be likely (E > 0.5).
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from serve.answerable import features
from serve.evidence import Fused, SpaceFacts
from shards.corpus_nulls import CorpusNulls
from shards.nulls import N_NEAR
from shards.probes import count_words
from shards.word_order import WordFacts

Verdict = Literal["strong", "weak", "none"]

STRONG_EVALUE = 0.01  # chance would give one such hit in a hundred queries
CHANCE_EVALUE = 0.05  # above, chance is a serious explanation of the best hit
# Above, chance is as good an explanation as any: what it takes where a small corpus is to refuse. Questions told in other words than its
# own are foreign to all it has learnt: at 0.05, 15 % of theoremqa's judged ones were refused (stories, put to theorems), at this 2 %; of
# foreign ones 63 and 43 %.
LIKELY_EVALUE = 0.5
# The level of all spaces' tests together (Bonferroni). EVIDENCE.md section 9 allows 0.15; sentences and questions hold that too,
# but of the parts of sentences (3 to 8 words) up to 19 % were then refused, at 0.05 up to 5 %.
FOREIGN_P = 0.05
REFUSALS = {
    "order": "its words stand together as those of senseless queries do, not as in almost any of the corpus's own sentences",
    "topic": "it finds as little as sentences about something else do, not as almost any of the corpus's own sentences",
}
WHOLE = 0.8  # of the units that were there at the fit: fewer are a filter's


def conformal_ps(fused: Fused, spaces: Sequence[SpaceFacts], nulls: CorpusNulls | None, n_words: int | None) -> dict[str, float]:
    """Per similarity space with a fitted null and known-item power: p that the query is at home here (`SpaceNull.conformal_p`).

    Only spaces that looked at the whole scope are asked: a query about something else than a space was built for is no stranger
    to the corpus, and a search that was cut short has not missed what it did not look at.

    The best of a part of the units is lower than the best of all: in a scope of the share f of the units p becomes p^f, as for
    independent maxima, so that a narrow filter does not make a query foreign. n_words: length of the query; None (unknown)
    compares with the shortest probes, whose scores are lowest.
    """
    ps = {}
    for j, space in enumerate(spaces):
        null = nulls.spaces.get(space.name) if nulls is not None and space.null == "moments" else None
        if null is None or not space.whole or space.origin == "derived" or not null.gate or not len(null.home_maxima):
            continue
        scores = fused.scores[:, j]
        best = float(np.max(scores, initial=-np.inf, where=~np.isnan(scores)))
        p = null.conformal_p(best / (space.most or 1.0), 1 if n_words is None else n_words)
        moments = fused.moments[j]
        # Where no unit of the whole corpus stands out, the scope hides nothing: p stays.
        if moments is not None and moments.m2 > 0:
            p **= min(space.n_units / null.n_units, 1.0)
        ps[space.name] = p
    for name in sorted(fused.silent):
        null = nulls.spaces.get(name) if nulls is not None else None
        if null is not None and null.gate and len(null.home_maxima):
            ps[name] = 1 / (1 + N_NEAR)  # it knows no word of the query: less than for any probe
    return ps


def answer_margins(
    fused: Fused, spaces: Sequence[SpaceFacts], nulls: CorpusNulls | None, text: str | None
) -> dict[str, float]:
    """By kind of nonsense, how far the query is above what this corpus takes for it (`shards.answerability`); below 0: nonsense.

    Empty where that was not learnt, or other spaces were asked, or only a part of the corpus: then best scores are lower.
    """
    learnt = nulls.answerability if nulls is not None else None
    if learnt is None or text is None:
        return {}
    asked = {space.name: space for space in spaces if space.null == "moments" and space.name in learnt.spaces}
    if not set(learnt.spaces) <= set(asked) | fused.silent:
        return {}
    if not all(space.whole and space.n_units >= WHOLE * nulls.spaces[name].n_units for name, space in asked.items()):
        return {}
    words = learnt.words.look(text) if learnt.words is not None else WordFacts()
    return learnt.margins(features(fused, spaces, learnt.spaces, text, words))


def judge(
    fused: Fused,
    spaces: Sequence[SpaceFacts],
    nulls: CorpusNulls | None,
    *,
    explicit: bool = False,
    text: str | None = None,
    n_words: int | None = None,
    as_sentence: bool = True,
) -> tuple[Verdict, str]:
    """The verdict on an answer with its reason in one sentence.

    strong: a match that chance would hardly give (E <= 0.01): of one exact space, or of all spaces of the source together. What only
            derived texts say (summaries, questions) is a hypothesis about the source, and never strong.
    none:   nothing found; or no exact match rarer than chance, and more like one kind of nonsense than almost any of the
            corpus's own sentences is (`shards.answerability`; never where spaces were named, or where a space that does not look at
            texts, such as one of images, has what chance would hardly give); or, where that was not learnt, and of a small corpus
            as well, E > 0.05 (of a small corpus 0.5), no such match, and a similarity space that finds less than for almost any of
            the corpus's own sentences of this length (a test at level 0.05 over all spaces).
    weak:   everything between, and always where no null model was fitted yet.

    explicit: the caller named spaces or gave a pattern; then real matches of an exact space are never none, and similarity
    spaces are believed unless all of them find too little. text: the query, if it was text; n_words: its length, else counted.
    as_sentence: False where a query is none, but words and vectors of chosen texts: then it is not compared with the corpus's sentences,
    and none only if nothing is found.
    """
    exact = _best_exact(fused, spaces)
    if not (fused.fused > 0).any() and not (explicit and exact is not None):
        return "none", "no space found a match"
    if exact is not None and exact[0] <= math.log(STRONG_EVALUE):
        return "strong", f"{exact[1]} has a match that chance hardly gives (E = {math.exp(exact[0]):.1g})"
    log_evalue = float(fused.log_evalues.min())
    margins = answer_margins(fused, spaces, nulls, text) if as_sentence else {}
    refused = {kind: margin for kind, margin in margins.items() if margin < 0}
    rare = log_evalue <= math.log(CHANCE_EVALUE)
    sure = nulls is not None and nulls.answerability is not None and nulls.answerability.is_sure
    if refused and sure and not explicit and (exact is None or exact[0] > 0) and not _seen_elsewhere(fused, spaces, nulls, log_evalue):
        return "none", REFUSALS[min(refused, key=lambda kind: refused[kind])]
    fitted = "normal" not in fused.nulls
    of_sources = float(fused.log_evalues_of_sources.min())
    if fitted and of_sources <= math.log(STRONG_EVALUE):
        return "strong", f"queries without an answer here hardly find so much evidence in one document (E = {math.exp(of_sources):.1g})"
    if exact is not None and (exact[0] <= 0 or explicit):
        return "weak", f"{exact[1]} has a match that chance may give, too (E = {math.exp(min(exact[0], 700.0)):.1g})"
    at_home = "the query is at home here, but no" if as_sentence else "no"
    why = f"{at_home} document stands out from what chance gives"
    if rare:
        why = f"queries without an answer here seldom find so much evidence in one document (E = {math.exp(log_evalue):.1g})"
        if of_sources > math.log(CHANCE_EVALUE):
            why = f"what stands out are texts about documents, not the documents themselves (E = {math.exp(log_evalue):.1g})"
    if (margins and not explicit and (sure or not refused)) or (fitted and not as_sentence):
        return "weak", why
    n_words = count_words(text) if n_words is None and text is not None else n_words
    ps = conformal_ps(fused, spaces, nulls, n_words)
    if not ps:
        why = "no null model is fitted yet" if not fitted else "no similarity space looked at the whole scope"
        return "weak", f"{why}, so chance cannot be told from an answer"
    level = max(FOREIGN_P / len(ps), 1 / (1 + N_NEAR))  # with many spaces: where it finds less than for any probe
    foreign = [name for name, p in ps.items() if p <= level]
    # A single similarity space's own E is no veto: static vectors of 78 % of random strings have E <= 0.05 on CISI, since z only
    # tells that the best document stands out from the others, not that it is near.
    likely = log_evalue > math.log(LIKELY_EVALUE) if refused and not sure else not rare
    if likely and (len(foreign) == len(ps) if explicit else foreign):
        name = min(foreign, key=lambda name: (ps[name], name))
        return "none", f"{name} finds less than for almost any of the corpus's own sentences (p = {ps[name]:.2g})"
    return "weak", why


def _seen_elsewhere(fused: Fused, spaces: Sequence[SpaceFacts], nulls: CorpusNulls | None, log_evalue: float) -> bool:
    """Whether the best hit is one that chance would hardly give, for what a space shows in it from whose texts nothing was learnt."""
    learnt = nulls.answerability if nulls is not None else None
    best = int(fused.best[fused.order[0]])
    if learnt is None or best < 0 or fused.fused_null != "gumbel" or log_evalue > math.log(STRONG_EVALUE):
        return False
    space = spaces[best]
    return space.null == "moments" and space.origin == "source" and space.whole and space.name not in learnt.spaces


def _best_exact(fused: Fused, spaces: Sequence[SpaceFacts]) -> tuple[float, str] | None:
    """ln E and name of the rarest match of the rarity spaces, None without a match. Derived texts certify nothing."""
    found = [
        (float(np.nanmin(fused.signal_log_evalues[:, j])), space.name)
        for j, space in enumerate(spaces)
        if space.null == "rarity" and space.origin == "source" and np.isfinite(fused.scores[:, j]).any()
    ]
    return min(found, default=None)
