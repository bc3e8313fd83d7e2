"""A cross-encoder of some thousand random weights, saved in its real format, for the code that loads real ones."""

from collections.abc import Iterable
from pathlib import Path

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def word_pieces(words: Iterable[str] = ()):
    """A BERT tokeniser of letters, digits and some words."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *LETTERS, *(f"##{c}" for c in LETTERS), *".,:;!?-'\""]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(dict.fromkeys(vocabulary))}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=128, **special)


def cross_encoder(folder: Path, labels: int = 1, seed: int = 0, layers: int = 2) -> Path:
    """A BERT cross-encoder as `sentence_transformers.CrossEncoder` saves it: 128 tokens, 32 dimensions."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    tokenizer = word_pieces()
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=128, num_labels=labels, initializer_range=0.3,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
