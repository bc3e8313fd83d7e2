"""What a query's common text looks like, so that each space is asked what it can use. A pure function of the text.

A text may have several shapes: prose with `$x^2$` in it is prose and a formula, `gather` is a word and may be a name. A space is asked
if it takes any of them (`Layer.shapes`), so a second shape only ever adds. A space is left out only where the text has a shape that
can hardly be anything else, and then this is its only one: `def \\w+\\(self`, `**/*.py`, `CC(=O)Oc1ccccc1C(=O)O`. Whatever is in doubt
stays prose, which all spaces that read words take.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from shards.molecules import looks_meant, may_be_meant, parse_smiles

SHAPES = {
    "prose": "words as people write them",
    "phrase": "words in quotation marks",
    "identifier": "a name as in code, or one word that may be one",
    "definition": "a definition as in code",
    "syntax": "a pattern of code with metavariables",
    "path": "a path or a file's name",
    "glob": "a glob",
    "url": "an address",
    "key": "a number, version, hash or other key",
    "regex": "a regular expression",
    "formula": "a formula",
    "molecule": "a molecule",
}
# What spaces that read words take: all but what has no words in it.
WORDS = frozenset(SHAPES) - {"regex", "glob", "molecule"}
MAX_CHARS = 2_000  # longer ones are pastes
_FEW = 3  # shapes that are sooner listed than what the query looks like

_PLAIN = re.compile(r"""["'(“‘«]*[^\W\d_]+(?:['’\-][^\W\d_]+)*["')”’»,.;:!?]*""")
_URL = re.compile(r"(?:[a-z][a-z0-9+.-]*://|www\.)\S+", re.IGNORECASE)
_DRIVE_PATH, _SHARE_PATH = re.compile(r"[A-Za-z]:\\[^*?\"<>|]*"), re.compile(r"\\\\\w[^*?\"<>|]*")
_INCHI = re.compile(r"InChI=1S?/[A-Za-z0-9.]+(?:/\S+)?")
_INCHIKEY = re.compile(r"[A-Z]{14}-[A-Z]{8}[SN][A-Z]-[A-Z]")
_KEY = re.compile(
    r"v?\d+(?:[.\-:/,_]\d+)*(?:[.\-]?(?:a|b|rc|dev|alpha|beta|post|pre)[.\-]?\d*)?|[0-9a-fA-F]{7,64}|0x[0-9a-fA-F]+"
    r"|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|10\.\d{4,9}/\S+"
)
_FILE_NAME = re.compile(r"[\w.+@~\-]*\w\.[A-Za-z][A-Za-z0-9]{0,7}")
_PATH = re.compile(r"(?:~|\.{1,2}|[\w.+@\-]+)?(?:/[\w.+@\-]+)*/?")
_GLOB = re.compile(r"[\w./~@+\-*?\[\]{},!]+")
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*(?:(?:\.|::|->|#)~?[A-Za-z_$][\w$]*)*(?:\(\))?")
_NAMED = re.compile(r"[_$]|[a-z0-9][A-Z]|[A-Za-z_]\w+(?:\.|::|->|#)\w\w|::|->|\(\)$")
_DEFINITION = re.compile(
    r"(?:(?:pub|public|private|protected|internal|static|async|export|default|abstract|final|inline|virtual|unsafe|override)(?:\([a-z]+\))?\s+)*"
    r"(?P<kind>def|class|fn|func|fun|function|struct|enum|union|trait|impl|interface|type|typedef|module|namespace|macro|proc|sub|record)\s+"
    r"(?:\([^)]*\)\s*)?(?P<name>[A-Za-z_$][\w$]*)(?P<rest>.*)"
)
_METAVARIABLE = re.compile(r"\$\$\$[A-Z_]?[A-Z0-9_]*|(?<![\w$])\$[A-Z_][A-Z0-9_]*\b")

_FORMULA_WHOLE = re.compile(
    r"\$\$.+\$\$|\$(?!\s)[^$]*[^$\s\\]\$|\\\[.+\\\]|\\\(.+\\\)"
    r"|\\begin\{(?P<name>(?:equation|align|gather|multline|eqnarray|displaymath|math|[bpvBV]?matrix|cases)\*?)\}.+\\end\{(?P=name)\}|<math[\s>].*</math>",
    re.DOTALL,
)
# Pandoc's rule (tex_math_dollars): no space inside the dollars, and none of them a price's.
_FORMULA_INSIDE = re.compile(
    r"\$\$[^$]+\$\$|(?<![\w$\\])\$(?![\s$])(?P<body>[^$\n]{0,500}?[^\s$\\])\$(?![\w$])"
    r"|\\\[.+?\\\]|(?<!\w)\\\([^()]+?\\\)|\\begin\{(?:equation|align)|<math[\s>]",
    re.DOTALL,
)
_LATEX = re.compile(
    r"\\(?:d?frac|tfrac|sum|prod|i*int|oint|sqrt|lim|partial|nabla|infty|alpha|beta|gamma|delta|epsilon|varepsilon|theta|lambda|mu|pi|sigma|"
    r"phi|varphi|psi|omega|Delta|Sigma|Omega|Gamma|Lambda|Phi|mathbb|mathcal|mathbf|mathrm|left|right|cdot|times|leq?|geq?|neq|approx|"
    r"equiv|begin|end|text|boldsymbol|operatorname|overline|underline|ldots|cdots|dots|wedge|vee|mid|quad|forall|"
    r"exists|in|subset|cup|cap|to|rightarrow|binom|hat|bar|vec|log|ln|sin|cos|tan|exp)(?![A-Za-z])"
)
_MATHS = re.compile(r"[\\^_=<>+*/]|^-?\w{1,3}$|^\w+'*\([\w,\s]+\)$")
_FUNCTIONS = frozenset(
    "sin cos tan cot sec csc log ln exp lim max min det dim ker gcd sum int sqrt abs mod sinh cosh tanh arcsin arccos arctan".split()
)
_BARE_FORMULA = re.compile(r"[A-Za-z0-9\s+\-*/^=<>()\[\]{}_.,!|'≤≥≠≈∑∫√∞±×·÷πθλμσΔ∂∇]+")

_REGEX_SIGNS = (
    (re.compile(r"(?<!\\)\\[wWdDsS](?![A-Za-z])"), "is a class of characters"),
    (re.compile(r"(?<![\w\\])\\b(?:\w[^\\]*\\b(?!\w)|[\[(.])"), "is a word's edge"),
    (re.compile(r"\(\?(?:[imsU]+\)|:|=|!|<[=!]|P?<\w+>)"), "is a group with flags"),
    (re.compile(r"\[\^?(?:[\w.\-]|\\.)*(?:a-z|A-Z|0-9|a-f|1-9)(?:[^\]\s])*\]"), "is a class of characters"),
    (re.compile(r"\[\^[^\]]+\][+*?{]"), "is a class of characters, repeated"),
    (re.compile(r"(?:^|(?<=[\s\"'(=\[:,^]))\.[*+]\??(?=[\w\s\"')\\(\[$]|$)"), "is any text"),
    (re.compile(r"(?:\w\w|[)\]\"'])\.[*+]\??(?=[\w\"'\\(\[^])"), "is any text"),  # not A.*B, a product in MATLAB
    (re.compile(r"(?<=\w)\\[.(](?=[\w\\)]|$)"), "is an escaped sign"),
    (re.compile(r"(?:[\])]|\\[wdsWDS.])\{\d+(?:,\d*)?\}"), "is a count of repetitions"),
    (
        re.compile(r"(?:(?<=\w)\([^()\s|]+(?:\|[^()\s|]+)+\)\w|_\([^()\s|]+(?:\|[^()\s|]+)+\)|\([^()\s|]+(?:\|[^()\s|]+)+\)[_*+?])"),
        "is a choice",
    ),
)
_RAW_STRING = re.compile(r"""(?<!\w)(?:r|rb|br)["']""")  # a line of code about a regular expression
_ANCHORED = re.compile(r"\^(?:[A-Za-z]{3,}|[#@({\[]\w)")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a text looks like: shape -> why. Empty for an empty text."""

    shapes: Mapping[str, str]

    def asks(self, takes: frozenset[str] | None) -> bool:
        """Whether a space that takes these shapes of common text is asked; None takes all."""
        return takes is None or not self.shapes or not takes.isdisjoint(self.shapes)

    def why_not(self, takes: frozenset[str]) -> str:
        """For people: why a space that takes these shapes is not asked."""
        if len(takes) <= _FEW:
            return f"asked by itself only where the query looks like {' or '.join(SHAPES[shape] for shape in SHAPES if shape in takes)}"
        looks = " and ".join(f"{SHAPES[shape]} ({why})" if why else SHAPES[shape] for shape, why in self.shapes.items())
        return f"the query looks like {looks}; name this layer to ask it all the same"


@lru_cache(maxsize=1024)  # every space's question and every page of an answer asks again
def read(text: str) -> Reading:
    """The shapes of a query's common text. 30 us for a sentence."""
    text = text.strip()
    return Reading(_shapes(text) if text else {})


def _shapes(text: str) -> dict[str, str]:
    if len(text) > MAX_CHARS:
        return {"prose": f"more than {MAX_CHARS:,} characters"}
    if _DRIVE_PATH.fullmatch(text):
        return {"path": "as on Windows"}
    if _whole_formula(text):
        return {"formula": "written as one from end to end"}
    inside = _formula_inside(text)
    if "\n" in text:
        return {"prose": "several lines"} | inside
    words = text.split()
    n_plain = sum(_PLAIN.fullmatch(word) is not None for word in words)
    wordy = n_plain >= 3 and n_plain >= 0.6 * len(words)
    if wordy and text.endswith("?") and _PLAIN.fullmatch(words[-1]):
        return {"prose": "a question"} | inside
    if len(text) > 1 and text[0] == text[-1] == '"' and '"' not in text[1:-1]:
        return {"phrase": ""} | inside
    if wordy:
        return {"prose": ""} | inside | _regex(text, certain=True) | _definition(text)
    if len(words) == 1 and (shapes := _one_word(text)):
        return shapes if shapes.keys() & {"molecule", "glob", "url"} and "prose" not in shapes else shapes | inside
    if _SHARE_PATH.fullmatch(text):
        return {"path": "as on Windows"}
    if not inside and (regex := _regex(text, certain=True)):
        return regex
    shapes = {"prose": ""} | inside | _regex(text, certain=False) | _definition(text) | ({} if inside else _syntax(text))
    if not inside and _bare_formula(text):
        shapes["formula"] = "signs and single letters"
    return shapes


def _one_word(text: str) -> dict[str, str]:
    """Shapes of a text without white space; {} where it is none of these."""
    if _URL.fullmatch(text):
        return {"url": ""}
    if _SHARE_PATH.fullmatch(text):
        return {"path": "as on Windows"}
    if _INCHI.fullmatch(text):
        return {"molecule": "an InChI"}
    if _INCHIKEY.fullmatch(text):
        return {"key": "an InChIKey", "molecule": "an InChIKey"}
    molecule = _molecule(text)
    if molecule and molecule["molecule"]:
        return molecule
    if _KEY.fullmatch(text):
        return {"key": "", "prose": ""}
    if glob := _glob(text):
        return glob
    shapes: dict[str, str] = {}
    if _IDENTIFIER.fullmatch(text) and not re.fullmatch(r"(?:[A-Za-z]\.)+[A-Za-z]?", text):
        shapes["identifier"] = "written as in code" if _NAMED.search(text) else "one word"
    if _FILE_NAME.fullmatch(text) or (text.count("/") and _PATH.fullmatch(text)):
        shapes["path"] = "has a suffix" if _FILE_NAME.fullmatch(text) else "has a slash"
    return shapes | molecule | {"prose": ""} if shapes or molecule else {}


def _molecule(text: str) -> dict[str, str]:
    """Empty reason: it may be one; a reason: it can hardly be anything else."""
    found = parse_smiles(text)
    if found is None:
        return {}
    if looks_meant(found):
        return {"molecule": f"a SMILES of {found.n_atoms} atoms"}
    return {"molecule": ""} if may_be_meant(text, found) else {}


def _glob(text: str) -> dict[str, str]:
    if "*" not in text or not _GLOB.fullmatch(text):
        return {}
    if re.search(r"\*\.\w+$|\*\.\{[\w,]+\}$|(?:^|/)\*\*/|/\*$|\*/|/[^/]*\*", text) and not re.search(r"\.\*[\w(]|[\])]\*", text):
        return {"glob": "stars for parts of a path"}
    # foo.*bar is a glob, too, but few mean it; a*b and *args are anything.
    return {} if _regex(text, certain=True) else {"glob": "", "prose": ""}


def _regex(text: str, certain: bool) -> dict[str, str]:
    """certain: by what prose, code, paths and formulas hardly hold; else by an anchor alone."""
    if _LATEX.search(text) or _RAW_STRING.search(text):
        return {}
    for sign, why in _REGEX_SIGNS if certain else ():
        if (found := sign.search(text)) and _compiles(text):
            return {"regex": f"{found.group()} {why}"}
    if not certain and _ANCHORED.match(text) and _compiles(text):
        return {"regex": "^ is a line's beginning"}
    return {}


def _compiles(pattern: str) -> bool:
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options=options)
    except (re2.error, UnicodeEncodeError):  # look-around and back-references are not RE2's: then it is looked for as it stands
        return False
    return True


def _definition(text: str) -> dict[str, str]:
    found = _DEFINITION.fullmatch(text)
    if found is None or (found["rest"].strip() and not re.match(r"\s*[(<:{=;\[]|\s+(?:extends|implements|for|where)\b", found["rest"])):
        return {}
    return {"definition": f"{found['kind']} and a name"}


def _syntax(text: str) -> dict[str, str]:
    if (found := _METAVARIABLE.search(text)) and re.search(r"[(){}\[\];=.,]", text):
        return {"syntax": f"{found.group()} may be a metavariable"}
    return {}


def _whole_formula(text: str) -> bool:
    if found := _FORMULA_WHOLE.fullmatch(text):
        body = found.group()
        return not body.startswith("$") or body.startswith("$$") or bool(_MATHS.search(body[1:-1]))
    # \frac{a}{b} without dollars: commands, signs and single letters, no words.
    bare = re.sub(r"\\[A-Za-z]+|\{[^{}\\]*\}", " ", text)
    return bool(_LATEX.search(text)) and "$" not in text and not re.search(r"[^\W\d_]{3,}", bare)


def _formula_inside(text: str) -> dict[str, str]:
    for found in _FORMULA_INSIDE.finditer(text):
        if found["body"] is None or _MATHS.search(found["body"]):
            return {"formula": f"holds {found.group()[:40]}"}
    if found := _LATEX.search(text):
        return {"formula": f"holds {found.group()}"}
    return {}


def _bare_formula(text: str) -> bool:
    """x^2 + y^2 = z^2: single letters, numbers, known functions and at least one sign between them."""
    names = re.findall(r"[A-Za-z]+", text)
    return (
        bool(_BARE_FORMULA.fullmatch(text))
        and bool(re.search(r"[\w)\]}]\s*[=^<>≤≥≠≈+*/]\s*[\w({\[\-√]|[∑∫√]", text))
        and bool(names)
        and all(len(name) <= 2 or name.lower() in _FUNCTIONS for name in names)
    )
