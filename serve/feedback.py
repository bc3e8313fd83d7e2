"""Questions reformulated by spans that a caller chose, and the terms that set these apart.

Null models stay valid, since nothing is taken over from the question before: moments are those of the scores that the new question gives
all live units, so z and surprise are its own. E-values are those of a query of as many words as are asked now and as much like a sentence
(`asked_text`), since that is what evidence of queries without an answer was fitted by: they say how many documents chance would give that
are so much like the new question, not whether the old one is answered here, and the tests of that, which look at sentences, are left out
of the verdict. The documents of the spans are what the question
was made of: that it finds them says nothing, so they are taken out before evidence is summed (`shards.candidates.without`), and neither
verdict nor hits hold them (a residual collection: Salton & Buckley 1990, "Improving retrieval performance by relevance feedback").
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from serve.feedback_schema import FeedbackInfo, Span, SuggestedTerm
from serve.questions import NOTHING_TO_ASK
from serve.schema import SearchRequest
from shards.errors import BadQuery, NotFound, SondageError
from shards.examples import MAX_EXAMPLE_BYTES, MIN_EXAMPLE_BYTES, Example
from shards.generation import Generation
from shards.plan import SpaceQuery
from shards.types import Budget

MIN_LETTERS = 2  # of a suggested term
SHARE = 0.5  # of the time that is left, at most, for changing questions
DEAR_EXAMPLES = 5  # read by a space whose encoder takes 50 ms a text and more

Read = Callable[[Span], Awaitable[Example]]


class Changed(NamedTuple):
    """The questions after feedback, with why others have none; the request's text with the words that came to it; what was done."""

    prepared: list[SpaceQuery]
    reasons: dict[str, str]
    asked_text: str
    info: FeedbackInfo


async def read_examples(spans: Sequence[Span], read: Read, at: str) -> list[Example]:
    """The spans' texts, those without text left out. Raises NotFound, BadQuery with the place in the request."""
    found = await asyncio.gather(*(read(_cut(span)) for span in spans), return_exceptions=True)
    for i, example in enumerate(found):
        if isinstance(example, NotFound | BadQuery):
            raise type(example)(f"{example} Take spans from hits of this corpus.", at=f"{at}[{i}]")
        if isinstance(example, BaseException):
            raise example
    return [example for example in found if isinstance(example, Example) and example.text.strip()]


def _cut(span: Span) -> Span:
    """What is read of a span: of a long one its beginning; a short one, a word that matched say, with what stands around it."""
    end = span.start + MAX_EXAMPLE_BYTES if span.end is None else min(span.end, span.start + MAX_EXAMPLE_BYTES)
    around = max(0, MIN_EXAMPLE_BYTES - (end - span.start)) // 2
    return Span(hash=span.hash, start=max(0, span.start - around), end=end + around)


async def reformulate(
    generation: Generation,
    request: SearchRequest,
    prepared: Sequence[SpaceQuery],
    reasons: Mapping[str, str],
    examples: Sequence[Example],
    budget: Budget,
) -> Changed:
    """The questions drawn towards examples, as far as half of the time that is left allows; cheap spaces first. What cannot be changed is
    asked as it was."""
    by_name = {query.space: query for query in prepared}
    layers = {name: generation.spaces[name].layer for name in [*by_name, *(n for n, reason in reasons.items() if reason == NOTHING_TO_ASK)]}
    left = dict(reasons)
    told: dict[str, str] = {}
    left_out: dict[str, str] = {}
    words: dict[str, None] = {}
    share = Budget(SHARE * budget.remaining_s)
    for name in sorted(layers, key=lambda name: layers[name].dear):
        chosen = examples[:DEAR_EXAMPLES] if layers[name].dear else examples
        work = asyncio.to_thread(layers[name].reformulate, by_name.get(name), chosen, generation.statistics(name))
        try:
            changed = await asyncio.wait_for(work, max(share.remaining_s, 0.0))
        except TimeoutError:
            left_out[name] = "the time for it was over; it is asked the query alone"
            continue
        except SondageError as error:  # the model of one space is away: the others are asked
            left_out[name] = str(error)
            continue
        if changed is None:
            left_out[name] = "chosen texts say nothing to this layer; it is asked the query alone"
            continue
        by_name[name] = replace(changed.query, space=name)
        told[name] = changed.query.feedback
        words |= dict.fromkeys(changed.words)
        left.pop(name, None)
    info = FeedbackInfo(spans=len(examples), terms=tuple(words), spaces=told, left_out=left_out)
    return Changed(list(by_name.values()), left, " ".join([request.query, *words]).strip(), info)


def suggested(generation: Generation, examples: Sequence[Example], k: int, asked: str) -> tuple[str, list[SuggestedTerm]]:
    """The layer that knows the corpus's words, and the k terms by which examples differ most from it. asked: the query, whose own words
    are left out. Raises BadQuery where no layer knows words."""
    for name, space in sorted(generation.spaces.items()):
        if space.problem or not (terms := space.layer.terms_of(examples, generation.statistics(name))):
            continue
        own = set(asked.casefold().split())
        telling = [t for t in terms if t.ratio > 0 and sum(map(str.isalpha, t.forms[0])) >= MIN_LETTERS and own.isdisjoint(t.forms)]
        telling.sort(key=lambda t: (-t.ratio, -t.rate, t.term))
        telling = list({t.forms[0]: t for t in reversed(telling)}.values())[::-1]  # an identifier and its parts show as one word
        return name, [
            SuggestedTerm(term=t.forms[0], forms=t.forms[:5], ratio=t.ratio, spans=t.n_examples, df=t.df, n_units=t.n_units)
            for t in telling[:k]
        ]
    if not examples:
        return "", []
    raise BadQuery(
        f"Corpus {generation.root.corpus!r} has no layer that counts words, or none of the spans' words. Index it with the layer bm25: "
        "sondage index --layer bm25 …"
    )
