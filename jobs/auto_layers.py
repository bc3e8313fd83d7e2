"""`--layers auto`: which layers a new corpus gets, by what it holds, what models are here, and what the machine does in half a minute.

`choose` decides from values alone. Of a corpus that there is nothing is decided: it keeps the spaces it has until others are named.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from jobs.progress import amount
from shards.errors import EndpointError, ModelMissing, SondageError
from shards.images import SUFFIXES as IMAGES
from shards.layers import REGISTRY, SpaceSpec, create
from shards.layers.contract import Resources
from shards.listing import Listed
from shards.plan import extension

AUTO = "auto"
# Seconds that encoding may take by the rates below, all models together: a first result should not have to wait for more, and what is
# worth an hour is worth being named.
LIMIT_S = 30.0
MOSTLY = 0.9  # share of the bytes from which on a corpus is "data": no model of language was trained on these
DATA = frozenset("csv tsv json jsonl ndjson xml log yaml yml parquet arrow sql dat".split())
# Files that no layer reads the text of; they are counted and skipped (`shards.renditions`), so they must not count here.
OPAQUE = frozenset(
    "zip gz bz2 xz zst 7z rar tar tgz jar whl exe dll so dylib a o bin iso img dmg pyc class wasm pdf doc docx xls xlsx ppt pptx odt ods "
    "epub mp3 mp4 m4a ogg flac wav avi mkv mov webm ttf otf woff woff2 ico psd sqlite db pkl npy npz pt pth safetensors onnx gguf".split()
)
UNKNOWN_BYTES = 20_000  # taken for a file of which the listing does not say, as of a page on the web
_IMAGES = frozenset(suffix.lstrip(".") for suffix in IMAGES)


@dataclass(frozen=True, slots=True)
class Holding:
    """What a source holds, by names and sizes alone. text_bytes: of files that may be text, data_bytes of these."""

    n_files: int = 0
    text_bytes: int = 0
    data_bytes: int = 0
    n_images: int = 0

    @classmethod
    def of(cls, files: Iterable[Listed], max_file_bytes: int) -> "Holding":
        n_files = text_bytes = data_bytes = n_images = 0
        for file in files:
            n_files += 1
            kind = extension(file.path)
            if kind in _IMAGES:
                n_images += 1
            elif kind not in OPAQUE and file.size_bytes <= max_file_bytes:
                size_bytes = file.size_bytes if file.size_bytes >= 0 else UNKNOWN_BYTES
                text_bytes += size_bytes
                data_bytes += size_bytes if kind in DATA else 0
        return cls(n_files, text_bytes, data_bytes, n_images)


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

    units: what a core, or a GPU, encodes of in a second, bytes of text or images; None: nothing to speak of. language: whether it is
    made for what people write. modules: optional packages that it imports. never: why it has to be named, "" if it has not.
    """

    layer: str
    why: str = ""
    units: Literal["bytes", "images"] | None = None
    core_rate: float = 0.0
    gpu_rate: float = 0.0
    language: bool = False
    modules: tuple[str, ...] = ()
    never: str = ""


# In the order in which they get time. Rates: `cost` of each layer, measured on two cores without GPU; GPUs far below what one does.
RULES = (
    Rule("names", "paths are searched as they are"),
    Rule("text", "lines are searched as they are"),
    Rule("bm25", "words are counted at 7 MB/s"),
    Rule("static", "meaning at the price of counting words", language=True),
    Rule("image", "", "images", core_rate=5, gpu_rate=200, modules=("PIL",)),
    Rule("dense", "", "bytes", core_rate=11_000, gpu_rate=1_000_000, language=True),
    Rule("sparse", "", "bytes", core_rate=40_000, gpu_rate=2_000_000, language=True),
    Rule("image_late", never="a page takes seconds and 260 kB: image_late"),
    Rule("late", never="it takes forty times the text, and gains only with a model trained for it: name one, late:model=…"),
    Rule("views", never="what it adds is derived, and with an endpoint costs money"),
    Rule("vectors", never="it takes vectors of your own: NAME=vectors:dim=…"),
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
    if rule.units == "images" and not holding.n_images:
        return "there are no images", 0.0
    if rule.language and holding.text_bytes and holding.data_bytes >= MOSTLY * holding.text_bytes:
        return f"{holding.data_bytes / holding.text_bytes:.0%} of the bytes are data, not language", 0.0
    if rule.units is None:
        return "", 0.0
    amount_of = holding.n_images if rule.units == "images" else holding.text_bytes
    needs_s = amount_of / (machine.gpus * rule.gpu_rate if machine.gpus else machine.cores * rule.core_rate)
    if needs_s > left_s:
        return f"{_amount(rule, holding)} would take {_about(needs_s)} on {_on(machine)}, {left_s:.0f} s are left: name it to have it", 0.0
    return "", needs_s


def _amount(rule: Rule, holding: Holding) -> str:
    return f"{holding.n_images:,} images" if rule.units == "images" else f"{amount(holding.text_bytes, 'bytes')} of text"


def _about(seconds: float) -> str:
    if seconds < 120:
        return f"about {max(seconds, 1):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 7200 else f"about {seconds / 3600:.0f} h"


def _on(machine: Machine) -> str:
    n, what = (machine.gpus, "GPU") if machine.gpus else (machine.cores, "core")
    return f"{n} {what}{'s' if n != 1 else ''}"


def missing_on(resources: Resources) -> Callable[[str], str]:
    """Why a layer of default dials cannot be built on this machine, "" if it can. No model is loaded; the static one is made, once."""

    modules = {rule.layer: rule.modules for rule in RULES}

    def missing(layer: str) -> str:
        if absent := [name for name in modules.get(layer, ()) if find_spec(name) is None]:
            return f"{' and '.join(absent)} cannot be imported: pip install 'sondage[{layer}]'"
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
