"""One loaded sentence-transformers model, and forward passes whose shape each text decides alone.

Importing this module is light; `load` imports torch.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from shards import model_files, windows
from shards.errors import BadSpec, ModelMissing
from shards.types import Array

Tokens = dict[str, list[list[int]]]  # what a tokeniser gives: input_ids and what goes with them, a list for each text

# The shape of a forward pass decides its bits. On CPUs a text is padded to nothing but its own length, and shares a pass only
# with texts of just that length: measured in fp32 and bf16 (tests/test_encoders.py), their number moves no bit of a row once a
# pass has 16 tokens; padding does, by 1e-7 and 2e-3. So nothing is computed twice or for nothing.
_CPU_LEAST = 16  # tokens
_CPU_PASS = 256  # tokens: larger passes are no faster on one core (3,000 tokens/s from 128 on, 2,500 with 64, 2,000 with 32)
# GPUs want large passes, and choose kernels by shape: texts are padded to one of few lengths, passes filled up to one size.
_GPU_LENGTHS = (32, 64, 96, 128, 192, 256, 384, 512)  # beyond the last: multiples of it
_GPU_PASS = 32768  # tokens
_MAX_TOKENS = 8192  # read of one text, whatever the model allows: attention is quadratic


# A model is taken apart into forward passes where each part gives a text what it would get alone: a transformer whose tokens see no
# padding, then parts that work on each token or pool. Any other model encodes text by text with sentence-transformers' own `encode`.
_TRANSFORMER = "Transformer"
_PARTS = {"Pooling", "Dense", "Normalize", "LayerNorm", "Dropout", "WeightedLayerPooling"}
_POOLS_TOKENS = {"mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"}  # what a part of a window can be pooled by


@lru_cache(maxsize=4)
def load(folder: Path, dtype: str, device: str | None) -> "Transformer":
    """The model in a folder. dtype: fp32 | bf16; device: cpu | cuda, None: cuda where there is one.

    Raises ModelMissing where the folder holds no such model, sentence-transformers is not installed, or there is no such device.
    """
    try:
        import torch
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ModelMissing(f"Dense layers need {error.name}: run pip install sentence-transformers.") from error
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelMissing("This machine has no GPU that torch can use (torch.cuda.is_available() is false). Encode on cpu.")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        with model_files.quiet_transformers():
            model = SentenceTransformer(str(folder), device=device, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, AttributeError) as error:
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
    """Safe for several threads; their passes take turns.

    dim: of its vectors; metric: how they are compared, by the model's own settings: cosine | dot | euclidean | manhattan
    """

    _opening_parts: ClassVar[Set[str]] = {_TRANSFORMER}
    _parts: ClassVar[Set[str]] = _PARTS

    def __init__(self, model: Any, folder: Path, device: str):
        self._model, self._folder, self._device = model, folder, device
        self._modules = list(model)
        self._kinds = [_kind(part) for part in model]
        if "StaticEmbedding" in self._kinds:
            raise ModelMissing(f"The model in {folder} is no text transformer. Model2Vec models belong to the layer `static`.")
        self._tokenizer = model.tokenizer
        whole = self._kinds[0] in self._opening_parts and self._parts.issuperset(self._kinds[1:])
        self._in_passes = whole and hasattr(self._tokenizer, "pad")
        if self._in_passes:  # what stands left of a text would move its positions
            self._tokenizer.padding_side = "right"
        # The product of one row and a matrix has other bits than that of several: parts after pooling see a text at a time.
        pooled = self._kinds.index("Pooling") + 1 if "Pooling" in self._kinds else len(self._kinds)
        self._n_shared = pooled if "Dense" in self._kinds[pooled:] else len(self._kinds)
        self._lower = bool(getattr(model[0], "do_lower_case", False))
        self._skips_prompt = any(not getattr(module, "include_prompt", True) for module in self._modules)
        limit = model.max_seq_length or getattr(self._tokenizer, "model_max_length", _MAX_TOKENS)
        self._max_tokens = int(min(limit, _MAX_TOKENS))
        self.dim = int(model.get_sentence_embedding_dimension() or len(model.encode("a", show_progress_bar=False)))
        self.metric = "cosine" if self._kinds[-1] == "Normalize" else str(model.similarity_fn_name)
        self._lock = threading.Lock()  # a fast tokenizer's padding and truncation are its state

    def prompt(self, names: tuple[str, ...]) -> str:
        """The model's own prompt of the first of these names that it has, else its default, else none."""
        prompts = self._model.prompts or {}
        named = next((prompts[name] for name in names if prompts.get(name)), None)
        return named or prompts.get(self._model.default_prompt_name) or ""

    def batches(
        self, texts: Sequence[str], prompt: str, task: Literal["document", "query"], n_rows: int | None = None
    ) -> Iterator[tuple[Array, Array]]:
        """Yields (places, vectors): which texts, and their (len(places), dim) float32 vectors, not normalised. Longest first.

        task: the way a text goes in models that have several (Router). n_rows: texts per forward pass; None: as many as are efficient.
        """
        if not self._in_passes:
            yield from self._one_by_one(texts, prompt, task)
            return
        tokens = self._tokens([prompt + text for text in texts])
        extra = {"prompt_length": self._prompt_length(prompt)} if prompt and self._skips_prompt else {}

        def vectors(places: Array, features: dict[str, Any]) -> Array:
            features |= extra
            for module in self._modules[: self._n_shared]:
                features = module(features)
            found = features["sentence_embedding"][: len(places)]
            if self._n_shared < len(self._modules):
                return np.concatenate([self._finish({"sentence_embedding": row[None]}, self._n_shared) for row in found])
            return found.float().cpu().numpy()

        yield from self._run(tokens, vectors, n_rows)

    def pooled(
        self, texts: Sequence[str], spans: Sequence[Array], prompt: str, window_tokens: int | None = None
    ) -> Iterator[tuple[Array, Array]]:
        """Late chunking (Günther et al. 2024, arXiv 2409.04701): each passage's tokens are pooled from a window around it.

        spans: of each text, its passages' (p, 2) int64 characters [start, end), starts ascending. window_tokens: as
        `window_limit`. The prompt is read at the beginning of each window, and not pooled; nor are the model's own tokens.
        Yields (places, vectors): places among all passages, text by text. A passage without a token is left out.
        """
        limit = self.window_limit(window_tokens)
        opening, closing = self._framing()
        tokens: Tokens = {"input_ids": [], "token_type_ids": []}
        whose: list[tuple[Array, Array, Array]] = []  # of each window: passages among all, their first token in it, and end
        n_before = 0
        for text, characters in zip(texts, spans, strict=True):
            ids, prompt_ids, firsts, ends = self._located(text, characters, prompt)
            head, tail = opening[0] + prompt_ids, closing[0]
            size = limit - len(head) - len(tail)
            if size < 1:
                raise BadSpec(f"A window of {limit} tokens has no room beside the prompt {prompt!r}. Shorten it, or widen window_tokens.")
            for window in windows.cut(len(ids), firsts, ends, size):
                tokens["input_ids"].append([*head, *ids[window.start : window.end].tolist(), *tail])
                types = [opening[1]] * len(opening[0]) + [0] * (len(prompt_ids) + window.end - window.start) + [closing[1]] * len(tail)
                tokens["token_type_ids"].append(types)
                shift = len(head) - window.start
                stops = np.minimum(ends[window.passages], window.end)
                whose.append((window.passages + n_before, firsts[window.passages] + shift, stops + shift))
            n_before += len(characters)
        if opening[1] is None:
            del tokens["token_type_ids"]

        def vectors(windows_: Array, features: dict[str, Any]) -> Array:
            states = self._modules[0](features)["token_embeddings"]
            rows = [self._pool(states[i, a:b]) for i, w in enumerate(windows_) for a, b in zip(*whose[w][1:], strict=True)]
            return np.concatenate(rows)

        for windows_, rows in self._run(tokens, vectors, None):
            yield np.concatenate([whose[w][0] for w in windows_]), rows

    def window_limit(self, window_tokens: int | None) -> int:
        """Tokens of a window of late chunking with the model's own: as asked, else as many as the model reads of a text.

        Raises BadSpec for a model that cannot do it, or has no positions for so many.
        """
        pooling = next((part for part, kind in zip(self._modules, self._kinds, strict=True) if kind == "Pooling"), None)
        modes = set(pooling.get_pooling_mode_str().split("+")) if pooling is not None else set()
        name = self._folder.name
        if not self._in_passes or not modes or not _POOLS_TOKENS.issuperset(modes) or "WeightedLayerPooling" in self._kinds:
            how = "+".join(sorted(modes)) or "by no pooling"
            raise BadSpec(f"Model {name!r} makes its vectors {how}; context=late needs one that pools tokens. Use context=isolated.")
        if not self._tokenizer.is_fast:
            raise BadSpec(f"The tokeniser of model {name!r} cannot say where tokens stand; context=late needs that. Use context=isolated.")
        if window_tokens is None:
            return self._max_tokens
        most = min(_positions(self._modules[0].auto_model), _MAX_TOKENS)
        if window_tokens > most:
            raise BadSpec(f"Model {name!r} has positions for {most} tokens; window_tokens is {window_tokens}. Choose up to {most}.")
        return window_tokens

    def reads(self, text: str, prompt: str) -> str:
        """The beginning of a text that fits into the model's window; the whole of it where a tokenizer cannot tell."""
        if not self._in_passes or not self._tokenizer.is_fast:
            return text
        near = text.strip()[: self._max_tokens * 64]  # no tokeniser merges that much on average
        with self._lock:
            offsets = self._tokenizer(prompt + near, truncation=True, max_length=self._max_tokens, return_offsets_mapping=True)
        end = max((stop for _, stop in offsets["offset_mapping"]), default=0) - len(prompt)
        rest = near[max(end, 0) :].strip()
        return text if not rest and len(near) == len(text.strip()) else near[: max(end, 0)]

    # --- forward passes ------------------------------------------------------------------------------------------------------

    def _run(self, tokens: Tokens, finish: Callable[[Array, dict[str, Any]], Array], n_rows: int | None) -> Iterator[tuple[Array, Array]]:
        """Yields (places, what `finish` makes of their pass). finish: called in the thread of a pass with places and padded features."""
        running: deque[tuple[Array, Future[Array]]] = deque()
        pool = _cpu_threads() if self._device == "cpu" else _gpu_threads()
        try:
            for places, length, rows in self._passes(np.array([len(ids) for ids in tokens["input_ids"]], np.int64), n_rows):
                batch = {name: [values[i] for i in places] for name, values in tokens.items()}
                running.append((places, pool.submit(self._forward, batch, length, rows, places, finish)))
                if len(running) > 2 * pool._max_workers:  # keeps all busy, and lets others in between
                    places, vectors = running.popleft()
                    yield places, vectors.result()
            while running:
                places, vectors = running.popleft()
                yield places, vectors.result()
        finally:
            for _, vectors in running:
                vectors.cancel()

    def _one_by_one(self, texts: Sequence[str], prompt: str, task: str) -> Iterator[tuple[Array, Array]]:
        for place, text in enumerate(texts):
            with self._lock:
                vectors = self._model.encode([text], prompt=prompt, batch_size=1, show_progress_bar=False, task=task)
            yield np.array([place]), np.asarray(vectors, np.float32)

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
        return max(min(fitting, self._max_tokens), size)

    def _forward(self, batch: Tokens, length: int, n_rows: int, places: Array, finish: Callable[[Array, dict[str, Any]], Array]) -> Array:
        """What `finish` makes of a batch. n_rows: of the pass; rows that lack are filled with the first."""
        import torch

        n = len(batch["input_ids"])
        filled = {name: values + values[:1] * (n_rows - n) for name, values in batch.items()}
        with self._lock:
            features = dict(
                self._tokenizer.pad(filled, padding="max_length", max_length=length, return_tensors="pt", return_attention_mask=True)
            )
        features = {name: value.to(self._device) for name, value in features.items()}
        with torch.inference_mode():
            return finish(places, features)

    def _pool(self, states: Any) -> Array:
        """The vector of one passage from its tokens' states, (n, hidden): (1, dim) float32."""
        import torch

        mask = torch.ones((1, len(states)), dtype=torch.int64, device=states.device)
        return self._finish({"token_embeddings": states[None], "attention_mask": mask}, 1)

    def _finish(self, features: dict[str, Any], begin: int) -> Array:
        """What the parts from `begin` on make of one text's features: (1, dim) float32."""
        for module in self._modules[begin:]:
            features = module(features)
        return features["sentence_embedding"].float().cpu().numpy()

    # --- tokens --------------------------------------------------------------------------------------------------------------

    def _tokens(self, texts: list[str]) -> Tokens:
        stripped = [text.strip() for text in texts]  # as sentence-transformers does
        if not stripped:
            return {"input_ids": []}
        if self._lower:
            stripped = [text.lower() for text in stripped]
        with self._lock:
            return dict(self._tokenizer(stripped, truncation=True, max_length=self._max_tokens, padding=False, return_attention_mask=True))

    def _prompt_length(self, prompt: str) -> int:
        """Tokens of the prompt with those that open a text, for models whose pooling leaves it out."""
        ids = self._tokens([prompt])["input_ids"][0]
        return len(ids) - (ids[-1] in self._tokenizer.all_special_ids)

    def _framing(self) -> tuple[tuple[list[int], int | None], tuple[list[int], int | None]]:
        """What the tokeniser puts before and after a text: (ids, their token type) each; type None: the model has no such thing."""
        with self._lock:
            whole = self._tokenizer("a", return_special_tokens_mask=True)
        ids, special = whole["input_ids"], whole["special_tokens_mask"]
        types = whole.get("token_type_ids")
        n_open = next((i for i, own in enumerate(special) if not own), len(ids))
        n_close = next((i for i, own in enumerate(special[::-1]) if not own), 0)
        first, last = (types[0], types[-1]) if types else (None, None)
        return (ids[:n_open], first), (ids[len(ids) - n_close :], last)

    def _located(self, text: str, spans: Array, prompt: str) -> tuple[Array, list[int], Array, Array]:
        """(ids of the text's tokens, ids of the prompt, each passage's first token, and the one after its last).

        spans: (p, 2) int64 characters of the passages, starts ascending. Long texts are tokenised in stretches of whole passages.
        """
        if self._lower:
            text = "".join(low if len(low := c.lower()) == 1 else c for c in text)  # İ becomes two characters, which would move spans
        cuts = windows.stretches(spans[:, 0], len(text))
        with self._lock:
            pieces = self._tokenizer(
                [prompt * (not i) + text[a:b] for i, (a, b) in enumerate(cuts)],
                add_special_tokens=False, truncation=False, padding=False, return_offsets_mapping=True, verbose=False,
            )  # fmt: skip
        ids = np.concatenate([np.array(piece, np.int64) for piece in pieces["input_ids"]])
        shifts = [a - len(prompt) * (not i) for i, (a, _) in enumerate(cuts)]
        offsets = [np.array(piece, np.int64).reshape(-1, 2) + shift for piece, shift in zip(pieces["offset_mapping"], shifts, strict=True)]
        starts, ends = np.maximum.accumulate(np.concatenate(offsets), axis=0).T
        n_prompt = int(np.searchsorted(ends, 0, "right")) if prompt else 0
        starts, ends = starts[n_prompt:], ends[n_prompt:]
        firsts, lasts = np.searchsorted(ends, spans[:, 0], "right"), np.searchsorted(starts, spans[:, 1], "left")
        return ids[n_prompt:], ids[:n_prompt].tolist(), firsts, np.maximum(lasts, firsts)


def _kind(module: Any) -> str:
    """The name of a part of sentence-transformers' own; of any other, with where it comes from, so that none is taken for another."""
    cls = type(module)
    return cls.__name__ if cls.__module__.startswith("sentence_transformers.") else f"{cls.__module__}.{cls.__name__}"


def _positions(model: Any) -> int:
    """Tokens that a transformer has positions for. RoBERTa's kind counts them from the one after the padding's."""
    table = next((module for name, module in model.named_modules() if name.split(".")[-1] == "position_embeddings"), None)
    if (n := getattr(table, "num_embeddings", None)) is not None:
        return int(n) if table.padding_idx is None else int(n) - table.padding_idx - 1
    return int(getattr(model.config, "max_position_embeddings", None) or _MAX_TOKENS)
