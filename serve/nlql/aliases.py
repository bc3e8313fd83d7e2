"""Whether what LET binds can be written out: aliases are macros, and may stand for one another, but not for themselves."""

from collections.abc import Iterator, Mapping

from serve.nlql.bounds import MAX_DEPTH
from shards.nlql.errors import PlanError
from shards.nlql.ir import Binding, Expr, Query, Ref, children


def check_aliases(query: Query) -> None:
    """Raises PlanError for an alias that LET does not bind, one that stands for itself, and an expression that becomes too deep.

    Its time is linear in the query: every alias is looked at once, however often others use it.
    """
    bound = {binding.name: binding for binding in query.let}  # of a name that is bound twice, the last binding counts
    heights: dict[str, int] = {}  # of aliases with all others written out
    open_: dict[str, None] = {}  # the chain of aliases that is being followed
    stack: list[tuple[str, Iterator[Ref]]] = []

    def enter(name: str) -> None:
        open_[name] = None
        stack.append((name, iter([ref for ref, _ in _refs(bound[name].expr)])))

    for name in bound:
        if name in heights:
            continue
        enter(name)
        while stack:
            current, refs = stack[-1]
            ref = next(refs, None)
            if ref is None:
                heights[current] = _height(bound[current].expr, heights, bound)
                del open_[current]
                stack.pop()
            elif ref.name not in bound:
                raise _unknown(ref, bound)
            elif ref.name in open_:
                circle = [*list(open_)[list(open_).index(ref.name) :], ref.name]
                raise PlanError(f"LET goes round in a circle: {_chain(circle)}.").placed(ref.at or bound[ref.name].at)
            elif ref.name not in heights:
                enter(ref.name)
    for root in (query.where, *(key.expr for key in query.order_by), *query.count_by):
        if root is not None:
            for ref, _ in _refs(root):
                if ref.name not in bound:
                    raise _unknown(ref, bound)
            _height(root, heights, bound)


def _refs(root: Expr) -> Iterator[tuple[Ref, int]]:
    """The aliases in an expression, each with its level below it, from 1, in the order in which they are written."""
    stack = [(root, 1)]
    while stack:
        node, level = stack.pop()
        if isinstance(node, Ref):
            yield node, level
        stack.extend((child, level + 1) for child in reversed(children(node)))


def _height(root: Expr, heights: Mapping[str, int], bound: Mapping[str, Binding]) -> int:
    """Levels of an expression with its aliases written out. Raises PlanError beyond MAX_DEPTH."""
    highest = 1
    stack = [(root, 1)]
    while stack:
        node, level = stack.pop()
        if isinstance(node, Ref):
            level += heights[node.name]
            if level > MAX_DEPTH:
                raise PlanError(
                    f"With its aliases written out an expression has at most {MAX_DEPTH} levels; {node.name} makes this one {level}."
                ).placed(node.at or bound[node.name].at)
        highest = max(highest, level)
        stack.extend((child, level + 1) for child in children(node))
    return highest


def _unknown(ref: Ref, bound: Mapping[str, Binding]) -> PlanError:
    names = ", ".join(list(bound)[:10])
    known = f"LET binds {names}{', …' if len(bound) > 10 else ''}" if bound else "The query has no LET"
    return PlanError(f"Unknown alias {ref.name!r}. {known}.", expected=tuple(bound)[:10]).placed(ref.at)


def _chain(names: list[str]) -> str:
    shown = names if len(names) <= 10 else [*names[:8], "…", names[-1]]
    return " -> ".join(shown)
