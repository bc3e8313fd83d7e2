"""A query of NLQL on the command line: `sondage query "SELECT …"`."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.connecting import asking, named_corpus, only_corpus
from jobs.failing import pointing
from jobs.options import AsJson, Color, Colors, Corpus, Every, Generation, Paged, Store, Url, Watchable
from shards.errors import BadQuery

if TYPE_CHECKING:
    from jobs.terminal import Screen
    from serve.nlql.schema import QueryAnswer

BUDGET_MS = 10_000  # rows may be encoded when they are asked for, and whoever sits at a desk can wait


def register(app: typer.Typer) -> None:
    """Put the command of this module into the `sondage` command."""
    app.command(cls=Watchable)(query)


def query(
    text: Annotated[str, typer.Argument(metavar="QUERY", help="In NLQL: SELECT … ; a tree in JSON: {…}; - reads it from stdin.")],
    corpus: Corpus = None,
    url: Url = None,
    store: Store = None,
    param: Annotated[list[str] | None, typer.Option("--param", help="NAME=VALUE of a :name, JSON or else text; repeatable.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Rows wanted, instead of the query's LIMIT.")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the plan, and run nothing; as EXPLAIN before the query.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Plain NLQL: what Sondage adds is an error.")] = False,
    field_type: Annotated[
        list[str] | None, typer.Option("--field-type", help="PATH=TYPE of metadata: text, number, date, timestamp; repeatable.")
    ] = None,
    reranker: Annotated[str | None, typer.Option("--reranker", help="Who orders the best rows anew, by its registered name.")] = None,
    no_rerank: Annotated[bool, typer.Option("--no-rerank", help="Nobody does.")] = False,
    rerank_query: Annotated[str | None, typer.Option("--rerank-query", help="Its question, instead of the first score's.")] = None,
    generation: Generation = None,
    budget_ms: Annotated[int, typer.Option("--budget-ms", help="Time for the whole answer.")] = BUDGET_MS,
    plugin: Annotated[
        list[str] | None, typer.Option("--plugin", help="With --store: module that registers functions, embedders, …; repeatable.")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Show the rows' texts to their ends.")] = False,
    as_json: AsJson = False,
    color: Colors = Color.auto,
    paged: Paged = None,
    every: Every = None,
) -> None:
    """Ask a corpus in NLQL: rows by score, metadata and text. With a server (--url), or in this process (--store).

    Exit codes: 0 rows, or a plan; 1 no rows; 2 error.
    """
    if plugin:
        from jobs.settings import Settings

        Settings.load(plugins=plugin).load_plugins()
    asked_for: dict[str, Any] = {
        "params": dict(map(parameter, param or ())),
        "limit": limit,
        "explain": explain,
        "strict": strict,
        "field_types": dict(pair(stated, "--field-type") for stated in field_type or ()),
        "reranker": False if no_rerank else reranker,
        "rerank_query": rerank_query,
        "generation": generation,
        "budget_ms": budget_ms,
    }
    question = question_of(sys.stdin.read() if text == "-" else text)
    with asking(url, store) as asked:
        state: dict[str, Any] = asked.status() if corpus is None or not as_json else {}
        corpus = named_corpus(corpus, state) if state else corpus or only_corpus(state)

        def look() -> "QueryAnswer":
            with pointing(question):
                return asked.query(question, corpus, **asked_for)

        found = look() if every is None else _watched(look, every, as_json, color, state, corpus, whole)
    if every is None:
        _show(found, as_json, color, paged, state, corpus, whole)
    raise typer.Exit(0 if found.rows or found.plan is not None else 1)


def _show(found: "QueryAnswer", as_json: bool, color: Color, paged: bool | None, state: dict[str, Any], corpus: str, whole: bool) -> None:
    from jobs.terminal import print_json, shown

    if as_json:
        print_json(found.plan if found.plan is not None else found.model_dump(mode="json"))
        return
    with shown(color.value, paged) as out:
        _draw(out, found, state, corpus, whole)


def _draw(out: "Screen", found: "QueryAnswer", state: dict[str, Any], corpus: str, whole: bool) -> None:
    if found.plan is not None:
        from jobs.plan_tree import plan_tree

        out.print(plan_tree(found.plan))
        return
    from jobs import query_tables
    from jobs.render import Places

    sources = state.get("corpora", {}).get(corpus, {}).get("sources", {})
    query_tables.rows(out, found, Places({name: source["url"] for name, source in sources.items()}), whole)


def _watched(look: Any, every: float, as_json: bool, color: Color, state: dict[str, Any], corpus: str, whole: bool) -> "QueryAnswer":
    from jobs.watching import watch

    told = (lambda it: it.model_dump(mode="json")) if as_json else None
    return watch(look, lambda out, it: _draw(out, it, state, corpus, whole), every, color.value, told)


def question_of(text: str) -> Any:
    """A query as text, or as a tree where it is JSON. Raises BadQuery."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadQuery(f"The query begins with {{ and is no JSON: {error}. As text it begins with SELECT.") from None


def parameter(stated: str) -> tuple[str, Any]:
    """NAME=VALUE as a parameter: a number, true, false, null, a list, or text where it is none of these. Raises BadQuery."""
    name, value = pair(stated, "--param")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def pair(stated: str, option: str) -> tuple[str, str]:
    """NAME=VALUE in two. Raises BadQuery."""
    name, equals, value = stated.partition("=")
    if not name or not equals:
        raise BadQuery(f"{option} {stated!r} is not NAME=VALUE.")
    return name.removeprefix(":"), value
