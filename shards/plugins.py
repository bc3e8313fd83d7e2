"""What users add by name: functions of queries, embedders, splitters, value types, rerankers, normalizers, external searches.

Two levels. `PROCESS` is the process's own, filled by the decorators below when a module is imported (`load`): every host and every
server that was started with the same `--plugin` has the same. An engine in this process has a registry of its own whose names shadow
those; it is handed to whoever needs it as an argument and never leaves the process. Code never comes over HTTP.

Safe for several threads: a lookup is one read of a dict, a registration holds the table's lock.
"""

import importlib
import importlib.util
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from shards.errors import BadSpec

T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors. May have `embed_images(files)` and `embed_queries(texts)` beside: likewise, of the bytes of image
    files and of questions.

    model_id: what vectors depend on, so that those of two models are never mixed: its name and version. dim: numbers of a vector.
    """

    model_id: str
    dim: int

    def embed(self, texts: Sequence[str]) -> Any:
        """(n, dim) numbers, a row for each text; need not be of unit length. Called by several threads, in large portions."""


class Reranker(Protocol):
    """Puts the rows of a query in another order."""

    def rerank(self, question: str, rows: Sequence[Any]) -> Sequence[Any]:
        """The rows (`serve.nlql.outcome.ResultRow`), best first; may leave some out. A score goes into `row.scores["rerank"]`."""


Splitter = Callable[[str], Iterable[str | tuple[int, int]]]
"""Cuts a normalised text: pieces that stand in it in this order, or their (start, end) in characters. Empty ones are dropped."""

Normalizer = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of queries. name: in upper case. least, most: how many arguments it takes; most None: any number.

    arguments, returns: names of types ("text", "number", "bool", "any", …) as far as they were declared, for people and schemas.
    """

    name: str
    call: Callable[..., Any]
    least: int
    most: int | None
    arguments: tuple[str, ...] = ()
    returns: str = "any"
    provides_score: bool = False
    doc: str = ""


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type that literals and `field_types` may name, in lower case. parse: of texts; may raise, then values are compared as they are.

    compare: (left, right, op) -> bool with op one of == != < <= > >=, of parsed values; None: Python's own.
    """

    name: str
    parse: Callable[[str], Any]
    compare: Callable[[Any, Any, str], bool] | None = None


class Table(Generic[T]):
    """Named things of one kind; those of `below` are found where no own one has the name. fold: how a name is looked up."""

    def __init__(self, kind: str, fold: Callable[[str], str] = str, below: "Table[T] | None" = None):
        self.kind, self.fold, self.below = kind, fold, below
        self._own: dict[str, T] = {}
        self._lock = threading.Lock()

    def add(self, name: str, value: T, overwrite: bool = False) -> None:
        """Raises RegistryError for a name that is no name, or taken here; one that is taken below is shadowed."""
        _check_name(self.kind, name)
        key = self.fold(name)
        with self._lock:
            if key in self._own and not overwrite:
                raise _refused(f"There is a {self.kind} named {key!r} already. Choose another name, or register with overwrite=True.")
            self._own = {**self._own, key: value}  # whoever is going through the names meets no change

    def find(self, name: str) -> T | None:
        """What goes by a name; None where nothing does."""
        found = self._own.get(self.fold(name))
        return self.below.find(name) if found is None and self.below is not None else found

    def get(self, name: str) -> T:
        """The same. Raises RegistryError, naming what there is."""
        found = self.find(name)
        if found is None:
            known = ", ".join(self.names()) or "none"
            raise _refused(f"No {self.kind} is registered as {name!r}. Known: {known}. Register it, or load its module with --plugin.")
        return found

    def names(self) -> tuple[str, ...]:
        """All names, ascending, with those of below."""
        return tuple(sorted({*self._own, *(self.below.names() if self.below is not None else ())}))

    def remove(self, name: str) -> None:
        """Forget a name that was registered here; what it shadowed is found again."""
        key = self.fold(name)
        with self._lock:
            self._own = {known: value for known, value in self._own.items() if known != key}


class Plugins:
    """The registries of a process or of one engine. below: where names are looked up that are not here."""

    def __init__(self, below: "Plugins | None" = None):
        self.functions: Table[Function] = Table("function", str.upper, below and below.functions)
        self.types: Table[ValueType] = Table("type", str.lower, below and below.types)
        self.splitters: Table[Splitter] = Table("splitter", str.lower, below and below.splitters)
        self.normalizers: Table[Normalizer] = Table("normalizer", str, below and below.normalizers)
        self.rerankers: Table[Any] = Table("reranker", str, below and below.rerankers)
        self.externals: Table[Any] = Table("external search", str, below and below.externals)
        self._embedders: Table[_Made] = Table("embedder", str, below and below._embedders)

    def __reduce__(self) -> tuple[Callable[[], "Plugins"], tuple[()]]:
        """The process's own arrives as that of the process it is sent to; an engine's is not sent."""
        if self is not PROCESS:
            raise TypeError("The registries of an engine stay in its process. Register in a module, and load it there with --plugin.")
        return _process, ()

    # --- registering -----------------------------------------------------------------------------------------------------------

    def function(
        self,
        name: str,
        *,
        arguments: Sequence[str] | None = None,
        returns: str = "any",
        variadic: bool = False,
        provides_score: bool = False,
        overwrite: bool = False,
    ) -> Callable[[C], C]:
        """Decorator: a function that queries may call by this name, in any case.

        arguments: their types; without it the function's own signature says how many it takes. variadic: the last may repeat.
        """

        def register(call: C) -> C:
            self.add_function(name, call, arguments, returns, variadic, provides_score, overwrite)
            return call

        return register

    def add_function(
        self,
        name: str,
        call: Callable[..., Any],
        arguments: Sequence[str] | None = None,
        returns: str = "any",
        variadic: bool = False,
        provides_score: bool = False,
        overwrite: bool = False,
    ) -> None:
        """As `function`, without a decorator. Raises RegistryError."""
        _check_call("function", name, call)
        least, most = _arity(call) if arguments is None else (max(0, len(arguments) - variadic), None if variadic else len(arguments))
        made = Function(name.upper(), call, least, most, tuple(arguments or ()), returns, provides_score, inspect.getdoc(call) or "")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise _refused(f"Function name {name!r} cannot be written in a query. Use letters, digits and underscores, no digit first.")
        self.functions.add(name, made, overwrite)

    def value_type(self, name: str, *, compare: Callable[[Any, Any, str], bool] | None = None, overwrite: bool = False) -> Callable[[C], C]:
        """Decorator: what parses texts of a type that typed literals (`VERSION '1.10'`) and `field_types` may name."""

        def register(parse: C) -> C:
            self.add_type(name, parse, compare, overwrite)
            return parse

        return register

    def add_type(
        self, name: str, parse: Callable[[str], Any], compare: Callable[[Any, Any, str], bool] | None = None, overwrite: bool = False
    ) -> None:
        """As `value_type`. Raises RegistryError."""
        _check_call("type", name, parse)
        self.types.add(name, ValueType(name.lower(), parse, compare), overwrite)

    def splitter(self, name: str, *, overwrite: bool = False) -> Callable[[C], C]:
        """Decorator: a `Splitter`. "sentence" and "chunk" take the place of the built-in ones."""

        def register(cut: C) -> C:
            _check_call("splitter", name, cut)
            self.splitters.add(name, cut, overwrite)
            return cut

        return register

    def normalizer(self, name: str, *, overwrite: bool = False) -> Callable[[C], C]:
        """Decorator: what makes of a text the one that is split into units."""

        def register(normalise: C) -> C:
            _check_call("normalizer", name, normalise)
            self.normalizers.add(name, normalise, overwrite)
            return normalise

        return register

    def embedder(self, name: str, *, overwrite: bool = False) -> Callable[[T], T]:
        """Decorator or call: an `Embedder`, or a class or function without arguments that makes one when it is first needed."""

        def register(made: T) -> T:
            self.add_embedder(name, made, overwrite)
            return made

        return register

    def add_embedder(self, name: str, embedder: Any, overwrite: bool = False) -> None:
        """As `embedder`. Raises RegistryError."""
        if inspect.isclass(embedder) or (callable(embedder) and not hasattr(embedder, "embed")):
            self._embedders.add(name, _Made(name, make=embedder), overwrite)
        else:
            self._embedders.add(name, _Made(name, made=checked(name, embedder)), overwrite)

    def reranker(self, name: str, *, overwrite: bool = False) -> Callable[[T], T]:
        """Decorator or call: a `Reranker`, a class without arguments that is one, or a function (question, rows) -> rows."""

        def register(given: T) -> T:
            self.rerankers.add(name, given() if inspect.isclass(given) else given, overwrite)
            return given

        return register

    # --- looking up ------------------------------------------------------------------------------------------------------------

    def embedder_of(self, name: str) -> Embedder:
        """An embedder, made now if it was registered as a factory. Raises RegistryError."""
        return self._embedders.get(name).get()

    def embedder_names(self) -> tuple[str, ...]:
        """Names of embedders."""
        return self._embedders.names()


class _Made:
    """Something that is made once, by whoever asks first."""

    def __init__(self, name: str, make: Callable[[], Any] | None = None, made: Any = None):
        self._name, self._make, self._made = name, make, made
        self._lock = threading.Lock()

    def get(self) -> Any:
        with self._lock:
            if self._made is None and self._make is not None:
                self._made = checked(self._name, self._make())
            return self._made


def checked(name: str, embedder: Any) -> Embedder:
    """An embedder that has what one must have. Raises RegistryError that says what is missing."""
    if not callable(getattr(embedder, "embed", None)):
        raise _refused(f"Embedder {name!r} has no method embed(texts).")
    if not isinstance(getattr(embedder, "model_id", None), str) or not embedder.model_id:
        raise _refused(f"Embedder {name!r} has no model_id: a text that names the model, since vectors of two models must not be mixed.")
    if type(getattr(embedder, "dim", None)) is not int or embedder.dim < 1:
        raise _refused(f"Embedder {name!r} has dim {getattr(embedder, 'dim', None)!r}; expected how many numbers a vector has.")
    return embedder


def rerank(reranker: Any, question: str, rows: Sequence[Any]) -> list[Any]:
    """What a reranker of either kind makes of rows."""
    call = getattr(reranker, "rerank", reranker)
    return list(call(question, rows))


def _arity(call: Callable[..., Any]) -> tuple[int, int | None]:
    """How many arguments a function takes at least and at most, as far as it tells."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # of builtins some do not tell
        return 0, None
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return sum(p.default is p.empty for p in placed), None if variadic else len(placed)


def _check_name(kind: str, name: Any) -> None:
    if not isinstance(name, str) or not name.strip():
        raise _refused(f"A {kind} must be registered under a name, got {name!r}.")


def _check_call(kind: str, name: Any, call: Any) -> None:
    _check_name(kind, name)
    if not callable(call):
        raise _refused(f"{kind.capitalize()} {name!r} cannot be called: it is {call!r:.60}.")


def _refused(message: str) -> Exception:
    from shards.nlql.errors import RegistryError  # not before something is wrong: the language is not loaded for a lookup

    return RegistryError(message)


PROCESS = Plugins()


def _process() -> Plugins:
    return PROCESS


function = PROCESS.function
embedder = PROCESS.embedder
splitter = PROCESS.splitter
normalizer = PROCESS.normalizer
value_type = PROCESS.value_type
reranker = PROCESS.reranker


def load(module: str) -> None:
    """Import a module that registers: by its dotted name, or a file that ends in .py. Twice does nothing more.

    Raises BadSpec that says why it cannot be imported.
    """
    try:
        if module.endswith(".py"):
            _load_file(Path(module).expanduser())
        else:
            importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise BadSpec(
                f"Plugin {module!r} is no module that can be imported here. Install it, add its folder to PYTHONPATH, or give its file: "
                "--plugin folder/mine.py."
            ) from error
        raise BadSpec(f"Plugin {module!r} needs the module {error.name!r}, which is not installed here.") from error
    except Exception as error:
        raise BadSpec(f"Plugin {module!r} failed while it was imported: {type(error).__name__}: {error}") from error


def _load_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    name = f"sondage_plugin_{path.stem}_{sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
