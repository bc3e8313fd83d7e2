"""Which corpora are served, by how many replicas, and where their shards are to be: what a coordinator wants of the hosts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cluster.placement import Node
from cluster.placing import KEPT, Done, Placing, Wish, Work
from cluster.routing import Routing
from cluster.settings import ClusterSettings
from shards.plan import Plan

AGAIN_S = 5.0  # until a host that could not open a shard is asked to try once more


@dataclass(slots=True)
class Wanted:
    """What is wanted of a corpus. replicas: None where the settings say. plan: of those asked lately, one with most spaces.
    size_bytes: of its shards; None: not known.
    """

    generation: int
    n_shards: int
    replicas: int | None = None
    plan: Plan | None = None
    size_bytes: tuple[int, ...] | None = None


class Table:
    """One coordinator's. weights: what share of the shards each of these nodes should serve. memory: the bytes that shards may take of
    each; of a node that is not named, as many as there are. aside: see `Placing`. Pure: every `now` is passed.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        routing: Routing,
        weights: Callable[[Iterable[str]], Mapping[str, float]] = lambda nodes: dict.fromkeys(nodes, 1.0),
        memory: Callable[[Iterable[str]], Mapping[str, int]] = lambda _nodes: {},
        aside: Callable[[Work, Done], None] | None = None,
    ):
        self._settings, self._routing, self._weights, self._memory = settings, routing, weights, memory
        self._placing = Placing(routing, aside)
        self._wishes: dict[tuple[str, int, tuple[str, ...]], tuple[tuple[Any, ...], Wish]] = {}  # the last ones, with what they are made of
        self._wanted: dict[str, Wanted] = {}
        # By node and corpus: which process was last told to open which shards of which generation, and when.
        self._told: dict[tuple[str, str], tuple[str, int, frozenset[int], float]] = {}

    def wants(
        self, corpus: str, generation: int, n_shards: int, replicas: int | None, size_bytes: Sequence[int] | None = None
    ) -> None:
        """This generation is served from now on, so often. size_bytes: of each shard; None: they are not bounded by memory."""
        sizes = None if size_bytes is None else tuple(size_bytes)
        before = self._wanted.get(corpus)
        plan = before.plan if before else None
        if before is None or generation >= before.generation:
            self._wanted[corpus] = Wanted(generation, n_shards, replicas, plan, sizes)
        else:
            before.replicas = replicas

    def asked(self, corpus: str, generation: int, n_shards: int, plan: Plan | None) -> None:
        """A query for a generation. plan: None where it is none to warm a process with."""
        wanted = self._wanted.get(corpus)
        if wanted is None:
            wanted = self._wanted[corpus] = Wanted(generation, n_shards)
        elif generation > wanted.generation:
            wanted.generation, wanted.n_shards, wanted.size_bytes = generation, n_shards, None
        if plan is not None and (wanted.plan is None or len(plan.queries) >= len(wanted.plan.queries)):
            wanted.plan = plan

    def replicas(self, corpus: str) -> int:
        """How many hosts are to serve each shard, as far as there are hosts."""
        wanted = self._wanted.get(corpus)
        return (wanted.replicas if wanted else None) or self._settings.replicas

    def recent(self) -> list[tuple[str, int, int, Plan | None]]:
        """Corpus, generation, number of shards and a query to try, of all that is served."""
        return [(corpus, w.generation, w.n_shards, w.plan) for corpus, w in sorted(self._wanted.items())]

    def placed(self, corpus: str, n_shards: int, nodes: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """By shard, the nodes it is placed on. nodes: that serve, by name. Worked out anew only where something was closed, or
        opened that it does not want; where that takes long, what held before holds meanwhile.
        """
        return self._placing.layout(self._wish(corpus, n_shards, nodes)).on

    def is_placed(self, corpus: str, n_shards: int, nodes: tuple[str, ...]) -> bool:
        """Whether `placed` gives what follows from all that is known, and not what did before."""
        return self._placing.is_current(self._wish(corpus, n_shards, nodes))

    def _wish(self, corpus: str, n_shards: int, nodes: tuple[str, ...]) -> Wish:
        key, sizes = (corpus, n_shards, nodes), self._sizes(corpus, n_shards)
        replicas, weights, room = self.replicas(corpus), self._weights(nodes), {} if sizes is None else self._room(corpus, nodes)
        given = replicas, weights, sizes, room
        before = self._wishes.get(key)
        if before is not None and before[0] == given:  # asked for with every query: nodes are not compared one by one
            return before[1]
        known = tuple(Node(name, weight, room.get(name)) for name, weight in weights.items())
        wish = Wish(key, known, replicas, sizes)
        if len(self._wishes) > KEPT:
            self._wishes.clear()
        self._wishes[key] = given, wish
        return wish

    def _sizes(self, corpus: str, n_shards: int) -> tuple[int, ...] | None:
        """Bytes of each shard; of another number of shards than is wanted, as if all were alike."""
        wanted = self._wanted.get(corpus)
        if wanted is None or wanted.size_bytes is None or len(wanted.size_bytes) == n_shards:
            return None if wanted is None else wanted.size_bytes
        return (sum(wanted.size_bytes) // n_shards + 1,) * n_shards

    def _room(self, corpus: str, nodes: tuple[str, ...]) -> dict[str, int]:
        """What nodes have for a corpus. Corpora take memory in the order of their names: if each looked at what all others have now, two
        that do not fit together would make room for one another for ever.
        """
        room = dict(self._memory(nodes))
        for other, wanted in sorted(self._wanted.items()):
            if other < corpus and wanted.size_bytes is not None:
                for size, on in zip(wanted.size_bytes, self.placed(other, wanted.n_shards, nodes), strict=True):
                    for node in on:
                        if node in room:
                            room[node] = max(room[node] - size, 0)
        return room

    def due(self, nodes: tuple[str, ...], up: Mapping[str, str], now: float) -> Iterator[tuple[str, str, int, int, tuple[int, ...]]]:
        """(node, corpus, generation, number of shards, shards) that hosts are to be told to open or to keep open."""
        for corpus, wanted in sorted(self._wanted.items()):
            placed = self.placed(corpus, wanted.n_shards, nodes)
            lacking, held = self._routing.to_open(corpus, wanted.generation, placed, up), self._routing.held(corpus)
            for node, incarnation in up.items():
                shards = tuple(shard for shard, on in enumerate(placed) if node in on)
                if not shards and node not in held:  # one that is to hold nothing any more is told so, or it would never let go
                    continue
                process, generation, told, at = self._told.get((node, corpus), ("", 0, frozenset(), 0.0))
                patience_s = AGAIN_S if node in lacking else self._settings.renew_s
                news = (process, generation) != (incarnation, wanted.generation) or not told.issuperset(lacking.get(node, ()))
                if news or now - at >= patience_s:
                    yield node, corpus, wanted.generation, wanted.n_shards, shards

    def tell(self, node: str, incarnation: str, corpus: str, generation: int, shards: Iterable[int], now: float) -> None:
        """A host is being told to open these shards."""
        self._told[node, corpus] = incarnation, generation, frozenset(shards), now

    def status(self, nodes: tuple[str, ...], up: Mapping[str, str]) -> dict[str, Any]:
        """By corpus: what is wanted, where shards are to be, and where they are open."""
        told = {}
        for corpus, wanted in sorted(self._wanted.items()):
            wish = self._wish(corpus, wanted.n_shards, nodes)
            found = self._placing.layout(wish)
            placed = found.on
            opened = {node: self._routing.has_open(node, process, corpus, wanted.generation) for node, process in up.items()}
            told[corpus] = {
                "generation": wanted.generation,
                "wanted": self.replicas(corpus),
                "shards": [list(on) for on in placed],
                "open": [[node for node, shards in opened.items() if shard in shards] for shard in range(wanted.n_shards)],
                "short": [asdict(short) for short in found.short],
                "settled": self._placing.is_current(wish) and self._routing.settled(corpus, wanted.generation, placed, up),
            }
        return told
