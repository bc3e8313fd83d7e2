"""From a query to what is done for it: calls checked, scores found once each, WHERE cut in two. Pure; nothing is asked.

Scores are collected from LET, WHERE, ORDER BY and COUNT BY, in this order, and are one where their canonical form is; the first is the
primary one, by which rows are ordered where ORDER BY does not say. For shards every score call becomes `Ref("#i")`, a name that nobody can
write, and bare names become paths below `meta`. The query itself is never changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from serve.nlql.aliases import check_aliases
from serve.nlql.canonical import canonical
from serve.nlql.facts import CorpusFacts, SpaceFact
from serve.nlql.filters import comes_first, conjuncts, is_pushed, joined
from serve.nlql.outcome import HIDDEN
from serve.nlql.parameters import bind
from serve.nlql.scorers import SCORES, Scorer, is_score, scorer_of
from shards.nlql import functions, ir
from shards.nlql.errors import NLQLError, PlanError, SchemaError
from shards.nlql.plan import Cut
from shards.plugins import PROCESS

if TYPE_CHECKING:
    from serve.nlql.schema import Bound
    from shards.plugins import Plugins

MAX_NODES = 20_000  # of an expression with its aliases written out: each that uses another twice doubles what is run
MAX_SCORES, MAX_SEARCHES = 64, 16  # different ones: each multiplies all vectors, or is a search of its own (as many as `combine` may have)
# SENTENCE of a corpus cut into chunks: of more chunks than these only the sentences of the best documents are encoded, so many for each
# row that is wanted. A model encodes some hundred sentences in a second.
ENCODED_CHUNKS, ENCODED_FACTOR = 2_000, 10
MAX_LISTED = 12  # functions named in an error


@dataclass(frozen=True, slots=True)
class Planned:
    """A query that means something, and what.

    query: parameters bound, the call's limit applied, otherwise as written. base: the units that WHERE and scores look at. scorers:
    the first is primary. text_space: whose vectors SIMILARITY(content, …) compares; encode: its units are coarser than rows, which are
    encoded when they are asked for. pushed, residual: WHERE as LANGUAGE.md section 11 cuts it, as written, for people. filter: what WHERE
    joins as shards run it, equality of metadata first and all else in its order. let, order_by, facets: as run; order_by
    has the primary score where the query says nothing. notes: what `explain` tells of how rows are made.
    """

    query: ir.Query
    facts: CorpusFacts
    base: Cut
    scorers: tuple[Scorer, ...]
    text_space: SpaceFact | None
    encode: bool
    pushed: ir.Expr | None
    residual: ir.Expr | None
    filter: tuple[ir.Expr, ...]
    let: tuple[ir.Binding, ...]
    order_by: tuple[ir.SortKey, ...]
    facets: tuple[ir.Expr, ...]
    field_types: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def encodes_best(self) -> bool:
        """Whether only sentences of the best documents are encoded, as there are too many."""
        many = self.text_space is not None and self.text_space.n_units > ENCODED_CHUNKS
        return self.encode and many and self.query.limit is not None

    @property
    def conjuncts(self) -> list[ir.Expr]:
        """What WHERE joins, as it was written."""
        return list(conjuncts(self.query.where, nested=True))


def plan(
    query: ir.Query,
    facts: CorpusFacts,
    plugins: "Plugins" = PROCESS,
    *,
    field_types: Mapping[str, str] | None = None,
    params: "Mapping[str, Bound | list[Bound]] | None" = None,
    limit: int | None = None,
    strict: bool = False,
) -> Planned:
    """The plan of a query over one corpus. field_types: over the corpus's own. limit: instead of the query's.

    Raises PlanError at the node that is wrong, SchemaError for a number that is out of its range.
    """
    query = bind(query, params or {})
    if limit is not None:
        query = replace(query, limit=limit)
    _check_numbers(query)
    check_aliases(query)
    aliases = {binding.name: binding.expr for binding in query.let}  # of a name that is bound twice the last
    _check_names(query)
    _check_sizes(query, aliases)
    found = _Calls(facts, plugins, strict)
    for root in _roots(query):
        found.visit(root)
    text_is_scored = any(scorer.is_of_text for scorer in found.scorers)
    units = _units(query.select, facts, text_is_scored)
    types = {**facts.field_types, **(field_types or {})}
    written = list(conjuncts(query.where))
    pushed = [node for node in written if is_pushed(node, types)]
    residual = [node for node in written if not is_pushed(node, types)]
    in_turn = sorted(written, key=lambda node: not comes_first(node, types))
    run = _Resolver(found.places)
    order_by = tuple(ir.SortKey(run(key.expr), key.desc, key.at) for key in query.order_by)
    if not order_by and found.scorers:
        order_by = (ir.SortKey(ir.Ref("#0"), desc=True),)
    return Planned(
        query=query,
        facts=facts,
        base=units.base,
        scorers=tuple(_finished(found.scorers, aliases, units.space)),
        text_space=units.space,
        encode=units.encode,
        pushed=joined(pushed),
        residual=joined(residual),
        filter=tuple(run(part) for node in in_turn for part in conjuncts(node, nested=True)),
        let=tuple(ir.Binding(name, run(expr), expr.at) for name, expr in aliases.items()),
        order_by=order_by,
        facets=tuple(map(run, query.count_by)),
        field_types=types,
        notes=units.notes,
    )


def _roots(query: ir.Query) -> Iterator[ir.Expr]:
    """The expressions of a query, in the order in which scores are collected."""
    yield from (binding.expr for binding in query.let)
    if query.where is not None:
        yield query.where
    yield from (key.expr for key in query.order_by)
    yield from query.count_by


def _finished(scorers: Sequence[Scorer], aliases: Mapping[str, ir.Expr], text_space: SpaceFact | None) -> Iterator[Scorer]:
    """Scores with their aliases, and with the space of the text."""
    named: dict[str, str] = {}
    for name, expr in aliases.items():
        if isinstance(expr, ir.Call):
            named.setdefault(canonical(expr), name)
    for scorer in scorers:
        spaces = (text_space.name,) if scorer.is_of_text and text_space else scorer.spaces
        yield replace(scorer, alias=named.get(scorer.key), spaces=spaces)


# --- checks ------------------------------------------------------------------------------------------------------------------


class _Calls:
    """The calls of a query, each of a function that there is, with as many arguments as it takes.

    scorers: the scores among them. places: where each stands among these, by its canonical form.
    """

    def __init__(self, facts: CorpusFacts, plugins: "Plugins", strict: bool):
        self.facts, self.plugins, self.strict = facts, plugins, strict
        self.scorers: list[Scorer] = []
        self.places: dict[str, int] = {}

    def visit(self, root: ir.Expr) -> None:
        """Raises PlanError."""
        skipped: set[int] = set()  # arguments of scores, which are checked with them
        for node in ir.walk(root):
            if not isinstance(node, ir.Call) or id(node) in skipped:
                continue
            if is_score(node.name, self.strict):
                key = canonical(node)
                if key not in self.places:
                    self._add(node, key)
                skipped.update(map(id, node.args))
            else:
                self._check(node)

    def _add(self, call: ir.Call, key: str) -> None:
        self.places[key] = len(self.scorers)
        self.scorers.append(scorer_of(call, key, self.facts))
        n_searches = len({(scorer.text, scorer.spaces) for scorer in self.scorers if scorer.kind in ("evidence", "evalue")})
        if len(self.scorers) > MAX_SCORES or n_searches > MAX_SEARCHES:
            raise PlanError(
                f"The query has more than {MAX_SCORES} different scores, or more than {MAX_SEARCHES} different EVIDENCE. Ask in several."
            ).placed(call.at)

    def _check(self, call: ir.Call) -> None:
        name = call.name.upper()
        function = functions.find(call.name, self.plugins)
        is_ours = function is functions.BUILT_IN.get(name) and name in functions.EXTENSIONS
        if function is None or name in SCORES or (self.strict and is_ours):
            raise PlanError(f"Unknown function {call.name}. {self._guess(name)}").placed(call.at)
        n = len(call.args)
        if n < function.least or (function.most is not None and n > function.most):
            raise PlanError(f"{call.name} takes {functions.arity(function)}; found {n}.").placed(call.at)
        if name == "MATCH" and n == 2 and isinstance(call.args[1], ir.Literal) and isinstance(call.args[1].value, str):
            try:
                functions.check_pattern(call.args[1].value)
            except NLQLError as error:
                raise PlanError(error.message).placed(call.args[1].at or call.at) from None

    def _guess(self, name: str) -> str:
        import difflib

        added = {*functions.EXTENSIONS, *SCORES[1:]} if self.strict else set()
        known = [one for one in functions.names(self.plugins) if one not in added]
        if close := difflib.get_close_matches(name, known, 1, 0.7):
            return f"Did you mean {close[0]}?"
        return f"There are: {', '.join(known[:MAX_LISTED])}{', …' if len(known) > MAX_LISTED else ''}."


def _check_names(query: ir.Query) -> None:
    """Names that stand for something else where a query is run come from trees alone. Raises PlanError."""
    for binding in query.let:
        if binding.name[:1] in ("", "#", HIDDEN):
            raise PlanError(f"{binding.name!r} is no name for an alias. Use letters, digits and underscores.").placed(binding.at)


def _check_sizes(query: ir.Query, aliases: Mapping[str, ir.Expr]) -> None:
    """Aliases are macros. Raises PlanError where an expression is too large with all of them written out."""
    nodes: dict[str, int] = {}

    def size(expr: ir.Expr) -> int:
        return sum(nodes[node.name] if isinstance(node, ir.Ref) else 1 for node in ir.walk(expr))

    for name in _in_order(aliases):
        nodes[name] = size(aliases[name])
    for root in _roots(query):
        if (n := size(root)) > MAX_NODES:
            raise PlanError(
                f"With its aliases written out an expression has {n:,} parts; at most {MAX_NODES:,} are run. Use aliases in fewer others."
            ).placed(root.at)


def _in_order(aliases: Mapping[str, ir.Expr]) -> list[str]:
    """Aliases, each after those that it uses; there are no circles."""
    order: dict[str, None] = {}
    stack = [(name, False) for name in reversed(aliases)]
    while stack:
        name, used = stack.pop()
        if name in order:
            continue
        if used:
            order[name] = None
            continue
        stack.append((name, True))
        stack += [(node.name, False) for node in ir.walk(aliases[name]) if isinstance(node, ir.Ref) and node.name not in order]
    return list(order)


def _check_numbers(query: ir.Query) -> None:
    for name, value in (("LIMIT", query.limit), ("OFFSET", query.offset), ("WITHIN", query.within_ms), ("window", query.select.window)):
        if value is not None and value < 0:
            raise SchemaError(f"{name} is {value}; it counts from 0 on.", at="select.window" if name == "window" else None)


# --- units -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Units:
    """What rows are made of. space: whose vectors stand for the text; encode: for coarser pieces of it than rows are."""

    base: Cut
    space: SpaceFact | None
    encode: bool = False
    notes: tuple[str, ...] = ()


def base_of(facts: CorpusFacts) -> tuple[str, SpaceFact | None]:
    """The units that a corpus is cut into: those of its first space of vectors; sentences where it has none."""
    space = next(iter(facts.readable), None)
    return (space.unit, space) if space else ("sentence", None)


def _units(select: ir.Select, facts: CorpusFacts, text_is_scored: bool) -> _Units:
    unit, spanned = select.unit, select.window is not None
    if unit not in ir.UNITS:
        raise PlanError(f"There are no rows of unit {unit!r}. Choose from: {', '.join(map(str.upper, ir.UNITS))}.").placed(select.at)
    own, own_space = base_of(facts)
    if unit == "document":
        if spanned:
            problem = "SPAN(DOCUMENT): a row is a whole document already, and has no neighbours. Ask for DOCUMENT."
            raise PlanError(problem).placed(select.at)
        return _Units(Cut(own, own_space.name if own_space else ""), own_space)
    if (space := facts.of_unit(unit)) is not None:
        return _Units(Cut(unit, space.name), space)
    if unit == "chunk":
        return _chunks(select, facts, own, own_space)
    chunks = facts.of_unit("chunk")
    if chunks is not None:
        notes = (f"SENTENCE: cut from the chunks of {chunks.name}, and encoded at query time",) if text_is_scored else ()
        return _Units(Cut("sentence"), chunks, text_is_scored, notes)
    if own_space is not None and text_is_scored:
        note = f"SENTENCE: cut at query time; each has the score of the {own} of {own_space.name} that holds it"
        return _Units(Cut("sentence"), own_space, notes=(note,))
    return _Units(Cut("sentence"), own_space)


def _chunks(select: ir.Select, facts: CorpusFacts, own: str, own_space: SpaceFact | None) -> _Units:
    """CHUNK of a corpus that has no chunks."""
    if own == "sentence" and own_space is not None:
        if select.window is not None:
            raise PlanError(
                f"SPAN(CHUNK): corpus {facts.corpus!r} is cut into sentences, of which CHUNK puts those of a document together, so that "
                "it has no neighbours. Ask for SPAN(SENTENCE)."
            ).placed(select.at)
        note = "CHUNK: the sentences of a document that WHERE keeps, best first"
        return _Units(Cut("sentence", own_space.name), own_space, notes=(note,))
    passages = facts.of_unit("passage")
    if passages is not None:
        return _Units(Cut("passage", passages.name), passages, notes=(f"CHUNK: the passages of {passages.name}",))
    return _Units(Cut("chunk"), own_space, notes=("CHUNK: cut at query time",))


# --- as shards are asked -----------------------------------------------------------------------------------------------------


class _Resolver:
    """An expression as shards run it. places: of scores, by canonical form."""

    def __init__(self, places: Mapping[str, int]):
        self.places = places

    def __call__(self, node: ir.Expr) -> ir.Expr:
        match node:
            case ir.Call(at=at) if self.places and (key := canonical(node)) in self.places:
                return ir.Ref(f"#{self.places[key]}", at)
            case ir.Path(root="content", segments=segments, at=at) if segments:
                return ir.Literal(None, at=at)  # a text has no fields
            case ir.Path(root=root, segments=segments, at=at) if root not in ("content", "meta"):
                return ir.Path("meta", (root, *segments), at)
            case ir.Call(args=parts):
                return replace(node, args=tuple(map(self, parts)))
            case ir.And(operands=parts) | ir.Or(operands=parts):
                return replace(node, operands=tuple(map(self, parts)))
            case ir.Compare(left=left, right=right):
                return replace(node, left=self(left), right=self(right))
            case ir.Not(operand=operand):
                return replace(node, operand=self(operand))
            case ir.In(operand=operand, items=items):
                return replace(node, operand=self(operand), items=tuple(map(self, items)))
        return node
