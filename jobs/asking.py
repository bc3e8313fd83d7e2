"""Who is asked in an evaluation, and what is kept of an answer."""

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jobs import datasets

if TYPE_CHECKING:
    from serve.schema import SearchAnswer

BUDGET_MS = 60_000  # the most there is: an answer that was cut short is no measurement


class Asked(Protocol):
    """Who answers: `sondage.Engine` in this process, `sondage.Client` of a server, or a `jobs.laboratory.Laboratory`."""

    def search(self, query: str, corpus: str, **fields: Any) -> "SearchAnswer": ...
    def status(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


def scores_of(answer: "SearchAnswer", depth: int) -> dict[str, float]:
    """The first `depth` documents of an answer with their fused evidence, in float32.

    A document that lies in several places counts in each. trec_eval breaks ties by document id, the engine by content hash and
    place; to measure what is served, a score that is not below the one before is made the next smaller float32.
    """
    scores: dict[str, float] = {}
    last = np.float32(np.inf)
    for hit in answer.hits:
        for entry in hit.entries:
            document = datasets.document_id(entry.source, entry.path)
            if document not in scores and len(scores) < depth:
                last = min(np.float32(hit.fused), np.nextafter(last, np.float32(-np.inf)))
                scores[document] = float(last)
    return scores
