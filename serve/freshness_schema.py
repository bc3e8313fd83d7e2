"""What an answer says of its sources: whether the files behind it are still what was indexed."""

from typing import Annotated, Literal

from pydantic import Field

from serve.edge import Edge, Printable

Freshness = Literal["trust", "check", "strict"]
HitFreshness = Literal["current", "changed", "live", "unchecked"]


class FreshnessInfo(Edge):
    """What was seen of the sources' files. checked, of: files of the scope that were looked at, and all; of those, changed: are others now;
    vanished: are gone; new: were not there when the corpus was indexed. live: of the changed and new ones, how many were read and searched
    as they are now, in the layers named `layers`. dropped: hits that were left out, because all their files are gone. age_ms: how long ago
    the file was looked at that was looked at longest ago; null where not all were. reason: why not all were, "" if they were."""

    mode: Freshness
    checked: Annotated[int, Field(ge=0)] = 0
    of: Annotated[int, Field(ge=0)] = 0
    changed: int = 0
    vanished: int = 0
    new: int = 0
    live: int = 0
    layers: list[str] = []
    dropped: int = 0
    age_ms: float | None = None
    reason: Printable = ""
