"""What an answer says of what was not looked at, and how a search is made: as it crosses HTTP."""

from typing import Annotated

from pydantic import Field

from serve.edge import Edge, Printable


class Unseen(Edge):
    """A space that did not look at all of the scope. state: of the worst of its shards (`LayerStatus`), or "unasked". covered, total: over
    all shards; total 0 where nobody was asked. change: the share of the first hits that it may be expected to change, had it looked."""

    layer: str
    state: str
    covered: int
    total: int
    reason: Printable
    change: float


class Certificate(Edge):
    """Whether more could still come. final: nothing was left out that could change these hits: all that was asked looked at all of its
    scope, or what is left cannot reach them. exact_to: the first so many hits stand where they would stand if all had looked everywhere.
    could_change: the share of the first hits that would be expected to be others (an estimate, from what each space has changed in
    this corpus's searches, or counts). at_most: nats that what is unseen can add to a document at most (a bound, from null models).
    unseen: by space; because: in words."""

    final: bool
    exact_to: Annotated[int, Field(ge=0)]
    could_change: Annotated[float, Field(ge=0, le=1)]
    at_most: Annotated[float, Field(ge=0)]
    unseen: list[Unseen] = []
    because: Printable


class PlannedSpace(Edge):
    """A space as the planner saw it. round: in which it was asked, from 1; null: in none. expected_ms: what it was expected to take, with
    its question; took_ms: what it took; change: the share of the first hits that it was expected to change; reason: why it was not
    asked."""

    layer: str
    round: int | None
    expected_ms: float
    took_ms: float | None = None
    change: float
    reason: Printable = ""


class SearchPlan(Edge):
    """How a search went, with `explain`. rounds: calls of all hosts; stopped: why there were no more."""

    goal: str
    rounds: int
    spaces: list[PlannedSpace]
    stopped: Printable
