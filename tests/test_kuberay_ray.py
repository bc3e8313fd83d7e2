"""What infra/kuberay tells Ray Serve to deploy, deployed: the RayService's own config and environment, on the session's cluster."""

import os
from pathlib import Path

import httpx
import pytest
import yaml
from deployment_files import config, manifest
from ray_cluster import patience
from scripted_coordinator import eventually
from test_deploy import free_port

# Ray's own code, when it is imported.
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")]

KEY = "a-key-of-some-length-that-nobody-guesses"


def here(tmp_path: Path, namespace: str, port: int) -> dict[str, str]:
    """The pods' environment, with folders and a port of this machine's, and a namespace of the test's."""
    (tmp_path / "api-keys").write_text(KEY)
    own = {
        "SONDAGE_STORE": str(tmp_path / "index"),
        "SONDAGE_CACHE": str(tmp_path / "cache"),
        "SONDAGE_API_KEY_FILE": str(tmp_path / "api-keys"),
        "SONDAGE_HOST": "127.0.0.1",
        "SONDAGE_PORT": str(port),
        "SONDAGE_NAMESPACE": namespace,
        "PYTHONPATH": os.environ["PYTHONPATH"],  # where the image has the packages installed
    }
    return {name: value for name, value in config().items() if name.startswith("SONDAGE_")} | own


def test_serve_deploys_what_the_ray_service_says(cluster, namespace, tmp_path: Path):
    from ray import serve as ray_serve
    from ray.serve.context import _get_global_client
    from ray.serve.schema import ServeDeploySchema

    from jobs.deploy import stop

    port = free_port()
    said = yaml.safe_load(manifest("RayService")["spec"]["serveConfigV2"])
    said["http_options"] |= {"host": "127.0.0.1", "port": port}
    said["applications"][0]["runtime_env"] = {"env_vars": here(tmp_path, namespace, port)}
    said["applications"][0]["args"]["coordinators"] = 2  # there are two nodes
    url = f"http://127.0.0.1:{port}"
    try:
        # As the dashboard does when the operator hands it the file.
        ray_serve.start(proxy_location=said["proxy_location"], http_options=said["http_options"])
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(said))
        eventually(lambda: ray_serve.status().applications["sondage"].status == "RUNNING", patience(40))
        deployment = ray_serve.status().applications["sondage"].deployments["Service"]
        assert deployment.replica_states == {"RUNNING": 2}
        assert httpx.get(f"{url}/-/healthz").text == "success"  # what makes a worker's pod ready
        assert httpx.get(f"{url}/readyz", timeout=10).status_code == 200
        assert httpx.get(f"{url}/v1/status", timeout=10).status_code == 401
        status = httpx.get(f"{url}/v1/status", headers={"Authorization": f"Bearer {KEY}"}, timeout=10).json()
        assert status["store"] == str(tmp_path / "index")
        assert status["coordinator"]["of"] == 2
        assert httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {KEY}"}, timeout=10).text.startswith("# HELP sondage_")
    finally:
        assert stop(namespace)
