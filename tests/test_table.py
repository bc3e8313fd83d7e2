"""What a coordinator wants of the hosts: where shards are to be, and who is to be told so."""

from engine import Engine

from cluster.routing import Routing
from cluster.settings import ClusterSettings
from cluster.table import Table

SETTINGS = ClusterSettings(renew_s=15.0)
NODES = ("a", "b")
UP = {"a": "a1", "b": "b1"}


def table(memory=None):
    routing = Routing(SETTINGS)
    return routing, Table(SETTINGS, routing, memory=lambda nodes: memory or {})


def opens(routing, table, nodes, now=0.0):
    """Hosts open all they are told to."""
    for node, corpus, generation, n_shards, shards in list(table.due(nodes, UP, now)):
        table.tell(node, UP[node], corpus, generation, shards, now)
        routing.opened(corpus, generation, n_shards, node, UP[node], shards, now)


def test_hosts_are_told_what_to_open_at_once_and_what_to_keep_open_every_renew_s():
    routing, t = table()
    t.wants("c", 1, 2, 1)
    opens(routing, t, NODES)
    assert list(t.due(NODES, UP, 14.0)) == []
    assert sorted(due[0] for due in t.due(NODES, UP, 15.0)) == ["a", "b"]


def test_a_host_that_is_to_hold_nothing_any_more_is_told_so_or_it_would_never_let_go():
    routing, t = table()
    t.wants("c", 1, 2, 1)
    opens(routing, t, NODES)
    t.wants("c", 2, 1, 1)
    opens(routing, t, NODES, 1.0)
    (empty,) = [node for node, *_, shards in t.due(NODES, UP, 16.0) if shards == ()]
    assert empty not in t.placed("c", 1, NODES)[0]


def test_what_a_killed_process_had_open_is_opened_again_on_its_node():
    routing, t = table()
    t.wants("c", 1, 8, 1)
    opens(routing, t, NODES)
    before = t.placed("c", 8, NODES)
    routing.told("a", "a2", [], 5.0)
    assert t.placed("c", 8, NODES) == before


def test_memory_bounds_what_a_node_is_given_and_what_finds_no_place_is_in_the_status():
    _, t = table({"a": 250, "b": 250})
    t.wants("c", 1, 4, 2, size_bytes=[100] * 4)
    placed = t.placed("c", 4, NODES)
    assert sorted(map(len, placed)) == [1, 1, 1, 1]
    short = t.status(NODES, UP)["c"]["short"]
    assert [(s["shard"], s["wanted"], s["placed"]) for s in short] == [(shard, 2, 1) for shard in range(4)]
    assert short[0]["reason"].startswith("it needs 100 bytes")


def test_corpora_that_do_not_fit_together_take_memory_in_the_order_of_their_names_and_do_not_change_places():
    routing, t = table({"a": 100, "b": 100})
    t.wants("second", 1, 1, 2, size_bytes=[80])
    opens(routing, t, NODES)
    assert len(t.placed("second", 1, NODES)[0]) == 2
    t.wants("first", 1, 1, 1, size_bytes=[80])
    for now in (1.0, 2.0, 3.0):
        opens(routing, t, NODES, now)
        assert len(t.placed("first", 1, NODES)[0]) == 1 and len(t.placed("second", 1, NODES)[0]) == 1


def test_sizes_that_are_not_known_bound_nothing():
    _, t = table({"a": 1, "b": 1})
    t.wants("c", 1, 4, 2)
    assert all(len(on) == 2 for on in t.placed("c", 4, NODES)) and t.status(NODES, UP)["c"]["short"] == []


def test_a_generation_says_how_many_bytes_each_of_its_shards_takes(tmp_path):
    """After a split, the parts of what was one segment add up to it, in proportion to their text."""
    source = tmp_path / "source"
    source.mkdir()
    for i in range(40):
        (source / f"{i}.txt").write_text(f"document {i} about amber and basalt\n" * 10)
    engine = Engine(tmp_path / "store", ("names", "bm25"))
    engine.index(source, n_shards=1)
    (whole,) = engine.generation().size_bytes
    files = sum(file.size for ref in engine.generation().pages[0].segments for file in ref.files.values())
    assert 10_000 < 0.98 * files <= whole <= files
    engine.index(source, n_shards=4)
    parts = engine.generation().size_bytes
    assert len(parts) == 4 and min(parts) > 0.05 * whole
    assert 0.9 * whole <= sum(parts) <= 1.3 * whole  # each part has statistics of its own


def test_while_shards_are_split_the_old_generation_is_asked_where_it_was_and_the_new_one_opens_beside_it():
    """Four shards of generation 1 become eight of generation 2, and a third node joins at the same time."""
    routing, t = table()
    t.wants("c", 1, 4, 1)
    opens(routing, t, NODES)
    old = routing.choose("c", 1, t.placed("c", 4, NODES), UP, 0.0)
    t.wants("c", 2, 8, 1)
    nodes, up = (*NODES, "new"), UP | {"new": "n1"}
    eight = t.placed("c", 8, nodes)
    assert sum("new" in on for on in eight) == 2  # of 8 shards on 3 nodes
    assert not routing.settled("c", 2, eight, up)
    told = []
    for node, corpus, generation, n_shards, shards in list(t.due(nodes, up, 1.0)):
        told.append((node, generation, n_shards))
        routing.opened(corpus, generation, n_shards, node, up[node], shards, 1.0)
        assert routing.choose("c", 1, t.placed("c", 4, nodes), up, 1.0) == old
        assert t.placed("c", 8, nodes) == eight
    assert told == [("a", 2, 8), ("b", 2, 8), ("new", 2, 8)]
    assert routing.settled("c", 2, eight, up)
    assert sorted(s for shards in routing.choose("c", 2, eight, up, 1.0).values() for s in shards) == list(range(8))
