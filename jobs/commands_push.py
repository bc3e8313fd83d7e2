"""What is pushed into a corpus and taken out again: put, rm."""

import os
import sys
from typing import Annotated, Any

import typer

from jobs.connecting import asking, only_corpus
from jobs.options import AsJson, Corpus, Store, Url
from shards.errors import BadQuery


def add(app: typer.Typer) -> None:
    """Put the commands of this module into the `sondage` command."""
    app.command()(put)
    app.command()(rm)


def put(
    files: Annotated[list[str], typer.Argument(help="Files to push; - for standard input, with --as.")],
    corpus: Corpus = None,
    url: Url = None,
    store: Store = None,
    as_path: Annotated[str | None, typer.Option("--as", help="Path in the corpus, for one file. Else the file's own, as given.")] = None,
    metadata: Annotated[str | None, typer.Option("--metadata", help='Of all files, e.g. {"tool": "grep"}.')] = None,
    create: Annotated[bool, typer.Option("--create", help="Make the corpus if there is none of this name.")] = False,
    layers: Annotated[str | None, typer.Option("--layers", help="Of a corpus that is made; implies --create.")] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when they can be found, not already when they are safe.")] = True,
    as_json: AsJson = False,
) -> None:
    """Push files into a corpus: durable at once, found within a second. To index folders, use sondage index.

    Exit codes: 0 done, 2 error, also where single files were refused.
    """
    from jobs.request_options import decoded

    said = decoded(metadata, "--metadata") or {}
    if as_path is not None and len(files) != 1:
        raise BadQuery(f"--as names one path, but {len(files)} files are given. Push them one by one, or without --as.")
    if as_path is None and "-" in files:
        raise BadQuery("Standard input has no name. Give it one with --as PATH.")
    wanted = layers.split(",") if layers is not None else None
    items = [{"path": as_path or path_in_corpus(name), "content": content_of(name), "metadata": said} for name in files]
    push(items, corpus, url, store, wait, create or wanted is not None, wanted, as_json)


def rm(
    paths: Annotated[list[str], typer.Argument(help="Paths in the corpus that were pushed.")],
    corpus: Corpus = None,
    url: Url = None,
    store: Store = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when they are no longer found.")] = True,
    as_json: AsJson = False,
) -> None:
    """Take pushed documents out of a corpus again. What an index run brought stays: its source decides.

    Exit codes: 0 done, 2 error, also where single paths were refused.
    """
    push([{"op": "delete", "path": path} for path in paths], corpus, url, store, wait, False, None, as_json, ("taken out of", "gone"))


def push(
    items: list[dict[str, Any]],
    corpus: str | None,
    url: str | None,
    store: str | None,
    wait: bool,
    create: bool,
    layers: list[str] | None,
    as_json: bool,
    said: tuple[str, str] = ("pushed to", "searchable"),
) -> None:
    """Push operations and say what became of them, in these words. Exit code 2 where one was refused."""
    with asking(url, store) as asked:
        answer = asked.put_many(items, corpus=corpus or only_corpus(asked.status()), wait=wait, create=create, layers=layers)
    if as_json:
        from jobs.terminal import print_json

        print_json(answer.model_dump(mode="json"))
    for error in answer.errors:
        print(f"sondage: {items[error.line - 1]['path']}: {error.message}", file=sys.stderr)
    for what in answer.left_out:
        print(f"sondage: left out of the metadata: {what}", file=sys.stderr)
    if not as_json:
        done, then = said
        state = f"{then} in generation {answer.generation}" if answer.searchable else f"durable, {then} in a moment"
        print(f"{answer.accepted:,} {done} {answer.corpus}" + (f", {state}" if answer.accepted else ""))
    if answer.failed:
        raise typer.Exit(2)


def path_in_corpus(name: str) -> str:
    """The path that a file is pushed to if none is given: as on the command line, from the root or the working folder."""
    return os.path.normpath(name).lstrip("/") if not os.path.normpath(name).startswith("..") else os.path.abspath(name).lstrip("/")


def content_of(name: str) -> bytes:
    """A file's bytes. Raises BadQuery."""
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        with open(name, "rb") as file:
            return file.read()
    except IsADirectoryError:
        raise BadQuery(f"{name} is a folder. Index it: sondage index --source {name} …") from None
    except FileNotFoundError as error:
        from jobs.suggesting import meant_path

        raise BadQuery(f"Cannot read {name}: {error.strerror}. {meant_path(name)}".rstrip()) from None
    except OSError as error:
        raise BadQuery(f"Cannot read {name}: {error.strerror}.") from None
