"""`--layers auto`: which layers a new corpus gets, by what it holds, what models are here, and what the machine does in half a minute.

`choose` decides from values alone. Of a corpus that there is nothing is decided: it keeps the spaces it has until others are named.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from jobs.progress import amount
from shards.errors import EndpointError, ModelMissing, NotFound, SondageError, SourceError
from shards.formats.registry import ALL, format_of
from shards.images import SUFFIXES as IMAGES
from shards.languages import language_of_path
from shards.layers import REGISTRY, SpaceSpec, create
from shards.layers.contract import Resources
from shards.listing import Listed
from shards.plan import extension
from shards.rows import RowRule, column_names

AUTO = "auto"
# Seconds that encoding may take by the rates below, all models together: a first result should not have to wait for more, and what is
# worth an hour is worth being named.
LIMIT_S = 30.0
MOSTLY = 0.9  # share of the bytes from which on a corpus is "data": no model of language was trained on these
DATA = frozenset("csv tsv json jsonl ndjson xml log yaml yml parquet arrow sql dat".split())
# Files that no layer reads the text of, unless as a format (`shards/formats/registry.py`); they are counted and skipped, so they must not
# count here.
OPAQUE = frozenset(
    "zip gz bz2 xz zst 7z rar tar tgz jar whl exe dll so dylib a o bin iso img dmg pyc class wasm pdf doc docx xls xlsx ppt pptx odt ods "
    "epub mp3 mp4 m4a ogg flac wav avi mkv mov webm ttf otf woff woff2 ico psd sqlite db pkl npy npz pt pth safetensors onnx gguf".split()
)
TEXT_IN = 0.25  # of the bytes of a PDF or Office file, about: from 3% of one with pictures to 60% of a paper
# By the `cost` of text, a scan of so much takes 20 to 150 ms on one core: from here on its index of trigrams is worth its bytes.
TRIGRAM_BYTES = 50_000_000
# Files that may hold formulas; elsewhere a dollar is a price or a variable.
FORMULAS = frozenset("tex latex ltx sty md markdown rmd qmd rst txt html htm xhtml xml mml ipynb docx odt pptx odp epub".split())
PEEK_BYTES = 8_000_000  # of a table whose columns are looked at
UNKNOWN_BYTES = 20_000  # taken for a file of which the listing does not say, as of a page on the web
_IMAGES = frozenset(suffix.lstrip(".") for suffix in IMAGES)


@dataclass(frozen=True, slots=True)
class Holding:
    """What a source holds, by names and sizes alone. text_bytes: of files that may be text, data_bytes and code_bytes (of languages
    whose definitions are known) of these; n_formulas: files that may hold formulas; molecules: SDF files, or a table with SMILES."""

    n_files: int = 0
    text_bytes: int = 0
    data_bytes: int = 0
    n_images: int = 0
    code_bytes: int = 0
    n_formulas: int = 0
    molecules: bool = False

    @classmethod
    def of(cls, files: Iterable[Listed], max_file_bytes: int, formats: frozenset[str] = ALL) -> "Holding":
        """What these files hold. formats: those that are read (`shards/formats/registry.py`)."""
        n_files = text_bytes = data_bytes = n_images = code_bytes = n_formulas = 0
        molecules = False
        for file in files:
            n_files += 1
            kind = extension(file.path)
            if kind in _IMAGES:
                n_images += 1
                continue
            known = format_of(file.path, formats)
            if (known is not None or kind not in OPAQUE) and file.size_bytes <= max_file_bytes:
                size_bytes = file.size_bytes if file.size_bytes >= 0 else UNKNOWN_BYTES
                if known is not None and known.magic:
                    size_bytes = int(TEXT_IN * size_bytes)
                text_bytes += size_bytes
                data_bytes += size_bytes if kind in DATA else 0
                n_formulas += kind in FORMULAS
                molecules |= kind == "sdf"
                language = language_of_path(file.path)
                code_bytes += size_bytes if language is not None and language.definitions else 0
        return cls(n_files, text_bytes, data_bytes, n_images, code_bytes, n_formulas, molecules)


def holds_smiles(files: Sequence[Listed], rules: Iterable[RowRule], read: Callable[[str], bytes], column: str = "smiles") -> bool:
    """Whether a table that a rule reads has a column of molecules as metadata, by the smallest file of each rule. read: a file of the
    source; what cannot be read has none."""
    for rule in rules:
        tables = [file for file in files if rule.matches(file.path) and 0 <= file.size_bytes <= PEEK_BYTES]
        if not tables or not rule.keeps(column):
            continue
        path = min(tables, key=lambda file: (file.size_bytes, file.path)).path
        try:
            names = column_names(path, read(path))
        except (SourceError, NotFound):
            continue
        if any(name.casefold() == column for name in names):
            return True
    return False


@dataclass(frozen=True, slots=True)
class Machine:
    """cores: that this run may use; gpus: that torch can."""

    cores: int = 1
    gpus: int = 0

    @classmethod
    def this(cls, cores: int) -> "Machine":
        """Looked up without importing torch, which takes seconds: NVIDIA's device files, and whether torch is a build for CPUs."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            can = "+cpu" not in version("torch")
        except PackageNotFoundError:
            can = False
        return cls(cores, len(list(Path("/dev").glob("nvidia[0-9]*"))) if can else 0)


@dataclass(frozen=True, slots=True)
class Rule:
    """When a layer is chosen.

    lacks: what speaks against it in what there is, "" for nothing. units: what a core, or a GPU, encodes of in a second, bytes of text,
    of code, or images; None: nothing to speak of. language: whether it is made for what people write. modules: optional packages that
    it imports, extra: what brings them. never: why it has to be named, "" if it has not.
    """

    layer: str
    why: str = ""
    units: Literal["bytes", "code", "images"] | None = None
    core_rate: float = 0.0
    gpu_rate: float = 0.0
    language: bool = False
    modules: tuple[str, ...] = ()
    extra: str = ""
    never: str = ""
    lacks: Callable[[Holding], str] = lambda holding: ""


# In the order in which they get time. Rates: `cost` of each layer, measured on two cores without GPU; GPUs far below what one does.
RULES = (
    Rule("names", "paths are searched as they are"),
    Rule("text", "lines are searched as they are"),
    Rule(
        "trigram",
        "a scan of so much text takes long; it costs a seventh of the bytes",
        lacks=lambda holding: (
            "" if holding.text_bytes >= TRIGRAM_BYTES else f"`text` reads {amount(holding.text_bytes, 'bytes')} in no time"
        ),
    ),
    Rule("bm25", "words are counted at 7 MB/s"),
    Rule("structure", "patterns of code are matched without an index", lacks=lambda holding: _no_code(holding)),
    Rule("symbols", "", "code", core_rate=3_000_000, lacks=lambda holding: _no_code(holding)),
    Rule("formula", "formulas are found at 4 to 9 MB/s", lacks=lambda holding: _no_formulas(holding)),
    Rule("formula_ngrams", "what goes with what in formulas, at 5 to 9 MB/s", lacks=lambda holding: _no_formulas(holding)),
    Rule(
        "fingerprint",
        "there are molecules",
        modules=("rdkit",),
        extra="chem",
        lacks=lambda holding: "" if holding.molecules else "there are no SDF files, and no table has a column `smiles`",
    ),
    Rule("static", "meaning at the price of counting words", language=True),
    Rule(
        "image",
        "",
        "images",
        core_rate=5,
        gpu_rate=200,
        modules=("PIL",),
        extra="image",
        lacks=lambda holding: "" if holding.n_images else "there are no images",
    ),
    Rule("dense", "", "bytes", core_rate=11_000, gpu_rate=1_000_000, language=True),
    Rule("sparse", "", "bytes", core_rate=40_000, gpu_rate=2_000_000, language=True),
    Rule("fuzzy", never="its index takes a third of the text: name it where words are misspelt"),
    Rule("image_late", never="a page takes seconds and 260 kB: image_late"),
    Rule("late", never="it takes forty times the text, and gains only with a model trained for it: name one, late:model=…"),
    Rule("views", never="what it adds is derived, and with an endpoint costs money"),
    Rule("vectors", never="it takes vectors of your own: NAME=vectors:dim=…"),
    Rule("embedded", never="it takes an embedder of your own: NAME=embedded:embedder=…, with --plugin"),
)


@dataclass(frozen=True, slots=True)
class Choice:
    """One layer, whether it was chosen, and why."""

    layer: str
    chosen: bool
    reason: str


def choose(
    holding: Holding, machine: Machine, missing: Callable[[str], str], named: Collection[str] = (), limit_s: float = LIMIT_S
) -> tuple[Choice, ...]:
    """A choice for each layer, in the order of `RULES`.

    missing: why a layer cannot be built here ("" if it can), asked last and only where all else speaks for it. named: spaces that the
    caller names; a layer that is to go by such a name is left to him.
    """
    choices = []
    left_s = limit_s
    for rule in RULES:
        if rule.layer not in REGISTRY or rule.layer in named:
            continue
        reason, needs_s = _against(rule, holding, machine, left_s)
        reason = reason or missing(rule.layer)
        if reason:
            choices.append(Choice(rule.layer, False, reason))
            continue
        left_s -= needs_s
        choices.append(Choice(rule.layer, True, rule.why or f"{_amount(rule, holding)} take {_about(needs_s)} on {_on(machine)}"))
    return tuple(choices)


def _against(rule: Rule, holding: Holding, machine: Machine, left_s: float) -> tuple[str, float]:
    """What speaks against a layer, "" for nothing, and the seconds it would take."""
    if rule.never:
        return rule.never, 0.0
    if lacking := rule.lacks(holding):
        return lacking, 0.0
    if rule.language and holding.text_bytes and holding.data_bytes >= MOSTLY * holding.text_bytes:
        return f"{holding.data_bytes / holding.text_bytes:.0%} of the bytes are data, not language", 0.0
    if rule.units is None:
        return "", 0.0
    amount_of = {"images": holding.n_images, "code": holding.code_bytes, "bytes": holding.text_bytes}[rule.units]
    needs_s = amount_of / (machine.gpus * rule.gpu_rate if machine.gpus and rule.gpu_rate else machine.cores * rule.core_rate)
    if needs_s > left_s:
        return f"{_amount(rule, holding)} would take {_about(needs_s)} on {_on(machine)}, {left_s:.0f} s are left: name it to have it", 0.0
    return "", needs_s


def _no_code(holding: Holding) -> str:
    return "" if holding.code_bytes else "there is no code of a language whose syntax is known"


def _no_formulas(holding: Holding) -> str:
    return "" if holding.n_formulas else "no file is of a kind that holds formulas"


def _amount(rule: Rule, holding: Holding) -> str:
    if rule.units == "images":
        return f"{holding.n_images:,} images"
    return f"{amount(holding.code_bytes, 'bytes')} of code" if rule.units == "code" else f"{amount(holding.text_bytes, 'bytes')} of text"


def _about(seconds: float) -> str:
    if seconds < 120:
        return f"about {max(seconds, 1):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 7200 else f"about {seconds / 3600:.0f} h"


def _on(machine: Machine) -> str:
    n, what = (machine.gpus, "GPU") if machine.gpus else (machine.cores, "core")
    return f"{n} {what}{'s' if n != 1 else ''}"


def not_installed(layer: str) -> str:
    """Which packages a layer needs that are not here, with the remedy; "" for none. Nothing is imported."""
    rule = next((rule for rule in RULES if rule.layer == layer), None)
    if rule is None or not (absent := [name for name in rule.modules if find_spec(name) is None]):
        return ""
    return f"{' and '.join(absent)} cannot be imported: pip install 'sondage[{rule.extra}]'"


def missing_on(resources: Resources) -> Callable[[str], str]:
    """Why a layer of default dials cannot be built on this machine, "" if it can. No model is loaded; the static one is made, once."""

    def missing(layer: str) -> str:
        if absent := not_installed(layer):
            return absent
        try:
            create(SpaceSpec(layer, layer), resources).fingerprint()
        except (ModelMissing, EndpointError) as error:
            return str(error)
        except SondageError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    return missing


def told(choices: Iterable[Choice]) -> list[str]:
    """The choices for people, a line each."""
    return [f"layer {choice.layer} {'chosen' if choice.chosen else 'left out'}: {choice.reason.rstrip('.')}" for choice in choices]
