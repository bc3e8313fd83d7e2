"""Globs of the names layer on the paths of the standard library, beside `fnmatch` and fd: the same paths for 110 patterns."""

import shutil
import subprocess
import sysconfig
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.bench_names import GLOBS_OF_NAMES, GLOBS_OF_PATHS, folds
from shards import globs
from shards.errors import BadQuery
from shards.globs import _by_re2
from shards.identity import content_hash
from shards.layers.contract import Request, Resources
from shards.layers.names import Names
from shards.plan import glob_regex
from shards.segment import pack_entries
from shards.types import Budget, Entry

ROOT = Path(sysconfig.get_path("stdlib"))
LEFT_OUT = ("site-packages", "__pycache__", "config-*")  # what others install there, and what Python writes
FD = shutil.which("fdfind") or shutil.which("fd")


@pytest.fixture(scope="module")
def paths() -> list[str]:
    def walk(folder: Path):
        for child in folder.iterdir():
            if not any(fnmatchcase(child.name, left_out) for left_out in LEFT_OUT):
                if child.is_dir() and not child.is_symlink():
                    yield from walk(child)
                elif child.is_file() and not child.is_symlink():
                    yield child.relative_to(ROOT).as_posix()

    return sorted(walk(ROOT))


@pytest.fixture(scope="module")
def find(paths):
    entries = pack_entries(Entry("python", path, content_hash(path.encode()), 0, 0) for path in paths)
    layer = Names(Names.Params(), Resources())
    arrays = layer.build(None, entries)
    statistics = layer.collect([(1, layer.statistics(arrays, None, entries))])
    reader = layer.open(arrays, None, entries, np.ones(len(entries), bool))

    def find(**form) -> list[str]:
        found = reader.search(layer.prepare(Request("", form, True), statistics), None, len(entries), Budget())
        return sorted(entries.path(row) for row in found.rows)

    return find


def alternatives(pattern: str) -> list[str]:
    """A glob without braces for each choice they give."""
    if "{" not in pattern:
        return [pattern]
    head, _, rest = pattern.partition("{")
    choices, _, tail = rest.partition("}")
    return [f"{head}{choice}{end}" for choice in choices.split(",") for end in alternatives(tail)]


def obvious(pattern: str, path: str) -> bool:
    """A glob by its definition: `**` stands for any number of segments, everything else for one, by `fnmatch`."""
    if folds(pattern):
        path = path.lower()

    def matches(globs: list[str], segments: list[str]) -> bool:
        if not globs:
            return not segments
        if globs[0] == "**":
            if len(globs) == 1:
                return bool(segments)
            return any(matches(globs[1:], segments[i:]) for i in range(len(segments) + 1))
        return bool(segments) and fnmatchcase(segments[0], globs[0].replace("[^", "[!")) and matches(globs[1:], segments[1:])

    segments = path.split("/") if "/" in pattern else [path.rpartition("/")[2]]
    return any(matches(glob.lstrip("/").split("/"), segments) for glob in alternatives(pattern))


@pytest.mark.parametrize("pattern", [*GLOBS_OF_NAMES, *GLOBS_OF_PATHS])
def test_a_glob_finds_what_fnmatch_finds_segment_by_segment(find, paths, pattern):
    assert find(glob=pattern) == [path for path in paths if obvious(pattern, path)]


@pytest.mark.skipif(FD is None, reason="fd is not installed")
def test_110_globs_find_what_fd_finds_with_its_smart_case(find):
    assert len(set(GLOBS_OF_NAMES)) + len(set(GLOBS_OF_PATHS)) >= 110
    every = [FD, "--hidden", "--no-ignore", "--type", "f", "--color", "never", *(f"--exclude={name}" for name in LEFT_OUT)]
    found = 0
    for pattern in [*GLOBS_OF_NAMES, *GLOBS_OF_PATHS]:
        if "/" in pattern:  # the root's own capitals must not decide
            how = ["--full-path", "--ignore-case" if folds(pattern) else "--case-sensitive", "--glob", f"{ROOT}/{pattern.lstrip('/')}"]
        else:
            how = ["--glob", pattern]
        answer = subprocess.run([*every, *how], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60).stdout
        theirs = sorted(line.removeprefix("./") for line in answer.splitlines())
        assert find(glob=pattern) == theirs, pattern
        found += len(theirs)
    assert found > 4 * len(find(glob="*"))


def test_case_may_be_set_and_counts_by_itself_where_there_is_a_capital(find, paths):
    python = [path for path in paths if path.endswith(".py")]
    assert find(glob="*.py") == find(glob="*.PY", case="ignore") == python
    assert find(glob="*.PY") == find(glob="*.Py", case="sensitive") == []
    assert find(name="README") == find(name="README", case="sensitive") == [p for p in paths if p.rpartition("/")[2] == "README"]
    assert find(name="readme", case="sensitive") == []
    assert find(substring="HTTP", case="ignore") == find(substring="http") == [p for p in paths if "http" in p.lower()]
    assert find(substring="Http") == [p for p in paths if "Http" in p]


def test_many_paths_are_matched_by_re2_as_few_are_by_python(find, paths, monkeypatch):
    monkeypatch.setattr(globs, "FEW", len(paths) // 2)  # some systems' libraries have fewer files than are many
    for pattern in ("*a*b*.py", "**/t*/*_*.py", "{a,B}*"):
        regex = glob_regex(pattern, folds(pattern))
        assert find(glob=pattern) == [path for path in paths if regex.fullmatch(path)]


GLOBS = st.text(alphabet="aKk*?[]!-^{,}/\\ \n.&~ſ", min_size=1, max_size=10)
TEXTS = st.lists(st.text(alphabet="aAkKsS*?[]!-^{,}/\\ \n.&~ſ\u212a", max_size=6), max_size=12)


@settings(max_examples=300, deadline=None)
@given(GLOBS, TEXTS, st.booleans())
def test_re2_reads_every_glob_as_python_does(pattern, texts, ignore_case):
    import pyarrow as pa

    try:
        regex = glob_regex(pattern, ignore_case)
    except BadQuery:
        return
    found = _by_re2(pattern, pa.array(texts, pa.large_string()), ignore_case)
    assert found.tolist() == [regex.fullmatch(text) is not None for text in texts]


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="aBz-0!]^[", min_size=1, max_size=5), st.sampled_from(list("aAbBzZ0-!]^[k")))
def test_a_class_in_any_case_has_what_either_case_of_it_has(body, text):
    try:
        regex, any_case = glob_regex(f"[{body}]"), glob_regex(f"[{body}]", ignore_case=True)
    except BadQuery:
        return
    plain = [regex.fullmatch(one) is not None for one in (text.lower(), text.upper())]
    negated = body[0] in "!^"
    assert (any_case.fullmatch(text) is not None) == (all(plain) if negated else any(plain))
