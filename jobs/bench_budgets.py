"""How soon searches of each layer end when their time does: what one thread works between two looks at it, and what comes after the end.

Each question is asked once without a limit, of a budget that takes notes, and then again and again with an end at a random instant of
what it took: half of these ends are deadlines, half come from another thread, as from a client that hangs up.
"""

import random
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from jobs.bench_tree import Indexed, indexed, made_tree
from jobs.chaos_report import percentile
from jobs.progress import Progress
from shards.types import Budget

LAYERS = ("names", "text", "trigram", "fuzzy", "structure", "symbols", "formula", "bm25", "static")
OF_COLLECTIONS = ("bm25", "static", "sparse", "dense", "late")  # spaces asked where a collection has them
TRIES = 60  # ends of each question
N_QUERIES = 4  # of a collection
ALLOWED_MS = 10.0
K = 100

# By layer: texts, or forms.
QUESTIONS: Mapping[str, tuple[str | dict[str, Any], ...]] = {
    "names": ({"glob": "**/*.py"}, {"glob": "**/*a*e*/**"}, "test unit config"),
    "text": (
        {"pattern": "error"},
        {"pattern": r"\w", "regex": True},
        {"pattern": r"(\w+\s+){6,12}error", "regex": True},
        {"pattern": r"(?i)[aeiou]{3}.*[xyz]{2}.*\d$", "regex": True},
        {"pattern": r"(?s)TimeoutError.{1,80}raise", "regex": True},
        {"pattern": r"(?s)def .{1,400}yield", "regex": True},
        {"pattern": r"except \w+:\n\s+pass\n", "regex": True},
    ),
    "trigram": ({"pattern": "error"}, {"pattern": r"return\s+self", "regex": True}),
    "fuzzy": ({"text": "recieve"}, {"text": "paramter of the fuction", "edits": 3}),
    "structure": ({"pattern": "isinstance($A, $B)", "language": "python"}, {"pattern": "raise $A from None", "language": "python"}),
    "symbols": ({"name": "parse"}, {"name": "get_*"}),
    "formula": (r"$x^2 + y^2 = z^2$",),
    "bm25": ("the return value of a function in self", "parse error", "if not is the of a to and in for self return import def"),
    "static": ("how to parse a date from a string",),
}


class Watched(Budget):
    """A budget that remembers the most CPU time that one thread spent between two looks at it, seconds, and between which lines."""

    __slots__ = ("_last", "between", "longest_s", "n_looks")

    def __init__(self, seconds: float):
        super().__init__(seconds)
        self._last: dict[int, tuple[float, str]] = {threading.get_ident(): (time.thread_time(), "the beginning")}
        self.longest_s, self.between, self.n_looks = 0.0, ("", ""), 0

    def look(self, caller: Any = None) -> None:
        """Somebody looks, from this frame."""
        caller = caller or sys._getframe(1)
        place = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
        thread, now = threading.get_ident(), time.thread_time()
        before, where = self._last.get(thread, (now, ""))
        self.n_looks += 1
        if now - before > self.longest_s:
            self.longest_s, self.between = now - before, (where, place)
        self._last[thread] = time.thread_time(), place

    @property
    def remaining_s(self) -> float:
        self.look(sys._getframe(1))
        return self.deadline - time.monotonic()

    @property
    def expired(self) -> bool:
        self.look(sys._getframe(1))
        return time.monotonic() >= self.deadline


def bench_budgets(progress: Progress, options: Namespace) -> dict[str, Any]:
    """Per space and question: the longest work between two looks, and how late searches end."""
    drawn, n_tries = random.Random(options.seed), options.rounds or TRIES
    tree = made_tree(options.megabytes, progress)
    found: dict[str, Any] = {"tree": {"corpus": tree.how} | _of(indexed(tree, LAYERS, progress), QUESTIONS, drawn, n_tries, progress)}
    for folder in options.dataset:
        opened, questions = _collection(folder, options.store)
        found[folder.resolve().name] = _of(opened, questions, drawn, n_tries, progress)
    return {"allowed_ms": ALLOWED_MS, "tries": n_tries, "seed": options.seed} | found


def _collection(folder: Path, stores: str | None) -> tuple[Indexed, dict[str, list[str]]]:
    """A judged collection whose store is there already, and its first queries for each of its spaces. Raises BadSpec."""
    from jobs import datasets
    from jobs.bench_tree import Tree
    from jobs.settings import Settings
    from shards.cache import FileCache
    from shards.errors import BadSpec
    from shards.generation import Generation
    from shards.store import open_store

    name = folder.resolve().name
    if not stores or not (Path(stores) / name).is_dir():
        made_by = f"python jobs/evaluate.py --suite {folder} --store DIR"
        raise BadSpec(f"There is no store of {name} in {stores or 'no folder'}. Make one: {made_by}.")
    settings = Settings.load(store=str(Path(stores) / name))
    cache = FileCache(settings.host_settings().cache_dir, settings.cache_bytes)
    generation = Generation.open(open_store(settings.store_url()), cache, name, None, settings.resources())
    texts = list(datasets.read_beir(folder).queries.values())[:N_QUERIES]
    questions = {space: texts for space in OF_COLLECTIONS if space in generation.spaces}
    return Indexed(Tree(folder, 0, 0, name), str(settings.store_url()), generation, {}), questions


def _of(opened: Indexed, questions: Mapping[str, Any], drawn: random.Random, n_tries: int, progress: Progress) -> dict[str, Any]:
    """Of one corpus: by space."""
    from shards.plan import Everything, Plan
    from shards.shard import search

    shards = [opened.generation.shard(number) for number in range(len(opened.generation.pages))]
    wanted = [(space, asked) for space, all_asked in questions.items() if space in opened.generation.spaces for asked in all_asked]
    spaces: dict[str, Any] = {}
    for n, (space, asked) in enumerate(wanted):
        progress("questions", n, len(wanted), "questions")
        text, form = (asked, None) if isinstance(asked, str) else ("", asked)
        plan = Plan(Everything(), (replace(opened.prepare(space, text, form), space=space),), n_candidates=K)
        search(shards, plan, Budget())  # maps files, loads compiled code
        watched = Watched(1e6)
        begun = time.monotonic()
        search(shards, plan, watched)
        whole_s = time.monotonic() - begun
        watched.look()
        ends: dict[str, list[float]] = {"deadline": [], "cancelled": []}
        for i in range(n_tries):
            after_s, kind = drawn.uniform(0, whole_s), "cancelled" if i % 2 else "deadline"
            budget = Budget(1e6 if i % 2 else after_s)
            with _ended(budget, after_s if i % 2 else None) as ended:
                search(shards, plan, budget)
                done = time.monotonic()
            if (late_s := done - (ended[0] if i % 2 else budget.deadline)) > 0:
                ends[kind].append(1_000 * late_s)
        spaces.setdefault(space, []).append(
            {
                "asked": str(asked)[:60],
                "took_ms": round(1_000 * whole_s, 1),
                "longest_ms": round(1_000 * watched.longest_s, 2),
                "between": " and ".join(watched.between),
                "looks": watched.n_looks,
            }
            | {f"after {kind}, ms": _marks(late) for kind, late in ends.items()}
        )
    all_ = [one for of in spaces.values() for one in of]
    above = [f"{one['asked']}: {one['longest_ms']} ms" for one in all_ if one["longest_ms"] > ALLOWED_MS]
    return {"longest_ms": max((one["longest_ms"] for one in all_), default=0.0), "above allowed": above, "spaces": spaces}


def _marks(late_ms: list[float]) -> dict[str, float | int]:
    """Of the searches that the end met in their work."""
    marks = {f"p{mark}": round(percentile(late_ms, share) or 0.0, 1) for mark, share in (("50", 0.5), ("99", 0.99))}
    return {"n": len(late_ms), **marks, "most": round(max(late_ms, default=0.0), 1)}


@contextmanager
def _ended(budget: Budget, after_s: float | None) -> Iterator[list[float]]:
    """Another thread ends a budget after so many seconds, None: nobody does; the instant at which it did (infinity: not yet)."""
    at = [float("inf")]

    def end() -> None:
        budget.deadline = at[0] = time.monotonic()

    timer = threading.Timer(after_s, end) if after_s is not None else None
    if timer is not None:
        timer.start()
    try:
        yield at
    finally:
        if timer is not None:
            timer.cancel()
            timer.join()
