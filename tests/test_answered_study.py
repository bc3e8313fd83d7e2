"""The study of what tells answered questions from foreign ones: its numbers by hand, and its best is what can be had."""

import numpy as np
import pytest

from jobs.answered_study import told


def made(n: int, shift: float, seed: int) -> np.ndarray:
    """Two features: the first tells the sides apart by `shift`, the second by nothing."""
    return np.random.default_rng(seed).normal([shift, 0.0], 1.0, (n, 2))


def test_a_number_that_tells_nothing_is_half_and_one_that_tells_all_is_one():
    own, others = np.array([[3.0, 1.0], [4.0, 2.0], [5.0, 1.5]]), np.array([[1.0, 1.5], [2.0, 1.0], [0.0, 2.0]])
    found = told(own, others, ["near", "noise"], own[:, 0], others[:, 1], ["a", "a", "b"])
    assert found.figures["near, alone"]["auc"] == 1.0 and found.figures["noise, alone"]["auc"] == pytest.approx(0.5)
    assert found.figures["the engine's margin"]["auc"] == 1.0  # 3 to 5 against 1 to 2
    assert found.figures["false rejects"] == 0.0


def test_a_number_whose_less_is_more_is_turned():
    own, others = made(200, -2.0, 1), made(200, 2.0, 2)
    assert told(own, others, ["far", "noise"], own[:, 0], others[:, 0], ["a"] * 200).figures["far, alone"]["auc"] > 0.99


def test_what_judgements_teach_is_tried_on_questions_that_taught_nothing():
    """With that many features a fit to all of them would tell the sides apart at .8; noise stays noise."""
    rng = np.random.default_rng(5)
    own, others = rng.normal(size=(300, 100)), rng.normal(size=(300, 100))
    names = [f"n{i}" for i in range(100)]
    figures = told(own, others, names, own[:, 0], others[:, 0], ["a", "b"] * 150).figures
    assert figures["all, taught by these judgements"]["auc"] == pytest.approx(0.5, abs=0.12)


def test_questions_of_a_collection_are_told_by_what_the_others_teach():
    """One foreign collection lies where the judged questions lie and is far in a feature that only it has: others cannot teach that."""
    own = np.column_stack([made(100, 3.0, 1), np.zeros(100)])
    near = np.column_stack([made(100, 3.0, 2), np.full(100, 5.0)])
    far = np.column_stack([made(100, -3.0, 3), np.zeros(100)])
    groups = ["near"] * 100 + ["far"] * 100
    figures = told(own, np.vstack([near, far]), ["x", "y", "z"], own[:, 0], np.vstack([near, far])[:, 0], groups).figures
    assert figures["all, taught by these judgements"]["auc"] > 0.98
    assert figures["all, taught by these judgements, other foreign collections held out"]["auc"] < 0.9
