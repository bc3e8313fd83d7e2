"""What is found: search, and explain, which says why; the text of a document."""

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.connecting import asking, named_corpus, only_corpus
from jobs.failing import pointing
from jobs.options import (
    AsJson,
    Color,
    Colors,
    Corpus,
    CouplingName,
    Every,
    Generation,
    LayerNames,
    Paged,
    Store,
    Url,
    Watchable,
)
from jobs.request_options import (
    BUDGET_MS,
    RERANK_BUDGET_MS,
    decoded,
    forms,
    last_stage,
    lines_around,
    own_forms,
    request_of,
    tree,
    weighed,
)
from shards.errors import BadQuery


class Goal(StrEnum):
    """As `serve.anytime.planning.Goal`."""

    fast = "fast"
    balanced = "balanced"
    precise = "precise"
    wide = "wide"


class Freshness(StrEnum):
    """As `serve.freshness_schema.Freshness`."""

    trust = "trust"
    check = "check"
    strict = "strict"


if TYPE_CHECKING:
    from jobs.connecting import Asked
    from serve.schema import SearchAnswer, SearchRequest

Words = Annotated[list[str] | None, typer.Argument(metavar="WORDS", help="What is looked for, as plain text.")]
Path = Annotated[list[str] | None, typer.Option("--path", "-p", help="Glob that paths must match, !GLOB: must not.")]
Where = Annotated[str | None, typer.Option("--where", help='Metadata filter, e.g. {"size_bytes": {"<": 10000}}.')]
Wanted = Annotated[int, typer.Option("-k", help="Hits wanted.")]
Regex = Annotated[str | None, typer.Option("--regex", "-e", help="Regular expression (RE2) that lines must match.")]
Glob = Annotated[str | None, typer.Option("--glob", "-g", help="Glob to look paths up by.")]
Form = Annotated[list[str] | None, typer.Option("--form", help='A layer\'s own form, NAME={"key": value}; repeatable.')]
GoalName = Annotated[Goal | None, typer.Option("--goal", help="What the time is for (balanced).", show_default=False)]
Fresh = Annotated[Freshness | None, typer.Option("--freshness", help="Whether files are looked at (check).", show_default=False)]
Weights = Annotated[str | None, typer.Option("--weights", help="What layers count in it: NAME=NUMBER,…, or @FILE (JSON).")]


def add(app: typer.Typer) -> None:
    """Put the commands of this module into the `sondage` command."""
    app.command(cls=Watchable)(search)
    app.command()(explain)
    app.command()(document)


def search(
    words: Words = None,
    corpus: Corpus = None,
    url: Url = None,
    store: Store = None,
    layer: LayerNames = None,
    path: Path = None,
    where: Where = None,
    k: Wanted = 10,
    budget_ms: Annotated[int | None, typer.Option("--budget-ms", help="Time for the whole answer (2,000; 30,000 with --rerank).")] = None,
    goal: GoalName = None,
    freshness: Fresh = None,
    stream: Annotated[bool, typer.Option("--stream", help="Show what the cheapest layers have at once, then what others add.")] = False,
    continue_: Annotated[str | None, typer.Option("--continue", help="Go on where an answer was cut off, as it said.")] = None,
    regex: Regex = None,
    glob: Glob = None,
    image: Annotated[str | None, typer.Option("--image", help="Image to look for: a file, or the content hash of one there.")] = None,
    form: Form = None,
    before: Annotated[int | None, typer.Option("--before-context", "-B", help="Lines shown before a hit's.")] = None,
    after: Annotated[int | None, typer.Option("--after-context", "-A", help="Lines shown after a hit's.")] = None,
    around: Annotated[int | None, typer.Option("--context", "-C", help="Lines shown before and after a hit's.")] = None,
    cursor: Annotated[str | None, typer.Option("--cursor", help="The next page, as the last one said.")] = None,
    generation: Generation = None,
    combine: Annotated[str | None, typer.Option("--combine", help='Several searches as one: {"union": […]} or @FILE (JSON).')] = None,
    coupling: CouplingName = "evidence",
    weights: Weights = None,
    rerank: Annotated[str | None, typer.Option("--rerank", help="Cross-encoder that reorders the best hits, or the judge's model.")] = None,
    depth: Annotated[int | None, typer.Option("--depth", help="Hits that it reads (20).")] = None,
    judge: Annotated[str | None, typer.Option("--judge", help="Endpoint whose model grades instead (default, or another's name).")] = None,
    no_rerank: Annotated[bool, typer.Option("--no-rerank", help="Leave out what the server does by itself (SONDAGE_RERANK).")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Show what each layer was asked, weighed and took.")] = False,
    oneline: Annotated[bool, typer.Option("--oneline", help="A hit a line, path:line:column: text, as editors read it.")] = False,
    as_json: AsJson = False,
    color: Colors = Color.auto,
    paged: Paged = None,
    every: Every = None,
) -> None:
    """Search a corpus: by a server (--url), or in this process (--store).

    Exit codes: 0 found, 1 nothing found, 2 error.
    """
    if not any((words, form, combine)) and regex is None and glob is None and image is None:
        raise BadQuery("Nothing is asked. Give words, or --regex, --glob, --image, --form or --combine.")
    with asking(url, store) as asked:
        needed = corpus is None or regex is not None or glob is not None or image is not None or not as_json
        state: dict[str, Any] = asked.status() if needed else {}
        corpus = named_corpus(corpus, state) if needed else corpus or only_corpus(state)
        request = request_of(
            corpus=corpus,
            query=" ".join(words or ()),
            forms=forms(state.get("corpora", {}).get(corpus, {}), regex, glob, image) | own_forms(form or []),
            layers=layer or "auto",
            paths=path or [],
            where=decoded(where),
            k=k,
            # A model may have to be loaded first, and nobody who asks for it at a desk wants to be told so.
            budget_ms=budget_ms if budget_ms is not None else BUDGET_MS if rerank is None else RERANK_BUDGET_MS,
            cursor=cursor,
            **({} if goal is None else {"goal": goal.value}),
            **({} if freshness is None else {"freshness": freshness.value}),
            **({} if continue_ is None else {"continue": continue_}),
            generation=generation,
            coupling=coupling,
            weights=weighed(weights),
            rerank=last_stage(rerank, judge, depth, no_rerank),
            combine=tree(combine),
            explain=explain,
            context=lines_around(before, after, around),
        )
        answered(asked, request, state, as_json, color, paged, every, oneline, stream)


def answered(
    asked: "Asked",
    request: "SearchRequest",
    state: dict[str, Any],
    as_json: bool,
    color: Color,
    paged: bool | None = None,
    every: float | None = None,
    oneline: bool = False,
    stream: bool = False,
) -> None:
    """Ask, show, and end with the code that says whether something was found."""
    if stream and every is not None:
        raise BadQuery("--stream and --watch both draw again and again. Give one of them.")
    if as_json and every is None:
        from jobs.terminal import print_json

        for found in asked.search_stream(request) if stream else (asked.search(request),):
            print_json(found.model_dump(mode="json"))
        raise typer.Exit(0 if found.hits else 1)
    from jobs import render
    from jobs.terminal import Screen, shown

    sources = state.get("corpora", {}).get(request.corpus, {}).get("sources", {})
    places = render.Places({name: source["url"] for name, source in sources.items()})

    def draw(out: Screen, found: "SearchAnswer") -> None:
        if oneline:
            render.oneline(out, found, places)
        else:
            render.answer(out, found, places, request.explain, request.context is not None)

    if every is not None:
        from jobs.watching import watch

        found = watch(lambda: asked.search(request), draw, every, color.value, (lambda it: it.model_dump(mode="json")) if as_json else None)
    elif stream:
        from jobs.watching import grow

        found = grow(asked.search_stream(request), draw, color.value)
    else:
        found = asked.search(request)
        with shown(color.value, paged) as out:
            draw(out, found)
    raise typer.Exit(0 if found.hits else 1)


def explain(
    words: Annotated[list[str] | None, typer.Argument(metavar="WORDS", help="A search in plain text, or a query of NLQL: SELECT …")] = None,
    corpus: Corpus = None,
    url: Url = None,
    store: Store = None,
    layer: LayerNames = None,
    path: Path = None,
    where: Where = None,
    k: Wanted = 3,
    regex: Regex = None,
    glob: Glob = None,
    form: Form = None,
    generation: Generation = None,
    coupling: CouplingName = "evidence",
    weights: Weights = None,
    as_json: AsJson = False,
    color: Colors = Color.auto,
    paged: Paged = None,
) -> None:
    """Say how a query is answered: of words what each layer was asked, found and counted; of NLQL (SELECT …) the plan, without running it.

    Exit codes: as of search; 0 for a plan.
    """
    query = " ".join(words or ())
    with asking(url, store) as asked:
        state = asked.status()
        corpus = named_corpus(corpus, state)
        if is_nlql(query):
            with pointing(query):
                plan = asked.explain_query(query, corpus, **({} if generation is None else {"generation": generation}))
            show_plan(plan, as_json, color, paged)
            return
        request = request_of(
            corpus=corpus,
            query=query,
            forms=forms(state["corpora"].get(corpus, {}), regex, glob) | own_forms(form or []),
            layers=layer or "auto",
            paths=path or [],
            where=decoded(where),
            k=k,
            budget_ms=BUDGET_MS,
            generation=generation,
            coupling=coupling,
            weights=weighed(weights),
            explain=True,
        )
        answered(asked, request, state, as_json, color, paged)


def is_nlql(text: str) -> bool:
    """Whether a text is a query of NLQL rather than words: its keywords are upper case, and one of these stands first."""
    return text.split(maxsplit=1)[:1] in (["SELECT"], ["EXPLAIN"])


def show_plan(plan: dict[str, Any], as_json: bool, color: Color, paged: bool | None = None) -> None:
    """A plan of NLQL as a tree, or as JSON."""
    from jobs.terminal import print_json, shown

    if as_json:
        print_json(plan)
        return
    from jobs.plan_tree import plan_tree

    with shown(color.value, paged) as out:
        out.print(plan_tree(plan))


def document(
    hash: Annotated[str, typer.Argument(help="Content hash of a hit, 40 hex digits.")],
    corpus: Corpus = None,
    url: Url = None,
    store: Store = None,
    start: Annotated[int | None, typer.Option(help="First byte.")] = None,
    end: Annotated[int | None, typer.Option(help="Byte after the last.")] = None,
    generation: Generation = None,
    media: Annotated[bool, typer.Option("--media", help="Print the image or PDF file that it was made from, as it is kept.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a document's text by its content hash, or a piece of it, as it is."""
    with asking(url, store) as asked:
        corpus = corpus or only_corpus(asked.status())
        if media:
            sys.stdout.buffer.write(asked.media(hash, corpus, generation))
            return
        found = asked.document(hash, corpus, start, end, generation)
    if as_json:
        from jobs.terminal import print_json

        print_json(found.model_dump(mode="json"))
    else:
        sys.stdout.write(found.text)
