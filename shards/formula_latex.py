"""LaTeX mathematics read into rows of signs. Whatever is written gives some row: what is broken is read as far as it goes.

No macro is expanded and nothing is executed: a command that nobody knows is a letter of that name, and what is grouped behind it
follows it.
"""

import re

from shards import formula_symbols as symbols
from shards.formula_layout import MAX_DEPTH, MAX_SIGNS, Row, Sign, grid, named, sign_of, spelt
from shards.formula_symbols import NUMBER, VARIABLE

MAX_CHARS = 4096  # of a formula that are read
_TOKEN = re.compile(
    r"\\(?P<command>[a-zA-Z]+)\*?|\\(?P<escaped>.)|(?P<comment>(?<!\\)%[^\n]*)|(?P<blank>\s+)|(?P<number>\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<letters>[a-zA-Z]+)|(?P<operator><->|<=>|<=|>=|=>|->|:=|==|\*\*|(?<=\s)!=(?=\s))|(?P<other>.)",
    re.DOTALL,
)
_OPERATORS = {
    "<->": "leftrightarrow", "<=>": "iff", "<=": "le", ">=": "ge", "=>": "implies", "->": "to", ":=": "=", "==": "=", "**": "^", "!=": "ne",
}  # fmt: skip
_MATRICES = frozenset("matrix pmatrix bmatrix Bmatrix vmatrix Vmatrix smallmatrix array cases dcases rcases".split())
_INFIX = {"over": "fraction", "choose": "binomial", "atop": "binomial", "brack": "binomial", "above": "fraction"}
_NEGATED = {"=": "≠", "∈": "∉", "|": "∤", "∥": "∦", "∃": "∄", "⊂": "⊄", "⊆": "⊈", "≡": "≢", "<": "≮", ">": "≯", "∼": "≁"}
_SPACES = frozenset(",;:!> \n\t~")  # after a backslash

_Token = tuple[str, str]  # kind of token, text


def read_latex(text: str, typed: bool = False) -> Row:
    """The row of a formula. typed: as one types it in plain text: `x^12`, `x^(n+1)`, `sqrt(x)`, `alpha`."""
    return _Reader(text[:MAX_CHARS], typed).row()


class _Reader:
    """One formula, read from left to right. `_left`: signs that may still be read."""

    def __init__(self, text: str, typed: bool):
        self._tokens: list[_Token] = [
            (kind, match[kind]) for match in _TOKEN.finditer(text) if (kind := match.lastgroup or "") and kind != "comment"
        ]
        self._at, self._typed, self._depth, self._left = 0, typed, 0, MAX_SIGNS

    # Tokens

    def _peek(self) -> _Token:
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "blank":
            self._at += 1
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _take(self) -> _Token:
        token = self._peek()
        self._at += 1
        return token

    def _raw_group(self) -> str:
        """The text of a braced argument, as written; of one token where there are no braces."""
        if self._peek() != ("other", "{"):
            return self._take()[1]
        self._at += 1
        depth, words = 1, []
        while self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            self._at += 1
            depth += (text == "{") - (text == "}") if kind == "other" else 0
            if not depth:
                break
            words.append(" " if kind == "blank" else ("\\" if kind in ("command", "escaped") else "") + text)
        return "".join(words)

    # Rows

    def row(self, closing: str = "") -> Row:
        """Signs up to `closing` ("}", "]", ")" or "" for the end), which is taken."""
        signs: Row = []
        infix: tuple[str, Row] | None = None
        while True:
            kind, text = self._peek()
            if kind == "end" or (closing and kind == "other" and text == closing):
                self._at += 1
                break
            if (kind == "command" and text == "end") or (kind == "other" and text == "}" and not closing):
                self._at += 1  # closes nothing: passed over
                if text == "end":
                    self._raw_group()
                continue
            if kind == "command" and text in _INFIX:
                self._at += 1
                infix, signs = (_INFIX[text], signs), []
                continue
            self._sign(signs)
        if infix:
            role, above = infix
            return [Sign(role, role, parts=(above, signs))]
        return signs

    def _nested(self, closing: str) -> Row:
        """A row within this one; of what lies too deep nothing is kept."""
        self._depth += 1
        row = self.row(closing) if self._depth < MAX_DEPTH else self._passed_over(closing)
        self._depth -= 1
        return row

    def _passed_over(self, closing: str) -> Row:
        opening, depth = {"}": "{", "]": "[", ")": "("}[closing], 1
        while depth and self._at < len(self._tokens):
            text = self._take()[1]
            depth += (text == opening) - (text == closing)
        return []

    def _argument(self) -> Row:
        """A braced row, or the one sign that stands there (a digit of a number, a letter of a word)."""
        kind, text = self._peek()
        if kind == "other" and text == "{":
            self._at += 1
            return self._nested("}")
        if self._typed and kind == "other" and text == "(":
            self._at += 1
            return self._nested(")")
        if kind in ("number", "letters") and len(text) > 1 and not self._typed:
            self._tokens[self._at] = (kind, text[1:])
            self._left -= 1
            return [Sign(text[0], "atom", NUMBER if kind == "number" else VARIABLE)]
        if kind == "end" or (kind == "other" and text in "}&"):
            return []
        row: Row = []
        if self._depth >= MAX_DEPTH:
            self._at += 1
            return row
        self._depth += 1
        if self._typed and text in "+-" and kind == "other":  # e^-x
            self._sign(row)
        self._sign(row, scripts=False)
        self._depth -= 1
        return row

    def _scripts(self, signs: Row) -> None:
        """`^`, `_` and primes, on the sign before."""
        if not signs:
            signs.append(Sign("", "group"))
        base = signs[-1]
        _, text = self._take()
        if text == "'":
            base.sup.append(Sign("′", "prime"))
            return
        script = self._argument()
        if text == "^":
            base.sup += script
        else:
            base.sub += script

    def _add(self, signs: Row, *new: Sign) -> None:
        for sign in new:
            if self._left > 0:
                self._left -= 1
                signs.append(sign)

    def _begun(self, signs: Row, sign: Sign) -> Sign:
        """A sign whose parts are read next: were they read first, one that holds too much would be missing with all of it."""
        self._add(signs, sign)
        return sign

    def _sign(self, signs: Row, scripts: bool = True) -> None:
        """One sign more; scripts: whether `^` and `_` are looked for here."""
        kind, text = self._peek()
        if kind == "operator" and text == "**":
            self._tokens[self._at] = kind, text = ("other", "^")
        if kind == "other" and text in ("^", "_", "'"):
            if scripts:
                self._scripts(signs)
            else:
                self._at += 1
            return
        self._at += 1
        if kind == "number":
            self._add(signs, Sign(text.removesuffix(".0"), "atom", NUMBER))
        elif kind == "letters":
            if text == "sqrt" and self._peek()[1] in ("(", "{"):
                self._add(signs, Sign("√", "root", parts=(self._nested(")" if self._take()[1] == "(" else "}"),)))
            else:
                self._add(signs, *spelt(text, self._typed))
        elif kind == "operator":
            self._known(signs, _OPERATORS[text])
        elif kind == "command":
            self._command(signs, text)
        elif kind == "escaped":
            if text in "{}|%":
                self._known(signs, {"|": "Vert"}.get(text, text))
            elif text == "\\":
                self._optional()
                self._add(signs, Sign(",", "separator"))
        elif text == "{":
            self._group(signs, self._nested("}"))
        elif text not in '}~&$#"`@.':
            if text in symbols.SUPERSCRIPTS or text in symbols.SUBSCRIPTS:
                self._raised(signs, text)
            else:
                self._known(signs, text)

    def _raised(self, signs: Row, text: str) -> None:
        """x²: digits that are typed as scripts."""
        if not signs:
            signs.append(Sign("", "group"))
        raised = text in symbols.SUPERSCRIPTS
        sign = sign_of(symbols.SUPERSCRIPTS[text] if raised else symbols.SUBSCRIPTS[text])
        if sign:
            script = signs[-1].sup if raised else signs[-1].sub
            if script and script[-1].kind == NUMBER == sign.kind:
                script[-1].label += sign.label
            else:
                script.append(sign)

    def _known(self, signs: Row, name: str) -> None:
        if name in symbols.UNICODE and symbols.UNICODE[name] in ("''", "'''"):
            for _ in symbols.UNICODE[name]:
                self._known(signs, "'")
            return
        sign = sign_of(name)
        if sign is None:
            return
        if sign.role == "prime" and signs:
            signs[-1].sup.append(sign)
        elif sign.label:
            self._add(signs, sign)

    def _group(self, signs: Row, row: Row) -> None:
        """Braces that only group: what they hold, unless a script follows, which is on all of it."""
        if len(row) == 1 or (self._peek()[0] != "other" or self._peek()[1] not in "^_'"):
            signs += row
        elif row:
            signs.append(Sign("", "group", parts=(row,)))

    def _optional(self) -> Row:
        """An argument in brackets, if there is one."""
        if self._peek() == ("other", "["):
            self._at += 1
            return self._nested("]")
        return []

    # Commands

    def _command(self, signs: Row, name: str) -> None:
        if name in ("left", "right", "middle") or (name.lower().startswith("big") and name in symbols.STYLES):
            if self._peek() == ("other", "."):
                self._at += 1
        elif name in symbols.STYLES or name in ("displaystyle",):
            pass
        elif name in symbols.NAMES:
            self._name(signs, name)
        elif name in symbols.ALPHABETS:
            letters = self._raw_group().strip()
            known = sign_of(letters) if len(letters) == 1 else None
            self._add(signs, (known and Sign(f"{symbols.ALPHABETS[name]} {known.label}", "atom", VARIABLE)) or named(letters))
        elif name in symbols.ACCENTS:
            self._accent(signs, symbols.ACCENTS[name])
        elif name in ("frac", "dfrac", "tfrac", "cfrac", "nicefrac", "sfrac", "binom", "dbinom", "tbinom"):
            role = "binomial" if "binom" in name else "fraction"
            self._optional()
            sign = self._begun(signs, Sign(role, role))
            sign.parts = (self._argument(), self._argument())
        elif name == "sqrt":
            sign = self._begun(signs, Sign("√", "root"))
            index = self._optional()
            radicand = self._argument()
            sign.parts = (radicand, index) if index else (radicand,)
        elif name in ("stackrel", "overset", "underset"):
            script, base = self._argument(), self._argument()
            if base:
                (base[-1].sub if name == "underset" else base[-1].sup).extend(script)
            signs += base
        elif name == "substack":
            signs += self._argument()
        elif name in ("pmod", "pod"):
            self._add(signs, Sign("mod", "multiplicative"), Sign("", "group", parts=(self._argument(),)))
        elif name == "begin":
            self._environment(signs)
        elif name == "not":
            row = self._argument()
            for sign in row:
                sign.label = _NEGATED.get(sign.label, f"not {sign.label}")
            signs += row
        elif name == "prime":
            self._add(signs, Sign("′", "prime"))
        elif name in symbols.DROPPED_WITH_ARGUMENT:
            if self._peek() == ("other", "{"):
                self._raw_group()
        elif known := sign_of(name):
            if known.label:
                self._add(signs, known)
        else:
            self._add(signs, Sign(f"\\{name}", "atom", VARIABLE))

    def _name(self, signs: Row, command: str) -> None:
        if self._peek() != ("other", "{"):
            return  # \rm
        begun = self._at
        word = self._raw_group()
        is_text = command in symbols.WORDS_OF_TEXT
        if re.fullmatch(r"[A-Za-z][A-Za-z ,.:'-]*", word) and (is_text or " " not in word.strip()):
            if word.strip(" ,.:'-"):
                self._add(signs, named(word.strip(" ,.:'-"), is_text))
        elif is_text and "$" not in word and re.search(r"[A-Za-z]{2} ", word):
            self._add(signs, Sign(f"text {word.strip().casefold()}", "atom"))
        else:
            self._at = begun + 1
            self._group(signs, self._nested("}"))

    def _accent(self, signs: Row, accent: str) -> None:
        row = self._argument()
        if len(row) == 1:
            row[0].accents.append(accent)
            self._add(signs, row[0])
        elif row:
            self._add(signs, Sign("", "group", parts=(row,), accents=[accent]))

    def _environment(self, signs: Row) -> None:
        """Matrices and cases; of any other environment what it holds."""
        name = self._raw_group().rstrip("*")
        if name in ("array", "alignat", "alignedat", "tabular"):
            self._optional()
            self._raw_group()
        if name not in _MATRICES:
            return  # its \end is passed over where it comes
        label = "cases" if "cases" in name else "det" if name in ("vmatrix", "Vmatrix") else "matrix"
        sign = self._begun(signs, Sign(label, "matrix"))
        lines: list[list[Row]] = [[[]]]
        self._depth += 1
        while True:
            kind, text = self._peek()
            if kind == "end" or (kind == "command" and text == "end"):
                self._at += 1
                if kind != "end":
                    self._raw_group()
                break
            if (kind, text) in (("escaped", "\\"), ("other", "&")):
                self._at += 1
                if text == "\\":
                    self._optional()
                    lines.append([])
                lines[-1].append([])
            elif self._depth >= MAX_DEPTH:
                self._at += 1
            else:
                self._sign(lines[-1][-1])
        self._depth -= 1
        sign.parts = grid(lines)
