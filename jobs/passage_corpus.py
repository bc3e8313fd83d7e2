"""A corpus of any number of passages, a document each, indexed once and kept: what a cluster is measured over.

The passages are the Python standard library's (`jobs/bench_corpus.py`), in bm25 and static.
"""

import json
import os
import shutil
from pathlib import Path

from jobs.bench_corpus import passages_of_stdlib
from jobs.progress import Progress
from jobs.settings import Settings

CORPUS, LAYERS, N_SHARDS = "passages", ("bm25", "static"), 4
ROWS = 50_000  # of a file of rows


def models_dir() -> Path:
    """The folder of models, whatever folder the cache is."""
    return Path("~/.cache/sondage/models").expanduser()


def indexed(store: Path, source: Path, cache: Path, progress: Progress, n_shards: int = N_SHARDS) -> None:
    """One run of the index job: builds the corpus, or, where only the number of shards is another, cuts it anew."""
    from jobs import index

    argv = ["--corpus", CORPUS, "--source", str(source), "--local", "--layers", ",".join(LAYERS), "--shards", str(n_shards)]
    argv += ["--rows", "*.jsonl:text=text,id=id", "--max-file-bytes", str(1 << 30)]
    settings = Settings.load({}, store=str(store), cache=str(cache), models=str(models_dir()))
    index.run(index.parser().parse_args(argv), settings, progress)


def corpus_of(n: int, progress: Progress) -> tuple[Path, str]:
    """The store with the corpus of n passages, made once, its rows in `source` beside it; and how it was made."""
    folder = Settings.load().cache.expanduser().absolute() / "bench" / f"cluster-{n}"
    note = folder / "how.txt"
    if note.exists():
        return folder / "store", note.read_text()
    passages, how = passages_of_stdlib(n, progress)
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    for at in range(0, n, ROWS):
        with open(source / f"{at:09}.jsonl", "w", encoding="utf-8") as file:
            for i, text in enumerate(passages[at : at + ROWS], at):
                file.write(json.dumps({"id": str(i), "text": text}) + "\n")
    indexed(folder / "store", source, folder / "cache", progress)
    note.write_text(how)
    return folder / "store", how


def linked(store: Path, target: Path) -> Path:
    """The store's files once more, as links where the file system has them: they are written once, so nobody is disturbed."""

    def copy(source: str, destination: str) -> str:
        try:
            os.link(source, destination)
        except OSError:
            shutil.copy2(source, destination)
        return destination

    return Path(shutil.copytree(store, target, copy_function=copy))
