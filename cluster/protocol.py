"""Who answers a plan: one interface for this process (cluster/local.py), a Ray cluster (cluster/searcher.py) and a test's fake.

Every method names the generation it wants and the number of shards that generation has; nothing depends on what was asked before.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from cluster.host import DocumentText, Opened
from shards.nlql.answers import RowAnswer
from shards.nlql.plan import RowPlan
from shards.plan import Everything, Plan, Predicate, SpaceQuery
from shards.types import EXCERPT_BYTES, Candidates, Detail, LinesAround

Spans = Mapping[bytes, tuple[tuple[int, int], ...]]  # content hash -> the spans to show, UTF-8 bytes of the rendition
EVERYWHERE: Predicate = Everything()


class Searcher(Protocol):
    """Answers plans over all shards of a generation, within the caller's time."""

    async def search(self, corpus: str, generation: int, n_shards: int, plan: Plan) -> list[Candidates]:
        """One answer per host. Their coverage names each space of the plan on each of the `n_shards` shards exactly once, so a
        shard that could not be asked is there too: state "late", "missing" or "failed", and why. Returns within
        `plan.budget_s`. Raises only TryAgain, before any work was done: Overloaded, or Unavailable where no host is up.
        """

    async def rows(self, corpus: str, generation: int, n_shards: int, plan: RowPlan) -> list[RowAnswer]:
        """One answer per host, for `shards.nlql.merging.merge_rows`. Coverage as of `search`: of the rows themselves, and of each space
        that is asked. What a row raises is in the answers. Returns within `plan.budget_s`. Raises only TryAgain, before any work was done.
        """

    async def details(
        self,
        corpus: str,
        generation: int,
        n_shards: int,
        spans: Spans,
        words: tuple[str, ...] = (),
        excerpt_size: int | LinesAround = EXCERPT_BYTES,
        where: Predicate = EVERYWHERE,
        budget_s: float = 10.0,
        queries: Sequence[SpaceQuery] = (),
    ) -> dict[bytes, Detail]:
        """Entries and excerpts by content hash; what could not be had in time is left out. Raises only Overloaded.

        queries: of derived spaces, for the texts that they found the documents by.
        """

    async def document(
        self,
        corpus: str,
        generation: int,
        n_shards: int,
        document: bytes,
        start: int = 0,
        end: int | None = None,
        budget_s: float = 10.0,
    ) -> DocumentText:
        """A span of a rendition by its content hash. Raises NotFound, or StoreError when no host could read it in time."""

    async def warm(
        self, corpus: str, generation: int, n_shards: int, replicas: int | None = None, size_bytes: Sequence[int] | None = None
    ) -> Opened:
        """Opens the shards before queries need them, and from then on keeps each open on so many hosts (None: as the settings say), as
        far as there are hosts. size_bytes: of each shard, for hosts whose memory is bounded. Returns what could be opened. The first
        call of all waits for the hosts, as long as they may take to start.
        """

    async def status(self) -> dict[str, Any]:
        """The hosts: {"hosts": [{"node", "state", "reason", ...what Host.status says}]}. Of several hosts also "routing" (what became of
        calls) and "placement" (by corpus, where its shards are to be and where they are open).
        """
