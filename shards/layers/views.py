"""Texts about documents as ways to find them: context lines, questions, summaries, each with the span of the source that it is about.

Origin "derived": a view is a signpost. It leads to a span and says nothing for certain of what stands there; answers mark it as
generated and show which spaces of the source saw the document too.

Views are made of content alone. A context line names title and headings, never the path: one content may lie at many paths, and a
rename must make nothing anew (paths have a layer of their own, `names`).

Arrays of a segment of n rows and u views, those of `shards.layers.vectors` (a view is a unit, its span the section it is about), and:

texts: bytes of all views, UTF-8; text_offsets: (u + 1,) int64
kinds: (u,) uint8, index into `shards.view_texts.KINDS`; generators: (u,) uint8, 0 extractive, 1 the chat model of the space
tokens: (n, 2) int64, what an endpoint read and wrote for each row

Kept encodings of a document are one record: a line of JSON {"views": [[start, end, kind, generator, text], …], "tokens": [read,
written], "vectors": fingerprint of the encoder or ""}, then its vectors, if it has any: (views, dim) float32, little-endian.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from shards.arrays import pack_strings
from shards.documents import Documents, Entries
from shards.encoders import Encoder, StaticEncoder
from shards.endpoint_settings import Usage
from shards.endpoints import Endpoint, endpoint_of
from shards.errors import EndpointError
from shards.layers import contract
from shards.layers.contract import Encodings, Progress
from shards.layers.joined_units import ranges
from shards.layers.keeping import LOOK_UP_ROWS
from shards.layers.vectors import EncodedLayer, vector_arrays
from shards.layers.vectors_reader import VectorReader
from shards.plan import SpaceQuery
from shards.types import Array, Arrays, Derived
from shards.view_sections import Section, cut, sections_of
from shards.view_texts import EXTRACTIVE, KINDS, Described, View, each_extracted
from shards.view_writing import PROMPT_VERSION, failed, write

SENTENCES = "minilm-256"  # the static model that compares sentences where views themselves are encoded by another
_PORTION_SECTIONS = 2_000  # of extracted views, made and encoded together: about two seconds of work
_PORTION_DOCUMENTS = 64  # of written ones, asked for together
_DURABLE_DOCUMENTS = 16  # of these are kept at once: what a crash can cost, some cents


@dataclass(frozen=True, slots=True)
class ViewStatistics:
    """n_units: views of the corpus; tokens that an endpoint read and wrote for them."""

    n_units: int
    tokens_in: int = 0
    tokens_out: int = 0


class ViewReader(VectorReader):
    """Finds views as vectors, and says what they read."""

    def __init__(self, arrays: Arrays, live: Array, generators: tuple[str, str]):
        super().__init__(arrays, live)
        self._arrays, self._generators = arrays, generators

    def describe(self, query: SpaceQuery, row: int) -> Derived | None:
        """The view that brought a row its score for a question; None for a row without views."""
        from shards.vector_kernels import best_of_rows

        score, unit, everything = np.full(1, np.nan), np.full(1, -1), np.ones(row + 1, bool)
        best_of_rows(self._rows, self._row_units, np.array([row], np.int32), everything, self._vector(query), score, unit)
        at = int(unit[0])
        if at < 0:
            return None
        arrays = self._arrays
        text = arrays["texts"][arrays["text_offsets"][at] : arrays["text_offsets"][at + 1]].tobytes().decode("utf-8", "replace")
        kind, generator = KINDS[arrays["kinds"][at]], self._generators[arrays["generators"][at]]
        return Derived(query.space, kind, generator, text, int(arrays["starts"][at]), int(arrays["ends"][at]))


class Views(EncodedLayer):
    """Documents by what is said about them."""

    name = "views"
    in_part = False  # texts are kept by section
    origin = "derived"
    granularity = "view"
    cost = "extracts 3 MB/s a core; 2.5 kB per section of up to 4 kB; with an endpoint one request a section, once"
    portion_units = 0  # portions are of sections here

    class Params(contract.Params):
        section_bytes: Annotated[int, Field(ge=256, le=1 << 20, description="bytes of the source that one set of views is about")] = 4000
        endpoint: Annotated[str | None, Field(description='who writes: "default" or another endpoint\'s name; null: extracted')] = None
        model: Annotated[str | None, Field(description="the endpoint's chat model")] = None
        questions: Annotated[int, Field(ge=0, le=10, description="written for each section; extracted views have none")] = 3
        vectors: Annotated[Literal["static", "dense"], Field(description="the layer whose encoder makes vectors of views")] = "static"
        vector_model: Annotated[str | None, Field(description="that layer's model; null: its default")] = None

        @model_validator(mode="after")
        def _endpoint_and_model(self) -> Self:
            if (self.endpoint is None) != (self.model is None):
                raise ValueError('name both, the endpoint ("default" is that of SONDAGE_ENDPOINT_URL) and its chat model')
            return self

    params: Params

    # --- what it is ----------------------------------------------------------------------------------------------------------

    @property
    def dear(self) -> bool:
        return self.params.endpoint is not None or self.params.vectors == "dense"

    @property
    def takes_gpu(self) -> bool:
        return self.params.vectors == "dense"

    @property
    def maskable(self) -> bool:
        return self.params.endpoint is None

    @property
    def stored(self) -> np.dtype:
        return np.dtype(np.float32)

    @property
    def kept(self) -> str | None:
        """Under this name written texts are kept, whatever vectors a space makes of them: they are what cost."""
        p = self.params
        if p.endpoint is None:
            return None
        body = [self.version, PROMPT_VERSION, p.endpoint, p.model, p.questions, p.section_bytes]
        return hashlib.sha256(json.dumps(body).encode()).hexdigest()[:16]

    def fingerprint(self) -> str:
        body = [PROMPT_VERSION, self.encoder.fingerprint(), self._sentence_encoder.fingerprint()]
        return hashlib.sha256(json.dumps(body).encode()).hexdigest()[:32]

    @cached_property
    def encoder(self) -> Encoder:
        from shards.layers import SpaceSpec, create

        p = self.params
        layer = create(SpaceSpec(p.vectors, p.vectors, {"model": p.vector_model} if p.vector_model else {}), self.resources)
        assert isinstance(layer, EncodedLayer)
        return layer.encoder

    @property
    def question_model(self) -> str:
        return self.params.vector_model or self.params.vectors

    @cached_property
    def _sentence_encoder(self) -> Encoder:
        return self.encoder if self.params.vectors == "static" else StaticEncoder(SENTENCES, self.resources)

    def check(self) -> None:
        if self.params.endpoint is not None:
            _ = self._endpoint

    @cached_property
    def _endpoint(self) -> Endpoint:
        assert self.params.endpoint is not None and self.params.model is not None
        return endpoint_of(self.resources.endpoints, self.params.endpoint, self.params.model)

    # --- building ------------------------------------------------------------------------------------------------------------

    def build(
        self,
        documents: Documents,
        entries: Entries,
        scope: Array | None = None,
        known: Encodings | None = None,
        progress: Progress | None = None,
    ) -> Arrays:
        """As in the contract. Raises EndpointError where an endpoint is asked and fails; what it wrote until then is in `known`."""
        row_sections, starts, ends = cut(documents, self.params.section_bytes, scope)
        rows = np.flatnonzero(np.diff(row_sections))

        def of_rows(wanted: Array) -> Iterator[tuple[int, list[Section]]]:
            for row in wanted.tolist():
                part = slice(row_sections[row], row_sections[row + 1])
                kind = documents.kind_names[documents.kinds[row]]
                yield row, sections_of(bytes(documents.content(row)), kind, starts[part].tolist(), ends[part].tolist())

        made: dict[int, tuple[Described, Array]] = {}
        if known is not None and self.dear:
            for at in range(0, len(rows), LOOK_UP_ROWS):
                made |= self._looked_up(documents, rows[at : at + LOOK_UP_ROWS], known)
            rows = np.array([row for row in rows.tolist() if row not in made], np.int64)
        n_done = 0
        for portion in self._portions(of_rows, rows, known):
            described = dict(portion)
            encoded = self._encode(described)
            if known is not None and self.dear:
                known.put({documents.hashes[row].tobytes(): self._record(*encoded[row]) for row in sorted(encoded)})
            made |= encoded
            n_done += len(portion)
            if progress is not None:
                progress("describe", n_done, len(rows))
        in_scope = np.ones(len(documents), bool) if scope is None else np.asarray(scope, bool)
        return self._arrays([made.get(row) for row in range(len(documents))], in_scope)

    def _portions(self, of_rows: Any, rows: Array, known: Encodings | None) -> Iterator[list[tuple[int, Described]]]:
        """Portions of rows with their views: what is encoded, and kept, together."""
        if self.params.endpoint is None:
            yield from each_extracted(of_rows(rows), self._sentence_encoder.encode_documents, _PORTION_SECTIONS)
            return
        for at in range(0, len(rows), _PORTION_DOCUMENTS):
            ready: list[tuple[int, Described]] = []
            asked = list(of_rows(rows[at : at + _PORTION_DOCUMENTS]))
            try:
                for row, described, usage in write(asked, self._endpoint, self.params.questions, self._sentence_encoder.encode_documents):
                    ready.append((row, described))
                    if known is not None:
                        known.spend(usage)
                    if len(ready) == _DURABLE_DOCUMENTS:
                        yield ready
                        ready = []
            except EndpointError as error:
                if ready:
                    yield ready
                raise failed(error, self._endpoint.usage) from error
            if ready:
                yield ready

    def _encode(self, described: Mapping[int, Described]) -> dict[int, tuple[Described, Array]]:
        """With the vectors of their views, (views, dim) float32."""
        texts = [view.text for one in described.values() for view in one.views]
        vectors = self.encoder.encode_documents(texts) if texts else np.zeros((0, 0), np.float32)
        ends = np.cumsum([len(one.views) for one in described.values()])
        parts = np.split(vectors, ends[:-1]) if len(ends) else []
        return {row: (one, part) for (row, one), part in zip(described.items(), parts, strict=True)}

    def _arrays(self, rows: Sequence[tuple[Described, Array] | None], in_scope: Array) -> Arrays:
        views = [view for row in rows if row is not None for view in row[0].views]
        row_units = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([0 if row is None else len(row[0].views) for row in rows], out=row_units[1:])
        filled = [row[1] for row in rows if row is not None and len(row[1])]
        vectors = np.concatenate(filled) if filled else np.zeros((0, 0), np.float32)
        starts, ends = (np.array([getattr(view, name) for view in views], np.int64) for name in ("start", "end"))
        texts, text_offsets = pack_strings([view.text.encode() for view in views])
        return vector_arrays(vectors, row_units, starts, ends, in_scope) | {
            "texts": texts,
            "text_offsets": text_offsets,
            "kinds": np.array([KINDS.index(view.kind) for view in views], np.uint8),
            "generators": np.array([view.generator != EXTRACTIVE for view in views], np.uint8),
            "tokens": np.array([(0, 0) if row is None else (row[0].tokens_in, row[0].tokens_out) for row in rows], np.int64).reshape(-1, 2),
        }

    # --- kept ----------------------------------------------------------------------------------------------------------------

    def _record(self, described: Described, vectors: Array) -> Array:
        """What is kept of a document: (bytes,) uint8."""
        dense = self.params.vectors == "dense"  # static vectors are made faster than they are read
        head = {
            "views": [list(view) for view in described.views],
            "tokens": [described.tokens_in, described.tokens_out],
            "vectors": self.encoder.fingerprint() if dense else "",
        }
        line = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        return np.frombuffer(line + (vectors.astype("<f4").tobytes() if dense else b""), np.uint8)

    def _looked_up(self, documents: Documents, rows: Array, known: Encodings) -> dict[int, tuple[Described, Array]]:
        """Rows of which views are kept."""
        kept = known.get(documents.hashes[rows])
        own = self.encoder.fingerprint() if self.params.vectors == "dense" else ""
        found: dict[int, tuple[Described, Array]] = {}
        bare: dict[int, Described] = {}
        for row in rows.tolist():
            if (record := kept.get(documents.hashes[row].tobytes())) is None:
                continue
            line, _, rest = record.tobytes().partition(b"\n")
            head = json.loads(line)
            described = Described(tuple(View(*view) for view in head["views"]), *head["tokens"])
            if own and head["vectors"] == own and described.views:
                found[row] = described, np.frombuffer(rest, "<f4").astype(np.float32).reshape(len(described.views), -1)
            else:
                bare[row] = described
        return found | self._encode(bare)

    # --- joining, counting, serving ------------------------------------------------------------------------------------------

    def merge(
        self, parts: Sequence[tuple[Arrays, Array]], documents: Documents, entries: Entries, held: Sequence[tuple[int, Arrays]] = ()
    ) -> Arrays:
        joined = super().merge(parts, documents, entries, held)
        n_units = int(joined["row_units"][-1])
        texts = [b""] * n_units
        kinds, generators = np.empty(n_units, np.uint8), np.empty(n_units, np.uint8)
        tokens = np.zeros((len(documents), 2), np.int64)
        for arrays, new_rows in parts:
            old = np.flatnonzero(new_rows >= 0)
            new = new_rows[old]
            tokens[new] = arrays["tokens"][old]
            sources = ranges(arrays["row_units"][old], arrays["row_units"][old + 1])
            targets = ranges(joined["row_units"][new], joined["row_units"][new + 1])
            kinds[targets], generators[targets] = arrays["kinds"][sources], arrays["generators"][sources]
            blob, offsets = arrays["texts"].tobytes(), arrays["text_offsets"].tolist()
            for source, target in zip(sources.tolist(), targets.tolist(), strict=True):
                texts[target] = blob[offsets[source] : offsets[source + 1]]
        blob, offsets = pack_strings(texts)
        return joined | {"texts": blob, "text_offsets": offsets, "kinds": kinds, "generators": generators, "tokens": tokens}

    def open(self, arrays: Arrays, documents: Documents, entries: Entries, live: Array) -> ViewReader:
        return ViewReader(arrays, live, (EXTRACTIVE, self.params.model or ""))

    def statistics(self, arrays: Arrays, documents: Documents, entries: Entries, rows: Array | None = None) -> Arrays:
        tokens = arrays["tokens"] if rows is None else arrays["tokens"][rows]
        return super().statistics(arrays, documents, entries, rows) | {"tokens": tokens.sum(axis=0, dtype=np.int64)}

    def recount(self, documents: Documents, entries: Entries) -> Arrays | None:
        return None  # how many views a text has only they can tell

    def collect(self, parts: Sequence[tuple[int, Arrays]]) -> ViewStatistics:
        tokens = sum((sign * part["tokens"] for sign, part in parts), start=np.zeros(2, np.int64))
        return ViewStatistics(super().collect(parts).n_units, *tokens.tolist())

    def facts(self, statistics: ViewStatistics) -> dict[str, Any]:
        p = self.params
        if p.endpoint is None:
            return {"generator": EXTRACTIVE}
        settings = self.resources.endpoints.get(p.endpoint)
        price = settings.prices.get(p.model or "") if settings else None
        usage = Usage(tokens_in=statistics.tokens_in, tokens_out=statistics.tokens_out).priced(price)
        facts = {"generator": p.model, "tokens_in": usage.tokens_in, "tokens_out": usage.tokens_out}
        return facts | ({} if usage.cost is None else {"cost": round(usage.cost, 6)})
