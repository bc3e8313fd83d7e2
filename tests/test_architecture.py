"""The rules that keep the parts apart: who may import whom, what stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ORDER = ["shards", "cluster", "serve", "jobs"]
RAY_ALLOWED = {
    "cluster/actors.py", "cluster/controller.py", "cluster/searcher.py", "serve/app.py",
}  # fmt: skip
HEAVY = ["torch", "ray", "faiss", "numba", "sentence_transformers", "model2vec", "pyarrow", "scipy", "fastapi"]


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Top-level names of everything a file imports, at module level or inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("folder", ORDER)
def test_imports_point_down(folder):
    above = set(ORDER[ORDER.index(folder) + 1 :])
    for path in sources(folder):
        assert not imported(path) & above, f"{path} imports upward"


def test_ray_is_used_only_where_it_is_allowed():
    for folder in ORDER[:3]:
        for path in sources(folder):
            if "ray" in imported(path):
                assert path.relative_to(ROOT).as_posix() in RAY_ALLOWED, f"{path} imports ray"


def test_remote_is_applied_in_one_file():
    for folder in ORDER:
        for path in sources(folder):
            if path.name != "actors.py":
                assert "ray.remote" not in path.read_text(), f"{path} applies ray.remote"


def test_shards_reads_no_environment():
    for path in sources("shards"):
        assert "os.environ" not in path.read_text() and "getenv" not in path.read_text(), path


def test_only_the_registry_knows_layers_by_name():
    names = {"names", "text", "bm25", "sparse", "static", "dense", "vectors"}
    for folder in ORDER:
        for path in sources(folder):
            if path.parent.name == "layers" or path.name in {"index.py"}:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Compare):
                    literals = {c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)}
                    names_used = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
                    assert not (literals & names and names_used & {"layer", "name", "space"}), f"{path}:{node.lineno}"


def test_importing_shards_is_light():
    code = (
        "import sys, time; begun = time.process_time(); import shards, shards.types, shards.plan, shards.layers.contract; "
        f"heavy = [m for m in {HEAVY!r} if m in sys.modules]; print(time.process_time() - begun, heavy)"
    )
    seconds, heavy = min(
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(" ", 1)
        for _ in range(3)
    )
    assert heavy.strip() == "[]"
    assert float(seconds) < 1.0  # of CPU: 0.15 s on a quiet machine, more where others fill the caches


def test_no_job_shadows_a_package():
    assert not {path.stem for path in (ROOT / "jobs").glob("*.py")} & set(ORDER)
    assert not (ROOT / "tests" / "serve").exists()


def test_the_top_level_holds_what_the_design_names():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    allowed = {"pyproject.toml", "README.md", "ARCHITECTURE.md", "LICENSE", ".ci", ".gitignore", "infra", "tests", *ORDER}
    assert top <= allowed
