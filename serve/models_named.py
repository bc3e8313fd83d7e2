"""Which models a request may name: by what they are called, packaged or on the hub. Folders are the server's to name.

Whoever may name a folder may ask which there are, and have files loaded that were never meant to be models. No request may, whatever
its key.
"""

from collections.abc import Iterable
from typing import Literal

from serve.problems import InvalidRequest
from serve.schema import SearchRequest
from shards.layers import SpaceSpec
from shards.model_files import is_name

CROSS_ENCODER = "cross-encoder:"  # before a model, where a query names who reranks its rows
MODELS, ENDPOINT = ("model", "vector_model"), "endpoint"  # dials of layers whose value is a model, and what makes it one of elsewhere


def check_models(asked: SearchRequest, own: str | None) -> None:
    """Raises InvalidRequest for a reranker that is told by a folder. own: the server's, which may be one."""
    stage = asked.rerank
    if stage and stage.endpoint is None and stage.model != own:
        _check(stage.model, "rerank.model", "have the server started with it: SONDAGE_RERANK")


def check_reranker(name: str | Literal[False] | None, own: str | None) -> None:
    """The same for a query of NLQL, whose rerankers are registered, but for cross-encoders."""
    if isinstance(name, str) and name.startswith(CROSS_ENCODER) and (model := name.removeprefix(CROSS_ENCODER)) != own:
        _check(model, "reranker", "have the server started with it: SONDAGE_RERANK")


def check_layers(specs: Iterable[str]) -> None:
    """Raises InvalidRequest where a layer of a corpus that is to be made has its model in a folder, BadSpec for what is no spec."""
    for text in specs:
        params = SpaceSpec.parse(text).params
        for dial in MODELS:
            value = params.get(dial)
            # A model of an endpoint is a word in a message to it; that for vectors of its texts is not.
            if isinstance(value, str) and not (dial == "model" and params.get(ENDPOINT)):
                _check(value, "layers", "make the corpus by `sondage index` or `sondage put --store`")


def _check(model: str, at: str, remedy: str) -> None:
    if not is_name(model):
        raise InvalidRequest(
            f"{at}: {model[:80]!r} is no name of a model. A request names one that is packaged, or owner/name on the Hugging Face hub, and "
            f"no folder. To use a folder, {remedy}.",
            at=at,
        )
