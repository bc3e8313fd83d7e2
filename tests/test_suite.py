"""Several collections as one, targets, calibration and answerability: arithmetic by hand."""

import html.parser
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kstest

from jobs import answered, calibration, report, verdicts
from jobs.datasets import BadDataset, Judged
from jobs.metrics import METRICS, Evaluation, Measured, Verdicts
from jobs.sections import Section, Target
from jobs.suite import macro_draws, together


def evaluation(name: str, runs: dict[str, list[float]], sections=()) -> Evaluation:
    kind = {"bm25": "layer", "dense": "layer"}
    measured = [Measured(run, kind.get(run, "coupling"), dict.fromkeys(METRICS, np.array(v))) for run, v in runs.items()]
    return Evaluation(name, 1, 3, 30, 100, [f"{name}{i}" for i in range(2)], measured, [], [], sections=sections)


def two():
    small = Section("k", "K", ("what",), [], {}, targets=[Target("t", 0.9, 0.5)])
    other = Section("k", "K", ("what",), [["[b]<i>"]], {"x": math.nan}, "a note", ("<svg></svg>",), [Target("t", 0.4, 0.5)])
    runs = {"bm25": [0.2, 0.4], "dense": [0.3, 0.3], "evidence": [0.5, 0.5], "rrf": [0.4, 0.4], "combmnz": [0.5, 0.4]}
    return [evaluation("one", runs, [small]), evaluation("two", {k: [1 - x for x in v] for k, v in runs.items()}, [other])]


def test_every_collection_counts_the_same_and_leads_are_of_evidence():
    suite = together(two())
    table = suite.sections[0]
    assert table.figures["bm25"]["macro"] == pytest.approx((0.3 + 0.7) / 2)
    assert table.figures["rrf"]["collections"] == pytest.approx({"one": 0.4, "two": 0.6})
    assert table.figures["rrf"]["lead of evidence"]["macro"] == pytest.approx(0.5 - 0.5)
    by_name = {target.name: target for target in table.targets}
    assert by_name["evidence: lead over rrf, macro"].measured == pytest.approx(0.0)
    assert by_name["evidence: lead over rrf, worst collection"].measured == pytest.approx(-0.1)
    assert by_name["evidence: lead over the best of all (bm25), macro"].wanted == 0.0
    assert by_name["evidence: above the best single layer, share of collections"].measured == 0.5


def test_targets_of_collections_are_counted_with_the_worst_of_them():
    section = together(two()).sections[1]
    assert section.rows == [["t", ">= 0.5", "1 of 2", "0.4000 (two)"]]
    assert section.figures["t"]["collections"] == {"one": 0.9, "two": 0.4} and not section.targets[0].met


def test_draws_are_paired_so_that_a_constant_lead_has_no_interval():
    draws = macro_draws({"c": {"a": np.array([0.1, 0.5, 0.9]), "b": np.array([0.0, 0.4, 0.8])}}, ["a", "b"], seed=1)
    assert np.allclose(draws["a"] - draws["b"], 0.1) and draws["a"].std() > 0.05
    assert draws["a"].mean() == pytest.approx(0.5, abs=0.03)


def test_a_suite_is_one_page_and_valid_json(capsys):
    suite = together(two())
    page = report.as_html(suite)

    class Balanced(html.parser.HTMLParser):
        def __init__(self):
            super().__init__()
            self.open = []

        def handle_starttag(self, tag, attrs):
            if tag != "meta":
                self.open.append(tag)

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    parser = Balanced()
    parser.feed(page)
    assert parser.open == [] and "[b]&lt;i&gt;" in page and "a note" in page
    told = json.loads(report.as_json(suite))
    assert list(told["collections"]) == ["one", "two"] and told["collections"]["two"]["sections"]["k"]["x"] is None
    assert told["collections"]["one"]["targets"][0]["met"] and told["sections"]["suite"]["bm25"]["macro"] == pytest.approx(0.5)
    report.print_tables(suite)
    out = capsys.readouterr().out
    assert "[b]<i>" in out and "nDCG@10 over 2 collections" in out


# --- calibration and answerability ----------------------------------------------------------------------------------------------


def test_calibration_of_values_that_are_what_they_say():
    p = (np.arange(1_000) + 0.5) / 1_000
    evalues = -np.log1p(-p)
    found = calibration.calibration(calibration.chances(evalues))
    assert found["ks"] == pytest.approx(kstest(p, "uniform").statistic) == pytest.approx(0.0005)
    assert found["E <= 0.1"] == pytest.approx(1 - math.exp(-0.1), abs=0.001)
    assert found["E <= 0.01"] == pytest.approx(0.01, abs=0.001)


def told(kind: str, evalues, margins=(), none=0) -> Verdicts:
    e, m = np.array(evalues, float), np.array(margins or [math.nan] * len(evalues), float)
    return Verdicts(kind, {"none": none, "weak": len(e) - none, "strong": 0}, None, e, m)


def test_foreign_queries_are_pooled_and_drawn():
    kinds = [told(verdicts.SHUFFLED, [0.5, 1.0]), told("foreign: a", [0.05, 3.0]), told("foreign: b", [0.01])]
    section = calibration.section([*kinds, told(verdicts.JUDGED, [1e-9])])
    assert [row[0] for row in section.rows] == [verdicts.SHUFFLED, "foreign: a", "foreign: b", verdicts.ALL_FOREIGN]
    assert section.figures[verdicts.ALL_FOREIGN]["E <= 0.1"] == pytest.approx(2 / 3)
    assert section.plots[0].count("<polyline") == 4 and [t.met for t in section.targets] == [False, False]


def test_auc_counts_pairs_in_the_right_order_and_ties_by_half():
    assert answered.auc(np.array([3.0, 1.0]), np.array([2.0, 1.0, 0.0])) == pytest.approx((3 + 1.5) / 6)
    assert answered.auc(np.array([1.0, math.nan]), np.array([0.0])) == 1.0
    assert math.isnan(answered.auc(np.array([1.0]), np.array([math.nan])))


def test_answerability_is_by_the_margin_or_by_e_where_there_is_none():
    judged = told(verdicts.JUDGED, [0.01, 0.2], [5.0, 1.0], none=1)
    section = answered.section([judged, told("foreign: a", [0.1, 9.0], [-1.0, -2.0]), told("foreign: b", [0.1], [3.0])])
    by_name = {target.name: target.measured for target in section.targets}
    assert by_name["answerable against foreign queries: AUC"] == pytest.approx(5 / 6)
    assert by_name["answerable against the nearest collection's queries: AUC"] == pytest.approx(0.5)
    assert by_name["judged queries refused (verdict none)"] == 0.5
    without = answered.section([told(verdicts.JUDGED, [0.01, 0.2]), told("foreign: a", [0.1, 9.0])])
    assert without.targets[0].measured == pytest.approx(3 / 4)


def test_collections_that_share_passages_are_never_foreign_to_one_another(tmp_path):
    assert verdicts.related("squad2_dev", "xquad-en") and verdicts.related("xquad-de", "xquad-zh") and verdicts.related("a", "a")
    assert not verdicts.related("cisi", "cacm")
    folder = tmp_path / "others"
    folder.mkdir()
    (folder / "queries.jsonl").write_text("".join(f'{{"_id": "{i}", "text": "question {i}"}}\n' for i in range(10)))
    judged = Judged("mine", {"1": "another"}, {})
    assert verdicts.foreign_questions(judged, [folder], 5) == {"foreign: others": [f"question {i}" for i in range(0, 10, 2)]}
    with pytest.raises(BadDataset, match="share passages"):
        verdicts.foreign_questions(Judged("mine", {"1": "question 4"}, {}), [folder], 5)
    with pytest.raises(BadDataset, match="share passages"):
        verdicts.foreign_questions(Judged("others", {"1": "another"}, {}), [Path(folder)], 5)
