"""The store on S3 and what speaks its protocol: whole-object writes, and exclusive creates by `If-None-Match: *`."""

import contextlib
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from shards.errors import BadSpec, StoreError
from shards.store import Names, Store, check_name, check_prefix

logger = logging.getLogger(__name__)

_WRITER = "sondage-writer"  # object metadata: which call wrote it
# A conditional write that met another one in flight; S3 asks to send it again. Neither botocore nor s3fs does.
_CONFLICTS = ("ConditionalRequestConflict", "OperationAborted")
_CONFLICT_WAITS_S = (0.05, 0.1, 0.2, 0.4, 0.8)


class S3Options(BaseModel):
    """How to reach the bucket. Without key and secret, boto's own chain is asked (profile, container or instance role)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    endpoint_url: str | None = None
    key: str | None = None
    secret: str | None = None
    token: str | None = None
    region: str | None = None


def open_s3(url: str, options: Mapping[str, Any]) -> "S3Store":
    """The store at s3://bucket/prefix. Raises BadSpec."""
    bucket, _, prefix = url.removeprefix("s3://").strip("/").partition("/")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket):
        raise BadSpec(f"Store URL {url!r} has no valid bucket name. Write s3://bucket/prefix.")
    try:
        parsed = S3Options(**options)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False))
        raise BadSpec(f"Store {url!r}: {problems}. Its options are: {', '.join(S3Options.model_fields)}.") from None
    if prefix:
        check_name(prefix, f"s3://{bucket}")
    return S3Store(bucket, prefix, parsed)


def _file_system(options: S3Options) -> Any:
    import s3fs

    return s3fs.S3FileSystem(
        endpoint_url=options.endpoint_url,
        key=options.key,
        secret=options.secret,
        token=options.token,
        client_kwargs={"region_name": options.region} if options.region else {},
        config_kwargs={"retries": {"mode": "standard", "max_attempts": 5}},  # bounded backoff; "legacy" waits up to 15 s
        use_listings_cache=False,  # a stale listing would hide the newest generation
        skip_instance_cache=True,
    )


class S3Store(Store):
    """A prefix of a bucket. Transient failures are retried by botocore and s3fs."""

    parallel = 16  # a request takes 20 to 50 ms on AWS and hardly any CPU

    def __init__(self, bucket: str, prefix: str, options: S3Options, file_system: Any = None):
        self.bucket = bucket
        self.options = options
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._fs = file_system or _file_system(options)

    def __reduce__(self) -> Any:
        return S3Store, (self.bucket, self._prefix.rstrip("/"), self.options)

    def _key(self, name: str) -> str:
        check_name(name, self.url)
        return self._prefix + name

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        path = f"{self.bucket}/{self._key(name)}"
        if end is not None and end <= (start or 0):
            self.size(name)
            return b""
        with self._errors("read", name):
            try:
                # One GET. By default s3fs asks for the size first, to cut large reads up; who reads those here passes ranges.
                return self._fs.cat_file(path, start=start, end=end, max_concurrency=1)
            except OSError as error:
                if _code(error) == "InvalidRange":  # starts at or after the end
                    return b""
                raise

    def write(self, name: str, data: bytes | memoryview) -> None:
        key = self._key(name)
        with self._errors("write", name):
            _again_on_conflict(lambda: self._fs.pipe_file(f"{self.bucket}/{key}", bytes(data)))

    def create(self, name: str, data: bytes) -> None:
        key = self._key(name)
        writer = uuid.uuid4().hex

        def put() -> None:
            self._fs.pipe_file(f"{self.bucket}/{key}", bytes(data), mode="create", Metadata={_WRITER: writer})

        with self._errors("create", name):
            try:
                _again_on_conflict(put)
            except OSError as error:
                if not isinstance(error, FileExistsError) and _code(error) not in ("PreconditionFailed", "412"):
                    raise
                # botocore repeats a request whose answer was lost, and the repetition then meets our own object.
                if self._head(key)["Metadata"].get(_WRITER) != writer:
                    raise self._taken(name) from None

    def list(self, prefix: str = "") -> Names:
        check_prefix(prefix, self.url)
        with self._errors("list", prefix):
            keys = [item["Key"] for page in self._pages(prefix) for item in page.get("Contents", ())]
        cut = len(self._prefix)
        return sorted(key[cut:] for key in keys if not key.endswith("/"))  # consoles make "folders" as empty objects

    def folders(self, folder: str = "") -> Names:
        if folder:
            check_name(folder, self.url)
        inside = f"{folder}/" if folder else ""
        with self._errors("list", folder):
            found = [item["Prefix"] for page in self._pages(inside, Delimiter="/") for item in page.get("CommonPrefixes", ())]
        return sorted(prefix[len(self._prefix + inside) : -1] for prefix in found)

    def _pages(self, prefix: str, **extra: str) -> Iterator[Mapping[str, Any]]:
        while True:
            page = self._fs.call_s3("list_objects_v2", Bucket=self.bucket, Prefix=self._prefix + prefix, **extra)
            yield page
            if not page.get("IsTruncated"):
                return
            extra["ContinuationToken"] = page["NextContinuationToken"]

    def size(self, name: str) -> int:
        key = self._key(name)
        with self._errors("read", name):
            return self._head(key)["ContentLength"]

    def _head(self, key: str) -> Mapping[str, Any]:
        return self._fs.call_s3("head_object", Bucket=self.bucket, Key=key)

    def delete(self, name: str) -> None:
        key = self._key(name)
        with self._errors("delete", name):
            self._fs.call_s3("delete_object", Bucket=self.bucket, Key=key)

    def child(self, folder: str) -> "S3Store":
        return S3Store(self.bucket, self._key(folder), self.options, self._fs)

    @contextlib.contextmanager
    def _errors(self, action: str, name: str) -> Iterator[None]:
        from aiohttp import ClientError  # s3fs lets it through when a body breaks off once too often
        from botocore.exceptions import BotoCoreError, NoCredentialsError
        from botocore.exceptions import ClientError as ServerError

        try:
            yield
        except (OSError, BotoCoreError, ClientError, ServerError) as error:
            code = _code(error)
            if isinstance(error, FileNotFoundError) and action == "read" and code != "NoSuchBucket":
                raise self._missing(name) from None
            if isinstance(error, FileNotFoundError):
                remedy = f"Create the bucket {self.bucket!r} first, or correct the store's URL."
            elif isinstance(error, PermissionError | NoCredentialsError):
                remedy = "Give key and secret of an account that may list, read, write and delete there."
            elif code == "NotImplemented":
                remedy = "This server lacks conditional writes (If-None-Match); upgrade it, or choose another store."
            else:
                remedy = f"Check that {self.options.endpoint_url or 'S3'} is reachable, then try again."
            raise StoreError(f"Cannot {action} {name!r} in store {self.url}: {error}. {remedy}") from error


def _code(error: BaseException) -> str:
    """S3's error code behind an error that s3fs has translated; "" if it came from elsewhere."""
    response = getattr(error, "response", None) or getattr(error.__cause__, "response", None) or {}
    return response.get("Error", {}).get("Code", "")


def _again_on_conflict(put: Callable[[], Any]) -> None:
    for wait_s in _CONFLICT_WAITS_S:
        try:
            put()
            return
        except OSError as error:
            if _code(error) not in _CONFLICTS:
                raise
            logger.debug("event=conflict wait_s=%s error=%s", wait_s, error)
            time.sleep(wait_s)
    put()
