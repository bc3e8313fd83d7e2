"""What there is: status of corpora and hosts, and layers."""

from typing import Annotated, Any

import typer

from jobs import completing
from jobs.connecting import asking, named_corpus
from jobs.options import AsJson, Color, Colors, Corpus, Every, Paged, Store, Url, Watchable


def add(app: typer.Typer) -> None:
    """Put the commands of this module into the `sondage` command."""
    app.command(cls=Watchable)(status)
    app.command()(layers)


def status(
    url: Url = None, store: Store = None, as_json: AsJson = False, color: Colors = Color.auto, paged: Paged = None, every: Every = None
) -> None:
    """Show corpora with their generations, layers, replicas and debts, and hosts. To watch rates and latencies: sondage top.

    Exit codes: 0 told, 2 error.
    """
    from jobs.terminal import print_json

    with asking(url, store) as asked:
        if as_json and every is None:
            print_json(asked.status())
            return
        from jobs import status_tables
        from jobs.terminal import shown

        if every is not None:
            from jobs.watching import watch

            watch(asked.status, status_tables.status, every, color.value, (lambda state: state) if as_json else None)
            return
        state = asked.status()
    with shown(color.value, paged) as out:
        status_tables.status(out, state)


def layers(
    name: Annotated[str, typer.Argument(help="One layer: its dials, too.", autocompletion=completing.layers)] = "",
    corpus: Corpus = None,
    build: Annotated[str | None, typer.Option(help="Build this layer of the corpus, which is built where it is used.")] = None,
    scope: Annotated[list[str] | None, typer.Option(help="Paths meant by an order, as a glob; repeatable. None: all.")] = None,
    pin: Annotated[str | None, typer.Option(help="Build this layer, and keep it whatever its limits.")] = None,
    unpin: Annotated[str | None, typer.Option(help="Take pins of this layer back.")] = None,
    evict: Annotated[str | None, typer.Option(help="Drop what is built of this layer, until it is used again.")] = None,
    cancel: Annotated[str | None, typer.Option(help="Take builds and pins of this layer back.")] = None,
    limit: Annotated[str | None, typer.Option(help="Set the limits of this layer; those not given are none.")] = None,
    limit_bytes: Annotated[int | None, typer.Option(help="Of its arrays.")] = None,
    limit_encodings: Annotated[int | None, typer.Option(help="Documents encoded anew in a day (UTC).")] = None,
    limit_cost: Annotated[float | None, typer.Option(help="What endpoints may take in a day, by their prices.")] = None,
    usage: Annotated[bool | None, typer.Option("--usage/--no-usage", help="Count what answers of the corpus show, or not.")] = None,
    url: Url = None,
    store: Store = None,
    as_json: AsJson = False,
    color: Colors = Color.auto,
    paged: Paged = None,
) -> None:
    """Show which layers there are, what each is asked and costs; with --corpus, --store or --url those of corpora, with coverage and size.

    With an order (--build, --pin, --unpin, --evict, --cancel, --limit, --usage) have a layer built that is built where it is used: the
    order is kept with the corpus, and whoever serves it does the work.

    Exit codes: 0 told, 1 a corpus has no layers, 2 error.
    """
    from jobs import layer_tables
    from jobs.terminal import print_json, shown

    verbs = {"build": build, "pin": pin, "unpin": unpin, "evict": evict, "cancel": cancel, "limit": limit}
    limits = {"bytes": limit_bytes, "encodings_per_day": limit_encodings, "cost_per_day": limit_cost, "usage": usage}
    order = {what: value for what, value in (verbs | limits).items() if value is not None} | ({"scope": scope} if scope else {})
    if order:
        with asking(url, store) as asked:
            answer = asked.order_layers(named_corpus(corpus, asked.status()), **order)
        if as_json:
            print_json(answer.model_dump(mode="json"))
        else:
            with shown(color.value, paged) as out:
                layer_tables.show_queue(out, answer.queue.model_dump())
        return
    if corpus is None and url is None and store is None:
        found: list[dict[str, Any]] = layer_tables.known(name)
        if as_json:
            print_json(found)
            return
        with shown(color.value, paged) as out:
            layer_tables.show_known(out, found, bool(name))
        return
    with asking(url, store) as asked:
        state = asked.status()
    there = layer_tables.of_corpora(state, corpus, name)
    if as_json:
        print_json(there)
    else:
        with shown(color.value, paged) as out:
            layer_tables.show_of_corpora(out, there)
    raise typer.Exit(0 if any(there.values()) else 1)
