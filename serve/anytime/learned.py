"""What this coordinator has seen of each space: what its questions take, and what they change. Learned from searches, kept in memory.

Nothing of queries or documents is kept: a few numbers for each space of a corpus, of which old ones count less and less.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from shards.types import Array, LayerStatus

SHARE = 0.05  # of a mean that the newest value makes: those of the last 20 searches count most
LAST, UPPER, LOWER = 32, 0.9, 0.25  # values of which is remembered what so large a share of them does not exceed
MOST_CORPORA = 256  # of which something is remembered, those asked last
FEW_HITS = 20  # of an answer: what more of them take is learned for each
FIRST = 10  # hits of which is asked how many would be others
LEARNT_AFTER = 8  # searches after which what a space changes is known rather than supposed
DOUBT = 0.97  # of a cost that a space was left out for, what remains of it each time: none is left out for good, by one slow moment


@dataclass(slots=True)
class Usual:
    """The mean of values, the latest counting most, of the first few all alike; and the last ones themselves."""

    mean: float = 0.0
    n: int = 0
    last: deque[float] = field(default_factory=lambda: deque(maxlen=LAST))

    def add(self, value: float) -> None:
        """One more value."""
        self.n += 1
        self.mean += max(SHARE, 1.0 / self.n) * (value - self.mean)
        self.last.append(value)

    @property
    def upper(self) -> float:
        """What one value in ten exceeds; of few values not the largest, which may have been a slow moment of the machine."""
        return self._quantile(UPPER)

    @property
    def lower(self) -> float:
        """What three values in four exceed."""
        return self._quantile(LOWER)

    def _quantile(self, share: float) -> float:
        return sorted(self.last)[int(share * (len(self.last) - 1))] if self.last else self.mean


@dataclass(slots=True)
class OfSpace:
    """prepare_s: to make a question; search_s: to look for its documents, of the slowest host; change: the share of the first hits that
    would be others without the space. left_out: searches that did not begin it for what it takes, since that was measured last: who does
    not ask learns nothing, so that is believed less and less."""

    prepare_s: Usual = field(default_factory=Usual)
    search_s: Usual = field(default_factory=Usual)
    change: Usual = field(default_factory=Usual)
    left_out: int = 0

    @property
    def doubt(self) -> float:
        """What is to be believed of its costs, 0 to 1."""
        return DOUBT**self.left_out

    def searched(self, seconds: float) -> None:
        """It was searched."""
        self.search_s.add(seconds)
        self.left_out = 0


@dataclass(slots=True)
class OfCorpus:
    """spaces: by name. round_s: what a round takes beside its searches; answer_s: what comes after the last one, where there are few hits;
    hit_s: of many, for each."""

    spaces: dict[str, OfSpace] = field(default_factory=dict)
    round_s: Usual = field(default_factory=Usual)
    answer_s: Usual = field(default_factory=Usual)
    hit_s: Usual = field(default_factory=Usual)

    def answered(self, seconds: float, n_hits: int) -> None:
        """So long it took from the last round to an answer with so many hits."""
        if n_hits <= FEW_HITS:
            self.answer_s.add(seconds)
        else:
            self.hit_s.add(seconds / n_hits)

    def answering_s(self, k: int) -> float:
        """What it will hardly take longer than, for k hits."""
        return max(self.answer_s.upper, k * self.hit_s.upper if k > FEW_HITS else 0.0)

    def of(self, space: str) -> OfSpace:
        """What is known of a space."""
        return self.spaces.setdefault(space, OfSpace())


class Learned:
    """By corpus. For one event loop."""

    def __init__(self) -> None:
        self._corpora: OrderedDict[str, OfCorpus] = OrderedDict()

    def knows(self, corpus: str) -> bool:
        """Whether anything was seen of a corpus."""
        return corpus in self._corpora

    def of(self, corpus: str) -> OfCorpus:
        """What is known of a corpus; the ones that nobody has asked for longest are forgotten."""
        found = self._corpora.setdefault(corpus, OfCorpus())
        self._corpora.move_to_end(corpus)
        while len(self._corpora) > MOST_CORPORA:
            self._corpora.popitem(last=False)
        return found


def searched(corpus: OfCorpus, asked: Iterable[str], status: Sequence[LayerStatus], took_s: float, n_hosts: int) -> None:
    """Learn from a round: asked: its spaces; took_s: from sending it until all answers were there.

    Hosts work side by side and tell seconds by shard, so a space takes about its seconds divided by the hosts that answered. What
    was cut off took longer than it says, and nobody knows how long: it counts as twice that.
    """
    total = 0.0
    for space in asked:
        own = [s for s in status if s.space == space]
        seconds = sum(s.seconds for s in own) / max(n_hosts, 1)
        total += seconds + sum(s.on_the_fly_s for s in own) / max(n_hosts, 1)  # what is optional is no cost of the space
        if any(s.state == "late" for s in own):
            if seconds:
                corpus.of(space).searched(2.0 * seconds)
        elif own and all(s.state in ("ready", "scoped", "building", "absent") for s in own):
            corpus.of(space).searched(seconds)
    if all(s.state != "late" for s in status):
        corpus.round_s.add(max(took_s - total, 0.0))


def changes(surprises: Array, weights: Array, generated: Array, k: int = FIRST) -> Array:
    """The share of the first k documents that are others, or none, without each space: (s,) float64.

    surprises: (n, s) nats; weights: (s,); generated: (n, s) bool, whose list brought a document: without that space it would not be there.
    """
    n, s = surprises.shape
    if not n:
        return np.zeros(s)
    shares = surprises * weights
    fused = shares.sum(axis=1)
    k = min(k, int(np.count_nonzero(fused > 0)))
    if not k:
        return np.zeros(s)
    first = np.argsort(-fused, kind="stable")[:k]
    lists = generated.sum(axis=1)
    changed = np.zeros(s)
    for j in range(s):
        left = np.where(lists - generated[:, j] > 0, fused - shares[:, j], -1.0)
        without = np.argsort(-left, kind="stable")[:k]
        changed[j] = 1.0 - len(np.intersect1d(first, without[left[without] > 0], assume_unique=True)) / k
    return changed


def gains(corpus: OfCorpus, spaces: Sequence[str], trust: Mapping[str, float]) -> dict[str, float]:
    """The share of the first hits that each space may change: as learnt; before that, its part of what all count together.

    trust: what each counts before the query is looked at (`CorpusNulls.weights_among`, 1 for spaces of matches).
    """
    together = sum(trust.values()) or 1.0
    found = {}
    for name in spaces:
        seen = corpus.of(name).change
        supposed = trust.get(name, 1.0) / together
        known = min(seen.n / LEARNT_AFTER, 1.0)
        found[name] = known * seen.mean + (1.0 - known) * supposed
    return found
