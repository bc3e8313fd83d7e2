"""How many actors an index job starts: as many as there is room for, with all the cores that are there."""

import pytest

from jobs.sizing import ACTOR_BYTES, Actors, Node, actors, in_driver

GIB = 1 << 30


def node(cores: int, gpus: int = 0, memory_gib: int = 1000) -> Node:
    return Node(cores, gpus, memory_gib * GIB)


@pytest.mark.parametrize(
    ("n_tasks", "nodes", "on_gpu", "expected"),
    [
        (10, [node(2)], False, Actors(2, 1)),
        (1, [node(2)], False, Actors(1, 2)),  # one segment: all cores encode it
        (3, [node(16)], False, Actors(3, 5)),
        (3, [node(4), node(4)], False, Actors(3, 2)),  # 4 + 4 cores hold two actors of 4, or four of 2
        (100, [node(16), node(8)], False, Actors(24, 1)),
        (100, [node(16, memory_gib=6)], False, Actors(4, 4)),  # memory for four
        (5, [node(1, memory_gib=0)], False, Actors(1, 1)),  # a cluster that states none
        (5, [node(0)], False, Actors(1, 1)),
        (5, [], False, Actors(1, 1)),
        (10, [node(16, gpus=1)], True, Actors(2, 8, 0.5)),
        (10, [node(16, gpus=4), node(64)], True, Actors(8, 2, 0.5)),  # where the GPUs are
        (1, [node(16, gpus=1)], True, Actors(1, 16, 0.5)),
        (10, [node(1, gpus=1)], True, Actors(1, 1, 0.5)),
        (10, [node(8)], True, Actors(8, 1)),  # no GPU anywhere
        (10, [node(8, gpus=1)], False, Actors(8, 1)),
    ],
)
def test_actors_fill_the_cluster(n_tasks, nodes, on_gpu, expected):
    assert actors(n_tasks, nodes, on_gpu) == expected


def test_ray_is_left_a_little_of_each_core_for_hosts():
    assert [actors(n, [node(4)], False).num_cpus for n in (1, 2, 4)] == [3.85, 1.85, 0.85]
    assert ACTOR_BYTES == 1.5 * GIB


@pytest.mark.parametrize(
    ("n_tasks", "n_documents", "on_gpu", "expected"),
    [(2, 10**6, False, True), (3, 3, False, False), (1, 64, True, True), (1, 65, True, False)],
)
def test_a_handful_of_tasks_stays_in_the_driver_unless_a_gpu_waits(n_tasks, n_documents, on_gpu, expected):
    assert in_driver(n_tasks, n_documents, on_gpu) == expected
