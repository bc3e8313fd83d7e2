"""A Ray cluster of several nodes on this machine, for as long as it is needed: processes of its own, which are known by their folder.

Ray reads most of its settings from the environment, when it is imported and when its nodes start: `settings_of` is to be called
before anything imports ray. Whatever the nodes start has the path of the cluster's folder, which nothing else on the machine has, in
its environment or as the place of an open file, so processes are found, and ended, by that and by their id alone.
"""

import logging
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shards.errors import BadSpec

if TYPE_CHECKING:
    from ray._private.node import Node

ROOT = Path(__file__).resolve().parent.parent
NODE = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}
ATTEMPTS = 3  # to add a node
DEATH_S = 10.0  # for a process that was sent SIGKILL: more is a machine that swaps
# As infra/setup exports them: what is proved with these holds where these are set.
PRODUCTION = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_timeout_ms_task_wait_for_death_info": "50",
    "RAY_core_worker_internal_heartbeat_ms": "50",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_kill_worker_timeout_milliseconds": "500",
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
}
LEAN = {  # four nodes on one machine: without what each would do for a dashboard
    "RAY_enable_metrics_collection": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
# What a process is, by the first words of its command line.
KINDS = {
    "host": r"ray::(?:\w+\.)?Host\b",
    "coordinator": r"ray::ServeReplica:",
    "controller": r"ray::ServeController\b",
    "proxy": r"ray::ProxyActor\b",
    "raylet": r"\S*/raylet(?:\s|$)",
    "gcs": r"\S*/gcs_server(?:\s|$)",
}


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the cluster. kind: of `KINDS`, else "other"."""

    pid: int
    kind: str
    title: str

    def resident_bytes(self) -> int:
        """Its share of memory, what it has in common with others divided by their number (PSS); 0 if it has ended."""
        try:
            rows = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        except OSError:
            return 0
        return 1024 * sum(int(n) for n in re.findall(r"^Pss: +(\d+)", rows, re.MULTILINE))


def free_port() -> int:
    """A port that is free now: outside 10002-19999, where Ray's workers listen, and below those that the kernel gives out."""
    for port in range(21_000 + secrets.randbelow(5_000), 32_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise BadSpec("No port between 21000 and 32000 is free on 127.0.0.1. End what listens there.")


def settings_of(folder: Path, keep_head: bool = False) -> dict[str, str]:
    """The environment of a cluster whose files lie in `folder`, with a token that is made there. keep_head: what Ray's head knows is kept
    on the disk, so that it survives its process."""
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    kept = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(folder / "gcs")} if keep_head else {}
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**PRODUCTION, **LEAN, **kept, "RAY_AUTH_TOKEN_PATH": str(token), "RAY_TMPDIR": str(folder), "PYTHONPATH": paths}


class LocalCluster:
    """Nodes that are killed, frozen and replaced. One thread at a time.

    Raises BadSpec where ray was imported before its settings could be made.
    """

    def __init__(self, folder: Path, keep_head: bool = False):
        if "ray" in sys.modules:
            raise BadSpec("Ray was imported before the settings of its cluster were made. Run this in a process of its own.")
        self.folder = folder
        os.environ.update(settings_of(folder, keep_head))
        for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN"):
            os.environ.pop(name, None)
        from ray.cluster_utils import Cluster

        # Not its own way to end: signals and exits are `local_cluster`'s, and nodes are also added by threads.
        self._cluster = Cluster(shutdown_at_exit=False)

    def start(self, n_nodes: int, namespace: str) -> None:
        """A head and the other nodes; joins as a driver."""
        import ray
        from ray._private import worker

        logging.getLogger("ray").setLevel(logging.CRITICAL)  # that processes died is what was meant
        worker._worker_logs_enabled = False
        for _ in range(n_nodes):
            self._cluster.add_node(**NODE)
        ray.init(address=self._cluster.address, namespace=namespace, log_to_driver=False, logging_level="error", configure_logging=False)

    @property
    def address(self) -> str:
        """For other drivers."""
        return self._cluster.address

    # --- processes ---------------------------------------------------------------------------------------------------------

    def processes(self) -> list[Process]:
        """All that live and have to do with the cluster, by id: its nodes', what these started, other drivers; not this one."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            pid = int(place.name)
            with suppress(OSError):
                if pid == os.getpid() or not self._is_ours(place):
                    continue
                title = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
                if title:  # a zombie has none
                    found.append(Process(pid, next((kind for kind, form in KINDS.items() if re.match(form, title)), "other"), title[:80]))
        return sorted(found, key=lambda process: process.pid)

    def _is_ours(self, place: Path) -> bool:
        """Whether a process of /proc was started with the cluster's folder in its environment, or has a file open there: a process that
        renames itself, as Ray's do, writes its name over the environment that /proc shows."""
        folder = os.fsencode(self.folder)
        if folder in (place / "environ").read_bytes():
            return True
        return any(os.fsencode(os.readlink(link)).startswith(folder + b"/") for link in (place / "fd").iterdir())

    def raylets(self) -> dict[int, "Node"]:
        """Pid -> node, of those that may be lost: all but the head."""
        nodes = sorted(self._cluster.worker_nodes, key=lambda node: node.node_id)
        return {node.all_processes["raylet"][0].process.pid: node for node in nodes if node.all_processes.get("raylet")}

    def memory(self) -> dict[str, int]:
        """Bytes by kind of process, what they share counted once (`Process.resident_bytes`)."""
        found: dict[str, int] = {}
        for process in self.processes():
            found[process.kind] = found.get(process.kind, 0) + process.resident_bytes()
        return found

    # --- mending -----------------------------------------------------------------------------------------------------------

    def replace(self, node: "Node") -> None:
        """Ends what is left of a node and adds a new one. Blocks for some seconds."""
        if node in self._cluster.worker_nodes:
            with suppress(AssertionError):  # a zombie that the kernel has not yet taken away
                self._cluster.remove_node(node, allow_graceful=False)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._cluster.add_node(**NODE)
                return
            except Exception:  # Ray's own, of no type: on a busy machine a node may not start in its time; another one may
                if attempt == ATTEMPTS:
                    raise

    def restart_head(self, away_s: float) -> None:
        """Kills the process that keeps what the cluster is (GCS), and starts it anew over what it left on the disk."""
        head = self._cluster.head_node
        port = int(head.gcs_address.rpartition(":")[2])
        head.kill_gcs_server()
        time.sleep(away_s)
        head._ray_params.update(gcs_server_port=port)  # where all others look for it
        head.start_gcs_server()

    # --- the end -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends every process of the cluster, frozen ones too."""
        import ray

        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
        with suppress(Exception):  # where the head was the victim there is nobody to say goodbye to
            ray.shutdown()
        for node in filter(None, [*self._cluster.worker_nodes, self._cluster.head_node]):
            with suppress(Exception):  # of what it does not end, the ids are at hand
                self._cluster.remove_node(node, allow_graceful=False)
        end_all(self)


def end_all(cluster: LocalCluster) -> None:
    """SIGKILL to whatever is left of a cluster, until nothing is. Raises BadSpec naming what did not end."""
    end = time.monotonic() + DEATH_S
    while left := cluster.processes():
        if time.monotonic() > end:
            raise BadSpec(f"{len(left)} processes did not end within {DEATH_S:.0f} s of SIGKILL, e.g. {left[0].pid}: {left[0].title}")
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.1)


@contextmanager
def local_cluster(n_nodes: int, namespace: str, keep_head: bool = False, keep_folder: bool = False) -> Iterator[LocalCluster]:
    """A cluster in a new folder, both gone afterwards. keep_folder: its logs stay, and where they are is said."""
    # Short: Ray adds some 60 characters to the names of its sockets, which end at 107.
    folder = Path(tempfile.mkdtemp(prefix="sc-", dir="/tmp"))
    cluster = None
    try:
        cluster = LocalCluster(folder, keep_head)
        cluster.start(n_nodes, namespace)
        yield cluster
    finally:
        try:
            if cluster is not None:
                cluster.close()
        finally:
            if keep_folder:
                print(f"What the cluster left: {folder}", file=sys.stderr)
            else:
                shutil.rmtree(folder, ignore_errors=True)
