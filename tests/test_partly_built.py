"""What an experiment with partly built spaces makes of rankings, by hand."""

import numpy as np
import pytest

from jobs.partly_built import IN_TIME, INDEX, Row, section


def test_a_partly_built_space_is_set_beside_the_same_queries_without_it():
    alone = np.array([0.5, 0.5, 0.0])
    rows = [
        Row("without it", 0.0, 0.05, {INDEX: alone}),
        Row("128 of 1,000 built", 0.5, 0.06, {INDEX: alone, IN_TIME: alone + 0.1, "300 ms": np.array([0.5, 0.497])}),
        Row("all", 0.5, 0.06, {INDEX: alone + 0.2, IN_TIME: alone + 0.2}),
    ]
    found = section("dense", ["bm25"], rows)
    assert found.rows[1] == ["128 of 1,000 built", "0.3333 (+0.0000)", "0.4333 (+0.1000)", "", "0.4985 (-0.0015)", "0.500", "0.060"]
    assert [target.met for target in found.targets] == [True, True]
    assert found.figures["rows"][1]["gained"]["300 ms"] == pytest.approx(-0.0015)
    rows[2] = Row("all", 0.5, 0.06, {INDEX: alone - 0.01, IN_TIME: alone + 0.2})
    assert [target.met for target in section("dense", ["bm25"], rows).targets] == [True, False]
