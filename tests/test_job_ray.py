"""Jobs as a user submits them, on a cluster started as infra/demo starts it, with the settings that infra/setup exports."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from engine import write_files
from ray_cluster import ROOT, patience
from scripted_coordinator import eventually

pytestmark = pytest.mark.ray

FILES = {
    "heap.md": "# Heaps\n\nA heap is a tree whose root is the smallest of all.\n",
    "dates.py": "def parse_date(header):\n    return header\n",
    "old.txt": "Nobody needs this any more.\n",
    "letters/a.txt": "Dear Ada, the engine is late again.\n",
    **{f"noise/{i}.txt": f"Number {i} speaks of weather, ships and the price of corn in year {1800 + i}.\n" for i in range(20)},
}
SEARCHED = {"corpus": "c", "query": "smallest root of a heap", "budget_ms": 1000}


def production_settings() -> dict[str, str]:
    """What infra/setup exports for Ray, but for the token, of which this cluster has its own."""
    exports = re.findall(r"^export (.*)$", (ROOT / "infra" / "setup").read_text(), re.MULTILINE)
    pairs = re.findall(r"\b(RAY_\w+)=(\S+)", " ".join(exports))
    return {name: value for name, value in pairs if "TOKEN" not in name}


@dataclass(frozen=True)
class RayHead:
    """A cluster of one node. process: `ray start --block`; folder: Ray's own."""

    process: subprocess.Popen[bytes]
    folder: Path
    environment: dict[str, str]

    def submit(self, *command: str) -> tuple[int, str]:
        """`ray job submit` of this checkout: exit code, and what it printed. RAY_ADDRESS names the cluster."""
        argv = [_ray(), "job", "submit", "--working-dir", str(ROOT), "--", "python", *command]
        ended = subprocess.run(
            argv, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, cwd=self.folder
        )
        return ended.returncode, ended.stdout


def _ray() -> str:
    return str(Path(sys.executable).with_name("ray"))


def free_ports(n: int) -> list[int]:
    """Neighbouring ports outside 10002-19999, where Ray's workers listen, and below those that the kernel gives out."""
    for first in range(21_000 + os.getpid() % 4_000, 32_000, n):
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + n):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return list(range(first, first + n))
    raise AssertionError("no free ports")


@pytest.fixture(scope="module")
def head() -> Iterator[RayHead]:
    folder = Path(f"/tmp/sj{os.getpid()}")  # short, for Ray's sockets
    folder.mkdir(mode=0o700)
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text("f" * 64)
    gcs, dashboard, agent, client = free_ports(4)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SONDAGE_", "PYTHONPATH"))}
    environment |= production_settings() | {"RAY_AUTH_TOKEN_PATH": str(token), "HF_HUB_OFFLINE": "1"}
    environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = "0"  # as infra/demo: there is no other node to drain to
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    options = {
        "port": gcs, "dashboard-port": dashboard, "dashboard-agent-listen-port": agent, "ray-client-server-port": client,
        "node-ip-address": "127.0.0.1", "dashboard-host": "127.0.0.1", "temp-dir": folder, "num-cpus": 2,
        "object-store-memory": 80_000_000,
    }  # fmt: skip
    argv = [_ray(), "start", "--head", "--block", "--disable-usage-stats", *(f"--{k}={v}" for k, v in options.items())]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(argv, env=environment, stdout=log, stderr=log, cwd=folder)
    url = f"http://127.0.0.1:{dashboard}"
    try:
        eventually(lambda: process.poll() is not None or _answers(f"{url}/api/version", token.read_text()), 60)
        assert process.poll() is None, (folder / "log").read_text()
        yield RayHead(process, folder, environment | {"RAY_ADDRESS": url})
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def _answers(url: str, token: str) -> bool:
    try:
        return httpx.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def store(head: RayHead) -> Path:
    return head.folder / "store"


@pytest.fixture(scope="module")
def source(head: RayHead) -> Path:
    files = write_files(head.folder / "files", FILES)
    for path in files.rglob("*.*"):
        os.utime(path, (1e9, 1e9))  # a file this fresh would be read again by the next run
    return files


@pytest.fixture
def index(head: RayHead, source: Path, store: Path):
    """Submits the index job: its exit code and output."""
    fixed = ["--corpus", "c", "--source", str(source), "--store", str(store)]
    return lambda *options: head.submit("jobs/index.py", *fixed, *options)


def test_the_job_indexes_then_finds_no_change_then_works_on_what_changed_alone(head, index, source):
    code, output = index("--layers", "names,text,bm25", "--shards", "2")
    assert code == 0, output
    for said in ("c: generation 1 published", "listed 24, hashed 24", "documents added 24, removed 0"):
        assert said in output

    code, output = index()
    assert code == 0, output
    assert "c: no change; generation 1 stays. 24 files listed, 0 hashed" in output

    (source / "dates.py").write_text("def parse_date(header):\n    return header.strip()\n")
    (source / "old.txt").unlink()
    (source / "letters" / "a.txt").rename(source / "letters" / "ada.txt")
    code, output = index()
    assert code == 0, output
    assert "c: generation 2 published" in output
    assert "listed 23, hashed 2 " in output and "entries added 2, removed 3, of these moved 1" in output
    assert "documents added 1, removed 2" in output  # the renamed one is neither


def test_the_upload_holds_the_sources_and_nothing_else(head, index):
    """Ray unpacks what was uploaded, one folder per content."""
    (unpacked, *_) = sorted(head.folder.glob("session_2*/runtime_resources/working_dir_files/_ray_pkg_*[!.zip]/"))
    assert {"jobs", "shards", "cluster", "serve"} <= {path.name for path in unpacked.iterdir()}
    assert not {".venv", ".sondage", ".git"} & {path.name for path in unpacked.iterdir()}
    held = [path for path in unpacked.rglob("*") if path.is_file() and "__pycache__" not in path.parts]  # jobs compile there
    assert sum(path.stat().st_size for path in held) < 12e6


def test_a_job_that_cannot_be_done_fails_and_says_why(head, store):
    code, output = head.submit("jobs/index.py", "--corpus", "c", "--source", "/no/such/folder", "--store", str(store))
    assert code != 0
    assert "sondage index: " in output and "/no/such/folder" in output and "Traceback" not in output


def test_production_settings_reach_every_process_of_ray(head):
    settings = production_settings()
    # RAY.md sections 3 and 7: death of a process known at once, of a node in seconds, processes at normal priority.
    assert {
        "RAY_AUTH_MODE": "token",
        "RAY_worker_niceness": "0",
        "RAY_timeout_ms_task_wait_for_death_info": "50",
        "RAY_core_worker_internal_heartbeat_ms": "50",
    }.items() <= settings.items()
    for name in ("initial_delay_ms", "period_ms", "timeout_ms", "failure_threshold"):
        assert f"RAY_health_check_{name}" in settings
    seen = set()
    for pid in _descendants(head.process.pid):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
        environment = dict(pair.split("=", 1) for pair in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in pair)
        if (name := command.rsplit("/", 1)[-1]) in ("raylet", "gcs_server"):
            assert settings.items() <= environment.items(), name
            seen.add(name)
    assert seen == {"raylet", "gcs_server"}


def _descendants(pid: int) -> list[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except FileNotFoundError:
            continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def test_a_killed_host_is_back_within_5_seconds_with_production_settings(head, store):
    (port,) = free_ports(1)
    cache = str(head.folder / "cache")
    code, output = head.submit("jobs/deploy.py", "--store", str(store), "--port", str(port), "--cache", cache)
    assert code == 0, output
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as http:

        def ask() -> dict:
            response = http.post("/v1/search", json=SEARCHED)
            if response.status_code == 503:  # no host is up: it says so, and when to come again
                assert int(response.headers["retry-after"]) >= 1 and "host" in response.json()["error"]["message"]
                return {"complete": False, "hits": [], "verdict": "none", "coverage": [{"state": "unavailable"}]}
            return response.json()

        whole = ask()
        assert whole["complete"] and whole["hits"][0]["entries"][0]["path"] == "heap.md"
        print(f"first query after deploy: {whole['timings_ms']['total']:.0f} ms")
        (host,) = http.get("/v1/status").json()["hosts"]
        os.kill(host["pid"], signal.SIGKILL)
        begun, longest, states = time.monotonic(), 0.0, set()
        while True:
            asked = time.monotonic()
            answer = ask()
            longest = max(longest, time.monotonic() - asked)
            assert time.monotonic() - begun < patience(5.0)
            if answer["complete"]:
                if states:
                    break
                continue  # answered before it died
            assert answer["hits"] == [] and answer["verdict"] == "none"
            states |= {c["state"] for c in answer["coverage"]}
        print(f"SIGKILL of the only host: whole again after {time.monotonic() - begun:.2f} s, slowest answer {longest:.2f} s")
        # Nobody waited for it, but who asked before its death was known.
        assert states and states <= {"missing", "late", "unavailable"} and longest < patience(2.0)
        assert ask()["hits"] == whole["hits"]
