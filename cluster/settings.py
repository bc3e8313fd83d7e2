"""What the cluster lets one set. jobs/settings.py fills it in; nothing below reads files or the environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from shards.endpoint_settings import EndpointSettings


class HostSettings(BaseModel):
    """What every host process is started with. A running host with other settings is replaced."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    store_url: str
    store_options: dict[str, Any] = {}
    cache_dir: Path  # on each node; hosts of one machine may share it
    cache_bytes: Annotated[int, Field(ge=0)] = 20 * 2**30
    models_dir: Path | None = None  # on each node; None: ~/.cache/sondage/models
    endpoints: Mapping[str, EndpointSettings] = {}  # OpenAI-compatible servers, by the name that layer specs give them
    threads: Annotated[int, Field(ge=1)] = 2  # that one call may use
    plugins: tuple[str, ...] = ()  # modules that register functions, embedders and the like: importable on every node
    memory_bytes: Annotated[int, Field(ge=0)] = 2**30  # declared to Ray: heap, not the mapped files, which the kernel may drop


class ClusterSettings(BaseModel):
    """How hosts are found, watched and asked. Times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: str = "sondage"  # Ray namespace of the host actors: one per deployment
    max_hosts: Annotated[int, Field(ge=1)] = 32  # a query costs one call (1 ms of CPU) per host; RAY.md section 2
    replicas: Annotated[int, Field(ge=1)] = 1  # hosts that serve each shard; the next one is asked while the first is away
    discovery_s: Annotated[float, Field(gt=0)] = 1.0  # how often nodes are listed
    heartbeat_s: Annotated[float, Field(gt=0)] = 1.0  # how often a healthy host is pinged
    probe_s: Annotated[float, Field(gt=0)] = 0.2  # how often one that is not is
    ping_timeout_s: Annotated[float, Field(gt=0)] = 1.0  # an idle host answers within 3 ms, on a busy machine within 20
    frozen_pings: Annotated[int, Field(ge=1)] = 5  # unanswered pings in a row after which a host is killed: 6 s
    handover_s: Annotated[float, Field(gt=0)] = 20.0  # hosts of the deployment before this one stay so long after ours are ready:
    # its coordinator answers until ours is deployed (1 to 2 s later), and then has 10 s to finish
    start_timeout_s: Annotated[float, Field(gt=0)] = 60.0  # for a process to start (2 s with torch on a quiet machine); after
    # that it is killed and started again, and the other hosts take its shards
    in_flight: Annotated[int, Field(ge=1)] = 2  # calls per host at a time: one computes while the other travels
    batch: Annotated[int, Field(ge=1)] = 32  # queries that ride in one call
    queue: Annotated[int, Field(ge=1)] = 256  # queries that may wait per host; where all replicas have so many, callers get 429
    hedge_quantile: Annotated[float, Field(gt=0, lt=1)] = 0.95  # of such calls' latest times; later, another replica is asked too
    hedge_share: Annotated[float, Field(ge=0, le=1)] = 0.05  # of calls that may be hedged: what the quantile gives when all is well
    circuit_failures: Annotated[int, Field(ge=1)] = 5  # calls lost in a row after which a host is asked only where no other can be
    circuit_pause_s: Annotated[float, Field(gt=0)] = 1.0  # until one call is let through to it again; doubling, up to 30 s
    shard_memory: Annotated[float, Field(gt=0)] | None = None  # share of a node's memory, as Ray counts it, that files of its shards may
    # take: more is not placed there, and status says so. None: no bound, as files are mapped and the kernel drops what it cannot hold
    renew_s: Annotated[float, Field(gt=0)] = 15.0  # how often hosts are told which shards are still wanted; they keep others for 60 s
