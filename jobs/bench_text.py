"""The text layer, which has no index, beside `rg -j2` and `ugrep` on the tree: 30 mixed patterns, boolean, approximate, over lines."""

from collections.abc import Iterator, Mapping
from typing import Any

from jobs.bench_structure import Bench, Row

LITERALS = ("xyzzy_nowhere", "parse_json", "TimeoutError", "self", "import", "e", "def __init__(self")
REGEXES = (
    r"def \w+\(self",
    r"\w+\s*=\s*\w+\[\w+\]$",
    r"^\s*$",
    r"foo|bar|baz",
    r"[A-Z][a-z]+Error",
    r"\bin\b",
    r"return (None|True|False)",
    r"\d{4}-\d{2}-\d{2}",
    r"(read|write|seek)able",
    r"^class \w+\(.*\):$",
    r"TODO|FIXME|XXX",
    r"https?://[^\s]+",
    r"\.{3}",
    r".*self.*self.*",
    r"[^\x00-\x7f]",
    r"lambda [a-z]+: ",
    r"(?i)copyright",
    r"[a-z]+_[a-z]+_[a-z]+_[a-z]+",
    r"\w{30}",
    r"a.c",
    r"e{2}",
    r"'[^']+'",
    r"(\w+)\.(\w+)\.(\w+)\(",
)
# form, as ugrep's own query: words on one line, by spaces AND, by | OR, by - NOT
BOOLEAN: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("def self -async", {"all": ["def", "self"], "none": ["async"]}),
    ("import|from os|sys", {"all": [{"any": ["import", "from"]}, {"any": ["os", "sys"]}]}),
    ("TimeoutError|OSError raise", {"all": [{"any": ["TimeoutError", "OSError"]}, "raise"]}),
)
EDITS = (("recieve", 1), ("asynchronus", 2), ("NotImplementedEror", 2))
OVER_LINES = (r"import \w+\nimport \w+\nfrom", r"except \w+:\n\s+pass\n", r"(?s)TimeoutError.{1,80}raise")
_RG = ("rg", "-j2", "-a", "--no-ignore", "--hidden", "--no-config", "--no-messages", "--no-unicode", "--crlf")
_UGREP = ("ugrep", "-r", "-c", "-m1,", "-a", "-F", "--hidden")


def rows(bench: Bench) -> Iterator[Row]:
    """A row for each pattern."""
    for pattern in LITERALS:
        yield from _asked(bench, pattern, {"pattern": pattern}, "rg -j2", *_RG, "-c", "-F", "-e", pattern)
    for pattern in REGEXES:
        yield from _asked(bench, pattern, {"pattern": pattern, "regex": True}, "rg -j2", *_RG, "-c", "-e", pattern)
    for words, form in BOOLEAN:
        yield from _asked(bench, words, form, "ugrep", *_UGREP, "--bool", words)
    for text, edits in EDITS:
        form = {"pattern": text, "edits": edits}
        yield from _asked(bench, f"{text}, {edits} edits", form, "ugrep", *_UGREP, f"-Z{edits}", text)
    for pattern in OVER_LINES:
        form = {"pattern": pattern, "regex": True, "multiline": True}
        yield from _asked(bench, f"over lines: {pattern}", form, "rg -j2", *_RG, "-U", "--count-matches", "-e", pattern)


def _asked(bench: Bench, what: str, form: Mapping[str, Any], peer: str, *command: str) -> Iterator[Row]:
    query = bench.index.prepare("text", form={"case": "sensitive", **form})
    note = f"{sum(found.n_matched for found in bench.index.search('text', query)):,} lines"
    run = bench.program(*command)
    if run:
        theirs = sum(int(line.rpartition(b":")[2]) for line in run().splitlines())
        note += f", {peer.split()[0]} {theirs:,}"
    yield from bench.rows(what, lambda: bench.index.search("text", query), {peer: run}, note)
