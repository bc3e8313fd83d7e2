"""Who translates a question into layers' own forms, and what came of it, as they cross HTTP."""

from typing import Annotated, Any, Literal

from pydantic import Field

from serve.edge import Edge, Printable


class Translate(Edge):
    """A chat model of an OpenAI-compatible endpoint writes forms: regular expressions, patterns of code, formulas, molecules, keywords."""

    model: Annotated[str, Field(min_length=1, max_length=500, description="the endpoint's chat model")]
    endpoint: Annotated[str, Field(min_length=1, max_length=128, description="an endpoint of the server's settings")] = "default"
    share: Annotated[float, Field(gt=0, lt=1, description="of budget_ms, at most, that the model has")] = 0.5


class TranslationInfo(Edge):
    """What a model made of the question. forms: by space, as they were asked (send them as `forms` to ask the same again without it);
    dropped: what the layer's own parser refused, and why. state: done; cached (the same question was translated before); late, failed: the
    search was asked as it was written; nothing: the model gave no form that can be asked. reason: why, for people."""

    state: Literal["done", "cached", "nothing", "late", "failed"]
    model: str
    endpoint: str
    forms: dict[str, dict[str, Any]] = {}
    dropped: dict[str, Printable] = {}
    reason: Printable = ""
    ms: float = 0.0
