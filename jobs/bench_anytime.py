"""What a search is worth within a time, whether it ends in time, and how soon a corpus that was just named answers.

quality    nDCG@10 of judged collections at each budget beside that of unlimited time, over HTTP
deadlines  how often answers of mixed kinds come later than their budgets allow, with clients at once
cold       seconds until a new corpus answers and is covered
session    a session while a dear layer builds itself where it looks, beside an index that has all of it
building   what searches take while a layer is built beside them, and while none is
chaos      a corpus that is opened, asked and built while its processes are killed: answers beside those of an undisturbed index
"""

from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from typing import Any

from jobs.progress import Progress

PARTS = ("quality", "deadlines", "cold", "session", "building", "chaos")


def bench_anytime(progress: Progress, options: Namespace) -> dict[str, Any]:
    """The figures of each part."""
    found = {}
    for name in options.parts or PARTS:
        part: Callable[[Progress, Namespace], dict[str, Any]] = getattr(import_module(f"jobs.bench_anytime_{name}"), f"bench_{name}")
        found[name] = part(progress, options)
    return found
