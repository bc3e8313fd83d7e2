"""What is to be pushed, as callers write it down, and in portions that may be sent twice."""

import base64
import json
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from serve.push_schema import BulkAnswer, PushParameters
from shards.errors import BadQuery

PORTION_BYTES, PORTION_LINES = 8 << 20, 5_000  # of a bulk push in one request: a second or two of work

Content = str | bytes
Item = Mapping[str, Any] | Sequence[Any]  # fields of `serve.push_schema.PushLine`, or (path, content[, metadata])


def document_body(content: Content, metadata: Mapping[str, Any] | None, vectors: Mapping[str, Any] | None) -> dict[str, Any]:
    """A document as JSON values."""
    body = _content(content)
    if metadata:
        body["metadata"] = dict(metadata)
    if vectors:
        body["vectors"] = _numbers(vectors)
    return body


def _content(content: Content) -> dict[str, Any]:
    return {"text": content} if isinstance(content, str) else {"base64": base64.b64encode(content).decode()}


def _numbers(vectors: Mapping[str, Any]) -> dict[str, Any]:
    return {space: np.asarray(given, np.float32).tolist() for space, given in vectors.items()}


def line_of(item: Item) -> bytes:
    """One item as a line of JSON, with an id, so that the line may be sent twice. Raises BadQuery."""
    if isinstance(item, Mapping):
        fields = dict(item)
        if "content" in fields:
            fields |= _content(fields.pop("content"))
        if "vectors" in fields:
            fields["vectors"] = _numbers(fields["vectors"])
    elif isinstance(item, Sequence) and not isinstance(item, str | bytes) and 2 <= len(item) <= 3:
        fields = {"path": item[0], **document_body(item[1], item[2] if len(item) == 3 else None, None)}
    else:
        raise BadQuery(f"{item!r:.80} is nothing to push. Give (path, content), (path, content, metadata) or a mapping with `path`.")
    try:
        return json.dumps({"id": uuid.uuid4().hex, **fields}, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise BadQuery(f"The document for path {fields.get('path')!r} is not JSON: {error}.") from None


class Portions:
    """Collects lines until they are a portion."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._size = 0

    def add(self, item: Item) -> list[bytes]:
        """The portion that was full before this item; [] while there is none."""
        line = line_of(item)
        full = self.rest() if self._held and (self._size + len(line) > PORTION_BYTES or len(self._held) == PORTION_LINES) else []
        self._held.append(line)
        self._size += len(line)
        return full

    def rest(self) -> list[bytes]:
        """What is left."""
        held, self._held, self._size = self._held, [], 0
        return held


def portions(items: Iterable[Item]) -> Iterator[list[bytes]]:
    """Lines in portions for one request each."""
    collected = Portions()
    for item in items:
        if portion := collected.add(item):
            yield portion
    if portion := collected.rest():
        yield portion


async def portions_async(items: "Iterable[Item] | AsyncIterable[Item]") -> AsyncIterator[list[bytes]]:
    """The same of items that may come one by one."""
    if not isinstance(items, AsyncIterable):
        for portion in portions(items):
            yield portion
        return
    collected = Portions()
    async for item in items:
        if portion := collected.add(item):
            yield portion
    if portion := collected.rest():
        yield portion


class Joined:
    """The answers of portions, whose lines are counted over all of them."""

    def __init__(self) -> None:
        self._before = 0

    def placed(self, n_lines: int, answer: BulkAnswer) -> BulkAnswer:
        """The answer of the next portion, of so many lines."""
        before, self._before = self._before, self._before + n_lines
        return answer.model_copy(
            update={
                "errors": tuple(e.model_copy(update={"line": before + e.line}) for e in answer.errors),
                "lines": tuple(line.model_copy(update={"line": before + line.line}) for line in answer.lines),
            }
        )


def joined(corpus: str, answers: Iterable[BulkAnswer]) -> BulkAnswer:
    """The answers of several portions as one."""
    total = BulkAnswer(corpus=corpus, accepted=0, failed=0, position=0)
    for answer in answers:
        total = BulkAnswer(
            corpus=corpus,
            accepted=total.accepted + answer.accepted,
            failed=total.failed + answer.failed,
            position=max(total.position, answer.position),
            searchable=answer.searchable,
            generation=answer.generation,
            errors=total.errors + answer.errors,
            left_out=total.left_out + answer.left_out,
            lines=total.lines + answer.lines,
        )
    return total


def parameters(wait: bool, create: bool, layers: Sequence[str] | None, timeout_s: float) -> PushParameters:
    """The arguments of a push as they stand in its address."""
    return PushParameters(
        wait="searchable" if wait else "durable",
        timeout_ms=max(1, round(1e3 * timeout_s)),
        create=create,
        layers=None if layers is None else ",".join(layers),
    )
