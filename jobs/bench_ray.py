"""A Ray cluster of one node with Sondage on it, for as long as its standard input stays open: what `jobs/bench_http.py` asks.

`main` with arguments STORE [--proxy] prints the URL. A process of its own, because Ray reads most of its settings from the
environment when it is imported.
"""

import argparse
import os
import secrets
import socket
import sys
import tempfile
from pathlib import Path

ENVIRONMENT = {  # as infra/setup has it, and a lean start
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
}


def main() -> int:
    """The command. Returns the exit code."""
    p = argparse.ArgumentParser(prog="bench_ray.py", description=__doc__)
    p.add_argument("store")
    p.add_argument("--proxy", action="store_true", help="through Ray Serve's proxy")
    args = p.parse_args()
    os.environ.update(ENVIRONMENT)
    root = str(Path(__file__).resolve().parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryDirectory(prefix="sb-") as folder:  # short: Ray adds 60 characters to the names of its sockets
        os.environ["RAY_TMPDIR"] = folder
        import ray

        from jobs.deploy import deploy, stop
        from jobs.settings import Settings

        ray.init(
            namespace="bench", num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20, log_to_driver=False,
            logging_level="error", _temp_dir=folder,
        )  # fmt: skip
        try:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            service = Settings.load(store=args.store, port=port, namespace="bench").service_settings()
            if args.proxy:
                service = service.model_copy(update={"front": service.front.model_copy(update={"own_listener": False})})
            print(deploy(service), flush=True)
            sys.stdin.read()
            stop("bench")
        finally:
            ray.shutdown()
    return 0
