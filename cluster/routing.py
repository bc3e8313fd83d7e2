"""Which host is asked for which shards of a query: by what hosts have open, by their load, in few calls, and past those that fail.

Pure: what was seen goes in with its time, choices come out. A shard is asked of

1. a host that it is placed on and that has it open, else
2. any host that has it open: the old owner, until the new one is warm, else
3. a host that it is placed on, which opens it for this query;

and of hosts that have just missed a ping only where no other has it: most of them are only slow.

So routes move when a new owner is ready and not before, in whatever order nodes, replicas, shard counts and generations change, and no
table has to be told to anybody: what is open comes with every ping's answer.

Among several, the one that would be done first: what it has in hand, and what this query adds. A further call costs what some shards
take, so small shards are asked of few hosts, and large ones of many.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cluster.circuit import Breaker, Circuit
from cluster.hedging import Hedging
from cluster.settings import ClusterSettings

# One more call: a Ray actor call's CPU on both sides, and one over the socket to this node's host (RAY.md section 1).
FAR_CALL_S, NEAR_CALL_S = 0.0013, 0.0003
UNKNOWN_S = 0.002  # a shard's part of a query, before any host has told what it takes
REMEMBERED_S = 60.0  # in which a new process has opened again what the last one had
SMOOTHING = 0.3  # of what hosts tell once a second

Placed = Sequence[Sequence[str]]  # by shard: the nodes it is placed on, preferred first
Outcome = Literal["answered", "failed", "late", "given up"]


@dataclass(slots=True)
class Call:
    """One call under way. work_s: estimated."""

    node: str
    kind: tuple[str, str, bool]  # corpus, what is asked, whether the host is near
    begun: float
    work_s: float


@dataclass(slots=True)
class HostLoad:
    """One host as this coordinator sees it. calls, failed: since its process was first seen; usual_s: of a call, smoothed.

    work_s: estimated, of `outstanding` calls. others_s: what other coordinators' queries take, by the last ping. shards: what was
    told last of how many shards it searched and how long, by corpus.
    """

    breaker: Breaker
    incarnation: str = ""
    outstanding: int = 0
    work_s: float = 0.0
    others_s: float = 0.0
    calls: int = 0
    failed: int = 0
    usual_s: float = 0.0
    shards: dict[str, tuple[int, float]] = field(default_factory=dict)


@dataclass(slots=True)
class _Opened:
    """What a process has open: (corpus, generation) -> shard -> how many shards there are, and when this was learnt.

    before: what the process before it on this node had, whose files its disk still holds, for `REMEMBERED_S` after `since`.
    """

    incarnation: str
    shards: dict[tuple[str, int], dict[int, tuple[int, float]]] = field(default_factory=dict)
    before: dict[tuple[str, int], dict[int, tuple[int, float]]] = field(default_factory=dict)
    since: float | None = None


class Routing:
    """One coordinator's choices. near: its own node. Every `now` is seconds of one monotonic clock; every `up` maps nodes whose hosts
    may be asked to the incarnation of their process. version: changes whenever something is opened or closed.
    """

    def __init__(self, settings: ClusterSettings, near: str = ""):
        self._settings, self._near = settings, near
        self._opened: dict[str, _Opened] = {}
        self._hosts: dict[str, HostLoad] = {}
        self._per_shard_s: dict[str, float] = {}  # by corpus
        self._hedging = Hedging(settings.hedge_quantile, settings.hedge_share)
        self.version = 0

    # --- what is open ------------------------------------------------------------------------------------------------------

    def opened(
        self, corpus: str, generation: int, n_shards: int, node: str, incarnation: str, shards: Iterable[int], now: float
    ) -> None:
        """A process has opened these shards: it was warmed, or has answered."""
        known = self._of(node, incarnation).shards.setdefault((corpus, generation), {})
        for shard in shards:
            if shard not in known:
                self.version += 1
            known[shard] = n_shards, now

    def told(self, node: str, incarnation: str, rows: Iterable[Mapping[str, Any]], asked: float) -> None:
        """All that a process has open, as it said. rows: of `Host.status`. asked: when; what was opened later stays."""
        found: dict[tuple[str, int], dict[int, tuple[int, float]]] = {}
        for row in rows:
            found.setdefault((row["corpus"], row["generation"]), {})[row["shard"]] = row["of"], asked
        known = self._of(node, incarnation)
        for key, shards in known.shards.items():
            for shard, (n_shards, at) in shards.items():
                if at > asked:
                    found.setdefault(key, {})[shard] = n_shards, at
        known.since = asked if known.since is None else known.since
        if known.before and asked - known.since > REMEMBERED_S:
            known.before = {}
            self.version += 1
        if {key: set(shards) for key, shards in found.items()} != {key: set(shards) for key, shards in known.shards.items() if shards}:
            self.version += 1
        known.shards = found

    def forget(self, node: str) -> None:
        """Its node has left."""
        self.version += self._opened.pop(node, None) is not None
        self._hosts.pop(node, None)

    def held(self, corpus: str) -> dict[str, tuple[tuple[int, int], ...]]:
        """What each node has open of a corpus, of any generation: (how many shards there are, which), ascending.

        A process that is new counts as what it replaced: it is to open the same again, and not another node, which would have to
        load it.
        """
        held = {}
        for node, opened in sorted(self._opened.items()):
            all_tables = (*opened.shards.items(), *opened.before.items())
            tables = (shards for (name, _), shards in all_tables if name == corpus)
            if pairs := {(n_shards, shard) for shards in tables for shard, (n_shards, _) in shards.items()}:
                held[node] = tuple(sorted(pairs))
        return held

    def has_open(self, node: str, incarnation: str, corpus: str, generation: int) -> Collection[int]:
        """The shards of a generation that a process has open."""
        opened = self._opened.get(node)
        if opened is None or opened.incarnation != incarnation:
            return ()
        return opened.shards.get((corpus, generation), ())

    def to_open(self, corpus: str, generation: int, placed: Placed, up: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
        """By node, the shards that are placed on it and that it does not have open."""
        lacking: dict[str, list[int]] = {}
        for shard, nodes in enumerate(placed):
            for node in nodes:
                if node in up and shard not in self.has_open(node, up[node], corpus, generation):
                    lacking.setdefault(node, []).append(shard)
        return {node: tuple(shards) for node, shards in sorted(lacking.items())}

    def settled(self, corpus: str, generation: int, placed: Placed, up: Mapping[str, str]) -> bool:
        """Whether every shard is open on every host that it is placed on."""
        return all(nodes and all(node in up for node in nodes) for nodes in placed) and not self.to_open(corpus, generation, placed, up)

    def _of(self, node: str, incarnation: str) -> _Opened:
        known = self._opened.get(node)
        if known is None or known.incarnation != incarnation:
            tables = {} if known is None else {key: known.before.get(key, {}) | shards for key, shards in known.shards.items()}
            before = tables if known is None else known.before | tables
            known = self._opened[node] = _Opened(incarnation, before=before)
            self.version += 1
        return known

    # --- choosing ----------------------------------------------------------------------------------------------------------

    def choose(
        self,
        corpus: str,
        generation: int,
        placed: Placed,
        up: Mapping[str, str],
        now: float,
        shards: Iterable[int] | None = None,
        full: Collection[str] = (),
        avoid: Collection[str] = (),
        doubted: Collection[str] = (),
    ) -> dict[str, tuple[int, ...]]:
        """By node, the shards to ask of it; each of `shards` (None: all) once. Under "": those that nobody can be asked for.

        full: hosts that take no more queries; one is chosen only where all that could be are full. avoid: hosts never to choose.
        doubted: of `up`, those that have missed a ping.
        """
        opened = {node: self.has_open(node, incarnation, corpus, generation) for node, incarnation in up.items() if node not in avoid}
        shut = {node for node in opened if node in self._hosts and not self._hosts[node].breaker.lets_through(now)}
        wanted = range(len(placed)) if shards is None else shards
        shut.update(node for node in doubted if node in opened)
        options = [(self._options(shard, placed[shard], opened, doubted), shard) for shard in wanted]
        options.sort(key=lambda item: (len(item[0]), item[1]))  # those with least choice first
        per_shard_s = self._per_shard_s.get(corpus, UNKNOWN_S)
        done_s: dict[str, float] = {}  # by host that is asked: what it will have in hand
        routes: dict[str, list[int]] = {}
        for nodes, shard in options:
            best, best_rank = "", (True, True, 0.0)
            for node in nodes:
                at = done_s[node] if node in done_s else self._busy_s(node) + (NEAR_CALL_S if node == self._near else FAR_CALL_S)
                rank = node in full, node in shut, at
                if not best or rank < best_rank:  # ties: the one that is preferred
                    best, best_rank = node, rank
            routes.setdefault(best, []).append(shard)
            done_s[best] = (done_s[best] if best in done_s else self._busy_s(best)) + per_shard_s
        return {node: tuple(sorted(given)) for node, given in sorted(routes.items())}

    def _options(
        self, shard: int, nodes: Sequence[str], opened: Mapping[str, Collection[int]], doubted: Collection[str]
    ) -> Sequence[str]:
        owners = [node for node in nodes if shard in opened.get(node, ())]
        if sure := [node for node in owners if node not in doubted]:
            return sure
        others = [node for node, shards in opened.items() if shard in shards]
        if sure := [node for node in others if node not in doubted]:
            return sure
        return owners or others or [node for node in nodes if node in opened]

    def _busy_s(self, node: str) -> float:
        host = self._hosts.get(node)
        return host.work_s + host.others_s if host else 0.0

    # --- calls -------------------------------------------------------------------------------------------------------------

    def began(self, node: str, corpus: str, method: str, n_shards: int, now: float, hedge: bool = False) -> Call:
        """A call is made; `ended` must follow."""
        host = self.host(node)
        work_s = n_shards * self._per_shard_s.get(corpus, UNKNOWN_S)
        host.outstanding += 1
        host.work_s += work_s
        host.breaker.began(now)
        if not hedge:
            self._hedging.began()
        return Call(node, (corpus, method, node == self._near), now, work_s)

    def ended(self, call: Call, outcome: Outcome, now: float) -> None:
        """A call has ended. given up: nobody waits for it any more. late: its time was over, which counts as a failure of the host
        only if others would have been done.
        """
        host = self.host(call.node)
        host.outstanding -= 1
        host.work_s = max(host.work_s - call.work_s, 0.0) if host.outstanding > 0 else 0.0
        host.calls += 1
        seconds = now - call.begun
        usual_late_s = self._hedging.after_s(call.kind)
        self._hedging.took(call.kind, seconds)
        match outcome:
            case "answered":
                host.usual_s += (seconds - host.usual_s) * (0.1 if host.usual_s else 1.0)
                host.breaker.succeeded()
            case "given up":
                host.breaker.given_up()
            case "late" if usual_late_s is None or seconds < usual_late_s:
                host.breaker.given_up()
            case _:
                host.failed += 1
                host.breaker.failed(now)

    def blame(self, node: str, now: float) -> None:
        """A host could not do what another then did."""
        host = self.host(node)
        host.failed += 1
        host.breaker.failed(now)

    def hedge_after_s(self, corpus: str, method: str, node: str) -> float | None:
        """Seconds after which such a call to a host is late, and another replica may be asked as well; None: too little is known."""
        return self._hedging.after_s((corpus, method, node == self._near))

    def may_hedge(self) -> bool:
        """Whether one more hedge is within their share of calls; it is then counted."""
        return self._hedging.take()

    # --- hosts -------------------------------------------------------------------------------------------------------------

    def reported(self, node: str, incarnation: str, load: Mapping[str, Any]) -> None:
        """What a host said of its work. load: of `Host.status`; {} from a host that says nothing."""
        host = self.host(node)
        if host.incarnation != incarnation:
            host.incarnation, host.shards, host.others_s = incarnation, {}, 0.0
            host.calls = host.failed = 0
            host.breaker.succeeded()  # whatever the last process did
        for corpus, done in load.get("by_corpus", {}).items():
            n_before, busy_before_s = host.shards.get(corpus, (0, 0.0))
            host.shards[corpus] = done["shards"], done["busy_s"]
            if (n := done["shards"] - n_before) > 0:
                took_s = max(done["busy_s"] - busy_before_s, 0.0) / n
                known_s = self._per_shard_s.get(corpus)
                self._per_shard_s[corpus] = took_s if known_s is None else known_s + SMOOTHING * (took_s - known_s)
        in_hand = load.get("running", 0) + load.get("waiting", 0)
        each_s = load.get("busy_s", 0.0) / max(load.get("searches", 0), 1)
        host.others_s = max(in_hand - host.outstanding, 0) * each_s

    def host(self, node: str) -> HostLoad:
        """What is known of a host."""
        if node not in self._hosts:
            self._hosts[node] = HostLoad(Breaker(self._settings.circuit_failures, self._settings.circuit_pause_s))
        return self._hosts[node]

    def circuit(self, node: str, now: float) -> Circuit:
        """Whether a host is asked as a rule ("closed"), only where nobody else can be ("open"), or on trial ("half-open")."""
        return self._hosts[node].breaker.state(now) if node in self._hosts else "closed"
