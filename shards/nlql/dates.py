"""Texts that are dates: by ISO 8601 as Python reads it, and, where DATE is asked for, as people write them."""

import re
from datetime import datetime, timedelta

_EPOCH = datetime(1970, 1, 1)
_DIGITS = frozenset("0123456789")
# Figures only, the year first: 05/06/2024 is a day in May to some and in June to others, and `March 2024` is no day.
_LAX = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?:[T ]\s*(\d{1,2}):(\d{2}.*))?", re.ASCII)
_LONGEST = 60


def iso_date(text: str) -> datetime | None:
    """What `datetime.fromisoformat` of Python 3.11 makes of a text: `2024-03-01`, `20240301`, `2024-W05`, times, offsets, Z."""
    if len(text) < 7 or text[0] not in _DIGITS:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def any_date(text: str) -> datetime | None:
    """Also `2024-3-1`, `2024/03/01`, `2024.3.1`, with a time or not, and with blanks around it."""
    text = text.strip()
    if (found := iso_date(text)) is not None or len(text) > _LONGEST:
        return found
    if (match := _LAX.fullmatch(text)) is None:
        return None
    year, _, month, day, hour, rest = match.groups()
    date = f"{year}-{month.zfill(2)}-{day.zfill(2)}"
    return iso_date(date if hour is None else f"{date}T{hour.zfill(2)}:{rest}")


def micros(instant: datetime) -> int:
    """Microseconds since 1970: in UTC if it has a zone, else of the clock as it is written."""
    since = instant.replace(tzinfo=None) - _EPOCH - (instant.utcoffset() or timedelta())
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
