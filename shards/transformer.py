"""One loaded sentence-transformers model, and forward passes whose shape each text decides alone.

Importing this module is light; `load` imports torch.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from shards import model_files
from shards.errors import ModelMissing
from shards.types import Array

# The shape of a forward pass decides its bits. On CPUs a text is padded to nothing but its own length, and shares a pass only
# with texts of just that length: measured in fp32 and bf16 (tests/test_encoders.py), their number moves no bit of a row once a
# pass has 16 tokens; padding does, by 1e-7 and 2e-3. So nothing is computed twice or for nothing.
_CPU_LEAST = 16  # tokens
_CPU_PASS = 256  # tokens: larger passes are no faster on one core (3,000 tokens/s from 128 on, 2,500 with 64, 2,000 with 32)
# GPUs want large passes, and choose kernels by shape: texts are padded to one of few lengths, passes filled up to one size.
_GPU_LENGTHS = (32, 64, 96, 128, 192, 256, 384, 512)  # beyond the last: multiples of it
_GPU_PASS = 32768  # tokens
_MAX_TOKENS = 8192  # read of one text, whatever the model allows: attention is quadratic


@lru_cache(maxsize=4)
def load(folder: Path, dtype: str, device: str | None) -> "Transformer":
    """The model in a folder. dtype: fp32 | bf16; device: cpu | cuda, None: cuda where there is one.

    Raises ModelMissing where the folder holds no such model or sentence-transformers is not installed.
    """
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ModelMissing(f"Dense layers need {error.name}: run pip install sentence-transformers.") from error
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        with model_files.quiet_transformers():
            model = SentenceTransformer(str(folder), device=device, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        what = f"no sentence-transformers model that can be loaded on {device}"
        raise ModelMissing(f"Folder {folder} holds {what}: {error}") from error
    if dtype == "bf16":
        model = model.to(torch.bfloat16)
    return Transformer(model.eval(), folder, device)


@lru_cache(maxsize=1)
def _cpu_threads() -> ThreadPoolExecutor:
    """The threads that run all forward passes of this process on CPUs, as many as torch may use of its cores, one core each.

    Measured on 2 cores that other work shared: 1.3 times as fast as sentence-transformers' best batches, 6 times as fast as the
    same passes on 2 OpenMP threads, which wait for one another. Ray and OMP_NUM_THREADS tell torch how many.
    """
    import torch

    return ThreadPoolExecutor(torch.get_num_threads(), "encode", initializer=torch.set_num_threads, initargs=(1,))


@lru_cache(maxsize=1)
def _gpu_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "encode-gpu")


class Transformer:
    """Safe for several threads; their passes take turns. dim: of its vectors."""

    def __init__(self, model: Any, folder: Path, device: str):
        self._model, self._device = model, device
        self._tokenizer = model.tokenizer
        self._lower = bool(getattr(model[0], "do_lower_case", False))
        self._skips_prompt = any(not getattr(module, "include_prompt", True) for module in model)
        if not callable(self._tokenizer) or not hasattr(self._tokenizer, "pad"):
            raise ModelMissing(f"The model in {folder} is no text transformer. Model2Vec models belong to the layer `static`.")
        limit = model.max_seq_length or self._tokenizer.model_max_length
        self._max_tokens = int(min(limit, _MAX_TOKENS))
        self.dim = int(model.get_sentence_embedding_dimension())
        self._lock = threading.Lock()  # a fast tokenizer's padding and truncation are its state

    def prompt(self, names: tuple[str, ...]) -> str:
        """The model's own prompt of the first of these names that it has, else its default, else none."""
        prompts = self._model.prompts or {}
        named = next((prompts[name] for name in names if prompts.get(name)), None)
        return named or prompts.get(self._model.default_prompt_name) or ""

    def batches(self, texts: Sequence[str], prompt: str, n_rows: int | None = None) -> Iterator[tuple[Array, Array]]:
        """Yields (places, vectors): which texts, and their (len(places), dim) float32 vectors, not normalised. Longest first.

        n_rows: texts per forward pass; None: as many as are efficient.
        """
        tokens = self._tokens([prompt + text for text in texts])
        extra = {"prompt_length": self._prompt_length(prompt)} if prompt and self._skips_prompt else {}
        running: deque[tuple[Array, Future[Array]]] = deque()
        pool = _cpu_threads() if self._device == "cpu" else _gpu_threads()
        try:
            for places, length, rows in self._passes(np.array([len(ids) for ids in tokens["input_ids"]], np.int64), n_rows):
                batch = {name: [values[i] for i in places] for name, values in tokens.items()}
                running.append((places, pool.submit(self._forward, batch, length, rows, extra)))
                if len(running) > 2 * pool._max_workers:  # keeps all busy, and lets others in between
                    places, vectors = running.popleft()
                    yield places, vectors.result()
            while running:
                places, vectors = running.popleft()
                yield places, vectors.result()
        finally:
            for _, vectors in running:
                vectors.cancel()

    def reads(self, text: str, prompt: str) -> str:
        """The beginning of a text that fits into the model's window; the whole of it where a tokenizer cannot tell."""
        if not self._tokenizer.is_fast:
            return text
        near = text.strip()[: self._max_tokens * 64]  # no tokeniser merges that much on average
        with self._lock:
            offsets = self._tokenizer(prompt + near, truncation=True, max_length=self._max_tokens, return_offsets_mapping=True)
        end = max((stop for _, stop in offsets["offset_mapping"]), default=0) - len(prompt)
        rest = near[max(end, 0) :].strip()
        return text if not rest and len(near) == len(text.strip()) else near[: max(end, 0)]

    def _passes(self, sizes: Array, n_rows: int | None) -> Iterator[tuple[Array, int, int]]:
        """Yields (places, length, rows) of each forward pass. sizes: (n,) int64, tokens of each text; rows >= len(places)."""
        on_cpu = self._device == "cpu"
        groups = sizes if on_cpu else np.array([self._padded(size) for size in sizes.tolist()], np.int64)
        for group in np.unique(groups)[::-1].tolist():
            length = max(group, min(_CPU_LEAST, self._max_tokens)) if on_cpu else group
            most = n_rows or max((_CPU_PASS if on_cpu else _GPU_PASS) // length, 1)
            same = np.flatnonzero(groups == group)
            for start in range(0, len(same), most):
                places = same[start : start + most]
                yield places, length, len(places) if on_cpu else most

    def _padded(self, size: int) -> int:
        fitting = next((length for length in _GPU_LENGTHS if length >= size), -(-size // _GPU_LENGTHS[-1]) * _GPU_LENGTHS[-1])
        return min(fitting, self._max_tokens)

    def _forward(self, batch: dict[str, list[list[int]]], length: int, n_rows: int, extra: dict[str, Any]) -> Array:
        """Vectors of a batch, (rows, dim) float32. n_rows: of the pass; rows that lack are filled with the first."""
        import torch

        n = len(batch["input_ids"])
        filled = {name: values + values[:1] * (n_rows - n) for name, values in batch.items()}
        with self._lock:
            features = dict(self._tokenizer.pad(filled, padding="max_length", max_length=length, return_tensors="pt"))
        features = {name: value.to(self._device) for name, value in features.items()}
        with torch.inference_mode():
            vectors = self._model.forward(features | extra)["sentence_embedding"]
        return vectors[:n].float().cpu().numpy()

    def _tokens(self, texts: list[str]) -> dict[str, list[list[int]]]:
        stripped = [text.strip() for text in texts]  # as sentence-transformers does
        if not stripped:
            return {"input_ids": []}
        if self._lower:
            stripped = [text.lower() for text in stripped]
        with self._lock:
            return dict(self._tokenizer(stripped, truncation=True, max_length=self._max_tokens, padding=False))

    def _prompt_length(self, prompt: str) -> int:
        """Tokens of the prompt with those that open a text, for models whose pooling leaves it out."""
        ids = self._tokens([prompt])["input_ids"][0]
        return len(ids) - (ids[-1] in self._tokenizer.all_special_ids)
