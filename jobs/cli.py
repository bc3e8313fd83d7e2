"""The `sondage` command. Exit codes are grep's: 0 found, 1 nothing found, 2 error (said on stderr).

Only typer is imported at once: everything else when a command needs it, so that help and completion take no time.
"""

import json
import re
import sys
import traceback
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from jobs import keys, top, upkeep
from shards.errors import BadQuery, SondageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jobs.settings import Settings
    from serve.push_schema import BulkAnswer
    from serve.schema import DocumentAnswer, SearchAnswer, SearchRequest

app = typer.Typer(
    name="sondage",
    help="Search any corpus in many layers at once. Every hit says where it is, which layers found it, and how surprising that is.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
DELEGATED = {"ignore_unknown_options": True, "allow_extra_args": True}


class Color(StrEnum):
    auto = "auto"
    always = "always"
    never = "never"


class Asked(Protocol):
    """Who answers: a `sondage.Client` of a server, or a `sondage.Engine` in this process."""

    def search(self, query: "SearchRequest") -> "SearchAnswer": ...
    def status(self) -> dict[str, Any]: ...
    def document(
        self, hash: str, corpus: str, start: int | None, end: int | None, generation: int | None
    ) -> "DocumentAnswer": ...
    def media(self, hash: str, corpus: str, generation: int | None) -> bytes: ...
    def put_many(self, items: "Iterable[Any]", *, corpus: str, wait: bool, create: bool, layers: list[str] | None) -> "BulkAnswer": ...
    def close(self) -> None: ...


Corpus = Annotated[str | None, typer.Option("--corpus", "-c", help="Corpus; may be left out where there is one.")]
Url = Annotated[str | None, typer.Option("--url", help="Server to ask (SONDAGE_URL).")]
Store = Annotated[str | None, typer.Option("--store", help="Search this store in this process, without a server (SONDAGE_STORE).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Colors = Annotated[Color, typer.Option("--color", help="Colours and marks.")]


@app.command()
def search(
    query: Annotated[str, typer.Argument(help="What is looked for, as plain text.")] = "",
    corpus: Corpus = None,
    url: Url = None,
    store: Store = None,
    layer: Annotated[list[str] | None, typer.Option("--layer", "-l", help="Ask only this layer; repeatable.")] = None,
    path: Annotated[list[str] | None, typer.Option("--path", "-p", help="Glob that paths must match, !GLOB: must not.")] = None,
    where: Annotated[str | None, typer.Option("--where", help='Metadata filter, e.g. {"size_bytes": {"<": 10000}}.')] = None,
    k: Annotated[int, typer.Option("-k", help="Hits wanted.")] = 10,
    budget_ms: Annotated[int | None, typer.Option("--budget-ms", help="Time for the whole answer (2,000; 30,000 with --rerank).")] = None,
    regex: Annotated[str | None, typer.Option("--regex", "-e", help="Regular expression (RE2) that lines must match.")] = None,
    glob: Annotated[str | None, typer.Option("--glob", "-g", help="Glob to look paths up by.")] = None,
    image: Annotated[str | None, typer.Option("--image", help="Image to look for: a file, or the content hash of one there.")] = None,
    form: Annotated[list[str] | None, typer.Option("--form", help='A layer\'s own form, NAME={"key": value}; repeatable.')] = None,
    before: Annotated[int | None, typer.Option("--before-context", "-B", help="Lines shown before a hit's.")] = None,
    after: Annotated[int | None, typer.Option("--after-context", "-A", help="Lines shown after a hit's.")] = None,
    around: Annotated[int | None, typer.Option("--context", "-C", help="Lines shown before and after a hit's.")] = None,
    cursor: Annotated[str | None, typer.Option("--cursor", help="The next page, as the last one said.")] = None,
    generation: Annotated[int | None, typer.Option("--generation", help="Search this kept generation instead of the newest.")] = None,
    combine: Annotated[str | None, typer.Option("--combine", help='Several searches as one: {"union": […]} or @FILE (JSON).')] = None,
    coupling: Annotated[str, typer.Option("--coupling", help="How lists become one: evidence, select, joint, rrf, …, none.")] = "evidence",
    weights: Annotated[str | None, typer.Option("--weights", help="What layers count in it: NAME=NUMBER,…, or @FILE (JSON).")] = None,
    rerank: Annotated[str | None, typer.Option("--rerank", help="Cross-encoder that reorders the best hits, or the judge's model.")] = None,
    depth: Annotated[int | None, typer.Option("--depth", help="Hits that it reads (20).")] = None,
    judge: Annotated[str | None, typer.Option("--judge", help="Endpoint whose model grades instead (default, or another's name).")] = None,
    no_rerank: Annotated[bool, typer.Option("--no-rerank", help="Leave out what the server does by itself (SONDAGE_RERANK).")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show what each layer was asked, weighed and took.")] = False,
    as_json: AsJson = False,
    color: Colors = Color.auto,
) -> None:
    """Search a corpus. With a server (--url), or in this process (--store)."""
    asked = ask(url, store)
    try:
        state: dict[str, Any] = {}
        if corpus is None or regex is not None or glob is not None or image is not None or not as_json:
            state = asked.status()
        corpus = corpus or only_corpus(state)
        request = request_of(
            corpus=corpus,
            query=query,
            forms=forms(state.get("corpora", {}).get(corpus, {}), regex, glob, image) | own_forms(form or []),
            layers=layer or "auto",
            paths=path or [],
            where=decoded(where),
            k=k,
            # A model may have to be loaded first, and nobody who asks for it at a desk wants to be told so.
            budget_ms=budget_ms if budget_ms is not None else 2_000 if rerank is None else 30_000,
            cursor=cursor,
            generation=generation,
            coupling=coupling,
            weights=weighed(weights),
            rerank=last_stage(rerank, judge, depth, no_rerank),
            combine=tree(combine),
            explain=explain,
            context=lines_around(before, after, around),
        )
        found = asked.search(request)
    finally:
        asked.close()
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        from jobs import render

        sources = state.get("corpora", {}).get(corpus, {}).get("sources", {})
        places = render.Places({n: s["url"] for n, s in sources.items()})
        render.answer(render.console(color.value), found, places, explain, request.context is not None)
    raise typer.Exit(0 if found.hits else 1)


def lines_around(before: int | None, after: int | None, around: int | None) -> dict[str, int] | None:
    """The lines to show around hits, as grep takes them: -B and -A go before -C."""
    if before is None and after is None and around is None:
        return None
    both = around or 0
    return {"before": both if before is None else before, "after": both if after is None else after}


@app.command()
def status(url: Url = None, store: Store = None, as_json: AsJson = False, color: Colors = Color.auto) -> None:
    """Show corpora with their generations, layers, replicas and debts, and hosts. To watch them: sondage top."""
    asked = ask(url, store)
    try:
        state = asked.status()
    finally:
        asked.close()
    if as_json:
        print_json(state)
    else:
        from jobs import render, status_tables

        status_tables.status(render.console(color.value), state)


@app.command()
def document(
    hash: Annotated[str, typer.Argument(help="Content hash of a hit, 40 hex digits.")],
    corpus: Corpus = None,
    url: Url = None,
    store: Store = None,
    start: Annotated[int | None, typer.Option(help="First byte.")] = None,
    end: Annotated[int | None, typer.Option(help="Byte after the last.")] = None,
    generation: Annotated[int | None, typer.Option("--generation", help="Of this kept generation; none: the newest.")] = None,
    media: Annotated[bool, typer.Option("--media", help="Print the image or PDF file that it was made from, as it is kept.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a document's text by its content hash, or a piece of it."""
    asked = ask(url, store)
    try:
        if media:
            sys.stdout.buffer.write(asked.media(hash, corpus or only_corpus(asked.status()), generation))
            return
        found = asked.document(hash, corpus or only_corpus(asked.status()), start, end, generation)
    finally:
        asked.close()
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        sys.stdout.write(found.text)


@app.command()
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
    """Push files into a corpus: durable at once, found within a second. To index folders, use sondage index."""
    said = decoded(metadata, "--metadata") or {}
    if as_path is not None and len(files) != 1:
        raise BadQuery(f"--as names one path, but {len(files)} files are given. Push them one by one, or without --as.")
    if as_path is None and "-" in files:
        raise BadQuery("Standard input has no name. Give it one with --as PATH.")
    wanted = layers.split(",") if layers is not None else None
    items = [{"path": as_path or path_in_corpus(name), "content": content_of(name), "metadata": said} for name in files]
    push(items, corpus, url, store, wait, create or wanted is not None, wanted, as_json)


@app.command()
def rm(
    paths: Annotated[list[str], typer.Argument(help="Paths in the corpus that were pushed.")],
    corpus: Corpus = None,
    url: Url = None,
    store: Store = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when they are no longer found.")] = True,
    as_json: AsJson = False,
) -> None:
    """Take pushed documents out of a corpus again. What an index run brought stays: its source decides."""
    push([{"op": "delete", "path": path} for path in paths], corpus, url, store, wait, False, None, as_json)


@app.command(context_settings=DELEGATED, add_help_option=False)
def index(context: typer.Context) -> None:
    """Build or update a corpus. Options: sondage index --help."""
    from jobs.index import run_index

    raise typer.Exit(run_index(context.args))


@app.command(context_settings=DELEGATED, add_help_option=False)
def evaluate(context: typer.Context) -> None:
    """Measure rankings against judgements. Options: sondage evaluate --help."""
    from jobs.evaluate import run_evaluate

    raise typer.Exit(run_evaluate(context.args))


@app.command(context_settings=DELEGATED, add_help_option=False)
def tune(context: typer.Context) -> None:
    """Learn from judgements what each layer should count. Options: sondage tune --help."""
    from jobs.tune import run_tune

    raise typer.Exit(run_tune(context.args))


@app.command(context_settings=DELEGATED, add_help_option=False)
def deploy(context: typer.Context) -> None:
    """Put the coordinator on a running Ray cluster. Options: sondage deploy --help."""
    from jobs.deploy import run_deploy

    raise typer.Exit(run_deploy(context.args))


@app.command(context_settings=DELEGATED, add_help_option=False)
def scale(context: typer.Context) -> None:
    """Give a corpus more or fewer shards or replicas while it is searched. Options: sondage scale --help."""
    from jobs.scale import run_scale

    raise typer.Exit(run_scale(context.args))


@app.command()
def serve(
    store: Annotated[str | None, typer.Option(help="Index to serve (SONDAGE_STORE).")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (SONDAGE_HOST, 127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port, 0 for any (SONDAGE_PORT, 8765).")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File of keys, followed as it changes (SONDAGE_API_KEY_FILE).")] = None,
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM file; none: plain HTTP (SONDAGE_TLS_CERTIFICATE).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (SONDAGE_TLS_KEY).")] = None,
    audit: Annotated[str | None, typer.Option(help="Where each request is told of: a file, or stderr (SONDAGE_AUDIT).")] = None,
) -> None:
    """Serve a store from this process, without Ray."""
    import socket

    import uvicorn

    from jobs.keys import following
    from jobs.settings import Settings
    from serve.connections import options
    from serve.http import create_app
    from serve.keys import KeyRing
    from serve.local import local_coordinator, local_pushes

    given = {"api_key_file": api_key_file, "tls_certificate": tls_certificate, "tls_key": tls_key, "audit": audit}
    settings = Settings.load(store=store, host=host, port=port, **given)
    front = settings.front_settings()
    ring = KeyRing(front.api_keys, front.limits)
    application = create_app(
        local_coordinator(settings.host_settings(), front.poll_s, front.rerank),
        ring,
        lambda _: following(settings, ring),
        local_pushes,
        audit=front.audit,
        reranker=front.rerank.model if front.rerank else None,
    )
    config = uvicorn.Config(application, log_level="warning", **options(front.tls))
    try:
        family = socket.AF_INET6 if ":" in front.host else socket.AF_INET
        listener = socket.create_server((front.host, front.port), family=family)
    except OSError as error:
        raise BadAddress(f"Cannot listen on {front.host} port {front.port}: {error.strerror}. Give another with --port.") from None
    with listener:
        url = front.model_copy(update={"port": listener.getsockname()[1]}).url
        print(f"Serving {settings.store_url()} at {url} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        uvicorn.Server(config).run(sockets=[listener])


keys.add(app)
upkeep.add(app)
top.add(app)


class BadAddress(SondageError):
    """The address cannot be listened on."""


def ask(url: str | None, store: str | None) -> Asked:
    """Whoever answers: the server or store named on the command line, else that of the environment, else this machine's server."""
    from jobs.settings import Settings

    if url and store:
        raise BadQuery("Both --url and --store are given. Name the server or the store, not both.")
    settings = Settings.load(url=url, store=store)
    if store or (settings.store and not settings.url):
        return _engine(settings)
    import sondage

    key = settings.api_key.get_secret_value() if settings.api_key else None
    return sondage.connect(settings.url or f"http://127.0.0.1:{settings.port}", key, settings.ca_file)


def push(
    items: list[dict[str, Any]],
    corpus: str | None,
    url: str | None,
    store: str | None,
    wait: bool,
    create: bool,
    layers: list[str] | None,
    as_json: bool,
) -> None:
    """Push operations and say what became of them. Exit code 2 where one was refused."""
    asked = ask(url, store)
    try:
        answer = asked.put_many(items, corpus=corpus or only_corpus(asked.status()), wait=wait, create=create, layers=layers)
    finally:
        asked.close()
    if as_json:
        print_json(answer.model_dump(mode="json"))
    for error in answer.errors:
        print(f"sondage: {items[error.line - 1]['path']}: {error.message}", file=sys.stderr)
    for what in answer.left_out:
        print(f"sondage: left out of the metadata: {what}", file=sys.stderr)
    if not as_json:
        state = f"searchable in generation {answer.generation}" if answer.searchable else "durable, searchable in a moment"
        print(f"{answer.accepted:,} pushed to {answer.corpus}" + (f", {state}" if answer.accepted else ""))
    if answer.failed:
        raise typer.Exit(2)


def path_in_corpus(name: str) -> str:
    """The path that a file is pushed to if none is given: as on the command line, from the root or the working folder."""
    import os

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
    except OSError as error:
        raise BadQuery(f"Cannot read {name}: {error.strerror}.") from None


def _engine(settings: "Settings") -> Asked:
    import sondage

    return sondage.Engine(
        settings.store_url(),
        settings.store_options(),
        settings.cache,
        settings.cache_bytes,
        settings.threads,
        settings.endpoint_settings(),
        settings.last_stage(),
        settings.models_dir(),
    )


def only_corpus(state: dict[str, Any]) -> str:
    """The corpus that is meant when none is named. Raises BadQuery unless there is exactly one."""
    from jobs.settings import Settings

    known = sorted(state.get("corpora", {}))
    if named := Settings.load().corpus:
        return named
    if len(known) == 1:
        return known[0]
    if known:
        raise BadQuery(f"There are several corpora: {', '.join(known)}. Name one with --corpus.")
    raise BadQuery(f"There is no corpus in {state.get('store', 'the store')} yet. Build one with `sondage index`.")


def forms(corpus: dict[str, Any], regex: str | None, glob: str | None, image: str | None = None) -> dict[str, dict[str, Any]]:
    """The own forms of the spaces that take them, under the names that these spaces have in the corpus."""
    spaces = {layer["layer"]: layer["name"] for layer in reversed(corpus.get("layers", []))}
    stated: dict[str, dict[str, Any]] = {}
    if regex is not None:
        stated[spaces.get("text", "text")] = {"pattern": regex, "regex": True}
    if glob is not None:
        stated[spaces.get("names", "names")] = {"glob": glob}
    if image is not None:
        stated[spaces.get("image", "image")] = {"image": image if re.fullmatch(r"[0-9a-f]{40}", image) else image_of(image)}
    return stated


def own_forms(spelt: "Sequence[str]") -> dict[str, dict[str, Any]]:
    """Forms as they are given to spaces by name. Raises BadQuery."""
    found: dict[str, dict[str, Any]] = {}
    for text in spelt:
        name, eq, value = text.partition("=")
        stated = decoded(value, f"--form {name}") if name and eq else None
        if not isinstance(stated, dict):
            raise BadQuery(f"--form {text!r} is not NAME={{…}}: the name of a layer and an object in JSON.")
        found[name] = stated
    return found


def tree(spelt: str | None) -> Any:
    """The request's `combine`, as JSON or @FILE. Raises BadQuery."""
    if spelt is None or not spelt.startswith("@"):
        return decoded(spelt, "--combine")
    try:
        return decoded(Path(spelt[1:]).read_text("utf-8"), f"--combine {spelt}")
    except (OSError, UnicodeDecodeError) as error:
        raise BadQuery(f"--combine {spelt} cannot be read: {error}.", at="combine") from None


def weighed(spelt: str | None) -> dict[str, Any]:
    """The request's `weights`: NAME=NUMBER,… or @FILE with {"NAME": number} in JSON, or {"weights": {…}} around it. Raises BadQuery."""
    if spelt is None:
        return {}
    if not spelt.startswith("@"):
        pairs = [pair.partition("=") for pair in spelt.split(",") if pair]
        if any(not name or not number for name, _, number in pairs):
            raise BadQuery(f"--weights {spelt!r} is not NAME=NUMBER,NAME=NUMBER, nor @FILE.", at="weights")
        return {name: number for name, _, number in pairs}
    try:
        stated = decoded(Path(spelt[1:]).read_text("utf-8"), f"--weights {spelt}")
    except (OSError, ValueError) as error:
        raise BadQuery(f"--weights {spelt} cannot be read: {error}.", at="weights") from None
    found = stated.get("weights", stated) if isinstance(stated, dict) else stated
    if not isinstance(found, dict):
        raise BadQuery(f'--weights {spelt}: expected {{"NAME": number}}, found {type(found).__name__}.', at="weights")
    return found


def image_of(path: str) -> str:
    """An image file as a question: base64, reduced where it would not fit. Raises BadQuery."""
    from base64 import b64encode

    from shards.images import for_a_question

    try:
        return b64encode(for_a_question(Path(path).read_bytes())).decode()
    except (OSError, ValueError) as error:
        raise BadQuery(f"--image {path}: {error}.", at="image") from None


def last_stage(model: str | None, endpoint: str | None, depth: int | None, none: bool) -> dict[str, Any] | bool | None:
    """The request's `rerank`. Raises BadQuery."""
    stated = {name: value for name, value in (("model", model), ("endpoint", endpoint), ("depth", depth)) if value is not None}
    if stated and (none or model is None):
        raise BadQuery("--depth and --judge belong to --rerank MODEL, and --no-rerank to neither.")
    return False if none else stated or None


def request_of(**fields: Any) -> "SearchRequest":
    """A request from the command line. Raises InvalidRequest."""
    import sondage

    return sondage.as_request(fields.pop("query"), fields.pop("corpus"), fields)


def decoded(where: str | None, option: str = "--where") -> Any:
    """An option's JSON as values. Raises BadQuery with the place."""
    if where is None:
        return None
    try:
        return json.loads(where)
    except ValueError as error:
        raise BadQuery(f'{option} is not JSON: {error}. Quote it for the shell: {option} \'{{"language": "python"}}\'.') from None


def print_json(value: Any) -> None:
    """JSON on stdout: indented for people, one line for programs."""
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=not sys.stdout.isatty()))


def main(arguments: list[str] | None = None) -> int:
    """The entry point: errors of ours as one message on stderr."""
    try:
        app(arguments)
    except SondageError as error:
        print(f"sondage: {error}", file=sys.stderr)
        return 2
    except SystemExit as end:  # how typer ends, also after it has explained a wrong option
        return end.code if isinstance(end.code, int) else 2
    except Exception:  # not 1, which would say that nothing was found
        traceback.print_exc()
        print("sondage: this should not have happened; please report the lines above.", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
