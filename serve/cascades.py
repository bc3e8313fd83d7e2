"""Cuts as first stages of cascades: how deep each must go for a stated recall, and what recall it has, by the corpus's own probes. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from serve.algebra_schema import Cut, Operator, Search, operands
from serve.algebra_text import written
from serve.combined_schema import CutAnswer
from shards.cascades import DEPTHS, Recall
from shards.corpus_nulls import CorpusNulls

NOT_ASKED = "its search was not asked: the time budget ended"
NO_SEARCH = "recall is estimated of cuts of a search, not of what operators made"
BY_LISTS = "recall is estimated of rankings by evidence, with the weights that the corpus taught"
NO_PROBES = "no probe has tried these layers by themselves"
BESIDE = "by layers that have no probes, a document may stand higher"


@dataclass(frozen=True, slots=True)
class Stage:
    """What is known of a cut before anything was asked. recall: of what its search asks, None where nobody knows; reason: why not, or what
    it leaves out. depth: what `recall` of the cut comes to, None where nothing is cut for it."""

    recall: Recall | None
    reason: str
    depth: int | None = None


def cuts(node: Operator) -> Iterator[Cut]:
    """All cuts of a tree, from left to right."""
    if isinstance(node, Cut):
        yield node
    for inner in operands(node):
        yield from cuts(inner)


def stage(cut: Cut, spaces: Mapping[str, str] | None, nulls: CorpusNulls | None) -> Stage:
    """How deep a cut goes. spaces: kinds of nulls, "moments" or "rarity", of those that its search asks; None where it asks nothing."""
    fields = cut.cut
    if not isinstance(fields.of, Search):
        return Stage(None, NO_SEARCH)
    if fields.of.search.coupling.name != "evidence" or fields.of.search.weights:
        return Stage(None, BY_LISTS)
    if spaces is None:
        return Stage(None, NOT_ASKED)
    tried = [name for name, kind in spaces.items() if kind == "moments"]
    recall = nulls.recall_among(tried) if nulls is not None else None
    if recall is None:
        return Stage(None, NO_PROBES)
    reason = BESIDE if len(tried) < len(spaces) else ""
    if fields.recall is None:
        return Stage(recall, reason)
    depth = recall.depth_for(fields.recall)
    if depth is None:
        last = recall.at(DEPTHS[-1])
        reason = f"probes find {last.share:.0%} of what they seek among the first {DEPTHS[-1]}, {last.low:.0%} for sure: "
        reason += "no depth is known to have the recall asked for"
    return Stage(recall, reason, depth)


def told(cut: Cut, known: Stage, kept: tuple[int, int] | None) -> CutAnswer:
    """What an answer says of a cut. kept: documents that it has left, and of how many; None where it was not come to."""
    fields = cut.cut
    limits = [limit for limit in (fields.n, known.depth) if limit is not None]
    depth = min(limits, default=None)
    if kept is not None and kept[0] < min(kept[1], *limits or [kept[1]]):  # by E
        depth = kept[0]
    estimate = None if known.recall is None or depth is None else known.recall.at(depth)
    reason = known.reason
    if fields.recall is not None and known.depth is None:
        reason = f"{reason}; nothing was cut for it"
    return CutAnswer(
        cut=written(cut),
        depth=depth,
        documents=0 if kept is None else kept[0],
        of=0 if kept is None else kept[1],
        recall=None if estimate is None else round(estimate.share, 4),
        low=None if estimate is None else round(estimate.low, 4),
        high=None if estimate is None else round(estimate.high, 4),
        probes=0 if known.recall is None else known.recall.n_probes,
        reason=reason,
    )
