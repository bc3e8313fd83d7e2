"""Sources on web servers: pages of links, as Apache, nginx and Python's http.server make them of folders, and single files.

A URL that ends in "/" is such a page; any other is one file. Only links below the page's own address are followed; sizes and marks
are asked for with HEAD, because what pages print is rounded.
"""

import errno
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes, urljoin, urlsplit, urlunsplit

from shards.listing import WEAK, Found, Listed, Problem, datetime_ns
from shards.remote import PARALLEL, open_file_system
from shards.retries import GIVE_UP, Retry, is_transient
from shards.roots import Source, decode_path, encode_path, kind_of_failure, said, unlisted

_PAGE_BYTES = 64 << 20  # a page of a million links
_MAX_FOLDERS = 1_000_000  # a server may invent folders without end
_CONNECT_S, _SILENT_S = 10, 30  # a server that accepts, or sends, nothing for so long is down
_UNRESERVED = "/-._~!$&'()*+,;=:@"


class _Answer(NamedTuple):
    url: str  # after redirects
    headers: Mapping[str, str]
    body: bytes


class WebFolder:
    """What lies below a page of links. root: its address, ends in "/"; only: the single file's name, else ""."""

    parallel = PARALLEL

    def __init__(self, source: Source, retry: Retry):
        """Raises SourceError. Nothing is asked of the server yet."""
        self.source, self.retry = source, retry
        try:
            self.fs, url = open_file_system(source.url, {"encoded": True} | dict(source.options))
        except Exception as error:
            raise unlisted(source, error) from error
        self.url = quote(url, safe=_UNRESERVED + "%?#[]")
        parts = urlsplit(self.url)
        path = parts.path or "/"
        self.only = decode_path(unquote_to_bytes(path.rpartition("/")[2]))
        self.root = urlunsplit((parts.scheme, parts.netloc, path[: path.rfind("/") + 1], "", ""))

    def find(self) -> Found:
        """A file of which nothing can be learnt is a problem and no deletion; several in a row fail the listing: the server is down."""
        found = Found()
        paths = [self.only] if self.only else self._links(found)
        pool = ThreadPoolExecutor(PARALLEL, "sondage-list")
        n_silent = 0
        try:
            for path, asked in zip(paths, pool.map(self._asked, paths), strict=True):
                if isinstance(asked, Listed):
                    found.files.append(asked)
                    n_silent = 0
                    continue
                n_silent += 1
                if self.only or n_silent == GIVE_UP:
                    raise asked
                found.problems.append(Problem(path, said(asked), kind_of_failure(asked)))
                found.incomplete.append(path)
        finally:
            pool.shutdown(cancel_futures=True)
        return found

    def read(self, path: str, limit: int) -> bytes:
        return self._get(self._address(path), limit).body

    def close(self) -> None:
        """fsspec closes its connections with the filesystem."""

    # --- pages -------------------------------------------------------------------------------------------------------------

    def _links(self, found: Found) -> list[str]:
        """The paths of all files, folder by folder, a level at a time. One that fails is a problem, its files no deletions."""
        paths: dict[str, None] = {}
        level, seen = [""], {""}
        with ThreadPoolExecutor(PARALLEL, "sondage-list") as pool:
            while level:
                below: list[str] = []
                for folder, links in zip(level, pool.map(self._page, level), strict=True):
                    if isinstance(links, Exception):
                        if not folder:
                            raise links
                        found.problems.append(Problem(folder, said(links), kind_of_failure(links)))
                        found.incomplete.append(folder)
                        continue
                    for path in links:
                        if path is None:
                            found.counters["skipped_odd_names"] += 1
                        elif not path.endswith("/"):
                            paths[path] = None
                        elif path not in seen:
                            seen.add(path)
                            below.append(path)
                if len(seen) > _MAX_FOLDERS:
                    raise OSError(f"more than {_MAX_FOLDERS:,} folders; the server may invent them: exclude what loops")
                level = below
        return list(paths)

    def _page(self, folder: str) -> list[str | None] | Exception:
        """What a page links to below itself: paths; None for a name that cannot be one."""
        try:
            asked = self._address(folder)
            answer = self.retry(lambda: self._get(asked, _PAGE_BYTES))
            if urlsplit(answer.url).path != urlsplit(asked).path:
                raise OSError(f"leads to {answer.url} instead of a page of links")  # to a login, for one: nothing is deleted
            kind = answer.headers.get("Content-Type", "text/html").partition(";")[0].strip()
            if kind not in ("text/html", "application/xhtml+xml"):
                raise OSError(f"is {kind} instead of a page of links")
            if len(answer.body) > _PAGE_BYTES:
                raise OSError(f"is a page of more than {_PAGE_BYTES:,} bytes")
            return [self._path(link) for link in _links_of(answer.body, answer.url)]
        except Exception as error:  # aiohttp's, and whatever the options bring in
            return error

    def _path(self, link: str) -> str | None:
        raw = link[len(urlsplit(self.root).path) :]
        path = decode_path(unquote_to_bytes(raw))
        # An escaped slash or dots would mean another file when the path is made an address again.
        odd = path.count("/") != raw.count("/") or {"", ".", ".."} & set(path.rstrip("/").split("/"))
        return None if odd else path

    def _address(self, path: str) -> str:
        return self.url if self.only else self.root + quote(encode_path(path), safe=_UNRESERVED)

    def _asked(self, path: str) -> Listed | Exception:
        """A file with what its server says of it. Nothing, where it refuses HEAD or the link is dead: reading will tell."""
        try:
            url = self._address(path)
            headers = self.retry(lambda: self._request("HEAD", url, 0)).headers
        except Exception as error:  # aiohttp's, and whatever the options bring in
            if is_transient(error) or (self.only and not isinstance(error, (NotImplementedError, PermissionError))):
                return error
            return Listed(path, -1, 0)
        mtime_ns = _time_ns(headers.get("Last-Modified"))
        etag = headers.get("ETag", "").removeprefix(WEAK).strip('"')
        # nginx and Apache make it of time and size: it proves what a time proves, no more.
        etag = WEAK + etag if etag and mtime_ns else etag
        size = headers.get("Content-Length", "")
        return Listed(path, int(size) if size.isdigit() and "Content-Encoding" not in headers else -1, mtime_ns, etag)

    # --- requests ----------------------------------------------------------------------------------------------------------

    def _get(self, url: str, limit: int) -> _Answer:
        return self._request("GET", url, limit)

    def _request(self, method: str, url: str, limit: int) -> _Answer:
        from fsspec.asyn import sync

        return sync(self.fs.loop, self._asked_of_server, method, url, limit)

    async def _asked_of_server(self, method: str, url: str, limit: int) -> _Answer:
        import aiohttp
        from yarl import URL

        session = await self.fs.set_session()
        given: dict[str, Any] = {
            # Compressed on the way, a file's size would not be its own.
            "headers": {"Accept-Encoding": "identity"},
            "timeout": aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENT_S),
            "allow_redirects": True,
        }
        async with session.request(method, URL(url, encoded=True), **(given | self._own_options())) as answer:
            if answer.status in (404, 410):
                raise FileNotFoundError(errno.ENOENT, f"the server says {answer.status}", url)
            if answer.status in (401, 403):
                raise PermissionError(errno.EACCES, f"the server says {answer.status} {answer.reason}", url)
            if method == "HEAD" and answer.status in (405, 501):
                raise NotImplementedError(url)  # by the server, which says so: `_asked` does without
            answer.raise_for_status()
            parts, size = [], 0
            while size <= limit and (part := await answer.content.read(1 << 20)):
                parts.append(part)
                size += len(part)
            return _Answer(str(answer.url), answer.headers, b"".join(parts))

    def _own_options(self) -> dict[str, Any]:
        """What the caller gave for each request (headers, auth, proxy, ssl), without what fsspec keeps there for itself."""
        return {key: value for key, value in self.fs.kwargs.items() if key not in ("self", "encoded")}


class _Page(HTMLParser):
    """Collects the links of a page, and the base that they are relative to."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[str] = []
        self.base = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = next((value for name, value in attrs if name == "href" and value), None)
        if href and tag == "a":
            self.links.append(href)
        elif href and tag == "base" and not self.base:
            self.base = href


def _links_of(body: bytes, url: str) -> list[str]:
    """The addresses' paths of links to what lies below a page, in order; sorted views of the page itself (`?C=N`) are none."""
    page = _Page()
    page.feed(body.decode("utf-8", "surrogateescape"))
    here = urlsplit(url)
    base = urljoin(url, page.base)
    links = []
    for href in page.links:
        try:
            # Escapes of what is not ASCII, as browsers make them.
            parts = urlsplit(urljoin(base, quote(encode_path(href.strip()), safe=_UNRESERVED + "%?#[]")))
        except ValueError:
            continue
        if parts.query or parts.netloc != here.netloc or parts.scheme not in ("http", "https"):
            continue
        if parts.path.startswith(here.path) and parts.path != here.path:
            links.append(parts.path)
    return links


def _time_ns(text: str | None) -> int:
    if not text:
        return 0
    try:
        return datetime_ns(parsedate_to_datetime(text))
    except (ValueError, TypeError):
        return 0
