"""`sondage external`: asks a search tool elsewhere and puts what it finds into a corpus, where searches find it beside the rest."""

from pathlib import Path
from typing import Annotated

import typer

from jobs.options import AsJson, Color, Colors, Corpus, Store, Url
from shards.errors import BadSpec


def external(
    name: Annotated[str, typer.Argument(help="A source of the file of sources, such as openalex or exa.")],
    query: Annotated[str, typer.Argument(help="What to look for there.")],
    corpus: Corpus = None,
    url: Url = None,
    store: Store = None,
    n: Annotated[int, typer.Option("-n", help="Results wanted, at most 200.")] = 10,
    sources: Annotated[Path | None, typer.Option("--external", help="File of sources by name (SONDAGE_EXTERNAL).")] = None,
    create: Annotated[bool, typer.Option("--create", help="Make the corpus if there is none of this name.")] = False,
    as_json: AsJson = False,
    color: Colors = Color.auto,
) -> None:
    """Ask a search tool outside and put its results into a corpus. The same result is put once, however often it is found.

    Exit codes: 0 found, 1 nothing found, 2 error.
    """
    from jobs.connecting import asking, only_corpus
    from jobs.settings import Settings
    from jobs.terminal import print_json

    known = Settings.load(store=store, url=url, external=sources).external_sources()
    if known is None:
        raise BadSpec("No external source is configured. Give --external FILE or set SONDAGE_EXTERNAL: `openalex: {use: openalex}`.")
    fetched = known.fetch(name, query, n)
    with asking(url, store) as asked:
        into = corpus or only_corpus(asked.status())
        done = asked.put_many(fetched.lines(), corpus=into, wait=True, create=create, layers=None) if fetched.results else None
    if as_json:
        results = [{"path": r.path, "title": r.title, "url": r.url, "date": r.date, "metadata": r.metadata} for r in fetched.results]
        print_json({"source": name, "corpus": into, "accepted": done.accepted if done else 0, "notes": fetched.notes, "results": results})
    else:
        from jobs.external_tables import show

        show(color, fetched, done, into)
    if done is not None and done.failed:
        raise typer.Exit(2)
    raise typer.Exit(0 if fetched.results else 1)


def add(app: typer.Typer) -> None:
    app.command()(external)
