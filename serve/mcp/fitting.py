"""Answers that cost no more tokens than a model wants to read, best items first.

An answer is a frame (fields, a head line) around items, each with fields, a head line and a text. It is told twice, as text and as
structured content, because some clients show their model the one, some the other and some both: what is counted is all of it. Texts are
shortened before items are dropped, to the same length all of them, so that a short one leaves its room to others; what was shortened or
left out is said. Token counts are those of `serve.mcp.tokens`, an upper bound, and the finished answer is counted once more.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from serve.mcp.tokens import count

Telling = Literal["both", "text", "structured"]

LEAST, MOST, DEFAULT = 300, 100_000, 2_000  # tokens of an answer
FLOOR = 60  # tokens that may be left of a text, as often as it is told, before items are dropped: a line
ELLIPSIS = "…"
CUT = "{n} texts cut"
PART = 8  # of an item: its number, commas, the name of its text


class Answer(NamedTuple):
    """structured: JSON values; text: the same for reading. tokens: what both cost at most, of what is told."""

    structured: dict[str, Any]
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Item:
    """fields: JSON values; head: a line; text: what may be shortened, around its character `focus`."""

    fields: Mapping[str, Any]
    head: str
    text: str = ""
    focus: int = 0


@dataclass(frozen=True, slots=True)
class Frame:
    """fields: of the whole answer; head: its first line. name: of the list of items; more: how to see what was left out, for the model.
    telling: what the client is told."""

    fields: Mapping[str, Any]
    head: str
    name: str
    more: str = "raise max_tokens to see them"
    tail: Sequence[str] = field(default=())
    telling: Telling = "both"

    def answer(self, items: Sequence[Item], shown: Sequence[str], left_out: int) -> Answer:
        """The answer with the first `len(shown)` items, of which so much text is shown."""
        cut = sum(len(text) < len(item.text) for item, text in zip(items, shown))
        notes = [f"{left_out} more left out: {self.more}"] if left_out else []
        notes += [CUT.format(n=cut)] if cut else []
        listed = [{**item.fields, "text": text} if item.text else dict(item.fields) for item, text in zip(items, shown)]
        structured = {**self.fields, self.name: listed, "left_out": "; ".join(notes)}
        lines = [self.head]
        for i, (item, text) in enumerate(zip(items, shown), 1):
            lines.append(f"{i}. {item.head}")
            lines += [text] if text else []
        text = "\n".join([*lines, *self.tail, *(f"[{note}]" for note in notes)])
        return Answer(structured, text, cost(structured, text, self.telling))


def cost(structured: Mapping[str, Any], text: str, telling: Telling = "both") -> int:
    """Tokens of an answer, at most."""
    return (count(text) if telling != "structured" else 0) + (count(as_json(structured)) if telling != "text" else 0)


def as_json(value: Any) -> str:
    """JSON as it is sent."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def fitted(frame: Frame, items: Sequence[Item], max_tokens: int) -> Answer:
    """The items that fit, best first; their texts as long as there is room."""
    room = max_tokens - frame.answer((), (), len(items)).tokens - 2 * count(CUT)
    fixed = [cost(item.fields, item.head, frame.telling) + PART for item in items]
    wanted = [cost({"text": item.text}, item.text, frame.telling) if item.text else 0 for item in items]
    n, taken = 0, 0
    while n < len(items):
        least = fixed[n] + (min(wanted[n], FLOOR) if n else 0)  # the best one is better than none, even without its text
        if taken + least > room:
            break
        n, taken = n + 1, taken + least
    allowed = shares(wanted[:n], room - sum(fixed[:n]))
    shown = [
        item.text if allowance >= want else shortened(item.text, item.focus, allowance, frame.telling)
        for item, want, allowance in zip(items, wanted, allowed)
    ]
    answer = frame.answer(items, shown, len(items) - n)
    while answer.tokens > max_tokens and n:  # what the parts cost together is not more, but this is a promise
        n -= 1
        answer = frame.answer(items, shown[:n], len(items) - n)
    return answer


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """What each gets of the room: as much as it wants, or as all others that do not; what is over goes to the first ones."""
    given = [0] * len(wanted)
    left, open_ends = room, sorted(range(len(wanted)), key=lambda i: (wanted[i], -i))
    while open_ends:
        share = left // len(open_ends)
        i = open_ends.pop(0)
        given[i] = max(min(wanted[i], share), 0)
        left -= given[i]
    for i, want in enumerate(wanted):
        more = min(want - given[i], max(left, 0))
        given[i], left = given[i] + more, left - more
    return given


def shortened(text: str, focus: int, allowance: int, telling: Telling = "both") -> str:
    """The longest piece around a character that costs no more, cut at blanks, with an ellipsis where it was cut; "" where none does."""

    def piece(size: int) -> str:
        start = max(0, min(focus - size // 3, len(text) - size))
        end = min(len(text), start + size)
        if start and (blank := text.find(" ", start, min(start + 20, end))) >= 0:
            start = blank + 1
        if end < len(text) and (blank := text.rfind(" ", max(end - 20, start), end)) > start:
            end = blank
        inside = text[start:end].strip()
        return (ELLIPSIS if start else "") + inside + (ELLIPSIS if end < len(text) else "") if inside else ""

    def fits(size: int) -> bool:
        shown = piece(size)
        return cost({"text": shown}, shown, telling) <= allowance

    size = largest(len(text), fits)
    return piece(size) if size else ""


def largest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `most` that fits, as all smaller ones do; 0 where none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
