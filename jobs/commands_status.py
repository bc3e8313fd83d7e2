"""What there is: status of corpora and hosts, and layers."""

from typing import Annotated, Any

import typer

from jobs import completing
from jobs.connecting import asking
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
    url: Url = None,
    store: Store = None,
    as_json: AsJson = False,
    color: Colors = Color.auto,
    paged: Paged = None,
) -> None:
    """Show which layers there are, what each is asked and costs; with --corpus, --store or --url those of corpora, with coverage and size.

    Exit codes: 0 told, 1 a corpus has no layers, 2 error.
    """
    from jobs import layer_tables
    from jobs.terminal import print_json, shown

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
