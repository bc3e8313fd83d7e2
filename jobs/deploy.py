"""Put the coordinator on a running Ray cluster: `ray job submit --working-dir . -- python jobs/deploy.py …`, or `sondage deploy …`.

The application outlives this command. Running it again replaces the application, without a moment in which nothing answers.
"""

import argparse
import json
import logging
import os
import ssl
import sys
import time
from pathlib import Path

if not __package__:  # run as a file: the project's root is where the packages are
    sys.path[:1] = [str(Path(__file__).resolve().parent.parent)]

from jobs.arguments import Parser
from jobs.failing import tell
from jobs.keys import publish_first
from jobs.settings import Settings
from serve.settings import APP_NAME, ServiceSettings, is_loopback
from shards.errors import BadSpec, SondageError

START_TIMEOUT_S = 120.0  # a replica starts in 5 s, models and a large index on S3 take longer


class NotDeployed(SondageError):
    """The application did not come up, or there is no cluster to put it on."""

    status = 503


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = Parser(
        prog="sondage deploy",
        description="Put the coordinator on the running Ray cluster, wait until it answers, print its URL. Without an API key it "
        "listens on the loopback interface only.",
        epilog="Exit code: 0 done, 2 error.",
    )
    p.add_argument("--store", help="where the index lies: a folder all nodes see, or s3://bucket/prefix (default: SONDAGE_STORE)")
    p.add_argument("--port", type=int, help="TCP port (default: SONDAGE_PORT, 8765)")
    p.add_argument("--host", help="address to listen on (default: SONDAGE_HOST, 127.0.0.1)")
    p.add_argument("--namespace", help="Ray namespace of the hosts (default: SONDAGE_NAMESPACE, sondage)")
    p.add_argument("--api-key-file", type=Path, metavar="FILE", help="keys, as `sondage keys` writes them (default: SONDAGE_API_KEY_FILE, "
                   "SONDAGE_API_KEYS); read now, so deploy again when it has changed")  # fmt: skip
    p.add_argument("--follow-keys", action="store_true", default=None, help="accept the keys that `sondage keys publish` put into the "
                   "store, as they change; while there are none, those of the file are published (default: SONDAGE_FOLLOW_KEYS, "
                   "no)")  # fmt: skip
    p.add_argument("--tls-certificate", type=Path, metavar="FILE", help="PEM file, at the same place on every node that listens "
                   "(default: SONDAGE_TLS_CERTIFICATE, none: plain HTTP)")  # fmt: skip
    p.add_argument("--tls-key", type=Path, metavar="FILE", help="its key (default: SONDAGE_TLS_KEY)")
    p.add_argument("--audit", metavar="FILE", help='where each request is told of, on the node that answers, or "stderr" (default: '
                   "SONDAGE_AUDIT, none)")  # fmt: skip
    p.add_argument("--plugin", action="append", metavar="MODULE", help="module that registers functions, embedders, rerankers and the "
                   "like, importable on every node (repeatable; default: SONDAGE_PLUGINS)")  # fmt: skip
    p.add_argument("--cache", help="folder on each node for files and models (default: SONDAGE_CACHE, ~/.cache/sondage)")
    p.add_argument("--address", help="of the Ray cluster (default: RAY_ADDRESS, else the one on this machine)")
    p.add_argument("--timeout-s", type=float, default=START_TIMEOUT_S, help=f"to wait for it (default: {START_TIMEOUT_S:.0f})")
    p.add_argument("--proxy", action="store_true", help="answer through Ray Serve's proxy also where only this machine can ask, which "
                   "takes 2 to 4 ms more for each request and has Serve's metrics and access log (default: the coordinator's process "
                   "listens itself, unless Serve already runs with proxies)")  # fmt: skip
    p.add_argument("--coordinators", type=int, default=1, metavar="N", help="processes that answer, so that one may die: they share a port "
                   "of the head node, or are on any nodes behind Serve's proxies (default: 1)")  # fmt: skip
    p.add_argument("--stop", action="store_true", help="remove the application and its hosts instead")
    p.add_argument("--json", action="store_true", help="print what was done as JSON")
    return p


def connect(address: str | None, namespace: str) -> None:
    """Joins the cluster as a driver, unless this process already has. Raises NotDeployed when there is none."""
    import ray

    if ray.is_initialized():
        return
    named = address or os.environ.get("RAY_ADDRESS", "")
    if named.startswith("http"):  # where jobs are submitted, which is no address for a driver
        os.environ.pop("RAY_ADDRESS", None)
        named = ""
    try:
        ray.init(address=named or "auto", namespace=namespace, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise NotDeployed(
            f"No Ray cluster answers at {named or 'this machine'}: {str(error).splitlines()[0]} Start one with `ray start --head`, "
            "give --address, or serve without Ray: `sondage serve`. Where the cluster wants a token, set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN_PATH."
        ) from None


def deploy(settings: ServiceSettings, timeout_s: float = START_TIMEOUT_S) -> str:
    """Starts or replaces the application on the cluster that this process belongs to. Returns its URL once it is ready.

    On loopback the coordinator's process listens itself, on the cluster's head, unless the settings want Serve's proxy or Serve
    already runs with one, which then goes on being used.

    Raises BadSpec for port 0, NotDeployed with the reason when it is not ready within `timeout_s`; it may come up later.
    """
    front = settings.front
    if not front.port:
        raise BadSpec("Port 0 means any free port, which a cluster's proxies cannot agree on. Give a number.")
    from ray import serve as ray_serve
    from ray.serve import RunTarget

    from serve.app import build

    end = time.monotonic() + timeout_s
    if is_loopback(front.host) and front.own_listener and not ray_serve.status().proxies:
        where = "Disabled"
    else:
        settings = settings.model_copy(update={"front": front.model_copy(update={"own_listener": False})})
        # One proxy is enough where only this machine can reach it; on real clusters every node with a replica has one.
        where = "HeadOnly" if is_loopback(front.host) else "EveryNode"
    http: dict[str, object] = {"host": front.host, "port": front.port}
    if front.tls:
        http |= {"ssl_certfile": str(front.tls[0]), "ssl_keyfile": str(front.tls[1])}
    ray_serve.start(proxy_location=where, http_options=http)
    target = RunTarget(build(settings), name=APP_NAME, route_prefix="/")
    ray_serve.run_many([target], wait_for_applications_running=False)
    while True:
        state = ray_serve.status().applications[APP_NAME]
        if state.status == "RUNNING":
            break
        if state.status in ("DEPLOY_FAILED", "UNHEALTHY") or time.monotonic() > end:
            details = [d.message for d in state.deployments.values() if d.message] or [state.message]
            raise NotDeployed(f"The application is {state.status} after {timeout_s - (end - time.monotonic()):.0f} s. {details[0]}")
        time.sleep(0.1)
    await_ready(front.url, end, front.tls_certificate)
    return front.url


def await_ready(url: str, end: float, certificate: Path | None = None) -> None:
    """Waits until /readyz says so, at most until `end` of the monotonic clock. certificate: of a server with TLS.

    Raises NotDeployed with the last reason.
    """
    import httpx

    reason = "it was not asked"
    with httpx.Client(trust_env=False, timeout=5, verify=only(certificate) if certificate else True) as http:
        while True:
            try:
                response = http.get(f"{url}/readyz")
                if response.status_code == 200:
                    return
                reason = f"it says: {response.text[:500]}"
            except httpx.HTTPError as error:
                reason = f"{type(error).__name__}: {error}"
            if time.monotonic() > end:
                raise NotDeployed(
                    f"{url} is not ready: {reason}. If Ray Serve already ran here with another host or port, or without a proxy, it keeps "
                    "these: remove what it runs (`sondage deploy --stop`) and deploy again."
                )
            time.sleep(0.1)


def only(certificate: Path) -> ssl.SSLContext:
    """Trusts just this certificate, whatever name it was made out for: a server of our own is asked by its address. Raises BadSpec."""
    try:
        context = ssl.create_default_context(cafile=certificate)
    except OSError as error:
        raise BadSpec(f"The certificate {certificate} cannot be read: {error.strerror or error}.") from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False
    return context


def stop(namespace: str) -> bool:
    """Removes the application and its hosts, and Ray Serve with it if nothing else runs there. Returns whether there was one."""
    from ray import serve as ray_serve

    from cluster.actors import host_names, stop_hosts

    known = ray_serve.status().applications
    if APP_NAME in known:
        ray_serve.delete(APP_NAME)
    n_hosts = stop_hosts(namespace, host_names(namespace))
    if not set(known) - {APP_NAME}:
        ray_serve.shutdown()
    return APP_NAME in known or n_hosts > 0


def run_deploy(argv: list[str] | None = None) -> int:
    """The job as a command. Returns the exit code."""
    args = parser().parse_args(argv)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # it tells each step
    try:
        named = ("store", "port", "host", "namespace", "cache", "api_key_file", "follow_keys", "tls_certificate", "tls_key", "audit")
        settings = Settings.load(plugins=args.plugin, **{name: getattr(args, name) for name in named})
        if args.stop:
            connect(args.address, settings.namespace)
            stopped = stop(settings.namespace)
            print(json.dumps({"stopped": stopped}) if args.json else "Stopped." if stopped else "Nothing was deployed.")
            return 0
        publish_first(settings)
        service = settings.service_settings()  # before the cluster is asked: what is wrong here is said at once
        if args.coordinators < 1:
            raise BadSpec(f"--coordinators {args.coordinators}: somebody must answer. Give 1 or more.")
        asked = {"coordinators": args.coordinators} | ({"own_listener": False} if args.proxy else {})
        service = service.model_copy(update={"front": service.front.model_copy(update=asked)})
        connect(args.address, settings.namespace)
        url = deploy(service, args.timeout_s)
        print(json.dumps({"store": service.host.store_url, "url": url}) if args.json else f"Serving {service.host.store_url} at {url}")
    except SondageError as error:
        return tell(error, args.json, "sondage deploy")
    return 0


if __name__ == "__main__":
    sys.exit(run_deploy())
