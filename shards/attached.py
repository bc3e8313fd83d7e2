"""What of a listing is about other files, and which of its files are tables, images or of a format: it shows as a change of the file
concerned.

A sidecar leaves the listing, and its marks go into the etag of its subject; so does the rule that a table is read by, that a file
is to be read as an image, and by which version of a format's reader. Whoever compares listings sees one file that changed, and reads it
again: so a corpus that gets its first image space reads the images that it had skipped, and nothing else, and a new version of the
reader of PDF files reads these.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from shards.corpus import Listed, Listing
from shards.formats.registry import format_of
from shards.images import mark_of
from shards.metadata import SIDECAR
from shards.rows import RowRule


@dataclass(frozen=True, slots=True)
class Attached:
    """A listing without sidecars. sidecars: by the path they are about; rules: of tables, by path; images: paths of files that are
    to be read as images, if they are some; formats: names of the formats to be read (`shards/formats/registry.py`)."""

    listing: Listing
    sidecars: Mapping[str, Listed] = field(default_factory=dict)
    rules: Mapping[str, RowRule] = field(default_factory=dict)
    images: Set[str] = frozenset()
    formats: frozenset[str] = frozenset()


def attach(
    listing: Listing,
    rules: Sequence[RowRule] = (),
    dims: Mapping[str, int] = MappingProxyType({}),
    is_image: Callable[[str], bool] | None = None,
    formats: frozenset[str] = frozenset(),
) -> Attached:
    """The listing as it is compared and read. Of several rules that match a path, the first counts. dims: of vectors by name.
    is_image: whether a space of the corpus looks at the image or the pages at this path, if there are; None without such a space."""
    formatted = {file.path: known for file in listing.files if (known := format_of(file.path, formats)) is not None} if formats else {}
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
    seen = {file.path for file in listing.files if is_image(file.path)} - tables.keys() if is_image is not None else frozenset()
    if not found and not tables and not seen and not formatted:
        return Attached(listing, formats=formats)
    sidecars = {file.path for file in found.values()}
    files = []
    for file in listing.files:
        if file.path in sidecars:
            continue
        beside, rule, image = found.get(file.path), tables.get(file.path), file.path in seen
        known = formatted.get(file.path) if rule is None and not image else None
        if beside is not None or rule is not None or image or known is not None:
            taken = {name: dims.get(name) for _, name in rule.vectors} if rule else {}
            marks = [mark_of(file.path)] if image else []
            if known is not None:
                marks = [known.mark, *(sorted(formats) if known.is_archive else [])]
            said = json.dumps([beside and list(beside[1:]), str(rule or ""), taken, *marks])
            file = file._replace(etag=f"{file.etag}\t{hashlib.sha256(said.encode()).hexdigest()[:24]}")
        files.append(file)
    tables = {path: rule for path, rule in tables.items() if path not in sidecars}
    return Attached(replace(listing, files=tuple(files)), found, tables, seen, formats)
