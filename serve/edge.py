"""What requests and answers are made of, whatever they ask: strictness, texts, couplings."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

MAX_QUERY_CHARS = 8_192


class Edge(BaseModel):
    """Frozen, unknown fields refused: a typo in a request must not be silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _printable(text: str) -> str:
    """JSON cannot carry the lone surrogates that stand for a path's invalid UTF-8; such bytes are shown as U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


Printable = Annotated[str, AfterValidator(_printable)]


CouplingName = Literal["evidence", "select", "joint", "rrf", "combsum", "combmnz", "minmax", "zscore", "dbsf", "none"]
RRF_K = 60  # Cormack, Clarke & Buettcher 2009: fixed in a pilot study, and not changed since
OWN_FIELDS: dict[str, CouplingName] = {"k": "rrf"}  # fields that only one coupling has


class Coupling(Edge):
    """How what the spaces found becomes one ranking (`serve/couplings.py`)."""

    name: CouplingName
    k: Annotated[int | None, Field(ge=0, le=1_000_000, description=f"of rrf: what is added to ranks, which begin at 1 ({RRF_K})")] = None

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        """A default is filled in, so that one coupling has one form; a field of another coupling is refused."""
        if not isinstance(value, dict):
            return value
        for field, owner in OWN_FIELDS.items():
            if value.get(field) is not None and value.get("name") != owner:
                raise PydanticCustomError("coupling_field", "only {owner} has the field {field}", {"owner": owner, "field": field})
        return value | {"k": RRF_K} if value.get("name") == "rrf" and value.get("k") is None else value

    def __str__(self) -> str:
        """As text: "rrf", "rrf:k=2"."""
        return self.name if self.k in (None, RRF_K) else f"{self.name}:k={self.k}"


def spelt(value: Any) -> Any:
    """A coupling's text as its fields: NAME or NAME:FIELD=VALUE."""
    if not isinstance(value, str):
        return value
    name, _, stated = value.partition(":")
    return {"name": name} | dict([stated.split("=", 1)] if "=" in stated else [(stated, "")] if stated else [])


Weight = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
