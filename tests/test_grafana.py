"""Dashboard and alerts: every metric and label that they name is one that the application exposes, and what they say can be loaded."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from promql import used
from pydantic import BaseModel, ConfigDict, Field
from scraped import application, harbours, samples

from serve.exposition import Family, exposition
from serve.gauges import families_of
from serve.metrics import Metrics

FOLDER = Path(__file__).resolve().parent.parent / "infra/grafana"
COMMON = {"coordinator", "instance", "job"}  # what every sample bears: our name, and what Prometheus adds to a target
DURATION = r"^\d+[smhd]$"


class Rule(BaseModel):
    """An alert as Prometheus takes it. https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/"""

    model_config = ConfigDict(extra="forbid")

    alert: Annotated[str, Field(pattern=r"^Sondage[A-Za-z]+$")]
    expr: str
    for_: Annotated[str, Field(alias="for", pattern=DURATION)]
    labels: dict[Literal["severity"], Literal["critical", "warning", "info"]]
    annotations: dict[Literal["summary", "description"], Annotated[str, Field(min_length=10)]]


class Group(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^sondage-[a-z]+$")]
    rules: Annotated[list[Rule], Field(min_length=1)]


class Rules(BaseModel):
    model_config = ConfigDict(extra="forbid")

    groups: list[Group]


def alerts() -> list[Rule]:
    read = Rules.model_validate(yaml.safe_load((FOLDER / "alerts.yaml").read_text()))
    return [rule for group in read.groups for rule in group.rules]


def dashboard() -> dict[str, Any]:
    return json.loads((FOLDER / "dashboard.json").read_text())


def panel_targets() -> Iterator[tuple[str, str, str]]:
    """(panel, expression, legend) of each query of the dashboard."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


def declared() -> dict[str, Family]:
    return {family.name: family for family in [*Metrics("a").families(), *families_of({})]}


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Sample name -> its labels, of all that a real application exposes. A metric that it has no sample of, since nothing has failed there
    and hosts are not called over a network, has those it is declared with (`tests/test_end_to_end_ray.py` has samples of these)."""
    with application(harbours(tmp_path_factory.mktemp("grafana"))) as session:
        session.get("/v1/search?corpus=c&q=boats")
        text = session.get("/metrics").text
    found: dict[str, set[str]] = {}
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        labels = set(declared()[name].labels) | COMMON
        if kind == "histogram":
            found |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            found[name] = labels
    for name, told in samples(text).items():
        for labels in told:
            assert {label for label, _ in labels} | COMMON == found[name], name
    return found


def assert_known(where: str, expression: str, exposed: dict[str, set[str]]) -> set[str]:
    """Every metric and label of the expression is exposed; returns the labels that its results are grouped by."""
    found = used(expression)
    assert found.metrics, f"{where}: {expression!r} asks for no metric"
    labels: set[str] = set()
    for metric, matched in found.metrics.items():
        assert metric in exposed, f"{where}: no metric {metric}"
        assert matched <= exposed[metric], f"{where}: {metric} has no label {sorted(matched - exposed[metric])}"
        labels |= exposed[metric]
    assert found.grouped <= labels, f"{where}: grouped by {sorted(found.grouped - labels)}, which nothing there bears"
    return found.grouped


def test_names_say_what_is_counted_and_in_which_unit():
    units = {"seconds", "bytes"}
    for name, family in declared().items():
        assert re.fullmatch(r"sondage(_[a-z]+)+", name), name
        assert (family.kind == "counter") == name.endswith("_total"), name
        assert family.kind != "histogram" or name.rsplit("_", 1)[1] in units, name
        assert family.help.endswith(".") and not family.help.startswith(name)
        forbidden = {"query", "document", "hash", "path", "user", "key"}
        assert not forbidden & set(family.labels), f"{name} is labelled by what has no bound"
    assert len(declared()) == len([*Metrics("a").families(), *families_of({})])  # none twice


def test_every_metric_and_label_of_the_alerts_is_exposed(exposed):
    for rule in alerts():
        grouped = assert_known(rule.alert, rule.expr, exposed)
        for text in rule.annotations.values():
            for label in re.findall(r"\$labels\.(\w+)", text):
                assert label in grouped, f"{rule.alert} speaks of {label}, which its result does not bear"
            assert text.count("{{") == text.count("}}")


def test_alerts_have_names_of_their_own_and_say_what_to_do():
    names = [rule.alert for rule in alerts()]
    assert len(names) == len(set(names))
    assert all(set(rule.annotations) == {"summary", "description"} for rule in alerts())


def test_every_metric_and_label_of_the_dashboard_is_exposed(exposed):
    queries = list(panel_targets())
    assert len(queries) > 30
    for title, expression, legend in queries:
        grouped = assert_known(title, expression, exposed)
        assert set(re.findall(r"{{(\w+)}}", legend)) <= grouped, f"{title}: the legend names what the result does not bear"


def test_the_dashboard_is_one_that_grafana_can_lay_out():
    board = dashboard()
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)) and board["uid"] == "sondage"
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        assert at["x"] >= 0 and at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"panel {panel['title']} lies over another"
        taken |= cells
    variables = {variable["name"] for variable in board["templating"]["list"]}
    for _, expression, _ in panel_targets():
        assert set(re.findall(r"\$(\w+)", expression)) <= variables | {"__rate_interval"}


def test_the_dashboards_choice_of_corpora_comes_from_a_metric(exposed):
    (corpus,) = [v for v in dashboard()["templating"]["list"] if v["name"] == "corpus"]
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", corpus["query"]["query"]).groups()
    assert label in exposed[metric]


def test_what_is_shown_is_what_is_measured(exposed):
    """No metric that nobody looks at, but for those whose reason is stated here."""
    beside = {"sondage_uptime_seconds", "sondage_entries", "sondage_text_bytes", "sondage_layer_units", "sondage_layer_statistics_bytes"}
    beside |= {"sondage_host_calls_total", "sondage_host_searches_total", "sondage_host_searches_running", "sondage_host_shards_open"}
    beside |= {"sondage_file_cache_fetched_bytes_total", "sondage_file_cache_evicted_total"}  # sizes and parts of what is shown
    asked = [*(e for _, e, _ in panel_targets()), *(rule.expr for rule in alerts())]
    seen = {re.sub(r"_(bucket|sum|count)$", "", metric) for expression in asked for metric in used(expression).metrics}
    assert set(declared()) - seen - beside == set()
    assert beside <= set(declared())


def test_the_text_of_all_families_is_one_that_prometheus_reads():
    text = exposition([*Metrics("a").families(), *families_of({})], {"coordinator": "a"})
    read = {family.name.removesuffix("_total") for family in text_string_to_metric_families(text)}
    assert read == {name.removesuffix("_total") for name in declared()}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool, a part of Prometheus, is not installed here")
def test_promtool_takes_the_rules_and_they_fire_as_their_stories_say():
    for what in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]):
        run = subprocess.run(["promtool", *what], cwd=FOLDER, capture_output=True, text=True)
        assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("expression", "metrics", "grouped"),
    [
        ("up == 0", {"up": set()}, set()),
        ('sum by (a, le) (rate(x_bucket{b="1", c=~"(2|3)"}[5m])) > 0.5', {"x_bucket": {"b", "c"}}, {"a", "le"}),
        ("x / on (a) y", {"x": set(), "y": set()}, {"a"}),
        ("max_over_time(x[$__rate_interval]) or vector(0)", {"x": set()}, set()),
        ("x - 1e9 and y", {"x": set(), "y": set()}, set()),
    ],
)
def test_expressions_tell_what_they_use(expression, metrics, grouped):
    assert (used(expression).metrics, used(expression).grouped) == (metrics, grouped)


@pytest.mark.parametrize("expression", ["sum(x", "x)", "x[5]", "x{a~1}", "nosuch(x)", "x ? y", 'x{a="1"', "sum by (a) x}"])
def test_what_is_no_expression_is_told(expression):
    with pytest.raises(ValueError):
        used(expression)
