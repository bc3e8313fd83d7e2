"""Images and texts to many vectors each, as late interaction compares them: page models of ColPali's kind.

Those are vision-language models with a projection at the end: a page gives a vector for each of its patches, a question one for each of
its tokens (Faysse et al. 2024, arXiv 2407.01449). What transformers calls `…ForRetrieval` is loaded, with the number format of its
files; PyLate and sentence-transformers 5.3 have no such models. Importing this module is light.

Each image and each text goes through the model alone, so its vectors have the same bits whatever is encoded beside it.
"""

import hashlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shards import model_files
from shards.encoders import Done, unit_rows
from shards.errors import ModelMissing
from shards.image_encoder import encoding_threads, sized
from shards.images import require_pillow
from shards.layers.contract import Resources
from shards.types import Array

if TYPE_CHECKING:
    from PIL.Image import Image

QUERY_TOKENS = 200  # read of a question, beside what the model puts around it: a question's vectors travel to every host
_loading = threading.Lock()


class PageEncoder:
    """One model. Loading raises ModelMissing."""

    def __init__(self, model: str, resources: Resources, device: Literal["cpu", "cuda"] | None = None):
        self.model, self.resources, self._device = model, resources, device
        self._loaded: _PageModel | None = None

    @property
    def dim(self) -> int:
        """Components of each vector."""
        return self._load().dim

    def fingerprint(self) -> str:
        """A hash of the model's files. Raises ModelMissing, also without Pillow."""
        require_pillow()
        files = model_files.fingerprint(model_files.locate(self.model, self.resources), self.resources)
        return hashlib.sha256(json.dumps(["image_late", files]).encode()).hexdigest()[:32]

    def encode_documents(self, images: "Sequence[Callable[[], Image]]", done: Done | None = None) -> list[Array]:
        """Of each image, (n, dim) float32 rows of unit length. images: give an image in RGB each."""
        found = []
        for vectors in self._load().images(images):
            found.append(unit_rows(vectors))
            if done:
                done(len(found))
        return found

    def encode_queries(self, texts: Sequence[str]) -> list[Array]:
        """Of each text, (n, dim) float32 rows of unit length."""
        return [unit_rows(self._load().text(text)) for text in texts]

    def reads(self, text: str) -> str:
        """The beginning of a question that is read."""
        return self._load().reads(text)

    def _load(self) -> "_PageModel":
        if self._loaded is None:
            folder = model_files.locate(self.model, self.resources)
            with _loading:
                self._loaded = load(folder, self._device)
        return self._loaded


@lru_cache(maxsize=1)
def load(folder: Path, device: str | None) -> "_PageModel":
    """The model in a folder. device: cpu | cuda, None: cuda where there is one. Raises ModelMissing, saying what is wrong with it."""
    require_pillow()
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ModelMissing(f"Layer 'image_late' needs {error.name}: run pip install sentence-transformers.") from error
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        with model_files.quiet_transformers():
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            name = next(iter(config.architectures or ()), "")
            if not name.endswith("ForRetrieval") or not hasattr(transformers, name):
                raise ModelMissing(
                    f"Folder {folder} holds {name or 'no model'} of transformers; late interaction over images takes one that is called "
                    "…ForRetrieval there, such as vidore/colpali-v1.3-hf or vidore/colqwen2-v1.0-hf."
                )
            model = getattr(transformers, name).from_pretrained(folder, local_files_only=True).to(device).eval()
            processor = transformers.AutoProcessor.from_pretrained(folder, local_files_only=True)
    except ModelMissing:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        raise ModelMissing(f"Folder {folder} holds no page model that can be loaded on {device}: {error}") from error
    return _PageModel(model, processor, device)


class _PageModel:
    """A loaded model with its processor. Safe for several threads. dim: of its vectors."""

    def __init__(self, model: Any, processor: Any, device: str):
        self._model, self._processor, self._device = model, processor, device
        self._lock = threading.Lock()  # a fast tokenizer's padding is its state
        self.dim = int(self.text("a").shape[1])

    def images(self, images: "Sequence[Callable[[], Image]]") -> Iterator[Array]:
        """The vectors of each image, (n, dim) float32, in order."""
        pool = encoding_threads(self._device)
        running: deque[Future[Array]] = deque()
        try:
            for image in images:
                running.append(pool.submit(self._see, image))
                if len(running) > 2 * pool._max_workers:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for vectors in running:
                vectors.cancel()

    def text(self, text: str) -> Array:
        """The vectors of a question, (n, dim) float32."""
        return encoding_threads(self._device).submit(self._read, text).result()

    def _see(self, image: "Callable[[], Image]") -> Array:
        pixels = sized(image())
        with self._lock:
            inputs = self._processor.process_images([pixels], return_tensors="pt")
        return self._forward(inputs)

    def _read(self, text: str) -> Array:
        with self._lock:
            inputs = self._processor.process_queries([text], return_tensors="pt")
        return self._forward(inputs)

    def reads(self, text: str) -> str:
        """The beginning of a text that has `QUERY_TOKENS` tokens at most; the whole of it where its tokenizer cannot tell."""
        tokenizer = self._processor.tokenizer
        if not tokenizer.is_fast:
            return text[: 4 * QUERY_TOKENS]
        with self._lock:
            offsets = tokenizer(text, truncation=True, max_length=QUERY_TOKENS, return_offsets_mapping=True)["offset_mapping"]
        end = max((stop for _, stop in offsets), default=0)
        return text if end >= len(text.rstrip()) else text[:end]

    def _forward(self, inputs: Any) -> Array:
        import torch

        features = {name: value.to(self._device) for name, value in inputs.items() if name != "labels"}
        with torch.inference_mode():
            vectors = self._model(**features).embeddings[0]
        kept = features["attention_mask"][0].bool() if "attention_mask" in features else slice(None)
        return vectors[kept].float().cpu().numpy()
