"""The React front end of a generated chat project in headless Chromium.

Set APP_TOOLKIT_TEST_TEMPLATES=full. It installs packages with npm.
"""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.examples.test_chat_page import DESKTOP, OTHER_HOST, Visitor, browser, check, dev, expect
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

TABLE = "| left | right |\n|:--|--:|\n| a | 1 |\n\n- [x] measured $x^2$\n\n![A chart](https://example.org/chart.png)"

PLACEHOLDER = "Until then you can try the page"
"""In the text that the model of the project answers to each message."""

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f0777b0a000262017bc1267f"
    "710000000049454e44ae426082"
)
"""A PNG of one pixel."""

SMALL = {"width": 360, "height": 740}

SCRIPT = """
from app_toolkit.chat import (
    ApprovalRequest, DocumentEvent, FileEvent, ReasoningEvent, SourceEvent, StatusEvent, ToolCall, ToolResultEvent
)

placeholder = Model.chat


async def scripted(self, request):
    if request.approved_calls:
        for call in request.approved_calls:
            yield ToolResultEvent(call.id, {"paid": True})
        yield TextEvent("I have paid.")
    elif request.messages[-1].role == "tool":
        yield TextEvent("I have not paid.")
    elif request.prompt == "/pay":
        yield ApprovalRequest(ToolCall(f"call_{len(request.messages)}", "pay", '{"amount": 5}'))
    elif request.prompt == "/sources":
        yield StatusEvent("Searching the web")
        await asyncio.sleep(1)  # the page shows the status meanwhile
        yield ReasoningEvent("It is a fact.")
        yield TextEvent(f"{request.model} says Oslo.")
        yield SourceEvent("https://en.wikipedia.org/wiki/Oslo", "Oslo")
        yield DocumentEvent("The atlas")
        yield FileEvent("text/plain", data=b"Oslo")
        yield UsageEvent(3, 9)
    elif files := request.messages[-1].attachments:
        yield TextEvent("You sent " + ", ".join(f"{file.name} ({file.media_type})" for file in files) + ".")
    else:
        async for event in placeholder(self, request):
            yield event


Model.chat = scripted
"""
"""A model that asks for approvals, and yields what the model of the project does not. It is added to `model.py`."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("react")
    with pytest.MonkeyPatch.context() as patched:
        (folder / "config.yaml").write_text(f"cookiecutters_dir: {folder}/c\nreplay_dir: {folder}/r\n")
        patched.setenv("COOKIECUTTER_CONFIG", str(folder / "config.yaml"))
        project = make(folder, "chat", frontend="react")
    model, app = project / "my_chat" / "model.py", project / "my_chat" / "app.py"
    model.write_text(model.read_text("utf-8") + SCRIPT, "utf-8")
    second = 'Model.bind(), "second": Model.options(name="second").bind()'
    app.write_text(app.read_text("utf-8").replace("Model.bind()", second), "utf-8")
    for command in (["install", "--no-audit", "--no-fund"], ["run", "build"]):
        npm = ["npm", "--prefix", "frontend", *command]
        done = subprocess.run(npm, cwd=project, env={**os.environ, "HOME": HOME}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    with dev(project, CHAT_DATABASE=str(folder / "chats.db"), CHAT_FILES=str(folder / "files")) as address:
        yield address


@pytest.fixture
def visitor(browser: Any, url: str) -> Iterator[Visitor]:
    visitor = Visitor(browser, url)
    yield visitor
    visitor.context.close()
    assert not visitor.errors


def answer(page: Any) -> str:
    """The text of the last response, as far as it is shown."""
    shown = page.locator(".assistant .parts")
    return str(shown.last.inner_text()) if shown.count() else ""


def begun(page: Any) -> str:
    wait_until(lambda: len(answer(page)) > 100)
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    return answer(page)


def complete(page: Any) -> str:
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    expect(page.locator(".assistant .actions").last).to_be_visible()
    return answer(page)


def has_no_horizontal_scroll(page: Any) -> bool:
    return bool(page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"))


def test_a_response_survives_a_reload_and_can_be_stopped_and_generated_again(visitor: Visitor) -> None:
    page = visitor.page
    visitor.ask("word " * 100)
    first = begun(page)
    page.reload()
    wait_until(lambda: len(answer(page)) > len(first))
    page.keyboard.press("Escape")
    expect(page.locator(".notice")).to_contain_text("This response was stopped.")
    assert PLACEHOLDER not in complete(page)
    page.get_by_role("button", name="Try again").click()
    begun(page)
    wait_until(lambda: PLACEHOLDER in answer(page))
    complete(page)
    expect(page.locator(".assistant .versions")).to_have_text("2/2")
    page.reload()
    expect(page.locator(".message")).to_have_count(2)
    assert PLACEHOLDER in answer(page)
    page.get_by_role("button", name="Previous version").click()
    expect(page.locator(".notice")).to_contain_text("This response was stopped.")


def test_an_edited_question_is_another_version_and_the_conversation_continues_in_the_chosen_one(
    visitor: Visitor,
) -> None:
    page = visitor.page
    for text in ("first", "next"):
        visitor.ask(text)
        complete(page)
    edit = page.locator(".user").first
    edit.hover()
    edit.get_by_role("button", name="Edit").click()
    page.get_by_label("Edited message").fill("edited")
    page.keyboard.press("Enter")
    expect(page.locator(".user .text")).to_have_text(["edited"])
    complete(page)
    expect(page.locator(".user .versions")).to_have_text("2/2")
    page.reload()
    expect(page.locator(".user .text")).to_have_text(["edited"])
    page.get_by_role("button", name="Previous version").click()
    expect(page.locator(".user .text")).to_have_text(["first", "next"])
    expect(page.locator(".user .versions")).to_have_text("1/2")
    expect(page.get_by_role("button", name="Next version")).to_be_focused()
    visitor.ask("third")
    complete(page)
    page.reload()
    expect(page.locator(".user .text")).to_have_text(["first", "next", "third"])


def test_a_call_is_approved_after_a_reload_and_denied_with_a_reason(visitor: Visitor) -> None:
    page = visitor.page
    visitor.ask("/pay")
    question = page.get_by_role("group", name="Approval of pay")
    expect(question).to_contain_text('"amount": 5')
    page.reload()
    other = visitor.tab(page.url)
    page.bring_to_front()
    question.get_by_role("button", name="Approve").click()
    for tab in (page, other):
        expect(tab.locator(".assistant .text")).to_have_text("I have paid.")
        expect(tab.locator(".call .status")).to_have_text("Done")
    visitor.ask("/pay")
    question.get_by_label("Reason, if you deny it (optional)").fill("Too much.")
    question.get_by_role("button", name="Deny").click()
    expect(page.locator(".assistant .text").last).to_have_text("I have not paid.")
    expect(page.locator(".call .status").last).to_have_text("Denied")
    page.locator(".call").last.click()
    expect(page.locator(".call").last).to_contain_text("Too much.")


def test_sources_files_reasoning_status_and_usage_are_shown(visitor: Visitor) -> None:
    page = visitor.page
    page.get_by_label("Model").select_option("second")
    visitor.ask("/sources")
    expect(page.locator(".waiting")).to_have_text("Searching the web")
    complete(page)
    for address in ("data:text/plain;base64,T3Nsbw==", re.compile("^/api/files/.*/content$")):  # it is stored as a file
        expect(page.locator(".assistant .text")).to_have_text("second says Oslo.")
        sources = page.get_by_role("region", name="Sources").get_by_role("listitem")
        expect(sources).to_have_text(["Oslo", "The atlas"])
        expect(page.locator(".thoughts")).to_contain_text("It is a fact.")
        expect(page.locator(".file a")).to_have_attribute("href", address)
        expect(page.locator(".facts")).to_contain_text("3 tokens in, 9 out")
        page.reload()


def test_a_message_that_is_written_during_a_response_follows_it_unless_it_is_removed(visitor: Visitor) -> None:
    page = visitor.page
    visitor.ask("word " * 50)
    begun(page)
    for text in ("second", "third"):
        visitor.ask(text)
    expect(page.get_by_role("region", name="Queued messages").get_by_role("listitem")).to_have_text(["second", "third"])
    page.get_by_role("button", name="Remove “third” from the queue").click()
    expect(page.locator(".user .text")).to_have_text([re.compile("word"), "second"])
    complete(page)
    expect(page.locator(".queue")).to_have_count(0)


def test_feedback_is_stored(visitor: Visitor) -> None:
    page = visitor.page
    visitor.ask("hello")
    complete(page)
    page.get_by_role("button", name="Bad response").click()
    page.get_by_role("button", name="Add a comment").click()
    page.get_by_label("Comment", exact=True).fill("It is a placeholder.")
    page.get_by_role("button", name="Save").click()
    for _ in range(2):
        comment = page.get_by_role("button", name="Edit your comment")
        expect(comment).to_have_attribute("title", "It is a placeholder.")
        expect(page.get_by_role("button", name="Bad response")).to_have_attribute("aria-pressed", "true")
        page.reload()


def test_conversations_are_listed_found_renamed_exported_and_deleted(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.page
    listed = page.locator("#conversations .open")
    for text in ("first question", "second question"):
        page.get_by_role("button", name="New conversation").click()
        visitor.ask(text)
        complete(page)
    expect(listed).to_have_text(["second question", "first question"])
    page.get_by_label("Search conversations").fill("first")
    expect(listed).to_have_text(["first question"])
    page.get_by_label("Search conversations").fill("")
    listed.last.click()
    expect(page.locator(".user .text")).to_have_text("first question")
    expect(page.locator("[aria-current=page]")).to_have_text("first question")
    page.go_back()
    expect(page.locator(".user .text")).to_have_text("second question")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export the conversation").click()
        page.get_by_role("button", name="Markdown").click()
    download.value.save_as(tmp_path / "export.md")
    assert (tmp_path / "export.md").read_text().startswith("# second question\n\n## You\n\nsecond question\n")
    listed.first.hover()
    page.get_by_role("button", name="Rename “second question”").click()
    page.get_by_label("Title").fill("Renamed")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Renamed")
    page.get_by_role("button", name="Delete “Renamed”").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(listed).to_have_text(["first question"])
    expect(page.locator(".message")).to_have_count(0)


def test_a_message_that_the_server_refuses_can_be_sent_again(visitor: Visitor) -> None:
    page = visitor.page
    page.route("**/api/chat", lambda route: route.fulfill(status=503, body="The server is busy."))
    visitor.ask("hello")
    expect(page.get_by_role("alert")).to_contain_text("The server is busy.")
    expect(page.locator(".message")).to_have_count(1)
    page.unroute("**/api/chat")
    page.get_by_role("button", name="Try again").click()
    wait_until(lambda: PLACEHOLDER in answer(page))
    complete(page)
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.locator(".versions")).to_have_count(0)


def test_a_lost_connection_is_taken_up_again(browser: Any, url: str) -> None:
    with Cable(urlsplit(url).port) as cable:
        visitor = Visitor(browser, f"http://127.0.0.1:{cable.server_address[1]}/")
        page = visitor.page
        visitor.ask("word " * 150)
        before = begun(page)
        cable.cut()
        expect(page.get_by_role("alert")).to_contain_text("The connection to the server was lost.")
        wait_until(lambda: PLACEHOLDER in answer(page))
        assert complete(page).startswith(before[:100])
        expect(page.locator(".assistant")).to_have_count(1)
        visitor.context.close()
        assert not visitor.errors


class Cable(ThreadingTCPServer):
    """Forwards connections to a port of this machine until they are cut."""

    daemon_threads = True

    def __init__(self, port: int | None) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        self.port = port
        self.connections: list[socket.socket] = []
        Thread(target=self.serve_forever, daemon=True).start()

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.cut()
        super().__exit__(*error)

    def cut(self) -> None:
        """End all connections without the last bytes of their responses."""
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self.connections.clear()


class _Forward(BaseRequestHandler):
    server: Cable

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.port)) as upstream:
            self.server.connections += [self.request, upstream]
            Thread(target=self.copy, args=(upstream, self.request), daemon=True).start()
            self.copy(self.request, upstream)

    @staticmethod
    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


def test_files_are_added_shown_removed_and_sent(visitor: Visitor) -> None:
    page = visitor.page
    image = {"name": "pixel.png", "mimeType": "image/png", "buffer": PIXEL}
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Attach files").click()
    chooser.value.set_files([image, {**image, "name": "second.png"}])
    added = page.locator("#composer .attached")
    expect(added.locator("img")).to_have_count(2)
    page.get_by_role("button", name="Remove second.png").click()
    expect(added).to_have_count(1)
    wait_until(lambda: [file["name"] for file in page.request.get(f"{visitor.url}api/files").json()] == ["pixel.png"])
    visitor.ask("Look")
    expect(page.locator(".assistant .text")).to_have_text("You sent pixel.png (image/png).")
    for _ in range(2):
        shown = page.locator(".user .file")
        assert shown.locator("img").evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 1
        assert re.fullmatch(r"/api/files/[\w-]+/content", str(shown.locator("img").get_attribute("src")))
        page.reload()


PASTE = """(target) => {
    const clipboardData = new DataTransfer();
    clipboardData.items.add(new File(["PK"], "a.zip", { type: "application/zip" }));
    target.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
}"""

DROP = """(target) => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File(["text"], "dropped.txt", { type: "text/plain" }));
    for (const kind of ["dragenter", "dragover", "drop"]) {
        target.dispatchEvent(new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true }));
    }
}"""


def test_a_pasted_file_of_a_wrong_type_is_refused_and_a_dropped_one_is_queued_with_its_message(
    visitor: Visitor,
) -> None:
    page = visitor.page
    page.locator("#prompt").evaluate(PASTE)
    expect(page.locator("#composer").get_by_role("alert")).to_contain_text("application/zip")
    page.get_by_role("button", name="Remove a.zip").click()
    visitor.ask("word " * 200)
    begun(page)
    page.locator("#scroller").evaluate(DROP)
    expect(page.locator("#composer .attached")).to_have_text("dropped.txt")
    expect(page.locator("#composer progress")).to_have_count(0)
    visitor.ask("Read")
    expect(page.get_by_role("region", name="Queued messages").get_by_role("listitem")).to_have_text(
        ["dropped.txt, Read"]
    )
    expect(page.locator(".assistant .text").last).to_have_text("You sent dropped.txt (text/plain).")


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
    visitor.ask("hello")
    complete(page)
    wait_until(lambda: PLACEHOLDER in "".join(page.evaluate("() => window.heard")))
    heard = page.evaluate("() => window.heard")
    assert 2 <= len(heard) <= 5
    assert "".join(heard).count("This answer comes from a placeholder") == 1
    assert page.locator("[aria-live]").count() == 1


def test_the_page_works_over_plain_http_under_another_name_and_copies(browser: Any, url: str) -> None:
    visitor = Visitor(browser, url.replace("127.0.0.1", OTHER_HOST))
    page = visitor.page
    assert page.evaluate("() => window.isSecureContext") is False
    visitor.ask("hello")
    complete(page)
    page.get_by_role("button", name="Copy code").click()
    expect(page.locator("#announcement")).to_have_text("Copied.")
    page.get_by_label("Message", exact=True).focus()
    page.keyboard.press("Control+V")
    assert page.get_by_label("Message", exact=True).input_value().startswith("async def chat(")
    visitor.context.close()
    assert not visitor.errors


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, SMALL], ids=["desktop", "phone"])
def test_axe_finds_no_violation(browser: Any, url: str, scheme: str, size: dict[str, int]) -> None:
    visitor = Visitor(browser, url, viewport=size, color_scheme=scheme, reduced_motion="reduce")
    page = visitor.page
    expect(page.locator(".welcome")).to_be_visible()
    check(page)
    visitor.ask(TABLE)
    begun(page)
    check(page)
    complete(page)
    table = page.locator(".assistant table")
    assert table.locator("td").last.evaluate("(cell) => getComputedStyle(cell).textAlign") == "right"
    expect(page.get_by_role("img", name="Done")).to_be_visible()
    expect(page.locator(".assistant .katex").first).to_be_visible()
    chart = page.locator(".assistant").get_by_role("link", name="A chart")
    expect(chart).to_have_attribute("href", "https://example.org/chart.png")
    assert page.locator(".assistant .text img").count() == 0
    check(page)
    for text in ("/sources", "/pay"):
        visitor.ask(text)
        complete(page)
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    page.locator(".user").last.hover()
    page.get_by_role("button", name="Edit").last.click()
    check(page)
    assert has_no_horizontal_scroll(page)
    if size is SMALL:
        page.get_by_role("button", name="Show conversations").click()
        expect(page.get_by_role("button", name="New conversation")).to_be_in_viewport()
        expect(page.get_by_role("button", name="Hide conversations")).to_be_focused()
        check(page)
        page.keyboard.press("Escape")
        expect(page.locator("#sidebar")).to_be_hidden()
    visitor.context.close()
    assert not visitor.errors
