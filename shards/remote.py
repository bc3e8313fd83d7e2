"""Sources that fsspec reaches, S3 first: listed flat where the backend can, and read as the listing names them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shards.errors import SourceError
from shards.listing import Found, Listed, Problem, datetime_ns, etag_of, mtime_ns_of, size_of
from shards.retries import Retry
from shards.roots import Source, kind_of_failure, said, unlisted

# Object stores answer one request in tens of milliseconds; bounded, because each reading holds a file.
PARALLEL = 32
# One place tries again: `shards.opening` for reads, the listings below for pages. botocore's four and s3fs's five attempts
# within each of ours would make minutes of a server that is down.
_NO_RETRIES = {"retries": {"total_max_attempts": 1}}


def open_file_system(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """An fsspec filesystem and the path within it, for a URL of any protocol, without any cache.

    A cached listing, or a cached filesystem that holds an archive's old directory, would hide changes.
    """
    import fsspec

    given = dict(options)
    if is_s3 := url.split("://", 1)[0] in ("s3", "s3a"):
        given["config_kwargs"] = _NO_RETRIES | given.get("config_kwargs", {})
    fs, path = fsspec.core.url_to_fs(url, skip_instance_cache=True, use_listings_cache=False, **given)
    if is_s3:
        fs.retries = 1
    return fs, path


class RemoteFiles:
    """A prefix of an fsspec filesystem. prefix: empty or with its slash; only: the single file's name, else ""."""

    def __init__(self, source: Source, retry: Retry):
        """Raises SourceError where the URL itself is wrong or nothing answers."""
        self.source, self.retry = source, retry
        self.only = ""
        try:
            self.fs, path = open_file_system(source.url, source.options)
            self.parallel = PARALLEL if self.fs.async_impl else 1
            path = path.rstrip("/")
            if path and retry(lambda: self._is_file(path)):
                path, _, self.only = path.rpartition("/")
        except Exception as error:  # whatever the backend raises: botocore, aiohttp
            raise unlisted(source, error) from error
        self.prefix = path + "/" if path else ""

    def _is_file(self, path: str) -> bool:
        return self.fs.info(path)["type"] == "file"

    def find(self) -> Found:
        found = Found()
        if self.only:
            infos: Iterable[Mapping[str, Any]] = [self.retry(lambda: self.fs.info(self.prefix + self.only))]
        elif self._lists_flat():
            infos = self.retry(lambda: self.fs.find(self.prefix.rstrip("/"), withdirs=False, detail=True)).values()
        else:
            infos = self._walk(found)
        for info in infos:
            path = info["name"].removeprefix(self.prefix)
            if path and info["type"] != "directory" and not path.endswith("/"):  # object stores have empty keys "folder/"
                found.files.append(Listed(path, size_of(info), mtime_ns_of(info), etag_of(info)))
        return found

    def _lists_flat(self) -> bool:
        """Whether the backend has a listing of its own of everything below a prefix."""
        from fsspec.asyn import AsyncFileSystem
        from fsspec.spec import AbstractFileSystem

        kind = type(self.fs)
        own = kind._find is not AsyncFileSystem._find if self.fs.async_impl else kind.find is not AbstractFileSystem.find
        return bool(own)

    def _walk(self, found: Found) -> Iterator[Mapping[str, Any]]:
        """Folder by folder, because fsspec's own walk leaves failing folders out, and their files would pass for deleted."""
        folders = [self.prefix]
        seen = set(folders)
        while folders:
            folder = folders.pop()
            try:
                rows = self.retry(lambda folder=folder: self.fs.ls(folder, detail=True))
            except Exception as error:  # backends raise what they like
                if folder == self.prefix:
                    raise
                path = folder.removeprefix(self.prefix)
                found.problems.append(Problem(path, said(error), kind_of_failure(error)))
                found.incomplete.append(path)
                continue
            for info in rows:
                below = info["name"].rstrip("/") + "/"
                if info["type"] != "directory":
                    yield info
                elif below not in seen and below.startswith(self.prefix):
                    seen.add(below)
                    folders.append(below)

    def read(self, path: str, limit: int) -> bytes:
        return self.fs.cat_file(self.prefix + path)

    def close(self) -> None:
        """fsspec closes its connections with the filesystem."""


class Bucket(RemoteFiles):
    """A prefix of an S3 bucket. Keys are taken as they are, also with `//`, `..` or `?versionId=`, which s3fs would interpret."""

    def __init__(self, source: Source, retry: Retry):
        super().__init__(source, retry)
        if not self.prefix and not self.only:
            raise SourceError(f"Source {source.url!r} names no bucket. Write s3://bucket/prefix.")
        self.bucket, _, self.key_prefix = self.prefix.partition("/")

    def find(self) -> Found:
        """Page by page; one that fails for good fails the listing, because whatever follows it would pass for deleted."""
        found = Found()
        prefix = self.key_prefix + self.only
        for item in self._items(prefix):
            path = item["Key"][len(self.key_prefix) :]
            if path and not path.endswith("/") and (not self.only or path == self.only):
                found.files.append(Listed(path, item["Size"], datetime_ns(item["LastModified"]), item["ETag"].strip('"')))
        if not found.files and self.key_prefix:
            raise FileNotFoundError(self.source.url)
        return found

    def _items(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        token: dict[str, str] = {}
        while True:
            page = self.retry(lambda token=token: self.fs.call_s3("list_objects_v2", Bucket=self.bucket, Prefix=prefix, **token))
            yield from page.get("Contents", ())
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def read(self, path: str, limit: int) -> bytes:
        from fsspec.asyn import sync

        return sync(self.fs.loop, self._read, self.key_prefix + path, limit)

    async def _read(self, key: str, limit: int) -> bytes:
        answer = await self.fs._call_s3("get_object", Bucket=self.bucket, Key=key)
        parts, size = [], 0
        async with answer["Body"] as body:
            # To the end: only then the client compares what came with what was announced.
            while size <= limit and (part := await body.read(min(1 << 20, limit + 1 - size))):
                parts.append(part)
                size += len(part)
        return b"".join(parts)
