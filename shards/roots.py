"""Where a source is, and its failures put into words: what, where, and what to do."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shards.errors import NotFound, SourceError
from shards.retries import is_transient


@dataclass(frozen=True, slots=True)
class Source:
    """One root of a corpus.

    url: a local folder or file, `git+file:///repository@revision`, an archive (`zip:///path/x.zip`, `tar://::s3://b/x.tar.gz`),
        or any URL of fsspec (`s3://bucket/prefix`, `https://host/folder/`).
    include, exclude: globs over paths relative to the root (`shards.plan.Glob`); no include means all, exclude wins.
    options: fsspec's storage options, e.g. {"anon": true}; of an archive those of the place where it lies.
    """

    name: str
    url: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)  # a mapping; sources are keys of caches

    @property
    def scheme(self) -> str:
        """The URL's first scheme; "file" for a plain path."""
        return self.url.split("://", 1)[0] if "://" in self.url else "file"


def encode_path(path: str) -> bytes:
    """A listed path as the bytes it had on disk."""
    return path.encode("utf-8", "surrogateescape")


def decode_path(path: bytes) -> str:
    """The bytes of a path as text; those that are not UTF-8 become surrogate escapes."""
    return path.decode("utf-8", "surrogateescape")


class Damaged(Exception):
    """A file whose bytes are not what its archive or repository says."""


# fsspec's protocols whose package is not among our own; others name theirs in fsspec's error.
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs", "adl": "adlfs"}
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError", "DefaultCredentialsError")


def kind_of_failure(error: BaseException) -> str:
    """One word for counting: vanished, forbidden, unreachable, damaged or unreadable."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError, KeyError)):  # KeyError: how archives say it
        return "vanished"
    if isinstance(error, PermissionError):
        return "forbidden"
    if isinstance(error, (Damaged, zipfile.BadZipFile)):
        return "damaged"
    return "unreachable" if is_transient(error) else "unreadable"


def named(source: Source, path: str) -> str:
    """How an error names a file."""
    return f"{path!r} of source {source.url!r}"


def unreadable(source: Source, path: str, error: Exception) -> SourceError | NotFound:
    """Why a file cannot be read, and the remedy."""
    name, kind = named(source, path), kind_of_failure(error)
    if kind == "vanished":
        return NotFound(f"{name} is gone since it was listed. List the source again.")
    if kind == "forbidden":
        return SourceError(f"{name} may not be read ({said(error)}). Grant access, or exclude it.", reason=kind)
    if kind == "unreachable":
        message = f"{name} cannot be read: {said(error)}, also when tried again. Run again when its server answers."
        return SourceError(message, reason=kind)
    if kind == "damaged":
        return SourceError(f"{name} is damaged: {said(error)}. Restore it there, or exclude it.", reason=kind)
    return SourceError(f"{name} cannot be read: {said(error)}. Try again, or exclude it.", reason=kind)


def unlisted(source: Source, error: Exception) -> SourceError:
    """Why the root cannot be listed, and the remedy."""
    url, reason, kind = source.url, said(error), type(error).__name__
    if isinstance(error, SourceError):
        return error
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return SourceError(f"Source {url!r} does not exist. Check the spelling; nothing was deleted from the index.")
    if kind in _NO_CREDENTIALS:
        return SourceError(
            f"Source {url!r} needs credentials ({reason}). Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE; for "
            "other clouds their own variables) where this runs, or pass the option anon=true for a public bucket."
        )
    if isinstance(error, PermissionError):
        return SourceError(f"Source {url!r} may not be listed ({reason}). Grant this user read access to it.", reason="forbidden")
    if isinstance(error, ImportError):
        package = next((_PACKAGES[s] for s in _PACKAGES if f"{s}://" in url), None)
        remedy = f"Run `pip install {package}` where the job's workers run" if package else reason
        return SourceError(f"Source {url!r} needs a package that is not installed. {remedy}.")
    if isinstance(error, ValueError) and "rotocol not known" in reason:
        from fsspec import available_protocols

        schemes = ", ".join(sorted({*available_protocols(), "git+file"} - {"git"}))
        return SourceError(f"Source {url!r}: unknown protocol. Choose from: {schemes}.")
    if is_transient(error):
        return SourceError(
            f"Source {url!r} cannot be listed: {kind}: {reason}, also when tried again. Run again when its server answers; nothing "
            "was published.",
            reason="unreachable",
        )
    return SourceError(f"Source {url!r} cannot be listed: {kind}: {reason}. Check the URL and that its server answers.")


def said(error: BaseException) -> str:
    """What an exception says, without its full stop."""
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).rstrip(".") or type(error).__name__
