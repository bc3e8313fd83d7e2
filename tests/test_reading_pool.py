"""Processes that read for an index job end with it."""

import os
import subprocess
import sys
import time

READS = "import sys; from jobs.reading_pool import Readers; print(*Readers(2)._pool._processes, flush=True); sys.stdin.read()"


def test_readers_end_when_who_reads_with_them_is_killed():
    with subprocess.Popen([sys.executable, "-c", READS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        readers = [int(pid) for pid in job.stdout.readline().split()]
        job.kill()
    ends = time.monotonic() + 20
    while (left := [pid for pid in readers if _alive(pid)]) and time.monotonic() < ends:
        time.sleep(0.02)
    assert len(readers) == 2 and not left


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
