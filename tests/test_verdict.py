"""The verdict: strong, weak or none, from the corpus's own probes alone."""

import math
from dataclasses import replace

import numpy as np
import pytest
from test_evidence import MOMENTS, N_DOCS, NULLS, candidates, exact, similar

from serve.answerable import feature_names
from serve.evidence import SpaceFacts, fuse
from serve.verdict import conformal_ps, judge
from shards.answerability import SURE_WORDS, Answerability
from shards.corpus_nulls import CorpusNulls
from shards.nulls import FusedNull
from shards.types import Moments
from shards.word_order import WordOrder

SPACES = similar("bm25", "dense")
AT_HOME = 3.0  # the probes' best scores are maxima of 400 standard normals: about 2.3 to 3.8
FOREIGN = 1.5


def verdict(scores, spaces=SPACES, nulls=NULLS, moments=None, silent=(), **more):
    moments = [None if space.null == "rarity" else MOMENTS for space in spaces] if moments is None else moments
    fused = fuse(candidates(scores, moments), spaces, nulls, N_DOCS, silent)
    return judge(fused, spaces, nulls, n_words=10, **more)[0]


def test_nothing_found_is_none():
    assert verdict(np.zeros((0, 2))) == "none"
    assert verdict([[-np.inf, -np.inf]]) == "none"
    assert verdict(np.zeros((0, 0)), []) == "none"


@pytest.mark.parametrize(
    ("bm25", "dense", "expected"),
    [
        (AT_HOME, AT_HOME, "weak"),  # as much as any sentence finds in documents that are not its own
        (FOREIGN, AT_HOME, "none"),
        (AT_HOME, FOREIGN, "none"),
        (-np.inf, FOREIGN, "none"),
        (12.0, 12.0, "strong"),
        (FOREIGN, 30.0, "strong"),  # much evidence in one space is evidence
    ],
)
def test_similarity_alone(bm25, dense, expected):
    assert verdict([[bm25, dense], [0.0, 0.0]]) == expected


def test_a_certain_exact_match_is_strong_whatever_the_others_say():
    spaces = [*SPACES, exact("text", 40.0)]
    assert verdict([[FOREIGN, FOREIGN, 1.0]], spaces) == "strong"
    assert verdict([[FOREIGN, FOREIGN, -np.inf]], spaces) == "none"


def test_a_common_exact_match_certifies_nothing_but_is_believed_when_asked_for():
    common = exact("text", 0.5)  # E = 400 e^-0.5
    assert verdict([[FOREIGN, FOREIGN, 1.0]], [*SPACES, common]) == "none"
    assert verdict([[FOREIGN, FOREIGN, 1.0]], [*SPACES, common], explicit=True) == "weak"
    assert verdict([[1.0]], [common], explicit=True) == "weak"
    assert verdict([[1.0]], [exact("text", 0.0)], explicit=True) == "weak"  # a pattern that every unit matches
    assert verdict([[1.0]], [exact("text", 0.0)]) == "none"
    rarer = exact("text", math.log(N_DOCS) + 1)  # E = 1 / e
    assert verdict([[FOREIGN, FOREIGN, 1.0]], [*SPACES, rarer]) == "weak"


def test_explicitly_named_similarity_spaces_are_doubted_only_together():
    assert verdict([[FOREIGN, AT_HOME]], explicit=True) == "weak"
    assert verdict([[FOREIGN, FOREIGN]], explicit=True) == "none"


def test_a_derived_match_certifies_nothing():
    summary = SpaceFacts("views", "rarity", N_DOCS, "derived", lambda scores: np.full(len(scores), 40.0))
    assert verdict([[AT_HOME, AT_HOME, 1.0]], [*SPACES, summary], NULLS) != "none"
    fused = fuse(candidates([[1.0]], [None]), [summary], NULLS, N_DOCS)
    assert conformal_ps(fused, [summary], NULLS, 10) == {}


def test_a_space_that_knows_no_word_of_the_query_counts_as_finding_least():
    assert verdict([[AT_HOME]], similar("dense")) == "weak"
    assert verdict([[AT_HOME]], similar("dense"), silent=["bm25"]) == "none"


def test_a_gated_space_has_no_say_in_what_is_foreign():
    assert verdict([[AT_HOME, AT_HOME, FOREIGN]], similar("bm25", "dense", "junk")) == "weak"


def test_a_narrow_filter_does_not_make_a_query_foreign_unless_nothing_stands_out_anywhere():
    narrow = similar("bm25", "dense", n_units=4)
    assert verdict([[FOREIGN, FOREIGN]], narrow) == "weak"
    flat = [Moments(N_DOCS, 0.0, 0.0), MOMENTS]
    assert verdict([[-np.inf, FOREIGN]], narrow, moments=flat) == "none"


def test_without_null_models_there_is_never_a_strong_similarity_nor_a_refusal():
    assert verdict([[FOREIGN, FOREIGN]], nulls=None) == "weak"
    assert verdict([[500.0, 500.0]], nulls=None) == "weak"
    assert verdict([[1.0]], [exact("text", 40.0)], None) == "strong"
    empty = CorpusNulls(1, {}, None, N_DOCS)
    assert verdict([[FOREIGN, FOREIGN]], nulls=empty) == "weak"


def test_unknown_length_is_compared_with_the_shortest_probes():
    fused = fuse(candidates([[AT_HOME, AT_HOME]], [MOMENTS, MOMENTS]), SPACES, NULLS, N_DOCS)
    assert judge(fused, SPACES, NULLS)[0] == "weak"
    assert judge(fused, SPACES, NULLS, n_words=0)[0] == "weak"


def test_queries_like_the_probes_are_seldom_refused_and_foreign_ones_mostly():
    """Best scores of 400 documents: at home they are as the probes' own; foreign ones lack the best tenth of all scores."""
    print("seed 9")
    rng = np.random.default_rng(9)
    nulls = CorpusNulls(1, NULLS.spaces, FusedNull((0.0,), (0.0,), 9.0, 1.5, N_DOCS, ("bm25", "dense"), 1), N_DOCS)
    home = [verdict(rng.normal(0, 1, (N_DOCS, 2)), nulls=nulls) for _ in range(200)]
    assert home.count("none") <= 0.08 * 200  # level 0.05, seen with 64 probes a space
    assert home.count("strong") <= 0.05 * 200
    foreign = [verdict(np.minimum(rng.normal(0, 1, (N_DOCS, 2)), 1.5), nulls=nulls) for _ in range(100)]
    assert foreign.count("none") == 100


def test_a_space_that_did_not_look_everywhere_calls_no_query_foreign():
    bm25, dense = similar("bm25", "dense")
    assert verdict([[AT_HOME, FOREIGN]], [bm25, replace(dense, whole=False)]) == "weak"
    assert verdict([[FOREIGN, AT_HOME]], [bm25, replace(dense, whole=False)]) == "none"
    assert verdict([[FOREIGN, FOREIGN]], [replace(bm25, whole=False), replace(dense, whole=False)]) == "weak"


def test_what_images_show_is_not_refused_for_what_the_texts_lack():
    """Every text is refused here as about something else; the space of images is none of those that this was learnt of."""
    names = tuple(feature_names(["bm25"]))
    none = (0.0,) * len(names)
    refuses = Answerability(names, ("bm25",), none, (1.0,) * len(names), {"topic": none}, {"topic": 1.0}, None)
    fused = FusedNull((0.0,), (0.0,), 8.0, 1.5, N_DOCS, ("bm25", "image"), 1)
    nulls = replace(NULLS, spaces={**NULLS.spaces, "image": NULLS.spaces["dense"]}, fused=fused, answerability=refuses)

    def of(bm25: float, image: float) -> str:
        return verdict([[bm25, image]], similar("bm25", "image"), nulls, text="a red boat")

    assert of(FOREIGN, AT_HOME) == "none"  # no more than chance shows
    assert of(FOREIGN, 30.0) == "strong"  # chance hardly shows so much
    assert of(30.0, FOREIGN) == "none"  # what texts say was learnt of
    assert of(30.0, 5.0) == "none"  # the text is what the best hit is found by


def test_a_small_corpus_refuses_what_is_unlike_its_sentences_only_where_chance_finds_as_much():
    names = tuple(feature_names(["bm25"]))
    nothing = (0.0,) * len(names)
    tables = {name: np.ones(1, np.uint32) for name in ("frequent", "words", "pairs")}
    levels = {name: np.ones(1, np.uint8) for name in ("word_levels", "follower_levels", "pair_levels")}

    found = fuse(candidates([[FOREIGN, FOREIGN]], [MOMENTS, MOMENTS]), SPACES, NULLS, N_DOCS).fused.max()

    def of(score: float, n_words: int, evalue: float = 2.0) -> str:
        """evalue: of what two foreign scores add up to."""
        words = WordOrder(n_words, classes=np.zeros((3, 3), np.int8), **tables, **levels)
        refuses = Answerability(names, ("bm25",), nothing, (1.0,) * len(names), {"topic": nothing}, {"topic": 1.0}, words)
        fused = FusedNull((0.0,), (0.0,), found + 1.5 * math.log(evalue), 1.5, N_DOCS, ("bm25", "dense"), 1)
        return verdict([[score, FOREIGN]], nulls=replace(NULLS, answerability=refuses, fused=fused), text="a red boat")

    assert of(FOREIGN, SURE_WORDS - 1) == of(FOREIGN, SURE_WORDS) == "none"
    assert of(30.0, SURE_WORDS) == "none" and of(30.0, SURE_WORDS - 1) != "none"
    # Where chance is one explanation among others, what is told in other words than the corpus's own may be answered.
    assert of(FOREIGN, SURE_WORDS, 0.2) == "none" and of(FOREIGN, SURE_WORDS - 1, 0.2) == "weak"
