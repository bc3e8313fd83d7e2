"""What the signs of formulas are called, and what each does: one name for all the ways of writing a sign.

A label is what a node of a tree says: "α" for `\\alpha`, `&alpha;` and α; "≤" for `\\le`, `\\leq`, `\\leqslant` and `<=`.
Classes: VARIABLE (any letter; stands for any other in patterns), NUMBER (likewise), CONCRETE (stands for itself alone).
"""

CONCRETE, VARIABLE, NUMBER = 0, 1, 2

_GREEK = (
    "alpha α beta β gamma γ delta δ epsilon ε varepsilon ε zeta ζ eta η theta θ vartheta θ iota ι kappa κ varkappa κ lambda λ mu μ nu ν "
    "xi ξ omicron ο rho ρ varrho ρ sigma σ varsigma σ tau τ upsilon υ phi φ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ "
    "Lambda Λ Xi Ξ Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω digamma ϝ"
).split()
LETTERS = dict(zip(_GREEK[::2], _GREEK[1::2], strict=True))
# Latin letters in disguise, and signs that name a thing rather than an operation: they vary no more than a digit does.
CONSTANTS = {
    "pi": "π", "varpi": "π", "infty": "∞", "infinity": "∞", "emptyset": "∅", "varnothing": "∅", "hbar": "ℏ", "ell": "l", "imath": "i",
    "jmath": "j", "aleph": "ℵ", "top": "⊤", "bot": "⊥", "Re": "Re", "Im": "Im", "wp": "℘", "dots": "…", "ldots": "…", "cdots": "…",
    "vdots": "…", "ddots": "…", "hdots": "…", "dotsc": "…", "dotsb": "…", "dotsm": "…", "dotsi": "…", "square": "□", "Box": "□",
    "triangle": "△", "angle": "∠", "degree": "°", "clubsuit": "♣", "qed": "□", "blacksquare": "□",
}  # fmt: skip
RELATIONS = {
    "=": "=", "eq": "=", "<": "<", "lt": "<", ">": ">", "gt": ">", "le": "≤", "leq": "≤", "leqslant": "≤", "leqq": "≤", "ge": "≥",
    "geq": "≥", "geqslant": "≥", "geqq": "≥", "ne": "≠", "neq": "≠", "equiv": "≡", "approx": "≈", "approxeq": "≈", "cong": "≅",
    "simeq": "≃", "sim": "∼", "propto": "∝", "varpropto": "∝", "in": "∈", "ni": "∋", "notin": "∉", "subset": "⊂", "subseteq": "⊆",
    "subsetneq": "⊊", "supset": "⊃", "supseteq": "⊇", "ll": "≪", "gg": "≫", "prec": "≺", "preceq": "≼", "succ": "≻", "succeq": "≽",
    "to": "→", "rightarrow": "→", "longrightarrow": "→", "xrightarrow": "→", "leftarrow": "←", "gets": "←", "leftrightarrow": "↔",
    "mapsto": "↦", "longmapsto": "↦", "hookrightarrow": "→", "twoheadrightarrow": "→", "Rightarrow": "⇒", "implies": "⇒",
    "Longrightarrow": "⇒", "Leftarrow": "⇐", "impliedby": "⇐", "Leftrightarrow": "⇔", "iff": "⇔", "Longleftrightarrow": "⇔",
    "mid": "|", "vert": "|", "nmid": "∤", "parallel": "∥", "perp": "⟂", "models": "⊨", "vdash": "⊢", "vDash": "⊨", "triangleq": "=",
    "coloneqq": "=", "defeq": "=", "doteq": "=", "asymp": "≍", "uparrow": "↑", "downarrow": "↓", "colon": ":", ":": ":", "nearrow": "↗",
    "trianglelefteq": "⊴", "lhd": "⊲", "rightsquigarrow": "→", "rightharpoonup": "→", "rightleftharpoons": "⇌",
}  # fmt: skip
ADDITIVE = {
    "+": "+", "-": "-", "pm": "±", "mp": "±", "cup": "∪", "bigtriangleup": "△", "vee": "∨", "lor": "∨", "oplus": "⊕", "setminus": "∖",
    "smallsetminus": "∖", "backslash": "∖", "sqcup": "⊔", "uplus": "⊎", "ominus": "⊖",
}  # fmt: skip
MULTIPLICATIVE = {
    "*": "·", "times": "·", "cdot": "·", "ast": "·", "star": "·", "/": "/", "div": "/", "cap": "∩", "wedge": "∧", "land": "∧",
    "otimes": "⊗", "circ": "∘", "bullet": "·", "odot": "⊙", "bmod": "mod", "mod": "mod", "rtimes": "⋊", "ltimes": "⋉", "sqcap": "⊓",
    "dagger": "†", "ddagger": "‡",
}  # fmt: skip
BIG = {
    "sum": "∑", "prod": "∏", "int": "∫", "iint": "∬", "iiint": "∭", "oint": "∮", "coprod": "∐", "bigcup": "⋃", "bigcap": "⋂",
    "bigoplus": "⨁", "bigotimes": "⨂", "bigvee": "⋁", "bigwedge": "⋀", "bigsqcup": "⨆", "smallint": "∫", "limits": "", "nolimits": "",
}  # fmt: skip
PREFIX = {
    "neg": "¬",
    "lnot": "¬",
    "forall": "∀",
    "exists": "∃",
    "nexists": "∄",
    "partial": "∂",
    "nabla": "∇",
    "surd": "√",
    "therefore": "∴",
}
LIMITS = frozenset("lim limsup liminf max min sup inf argmax argmin Pr colim injlim projlim".split())
FUNCTIONS = LIMITS | frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh coth sech csch log ln lg exp det dim ker deg gcd lcm hom arg rank "
    "sgn sign tr Tr Var Cov var cov diag erf grad div curl rot span im coker End Aut Hom Gal Spec card vol ord supp mod Res softmax "
    "sigmoid relu logit".split()
)
# Whose letters are seldom a product of variables even where nothing sets them apart: `sin(3*t)`. Not `im`, `ord`, `mod`, `rot`.
SPELT = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth log ln exp det lim max min sup inf gcd lcm argmax argmin sqrt "
    "limsup liminf rank erf".split()
)
OPENING = {
    "(": "(", "[": "[", "lbrack": "[", "{": "{", "lbrace": "{", "langle": "⟨", "lfloor": "⌊", "lceil": "⌈", "lvert": "|", "lVert": "‖",
    "lgroup": "(",
}  # fmt: skip
CLOSING = {
    ")": ")", "]": "]", "rbrack": "]", "}": "}", "rbrace": "}", "rangle": "⟩", "rfloor": "⌋", "rceil": "⌉", "rvert": "|", "rVert": "‖",
    "rgroup": ")",
}  # fmt: skip
BARS = {"|": "|", "Vert": "‖", "‖": "‖"}
ACCENTS = {
    "hat": "^", "widehat": "^", "bar": "¯", "overline": "¯", "tilde": "~", "widetilde": "~", "vec": "→", "overrightarrow": "→", "dot": "˙",
    "ddot": "¨", "dddot": "⃛", "check": "ˇ", "breve": "˘", "acute": "´", "grave": "`", "mathring": "°", "underline": "_",
    "overbrace": "⏞", "underbrace": "⏟", "overleftarrow": "←", "cancel": "/",
}  # fmt: skip
# Of how a thing looks alone. A letter in bold or upright is taken for the same letter: authors differ in it more than they mean by it.
STYLES = frozenset(
    "mathbf boldsymbol bm mathit mathnormal mathsf mathtt pmb bold textstyle displaystyle scriptstyle scriptscriptstyle left "
    "right middle big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr bigm Bigm biggm mathop mathrel mathbin mathord "
    "mathopen mathclose mathpunct mathinner limits nolimits nonumber notag noindent rm bf it sf tt cal boldmath ensuremath "
    "displaylimits smash strut null mathstrut allowbreak hfill hline hfil normalsize small large Large tiny scriptsize "
    "footnotesize centering quad qquad enspace thinspace medspace thickspace negthinspace negmedspace negthickspace relax nobreak "
    "linebreak newline par toprule midrule bottomrule qvar vfill medskip bigskip smallskip vphantom unicode".split()
)
ALPHABETS = {"mathbb": "bb", "Bbb": "bb", "mathds": "bb", "mathcal": "cal", "mathscr": "cal", "mathfrak": "frak", "frak": "frak"}
NAMES = frozenset("mathrm operatorname text textrm textit textbf textsf texttt mbox hbox textnormal rmfamily DeclareMathOperator".split())
WORDS_OF_TEXT = frozenset("text mbox hbox textnormal textrm textit textbf textsf texttt".split())
# Commands with an argument that says nothing about the formula.
DROPPED_WITH_ARGUMENT = frozenset(
    "label tag hspace vspace phantom hphantom color textcolor ref eqref cite class cssId style mspace kern hskip vskip mkern mskip "
    "intertext shortintertext require enclose href footnote".split()
)

# --- Unicode: the same names for what is typed as it is seen --------------------------------------------------------------------------

UNICODE: dict[str, str] = {}  # sign -> command, so that one table says what it does
for _table in (LETTERS, CONSTANTS, RELATIONS, ADDITIVE, MULTIPLICATIVE, BIG, PREFIX, OPENING, CLOSING):
    for _command, _sign in _table.items():
        if len(_sign) == 1 and not _sign.isascii():
            UNICODE.setdefault(_sign, _command)
UNICODE |= {
    "−": "-", "–": "-", "⋅": "cdot", "∙": "cdot", "×": "times", "÷": "div", "∗": "*", "∕": "/", "⁄": "/", "·": "cdot", "†": "dagger",
    "⩽": "le", "⩾": "ge", "≦": "le", "≧": "ge", "∣": "mid", "│": "mid", "∥": "Vert", "‖": "Vert", "∅": "emptyset", "⋯": "dots",
    "…": "dots", "⟶": "to", "⟹": "implies", "⟺": "iff", "ϵ": "epsilon", "ϕ": "phi", "ϑ": "theta", "ϱ": "rho", "µ": "mu", "∖": "setminus",
    "≔": "=", "≝": "=", "∶": ":", "∓": "mp", "⋆": "star", "∘": "circ", "ℓ": "ell", "′": "'", "″": "''", "‴": "'''", "ı": "imath",
    "Ω": "Omega", "∆": "Delta", "√": "surd", "〈": "langle", "〉": "rangle", "⟮": "(", "⟯": ")", "∋": "ni", "⊥": "perp", "≪": "ll",
    "≫": "gg",
}  # fmt: skip
for _letters, _alphabet in (("ℂℍℕℙℚℝℤ", "CHNPQRZ"),):
    UNICODE |= {sign: f"mathbb {letter}" for sign, letter in zip(_letters, _alphabet, strict=True)}
for _letters, _alphabet in (("ℬℰℱℋℐℒℳℛ", "BEFHILMR"),):
    UNICODE |= {sign: f"mathcal {letter}" for sign, letter in zip(_letters, _alphabet, strict=True)}
SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "0123456789+-()ni", strict=True))
SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₍₎ₐₑᵢⱼₖₘₙₓ", "0123456789+-()aeijkmnx", strict=True))
INVISIBLE = frozenset("\u2061\u2062\u2063\u2064\u200b\u00a0\u2009\u200a\u2003\u2002\u2005\u2004\u2006\u2008\ufeff\u202f")
