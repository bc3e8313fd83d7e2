"""The jobs as commands: index, scale, deploy, evaluate, tune, bench. Their options are their own, read by argparse in their files."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand

from jobs import completing

JOBS = {  # command -> module of the job and the function that runs it
    "index": ("jobs.index", "run_index"),
    "scale": ("jobs.scale", "run_scale"),
    "deploy": ("jobs.deploy", "run_deploy"),
    "evaluate": ("jobs.evaluate", "run_evaluate"),
    "tune": ("jobs.tune", "run_tune"),
    "bench": ("jobs.bench", "main"),
}


@dataclass(frozen=True, slots=True)
class Completion:
    """What click's shells read of a completion; its own class has no public name in typer."""

    value: str
    type: str = "plain"
    help: str | None = None


class Job(TyperCommand):
    """A command whose words all go to a job, `--help` with them. Completion reads the job's own parser."""

    def shell_complete(self, ctx: typer.Context, incomplete: str) -> list[Any]:
        words = completing.within(completing.PATIENCE_S, lambda: words_of_job(self.name or "", ctx.args, incomplete))
        return [Completion(word) for word in words or []]


def words_of_job(name: str, before: list[str], incomplete: str) -> list[str]:
    """What may stand on a job's command line next: the values that the option before it takes, else options."""
    parser = importlib.import_module(JOBS[name][0]).parser()
    takes = {option: action for action in parser._actions for option in action.option_strings}
    action = takes.get(before[-1]) if before else None
    if action is not None and action.nargs != 0:
        given = {word[2:]: value for word, value in zip(before, before[1:], strict=False) if word in ("--store", "--url")}
        if action.dest == "corpus":
            known = list(completing.spaces(given))
        elif action.dest in ("layer", "layers"):
            known = completing.all_layers()
        else:
            known = list(map(str, action.choices or ()))
    else:
        known = [option for option in takes if option.startswith("--")] if incomplete.startswith("-") else positional(parser)
    return [word for word in known if word.startswith(incomplete)]


def positional(parser: Any) -> list[str]:
    """The words that a job's first argument may be, where these are known."""
    return next((list(map(str, action.choices)) for action in parser._actions if not action.option_strings and action.choices), [])


def add(app: typer.Typer) -> None:
    """Put the commands of this module into the `sondage` command."""
    for command in (index, scale, deploy, evaluate, tune, bench):
        app.command(cls=Job, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, add_help_option=False)(command)


def index(context: typer.Context) -> None:
    """Build or update a corpus from a folder, a bucket, an archive, … Options: sondage index --help."""
    _run(context)


def scale(context: typer.Context) -> None:
    """Give a corpus more or fewer shards or replicas while it is searched. Options: sondage scale --help."""
    _run(context)


def deploy(context: typer.Context) -> None:
    """Put the coordinator on a running Ray cluster. Options: sondage deploy --help."""
    _run(context)


def evaluate(context: typer.Context) -> None:
    """Measure rankings against judgements. Options: sondage evaluate --help."""
    _run(context)


def tune(context: typer.Context) -> None:
    """Learn from judgements what each layer should count. Options: sondage tune --help."""
    _run(context)


def bench(context: typer.Context) -> None:
    """Measure speeds beside peers or bare limits. What there is: sondage bench --help."""
    _run(context)


def _run(context: typer.Context) -> None:
    module, function = JOBS[context.info_name or ""]
    run: Callable[[list[str]], int] = getattr(importlib.import_module(module), function)
    raise typer.Exit(run(context.args))
