"""Random queries of NLQL, right ones and broken ones, each a function of its seed: what the grammar is fuzzed with.

`RandomQueries(seed).query()` follows the grammar, so it can be read; its names, types and numbers of arguments are right more often than
not, so that many plan and run. `.broken()` changes one in a few places, as fingers and programs do.
"""

import copy
import random
import string
from typing import Any

FIELDS = (
    "meta.year",
    "year",
    "meta.score",
    "status",
    "meta.tags",
    "author.team",
    "author.name.x",
    "meta.code",
    "created_at",
    "nothing",
    "meta",
    "content",
    "content.x",
    "vec.title",
    "LIMIT",
    "true_x",
    "place",
)
TEXTS = (
    "", "a", "tea", "published", "2024-01-01", "20240101", "2024-W05", "2024-1-5", "007", "-inf", "1e3", "nan", "é", "e\u0301",
    "ß", "İ", "日本", "\n", "\\", "%", "_m%", "a%b_c", "it's", "x" * 50,
)  # fmt: skip
PATTERNS = (
    "a", "^a.*z$", "(?i)TEA", "[", "(", "(a+)+$", "(a|a)*b", "(a|aa)+$", "(.*)*x", "(.*a){12}", r"(\w+\s?)*:", r"(a)\1+",
    "(?=.*a)(?=.*b).", "(?<=a)b", "x{1000}", "(x{100}){100}", "((a*)*)*b", r"\d{2,4}", "a{2000000000}", "(?P<n>a)(?P=n)",
    "(?x) a # b", "(?s).", r"\Z", "(?(1)a|b)", "*",
)  # fmt: skip
NUMBERS = ("0", "1", "-1", "2", "2024", "0.5", "-0.0", "007", "3.14159", "1000000000000000000000", "9" * 400)
FUNCTIONS = (
    "LENGTH", "LOWER", "UPPER", "COUNT", "CONTAINS", "MATCH", "LIKE", "length", "NOPE", "HAS", "GEO_DISTANCE", "GEO_WITHIN",
    "BM25", "EVIDENCE", "EVALUE", "SIMILARITY",
)  # fmt: skip
TYPES = ("DATE", "TIMESTAMP", "TEXT", "NUMBER", "BOOL", "date", "WHATEVER")
ALIASES = ("rel", "a", "b", "content", "year", "WHERE")
JUNK = (None, True, 0, -1, 10**400, 1.5, float("nan"), "", "x", "\ud800", [], {}, [[]], {"node": "literal"}, {"node": "not", "operand": 1})
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
ODD = (
    "=", "<>", ";", "--", "(", ")", "((", "'", '"', ",", ".", "..", ":", "?", "AND", "NOT", "OR", "IN", "IS", "BY", "LIMIT",
    "null", "\u00a0", "\u2028", "\ud800", "\x00", "“", "é", "𝔘", "+", "*", "/", "%", "$", "@", "[", "{", "|", "&&", "~", "`",
    "\\", "1e9", "=>", "==", "-", "\t", "\r", "\n",
)  # fmt: skip


class RandomQueries:
    """An endless list of queries. deep: levels below which expressions stop to grow."""

    def __init__(self, seed: int, deep: int = 4):
        self.random = random.Random(seed)
        self.deep = deep

    def either(self) -> str:
        """A query, or more often a broken one."""
        return self.query() if self.random.random() < 0.4 else self.broken()

    def query(self) -> str:
        chance, clauses = self.random.random, []
        names = self.random.sample(ALIASES, self.random.choice((0, 0, 1, 1, 2, 3)))
        if chance() < 0.02:
            clauses.append("EXPLAIN")
        clauses.append(f"SELECT {self._unit()}")
        if names:
            clauses.append("LET " + ", ".join(f"{name} = {self._bound()}" for name in names))
        if chance() < 0.8:
            clauses.append(f"WHERE {self._condition(self.deep)}")
        if chance() < 0.4:
            clauses.append("ORDER BY " + ", ".join(self._key(names) for _ in range(self.random.randint(1, 3))))
        if chance() < 0.6:
            clauses.append(f"LIMIT {self.random.choice((0, 1, 2, 5, 10, 1000, -1, 2.5))}")
        if chance() < 0.1:
            clauses.append(f"OFFSET {self.random.choice((0, 1, 5, 1000))}")
        if chance() < 0.05:
            clauses.append("WITHIN 5000 MS")
        if chance() < 0.08:
            clauses.append(f"COUNT BY {self._value(1)}")
        return self.random.choice((" ", " ", " ", "\n", "  \t")).join(clauses)

    def broken(self) -> str:
        """A query with a few changes."""
        text = self.query()
        for _ in range(self.random.choice((1, 1, 1, 2, 3, 8))):
            text = self._changed(text)
        return text

    def broken_tree(self, tree: Any) -> Any:
        """A value of JSON with one of its parts replaced, left out or put elsewhere. The value itself is changed."""
        places = [(None, None, tree)]
        for _, _, value in places:  # which grows on the way
            items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            places += [(value, key, item) for key, item in items]
        parent, key, _ = self.random.choice(places)
        junk = self.random.choice((*JUNK, self.random.choice(places)[2]))
        if parent is None:
            return junk
        match self.random.randrange(4):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[self.random.choice(("node", "value", "opp", "", "at", "unit", str(key).upper()))] = parent.pop(key)
            case _:
                parent[key] = copy.deepcopy(junk)
        return tree

    def _changed(self, text: str) -> str:
        a, b = sorted((self.random.randint(0, len(text)), self.random.randint(0, len(text))))
        match self.random.randrange(10):
            case 0:  # something left out
                return text[:a] + text[min(b, a + 12) :]
            case 1:  # something odd put in
                return text[:a] + self.random.choice(ODD) + text[a:]
            case 2:  # a word left out
                words = text.split(" ")
                del words[self.random.randrange(len(words))]
                return " ".join(words)
            case 3:  # two words exchanged
                words = text.split(" ")
                i, j = self.random.randrange(len(words)), self.random.randrange(len(words))
                words[i], words[j] = words[j], words[i]
                return " ".join(words)
            case 4:  # a part twice
                return text[:b] + text[a:b] + text[b:]
            case 5:  # upper and lower case exchanged
                return text[:a] + text[a:b].swapcase() + text[b:]
            case 6:  # the end missing
                return text[:b]
            case 8:  # blanks left out
                return text[:a] + text[a:b].replace(" ", "") + text[b:]
            case 7:  # another query's end
                other = self.query()
                return text[:a] + other[self.random.randint(0, len(other)) :]
        return text[:a] + self.random.choice(string.printable) + text[a + 1 :]

    def _unit(self) -> str:
        unit = self.random.choice(("SENTENCE", "SENTENCE", "CHUNK", "DOCUMENT"))
        match self.random.randrange(8):
            case 0:
                return f"SPAN({unit}, window => {self.random.choice((0, 1, 3, -1))})"
            case 1:
                return f"SPAN({unit})"
        return unit

    def _key(self, names: list[str]) -> str:
        value = self.random.choice(names) if names and self.random.random() < 0.5 else self._value(2)
        return value + self.random.choice(("", " ASC", " DESC"))

    def _bound(self) -> str:
        if self.random.random() < 0.6:
            return f"SIMILARITY({self.random.choice(('content', 'content', 'content', 'vec.title'))}, {self._text()})"
        return self._condition(2)

    def _condition(self, depth: int) -> str:
        if depth <= 0:
            return self._value(1)
        match self.random.randrange(16):
            case 0 | 1 | 2:
                return f"{self._condition(depth - 1)} AND {self._condition(depth - 1)}"
            case 3 | 4:
                return f"{self._condition(depth - 1)} OR {self._condition(depth - 1)}"
            case 5:
                return f"NOT {self._condition(depth - 1)}"
            case 6:
                return f"({self._condition(depth - 1)})"
            case 7:
                return f"{self._atom()} {self.random.choice(('', 'NOT '))}{self.random.choice(('CONTAINS', 'LIKE', 'HAS'))} {self._text()}"
            case 8:
                pattern = "meta.pattern" if self.random.random() < 0.1 else self._quoted(self.random.choice(PATTERNS))
                return f"{self._atom()} MATCH {pattern}"
            case 9:
                items = ", ".join(self._value(1) for _ in range(self.random.randint(1, 4)))
                return f"{self._atom()} {self.random.choice(('', 'NOT '))}IN ({items})"
            case 10:
                return f"{self._atom()} BETWEEN {self._literal()} AND {self._literal()}"
            case 11:
                return f"{self._atom()} IS {self.random.choice(('', 'NOT '))}NULL"
        return f"{self._value(depth - 1)} {self.random.choice(COMPARISONS)} {self._value(depth - 1)}"

    def _value(self, depth: int) -> str:
        if depth > 0 and self.random.random() < 0.3:
            name = self.random.choice(FUNCTIONS)
            n = 1 if name.upper() in ("LENGTH", "LOWER", "UPPER") else 2
            if name in ("SIMILARITY", "BM25", "EVIDENCE", "EVALUE") and self.random.random() < 0.9:
                return f"{name}(content, {self._text()})"
            if self.random.random() < 0.1:
                n = self.random.randint(0, 5)
            return f"{name}({', '.join(self._value(depth - 1) for _ in range(n))})"
        return self._atom()

    def _atom(self) -> str:
        match self.random.randrange(10):
            case 0 | 1 | 2:
                return self._literal()
            case 3:
                return self.random.choice(ALIASES)
            case 4 if self.random.random() < 0.1:
                return ":name"
        return self.random.choice(FIELDS)

    def _literal(self) -> str:
        match self.random.randrange(6):
            case 0:
                return self.random.choice(("true", "false", "null"))
            case 1 | 2:
                return self.random.choice(NUMBERS)
            case 3:
                return f"{self.random.choice(TYPES)} {self._text()}"
        return self._text()

    def _text(self) -> str:
        return self._quoted(self.random.choice(TEXTS))

    def _quoted(self, text: str) -> str:
        return f'"{text}"' if "'" in text or self.random.random() < 0.5 else f"'{text}'"
