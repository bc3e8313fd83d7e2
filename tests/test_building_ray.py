"""Spaces are built by a pool of actors, whoever of them dies."""

import asyncio
import os
import signal
import time

import pytest
from engine import Engine, write_files
from test_encoders import save_static, word_pieces

from cluster.building import CONTROL, ActorBuilders
from cluster.settings import HostSettings
from shards.layer_queue import Order, give
from shards.manifest import corpus_store

pytestmark = pytest.mark.ray


def test_a_killed_builder_is_replaced_and_what_it_was_at_is_built(cluster, tmp_path):
    """Two actors build what was asked for. One is killed at once; both held, nothing more is encoded; let go, all is built."""
    from cluster.actors import start_builders, stop_builder

    source = write_files(tmp_path / "src", {f"d{i % 4}/f{i}.txt": f"amber and basalt number {i}\n" for i in range(120)})
    engine = Engine(tmp_path, ("text", f"static:built=used,model={save_static(tmp_path / 'model', word_pieces())}"))
    engine.index(source, calibrate=False)
    give(corpus_store(engine.store, "c"), Order(kind="build", space="static"))
    settings = HostSettings(store_url=str(tmp_path / "store"), cache_dir=tmp_path / "cache")
    started = []

    async def run() -> dict:
        builders = ActorBuilders(lambda: started.extend(start_builders(2, settings, 0)) or started, stop_builder, idle_s=0.05)
        await builders.start()
        try:
            pid = await asyncio.wait_for(started[0].pid.options(concurrency_group=CONTROL).remote(), 30)
            os.kill(pid, signal.SIGKILL)
            builders.hold(True)
            builders.hold(False)
            end = time.monotonic() + 40
            while time.monotonic() < end:
                told = builders.told().get("c", {}).get("static", {})
                if told.get("built") == 120:
                    break
                await asyncio.sleep(0.05)
            assert await asyncio.wait_for(started[0].pid.options(concurrency_group=CONTROL).remote(), 30) != pid
            return told
        finally:
            await builders.close()

    told = asyncio.run(run())
    assert told["built"] == 120 and told["waiting"] == 0
    assert engine.search("amber", layers=["static"]).coverage[0].state == "ready"
