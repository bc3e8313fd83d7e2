"""What a layer is: a builder of per-segment arrays, a reader of them, and a coordinator's side that prepares questions.

Life of a space (a layer with its spec):

1. job:          `build(documents, entries)` gives the arrays of one segment; `statistics` the sums that the whole corpus needs.
2. job, later:   `merge(parts)` joins segments without looking at the text again, dropping deleted rows.
3. shard:        `open(arrays, …)` gives a `Reader` over one segment; `Reader.search` finds, `Reader.score` scores given rows.
4. coordinator:  `collect(statistics of all segments)` once per generation; `prepare(request, statistics)` once per query.

Raw scores are canonical: for one query and one unit the same bits, whatever segment, shard or batch the unit is in. (BM25 adds
terms in one order; vector layers find candidates with fast kernels, widen the cut by the kernel's error, and re-score in
float64.) Spans are byte offsets into the document's rendition. Anything over a few milliseconds checks its budget.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from pydantic import BaseModel, ConfigDict

from shards.documents import Documents, Entries
from shards.endpoint_settings import EndpointSettings, Usage
from shards.examples import Example, Reformulated, Term
from shards.plan import SpaceQuery
from shards.plugins import PROCESS, Plugins
from shards.types import Array, Arrays, Budget, Derived, Found, Scored


class Params(BaseModel):
    """A layer's dials. Frozen; unknown names are refused. Each layer subclasses it with defaults, units and reasons."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True)
class Resources:
    """What a layer may use of the machine: given, never looked up.

    models: folder where downloaded or distilled models are kept. offline: never ask a hub. endpoints: OpenAI-compatible servers by
    the name that specs give them (`shards/endpoint_settings.py`). plugins: what users registered; an engine's own never leaves its process.
    """

    models: Path = field(default_factory=lambda: Path.home() / ".cache" / "sondage" / "models")
    offline: bool = True
    endpoints: Mapping[str, EndpointSettings] = field(default_factory=dict)
    plugins: Plugins = PROCESS


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asked one space: the common text, and this space's own form if given.

    form: e.g. {"pattern": "def \\\\w+", "regex": true} for text, {"glob": "**/*.py"} for names. explicit: the caller named this
    space (then a form it cannot use is an error, not silence). media: what is kept of a document beside its text, by content hash.
    shapes: what the common text looks like (`shards/routing.py`) where spaces were chosen by that, else empty.
    """

    text: str
    form: Mapping[str, Any] = field(default_factory=dict)
    explicit: bool = False
    media: Callable[[bytes], bytes | None] | None = None
    shapes: Set[str] = frozenset()


class Reader(Protocol):
    """One space of one segment, opened for one generation: its live rows are fixed.

    n_units: live units (passages, lines, paths) it speaks for. What arrays it holds beside the mapped ones is found by itself
    (`shards/memory.py`); one whose memory lies elsewhere, in a library's index, tells its bytes as `nbytes`.
    """

    n_units: int

    def search(self, query: SpaceQuery, allowed: Array | None, k: int, budget: Budget, floor: float = -inf) -> Found:
        """The k best rows. allowed: (rows,) bool, the scope; None means all live rows. Dead rows never come back.

        Ties at equal score are broken by row (that is, by content hash). Rows without any match are not found. floor: rows that score
        less may be left out, for k better ones are known; all else that is said is as without it.
        """

    def score(self, query: SpaceQuery, rows: Array, budget: Budget) -> Scored:
        """Scores of the given rows (int32), equal bit for bit to what `search` gives for them."""

    def scan(self, query: SpaceQuery) -> tuple[Array, Array]:
        """Layers with `null = "moments"`: canonical scores of all live units, and each unit's row: (u,) float64, (u,) int32.

        For the probes of the null model; no budget.
        """


@runtime_checkable
class Describing(Protocol):
    """A reader of a derived space, whose units are texts that no source has."""

    def describe(self, query: SpaceQuery, row: int) -> Derived | None:
        """The unit that gives a row its score, as text; None where the row has none."""


@runtime_checkable
class Asking(Protocol):
    """A reader whose rows can ask for what is like them: the probes of a space that sentences cannot be put to."""

    @property
    def rows(self) -> Array:
        """Live rows that can: (m,) int64, ascending."""

    def question_of(self, row: int) -> Any:
        """The payload of a row's question."""


@runtime_checkable
class Placed(Protocol):
    """A reader over documents to which it matters where these lie (a language by extension)."""

    def place(self, places: Callable[[], Iterable[tuple[Entries, Array, Array]]]) -> None:
        """Told when opened for a generation. places: all live entries of its live documents, from whatever segment of the shard:
        entries, their rows (m,) int64, the rows of their documents here (m,) int64. Not to be called before the first query."""


class Layer(ABC):
    """One way of looking. An instance is a space: the layer with its parameters.

    version: raised whenever the same input would give other arrays or scores; part of the space's id.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    # A question may be one for refining alone (`prepare` decides): then `search` finds nothing and says that it looked at all.
    roles: ClassVar[tuple[Literal["generate", "refine"], ...]] = ("generate", "refine")
    origin: ClassVar[Literal["source", "derived"]] = "source"
    granularity: ClassVar[str]  # "path", "line", "passage", …
    over: ClassVar[Literal["documents", "entries"]] = "documents"  # what a row is
    null: ClassVar[Literal["moments", "rarity"]]
    monotone: ClassVar[bool] = True  # whether a higher score is never less surprising
    query_format: ClassVar[str]  # one line, for status
    cost: ClassVar[str]  # one line, for status
    dear: ClassVar[bool] = False  # encoding takes seconds: what is pushed gets this space afterwards, see `shards/push.py`
    narrows: ClassVar[str | None] = None  # the layer whose matches and scores it gives by reading less: of both, one is asked
    shapes: ClassVar[frozenset[str] | None] = None  # of common text that it is asked by itself, see `shards/routing.py`; None: all
    # Whether segments may have it for some documents and get the others later: it keeps encodings by document, and its arrays say by
    # `in_scope`, (rows,) bool, which rows they are built for.
    in_part: ClassVar[bool] = False
    warmed: ClassVar[bool] = True  # whether it may be put a question that nobody asked, so that who asks first waits for no model
    limits: ClassVar[str] = ""  # which documents it is never built for, whoever asks: coverage says so
    written_form: ClassVar[str] = ""  # a form of its own that a chat model can write for a question, as it is told; "": none
    Params: ClassVar[type[Params]] = Params

    def __init__(self, params: Params, resources: Resources):
        self.params = params
        self.resources = resources

    @classmethod
    def dials(cls, space: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters of a space as it was asked for by name, before defaults."""
        return params

    @property
    def given(self) -> tuple[str, int] | None:
        """Of a layer that takes callers' own vectors: the name they are given under, and how many numbers each has."""
        return None

    @property
    def asked_in_words(self) -> bool:
        """Whether sentences are put to it. If not, what probes its null model are its own rows, where its readers are `Asking`."""
        return self.given is None and (self.shapes is None or "prose" in self.shapes)

    @property
    def takes_gpu(self) -> bool:
        """Whether building is faster on a GPU, where there is one: then index jobs build there (`jobs/sizing.py`)."""
        return False

    @property
    def maskable(self) -> bool:
        """Whether some hundred documents more can be built at once: cloze probes ask for that (`shards/cloze.py`)."""
        return True

    @property
    def kept(self) -> str | None:
        """The name that kept encodings lie under where they outlast the space, since others with the same name can use them."""
        return None

    def check(self) -> None:
        """Raises SondageError, with the remedy, where this process could open the space but not build it: told before work begins."""
        return None

    def facts(self, statistics: Any) -> Mapping[str, Any]:
        """What status says of a space beside what it says of all."""
        return {}

    @property
    def media(self) -> tuple[str, ...]:
        """Kinds of documents ("image", "pages") whose files it looks at beside their text: a corpus that has such a space reads them."""
        return ()

    def fingerprint(self) -> str:
        """What the arrays depend on beside layer, version and parameters (a model's content hash); "" if nothing."""
        return ""

    @abstractmethod
    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: "Encodings | None" = None,
        progress: "Progress | None" = None,
    ) -> Arrays:
        """The arrays of one segment.

        scope: (rows,) bool, the rows this space is built for; None means all. Other rows get no units, and readers count them
            as not covered. known: encodings of documents seen before, asked first and told of new ones.
        """

    def merge(
        self, parts: Sequence[tuple[Arrays, Array]], documents: Documents, entries: Entries, held: Sequence[tuple[int, Arrays]] = ()
    ) -> Arrays:
        """The arrays of the segment that joins parts, equal to building it from its documents.

        parts: (arrays of a segment, (rows,) int32 new row of each old row or -1 where it is dropped).
        documents, entries: those of the joined segment. held: (sign, statistics) that add up to those of the rows that are kept;
            empty where that is not known.

        As it stands it builds again, for rows that their arrays call `built`, (rows,) bool: enough where building costs next to nothing.
        """
        built = np.zeros(len(documents if self.over == "documents" else entries), np.bool_)
        for arrays, new_rows in parts:
            built[new_rows[arrays["built"] & (new_rows >= 0)]] = True
        return self.build(documents, entries, built)

    @abstractmethod
    def statistics(self, arrays: Arrays, documents: Documents, entries: Entries, rows: Array | None = None) -> Arrays:
        """This segment's contribution to corpus-wide sums, as small named arrays; always with "n_units", (1,) int64.

        rows: only those rows (int32): what a tombstone has to subtract. None: all rows.
        """

    def recount(self, documents: Documents, entries: Entries) -> Arrays | None:
        """`statistics` of a segment of just these, from their text and paths; of a space for all paths, without encoding.

        None where only the arrays can tell.
        """
        return None

    @abstractmethod
    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> Reader:
        """A reader of one segment. live: (rows,) bool, False where a row is deleted or belongs to another shard."""

    @abstractmethod
    def collect(self, parts: Sequence[tuple[int, Arrays]]) -> Any:
        """The corpus's statistics from (sign, statistics) of every segment (+1) and tombstone set (-1). Has `.n_units`."""

    @abstractmethod
    def prepare(self, request: Request, statistics: Any) -> SpaceQuery | None:
        """The question for the shards; None where this layer has nothing to ask (no words in the query, not a pattern).

        The `space` field is left "" and filled in by the caller. Raises BadQuery for a form that cannot be understood.
        """

    def check_form(self, request: Request) -> None:
        """Raises BadQuery for a form that `prepare` refuses, as far as that shows without a model, a process or the corpus: in about a
        millisecond. So a form is refused by what it says, and not only where there was time to make a question of it.
        """
        return None

    def exhaustive(self, query: SpaceQuery) -> SpaceQuery:
        """The same question, put so that `search` finds what `score` ranks best of all rows: as a rule itself.

        Another one where `search` passes rows over that `score` knows (candidates by an approximation; a question that only refines).
        That one may be slow, and its moments are not asked for; `score` says the same to both.
        """
        return query

    def reformulate(self, query: SpaceQuery | None, examples: Sequence[Example], statistics: Any) -> Reformulated | None:
        """The question, drawn towards texts that the caller chose. query: None where the request's own words ask this layer nothing.

        None where this layer cannot, or where the texts say nothing to it. What comes of it is scored, and its moments are taken, as any
        other question, so its null is its own.
        """
        return None

    def terms_of(self, examples: Sequence[Example], statistics: Any) -> list[Term]:
        """The terms of texts with their background in the corpus, in no order; none where the layer knows no words."""
        return []

    def highlights(self, query: SpaceQuery) -> Sequence[tuple[str, bool, bool]]:
        """Patterns that mark a hit of this space in an excerpt: (text, is a regular expression, ignore case)."""
        return ()

    def surprise(self, query: SpaceQuery, scores: Array) -> Array:
        """Surprise (nats, >= 0) of hits with these raw scores, from `query.log_p`; -inf scores give 0.

        Rarity layers always; a layer with moments only for queries whose `log_p` it set (a phrase): the larger surprise counts.
        """
        raise TypeError(f"layer {self.name} has a null model of moments")


class Encodings(Protocol):
    """Encodings kept by content, so that nothing is encoded twice. One instance is bound to one space id."""

    def get(self, hashes: Array) -> dict[bytes, Array]:
        """Those known, by content hash: e.g. (n_units, dim) float32. hashes: (n, 20) uint8."""

    def put(self, encodings: Mapping[bytes, Array]) -> None:
        """Remember new ones; durable when it returns."""

    def spend(self, usage: Usage) -> None:
        """Told what new ones cost at an endpoint, for the job's report."""


class Progress(Protocol):
    """Told how work goes on; may raise Cancelled."""

    def __call__(self, step: str, done: int, total: int) -> None: ...
