"""Opening a corpus as it crosses HTTP: from where, and how far it is."""

from typing import Annotated, Literal

from pydantic import Field

from serve.edge import Edge

Text = Annotated[str, Field(min_length=1, max_length=4_096)]


class OpenSource(Edge):
    """root: a folder, or a URL that fsspec knows, as the server sees it. include, exclude: globs; name: of the source, a corpus may have
    several."""

    root: Text
    include: Annotated[tuple[Text, ...], Field(max_length=256)] = ()
    exclude: Annotated[tuple[Text, ...], Field(max_length=256)] = ()
    name: Annotated[str, Field(min_length=1, max_length=128)] = "main"


class OpenRequest(Edge):
    """layers: specs as of `sondage index --layers`; none: by what there is."""

    corpus: Annotated[str, Field(min_length=1, max_length=128)]
    source: OpenSource
    layers: Annotated[tuple[Text, ...] | None, Field(max_length=64)] = None


class OpeningAnswer(Edge):
    """How far the opening of a corpus is. Counts are of files, held of entries.

    state: "waiting" to be begun; "listing" the source; "reading" it, a generation after each portion; "layers": all that was listed is
    read, and further layers are built; "done"; "failed", with the reason. held: in `generation`, of the source alone; pending: listed and
    in none yet. coverage: held of both, 0 to 1. seconds: since it was begun, or until it ended. files_per_s: held in these.
    """

    corpus: str
    source: str
    state: Literal["waiting", "listing", "reading", "layers", "done", "failed"]
    listed: int = 0
    held: int = 0
    pending: int = 0
    coverage: float = 0.0
    generation: int = 0
    seconds: float = 0.0
    files_per_s: float = 0.0
    reason: str = ""
