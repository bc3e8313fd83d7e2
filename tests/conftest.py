"""What several test files share: a local S3 server."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub: tests never ask a hub

import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings

# A run that decides whether a change lands must not hang on the day's draw; at a desk new examples are looked for each time.
# No deadlines: on a fresh machine the first example compiles what it calls, and speeds are the bench's.
settings.register_profile("desk", deadline=None)
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady" if os.environ.get("CI") else "desk")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-histories", action="store_true", help="2,000 random histories in memory, 200 with kills, 50 over S3: minutes")
    parser.addoption("--all-patterns", action="store_true", help="300 patterns over the standard library beside ripgrep: a minute")


@dataclass(frozen=True, slots=True)
class S3Server:
    """Moto on a loopback port. options: what `open_store` and s3fs need to reach it."""

    endpoint_url: str
    options: dict[str, str]

    def bucket(self) -> str:
        """The name of a new, empty bucket."""
        name = f"test-{uuid.uuid4().hex}"
        request = urllib.request.Request(f"{self.endpoint_url}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=30):
            return name


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    moto = DomainDispatcherApplication(create_backend_app)
    one_at_a_time = threading.Lock()

    # Moto looks whether an object exists and then stores it, in two steps that threads may interleave; S3 does both in one.
    def atomic(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        with one_at_a_time:
            return list(moto(environ, start_response))

    server = make_server("127.0.0.1", 0, atomic, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    yield S3Server(endpoint, {"endpoint_url": endpoint, "key": "test", "secret": "test"})
    server.shutdown()
    thread.join()
    server.server_close()


# Sets the environment of Ray, so it must come before anything imports ray; the cluster starts with the first test that asks for it.
from ray_cluster import cluster, namespace  # noqa: E402, F401
