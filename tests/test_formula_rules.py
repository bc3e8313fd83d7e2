"""The formula layer beside the rules of the literature: which of two formulas answers better, by a table frozen before any score was seen.

At its first run 69 of its 70 lines held: the layer put all cells of a matrix into one line.
"""

import re
from pathlib import Path

import pytest
from test_formula import Corpus

LINES = (Path(__file__).parent / "fixtures" / "formula_rules.tsv").read_text("utf-8").splitlines()
RULES = [tuple(line.split("\t")) for line in LINES if not line.startswith("#")]


@pytest.fixture(scope="module")
def corpus():
    return Corpus(*sorted({f"${formula}$" for _, _, *formulas in RULES for formula in formulas}))


def test_the_table_has_at_least_forty_lines_and_names_the_source_of_every_rule():
    explained = {found[1] for line in LINES if (found := re.match("# ([a-z-]+)  ", line))}
    assert len(RULES) >= 40
    assert {rule for rule, *_ in RULES} == explained


@pytest.mark.parametrize(("rule", "asked", "better", "worse"), RULES)
def test_the_better_of_two_formulas_by_the_literature_is_above_the_worse(corpus, rule, asked, better, worse):
    scores = {text: score for text, _, score in corpus.ask(asked, 1000)}
    assert scores[f"${better}$"] > scores.get(f"${worse}$", 0.0)
