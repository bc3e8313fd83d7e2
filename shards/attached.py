"""What of a listing is about other files, and which of its files are tables: both show as a change of the file they concern.

A sidecar leaves the listing, and its marks go into the etag of its subject; so does the rule that a table is read by. Whoever compares
listings sees one file that changed, and reads it again.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from shards.corpus import Listed, Listing
from shards.metadata import SIDECAR
from shards.rows import RowRule


@dataclass(frozen=True, slots=True)
class Attached:
    """A listing without sidecars. sidecars: by the path they are about; rules: of tables, by path."""

    listing: Listing
    sidecars: Mapping[str, Listed] = field(default_factory=dict)
    rules: Mapping[str, RowRule] = field(default_factory=dict)


def attach(listing: Listing, rules: Sequence[RowRule] = (), dims: Mapping[str, int] = MappingProxyType({})) -> Attached:
    """The listing as it is compared and read. Of several rules that match a path, the first counts. dims: of vectors by name."""
    found: dict[str, Listed] = {}
    candidates = [file for file in listing.files if file.path.endswith(SIDECAR)]
    if candidates:
        about = {file.path.removesuffix(SIDECAR): file for file in candidates}
        subjects = {file.path for file in listing.files if file.path in about}
        # The shorter first: `a.meta.json.meta.json` is about a sidecar where `a` is there, and then it is a file like any other.
        for file in sorted(candidates, key=lambda file: len(file.path)):
            subject = file.path.removesuffix(SIDECAR)
            if subject in subjects and (subject.removesuffix(SIDECAR) == subject or subject.removesuffix(SIDECAR) not in found):
                found[subject] = file
    tables = {
        file.path: rule for file in listing.files if rules and (rule := next((r for r in rules if r.matches(file.path)), None)) is not None
    }
    if not found and not tables:
        return Attached(listing)
    sidecars = {file.path for file in found.values()}
    files = []
    for file in listing.files:
        if file.path in sidecars:
            continue
        beside, rule = found.get(file.path), tables.get(file.path)
        if beside is not None or rule is not None:
            taken = {name: dims.get(name) for _, name in rule.vectors} if rule else {}
            said = json.dumps([beside and list(beside[1:]), str(rule or ""), taken])
            file = file._replace(etag=f"{file.etag}\t{hashlib.sha256(said.encode()).hexdigest()[:24]}")
        files.append(file)
    return Attached(replace(listing, files=tuple(files)), found, {path: rule for path, rule in tables.items() if path not in sidecars})
