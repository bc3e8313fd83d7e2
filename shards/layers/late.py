"""Passages by late interaction: for each token of a question its nearest token in the passage, summed (ColBERT).

Score: sum over the question's tokens of the largest inner product with one of the passage's (Khattab & Zaharia 2020, arXiv
2004.12832, 3.3), as PyLate's `rank.rerank` gives it. `SpaceQuery.most` is the number of the question's tokens, so that what null
models compare across questions is the mean of the maxima (EVIDENCE's maxsim).

Of a corpus of up to 4,096 passages all are scored, and moments are exact. Beyond, a search scores about 2,000 passages: those whose
fixed-dimensional encoding (`shards.late_candidates`) reaches a cut that holds for the whole corpus; with a filter about 8,000 minus
what it leaves out. Of scifact's 10,033 passages by MiniLM these were 2,088 on average (1,345 to 2,706), with .988 of the 10 best
documents and .944 of the 100 best; a smaller share of a larger corpus will hold fewer. Moments then come from 1,024 to 2,048
passages, chosen by their content. Candidates of other layers are always scored exactly.

nDCG@10 of whole documents on scifact, 300 questions, all-MiniLM-L6-v2: dense .667; late over dense's 100 best .722, over all .725, over
its own candidates .724.

Arrays of a segment of n rows, u passages and t tokens:

tokens: (t, dim) float16 or int8, each token's vector; scales: (t,) float32 by which int8 is multiplied, else empty
unit_tokens: (u + 1,) int64, passage i has the tokens unit_tokens[i] : unit_tokens[i + 1], at least one
row_units: (n + 1,) int64, row i has the passages row_units[i] : row_units[i + 1]; starts, ends: (u,) int64, their spans
in_scope: (n,) bool, whether the space was built for the row
fde: (u, fde_dim) int8 and fde_scales: (u,) float32, the fixed-dimensional encodings
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from shards import late_candidates
from shards.documents import Documents, Entries
from shards.errors import BadQuery
from shards.late_candidates import EncodingSpec, Sample
from shards.late_encoder import LateEncoder
from shards.late_models import document_tokens
from shards.late_tokens import Tokens
from shards.layers import contract
from shards.layers.contract import Encodings, Layer, Progress, Request
from shards.layers.joined_units import JoinedUnits, ranges
from shards.layers.keeping import Tell, encodings
from shards.layers.late_reader import LateQuestion, LateReader
from shards.plan import SpaceQuery
from shards.routing import WORDS
from shards.types import Array, Arrays
from shards.units import Units

EXACT_UNITS = 4_096  # passages of a corpus of which every one is scored: 100 to 150 ms
_MOMENTS_UNITS = 2_048  # of a larger one, at most so many give the moments: an sd is then known to 2 % (KERNELS.md, 3)
_FIRST_PORTION = 256  # passages until encodings are written for the first time: about ten seconds of work
_MOST_TOKENS = 256  # of a question in vectors
_BYTES_PER_TOKEN = 3.5  # of English prose and of code, about: so that a model's window holds a passage


@dataclass(frozen=True, slots=True)
class LateStatistics:
    """n_units: passages of the corpus. sample: of a large one, from which cuts are made."""

    n_units: int
    sample: Sample | None = None


class Late(Layer):
    """Passages by the nearest of their tokens to each of the question's."""

    name = "late"
    shapes = WORDS
    granularity = "passage"
    null = "moments"
    query_format = 'text, or {"vectors": [[numbers], …]}, one list for each token'
    cost = (
        "encodes as dense; 256 bytes a token (int8: 132), 40 kB a passage; 3 ms for 100 passages of 128 tokens; above 4,096 passages "
        "recall@10 .99, @100 .94 at 10,000"
    )
    dear = True
    in_part = True

    class Params(contract.Params):
        """Lengths in UTF-8 bytes of the rendition, or in the model's tokens."""

        model: Annotated[str, Field(description="minilm, a folder, or a name on the Hugging Face hub; ColBERT or not")] = "minilm"
        unit_bytes: Annotated[
            int | None, Field(ge=64, le=1 << 20, description="most bytes of a passage; null: 1000, or what a ColBERT's window holds")
        ] = None
        overlap_bytes: Annotated[int, Field(ge=0, description="bytes that neighbouring passages share")] = 0
        dim: Annotated[
            int | None, Field(ge=1, description="numbers of each vector; null: the model's own, 128 of one without a ColBERT head")
        ] = None
        storage: Annotated[Literal["fp16", "int8"], Field(description="of a vector: 16 bits a number, or 8 and a scale")] = "fp16"
        skip: Annotated[
            Literal["model", "stopwords", "none"],
            Field(description="tokens of documents left out: those the model's settings name, else punctuation; and stop words"),
        ] = "model"
        prune: Annotated[float, Field(ge=0, lt=1, description="share of a passage's tokens left out: those of the shortest vectors")] = 0.0
        pool: Annotated[int, Field(ge=1, le=16, description="like tokens of a passage are averaged, to one in so many")] = 1
        document_tokens: Annotated[int | None, Field(description="most tokens read of a passage; null: as the model says")] = None
        query_tokens: Annotated[int | None, Field(description="most tokens read of a question; null: as the model says, else 64")] = None
        document_prompt: Annotated[str | None, Field(description="put before each passage; null: the model's own")] = None
        query_prompt: Annotated[str | None, Field(description="put before each question; null: the model's own")] = None
        dtype: Annotated[Literal["fp32", "bf16"], Field(description="number format of the model while encoding")] = "fp32"
        fde_repetitions: Annotated[int, Field(ge=1, le=64, description="partitions of space in a fixed-dimensional encoding")] = 16
        fde_planes: Annotated[int, Field(ge=0, le=8, description="planes that cut each of them into 2^n cells")] = 4
        fde_cell_dim: Annotated[int, Field(ge=1, le=128, description="numbers for each cell")] = 8
        fde_seed: Annotated[int, Field(ge=0, le=1 << 31, description="of planes and projections")] = 0

    params: "Late.Params"

    @property
    def takes_gpu(self) -> bool:
        return True

    @cached_property
    def encoder(self) -> LateEncoder:
        p = self.params
        return LateEncoder(
            p.model, self.resources, dim=p.dim, skip=p.skip, prune=p.prune, pool=p.pool, document_tokens=p.document_tokens,
            query_tokens=p.query_tokens, document_prompt=p.document_prompt, query_prompt=p.query_prompt, dtype=p.dtype,
        )  # fmt: skip

    @cached_property
    def encoding_spec(self) -> EncodingSpec:
        p = self.params
        return EncodingSpec(p.fde_repetitions, p.fde_planes, p.fde_cell_dim, p.fde_seed)

    def fingerprint(self) -> str:
        return self.encoder.fingerprint()

    @cached_property
    def unit_bytes(self) -> int:
        if self.params.unit_bytes is not None:
            return self.params.unit_bytes
        read = self.params.document_tokens or document_tokens(self.encoder.folder)
        return 1000 if read is None else max(min(1000, int(read * _BYTES_PER_TOKEN)), 64)

    def _passages(self, documents: Documents, scope: Array | None) -> Units:
        from shards.units import passages

        return passages(documents, self.unit_bytes, self.params.overlap_bytes, scope)

    # --- building ------------------------------------------------------------------------------------------------------------

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: Encodings | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        units = self._passages(documents, scope)
        row_units = units.of_rows(len(documents))
        storage = self.params.storage

        def encode(rows: Array, tell: Tell | None) -> list[Array]:
            counts = np.diff(row_units)[rows]
            vectors = self.encoder.encode_documents(self._pieces(documents, units, row_units, rows), tell)
            return [Tokens.of(vectors[end - n : end], storage).rows() for n, end in zip(counts, np.cumsum(counts), strict=True)]

        placed = []
        found = encodings(documents, row_units, known, progress, encode, lambda kept, n: Tokens.n_passages(kept) == n, _FIRST_PORTION)
        for rows, kept in found:
            part = Tokens.joined([Tokens.of_rows(piece, storage) for piece in kept])
            placed.append((ranges(row_units[rows], row_units[rows + 1]), part, np.arange(len(part.counts))))
        tokens = _arranged(placed, len(units.rows), self._none)
        in_scope = np.ones(len(documents), bool) if scope is None else np.asarray(scope, bool)
        fde, fde_scales = late_candidates.of_passages(tokens, self.encoding_spec) if len(units.rows) else self._no_fde
        return self._arrays(tokens, row_units, units.starts.astype(np.int64), units.ends.astype(np.int64), in_scope, fde, fde_scales)

    def _pieces(self, documents: Documents, units: Units, row_units: Array, rows: Array) -> list[Any]:
        """What the encoder is given of each passage of these rows: its text."""
        return [
            bytes(documents.content(row)[units.starts[unit] : units.ends[unit]]).decode("utf-8", "replace")
            for row in rows.tolist()
            for unit in range(row_units[row], row_units[row + 1])
        ]

    def merge(
        self, parts: Sequence[tuple[Arrays, Array]], documents: Documents, entries: Entries, held: Sequence[tuple[int, Arrays]] = ()
    ) -> Arrays:
        """As in the contract: rows are copied, with the encodings made of them."""
        joined = JoinedUnits(parts, len(documents))
        n_units = joined.n_units
        fde, fde_scales = self._no_fde
        if n_units:
            fde, fde_scales = np.empty((n_units, self.encoding_spec.dim), np.int8), np.empty(n_units, np.float32)
        pieces = []
        for arrays, sources, targets in joined.moves:
            fde[targets], fde_scales[targets] = arrays["fde"][sources], arrays["fde_scales"][sources]
            pieces.append((targets, Tokens(arrays["tokens"], arrays["scales"], np.diff(arrays["unit_tokens"])), sources))
        tokens = _arranged(pieces, n_units, self._none)
        return self._arrays(tokens, joined.row_units, joined.starts, joined.ends, joined.in_scope, fde, fde_scales)

    @property
    def _none(self) -> Tokens:
        """The tokens of no passage."""
        return Tokens.of([], self.params.storage)

    @property
    def _no_fde(self) -> tuple[Array, Array]:
        return np.zeros((0, 0), np.int8), np.zeros(0, np.float32)

    def _arrays(
        self, tokens: Tokens, row_units: Array, starts: Array, ends: Array, in_scope: Array, fde: Array, fde_scales: Array
    ) -> Arrays:
        return {
            "tokens": tokens.codes, "scales": tokens.scales, "unit_tokens": tokens.offsets, "row_units": row_units,
            "starts": starts, "ends": ends, "in_scope": in_scope, "fde": fde, "fde_scales": fde_scales,
        }  # fmt: skip

    # --- serving -------------------------------------------------------------------------------------------------------------

    def statistics(self, arrays: Arrays, documents: Documents, entries: Entries, rows: Array | None = None) -> Arrays:
        """The number of passages, and encodings of a sample of them: a kilobyte or two each, 1,024 at most."""
        row_units = arrays["row_units"]
        keys = late_candidates.unit_keys(documents.hashes, row_units)
        kept = None
        if rows is not None:
            kept = np.zeros(len(keys), bool)
            kept[ranges(row_units[rows], row_units[rows + 1])] = True
        n_units = len(keys) if kept is None else int(kept.sum())
        return {
            "n_units": np.array([n_units], np.int64),
            **Sample.stated(keys, arrays["fde"], arrays["fde_scales"], len(keys), kept),
        }

    def collect(self, parts: Sequence[tuple[int, Arrays]]) -> LateStatistics:
        n_units = sum(sign * int(part["n_units"][0]) for sign, part in parts)
        return LateStatistics(n_units, Sample.collected(list(parts), n_units) if n_units > EXACT_UNITS else None)

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> LateReader:
        return LateReader(arrays, documents.hashes, live)

    def check_form(self, request: Request) -> None:
        if request.form and request.explicit and "vectors" not in request.form:
            raise BadQuery(f"Layer {self.name!r} cannot use {', '.join(sorted(request.form))}. It takes {self.query_format}.")

    def prepare(self, request: Request, statistics: LateStatistics) -> SpaceQuery | None:
        if "vectors" in request.form:
            vectors = self._given(request.form)
            return self._asked(f"{len(vectors)} vectors of {vectors.shape[1]} numbers", vectors, statistics)
        self.check_form(request)
        if not request.text.strip():
            return None
        asked, vectors = self._encoded(request.text)
        return self._asked(asked, vectors, statistics, self.params.model)

    def _asked(self, asked: str, vectors: Array, statistics: LateStatistics, model: str = "") -> SpaceQuery:
        question = LateQuestion(vectors)
        if statistics.sample is not None:
            encoding = late_candidates.of_question(vectors, self.encoding_spec)
            cut, filtered_cut = statistics.sample.cuts(encoding, statistics.n_units)
            level = late_candidates.level(statistics.n_units, _MOMENTS_UNITS)
            question = LateQuestion(vectors, encoding, cut, filtered_cut, level)
        return SpaceQuery("", asked, question, most=float(len(vectors)), model=model)

    def exhaustive(self, query: SpaceQuery) -> SpaceQuery:
        """Every passage scored, candidates or not: 3 ms for 100 of 128 tokens."""
        question: LateQuestion = query.payload
        return query if question.encoding is None else replace(query, payload=LateQuestion(question.vectors))

    @cached_property
    def _encoded(self) -> Callable[[str], tuple[str, Array]]:
        """A text as it was read, for people, and the vectors of its tokens."""

        @lru_cache(maxsize=1024)  # questions come in pairs: pages, refined filters, several corpora
        def encode(text: str) -> tuple[str, Array]:
            read = self.encoder.reads(text)
            asked = text if read == text else f"{read} […: the model reads no further]"
            return asked, self.encoder.encode_queries([read])[0].astype(np.float16)

        return encode

    def _given(self, form: Mapping[str, Any]) -> Array:
        """The caller's own vectors, checked and scaled: (n, dim) float16."""
        rows, dim = form["vectors"], self.encoder.dim
        if len(form) > 1:
            raise BadQuery(f"Layer {self.name!r} takes vectors alone, without {', '.join(sorted(set(form) - {'vectors'}))}.")
        if not isinstance(rows, list | tuple) or not 1 <= len(rows) <= _MOST_TOKENS:
            raise BadQuery(f"Layer {self.name!r}: vectors must be a list of 1 to {_MOST_TOKENS} lists of {dim} numbers.")
        for row in rows:
            if not isinstance(row, list | tuple) or len(row) != dim or not all(type(x) in (int, float) and abs(x) < 1e100 for x in row):
                raise BadQuery(f"Layer {self.name!r}: each of vectors must be a list of {dim} numbers between -1e100 and 1e100.")
        values = np.array(rows, np.float64)
        most = np.abs(values).max(axis=1, keepdims=True)
        if not most.all():
            raise BadQuery(f"Layer {self.name!r}: one of vectors has no direction, since all its numbers are 0.")
        values /= most
        return (values / np.sqrt(np.square(values).sum(axis=1, keepdims=True))).astype(np.float16)


def _arranged(pieces: Sequence[tuple[Array, Tokens, Array]], n_units: int, none: Tokens) -> Tokens:
    """The tokens of n units. pieces: (which units, (m,) int64; tokens; which of their passages these are, (m,) int64)."""
    if not n_units:
        return none
    counts = np.zeros(n_units, np.int64)
    for targets, tokens, sources in pieces:
        counts[targets] = tokens.counts[sources]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    some = pieces[0][1]
    codes = np.empty((int(offsets[-1]), some.codes.shape[1]), some.codes.dtype)
    scales = np.empty(len(codes) if len(some.scales) else 0, np.float32)
    for targets, tokens, sources in pieces:
        own = tokens.offsets
        to, of = ranges(offsets[targets], offsets[targets + 1]), ranges(own[sources], own[sources + 1])
        codes[to] = tokens.codes[of]
        if len(scales):
            scales[to] = tokens.scales[of]
    return Tokens(codes, scales, counts)
