"""Images and texts to unit vectors of one space: any sentence-transformers model of CLIP's kind.

Importing this module is light; loading imports torch, transformers and Pillow. Each image goes through the model in a pass of its
own on CPUs, in a pass of one fixed size on GPUs, so its vector has the same bits whatever images are encoded beside it.
"""

import hashlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shards import model_files
from shards.encoders import cut_dim, unit_rows
from shards.errors import ModelMissing
from shards.images import require_pillow
from shards.layers.contract import Resources
from shards.types import Array

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_RATIO = 16  # of the longer side to the shorter, that models get to see
_GPU_ROWS = 32  # images of a pass
_loading = threading.Lock()


class ImageEncoder:
    """One model that puts images and texts into one space, with the dimension that is kept of its vectors.

    Both encode methods give float32 rows of unit length. Loading raises ModelMissing, or BadSpec for an impossible `dim`.
    """

    def __init__(self, model: str, resources: Resources, dim: int | None = None, device: Literal["cpu", "cuda"] | None = None):
        self.model, self.resources, self._wanted_dim, self._device = model, resources, dim, device
        self._loaded: _ImageModel | None = None

    @property
    def dim(self) -> int:
        """Components of each vector."""
        return cut_dim(self.model, self._load().dim, self._wanted_dim)

    def fingerprint(self) -> str:
        """A hash of all that vectors depend on: model files and dimension. Raises ModelMissing, also without Pillow."""
        require_pillow()
        files = model_files.fingerprint(model_files.locate(self.model, self.resources), self.resources)
        return hashlib.sha256(json.dumps(["image", files, self._wanted_dim]).encode()).hexdigest()[:32]

    def encode_images(self, images: "Sequence[Callable[[], Image]]") -> Iterator[Array]:
        """The vector of each image, (dim,) float32, in order. images: give an image in RGB each, called in another thread."""
        model, dim = self._load(), self.dim
        for vector in model.images(images):
            yield unit_rows(vector[None, :dim])[0]

    def encode_query(self, text: str) -> Array:
        """The vector of a text, (dim,) float32."""
        return unit_rows(self._load().text(text)[:, : self.dim])[0]

    def reads(self, text: str) -> str:
        """The beginning of a query that the model really reads."""
        return self._load().reads(text)

    def _load(self) -> "_ImageModel":
        if self._loaded is None:
            folder = model_files.locate(self.model, self.resources)
            with _loading:
                self._loaded = load(folder, self._device)
        return self._loaded


@lru_cache(maxsize=2)
def load(folder: Path, device: str | None) -> "_ImageModel":
    """The model in a folder. device: cpu | cuda, None: cuda where there is one. Raises ModelMissing, saying what is wrong with it."""
    pillow = require_pillow()
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ModelMissing(f"Layer 'image' needs {error.name}: run pip install sentence-transformers.") from error
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        with model_files.quiet_transformers():
            model = _ImageModel(SentenceTransformer(str(folder), device=device, local_files_only=True).eval(), device)
            # A text model takes an image for a text, or fails somewhere inside: one image tells.
            seen, read = next(model.images([lambda: pillow.new("RGB", (8, 8))])), model.text("a")
    except ModelMissing:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        what = f"no sentence-transformers model of images and texts that can be loaded on {device}"
        raise ModelMissing(f"Folder {folder} holds {what}: {error}. Models of CLIP's kind do, such as clip-ViT-B-32.") from error
    if seen.shape != read.shape[1:]:
        raise ModelMissing(f"The model in {folder} gives images {len(seen)} dimensions and texts {read.shape[1]}: no common space.")
    return model


@lru_cache(maxsize=2)
def encoding_threads(device: str) -> ThreadPoolExecutor:
    """Those that run passes: on CPUs as many as torch may use of its cores, one core each, as in `shards.transformer`."""
    import torch

    if device != "cpu":
        return ThreadPoolExecutor(1, "encode-images")
    return ThreadPoolExecutor(torch.get_num_threads(), "encode-images", initializer=torch.set_num_threads, initargs=(1,))


def sized(image: "Image") -> "Image":
    """An image as processors can take it. Of a strip the middle is left, for they scale the shorter side to some hundred pixels first:
    a line of 10,000 pixels would become 500 million. One of three pixels' height they would take for one in three colours."""
    most = MAX_RATIO * min(image.size)
    if max(image.size) > most:
        left, top = (max(side - most, 0) // 2 for side in image.size)
        image = image.crop((left, top, left + min(image.width, most), top + min(image.height, most)))
    return image if min(image.size) >= 4 else image.resize((4 * image.width, 4 * image.height), 0)


class _ImageModel:
    """A loaded model. Safe for several threads. dim: of its vectors."""

    def __init__(self, model: Any, device: str):
        self._model, self._device = model, device
        self._lock = threading.Lock()  # a fast tokenizer's padding and truncation are its state

    @cached_property
    def dim(self) -> int:
        return self.text("a").shape[1]

    def images(self, images: "Sequence[Callable[[], Image]]") -> Iterator[Array]:
        """Vectors of images, (dim,) float32, not normalised, in order."""
        pool = encoding_threads(self._device)
        n_rows = 1 if self._device == "cpu" else _GPU_ROWS
        running: deque[Future[Array]] = deque()
        try:
            for start in range(0, len(images), n_rows):
                running.append(pool.submit(self._see, images[start : start + n_rows], n_rows))
                if len(running) > 2 * pool._max_workers:
                    yield from running.popleft().result()
            while running:
                yield from running.popleft().result()
        finally:
            for vectors in running:
                vectors.cancel()

    def text(self, text: str) -> Array:
        """The vector of a text, (1, dim) float32, not normalised."""
        return encoding_threads(self._device).submit(self._read, text).result()

    def reads(self, text: str) -> str:
        """The beginning of a text that fits into the model's window; the whole of it where its tokenizer cannot tell."""
        tokenizer = getattr(self._model.tokenizer, "tokenizer", self._model.tokenizer)  # of CLIP it is a processor that holds one
        if not getattr(tokenizer, "is_fast", False):
            return text
        with self._lock:
            offsets = tokenizer(text.strip(), truncation=True, return_offsets_mapping=True)["offset_mapping"]
        end = max((stop for _, stop in offsets), default=0)
        return text if end >= len(text.strip()) else text.strip()[:end]

    def _see(self, images: "Sequence[Callable[[], Image]]", n_rows: int) -> Array:
        pixels = [sized(image()) for image in images]
        return self._forward([*pixels, *pixels[:1] * (n_rows - len(pixels))])[: len(pixels)]

    def _read(self, text: str) -> Array:
        return self._forward([text])

    def _forward(self, inputs: Sequence[Any]) -> Array:
        import torch

        with self._lock:
            features = self._model.tokenize(list(inputs))
        features = {name: value.to(self._device) if isinstance(value, torch.Tensor) else value for name, value in features.items()}
        with torch.inference_mode():
            return self._model.forward(features)["sentence_embedding"].float().cpu().numpy()
