"""How many replicas: after several looks that agree, within bounds, and without going to and fro."""

import random

import pytest

from cluster.scaling import Bounds, Look, Scaling, ScalingSettings

SETTINGS = ScalingSettings(target=0.7, low=0.5, waiting=8.0, votes_up=3, votes_down=5)


def scaling(least=1, most=4):
    return Scaling(Bounds(least, most), SETTINGS)


def look(utilisation, replicas=2, waiting=0.0, refused=0, nodes=8):
    return Look(utilisation, waiting, refused, replicas, nodes)


def said(scaling, *looks):
    return [scaling.look(one) for one in looks]


def test_three_busy_looks_in_a_row_ask_for_as_many_replicas_as_bring_each_to_the_target():
    assert said(scaling(), *[look(0.95)] * 3) == [None, None, 3]  # 1.9 replicas of work, 2.7 at 0.7


def test_one_calm_look_between_busy_ones_starts_the_count_anew():
    assert said(scaling(), *map(look, (0.95, 0.95, 0.65, 0.95, 0.95, 0.95))) == [None] * 5 + [3]


def test_of_several_wishes_the_mildest_counts():
    """2.0 of work wants 3, 1.45 wants 3; with 3 replicas 2.9 wants 5 and 2.2 wants 4."""
    assert said(scaling(most=9), *[look(u, replicas=3) for u in (0.97, 0.97, 0.74)]) == [None, None, 4]


def test_fewer_replicas_take_more_looks_than_more():
    assert said(scaling(), *[look(0.1)] * 5) == [None] * 4 + [1]


def test_what_is_between_low_and_target_with_one_replica_less_is_left_as_it_is():
    """1.2 of work: with one replica less 0.6 each, below the target but not below low."""
    assert said(scaling(), *[look(0.4, replicas=3)] * 20) == [None] * 20
    assert said(scaling(), *[look(0.33, replicas=3)] * 5) == [None] * 4 + [2]


def test_a_queue_asks_for_more_even_of_hosts_that_say_they_are_idle():
    """They wait for a disk, or the queries wait for one thread."""
    assert said(scaling(), *[look(0.2, waiting=9.0)] * 3) == [None, None, 3]
    assert said(scaling(), *[look(0.2, refused=1)] * 3) == [None, None, 3]


def test_a_change_of_replicas_throws_away_what_was_seen_before():
    s = scaling()
    assert said(s, *[look(0.95)] * 3)[-1] == 3
    assert said(s, *[look(0.95, replicas=3)] * 3) == [None, None, 4]


def test_the_bounds_are_never_left_and_what_lies_outside_is_corrected_at_once():
    assert said(scaling(most=2), *[look(1.0, waiting=99)] * 9) == [None] * 9
    assert said(scaling(least=2), *[look(0.0)] * 9) == [None] * 9
    assert said(scaling(least=3), look(0.5, replicas=2)) == [3]
    assert said(scaling(most=3), look(0.5, replicas=5)) == [3]


def test_other_bounds_hold_from_the_next_look():
    s = scaling(most=2)
    assert said(s, look(0.6)) == [None]
    s.bounds = Bounds(3, 4)
    assert said(s, look(0.6)) == [3]


def test_no_more_replicas_are_wished_for_than_there_are_nodes():
    assert said(scaling(), *[look(1.0, nodes=2)] * 9) == [None] * 9


def test_nodes_that_go_away_take_no_replica_with_them():
    """They come back, and what was wanted is wanted still."""
    assert said(scaling(), *[look(0.5, replicas=3, nodes=1)] * 20) == [None] * 20


@pytest.mark.parametrize("seed", range(20))
def test_under_steady_work_with_noise_the_number_settles_and_stays(seed):
    """Work in units of replicas, seen through noise of a twentieth: it goes one way, and stays for 500 looks."""
    rng = random.Random(seed)
    print("seed", seed)
    work, replicas, s = rng.uniform(0.1, 3.0), rng.randint(1, 6), Scaling(Bounds(1, 6), SETTINGS)
    changes = []
    for n in range(600):
        utilisation = min(work / replicas * rng.uniform(0.95, 1.05), 1.0)
        wish = s.look(Look(utilisation, 0.0, 0, replicas, 6))
        if wish is not None:
            assert 1 <= wish <= 6 and wish != replicas
            changes.append((n, replicas, wish))
            replicas = wish
    assert len({new > old for _, old, new in changes}) <= 1, f"to and fro: {changes}"
    assert all(n < 100 for n, _, _ in changes), changes
    assert work / replicas <= 0.75


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Bounds(0, 1), "bounds are 0 to 1"),
        (lambda: Bounds(3, 2), "bounds are 3 to 2"),
        (lambda: ScalingSettings(target=0.5, low=0.6), "target is 0.5, low 0.6"),
        (lambda: ScalingSettings(votes_up=0), "votes are 0 up"),
    ],
)
def test_settings_without_meaning_are_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()
