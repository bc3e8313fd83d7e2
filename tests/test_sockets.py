"""Calls over a socket between processes of one machine: answers, errors, company, a process that ends, a caller that gives up."""

import asyncio
import os
import pickle
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cluster import sockets
from cluster.sockets import CallFailed, SocketClient, SocketServer, listening

pytestmark = pytest.mark.skipif(not sockets.AVAILABLE, reason="Linux's abstract sockets")


class Host:
    """Echoes; `wait` until the gate opens."""

    def __init__(self):
        self.gate, self.calls = threading.Event(), 0

    def search(self, value):
        self.calls += 1
        return value

    def details(self, error):
        raise error

    def wait(self):
        self.calls += 1
        assert self.gate.wait(30)
        return "waited"

    def status(self):
        return {"pid": os.getpid()}


def told(story):
    """The story of a client and its host."""
    host = Host()
    address = SocketServer(host, ("search", "details", "wait")).address
    try:
        using(address, lambda client: story(client, host))
    finally:
        host.gate.set()


def using(address, story):
    async def run():
        client = SocketClient(address)
        try:
            return await story(client)
        finally:
            client.close()
            await asyncio.sleep(0)  # the loop closes what is to be closed in its next round

    return asyncio.run(run())


def test_what_a_method_returns_comes_back_large_or_small():
    async def story(client, _host):
        for value in (None, {"a": [1, 2]}, b"x" * 5_000_000):
            assert await client.call("search", value) == value
        assert len(client._idle) == 1  # one after the other they share a connection

    told(story)


def test_what_it_raises_comes_back_as_the_cause_and_the_connection_is_still_good():
    class Unpicklable(Exception):
        def __init__(self):
            super().__init__("cannot travel")
            self.held = threading.Lock()

    async def story(client, _host):
        with pytest.raises(CallFailed, match="broken") as failed:
            await client.call("details", ValueError("broken"))
        assert isinstance(failed.value.cause, ValueError)
        with pytest.raises(CallFailed, match="no method 'status' to call; there are details, search, wait"):
            await client.call("status")
        assert await client.call("search", 1) == 1 and len(client._idle) == 1

    told(story)
    host = Host()
    host.search = lambda _value: (_ for _ in ()).throw(Unpicklable())
    well, error = pickle.loads(SocketServer(host, ("search",))._answer("search", (1,)))
    assert not well and str(error) == "Unpicklable: cannot travel"


def test_calls_run_beside_each_other():
    async def story(client, host):
        waits = [asyncio.ensure_future(client.call("wait")) for _ in range(3)]
        while host.calls < 3:
            await asyncio.sleep(0.001)
        assert await client.call("search", "at once") == "at once"
        host.gate.set()
        assert await asyncio.gather(*waits) == ["waited"] * 3

    told(story)


def test_a_caller_that_gives_up_closes_its_connection_and_the_next_call_is_answered_rightly():
    async def story(client, host):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.call("wait"), 0.05)
        assert client._idle == []
        host.gate.set()
        assert await client.call("search", "mine") == "mine"

    told(story)


def test_a_process_that_ends_under_a_call_is_a_connection_error_and_so_is_one_that_was_never_there():
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from cluster.sockets import SocketServer\n"
        "class Host:\n"
        "    def search(self): print('called', flush=True); time.sleep(60)\n"
        "print(SocketServer(Host(), ('search',)).address, flush=True); time.sleep(60)\n"
    )
    root = str(Path(__file__).resolve().parent.parent)
    with subprocess.Popen([sys.executable, "-c", program, root], stdout=subprocess.PIPE, text=True) as process:

        async def story(client):
            call = asyncio.ensure_future(client.call("search"))
            assert await asyncio.to_thread(process.stdout.readline) == "called\n"
            process.kill()
            with pytest.raises(ConnectionError):
                await call
            process.wait()
            with pytest.raises(ConnectionError):
                await client.call("search")

        using(process.stdout.readline().strip(), story)


def test_another_user_is_refused_on_either_side(monkeypatch):
    """The kernel says whose process is at the other end; here it says so of somebody else."""
    host = Host()
    server = SocketServer(host, ("search",))
    monkeypatch.setattr(sockets.os, "geteuid", lambda: 12_345)
    with pytest.raises(ConnectionRefusedError, match="another user"):
        using(server.address, lambda client: client.call("search", 1))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as raw:
        raw.settimeout(30)
        raw.connect(f"\0{server.address}")
        assert raw.recv(1) == b""  # closed at once
    assert host.calls == 0


def test_a_listening_host_tells_its_address_and_is_a_host_like_any_other():
    host = listening(Host)()
    assert host.status()["pid"] == os.getpid() and type(host).__name__ == "Host"
    assert using(host.status()["socket"], lambda client: client.call("search", 7)) == 7
