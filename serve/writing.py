"""An answer as JSON: that of many hits in pieces, for a thousand take longer than another answer may have to wait."""

import asyncio

from serve.schema import SearchAnswer

PIECE = 100  # hits, 1 ms
_NO_HITS = b'"hits":[]'  # the first such bytes are the answer's own: texts before it have their quotes escaped


async def as_json(answer: SearchAnswer) -> bytes:
    """What `answer.model_dump_json()` gives, as bytes."""
    if len(answer.hits) <= PIECE:
        return answer.model_dump_json().encode()
    head, _, tail = answer.model_copy(update={"hits": []}).model_dump_json().encode().partition(_NO_HITS)
    pieces = []
    for at in range(0, len(answer.hits), PIECE):
        pieces.append(",".join([hit.model_dump_json() for hit in answer.hits[at : at + PIECE]]).encode())
        await asyncio.sleep(0)
    return head + _NO_HITS[:-1] + b",".join(pieces) + b"]" + tail
