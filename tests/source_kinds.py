"""Every kind of source as something that tests can write to: the same files in a folder, a bucket, an archive, a web server, git."""

import html
import http.server
import io
import os
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

Contents = Mapping[str, bytes]
BEGINNING = 1_600_000_000  # seconds; old enough to be trusted by their clocks


class Kind:
    """A source that holds `files`, in the way of its kind. url, options: as the index job gets them."""

    url: str
    options: Mapping[str, Any] = {}
    marked = True  # whether its listing tells which file changed

    def __init__(self) -> None:
        self.times: dict[str, int] = {}  # seconds
        self.files: dict[str, bytes] = {}

    def set(self, files: Contents) -> None:
        """Let the source hold these files. One with other content gets a later time; the others keep theirs."""
        for path, data in files.items():
            if self.files.get(path) != data:
                self.times[path] = max(self.times.values(), default=BEGINNING) + 10
        before, self.files = self.files, dict(files)
        self.change(before)

    def change(self, before: Contents) -> None:
        """Make the source hold `self.files` instead of `before`."""
        raise NotImplementedError  # each kind gives its own


class InFolder(Kind):
    def __init__(self, folder: Path):
        super().__init__()
        self.folder, self.url = folder, str(folder)
        folder.mkdir(parents=True)

    def change(self, before: Contents) -> None:
        for path in set(before) - set(self.files):
            (self.folder / path).unlink()
        for path, data in self.files.items():
            target = self.folder / path
            if before.get(path) != data:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(data)
            os.utime(target, (self.times[path], self.times[path]))


class InMemory(Kind):
    def __init__(self, name: str):
        import fsspec

        super().__init__()
        self.fs, self.name, self.url = fsspec.filesystem("memory"), name, f"memory://{name}"

    def change(self, before: Contents) -> None:
        for path in set(before) - set(self.files):
            self.fs.rm_file(f"/{self.name}/{path}")
        for path, data in self.files.items():
            self.fs.pipe_file(f"/{self.name}/{path}", data)
            self.fs.store[f"/{self.name}/{path}"].created = datetime.fromtimestamp(self.times[path], UTC)


class InBucket(Kind):
    def __init__(self, options: Mapping[str, str], bucket: str, prefix: str = "p"):
        import s3fs

        super().__init__()
        self.fs = s3fs.S3FileSystem(**options, skip_instance_cache=True, use_listings_cache=False)
        self.bucket, self.prefix, self.options = bucket, prefix, options
        self.url = f"s3://{bucket}/{prefix}"

    def change(self, before: Contents) -> None:
        for path in set(before) - set(self.files):
            self.fs.call_s3("delete_object", Bucket=self.bucket, Key=f"{self.prefix}/{path}")
        for path, data in self.files.items():
            if before.get(path) != data:
                self.fs.call_s3("put_object", Bucket=self.bucket, Key=f"{self.prefix}/{path}", Body=data)


class InZip(Kind):
    def __init__(self, file: Path):
        super().__init__()
        self.file, self.url = file, f"zip://{file}"

    def packed(self) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, data in self.files.items():
                at = datetime.fromtimestamp(self.times[path], UTC).timetuple()[:6]
                archive.writestr(zipfile.ZipInfo(path, at), data)
        return out.getvalue()

    def change(self, before: Contents) -> None:
        self.file.write_bytes(self.packed())


class InZipInBucket(InZip):
    def __init__(self, options: Mapping[str, str], bucket: str):
        Kind.__init__(self)
        self.options, self.where = options, InBucket(options, bucket, "archives")
        self.url = f"zip://::s3://{bucket}/archives/x.zip"

    def change(self, before: Contents) -> None:
        self.where.set({"x.zip": self.packed()})


class InTar(Kind):
    """All members bear one time, as of archives that are made reproducibly."""

    def __init__(self, file: Path, mode: str = "w"):
        super().__init__()
        self.file, self.mode, self.url = file, mode, f"tar://{file}"

    def packed(self) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode=self.mode) as archive:
            for path, data in self.files.items():
                info = tarfile.TarInfo(path)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return out.getvalue()

    def change(self, before: Contents) -> None:
        self.file.write_bytes(self.packed())


class InTarInZip(InTar):
    def __init__(self, file: Path):
        super().__init__(file, "w:xz")
        self.url = f"tar://::zip://deep/x.tar.xz::file://{file}"

    def change(self, before: Contents) -> None:
        with zipfile.ZipFile(self.file, "w") as archive:
            archive.writestr("deep/x.tar.xz", self.packed())


class InGit(Kind):
    def __init__(self, repository: Path, revision: str = "main"):
        super().__init__()
        self.repository, self.url = repository, f"git+file://{repository}@{revision}"
        repository.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        names = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
        quiet = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
        run = subprocess.run(
            ["git", "-c", "gc.auto=0", *arguments], cwd=self.repository, env=os.environ | names | quiet, check=True, capture_output=True
        )
        return run.stdout.decode().strip()

    def change(self, before: Contents) -> None:
        for path in set(before) - set(self.files):
            (self.repository / path).unlink()
        for path, data in self.files.items():
            (self.repository / path).parent.mkdir(parents=True, exist_ok=True)
            (self.repository / path).write_bytes(data)
        self.git("add", "-A", "-f")
        self.git("commit", "-q", "-m", "change", "--allow-empty")


class OnWeb(Kind):
    """A folder on a web server. style: python (http.server's own pages), nginx, apache, or bare (no HEAD, no dates, no etags)."""

    def __init__(self, folder: InFolder, server: str, style: str):
        self.inner = folder
        super().__init__()
        self.url = f"{server}/{style}/"
        self.marked = style != "bare"

    def change(self, before: Contents) -> None:
        self.inner.set(self.files)


@contextmanager
def web_server(folder: Path, broken: set[str], guarded: frozenset[str] | set[str] = frozenset()) -> Iterator[str]:
    """A server that shows `folder` below /python/, /nginx/, /apache/ and /bare/.

    broken: paths that answer 500 for now; guarded: that lead to a form to log in.
    """

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *_args):
            pass

        def handle_any(self):
            _, style, rest = self.path.split("/", 2)
            if rest in broken:
                return self.send_error(500)
            if rest in guarded:
                self.send_response(302)
                self.send_header("Location", f"/{style}/login.html")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            self.path, self.style = f"/{rest}", style
            if style == "bare" and self.command == "HEAD":
                return self.send_error(405)
            return super().do_HEAD() if self.command == "HEAD" else super().do_GET()

        do_GET = do_HEAD = handle_any

        def list_directory(self, path):
            if self.style == "python":
                return super().list_directory(path)
            rows = [entry.name + "/" * entry.is_dir() for entry in sorted(os.scandir(path), key=lambda e: e.name)]
            links = [f'<a href="{quote(row)}">{html.escape(row[:20])}</a>   17-Jul-2026 10:00   1.2K' for row in rows]
            if self.style == "apache":  # sorted views, an absolute link upwards, names as entities
                head = '<a href="?C=N;O=D">Name</a> <a href="?C=M;O=A">Last modified</a> <a href="/apache/">Parent Directory</a>'
                links = [f"<tr><td>{link}</td></tr>" for link in links]
            else:
                head = '<a href="../">../</a>'
            body = f"<html><body><h1>Index of {html.escape(unquote(self.path))}</h1><pre>{head}\n{chr(10).join(links)}".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            return io.BytesIO(body)

        def send_header(self, keyword, value):
            if keyword == "Last-Modified" and self.style == "bare":
                return
            super().send_header(keyword, value)
            if keyword == "Last-Modified" and self.style == "nginx":
                super().send_header("ETag", f'"{abs(hash(value)):x}"')

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 128  # with 5, the default, connections wait a second to be let in

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
