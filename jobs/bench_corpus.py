"""What benches search and ask: the Python standard library, which is real text and on every machine."""

import ast
import hashlib
import os
import re
import shutil
import sysconfig
from pathlib import Path

from jobs.progress import Progress

STDLIB_EXCLUDE = ("**/site-packages/**", "**/__pycache__/**", "**/config-3*/**", "**/lib-dynload/**", "**/test/**", "**/tests/**",
                  "**/idle_test/**")  # fmt: skip
FIRST_CUT_BYTES, CUT_STEP_BYTES = 700, 37  # passages of about 560 bytes, as in the measurements that the bars come from


def copy_of_stdlib(folder: Path) -> Path:
    """The standard library without its tests, as plain files."""
    from shards.corpus import Source, list_source

    root = Path(sysconfig.get_path("stdlib"))
    listing = list_source(Source("stdlib", str(root), exclude=STDLIB_EXCLUDE))
    for file in listing.files:
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / file.path, target)
        os.utime(target, ns=(file.mtime_ns, file.mtime_ns))
    return folder


def texts_of_stdlib(size_bytes: int) -> list[str]:
    """Source files of the standard library, its tests included, until they are of that size or there are no more."""
    root = Path(sysconfig.get_path("stdlib"))
    found: list[str] = []
    for path in sorted(p for p in root.rglob("*.py") if "site-packages" not in p.parts):
        if size_bytes <= 0:
            break
        found.append(path.read_text("utf-8", "replace"))
        size_bytes -= len(found[-1])
    return found


def passages_of_stdlib(n: int, progress: Progress) -> tuple[list[str], str]:
    """n different passages, and how they were made: the files are cut again, to another length, until there are enough.

    So a passage overlaps those of other cuts, and n times the text is not n times the vocabulary; lengths, word frequencies
    within a passage and the shape of posting lists are those of the real text.
    """
    from shards.documents import Documents
    from shards.units import passages

    texts = [text.encode() for text in texts_of_stdlib(n * FIRST_CUT_BYTES)]
    documents = Documents.pack((hashlib.sha1(text).digest(), text, "code") for text in texts)
    found: dict[str, None] = {}
    n_cuts = 0
    while len(found) < n:
        units = passages(documents, FIRST_CUT_BYTES + CUT_STEP_BYTES * n_cuts)
        n_cuts += 1
        before = len(found)
        for row, start, end in zip(*(a.tolist() for a in units), strict=True):
            found[str(documents.content(row)[start:end], "utf-8", "replace")] = None
        progress("passages", min(len(found), n), n, "passages")
        assert len(found) > before, "the standard library has no more passages"
    how = f"{len(texts):,} files of the Python standard library, {sum(map(len, texts)) / 1e6:.0f} MB, cut to passages of "
    how += f"{FIRST_CUT_BYTES} bytes"
    if n_cuts > 1:
        how += f", and {n_cuts - 1} times more, each {CUT_STEP_BYTES} bytes longer"
    return list(found)[:n], how


def queries_of_stdlib(n_sentences: int = 300, n_names: int = 100) -> list[str]:
    """First sentences of docstrings, and names of functions and classes: spread over the library, always the same."""
    sentences: dict[str, None] = {}
    names: dict[str, None] = {}
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(p for p in root.rglob("*.py") if not {"site-packages", "test", "tests", "idlelib"} & set(p.parts)):
        try:
            tree = ast.parse(path.read_text("utf-8", "replace"))
        except (SyntaxError, ValueError):
            continue  # kept in the library on purpose, for its own tests
        for node in ast.walk(tree):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            first = re.split(r"\.\s|\n\s*\n", ast.get_docstring(node) or "", maxsplit=1)[0]
            if len(first.split()) >= 3:
                sentences[" ".join(first.split())[:300]] = None
            if len(re.findall("[a-z]{3,}", node.name, re.IGNORECASE)) >= 2:
                names[node.name] = None
    return _spread(list(sentences), n_sentences) + _spread(list(names), n_names)


def _spread(items: list[str], n: int) -> list[str]:
    return items[:: max(1, len(items) // n)][:n]
