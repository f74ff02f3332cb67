"""The page about deploying shows the output of `deploy`."""

import io
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from app_toolkit.cli.screen import Screen
from app_toolkit.config.files import read_file
from app_toolkit.config.models import HTTPOptions
from app_toolkit.control.diff import Effect, difference
from app_toolkit.declare.planning import plan
from app_toolkit.exchange.builtin import HEALTH, READY

from .pages import page

OPERATIONS = page("docs/operations.md")


def test_deploy_prints_the_lines_of_the_page(tmp_path: Path) -> None:
    application_file, _ = OPERATIONS.shown("yaml")
    (tmp_path / "app.yaml").write_text(application_file)
    names: dict[str, object] = {"__name__": "shop"}
    exec(OPERATIONS.shown("python")[0], names)
    where = {"target": "shop:app", "app_dir": ".", "name": "shop"}
    before = plan(names["app"], **where)  # type: ignore[arg-type]
    overrides = read_file(tmp_path / "app.yaml").application("shop").deployments
    after = plan(names["app"], overrides=overrides, **where)  # type: ignore[arg-type]
    output = io.StringIO()
    screen = Screen(Console(file=output, highlight=False, soft_wrap=True))
    (shown,) = OPERATIONS.shown("console")
    screen.difference(difference(before, after), "/")
    assert shown == f"$ app-toolkit deploy app.yaml --dry-run\n{output.getvalue()}"


def test_page_explains_each_status() -> None:
    words = [line.split("|")[1].strip() for line in OPERATIONS.text.splitlines() if line.startswith("| ")]
    assert words == ["a deployment is", *Effect]


@pytest.mark.parametrize("name", ["docs/operations.md", "docs/cli.md"])
def test_the_file_of_a_page_is_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "app.yaml").write_text(page(name).shown("yaml")[0])
    assert "shop" in read_file(tmp_path / "app.yaml").applications


def test_probes_of_the_page_ask_endpoints_of_the_proxy() -> None:
    probes = yaml.safe_load(OPERATIONS.shown("yaml")[1])
    assert {name: probe["httpGet"] for name, probe in probes.items()} == {
        "startupProbe": {"path": HEALTH, "port": HTTPOptions().port},
        "livenessProbe": {"path": HEALTH, "port": HTTPOptions().port},
        "readinessProbe": {"path": READY, "port": HTTPOptions().port},
    }
    fields = {"httpGet", "periodSeconds", "timeoutSeconds", "failureThreshold"}  # of a Probe in the API of Kubernetes
    assert all(probe.keys() <= fields for probe in probes.values())
