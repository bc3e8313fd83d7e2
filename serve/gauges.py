"""What `Coordinator.status` tells, as metrics: corpora, their layers, hosts, routing. Pure functions of one snapshot.

Labels are corpus, layer, host and a few fixed words, so there are as many series as there are of these, however much is searched.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from serve.exposition import Family, Labels

Status = Mapping[str, Any]

# name -> (kind, help); the samples are taken below.
CORPUS: dict[str, tuple[Literal["gauge", "counter"], str]] = {
    "sondage_generation_number": ("gauge", "The generation that new searches are answered from."),
    "sondage_generation_age_seconds": ("gauge", "Since that generation was published."),
    "sondage_generations_kept": ("gauge", "Generations that the store keeps and a search may name."),
    "sondage_documents": ("gauge", "Documents that live in it."),
    "sondage_entries": ("gauge", "Places where these lie."),
    "sondage_text_bytes": ("gauge", "Text of all segments, dead documents included."),
    "sondage_dead_documents": ("gauge", "Documents that are buried and not yet merged away."),
    "sondage_shards": ("gauge", "Shards of it."),
    "sondage_shards_ready": ("gauge", "Shards that some host has open and can be asked for now."),
    "sondage_replicas_wanted": ("gauge", "Copies of shards that hosts should have open: shards times replicas."),
    "sondage_replicas_ready": ("gauge", "Of these, how many are open where they should be."),
    "sondage_segments": ("gauge", "Segments of all shards."),
    "sondage_merges_due": ("gauge", "Groups of segments that are to be merged."),
    "sondage_merge_debt_bytes": ("gauge", "What these merges have to write."),
    "sondage_push_backlog_entries": ("gauge", "Entries of the log of pushed documents that no generation holds yet."),
}
LAYER = {
    "sondage_layer_units": "Units of a layer: passages, lines, paths, symbols.",
    "sondage_layer_disk_bytes": "Files of a layer in the store.",
    "sondage_layer_statistics_bytes": "Its statistics in the coordinator's memory.",
    "sondage_layer_built_documents": "Documents that a layer is built for which is built where it is used.",
    "sondage_layer_waiting_documents": "Documents that somebody ordered to be built of it, and that are not yet.",
    "sondage_layer_building_cost": "What endpoints took for its encodings in the last 31 days, by the prices of their settings.",
}
HOST: dict[str, tuple[Literal["gauge", "counter"], str]] = {
    "sondage_host_ready": ("gauge", "1: the host is asked; 0: its shards are asked elsewhere, or missing."),
    "sondage_host_circuit_open": ("gauge", "1: spared after failures, or tried again with few queries; 0: asked as ever."),
    "sondage_host_queue_queries": ("gauge", "Queries of this coordinator that wait for a call to the host."),
    "sondage_host_calls_in_flight": ("gauge", "Calls of this coordinator that the host has not answered."),
    "sondage_host_calls_total": ("counter", "Calls of this coordinator to the host."),
    "sondage_host_calls_failed_total": ("counter", "Of these, those without an answer in time, or with an error."),
    "sondage_host_call_seconds": ("gauge", "What a call to the host takes lately."),
    "sondage_host_searches_total": ("counter", "Searches that the host has answered, for whomever, since its process began."),
    "sondage_host_busy_seconds_total": ("counter", "Time of these searches; divided by its threads, how busy it is."),
    "sondage_host_threads": ("gauge", "Searches that the host runs at once."),
    "sondage_host_searches_running": ("gauge", "Searches that run there now."),
    "sondage_host_searches_waiting": ("gauge", "Searches that have arrived there and wait for a thread."),
    "sondage_host_shards_open": ("gauge", "Shards that the host has open, of all generations."),
    "sondage_host_memory_bytes": ("gauge", "Resident memory of the host's process, mapped files included."),
    "sondage_file_cache_hits_total": ("counter", "Index files that were on the host's disk when they were opened."),
    "sondage_file_cache_misses_total": ("counter", "Index files that had to be fetched from the store."),
    "sondage_file_cache_fetched_bytes_total": ("counter", "Bytes of these."),
    "sondage_file_cache_evicted_total": ("counter", "Files that made room for others."),
}
ROUTING = {
    "calls": ("sondage_calls_total", "Calls to hosts, of all methods."),
    "hedges": ("sondage_hedges_total", "Second calls, to another replica, because the first took unusually long."),
    "hedges_won": ("sondage_hedges_won_total", "Of these, those that answered first."),
    "hedges_denied": ("sondage_hedges_denied_total", "Hedges left out because they would have been too large a share of all calls."),
    "retries": ("sondage_retries_total", "Calls that failed and were made to another replica."),
    "refused": ("sondage_refused_total", "Searches refused with 429: hosts' queues are full, or half of their time would be over first."),
}
HOST_STATES = ("ready", "suspect", "starting", "restarting")


def families_of(state: Status) -> list[Family]:
    """All that a status tells. state: as `Coordinator.status` gives it; what is not in it has no sample."""
    return [
        *_corpora(state.get("corpora", {})),
        *_layers(state.get("corpora", {})),
        *_hosts(state.get("hosts", [])),
        *_routing(state),
    ]


def _corpora(corpora: Mapping[str, Status]) -> Iterable[Family]:
    samples: dict[str, dict[Labels, float]] = {name: {} for name in CORPUS}
    for corpus, told in corpora.items():
        debts, replicas = told.get("debt", ()), told.get("replicas", {})
        found = {
            "sondage_generation_number": told.get("generation"),
            "sondage_generation_age_seconds": told.get("age_s"),
            "sondage_generations_kept": None if told.get("kept") is None else len(told["kept"]),
            "sondage_documents": told.get("docs"),
            "sondage_entries": told.get("entries"),
            "sondage_text_bytes": told.get("text_bytes"),
            "sondage_dead_documents": told.get("dead_docs"),
            "sondage_shards": len(told.get("shards", ())),
            "sondage_shards_ready": replicas.get("shards_ready"),
            "sondage_replicas_wanted": replicas.get("wanted"),
            "sondage_replicas_ready": replicas.get("ready"),
            "sondage_segments": told.get("segments"),
            "sondage_merges_due": sum(debt.get("merges", 0) for debt in debts),
            "sondage_merge_debt_bytes": sum(debt.get("bytes", 0) for debt in debts),
            "sondage_push_backlog_entries": told.get("log", {}).get("waiting"),
        }
        for name, value in found.items():
            if value is not None:
                samples[name][corpus,] = value
    return [Family(name, kind, text, ("corpus",), samples[name]) for name, (kind, text) in CORPUS.items()]


def _layers(corpora: Mapping[str, Status]) -> Iterable[Family]:
    samples: dict[str, dict[Labels, float]] = {name: {} for name in LAYER}
    memory: dict[Labels, float] = {}
    documents: dict[Labels, float] = {}
    for corpus, told in corpora.items():
        for layer in told.get("layers", ()):
            key = corpus, layer["name"]
            samples["sondage_layer_units"][key] = layer.get("units", 0)
            samples["sondage_layer_disk_bytes"][key] = layer.get("bytes", 0)
            samples["sondage_layer_statistics_bytes"][key] = layer.get("statistics_bytes", 0)
            memory |= _in_memory(key, layer)
            if (far := told.get("building", {}).get(layer["name"])) is not None:
                samples["sondage_layer_built_documents"][key] = far["built"]
                samples["sondage_layer_waiting_documents"][key] = far["waiting"]
                samples["sondage_layer_building_cost"][key] = far["spent"]["cost"]
        for part, held in told.get("memory", {}).items():
            documents |= _in_memory((corpus, part), held)
    yield from (Family(name, "gauge", text, ("corpus", "layer"), samples[name]) for name, text in LAYER.items())
    about = "in the memory of all hosts: mapped files that are open, their pages that are resident, and what was allocated beside."
    yield Family("sondage_layer_memory_bytes", "gauge", f"Of a layer, {about}", ("corpus", "layer", "kind"), memory)
    yield Family("sondage_documents_memory_bytes", "gauge", f"Of texts and documents, {about}", ("corpus", "part", "kind"), documents)


def _in_memory(key: Labels, held: Status) -> dict[Labels, float]:
    kinds = ("mapped", "resident", "private")
    return {(*key, kind): size for kind in kinds if (size := held.get(f"{kind}_bytes")) is not None}


def _hosts(hosts: Iterable[Status]) -> Iterable[Family]:
    samples: dict[str, dict[Labels, float]] = {name: {} for name in HOST}
    states = Counter(dict.fromkeys(HOST_STATES, 0))
    for host in hosts:
        load, cache = host.get("load", {}), host.get("cache", {})
        states[host["state"]] += 1
        found = {
            "sondage_host_ready": float(host["state"] == "ready"),
            "sondage_host_circuit_open": float(host.get("circuit", "closed") != "closed"),
            "sondage_host_queue_queries": host.get("queue", 0),
            "sondage_host_calls_in_flight": host.get("in_flight", 0),
            "sondage_host_calls_total": host.get("calls"),
            "sondage_host_calls_failed_total": host.get("failed"),
            "sondage_host_call_seconds": host.get("call_seconds"),
            "sondage_host_searches_total": host.get("searches"),
            "sondage_host_busy_seconds_total": load.get("busy_s"),
            "sondage_host_threads": load.get("threads"),
            "sondage_host_searches_running": load.get("running"),
            "sondage_host_searches_waiting": load.get("waiting"),
            "sondage_host_shards_open": None if "shards" not in host else len(host["shards"]),
            "sondage_host_memory_bytes": host.get("rss_bytes"),
            "sondage_file_cache_hits_total": cache.get("hits"),
            "sondage_file_cache_misses_total": cache.get("misses"),
            "sondage_file_cache_fetched_bytes_total": cache.get("fetched_bytes"),
            "sondage_file_cache_evicted_total": cache.get("evicted"),
        }
        for name, value in found.items():
            if value is not None:
                samples[name][host_label(host["node"]),] = value
    yield Family("sondage_hosts", "gauge", "Hosts by state.", ("state",), {(state,): n for state, n in states.items()})
    yield from (Family(name, kind, text, ("host",), samples[name]) for name, (kind, text) in HOST.items())


def host_label(node: str) -> str:
    """A host in labels and tables: of Ray's names of nodes, 56 hex digits, the first twelve, as in reasons and logs."""
    return node[:12]


def _routing(state: Status) -> Iterable[Family]:
    admission = state.get("admission", {})
    told = state.get("routing", {"refused": admission.get("refused", 0)})  # a coordinator with its one host in its process makes no calls
    yield Family("sondage_searches_in_flight", "gauge", "Searches that were let in.", (), {(): admission.get("under_way", 0)})
    expected = {(): admission.get("expected_s", 0.0)}
    yield Family("sondage_search_expected_seconds", "gauge", "What one more would take; 0 where few are under way.", (), expected)
    yield from (Family(name, "counter", text, (), {(): told.get(key, 0)}) for key, (name, text) in ROUTING.items())
    ready = {(): float(state["ready"])} if "ready" in state else {}
    yield Family("sondage_ready", "gauge", "1: searches are answered, as /readyz says it; 0: they are not yet.", (), ready)
    yield Family("sondage_problems", "gauge", "Problems that status names.", (), {(): len(state.get("problems", {}))})
    wanted = state.get("coordinator", {}).get("of", 1)
    yield Family("sondage_coordinators_wanted", "gauge", "Coordinators that the deployment wants.", (), {(): wanted})
    waiting = state.get("pushes", {}).get("waiting_bytes", 0)
    yield Family("sondage_push_waiting_bytes", "gauge", "Pushed documents that wait here for their entry in the log.", (), {(): waiting})
