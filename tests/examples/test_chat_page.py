"""The page of the chat example in headless Chromium.

It needs Chromium, and `pip install playwright axe-playwright-python`. Playwright's own browsers are not needed.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from app_toolkit.declare.planning import plan
from app_toolkit.userapp.loading import load
from tests.cluster import Cluster, Served
from tests.patience import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[2]
CHROMIUM = os.environ.get("APP_TOOLKIT_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

playwright: Any = pytest.importorskip(
    "playwright.sync_api", reason="the browser tests need `pip install playwright axe-playwright-python`"
)
axe: Any = pytest.importorskip(
    "axe_playwright_python.sync_playwright", reason="the browser tests need `pip install axe-playwright-python`"
)
expect = playwright.expect
Page = Any
Browser = Any

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="Chromium is not installed; APP_TOOLKIT_TEST_CHROMIUM may name its executable"
    ),
    pytest.mark.slow,
]

QUESTION = "What happens when a replica dies?"
SHORT, ANOTHER = "zzzz", "yyyy"
"""Questions with a short answer, because the documentation has none."""
LONG = 60
"""Characters of a response that has begun."""

DESKTOP, PHONE = {"width": 1200, "height": 800}, {"width": 390, "height": 780}


@contextmanager
def dev(folder: Path, *arguments: str, **variables: str) -> Iterator[str]:
    """`app-toolkit dev` in a folder. Yields the URL."""
    with TemporaryFile() as output:  # a pipe that nobody reads would block the server once it is full
        process = subprocess.Popen(
            [sys.executable, "-m", "app_toolkit.cli", "dev", *arguments, "--no-reload", "--port", "0"],
            cwd=folder,
            env={**os.environ, **variables},
            stdout=output,
            stderr=subprocess.STDOUT,
        )

        def address() -> re.Match[str] | None:
            assert process.poll() is None, lines()
            return re.search(r"running on (http://\S+)", lines())

        def lines() -> str:
            return os.pread(output.fileno(), 1_000_000, 0).decode()

        try:
            wait_until(address)
            running = address()
            assert running is not None
            yield f"{running[1]}/"
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The example under `app-toolkit dev`."""
    database = str(tmp_path_factory.mktemp("chat") / "chats.db")
    with dev(
        ROOT, "examples/chat/app.py", CHAT_DATABASE=database, CHAT_PERIOD_S="0.08", CHAT_SEARCH="words"
    ) as address:
        yield address


OTHER_HOST = "chat.example"
"""A name of this machine under which a browser does not trust plain HTTP, unlike under localhost."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    options = ["--no-sandbox", "--disable-gpu", f"--host-resolver-rules=MAP {OTHER_HOST} 127.0.0.1"]
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=options)
        expect.set_options(timeout=PATIENCE_S * 1_000)
        yield browser
        browser.close()


class Visitor:
    """A person with a browser of their own, in which nothing may fail."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": DESKTOP, **options})
        self.context.set_default_timeout(PATIENCE_S * 1_000)
        self.url = url
        self.errors: list[str] = []
        self.page = self.tab()

    def tab(self, address: str = "") -> Page:
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._read)
        page.goto(address or self.url)
        return page

    def _read(self, message: Any) -> None:
        if "Content Security Policy" in message.text:
            self.errors.append(message.text)

    def ask(self, text: str = QUESTION) -> None:
        self.page.fill("#prompt", text)
        self.page.keyboard.press("Enter")


@pytest.fixture
def visitor(browser: Browser, url: str) -> Iterator[Visitor]:
    visitor = Visitor(browser, url)
    yield visitor
    visitor.context.close()
    assert not visitor.errors


def answer(page: Page) -> str:
    """The text of the last response, as far as it is shown."""
    shown = page.locator(".assistant .text")
    return shown.last.inner_text() if shown.count() else ""


def begun(page: Page) -> str:
    """Wait until a response is being written. Returns its text."""
    wait_until(lambda: len(answer(page)) > LONG)
    expect(page.locator(".writing")).to_have_count(1)
    return answer(page)


def complete(page: Page) -> str:
    """Wait until the last response is complete. Returns its text."""
    expect(page.locator(".assistant .actions").last).to_be_visible()
    expect(page.locator(".writing")).to_have_count(0)
    return answer(page)


def questions(page: Page) -> list[str]:
    texts: list[str] = page.locator(".user .text").all_inner_texts()
    return texts


def titles(page: Page) -> list[str]:
    texts: list[str] = page.locator("#conversations .open").all_inner_texts()
    return texts


def test_an_answer_appears_word_by_word_and_is_rendered_as_markdown(visitor: Visitor) -> None:
    page = visitor.page
    visitor.ask()
    first = begun(page)
    wait_until(lambda: len(answer(page)) > len(first) + 20)
    assert page.locator(".writing").count() == 1
    whole = complete(page)
    assert whole.startswith(first[:LONG])
    assert page.locator(".assistant .text h2").count() == 1
    assert page.locator(".assistant .sources li").count() >= 2
    assert page.title().startswith(QUESTION)
    assert titles(page) == [QUESTION]


def test_the_page_works_over_plain_http_under_another_name(browser: Browser, url: str) -> None:
    visitor = Visitor(browser, url.replace("127.0.0.1", OTHER_HOST))
    page = visitor.page
    assert page.evaluate("() => window.isSecureContext") is False
    visitor.ask(SHORT)
    complete(page)
    page.get_by_role("button", name="Copy").last.click()
    expect(page.locator("#announcement")).to_have_text("Copied.")
    page.locator("#prompt").focus()
    page.keyboard.press("Control+V")
    assert page.input_value("#prompt").startswith("I found nothing about that")
    visitor.context.close()
    assert not visitor.errors


def test_text_of_a_model_cannot_run_or_load_anything(visitor: Visitor) -> None:
    hostile = """<script>alert(1)</script><img src=x onerror=alert(1)><a href="javascript:alert(1)">x</a>
<form action="/stolen"><input></form><style>body{display:none}</style>
<div id="prompt" class="notice" style="top:0">d</div>

```js
<b>code</b>
```"""
    html = visitor.page.evaluate(
        """async (text) => {
            const { show } = await import("./static/markdown.js");
            const box = document.createElement("div");
            show(box, text);
            return box.innerHTML;
        }""",
        hostile,
    )
    assert not re.search(r"<(script|img|form|input|style)|on\w+=|javascript:|id=|style=|notice", html), html
    assert re.sub(r"</?span[^>]*>", "", html).count("&lt;b&gt;code&lt;/b&gt;") == 1
    visitor.errors.clear()  # the browser reports what its policy has kept from running


def test_a_response_can_be_stopped_and_repeated_and_its_part_is_kept(visitor: Visitor) -> None:
    page = visitor.page
    visitor.ask()
    begun(page)
    page.keyboard.press("Escape")
    expect(page.locator(".notice")).to_contain_text("This response was stopped.")
    part = complete(page)
    page.reload()
    expect(page.locator(".notice")).to_contain_text("This response was stopped.")
    assert answer(page) == part
    page.get_by_role("button", name="Try again").click()
    begun(page)
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".notice")).to_be_visible()
    assert questions(page) == [QUESTION]
    assert page.locator(".assistant").count() == 1


def test_a_reload_during_a_response_continues_it(visitor: Visitor) -> None:
    page = visitor.page
    visitor.ask()
    before = begun(page)
    page.reload()
    wait_until(lambda: len(answer(page)) > len(before))
    whole = complete(page)
    assert whole.startswith(before[:LONG])
    assert questions(page) == [QUESTION]
    page.reload()
    expect(page.locator(".assistant")).to_have_count(1)
    assert answer(page) == whole, "the stored response is the one that was shown"


def test_two_tabs_show_one_response(visitor: Visitor) -> None:
    second = visitor.tab()
    visitor.ask()
    begun(visitor.page)
    second.get_by_role("button", name=QUESTION, exact=True).click()
    begun(second)
    assert complete(visitor.page) == complete(second)
    visitor.page.bring_to_front()
    visitor.ask(ANOTHER)
    for tab in (visitor.page, second):
        expect(tab.locator(".user .text")).to_have_text([QUESTION, ANOTHER])
        expect(tab.locator(".assistant")).to_have_count(2)
    assert complete(visitor.page) == complete(second)


def test_an_edited_question_is_another_version_and_the_earlier_one_can_be_shown_again(visitor: Visitor) -> None:
    page = visitor.page
    for text in (SHORT, ANOTHER):
        visitor.ask(text)
        complete(page)
    page.locator(".user").first.hover()
    page.get_by_role("button", name="Edit").first.click()
    assert page.input_value("#prompt") == SHORT
    page.keyboard.press("Escape")
    assert page.input_value("#prompt") == ""
    page.get_by_role("button", name="Edit").first.click()
    visitor.ask("xxxx")
    expect(page.locator(".user .text")).to_have_text(["xxxx"])
    complete(page)
    expect(page.locator(".user .versions")).to_have_text("2/2")
    page.reload()
    expect(page.locator(".assistant")).to_have_count(1)
    assert questions(page) == ["xxxx"]
    page.get_by_role("button", name="Previous version").click()
    expect(page.locator(".user .text")).to_have_text([SHORT, ANOTHER])
    expect(page.locator(".versions")).to_have_text(["1/2"])
    expect(page.get_by_role("button", name="Previous version")).to_be_disabled()
    expect(page.get_by_role("button", name="Next version")).to_be_focused()
    check(page)
    visitor.ask("third")
    complete(page)
    page.reload()
    expect(page.locator(".user .text")).to_have_text([SHORT, ANOTHER, "third"])


def test_a_response_can_be_generated_again_and_both_versions_stay(visitor: Visitor) -> None:
    page = visitor.page
    visitor.ask(SHORT)
    complete(page)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".assistant .versions")).to_have_text("2/2")
    other = visitor.tab(page.url)
    expect(other.locator(".assistant .versions")).to_have_text("2/2")
    page.bring_to_front()
    page.get_by_role("button", name="Previous version").click()
    for tab in (page, other):
        expect(tab.locator(".assistant .versions")).to_have_text("1/2")
    page.get_by_role("button", name="Next version").press("Enter")
    expect(page.locator(".assistant .versions")).to_have_text("2/2")
    expect(page.get_by_role("button", name="Previous version")).to_be_focused()


def test_an_edit_on_a_phone_says_that_the_message_is_kept_and_can_be_cancelled(visitor: Visitor) -> None:
    page = visitor.page
    page.set_viewport_size(PHONE)
    for text in (SHORT, ANOTHER):
        visitor.ask(text)
        complete(page)
    page.locator("#prompt").fill("a draft")
    page.get_by_role("button", name="Edit").first.click()
    bar = page.locator("#editing")
    expect(bar).to_contain_text("You edit a message. The earlier version is kept.")
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    cancel = page.get_by_role("button", name="Cancel", exact=True)
    box = cancel.bounding_box()
    assert box is not None
    assert box["height"] >= 36, "a finger can hit it"
    assert box["x"] + box["width"] <= PHONE["width"]
    check(page)
    cancel.click()
    expect(bar).to_be_hidden()
    assert page.input_value("#prompt") == "a draft"
    expect(page.locator(".message")).to_have_count(4)
    page.get_by_role("button", name="Edit").last.click()
    page.reload()
    expect(bar).to_be_hidden()


def test_conversations_are_listed_opened_renamed_and_deleted(visitor: Visitor, browser: Browser) -> None:
    page = visitor.page
    for text in (SHORT, ANOTHER):
        page.get_by_role("button", name="New conversation").click()
        visitor.ask(text)
        complete(page)
    expect(page.locator("#conversations .open")).to_have_text([ANOTHER, SHORT])
    page.get_by_role("button", name=SHORT, exact=True).click()
    expect(page.locator(".user .text")).to_have_text([SHORT])
    page.go_back()
    expect(page.locator(".user .text")).to_have_text([ANOTHER])
    page.locator("#conversations li").first.hover()
    page.get_by_role("button", name=f"Rename “{ANOTHER}”").click()
    page.get_by_label("Title").fill("Scaling")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Scaling")
    page.get_by_role("button", name="Delete “Scaling”").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator("#conversations .open")).to_have_text([SHORT])
    expect(page.locator(".welcome")).to_be_visible()
    other = Visitor(browser, visitor.url)
    expect(other.page.locator(".empty")).to_be_visible()
    other.context.close()


def test_a_lost_connection_is_taken_up_again(visitor: Visitor) -> None:
    page = visitor.page
    visitor.ask()
    before = begun(page)
    visitor.context.set_offline(True)
    page.route("**/api/chat/**", lambda route: route.abort())
    page.evaluate("() => window.dispatchEvent(new Event('offline'))")
    visitor.context.set_offline(False)
    page.unroute("**/api/chat/**")
    whole = complete(page)
    assert whole.startswith(before[:LONG])
    page.reload()
    expect(page.locator(".assistant")).to_have_count(1)
    assert answer(page) == whole


def test_everything_can_be_done_with_the_keyboard(visitor: Visitor) -> None:
    page, press = visitor.page, visitor.page.keyboard.press
    expect(page.locator("#prompt")).to_be_focused()
    page.keyboard.type("How do I\nbatch calls?".splitlines()[0])
    press("Shift+Enter")
    page.keyboard.type("batch calls?")
    press("Enter")
    begun(page)
    press("Escape")
    expect(page.locator(".notice")).to_be_visible()
    expect(page.locator("#prompt")).to_be_focused()
    press("ArrowUp")
    assert page.input_value("#prompt") == "How do I\nbatch calls?"
    press("Escape")
    press("Shift+Tab")
    assert page.locator("#prompt:focus").count() == 0
    press("/")
    expect(page.locator("#prompt")).to_be_focused()
    press("Control+Shift+O")
    expect(page.locator(".welcome")).to_be_visible()
    visitor.ask("zzzz")
    complete(page)
    expect(page.locator("#conversations .open")).to_have_count(2)
    press("Alt+ArrowDown")
    expect(page.locator("h1")).to_have_text("How do I batch calls?")
    press("Alt+ArrowUp")
    expect(page.locator("h1")).to_have_text("zzzz")
    page.locator("#help").focus()
    press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.reload()
    expect(page.locator("#prompt")).to_be_focused()
    page.locator("#skip").focus()
    press("Enter")
    expect(page.locator("#prompt")).to_be_focused()


def test_a_screen_reader_hears_each_paragraph_once(visitor: Visitor) -> None:
    page = visitor.page
    page.evaluate(
        """() => {
            window.heard = [];
            const region = document.getElementById("announcement");
            const options = { childList: true, characterData: true, subtree: true };
            new MutationObserver(() => window.heard.push(region.textContent)).observe(region, options);
        }"""
    )
    visitor.ask()
    complete(page)
    heard = page.evaluate("() => window.heard")
    shown = page.evaluate("() => document.querySelector('.assistant .text').textContent")
    assert re.sub(r"\s", "", "".join(heard)) == re.sub(r"\s|Copycode", "", shown)
    assert 2 <= len(heard) <= page.locator(".assistant .text > *").count()
    assert page.locator("[aria-live]").count() == 1


def test_the_drawer_of_a_phone_keeps_the_focus(browser: Browser, url: str) -> None:
    phone = Visitor(browser, url, viewport=PHONE, has_touch=True, is_mobile=True)
    page = phone.page
    page.get_by_role("button", name="Show conversations").tap()
    expect(page.get_by_role("dialog", name="Sidebar")).to_be_visible()
    expect(page.locator("#close")).to_be_focused()
    for _ in range(8):
        page.keyboard.press("Tab")
        assert page.evaluate("() => !document.activeElement.closest('main')")
    page.keyboard.press("Escape")
    expect(page.locator("#sidebar")).to_be_hidden()
    page.locator("#menu").tap()
    page.touchscreen.tap(380, 400)
    expect(page.locator("#sidebar")).to_be_hidden()
    phone.context.close()
    assert not phone.errors


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_no_violation(browser: Browser, url: str, scheme: str, size: dict[str, int]) -> None:
    visitor = Visitor(browser, url, viewport=size, color_scheme=scheme, reduced_motion="reduce")
    page = visitor.page
    expect(page.locator(".welcome")).to_be_visible()
    check(page)
    visitor.ask()
    begun(page)
    check(page)
    page.keyboard.press("Escape")
    complete(page)
    check(page)
    if size is PHONE:
        page.locator("#menu").click()
    else:
        page.locator("#help").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    check(page)
    visitor.context.close()
    assert not visitor.errors


def check(page: Page) -> None:
    found = axe.Axe().run(page).response["violations"]
    assert not [(each["id"], [node["target"] for node in each["nodes"]]) for each in found]


APP = """
import os
os.environ["CHAT_DATABASE"] = {database!r}
os.environ["CHAT_PERIOD_S"] = "0.05"
os.environ["CHAT_SEARCH"] = "words"
from chat.app import app
app.title = {title!r}
"""


class OnRay:
    """The example on Ray with two ingress replicas, and the deployment of its stream log."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._folder = folder
        self.cluster = cluster
        (folder / "examples").mkdir()
        shutil.copytree(ROOT / "examples" / "chat", folder / "examples" / "chat")
        (folder / "docs").symlink_to(ROOT / "docs")
        self.log = cluster.deploy("streamlog:log", name="stream-log")
        self.served: Served = cluster.apply(self._spec("First"))

    def _spec(self, title: str) -> Any:
        folder = self._folder / "examples"
        name = f"page_{title.lower()}"
        (folder / f"{name}.py").write_text(APP.format(database=str(self._folder / "chats.db"), title=title))
        app = load(f"{name}:app", str(folder))
        return plan(
            app, target=f"{name}:app", app_dir=str(folder), name="chat-page", route_prefix="/chat-page", num_replicas=2
        )

    def update(self) -> None:
        self.cluster.update(self._spec("Second"))

    def kill(self, served: Served, deployment: str) -> None:
        """Kill all replicas of a deployment."""
        from tests.e2e.test_recovery import pids  # it imports Ray

        for pid in pids({replica["id"]: None for replica in served.ingress(deployment)["replicas"]}).values():
            os.kill(pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait until everything runs."""
        for served in (self.served, self.log):
            served.wait(lambda now: now["status"] == "healthy")

    def delete(self) -> None:
        self.served.delete()
        self.log.delete()


@pytest.fixture(scope="module")
def on_ray(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnRay]:
    path, modules = list(sys.path), set(sys.modules)
    with pytest.MonkeyPatch.context() as patched:
        for name in ("CHAT_DATABASE", "CHAT_PERIOD_S", "CHAT_SEARCH"):
            patched.setenv(name, "0")  # the apps set them, and the fixture takes them back
        for name in [each for each in modules if each.partition(".")[0] == "chat"]:
            patched.delitem(sys.modules, name)
        on_ray = OnRay(cluster, tmp_path_factory.mktemp("on_ray"))
        yield on_ray
        on_ray.delete()
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] in ("chat", "page_first", "page_second"):
            del sys.modules[name]


def test_an_update_during_a_response_leaves_no_gap(on_ray: OnRay, browser: Browser) -> None:
    visitor = Visitor(browser, f"{on_ray.served.url}/")
    visitor.ask()
    before = begun(visitor.page)
    on_ray.update()
    second = visitor.tab(visitor.page.url)
    wait_until(lambda: "Second" in second.request.get(f"{on_ray.served.url}/openapi.json").json()["info"]["title"])
    third = visitor.tab(visitor.page.url)
    texts = {complete(page) for page in (visitor.page, second, third)}
    assert len(texts) == 1, "each tab has the whole response"
    assert texts.pop().startswith(before[:LONG])
    assert visitor.page.locator(".notice").count() == 0
    visitor.page.reload()
    expect(visitor.page.locator(".assistant")).to_have_count(1)
    visitor.context.close()
    assert not visitor.errors


@pytest.mark.parametrize("deployment", ["app", "assistant", "stream-log"])
def test_a_response_whose_process_is_killed_says_so_and_can_be_repeated(
    on_ray: OnRay, browser: Browser, deployment: str
) -> None:
    on_ray.wait()
    visitor = Visitor(browser, f"{on_ray.served.url}/")
    visitor.ask()
    before = begun(visitor.page)
    on_ray.kill(on_ray.log if deployment == "stream-log" else on_ray.served, deployment)
    page = visitor.page
    expect(page.locator(".notice")).to_have_text(re.compile("^The response was interrupted."))
    assert answer(page).startswith(before[:LONG]), "what has arrived stays"
    on_ray.wait()
    if deployment != "stream-log":  # its generator stores the response when it notices
        part = answer(page)
        page.reload()
        expect(page.locator(".notice")).to_contain_text("The response was interrupted.")
        assert answer(page) == part, "the stored response is the one that was shown"
    page.get_by_role("button", name="Try again").click()
    whole = complete(page)
    assert whole.startswith(before[:LONG])
    assert page.locator(".notice").count() == 0
    visitor.context.close()
    assert not visitor.errors
