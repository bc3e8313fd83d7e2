"""What is pushed and how it is acknowledged, as it crosses HTTP: one document, or many as lines of JSON."""

import base64
import binascii
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from serve.schema import Edge

MAX_PATH_BYTES = 1_024  # as S3 keys, so that what is pushed can also be files
MAX_ID_CHARS = 128

Id = Annotated[str, Field(max_length=MAX_ID_CHARS, description="names this operation: repeated with the same id it is performed once")]


class PushedDocument(Edge):
    """A document as JSON: its text, or its bytes in base64; exactly one of them."""

    text: str | None = None
    base64: str | None = None
    metadata: Annotated[dict[str, Any], Field(default_factory=dict, description="JSON values, to be shown and filtered by")]
    vectors: Annotated[dict[str, Any], Field(default_factory=dict, description="own vectors by space: a list, or a list of lists")]
    id: Id = ""

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        if (self.text is None) == (self.base64 is None):
            raise ValueError("give either `text` or `base64`")
        return self

    def content(self) -> bytes:
        """The bytes pushed. Raises ValueError for what is not base64."""
        if self.text is not None:
            return self.text.encode()
        try:
            return base64.b64decode(self.base64 or "", validate=True)
        except binascii.Error as error:
            raise ValueError(str(error)) from None


class PushLine(PushedDocument):
    """One line of a bulk push: a document put at a path, or a path emptied."""

    op: Literal["put", "delete"] = "put"
    path: str

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        if self.op == "delete":
            if self.text is not None or self.base64 is not None or self.metadata or self.vectors:
                raise ValueError("a delete has a path and perhaps an id, nothing else")
            return self
        if (self.text is None) == (self.base64 is None):
            raise ValueError("give either `text` or `base64`")
        return self


class PushAnswer(Edge):
    """An acknowledgement: what was pushed is durable, whatever happens now.

    hash: of the document, null for a delete. position: the log entry that holds the operation. repeated: an earlier request with this
    id had brought it. searchable: whether `generation`, which is served here, holds it; with ?wait=searchable false means that the time
    was up before, and that it will be. left_out: of the metadata, what cannot be stored, and why.
    """

    corpus: str
    path: str
    hash: str | None
    position: int
    repeated: bool = False
    searchable: bool = False
    generation: int | None = None
    left_out: tuple[str, ...] = ()


class LineError(Edge):
    """What was wrong with one line, counted from 1; the other lines are not concerned."""

    line: int
    kind: str
    message: str
    at: str | None = None


class LineAnswer(Edge):
    """What became of one line; fields as in `PushAnswer`."""

    line: int
    path: str
    hash: str | None
    position: int
    repeated: bool = False


class BulkAnswer(Edge):
    """accepted, failed: lines. position: the last log entry that holds one of them, 0 if none does. errors: of the first 100 that failed;
    left_out: likewise of metadata. lines: of each accepted one, where asked for."""

    corpus: str
    accepted: int
    failed: int
    position: int
    searchable: bool = False
    generation: int | None = None
    errors: tuple[LineError, ...] = ()
    left_out: tuple[str, ...] = ()
    lines: tuple[LineAnswer, ...] = ()


class PushParameters(Edge):
    """What stands behind the `?` of a push."""

    wait: Annotated[Literal["durable", "searchable"], Field(description="what the answer waits for")] = "durable"
    timeout_ms: Annotated[int, Field(ge=1, le=60_000, description="how long it waits for `searchable`")] = 5_000
    create: Annotated[bool, Field(description="make the corpus if there is none of this name")] = False
    layers: Annotated[str | None, Field(description="of the corpus that is made, separated by commas; implies create")] = None

    def to_create(self) -> list[str] | None:
        """The layers of a corpus that is to be made, none for the default ones; None where none is to be made."""
        return [part for part in (self.layers or "").split(",") if part] if self.create or self.layers is not None else None


class BulkParameters(PushParameters):
    """What stands behind the `?` of a bulk push."""

    each: Annotated[bool, Field(description="answer for each accepted line, with its hash and position")] = False
