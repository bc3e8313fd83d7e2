"""Passages by the angle between their vector and the question's: what `static` (Model2Vec, here) and `dense` have in common.

Arrays of a segment of n rows and u passages:

vectors: (u, dim) float32 or float16, rows of unit length (zero where the model sees nothing); (0, 0) where u is 0
row_units: (n + 1,) int64, row i has the passages row_units[i] : row_units[i + 1]; starts, ends: (u,) int64, their spans
in_scope: (n,) bool, whether the space was built for the row
mean: (dim,) and scatter: (dim, dim) float64, see `VectorMoments`; empty while u <= dim, when scoring all passages costs no more
    and an edit should write kilobytes
codes, finer_codes: (u, dim / 2) uint8, dim padded to a multiple of 128, gains, errors, finer_gains, finer_errors: (u,) float32, and
    reach: (1,) float64, see `Sketch`; empty where `mean` is, and for less than `LEAST_UNITS` passages; older segments have none
"""

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from shards.documents import Documents, Entries
from shards.encoders import Encoder, StaticEncoder, unit_rows
from shards.endpoint_settings import Usage
from shards.errors import BadQuery
from shards.examples import Example, Reformulated
from shards.layers import contract
from shards.layers.contract import Encodings, Layer, Progress, Request
from shards.layers.joined_units import JoinedUnits, ranges
from shards.layers.keeping import Tell, encodings
from shards.layers.vectors_reader import VectorReader, kernel_rows
from shards.plan import SpaceQuery
from shards.routing import WORDS
from shards.types import Array, Arrays
from shards.units import Units, passages
from shards.vector_moments import VectorMoments
from shards.vector_sketches import sketch_arrays

FEEDBACK_WEIGHT = 1.0  # of the mean of chosen texts beside a question's own vector


NLQL_UNITS = ("sentence", "chunk", "document")  # that need no splitter


class VectorParams(contract.Params):
    """Dials that both kinds share. Lengths in UTF-8 bytes of the rendition.

    unit_bytes, nDCG@10 of whole documents by their best passage; dense in bf16 and, on scifact, over 1,100 of 5,183 documents;
    +-: standard error of the difference to 1000 over queries:

                        1000    750              500
    dense   cranfield   .3745   .3584 +-.0062    .3394 +-.0078
            scifact     .7875   .7967 +-.0092    .8080 +-.0097
    static  cranfield   .2581   .2664 +-.0062    .2557 +-.0093
            scifact     .4256   .4314 +-.0133    .4531 +-.0153

    The collections disagree, so the fewest passages win. Of the standard library, 32 % of passages of 1000 bytes pass MiniLM's
    256 tokens, and dense does not see 6 % of the tokens; of 750 bytes 5 % and 1.5 %.
    """

    unit_bytes: Annotated[int, Field(ge=64, le=1 << 20, description="most bytes of a passage")] = 1000
    overlap_bytes: Annotated[int, Field(ge=0, description="bytes that neighbouring passages share")] = 0
    dim: Annotated[int | None, Field(ge=1, description="first components kept of each vector; for Matryoshka models")] = None
    storage: Annotated[Literal["fp32", "fp16"], Field(description="number format of the stored vectors; fp16: half the bytes")] = "fp32"
    unit: Annotated[
        str, Field(min_length=1, description="passage, sentence or chunk as NLQL cuts them, or a registered splitter's name")
    ] = "passage"

    _since: ClassVar[tuple[str, ...]] = ("storage", "unit")  # dials that came after the first indexes

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Later dials are left out at their default, so that the ids of older spaces stay and their encodings are used on."""
        fields = type(self).model_fields
        return {name: value for name, value in dump(self).items() if name not in self._since or value != fields[name].default}


@dataclass(frozen=True, slots=True)
class VectorStatistics:
    """n_units: passages of the corpus."""

    n_units: int


class VectorLayer(Layer):
    """What all layers of vectors share: everything but where these come from."""

    granularity = "passage"
    null = "moments"
    shapes = WORDS
    query_format = 'text, or {"vector": [numbers]}'
    hasty = False  # whether `build` leaves out what merging adds: see `vector_arrays`

    @property
    @abstractmethod
    def dim(self) -> int:
        """How many numbers a vector has."""

    @property
    def stored(self) -> np.dtype:
        """The number format of vectors in a segment."""
        return np.dtype(np.float32)

    @abstractmethod
    def asked(self, text: str) -> tuple[str, Array] | None:
        """A text as it was read, for people, and its vector; None where the space cannot be asked in words."""

    # --- building ------------------------------------------------------------------------------------------------------------

    def merge(
        self, parts: Sequence[tuple[Arrays, Array]], documents: Documents, entries: Entries, held: Sequence[tuple[int, Arrays]] = ()
    ) -> Arrays:
        """As in the contract. Moments and sketches are made of the joined vectors: 8 us each, and equal to a rebuild's bit for bit."""
        joined = JoinedUnits(parts, len(documents))
        dim = max((move.arrays["vectors"].shape[1] for move in joined.moves), default=0)
        vectors = np.empty((joined.n_units, dim), self.stored)
        for arrays, sources, targets in joined.moves:
            vectors[targets] = arrays["vectors"][sources]
        return vector_arrays(vectors, joined.row_units, joined.starts, joined.ends, joined.in_scope)

    # --- serving -------------------------------------------------------------------------------------------------------------

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> VectorReader:
        return VectorReader(arrays, live)

    def statistics(self, arrays: Arrays, documents: Documents, entries: Entries, rows: Array | None = None) -> Arrays:
        counts = np.diff(arrays["row_units"])
        return {"n_units": np.array([counts.sum() if rows is None else counts[rows].sum()], np.int64)}

    def collect(self, parts: Sequence[tuple[int, Arrays]]) -> VectorStatistics:
        return VectorStatistics(sum(sign * int(part["n_units"][0]) for sign, part in parts))

    def check_form(self, request: Request) -> None:
        if request.form and request.explicit and "vector" not in request.form:
            raise BadQuery(f"Layer {self.name!r} cannot use {', '.join(sorted(request.form))}. It takes {self.query_format}.")

    def prepare(self, request: Request, statistics: VectorStatistics) -> SpaceQuery | None:
        if "vector" in request.form:
            vector = self._given(request.form)
            return SpaceQuery("", f"a vector of {len(vector)} numbers", vector)
        self.check_form(request)
        if not request.text.strip():
            return None
        asked = self.asked(request.text)
        return SpaceQuery("", *asked, model=self.question_model) if asked is not None and asked[1].any() else None

    @property
    def question_model(self) -> str:
        """The model that turns a question's text into a vector; "" where none does."""
        return ""

    def _given(self, form: Mapping[str, object]) -> Array:
        """The caller's own vector, checked and scaled."""
        numbers = form["vector"]
        if len(form) > 1:
            raise BadQuery(f"Layer {self.name!r} takes a vector alone, without {', '.join(sorted(set(form) - {'vector'}))}.")
        if not isinstance(numbers, list | tuple) or not all(type(x) in (int, float) and abs(x) < 1e100 for x in numbers):
            raise BadQuery(f"Layer {self.name!r}: vector must be a list of numbers, each between -1e100 and 1e100.")
        if len(numbers) != self.dim:
            raise BadQuery(f"Layer {self.name!r}: vector has {len(numbers)} numbers; this space has {self.dim} dimensions.")
        vector = self.scaled(np.array([numbers], np.float64))[0]
        if not vector.any():
            raise BadQuery(f"Layer {self.name!r}: vector has no direction, since all its numbers are 0.")
        return vector

    def scaled(self, vectors: Array) -> Array:
        """Vectors as they are compared here, (n, dim): of unit length."""
        return unit_rows(vectors)


class EncodedLayer(VectorLayer):
    """A layer that encodes every unit of text, so that the text alone says how many vectors there are.

    portion_units: passages until encodings are written for the first time (`shards.layers.keeping`). clock: seconds, for what follows.
    """

    in_part = True
    portion_units: ClassVar[int]
    clock: Callable[[], float] = staticmethod(time.monotonic)
    params: VectorParams

    @property
    @abstractmethod
    def encoder(self) -> Encoder:
        """What turns texts into vectors; loads nothing before it is asked to encode."""

    def fingerprint(self) -> str:
        own = self._is_cut_by_nlql and self.resources.plugins.splitters.find(self.params.unit) is not None
        return self.encoder.fingerprint() + (f" {self.params.unit} by a registered splitter" if own else "")

    @property
    def dim(self) -> int:
        return self.encoder.dim

    @property
    def stored(self) -> np.dtype:
        return np.dtype(np.float16 if self.params.storage == "fp16" else np.float32)

    @property
    def granularity(self) -> str:
        return self.params.unit

    def check(self) -> None:
        super().check()
        if self._is_cut_by_nlql and self.params.unit not in NLQL_UNITS:
            self.resources.plugins.splitters.get(self.params.unit)

    def asked(self, text: str) -> tuple[str, Array] | None:
        return self._encoded(text)

    @property
    def _is_cut_by_nlql(self) -> bool:
        return isinstance(self.params, VectorParams) and self.params.unit != "passage"

    def units(self, documents: Documents, scope: Array | None) -> Units:
        """What documents are cut into. scope: (rows,) bool, those to cut; None means all."""
        if self._is_cut_by_nlql:
            from shards.nlql.units import cut

            return cut(documents, self.params.unit, scope, self.resources.plugins)
        return passages(documents, self.params.unit_bytes, self.params.overlap_bytes, scope)

    def texts(self, documents: Documents, rows: Array, starts: Array, ends: Array) -> list[str]:
        """The text of units, as it is encoded: spans [start, end) of the renditions of these rows."""
        if self._is_cut_by_nlql:
            from shards.nlql.units import texts

            return texts(documents, self.params.unit, rows, starts, ends)
        spans = zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
        return [bytes(documents.content(row)[start:end]).decode("utf-8", "replace") for row, start, end in spans]

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: Encodings | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        units = self.units(documents, scope)
        row_units = units.of_rows(len(documents))
        vectors = np.zeros((0, 0), self.stored)
        for rows, pieces in self._encodings(documents, units.starts, units.ends, row_units, known, progress):
            if len(pieces) == len(units.rows):  # those of all units, which are in this order
                vectors = pieces.astype(self.stored, copy=False)
                continue
            if not len(vectors):
                vectors = np.empty((len(units.rows), pieces.shape[1]), self.stored)
            vectors[ranges(row_units[rows], row_units[rows + 1])] = pieces
        in_scope = np.ones(len(documents), bool) if scope is None else np.asarray(scope, bool)
        spans = (units.starts.astype(np.int64), units.ends.astype(np.int64))
        return vector_arrays(vectors, row_units, *spans, in_scope, self.hasty)

    def _encodings(
        self,
        documents: Documents,
        starts: Array,
        ends: Array,
        row_units: Array,
        known: Encodings | None,
        progress: Progress | None,
    ) -> Iterator[tuple[Array, Array]]:
        """Yields (rows, the vectors of their passages) until every row with passages had its turn; new ones are kept first."""
        counts = np.diff(row_units)

        def encode(rows: Array, tell: Tell | None) -> Sequence[Array]:
            vectors = self.encoded(documents, rows, starts, ends, row_units, tell).astype(self.stored, copy=False)
            return np.split(vectors, np.cumsum(counts[rows])[:-1])

        def fits(vectors: Array, n_units: int) -> bool:
            return len(vectors) == n_units

        for rows, vectors in encodings(documents, row_units, known, progress, encode, fits, self.portion_units, self.clock):
            if known is not None and (usage := self.spent()) is not None:
                known.spend(usage)
            yield rows, np.concatenate(vectors)

    def encoded(
        self, documents: Documents, rows: Array, starts: Array, ends: Array, row_units: Array, tell: Callable[[int], None] | None
    ) -> Array:
        """The vectors of all units of these rows, in order: (n, dim) float32. tell: how many are done."""
        units = ranges(row_units[rows], row_units[rows + 1])
        of = np.repeat(rows, row_units[rows + 1] - row_units[rows])
        return self.encoder.encode_documents(self.texts(documents, of, starts[units], ends[units]), tell)

    def spent(self) -> Usage | None:
        """What encoding has asked of an endpoint since this was asked last; None: it asks none."""
        return None

    def recount(self, documents: Documents, entries: Entries) -> Arrays:
        return {"n_units": np.array([len(self.units(documents, None).rows)], np.int64)}

    def reformulate(self, query: SpaceQuery | None, examples: Sequence[Example], statistics: VectorStatistics) -> Reformulated | None:
        """The question's vector plus `FEEDBACK_WEIGHT` times the mean of those of the texts, which are read as documents are.

        Rocchio 1971, "Relevance feedback in information retrieval", for vectors of unit length as in Li et al. 2021 (arXiv:2108.11044): a
        mean of texts that have little in common is short, and says less. The question keeps its own length.
        """
        vectors = self.encoder.encode_documents([example.text for example in examples])
        centre = vectors[vectors.any(axis=1)].astype(np.float64)
        if not len(centre):
            return None
        lengths = np.linalg.norm(centre, axis=1, keepdims=True)
        mean = (centre / lengths).mean(axis=0)
        if query is None:
            length, own = float(lengths.mean()), np.zeros_like(mean)
        else:
            own = np.asarray(query.payload, np.float64)
            length = float(np.linalg.norm(own))
            own = own / length
        moved = own + FEEDBACK_WEIGHT * mean
        if not (size := float(np.linalg.norm(moved))):
            return None
        told = f"{len(centre)} chosen texts drew the vector by {FEEDBACK_WEIGHT:g} of their mean"
        vector = (moved * (length / size)).astype(np.float32)
        before = SpaceQuery("", "", vector, model=self.question_model) if query is None else query
        asked = ", and ".join(filter(None, [before.asked, told]))
        return Reformulated(replace(before, asked=asked, payload=vector, feedback=told))

    @cached_property
    def _encoded(self) -> Callable[[str], tuple[str, Array]]:
        """A text as it was read, for people, and its vector."""

        @lru_cache(maxsize=1024)  # questions come in pairs: pages, refined filters, several corpora
        def encode(text: str) -> tuple[str, Array]:
            read = self.encoder.reads(text)
            asked = text if read == text else f"{read} […: the model reads no further]"
            return asked, self.encoder.encode_queries([read])[0]

        return encode


class Static(EncodedLayer):
    """Passages by the mean of their token vectors: word meaning without word order, at the speed of word counting."""

    name = "static"
    cost = "encodes 12 MB/s a core; 1.3 kB a passage; 1 ms for 100,000 passages"
    portion_units = 20_000  # about two seconds of work

    class Params(VectorParams):
        model: Annotated[str, Field(description="minilm-256, a folder, or a name on the Hugging Face hub")] = "minilm-256"
        document_prompt: Annotated[str, Field(description="put before each passage")] = ""
        query_prompt: Annotated[str, Field(description="put before each question")] = ""

    @cached_property
    def encoder(self) -> Encoder:
        p = self.params
        return StaticEncoder(
            p.model, self.resources, document_prompt=p.document_prompt, query_prompt=p.query_prompt, dim=p.dim
        )  # fmt: skip

    @property
    def question_model(self) -> str:
        return self.params.model


def vector_arrays(vectors: Array, row_units: Array, starts: Array, ends: Array, in_scope: Array, hasty: bool = False) -> Arrays:
    """The arrays of a segment. hasty: without moments and sketches, which take 12 us a vector; readers score every vector then."""
    arrays = {"vectors": vectors, "row_units": row_units, "starts": starts, "ends": ends, "in_scope": in_scope}
    n_units, dim = vectors.shape
    mean, scatter = np.zeros(0), np.zeros((0, 0))
    if n_units > dim and not hasty:
        moments = VectorMoments.of(vectors)
        mean, scatter = moments.mean, moments.scatter
    return arrays | {"mean": mean, "scatter": scatter} | sketch_arrays(kernel_rows(vectors), mean)
