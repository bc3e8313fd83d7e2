"""300 patterns for texts of Python code: the text layer's are compared with ripgrep's matches, line by line.

`forms()` gives them in the layer's form, `ripgrep(form)` as arguments of `rg`, whose classes and word borders are Unicode's unless
they are written out as ours are (ASCII's).
"""

import re
from typing import Any

_NAMES = "self parse_json TimeoutError encoding iter __init__ os path read Lock buffer ValueError key HTTP wait None".split()
_TEXTS = ["def ", "import ", "->", "==", "'''", "...", "(self,", "[0]", "**kwargs", "\\n", "# ", "else:", "{}", "e.g.", "http://"]
_TEXTS += ["naïve", "é", "©", "—", "nosuchstring", "  # type: ignore", "\t", "in the", "raise ", "if not ", "%s", "a", "Z", "()", "|"]
_WORDS = ["in", "is", "self", "None", "Error", "the", "x", "py", "_", "as", "i", "os.path", "not in", "0", "utf"]

_CLASSES = [r"\w+", r"\d+", r"[a-z]+", r"[A-Z]\w*", r"\w*", r"[0-9a-f]{2}", r"[^\W\d]+", r"[._]", r"\S+", r"[a-zA-Z_]\w*"]
_AROUND = [
    ("def ", r"\("),
    ("", " = "),
    (r"\.", r"\("),
    ("class ", ":"),
    ("['\"]", "['\"]"),
    ("^", ":$"),
    (r"\(", r"\)$"),
    (r"\b", "Error"),
]
_ALTERNATIVES = ["None|True|False", "try|except|finally", "get|set|del", "int|str|bytes|float", "TODO|FIXME|XXX", "a|ab|abc", "read|write"]
_CONTEXTS = ["(%s)", r"\b(%s)\b", r"return (%s)", r"^\s*(%s)", r"(%s)$", r"(%s)\(", r"_(%s)", r"(%s)s?\b"]
_ANCHORS = ["^$", "^", "$", r"^\s*$", "^ ", " $", "^#", r"\S$", "^.{80,}$", "^.{10}$", r"^\s{8}\w", "^@", '^"""', r"^\s*#.*$", r"\\$"]
_ANCHORS += [
    r"^[^#]*$",
    r"^(class|def) ",
    r":$",
    r"^import \w+$",
    r"^from .* import",
    r"\bend$",
    r"^\s+return$",
    r"\B\(",
    r"e\b",
    r"\Bing\b",
]
_REPEATS = [
    r"e{2}",
    r"-{3,}",
    r"={5}",
    r"\d{4}",
    r"(ab)+",
    r"x*y",
    r"colou?r",
    r"(a|e|i|o|u){3}",
    r"\w{20}",
    r"[A-Z]{4,}",
    r"\s{4}\S",
    r"(\w+)\.(\w+)\.",
]
_REPEATS += [
    r".*self.*self",
    r"\[.*?\]",
    r"'[^']*'",
    r'"[^"]+"',
    r"a.c",
    r"..",
    r"\d+\.\d+",
    r"(\w+, )+\w+",
    r"0x[0-9a-fA-F]+",
    r"[^\x00-\x7f]",
]
_REPEATS += [
    r"%[sdrf]",
    r"\w+@\w+\.\w+",
    r"https?://[^\s]+",
    r"(?:[a-z]+_){2}[a-z]+",
    r"[!?]$",
    r"\t+",
    r"[α-ωé-ü]",
    r"\.{3}",
    r"__\w+__",
    r"[ab].{9}c",
]
_FLAGGED = [r"(?i)error", r"(?i:E)rror", r"pa(?i:TH)", r"(?s)a.b", r"(?i)[k-s]{5}", r"(?i)^IMPORT", r"[Tt]est", r"(?i)\bself\b"]
_SMART = [
    "error",
    "Error",
    "ERROR",
    r"\Werror\W",
    r"[A-Z]error",
    r"keyerror|indexerror",
    "utf-8",
    "UTF-8",
    "isinstance",
    r"\bid\b",
    "kIs",
    "str",
]


def forms() -> list[dict[str, Any]]:
    """The patterns, all different, in one order."""
    found: list[dict[str, Any]] = []
    found += [{"pattern": text, "case": "sensitive"} for text in _NAMES + _TEXTS]
    found += [{"pattern": text, "case": "ignore"} for text in _NAMES + _TEXTS if text.isascii()]
    found += [{"pattern": text, "word": True, "case": case} for text in _WORDS for case in ("sensitive", "ignore")]
    regexes = [before + body + behind for body in _CLASSES for before, behind in _AROUND]
    regexes += [context % choice for choice in _ALTERNATIVES for context in _CONTEXTS]
    regexes += _ANCHORS + _REPEATS + _FLAGGED
    found += [{"pattern": text, "regex": True, "case": "sensitive"} for text in regexes]
    found += [{"pattern": text, "regex": True} for text in _SMART]
    found += [{"pattern": text, "regex": True, "word": True} for text in _ALTERNATIVES]
    distinct = list({repr(form): form for form in found}.values())
    step = len(distinct) / 300
    return [distinct[int(i * step)] for i in range(300)]


_AS_UNICODE = {
    r"\w": "[0-9A-Za-z_]",
    r"\W": "[^0-9A-Za-z_]",
    r"\d": "[0-9]",
    r"\D": "[^0-9]",
    r"\s": r"[\t\n\f\r ]",
    r"\S": r"[^\t\n\f\r ]",
}
_AS_UNICODE |= {r"\b": r"(?-u:\b)", r"\B": r"(?-u:\B)"}


def ripgrep(form: dict[str, Any]) -> list[str]:
    """Arguments of `rg` for the same pattern."""
    case = {"smart": "-S", "sensitive": "-s", "ignore": "-i"}[form.get("case", "smart")]
    pattern, word = form["pattern"], form.get("word")
    if case == "-S":  # it looks at the letters of the pattern, so those must be the form's own
        return [case, "--no-unicode", *(["-w"] if word else []), "-e", pattern]
    if not form.get("regex") and not word:
        return [case, "-F", "-e", pattern]
    ascii_ = (
        re.sub(r"\\.", lambda escape: _AS_UNICODE.get(escape[0], escape[0]), pattern) if form.get("regex") else pattern.replace(".", "[.]")
    )
    return [case, "-e", rf"(?-u:\b)(?:{ascii_})(?-u:\b)" if word else ascii_]
