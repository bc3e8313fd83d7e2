"""What an expression is on many rows at once: equal to `evaluate.py` row by row, errors included.

AND and OR hand on the rows that are left; a comparison with one value becomes a rule about a column's numbers or is asked once for each
distinct value; functions likewise. What is left, users' functions above all, is asked row by row.

An error is that of the first row that has one when rows are asked one after another. Here a whole step is done for all rows before the
next, so another row may fail first: then the rows before it are asked again, until none of them fails.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from shards.entry_metadata import Metadata
from shards.nlql import ir
from shards.nlql.context import Context, metadata_steps
from shards.nlql.distinct import Distinct
from shards.nlql.errors import NLQLError, PlanError
from shards.nlql.fields import Fields, fields_of
from shards.nlql.functions import FALSE_OF_NULL, OF_ONE, OF_TWO, called, found, is_built_in
from shards.nlql.parts import Part, Vector
from shards.nlql.rules import MIRRORED, effective, outcome
from shards.nlql.values import OPERATORS, compare, number_of
from shards.types import Array

T = TypeVar("T")

BY_ZONES = 8_192  # entries from which blocks are passed over by their zones


class RowColumns:
    """Rows of one segment, as columns.

    metadata: of its entries; places: (n,) int, each row's entry by its place in `Entries.order`; None: the rows are all entries, in that
    order. scores: (n,) float64 by `#0`, `#1`, …, nan where a row has none. texts: gives the contents of rows; it is asked only for rows
    that are left, and once for each.
    """

    def __init__(
        self,
        n: int,
        metadata: Metadata,
        places: Array | None,
        scores: Mapping[str, Array],
        texts: Callable[[Array], Sequence[str]],
    ):
        self.n, self.places, self.scores, self._texts = n, places, scores, texts
        self.metadata = metadata  # held: `fields` goes with it
        self.fields: Fields = fields_of(metadata)
        self._contents: Array | None = None
        self._has_content: Array | None = None

    def contents(self, at: Array | None) -> list[str]:
        """The texts of rows; None: of all."""
        if self._contents is None:
            self._contents, self._has_content = np.empty(self.n, object), np.zeros(self.n, bool)
        rows = np.arange(self.n) if at is None else at
        if len(missing := rows[~self._has_content[rows]]):
            self._contents[missing] = self._texts(missing)
            self._has_content[missing] = True
        return self._contents[rows].tolist()


def mask(expr: ir.Expr, rows: RowColumns, context: Context, within: Array | None = None) -> Array:
    """(n,) bool: rows for which an expression counts as true. within: (n,) bool, the only rows that are asked; None: all.

    Raises NLQLErrors, with `row`: the first row that has one.
    """
    at = None if within is None or within.all() else np.flatnonzero(within)
    held = _first_error(lambda some: _Evaluation(rows, context).test(expr, some), at)
    if at is None:
        return held
    found = np.zeros(rows.n, bool)
    found[at] = held
    return found


def values(expr: ir.Expr, rows: RowColumns, context: Context, at: Array) -> list[Any]:
    """What an expression is on some rows, in their order. Raises as `mask` does."""
    return vector(expr, rows, context, at).listed()


def vector(expr: ir.Expr, rows: RowColumns, context: Context, at: Array | None) -> Vector:
    """The same, as columns."""
    return _first_error(lambda some: _Evaluation(rows, context).vector(expr, some), at)


def prune(expr: ir.Expr, metadata: Metadata, n: int, context: Context, within: Array | None = None) -> Array | None:
    """(n,) bool: entries of a segment, by place, for which an expression that `is_prunable` holds.

    None: it is an error for some entry, so it must be asked in its place, of the rows that come to it.
    """
    rows = RowColumns(n, metadata, None, {}, lambda asked: [""] * len(asked))
    try:
        return mask(expr, rows, context, within)
    except NLQLError:
        return None


class _Evaluation:
    """One expression. `at`: the rows that are asked; None: all. What is returned is in their order."""

    def __init__(self, rows: RowColumns, context: Context):
        self.rows, self.context = rows, context
        self.aliases: dict[str, tuple[Array, Vector]] = {}  # (rows it is known for, its values on all rows)

    def size(self, at: Array | None) -> int:
        return self.rows.n if at is None else len(at)

    # --- truth -------------------------------------------------------------------------------------------------------------

    def test(self, expr: ir.Expr, at: Array | None) -> Array:
        """(m,) bool."""
        match expr:
            case ir.And(operands=operands):
                return self.settled(operands, at, True)
            case ir.Or(operands=operands):
                return self.settled(operands, at, False)
            case ir.Not(operand=operand):
                return ~self.test(operand, at)
            case ir.Compare(op=op, left=left, right=right):
                return self.compared(expr, op, left, right, at)
            case ir.In():
                return self.is_in(expr, at)
        return self.vector(expr, at).truth()

    def settled(self, operands: Sequence[ir.Expr], at: Array | None, going_on: bool) -> Array:
        """AND (going on while true) or OR (while false): each operand is asked of the rows that the ones before left open."""
        open_: Array | None = None  # places among the rows asked for; None: all
        for operand in operands:
            rows = at if open_ is None else open_ if at is None else at[open_]
            if not self.size(rows):
                break
            held = self.test(operand, rows)
            goes_on = held if going_on else ~held
            open_ = np.flatnonzero(goes_on) if open_ is None else open_[goes_on]
        found = np.full(self.size(at), going_on if open_ is None else not going_on)
        if open_ is not None:
            found[open_] = going_on
        return found

    # --- values ------------------------------------------------------------------------------------------------------------

    def vector(self, expr: ir.Expr, at: Array | None) -> Vector:
        n = self.size(at)
        match expr:
            case ir.Literal(value=value):
                return Vector.constant(value, n)
            case ir.Ref(name=name):
                return self.score(name, at) if name.startswith("#") else self.alias(expr, at)
            case ir.Path():
                return self.path(expr, at)
            case ir.Call():
                return self.call(expr, at)
            case ir.Parameter(name=name):
                if not n:
                    return Vector(0)
                error = PlanError(f"The parameter :{name} has no value. Give it one (params) with the query.").placed(expr.at)
                raise self.at_row(error, at, 0)
        return Vector.bools(self.test(expr, at))

    def score(self, name: str, at: Array | None) -> Vector:
        values = self.rows.scores[name]
        values = values if at is None else values[at]
        missing = np.isnan(values)
        if not missing.any():
            return Vector(len(values), (Part("float", values),))
        has = np.flatnonzero(~missing)
        return Vector(len(values), (Part("float", values[has], has),))

    def alias(self, ref: ir.Ref, at: Array | None) -> Vector:
        """Evaluated once for each row: aliases of aliases could otherwise double the work with each of them."""
        n = self.rows.n
        asked = np.arange(n) if at is None else at
        known, values = self.aliases.get(ref.name, (np.zeros(n, bool), Vector(n)))
        if len(new := asked[~known[asked]]):
            added = self.vector(self.context.bound(ref), None if len(new) == n else new)
            if added.is_constant:
                return added if len(new) == len(asked) else Vector.constant(added.value, len(asked))
            known[new] = True
            values = added if len(new) == n else Vector(n, values.parts + added.placed(new, n).parts)
            self.aliases[ref.name] = known, values
        return values if at is None else values.take(at)

    def path(self, path: ir.Path, at: Array | None) -> Vector:
        steps = metadata_steps(path)
        if steps is None:
            if path.root != "content" or path.segments:
                return Vector(self.size(at))
            texts = self.rows.contents(at)
            return Vector(len(texts), (Part("coded", np.arange(len(texts)), None, Distinct(texts)),))
        places = self.rows.places
        return self.rows.fields.vector(steps, at if places is None else places if at is None else places[at])

    # --- comparisons -------------------------------------------------------------------------------------------------------

    def compared(self, node: ir.Compare, op: str, left: ir.Expr, right: ir.Expr, at: Array | None) -> Array:
        n = self.size(at)
        if not n:
            return np.zeros(0, bool)
        quick = self.by_zones(op, left, right, at)
        if quick is not None and not quick[1].any():
            return quick[0]
        return self.held(node, self.vector(left, at), self.vector(right, at), at)

    def held(self, node: ir.Compare, a: Vector, b: Vector, at: Array | None) -> Array:
        """Where a comparison of values holds. Raises the error of the first row that has one."""
        hint = self.context.hint(node.left, node.right)
        held, raised = self.pairs(node.op, a, b, effective(hint, self.context.plugins))
        if raised.any():
            row = int(raised.argmax())
            try:
                compare(node.op, a.at(row), b.at(row), hint, self.context.plugins)
            except NLQLError as error:
                raise self.at_row(error.placed(node.at), at, row) from error.__cause__
            raise AssertionError(f"{node} was to raise on row {row}")
        return held

    def is_in(self, node: ir.In, at: Array | None) -> Array:
        """One comparison after another, of the rows that equal none yet; items that are constants all at once, if they cannot raise."""
        x = self.vector(node.operand, at)
        hints = {effective(self.context.hint(node.operand, item), self.context.plugins) for item in node.items}
        if x.parts and hints == {None} and all(isinstance(item, ir.Literal) for item in node.items):
            return self.equals_some(x, [item.value for item in node.items])
        found = np.zeros(x.n, bool)
        for item in node.items:
            open_ = np.flatnonzero(~found)
            if not len(open_):
                break
            rows = open_ if at is None else at[open_]
            equal = ir.Compare("==", node.operand, item, node.at)
            found[open_] = self.held(equal, x.take(open_), self.vector(item, rows), rows)
        return found

    def equals_some(self, x: Vector, values: Sequence[Any]) -> Array:
        found = x.null() if None in values else np.zeros(x.n, bool)
        values = [value for value in values if value is not None]
        for part in x.parts:
            part = part if part.kind in ("integer", "float") else part.coded()
            where = slice(None) if part.at is None else part.at
            if part.table is None:
                numbers = [float(value) if isinstance(value, bool) else number_of(value) for value in values]
                found[where] = np.isin(part.values.astype(np.float64), [number for number in numbers if number is not None])
            else:
                tables = [part.table.compare("==", value, None, self.context.plugins)[0] for value in values]
                found[where] = np.logical_or.reduce(tables)[part.values] if tables else False
        return found

    def by_zones(self, op: str, left: ir.Expr, right: ir.Expr, at: Array | None) -> tuple[Array, Array] | None:
        """(n,) bool each, held and raised, for a field of all entries of a large segment and one value; None for anything else."""
        field, value = self.context.resolved(left), self.context.resolved(right)
        if at is not None or self.rows.places is not None or self.rows.n < BY_ZONES:
            return None
        if not isinstance(field, ir.Path) or not isinstance(value, ir.Literal) or value.value is None:
            return None
        if not (steps := metadata_steps(field)):
            return None
        plugins = self.context.plugins
        hint = effective(self.context.hint(left, right), plugins)
        return self.rows.fields.decided(steps, lambda kind, table: outcome(kind, table, op, value.value, hint, plugins), op == "!=")

    def pairs(self, op: str, a: Vector, b: Vector, hint: str | None) -> tuple[Array, Array]:
        """(m,) bool each: rows for which `a op b` holds, and for which it raises."""
        if a.is_constant and b.is_constant:
            a = Vector.of([a.value] * a.n)
        null_a, null_b = a.null(), b.null()
        held = null_a & null_b if op == "==" else null_a != null_b if op == "!=" else np.zeros(a.n, bool)
        raised = np.zeros(a.n, bool)
        if (a.is_constant and a.value is None) or (b.is_constant and b.value is None):
            return held, raised
        if a.is_constant or b.is_constant:
            various, value = (b, a.value) if a.is_constant else (a, b.value)
            for part in various.parts:
                where = slice(None) if part.at is None else part.at
                held[where], raised[where] = self.against(op, part, value, hint, swapped=a.is_constant)
            return held, raised
        for one in a.parts:
            for other in b.parts:
                where, x, y = _common(one, other)
                if len(x.values):
                    held[where], raised[where] = self.part_pairs(op, x, y, hint)
        return held, raised

    def against(self, op: str, part: Part, value: Any, hint: str | None, swapped: bool) -> tuple[Array, Array]:
        """(p,) bool each, of one kind of values with one value."""
        plugins = self.context.plugins
        is_own = hint not in (None, "text", "number", "date")  # a user's comparer may tell left from right
        rule = outcome(part.kind, part.table, MIRRORED[op] if swapped else op, value, hint, plugins) if not (swapped and is_own) else None
        if rule is not None:
            raised = np.zeros(len(part.values), bool) if rule.raises is None else rule.raises.holds(part.values)
            return rule.holds.holds(part.values), raised
        part = part.coded()
        held, raised = part.table.compare(op, value, hint, plugins, swapped)
        return held[part.values], np.zeros(len(part.values), bool) if raised is None else raised[part.values]

    def part_pairs(self, op: str, x: Part, y: Part, hint: str | None) -> tuple[Array, Array]:
        """(p,) bool each, of two kinds of values of the same rows."""
        numeric = ("integer", "float")
        if x.kind in numeric and y.kind in numeric and hint in (None, "number"):
            return OPERATORS[op](x.values.astype(np.float64), y.values.astype(np.float64)), np.zeros(len(x.values), bool)
        x, y = x.coded(), y.coded()
        pairs, which = np.unique(x.values.astype(np.int64) * len(y.table) + y.values, return_inverse=True)
        held, raised = np.zeros(len(pairs), bool), np.zeros(len(pairs), bool)
        for i, pair in enumerate(pairs.tolist()):
            left, right = divmod(pair, len(y.table))
            try:
                held[i] = compare(op, x.table.items[left], y.table.items[right], hint, self.context.plugins)
            except NLQLError:
                raised[i] = True
        return held[which], raised[which]

    # --- functions ---------------------------------------------------------------------------------------------------------

    def call(self, call: ir.Call, at: Array | None) -> Vector:
        n = self.size(at)
        if not n:
            return Vector(0)
        try:
            function = found(call, self.context.plugins)
        except NLQLError as error:
            raise self.at_row(error, at, 0) from error.__cause__
        built_in = function.name if is_built_in(call.name, self.context.plugins) else ""
        if built_in.startswith("GEO_") and (known := self.geography(call, built_in, at)) is not None:
            return known
        args = [self.vector(arg, at) for arg in call.args]
        if built_in and all(arg.is_constant for arg in args):
            return self.row_by_row(call, [arg.take(np.zeros(1, np.int64)) for arg in args], at).constant_of(n)
        if built_in in OF_ONE:
            return args[0].mapped(OF_ONE[built_in])
        if built_in in OF_TWO and args[1].is_constant:
            try:
                return self.of_two(built_in, args[0], args[1].value)
            except Exception:
                pass  # it fails on some row: which is found row by row
        return self.row_by_row(call, args, at)

    def of_two(self, name: str, x: Vector, value: Any) -> Vector:
        made = x if value is None or not x.parts else x.mapped(OF_TWO[name](value, self.context.patience))
        made = Vector(x.n) if value is None else made
        return Vector.bools(made.truth()) if name in FALSE_OF_NULL else made

    def geography(self, call: ir.Call, name: str, at: Array | None) -> Vector | None:
        """GEO_… of a field, with constants. None: row by row."""
        from shards.nlql import geo

        field = self.context.resolved(call.args[0])
        others = [self.context.resolved(arg) for arg in call.args[1:]]
        if not isinstance(field, ir.Path) or not (steps := metadata_steps(field)) or not all(isinstance(o, ir.Literal) for o in others):
            return None
        check = geo.checked_point if name == "GEO_DISTANCE" else geo.checked_box
        try:
            edges = check(*(other.value for other in others))
        except NLQLError as error:
            raise self.at_row(error.placed(call.at), at, 0) from error.__cause__
        if edges is None:
            return Vector(self.size(at)) if name == "GEO_DISTANCE" else Vector.constant(False, self.size(at))
        lat, lon = self.rows.fields.points(steps)
        places = self.rows.places
        where = slice(None) if places is None and at is None else at if places is None else places if at is None else places[at]
        if name == "GEO_WITHIN":
            return Vector.bools(geo.in_box(lat[where], lon[where], *edges))
        metres = geo.distance_m(lat[where], lon[where], *edges)
        has = np.flatnonzero(~np.isnan(metres))
        return Vector(len(metres), (Part("float", metres[has], has),))

    def row_by_row(self, call: ir.Call, args: Sequence[Vector], at: Array | None) -> Vector:
        function = found(call, self.context.plugins)
        results = []
        for i, given in enumerate(zip(*(arg.listed() for arg in args), strict=True) if args else [()] * self.size(at)):
            try:
                results.append(called(call, function, list(given), self.context))
            except NLQLError as error:
                raise self.at_row(error, at, i) from error.__cause__
        return Vector.of(results)

    def at_row(self, error: NLQLError, at: Array | None, i: int) -> NLQLError:
        """An error, with the row that has it."""
        error.row = i if at is None else int(at[i])  # type: ignore[attr-defined]
        return error


def _first_error(ask: Callable[[Array | None], T], at: Array | None) -> T:
    """What is asked of rows; or the error of the first of them that has one."""
    try:
        return ask(at)
    except NLQLError as error:
        first = error
    while (row := getattr(first, "row", None)) is not None:
        before = np.arange(row) if at is None else at[: int(np.flatnonzero(at == row)[0])]
        try:
            if not len(before):
                break
            ask(before)
            break
        except NLQLError as error:
            first, at = error, before
    raise first


def _common(one: Part, other: Part) -> tuple[Array | slice, Part, Part]:
    """Rows that both have values for, and these values."""
    if one.at is None and other.at is None:
        return slice(None), one, other
    rows, i, j = np.intersect1d(one.rows, other.rows, assume_unique=True, return_indices=True)
    return rows, one.kept(i, rows), other.kept(j, rows)
