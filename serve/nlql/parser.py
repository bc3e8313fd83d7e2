"""The grammar of NLQL by recursive descent: a text in, a tree (`shards.nlql.ir.Query`) or a placed error out.

    query      = "SELECT" unit [let] [where] [order] [limit] [offset] { within | facets }
    unit       = BASE | "SPAN" "(" BASE ["," [ "window" "=>" ] INTEGER] ")"          BASE = "DOCUMENT" | "CHUNK" | "SENTENCE"
    let        = "LET" NAME "=" expr { "," NAME "=" expr }
    where      = "WHERE" expr
    order      = "ORDER" "BY" expr ["ASC" | "DESC"] { "," expr ["ASC" | "DESC"] }
    limit      = "LIMIT" INTEGER
    expr       = conj { "OR" conj }                   conj = neg { "AND" neg }                  neg = "NOT" neg | comparison
    comparison = predicate [ ( "==" | "!=" | "<" | "<=" | ">" | ">=" ) predicate ]
    predicate  = atom [ ( "CONTAINS" | "MATCH" | "LIKE" ) atom ]
    atom       = STRING | NUMBER | "true" | "false" | "null" | NAME STRING
               | NAME "(" [ expr { "," expr } ] ")" | NAME { "." NAME } | "(" expr ")"

What Sondage adds, and strict mode refuses:

    statement  = ["EXPLAIN"] query
    offset     = "OFFSET" INTEGER                     within = "WITHIN" INTEGER "MS"            facets = "COUNT" "BY" expr { "," expr }
    predicate  = atom ["NOT"] ( "CONTAINS" | "MATCH" | "LIKE" | "HAS" ) atom | atom ["NOT"] "BETWEEN" atom "AND" atom
               | atom ["NOT"] "IN" ( "(" [expr { "," expr }] ")" | parameter ) | atom "IS" ["NOT"] "NULL"
    atom       = parameter                            parameter = ":" NAME                      comments: `--` to the end of the line

The parser goes down one frame for each of expression, comparison, predicate and atom at every level of brackets, at most MAX_DEPTH levels.
"""

from collections.abc import Callable
from itertools import islice
from typing import NamedTuple, TypeVar

from serve.nlql.bounds import MAX_COPIES, MAX_DEPTH, MAX_ROWS, check_height, check_lists, too_deep
from serve.nlql.hints import INFIX, OPERATOR, VALUE
from serve.nlql.lexer import Lexer
from shards.nlql.errors import ParseError, SchemaError
from shards.nlql.ir import (
    And,
    Binding,
    Call,
    Compare,
    Expr,
    In,
    Literal,
    Not,
    Or,
    Parameter,
    Path,
    Query,
    Ref,
    Select,
    SortKey,
    rebuilt,
    walk,
)

T = TypeVar("T")

_BASES = ("DOCUMENT", "CHUNK", "SENTENCE")
_PLAIN_INFIXES = ("CONTAINS", "MATCH", "LIKE")
_INFIXES = (*_PLAIN_INFIXES, "HAS")
_CONSTANTS = {"true": True, "false": False, "null": None}


class Statement(NamedTuple):
    """A query, and whether EXPLAIN stands before it: its plan is asked for, not its rows."""

    query: Query
    explain: bool


def parse(text: str, strict: bool = False) -> Query:
    """The tree of a query. strict: plain NLQL only.

    Raises ParseError, with line, column and what could have stood there; SchemaError for a negative window.
    """
    statement = parse_statement(text, strict)
    if statement.explain:
        raise ParseError("EXPLAIN asks for a plan, and a query without it is wanted here.", line=1, column=1)
    return statement.query


def parse_statement(text: str, strict: bool = False) -> Statement:
    """A query that EXPLAIN may stand before. Raises as `parse` does."""
    return _Parser(text, strict).statement()


class _Parser:
    def __init__(self, text: str, strict: bool):
        self.lexer = Lexer(text, strict)
        self.strict = strict
        self.aliases: frozenset[str] = frozenset()
        self.depth = 0  # of brackets that are open
        self.copies = 0  # of nodes, by BETWEEN

    # Clauses

    def statement(self) -> Statement:
        lexer = self.lexer
        explain = not self.strict and lexer.keyword("EXPLAIN", "")
        self._must(lexer.keyword("SELECT"))
        select = self._unit()
        let = self._let() if lexer.keyword("LET") else ()
        where = self._whole_expression() if lexer.keyword("WHERE") else None
        order_by = self._order() if lexer.keyword("ORDER", "ORDER BY") else ()
        limit = self._count("LIMIT") if lexer.keyword("LIMIT") else None
        later = {} if self.strict else self._extensions()
        if lexer.peek():
            lexer.want("the end of the query")
            lexer.fail()
        query = Query(select, let, where, order_by, limit, **later)
        check_lists(query)
        return Statement(query, explain)

    def _unit(self) -> Select:
        lexer, at = self.lexer, self.lexer.place()
        if not lexer.keyword("SPAN", "SPAN(…)"):
            return Select(self._base(), None, at)
        self._must(lexer.sign("("))
        unit, window = self._base(), 1
        if lexer.sign(","):
            start = lexer.at
            if name := lexer.name("`window =>`"):
                if name != "window":
                    raise lexer.error(f"SPAN has a window and no {name!r}: write `window => 2`.", start, ["`window =>`"])
                self._must(lexer.sign("=>"))
            window = self._window()
        self._must(lexer.sign(")"))
        return Select(unit, window, at)

    def _base(self) -> str:
        for base in _BASES:
            if self.lexer.keyword(base):
                return base.lower()
        self.lexer.fail()

    def _window(self) -> int:
        start, place = self.lexer.at, self.lexer.place()
        window = self._whole_number("a number of units", start)
        if window < 0:
            raise SchemaError(f"The window of SPAN is at least 0, not {window}.", line=place.line, column=place.column)
        if window > MAX_ROWS:
            raise self.lexer.error(f"The window of SPAN is at most {MAX_ROWS:,}.", start)
        return window

    def _let(self) -> tuple[Binding, ...]:
        lexer, bindings = self.lexer, []
        while True:
            at = lexer.place()
            name = lexer.name("a name to bind") or lexer.fail()
            self._must(lexer.sign("="))
            bindings.append(Binding(name, self._whole_expression(), at))
            if not lexer.sign(",", "a comma"):
                break
        self.aliases = frozenset(binding.name for binding in bindings)
        # An alias may stand before its definition, so what is one is known only now.
        return tuple(Binding(b.name, rebuilt(b.expr, self._alias_or_path), b.at) for b in bindings)

    def _order(self) -> tuple[SortKey, ...]:
        lexer, keys = self.lexer, []
        self._must(lexer.keyword("BY"))
        while True:
            at = lexer.place()
            expr = self._whole_expression()
            desc = not lexer.keyword("ASC") and lexer.keyword("DESC")
            keys.append(SortKey(expr, desc, at))
            if not lexer.sign(",", "a comma"):
                return tuple(keys)

    def _extensions(self) -> dict[str, int | tuple[Expr, ...]]:
        lexer = self.lexer
        found: dict[str, int | tuple[Expr, ...]] = {}
        if lexer.keyword("OFFSET"):
            found["offset"] = self._count("OFFSET")
        while True:
            if "within_ms" not in found and lexer.keyword("WITHIN"):
                start = lexer.at
                found["within_ms"] = n = self._count("WITHIN")
                if not n:
                    raise lexer.error("WITHIN takes at least 1 millisecond.", start)
                self._must(lexer.keyword("MS"))
            elif "count_by" not in found and lexer.keyword("COUNT", "COUNT BY"):
                self._must(lexer.keyword("BY"))
                found["count_by"] = self._facets()
            else:
                return found

    def _count(self, clause: str) -> int:
        start = self.lexer.at
        number = self._whole_number(f"a number after {clause}", start)
        if not 0 <= number <= MAX_ROWS:
            raise self.lexer.error(f"{clause} takes a whole number from 0 to {MAX_ROWS:,}, not {number}.", start)
        return number

    def _whole_number(self, wanted: str, start: int) -> int:
        number = self.lexer.number(wanted)
        if number is None:
            self.lexer.fail()
        if isinstance(number, float):
            raise self.lexer.error(f"Expected a whole number, found {self.lexer.text[start : self.lexer.end]}.", start, [wanted])
        return number

    def _facets(self) -> tuple[Expr, ...]:
        items = [self._whole_expression()]
        while self.lexer.sign(",", "a comma"):
            items.append(self._whole_expression())
        return tuple(items)

    # Expressions

    def _whole_expression(self) -> Expr:
        """An expression of which nothing else is a part: here, the height of the tree is known."""
        node = self._expression()
        check_height(node)
        return node

    def _expression(self) -> Expr:
        lexer = self.lexer
        alternatives: list[Expr] = []
        at_or = 0
        while True:
            parts: list[Expr] = []
            at_and = 0
            while True:
                parts.append(self._negation())
                start = lexer.at
                if not lexer.keyword("AND"):
                    break
                at_and = at_and or start
            alternatives.append(self._chain(And, parts, at_and))
            start = lexer.at
            if not lexer.keyword("OR"):
                return self._chain(Or, alternatives, at_or)
            at_or = at_or or start

    def _chain(self, kind: type[And] | type[Or], parts: list[Expr], at: int) -> Expr:
        """Operands in one node. A chain in brackets is a part of it if it is the first: operators bind to the left."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0].operands if isinstance(parts[0], kind) else (parts[0],)
        return kind((*first, *parts[1:]), self.lexer.place_of(at))

    def _negation(self) -> Expr:
        lexer, starts = self.lexer, []
        start = lexer.at
        while lexer.word("NOT"):
            starts.append(start)
            start = lexer.at
            if len(starts) > MAX_DEPTH:
                raise too_deep().placed(lexer.place())
        node = self._comparison()
        for start in reversed(starts):
            node = Not(node, lexer.place_of(start))
        return node

    def _comparison(self) -> Expr:
        lexer = self.lexer
        left = self._predicate()
        start = lexer.at
        op = lexer.comparison()
        return left if op is None else Compare(op, left, self._predicate(INFIX), lexer.place_of(start))

    def _predicate(self, wanted: str = OPERATOR) -> Expr:
        lexer = self.lexer
        left = self._atom()
        lexer.want(wanted)
        if not lexer.is_word():
            return left
        if self.strict:
            return self._infix(left, _PLAIN_INFIXES) or left
        start = lexer.at
        if lexer.keyword("NOT", ""):
            lexer.want("CONTAINS, MATCH, LIKE, HAS, IN or BETWEEN")
            node = self._infix(left, _INFIXES) or self._between_or_in(left)
            return Not(node, lexer.place_of(start)) if node is not None else lexer.fail()
        if lexer.keyword("IS", ""):
            op = "!=" if lexer.keyword("NOT") else "=="
            self._must(lexer.keyword("NULL"))
            return Compare(op, left, Literal(None), lexer.place_of(start))
        return self._infix(left, _INFIXES) or self._between_or_in(left) or left

    def _infix(self, left: Expr, names: tuple[str, ...]) -> Expr | None:
        start = self.lexer.at
        for name in names:
            if self.lexer.keyword(name, ""):
                return Call(name, (left, self._atom()), self.lexer.place_of(start))
        return None

    def _between_or_in(self, left: Expr) -> Expr | None:
        lexer, at = self.lexer, self.lexer.place()
        if lexer.keyword("BETWEEN", ""):
            self.copies += sum(1 for _ in islice(walk(left), MAX_COPIES))
            if self.copies > MAX_COPIES:
                raise ParseError("BETWEEN is two comparisons of what stands before it, which is too much here.").placed(at)
            least = self._atom()
            self._must(lexer.keyword("AND"))
            return And((Compare(">=", left, least, at), Compare("<=", left, self._atom(), at)), at)
        if lexer.keyword("IN", ""):
            start = lexer.at
            if lexer.sign(":", "a parameter"):
                return In(left, (self._parameter(start),), at)
            self._must(lexer.sign("("))
            return In(left, () if lexer.sign(")") else self._in_brackets(self._items), at)
        return None

    def _atom(self) -> Expr:
        lexer, start = self.lexer, self.lexer.at
        if not lexer.is_word():
            if (text := lexer.quoted()) is not None:
                return Literal(text, at=lexer.place_of(start))
            if (number := lexer.number(VALUE)) is not None:
                return Literal(number, at=lexer.place_of(start))
            if lexer.sign("(", VALUE):
                return self._in_brackets(self._expression)
            if not self.strict and lexer.sign(":", VALUE):
                return self._parameter(start)
        name = lexer.name(VALUE) or lexer.fail()
        at = lexer.place_of(start)
        if name in _CONSTANTS:
            return Literal(_CONSTANTS[name], at=at)
        if lexer.sign("(", ""):
            return Call(name, () if lexer.sign(")") else self._in_brackets(self._items), at)
        if (text := lexer.quoted()) is not None:
            return Literal(text, name.lower(), at)
        segments = []
        while lexer.sign(".", ""):
            segments.append(lexer.name("a name after the dot") or lexer.fail())
        return self._alias_or_path(Path(name, tuple(segments), at))

    def _alias_or_path(self, node: Expr) -> Expr:
        """A bare name that LET binds is that alias; whatever else stays what it is."""
        if isinstance(node, Path) and not node.segments and node.root in self.aliases:
            return Ref(node.root, node.at)
        return node

    def _parameter(self, start: int) -> Parameter:
        return Parameter(self.lexer.name("the name of a parameter") or self.lexer.fail(), self.lexer.place_of(start))

    def _items(self) -> tuple[Expr, ...]:
        items = [self._expression()]
        while self.lexer.sign(",", "a comma"):
            items.append(self._expression())
        return tuple(items)

    def _in_brackets(self, inside: Callable[[], T]) -> T:
        """What stands between an opening bracket, which is taken already, and the closing one."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise too_deep().placed(self.lexer.place())
        found = inside()
        self._must(self.lexer.sign(")"))
        self.depth -= 1
        return found

    def _must(self, taken: bool) -> None:
        if not taken:
            self.lexer.fail()
