"""The React front end of a generated chat project in headless Chromium.

Set APP_TOOLKIT_TEST_TEMPLATES=full. It installs packages with npm.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.examples.test_chat_page import DESKTOP, OTHER_HOST, PHONE, Visitor, browser, check, dev, expect
from tests.patience import wait_until

from .projects import make

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        os.environ.get("APP_TOOLKIT_TEST_TEMPLATES") != "full",
        reason="APP_TOOLKIT_TEST_TEMPLATES is not full: the test installs packages with npm",
    ),
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed"),
]

__all__ = ["browser"]

HOME = os.environ.get("HOME", "")
"""With the cache of npm. The tests around these have an empty home folder."""

TABLE = "| left | right |\n|:--|--:|\n| a | 1 |\n\n- [x] measured\n\n![A chart](https://example.org/chart.png)"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("react")
    with pytest.MonkeyPatch.context() as patched:
        (folder / "config.yaml").write_text(f"cookiecutters_dir: {folder}/c\nreplay_dir: {folder}/r\n")
        patched.setenv("COOKIECUTTER_CONFIG", str(folder / "config.yaml"))
        project = make(folder, "chat", frontend="react")
    for command in (["install", "--no-audit", "--no-fund"], ["run", "build"]):
        npm = ["npm", "--prefix", "frontend", *command]
        done = subprocess.run(npm, cwd=project, env={**os.environ, "HOME": HOME}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    with dev(project, CHAT_DATABASE=str(folder / "chats.db")) as address:
        yield address


@pytest.fixture
def visitor(browser: Any, url: str) -> Iterator[Visitor]:
    visitor = Visitor(browser, url)
    yield visitor
    visitor.context.close()
    assert not visitor.errors


def ask(page: Any, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answer(page: Any) -> str:
    """The text of the last response, as far as it is shown."""
    shown = page.locator("article.assistant")
    return str(shown.last.inner_text()) if shown.count() else ""


def begun(page: Any) -> str:
    wait_until(lambda: len(answer(page)) > 100)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    return answer(page)


def complete(page: Any) -> str:
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    return answer(page)


def test_a_response_survives_a_reload_and_can_be_stopped_and_repeated(visitor: Visitor) -> None:
    page = visitor.page
    ask(page, "word " * 100)
    first = begun(page)
    page.reload()
    wait_until(lambda: len(answer(page)) > len(first))
    page.get_by_role("button", name="Stop").click()
    part = complete(page)
    assert "Until then you can try the page" not in part
    page.get_by_role("button", name="Try again").click()
    begun(page)
    wait_until(lambda: "Until then you can try the page" in answer(page))
    complete(page)
    expect(page.locator("article")).to_have_count(2)
    page.reload()
    expect(page.locator("article.assistant")).to_contain_text("Until then you can try the page")


def test_conversations_are_listed_opened_and_deleted(visitor: Visitor) -> None:
    page = visitor.page
    listed = page.get_by_role("navigation", name="Conversations").get_by_role("listitem")
    for text in ("first question", "second question"):
        page.get_by_role("button", name="New conversation").click()
        ask(page, text)
        expect(page.locator("article.assistant")).to_have_count(1)
        complete(page)
    expect(listed).to_have_text(["second question", "first question"])
    listed.last.click()
    expect(page.locator("article.user")).to_contain_text("first question")
    expect(page.locator("[aria-current=page]")).to_have_text("first question")
    page.go_back()
    expect(page.locator("article.user")).to_contain_text("second question")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete “second question”").click()
    expect(listed).to_have_text(["first question"])
    expect(page.locator("article")).to_have_count(0)


def test_the_page_works_over_plain_http_under_another_name_and_copies(browser: Any, url: str) -> None:
    visitor = Visitor(browser, url.replace("127.0.0.1", OTHER_HOST))
    page = visitor.page
    assert page.evaluate("() => window.isSecureContext") is False
    ask(page, "hello")
    expect(page.locator("article.assistant")).to_have_count(1)
    complete(page)
    page.get_by_role("button", name="Copy code").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    page.get_by_label("Message", exact=True).focus()
    page.keyboard.press("Control+V")
    assert page.get_by_label("Message", exact=True).input_value().startswith("async def chat(")
    visitor.context.close()
    assert not visitor.errors


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_no_violation(browser: Any, url: str, scheme: str, size: dict[str, int]) -> None:
    visitor = Visitor(browser, url, viewport=size, color_scheme=scheme, reduced_motion="reduce")
    page = visitor.page
    expect(page.get_by_text("Ask something to begin.")).to_be_visible()
    check(page)
    ask(page, TABLE)
    begun(page)
    check(page)
    complete(page)
    table = page.locator("article.assistant table")
    assert table.locator("td").last.evaluate("(cell) => getComputedStyle(cell).textAlign") == "right"
    assert table.evaluate("(each) => getComputedStyle(each).borderTopWidth") != "0px"
    expect(page.get_by_role("img", name="Done")).to_be_visible()
    expect(page.locator("article").get_by_role("link", name="A chart")).to_have_attribute("href", "https://example.org/chart.png")
    assert page.locator("article img").count() == 0
    check(page)
    if size is PHONE:
        page.get_by_role("button", name="Conversations").click()
        expect(page.get_by_role("button", name="New conversation")).to_be_in_viewport()
        check(page)
    visitor.context.close()
    assert not visitor.errors
