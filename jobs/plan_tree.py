"""A plan of NLQL as a tree: what is selected, which scores are computed over which spaces, what WHERE becomes, what it will cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text
from rich.tree import Tree

from jobs.render import visible

FIRST = ("select", "granularity", "recall", "scores", "asked", "filter", "run", "order_by", "limit", "offset", "rerank", "cost", "notes")
LEFT_OUT = ("text", "ir", "pushed_filter", "residual_filter", "store")  # the heading; the whole query again; another spelling of `filter`
NAMES = {"run": "tested in this order", "recall": "rows come from", "asked": "asked of spaces"}


def plan_tree(plan: Mapping[str, Any]) -> Tree:
    """The plan, its best-known parts first; what is empty is left out."""
    tree = Tree(Text(visible(str(plan.get("text") or "plan")), "bold"))
    names = [name for name in FIRST if name in plan] + [name for name in plan if name not in FIRST and name not in LEFT_OUT]
    for name in names:
        _grow(tree, name, plan[name])
    return tree


def _grow(tree: Tree, name: str, value: Any) -> None:
    """A part below its name, on one line where it fits there."""
    if value is None or value == 0 or (isinstance(value, Mapping | Sequence) and not value):
        return
    label = Text(NAMES.get(name, name.replace("_", " ")), "cyan")
    if isinstance(value, Sequence) and not isinstance(value, str):
        branch = tree.add(label)
        for part in value:
            branch.add(Text(_said(part)))
    elif isinstance(value, Mapping) and "node" not in value and any(isinstance(part, Mapping | list) for part in value.values()):
        branch = tree.add(label)
        for key, part in value.items():
            _grow(branch, str(key), part)
    else:
        tree.add(Text.assemble(label, "  ", _said(value)))


def _said(value: Any) -> str:
    """A value on one line: an expression as it would be written, an object as its fields that say something."""
    if isinstance(value, Mapping) and "node" in value:
        from serve.nlql.json_ir import node_from_dict
        from serve.nlql.unparse import written

        return visible(written(node_from_dict(dict(value))))
    if isinstance(value, Mapping):
        if set(value) == {"expr", "desc"}:
            return _said(value["expr"]) + (" DESC" if value["desc"] else "")
        return ", ".join(f"{key.replace('_', ' ')} {_said(part)}" for key, part in value.items() if part not in (None, "", [], {}))
    if isinstance(value, list | tuple):
        return ", ".join(map(_said, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return visible(f"{value:.4g}" if isinstance(value, float) else str(value))
