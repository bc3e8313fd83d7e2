"""The Ray Serve deployment: the coordinator and its HTTP interface in one replica, the hosts beside it on every node."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial

from fastapi import FastAPI
from ray import serve as ray_serve
from ray.serve import Application
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.actors import start_builders, stop_builder
from cluster.building import ActorBuilders
from cluster.pauses import keep_short
from cluster.searcher import RaySearcher
from serve.building import building, calibrator
from serve.coordinator import Coordinator
from serve.http import create_app
from serve.keys import KeyRing
from serve.listener import listening
from serve.local import local_pushes
from serve.published_keys import following
from serve.scaling import ReplicaScaling
from serve.settings import ServiceSettings
from shards.cache import FileCache
from shards.layers.contract import Resources
from shards.plugins import load
from shards.store import open_store

HEAD = "node:__internal_head__"  # a resource that Ray gives to its head node alone


@ray_serve.deployment(
    # Waiting queries ride together in the hosts' calls, and their queues refuse what is too much: more in one place helps.
    max_ongoing_requests=1_000,
    health_check_period_s=1,  # the default of 10 s leaves clients of a killed replica hanging for 8 s (RAY.md section 3)
    health_check_timeout_s=10,
    graceful_shutdown_wait_loop_s=0.2,
    graceful_shutdown_timeout_s=10,
    max_surge_percent=100,  # a new deployment answers before the old one stops; by default nothing would answer for 6 s
    ray_actor_options={"num_cpus": 0.1},  # it merges small arrays; the cores are the hosts'
)
@ray_serve.ingress()
class Service:
    """One coordinator over all hosts of the cluster. Keeps nothing: a replica that was killed reopens the newest generation."""

    def __init__(self, settings: ServiceSettings):
        self.settings = settings

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve in the replica's event loop, to which the searcher then belongs."""
        front = self.settings.front
        ring = KeyRing(front.api_keys, front.limits)
        make = partial(create_app, self.coordinator(ring), ring, pushing=local_pushes, audit=front.audit)
        make = partial(make, reranker=front.rerank.model if front.rerank else None)
        make = partial(make, building=partial(building, builders=self.builders if front.builders else None, counted=front.count_usage))
        if not front.own_listener:
            app = make()
            app.add_middleware(Bodiless)
            return app
        return make(lambda app: listening(app, front.host, front.port, _log_access, front.tls))

    def builders(self) -> ActorBuilders:
        """Actors that build spaces where they are used."""
        front = self.settings.front
        return ActorBuilders(partial(start_builders, front.builders, self.settings.host, calibrator=calibrator), stop_builder)

    @asynccontextmanager
    async def coordinator(self, ring: KeyRing) -> AsyncIterator[Coordinator]:
        """A running coordinator; the hosts outlive it. ring: of whom it answers, kept up to date where keys are published."""
        host = self.settings.host
        for module in host.plugins:
            load(module)
        store = open_store(host.store_url, **host.store_options)
        resources = Resources(endpoints=host.endpoints)
        if host.models_dir:
            resources = replace(resources, models=host.models_dir)
        front = self.settings.front
        keys = following(store, ring) if front.follow_keys else nullcontext()
        async with keys, RaySearcher(self.settings.cluster, host) as searcher:
            cache = FileCache(host.cache_dir.expanduser(), host.cache_bytes)
            coordinator = Coordinator(store, searcher, resources, cache, front.poll_s, front.rerank, front.coordinators, front.translate)
            await coordinator.start()
            keep_short()
            scaling = ReplicaScaling(store, coordinator.generations.serving, coordinator.told, coordinator.name)
            watch = asyncio.get_running_loop().create_task(scaling.run())
            try:
                # Serve sends queries here, and ends the replica before this one, when this is done. Not for ever: while the
                # store is away, answers must say so.
                with suppress(TimeoutError):
                    await asyncio.wait_for(coordinator.until_warm(), self.settings.cluster.start_timeout_s)
                yield coordinator
            finally:
                watch.cancel()
                await coordinator.close()


class Bodiless:
    """Spares requests without a body the way to Serve's proxy for one.

    While a request is answered, a replica asks the proxy for its messages: first for the body, then whether the client has gone: two
    actor calls, of which the second is cancelled, 3 ms of CPU. A GET has no body; and when its client goes, the proxy cancels the
    request itself. (Ray 2.60: `ASGIReceiveProxy.fetch_until_disconnect`; where that is not there, nothing is changed.)
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and hasattr(receive, "_receive_asgi_messages"):
            receive._receive_asgi_messages = _nothing_more
        await self.app(scope, receive, send)


async def _nothing_more(_request: object) -> bytes:
    """What is asked of the proxy, and cancelled when the request is answered."""
    return await asyncio.get_running_loop().create_future()


def _log_access(line: str) -> None:
    """A line of the access log where Serve would write it: in the replica's file, not on its standard error."""
    logging.getLogger("ray.serve").info(line, extra={"log_to_stderr": False, "serve_access_log": True})


def build(settings: ServiceSettings) -> Application:
    """The application to give to `ray_serve.run`. `settings.front` has made sure that others than this machine need a key."""
    if settings.front.own_listener:
        # Ray's head is where Serve's proxy would listen; there may be no core to book on it.
        on_head = {"num_cpus": 0, "resources": {HEAD: 0.001}}
        return Service.options(num_replicas=settings.front.coordinators, ray_actor_options=on_head).bind(settings)
    return Service.options(num_replicas=settings.front.coordinators).bind(settings)
