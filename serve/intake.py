"""What is pushed as operations for the log, and how it is acknowledged: the same with and without HTTP."""

import asyncio
import re
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from serve.bodies import decode
from serve.problems import InvalidRequest, TooLarge, invalid, kind_of
from serve.push_schema import MAX_PATH_BYTES, BulkAnswer, LineAnswer, LineError, PushAnswer, PushedDocument, PushLine, PushParameters
from shards import given, metadata
from shards.errors import SondageError
from shards.formats.registry import format_of
from shards.images import ImageDocument, may_be_seen, read_image
from shards.journal import Receipt
from shards.pushlog import Operation, now_ns
from shards.reading import read_pdf
from shards.renditions import Rendition, Skipped, render

if TYPE_CHECKING:
    from serve.pushing import Pushes, Target

MAX_DOCUMENT_BYTES = 64 << 20  # as the index job's --max-file-bytes
THREAD_BYTES = 1 << 16  # larger documents are decoded and hashed in a thread
BULK_BYTES = 32 << 20  # of one bulk request that wait for the log at a time
MAX_ERRORS = 100

M = TypeVar("M", bound=BaseModel)


async def acknowledge(pushes: "Pushes", target: "Target", asked: PushParameters, pushed: Operation, left_out: list[str]) -> PushAnswer:
    """Have an operation logged, and where that was asked for, wait until it is searchable."""
    receipt = await receipt_of(pushes.submit(target, pushed))
    generation = await pushes.searchable(target.corpus, receipt.position, patience_s(asked))
    return PushAnswer(
        corpus=target.corpus,
        path=pushed.path,
        hash=pushed.hash.hex() or None,
        position=receipt.position,
        repeated=receipt.repeated,
        searchable=generation is not None,
        generation=generation,
        left_out=tuple(left_out),
    )


class Bulk:
    """One bulk request: its lines on their way into the log, and what became of them."""

    def __init__(self, pushes: "Pushes", target: "Target", each: bool):
        self.pushes, self.target, self.each = pushes, target, each
        self.accepted = self.failed = self.position = 0
        self._waiting: list[tuple[int, Operation, Future[Receipt]]] = []
        self._waiting_bytes = 0
        self._errors: list[LineError] = []
        self._left_out: list[str] = []
        self._lines: list[LineAnswer] = []

    async def take(self, number: int, line: bytes | SondageError) -> None:
        """One line, or what kept it from being read. Waits where much is under way."""
        try:
            if isinstance(line, SondageError):
                raise line
            asked = await off_loop(line, lambda: model_of(PushLine, decode(line, "line")))
            pushed, left_out = await off_loop(line, lambda: self._operation(asked), "" if asked.text is not None else asked.path)
            self._left_out += [f"line {number}: {what}" for what in left_out[: MAX_ERRORS - len(self._left_out)]]
        except SondageError as error:
            self._fail(number, error)
            return
        if self._waiting and self._waiting_bytes + pushed.cost_bytes > BULK_BYTES:
            await self.end()
        try:
            self._waiting.append((number, pushed, self.pushes.submit(self.target, pushed)))
            self._waiting_bytes += pushed.cost_bytes
        except SondageError as error:
            self._fail(number, error)

    def _operation(self, asked: PushLine) -> tuple[Operation, list[str]]:
        path = check_path(asked.path)
        if asked.op == "delete":
            return Operation(path, mtime_ns=time.time_ns(), id=asked.id), []
        return operation(self.target, path, content_of(asked), asked.metadata, asked.vectors, asked.id, asked.text is not None)

    async def end(self) -> None:
        """Wait until all lines taken are durable."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        for number, pushed, future in waiting:
            try:
                receipt = await receipt_of(future)
            except SondageError as error:
                self._fail(number, error)
                continue
            self.accepted += 1
            self.position = max(self.position, receipt.position)
            if self.each:
                self._lines.append(
                    LineAnswer(
                        line=number,
                        path=pushed.path,
                        hash=pushed.hash.hex() or None,
                        position=receipt.position,
                        repeated=receipt.repeated,
                    )
                )

    def _fail(self, number: int, error: SondageError) -> None:
        self.failed += 1
        if len(self._errors) < MAX_ERRORS:
            self._errors.append(LineError(line=number, kind=kind_of(type(error)), message=str(error), at=error.at))

    async def answer(self, asked: PushParameters) -> BulkAnswer:
        """What is told in the end: when all is durable and, where that was asked for, searchable."""
        await self.end()
        generation = await self.pushes.searchable(self.target.corpus, self.position, patience_s(asked)) if self.position else None
        return BulkAnswer(
            corpus=self.target.corpus,
            accepted=self.accepted,
            failed=self.failed,
            position=self.position,
            searchable=generation is not None,
            generation=generation,
            errors=tuple(sorted(self._errors, key=lambda e: e.line)),
            left_out=tuple(self._left_out),
            lines=tuple(self._lines),
        )


def operation(
    target: "Target", path: str, content: bytes, said: dict[str, Any], vectors: dict[str, Any], key: str, is_text: bool = False
) -> tuple[Operation, list[str]]:
    """A document to be put, and what of its metadata had to be left out. is_text: whether the caller gave a text, so that it is of no
    format whatever its path ends with. Raises InvalidRequest for what has no text, BadQuery for vectors that do not fit the corpus."""
    if len(content) > MAX_DOCUMENT_BYTES:
        raise TooLarge(f"The document has {len(content):,} bytes; at most {MAX_DOCUMENT_BYTES:,} are taken. Split it.")
    is_image = target.is_image is not None and target.is_image(path)
    known = None if is_text else format_of(path)
    if known is not None and known.is_archive and known.begins(content):
        raise InvalidRequest("An archive is many documents. Push its members, or have `sondage index` read it.", at="the document")
    seen = (read_image(content) or read_pdf(target.extractors, content)) if is_image else None
    rendition = seen or (target.extractors.read(known, content) if known is not None else None) or render(content)
    if isinstance(rendition, Skipped):
        remedy = "Push its text instead."
        if not is_image and may_be_seen(path):
            remedy = "To index images or pages of PDF files, give the corpus a layer that looks at them, such as `image`."
        raise InvalidRequest(f"Nothing in this document can be read as text: {rendition.reason}. {remedy}", at="the document")
    own = given.parse(vectors, target.dims) if vectors else {}
    media = b""
    if isinstance(rendition, Rendition):
        own_words, odd = metadata.front_matter(rendition.text, path)
    else:
        own_words, odd = rendition.facts, []
        if seen is not None:
            media = rendition.media if isinstance(rendition, ImageDocument) else content
    kept, left_out = metadata.clean(said)
    made = Operation(
        path=path,
        hash=given.identity(rendition.hash, own) if own else rendition.hash,
        text=rendition.text,
        kind=rendition.kind,
        size_bytes=len(content),
        mtime_ns=now_ns(),
        metadata=own_words | kept,  # what is said of it wins over what it says itself, as with sidecars
        vectors=own,
        media=media,
        id=key,
    )
    return made, odd + left_out


def check_path(path: str) -> str:
    """The path itself, if a pushed document may lie there. Raises InvalidRequest."""
    if not path:
        found = "is empty"
    elif len(path.encode("utf-8", "surrogatepass")) > MAX_PATH_BYTES:
        found = f"has more than {MAX_PATH_BYTES:,} bytes"
    elif re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", path):
        found = "has a control character, or half of one character"
    elif any(part in ("", ".", "..") for part in path.split("/")):
        found = "has an empty part, `.` or `..`"
    else:
        return path
    raise InvalidRequest(f"Path {path[:80]!r} {found}. Use parts separated by single slashes, such as tools/grep/1.txt.", at="path")


async def off_loop(body: bytes, work: Callable[[], Any], path: str = "") -> Any:
    """Work on a body, in a thread where that is worth it: where it is large, or read by another process, as the path tells."""
    return work() if len(body) < THREAD_BYTES and format_of(path) is None else await asyncio.to_thread(work)


async def receipt_of(future: "Future[Receipt]") -> Receipt:
    """A receipt. Whoever stops waiting does not stop the write: others ride in the same entry."""
    return await asyncio.shield(asyncio.wrap_future(future))


def patience_s(asked: PushParameters) -> float:
    return asked.timeout_ms / 1e3 if asked.wait == "searchable" else 0.0


def model_of(kind: type[M], value: Any) -> M:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise invalid(error.errors(), kind) from None


def content_of(document: PushedDocument) -> bytes:
    try:
        return document.content()
    except ValueError as error:
        raise InvalidRequest(f"base64: {error}.", at="base64") from None
