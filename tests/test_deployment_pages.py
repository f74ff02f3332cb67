"""The examples of docs/deployments.md and docs/handles.md: right to mypy, and they do what they say.

They run on a plane of the tests' own, in another thread.
"""

import asyncio
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app_toolkit.config.models import CallOptions, ClassConfig
from app_toolkit.deployment import DeploymentKeywords
from app_toolkit.planning import find
from tests.router.deployments import served_elsewhere

ROOT = Path(__file__).parent.parent
PAGES = {page: (ROOT / f"docs/{page}.md").read_text("utf-8") for page in ("deployments", "handles")}


def code(page: str) -> str:
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL))


def module(page: str) -> Any:
    names: dict[str, Any] = {"__name__": page}
    exec(compile(code(page), f"{page}.md", "exec"), names)
    return type("Page", (), {name: staticmethod(value) for name, value in names.items() if not name.startswith("__")})


def rows(page: str, heading: str) -> dict[str, str]:
    """The first two columns of the table below a heading."""
    section = PAGES[page].split(f"## {heading}")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", section, re.MULTILINE))


def test_the_examples_are_right_to_mypy(tmp_path: Path) -> None:
    for page in PAGES:
        (tmp_path / f"page_{page}.py").write_text(code(page))
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_shop_works_as_it_stands() -> None:
    page = module("deployments")
    assert [each.name for each in find(page.app)] == ["writer", "scorer", "editor"]
    assert [each.name for each in find(page.tools)] == ["nightly"]
    assert (page.big.name, page.big.config.num_replicas, page.big.config.ray_actor_options.num_gpus) == ("big", 4, 0.5)
    asyncio.run(page.test_a_reply_has_a_word_for_each_word())
    with served_elsewhere(), TestClient(page.app) as client:
        assert client.post("/reply", params={"prompt": "two words"}).json() == ["small two", "small words"]
        assert client.get("/where").json() == "app"
        assert client.get("/best", params={"prompt": "one longest two"}).json() == "small longest"


@pytest.mark.parametrize(
    "example", ["ordinary", "in_a_thread", "two_at_a_time", "two_in_a_thread", "one_into_another", "hasty", "script"]
)
def test_every_way_to_call_does_what_it_says(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    with served_elsewhere():
        function = getattr(module("handles"), example)
        if inspect.iscoroutinefunction(function):
            asyncio.run(function())
        else:
            function()
    assert capsys.readouterr().out == ("2\nTwo Words\n" if example == "script" else "")


def test_no_example_is_left_out() -> None:
    defined = re.findall(r"^(?:async )?def (\w+)\(\)", code("handles"), re.MULTILINE)
    tested = test_every_way_to_call_does_what_it_says.pytestmark[0].args[1]  # type: ignore[attr-defined]
    assert defined == tested


def test_the_page_lists_every_option_with_its_default() -> None:
    listed = rows("deployments", "Options")
    assert listed.keys() == DeploymentKeywords.__annotations__.keys()
    for option in listed.keys() - {"name", "ray_actor_options"}:
        shown = listed[option].strip('"')
        assert shown == str(ClassConfig.model_fields[option].default), option
    assert rows("handles", "`options`: how calls are made").keys() == CallOptions.model_fields.keys()
