"""The code and the commands of the pages work."""

import json
import os
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient

from app_toolkit.cli.target import load, resolve
from app_toolkit.declare.planning import plan
from tests.checkers import mypy

from .pages import PAGES, ROOT, Page, page

README = page("README.md")
UNTYPED = [page("docs/batching.md")]
"""Asserts that compare what `gather` gives with a list."""

ON_A_CLUSTER = [page("docs/scripts.md"), page("docs/operations.md")]
"""They serve there: tests/e2e/test_scripts.py and tests/test_deployed.py run them on the session's."""


def marked(name: str) -> str:
    (found,) = re.findall(rf"^<!-- {name} -->\n```bash\n(.*?)^```$", README.text, re.MULTILINE | re.DOTALL)
    return str(found).strip()


def test_the_application_works_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop.py").write_text(README.code)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shop", raising=False)  # of a test on Ray
    app, where = load(resolve("shop.py", folder=tmp_path))
    spec = plan(app, target=where, app_dir=str(tmp_path))
    assert {i.config.name: i.config.num_replicas for i in spec.deployments} == {"app": 1, "chat": "auto", "scorer": 2}
    with TestClient(app) as client:
        assert client.get("/score", params={"text": "tea"}).json() == 3
    del sys.modules["shop"]


@pytest.mark.parametrize(
    "module",
    [module for each in PAGES if each not in ON_A_CLUSTER for module in each.modules],
    ids=lambda module: module.name,
)
def test_python_on_every_page_can_be_run(module: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APP_TOOLKIT_DATA", str(tmp_path))  # a page may make a file
    module.run()


def test_python_on_the_pages_is_right_to_mypy(tmp_path: Path) -> None:
    for module in (module for each in PAGES if each not in UNTYPED for module in each.modules):
        name = re.sub(r"\W", "_", module.name)
        (tmp_path / f"{name}.py").write_text(module.code)
    tutorial = page("docs/tutorial/shop.md").modules[-1]
    (tmp_path / "shop.py").write_text(tutorial.code)
    (tmp_path / "test_shop.py").write_text(tutorial.shown("py")[0])
    done = mypy("--strict", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_units_and_image_of_the_page_start_the_command() -> None:
    blocks = page("docs/processes.md").blocks
    unit = ConfigParser(interpolation=None)
    for block in blocks:
        if block.language == "ini":
            unit.read_string(block.text)
    assert unit["Socket"]["ListenStream"].isdigit()
    assert (unit["Service"]["Type"], unit["Service"]["KillMode"]) == ("notify", "mixed")
    program = unit["Service"]["ExecStart"].split("/")[-1]
    image = next(block.text for block in blocks if block.language == "dockerfile")
    (command,) = re.findall(r"^CMD (.*)$", image, re.MULTILINE)
    assert " ".join(json.loads(command)).startswith(program)
    assert program == "app-toolkit run main.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Page) -> None:
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.text):
        assert ((ROOT / page.name).parent / link).exists(), link


def anchors(page: Page) -> set[str]:
    """Where a link into the page may lead: its headings, as the site names them."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    words = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[-\s]+", "-", each) for each in words}


@pytest.mark.parametrize("each", PAGES, ids=lambda page: page.name)
def test_links_lead_to_headings(each: Page) -> None:
    for path, anchor in re.findall(r"\]\((?!https?://)([^)#]*)#([^)]+)\)", each.text):
        target = page(os.path.normpath(Path(each.name).parent / path)) if path else each
        assert anchor in anchors(target), f"{path}#{anchor}"


def test_ci_runs_the_test_command_of_the_readme() -> None:
    shown = subprocess.run([ROOT / ".ci/run", "show"], capture_output=True, text=True, check=True, cwd="/")
    assert shown.stdout.strip() == marked("test")
    assert os.access(ROOT / ".ci/run", os.X_OK)


def _leaves(navigation: Any) -> list[str]:
    if isinstance(navigation, str):
        return [navigation]
    below = navigation.values() if isinstance(navigation, dict) else navigation
    return [page for each in below for page in _leaves(each)]


def test_the_site_lists_every_page() -> None:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)
    Loader.add_constructor("!relative", lambda loader, node: node.value)
    site = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader)
    listed = {f"docs/{page}" for page in _leaves(site["nav"])}
    assert listed == {page.name for page in PAGES if page.name.startswith("docs/")}


@pytest.mark.parametrize("name", ["CHANGELOG.md", "CONTRIBUTING.md"])
def test_a_page_of_the_root_that_the_site_includes_has_no_relative_links(name: str) -> None:
    assert page(f"docs/{name.lower()}").text == f'--8<-- "{name}"\n'
    assert not re.findall(r"\]\((?!https?://)[^)]*\)", page(name).text), "they would lead elsewhere on the site"
