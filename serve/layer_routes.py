"""Orders about layers over HTTP: what is built of spaces that are built where they are used."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, FastAPI, Path, Request, Response

from serve.bodies import decode, read_body
from serve.intake import model_of
from serve.layer_orders import LayersAnswer, LayersRequest, ordered
from serve.openapi import in_place

if TYPE_CHECKING:
    from serve.coordinator import Coordinator
    from serve.guard import Guard


def add_layer_routes(app: FastAPI, coordinator: "Callable[[], Coordinator]", guard: "Guard", **common: Any) -> None:
    """The route, on an application. coordinator: the running one; common: as for `app.post`."""
    answers = {200: {"model": LayersAnswer}, **common.pop("responses", {})}

    @app.post(
        "/v1/corpora/{corpus}/layers",
        response_model=None,
        dependencies=[Depends(guard.needs("write"))],
        responses=answers,
        openapi_extra={
            "requestBody": {"required": True, "content": {"application/json": {"schema": in_place(LayersRequest.model_json_schema())}}}
        },
        **common,
    )
    async def order_layers(request: Request, corpus: Annotated[str, Path(min_length=1, max_length=128)]) -> Response:
        """Order what is built of a space that is built where it is used: build, pin, evict, limits. Status tells how far it is."""
        guard.sees(request, corpus)
        asked = model_of(LayersRequest, decode(await read_body(request)))
        generation = await coordinator().generations.get(corpus)
        answer = await asyncio.to_thread(ordered, coordinator().store, generation.root, asked)
        return Response(answer.model_dump_json(), media_type="application/json")
