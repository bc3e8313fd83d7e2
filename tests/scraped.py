"""A real application over a small real corpus, and what Prometheus reads of it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn
from engine import Engine, write_files
from prometheus_client.parser import text_string_to_metric_families
from scripted_coordinator import eventually

from cluster.settings import HostSettings
from serve.http import create_app
from serve.local import local_coordinator, local_pushes

Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def samples(text: str) -> Samples:
    """By name and labels, that of the coordinator left out."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "coordinator"))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def harbours(folder: Path) -> Engine:
    """The corpus "c" of twelve documents in two shards, with three layers."""
    engine = Engine(folder, ["names", "text", "bm25"])
    engine.index(write_files(folder / "source", {f"{i}.txt": f"harbour {i} and its boats. " * 20 for i in range(12)}), n_shards=2)
    return engine


@contextmanager
def application(engine: Engine) -> Iterator[httpx.Client]:
    """What `sondage serve` runs, over the engine's store, in this process; entered when it is ready."""
    folder = engine.folder
    settings = HostSettings(store_url=engine.store.url, cache_dir=folder / "cache", models_dir=folder / "models")
    app = create_app(local_coordinator(settings, poll_s=0.05), pushing=local_pushes)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, port=0))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as session:
            eventually(lambda: session.get("/readyz").status_code == 200)
            yield session
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
