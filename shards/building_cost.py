"""What building spaces where they are used took, and what a day of it has cost: for limits, and for whoever asks.

One file a builder, space and day lies below the corpus as `building/spent/<day>-<space>-<builder>-<number>-….json`; its name says it
all, so that one listing tells, and it is replaced by the next. Of days before the last `KEPT_DAYS` nothing is kept.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from shards.endpoint_settings import Usage
from shards.store import Store

KEPT_DAYS = 31
_DAY_S = 86_400.0

_NAME = re.compile(r"building/spent/(\d{8})-([0-9a-f]{16})-([0-9a-f]{32})-(\d+)-(\d+)-(\d+)-(\d+)-(\d+)-(\d+)\.json")


@dataclass(frozen=True, slots=True)
class Spent:
    """What encoding took. documents: encoded anew; seconds: of one builder; requests, tokens, cost: of endpoints, by their prices."""

    documents: int = 0
    seconds: float = 0.0
    requests: int = 0
    tokens: int = 0
    cost: float = 0.0

    @classmethod
    def of(cls, documents: int, seconds: float, usage: Usage) -> "Spent":
        return cls(documents, seconds, usage.requests, usage.tokens_in + usage.tokens_out, usage.cost or 0.0)

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.documents + other.documents,
            self.seconds + other.seconds,
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.cost + other.cost,
        )


def spend(store: Store, builder: str, space: str, more: Spent, now: float) -> None:
    """Write down what encoding took: one file a builder, space and day, whose name says it all, replaced by the next."""
    day, known = _day(now), _spent(store)
    mine = [(name, part, n) for name, (of, who, told, part, n) in known.items() if (of, who, told) == (day, builder, space)]
    total = sum((part for _, part, _ in mine), more)
    number = max((n for _, _, n in mine), default=0) + 1
    told = (number, total.documents, round(total.seconds * 1e3), total.requests, total.tokens, round(total.cost * 1e6))
    store.write(f"building/spent/{day}-{space}-{builder}-{'-'.join(map(str, told))}.json", b"{}")
    oldest = _day(now - KEPT_DAYS * _DAY_S)
    store.delete_many([name for name, _, _ in mine] + [name for name, (of, *_) in known.items() if of < oldest])


def ledger(store: Store) -> dict[tuple[str, str], Spent]:
    """What encoding took, by day (UTC, YYYYMMDD) and space id."""
    found: dict[tuple[str, str], Spent] = {}
    for day, _, space, part, _ in _spent(store).values():
        found[day, space] = found.get((day, space), Spent()) + part
    return found


def today(store: Store, now: float) -> dict[str, Spent]:
    """By space id what encoding took on the day of `now`."""
    day = _day(now)
    return {space: part for (of, space), part in ledger(store).items() if of == day}


def _spent(store: Store) -> dict[str, tuple[str, str, str, Spent, int]]:
    """File -> day, builder, space id, what it took, number. Of one builder's files of a day and space the last alone counts."""
    newest: dict[tuple[str, str, str], tuple[int, str, Spent]] = {}
    for name in store.list("building/spent/"):
        if (match := _NAME.fullmatch(name)) is None:
            continue
        day, space, builder = match[1], match[2], match[3]
        number, documents, milliseconds, requests, tokens, millionths = map(int, match.groups()[3:])
        if number > newest.get((day, builder, space), (0, "", Spent()))[0]:
            newest[day, builder, space] = number, name, Spent(documents, milliseconds / 1e3, requests, tokens, millionths / 1e6)
    return {name: (day, builder, space, part, n) for (day, builder, space), (n, name, part) in newest.items()}


def _day(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y%m%d")
