"""What an expression means beside the row it is asked about: declared types, aliases, functions that users registered, the time left."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shards.nlql import ir
from shards.nlql.errors import PlanError
from shards.nlql.patterns import Patience
from shards.plugins import PROCESS, Plugins
from shards.types import Budget


@dataclass(frozen=True, slots=True)
class Context:
    """field_types: type words by dotted path, without `meta.`; let: what aliases stand for, none of itself.

    budget: when it ends, searches that may take long (MATCH without RE2) give up with an error. patience: what they may take together.
    """

    field_types: Mapping[str, str] = field(default_factory=dict)
    let: Mapping[str, ir.Expr] = field(default_factory=dict)
    plugins: Plugins = PROCESS
    budget: Budget = field(default_factory=Budget)
    patience: Patience = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "patience", Patience(self.budget))

    def bound(self, ref: ir.Ref) -> ir.Expr:
        """What an alias stands for. Raises PlanError."""
        if ref.name not in self.let:
            known = ", ".join(self.let) or "none"
            raise PlanError(f"No alias {ref.name!r} is bound by LET. Bound: {known}.").placed(ref.at)
        return self.let[ref.name]

    def resolved(self, expr: ir.Expr) -> ir.Expr:
        """An expression, with aliases of the whole of it replaced. Scores (`#0`) stay."""
        while isinstance(expr, ir.Ref) and not expr.name.startswith("#"):
            expr = self.bound(expr)
        return expr

    def hint(self, left: ir.Expr, right: ir.Expr) -> str | None:
        """The type that a comparison of two expressions is asked to go by: that of a field, else the word before a literal."""
        left, right = self.resolved(left), self.resolved(right)
        for side in (left, right):
            if declared := self.declared(side):
                return declared
        for side in (right, left):
            if isinstance(side, ir.Literal) and side.type_hint:
                return side.type_hint.lower()
        return None

    def declared(self, expr: ir.Expr) -> str | None:
        """The declared type of a metadata field, aliases replaced; None of anything else."""
        if not self.field_types:
            return None
        expr = self.resolved(expr)
        if not isinstance(expr, ir.Path) or not (steps := metadata_steps(expr)):
            return None
        word = self.field_types.get(".".join(steps))
        return word.lower() if word else None


def metadata_steps(path: ir.Path) -> tuple[str, ...] | None:
    """The keys that a path goes through in metadata, () for all of it; None if it reads none (`content`, `vec.…`)."""
    if path.root == "meta":
        return path.segments
    if path.root == "content" or (path.root == "vec" and path.segments):
        return None
    return (path.root, *path.segments)
