"""A CLIP of some thousand weights, drawn at random but for its seed, saved as sentence-transformers saves one; and drawn images."""

import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SIDE = 32  # pixels that the tiny model looks at
DIM = 16


def save_clip(folder: Path, seed: int = 0) -> Path:
    """Write the model into a folder. All of transformers' and sentence-transformers' own code writes it, and reads it again."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import CLIPModel
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPProcessor, CLIPTokenizer
    from transformers import CLIPModel as TransformersCLIP

    letters = list("abcdefghijklmnopqrstuvwxyz0123456789")
    tokens = [*letters, *(letter + "</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = CLIPTokenizer({token: i for i, token in enumerate(tokens)}, [], model_max_length=24)
    processor = CLIPProcessor(CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}), tokenizer)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": tokens.index("<|startoftext|>"), "eos_token_id": tokens.index("<|endoftext|>")}
    config = CLIPConfig(
        text_config={**small, **ends, "pad_token_id": ends["eos_token_id"], "vocab_size": len(tokens), "max_position_embeddings": 24},
        vision_config={**small, "image_size": SIDE, "patch_size": 8},
        projection_dim=DIM,
    )
    drawn = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = TransformersCLIP(config)
    torch.random.set_rng_state(drawn)
    with torch.no_grad():  # as drawn, all images look alike to it
        for weight in model.parameters():
            weight.mul_(8.0)
    bare = folder / "transformers"
    model.save_pretrained(bare)
    processor.save_pretrained(bare)
    SentenceTransformer(modules=[CLIPModel(str(bare))], device="cpu").save(str(folder / "model"))
    return folder / "model"


def drawing(seed: int, size: tuple[int, int] = (48, 40)) -> Image.Image:
    """Some coloured rectangles and circles."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", size, tuple(rng.integers(256, size=3).tolist()))
    pen = ImageDraw.Draw(image)
    for _ in range(4):
        x, y = int(rng.integers(size[0] - 8)), int(rng.integers(size[1] - 8))
        box = (x, y, x + int(rng.integers(4, 30)), y + int(rng.integers(4, 30)))
        draw = pen.ellipse if rng.random() < 0.5 else pen.rectangle
        draw(box, fill=tuple(rng.integers(256, size=3).tolist()))
    return image


def file_of(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """An image as the bytes of a file."""
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png(seed: int) -> bytes:
    """A drawing as a PNG file."""
    return file_of(drawing(seed))


def pdf(pages: list[str], title: str = "") -> bytes:
    """A PDF file whose pages say these words, each beside a block of a colour and place of its own."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for i, words in enumerate(pages):
        colour = " ".join(f"{(i * 0.37 + c * 0.29) % 1:.2f}" for c in range(3))
        drawn = f"{colour} rg {30 * i} {40 + 30 * i} 70 {90 - 20 * i} re f BT /F1 12 Tf 0 g 20 250 Td ({words}) Tj ET".encode()
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawn), drawn))
        page = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 280] /Contents {len(objects)} 0 R /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(page.encode())
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>".encode()
    objects.append(f"<< /Title ({title}) >>".encode())
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1) + b"".join(b"%010d 00000 n \n" % at for at in places)
    out += b"trailer << /Size %d /Root 1 0 R /Info %d 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, len(objects), start)
    return bytes(out)


def save_colpali(folder: Path, seed: int = 0) -> Path:
    """Write a ColPali of some thousand weights into a folder, as transformers saves one."""
    import torch
    from transformers import ColPaliConfig, ColPaliForRetrieval, ColPaliProcessor, GemmaTokenizer, PaliGemmaConfig, SiglipImageProcessor

    letters = list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789?:.")
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<image>", "▁", *letters, "\n"]
    seer = SiglipImageProcessor(size={"height": SIDE, "width": SIDE})
    seer.image_seq_length = (SIDE // 8) ** 2
    processor = ColPaliProcessor(seer, GemmaTokenizer(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    n_tokens = len(processor.tokenizer) + 8
    both = PaliGemmaConfig(
        vision_config={"model_type": "siglip_vision_model", **small, "image_size": SIDE, "patch_size": 8, "vision_use_head": False},
        text_config={"model_type": "gemma", **small, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": n_tokens},
        image_token_index=processor.image_token_id,
        projection_dim=32,
    )
    drawn = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = ColPaliForRetrieval(ColPaliConfig(vlm_config=both, embedding_dim=DIM))
    torch.random.set_rng_state(drawn)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(6.0)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
