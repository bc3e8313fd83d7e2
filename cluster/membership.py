"""Which hosts there are and which of them may be asked: events in, actions out, no clock and no I/O of its own.

The life of a host, one per node:

    starting --answered--> ready --ping missed--> suspect --answered--> ready
                             |                       '--frozen_pings missed--> (Restart) restarting --answered--> ready
                             '--query or ping failed--> restarting; failed for good --> (Start) starting

Ready hosts get queries: calls to a dead actor wait in Ray's client until its process is back (RAY.md section 3), and queries must not
wait there with them. So the others are pinged every `probe_s`, queries go on without them, marked as partial, and the first ping that
comes back lets the host in again. Only a suspect one is still asked, where no ready host has a shard open: when all of them miss a ping
at once it is the machine, or this coordinator, that is slow.

Shards are placed on the hosts that are `serving`. The first hosts serve from the start, for nobody else could; one that comes
later joins when it is warm, so that adding a node makes no answer partial. A restart moves nothing. A host that has been away
for `start_timeout_s` is given up and the others take its shards, until it answers again.

Silence counts only while somebody listens: after a pause of this process's own (a suspended machine, a clock that jumped) hosts have as
much time as if it had not been, or it would give all of them up at once.

A query that missed its deadline is no proof (it may have had 1 ms): it only brings the next ping forward. A ping runs in a
concurrency group of its own, so a host busy with queries answers it, and a host that does not is frozen.
"""

from dataclasses import dataclass
from typing import Literal

from cluster.settings import ClusterSettings

MAX_START_PAUSE_S = 10.0

State = Literal["starting", "ready", "suspect", "restarting"]


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """The cluster's living nodes; those not listed are gone."""

    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Answered:
    """A ping came back. incarnation: names the host's process; it differs after every restart."""

    node: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class PingMissed:
    """A ping had no answer within its time."""

    node: str


@dataclass(frozen=True, slots=True)
class PingFailed:
    """A ping raised. for_good: Ray will not bring this actor back by itself."""

    node: str
    reason: str
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class QueryMissed:
    """A query had no answer within its time."""

    node: str


@dataclass(frozen=True, slots=True)
class QueryFailed:
    """A query found no living process. incarnation: the one it was sent to; of an older one it is no news."""

    node: str
    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class Warmed:
    """What Warm asked for is done, or could not be done."""

    node: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = NodesSeen | Answered | PingMissed | PingFailed | QueryMissed | QueryFailed | Warmed | Tick


@dataclass(frozen=True, slots=True)
class Start:
    """Get or create the node's host."""

    node: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Remove the host of a node that is gone or not wanted."""

    node: str


@dataclass(frozen=True, slots=True)
class Restart:
    """Kill the host's process; Ray starts it again on its node."""

    node: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask the host whether it is alive; exactly one of Answered, PingMissed and PingFailed must follow."""

    node: str


@dataclass(frozen=True, slots=True)
class Abandon:
    """Queries under way to this host will not be answered: let their callers go on without it."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Warm:
    """The host's process is new and holds nothing: let it open its shards before queries need them."""

    node: str


Action = Start | Stop | Restart | Ping | Abandon | Warm


@dataclass(slots=True)
class HostState:
    """One host as this coordinator sees it.

    since: when `state` began. missed: pings in a row without answer. killed: the incarnation that was told to die; what it
    still answers does not count. next_ping: not before. pinging: a ping is under way, so no other is sent.
    """

    state: State
    since: float
    reason: str
    next_ping: float
    last_seen: float
    joined: bool = False
    missed: int = 0
    failed_starts: int = 0
    pinging: bool = False
    incarnation: str = ""
    killed: str = ""

    def change(self, state: State, now: float, reason: str) -> None:
        self.state, self.since, self.reason = state, now, reason


class Membership:
    """The state machine. Feed it with `handle`; read the rest."""

    def __init__(self, settings: ClusterSettings):
        self._settings = settings
        self._hosts: dict[str, HostState] = {}
        self._now: float | None = None  # of the last event

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that have or get a host, whatever its state, by name."""
        return tuple(sorted(self._hosts))

    @property
    def serving(self) -> tuple[str, ...]:
        """Nodes on whose hosts shards are placed, by name."""
        return tuple(node for node in self.nodes if self._hosts[node].joined)

    def ready(self, node: str) -> bool:
        host = self._hosts.get(node)
        return host is not None and host.state == "ready"

    def reason(self, node: str) -> str:
        """Why a host is not asked, for people; "" if it is."""
        host = self._hosts.get(node)
        if host is None:
            return "no host on this node"
        return "" if host.state == "ready" else f"{host.state}: {host.reason}"

    def state(self, node: str) -> State | None:
        host = self._hosts.get(node)
        return host.state if host else None

    def incarnation(self, node: str) -> str:
        """The process that answered last; "" before the first answer."""
        host = self._hosts.get(node)
        return host.incarnation if host else ""

    def handle(self, event: Event, now: float) -> list[Action]:
        """What is to be done after `event`. now: seconds of a monotonic clock."""
        self._wake(now)
        match event:
            case NodesSeen(nodes=nodes):
                return self._seen(nodes, now)
            case Tick():
                return self._due(now)
        host = self._hosts.get(event.node)
        if host is None:  # news of a host that was stopped meanwhile
            return []
        match event:
            case Answered(incarnation=incarnation):
                return self._answered(event.node, host, incarnation, now)
            case PingMissed():
                return self._ping_missed(event.node, host, now)
            case PingFailed(reason=reason, for_good=for_good):
                return self._ping_failed(event.node, host, reason, for_good, now)
            case Warmed():
                host.joined = host.joined or host.state == "ready"
                return []
            case QueryMissed():
                host.next_ping = min(host.next_ping, now)
                return self._due(now)
            case QueryFailed(incarnation=incarnation, reason=reason):
                if host.state not in ("ready", "suspect") or incarnation != host.incarnation:
                    return []
                host.change("restarting", now, reason)
                host.next_ping = now
                return [Abandon(event.node, reason), *self._due(now)]
        raise AssertionError(f"unknown event {event!r}")

    def _wake(self, now: float) -> None:
        """Time in which this process did not run (suspended, or starved) says nothing about hosts: nobody listened to them."""
        slept_s = now - (now if self._now is None else self._now)
        self._now = now
        if slept_s >= self._settings.heartbeat_s + self._settings.ping_timeout_s:  # a Tick comes every probe_s
            for host in self._hosts.values():
                host.last_seen += slept_s
                host.since += slept_s

    def _seen(self, nodes: frozenset[str], now: float) -> list[Action]:
        actions: list[Action] = []
        for node in self.nodes:
            if node not in nodes:
                del self._hosts[node]
                actions += [Abandon(node, "its node left the cluster"), Stop(node)]
        first = not self.serving
        # Hosts that exist stay. A free place goes to the first name, so that coordinators choose the same nodes.
        for node in sorted(nodes - self._hosts.keys())[: max(self._settings.max_hosts - len(self._hosts), 0)]:
            self._hosts[node] = HostState("starting", now, "its process is being started", now, last_seen=now, joined=first)
            actions.append(Start(node))
        return actions

    def _due(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for node, host in self._hosts.items():
            if now - host.last_seen >= self._settings.start_timeout_s:
                host.joined = False
            if not host.pinging and now >= host.next_ping:
                host.pinging = True
                actions.append(Ping(node))
        return actions

    def _answered(self, node: str, host: HostState, incarnation: str, now: float) -> list[Action]:
        host.pinging = False
        host.missed = 0
        host.last_seen = now
        if incarnation == host.killed:  # its last words: it was told to die and will
            host.next_ping = now + self._settings.probe_s
            return self._restart_if_overdue(node, host, now)
        new = incarnation != host.incarnation
        host.incarnation, host.killed, host.failed_starts = incarnation, "", 0
        host.next_ping = now + self._settings.heartbeat_s
        if host.state != "ready":
            host.change("ready", now, "")
        # One that was given up and comes back with the same process joins like a new one.
        return [Warm(node)] if new or not host.joined else []

    def _ping_missed(self, node: str, host: HostState, now: float) -> list[Action]:
        host.pinging = False
        host.missed += 1
        host.next_ping = now + self._settings.probe_s
        if host.state == "ready":
            host.change("suspect", now, "")
        if host.state == "suspect":
            host.reason = f"{host.missed} pings without answer"
            if host.missed >= self._settings.frozen_pings:
                return self._restart(node, host, now)
        return self._restart_if_overdue(node, host, now)

    def _ping_failed(self, node: str, host: HostState, reason: str, for_good: bool, now: float) -> list[Action]:
        host.pinging = False
        host.missed = 0
        host.next_ping = now + self._settings.probe_s
        if for_good:
            # Doubling, so that a node without room or a host that cannot start does not keep the cluster busy.
            host.next_ping = now + min(self._settings.probe_s * 2**host.failed_starts, MAX_START_PAUSE_S)
            host.failed_starts += 1
            host.change("starting", now, reason)
            return [Abandon(node, reason), Start(node)]
        if host.state in ("ready", "suspect"):
            host.change("restarting", now, reason)
            return [Abandon(node, reason)]
        host.reason = reason
        return self._restart_if_overdue(node, host, now)

    def _restart_if_overdue(self, node: str, host: HostState, now: float) -> list[Action]:
        if host.state not in ("starting", "restarting") or now - host.since < self._settings.start_timeout_s:
            return []
        host.reason = f"{self._settings.start_timeout_s:g} s without an answer"
        return self._restart(node, host, now)

    def _restart(self, node: str, host: HostState, now: float) -> list[Action]:
        host.killed = host.incarnation
        host.change("restarting", now, f"killed after {host.reason}")
        host.missed = 0
        return [Abandon(node, host.reason), Restart(node)]
