"""What somebody may have meant who wrote a name that there is not."""

import difflib
import os
from collections.abc import Iterable


def meant(word: str, known: Iterable[str]) -> str:
    """`Did you mean 'notes'? ` (with a blank behind it), or "" where nothing known is like the word."""
    names = list(known)
    by_case = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), by_case, 1, cutoff=0.6)
    return f"Did you mean {by_case[close[0]]!r}? " if close else ""


def meant_path(path: str) -> str:
    """The same of a path that is not there: what lies beside its first part that is missing."""
    whole = os.path.abspath(os.path.expanduser(path))
    there, missing = os.path.split(whole)
    while not os.path.isdir(there) and there != os.path.dirname(there):
        there, missing = os.path.split(there)
    try:
        close = meant(missing, sorted(os.listdir(there)))
    except OSError:
        return ""
    if not close:
        return ""
    found = os.path.join(there, close.split("'")[1])
    return f"Did you mean {found!r}? "
