"""The formula layer: what it takes for alike, in a table of pairs; a collection made by rules; and the contract of every layer."""

import math

import numpy as np
import pytest
from layer_contract import LayerContract, pack

from jobs import formula_families
from shards.errors import BadQuery
from shards.formula_trees import OPERATOR_ROOT
from shards.layers import SpaceSpec, create
from shards.layers.contract import Request, Resources
from shards.types import Budget

FORMULAS = [
    "x^2+y^2=z^2", "a^2+b^2=c^2", r"\frac{a}{b}+c", r"\sum_{k=1}^n k^2", r"\int_0^1 f(x)\,dx", "E=mc^2", r"e^{i\pi}+1=0", "n",
    r"\sqrt{x+1}",
    r"P(A|B)=\frac{P(A\cap B)}{P(B)}", "f(x)=ax+b", r"x \le y", r"\alpha_1+\alpha_2", r"\begin{pmatrix}a&b\\c&d\end{pmatrix}", "2x+3y=5",
]  # fmt: skip

# asked | nearer | farther, met while the layer was written; some were replaced as it was, so these guard what holds and measure
# nothing. What the layer is judged by is fixtures/formula_rules.tsv.
TABLE = r"""
x^2+y^2=z^2 | a^2+b^2=c^2 | a+b=c
x^2+y^2=z^2 | z^2=x^2+y^2 | x^2+y^2=z^3
x^2+y^2=z^2 | y^2+x^2=z^2 | x^2-y^2=z^2
x^2+y^2=z^2 | a^2+b^2=c^2 | a^2+a^2=a^2
a^2+b^2=c^2 | u^2+v^2=w^2 | u^2+v^3=w^2
\frac{a}{b}+c | a/b+c | a/(b+c)
\frac{a+b}{2} | (a+b)/2 | a+b/2
\frac{a+b}{c} | {a+b \over c} | \frac{a-b}{c}
\frac12 mv^2 | \tfrac{1}{2} m v^{2} | \frac{1}{3} m v^3
\left( \frac{x}{y} \right)^n | (\frac{x}{y})^n | (\frac{x}{y})_n
\left|x+y\right| \le |x|+|y| | |x+y| \leq |x|+|y| | |x+y|=|x||y|
f(x)=ax+b | f(x)\,=\,a\,x+b | f(x)=ax-b
\int_0^1 f(x) dx | \int_{0}^{1} f(x)\,\mathrm{d}x | \int_0^2 f(x) dx
\int_0^1 f(x) dx | \int_0^1 g(t)\,dt | \sum_0^1 f(x)
f''(x) | f^{\prime\prime}(x) | f'(x)
f'(x)=0 | g'(t)=0 | g''(t)=0
\sum_{i=1}^n i^2 | \sum\limits_{k=1}^{m} k^2 | \sum_{k=1}^{m} m^2
\sum_{i=1}^n a_i | \sum_{j=1}^n b_j | \prod_{j=1}^n b_j
\sum_{k=0}^n \binom{n}{k}=2^n | \sum_{j=0}^{m} {m \choose j}=2^m | \sum_{k=0}^n \binom{n}{k}=n^2
a < b | b > a | b < a
x \ge y+1 | y+1 \leq x | x \le y+1
a \cdot b + c | ab+c | a+bc
a \times b = b \times a | xy=yx | x+y=y+x
e^{i\pi}+1=0 | \exp(i\pi)+1=0 | e^{\pi}+i=0
\sqrt{x+1} | (x+1)^{1/2} | \sqrt{x}+1
\sqrt{a^2+b^2} | \sqrt{x^2+y^2} | \sqrt{x^2}+y^2
\sin^2 x+\cos^2 x=1 | \cos^2\theta+\sin^2\theta=1 | \sin x+\cos x=1
\sin(2x)=2\sin x\cos x | \sin 2t=2\sin t\cos t | \sin 2t=2\sin t+\cos t
\lim_{x\to 0}\frac{\sin x}{x} | \lim_{t \rightarrow 0} \frac{\sin t}{t} | \lim_{t\to\infty}\frac{\sin t}{t}
\frac{dy}{dx}=ky | \frac{\mathrm{d}u}{\mathrm{d}t}=cu | \frac{du}{dt}=cu^2
\frac{\partial u}{\partial t} | \frac{\partial f}{\partial x} | \frac{df}{dx}
P(A|B)=\frac{P(A \cap B)}{P(B)} | P(X \mid Y)=P(Y \cap X)/P(Y) | P(X|Y)=\frac{P(X \cup Y)}{P(Y)}
x=\frac{-b\pm\sqrt{b^2-4ac}}{2a} | t=\frac{-q\pm\sqrt{q^2-4pr}}{2p} | t=\frac{-q\pm\sqrt{q^2+4pr}}{2q}
ax^2+bx+c=0 | px^2+qx+r=0 | px^3+qx^2+r=0
ax^2+bx+c=0 | c+bx+ax^2=0 | ax^2+bx+c=ax
n!=n(n-1)! | m! = m \cdot (m-1)! | m!=m+(m-1)!
A \subseteq B | B \supseteq A | A \supseteq B
\mathbf{E}=\frac{\rho}{\epsilon_0} | E=\rho/\varepsilon_0 | E=\rho\epsilon_0
\hat{x}=\frac{1}{n}\sum_{i=1}^n x_i | \bar{y}=\frac{1}{m}\sum_{j=1}^m y_j | \bar{y}=\frac{1}{m}+\sum_{j=1}^m y
\begin{pmatrix} a & b \\ c & d \end{pmatrix} | \begin{bmatrix} p & q \\ r & s \end{bmatrix} | \begin{bmatrix} p & q \end{bmatrix}
E=mc^2 | \Rightarrow E=mc^2 \text{ always} | E=m+c^2
x^2+y^2 | x^2+y^2=z^2 | x+y=z^2
x^3+y^3=z^3 | x^2+y^2=z^2 | x^2+y=z
10^{-3} | 10^{-6} | 10^3
\log_2 n | \log_{2}(n) | \log n^2
\|x\|_2^2 | \lVert x \rVert_{2}^{2} | \|x\|_1
""".strip().splitlines()


def make():
    return create(SpaceSpec("formula", "formula"), Resources())


class Corpus:
    """Texts in one segment of the formula space."""

    def __init__(self, *texts: str, kind: str = "prose:english"):
        self.layer = make()
        self.segment = pack([(text.encode(), kind, ("p",)) for text in texts], self.layer)
        documents, entries = self.segment.documents, self.segment.entries
        self.arrays = self.layer.build(documents, entries)
        self.statistics = self.layer.collect([(1, self.layer.statistics(self.arrays, documents, entries))])
        self.reader = self.layer.open(self.arrays, documents, entries, np.ones(len(documents), bool))

    def query(self, request: Request | str):
        return self.layer.prepare(request if isinstance(request, Request) else Request("", {"latex": request}), self.statistics)

    def ask(self, request: Request | str, k: int = 10) -> list[tuple[str, str, float]]:
        """Text, what its span holds, and score of the best."""
        query = self.query(request)
        if query is None:
            return []
        found = self.reader.search(query, None, k, Budget())
        contents = [bytes(self.segment.documents.content(row)) for row in found.rows]
        spans = [c[a:b].decode() for c, a, b in zip(contents, found.starts, found.ends, strict=True)]
        return list(zip([c.decode() for c in contents], spans, found.scores.tolist(), strict=True))


class TestFormulaContract(LayerContract):
    n_documents = 40

    def make_layer(self):
        return make()

    def documents(self, rng):
        """Posts with none to six formulas, of some words; and one that is nothing else."""
        items = []
        for i in range(self.n_documents):
            chosen = rng.choice(FORMULAS, rng.integers(0, 7))
            text = f"post {i}: " + " and ".join(f"${formula}$" for formula in chosen) if i else "x^2+y^2=1"
            items.append((text.encode(), ("prose:english", "code", "data")[i % 3], (f"a/{i}.md", f"b/{i}.md")[: 1 + i % 2]))
        return items

    def requests(self):
        return [
            Request("x^2+y^2=z^2"),
            Request(r"is $\frac{u}{v}+w$ the same as $E = mc^2$, and what of $\sum_{j=1}^m j^2$?"),
            Request("", {"latex": r"\sqrt{y+1}"}),
            Request("", {"mathml": "<math><mi>x</mi><mo>&le;</mo><mi>y</mi></math>"}),
            Request("$n$", explicit=True),
        ]


@pytest.fixture(scope="module")
def table():
    rows = [line.split(" | ") for line in TABLE]
    return rows, Corpus(*sorted({f"${formula}$" for row in rows for formula in row}))


def test_the_same_formula_in_other_letters_order_or_notation_comes_before_another_formula(table):
    rows, corpus = table
    assert len(rows) >= 40
    wrong = []
    for asked, near, far in rows:
        scores = {text: score for text, _, score in corpus.ask(asked, 1000)}
        if not scores[f"${near}$"] > scores.get(f"${far}$", 0.0):
            wrong.append((asked, near, far, scores[f"${near}$"], scores.get(f"${far}$", 0.0)))
    assert not wrong


def test_the_formula_itself_scores_1_and_comes_first(table):
    rows, corpus = table
    for asked, _, _ in rows:
        best = corpus.ask(asked, 3)
        assert best[0][2] == pytest.approx(1.0) and f"${asked}$" in [text for text, _, score in best if score == best[0][2]]


def test_pythagoras_in_other_letters_is_found_above_a_plain_sum():
    found = Corpus("a+b=c", "Take $a^2+b^2=c^2$ here.", "no formula at all").ask(Request("x^2+y^2=z^2"))
    assert [(text, span) for text, span, _ in found] == [("Take $a^2+b^2=c^2$ here.", "a^2+b^2=c^2"), ("a+b=c", "a+b=c")]


def test_variables_are_renamed_one_to_one():
    scores = {text: score for text, _, score in Corpus("$u+v+uv$", "$u+u+uu$", "$u+v+vw$").ask("x+y+xy")}
    assert scores["$u+v+uv$"] > max(scores["$u+u+uu$"], scores["$u+v+vw$"])


def test_several_formulas_of_a_question_are_all_taken():
    corpus = Corpus("first $E=mc^2$", r"second $E=mc^2$ and $\int_0^1 f(x) dx$", r"third $\int_0^1 f(x) dx$")
    found = corpus.ask(Request(r"how is $E=mc^2$ related to $\int_0^1 f(x) dx$ and $x$?"))
    assert found[0][0].startswith("second") and found[0][2] == pytest.approx(1.0)
    assert "$x$" not in corpus.query(Request("$E=mc^2$ and $x$")).asked


def test_mathml_and_latex_of_one_formula_are_the_same():
    mathml = (
        "<math><mfrac><mrow><mo>&#x2212;</mo><mi>b</mi><mo>&PlusMinus;</mo><msqrt><msup><mi>b</mi><mn>2</mn></msup><mo>-</mo><mn>4</mn>"
        "<mo>&InvisibleTimes;</mo><mi>a</mi><mi>c</mi></msqrt></mrow><mrow><mn>2</mn><mi>a</mi></mrow></mfrac></math>"
    )
    latex = r"\frac{-b \pm \sqrt{b^2-4ac}}{2a}"
    corpus = Corpus(f"as MathML {mathml}", f"as LaTeX ${latex}$")
    for request in (Request("", {"mathml": mathml}), Request("", {"latex": latex}), Request(mathml), Request(f"\\({latex}\\)")):
        assert [score for *_, score in corpus.ask(request)] == pytest.approx([1.0, 1.0])


def test_the_bound_by_postings_is_never_below_the_score(table):
    rows, corpus = table
    from shards import formula_matching as matching

    every = np.arange(len(corpus.segment.keys), dtype=np.int32)
    for asked, _, _ in rows:
        query = corpus.query(asked)
        formulas = [matching.asked(formula.trees, formula.rarities) for formula in query.payload.formulas]
        bounds, _ = corpus.reader._bounds(query.payload, formulas, np.ones(len(every), bool), Budget())
        scores = corpus.reader.score(query, every, Budget()).scores
        assert (bounds >= np.where(np.isfinite(scores), scores, 0.0) - 1e-12).all()
        assert ((bounds > 0) == np.isfinite(scores)).all()


def test_surprise_grows_with_the_score_and_with_the_formula():
    corpus = Corpus(*(f"${formula}$ {i}" for i, formula in enumerate(FORMULAS * 20)))
    query = corpus.query("x^2+y^2=z^2")
    surprises = corpus.layer.surprise(query, np.array([-np.inf, 0.2, 0.21, 0.5, 0.9, 1.0]))
    assert surprises[0] == 0 and (np.diff(surprises) > 0).all()
    assert surprises[-1] == pytest.approx(-query.log_p, abs=0.2)
    rare = corpus.query(r"\zeta(s)=\prod_p \frac{1}{1-p^{-s}}")
    assert rare.log_p < 2 * query.log_p < 0


def test_the_layer_ranks_a_collection_made_by_rules_far_better_than_bm25_over_its_tokens():
    made = formula_families.make(seed=0, n_others=100, families=formula_families.FAMILIES[::4])
    ranked = formula_families.mean_ndcg(formula_families.layer(made), made)
    assert ranked > 0.93
    assert ranked > formula_families.mean_ndcg(formula_families.bm25(made), made) + 0.3


@pytest.mark.parametrize(
    "text",
    ["how to sort a list", "see §5 and $5 or $10", "def f(x): return x", r"\w+\.py$", "state-of-the-art", "the letter $n$", "a = foo(b)"],
)
def test_a_text_without_a_formula_is_nothing_for_this_layer(text):
    assert Corpus("$x+y$").query(Request(text)) is None


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"latex": "x", "mathml": "<math/>"}, "exactly one"),
        ({"tex": "x"}, "Expected"),
        ({"latex": "  "}, "no formula"),
        ({"mathml": "<math></math>"}, "no formula"),
        ({"latex": 7}, "Expected"),
    ],
)
def test_a_wrong_form_is_refused_with_what_was_expected(form, message):
    with pytest.raises(BadQuery, match=message):
        Corpus("$x+y$").query(Request("", form))


def test_what_is_asked_explicitly_is_a_formula_even_without_dollars():
    assert Corpus(r"about $\sin(x)$").ask(Request("sin(x)", explicit=True))[0][2] == pytest.approx(1.0)


def test_words_are_no_formula_even_where_one_is_wanted():
    corpus = Corpus(r"about $\sin(x)$")
    assert corpus.query(Request("the theorem of Pythagoras", explicit=True)) is None
    assert corpus.query(Request("Force = mass * acceleration", explicit=True)).asked == "formulas like Force = mass * acceleration"
    assert corpus.query(Request(r"\int u dv = uv - \int v du", explicit=True)).asked == r"formulas like \int u dv = uv - \int v du"


def test_a_huge_formula_is_read_by_its_beginning():
    corpus = Corpus("$" + "+".join(f"x_{{{i}}}" for i in range(1500)) + "$")
    edges = corpus.arrays["node_edges"]
    assert len(edges) <= 400 and np.count_nonzero(edges < OPERATOR_ROOT) <= 128 + 1
    assert math.isfinite(corpus.ask("x_0+x_1+x_2")[0][2])
