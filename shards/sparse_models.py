"""Models that give a text weights of vocabulary entries: sentence-transformers' SparseEncoder, and BGE-M3's sparse head.

Imports torch and sentence-transformers: import it inside functions.
"""

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from pickle import UnpicklingError
from typing import ClassVar

import numpy as np
import torch
from safetensors.torch import load_file
from sentence_transformers import SparseEncoder
from sentence_transformers.models import Router
from sentence_transformers.models import Transformer as TransformerPart
from sentence_transformers.sparse_encoder.models import MLMTransformer, SpladePooling
from torch import Tensor, nn
from torch.nn import functional

from shards import model_files
from shards.errors import ModelMissing
from shards.transformer import Transformer
from shards.types import Array

_M3_HEADS = ("sparse_linear.safetensors", "sparse_linear.pt")
# Of the vocabulary, at a time: the logits of a pass of 256 tokens are then 1 MB. Measured with BERT-tiny on one core, 256 tokens:
# 31 ms in parts of 512 and 1,024, 36 of 2,048, 49 of 8,192, 57 at once; 91 with log1p before the maximum, as in SpladePooling.
_VOCABULARY_PART = 1024
_PROBE = "A sentence on which two ways must agree."


class Expansion(nn.Module):
    """SPLADE's log(1 + relu(logit)), the largest over a text's tokens, from what the vocabulary's linear map is applied to.

    Like MLMTransformer's decoder and SpladePooling("max") together, but that the maximum is taken first (log1p rises) and the map
    is done in parts of the vocabulary, so that logits of all tokens are never held.
    Source: Formal et al. 2021 (SPLADE v2), section 3.1; activation "log1p_relu": Shen et al. 2025, arXiv 2504.14839.
    """

    def __init__(self, decoder: nn.Linear, activation: str):
        super().__init__()
        self.decoder, self.twice = decoder, activation == "log1p_relu"

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        states, mask = features["token_embeddings"], features["attention_mask"]
        padding = None if bool(mask.all()) else (mask == 0)[..., None]
        weight, bias = self.decoder.weight, self.decoder.bias
        best = []
        for at in range(0, len(weight), _VOCABULARY_PART):
            part = slice(at, at + _VOCABULARY_PART)
            logits = functional.linear(states, weight[part], None if bias is None else bias[part])
            best.append((logits if padding is None else logits.masked_fill_(padding, 0)).amax(1))
        weights = torch.cat(best, 1).float().relu_().log1p_()
        features["sentence_embedding"] = weights.log1p_() if self.twice else weights
        return features

    def get_sentence_embedding_dimension(self) -> int:
        return len(self.decoder.weight)


class LexicalWeights(nn.Module):
    """BGE-M3's sparse head: each token's weight is a linear map of its state, cut at 0; a word takes the largest of its tokens.

    The tokeniser's own tokens weigh nothing. Source: Chen et al. 2024, arXiv 2402.03216, section 3.2.
    """

    def __init__(self, weight: Tensor, bias: Tensor, vocabulary_size: int, unused: Sequence[int]):
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], 1)
        self.linear.weight, self.linear.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.vocabulary_size, self.unused = vocabulary_size, list(unused)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        ids = features["input_ids"]
        of_tokens = self.linear(features["token_embeddings"]).squeeze(-1).float().relu_()
        weights = torch.zeros((len(ids), self.vocabulary_size), device=ids.device)
        weights.scatter_reduce_(1, ids, of_tokens * features["attention_mask"], "amax")
        weights[:, self.unused] = 0
        features["sentence_embedding"] = weights
        return features

    def get_sentence_embedding_dimension(self) -> int:
        return self.vocabulary_size


class SparseTransformer(Transformer):
    """One way through a SparseEncoder, for documents or for questions.

    Encoded one by one are texts of a SparseAutoEncoder, which works on one vector a text (a product of one row may differ in its
    last bits from the same row among others), and of a SparseStaticEmbedding, which looks tokens up in a table.
    """

    _opening_parts: ClassVar[set[str]] = {"Transformer", "MLMTransformer"}
    _parts: ClassVar[set[str]] = Transformer._parts | {
        "SpladePooling", f"{__name__}.Expansion", f"{__name__}.LexicalWeights",
    }  # fmt: skip

    @property
    def max_active_dims(self) -> int | None:
        """The model's own limit of a text's terms."""
        return self._model.max_active_dims

    def vocabulary(self) -> dict[str, int] | None:
        """The components by their names; None where they are not tokens but an autoencoder's."""
        return None if "SparseAutoEncoder" in self._kinds else self._tokenizer.get_vocab()

    def pieces(self, text: str) -> list[str]:
        """The vocabulary entries that a text is made of, without those that the tokeniser adds or puts for what it does not know."""
        with self._lock:
            pieces = self._tokenizer.tokenize(text.lower() if self._lower else text)
        return [piece for piece in pieces if piece != self._tokenizer.unk_token]

    def _one_by_one(self, texts: Sequence[str], prompt: str, task: str) -> Iterator[tuple[Array, Array]]:
        for place, text in enumerate(texts):
            with self._lock:
                weights = self._model.encode(
                    [text], prompt=prompt, batch_size=1, show_progress_bar=False, convert_to_sparse_tensor=False
                )  # fmt: skip
            yield np.array([place]), weights.float().cpu().numpy()


@lru_cache(maxsize=4)
def load(folder: Path, dtype: str, device: str | None) -> tuple[SparseTransformer, SparseTransformer]:
    """The model in a folder: its ways for documents and for questions; one and the same where it knows no difference.

    dtype: fp32 | bf16; device: cpu | cuda, None: cuda where there is one. Raises ModelMissing where the folder holds no such model.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelMissing("This machine has no GPU that torch can use (torch.cuda.is_available() is false). Encode on cpu.")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        with model_files.quiet_transformers():
            model = _read(folder, device)
            ways = [_way(model, task, device) for task in ("document", "query")]
            if not any(isinstance(part, Router) for part in model):
                ways = ways[:1]
            for way in ways:
                way.eval()
                _expand_in_parts(way)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, AttributeError, UnpicklingError) as error:
        raise ModelMissing(f"Folder {folder} holds no sparse model that can be loaded on {device}: {error}") from error
    if dtype == "bf16":
        ways = [way.to(torch.bfloat16) for way in ways]
    transformers = [SparseTransformer(way, folder, device) for way in ways]
    return transformers[0], transformers[-1]


def _read(folder: Path, device: str) -> SparseEncoder:
    if any((folder / name).is_file() for name in _M3_HEADS):
        return SparseEncoder(modules=_m3_parts(folder), device=device)
    if (folder / "modules.json").is_file():
        settings = folder / "config_sentence_transformers.json"
        kind = json.loads(settings.read_text()).get("model_type") if settings.is_file() else None
        if kind != "SparseEncoder":  # sentence-transformers would put an untrained autoencoder on top
            raise ModelMissing(
                f"The model in {folder} is a {kind or 'SentenceTransformer'}: its vectors are dense. Use it in the layer `dense`, "
                "or name a SparseEncoder."
            )
        return SparseEncoder(str(folder), device=device, local_files_only=True)
    config = json.loads((folder / "config.json").read_text())
    if not any(name.endswith("ForMaskedLM") for name in config.get("architectures") or ()):
        raise ModelMissing(
            f"Folder {folder} holds no SPLADE model: its config.json names {config.get('architectures')}, not a masked language model. "
            f"A SparseEncoder has a modules.json, BGE-M3 a {_M3_HEADS[1]}."
        )
    return SparseEncoder(modules=[MLMTransformer(str(folder)), SpladePooling("max")], device=device)


def _m3_parts(folder: Path) -> list[nn.Module]:
    """BGE-M3 as its authors lay it out: an XLM-R model, and beside it the head's weights."""
    path = next(folder / name for name in _M3_HEADS if (folder / name).is_file())
    tensors = load_file(path) if path.suffix == ".safetensors" else torch.load(path, map_location="cpu", weights_only=True)
    encoder = TransformerPart.load(str(folder)) if (folder / "sentence_bert_config.json").is_file() else TransformerPart(str(folder))
    config, tokenizer = encoder.auto_model.config, encoder.tokenizer
    n_positions = config.max_position_embeddings - (config.pad_token_id or 0) - 1  # XLM-R counts them from after that of padding
    encoder.max_seq_length = min(encoder.max_seq_length or n_positions, n_positions)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    expected = {"weight": (1, config.hidden_size), "bias": (1,)}
    if shapes != expected:
        raise ModelMissing(f"{path} holds {shapes}; a sparse head of this model has {expected}.")
    names = ("cls_token_id", "eos_token_id", "pad_token_id", "unk_token_id")
    unused = [number for name in names if (number := getattr(tokenizer, name)) is not None]
    return [encoder, LexicalWeights(tensors["weight"].float(), tensors["bias"].float(), config.vocab_size, unused)]


def _way(model: SparseEncoder, task: str, device: str) -> SparseEncoder:
    """The parts that a text of this task goes through: a Router chooses some of its own."""
    parts: list[nn.Module] = []
    for part in model:
        if isinstance(part, Router):
            if task not in part.sub_modules:
                raise ModelMissing(f"The model has ways for {', '.join(sorted(part.sub_modules))}, and none for {task!r}.")
            parts += part.sub_modules[task]
        else:
            parts.append(part)
    way = SparseEncoder(modules=parts, device=device, prompts=model.prompts, default_prompt_name=model.default_prompt_name)
    way.max_active_dims = model.max_active_dims
    return way


def _expand_in_parts(way: SparseEncoder) -> None:
    """Puts `Expansion` in the place of SPLADE's pooling, where the model's decoder is a linear map and the outcome is the same."""
    if len(way) != 2 or not isinstance(way[0], MLMTransformer) or not isinstance(way[1], SpladePooling):
        return
    masked_lm, pooling = way[0].auto_model, way[1]
    decoder = masked_lm.get_output_embeddings()
    if pooling.pooling_strategy != "max" or not isinstance(decoder, nn.Linear):
        return
    before = way.encode([_PROBE], show_progress_bar=False, convert_to_sparse_tensor=False)
    _replace(masked_lm, decoder, nn.Identity())
    way[1] = Expansion(decoder, pooling.activation_function)
    try:
        same = torch.allclose(way.encode([_PROBE], show_progress_bar=False, convert_to_sparse_tensor=False), before, atol=1e-4)
    except (RuntimeError, TypeError, ValueError, AttributeError):
        same = False
    if not same:  # what is between states and logits is not the linear map alone
        _replace(masked_lm, way[0].auto_model.get_output_embeddings(), decoder)
        way[1] = pooling


def _replace(model: nn.Module, part: nn.Module, other: nn.Module) -> None:
    """Puts another module where one is (a model's own setter would tie weights and biases too)."""
    for name in [name for name, module in model.named_modules(remove_duplicate=False) if module is part]:
        model.set_submodule(name, other)
