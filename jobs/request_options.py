"""What a search's options say, as a request."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shards.errors import BadQuery

if TYPE_CHECKING:
    from serve.schema import SearchRequest

BUDGET_MS, RERANK_BUDGET_MS = 2_000, 30_000


def request_of(**fields: Any) -> "SearchRequest":
    """A request from the command line. Raises InvalidRequest."""
    import sondage

    return sondage.as_request(fields.pop("query"), fields.pop("corpus"), fields)


def lines_around(before: int | None, after: int | None, around: int | None) -> dict[str, int] | None:
    """The lines to show around hits, as grep takes them: -B and -A go before -C."""
    if before is None and after is None and around is None:
        return None
    both = around or 0
    return {"before": both if before is None else before, "after": both if after is None else after}


def forms(corpus: dict[str, Any], regex: str | None, glob: str | None, image: str | None = None) -> dict[str, dict[str, Any]]:
    """The own forms of the spaces that take them, under the names that these spaces have in the corpus."""
    spaces = {layer["layer"]: layer["name"] for layer in reversed(corpus.get("layers", []))}
    stated: dict[str, dict[str, Any]] = {}
    if regex is not None:
        stated[spaces.get("text", "text")] = {"pattern": regex, "regex": True}
    if glob is not None:
        stated[spaces.get("names", "names")] = {"glob": glob}
    if image is not None:
        stated[spaces.get("image", "image")] = {"image": image if re.fullmatch(r"[0-9a-f]{40}", image) else image_of(image)}
    return stated


def own_forms(spelt: "Sequence[str]") -> dict[str, dict[str, Any]]:
    """Forms as they are given to spaces by name. Raises BadQuery."""
    found: dict[str, dict[str, Any]] = {}
    for text in spelt:
        name, eq, value = text.partition("=")
        stated = decoded(value, f"--form {name}") if name and eq else None
        if not isinstance(stated, dict):
            raise BadQuery(f"--form {text!r} is not NAME={{…}}: the name of a layer and an object in JSON.")
        found[name] = stated
    return found


def tree(spelt: str | None) -> Any:
    """The request's `combine`, as JSON or @FILE. Raises BadQuery."""
    if spelt is None or not spelt.startswith("@"):
        return decoded(spelt, "--combine")
    try:
        return decoded(Path(spelt[1:]).read_text("utf-8"), f"--combine {spelt}")
    except (OSError, UnicodeDecodeError) as error:
        raise BadQuery(f"--combine {spelt} cannot be read: {error}.", at="combine") from None


def weighed(spelt: str | None) -> dict[str, Any]:
    """The request's `weights`: NAME=NUMBER,… or @FILE with {"NAME": number} in JSON, or {"weights": {…}} around it. Raises BadQuery."""
    if spelt is None:
        return {}
    if not spelt.startswith("@"):
        pairs = [pair.partition("=") for pair in spelt.split(",") if pair]
        if any(not name or not number for name, _, number in pairs):
            raise BadQuery(f"--weights {spelt!r} is not NAME=NUMBER,NAME=NUMBER, nor @FILE.", at="weights")
        return {name: number for name, _, number in pairs}
    try:
        stated = decoded(Path(spelt[1:]).read_text("utf-8"), f"--weights {spelt}")
    except (OSError, ValueError) as error:
        raise BadQuery(f"--weights {spelt} cannot be read: {error}.", at="weights") from None
    found = stated.get("weights", stated) if isinstance(stated, dict) else stated
    if not isinstance(found, dict):
        raise BadQuery(f'--weights {spelt}: expected {{"NAME": number}}, found {type(found).__name__}.', at="weights")
    return found


def image_of(path: str) -> str:
    """An image file as a question: base64, reduced where it would not fit. Raises BadQuery."""
    from base64 import b64encode

    from shards.images import for_a_question

    try:
        return b64encode(for_a_question(Path(path).read_bytes())).decode()
    except (OSError, ValueError) as error:
        raise BadQuery(f"--image {path}: {error}.", at="image") from None


def last_stage(model: str | None, endpoint: str | None, depth: int | None, none: bool) -> dict[str, Any] | bool | None:
    """The request's `rerank`. Raises BadQuery."""
    stated = {name: value for name, value in (("model", model), ("endpoint", endpoint), ("depth", depth)) if value is not None}
    if stated and (none or model is None):
        raise BadQuery("--depth and --judge belong to --rerank MODEL, and --no-rerank to neither.")
    return False if none else stated or None


def decoded(where: str | None, option: str = "--where") -> Any:
    """An option's JSON as values. Raises BadQuery with the place."""
    if where is None:
        return None
    try:
        return json.loads(where)
    except ValueError as error:
        raise BadQuery(f'{option} is not JSON: {error}. Quote it for the shell: {option} \'{{"language": "python"}}\'.') from None
