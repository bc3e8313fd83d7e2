"""Machine code is found again by content, from any copy of the folder, and its absence is never fatal."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent

KERNELS = """
from shards.compiled import jit
from constants import STEP
from inner import double

@jit
def total(values):
    s = 0
    for v in values:
        s += double(v) + STEP
    return s
"""
INNER = """
from shards.compiled import jit

@jit
def double(v):
    return 2 * v
"""
MAIN = """
import json, logging, sys
from pathlib import Path
logging.basicConfig(stream=sys.stdout, format="LOG %(message)s")
from shards import compiled
compiled.set_cache_folder(Path(sys.argv[1]))
import numpy as np
from kernels import total
result = int(total(np.arange(4)))
print(json.dumps({"result": result, "hits": sum(total._cache_hits.values()), "misses": sum(total._cache_misses.values())}))
"""


def place(folder: Path, inner: str = INNER, step: int = 0) -> Path:
    """A fresh copy of the package with a program that uses it, as a Ray job gets one."""
    folder.mkdir()
    (folder / "shards").mkdir()
    for name in ("__init__.py", "compiled.py"):
        shutil.copy(REPOSITORY / "shards" / name, folder / "shards" / name)
    for name, text in {"kernels": KERNELS, "inner": inner, "main": MAIN, "constants": f"STEP = {step}"}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def run(folder: Path, cache: Path) -> tuple[dict, str]:
    done = subprocess.run([sys.executable, "main.py", str(cache)], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    *logs, last = done.stdout.splitlines()
    return json.loads(last), "\n".join(logs)


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A cache filled by one run from one copy of the folder."""
    root = tmp_path_factory.mktemp("compiled")
    answer, _ = run(place(root / "first"), root / "cache")
    assert answer == {"result": 12, "hits": 0, "misses": 1}
    return root


def test_another_copy_of_the_folder_finds_the_compiled_code(warm):
    answer, log = run(place(warm / "second"), warm / "cache")
    assert answer == {"result": 12, "hits": 1, "misses": 0}
    assert not log


def test_a_changed_kernel_in_another_file_is_compiled_into_its_callers(warm):
    answer, _ = run(place(warm / "inner", inner=INNER.replace("2 * v", "3 * v")), warm / "cache")
    assert answer == {"result": 18, "hits": 0, "misses": 1}


def test_a_changed_constant_of_another_file_is_compiled_into_its_users(warm):
    answer, _ = run(place(warm / "constant", step=1), warm / "cache")
    assert answer == {"result": 16, "hits": 0, "misses": 1}


def test_a_torn_cache_file_is_compiled_anew(warm):
    torn = shutil.copytree(warm / "cache", warm / "torn")
    for file in torn.iterdir():
        file.write_bytes(file.read_bytes()[:100])
    answer, log = run(place(warm / "third"), torn)
    assert answer["result"] == 12 and "kernels-not-cached" in log


def test_without_a_writable_folder_kernels_still_run_and_one_warning_says_so(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    answer, log = run(place(tmp_path / "copy"), blocked)
    assert answer["result"] == 12
    assert log.count("kernels-not-cached") == 1 and "NUMBA_CACHE_DIR" in log
