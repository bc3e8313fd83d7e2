"""What an answer tells of a combined request: its sub-queries, the keys of its bridges, and what each hit has of which sub-query."""

from typing import Literal

from serve.edge import Edge, Printable


class Part(Edge):
    """What one sub-query says of a hit: bytes [start, end) that show it, evidence (nats) and E-value, as if it had been asked alone. Behind
    a bridge the hit's own `fused` and `evalue` are weaker than these, by what its key lacks."""

    name: str
    start: int
    end: int
    fused: float
    evalue: float


class SubAnswer(Edge):
    """What became of one sub-query. asked: as text. round: of calls to the shards, from 1, in which it was first asked; null where it was
    not, since the time ended. documents: in which it saw anything, among those that any sub-query found; evalue: of its best one."""

    name: str
    asked: Printable
    round: int | None
    verdict: Literal["strong", "weak", "none"]
    verdict_reason: str
    documents: int
    evalue: float | None


class BridgeKey(Edge):
    """A key that a bridge went over. hash, path: of the hit that gave it, null and "" for the request's own text; place: the metadata field
    that it stood in, or "text"; fused, evalue: the hit's, which limit what follows; null and 0 for the request's own text. part: the
    sub-query that was asked with it, null where it was not; reason: why not."""

    bridge: Printable
    key: Printable
    hash: str | None
    path: Printable
    place: str
    fused: float | None
    evalue: float
    part: str | None
    reason: str = ""


class CutAnswer(Edge):
    """What a cut did. depth: of how many documents it left the best, null where it left all; documents: that it left, of: how many.
    recall: the share of the corpus's own probes whose source is among the first `depth` of what the same layers find (an estimate, whose
    95 % interval is low to high, from so many probes); null where nobody knows. reason: why not, or what it leaves out."""

    cut: Printable
    depth: int | None
    documents: int
    of: int
    recall: float | None
    low: float | None
    high: float | None
    probes: int
    reason: str = ""


class Combined(Edge):
    """A combined request as it was understood and carried out. expression: the whole tree as text. rounds: calls to each shard's host.
    silent: operands of select that had no signal, as text, and why. notes: what else went otherwise than one may think. cuts: all of the
    tree, from left to right."""

    expression: Printable
    rounds: int
    parts: list[SubAnswer]
    keys: list[BridgeKey]
    silent: dict[str, str]
    notes: list[str]
    cuts: list[CutAnswer] = []
