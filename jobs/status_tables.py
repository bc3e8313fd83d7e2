"""What status tells, for people: corpora with their replicas and layers, hosts, what waits to be done."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from jobs.connecting import no_corpus_yet
from jobs.progress import amount
from jobs.tables import put, table
from serve.gauges import host_label

MAX_REASONS = 3
MAX_SHARDS = 16  # shown one by one; of more, those alone that lack a copy


def status(out: Console, state: Mapping[str, Any]) -> None:
    """Tables of corpora, their layers and shards, and hosts."""
    out.print(Text(f"store {state.get('store', '?')}", "bold"))
    for line in coordinator(state):
        out.print(Text(line, "dim"))
    corpora = state.get("corpora", {})
    if not corpora:
        out.print(f"{no_corpus_yet(state)} For example: sondage index --corpus NAME --source FOLDER --store FOLDER", markup=False)
    for name, corpus in corpora.items():
        out.print()
        _corpus(out, name, corpus)
    out.print()
    put(out, hosts(state.get("hosts", [])))
    for model in state.get("rerankers", []):
        out.print(Text(reranker(model), "dim"))
    for what, reason in state.get("problems", {}).items():
        out.print(Text(f"problem: {what}: {reason}", "yellow"))


def _corpus(out: Console, name: str, corpus: Mapping[str, Any]) -> None:
    out.print(Text.assemble((name, "bold magenta"), f": {size_of(corpus)}"))
    if "replicas" in corpus:
        lacking = corpus["replicas"]["ready"] < corpus["replicas"]["wanted"]
        for line in (replicas(corpus), *short(corpus)):
            out.print(Text(f"  {line}", "yellow" if lacking else "dim"))
    waiting = [said for said in (debt(corpus.get("debt", ())), backlog(corpus.get("log", {}))) if said]
    for line in filter(None, (*waiting, kept(corpus.get("kept", ())), record(corpus.get("serving")))):
        out.print(Text(f"  {line}", "dim"))
    for source, ref in corpus.get("sources", {}).items():
        out.print(Text(f"  source {source}: {ref.get('url', '?')}", "dim"))
        for line in last_run(ref.get("last_run") or {}):
            out.print(Text(f"    {line}", "dim"))
    if memory := corpus.get("memory"):
        out.print(Text("  in memory: " + ", ".join(f"{what} {in_memory(held)}" for what, held in memory.items()), "dim"))
    timed = any("latency_ms" in layer for layer in corpus["layers"])
    latency = ("p50 ms", "p99 ms") if timed else ()
    spaces = table("layer", "units", "size", "in memory", *latency, "granularity", "origin")
    for layer in corpus["layers"]:
        kind = layer["name"] if layer["name"] == layer["layer"] else f"{layer['name']} ({layer['layer']})"
        size = amount(layer["bytes"], "bytes") + (f" ({layer['of_text']:.2g} x text)" if "of_text" in layer else "")
        facts = [layer[name] for name in ("granularity", "origin")]  # what it is asked and costs: sondage layers
        lately = [milliseconds(layer.get("latency_ms", {}).get(q)) for q in ("p50", "p99")] if timed else []
        row = [kind, f"{layer['units']:,}", size, in_memory(layer), *lately, *facts]
        spaces.add_row(*map(escape, row))
    put(out, spaces)
    for layer in corpus["layers"]:
        if facts := layer.get("facts"):
            out.print(Text(f"  {layer['name']}: " + ", ".join(map(fact, facts.items())), "dim"))
    if (shown := shards(corpus)) is not None:
        put(out, shown)


def coordinator(state: Mapping[str, Any]) -> list[str]:
    """Who answers, for how long, and what it has done: [] where it does not say."""
    if (service := state.get("service")) is None:
        return []
    of = state.get("coordinator", {}).get("of", 1)
    n = sum(request["n"] for request in service["requests"])
    among = f", one of {of}" if of > 1 else ""
    lines = [
        f"coordinator {service['coordinator']}{among}, up {age(service['uptime_s'])}: {n:,} requests, {service['in_flight']:,} in flight"
    ]
    told = {name: count for name, count in state.get("routing", {}).items() if isinstance(count, int) and count}
    if told:
        lines.append("calls to hosts: " + ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in told.items()))
    if (admission := state.get("admission", {})).get("under_way"):
        more = f"; one more would take {admission['expected_s']:.2g} s" if admission["expected_s"] else ""
        lines.append(f"{admission['under_way']:,} searches under way{more}")
    if waiting := state.get("pushes", {}).get("waiting_bytes"):
        lines.append(f"pushed documents that wait for the store: {amount(waiting, 'bytes')}")
    return lines


def size_of(corpus: Mapping[str, Any]) -> str:
    """How much a corpus holds: "generation 4, 1,200 documents of 1,300 entries, 5.0 MB of text, 2 shards, 1 segment, published 3 s ago"."""
    facts = f"generation {corpus['generation']}, {corpus['docs']:,} documents of {corpus['entries']:,} entries"
    size = f"{amount(corpus['text_bytes'], 'bytes')} of text, {some(len(corpus['shards']), 'shard')}, {some(corpus['segments'], 'segment')}"
    return f"{facts}, {size}" + (f", published {age(corpus['age_s'])} ago" if "age_s" in corpus else "")


def some(n: int, what: str) -> str:
    """So many of something: 1 shard, 2 shards."""
    return f"{n:,} {what}{'s' if n != 1 else ''}"


def replicas(corpus: Mapping[str, Any]) -> str:
    """How many copies hosts have open: "replicas: 2 of each shard (moving), 14 of 16 copies ready, 1 of 8 shards without any"."""
    told, n = corpus["replicas"], len(corpus["shards"])
    line = f"replicas: {told['per_shard']} of each shard" + (" (moving)" if told.get("settled") is False else "")
    line += f", {told['ready']:,} of {told['wanted']:,} copies ready"
    return line + (f", {n - told['shards_ready']:,} of {n:,} shards without any" if told["shards_ready"] < n else "")


def short(corpus: Mapping[str, Any]) -> list[str]:
    """Why shards have no place for all their copies: a line for each of the most frequent reasons."""
    reasons = Counter(one["reason"] for one in corpus["replicas"].get("short", ()))
    most = reasons.most_common(MAX_REASONS)
    lines = [f"{n:,} shard{'s lack' if n != 1 else ' lacks'} a place for a copy: {reason}" for reason, n in most]
    rest = reasons.total() - sum(n for _, n in most)
    return [*lines, f"{rest:,} shard{'s' if rest != 1 else ''} more, for other reasons"] if rest else lines


def record(told: Mapping[str, Any] | None) -> str:
    """The serving record that holds, who wrote it and why: "" where there is none."""
    if not told:
        return ""
    many = f"{told['replicas']} replica{'s' if told['replicas'] != 1 else ''} wanted"
    between = f", {told['min_replicas']} to {told['max_replicas']} by load" if told["min_replicas"] is not None else ""
    who = "".join(f" {word} {text}" for word, text in (("by", told["by"]), ("because of", told["reason"])) if text)
    return f"serving record {told['number']}: {many}{between}, written {told['created']}{who}"


def shards(corpus: Mapping[str, Any]) -> Table | None:
    """The shards with the hosts that have them open; of many, those that lack a copy. None where nobody tells."""
    told = [shard for shard in corpus["shards"] if "nodes" in shard]
    wanted = corpus.get("replicas", {}).get("per_shard", 1)
    if len(told) > MAX_SHARDS:
        told = [shard for shard in told if len(shard["nodes"]) < wanted][:MAX_SHARDS]
    if not told:
        return None
    made = table("shard", "documents", "entries", "hosts")
    for shard in told:
        on = ", ".join(map(host_label, shard["nodes"])) or "none"
        made.add_row(str(shard["shard"]), f"{shard['docs']:,}", f"{shard['entries']:,}", escape(on))
    return made


def hosts(told: Sequence[Mapping[str, Any]]) -> Table:
    """The hosts: whether they may be asked, what waits for them, what they hold."""
    made = table("host", "state", "circuit", "queue", "in flight", "running", "searches", "shards open", "memory", "from disk", "reason")
    for host in told:
        load, cache = host.get("load", {}), host.get("cache", {})
        files = cache.get("hits", 0) + cache.get("misses", 0)
        memory = host.get("rss_bytes")
        row = [
            host_label(host["node"]),
            host["state"],
            host.get("circuit", ""),
            f"{host.get('queue', 0):,}",
            f"{host.get('in_flight', 0):,}",
            f"{load['running']}/{load['threads']}" if "running" in load and "threads" in load else "",
            f"{host.get('searches', 0):,}",
            f"{len(host.get('shards', []))}",
            "" if memory is None else amount(memory, "bytes"),
            f"{cache['hits'] / files:.0%}" if files else "",  # of index files, the rest were fetched; of a local store none counts
            host["reason"],
        ]
        made.add_row(*map(escape, row))
    return made


def age(seconds: float) -> str:
    """A time span in its two largest units: 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    whole = max(0, int(seconds))
    units = [(name, size) for name, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)) if whole >= size][:2] or [("s", 1)]
    said = []
    for name, size in units:
        if whole // size or not said:
            said.append(f"{whole // size} {name}")
        whole %= size
    return " ".join(said)


def milliseconds(value: float | None) -> str:
    """A latency: two digits are what it is worth. "" for none."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def fact(item: tuple[str, Any]) -> str:
    """One of the facts that a layer states: "tokens_in 3,400"."""
    name, value = item
    return f"{name} {value:,}" if isinstance(value, int | float) else f"{name} {value}"


def in_memory(held: Mapping[str, int | None]) -> str:
    """What hosts hold: resident pages of mapped files, and what was allocated beside; "?" where a system does not tell."""
    resident, private = held.get("resident_bytes"), held.get("private_bytes")
    pages = "?" if resident is None else amount(resident, "bytes")
    return pages + (f" + {amount(private, 'bytes')}" if private else "")


def reranker(model: Mapping[str, Any]) -> str:
    """A model of the last stage, and what an endpoint's has been asked for."""
    at = f" of endpoint {model['endpoint']}" if model["endpoint"] else ""
    usage = ", ".join(map(fact, ((name, n) for name, n in (model["usage"] or {}).items() if n)))
    return f"reranker {model['model']}{at}: {'ready' if model['ready'] else 'not ready'}" + (f", {usage}" if usage else "")


def debt(shards: Iterable[Mapping[str, int]]) -> str:
    """What deletions and merges that are due leave to be written: "" for nothing."""
    total: Counter[str] = Counter()
    for shard in shards:
        total.update(shard)
    said = []
    if total["dead_documents"]:
        said.append(f"{total['dead_documents']:,} dead documents, {amount(total['dead_bytes'], 'bytes')}")
    if total["merges"]:
        said.append(f"{total['merges']:,} merges due, {amount(total['bytes'], 'bytes')}")
    return ", ".join(said)


def backlog(log: Mapping[str, int]) -> str:
    """What is in the log of pushed documents and in no generation: "" for nothing."""
    waiting = log.get("waiting", 0)
    return f"{waiting:,} entr{'ies' if waiting != 1 else 'y'} of the log of pushed documents to be applied" if waiting else ""


def kept(numbers: Sequence[int]) -> str:
    """The generations that can be searched: "" for the newest alone."""
    if len(numbers) < 2:
        return ""
    shown = ", ".join(map(str, numbers)) if len(numbers) <= 8 else f"{numbers[0]}, …, {', '.join(map(str, numbers[-6:]))}"
    return f"{len(numbers)} generations kept: {shown}"


def unread(reasons: Mapping[str, int]) -> str:
    """How many files could not be read, and why: "12 files could not be read: forbidden 3, vanished 9"."""
    n = sum(reasons.values())
    counted = ", ".join(f"{reason} {count:,}" for reason, count in sorted(reasons.items()))
    return f"{n:,} file{'s' if n != 1 else ''} could not be read: {counted}"


def last_run(run: Mapping[str, Any]) -> list[str]:
    """What the last run that changed a source left out of it, and why."""
    lines = []
    if skipped := run.get("skipped"):
        lines.append("skipped by the last run: " + ", ".join(f"{reason} {n:,}" for reason, n in sorted(skipped.items())))
    if reasons := run.get("unread"):
        lines += [unread(reasons), *(f"  {example}" for example in run.get("examples", ()))]
    if odd := run.get("odd"):
        lines.append("left out of metadata and tables: " + ", ".join(f"{reason} {n:,}" for reason, n in sorted(odd.items())))
    return lines
