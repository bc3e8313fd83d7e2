"""The session's Ray cluster: a head and one more node on this machine, and a fresh namespace for each test.

Importing this module sets the environment that Ray reads when it is imported and when its nodes start, so conftest.py imports
it before anything imports ray. Ray itself starts with the first test that asks for the `cluster` fixture.
"""

import asyncio
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Ray appends about 60 characters for its sockets and AF_UNIX ends at 107, so pytest's tmp_path is too long.
FOLDER = Path(f"/tmp/sr{os.getpid()}")
TOKEN = FOLDER / "token"

ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN_PATH": str(TOKEN),
    "RAY_USAGE_STATS_ENABLED": "0",
    # Cluster() leaves its address in a file of the default folder, where any ray.init(address="auto") of the machine finds it.
    "RAY_TMPDIR": str(FOLDER),
    "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])),
    # A killed process is known after 0.1 s instead of 1.5 s, and is replaced at normal priority (RAY.md section 3).
    "RAY_timeout_ms_task_wait_for_death_info": "50",
    "RAY_core_worker_internal_heartbeat_ms": "50",
    "RAY_worker_niceness": "0",
    "RAY_kill_worker_timeout_milliseconds": "500",  # a frozen process that is told to die is killed after this (default 5 s)
    # A lost node is known after seconds; the time-out stays long because test machines are busy and must not lose nodes by that.
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_SERVE_PROXY_USE_GRPC": "1",  # as infra/setup
    # A lean start: 2.3 s instead of 6 s (RAY.md section 5).
    "RAY_enable_metrics_collection": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
}
os.environ.update(ENVIRONMENT)

NODE = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}


@pytest.fixture(scope="session")
def cluster() -> Iterator["ray.cluster_utils.Cluster"]:  # noqa: F821
    """Two nodes and a connected driver, kept for the whole session."""
    FOLDER.mkdir(mode=0o700)
    (FOLDER / "ray").mkdir()
    TOKEN.touch(mode=0o600)
    TOKEN.write_text(secrets.token_hex(32))
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        nodes.add_node(**NODE)
        ray.init(address=nodes.address, namespace="tests", log_to_driver=False, logging_level="error", configure_logging=False)
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()
        shutil.rmtree(FOLDER, ignore_errors=True)


@contextmanager
def fresh_namespace(prefix: str) -> Iterator[str]:
    """A namespace that nobody else uses; its named actors are killed afterwards."""
    import ray

    name = f"{prefix}-{secrets.token_hex(4)}"
    yield name
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == name:
            ray.kill(ray.get_actor(actor["name"], namespace=name))


@pytest.fixture
def namespace(cluster: object, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of the test's own."""
    with fresh_namespace(request.node.name) as name:
        yield name


async def until(condition: Callable[[], Awaitable[bool] | bool], seconds: float = 30.0, pause_s: float = 0.02) -> None:
    """Waits for another process to get there; fails after `seconds`."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        outcome = condition()
        if await outcome if asyncio.iscoroutine(outcome) else outcome:
            return
        assert loop.time() < end, f"not reached within {seconds} s"
        await asyncio.sleep(pause_s)


def patience(seconds: float) -> float:
    """What takes `seconds` on a machine with nothing else to do, on this one as it is: in proportion to the load on its cores."""
    return seconds * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
