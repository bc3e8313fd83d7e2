"""infra/cluster.yaml as Ray reads it, and infra/Dockerfile as far as its steps can be checked without building it."""

import fnmatch
import importlib.machinery
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from deployment_files import CLUSTER, DOCKERFILE, INFRA, ROOT, documents, manifests, setup_variables, walked

from jobs.settings import VARIABLES

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def cluster() -> dict:
    return documents(CLUSTER)[0]


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    """infra/container-steps, which has no ending."""
    loader = importlib.machinery.SourceFileLoader("container_steps", str(INFRA / "container-steps"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("container_steps", loader))
    sys.modules["container_steps"] = module  # dataclasses look themselves up there
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = writes
    return module


# --- ray up ---------------------------------------------------------------------------------------------------------------------


def test_ray_up_takes_the_cluster():
    """By Ray's own schema, after it has filled in what this provider leaves out."""
    import yaml
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(yaml.safe_load(CLUSTER.read_text()))
    validate_config(prepared)
    types = prepared["available_node_types"]
    assert set(types) == {"head", "serving"}, "a type of the provider's defaults was added"
    assert types["head"]["resources"] == {"CPU": 0}
    assert types["serving"]["resources"]["memory"] < 32 * 2**30
    assert prepared["max_workers"] == types["serving"]["max_workers"]


@pytest.mark.filterwarnings("ignore::pydantic.PydanticDeprecatedSince20")
def test_the_launcher_makes_the_machines_as_the_file_says(tmp_path: Path, monkeypatch):
    """Ray's launcher up to where it would log in, with moto in the place of EC2: network, key, security group, a machine of each type."""
    import boto3
    import yaml
    from moto import mock_aws
    from ray.autoscaler._private.aws.config import bootstrap_aws
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
    from ray.autoscaler._private.util import prepare_config

    monkeypatch.setenv("HOME", str(tmp_path))  # where the launcher leaves the key that it makes
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    region = cluster()["provider"]["region"]
    with mock_aws():
        iam, ec2 = boto3.client("iam", region_name=region), boto3.client("ec2", region_name=region)
        for name in ("sondage-head", "sondage"):
            iam.create_instance_profile(InstanceProfileName=name)
        ready = bootstrap_aws(prepare_config(yaml.safe_load(CLUSTER.read_text())))
        provider = AWSNodeProvider(ready["provider"], ready["cluster_name"])
        for name, kind in ready["available_node_types"].items():
            provider.create_node(kind["node_config"], {"ray-node-type": name}, 1)
        made = [machine for reservation in ec2.describe_instances()["Reservations"] for machine in reservation["Instances"]]
    profiles = {machine["InstanceType"]: machine["IamInstanceProfile"]["Arn"].rpartition("/")[2] for machine in made}
    assert profiles == {"m7i.large": "sondage-head", "m7i.2xlarge": "sondage"}
    for machine in made:
        assert machine["MetadataOptions"]["HttpTokens"] == "required"
        assert [volume["Ebs"]["DeleteOnTermination"] for volume in machine["BlockDeviceMappings"]] == [True]


def test_a_word_that_ray_up_does_not_know_is_refused():
    import yaml
    from ray.autoscaler._private.util import prepare_config, validate_config

    with pytest.raises(Exception, match="worker_startup_commands"):
        validate_config(prepare_config(yaml.safe_load(CLUSTER.read_text()) | {"worker_startup_commands": []}))


def test_every_node_has_the_checkout_with_its_token_and_sources_the_set_up_before_ray_starts():
    (place,) = [there for there, here in cluster()["file_mounts"].items() if here == "."]
    kept_away = [pattern.removeprefix("**/") for pattern in cluster()["rsync_exclude"]]
    for name in ("infra/setup", "infra/constraints.txt", "pyproject.toml", "jobs/deploy.py", ".sondage/ray-token"):
        parts = name.split("/")
        pieces = {"/".join(parts[i:j]) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1)}
        assert not [pattern for pattern in kept_away for piece in pieces if fnmatch.fnmatch(piece, pattern)], f"{name} is not sent along"
    assert ".sondage/ray-token" in (INFRA / "setup").read_text().replace("$STATE", ".sondage")
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        for line in cluster()[key]:
            assert line.startswith(f"cd {place} && . infra/setup && "), line
    assert "RAY_AUTH_MODE=token" in (INFRA / "setup").read_text()


def test_variables_that_the_cluster_file_names_are_read_by_somebody():
    known = {name for names in VARIABLES.values() for name in names} | set(setup_variables()) | {"RAY_HEAD_IP"}  # which Ray sets
    for name in set(re.findall(r"\b(?:SONDAGE|AWS|RAY|HF)_[A-Za-z0-9_]+\b", CLUSTER.read_text())):
        assert name in known, f"nothing reads {name}"


def test_no_secret_stands_in_the_cluster_file():
    held = [key for value in walked(cluster()) if isinstance(value, dict) for key in value]
    assert not [key for key in held if re.search("secret|token$|password|access_key", key, re.IGNORECASE)]


# --- the image ------------------------------------------------------------------------------------------------------------------


def test_the_image_holds_what_the_set_up_installs_less_what_tests_need():
    """One list of extras and one of what is installed apart from them, pinned by the same file."""
    setup, dockerfile = (INFRA / "setup").read_text(), DOCKERFILE.read_text()
    (extras,) = re.findall(r"-e '\.\[([\w,]+)\]'", setup)
    (image,) = re.findall(r"^ARG EXTRAS=(.*)$", dockerfile, re.MULTILINE)
    assert [*image.split(","), "test"] == extras.split(",")
    apart = r"--only-binary=:all: --no-deps -c (?:infra/)?constraints.txt ([\w ]+)$"
    assert re.findall(apart, setup, re.MULTILINE) == re.findall(apart, dockerfile, re.MULTILINE)
    assert dockerfile.count("-c constraints.txt") == dockerfile.count("--only-binary=:all:") == 2


def test_the_layer_of_dependencies_is_made_of_what_the_project_declares(steps, tmp_path: Path):
    """The step itself, run in a folder with what it copies."""
    found = list(steps.instructions(DOCKERFILE.read_text()))
    (extras,) = [rest.removeprefix("EXTRAS=") for keyword, rest in found if rest.startswith("EXTRAS=")]
    (step,) = [rest for keyword, rest in found if keyword == "RUN" and rest.endswith("> requirements.txt")]
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    subprocess.run(["/bin/sh", "-c", step], cwd=tmp_path, env={"PATH": path, "EXTRAS": extras}, check=True)
    optional = PROJECT["project"]["optional-dependencies"]
    wanted = PROJECT["project"]["dependencies"] + [line for extra in extras.split(",") for line in optional[extra]]
    assert (tmp_path / "requirements.txt").read_text().splitlines() == wanted


def test_the_image_is_made_of_the_packages_and_of_nothing_else_in_the_checkout(steps):
    context = steps.context(ROOT, (INFRA / "Dockerfile.dockerignore").read_text().split("\n"))
    (packages,) = [PROJECT["tool"]["setuptools"]["packages"]]
    folders = {package.replace(".", "/") for package in packages if package != "sondage"} | {"serve/client"}
    assert {str(Path(path).parent) for path in context} == folders | {".", "infra"}
    assert {path for path in context if not path.endswith(".py")} == {
        "LICENSE", "README.md", "pyproject.toml", "infra/constraints.txt", "shards/FORMAT.md",
        *(f"{package}/py.typed" for package in ("shards", "cluster", "serve", "serve/client")),
    }  # fmt: skip
    assert not [path for path in context if ".sondage" in path or "__pycache__" in path]
    copied = {
        word
        for keyword, rest in steps.instructions(DOCKERFILE.read_text())
        if keyword == "COPY" and "--from" not in rest
        for word in rest.split()[:-1]
    }
    assert copied == {path if path.count("/") == 0 or path.startswith("infra/") else path.split("/")[0] for path in context}


@pytest.mark.parametrize(
    "path, out",
    [
        ("shards/store.py", False),
        ("shards/__pycache__/store.cpython-311.pyc", True),
        ("shards/layers/x.pyc", True),
        (".sondage/ray-token", True),
        (".git/config", True),
        ("infra/constraints.txt", False),
        ("infra/setup", True),
        ("tests/test_http.py", True),
    ],
)
def test_what_the_context_leaves_out(steps, path, out):
    assert steps.ignored(path, (INFRA / "Dockerfile.dockerignore").read_text().split("\n")) is out


def test_the_image_runs_as_the_user_that_the_pods_run_as_and_reads_known_settings(steps):
    found = list(steps.instructions(DOCKERFILE.read_text()))
    (user,) = [int(rest) for keyword, rest in found if keyword == "USER"]
    assert {user} == {value["runAsUser"] for m in manifests() for value in walked(m) if isinstance(value, dict) and "runAsUser" in value}
    names = {word.partition("=")[0] for keyword, rest in found if keyword == "ENV" for word in rest.split()}
    known = {name for names in VARIABLES.values() for name in names} | set(setup_variables()) | {"PATH", "PYTHONUNBUFFERED"}
    assert {name for name in names if not name.startswith("PIP_")} <= known


def test_searches_of_a_store_load_the_models_of_the_image(tmp_path: Path):
    """They took those of the cache instead, where another was distilled that differed in a bit, and so its space was not asked."""
    from jobs.connecting import engine as engine_of
    from jobs.settings import Settings

    set_in = {f"SONDAGE_{name.upper()}": str(tmp_path / name) for name in ("store", "cache", "models")}
    with engine_of(Settings.load(set_in)) as engine:
        assert engine._settings.models_dir == tmp_path / "models"
    with engine_of(Settings.load({name: value for name, value in set_in.items() if name != "SONDAGE_MODELS"})) as engine:
        assert engine._settings.models_dir == tmp_path / "cache/models"


def test_every_instruction_is_one_that_the_steps_can_carry_out(steps):
    for keyword, _ in steps.instructions(DOCKERFILE.read_text()):
        assert hasattr(steps.Builder, f"step_{keyword.lower()}"), keyword


def test_the_steps_copy_and_set_what_docker_would(steps, tmp_path: Path):
    """Of a small file with two stages, up to what only root may: RUN."""
    (tmp_path / "base/etc").mkdir(parents=True)
    (tmp_path / "base/usr/local/bin").mkdir(parents=True)
    (tmp_path / "built").mkdir()
    builder = steps.Builder(tmp_path / "base", tmp_path / "built", {"COLOUR": "red"}, {})
    text = "ARG BASE=x\nFROM ${BASE} AS one\nARG COLOUR=blue\nWORKDIR /build\nENV A=/one:$PATH \\\n    B=${COLOUR}\n# a comment\n"
    text += "COPY pyproject.toml infra/constraints.txt ./\nCOPY jobs code\nFROM one\nENV A=$A:two\nUSER 1000\nCMD [\"a b\", \"c\"]\n"
    stage = builder.build(text)
    assert (stage.root / "build/constraints.txt").read_text() == (INFRA / "constraints.txt").read_text()
    assert (stage.root / "build/code/settings.py").is_file() and not list(stage.root.glob("build/code/__pycache__"))
    assert stage.env == {"PATH": steps.SYSTEM_PATH, "A": f"/one:{steps.SYSTEM_PATH}:two", "B": "red"}
    assert (stage.user, stage.workdir, stage.cmd) == ("1000", "/build", "'a b' c")
    with pytest.raises(SystemExit, match="no such file"):
        builder.build("COPY tests tests\n")
    with pytest.raises(SystemExit, match="does not know the instruction EXPOSE"):
        builder.build("EXPOSE 8765\n")
