"""What callers add to an engine, as operations that a generation is written from."""

import hashlib
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from serve.push_schema import MAX_PATH_BYTES
from shards import metadata as metadata_rules
from shards.bulk import Batch, put
from shards.encoders import unit_rows
from shards.errors import BadQuery, SourceError
from shards.nlql.errors import EmbeddingError
from shards.pushlog import Operation
from shards.types import Array

if TYPE_CHECKING:
    from os import PathLike

    from shards.plugins import Embedder, Plugins

_NO_ID = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
SPACE = "content"  # the space that SIMILARITY(content, …) asks
UNIT_LENGTH = 1e-6  # how far from 1 the square of a length may be that is called 1: rounding to 32 bits
SOURCE_KEY = "source"  # of metadata, for what callers say of a document's source


@dataclass(slots=True)
class Document:
    """A text to be added. id: what it is found, replaced and deleted under. metadata: JSON values, dates and times.

    source: where it comes from, kept as metadata. vectors: (n_units, dim) numbers, where they are at hand: one for each unit that the
    engine's granularity makes of the text; (dim,) will do for one. named: for SIMILARITY(vec.NAME, …), see `Engine.add_multivector`.
    """

    id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: str | None = None
    vectors: Any = None
    named: Mapping[str, Any] = field(default_factory=dict)


class Documents:
    """Makes operations. left_out: what metadata could not keep, by reason. Safe for several threads."""

    def __init__(self, embedder: "Embedder", named: "Mapping[str, Embedder]", normalizer: Callable[[str], str] | None):
        self._embedder, self._named = embedder, named
        self._normalise = getattr(normalizer, "normalize", normalizer)
        self._last_ns, self._lock = 0, threading.Lock()
        self._extractors: Any = None
        self.left_out: Counter[str] = Counter()

    def warm(self) -> None:
        """Load what cuts and writes documents, so that the first one does not wait for it."""
        from shards.documents import Documents as Packed
        from shards.nlql.units import cut

        cut(Packed.pack([(bytes(20), b"One. Two.", "prose")]), "sentence")

    def close(self) -> None:
        """End the process that reads files of formats."""
        if self._extractors is not None:
            self._extractors.close()

    def of(self, given: Any) -> tuple[Operation, dict[str, Array]]:
        """The operation that puts a document, and vectors of its units by space. Raises BadQuery, EmbeddingError."""
        document = given if isinstance(given, Document) else _document(given)
        check_id(document.id)
        if not isinstance(document.text, str):
            kind = type(document.text).__name__
            raise BadQuery(f"Document {document.id!r}: its text is of type {kind}. Files go to add_file, images to add_image.")
        text = document.text if self._normalise is None else self._normalise(document.text)
        named = {name: self._named_vector(document.id, name, value) for name, value in document.named.items()} if document.named else {}
        units: dict[str, Array] = {}
        digest = b""
        if document.vectors is not None:
            values = self._unit_vectors(document.id, document.vectors)
            units, digest = {SPACE: values}, hashlib.sha256(values).digest()
        return put(document.id, text, self._metadata(document), self._now_ns(), named, digest), units

    def removal(self, id: str) -> Operation:
        """The operation that takes a document away."""
        return Operation(check_id(id), mtime_ns=self._now_ns())

    def file(self, path: "str | PathLike[str]", id: str | None, metadata: Mapping[str, Any] | None) -> Operation:
        """A file, rendered as an index job renders it. Raises SourceError, BadQuery."""
        from serve.intake import operation
        from serve.pushing import Target
        from shards.formats.process import Extractors

        if self._extractors is None:
            self._extractors = Extractors()
        where = Path(path)
        try:
            data = where.read_bytes()
        except OSError as error:
            raise SourceError(f"File {str(path)!r} cannot be read: {error.strerror or error}.") from None
        key = check_id(id or where.as_posix())
        target = Target("", None, {}, self._extractors)  # type: ignore[arg-type]  # nothing is logged
        made, left_out = operation(target, where.name, data, dict(metadata or {}), {}, "")
        self.left_out.update(left_out)
        return Operation(key, made.hash, made.text, made.kind, made.size_bytes, self._now_ns(), made.metadata)

    def image(
        self, image: "bytes | str | PathLike[str]", id: str | None, metadata: Mapping[str, Any] | None, source: str | None
    ) -> tuple[Operation, dict[str, Array]]:
        """An image, and the vector of the one unit that it is. Raises BadQuery, SourceError, EmbeddingError."""
        from shards.identity import content_hash
        from shards.images import read_image
        from shards.renditions import Skipped

        embed = getattr(self._embedder, "embed_images", None)
        if not callable(embed):
            raise EmbeddingError(f"Embedder {self._embedder.model_id!r} has no embed_images(files). Give one that embeds images.")
        data, name = (bytes(image), "") if isinstance(image, bytes | bytearray) else _read(image)
        read = read_image(data)
        if read is None or isinstance(read, Skipped):
            raise BadQuery(f"{name or 'What was given'} is no image that can be read{f': {read.reason}' if read else ''}.")
        key = check_id(id or name or uuid.uuid4().hex)
        words = " ".join(read.text.decode().split()) or Path(name).name or key
        vector = self._embedded(key, embed, data)
        document = Document(key, words, {**read.facts, **(metadata or {})}, source)
        identity = content_hash(read.hash + hashlib.sha256(vector).digest())
        made = Operation(key, identity, words.encode(), read.kind, len(data), self._now_ns(), self._metadata(document), {}, read.media)
        return made, {SPACE: vector}

    def check(self, batch: Batch, granularity: str, plugins: "Plugins") -> None:
        """See that documents with vectors of their own have one for each unit. Raises BadQuery, and takes those out that have not."""
        from shards.documents import Documents as Packed
        from shards.images import KIND
        from shards.nlql.units import cut

        own = batch.units.get(SPACE, {})
        made = {o.hash: o for o in batch.operations.values() if o.hash in own}
        if not made:
            return
        packed = Packed.pack((key, o.text, o.kind) for key, o in made.items())
        n_units = np.bincount(cut(packed, granularity, plugins=plugins).rows, minlength=len(packed)).tolist()
        wrong = []
        for key, n in zip((key.tobytes() for key in packed.hashes), n_units, strict=True):
            if made[key].kind == KIND and n > 1:  # of an image's words each line is a unit
                own[key] = np.repeat(own[key], n, axis=0)
            elif len(own[key]) != n:
                wrong.append((made[key], n, len(own[key])))
        if wrong:
            for operation, _, _ in wrong:
                del batch.operations[operation.path]
            first, n, given = wrong[0]
            more = f" So it is with {len(wrong) - 1:,} others." if len(wrong) > 1 else ""
            raise BadQuery(
                f"Document {first.path!r} has {n:,} units ({granularity}) and came with {given:,} vectors; give one for each.{more} "
                "They are not added."
            )

    # --- parts -------------------------------------------------------------------------------------------------------------------

    def _metadata(self, document: Document) -> dict[str, Any]:
        if not isinstance(document.metadata, Mapping):
            raise BadQuery(f"Document {document.id!r}: its metadata is of type {type(document.metadata).__name__}; expected a mapping.")
        kept, left_out = metadata_rules.clean(document.metadata)
        if left_out:
            self.left_out.update(left_out)
        if document.source is not None:
            kept.setdefault(SOURCE_KEY, document.source)
        return kept

    def _unit_vectors(self, id: str, given: Any) -> Array:
        values = _numbers(id, given)
        values = values.reshape(1, -1) if values.ndim == 1 and values.size else values
        if values.ndim != 2 or (len(values) and values.shape[1] != self._embedder.dim):
            raise BadQuery(f"Document {id!r}: vectors of shape {values.shape}; expected (units, {self._embedder.dim}).")
        lengths = np.vecdot(values, values)
        if all(abs(length - 1.0) < UNIT_LENGTH for length in lengths.tolist()):  # of a few, sooner told than by numpy
            return values
        return unit_rows(_finite(id, values))

    def _named_vector(self, id: str, name: str, given: Any) -> Array:
        embedder = self._named.get(name)
        if embedder is None:
            known = ", ".join(sorted(self._named)) or "none"
            raise BadQuery(f"Document {id!r}: there is no named embedder {name!r}. Known: {known}. Give it as Engine(named_embedders=…).")
        if isinstance(given, str):
            return self._embedded(id, embedder.embed, given, embedder)
        if isinstance(given, bytes | bytearray):
            embed = getattr(embedder, "embed_images", None)
            if not callable(embed):
                raise EmbeddingError(f"Document {id!r}: named embedder {name!r} has no embed_images(files), so it takes no bytes.")
            return self._embedded(id, embed, bytes(given), embedder)
        values = np.atleast_2d(_finite(id, _numbers(id, given)))
        if values.shape[1] != embedder.dim or not values.any(axis=1).all():
            raise BadQuery(f"Document {id!r}: vector {name!r} must have {embedder.dim} numbers, and not all of them 0.")
        return values

    def _embedded(self, id: str, embed: Callable[[Sequence[Any]], Any], item: Any, embedder: "Embedder | None" = None) -> Array:
        of = embedder or self._embedder
        try:
            values = np.asarray(embed([item]), np.float32)
        except Exception as error:
            raise EmbeddingError(f"Document {id!r}: embedder {of.model_id!r} failed: {type(error).__name__}: {error}") from error
        if values.shape != (1, of.dim) or not np.isfinite(values).all():
            raise EmbeddingError(f"Document {id!r}: embedder {of.model_id!r} gave {values.shape} numbers; expected (1, {of.dim}), finite.")
        return unit_rows(values)

    def _now_ns(self) -> int:
        """The time, later than the last one told: rows of equal rank keep the order in which they were added."""
        with self._lock:
            self._last_ns = max(time.time_ns(), self._last_ns + 1)
            return self._last_ns


def check_id(id: Any) -> str:
    """The id itself, if documents may have it. Raises BadQuery."""
    if not isinstance(id, str) or not id or _NO_ID.search(id) or len(id) > MAX_PATH_BYTES or len(id.encode()) > MAX_PATH_BYTES:
        raise BadQuery(f"Document id {id!r:.80} cannot be used: expected text of 1 to {MAX_PATH_BYTES:,} bytes without control characters.")
    return id


def _document(given: Any) -> Document:
    if isinstance(given, Mapping):
        try:
            return Document(**given)
        except TypeError as error:
            raise BadQuery(f"{given!r:.80} is no document: {error}. Fields are: {', '.join(Document.__dataclass_fields__)}.") from None
    if isinstance(given, Sequence) and not isinstance(given, str | bytes) and 2 <= len(given) <= 3:
        return Document(*given)
    raise BadQuery(f"{given!r:.80} is no document. Give a Document, a mapping with its fields, (id, text) or (id, text, metadata).")


def _numbers(id: str, given: Any) -> Array:
    try:
        return np.ascontiguousarray(given, np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadQuery(f"Document {id!r}: its vectors are no numbers: {error}.") from None


def _finite(id: str, values: Array) -> Array:
    if not np.isfinite(values).all():
        raise BadQuery(f"Document {id!r}: a number of its vectors is not finite in 32 bits.")
    return values


def _read(path: "str | PathLike[str]") -> tuple[bytes, str]:
    try:
        return Path(path).read_bytes(), Path(path).as_posix()
    except OSError as error:
        why = error.strerror or error
        raise SourceError(f"Image {str(path)!r} cannot be read: {why}. Give its bytes, or the path of a file.") from None
