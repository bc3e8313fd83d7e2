"""The socket of our own beside Ray Serve: the same application with the same guards, and a successor that takes over unnoticed."""

import asyncio
import socket
import threading
from contextlib import asynccontextmanager

import httpx
import pytest
from scripted_coordinator import KEY, Scripted
from test_deploy import free_port

from serve.bodies import MAX_BODY_BYTES
from serve.http import create_app
from serve.listener import CannotListen, listening, shared_socket

ASKED = {"corpus": "stdlib", "query": "hello world"}


@asynccontextmanager
async def served(port, keys=(), coordinator=None, tls=None):
    """The application as in a replica: its lifespan is entered by somebody else, and opens the listener."""
    app = create_app(coordinator or Scripted(), keys, lambda app: listening(app, "127.0.0.1", port, tls=tls))
    async with app.router.lifespan_context(app):
        yield f"http://127.0.0.1:{port}"


def test_keys_names_and_limits_hold_as_they_do_behind_a_proxy():
    async def story():
        async with served(free_port(), (KEY,)) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
            assert (await http.get("/readyz")).status_code == 200
            assert (await http.post("/v1/search", json=ASKED)).status_code == 401
            assert (await http.get("/v1/status")).status_code == 401
            for header in ({"X-API-Key": KEY}, {"Authorization": f"Bearer {KEY}"}):
                assert (await http.post("/v1/search", json=ASKED, headers=header)).status_code == 200
            large = {**ASKED, "query": "x" * MAX_BODY_BYTES}
            assert (await http.post("/v1/search", json=large, headers={"X-API-Key": KEY})).status_code == 413
        async with served(free_port()) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
            assert (await http.post("/v1/search", json=ASKED, headers={"Host": "evil.example"})).status_code == 403

    asyncio.run(story())


def test_a_client_that_hangs_up_ends_its_search():
    async def story():
        coordinator = Scripted()
        async with served(free_port(), coordinator=coordinator) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
            with pytest.raises(httpx.ReadTimeout):
                await http.post("/v1/search", json={**ASKED, "query": "wait for ever"}, timeout=0.2)
            while "cancelled" not in coordinator.events:
                await asyncio.sleep(0.01)
        assert coordinator.events == ["started", "searching", "cancelled", "closed"]

    asyncio.run(story())


def test_a_successor_takes_over_without_a_request_lost():
    """Clients that keep their connections and clients that open new ones ask all the time while one server follows another."""
    port = free_port()
    over = threading.Event()

    def ask(keep: bool) -> list[int]:
        statuses = []
        while not over.is_set():
            with httpx.Client(trust_env=False, timeout=20) as http:
                while not over.is_set():
                    statuses.append(http.post(f"http://127.0.0.1:{port}/v1/search", json=ASKED).status_code)
                    if not keep:
                        break
        return statuses

    async def story():
        first, second = Scripted(), Scripted()
        async with served(port, coordinator=first):
            clients = [asyncio.create_task(asyncio.to_thread(ask, keep)) for keep in (True, True, False)]
            await asyncio.sleep(0.2)
            successor = served(port, coordinator=second)
            await successor.__aenter__()
        assert first.events == ["started", "closed"]
        await asyncio.sleep(0.2)
        over.set()
        answered = await asyncio.gather(*clients)
        await successor.__aexit__(None, None, None)
        return answered

    answered = asyncio.run(story())
    assert all(set(statuses) == {200} for statuses in answered) and min(map(len, answered)) > 2


def test_an_address_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=rf"Cannot listen on 127\.0\.0\.1:{port}: .*Choose another"):
            shared_socket("127.0.0.1", port)

        async def story():
            async with served(port):
                pass

        with pytest.raises(CannotListen):
            asyncio.run(story())


def test_each_request_is_told_of_with_its_status_and_time():
    async def story():
        told = []
        app = create_app(Scripted(), (KEY,))
        port = free_port()
        http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False)
        async with app.router.lifespan_context(app), listening(app, "127.0.0.1", port, told.append), http:
            await http.get("/healthz?quiet=1")
            await http.post("/v1/search", json=ASKED)
        return [line.rsplit(" ", 1) for line in told]

    told = asyncio.run(story())
    assert [line for line, _ in told] == ["GET /healthz 200", "POST /v1/search 401"]
    assert all(float(took.removesuffix("ms")) >= 0 for _, took in told)
