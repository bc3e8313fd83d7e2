"""A form of the text layer as the query that shards are sent: patterns compiled and ordered, with what they need and their chance."""

import math
import re
from collections.abc import Iterable

import numpy as np

from shards.chance import ChanceModel, fold, log_p_literal
from shards.errors import BadQuery
from shards.regexes import ignores_case, log_p_pattern, required_literals
from shards.text_chance import log_p_formula, log_p_within, rare_places
from shards.text_finders import compile_regex, variants
from shards.text_form import Form, encode
from shards.text_pattern import AllOf, AnyOf, Exact, Formula, Leaf, MultiLine, NotOf, Regex, Requirement, TextQuery, Within
from shards.text_required import all_of, any_of, required

SPARSE_LOG_P = math.log(0.02)  # rarer required strings are looked for first: a line that has one costs as much as some lines read through
RARE_LOG_P = math.log(0.0001)  # likewise of documents of some hundred lines, before a pattern that spans lines: a pass over all text
PIECES_LOG_P = math.log(0.5)  # likewise of the pieces of a string with edits: following those costs a tenth of counting edits


def query_of(form: Form, model: ChanceModel) -> tuple[TextQuery, str, float]:
    """The query, what it asks in words, and ln of the chance that a line matches. Raises BadQuery for a regex that RE2 refuses."""
    writer = _Writer(model)
    formula, asked, needs = writer.formula(form)
    single = form.pattern is not None
    unit = "document" if form.per == "document" or isinstance(formula, MultiLine) else "line"
    if not single:
        asked += f", in one {unit}" if unit == "document" else ", on one line"
    elif form.per == "document":
        asked += ", in a document"
    log_p = writer.log_p(formula) if single else log_p_formula(formula, writer.log_p, unit)
    return TextQuery(formula, unit, needs), asked, log_p


def check_patterns(form: Form) -> None:
    """Raises BadQuery for a regex in it that RE2 refuses."""
    for part in form.patterns():
        if part.regex or part.word:
            _regex_of(part, part.ignores_case)


class _Writer:
    """Makes formulas of forms, and remembers the chance of each leaf."""

    def __init__(self, model: ChanceModel):
        self.model = model
        self._log_ps: dict[Formula, float] = {}

    def log_p(self, leaf: Leaf) -> float:
        return self._log_ps[leaf]

    def formula(self, form: Form) -> tuple[Formula, str, Requirement]:
        if form.pattern is not None:
            leaf, needs, log_p = self.leaf(form)
            self._log_ps[leaf] = log_p
            return leaf, _in_words(form), needs
        parts = [self.formula(part) for part in form.parts("all")]
        if choices := [self.formula(part) for part in form.parts("any")]:
            words = " or ".join(_bracketed(words) for _, words, _ in choices)
            parts.append((_one_or(AnyOf, [f for f, _, _ in choices]), words, any_of(needs for _, _, needs in choices)))
        parts.sort(key=lambda part: log_p_formula(part[0], self.log_p, "line"))  # the rarest is asked first
        negated = [self.formula(part) for part in form.parts("none")]
        formula = _one_or(AllOf, [*(f for f, _, _ in parts), *(NotOf(f) for f, _, _ in negated)])
        several = len(parts) + len(negated) > 1
        words = [*(_bracketed(w) if several else w for _, w, _ in parts), *(f"not {_bracketed(w)}" for _, w, _ in negated)]
        return formula, " and ".join(words), all_of(needs for _, _, needs in parts)

    def leaf(self, form: Form) -> tuple[Leaf, Requirement, float]:
        text, ignore_case = form.pattern or "", form.ignores_case
        body = encode(text)
        if form.edits:
            return self.within(form)
        if form.multiline:
            return self.multiline(form)
        if not form.regex and not form.word and (body.isascii() or not ignore_case):
            # ASCII letters fold alone, as in grep: K does not match the Kelvin sign. Only this much is worth a loop of its own.
            return self.exact(fold(body) if ignore_case else body, ignore_case), fold(body), log_p_literal(self.model, body)
        ignore_case = ignore_case or (form.regex and text.startswith("(?i)"))
        pattern = _regex_of(form, ignore_case)
        needs = required(pattern, ignore_case)
        leaf = Regex(pattern, ignore_case, self.probe(pattern, ignore_case, needs))
        log_p = log_p_pattern(self.model, pattern) if form.regex else log_p_literal(self.model, body, word=True)
        return leaf, needs, log_p

    def probe(self, pattern: str, ignore_case: bool, needs: Requirement) -> Exact | None:
        """Of the strings that each match holds the one that fewest lines do, if these are few."""
        choices: list[tuple[bytes, bool]] = []
        if ignore_case or not ignores_case(pattern):  # where case is off for a part only, there is not one way to look
            choices += [(run, ignore_case) for run in required_literals(pattern, ignore_case)]
        choices += [(part, True) for part in (needs.of if isinstance(needs, AllOf) else (needs,)) if isinstance(part, bytes)]
        rarest = min(choices, key=lambda choice: log_p_literal(self.model, choice[0]), default=None)
        return self.exact(*rarest) if rarest and log_p_literal(self.model, rarest[0]) < SPARSE_LOG_P else None

    def exact(self, body: bytes, ignore_case: bool) -> Exact:
        return Exact(body, ignore_case, rare_places(self.model, body))

    def multiline(self, form: Form) -> tuple[Leaf, Requirement, float]:
        pattern = _regex_of(form, form.ignores_case)
        needs = required(pattern, form.ignores_case)
        leaf = MultiLine(pattern, form.ignores_case, self.needed(needs), self.needed(needs, RARE_LOG_P))
        log_p = log_p_pattern(self.model, pattern, multiline=True) if form.regex else log_p_literal(self.model, encode(form.pattern or ""))
        return leaf, needs, log_p

    def needed(self, needs: Requirement, at_most: float = 0.0) -> Formula | None:
        """A requirement as a formula that can be searched; None where it would find nearly everything.

        at_most: ln of the chance by which a line holds a string of it.
        """
        match needs:
            case AllOf(of=parts):
                known = [formula for part in parts if (formula := self.needed(part, at_most)) is not None]
                return _one_or(AllOf, known) if known else None
            case AnyOf(of=parts):
                found = [self.needed(part, at_most) for part in parts]
                return None if None in found else _one_or(AnyOf, [formula for formula in found if formula is not None])
            case bytes() if len(needs) > 1 and log_p_literal(self.model, needs) <= at_most:
                return self.exact(needs, True)
        return None

    def within(self, form: Form) -> tuple[Leaf, Requirement, float]:
        """One of edits + 1 pieces stands in each occurrence as it is, since no edit touches two."""
        text, n = form.pattern or "", form.edits + 1
        edges = [len(text) * i // n for i in range(n + 1)]
        pieces = [text[a:b] for a, b in zip(edges[:-1], edges[1:], strict=True)]
        plain = [piece for piece in pieces if piece.isascii() or not form.ignores_case]
        needs = any_of(fold(piece.encode()) for piece in pieces) if plain == pieces else None
        log_p_pieces = float(np.logaddexp.reduce([log_p_literal(self.model, piece.encode()) for piece in pieces]))
        pattern = "|".join("".join(_either(variants(char, form.ignores_case)) for char in piece) for piece in pieces)
        leaf = Within(text, form.edits, form.ignores_case, form.word, pattern if log_p_pieces < PIECES_LOG_P else "")
        return leaf, needs, log_p_within(self.model, text, form.edits, form.word)


def _one_or(kind: type[AllOf] | type[AnyOf], parts: Iterable[Formula]) -> Formula:
    known = tuple(parts)
    return known[0] if len(known) == 1 else kind(known)


def _either(forms: list[str]) -> str:
    return re.escape(forms[0]) if len(forms) == 1 else f"(?:{'|'.join(map(re.escape, forms))})"


def _in_words(form: Form) -> str:
    asked = f"/{form.pattern}/" if form.regex else f"{form.pattern!r}"
    asked += " as a word" if form.word else ""
    asked += f" but for {form.edits} edit{'s' if form.edits > 1 else ''}" if form.edits else ""
    asked += " over lines" if form.multiline else ""
    return asked + (", any case" if form.ignores_case else "")


def _bracketed(words: str) -> str:
    return f"({words})" if " and " in words or " or " in words or ", " in words else words


def _regex_of(form: Form, ignore_case: bool) -> str:
    """The RE2 pattern of a form. Raises BadQuery with RE2's own message."""
    import re2

    text = form.pattern or ""
    if form.regex:
        pattern = f"\\b(?:{text})\\b" if form.word else text
    else:
        edges = [r"\b" if form.word and c.isascii() and (c.isalnum() or c == "_") else "" for c in (text[0], text[-1])]
        pattern = edges[0] + re2.escape(text) + edges[1]
    try:
        if form.regex:
            compile_regex(text, ignore_case, form.multiline)
        compile_regex(pattern, ignore_case, form.multiline)
    except re2.error as error:
        raise BadQuery(_explain(text, error)) from None
    return pattern


def _explain(pattern: str, error: Exception) -> str:
    """RE2's message, where it points, and what to do."""
    raw = error.args[0] if error.args else ""
    message = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
    if "too large" in message or "repetition size" in message:
        return f"Text: the regular expression {pattern!r} is too large ({message}). Use smaller counts or fewer alternatives."
    fragment = message.rpartition(": ")[2]
    at = pattern.find(fragment) if fragment and fragment != message else -1
    where = f" at position {at}" if at >= 0 else ""
    return (
        f"Text: the regular expression {pattern!r} is broken{where}: {message}. "
        'Syntax is RE2\'s (no look-around, no back-references); for an exact string leave out "regex".'
    )
