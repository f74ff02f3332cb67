"""The page of the chat example with the model `demo`, which shows what the page can do: see examples/chat/demo.py."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import wait_until

from .test_chat_page import DESKTOP, PHONE, ROOT, Page, Visitor, answer, browser, check, complete, dev, expect, titles

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

__all__ = ["browser"]

PICTURE = ROOT / "docs/images/dashboard-mobile-dark.png"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    database = str(tmp_path_factory.mktemp("features") / "chats.db")
    with dev(
        ROOT, "examples/chat/app.py", CHAT_DATABASE=database, CHAT_PERIOD_S="0.02", CHAT_SEARCH="words"
    ) as address:
        yield address


@pytest.fixture
def visitor(browser: Any, url: str) -> Iterator[Visitor]:
    visitor = Visitor(browser, url)
    with_demo(visitor.page)
    yield visitor
    visitor.context.close()
    assert not visitor.errors


def with_demo(page: Page) -> None:
    expect(page.locator("#model")).to_be_visible()
    page.select_option("#model", "demo")
    expect(page.locator("#attach")).to_be_visible()


def ask(visitor: Visitor, text: str) -> None:
    """Ask, and wait until the response is complete and stored."""
    page = visitor.page
    before = page.locator(".assistant").count()
    visitor.ask(text)
    expect(page.locator(".assistant")).to_have_count(before + 1)
    complete(page)
    expect(page.locator(".assistant").last.get_by_role("button", name="Good response")).to_be_visible()


def drop(page: Page, name: str, text: str, event: str = "drop") -> None:
    """Drop a file on the page, or paste it."""
    page.evaluate(
        """([name, text, event]) => {
            const data = new DataTransfer();
            data.items.add(new File([text], name, { type: "text/plain" }));
            const made = event === "paste"
                ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true })
                : new DragEvent(event, { dataTransfer: data, bubbles: true, cancelable: true });
            document.getElementById("prompt").dispatchEvent(made);
        }""",
        [name, text, event],
    )


def test_the_chosen_model_answers_and_is_kept(visitor: Visitor) -> None:
    page = visitor.page
    ask(visitor, "hello")
    expect(page.locator(".facts").last).to_contain_text("demo · 1 tokens in")
    page.route("**/api/conversations/*", lambda route: None)  # it is not loaded
    page.reload()
    visitor.ask("too early")
    expect(page.locator("#state")).to_have_text("Wait until the conversation is loaded.")
    page.unroute("**/api/conversations/*")
    page.reload()
    expect(page.locator(".assistant")).to_have_count(1)
    page.fill("#prompt", "")
    expect(page.locator("#model")).to_have_value("demo")
    page.select_option("#model", "assistant")
    ask(visitor, "zzzz")
    assert answer(page).startswith("I found nothing")


def test_files_are_chosen_dropped_and_pasted_and_belong_to_the_message(visitor: Visitor) -> None:
    page, tray = visitor.page, visitor.page.locator("#tray li")
    page.set_input_files("#files", str(PICTURE))
    expect(tray.locator("img")).to_have_js_property("complete", value=True)
    drop(page, "notes.txt", "text", "dragenter")
    expect(page.locator("main.dropping")).to_have_count(1)
    drop(page, "notes.txt", "text")
    expect(page.locator("main.dropping")).to_have_count(0)
    drop(page, "list.txt", "text", "paste")
    expect(tray.locator(".detail")).to_have_count(3)
    check(page)
    page.reload()
    expect(tray).to_have_count(3)
    page.get_by_role("button", name="Remove list.txt").click()
    expect(tray).to_have_count(2)
    page.locator("#prompt").focus()
    page.keyboard.press("Enter")
    complete(page)
    expect(tray).to_have_count(0)
    expect(page.locator(".assistant .text")).to_contain_text("You sent notes.txt, which is text/plain.")
    page.reload()
    picture = page.get_by_role("img", name=PICTURE.name)
    wait_until(lambda: picture.evaluate("(image) => image.naturalWidth") > 0)
    expect(page.get_by_role("link", name="notes.txt")).to_have_attribute("download", "notes.txt")
    check(page)


def test_a_file_that_the_server_refuses_says_why_and_keeps_the_message_back(visitor: Visitor, tmp_path: Path) -> None:
    page = visitor.page
    (tmp_path / "x.zip").write_bytes(b"PK\x03\x04")
    (tmp_path / "large.txt").write_bytes(b"a" * 22 * 2**20)
    page.set_input_files("#files", [str(tmp_path / "x.zip"), str(tmp_path / "large.txt")])
    expect(page.locator(".attached.failed").first).to_contain_text("has the type application/zip")
    expect(page.locator(".attached.failed").last).to_contain_text("The file is too large: the body has more than")
    check(page)
    visitor.ask("look")
    expect(page.locator("#state")).to_have_text("Remove the file that was not uploaded.")
    for name in ("x.zip", "large.txt"):
        page.get_by_role("button", name=f"Remove {name}").click()
    expect(page.locator("#prompt")).to_be_focused()
    page.keyboard.press("Enter")
    complete(page)


def test_an_upload_shows_its_progress_and_can_be_cancelled(visitor: Visitor) -> None:
    page = visitor.page
    page.route("**/api/files", lambda route: None)  # the server does not answer
    drop(page, "notes.txt", "text")
    expect(page.get_by_role("progressbar", name="Upload of notes.txt")).to_be_visible()
    visitor.ask("now")
    expect(page.locator("#state")).to_have_text("Wait until the files are uploaded.")
    page.get_by_role("button", name="Remove notes.txt").click()
    expect(page.locator("#tray")).to_be_hidden()


def test_an_edited_message_keeps_its_files(visitor: Visitor) -> None:
    page = visitor.page
    drop(page, "notes.txt", "text")
    expect(page.locator("#tray .detail")).to_have_count(1)
    ask(visitor, "hello")
    page.locator(".user").hover()
    page.get_by_role("button", name="Edit").click()
    ask_again = page.locator("#tray li")
    expect(ask_again).to_have_count(1)
    visitor.ask("changed")
    expect(page.locator(".user .versions")).to_have_text("2/2")
    expect(page.locator(".user .card")).to_have_text("notes.txt")


def test_sources_files_and_the_reasoning_of_a_model_are_shown_and_stored(visitor: Visitor) -> None:
    page = visitor.page
    ask(visitor, "/sources")
    ask(visitor, "/image")
    ask(visitor, "/report")
    ask(visitor, "/think")
    for _ in range(2):
        sources = page.get_by_role("region", name="Sources")
        expect(sources.get_by_role("link", name="Oslo")).to_have_attribute("rel", "noopener noreferrer")
        expect(sources).to_contain_text("Capitals of Europe, capitals.md")
        wait_until(lambda: page.locator(".assistant img").evaluate("(image) => image.naturalWidth") == 320)
        with page.expect_download() as download:
            page.get_by_role("link", name="File").click()
        assert download.value.suggested_filename == "file.csv"
        expect(page.locator(".thoughts summary")).to_have_text("Reasoning")
        check(page)
        page.reload()


def test_the_status_is_shown_until_the_model_writes(visitor: Visitor) -> None:
    page = visitor.page
    visitor.ask("/status")
    expect(page.locator(".waiting")).to_have_text("Searching the documents")
    expect(page.locator("#announcement")).to_have_text("Searching the documents")
    complete(page)
    expect(page.locator(".waiting")).to_have_count(0)


def test_an_address_that_is_no_page_is_no_link(visitor: Visitor) -> None:
    shown = visitor.page.evaluate(
        """async () => {
            const { Sources } = await import("./static/views.js");
            const view = Sources.make();
            const urls = ["javascript:alert(1)", "javascript://a/%0aalert(1)", "data:text/html,x", "https://example.org/"];
            Sources.fill(view, urls.map((url) => ({ type: "source-url", url })));
            return [...view.querySelectorAll("a")].map(({ href }) => href);
        }"""
    )
    assert shown == ["https://example.org/"]


def test_an_approval_survives_a_reload_and_a_second_tab_can_give_it(visitor: Visitor) -> None:
    page = visitor.page
    ask(visitor, "/approve Report")
    expect(page.locator("#announcement")).to_have_text("The assistant asks whether it may run send_mail.")
    check(page)
    page.reload()
    form = page.get_by_role("form", name="Approval of send_mail")
    expect(form.get_by_role("group", name="Input of send_mail")).to_contain_text('"subject": "Report"')
    second = visitor.tab(page.url)
    second.get_by_role("button", name="Approve", exact=True).click()
    for tab in (second, page):
        expect(tab.locator(".call summary")).to_contain_text("Done")
        expect(tab.locator(".assistant .text").last).to_have_text("I have sent the mail.")
        expect(tab.locator(".approval")).to_have_count(0)
        expect(tab.locator(".assistant")).to_have_count(1)


def test_a_denied_tool_does_not_run_and_its_reason_is_kept(visitor: Visitor) -> None:
    page = visitor.page
    ask(visitor, "/approve")
    page.get_by_label("Reason, if you deny it").fill("not today")
    page.keyboard.press("Enter")
    expect(page.locator(".approval")).to_be_visible()
    page.get_by_role("button", name="Deny").press("Enter")
    expect(page.locator(".assistant .text").last).to_have_text("I have not sent the mail.")
    page.reload()
    expect(page.locator(".call summary")).to_contain_text("Denied")
    page.locator(".call summary").click()
    expect(page.get_by_role("group", name="Reason of send_mail")).to_have_text("not today")


def test_an_answer_that_comes_after_that_of_another_tab_shows_the_first_one(visitor: Visitor) -> None:
    page = visitor.page
    ask(visitor, "/approve")
    second = visitor.tab(page.url)
    expect(second.locator(".approval")).to_be_visible()
    second.route("**/api/conversations/*", lambda route: route.abort())  # it learns nothing of the answer
    page.get_by_role("button", name="Approve", exact=True).click()
    expect(page.locator(".assistant .text").last).to_have_text("I have sent the mail.")
    second.unroute("**/api/conversations/*")
    second.get_by_role("button", name="Deny").click()
    expect(second.locator(".call summary")).to_contain_text("Done")
    expect(second.locator("#state")).to_contain_text("has been answered already")


def test_messages_wait_for_the_end_of_the_response_in_their_order(visitor: Visitor) -> None:
    page = visitor.page
    visitor.ask("/count 200")
    expect(page.locator(".writing")).to_have_count(1)
    for text in ("one", "two", "three"):
        visitor.ask(text)
    expect(page.locator("#queue li span")).to_have_text(["one", "two", "three"])
    check(page)
    page.get_by_role("button", name="Remove “two” from the queue").click()
    page.reload()
    expect(page.locator("#queue li span")).to_have_text(["one", "three"])
    expect(page.locator(".user .text")).to_have_text(["/count 200", "one", "three"])
    complete(page)
    expect(page.locator("#queue")).to_be_hidden()
    expect(page.locator(".assistant")).to_have_count(3)


def test_a_queued_message_is_sent_when_its_conversation_is_shown_again(visitor: Visitor) -> None:
    page = visitor.page
    visitor.ask("/count 100")
    expect(page.locator(".writing")).to_have_count(1)
    visitor.ask("one")
    expect(page.locator("#queue li")).to_have_count(1)
    page.get_by_role("button", name="New conversation").click()
    chat = page.evaluate("() => fetch('api/conversations').then((all) => all.json()).then(([first]) => first.id)")
    messages = (
        f"() => fetch('api/conversations/{chat}').then((one) => one.json()).then(({{ messages }}) => messages.length)"
    )
    wait_until(lambda: page.evaluate(messages) == 2)
    page.go_back()
    expect(page.locator(".user .text")).to_have_text(["/count 100", "one"])
    complete(page)


def test_messages_are_not_sent_by_themselves_after_a_stop(visitor: Visitor) -> None:
    page = visitor.page
    visitor.ask("/count 900")
    expect(page.locator(".writing")).to_have_count(1)
    visitor.ask("one")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#queue")).to_contain_text("Not sent, because the response did not end:")
    page.get_by_role("button", name="Send now").click()
    expect(page.locator(".user .text")).to_have_text(["/count 900", "one"])
    complete(page)
    expect(page.locator("#queue")).to_be_hidden()


def test_feedback_with_a_comment_is_stored_and_can_be_taken_back(visitor: Visitor) -> None:
    page = visitor.page
    ask(visitor, "hello")
    good, bad = (page.get_by_role("button", name=f"{rating} response") for rating in ("Good", "Bad"))
    bad.press("Enter")
    expect(bad).to_have_attribute("aria-pressed", "true")
    expect(bad).to_be_focused()
    page.get_by_role("button", name="Add a comment").click()
    check(page)
    page.get_by_label("Comment", exact=True).fill("too short")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("button", name="Edit your comment")).to_be_visible()
    page.reload()
    expect(bad).to_have_attribute("aria-pressed", "true")
    good.click()
    expect(page.get_by_role("button", name="Edit your comment")).to_have_attribute("title", "too short")
    good.click()
    expect(page.get_by_role("button", name="Edit your comment")).to_have_count(0)
    expect(good).to_have_attribute("aria-pressed", "false")


def test_conversations_are_found_by_the_words_of_their_messages(visitor: Visitor) -> None:
    page = visitor.page
    ask(visitor, "first")
    ask(visitor, "a word such as marmalade")
    page.get_by_role("button", name="New conversation").click()
    ask(visitor, "second")
    page.keyboard.press("Control+K")
    page.keyboard.type("marmalade")
    expect(page.locator("#conversations .open")).to_have_text(["first"])
    expect(page.locator("#announcement")).to_have_text("1 conversation found.")
    page.locator("#search").fill("nowhere")
    expect(page.locator("#conversations")).to_have_text("No conversation has these words.")
    page.locator("#search").press("Escape")
    expect(page.locator("#conversations .open")).to_have_text(["second", "first"])
    assert titles(page) == ["second", "first"]


def test_a_conversation_is_exported_as_markdown_and_as_json(visitor: Visitor) -> None:
    page = visitor.page
    ask(visitor, "/sources")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".assistant .versions")).to_have_text("2/2")
    texts = {}
    for kind in ("Markdown", "JSON, with all versions"):
        page.get_by_role("button", name="Export the conversation").press("Enter")
        check(page)
        with page.expect_download() as download:
            page.get_by_role("button", name=kind).click()
        texts[download.value.suggested_filename] = Path(download.value.path()).read_text("utf-8")
    assert list(texts) == ["sources.md", "sources.json"]
    markdown, document = texts["sources.md"], json.loads(texts["sources.json"])
    assert markdown.startswith("# /sources\n\n## You\n\n/sources\n\n## Assistant\n\nOslo is the capital of Norway.\n")
    assert "- [Oslo](<https://en.wikipedia.org/wiki/Oslo>)\n- Capitals of Europe, capitals.md" in markdown
    assert [message["role"] for message in document["messages"]] == ["user", "assistant", "assistant"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE | {"width": 360}], ids=["desktop", "phone"])
def test_axe_finds_no_violation_and_nothing_is_wider_than_the_page(
    browser: Any, url: str, scheme: str, size: dict[str, int]
) -> None:
    visitor = Visitor(browser, url, viewport=size, color_scheme=scheme, reduced_motion="reduce")
    page = visitor.page
    with_demo(page)
    for command in ("/think", "/image", "/sources", "/report", "/approve"):
        ask(visitor, command)
    page.get_by_role("button", name="Good response").last.click()
    drop(page, "notes.txt", "text")
    expect(page.locator("#tray .detail")).to_have_count(1)
    check(page)
    assert page.evaluate("() => document.documentElement.scrollWidth") == size["width"]
    visitor.context.close()
    assert not visitor.errors
