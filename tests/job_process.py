"""Index jobs in processes of their own, forked from a server that has everything loaded, so that one starts in milliseconds."""

import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Barrier

from jobs.index import run_index

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["job_process", "job_process_warm"])


def start(arguments: Sequence[str], cache: str, barrier: Barrier | None = None) -> ForkServerProcess:
    """A process that runs `sondage index` with these arguments; its exit code is the command's."""
    process = CONTEXT.Process(target=_run, args=(list(arguments), cache, barrier))
    process.start()
    return process


def _run(arguments: list[str], cache: str, barrier: Barrier | None) -> None:
    for name in list(os.environ):
        if name.startswith(("SONDAGE_", "AWS_")):
            del os.environ[name]
    os.environ["SONDAGE_CACHE"] = cache
    if barrier is not None:
        barrier.wait(60)
    sys.exit(run_index([*arguments, "--local"]))
