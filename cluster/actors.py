"""The one file that applies `ray.remote`: plain classes become actors here, and nowhere else."""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import ray
from ray.actor import ActorClass, ActorHandle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from cluster.building import CONTROL, ONE_THREAD, BuilderWork
from cluster.host import Host
from cluster.pauses import keep_short
from cluster.settings import HostSettings
from cluster.sockets import listening
from shards.writing import Calibrate, Report

PREFIX = "host-"
# Calls that may run at once, from all coordinators together: 2 searches, 2 details and the odd document from each of a few.
# The search threads are bounded by HostSettings.threads; waiting for a file to download costs a thread but no core.
MAX_CONCURRENCY = 16


def remote_host(cls: type) -> ActorClass:
    """A host class as an actor that always comes back, and listens on a socket for this machine's coordinators.

    Memory is declared when it is started and cores are shared with the encoders, hence 0.01 CPU (with 0 Ray may ignore the
    node affinity). Lost calls are never repeated: their time is over, and the coordinator has answered without them.
    """
    return ray.remote(
        num_cpus=0.01, max_restarts=-1, max_task_retries=0, max_concurrency=MAX_CONCURRENCY, concurrency_groups={CONTROL: 1}
    )(listening(cls, keep_short))


HostActor = remote_host(Host)


def remote_worker(cls: type, **options: Any) -> ActorClass:
    """A worker class of an indexing pool as an actor: restarted when killed, its calls repeated, so they must be idempotent."""
    return ray.remote(**{"num_cpus": 1, "max_restarts": -1, "max_task_retries": 3, **options})(cls)


BuilderActor = ray.remote(  # what it was at when it was killed, the next call does: nothing is repeated by itself
    num_cpus=0.01, max_restarts=-1, max_task_retries=0, concurrency_groups={CONTROL: 1}, runtime_env={"env_vars": ONE_THREAD}
)(BuilderWork)


def start_builders(
    n: int, settings: HostSettings, memory_bytes: int = 1 << 29, calibrator: Callable[[Report], Calibrate] | None = None
) -> list[ActorHandle]:
    """A pool of builders of spaces, wherever there is memory for them; they end with the process that started them.

    Their `hold` and `pid` are answered beside the work. calibrator: as `BuilderWork`.
    """
    actor = BuilderActor.options(memory=memory_bytes)
    return [actor.remote(settings, calibrator=calibrator) for _ in range(n)]


def stop_builder(actor: ActorHandle) -> None:
    """End one for good."""
    ray.kill(actor)


def settings_digest(settings: HostSettings) -> str:
    """Names what a host process runs with: its settings, and the code of the job that started it (Ray names a working directory
    by the hash of its content).
    """
    code = ray.get_runtime_context().runtime_env.get("working_dir") or ""
    return hashlib.blake2b(f"{settings.model_dump_json()}\0{code}".encode(), digest_size=4).hexdigest()


def host_name(node: str, settings: HostSettings) -> str:
    """The actor's name. The digest is part of it so that a coordinator never talks to a host of another store or older code."""
    return f"{PREFIX}{node}-{settings_digest(settings)}"


def start_host(node: str, settings: HostSettings, namespace: str, actor: ActorClass = HostActor) -> ActorHandle:
    """Gets or creates the host of a node; returns before its process runs. Blocks for one round trip to Ray's GCS.

    It is detached, so it outlives the coordinator that started it. The affinity is hard: killed, it comes back on the same node
    (measured: after 1 s); with the node gone it ends (ActorUnschedulableError), where a soft one would become that host's double
    on another node.
    """
    return actor.options(
        name=host_name(node, settings),
        namespace=namespace,
        lifetime="detached",
        get_if_exists=True,
        memory=settings.memory_bytes,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote(
        store_url=settings.store_url,
        store_options=settings.store_options,
        cache_dir=str(settings.cache_dir),
        cache_bytes=settings.cache_bytes,
        threads=settings.threads,
        models_dir=str(settings.models_dir) if settings.models_dir else None,
        endpoints=dict(settings.endpoints),
        modules=settings.plugins,
    )


def host_names(namespace: str, but: HostSettings | None = None) -> list[str]:
    """The hosts of a namespace, except those with the settings `but`."""
    actors = ray.util.list_named_actors(all_namespaces=True)
    names = [actor["name"] for actor in actors if actor["namespace"] == namespace and actor["name"].startswith(PREFIX)]
    return [name for name in names if but is None or not name.endswith(f"-{settings_digest(but)}")]


def stop_hosts(namespace: str, names: Iterable[str]) -> int:
    """Ends these hosts. Returns how many of them there were."""
    n_stopped = 0
    for name in names:
        try:
            ray.kill(ray.get_actor(name, namespace=namespace))
        except ValueError:  # it ended meanwhile
            continue
        n_stopped += 1
    return n_stopped
