"""A small corpus for queries for rows, on any number of shards, and the obvious definition of what they return."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from shards.bulk import Batch, BulkWriter, put
from shards.cache import FileCache
from shards.generation import Generation
from shards.layers import SpaceSpec, create, space_id
from shards.layers.contract import Request, Resources
from shards.nlql import ir
from shards.nlql.answers import Row, RowAnswer
from shards.nlql.context import Context
from shards.nlql.evaluate import evaluate, holds
from shards.nlql.merging import merge_rows
from shards.nlql.plan import RowPlan, Scorer
from shards.nlql.scan import run_rows
from shards.nlql.units import chunks, normalise, sentences
from shards.nlql.values import sort_key
from shards.plan import SpaceQuery
from shards.plugins import Plugins
from shards.pushlog import Operation
from shards.store import open_store
from shards.types import Budget

DIM = 48


class WordEmbedder:
    """A vector of each word by its hash, added up: texts that share words are near. n_asked: texts that were embedded."""

    model_id, dim = "words-1", DIM

    def __init__(self) -> None:
        self.n_asked = 0

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        self.n_asked += len(texts)
        return np.stack([self.vector(text) for text in texts]) if texts else np.zeros((0, DIM))

    def vector(self, text: str) -> np.ndarray:
        total = np.zeros(DIM)
        for word in re.findall(r"\w+", text.lower()):
            seed = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "big")
            total += np.random.default_rng(seed).normal(size=DIM)
        return total


@dataclass(frozen=True)
class Document:
    path: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Corpus:
    """Published in portions, each of which leaves a segment for each shard. `None` for a text deletes the path.

    layers: by the name of the space, (layer, dials). vectors: by path, what the caller gives for the space `mine`.
    still: all documents are of one time.
    """

    def __init__(
        self,
        folder: Path,
        portions: Sequence[Sequence[Document]],
        n_shards: int,
        layers: Mapping[str, tuple[str, dict[str, Any]]],
        vectors: Mapping[str, np.ndarray] | None = None,
        still: bool = False,
    ):
        self.embedder, self.plugins = WordEmbedder(), Plugins()
        self.plugins.add_embedder("words", self.embedder)
        self.resources = Resources(plugins=self.plugins)
        self.store, self.cache = open_store(str(folder / "store")), FileCache(folder / "cache", 1 << 30)
        made = {name: SpaceSpec(name, layer, dict(dials)) for name, (layer, dials) in layers.items()}
        specs = {name: (spec, space_id(spec, create(spec, self.resources))) for name, spec in made.items()}
        writer = BulkWriter(self.store, "c", self.cache, self.resources, specs, n_shards)
        self.now_ns = 1_000
        for portion in portions:
            batch = Batch()
            for document in portion:
                self.now_ns += not still
                if document.text is None:
                    batch.add(Operation(document.path, mtime_ns=self.now_ns))
                else:
                    own = {"mine": vectors[document.path]} if vectors and document.path in vectors else None
                    batch.add(put(document.path, document.text, document.metadata, self.now_ns, own))
            writer.publish(batch)
        writer.close()
        self.generation = Generation.open(self.store, self.cache, "c", None, self.resources)
        self.shards = [self.generation.shard(ref.shard) for ref in self.generation.root.shards]

    def question(self, space: str, text: str, **form: Any) -> SpaceQuery | None:
        """What a space is asked, as a coordinator prepares it."""
        from dataclasses import replace

        layer = self.generation.spaces[space].layer
        query = layer.prepare(Request(text, form, True), self.generation.statistics(space))
        return None if query is None else replace(query, space=space)

    def similarity(self, name: str, space: str, text: str, **more: Any) -> Scorer:
        return Scorer(name, "unit", self.question(space, text), **more)

    def rows(self, plan: RowPlan, budget: Budget | None = None) -> RowAnswer:
        """The answer of one host for each shard, merged."""
        return merge_rows([run_rows([shard], plan, budget or Budget(), self.plugins) for shard in self.shards], plan)

    def together(self, plan: RowPlan) -> RowAnswer:
        """The answer of one host for all shards."""
        return merge_rows([run_rows(self.shards, plan, Budget(), self.plugins)], plan)


@dataclass
class Plain:
    """A row by the obvious definition."""

    document: Document
    ordinal: int
    content: str
    scores: dict[str, float | None]

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.document.metadata


def plain_rows(documents: Sequence[Document], unit: str, scores: Mapping[str, str], embedder: WordEmbedder) -> list[Plain]:
    """All rows, in order of insertion. scores: by scorer, the text that its similarity is asked for."""
    split = {"sentence": sentences, "chunk": chunks}[unit]
    found = []
    for document in documents:
        for ordinal, content in enumerate(split(normalise(document.text))):
            vector = unit_vector(embedder.vector(content))
            own = {name: float(vector @ unit_vector(embedder.vector(text))) for name, text in scores.items()}
            found.append(Plain(document, ordinal, content, own))
    return found


def unit_vector(vector: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vector)
    return (vector / length if length else vector).astype(np.float32).astype(np.float64)


def plain_order(rows: Sequence[Plain], plan: RowPlan, context: Context) -> list[Plain]:
    """Those that pass the conditions, in order: nulls last in both directions, ties in order of insertion."""
    left = [row for row in rows if all(holds(condition, row, context) for condition in plan.filter)]
    for key in reversed(plan.order_by):
        declared = context.declared(key.expr)
        keyed = [(evaluate(key.expr, row, context), row) for row in left]
        some = [(sort_key(value, declared), row) for value, row in keyed if value is not None]
        some.sort(key=lambda pair: pair[0], reverse=key.desc)
        left = [row for _, row in some] + [row for value, row in keyed if value is None]
    return left


def essence(answer: RowAnswer) -> list[tuple[Any, ...]]:
    """What may not depend on placement: all that is told of rows, scores to the bit."""
    return [
        (row.entry.path, row.ordinal, row.start, row.end, row.content, row.span, tuple(row.scores.items()), tuple(row.let.items()))
        for row in answer.rows()
    ]


def told(row: Row) -> tuple[str, int, str]:
    return row.entry.path, row.ordinal, row.content


CONTENT = ir.Path("content")


def meta(*segments: str) -> ir.Path:
    return ir.Path("meta", segments)


def compare(left: ir.Expr, op: str, value: Any) -> ir.Compare:
    return ir.Compare(op, left, value if isinstance(value, ir.Literal | ir.Path | ir.Ref | ir.Call) else ir.Literal(value))


def by(expr: ir.Expr, desc: bool = True) -> ir.SortKey:
    return ir.SortKey(expr, desc)
