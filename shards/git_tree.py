"""Sources that are a revision of a git repository on this machine: `git+file:///path/to/repository@revision`.

The tree is listed with the ids of its blobs as etags, so that a run after a commit reads the blobs that the commit changed and no
others. Nothing is checked out, nothing fetched; bare repositories will do. Ask for a remote's by cloning it first.
"""

import os
import subprocess
import threading

from shards.errors import SourceError
from shards.listing import Found, Listed
from shards.roots import Damaged, Source, decode_path, unlisted

SCHEME = "git+file"
# Blob ids must mean contents, so no replacements; a missing object is an error here, not a reason to ask a server.
_GIT = ("git", "--no-replace-objects", "-c", "protocol.allow=never", "-c", "core.quotePath=false")


class GitTree:
    """The files of one revision. tree: the id of its tree, resolved once, so that a branch may move on meanwhile."""

    parallel = 1  # one process answers for all blobs
    only = ""

    def __init__(self, source: Source):
        """Raises SourceError for what is no repository, or has no such revision."""
        self.source = source
        self.repository, self.revision = _split(source.url)
        if not os.path.isdir(self.repository):
            raise unlisted(source, FileNotFoundError(self.repository))
        tree = self._git("rev-parse", "--verify", "--end-of-options", f"{self.revision}^{{tree}}")
        self.tree = tree.decode().strip()
        self._ids: dict[str, tuple[bytes, int]] | None = None
        self._reader: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def find(self) -> Found:
        """Symbolic links and submodules are counted and left out: what they lead to is not in the tree, or is under its own path."""
        found = Found()
        for mode, kind, blob, size, path in self._rows():
            if kind == b"commit":
                found.counters["skipped_submodules"] += 1
            elif mode == b"120000":
                found.counters["skipped_links"] += 1
            else:
                found.files.append(Listed(path, size, 0, blob.decode()))
        return found

    def _rows(self) -> list[tuple[bytes, bytes, bytes, int, str]]:
        """Mode, kind, id, size (-1 where the object is missing) and path of everything in the tree."""
        rows = []
        for line in self._git("ls-tree", "-r", "-l", "-z", "--full-tree", self.tree).split(b"\0"):
            if line:
                facts, _, path = line.partition(b"\t")
                mode, kind, blob, size = facts.split()
                rows.append((mode, kind, blob, int(size) if size.isdigit() else -1, decode_path(path)))
        return rows

    def _git(self, *arguments: str) -> bytes:
        try:
            run = subprocess.run([*_GIT, "-C", self.repository, *arguments], capture_output=True, stdin=subprocess.DEVNULL, check=False)
        except FileNotFoundError:
            raise SourceError(f"Source {self.source.url!r} needs the `git` command, which is not installed here. Install git.") from None
        if run.returncode:
            said = run.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {run.returncode}"]
            raise SourceError(
                f"Source {self.source.url!r}: git says {said[-1]!r}. Check repository and revision (branch, tag or commit); "
                "`git fsck` there tells of missing objects. Nothing was published."
            )
        return run.stdout

    def read(self, path: str, limit: int) -> bytes:
        """A blob's content. Raises KeyError for a path that is not in the tree, Damaged where its object is missing or broken."""
        with self._lock:
            if self._ids is None:
                self._ids = {row[4]: (row[2], row[3]) for row in self._rows() if row[1] == b"blob" and row[0] != b"120000"}
            blob, size = self._ids[path]
            if size > limit:
                return bytes(limit + 1)  # too large; its bytes would only be thrown away
            return self._blob(blob)

    def _blob(self, blob: bytes) -> bytes:
        if self._reader is None:
            command = [*_GIT, "-C", self.repository, "cat-file", "--batch"]
            self._reader = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=1 << 20
            )
        to, back = self._reader.stdin, self._reader.stdout
        assert to is not None and back is not None
        try:
            to.write(blob + b"\n")
            to.flush()
            head = back.readline().split()
            if len(head) != 3:
                raise Damaged(f"object {blob.decode()} is missing from the repository" if head else "git broke off")
            data = back.read(int(head[2]) + 1)  # and a newline
            if len(data) != int(head[2]) + 1:
                raise Damaged(f"object {blob.decode()} is broken")
            return data[:-1]
        except Damaged:
            self._stop()  # it dies of a broken object; the next blob gets another
            raise
        except OSError as error:
            self._stop()
            raise Damaged(f"git broke off at object {blob.decode()}") from error

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.kill()
            reader.wait()
            for pipe in (reader.stdin, reader.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        continue


def _split(url: str) -> tuple[str, str]:
    """Repository and revision of a URL. The first `@` after which nothing but a revision is left parts them; HEAD without one."""
    path = os.path.expanduser(url.removeprefix(f"{SCHEME}://"))
    at = path.find("@")
    while at >= 0:
        if os.path.isdir(path[:at]):
            return path[:at], path[at + 1 :] or "HEAD"
        at = path.find("@", at + 1)
    return path, "HEAD"
