"""The built-in page of a generated chat project in headless Chromium."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app_toolkit.declare.planning import plan, shared_logs
from app_toolkit.userapp.loading import load
from tests.cluster import Cluster
from tests.examples.test_chat_page import LONG, Visitor, answer, begun, browser, dev, expect
from tests.patience import PATIENCE_S, wait_until

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


def planned(project: Path, title: str) -> Any:
    """A version of the project's application with two replicas, and with this title."""
    name = f"{title.lower()}_version"
    (project / f"{name}.py").write_text(f"from my_chat.app import app\n\napp.title = {title!r}\n")
    app = load(f"{name}:app", str(project))
    target = f"{name}:app"
    patient = {"graceful_shutdown_timeout_s": PATIENCE_S}
    overrides = {"app": {"num_replicas": 2, **patient}, "model": patient}
    return plan(app, target=target, app_dir=str(project), name="my-chat", route_prefix="/my-chat", overrides=overrides)


def test_a_response_is_resumed_at_every_replica_and_after_an_update(
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
        spec = planned(project, "First")
        (log,) = shared_logs([spec])  # `run` and `deploy` start it
        served_log, served = cluster.apply(log), cluster.apply(spec)
        visitor = Visitor(browser, f"{served.url}/")
        visitor.ask("word " * 10_000)
        page = visitor.page
        first = begun(page)
        for tab in [visitor.tab(page.url) for _ in range(5)]:
            assert begun(tab).startswith(first[:LONG]), "it resumes, whichever replica it reaches"
            tab.close()
        cluster.update(planned(project, "Second"))
        # A new connection each time: one that stays open keeps its replica, which is replaced only after the other one.
        wait_until(lambda: httpx.get(f"{served.url}/openapi.json").json()["info"]["title"] == "Second")
        assert page.locator(".writing").count() == 1, "the replica that is replaced still responds"
        page.reload()
        length = len(begun(page))
        wait_until(lambda: len(answer(page)) > length)
        assert answer(page).startswith(first[:LONG])
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".notice")).to_contain_text("This response was stopped.")
        visitor.context.close()
        assert not visitor.errors
        served.delete()
        served_log.delete()
    finally:
        for name in set(sys.modules) - before:
            if name.partition(".")[0] in ("my_chat", "first_version", "second_version"):
                del sys.modules[name]
