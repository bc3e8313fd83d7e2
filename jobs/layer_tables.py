"""Layers for people: which there are, with what each is asked and its dials; which a corpus has, how much of it they cover, how large."""

import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.text import Text

from jobs.connecting import named_corpus
from jobs.progress import amount
from jobs.status_tables import in_memory
from jobs.suggesting import meant
from jobs.tables import put, table
from jobs.terminal import Screen
from shards.errors import NotFound


def known(name: str = "") -> list[dict[str, Any]]:
    """Every layer that can be built, or the one of this name, as JSON values. Raises NotFound with a guess.

    ready: whether the packages that it needs are installed here; lacks: which are not. No model is looked for: making one takes a minute.
    """
    from jobs.auto_layers import not_installed
    from shards.layers import REGISTRY

    if name and name not in REGISTRY:
        raise NotFound(f"There is no layer {name!r}. {meant(name, REGISTRY)}There are: {', '.join(REGISTRY)}.")
    return [_layer(one, not_installed(one)) for one in ([name] if name else REGISTRY)]


def _layer(name: str, lacks: str) -> dict[str, Any]:
    from shards.layers import REGISTRY

    module, _, attribute = REGISTRY[name].partition(":")
    kind = getattr(importlib.import_module(module), attribute)
    facts = {what: _stated(getattr(kind, what)) for what in ("origin", "granularity", "query_format", "cost", "limits")}
    dials = {dial: {"default": _json(field), "meaning": field.description or ""} for dial, field in kind.Params.model_fields.items()}
    return {"name": name, **facts, "roles": list(kind.roles), "ready": not lacks, "lacks": lacks, "dials": dials}


def _stated(fact: Any) -> str:
    """What a layer's class states; some let a dial decide."""
    return fact if isinstance(fact, str) else "by its dials"


def _json(field: Any) -> Any:
    """A dial's default as JSON values; null where it must be given."""
    value = field.get_default(call_default_factory=True)
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return None if field.is_required() else str(value)


def show_known(out: Screen, layers: Sequence[Mapping[str, Any]], with_dials: bool = False) -> None:
    """The layers that there are, those first that can be built here."""
    made = table("layer", "asked", "granularity", "origin", "cost")
    for layer in layers:
        name = escape(layer["name"]) + ("" if layer["ready"] else " *")
        made.add_row(name, *(escape(layer[fact]) for fact in ("query_format", "granularity", "origin", "cost")))
    put(out, made)
    for layer in layers:
        if not layer["ready"]:
            out.print(Text(f"* {layer['name']}: not here: {layer['lacks']}", "yellow"))
        if with_dials:
            if layer["limits"]:
                out.print(Text(f"never built for: {layer['limits']}", "dim"))
            out.print()
            dials = table("dial", "default", "meaning")
            for dial, told in layer["dials"].items():
                dials.add_row(escape(dial), escape(json.dumps(told["default"])), escape(told["meaning"]))
            if layer["dials"]:
                put(out, dials)
            else:
                out.print("no dials")
    if not with_dials:
        out.print(Text("dials of one: sondage layers NAME; those of a corpus: sondage layers --corpus NAME", "dim"))


def of_corpora(state: Mapping[str, Any], corpus: str | None, name: str = "") -> dict[str, list[dict[str, Any]]]:
    """By corpus its spaces, as status tells them, all or those of one name or layer. Raises NotFound with a guess.

    covered: documents that the space has been built for, and `of` so many.
    """
    told = state.get("corpora", {})
    names = [named_corpus(corpus, dict(state))] if corpus is not None else sorted(told)
    found = {}
    for one in names:
        spaces = told.get(one, {}).get("layers", [])
        chosen = [space for space in spaces if name in ("", space["name"], space["layer"])]
        found[one] = [space | {"covered": {"docs": space.get("docs"), "of": told[one]["docs"]}} for space in chosen]
        for space in found[one]:
            if (far := told[one].get("building", {}).get(space["name"])) is not None:
                space["building"] = far
    if name and not any(found.values()):
        there = sorted({space["name"] for one in names for space in told.get(one, {}).get("layers", [])})
        raise NotFound(f"No corpus has a layer {name!r}. {meant(name, there)}There are: {', '.join(there)}.")
    return found


def show_of_corpora(out: Screen, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """A table for each corpus."""
    for corpus, spaces in found.items():
        out.print(Text(corpus, "bold magenta"))
        made = table("layer", "covers", "units", "size", "in memory", "asked", "cost")
        for space in spaces:
            kind = space["name"] if space["name"] == space["layer"] else f"{space['name']} ({space['layer']})"
            size = amount(space["bytes"], "bytes") + (f" ({space['of_text']:.2g} x text)" if "of_text" in space else "")
            row = [kind, coverage(space["covered"]), f"{space['units']:,}", size, in_memory(space), space["query_format"], space["cost"]]
            made.add_row(*map(escape, row))
        put(out, made)
        for space in spaces:
            if "building" in space:
                out.print(Text(f"  {space['name']}: {building(space['building'])}", "dim"))
            if dials := {dial: value for dial, value in space.get("params", {}).items() if value not in (None, "", [], {})}:
                out.print(Text(f"  {space['name']}: " + ", ".join(f"{dial}={value}" for dial, value in dials.items()), "dim"))
        out.print()


def show_queue(out: Screen, queue: Mapping[str, Any]) -> None:
    """What orders about layers come to."""
    made = table("order", "layer", "paths")
    for what in ("builds", "pins", "evictions"):
        for one in queue[what]:
            made.add_row(what.removesuffix("s"), escape(one["space"]), escape(", ".join(one["globs"]) or "all"))
    for name, limits in queue["limits"].items():
        told = ", ".join(f"{what.replace('_', ' ')} {value:,}" for what, value in limits.items() if value is not None)
        made.add_row("limit", escape(name), told or "none")
    put(out, made)
    out.print(Text("what answers show is counted" if queue["usage"] else "what answers show is not counted", "dim"))


def building(space: Mapping[str, Any]) -> str:
    """How far a space is that is built where it is used, in a line."""
    parts = [f"built for {space['built']:,} of {space['documents']:,}", amount(space["bytes"], "bytes")]
    if space["waiting"]:
        left = "" if space["remaining_s"] is None else f", about {space['remaining_s']:,.0f} s"
        parts.append(f"{space['waiting']:,} asked for wait{left}")
    if more := space["due"] - space["waiting"]:
        parts.append(f"{more:,} more by use")
    if space["running"]:
        parts.append(f"{space['running']:,} under way" + (", held for searches" if space["held"] else ""))
    spent = space["spent"]
    parts.append(f"{spent['documents']:,} encoded in {spent['seconds']:,.1f} s" + (f" for {spent['cost']:.4g}" if spent["cost"] else ""))
    return "; ".join(parts)


def coverage(covered: Mapping[str, int | None]) -> str:
    """How many of the corpus's documents a space was built for: "all", "1,200 of 1,300", "?" where a server does not tell."""
    docs, of = covered["docs"], covered["of"]
    if docs is None:
        return "?"
    return "all" if docs == of else f"{docs:,} of {of:,}"
