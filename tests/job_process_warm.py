"""Imported by the fork server of `job_process` alone: one run, so that compiled code is there when a job is forked."""

import tempfile
from pathlib import Path

from engine import Engine, write_files

with tempfile.TemporaryDirectory(prefix="sondage-warm-") as folder:
    Engine(Path(folder)).index(write_files(Path(folder) / "src", {"a.py": "def a():\n    return 1\n", "b.txt": "Plain words.\n"}))
