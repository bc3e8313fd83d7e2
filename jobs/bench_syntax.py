"""Structure beside ast-grep over a tree, and what symbols cost: for `python jobs/bench.py structure` (`jobs/bench_structure.py`)."""

import ast
import json
import time
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from jobs.bench_structure import Bench, Row
from shards.plan import SpaceQuery
from shards.types import Found

PATTERNS: tuple[dict[str, Any] | str, ...] = (  # of Python: patterns, then rules; many matches and few
    "isinstance($A, $B)", "print($$$ARGS)", "self.assertEqual($A, $B)", "$A = None", "raise ValueError($MSG)", "return $A", "assert $A",
    "import $A", "from $A import $B",
    "with open($$$ARGS) as $F: $$$BODY", "lambda: $A", "lambda $A: $B", "$A if $B else $C", "not $A in $B",
    "$X == $X", "super().__init__($$$ARGS)", "def $F(self): $$$BODY", "class $C(Exception): $$$BODY", "try: $$$A\nexcept $E: $$$B",
    "for $I in range(len($A)): $$$B", "$D[$K] = $V", "$A += 1", "del $A",
    "yield $A", "await $A", "async with $A: $$$B",
    "os.path.join($$$A)",
    "threading.Thread(target=$T)", "$A.append($B)", "open($A)", "len($A) == 0", "if $A is None: $$$B", "while True: $$$B",
    "[$A for $B in $C]",
    {"rule": {"kind": "function_definition", "has": {"field": "name", "regex": "^test_"}}},
    {"rule": {"kind": "call", "inside": {"kind": "decorator"}}},
    {"rule": {"pattern": "print($$$A)", "inside": {"kind": "class_definition", "stopBy": "end"}}},
    {"rule": {"any": [{"pattern": "eval($A)"}, {"pattern": "exec($A)"}]}},
    {"rule": {"all": [{"kind": "try_statement"}, {"has": {"kind": "finally_clause"}}, {"not": {"has": {"kind": "except_clause"}}}]}},
    {"rule": {"pattern": "$A.$B($$$C)"}, "constraints": {"B": {"regex": "^call_soon"}}},
)  # fmt: skip

NAMES = ("add_argument", "argparse.ArgumentParser.parse_args", "ast.NodeVisitor", "def __init__", "get")


class Seen(NamedTuple):
    """A function, method or class: its name with what encloses it, and the line of its `def` or `class`."""

    kind: str
    name: str
    line: int


class Matched(NamedTuple):
    """What matches in a file: its size in bytes, how many nodes, and the text of the first."""

    size_bytes: int
    n: int
    first: bytes


def form_of(pattern: dict[str, Any] | str) -> dict[str, Any]:
    """As the structure space takes it."""
    return {"language": "python"} | ({"pattern": pattern} if isinstance(pattern, str) else pattern)


def config_of(pattern: dict[str, Any] | str) -> dict[str, Any]:
    """As ast-grep-py takes it."""
    return {"rule": {"pattern": pattern}} if isinstance(pattern, str) else pattern


def rows(bench: Bench) -> Iterator[Row]:
    """Patterns beside ast-grep's program (where it is installed) and its Python module; then names, and what they cost to build."""
    sources = [text.decode() for text in _python_files(bench)]
    root = bench.index.tree.root
    files = sorted(path.relative_to(root).as_posix() for path in root.glob(bench.scope)) if bench.scope else ["."]
    for pattern in PATTERNS:
        query = bench.index.prepare("structure", form=form_of(pattern))
        what = pattern if isinstance(pattern, str) else json.dumps(pattern["rule"])
        rule = json.dumps({"id": "bench", "language": "Python", **config_of(pattern)})
        found: dict[str, Counter[Matched]] = {}
        peers = {
            "ast-grep": bench.program("ast-grep", "scan", "--no-ignore", "hidden", "--json=stream", "--inline-rules", rule, *files),
            "ast-grep-py": lambda pattern=pattern, found=found: found.update(theirs=_by_module(sources, pattern)),
        }

        def ours(query: SpaceQuery = query, found: dict[str, Counter[Matched]] = found) -> None:
            found["ours"] = _matched(bench, query)

        for row in bench.rows(what.replace("\n", " ")[:60], ours, peers):
            nodes, files_of = sum(one.n * n for one, n in found["ours"].items()), found["ours"].total()
            unlike = (found["ours"] - found["theirs"]).total() + (found["theirs"] - found["ours"]).total()
            note = f"{nodes:,} nodes of {files_of:,} files" + (f", {unlike:,} files unlike ast-grep-py's" if unlike else "")
            yield row._replace(note=f"{row.note}; {note}" if row.note else note)
    for name in NAMES:
        query = bench.index.prepare("symbols", name)
        n_found = sum(found.n_matched for found in bench.index.search("symbols", query))
        ms = bench.best_ms({"": lambda query=query: _asked(bench, "symbols", query)})[""]
        yield Row(f"name {name}", ms, "", None, f"{n_found:,} definitions")
    yield _built(bench)
    yield _compared(bench)


def _asked(bench: Bench, space: str, query: SpaceQuery, k: int = 100) -> list[Found]:
    """Asked as for the first time: readers keep what the last questions found."""
    for reader in bench.index.readers(space):
        reader.forget()  # type: ignore[attr-defined]
    return bench.index.search(space, query, k)


def _matched(bench: Bench, query: SpaceQuery) -> "Counter[Matched]":
    """Every file that matches, as the structure space finds it."""
    every: Counter[Matched] = Counter()
    found = _asked(bench, "structure", query, sum(map(len, bench.index.documents)))
    for documents, one in zip(bench.index.documents, found, strict=True):
        for row, score, start, end in zip(one.rows.tolist(), one.scores.tolist(), one.starts.tolist(), one.ends.tolist(), strict=True):
            text = bytes(documents.content(row))
            every[Matched(len(text), int(score), text[start:end])] += 1
    return every


def _by_module(sources: list[str], pattern: dict[str, Any] | str) -> "Counter[Matched]":
    """The same by ast-grep's Python module."""
    from ast_grep_py import SgRoot

    config, every = config_of(pattern), Counter[Matched]()
    for source in sources:
        if nodes := SgRoot(source, "python").root().find_all(config):
            every[Matched(len(source.encode()), len(nodes), nodes[0].text().encode())] += 1
    return every


def _python_files(bench: Bench) -> Iterator[bytes]:
    """What the structure space parses of Python, each content once."""
    from shards.languages import NUMBERS
    from shards.syntax_trees import refusal

    for reader, documents in zip(bench.index.readers("structure"), bench.index.documents, strict=True):
        for row in ((reader.languages == NUMBERS["python"]) & reader.searchable).nonzero()[0].tolist():  # type: ignore[attr-defined]
            if not refusal(text := bytes(documents.content(row))):
                yield text


def seen_by_ast(source: str) -> set[Seen]:
    """Every function, method and class of a module as Python's own parser sees them. Raises SyntaxError, ValueError."""
    found: set[Seen] = set()

    def walk(node: ast.AST, path: tuple[str, ...], in_class: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                is_class = isinstance(child, ast.ClassDef)
                kind = "class" if is_class else "method" if in_class else "function"
                found.add(Seen(kind, ".".join((*path, child.name)), child.lineno))
                walk(child, (*path, child.name), is_class)
            else:
                walk(child, path, in_class)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd escapes in what is read
        walk(ast.parse(source), (), False)
    return found


def seen_by_symbols(text: bytes) -> set[Seen]:
    """The same as `symbols` lists them."""
    from shards.languages import KINDS
    from shards.syntax_symbols import symbols_of

    starts = [0, *(at + 1 for at, byte in enumerate(text) if byte == 0x0A)]
    definitions, paths, found = symbols_of(text, "python").definitions, [], set()
    for at, one in enumerate(definitions):
        paths.append((f"{paths[at - one.back]}." if one.back else "") + one.name.decode())
        if KINDS[one.kind] in ("function", "method", "class"):
            found.add(Seen(KINDS[one.kind], paths[-1], bisect_right(starts, one.start)))
    return found


def _compared(bench: Bench) -> Row:
    """Every file that Python's own parser reads, definition by definition."""
    n_seen = n_missed = n_more = 0
    for text in _python_files(bench):
        try:
            expected = seen_by_ast(text.decode())
        except (SyntaxError, ValueError, RecursionError):
            continue
        listed = seen_by_symbols(text)
        n_seen += len(expected)
        n_missed += len(expected - listed)
        n_more += len(listed - expected)
    return Row("definitions that ast sees", None, "", None, f"{n_seen:,}, of which symbols lack {n_missed:,}; {n_more:,} more")


def _built(bench: Bench) -> Row:
    """Names and definitions of all Python files, in one process, as a build takes them from the parser: ms of its CPU."""
    from shards.syntax_symbols import symbols_of

    texts = list(_python_files(bench))
    begun = time.thread_time()
    for text in texts:
        symbols_of(text, "python")
    seconds = time.thread_time() - begun
    return Row("symbols made, CPU of one thread", 1000 * seconds, "", None, f"{sum(map(len, texts)) / 1e6 / seconds:.1f} MB/s")
