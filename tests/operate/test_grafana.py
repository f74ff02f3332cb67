"""The dashboard for Grafana, and the pages about metrics."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from app_toolkit.observability.metrics import Metric
from app_toolkit.operate.grafana import SOURCE, VARIABLES, Panel, dashboard, rows
from app_toolkit.operate.metrics import METRICS
from app_toolkit.operate.metrics import page as metrics_page
from tests.docs.pages import ROOT, page

PAGE = page("docs/observability.md")
LIST = ROOT / "docs/reference/metrics.md"
OF_GRAFANA = {"$__rate_interval": "1m"} | {f"${name}": ".*" for name in VARIABLES}

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def charts() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [target["expr"] for chart in charts() for target in chart["targets"]]


def check_names(expression: str) -> None:
    """Raise if the expression refers to a metric or a label that does not exist."""
    found = re.findall(r"\b(app_toolkit_\w+?)(_bucket)?\b(?=[{\[])", expression)
    assert found, expression
    for name, bucket in found:
        metric = METRICS[name]
        assert (metric.kind == "histogram") == bool(bucket), expression
        labels = re.findall(r"(\w+)(?==|!=|=~)", expression)
        labels += [each for group in re.findall(r"by \(([^)]*)\)", expression) for each in group.split(", ")]
        assert set(labels) <= {*metric.labels, *(["le"] if bucket else [])}, expression


def test_the_dashboard_refers_only_to_metrics_and_labels_that_there_are() -> None:
    for chart in charts():
        for target in chart["targets"]:
            check_names(target["expr"])
            legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert legend <= set(re.split(r"\W+", target["expr"])), "the lines have the labels of their legend"


def test_every_metric_is_in_the_dashboard() -> None:
    assert {panel.metric for row in rows(METRICS.values()).values() for panel in row} == METRICS.keys()


def test_a_metric_without_a_panel_gets_one() -> None:
    new = Metric("app_toolkit_new_things_total", "counter", "New things.", ("application", "kind"), "all")
    title, row = rows([*METRICS.values(), new]).popitem()
    assert (title, row[-1]) == ("Others", Panel("New things", new.name, new.labels, "ops"))


def test_the_dashboard_uses_its_variables() -> None:
    variables = {each["name"]: each for each in dashboard()["templating"]["list"]}
    assert [*variables] == ["datasource", *VARIABLES]
    for name in VARIABLES:
        query = variables[name]["query"]["query"]
        metric, label = re.fullmatch(r"label_values\((\w+)(?:{.*})?, (\w+)\)", query).groups()  # type: ignore[union-attr]
        assert label in METRICS[metric].labels
    assert all(chart["datasource"] == SOURCE for chart in charts())
    chosen = [each for each in expressions() if 'application=~"$application",deployment=~"$deployment"' in each]
    assert len(chosen) > len(expressions()) / 2


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    assert max(x for x, _ in taken) < 24


def test_the_list_of_metrics_is_up_to_date() -> None:
    command = "python -m app_toolkit.operate.metrics > docs/reference/metrics.md"
    assert LIST.read_text("utf-8") == f"{metrics_page()}\n", command
    for metric in METRICS.values():
        assert f"\n| `{metric.name}` | {metric.kind} | " in metrics_page()


def test_the_list_has_the_metrics_of_all_modules() -> None:
    sources = [path.read_text("utf-8") for path in (ROOT / "app_toolkit").rglob("*.py")]
    declared = {name for source in sources for name in re.findall(r'= declare\(\s*"(\w+)"', source)}
    assert declared == METRICS.keys(), "operate/metrics.py imports each module that declares one"


def test_expressions_of_the_page_refer_to_metrics_that_there_are() -> None:
    shown = [span for span in PAGE.spoken if "rate(app_toolkit_" in span]
    assert len(shown) == 2
    for expression in shown:
        check_names(expression)
    names = {span for span in PAGE.spoken if re.fullmatch(r"app_toolkit_\w+", span)}
    assert names <= METRICS.keys()


@needs_promtool
def test_promtool_accepts_every_expression(tmp_path: Path) -> None:
    rules = []
    for number, expression in enumerate([*expressions(), *(each for each in PAGE.spoken if "rate(app_" in each)]):
        for name, value in OF_GRAFANA.items():
            expression = expression.replace(name, value)
        rules.append({"record": f"rule_{number}", "expr": expression})
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(file))


@needs_promtool
def test_promtool_accepts_the_configuration_of_the_page(tmp_path: Path) -> None:
    (shown,) = PAGE.part("Metrics").shown("yaml")
    token = yaml.safe_load(shown)["scrape_configs"][0]["authorization"]["credentials_file"]
    (tmp_path / "token").write_text("a-token-of-the-admin-api")
    file = tmp_path / "prometheus.yml"
    file.write_text(shown.replace(token, str(tmp_path / "token")))
    promtool("check", "config", str(file))


def promtool(*arguments: str) -> None:
    checked = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
