"""A judged collection of formulas made by rules, and how the formula layer ranks it beside BM25 over LaTeX tokens.

Families of formulas from algebra, analysis, probability and physics, each written in many ways. How a variant was made is its grade: 3
the same formula (variables renamed, notation, order, spacing), 2 nearly (constants changed, part of something larger), 1 related (one
side of it, another operation), 0 anything else: other families, and scrambled formulas of the very same tokens.
Documents are posts: words around one to four formulas, of which one is the variant. All is drawn from a seed.

    python jobs/formula_families.py [--speed 100000]
    python jobs/formula_families.py --write DIR && python jobs/evaluate.py --dataset DIR --layers formula,bm25
"""

import argparse
import json
import math
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # run as a file: the project's root is where the packages are
    sys.path[:1] = [str(Path(__file__).resolve().parent.parent)]

from jobs.metrics import measure
from shards.formula_latex import read_latex
from shards.formula_operators import operator_tree
from shards.formula_trees import spelled

FAMILIES = r"""
x^2+y^2=z^2
x=\frac{-b+\sqrt{b^2-4ac}}{2a}
(a+b)^2=a^2+2ab+b^2
a^2-b^2=(a-b)(a+b)
\frac{a+b}{2} \ge \sqrt{ab}
\sum_{k=1}^{n} k = \frac{n(n+1)}{2}
\sum_{k=0}^{\infty} r^k = \frac{1}{1-r}
(x+y)^n=\sum_{k=0}^{n} \binom{n}{k} x^k y^{n-k}
\sum_{n=1}^{\infty} \frac{1}{n^2} = \frac{\pi^2}{6}
e^{i\theta}=\cos\theta+i\sin\theta
\sin^2 x+\cos^2 x=1
\sin(a+b)=\sin a\cos b+\cos a\sin b
\int_{-\infty}^{\infty} e^{-x^2} dx=\sqrt{\pi}
\int u dv = uv-\int v du
\int_a^b f(x) dx=F(b)-F(a)
\lim_{x \to 0} \frac{\sin x}{x}=1
\lim_{n \to \infty} \left(1+\frac{1}{n}\right)^n=e
f'(x)=\lim_{h \to 0} \frac{f(x+h)-f(x)}{h}
f(x)=\sum_{n=0}^{\infty} \frac{f^{(n)}(a)}{n!}(x-a)^n
\frac{d}{dx} \ln x=\frac{1}{x}
\frac{\partial u}{\partial t}=\alpha \frac{\partial^2 u}{\partial x^2}
\frac{d^2 y}{dt^2}+\omega^2 y=0
P(A|B)=\frac{P(B|A)P(A)}{P(B)}
P(A \cup B)=P(A)+P(B)-P(A \cap B)
P(X=k)=\binom{n}{k} p^k (1-p)^{n-k}
P(X=k)=\frac{\lambda^k e^{-\lambda}}{k!}
f(x)=\frac{1}{\sigma\sqrt{2\pi}} e^{-\frac{(x-\mu)^2}{2\sigma^2}}
E[X]=\sum_{x} x p(x)
\operatorname{Var}(X)=E[X^2]-E[X]^2
P(|X-\mu| \ge k\sigma) \le \frac{1}{k^2}
H(X)=-\sum_{x} p(x) \log p(x)
D(p \| q)=\sum_{x} p(x) \log \frac{p(x)}{q(x)}
\|x+y\| \le \|x\|+\|y\|
|\langle x,y \rangle|^2 \le \langle x,x \rangle \langle y,y \rangle
A v=\lambda v
\det(A-\lambda I)=0
(AB)^{-1}=B^{-1}A^{-1}
(AB)^T=B^T A^T
a^{p-1} \equiv 1 \pmod{p}
\zeta(s)=\prod_{p} \frac{1}{1-p^{-s}}
\Gamma(z)=\int_0^{\infty} t^{z-1} e^{-t} dt
n! \sim \sqrt{2\pi n} \left(\frac{n}{e}\right)^n
F_{n+1}=F_n+F_{n-1}
\hat{f}(\xi)=\int_{-\infty}^{\infty} f(x) e^{-2\pi i x \xi} dx
\oint_C f(z) dz=2\pi i \sum_k \operatorname{Res}(f,a_k)
E=mc^2
F=G\frac{m_1 m_2}{r^2}
i\hbar \frac{\partial \psi}{\partial t}=H\psi
x_{n+1}=x_n-\frac{f(x_n)}{f'(x_n)}
\nabla \cdot E=\frac{\rho}{\epsilon_0}
\frac{1}{a}+\frac{1}{b} \ge \frac{4}{a+b}
a_n=a_1 r^{n-1}
\log(ab)=\log a+\log b
\tan x=\frac{\sin x}{\cos x}
c^2=a^2+b^2-2ab\cos \gamma
A=\pi r^2
V=\frac{4}{3}\pi r^3
\frac{x^2}{a^2}+\frac{y^2}{b^2}=1
y-y_0=m(x-x_0)
d=\sqrt{(x_2-x_1)^2+(y_2-y_1)^2}
""".strip().splitlines()

WORDS = (
    "let us suppose that we have to show for every given number function proof of this identity holds because whenever the following is a "
    "known result how can one derive it what happens if I am stuck at this step any hint would be appreciated consider first then"
).split()

_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|[a-zA-Z]|\d+|\S")
_FIXED = frozenset("eidPEH")  # letters whose renaming makes another formula of it
_RENAMED = "abcdfghjklmnpqrstuvwxyz"
_GREEK = r"\alpha \beta \gamma \delta \theta \lambda \mu \nu \xi \rho \sigma \tau \omega \phi".split()


def tokens(text: str) -> list[str]:
    """LaTeX tokens: commands, letters, numbers, signs."""
    return _TOKEN.findall(text)


# --- rules: each gives another way of writing a formula, or the same text where it does not apply -----------------------------------------


def renamed(text: str, rng: random.Random) -> str:
    """One-to-one other variables."""
    old = list(dict.fromkeys(t for t in tokens(text) if (len(t) == 1 and t.islower() and t not in _FIXED) or t in _GREEK))
    latin = [letter for letter in _RENAMED if letter not in old]
    new = dict(zip(old, rng.sample(latin, min(len(old), len(latin))), strict=False))
    return _joined(new.get(t, t) for t in tokens(text))


def _joined(pieces: Iterable[str]) -> str:
    out = ""
    for piece in pieces:
        out += " " + piece if out and out[-1].isalpha() and piece[0].isalpha() and re.search(r"\\[a-zA-Z]+$", out) else piece
    return out


def _group_end(text: str, at: int) -> int:
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "{") - (text[i] == "}")
        if not depth:
            return i
    return len(text) - 1


def stroke(text: str, rng: random.Random) -> str:
    r"""`\frac{a}{b}` as (a)/(b) or {a \over b}."""
    while (at := text.find("\\frac{")) >= 0:
        middle = _group_end(text, at + 5)
        end = _group_end(text, middle + 1)
        above, below = text[at + 6 : middle], text[middle + 2 : end]
        if rng.random() < 0.5:
            new = f"{{{above} \\over {below}}}"
        else:
            new = "/".join(part if len(tokens(part)) == 1 else f"({part})" for part in (above, below))
            new = f"({new})" if at and text[at - 1].isalnum() else new
        text = text[:at] + new + text[end + 1 :]
    return text


def spaced(text: str, rng: random.Random) -> str:
    """Thin spaces, sizes of brackets, and blanks."""
    text = text.replace("\\left(", "(").replace("\\right)", ")")
    if rng.random() < 0.6 and text.count("(") == text.count(")"):
        text = text.replace("(", "\\left( ").replace(")", " \\right)")
    text = text.replace("=", rng.choice([" = ", "\\;=\\;", "{}={}"])).replace("+", rng.choice([" + ", "+"]))
    return rng.choice(["", "\\displaystyle "]) + text.replace("dx", "\\,dx").replace("dt", "\\,dt")


def respelt(text: str, rng: random.Random) -> str:
    """Other commands for the same signs, upright differentials, braces that say nothing."""
    for old, new in ((r"\ge", r"\geq"), (r"\le", r"\leq"), (r"\to", r"\rightarrow"), (r"\epsilon", r"\varepsilon"), (r"\ln", r"\ln")):
        text = re.sub(re.escape(old) + r"(?![a-zA-Z])", lambda _m, new=new: new, text)
    text = re.sub(r"(?<![\\a-zA-Z{])d(?=[xtuv](?![a-zA-Z]))", lambda _m: r"\mathrm{d}", text)
    text = re.sub(r"\^(\w)(?![\w'])", r"^{\1}", text)
    text = re.sub(r"_(\w)(?![\w'])", r"_{\1}", text)
    return text.replace("\\frac", rng.choice(["\\dfrac", "\\tfrac", "\\frac"]))


def _level(text: str, signs: str) -> list[int]:
    """Places of these signs outside of any bracket."""
    depth, found = 0, []
    for i, c in enumerate(text):
        depth += (c in "{([") - (c in "})]")
        if not depth and c in signs and i:
            found.append(i)
    return found


def reordered(text: str, rng: random.Random) -> str:
    """Sides of an equation exchanged, summands in another order."""
    sides = _cut(text, _level(text, "="))
    if len(sides) == 2 and not re.search(r"\\(?:sum|int|prod|lim|leq?|geq?|sim)(?![a-zA-Z])", text):
        sides = [_reordered_sum(side, rng) for side in sides]
    if len(sides) == 2:
        sides.reverse()
    return "=".join(sides)


def _reordered_sum(side: str, rng: random.Random) -> str:
    if _level(side, "-") or side.startswith("-"):
        return side
    parts = _cut(side, _level(side, "+"))
    rng.shuffle(parts)
    return "+".join(parts)


def _cut(text: str, places: list[int]) -> list[str]:
    edges = [-1, *places, len(text)]
    return [text[a + 1 : b] for a, b in zip(edges, edges[1:], strict=False)]


def constants(text: str, rng: random.Random) -> str:
    """Other numbers."""
    changed = re.sub(r"\d+", lambda m: str(int(m.group()) + rng.randint(1, 4)), text)
    return changed if changed != text else renamed(text, rng) + "+1"


def enlarged(text: str, rng: random.Random) -> str:
    """Part of something larger."""
    variant = renamed(text, rng) if rng.random() < 0.5 else text
    shape = rng.choice(
        [r"W \subset \mathbb{R} \implies %s", r"%s \quad \forall w \in \Omega", r"\Phi(w) \iff %s", r"\{w : %s\}", r"%s+O(w^3)"]
    )
    return shape.replace("%s", variant)


def one_side(text: str, rng: random.Random) -> str:
    """The larger side of an equation alone."""
    sides = _cut(text, _level(text, "="))
    return max(sides, key=len) if len(sides) > 1 else text + rng.choice(["+w", "-w"])


def distorted(text: str, rng: random.Random) -> str:
    """Another operation in one place, other letters."""
    places = [i for i, c in enumerate(text) if c in "+-="]
    if places:
        at = rng.choice(places)
        text = text[:at] + {"+": "-", "-": "+", "=": "<"}[text[at]] + text[at + 1 :]
    return renamed(text, rng)


def scrambled(text: str, rng: random.Random) -> str:
    """The same tokens, another formula: letters, numbers and signs of operation change places."""
    pieces = tokens(text)
    places = [i for i, t in enumerate(pieces) if t.isalnum() or t in "+-="]
    moved = [pieces[i] for i in places]
    rng.shuffle(moved)
    for place, piece in zip(places, moved, strict=True):
        pieces[place] = piece
    return _joined(pieces) if _pattern(_joined(pieces)) != _pattern(text) else scrambled(text + "+1", rng)


def _pattern(text: str) -> str:
    """What a formula says, whatever its letters."""
    return re.sub(r"(?<!\w)[a-zA-Z](?!\w)", "x", spelled(operator_tree(read_latex(text))))


@dataclass(frozen=True, slots=True)
class Collection:
    """documents, queries: id -> text; qrels: query -> document -> grade."""

    documents: dict[str, str]
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]


def make(seed: int = 0, n_others: int = 1500, families: Sequence[str] = FAMILIES) -> Collection:
    """The collection of a seed. n_others: posts that are no family's variant, nor scrambled for it."""
    rng = random.Random(seed)
    same = [renamed, stroke, spaced, respelt, reordered]
    posts: list[tuple[str, str, int]] = []  # family, formula, grade
    queries: dict[str, str] = {}
    for number, text in enumerate(families):
        family = f"f{number}"
        queries[f"{family}a"] = f"${text}$"
        asked = respelt(renamed(text, rng), rng)
        queries[f"{family}b"] = f"{_words(rng, 5)} ${asked}$ {_words(rng, 4)}"
        for rule in same:
            posts.append((family, rule(text, rng), 3))
        for _ in range(3):
            variant = text
            for rule in rng.sample(same, 3):
                variant = rule(variant, rng)
            posts.append((family, variant, 3))
        for rule in (constants, enlarged, enlarged):
            posts.append((family, rule(text, rng), 2))
        posts += [(family, one_side(text, rng), 1), (family, distorted(text, rng), 1)]
        posts += [("", scrambled(text, rng), 0) for _ in range(4)]
    for _ in range(n_others):
        text = scrambled(rng.choice(families), rng)
        posts.append(("", renamed(text, rng) if rng.random() < 0.7 else text, 0))
    rng.shuffle(posts)
    documents: dict[str, str] = {}
    qrels: dict[str, dict[str, int]] = {query: {} for query in queries}
    for i, (family, formula, grade) in enumerate(posts):
        beside = [scrambled(rng.choice(families), rng) for _ in range(rng.choice([0, 0, 1, 3]))]
        formulas = [formula, *beside]
        rng.shuffle(formulas)
        documents[f"d{i}"] = " ".join(f"{_words(rng, rng.randint(3, 15))} ${one}$" for one in formulas) + f" {_words(rng, 4)}"
        for query in (f"{family}a", f"{family}b") if family else ():
            qrels[query][f"d{i}"] = grade
    return Collection(documents, queries, qrels)


def _words(rng: random.Random, n: int) -> str:
    return " ".join(rng.choices(WORDS, k=n))


# --- who ranks ----------------------------------------------------------------------------------------------------------------------------


def bm25(collection: Collection, k1: float = 1.2, b: float = 0.75) -> dict[str, list[str]]:
    """The ten best of each query by BM25 over the LaTeX tokens of formulas."""
    formulas = re.compile(r"\$([^$]*)\$")
    bags = {key: Counter(t for f in formulas.findall(text) for t in tokens(f)) for key, text in collection.documents.items()}
    average = sum(bag.total() for bag in bags.values()) / len(bags)
    df = Counter(t for bag in bags.values() for t in bag)
    idf = {t: math.log1p((len(bags) - n + 0.5) / (n + 0.5)) for t, n in df.items()}
    runs = {}
    for query, text in collection.queries.items():
        asked = Counter(t for f in formulas.findall(text) for t in tokens(f))
        scores = {}
        for key, bag in bags.items():
            norm = k1 * (1 - b + b * bag.total() / average)
            scores[key] = sum(n * idf.get(t, 0.0) * bag[t] / (bag[t] + norm) for t, n in asked.items() if t in bag)
        runs[query] = sorted(scores, key=lambda key: (-scores[key], key))[:10]
    return runs


class Ranker:
    """A layer of formulas over documents (id -> text) in one segment."""

    def __init__(self, texts: Mapping[str, str], name: str = "formula"):
        import numpy as np

        from shards.documents import Documents
        from shards.identity import content_hash
        from shards.layers import SpaceSpec, create
        from shards.layers.contract import Resources
        from shards.segment import pack_entries

        self._space = create(SpaceSpec(name, name), Resources())
        self._keys = {content_hash(text.encode()): key for key, text in texts.items()}
        self._documents = Documents.pack((content_hash(text.encode()), text.encode(), "prose:english") for text in texts.values())
        entries = pack_entries([])
        self.arrays = self._space.build(self._documents, entries)
        self._statistics = self._space.collect([(1, self._space.statistics(self.arrays, self._documents, entries))])
        self._reader = self._space.open(self.arrays, self._documents, entries, np.ones(len(self._documents), np.bool_))

    def best(self, text: str, k: int = 10) -> list[str]:
        """The k best documents for a question."""
        from shards.layers.contract import Request
        from shards.types import Budget

        asked = self._space.prepare(Request(text), self._statistics)
        found = self._reader.search(asked, None, k, Budget()).rows if asked else []
        return [self._keys[self._documents.hashes[row].tobytes()] for row in found]


def layer(collection: Collection, name: str = "formula") -> dict[str, list[str]]:
    """The ten best of each query by a layer of formulas."""
    ranker = Ranker(collection.documents, name)
    return {query: ranker.best(text) for query, text in collection.queries.items()}


def speed(n: int, seed: int) -> Iterable[str]:
    """What n formulas cost in each layer: lines of text; CPU of this process."""
    rng = random.Random(seed)
    rules = [renamed, constants, one_side, distorted, enlarged, scrambled]
    texts = {str(i): f"${rng.choice(rules)(rng.choice(rules)(rng.choice(FAMILIES), rng), rng)}$ {i}" for i in range(n)}
    for name in ("formula", "formula_ngrams"):
        Ranker(dict(list(texts.items())[:10]), name).best(f"${FAMILIES[0]}$")  # compiles
        begun = time.process_time()
        ranker = Ranker(texts, name)
        built = time.process_time() - begun
        size = sum(array.nbytes for array in ranker.arrays.values()) / n
        ranker.best(f"${FAMILIES[0]}$")
        took = []
        for family in FAMILIES:
            begun = time.process_time()
            ranker.best(f"${family}$", 100)
            took.append(1000 * (time.process_time() - begun))
        took.sort()
        yield (
            f"{name}: {n / built:,.0f} formulas/s, {size:.0f} bytes each; the 100 best: "
            f"median {took[len(took) // 2]:.1f} ms, slowest {took[-1]:.1f} ms"
        )


def mean_ndcg(runs: Mapping[str, list[str]], collection: Collection) -> float:
    """Mean nDCG@10 over all queries."""
    scores = {query: {key: -float(i) for i, key in enumerate(run)} for query, run in runs.items()}
    return float(measure(scores, collection.qrels, list(collection.queries))["ndcg@10"].mean())


def write(collection: Collection, folder: Path) -> None:
    """The collection in BEIR layout, as `jobs/evaluate.py --dataset` reads it."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, texts in (("corpus", collection.documents), ("queries", collection.queries)):
        lines = (json.dumps({"_id": key, "text": text}) + "\n" for key, text in texts.items())
        (folder / f"{name}.jsonl").write_text("".join(lines))
    judged = (f"{query}\t{key}\t{grade}\n" for query, grades in collection.qrels.items() for key, grade in grades.items())
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seed", type=int, default=0, help="of all that is drawn (default: 0)")
    p.add_argument("--write", type=Path, metavar="DIR", help="write the collection there, in BEIR layout, and rank nothing")
    p.add_argument("--speed", type=int, metavar="N", help="instead, time both layers on N formulas")
    return p


def main() -> None:
    """Makes the collection, and ranks it or writes it."""
    args = parser().parse_args()
    if args.speed:
        print("\n".join(speed(args.speed, args.seed)))
        return
    made = make(args.seed)
    print(f"{len(made.documents):,} posts, {len(made.queries)} queries")
    if args.write:
        write(made, args.write)
        return
    print(f"nDCG@10 of BM25 over LaTeX tokens: {mean_ndcg(bm25(made), made):.3f}")
    for name in ("formula", "formula_ngrams"):
        print(f"nDCG@10 of the layer {name}: {mean_ndcg(layer(made, name), made):.3f}")


if __name__ == "__main__":
    main()
