"""What README.md shows works, and what it tells people to run is what is checked."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from starlette.testclient import TestClient

from app_toolkit.cli.main import main
from app_toolkit.cli.target import load, resolve
from app_toolkit.planning import plan

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
SCRIPTS = ROOT / "docs/scripts.md"
"""It serves on a cluster: tests/test_run.py runs it on the session's."""


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def marked(name: str) -> str:
    (found,) = re.findall(rf"^<!-- {name} -->\n```bash\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return str(found).strip()


def test_the_application_works_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shop,) = blocks(README, "python")
    (tmp_path / "shop.py").write_text(shop)
    monkeypatch.setattr(sys, "path", list(sys.path))
    app, where = load(resolve("shop.py", folder=tmp_path))
    spec = plan(app, target=where, app_dir=str(tmp_path))
    assert {i.config.name: i.config.num_replicas for i in spec.deployments} == {"app": 1, "chat": 2, "scorer": 2}
    with TestClient(app) as client:
        assert client.post("/catalog/score", json={"name": "tea", "price": 2}).json() == 1.5
        assert 'data: {"text":"HELLO"}' in client.get("/chat", params={"prompt": "hello"}).text
        with client.websocket_connect("/chat/ws") as websocket:
            websocket.send_text("hello")
            assert websocket.receive_text() == "HELLO"
    del sys.modules["shop"]


@pytest.mark.parametrize("page", sorted({*PAGES} - {SCRIPTS}), ids=lambda page: str(page.relative_to(ROOT)))
def test_python_on_every_page_can_be_run(page: Path) -> None:
    names = {"__name__": "page"}
    for block in blocks(page.read_text("utf-8"), "python"):  # each goes on where the one before it ended
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / link).exists(), link


def test_ci_runs_the_test_command_of_the_readme() -> None:
    shown = subprocess.run([ROOT / ".ci/run", "show"], capture_output=True, text=True, check=True, cwd="/")
    assert shown.stdout.strip() == marked("test")
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_both_commands_make_their_own_environment_and_name_what_exists() -> None:
    for command in (marked("run"), marked("test")):
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert marked("run").endswith("/app-toolkit run examples/hello/app.py")
    assert (ROOT / "examples/hello/app.py").is_file()


def test_every_command_that_a_page_shows_exists_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    shown = set()
    for page in PAGES:
        shown |= set(re.findall(r"app-toolkit (run|dev|plan|status|shutdown)\b", page.read_text("utf-8")))
        assert not set(re.findall(r"app-toolkit ([a-z]+)", page.read_text("utf-8"))) - shown, page
    options = set(re.findall(r"`(--[a-z-]+)", (ROOT / "docs/cli.md").read_text("utf-8")))
    for command in sorted(shown):
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0
    helped = capsys.readouterr().out
    assert {option for option in options if option not in helped} <= {"--help"}


def test_the_site_lists_every_page() -> None:
    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)
    site = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader)
    listed = {page for entry in site["nav"] for page in entry.values()}
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
