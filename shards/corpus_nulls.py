"""All null models of a corpus, of one version, and the file that they are kept in."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shards import arrays as array_files
from shards.answerability import Answerability
from shards.cascades import Recall
from shards.nulls import FusedNull, SpaceNull
from shards.probes import count_words
from shards.sentence_likeness import SentenceLikeness
from shards.word_order import WordOrder

# 1: JSON alone, without what tells nonsense. 2: an array file. 3: with `selections`. 4: with `likeness`, and `sentence` in `fused`. 5: the
# `mean` of `fused` has up to four terms, and there may be `recalls`.
FORMAT = 5
NO_HOME = {"home_maxima": [], "home_words": []}  # format 1 had raw scores there


@dataclass(frozen=True, slots=True)
class Selection:
    """Some of the similarity spaces by themselves: as a query names them, or the failure of others leaves them.

    weights: what each counts among these, the largest 1; without those that none was learnt of. fused: the null of their sum.
    """

    weights: Mapping[str, float]
    fused: FusedNull | None


@dataclass(frozen=True, slots=True)
class CorpusNulls:
    """The null models of a corpus, of one version; travels with a generation.

    spaces: by name; a space without enough units is absent. fused: None where there were too few queries without an answer;
    fused_of_sources: the same of what spaces of the source alone give, where there are derived ones, else None.
    weights: what a similarity space's surprise counts (`shards.weights`), the largest 1; empty where nothing was learnt, and then
    the spaces' known-item gates count. cloze: mean reciprocal rank of cloze probes in each space, for people. answerability: what
    tells questions from nonsense, None where too few probes were asked. selections: by sorted names, what holds where not all similarity
    spaces take part. likeness: how much like sentences queries are, None where that was not learnt. recalls: by sorted names of spaces that
    cloze probes tried, how deep these put what is sought; empty in files written before there were any.
    """

    version: int
    spaces: Mapping[str, SpaceNull]
    fused: FusedNull | None
    n_docs: int
    weights: Mapping[str, float] = field(default_factory=dict)
    cloze: Mapping[str, float] = field(default_factory=dict)
    answerability: Answerability | None = None
    fused_of_sources: FusedNull | None = None
    selections: Mapping[tuple[str, ...], Selection] = field(default_factory=dict)
    likeness: SentenceLikeness | None = None
    recalls: Mapping[tuple[str, ...], Recall] = field(default_factory=dict)

    def likeness_of(self, text: str) -> float:
        """How much like a sentence a query is, 0 to 1, by which the nulls of fused evidence go; 0 where that was not learnt."""
        words = None if self.answerability is None else self.answerability.words
        return 0.0 if self.likeness is None or words is None else self.likeness.of(words.look(text), count_words(text))

    def weights_among(self, spaces: Collection[str]) -> dict[str, float]:
        """What each of these similarity spaces counts beside the others of them, before the query is looked at.

        Learnt for these very spaces where that could be, for all spaces of the corpus otherwise; else its known-item gate.
        """
        chosen = self.selections.get(tuple(sorted(spaces)))
        learnt = self.weights if chosen is None else chosen.weights
        return {name: learnt.get(name, self.spaces[name].gate if name in self.spaces else 1.0) for name in spaces}

    def fused_among(self, spaces: Collection[str]) -> FusedNull | None:
        """The null of what exactly these similarity spaces give together, by `weights_among`; None where none was fitted."""
        if self.fused is not None and set(spaces) == set(self.fused.spaces):
            return self.fused
        chosen = self.selections.get(tuple(sorted(spaces)))
        return None if chosen is None else chosen.fused

    def recall_among(self, spaces: Collection[str]) -> Recall | None:
        """How deep these similarity spaces together put what is sought, as far as they were tried: those that were not (derived ones,
        images) are taken to add nothing. None where none was, or where nothing was learnt."""
        tried = {name for some in self.recalls for name in some}
        return self.recalls.get(tuple(sorted(tried.intersection(spaces))))

    def to_bytes(self) -> bytes:
        """One array file: what is counted of words as arrays, the rest as JSON in its metadata."""
        fused = None if self.fused is None else asdict(self.fused)
        of_sources = {} if self.fused_of_sources is None else {"fused_of_sources": asdict(self.fused_of_sources)}
        spaces = {name: self.spaces[name].to_json() for name in sorted(self.spaces)}
        learnt = self.answerability
        selections = [
            {
                "spaces": names,
                "weights": dict(sorted(chosen.weights.items())),
                "fused": None if chosen.fused is None else asdict(chosen.fused),
            }
            for names, chosen in sorted(self.selections.items())
        ]
        value = {
            "format": FORMAT,
            "version": self.version,
            "n_docs": self.n_docs,
            "fused": fused,
            "spaces": spaces,
            "weights": dict(sorted(self.weights.items())),
            "cloze": dict(sorted(self.cloze.items())),
            "answerability": None if learnt is None else learnt.to_json(),
            **of_sources,
            "selections": selections,
            "likeness": None if self.likeness is None else self.likeness.to_json(),
            "recalls": [{"spaces": names, **recall.to_json()} for names, recall in sorted(self.recalls.items())],
        }
        words = learnt.words.to_arrays() if learnt is not None and learnt.words is not None else {}
        return array_files.dump(words, {"nulls": json.dumps(value, sort_keys=True, allow_nan=False)})

    @classmethod
    def from_bytes(cls, data: bytes, what: str = "null models") -> "CorpusNulls":
        """What `to_bytes` gave, to the bit; format 1, which was JSON alone, without what told nonsense.

        what: names the file in errors. Raises Corrupt, and ValueError for a format that this build cannot read.
        """
        old = data.startswith(b"{")
        words, metadata = ({}, {"nulls": data.decode()}) if old else array_files.parse(data, what)
        value = json.loads(metadata["nulls"])
        if value.get("format") not in ((1,) if old else (2, 3, 4, FORMAT)):
            raise ValueError(f"Null models have format {value.get('format')!r}; this build reads 1 to {FORMAT}. Refit them.")
        fused, learnt = value["fused"], None if old else value["answerability"]
        return cls(
            value["version"],
            {name: SpaceNull.from_json(space | NO_HOME if old else space) for name, space in value["spaces"].items()},
            None if fused is None else _fused_null(fused),
            value["n_docs"],
            value.get("weights", {}),
            value.get("cloze", {}),
            None if learnt is None else Answerability.from_json(learnt, WordOrder.from_arrays(words) if words else None),
            _fused_null(of_sources) if (of_sources := value.get("fused_of_sources")) else None,
            {tuple(one["spaces"]): _selection(one) for one in value.get("selections", ())},
            SentenceLikeness.from_json(likeness) if (likeness := value.get("likeness")) else None,
            {tuple(one["spaces"]): Recall.from_json(one) for one in value.get("recalls", ())},
        )


def _selection(value: Mapping[str, Any]) -> Selection:
    return Selection(value["weights"], None if value["fused"] is None else _fused_null(value["fused"]))


def _fused_null(value: Mapping[str, Any]) -> FusedNull:
    """From JSON; in format 1 there were only mu and beta, the same for all lengths."""
    lists = {"mean": (0.0,), "log_scale": (0.0,), "max_words": 1} | dict(value)
    return FusedNull(**{name: tuple(item) if isinstance(item, list) else item for name, item in lists.items()})
