"""What a further round of a search found, joined with what was known: as if all spaces had been asked at once."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shards.identity import as_keys
from shards.types import Array, Candidates

WHOLE = ("ready", "scoped", "building")  # states of a space that has looked at all that it is to look at


def joined(before: Candidates, more: Candidates, spaces: Sequence[str], places: Sequence[int | None]) -> Candidates:
    """Candidates of all rounds so far.

    more: of a plan whose queries are of these spaces, with the hashes of `before` given. places: where each of them stands in `before`,
    None for one that was asked only now. Of known ones `before` has the lists, moments and coverage, and `more` the scores of what is new;
    where the time did not suffice for these, the space is late, and what it lacks is said.
    """
    rows = {key: i for i, key in enumerate(as_keys(before.hashes).tolist())}
    news = as_keys(more.hashes).tolist()
    new = np.array([i for i, key in enumerate(news) if key not in rows], np.int64)
    hashes = np.concatenate([before.hashes, more.hashes[new]])
    order = np.argsort(as_keys(hashes), kind="stable") if len(hashes) else np.zeros(0, np.int64)
    n, n_before = len(hashes), len(before.hashes)
    in_more = np.full(n, -1, np.int64)  # where each document stands in `more`
    for i, key in enumerate(news):
        if (row := rows.get(key)) is not None:
            in_more[row] = i
    in_more[n_before:] = new
    there = in_more >= 0
    columns: dict[str, list[Array]] = {name: [] for name in ("generated", "scores", "starts", "ends")}
    for j, place in enumerate(places):
        for name, empty in (("generated", False), ("scores", np.nan), ("starts", 0), ("ends", 0)):
            theirs = getattr(more, name)
            column = np.full(n, empty, theirs.dtype)
            if place is None:
                column[there] = theirs[in_more[there], j]
            else:
                column[:n_before] = getattr(before, name)[:, place]
                if name != "generated":
                    column[n_before:] = theirs[new, j]
            columns[name].append(column)
    table = {name: np.stack(found, axis=1)[order] if found else np.zeros((n, 0)) for name, found in columns.items()}
    known = {space for space, place in zip(spaces, places, strict=True) if place is not None}
    late = {(s.space, s.shard): s.reason for s in more.status if s.space in known and s.state == "late"}
    status = [
        replace(s, state="late", reason=late[s.space, s.shard]) if (s.space, s.shard) in late and s.state in WHOLE else s
        for s in before.status
        if s.space in known
    ]
    status += [s for s in more.status if s.space not in known]
    moments = tuple(more.moments[j] if place is None else before.moments[place] for j, place in enumerate(places))
    n_matched = [more.n_matched[j] if place is None else before.n_matched[place] for j, place in enumerate(places)]
    return Candidates(
        hashes=hashes[order],
        generated=table["generated"],
        scores=table["scores"],
        starts=table["starts"],
        ends=table["ends"],
        moments=moments,
        n_matched=np.array(n_matched, np.int64),
        status=tuple(sorted(status, key=lambda s: (s.space, s.shard))),
        details=before.details | more.details,
    )


def only(found: Candidates, spaces: Sequence[str], kept: Sequence[int]) -> Candidates:
    """The candidates as these questions alone found them. spaces: of all questions, in their order; kept: places of those that stay."""
    columns = {name: getattr(found, name)[:, list(kept)] for name in ("generated", "scores", "starts", "ends")}
    listed = columns["generated"].any(axis=1)
    names = {spaces[j] for j in kept}
    return Candidates(
        hashes=found.hashes[listed],
        **{name: column[listed] for name, column in columns.items()},
        moments=tuple(found.moments[j] for j in kept),
        n_matched=found.n_matched[list(kept)],
        status=tuple(s for s in found.status if s.space in names),
        details=found.details,
    )
