"""Is the query answered here? Two logistic regressions that each corpus fits on itself, without labels.

Answered are the corpus's own sentences and parts of them, their sources seen without these very words (`shards.cloze`). They are
told from words in senseless order by one test, from questions about everything (`shards.background`) and random strings by
another: one line between all of these and the answered refuses fewer of either. What is looked at is `serve.answerable`'s; here
is the arithmetic.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from shards.types import Array
from shards.word_order import WordOrder

MIN_EXAMPLES = 64  # of each kind; with fewer nothing is learnt
SURE_WORDS = 100_000  # of a smaller corpus the own sentences are too much alike to refuse by themselves what is put in other words
# Share of the answered that each test may refuse, 5 % in all: it sets the threshold. Shuffled words are told from sentences with
# hardly an error, something else is harder: so that test has more of it.
REFUSED = {"order": 0.015, "topic": 0.035}
PRIOR = 2.0  # precision of a Gaussian around 0 for coefficients of standardised features
_DIGITS = 4  # kept of what is learnt: sums that differ in their last bits must not change it


@dataclass(frozen=True, slots=True)
class Answerability:
    """names: of the features. spaces: the similarity spaces that they come from, sorted.

    centre, scale: of each feature. tests: by the kind of nonsense, one coefficient per feature. thresholds: of each test; below, the
    query resembles this kind of nonsense. words: what the corpus has of words and their neighbours, None where it is too small.
    """

    names: tuple[str, ...]
    spaces: tuple[str, ...]
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    tests: Mapping[str, tuple[float, ...]]
    thresholds: Mapping[str, float]
    words: WordOrder | None

    @property
    def is_sure(self) -> bool:
        """Whether what was learnt refuses alone, without a second finding."""
        return self.words is None or self.words.n_words >= SURE_WORDS

    def margins(self, features: Array) -> dict[str, float]:
        """How far above its threshold each test is, in nats of its log odds. features: (f,) float64."""
        values = (features - np.array(self.centre)) / np.array(self.scale)
        return {kind: float(values @ np.array(c)) - self.thresholds[kind] for kind, c in self.tests.items()}

    @classmethod
    def fit(
        cls,
        names: Sequence[str],
        spaces: Sequence[str],
        answered: Array,
        senseless: Mapping[str, Array],
        words: WordOrder | None = None,
        unused: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> "Answerability | None":
        """answered: (n, f) float64 features of queries that are; senseless: of each kind that is not. None for too few.

        unused: features that a test must not look at, because its examples of nonsense differ from the answered in how they were
        made: sentences with swapped words have neighbours that no sentence has, and no question about something else would.
        """
        if min(map(len, (answered, *senseless.values()))) < MIN_EXAMPLES:
            return None
        centre = np.round(answered.mean(axis=0), _DIGITS)
        scale = np.maximum(np.round(answered.std(axis=0), _DIGITS), 10.0**-_DIGITS)
        values = (answered - centre) / scale
        tests, thresholds = {}, {}
        for kind, examples in sorted(senseless.items()):
            used = np.array([name not in unused.get(kind, ()) for name in names])
            coefficients = np.zeros(len(names))
            coefficients[used] = np.round(fit_logistic(values[:, used], ((examples - centre) / scale)[:, used])[0], _DIGITS)
            tests[kind] = tuple(coefficients.tolist())
            thresholds[kind] = round(float(np.quantile(values @ coefficients, REFUSED[kind])), _DIGITS)
        return cls(tuple(names), tuple(spaces), tuple(centre.tolist()), tuple(scale.tolist()), tests, thresholds, words)

    def to_json(self) -> dict[str, Any]:
        """JSON values of all but `words`, which are arrays."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "words"}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], words: WordOrder | None) -> "Answerability":
        """What `to_json` gave."""
        lists = {name: tuple(value[name]) for name in ("names", "spaces", "centre", "scale")}
        tests = {kind: tuple(coefficients) for kind, coefficients in value["tests"].items()}
        return cls(**lists, tests=tests, thresholds=dict(value["thresholds"]), words=words)


def fit_logistic(positive: Array, negative: Array) -> tuple[Array, float]:
    """Coefficients (f,) and intercept of a logistic regression with a Gaussian prior, either side weighing the same, by Newton's method.

    positive, negative: (n, f) float64 standardised features of each side.
    """
    design = np.column_stack([np.concatenate([positive, negative]), np.ones(len(positive) + len(negative))])
    truth = np.repeat([1.0, 0.0], [len(positive), len(negative)])
    share = np.where(truth == 1.0, 0.5 / len(positive), 0.5 / len(negative)) * len(truth)
    penalty = np.diag([PRIOR] * positive.shape[1] + [1e-6])
    weights = np.zeros(design.shape[1])
    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(-np.clip(design @ weights, -30.0, 30.0)))
        gradient = design.T @ (share * (truth - p)) - penalty @ weights
        information = (design * (share * p * (1 - p))[:, None]).T @ design + penalty
        step = np.linalg.solve(information, gradient)
        step *= min(1.0, 3.0 / max(float(np.abs(step).max()), 1e-12))  # far from the optimum a full step may overshoot
        weights += step
        if float(np.abs(step).max()) < 1e-10:
            break
    return weights[:-1], float(weights[-1])
