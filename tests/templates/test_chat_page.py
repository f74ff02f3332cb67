"""The built-in page of a generated chat project in headless Chromium."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app_toolkit.planning import plan
from app_toolkit.replica.host import load
from tests.cluster import Cluster
from tests.examples.test_chat_page import OTHER_HOST, Visitor, begun, browser, complete, dev, expect
from tests.patience import wait_until

from .projects import make

pytestmark = pytest.mark.slow

__all__ = ["browser"]

QUESTION = "word " * 200
"""The model of the project repeats it, word by word."""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    project = make(tmp_path, "chat", frontend="built-in")
    with dev(project, CHAT_DATABASE=str(tmp_path / "chats.db")) as address:
        yield address


def test_a_response_survives_a_reload_is_shown_in_two_tabs_and_can_be_stopped(browser: Any, url: str) -> None:
    visitor = Visitor(browser, url.replace("127.0.0.1", OTHER_HOST))
    page = visitor.page
    assert page.evaluate("() => window.isSecureContext") is False
    visitor.ask(QUESTION)
    first = begun(page)
    second = visitor.tab(page.url)
    begun(second)
    page.reload()
    assert begun(page).startswith(first[:40])
    assert complete(page) == complete(second)
    page.bring_to_front()
    visitor.ask(QUESTION)
    expect(page.locator(".writing")).to_have_count(1)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".notice")).to_contain_text("This response was stopped.")
    visitor.context.close()
    assert not visitor.errors


def planned(project: Path, title: str) -> Any:
    """A version of the project's application, with this title."""
    name = f"{title.lower()}_version"
    (project / f"{name}.py").write_text(f"from my_chat.app import app\n\napp.title = {title!r}\n")
    app = load(f"{name}:app", str(project))
    return plan(app, target=f"{name}:app", app_dir=str(project), name="my-chat", route_prefix="/my-chat")


def test_a_response_survives_an_update(
    browser: Any,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CHAT_DATABASE", str(tmp_path / "planned.db"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    project = make(tmp_path, "chat", frontend="built-in")
    try:
        served = cluster.apply(planned(project, "First"))
        visitor = Visitor(browser, f"{served.url}/")
        visitor.ask("word " * 900)
        first = begun(visitor.page)
        cluster.update(planned(project, "Second"))
        address = f"{served.url}/openapi.json"
        wait_until(lambda: visitor.page.request.get(address).json()["info"]["title"] == "Second")
        assert visitor.page.locator(".writing").count() == 1, "the replica that is replaced still responds"
        assert complete(visitor.page).startswith(first[:40])
        assert visitor.page.locator(".notice").count() == 0
        visitor.context.close()
        assert not visitor.errors
        served.delete()
    finally:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in ("my_chat", "first_version", "second_version"):
                del sys.modules[name]
