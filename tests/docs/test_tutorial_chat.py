"""The chat of the tutorial works as it stands: over HTTP, with the SDK of OpenAI, in a browser and on Ray."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app_toolkit.cli.target import load, resolve
from app_toolkit.declare.planning import shared_logs
from tests.chat.served import served
from tests.cluster import Cluster
from tests.patience import PATIENCE_S

from .pages import page
from .test_client_pages import ADDRESS, printed, promised
from .test_tutorial import ask, asked

CHAT = page("docs/tutorial/chat.md")
CHROMIUM = os.environ.get("APP_TOOLKIT_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the reader of the tutorial works."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "talk.py").write_text(CHAT.code)
    (tmp_path / "page.html").write_text(CHAT.shown("html")[0])
    yield tmp_path
    sys.modules.pop("talk", None)


def app_of(folder: Path) -> FastAPI:
    app, _ = load(resolve("talk.py", folder=folder))
    return app


def test_the_chat_answers_as_the_page_shows(folder: Path) -> None:
    with TestClient(app_of(folder)) as client:
        shown = list(asked(CHAT))
        assert len(shown) == 2
        for command, answer in shown:
            assert ask(client, command) == answer


def test_the_page_uses_routes_that_there_are(folder: Path) -> None:
    with TestClient(app_of(folder)) as client:
        script = client.get("/").text
        assert 'api = "/api/chat"' in script
        assert {"/api/chat", "/api/chat/{chat}/stream", "/api/chat/{chat}/stop"} <= client.get("/openapi.json").json()[
            "paths"
        ].keys()


@pytest.mark.anyio
async def test_the_sdk_reads_the_chat_as_the_page_shows(folder: Path) -> None:
    pytest.importorskip("openai", reason="openai is not installed")
    (code,) = CHAT.shown("py")
    script = folder / "ask.py"
    async with served(app_of(folder)) as url:
        script.write_text(code.replace(ADDRESS, url))
        assert await printed(sys.executable, str(script)) == promised(code)


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed; APP_TOOLKIT_TEST_CHROMIUM may name it")
async def test_the_page_continues_a_response_after_a_reload_and_stops_it(folder: Path) -> None:
    playwright: Any = pytest.importorskip("playwright.async_api", reason="the browser tests need playwright")
    arguments = ["--no-sandbox", "--host-resolver-rules=MAP talk.example 127.0.0.1"]
    poem = re.compile("^Roses are red, tea is blue $")
    async with served(app_of(folder)) as url, playwright.async_playwright() as browsers:
        browser = await browsers.chromium.launch(executable_path=CHROMIUM, args=arguments)
        try:
            shown = await browser.new_page()
            shown.set_default_timeout(PATIENCE_S * 1_000)
            await shown.goto(url.replace("127.0.0.1", "talk.example"))
            assert not await shown.evaluate("isSecureContext")  # as over plain HTTP from another machine
            lines = shown.locator("#log p")

            await shown.get_by_label("Your message").fill("tea")
            await shown.get_by_role("button", name="Send").click()
            await lines.nth(1).filter(has_text="Roses").wait_for()
            await shown.reload()
            await lines.nth(1).filter(has_text=poem).wait_for()
            assert await lines.count() == 2

            await shown.get_by_label("Your message").fill("milk " * 500)
            await shown.get_by_role("button", name="Send").click()
            await lines.nth(3).filter(has_text="milk").wait_for()
            await shown.get_by_role("button", name="Stop").click()
            await shown.wait_for_function("JSON.parse(sessionStorage.messages).length === 4")
            assert (await lines.nth(3).text_content()).count("milk") < 500
        finally:
            await browser.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_chat_answers_on_ray_as_the_page_shows(folder: Path, cluster: Cluster) -> None:
    served_chat = cluster.deploy("talk:app", folder, num_replicas=2)
    (log,) = shared_logs([served_chat.spec])  # `run` starts it
    served_log = cluster.apply(log)
    with served_chat.client() as client:
        for command, answer in asked(CHAT):
            assert ask(client, command) == answer
        assert client.get("/").text == (folder / "page.html").read_text()
        assert client.get("/api/chat/one/stream").status_code == 204
    served_chat.delete()
    served_log.delete()
