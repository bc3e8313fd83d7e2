"""The layers names and fuzzy beside fd, `ugrep -Z` and rapidfuzz over all lines."""

from collections.abc import Callable, Iterator

from jobs.bench_structure import Bench, Row

GLOBS_OF_NAMES = """
*.py *.PY *.pyi *.txt *.md *.so *.c *.cfg *.toml *.json *.xml *.html *.bat *.fish *.csh *.crt *.pem *.gif *.png *.wav *.tar *.zip
test_*.py test*.py *_test.py *test* *Test* *TEST* README* readme* Readme* *README* [Rr]eadme* LICENSE* license* *.P[Yy] *.p?
??.py ???.py ????.py ?.py a?c.py [a-c]*.py [!a-y]*.py [^a-y]*.py [0-9]* *[0-9].py *[0-9][0-9]*.py [A-Z]* [[]* *[]]* [_]*.py *[!.py]
_*.py __*__.py __init__.py __INIT__.py __ma?n__* *queue* queue.py queues.* *_queue* {queue,heapq}.py {a,b}*.py *.{c,h} *.{py,txt}
{test,_test}*.py *{io,os}*.py *-*.py *+*.* *,* *=* *.*.* .* *.py? *[ab] [a-]*.py [-a]*.py [!-a]*.py *__ ***.py a**.py *mail* *XML*
xml* *DOM* dom*.py *.so.* lib*.py lib2*
""".split()
# From the standard library's folder on.
GLOBS_OF_PATHS = """
json/*.py asyncio/*.py Asyncio/*.py asyncio/*ue*.py */queue*.py */*/*.py **/*.py **/test_*.py test/** test/*/** **/data/** email/**/*.py
email/**/text.py /os.py /*.py [a-c]*/[a-c]*.py {json,email}/*.py {json,email}/**/*.py **/__init__.py */__init__.py **/mime/*
xml/*/[!_]*.py ?s?n/*.py **/[A-Z]*/*.py a**/*.py **/x*/**/_*.py
""".split()
GONE_TO = ("asyque", "unimock", "jsdec", "http server", "tstasync", "zipimp", "b64", "init email mime")  # as typed into "go to file"
MISSPELT = (
    "accomodation", "recieve", "seperator", "dictionnary", "initalize", "HTTPSevrer", "getatrribute", "asynchronus", "Levenstein",
    "paramter", "NotImplementdError", "deprected",
)  # fmt: skip
OVER_LINES = ("accomodation", "getatrribute")  # rapidfuzz takes about a microsecond a line


def rows(bench: Bench) -> Iterator[Row]:
    """All globs beside fd, typed names without a peer, and misspelt words beside what looks for them in the text."""
    yield from _globs(bench)
    for text in GONE_TO:
        query = bench.index.prepare("names", form={"fuzzy": text})
        ours = bench.best_ms({"": lambda query=query: bench.index.search("names", query)})[""]
        yield Row(f"go to {text}", ours, "no peer", None)
    yield from _misspelt(bench)


def folds(pattern: str) -> bool:
    """Whether fd's smart case takes a pattern to match in any case."""
    return not any(c.isupper() for c in pattern)


def _globs(bench: Bench) -> Iterator[Row]:
    root = bench.index.tree.root
    every = ["fdfind", "--hidden", "--no-ignore", "--type", "f", "--color", "never", "--threads", "2"]
    for pattern in [*GLOBS_OF_NAMES, *GLOBS_OF_PATHS]:
        ours, how = pattern, ["--glob", pattern]
        if "/" in pattern:  # capitals of the root must not decide
            ours = f"stdlib/{pattern.lstrip('/')}"
            how = ["--full-path", "--ignore-case" if folds(pattern) else "--case-sensitive", "--glob", f"{root}/{ours}"]
        query = bench.index.prepare("names", form={"glob": ours})
        n_ours = sum(found.n_matched for found in bench.index.search("names", query))
        fd = bench.program(*every, *how)
        note = f"{n_ours:,} paths"
        if fd is not None:
            n_theirs = len(fd().splitlines())
            note += "" if n_ours == n_theirs else f", fd {n_theirs:,}"
        yield from bench.rows(pattern, lambda query=query: bench.index.search("names", query), {"fd -j2": fd}, note)


def _misspelt(bench: Bench) -> Iterator[Row]:
    lines: list[str] = []
    for word in MISSPELT:

        def ours(word: str = word) -> None:  # the vocabulary is looked through when the question is prepared
            bench.index.search("fuzzy", bench.index.layer("fuzzy").prepare(_request(word), bench.index.generation.statistics("fuzzy")))

        query = bench.index.prepare("fuzzy", word)
        n_ours = sum(found.n_matched for found in bench.index.search("fuzzy", query))
        peers: dict[str, Callable[[], object] | None] = {
            "ugrep -Z2 -J2": bench.program("ugrep", "-r", "-J2", "-Z2", "-i", "-c", "--hidden", "-m1", word, ".")
        }
        if word in OVER_LINES:
            lines = lines or _lines(bench)
            peers["rapidfuzz, lines of stdlib"] = _over_lines(word, lines)
        yield from bench.rows(f"like {word}", ours, peers, f"{n_ours:,} passages")


def _request(word: str) -> object:
    from shards.layers.contract import Request

    return Request(word, {}, True)


def _lines(bench: Bench) -> list[str]:
    """All lines of the standard library's part of the tree."""
    files = sorted((bench.index.tree.root / "stdlib").rglob("*.py"))
    return [line for file in files for line in file.read_text(errors="replace").splitlines() if line]


def _over_lines(word: str, lines: list[str]) -> Callable[[], object]:
    from rapidfuzz import fuzz, process

    return lambda: process.extract(word, lines, scorer=fuzz.partial_ratio, limit=100, score_cutoff=80)
