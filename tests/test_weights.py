"""Weights of spaces from choices whose answer is known: helpers count, noise and copies do not."""

import numpy as np
import pytest
from scipy.optimize import minimize

from shards.weights import PRIOR, fit_weights


def choices(seed: int, signal: list[float], n: int = 100, competitors: int = 50) -> list[tuple[np.ndarray, np.ndarray]]:
    """Right documents whose surprise exceeds exponential noise by `signal` on average, per space."""
    rng = np.random.default_rng(seed)
    return [
        (rng.exponential(1.0, len(signal)) + rng.exponential(1.0, len(signal)) * signal, rng.exponential(1.0, (competitors, len(signal))))
        for _ in range(n)
    ]


def test_the_best_space_gets_one_and_noise_gets_nothing_but_by_rare_luck():
    """By luck noise seems to help in one corpus of forty."""
    fitted = [fit_weights(choices(100 + seed, [6.0, 3.0, 0.0])) for seed in range(40)]
    assert all(weights.max() == 1.0 and weights[1] > 0 for weights in fitted)
    assert sum(weights[2] > 0 for weights in fitted) <= 3


def test_a_space_that_misleads_gets_nothing():
    made = [(np.array([right[0], 0.0]), others) for right, others in choices(2, [6.0, 0.0])]
    assert fit_weights(made).tolist() == [1.0, 0.0]


def test_where_every_space_misleads_there_are_no_weights():
    made = [(np.zeros(2), np.full((5, 2), 3.0)) for _ in range(40)]
    assert fit_weights(made) is None


def test_of_two_copies_of_a_space_one_counts_as_much_as_it_would_alone():
    single = choices(3, [5.0, 4.0])
    double = [(right[[0, 1, 1]], others[:, [0, 1, 1]]) for right, others in single]
    assert sorted(fit_weights(double)[1:]) == [0.0, fit_weights(single)[1]]


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_is_that_of_a_general_optimiser(seed):
    made = choices(10 + seed, [5.0, 2.0, 2.0, 4.0])

    def loss(w):
        value = PRIOR * ((w - w.mean()) ** 2).sum()
        for right, others in made:
            value += np.logaddexp.reduce(np.append(others @ w, right @ w)) - right @ w
        return value

    slow = minimize(loss, np.full(4, 0.3), bounds=[(0, None)] * 4, method="L-BFGS-B").x
    np.testing.assert_allclose(fit_weights(made), slow / slow.max(), atol=0.03)


def test_differences_in_the_last_bits_change_nothing():
    made = choices(5, [5.0, 3.0])
    moved = [(right * (1 + 1e-13), others * (1 - 1e-13)) for right, others in made]
    assert fit_weights(made).tolist() == fit_weights(moved).tolist()


def test_too_few_choices_or_spaces_that_tell_nothing_leave_weights_open():
    assert fit_weights(choices(6, [5.0])[:10]) is None
    assert fit_weights([(np.zeros(2), np.zeros((0, 2)))] * 50) is None
    assert fit_weights([]) is None


def test_one_space_gets_one():
    assert fit_weights(choices(7, [4.0])).tolist() == [1.0]
