"""Equations of Office (OMML) as LaTeX: ECMA-376 part 1, section 22.1, each element by the command that means the same."""

import re
import unicodedata
from collections.abc import Callable
from xml.etree import ElementTree

from shards.formats.packages import attribute, local

_SYMBOLS = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "ϵ": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "ϑ": "vartheta", "ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "ϱ": "varrho",
    "σ": "sigma", "ς": "varsigma", "τ": "tau", "υ": "upsilon", "φ": "varphi", "ϕ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega",
    "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma", "Υ": "Upsilon", "Φ": "Phi",
    "Ψ": "Psi", "Ω": "Omega", "×": "times", "÷": "div", "±": "pm", "∓": "mp", "⋅": "cdot", "·": "cdot", "∗": "ast", "∘": "circ",
    "°": "degree", "≤": "leq", "≥": "geq", "≠": "neq", "≈": "approx", "≡": "equiv", "∼": "sim", "≅": "cong", "∝": "propto",
    "≪": "ll", "≫": "gg", "∞": "infty", "∂": "partial", "∇": "nabla", "∈": "in", "∉": "notin", "∋": "ni", "⊂": "subset",
    "⊆": "subseteq", "⊃": "supset", "⊇": "supseteq", "∪": "cup", "∩": "cap", "∅": "emptyset", "∀": "forall", "∃": "exists",
    "¬": "neg", "∧": "wedge", "∨": "vee", "→": "to", "←": "leftarrow", "↔": "leftrightarrow", "⇒": "Rightarrow",
    "⇐": "Leftarrow", "⇔": "Leftrightarrow", "↦": "mapsto", "∑": "sum", "∏": "prod", "∐": "coprod", "∫": "int", "∬": "iint",
    "∭": "iiint", "∮": "oint", "⋃": "bigcup", "⋂": "bigcap", "⋁": "bigvee", "⋀": "bigwedge", "√": "surd", "⊕": "oplus",
    "⊗": "otimes", "⊥": "perp", "∥": "parallel", "∠": "angle", "…": "ldots", "⋯": "cdots", "⋮": "vdots", "⋱": "ddots",
    "ℏ": "hbar", "ℓ": "ell", "ℜ": "Re", "ℑ": "Im", "ℵ": "aleph", "†": "dagger", "⟨": "langle", "⟩": "rangle", "⌊": "lfloor",
    "⌋": "rfloor", "⌈": "lceil", "⌉": "rceil", "‖": "Vert", "′": "prime",
}  # fmt: skip
_ACCENTS = {
    "\u0302": "hat", "\u0303": "tilde", "\u0304": "bar", "\u0305": "bar", "\u0307": "dot", "\u0308": "ddot", "\u030c": "check",
    "\u0301": "acute", "\u0300": "grave", "\u0306": "breve", "\u20d7": "vec", "\u2192": "vec", "^": "hat", "~": "tilde", "¯": "bar",
}  # fmt: skip
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth exp ln log lg lim limsup liminf max min sup inf det dim ker gcd "
    "deg arg hom Pr".split()
)
_FENCES = {"{": r"\{", "}": r"\}", "": ".", "‖": r"\Vert", "⟨": r"\langle", "⟩": r"\rangle", "⌊": r"\lfloor", "⌋": r"\rfloor",
           "⌈": r"\lceil", "⌉": r"\rceil"}  # fmt: skip


def latex(element: ElementTree.Element) -> str:
    """An OMML element (m:oMath or anything in one) as LaTeX, without dollars."""
    convert = _CONVERT.get(local(element))
    return convert(element) if convert else _inside(element)


def _inside(element: ElementTree.Element) -> str:
    return "".join(latex(child) for child in element if not local(child).endswith("Pr"))


def _child(element: ElementTree.Element, name: str) -> str:
    return next((_inside(child) for child in element if local(child) == name), "")


def _said(element: ElementTree.Element, name: str, default: str) -> str:
    """The value of a property: `<m:fPr><m:type m:val="lin"/></m:fPr>`; of one without a value, nothing."""
    for properties in element:
        if local(properties).endswith("Pr"):
            for said in properties:
                if local(said) == name:
                    return attribute(said, "val")
    return default


def _group(text: str) -> str:
    return text if len(text) == 1 else f"{{{text}}}"


def _run(element: ElementTree.Element) -> str:
    text = "".join(child.text or "" for child in element if local(child) == "t")
    if any(local(said) == "nor" for properties in element if local(properties) == "rPr" for said in properties):
        return rf"\text{{{text}}}" if text.strip() else text
    return _symbols(text)


def _symbols(text: str) -> str:
    out = []
    for character in text:
        if character not in _SYMBOLS and "\U0001d400" <= character <= "\U0001d7ff":  # letters in mathematical fonts
            character = unicodedata.normalize("NFKC", character)
        if character in _SYMBOLS:
            out.append(f"\\{_SYMBOLS[character]} ")
        elif character in "{}%&#_$":
            out.append("\\" + character)
        elif character in "\u2061\u2062\u2063\u2064":  # invisible operators
            continue
        else:
            out.append("-" if character == "−" else character)
    return "".join(out)


def _fraction(element: ElementTree.Element) -> str:
    over, under, kind = _child(element, "num"), _child(element, "den"), _said(element, "type", "bar")
    if kind == "lin":
        return f"{over}/{under}"
    return f"{{{over} \\atop {under}}}" if kind == "noBar" else f"\\frac{{{over}}}{{{under}}}"


def _scripts(element: ElementTree.Element) -> str:
    base, below, above = _child(element, "e"), _child(element, "sub"), _child(element, "sup")
    scripts = (f"_{_group(below)}" if below else "") + (f"^{_group(above)}" if above else "")
    return f"{{}}{scripts}{base}" if local(element) == "sPre" else _group(base.strip()) + scripts


def _large_operator(element: ElementTree.Element) -> str:
    sign = _said(element, "chr", "∫")
    below, above = _child(element, "sub"), _child(element, "sup")
    scripts = (f"_{{{below}}}" if below else "") + (f"^{{{above}}}" if above else "")
    return f"{_symbols(sign).strip()}{scripts} {_child(element, 'e')}"


def _radical(element: ElementTree.Element) -> str:
    degree = _child(element, "deg")
    return (f"\\sqrt[{degree}]" if degree else "\\sqrt") + f"{{{_child(element, 'e')}}}"


def _fenced(element: ElementTree.Element) -> str:
    begin, between, end = (_said(element, name, default) for name, default in (("begChr", "("), ("sepChr", "|"), ("endChr", ")")))
    inner = between.join(_inside(child) for child in element if local(child) == "e")
    return f"\\left{_FENCES.get(begin, begin)}{inner}\\right{_FENCES.get(end, end)}"


def _matrix(element: ElementTree.Element) -> str:
    rows = (" & ".join(_inside(cell) for cell in row if local(cell) == "e") for row in element if local(row) == "mr")
    return "\\begin{matrix}" + " \\\\ ".join(rows) + "\\end{matrix}"


def _array(element: ElementTree.Element) -> str:
    return "\\begin{aligned}" + " \\\\ ".join(_inside(child) for child in element if local(child) == "e") + "\\end{aligned}"


def _function(element: ElementTree.Element) -> str:
    name = _child(element, "fName").strip()
    word = re.match("[A-Za-z]*", name)
    assert word is not None
    command = f"\\{name}" if word[0] in _FUNCTIONS else name
    return f"{command} {_child(element, 'e')}"


def _limit(element: ElementTree.Element) -> str:
    base, sign = _child(element, "e").strip(), "_" if local(element) == "limLow" else "^"
    return f"{base}{sign}{{{_child(element, 'lim')}}}"


def _accent(element: ElementTree.Element) -> str:
    return f"\\{_ACCENTS.get(_said(element, 'chr', chr(0x302)), 'hat')}{{{_child(element, 'e')}}}"


def _bar(element: ElementTree.Element) -> str:
    return f"\\{'overline' if _said(element, 'pos', 'bot') == 'top' else 'underline'}{{{_child(element, 'e')}}}"


def _brace(element: ElementTree.Element) -> str:
    return f"\\{'overbrace' if _said(element, 'pos', 'bot') == 'top' else 'underbrace'}{{{_child(element, 'e')}}}"


_CONVERT: dict[str, Callable[[ElementTree.Element], str]] = {
    "r": _run, "f": _fraction, "sSup": _scripts, "sSub": _scripts, "sSubSup": _scripts, "sPre": _scripts, "nary": _large_operator,
    "rad": _radical, "d": _fenced, "m": _matrix, "eqArr": _array, "func": _function, "limLow": _limit, "limUpp": _limit,
    "acc": _accent, "bar": _bar, "groupChr": _brace,
}  # fmt: skip
