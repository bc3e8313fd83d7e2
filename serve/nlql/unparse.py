"""Trees as text again: for plans that people read, and to hand a query on.

`unparse` is exact: its text is read as the same tree. `written` is for people, and has a form for what NLQL cannot write, too.
"""

from decimal import Decimal

from serve.nlql.lexer import NAME
from shards.nlql.errors import SchemaError
from shards.nlql.ir import And, Call, Compare, Expr, In, Literal, Not, Or, Parameter, Path, Query, Ref

_INFIXES = ("CONTAINS", "MATCH", "LIKE", "HAS")
_WORDS = {True: "true", False: "false", None: "null"}
_VALUES = frozenset(("true", "false", "null"))  # no names where a value may begin
_RESERVED = _VALUES | {"NOT"}  # nor where an expression may; `a == NOT` asks for a field of this name

# How tightly a node binds: what stands inside an operator must bind tighter, or stands in brackets.
_OR, _AND, _NOT, _COMPARE, _PREDICATE, _ATOM = range(6)


def unparse(query: Query) -> str:
    """The text of a query: `parse(unparse(query)) == query` for every query that a text can say.

    Chains that stand first in a chain of the same kind lose their brackets, and a field with an alias's name gets its `meta.`: the same
    question in another tree. Raises SchemaError for what no text can say: a text with both kinds of quotes, a name with a blank.
    """
    return _Writer(query, exact=True).query(query)


def unparse_expr(node: Expr) -> str:
    """The text of an expression. Raises SchemaError as `unparse` does."""
    return _Writer(None, exact=True).at(node, _OR)


def written(what: Query | Expr) -> str:
    """The text of a query or an expression for people; raises nothing."""
    return _Writer(what, exact=False).query(what) if isinstance(what, Query) else _Writer(None, exact=False).at(what, _OR)


class _Writer:
    def __init__(self, query: Query | None, exact: bool):
        self.aliases = frozenset(binding.name for binding in query.let) if query else None  # None: those of the query are not known
        self.exact = exact

    def query(self, query: Query) -> str:
        unit = query.select.unit.upper()
        parts = [f"SELECT {unit}" if query.select.window is None else f"SELECT SPAN({unit}, window => {query.select.window})"]
        if query.let:
            parts.append("LET " + ", ".join(f"{self.name(b.name)} = {self.at(b.expr, _OR)}" for b in query.let))
        if query.where is not None:
            parts.append(f"WHERE {self.at(query.where, _OR)}")
        if query.order_by:
            parts.append("ORDER BY " + ", ".join(self.at(key.expr, _OR) + " DESC" * key.desc for key in query.order_by))
        parts += [f"LIMIT {query.limit}"] if query.limit is not None else []
        parts += [f"OFFSET {query.offset}"] if query.offset else []
        parts += [f"WITHIN {query.within_ms} MS"] if query.within_ms is not None else []
        parts += ["COUNT BY " + ", ".join(self.at(expr, _OR) for expr in query.count_by)] if query.count_by else []
        return " ".join(parts)

    def at(self, node: Expr, least: int, reserved: frozenset[str] = _RESERVED) -> str:
        """A node inside something that needs it to bind at least so tightly. reserved: words that are no names where it begins."""
        return self.node(node, reserved) if _binds(node) >= least else f"({self.node(node, _RESERVED)})"

    def node(self, node: Expr, reserved: frozenset[str]) -> str:
        match node:
            case Literal():
                return self.literal(node, reserved)
            case Path():
                return self.path(node, reserved)
            case Ref(name=name):
                return self.ref(name, reserved)
            case Parameter(name=name):
                return f":{self.name(name)}"
            case Call(name=name, args=(left, right)) if name in _INFIXES:
                return f"{self.at(left, _ATOM, reserved)} {name} {self.at(right, _ATOM, _VALUES)}"
            case Call(name=name, args=args):
                return f"{self.name(name, reserved)}({', '.join([self.at(arg, _OR) for arg in args])})"
            case In(operand=operand, items=items):
                return f"{self.at(operand, _ATOM, reserved)} IN ({', '.join([self.at(item, _OR) for item in items])})"
            case Compare(op=op, left=left, right=right):
                return f"{self.at(left, _PREDICATE, reserved)} {op} {self.at(right, _PREDICATE, _VALUES)}"
            case Not(operand=operand):
                return f"NOT {self.at(operand, _NOT)}"
            case And(operands=operands):
                return self.chain(operands, "AND", "true", _AND)
            case Or(operands=operands):
                return self.chain(operands, "OR", "false", _OR)
        raise SchemaError(f"{type(node).__name__} is no node of a query.")

    def chain(self, operands: tuple[Expr, ...], word: str, of_none: str, binds: int) -> str:
        # Operators bind to the left, so that the first operand may be a chain of the same kind.
        return f" {word} ".join([self.at(operand, binds + (i > 0)) for i, operand in enumerate(operands)]) or of_none

    def literal(self, node: Literal, reserved: frozenset[str]) -> str:
        value, hint = node.value, node.type_hint
        if isinstance(value, str):
            quoted = self.quoted(value)
            return f"{self.name(hint if hint.upper() in reserved else hint.upper(), reserved)} {quoted}" if hint else quoted
        if hint and self.exact:
            raise SchemaError(f"Only a text can have a type before it, so {hint.upper()} {value!r} cannot be written as NLQL.")
        if value is None or isinstance(value, bool):
            return _WORDS[value]
        text = format(Decimal(repr(value)), "f")  # no exponent
        return text if isinstance(value, int) or "." in text else f"{text}.0"

    def quoted(self, text: str) -> str:
        for quote in "\"'":
            if quote not in text:
                return f"{quote}{text}{quote}"
        if self.exact:
            raise SchemaError("A text with both kinds of quotes cannot be written as NLQL; give it as a parameter, or the query as JSON.")
        return '"' + text.replace('"', '""') + '"'

    def path(self, node: Path, reserved: frozenset[str]) -> str:
        names = [node.root, *node.segments]
        is_alias = self.aliases is not None and node.root in self.aliases and not node.segments
        if is_alias and node.root in ("content", "meta") and self.exact:
            raise SchemaError(f"LET binds {node.root!r}, so that {node.root} itself cannot be written as NLQL.")
        if (is_alias and node.root not in ("content", "meta")) or node.root in reserved:
            names = ["meta", *names]  # the same field
        return ".".join([self.name(name) for name in names])

    def ref(self, name: str, reserved: frozenset[str]) -> str:
        if self.exact and (name in reserved or (self.aliases is not None and name not in self.aliases)):
            why = "the word means something else there" if name in reserved else "LET binds none"
            raise SchemaError(f"The alias {name!r} cannot be written as NLQL: {why}.")
        return self.name(name)

    def name(self, name: str, reserved: frozenset[str] = frozenset()) -> str:
        if name in reserved or not NAME.fullmatch(name):
            if self.exact:
                raise SchemaError(f"{name!r} cannot be written as a name of NLQL.")
            return f"`{name}`"
        return name


def _binds(node: Expr) -> int:
    match node:
        case Or(operands=operands) | And(operands=operands):
            return _ATOM if not operands else (_OR if isinstance(node, Or) else _AND) if len(operands) > 1 else _binds(operands[0])
        case Not():
            return _NOT
        case Compare():
            return _COMPARE
        case In():
            return _PREDICATE
        case Call(name=name, args=args) if name in _INFIXES and len(args) == 2:
            return _PREDICATE
    return _ATOM
