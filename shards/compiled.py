"""Compiled kernels whose machine code is kept by content: `jit` is numba's, its cache is ours.

numba finds cached code by the source file's path. A Ray job runs from a fresh copy of the folder each time, so every job would
compile anew (5 to 6 s; KERNELS.md section 6), and with no writable folder numba fails at import. Here one file holds one
compiled signature, named by all that the code depends on: source file, kernels and constants it names, signature, CPU,
Python and numba. Unlike numba's index file this leaves nothing for two processes to race for.

Importing this module imports numba: import kernel modules inside functions.
"""

import hashlib
import logging
import pickle
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numba
from numba.core import config
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator

logger = logging.getLogger(__name__)

_folder: Path | None = None
_warned = False


def _without_scipy() -> None:
    """Import the part of numba that would import scipy.linalg (16 MB, 0.1 s) to see whether there is a BLAS, without that.

    No kernel here uses one; somebody else's that does has numba import it then.
    """
    from numba.np import linalg

    own, linalg.ensure_blas = linalg.ensure_blas, lambda: None
    try:
        import numba.np.arraymath  # noqa: F401
    finally:
        linalg.ensure_blas = own


_without_scipy()


def set_cache_folder(folder: Path | None) -> None:
    """Where machine code is kept, for kernels imported after this call. None: `~/.cache/sondage/numba` (or NUMBA_CACHE_DIR)."""
    global _folder
    _folder = folder


def cache_folder() -> Path:
    """The folder that kernels decorated now will use. Raises RuntimeError where the user has no home."""
    if _folder is not None:
        return _folder
    return Path(config.CACHE_DIR) / "sondage" if config.CACHE_DIR else Path.home() / ".cache" / "sondage" / "numba"


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`numba.njit` without the GIL and with cached code; use as `@jit` or `@jit(fastmath=…)`.

    Never fails for want of a cache: it then compiles in each process and warns once.
    """
    if function is None:
        return lambda decorated: jit(decorated, **options)
    kernel = numba.njit(**{"nogil": True, **options})(function)
    if hasattr(kernel, "_cache"):  # a plain function under NUMBA_DISABLE_JIT
        kernel._stamp = _stamp(function, options)
        try:
            kernel._cache = _Cache(function, kernel._stamp)
        except (OSError, RuntimeError) as error:
            _warn(error)
    return kernel


def _stamp(function: Callable[..., Any], options: dict[str, Any]) -> str:
    """What the kernel's machine code depends on apart from signature and machine, as hex digits.

    numba inlines kernels and freezes constants of other files without noticing when those change; so they are part of it.
    """
    digest = hashlib.sha256(repr(sorted(options.items())).encode())
    digest.update(_hash_file(function.__code__.co_filename))
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, (bool, int, float, str, bytes, tuple)):
            digest.update(repr((name, value)).encode())
        elif hasattr(value, "_stamp"):
            digest.update(value._stamp.encode())
    return digest.hexdigest()


@lru_cache
def _hash_file(path: str) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


def _warn(error: Exception) -> None:
    global _warned
    if not _warned:
        _warned = True
        logger.warning(
            "event=kernels-not-cached reason=%r remedy='make the folder writable, or set NUMBA_CACHE_DIR; "
            "until then each process compiles for some seconds'",
            str(error),
        )


class _Locator(_CacheLocator):
    """numba asks it for a folder; everything else is in the file's name."""

    def __init__(self, function: Callable[..., Any], file: str):
        self._py_file = file  # numba names it in warnings
        self._path = str(cache_folder())

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> "_Locator":
        locator = cls(py_func, py_file)
        locator.ensure_cache_path()
        return locator

    def get_cache_path(self) -> str:
        return self._path

    def get_source_stamp(self) -> str:
        return ""

    def get_disambiguator(self) -> str:
        return ""


class _Impl(CompileResultCacheImpl):
    _locator_classes: ClassVar = [_Locator]


class _File(IndexDataCacheFile):
    """One file per key and no index: two processes that compile the same write the same file, by atomic replacement."""

    def _name(self, key: Any) -> str:
        # Reprs of numba types tell dtype, layout and writability; the machine is in the key as (triple, CPU, features).
        digest = hashlib.sha256(repr((self._version, self._source_stamp, key)).encode()).hexdigest()
        return f"{self._index_name.removesuffix('.nbi')}{digest[:32]}.nbc"

    def save(self, key: Any, data: Any) -> None:
        self._save_data(self._name(key), data)

    def load(self, key: Any) -> Any:
        try:
            return self._load_data(self._name(key))
        except FileNotFoundError:
            return None


class _Cache(FunctionCache):
    _impl_class = _Impl

    def __init__(self, function: Callable[..., Any], stamp: str):
        super().__init__(function)
        self._cache_file = _File(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except (OSError, EOFError, pickle.UnpicklingError) as error:  # a torn or unreadable file: compile, and replace it
            _warn(error)
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:  # disk full, folder gone: the code is compiled, only not kept
            _warn(error)
