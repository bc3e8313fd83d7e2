"""What stands in infra/ for machines and clusters, read for tests: manifests, the command lines in them, and what these commands take."""

import re
import shlex
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import typer.main
import yaml

ROOT = Path(__file__).resolve().parent.parent
INFRA = ROOT / "infra"
KUBERAY = INFRA / "kuberay"
CLUSTER = INFRA / "cluster.yaml"
DOCKERFILE = INFRA / "Dockerfile"


@lru_cache
def documents(path: Path) -> list[dict[str, Any]]:
    """Not to be changed: read once."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def manifests() -> list[dict[str, Any]]:
    """What `kubectl apply -f infra/kuberay/` reads: the files that end so, in the order of their names."""
    return [document for path in sorted(KUBERAY.glob("*.yaml")) for document in documents(path)]


def manifest(kind: str, name: str | None = None) -> dict[str, Any]:
    (found,) = [m for m in manifests() if m["kind"] == kind and name in (None, m["metadata"]["name"])]
    return found


def walked(value: Any) -> Iterator[Any]:
    """A value and everything in it."""
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walked(inner)


def pods() -> list[dict[str, Any]]:
    """The pod templates of all manifests."""
    return [value for m in manifests() for value in walked(m) if isinstance(value, dict) and "containers" in value.get("spec", {})]


def containers() -> list[dict[str, Any]]:
    return [container for pod in pods() for container in pod["spec"]["containers"]]


def config() -> dict[str, str]:
    """The environment that every pod of ours gets."""
    return manifest("ConfigMap")["data"]


def setup_variables() -> dict[str, str]:
    """What infra/setup exports with a fixed value."""
    exported = "\n".join(re.findall(r"^export (.*)$", (INFRA / "setup").read_text(), re.MULTILINE))
    found = dict(re.findall(r"(\w+)=\"?(?:\$\{\w+:-)?([\w./-]+)", exported))
    return found | {"RAY_AUTH_MODE": "token"}


# --- command lines --------------------------------------------------------------------------------------------------------------


def commands(line: str) -> list[list[str]]:
    """The commands of a shell line, each as its words: cut at &&, ||, ; and |. What a job is to run follows its submission."""
    lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    for word in lexer:
        if word in ("&&", "||", ";", "|"):
            found.append([])
        else:
            found[-1].append(word)
    jobs = [words[words.index("--") + 1 :] for words in found if words[:3] == ["ray", "job", "submit"]]
    return [command for command in found + jobs if command]


def command_lines() -> list[str]:
    """All shell lines of infra/cluster.yaml, infra/kuberay and infra/Dockerfile, those in comments that show how it is used too."""
    cluster = documents(CLUSTER)[0]
    lines = [line for key, value in cluster.items() if key.endswith("_commands") for line in value]
    lines += [m["spec"]["entrypoint"] for m in manifests() if m["kind"] == "RayJob"]
    lines += [shlex.join(hook["exec"]["command"]) for c in containers() for hook in c.get("lifecycle", {}).values()]
    lines += [shlex.join(yaml.safe_load(words)) for words in re.findall(r"^CMD (.*)$", DOCKERFILE.read_text(), re.MULTILINE)]
    for path in (CLUSTER, DOCKERFILE, *KUBERAY.rglob("*.yaml")):
        shown = re.sub(r"\\\n# +", "", path.read_text())
        lines += re.findall(r"^#   (?=\S)(.*)$", shown, re.MULTILINE)
        lines += [code for comment in re.findall(r"# (.*)", shown) for code in re.findall(r"`([^`]+)`", comment)]
    return [part for line in lines for part in (line, *_quoted(line))]


def _quoted(line: str) -> list[str]:
    """A shell line that is an argument of another, as in `ray exec FILE 'cd x && y'`."""
    return re.findall(r"'((?:cd|\.) [^']*)'", line)


def parse(words: list[str]) -> str | None:
    """Gives a command line to the parser that would read it, and says which: "sondage", "ray" or a job's name; None: it is no command of
    theirs. Raises what the parser raises."""
    if words[:2] == ["docker", "run"]:
        words = words[words.index("sondage") :]  # what runs in it
    match words:
        case ["sondage", name, *rest] if not name.startswith("-"):
            from jobs.cli import app

            if (command := typer.main.get_command(app).commands[name]).context_settings.get("ignore_unknown_options"):
                import_module(f"jobs.{name}").parser().parse_args(rest)
            else:
                command.make_context(name, rest)
            return "sondage"
        case ["python", job, *rest] if job.startswith("jobs/"):
            import_module(f"jobs.{Path(job).stem}").parser().parse_args(rest)
            return Path(job).stem
        case ["ray", *rest]:
            from ray.scripts.scripts import cli

            _click(cli, rest)
            return "ray"
    return None


def _click(group: click.Group, words: list[str]) -> None:
    command = group.commands[words[0]]
    if isinstance(command, click.Group):
        _click(command, words[1:])
    else:
        command.make_context(words[0], list(words[1:]))
