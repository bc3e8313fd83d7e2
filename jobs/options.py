"""The options that commands have in common, so that each is spelt, explained and completed in one way."""

from enum import StrEnum
from typing import Annotated

import typer
from typer.core import TyperCommand

from jobs import completing

WATCH_S = "2"  # what --watch alone means


class Color(StrEnum):
    auto = "auto"
    always = "always"
    never = "never"


Corpus = Annotated[
    str | None,
    typer.Option("--corpus", "-c", help="Corpus (SONDAGE_CORPUS); may be left out where there is one.", autocompletion=completing.corpora),
]
Url = Annotated[str | None, typer.Option("--url", help="Server to ask (SONDAGE_URL).")]
Store = Annotated[str | None, typer.Option("--store", help="Ask this store in this process, without a server (SONDAGE_STORE).")]
StoreAlone = Annotated[str | None, typer.Option("--store", help="The index, a folder or s3://bucket/prefix (SONDAGE_STORE).")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document; errors, too, on stderr.")]
Colors = Annotated[Color, typer.Option("--color", help="Colours and marks; auto: on a terminal, unless NO_COLOR is set.")]
Paged = Annotated[
    bool | None,
    typer.Option("--pager/--no-pager", help="Show it in $PAGER; by itself, on a terminal, only what is longer than the screen."),
]
Every = Annotated[
    float | None,
    typer.Option("--watch", metavar="[SECONDS]", help=f"Ask and draw again every so many seconds ({WATCH_S}) until Ctrl-C."),
]
LayerNames = Annotated[
    list[str] | None,
    typer.Option("--layer", "-l", help="Ask only this layer; repeatable.", autocompletion=completing.layers),
]
CouplingName = Annotated[
    str,
    typer.Option("--coupling", help="How lists become one: evidence, select, joint, rrf, …, none.", autocompletion=completing.couplings),
]
Generation = Annotated[int | None, typer.Option("--generation", help="Ask this kept generation instead of the newest.")]


class Watchable(TyperCommand):
    """A command with `--watch [SECONDS]`: the seconds may be left out, also where something that is no number follows."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        said = []
        for place, word in enumerate(args):
            if word == "--":
                said += args[place:]
                break
            said.append(word)
            if word == "--watch" and not _is_number(args[place + 1 : place + 2]):
                said.append(WATCH_S)
        return super().parse_args(ctx, said)


def _is_number(words: list[str]) -> bool:
    try:
        return bool(words) and float(words[0]) >= 0
    except ValueError:
        return False
