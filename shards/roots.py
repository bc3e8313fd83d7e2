"""Where a source is: its URL resolved to a local folder or an fsspec filesystem, and its failures put into words."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shards.errors import NotFound, SourceError

_ARCHIVES = ("zip", "tar")


@dataclass(frozen=True, slots=True)
class Source:
    """One root of a corpus.

    url: a local folder or file, or any URL of fsspec (`s3://bucket/prefix`, `zip:///path/x.zip`, `zip://inner::s3://b/x.zip`).
    include, exclude: globs over paths relative to the root (`shards.plan.Glob`); no include means all, exclude wins.
    options: fsspec's storage options, e.g. {"anon": true}.
    """

    name: str
    url: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)  # a mapping; sources are keys of caches


def encode_path(path: str) -> bytes:
    """A listed path as the bytes it had on disk."""
    return path.encode("utf-8", "surrogateescape")


def decode_path(path: bytes) -> str:
    """The bytes of a path as text; those that are not UTF-8 become surrogate escapes."""
    return path.decode("utf-8", "surrogateescape")


class Root:
    """A source's URL, resolved: a local folder (`fs` is None, `folder` ends in "/") or an fsspec filesystem and a prefix.

    only: the single file's name where the URL is one, else "". is_web: http(s), where a URL that ends in "/" is a page of
    links to list, and any other URL is one file.
    """

    def __init__(self, source: Source):
        self.source = source
        self.fs: Any = None
        self.folder = b""
        self.prefix = ""
        self.only = ""
        self.is_web = False
        url = source.url
        scheme = url.split("://", 1)[0] if "://" in url else "file"
        if scheme in ("file", "local") and "::" not in url:
            self._resolve_local(os.path.expanduser(url.split("://", 1)[-1]))
        else:
            self._resolve_remote(_chained(url, scheme))

    def _resolve_local(self, path: str) -> None:
        folder = os.fsencode(os.path.abspath(path))
        try:
            mode = os.stat(folder).st_mode
        except (OSError, ValueError) as error:
            raise self.unlisted(error) from error
        if not stat.S_ISDIR(mode):
            if not stat.S_ISREG(mode):
                raise SourceError(f"Source {self.source.url!r} is neither a file nor a folder. Name one of these.")
            folder, name = os.path.split(folder)
            self.only = decode_path(name)
        self.folder = folder.rstrip(b"/") + b"/"

    def _resolve_remote(self, url: str) -> None:
        import fsspec

        try:
            # A cached listing, or a cached filesystem that holds an archive's old directory, would hide changes.
            self.fs, path = fsspec.core.url_to_fs(url, skip_instance_cache=True, use_listings_cache=False, **self.source.options)
            self.is_web = "http" in self.fs.protocol
            path = path if self.is_web else path.rstrip("/")
            is_file = not path.endswith("/") if self.is_web else bool(path) and self.fs.info(path)["type"] == "file"
        except Exception as error:  # whatever the backend raises: botocore, aiohttp, zipfile errors
            raise self.unlisted(error) from error
        if is_file:
            folder, _, self.only = path.rpartition("/")
            path = folder
        path = path.rstrip("/")
        self.prefix = path + "/" if path else ""

    def close(self) -> None:
        """Closes an archive and the file it lies in; other filesystems need nothing."""
        opened = getattr(self.fs, "of", None)
        if opened is not None:
            if hasattr(self.fs, "close"):
                self.fs.close()
            opened.close()

    def name(self, path: str) -> str:
        """How an error names a file."""
        return f"{path!r} of source {self.source.url!r}"

    def unreadable(self, path: str, error: Exception) -> SourceError | NotFound:
        if isinstance(error, (FileNotFoundError, NotADirectoryError, KeyError)):  # KeyError: how archives say it
            return NotFound(f"{self.name(path)} is gone since it was listed. List the source again.")
        if isinstance(error, PermissionError):
            return SourceError(f"{self.name(path)} may not be read ({said(error)}). Grant access, or exclude it.")
        return SourceError(f"{self.name(path)} cannot be read: {said(error)}. Try again, or exclude it.")

    def unlisted(self, error: Exception) -> SourceError:
        """Why the root cannot be listed, and the remedy."""
        url, reason = self.source.url, said(error)
        kind = type(error).__name__
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return SourceError(f"Source {url!r} does not exist. Check the spelling; nothing was deleted from the index.")
        if kind in ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"):
            return SourceError(
                f"Source {url!r} needs credentials ({reason}). Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) "
                "where this runs, or pass the option anon=true for a public bucket."
            )
        if isinstance(error, PermissionError):
            return SourceError(f"Source {url!r} may not be listed ({reason}). Grant this user read access to it.")
        if isinstance(error, ImportError):
            return SourceError(f"Source {url!r} needs a package that is not installed: {reason}.")
        if isinstance(error, ValueError) and "rotocol not known" in reason:
            from fsspec import available_protocols

            return SourceError(f"Source {url!r}: unknown protocol. Choose from: {', '.join(sorted(available_protocols()))}.")
        return SourceError(f"Source {url!r} cannot be listed: {kind}: {reason}. Check the URL and that its server answers.")


def said(error: Exception) -> str:
    """What an exception says, without its full stop."""
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).rstrip(".") or type(error).__name__


def _chained(url: str, scheme: str) -> str:
    """fsspec's way to write an archive: `zip:///path/x.zip` and `zip://x.zip` become `zip://::file:///path/x.zip`."""
    if scheme not in _ARCHIVES or "::" in url:
        return url
    inner = url[len(scheme) + 3 :]
    if "://" not in inner:
        inner = "file://" + os.path.abspath(os.path.expanduser(inner))
    return f"{scheme}://::{inner}"
