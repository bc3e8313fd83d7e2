"""Learned sparse models of a few kilobytes with random weights, saved in their real formats."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from tiny_bert import tokeniser

WORDS = ["alpha", "beta", "gamma", "delta", "river", "stone", "cloud", "tree", "sort", "merge", "node", "edge", "parse", "json", "hello"]


def masked_lm(folder: Path, words: Sequence[str] = WORDS, seed: int = 0, family: str = "bert", hidden: int = 32) -> Path:
    """A masked language model as transformers saves it, most of whose logits are negative."""
    import torch
    import transformers

    tokenizer = tokeniser(words)
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 128, "initializer_range": 0.3}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if family == "bert":
            config = transformers.BertConfig(
                hidden_size=hidden, num_hidden_layers=1, num_attention_heads=2, intermediate_size=2 * hidden, **sizes
            )  # fmt: skip
            model = transformers.BertForMaskedLM(config)
        else:
            config = transformers.DistilBertConfig(dim=hidden, n_layers=1, n_heads=2, hidden_dim=2 * hidden, **sizes)
            model = transformers.DistilBertForMaskedLM(config)
    with torch.no_grad():
        model.get_output_embeddings().bias -= 2.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def splade(folder: Path, pooling: str = "max", activation: str = "relu", prompts: dict[str, str] | None = None, **options) -> Path:
    """A SparseEncoder as sentence-transformers saves it."""
    from sentence_transformers.sparse_encoder.models import SpladePooling

    parts = [_masked_lm_part(folder / "lm", **options), SpladePooling(pooling, activation)]
    return saved(parts, folder / "splade", prompts=prompts)


def inference_free(folder: Path) -> Path:
    """Questions weighed by a table, passages by SPLADE."""
    import torch
    from sentence_transformers.models import Router
    from sentence_transformers.sparse_encoder.models import SparseStaticEmbedding, SpladePooling

    lm = _masked_lm_part(folder / "lm")
    table = SparseStaticEmbedding(lm.tokenizer, torch.linspace(0.5, 2.5, len(lm.tokenizer)), frozen=True)
    return saved([Router.for_query_document([table], [lm, SpladePooling("max", "log1p_relu")])], folder / "free")


def two_encoders(folder: Path) -> Path:
    """A model for questions, another for passages."""
    from sentence_transformers.models import Router
    from sentence_transformers.sparse_encoder.models import SpladePooling

    asked, kept = (_masked_lm_part(folder / f"lm{seed}", seed=seed) for seed in (1, 2))
    return saved([Router.for_query_document([asked, SpladePooling()], [kept, SpladePooling()])], folder / "two")


def autoencoder(folder: Path) -> Path:
    """A sparse autoencoder on the vectors of a transformer (CSR)."""
    import torch
    from sentence_transformers.models import Pooling, Transformer
    from sentence_transformers.sparse_encoder.models import SparseAutoEncoder

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        part = Transformer(str(masked_lm(folder / "lm")))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        coder = SparseAutoEncoder(32, 200, k=12, k_aux=16)
    return saved([part, Pooling(32), coder], folder / "csr")


def m3(folder: Path, safetensors: bool = False, hidden: int = 32) -> Path:
    """BGE-M3's layout: an XLM-R model, its tokeniser, and `sparse_linear` beside them."""
    import torch
    from safetensors.torch import save_file
    from transformers import PreTrainedTokenizerFast, XLMRobertaConfig, XLMRobertaModel

    tokenizer = _sentence_pieces()
    config = XLMRobertaConfig(
        vocab_size=len(tokenizer) + 3, hidden_size=hidden, num_hidden_layers=1, num_attention_heads=2, intermediate_size=2 * hidden,
        max_position_embeddings=66, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2, initializer_range=0.3,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        XLMRobertaModel(config).save_pretrained(folder)
        head = {"weight": 0.3 * torch.randn(1, hidden), "bias": torch.tensor([2.0])}
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    tokenizer.save_pretrained(folder)
    if safetensors:
        save_file(head, folder / "sparse_linear.safetensors")
    else:
        torch.save(head, folder / "sparse_linear.pt")
    return folder


def saved(parts: list, folder: Path, prompts: dict[str, str] | None = None) -> Path:
    """A SparseEncoder of these parts in a folder."""
    from sentence_transformers import SparseEncoder

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        SparseEncoder(modules=parts, device="cpu", prompts=prompts).save_pretrained(str(folder), create_model_card=False)
    return folder


def _masked_lm_part(folder: Path, **options):
    from sentence_transformers.sparse_encoder.models import MLMTransformer

    return MLMTransformer(str(masked_lm(folder, **options)))


def _sentence_pieces():
    """A tokeniser in the manner of XLM-R: pieces with "▁" where a word begins."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(f"▁{word}", -2.0) for word in WORDS] + [("▁", -5.0)] + [(c, -6.0) for c in "abcdefghijklmnopqrstuvwxyz0123456789"]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    special = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=8192, **special)
