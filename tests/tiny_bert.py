"""A randomly initialised BERT of some thousand weights, saved as sentence-transformers saves models, for the code that loads real ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layer_contract import WORDS

from shards.model_files import quiet_transformers


def tokeniser(words: Sequence[str] = WORDS, padding_side: str = "right"):
    """Word pieces: the given words whole, other text letter by letter; opens with [CLS], closes with [SEP]."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    letters = [f"{prefix}{c}" for prefix in ("", "##") for c in "abcdefghijklmnopqrstuvwxyz0123456789_é"]
    vocabulary = dict.fromkeys([*special, *(w.lower() for w in words), *letters, *".,:;!?-=()[]{}'\""])
    numbers = {word: i for i, word in enumerate(vocabulary)}
    raw = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", numbers["[CLS]"]), ("[SEP]", numbers["[SEP]"])]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=raw, padding_side=padding_side, model_max_length=96, **names)


def save_bert(
    folder: Path,
    pooling: str = "mean",
    *,
    max_tokens: int = 48,
    padding_side: str = "right",
    more: Sequence[Any] = (),
    include_prompt: bool = True,
    **settings: Any,
) -> Path:
    """The model's folder. pooling: modes joined by +; more: modules after it; settings: of SentenceTransformer (prompts, …)."""
    import torch
    from sentence_transformers import SentenceTransformer, models

    transformer = save_transformer(folder / "bert", max_tokens, padding_side)
    names = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "weightedmean": "weightedmean_tokens"}
    names |= {"lasttoken": "lasttoken", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens"}
    modes = {f"pooling_mode_{name}": mode in pooling.split("+") for mode, name in names.items()}
    torch.manual_seed(1)
    with quiet_transformers():
        parts = [transformer, models.Pooling(16, include_prompt=include_prompt, **modes), *more]
        SentenceTransformer(modules=parts, device="cpu", **settings).save(str(folder / "model"), create_model_card=False)
    return folder / "model"


def save_transformer(folder: Path, max_tokens: int = 48, padding_side: str = "right", seed: int = 0):
    """The transformer alone, as a module of sentence-transformers; 96 positions, of which `max_tokens` are read."""
    import torch
    from sentence_transformers import models
    from transformers import BertConfig, BertModel

    words = tokeniser(padding_side=padding_side)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=96, initializer_range=0.5,
    )  # fmt: skip
    with quiet_transformers():
        BertModel(config).save_pretrained(folder)
        words.save_pretrained(folder)
        return models.Transformer(str(folder), max_seq_length=max_tokens)
