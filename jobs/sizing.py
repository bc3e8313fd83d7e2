"""How many actors an index job starts, and what each may use: decided here, started in `jobs/pool.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

MARGIN_CPUS = 0.15  # of each actor's cores are left to the hosts (0.01) and the coordinator (0.1) of a node with two
ACTOR_BYTES = 3 << 29  # a segment's text, 256 MB, several times over, and a small model
ACTORS_PER_GPU = 2  # one cuts, analyses and writes while the other's passages are on the GPU
LOCAL_TASKS = 2  # up to so many tasks run in the driver: an actor takes longer to start (1 to 2 s) than they take
LOCAL_DOCUMENTS = 64  # of them, where a GPU waits: more are worth its actor's start


@dataclass(frozen=True, slots=True)
class Node:
    """What a node of the cluster has: whole cores and GPUs, bytes of memory."""

    cores: int
    gpus: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Actors:
    """What to start: n actors, each with so many cores for its threads, and that share of a GPU."""

    n: int
    threads: int
    gpu_share: float = 0.0

    @property
    def num_cpus(self) -> float:
        """What Ray is to set aside for one."""
        return self.threads - MARGIN_CPUS


def in_driver(n_tasks: int, n_documents: int, on_gpu: bool) -> bool:
    """Whether tasks are done sooner by the driver than by actors that must be started."""
    return n_tasks <= LOCAL_TASKS and (not on_gpu or n_documents <= LOCAL_DOCUMENTS)


def actors(n_tasks: int, nodes: Sequence[Node], on_gpu: bool) -> Actors:
    """As many actors as there are tasks and the cluster has room for, each with as many cores as then are left for it.

    Room is a core and `ACTOR_BYTES` of memory, on GPUs half a GPU besides; at least one is started, whatever the cluster says it
    has. on_gpu: whether the tasks are faster there; where no node has any, they run on cores.
    """
    fitting = [node for node in nodes if node.gpus] if on_gpu else []
    share = 1 / ACTORS_PER_GPU if fitting else 0.0
    fitting = fitting or list(nodes)
    n = max(min(n_tasks, sum(_room(node, 1, share) for node in fitting)), 1)
    most = max((node.cores for node in fitting), default=1)
    threads = next((t for t in range(most, 0, -1) if sum(_room(node, t, share) for node in fitting) >= n), 1)
    return Actors(n, threads, share)


def _room(node: Node, threads: int, share: float) -> int:
    """How many actors of so many threads fit on a node."""
    by_memory = max(node.memory_bytes // ACTOR_BYTES, 1)
    return min(node.cores // threads, by_memory, int(node.gpus / share) if share else node.cores)
