"""Whether a source's include and exclude globs let a path through."""

import re
from collections.abc import Callable

from shards.plan import glob_regex
from shards.roots import Source


class Chosen:
    """The globs of a source, compiled. Called with a path: whether it is chosen. Raises BadQuery for a malformed glob."""

    def __init__(self, source: Source):
        self._include = _any_of(source.include)
        self._exclude = _any_of(source.exclude)
        self._prune = _any_of(tuple(glob for glob in source.exclude if glob.endswith("/**")))
        self.everything = not source.include and not source.exclude

    def __call__(self, path: str) -> bool:
        return (not self._include or self._include(path) is not None) and not (self._exclude and self._exclude(path))

    def prunes(self, folder: str) -> bool:
        """Whether an exclude glob `…/**` covers everything in a folder (given with its slash)."""
        return bool(self._prune and self._prune(folder + "x"))


def _any_of(globs: tuple[str, ...]) -> Callable[[str], re.Match[str] | None] | None:
    if not globs:
        return None
    return re.compile("|".join(f"(?:{glob_regex(glob).pattern})" for glob in globs), re.DOTALL).fullmatch
