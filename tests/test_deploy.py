"""The coordinator on Ray Serve: put there by the job, asked over HTTP, replaced, removed."""

import os
import signal
import socket
import time
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from engine import Engine, write_files
from ray_cluster import FOLDER, patience
from scripted_coordinator import eventually
from self_signed import self_signed

from jobs.keys import add_key, publish_first, publish_keys, revoke_key
from jobs.settings import Settings
from serve.problems import Unauthorized
from shards.errors import BadSpec

KEY = "a-key-of-some-length"

# Ray's own code, when it is imported.
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_job_deploys_replaces_and_removes_the_application(cluster, namespace, tmp_path: Path):
    import sondage
    from jobs.deploy import NotDeployed, deploy, stop

    given = {"store": str(tmp_path / "index"), "cache": str(tmp_path / "cache"), "port": free_port(), "namespace": namespace}
    settings = Settings.load({}, **given, api_keys=[KEY]).service_settings()
    try:
        url = deploy(settings)
        assert url == f"http://127.0.0.1:{given['port']}"
        with sondage.connect(url, KEY) as client:
            assert client.status()["store"] == given["store"]
            with pytest.raises(sondage.SondageError, match="No corpus 'a'"):
                client.search("q", corpus="a")
        assert httpx.get(f"{url}/v1/status").status_code == 401
        body = {"corpus": "a", "query": "x" * (1 << 20)}
        assert httpx.post(f"{url}/v1/search", json=body, headers={"X-API-Key": KEY}, timeout=30).status_code == 413
        assert httpx.get(f"{url}/docs").status_code == 200

        assert deploy(Settings.load({}, **given).service_settings()) == url  # again, now without a key
        assert httpx.get(f"{url}/v1/status").status_code == 200

        elsewhere = Settings.load({}, **{**given, "port": free_port()}).service_settings()
        assert deploy(elsewhere) == elsewhere.front.url != url  # it listens itself, so it can move
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/healthz")
        with pytest.raises(NotDeployed, match="keeps these"):  # Serve runs, and it runs without proxies
            deploy(through_proxy(elsewhere), timeout_s=patience(12))
    finally:
        assert stop(namespace)
    assert not stop(namespace)


def test_a_cluster_follows_published_keys_without_being_deployed_again(cluster, namespace, tmp_path: Path):
    import sondage
    from jobs.deploy import deploy, stop

    given = {"store": str(tmp_path / "index"), "cache": str(tmp_path / "cache"), "port": free_port(), "namespace": namespace}
    loaded = Settings.load({}, **given, api_key_file=tmp_path / "keys", follow_keys=True)
    first, second = (add_key(tmp_path / "keys", name, "read", None, None, "", datetime.now(UTC)) for name in ("first", "second"))
    publish_first(loaded)
    try:
        url = deploy(loaded.service_settings())
        with sondage.connect(url, first) as revoked, sondage.connect(url, second) as other:
            assert revoked.status()["corpora"] == {} == other.status()["corpora"]
            revoke_key(tmp_path / "keys", first.split("_")[1], datetime.now(UTC))
            publish_keys(loaded, datetime.now(UTC))
            eventually(lambda: refused(revoked))
            assert other.status()["corpora"] == {}
    finally:
        stop(namespace)


def refused(client) -> bool:
    try:
        client.status()
    except Unauthorized:
        return True
    return False


def through_proxy(settings):
    return settings.model_copy(update={"front": settings.front.model_copy(update={"own_listener": False})})


def test_through_serves_proxy_it_answers_the_same_and_stays_there(cluster, namespace, tmp_path: Path):
    """With TLS, hashed keys and an audit log, which are the proxy's and the application's, whoever listens."""
    from jobs.deploy import NotDeployed, deploy, only, stop

    certificate, tls_key = self_signed(tmp_path)
    given = {"store": str(tmp_path / "index"), "cache": str(tmp_path / "cache"), "port": free_port(), "namespace": namespace}
    given |= {"tls_certificate": certificate, "tls_key": tls_key, "audit": str(tmp_path / "audit"), "api_key_file": tmp_path / "keys"}
    key = add_key(tmp_path / "keys", "reader", "read", "a,b", None, "", datetime.now(UTC))
    settings = Settings.load({}, **given).service_settings()
    try:
        url = deploy(through_proxy(settings))
        assert url.startswith("https://")
        with httpx.Client(base_url=url, verify=only(certificate), trust_env=False, timeout=30) as http:
            assert http.get("/v1/status").status_code == 401
            http.headers["X-API-Key"] = key
            body = {"corpus": "a", "query": "x" * (1 << 20)}
            assert http.post("/v1/search", json=body).status_code == 413
            assert http.get("/v1/status").json() == {"corpora": {}, "hosts": [], "problems": {}}
            assert [http.get(f"/v1/search?corpus={corpus}&q=x").status_code for corpus in ("a", "c")] == [404, 404]
            assert http.put("/v1/corpora/a/documents/x", content="x").status_code == 403

        def told() -> list[str]:
            return (tmp_path / "audit").read_text().splitlines()

        eventually(lambda: sum('"status":404' in line and key.split("_")[1] in line for line in told()) == 2)
        assert deploy(settings) == url  # the proxy that is there goes on being used
        elsewhere = Settings.load({}, **{**given, "port": free_port()}).service_settings()
        with pytest.raises(NotDeployed, match="keeps these"):
            deploy(elsewhere, timeout_s=patience(12))
    finally:
        assert stop(namespace)


def test_through_serves_proxy_a_link_whose_client_hangs_up_is_cancelled(cluster, namespace, tmp_path: Path):
    """The coordinator does not ask the proxy whether the client is there (`serve.app.Bodiless`). The hosts are frozen meanwhile."""
    from jobs.deploy import deploy, stop

    Engine(tmp_path, ("bm25",)).index(write_files(tmp_path / "source", {"a.txt": "The pilot waits for high water."}), calibrate=False)
    given = {"store": str(tmp_path / "store"), "cache": str(tmp_path / "cache"), "port": free_port(), "namespace": namespace}
    pids = []
    try:
        url = deploy(through_proxy(Settings.load({}, **given).service_settings()))
        eventually(lambda: httpx.get(f"{url}/v1/search?corpus=c&q=pilot").json().get("complete"), patience(30))
        pids = [host["pid"] for host in httpx.get(f"{url}/v1/status").json()["hosts"]]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        with socket.create_connection(("127.0.0.1", given["port"])) as connection:
            connection.sendall(b"GET /v1/search?corpus=c&q=pilot&budget_ms=30000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            time.sleep(0.3)  # until it waits for the hosts
        eventually(lambda: any("/v1/search CANCELLED" in line for line in access_log()), 4.0)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        assert stop(namespace)


def access_log() -> list[str]:
    logs = (FOLDER / "ray").glob("session_*/logs/serve/replica_sondage_*.log")
    return [line for log in logs for line in log.read_text().splitlines() if "GET /v1/search" in line]


def test_a_cluster_needs_a_port_of_its_own(tmp_path: Path):
    from jobs.deploy import deploy

    with pytest.raises(BadSpec, match="Port 0"):
        deploy(Settings.load({}, store=str(tmp_path), port=0).service_settings())
