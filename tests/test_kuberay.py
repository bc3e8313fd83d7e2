"""The manifests of infra/kuberay: what Kubernetes and KubeRay take, one word for the same thing everywhere, and what our code reads."""

import copy
import importlib
import json
import shutil
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml
from deployment_files import (
    KUBERAY,
    ROOT,
    command_lines,
    commands,
    config,
    containers,
    documents,
    manifest,
    manifests,
    parse,
    pods,
    setup_variables,
    walked,
)
from kuberay_schema import VERSIONS, problems

from jobs.settings import VARIABLES, Settings
from serve.http import create_app
from serve.local import local_coordinator
from serve.settings import APP_NAME
from shards.errors import BadSpec

# Ray's own code, when it is imported.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
AGENT_PORT = 52365  # of Ray's agent on each node, where `ray start` is told no other
SONDAGE_VARIABLES = {name for names in VARIABLES.values() for name in names}


def kustomization() -> dict:
    return documents(KUBERAY / "Kustomization")[0]


def serve_config() -> dict:
    return yaml.safe_load(manifest("RayService")["spec"]["serveConfigV2"])


def groups() -> list[dict]:
    """Heads' and workers' groups of both clusters."""
    specs = [manifest("RayService")["spec"]["rayClusterConfig"], manifest("RayCluster")["spec"]]
    return [group for spec in specs for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"])]


def monitoring() -> list[dict]:
    """What the script for the Prometheus operator and Grafana prints."""
    printed = subprocess.run(["bash", str(KUBERAY / "monitoring/manifests")], capture_output=True, text=True, check=True)
    return list(yaml.load_all(printed.stdout, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


# --- Kubernetes and its operators -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_and_its_operators_take_every_manifest(version):
    for found in (*manifests(), *monitoring()):
        assert not problems(found, version), f"{found['kind']} {found['metadata']['name']}"


@pytest.mark.parametrize(
    "kind, path, value",
    [
        ("RayService", ("rayClusterConfig", "headGroupSpecs"), {}),
        ("RayService", ("rayClusterConfig", "rayVersion"), "2.60"),
        ("RayService", ("upgradeStrategy", "type"), "RollingUpdate"),
        ("RayService", ("rayClusterConfig", "authOptions", "mode"), "tokens"),
        ("RayCluster", ("headGroupSpec", "rayStartParams", "num-cpus"), 0),
        ("RayCluster", ("headGroupSpec", "template", "spec", "containers", 0, "livenessProbe", "periodSecond"), 5),
        ("RayCluster", ("workerGroupSpecs", 0, "replicas"), -1),
        ("RayJob", ("rayClusterSpec",), {"headGroupSpec": {"template": {}}}),
        ("NetworkPolicy", ("policyType",), ["Ingress"]),
        ("PodDisruptionBudget", ("minAvailable",), []),
    ],
)
def test_a_field_that_they_would_drop_or_refuse_is_found(kind, path, value):
    wrong = copy.deepcopy(next(m for m in manifests() if m["kind"] == kind))
    inner = wrong["spec"]
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    assert problems(wrong, VERSIONS[0])


def test_a_folder_applied_as_it_is_makes_its_namespace_first_and_leaves_none_out():
    assert manifests()[0]["kind"] == "Namespace"
    space = manifests()[0]["metadata"]["name"]
    assert {m["metadata"]["namespace"] for m in manifests()[1:]} == {space} == {kustomization()["namespace"]}
    assert sorted(kustomization()["resources"]) == sorted(path.name for path in KUBERAY.glob("*.yaml"))
    assert not [name for name, n in Counter((m["kind"], m["metadata"]["name"]) for m in manifests()).items() if n > 1]


def test_kustomize_builds_the_same_with_all_components_and_another_registry(tmp_path: Path):
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl, which has kustomize in it")
    folder = shutil.copytree(KUBERAY, tmp_path / "kuberay")
    wanted = copy.deepcopy(kustomization()) | {"components": [path.parent.name for path in KUBERAY.glob("*/kustomization.yaml")]}
    wanted["images"][0]["newName"] = "registry.example/sondage"
    (folder / "Kustomization").write_text(yaml.safe_dump(wanted))
    built = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)
    made = [document for document in yaml.safe_load_all(built.stdout) if document]
    assert {(m["kind"], m["metadata"]["name"]) for m in manifests()} <= {(m["kind"], m["metadata"]["name"]) for m in made}
    for found in made:
        assert not problems(found, VERSIONS[-1])
    (service,) = [m["spec"]["rayClusterConfig"] for m in made if m["kind"] == "RayService"]
    assert service["gcsFaultToleranceOptions"]["redisPassword"]["valueFrom"]["secretKeyRef"]
    images = {value["image"] for m in made for value in walked(m) if isinstance(value, dict) and isinstance(value.get("image"), str)}
    assert images == {f"registry.example/sondage:{VERSION}"}


def test_no_pod_runs_as_root_or_speaks_to_kubernetes():
    """What the namespace's pod security asks for, and a little more."""
    for pod in pods():
        security = pod["spec"]["securityContext"]
        assert security["runAsNonRoot"] and security["runAsUser"] and security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["spec"]["automountServiceAccountToken"] is False
    for container in containers():
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_no_manifest_holds_a_secret():
    assert not [m for m in manifests() if m["kind"] == "Secret"]
    for container in containers():
        for variable in container.get("env", ()):
            if any(word in variable["name"] for word in ("TOKEN", "KEY", "SECRET", "PASSWORD")):
                assert "secretKeyRef" in variable["valueFrom"], variable["name"]
    assert not [name for name in config() if name in ("SONDAGE_API_KEYS", "SONDAGE_API_KEY", "AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN")]


# --- one word for one thing -----------------------------------------------------------------------------------------------------


def test_all_of_it_runs_one_image_and_the_ray_that_is_pinned():
    images = {container["image"] for container in containers()}
    assert images == {f"sondage:{VERSION}"}
    assert [(image["name"], image["newTag"]) for image in kustomization()["images"]] == [("sondage", VERSION)]
    assert f"-t sondage:{VERSION} " in (ROOT / "infra/Dockerfile").read_text()
    pinned = dict(line.split("==") for line in (ROOT / "infra/constraints.txt").read_text().splitlines() if "==" in line)
    versions = {value["rayVersion"] for m in manifests() for value in walked(m) if isinstance(value, dict) and "rayVersion" in value}
    assert versions == {pinned["ray"]}


def test_the_environment_has_names_that_are_read_and_the_values_of_the_set_up():
    setup = setup_variables()
    given = [*config().items(), *((v["name"], v.get("value")) for c in containers() for v in c.get("env", ()))]
    for name, value in given:
        if name.startswith(("SONDAGE_", "AWS_")):
            assert name in SONDAGE_VARIABLES, f"nothing reads {name}"
        elif name == "RAY_AUTH_TOKEN":
            assert value is None  # from a Secret; Ray reads it where there is no RAY_AUTH_TOKEN_PATH
        else:
            assert setup.get(name) == value, f"{name} is {value}, in infra/setup {setup.get(name)}"
    assert not {name for name in setup if name.startswith("RAY_") and "AUTH" not in name} - set(config()), "infra/setup sets more"


def test_the_environment_makes_a_server_that_others_may_ask_and_only_with_a_key(tmp_path: Path):
    front = Settings.load(config(), **keys(tmp_path)).service_settings().front
    assert (front.host, front.port) == (serve_config()["http_options"]["host"], serve_config()["http_options"]["port"])
    assert len(front.api_keys) == 1


def test_index_runs_need_no_key_and_reach_the_store_as_the_pods_may():
    """Pods that index have no file of keys; with a role of the cloud's there is no S3 key either."""
    settings = Settings.load(config())
    assert settings.host_settings().store_url.startswith("s3://")
    assert settings.store_options() == {"region": config()["AWS_REGION"]}
    with_keys = Settings.load(config() | {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"})
    assert with_keys.store_options() == settings.store_options() | {"key": "a", "secret": "b"}


def keys(folder: Path) -> dict[str, str]:
    """A file of keys in place of the mounted one."""
    (folder / "api-keys").write_text("a-key-of-some-length-that-nobody-guesses\n")
    return {"api_key_file": str(folder / "api-keys")}


def test_probes_monitors_and_policies_name_ports_that_the_pods_have():
    ports = {port["name"]: port["containerPort"] for container in containers() for port in container.get("ports", ())}
    assert ports["serve"] == int(config()["SONDAGE_PORT"])
    named = {value["port"] for m in manifests() for value in walked(m) if isinstance(value, dict) and isinstance(value.get("port"), str)}
    assert named <= set(ports)
    for group in groups():
        (container,) = group["template"]["spec"]["containers"]
        own = {port["name"] for port in container["ports"]}
        assert {"metrics"} | ({"dashboard", "gcs-server"} if "head" in container["name"] else set()) <= own
        for probe in (container["livenessProbe"], container["startupProbe"]):
            assert probe["httpGet"] == {"path": "/api/healthz", "port": AGENT_PORT}
        assert "dashboard-agent-listen-port" not in group["rayStartParams"]


def test_every_serving_worker_has_a_coordinator_and_all_but_one_stay_while_machines_are_drained():
    (worker,) = manifest("RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert worker["minReplicas"] == worker["replicas"] == worker["maxReplicas"]
    (app,) = serve_config()["applications"]
    assert app["args"]["coordinators"] == worker["replicas"]
    assert [deployment["max_replicas_per_node"] for deployment in app["deployments"]] == [1]
    budget = manifest("PodDisruptionBudget")["spec"]
    assert budget["minAvailable"] == worker["replicas"] - 1
    assert budget["selector"]["matchLabels"].items() <= worker["template"]["metadata"]["labels"].items()


def test_searches_have_the_cores_and_the_cache_the_disk_that_a_serving_worker_has():
    (worker,) = manifest("RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    pod = worker["template"]["spec"]
    limits = pod["containers"][0]["resources"]["limits"]
    assert config()["SONDAGE_THREADS"] == limits["cpu"]
    assert {m["mountPath"] for m in pod["containers"][0]["volumeMounts"]} >= {
        config()["SONDAGE_CACHE"], str(Path(config()["SONDAGE_API_KEY_FILE"]).parent)
    }  # fmt: skip
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    room = int(volumes["cache"]["emptyDir"]["sizeLimit"].removesuffix("Gi")) * 2**30
    assert int(config()["SONDAGE_CACHE_BYTES"]) < room
    from cluster.settings import HostSettings

    assert int(limits["memory"].removesuffix("Gi")) * 2**30 > HostSettings.model_fields["memory_bytes"].default


def test_heads_keep_work_away_and_every_cluster_asks_for_the_token():
    for spec in (manifest("RayService")["spec"]["rayClusterConfig"], manifest("RayCluster")["spec"]):
        assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
        assert spec["authOptions"]["mode"] == "token"
    secrets = {
        value["authOptions"]["secretName"] for m in manifests() for value in walked(m) if isinstance(value, dict) and "authOptions" in value
    }
    (submitter,) = [c for c in containers() if c["name"] == "ray-job-submitter"]
    (token,) = [v["valueFrom"]["secretKeyRef"] for v in submitter["env"] if v["name"] == "RAY_AUTH_TOKEN"]
    assert secrets == {token["name"]}
    assert token["key"] == "auth_token"  # the key that KubeRay looks for


def test_the_index_job_runs_on_the_cluster_that_there_is():
    assert manifest("RayJob")["spec"]["clusterSelector"] == {"ray.io/cluster": manifest("RayCluster")["metadata"]["name"]}


def test_prometheus_and_grafana_are_given_the_alerts_and_the_dashboard_as_they_are():
    made = {(m["kind"], m["metadata"]["name"]): m for m in monitoring()}
    assert made["PrometheusRule", "sondage"]["spec"] == documents(ROOT / "infra/grafana/alerts.yaml")[0]
    (dashboard,) = made["ConfigMap", "sondage-dashboard"]["data"].values()
    assert json.loads(dashboard) == json.loads((ROOT / "infra/grafana/dashboard.json").read_text())
    (own, ray) = (made["PodMonitor", name]["spec"] for name in ("sondage", "sondage-ray"))
    (endpoint,) = own["podMetricsEndpoints"]
    paths = {route.path for route in create_app(local_coordinator(None)).routes}
    assert endpoint["path"] in paths and endpoint["authorization"]["credentials"]
    for spec, n in ((own, 1), (ray, 5)):
        pod_ports = [[p["name"] for c in pod["spec"]["containers"] for p in c.get("ports", ())] for pod in pods() if matches(spec, pod)]
        assert len(pod_ports) == n  # the submitter of jobs among them, which has no port, and so nothing is asked there
        assert any(spec["podMetricsEndpoints"][0]["port"] in names for names in pod_ports)


def matches(spec: dict, pod: dict) -> bool:
    return spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


# --- what reads it --------------------------------------------------------------------------------------------------------------


def test_every_command_line_in_infra_is_one_that_its_program_takes():
    read = Counter(filter(None, (parse(words) for line in command_lines() for words in commands(line))))
    assert read["ray"] > 5 and read["sondage"] >= 2 and read["index"] and read["deploy"]


@pytest.mark.parametrize(
    "line", ["sondage index --corpus a", "python jobs/deploy.py --portt 1", "ray start --heads", "sondage serve --prt 1"]
)
def test_a_command_line_that_it_would_refuse_is_found(line):
    (words,) = commands(line)
    with pytest.raises((SystemExit, Exception)):
        parse(words)


def test_ray_start_knows_what_the_pods_start_it_with():
    for group in groups():
        words = [f"--{name}={value}" for name, value in group["rayStartParams"].items()]
        assert parse(["ray", "start", *words]) == "ray"


def test_ray_has_its_agent_where_the_probes_look():
    from ray._private.ray_constants import DEFAULT_DASHBOARD_AGENT_LISTEN_PORT
    from ray.dashboard.http_server_agent import PUBLIC_EXACT_PATHS

    assert DEFAULT_DASHBOARD_AGENT_LISTEN_PORT == AGENT_PORT
    assert "/api/healthz" in PUBLIC_EXACT_PATHS  # asks for no token


def test_an_application_with_a_setting_that_there_is_not_says_which_there_are():
    from jobs.application import application

    with pytest.raises(BadSpec, match=r"there is no stor\. There are revision, coordinators, store, "):
        application({"stor": "s3://bucket/index", "revision": 2})
    with pytest.raises(BadSpec, match="coordinators is '3'"):
        application({"coordinators": "3"})


def test_serve_takes_the_application_and_finds_it():
    from ray.serve.schema import ServeDeploySchema

    from serve.app import Service

    (app,) = ServeDeploySchema.model_validate(serve_config()).applications
    assert app.name == APP_NAME
    module, _, function = app.import_path.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert [deployment.name for deployment in app.deployments] == [Service.name]
