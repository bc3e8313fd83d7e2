"""Finding formulas in texts and reading them: tables of what is found, of LaTeX and MathML as trees, and whatever anybody may write."""

import random

import numpy as np
import pytest

from shards.formula_finding import find
from shards.formula_index import trees_of_text
from shards.formula_latex import read_latex
from shards.formula_layout import MAX_SIGNS, count
from shards.formula_mathml import read_mathml
from shards.formula_operators import operator_tree
from shards.formula_trees import MAX_NODES, spelled


def spell(latex: str, typed: bool = False) -> str:
    return spelled(operator_tree(read_latex(latex, typed)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$x$ and \\(y^2\\) and $$z$$ and \\[w\\]", ["x", "y^2", "z", "w"]),
        ("It costs $5, or $10 at most.", []),
        ("echo $HOME/bin:$PATH", []),
        ("a \\$5 note, $a$", ["a"]),
        ("\\begin{equation}\n  E = mc^2 \\label{e}\n\\end{equation}", ["E = mc^2 \\label{e}"]),
        ("\\begin{align*} a &= b \\\\ c &= d \\end{align*}", ["a &= b", "c &= d"]),
        ("\\begin{align} x &= \\begin{matrix} 1 \\\\ 2 \\end{matrix} \\end{align}", ["x &= \\begin{matrix} 1 \\\\ 2 \\end{matrix}"]),
        ("<p><math display='block'><mi>x</mi></math></p>", ["<math display='block'><mi>x</mi></math>"]),
        ("<m:math><m:mi>x</m:mi></m:math>", ["<m:math><m:mi>x</m:mi></m:math>"]),
        ("Sphinx writes :math:`a^2` so.", ["a^2"]),
        ("a^2+b^2=c^2", ["a^2+b^2=c^2"]),
        ("Please solve 2*x^3 + e^x = 10 by Newton's method.", ["2*x^3 + e^x = 10"]),
        ("with |f_n(x)| ≤ g(x) for all x", ["|f_n(x)| ≤ g(x)"]),
        ("either/or, state-of-the-art, see C:\\temp\\new", []),
        ("x = foo(y)", []),
        ("unclosed $x + y", []),
        ("one $ lonely\n\nother $ paragraph", []),
        ("\\frac{a}{b} = c", ["\\frac{a}{b} = c"]),
    ],
)
def test_formulas_are_found_where_they_are_and_only_there(text, expected):
    body = text.encode()
    assert [body[formula.start : formula.end].decode() for formula in find(body)] == expected


def test_in_code_dollars_and_brackets_are_formulas_only_if_they_can_be_nothing_else():
    code = rb"""re.compile("\(a\)[$]"); x = y^2; echo "$a $b"; # the sum $\sum_{i=1}^n i^2$ is $a$"""
    assert [code[f.start : f.end] for f in find(code, is_code=True)] == [rb"\sum_{i=1}^n i^2"]


def test_tex_looks_like_code_and_is_read_as_tex():
    text = rb"\documentclass{article} \begin{document} Let $a+b=c$ and $x$. \end{document}"
    assert [text[f.start : f.end] for f in find(text, is_code=True)] == [b"a+b=c", b"x"]


@pytest.mark.parametrize(
    ("latex", "expected"),
    [
        ("x^2+y^2=z^2", "=(+(^(x 2) ^(y 2)) ^(z 2))"),
        (r"\frac{a}{b}", "/(a b)"),
        ("a/b", "/(a b)"),
        (r"a \over b", "/(a b)"),
        (r"a \div b", "/(a b)"),
        ("P(A)/P(B)", "/(·(A P) ·(B P))"),
        ("a-b", "+(a neg(b))"),
        ("-b+a", "+(a neg(b))"),
        ("a(b+c)", "·(+(b c) a)"),
        (r"a \cdot (b + c)", "·(+(b c) a)"),
        ("a>b", "<(b a)"),
        (r"b \lt a", "<(b a)"),
        (r"x \geqslant y", "≤(y x)"),
        ("a=b=c", "=(a b c)"),
        (r"\exp(x)", "^(e x)"),
        (r"x^{1/2}", "√(x)"),
        (r"\sqrt[3]{x}", "√(x 3)"),
        (r"\sin^2 x", "^(sin(x) 2)"),
        (r"\sin 2x \cos x", "·(cos(x) sin(·(2 x)))"),
        (r"\log_2 n", "log(2 n)"),
        (r"\sum_{k=1}^n k^2", "∑(n =(1 k) ^(k 2))"),
        (r"\lim_{x\to 0} f", "lim(→(x 0) f)"),
        (r"|x|+|y|", "+(| |(x) | |(y))"),
        (r"P(A|B)", "·(P |(A B))"),
        (r"P(A \mid B)", "·(P |(A B))"),
        (r"\lVert x \rVert", "‖ ‖(x)"),
        ("n!", "!(n)"),
        ("f''", "′′(f)"),
        (r"f^{\prime\prime}", "′′(f)"),
        (r"\mathrm{d}x", "·(d x)"),
        (r"\mathbf{x}", "x"),
        (r"\binom{n}{k}", "binomial(n k)"),
        (r"{n \choose k}", "binomial(n k)"),
        (r"[0,1)", "[,)(0 1)"),
        (r"x_1", "x(1)"),
        (r"\frac12", "/(1 2)"),
        ("x^12", "·(2 ^(x 1))"),
        (r"a \ne b", "≠(a b)"),
        (r"a \not= b", "≠(a b)"),
        (r"\left\{ x \right\}", "{ }(x)"),
        (r"\operatorname{foo}(x)", "foo(x)"),
        (r"\begin{pmatrix} a & b \\ c & d \end{pmatrix}", "matrix(line(a b) line(c d))"),
        (r"\begin{bmatrix} a \\[2pt] b \end{bmatrix}", "matrix(line(a) line(b))"),
        (r"\begin{matrix} a & b & \\ \end{matrix}", "matrix(line(a b))"),
        (r"\begin{vmatrix} a & b \\ c & d \end{vmatrix}", "det(line(a b) line(c d))"),
        (r"f(x)=\begin{cases} 1 & x > 0 \\ 0 \end{cases}", "=(cases(line(1 <(0 x)) line(0)) ·(f x))"),
    ],
)
def test_notations_of_one_thing_give_one_tree(latex, expected):
    assert spell(latex) == expected


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("x^12", "^(x 12)"), ("x^(n+1)", "^(x +(1 n))"), ("sqrt(x)", "√(x)"), ("sin(3*t)", "sin(·(3 t))"), ("x <= pi", "≤(x π)"),
     ("x²", "^(x 2)"),
     ("e^-x", "^(e neg(x))"), ("a_1 != b", "≠(a(1) b)"), ("x**2", "^(x 2)")],
)  # fmt: skip
def test_what_one_types_is_read_as_one_means_it(typed, expected):
    assert spell(typed, typed=True) == expected


@pytest.mark.parametrize(
    ("mathml", "latex"),
    [
        ("<msup><mi>x</mi><mn>2</mn></msup><mo>+</mo><mi>y</mi>", "x^2+y"),
        ("<mfrac><mi>a</mi><mi>b</mi></mfrac>", r"\frac{a}{b}"),
        ("<msqrt><mi>a</mi><mo>+</mo><mi>b</mi></msqrt>", r"\sqrt{a+b}"),
        ("<mroot><mi>x</mi><mn>3</mn></mroot>", r"\sqrt[3]{x}"),
        ("<munderover><mo>&sum;</mo><mrow><mi>k</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></munderover><mi>k</mi>", r"\sum_{k=1}^n k"),
        ("<mi>sin</mi><mo>&ApplyFunction;</mo><mi>&alpha;</mi>", r"\sin\alpha"),
        ("<mover accent='true'><mi>x</mi><mo>^</mo></mover>", r"\hat{x}"),
        ("<mi mathvariant='double-struck'>R</mi>", r"\mathbb{R}"),
        ("<mfenced><mi>a</mi><mi>b</mi></mfenced>", "(a,b)"),
        ("<mfrac linethickness='0'><mi>n</mi><mi>k</mi></mfrac>", r"\binom{n}{k}"),
        ("<mi>f</mi><mo>&#x2032;</mo>", "f'"),
        (
            "<mtable><mtr><mtd><mi>a</mi></mtd><mtd><mi>b</mi></mtd></mtr><mtr><mtd><mi>c</mi></mtd><mtd><mn>0</mn></mtd></mtr></mtable>",
            r"\begin{matrix}a&b\\c&0\end{matrix}",
        ),
        ("<semantics><mi>x</mi><annotation encoding='application/x-tex'>y</annotation></semantics>", "x"),
        ("<semantics><annotation encoding='application/x-tex'>x^2</annotation></semantics>", "x^2"),
        ("<apply><eq/><apply><plus/><ci>x</ci><cn>1</cn></apply><apply><power/><ci>y</ci><cn>2</cn></apply></apply>", "x+1=y^2"),
        ("<apply><times/><ci>a</ci><apply><plus/><ci>b</ci><ci>c</ci></apply></apply>", "a(b+c)"),
        ("<apply><sin/><ci>x</ci></apply>", r"\sin(x)"),
        ("<msup><mrow><mo>(</mo><mi>x</mi><mo>+</mo><mn>1</mn><mo>)</mo></mrow><mn>2</mn></msup>", "(x+1)^2"),
    ],
)
def test_mathml_is_read_as_the_latex_of_the_same_formula(mathml, latex):
    for markup in (f"<math>{mathml}</math>", f"<mml:math>{mathml.replace('</', '</mml:').replace('<m', '<mml:m')}"):
        assert spelled(operator_tree(read_mathml(markup))) == spell(latex)
        mine, other = trees_of_text(markup, "mathml"), trees_of_text(latex, "latex")
        if "fenced" not in mathml and "apply" not in mathml:
            np.testing.assert_array_equal(mine.labels, other.labels)


PIECES = [
    "\\frac", "{", "}", "^", "_", "\\left(", "\\right)", "\\begin{pmatrix}", "\\end{pmatrix}", "&", "\\\\", "x", "12", "+", "=",
    "|", "\\|", "[", "]", "(", ")", "\\sum", "\\sqrt", "\\over", "\\sin", "'", "!", ",", "\\text{if }", "\\hat", "\\not",
    "\\mathrm", "$", "%", "\\", "≤", "²", "\\unknown", "/",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_written_gives_trees_of_bounded_size_in_bounded_time(seed):
    rng = random.Random(seed)
    for _ in range(150):
        text = " ".join(rng.choices(PIECES, k=rng.randint(0, 60)))
        for row in (read_latex(text), read_latex(text, typed=True), read_mathml(text.replace("{", "<mrow>").replace("}", "</mrow>"))):
            assert count(row) <= 4 * MAX_SIGNS, f"seed {seed}: {text}"
        trees = trees_of_text(text, "latex")
        n = len(trees.labels)
        assert n <= MAX_NODES
        assert (trees.parents <= np.arange(n)).all()
        for formula in find(text.encode()):
            assert 0 <= formula.start < formula.end <= len(text.encode())


@pytest.mark.parametrize(
    ("latex", "mathml"),
    [
        (
            r"\begin{pmatrix}" + r"\\".join(["a&b&c"] * 60) + r"\end{pmatrix}",
            f"<mtable>{'<mtr><mtd><mi>a</mi></mtd></mtr>' * 200}</mtable>",
        ),
        (r"\frac{" + "+".join("x" * 90) + "}{2}", f"<mfrac><mrow>{'<mi>x</mi>' * 200}</mrow><mn>2</mn></mfrac>"),
        (r"\sqrt{" + "+".join("x" * 90) + "}", f"<msqrt>{'<mi>x</mi>' * 200}</msqrt>"),
    ],
)
def test_a_sign_that_holds_more_than_is_read_is_there_with_what_was_read(latex, mathml):
    for row in (read_latex(f"y={latex}"), read_mathml(f"<mi>y</mi><mo>=</mo>{mathml}")):
        assert len(row) == 3 and count(row) >= MAX_SIGNS


@pytest.mark.parametrize(
    "text", ["{" * 3000, "\\frac" * 2000, "x^" * 2000, "(" * 4000, "\\sqrt{" * 700 + "x", "|" * 4000, "a_{b_{" * 700, "\\left|" * 600]
)
def test_deep_and_broken_nesting_ends(text):
    assert len(trees_of_text(text, "latex").labels) <= MAX_NODES
    assert len(trees_of_text("<mrow>" * 4000 + "<mi>x</mi>", "mathml").labels) <= MAX_NODES
