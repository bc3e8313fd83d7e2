"""A judged collection made of Python code: the first sentence of a docstring is asked, its function is to be found without it.

Code search is judged so since CodeSearchNet (Husain et al. 2019, section 2): people wrote both sides, nobody has to label. What
the sentence names (the function, its arguments) stays in the code, as it does for people who look for code.
"""

import ast
import hashlib
import json
import re
import sysconfig
import textwrap
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from jobs.datasets import BadDataset
from shards.probes import count_words

MIN_WORDS = 5  # of a sentence that is asked: "Return the value." says nothing about which
MAX_DOCUMENTS, MAX_QUERIES = 5_000, 1_000  # a few minutes of encoding on two cores
NOT_LIBRARY = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages"})  # folders of tests and of others' code

_SENTENCE = re.compile(r"(?<=[.!?])\s|\n\s*\n")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Documented:
    """A function with its docstring taken out. name: `path.py:Class.method`, unique. text: source with decorators, all docstrings
    in it removed. sentence: the first of its docstring, on one line."""

    name: str
    text: str
    sentence: str


def standard_library() -> Path:
    """Where the library of the running Python lies."""
    return Path(sysconfig.get_path("stdlib"))


def first_sentence(docstring: str) -> str:
    """Up to a full stop, question or exclamation mark with space behind, or to a blank line; white space made single."""
    return " ".join(_SENTENCE.split(docstring.strip(), maxsplit=1)[0].split())


def documented(source: str, path: str) -> Iterator[Documented]:
    """The functions and methods of a file whose docstring begins with a sentence of at least `MIN_WORDS` words, in file order.

    Functions inside functions are part of these. Raises SyntaxError or ValueError where the source is not Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in strings, say: it is not our code
        tree = ast.parse(source)
    lines = source.encode().splitlines(keepends=True)  # ast counts columns in UTF-8 bytes
    names: dict[str, int] = {}
    for qualified, node in _functions(tree, ""):
        sentence = first_sentence(ast.get_docstring(node) or "")
        if count_words(sentence) >= MIN_WORDS:
            again = names[qualified] = names.get(qualified, 0) + 1  # of a property's setter, or of another platform
            name = f"{path}:{qualified}" + (f"#{again}" if again > 1 else "")
            yield Documented(name, _without_docstrings(lines, node), sentence)


def _functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.stmt | ast.excepthandler):  # `if sys.platform …`, `try: import …`
            yield from _functions(node, prefix)


def _without_docstrings(lines: list[bytes], function: Function) -> str:
    """The function's source lines, its decorators and those of inner functions kept; a line that held a docstring alone is gone."""
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)]) - 1
    kept = lines[first : function.end_lineno]
    for node in ast.walk(function):
        if not isinstance(node, Function | ast.ClassDef) or ast.get_docstring(node, clean=False) is None:
            continue
        literal = node.body[0]
        begin, end = literal.lineno - 1 - first, (literal.end_lineno or literal.lineno) - 1 - first
        before, after = kept[begin][: literal.col_offset], kept[end][literal.end_col_offset :]
        kept[begin : end + 1] = [b""] * (end + 1 - begin)  # as many lines as before: other nodes count on them
        left = before + after.lstrip(b" \t;")
        kept[begin] = left if left.strip() else b""
    return textwrap.dedent(b"".join(kept).decode()).strip()


def write_collection(root: Path, target: Path) -> int:
    """Writes a folder in BEIR layout made of the Python files below `root`; returns how many documents it has. Raises BadDataset.

    Functions of the same text are one document, and a sentence that stands in several docstrings is one query with as many
    answers. Of more than `MAX_DOCUMENTS` and `MAX_QUERIES` those stay whose names hash lowest: a sample that does not change
    when other code is added. The same files give the same bytes.
    """
    functions: dict[str, list[Documented]] = {}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root)
        if NOT_LIBRARY.isdisjoint(inside.parts[:-1]):
            for function in _documented_file(path, inside.as_posix()):
                functions.setdefault(function.text, []).append(function)
    if not functions:
        raise BadDataset(f"{root} holds no Python function whose docstring begins with a sentence of {MIN_WORDS} words or more.")
    chosen = sorted(sorted(functions.values(), key=lambda same: _draw(same[0].name))[:MAX_DOCUMENTS], key=lambda same: same[0].name)
    answers: dict[str, list[str]] = {}
    for same in chosen:
        for sentence in dict.fromkeys(function.sentence for function in same):
            answers.setdefault(sentence, []).append(same[0].name)
    asked = sorted(sorted(answers, key=_draw)[:MAX_QUERIES], key=lambda sentence: answers[sentence])
    (target / "qrels").mkdir(parents=True, exist_ok=True)
    _write_lines(target / "corpus.jsonl", ({"_id": same[0].name, "title": "", "text": same[0].text} for same in chosen))
    _write_lines(target / "queries.jsonl", ({"_id": str(i), "text": sentence} for i, sentence in enumerate(asked, 1)))
    rows = [f"{i}\t{name}\t1\n" for i, sentence in enumerate(asked, 1) for name in answers[sentence]]
    (target / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows), "utf-8")
    return len(chosen)


def _documented_file(path: Path, inside: str) -> list[Documented]:
    """Of one file; none where it is not Python: libraries keep broken files on purpose, for their tools."""
    try:
        body = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(BytesIO(body).readline)
        return list(documented(body.decode(encoding).replace("\r\n", "\n"), inside))
    except (SyntaxError, ValueError, RecursionError):
        return []


def _write_lines(path: Path, records: Iterator[dict[str, str]]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _draw(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=8).digest()
