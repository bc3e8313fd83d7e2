"""Judged collections: folders in BEIR layout, TREC topics, judgements and runs, read strictly and written.

Document and query ids are single words, as in TREC files: white space in an id is percent-encoded wherever it comes from.
"""

import gzip
import hashlib
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote, unquote

from jobs.metrics import Qrels, Run, ranking
from shards.errors import SondageError

SOURCE_NAME = "collection"  # of the source that `write_archive` makes: its paths are ids


class BadDataset(SondageError):
    """A file of a collection or a run cannot be understood: the message names file and line."""

    status = 422


@dataclass(frozen=True, slots=True)
class Judged:
    """Questions with judgements: queries: id -> text, those that are judged, in the order of their file."""

    name: str
    queries: Mapping[str, str]
    qrels: Qrels


def as_word(name: str) -> str:
    """An id as one word."""
    return re.sub(r"\s", lambda match: quote(match[0]), name)


def read_beir(folder: Path, split: str = "test") -> Judged:
    """The queries and judgements of a BEIR folder. Raises BadDataset."""
    if not folder.is_dir():
        raise BadDataset(f"There is no folder {folder}. Name one that holds corpus.jsonl, queries.jsonl and qrels/{split}.tsv.")
    qrels = folder / "qrels" / f"{split}.tsv"
    if not qrels.exists():
        known = ", ".join(sorted(path.stem for path in folder.glob("qrels/*.tsv"))) or "none"
        raise BadDataset(f"There is no {qrels}. Choose with --split from: {known}.")
    return judged(folder.resolve().name, read_queries(find(folder, "queries.jsonl")), read_qrels(qrels), qrels)


def judged(name: str, queries: Mapping[str, str], qrels: Qrels, source: Path) -> Judged:
    """The queries that are judged. Raises BadDataset where none is, or where a judged one has no text."""
    if lost := [query for query in qrels if query not in queries]:
        raise BadDataset(f"{source}: query {lost[0]!r} is judged but has no text ({len(lost):,} such). Do the files belong together?")
    if not qrels:
        raise BadDataset(f"{source} holds no judgements. Write lines `query-id<TAB>corpus-id<TAB>grade`.")
    return Judged(name, {query: text for query, text in queries.items() if query in qrels}, qrels)


def find(folder: Path, name: str) -> Path:
    """A file of a folder, plain or gzipped. Raises BadDataset."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise BadDataset(f"{folder} holds neither {name} nor {name}.gz. A BEIR folder has both a corpus and queries.")


def _opened(path: Path) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8")


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """("file:line", text) of each line that is not empty. Raises BadDataset."""
    number = 0
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{path}:{number}", line.rstrip("\r\n")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise BadDataset(f"{path}, after line {number:,}: cannot be read: {error}. Fetch the file again.") from None


def _records(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(place, id, record) of JSON lines. Raises BadDataset."""
    seen = set()
    for place, line in _lines(path):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise BadDataset(f"{place}: not JSON: {error}. Write one object a line.") from None
        if not isinstance(record, dict) or not isinstance(record.get("_id"), str | int) or record["_id"] == "":
            raise BadDataset(f'{place}: has no "_id". Write {{"_id": "…", "text": "…"}}.')
        for key in ("title", "text"):
            if not isinstance(record.get(key, ""), str | None):
                raise BadDataset(f'{place}: "{key}" is no text but {json.dumps(record[key])[:60]}.')
        name = as_word(str(record["_id"]))
        if name in seen:
            raise BadDataset(f"{place}: id {name!r} occurs a second time. Ids must be unique.")
        seen.add(name)
        yield place, name, record


def read_documents(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a BEIR corpus file, `title` and `text` being texts where they are there. Raises BadDataset."""
    return (record for _, _, record in _records(path))


def read_queries(path: Path) -> dict[str, str]:
    """Query id -> text: JSON lines of BEIR, TREC topics (`<top>` with `<num>` and `<title>`), or lines `id<TAB>text`, by content.

    Raises BadDataset for an empty text, too: nothing could be asked.
    """
    place, first = next(_lines(path), (str(path), ""))
    if first.lstrip().startswith("{"):
        rows = ((place, name, record.get("text") or "") for place, name, record in _records(path))
    elif first.lstrip().startswith("<"):
        rows = _topics(path)
    else:
        rows = _table(path)
    queries: dict[str, str] = {}
    for place, name, text in rows:
        if not text.strip():
            raise BadDataset(f"{place}: query {name!r} has no text. Give it one, or leave it out.")
        if name in queries:
            raise BadDataset(f"{place}: query {name!r} occurs a second time. Ids must be unique.")
        queries[name] = text
    if not queries:
        raise BadDataset(f"{place}: no queries. Write JSON lines, TREC topics, or lines `id<TAB>text`.")
    return queries


def _table(path: Path) -> Iterator[tuple[str, str, str]]:
    for place, line in _lines(path):
        name, tab, text = line.partition("\t")
        if not tab:
            raise BadDataset(f"{place}: no tab in {line[:60]!r}. Write `id<TAB>text`.")
        yield place, as_word(name), text


def _topics(path: Path) -> Iterator[tuple[str, str, str]]:
    with _opened(path) as file:
        text = file.read()
    for match in re.finditer(r"<top>(.*?)</top>", text, re.DOTALL | re.IGNORECASE):
        place = f"{path}:{text.count(chr(10), 0, match.start()) + 1}"
        number = re.search(r"<num>\s*(?:Number:)?\s*([^\s<]+)", match[1], re.IGNORECASE)
        title = re.search(r"<title>\s*(?:Topic:)?\s*([^<]*)", match[1], re.IGNORECASE)
        if not number or not title:
            raise BadDataset(f"{place}: the topic lacks <num> or <title>.")
        yield place, as_word(number[1]), " ".join(title[1].split())


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Judgements: BEIR's three columns (query, document, grade; a head line is skipped), or TREC's four. Raises BadDataset."""
    qrels: dict[str, dict[str, int]] = {}
    for i, (place, line) in enumerate(_lines(path)):
        columns = line.split("\t") if line.count("\t") in (2, 3) else line.split()
        if len(columns) not in (3, 4):
            raise BadDataset(f"{place}: {len(columns)} columns. Expected `query document grade` or `query 0 document grade`.")
        query, document, grade = as_word(columns[0].strip()), as_word(columns[-2].strip()), columns[-1]
        try:
            value = int(grade)
        except ValueError:
            if i == 0:
                continue  # the head line
            raise BadDataset(f"{place}: grade {grade!r} is no whole number.") from None
        if qrels.setdefault(query, {}).setdefault(document, value) != value:
            before = qrels[query][document]
            raise BadDataset(f"{place}: document {document!r} of query {query!r} is judged {before} before, now {value}.")
    return qrels


def read_run(path: Path) -> dict[str, dict[str, float]]:
    """A TREC run: lines `query Q0 document rank score tag`. Ranks are not looked at, as in trec_eval. Raises BadDataset."""
    run: dict[str, dict[str, float]] = {}
    for place, line in _lines(path):
        columns = line.split()
        if len(columns) != 6:
            raise BadDataset(f"{place}: {len(columns)} columns. Expected `query Q0 document rank score tag`.")
        try:
            score = float(columns[4])
        except ValueError:
            raise BadDataset(f"{place}: score {columns[4]!r} is no number.") from None
        hits = run.setdefault(columns[0], {})
        if columns[2] in hits:
            raise BadDataset(f"{place}: document {columns[2]!r} occurs a second time for query {columns[0]!r}.")
        hits[columns[2]] = score
    if not run:
        raise BadDataset(f"{path} is an empty run. Expected lines `query Q0 document rank score tag`.")
    return run


def write_run(path: Path, run: Run, tag: str) -> None:
    """A TREC run, documents as trec_eval ranks them, scores so that it reads the very same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        for query, scores in run.items():
            for rank, document in enumerate(ranking(scores), 1):
                file.write(f"{query} Q0 {document} {rank} {scores[document]:.9g} {as_word(tag)}\n")


# --- documents, as a source that the index job reads ----------------------------------------------------------------------------


def digest(path: Path) -> str:
    """16 hex digits that name a corpus by the bytes of its file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def content_of(record: Mapping[str, Any]) -> bytes:
    """A record of a corpus file as the file that is indexed: title, an empty line, text."""
    parts = [record.get("title") or "", record.get("text") or ""]
    return "\n\n".join(part for part in parts if part.strip()).encode("utf-8", "replace")


def write_archive(corpus: Path, archive: Path) -> int:
    """The documents of a `corpus.jsonl` as the files of a zip archive, which the index job lists and reads like any source:
    `<id>.txt` holds title, an empty line, text. Returns how many. The same corpus gives the same bytes. Raises BadDataset."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_name(archive.name + ".part")
    n = 0
    # Not compressed: reading is what it is made for. One file, because ids may be longer than file names, or differ in case only.
    with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as target:
        for _, name, record in _records(corpus):
            info = zipfile.ZipInfo(f"{quote(name, safe='')}.txt", (2000, 1, 1, 0, 0, 0))
            target.writestr(info, content_of(record))
            n += 1
    if not n:
        raise BadDataset(f"{corpus} holds no documents.")
    unfinished.replace(archive)
    return n


def document_id(source: str, path: str) -> str:
    """The id that judgements give the entry of a hit: what `write_archive` made its path of, else its path."""
    return unquote(path.removesuffix(".txt")) if source == SOURCE_NAME else as_word(path)
