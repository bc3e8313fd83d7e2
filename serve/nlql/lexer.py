"""The text of a query as its parser meets it: words, texts, numbers and signs, each read where it stands.

NLQL reserves a word only where its grammar could take it, so there is no list of tokens to be made beforehand: the parser asks for what it
could use at a place. Where a name could stand, a word is a name and is read to its end (`NOTE` is no NOT); where none could, a keyword
ends where it ends (`LIMIT5`). Whatever was asked for in vain at a place is what an error there names as expected.
"""

import bisect
import re
import sys
import unicodedata
from collections.abc import Sequence
from typing import NoReturn

from serve.nlql.bounds import HALF, HALF_MESSAGE
from serve.nlql.hints import hint_of
from shards.nlql.errors import ParseError
from shards.nlql.ir import COMPARISONS, Position

MAX_CHARS = 20_000  # of a query: read in a tenth of a second, and run in less than one, whatever it says; long lists are parameters
MAX_NUMBER_CHARS = 400  # the longest float written out has 327

# Possessive repeats (`*+`): what is read is never given back, so reading is linear in every text.
_BLANKS = re.compile(r"[ \t\f\r\n]*+")
_BLANKS_AND_COMMENTS = re.compile(r"(?:[ \t\f\r\n]++|--[^\n]*+)*+")
NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*+")
_NUMBER = re.compile(r"-?[0-9]++(?:\.[0-9]++)?")
_TEXT = re.compile(r"\"[^\"]*+\"|'[^']*+'")
_SIGN = re.compile(r"==|!=|<=|>=|=>|<>|--|&&|\|\||[^\w\s]")
_WORD = re.compile(r"\w++")
_LONGER = {"OR": "ORDER"}  # a keyword that another one begins with


class Lexer:
    """Reads one query from left to right. Every method that takes something also passes over the blanks behind it."""

    def __init__(self, text: str, strict: bool):
        self.text = text
        self.strict = strict
        self._blanks = _BLANKS if strict else _BLANKS_AND_COMMENTS
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text[: MAX_CHARS + 1]))]
        self._wanted: list[str] = []  # what was asked for in vain at `at`
        self.end = 0  # of what was last taken, before the blanks
        self.at = 0
        if len(text) > MAX_CHARS:
            raise self.error(
                f"A query has at most {MAX_CHARS:,} characters, this one has {len(text):,}. Give long lists as parameters: `x IN :names`.",
                MAX_CHARS,
            )
        if half := HALF.search(text):
            raise self.error(HALF_MESSAGE, half.start())
        self.at = self._after_blanks(0)

    # What the parser asks for

    # wanted: what it is called in messages; "" if another thing that is asked for at the same place says enough.

    def keyword(self, word: str, wanted: str | None = None) -> bool:
        """Takes a keyword where no name could stand, so whatever follows it."""
        if self.text.startswith(word, self.at) and not (word in _LONGER and self.text.startswith(_LONGER[word], self.at)):
            self._take(self.at + len(word))
            return True
        self._wanted.append(word if wanted is None else wanted)
        return False

    def word(self, word: str) -> bool:
        """Takes a keyword where a name could stand, too, so only if it is the whole word."""
        found = NAME.match(self.text, self.at)
        if found and found.group() == word:
            self._take(found.end())
            return True
        return False

    def sign(self, sign: str, wanted: str | None = None) -> bool:
        """Takes a sign; `=` is not the beginning of `==`."""
        if self.text.startswith(sign, self.at) and (sign != "=" or self._sign() == sign):
            self._take(self.at + len(sign))
            return True
        self._wanted.append(f"`{sign}`" if wanted is None else wanted)
        return False

    def comparison(self) -> str | None:
        """Takes a sign that compares."""
        sign = self._sign()
        if sign not in COMPARISONS:
            return None
        self._take(self.at + len(sign))
        return sign

    def _sign(self) -> str:
        found = _SIGN.match(self.text, self.at)
        return found.group() if found else ""

    def name(self, wanted: str) -> str | None:
        """Takes a name: ASCII letters, digits and underscores."""
        found = NAME.match(self.text, self.at)
        if found is None:
            self.want(wanted)
            return None
        self._take(found.end())
        return found.group()

    def number(self, wanted: str) -> int | float | None:
        """Takes a number: an int without a dot, a float with one. Raises ParseError if it is beyond floats."""
        found = _NUMBER.match(self.text, self.at)
        if found is None:
            self.want(wanted)
            return None
        written = found.group()
        value = None
        if len(written) <= MAX_NUMBER_CHARS:
            value = float(written) if "." in written else int(written)
        if value is None or not abs(value) <= sys.float_info.max:
            raise self.error(f"A number lies between -1.8e308 and 1.8e308 and has at most {MAX_NUMBER_CHARS} characters.", self.at)
        self._take(found.end())
        return value

    def quoted(self) -> str | None:
        """Takes a text in quotes. Raises ParseError if it is never closed."""
        found = _TEXT.match(self.text, self.at)
        if found is None:
            if self.peek() in ("'", '"'):
                raise self.error(f"The text that begins here is never closed: expected another {self.peek()} behind it.", self.at)
            return None
        self._take(found.end())
        return found.group()[1:-1]

    def is_word(self) -> bool:
        """Whether a word stands here: what is no word need not be compared with any."""
        return self.text[self.at : self.at + 1].isalpha() or self.text.startswith("_", self.at)

    def peek(self) -> str:
        """The next character; "" at the end."""
        return self.text[self.at : self.at + 1]

    def want(self, wanted: str) -> None:
        """Notes what could stand here, for an error at this place."""
        self._wanted.append(wanted)

    # Places and errors

    def place(self) -> Position:
        """Where the next thing stands; behind the last one at the end of the query."""
        return self.place_of(self.at)

    def place_of(self, offset: int) -> Position:
        """The line and column of a character; of the end of the query, of the place behind its last word."""
        if offset >= len(self.text):
            offset = self.end
        line = bisect.bisect_right(self._line_starts, offset)
        return Position(line, offset - self._line_starts[line - 1] + 1)

    def error(self, message: str, offset: int, expected: Sequence[str] = ()) -> ParseError:
        """An error at a character."""
        line, column = self.place_of(offset)
        return ParseError(message, line=line, column=column, expected=expected)

    def fail(self) -> NoReturn:
        """Raises ParseError: all that could stand at this place, and what does."""
        wanted = [label for label in dict.fromkeys(self._wanted) if label]
        choice = ", ".join([*wanted[:-2], " or ".join(wanted[-2:])])
        found = self._found()
        hint = hint_of(found, self.text[max(0, self.end - 80) : self.end], wanted, self.strict)
        raise self.error(f"Expected {choice}, found {self._shown(found)}.{' ' if hint else ''}{hint}", self.at, wanted)

    def _found(self) -> str:
        """What stands here, as it is written; "" at the end."""
        for pattern in (_TEXT, _NUMBER, _WORD, _SIGN):
            if found := pattern.match(self.text, self.at):
                return found.group()
        return self.peek()

    def _shown(self, found: str) -> str:
        """What was found, for people."""
        if not found:
            return "the end of the query"
        if len(found) == 1 and not (found.isascii() and found.isprintable()):
            return f"the character U+{ord(found):04X} ({unicodedata.name(found, 'without a name').lower()})"
        if found[0] in "'\"" and len(found) > 1:
            text = found if len(found) <= 40 else f"{found[:39]}…{found[-1]}"
            return "the text " + "".join(c if c.isprintable() else "⏎" if c == "\n" else "�" for c in text)
        return f"`{found if len(found) <= 40 else found[:39] + '…'}`"

    def _take(self, end: int) -> None:
        self.end = end
        self.at = self._after_blanks(end)
        self._wanted = []

    def _after_blanks(self, offset: int) -> int:
        found = self._blanks.match(self.text, offset)
        return found.end() if found else offset
