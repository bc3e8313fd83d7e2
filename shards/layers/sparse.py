"""Passages by the vocabulary entries that a model gives them, weighted: words that stand there, and words that could.

    score(unit) = sum over entries of weight in the question * weight in the unit

Formal et al. 2021, "SPLADE"; any SparseEncoder of sentence-transformers, and BGE-M3's sparse head. The weights lie in postings, as
BM25's frequencies do (`shards.postings`, `IMPACTS`), and are added in float32 in order of entry.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from shards.documents import Documents, Entries
from shards.errors import BadQuery
from shards.layers import contract
from shards.layers.contract import Encodings, Progress, Request
from shards.layers.keeping import Tell, encodings
from shards.layers.postings_reader import PostingsReader, TermWeights
from shards.plan import SpaceQuery
from shards.postings import IMPACTS, build_impacts, merge_postings
from shards.routing import WORDS
from shards.sparse_encoder import SparseTextEncoder, TokenWeights, packed, unpacked
from shards.types import Array, Arrays

MAX_TERMS = 4096  # of a question; one that has more keeps the heaviest. SPLADE models give some tens
MAX_WEIGHT = 1e6  # in a caller's own form: sums stay far from what float32 can hold
ASKED_TERMS = 24  # shown to people
DENSE_SHARE = 1 / 2  # of the units: 4 bytes a unit for terms in more of them, which are some thirty
MARKED_SHARE = 1 / 3  # of the heaviest term's weight: terms that mark a hit

_MARKS = "▁Ġ"  # that open a word in the vocabularies of SentencePiece and byte-level models


@dataclass(frozen=True, slots=True)
class SparseStatistics:
    """n_units: passages of the corpus."""

    n_units: int


class Sparse(contract.Layer):
    """Words as a model weighs and completes them, over passages."""

    name = "sparse"
    shapes = WORDS
    granularity = "passage"
    null = "moments"
    query_format = 'text, or {"weights": {vocabulary entry: number}}'
    cost = "default model: encodes 25 passages/s and core; 1.3 to 2 kB a passage; 0.7 ms for 100,000 passages"
    dear = True
    in_part = True
    portion_units: ClassVar[int] = 256  # until encodings are first written

    class Params(contract.Params):
        """document_terms and min_weight with the default model on scifact, nDCG@10 (and weights a passage):

        all .6457 (208); heaviest 128 .6497, 64 .6146, 32 .5625; of at least .1 .6457 (184), .2 .6476 (162), .4 .6429 (126)
        """

        model: Annotated[str, Field(description="splade-tiny, a folder, or a name on the Hugging Face hub")] = "splade-tiny"
        unit_bytes: Annotated[int, Field(ge=64, le=1 << 20, description="most bytes of a passage")] = 1000
        overlap_bytes: Annotated[int, Field(ge=0, description="bytes that neighbouring passages share")] = 0
        document_prompt: Annotated[str | None, Field(description="put before each passage; null: the model's own")] = None
        query_prompt: Annotated[str | None, Field(description="put before each question; null: the model's own")] = None
        document_terms: Annotated[int | None, Field(ge=1, description="heaviest terms kept of a passage; null: the model's own limit")] = (
            None
        )
        query_terms: Annotated[int | None, Field(ge=1, description="heaviest terms kept of a question; null: the model's own limit")] = None
        min_weight: Annotated[float, Field(ge=0, allow_inf_nan=False, description="least weight of a term kept of a passage")] = 0.0
        dtype: Annotated[Literal["fp32", "bf16"], Field(description="number format of the model while encoding")] = "fp32"

    params: Params

    @cached_property
    def encoder(self) -> SparseTextEncoder:
        p = self.params
        return SparseTextEncoder(
            p.model, self.resources, document_prompt=p.document_prompt, query_prompt=p.query_prompt,
            document_terms=p.document_terms, query_terms=p.query_terms, min_weight=p.min_weight, dtype=p.dtype,
        )  # fmt: skip

    @property
    def takes_gpu(self) -> bool:
        return True

    def fingerprint(self) -> str:
        return self.encoder.fingerprint()

    # --- building ------------------------------------------------------------------------------------------------------------

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: Encodings | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        from shards.units import passages

        units = passages(documents, self.params.unit_bytes, self.params.overlap_bytes, scope)
        row_units = units.of_rows(len(documents))

        def encode(rows: Array, tell: Tell | None) -> Sequence[Array]:
            texts = [
                bytes(documents.content(row)[units.starts[unit] : units.ends[unit]]).decode("utf-8", "replace")
                for row in rows.tolist()
                for unit in range(row_units[row], row_units[row + 1])
            ]
            weights = self.encoder.encode_documents(texts, tell)
            ends = np.cumsum(np.diff(row_units)[rows]).tolist()
            return [packed(_part(weights, first, end)) for first, end in pairwise([0, *ends])]

        of_rows: dict[int, TokenWeights] = {}
        for rows, kept in encodings(documents, row_units, known, progress, encode, _fits, self.portion_units):
            of_rows |= zip(rows.tolist(), map(unpacked, kept), strict=True)
        parts = [of_rows[row] for row in sorted(of_rows)]
        counts = np.concatenate([np.zeros(1, np.int64), *(np.diff(part.offsets) for part in parts)])
        in_scope = np.ones(len(documents), bool) if scope is None else np.asarray(scope, bool)
        return build_impacts(
            np.concatenate([np.zeros(0, np.uint32), *(part.tokens for part in parts)]),
            np.concatenate([np.zeros(0, np.float32), *(part.weights for part in parts)]),
            np.cumsum(counts), units.rows, units.starts, units.ends, in_scope,
        )  # fmt: skip

    def merge(
        self, parts: Sequence[tuple[Arrays, Array]], documents: Documents, entries: Entries, held: Sequence[tuple[int, Arrays]] = ()
    ) -> Arrays:
        return merge_postings(parts, len(documents), IMPACTS)

    def statistics(self, arrays: Arrays, documents: Documents, entries: Entries, rows: Array | None = None) -> Arrays:
        unit_rows = arrays["unit_rows"]
        n_units = len(unit_rows) if rows is None else int(np.isin(unit_rows, rows).sum())
        return {"n_units": np.array([n_units], np.int64)}

    def recount(self, documents: Documents, entries: Entries) -> Arrays:
        from shards.units import passages

        units = passages(documents, self.params.unit_bytes, self.params.overlap_bytes, None)
        return {"n_units": np.array([len(units.rows)], np.int64)}

    # --- serving -------------------------------------------------------------------------------------------------------------

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> "ImpactReader":
        return ImpactReader(arrays, live)

    def collect(self, parts: Sequence[tuple[int, Arrays]]) -> SparseStatistics:
        return SparseStatistics(sum(sign * int(part["n_units"][0]) for sign, part in parts))

    def check_form(self, request: Request) -> None:
        if request.form and request.explicit and "weights" not in request.form:
            raise BadQuery(f"Layer {self.name!r} cannot use {', '.join(sorted(request.form))}. It takes {self.query_format}.")

    def prepare(self, request: Request, statistics: SparseStatistics) -> SpaceQuery | None:
        if "weights" in request.form:
            return SpaceQuery("", *self._asked(*self._given(request.form)))
        self.check_form(request)
        if not request.text.strip():
            return None
        tokens, weights, note = self._encoded(request.text)
        return SpaceQuery("", *self._asked(tokens, weights, note), model=self.params.model) if len(tokens) else None

    def highlights(self, query: SpaceQuery) -> Sequence[tuple[str, bool, bool]]:
        """The heavier words of the question and of what the model adds to it, as whole words."""
        weights = query.payload.weights
        heavy = np.flatnonzero(weights >= max(MARKED_SHARE * weights.max(), 1e-30))
        heavy = heavy[np.argsort(-weights[heavy], kind="stable")][:ASKED_TERMS]
        names = [name.lstrip(_MARKS) for name in self.encoder.names(query.payload.terms[heavy])]
        words = [name for name in names if len(name) > 2 and name.isalnum()]
        return [(rf"\b(?:{'|'.join(map(re.escape, words))})\b", True, True)] if words else []

    def _asked(self, tokens: Array, weights: Array, note: str = "") -> tuple[str, TermWeights]:
        """The question for people, the heaviest terms first, and for segments."""
        order = np.argsort(-np.abs(weights), kind="stable")
        n_terms = len(order)
        kept = np.sort(order[:MAX_TERMS])
        shown = order[:ASKED_TERMS]
        names = self.encoder.names(tokens[shown])
        parts = [", ".join(f"{name} {weight:.2f}" for name, weight in zip(names, weights[shown].tolist(), strict=True))]
        if n_terms > ASKED_TERMS:
            parts.append(f"and {n_terms - ASKED_TERMS} lighter terms")
        if n_terms > MAX_TERMS:
            parts.append(f"of which the {MAX_TERMS} heaviest count")
        return ", ".join(parts) + note, TermWeights(tokens[kept], weights[kept])

    def _given(self, form: Mapping[str, object]) -> tuple[Array, Array]:
        """The caller's own weights, checked: tokens ascending, and what each weighs."""
        asked = form["weights"]
        if len(form) > 1:
            raise BadQuery(f"Layer {self.name!r} takes weights alone, without {', '.join(sorted(set(form) - {'weights'}))}.")
        if not isinstance(asked, Mapping) or not asked or not all(isinstance(word, str) for word in asked):
            raise BadQuery(f"Layer {self.name!r}: weights must be an object of vocabulary entries and numbers, with at least one.")
        if len(asked) > MAX_TERMS:
            raise BadQuery(f"Layer {self.name!r}: weights has {len(asked):,} entries; at most {MAX_TERMS:,} are allowed.")
        sums: dict[int, float] = {}
        for word, weight in asked.items():
            if type(weight) not in (int, float) or not math.isfinite(weight) or abs(weight) > MAX_WEIGHT or not weight:
                raise BadQuery(f"Layer {self.name!r}: the weight of {word!r} is {weight!r}; expected a number between -1e6 and 1e6, not 0.")
            token = self.encoder.token(word)
            sums[token] = sums.get(token, 0.0) + weight
        tokens = sorted(sums)
        return np.array(tokens, np.uint32), np.array([sums[token] for token in tokens], np.float32)

    @cached_property
    def _encoded(self) -> Callable[[str], tuple[Array, Array, str]]:
        """The tokens and weights of a text, and a note where it was not read to its end."""

        @lru_cache(maxsize=1024)  # questions come in pairs: pages, refined filters, several corpora
        def encode(text: str) -> tuple[Array, Array, str]:
            read = self.encoder.reads(text)
            tokens, weights = self.encoder.encode_query(read)
            return tokens, weights, "" if read == text else f", from the first {len(read):,} characters: the model reads no further"

        return encode


class ImpactReader(PostingsReader):
    """One segment's impacts, opened."""

    def __init__(self, arrays: Arrays, live: Array):
        super().__init__(arrays, live, IMPACTS, DENSE_SHARE)
        self._postings = self._kernels.Postings(self._units, self._values, self._dense_lists(), np.zeros(0, np.float32))

    def _postings_for(self, question: TermWeights):
        return self._postings


def _part(weights: TokenWeights, first: int, end: int) -> TokenWeights:
    """The weights of texts [first, end)."""
    offsets = weights.offsets[first : end + 1]
    return TokenWeights(offsets - offsets[0], weights.tokens[offsets[0] : offsets[-1]], weights.weights[offsets[0] : offsets[-1]])


def _fits(rows: Array, n_units: int) -> bool:
    """Whether kept rows are weights of so many passages."""
    try:
        return len(unpacked(rows).offsets) == n_units + 1
    except ValueError:
        return False
