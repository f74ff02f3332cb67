"""The page of the chat example, with an assistant that repeats its input: see echo.py."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.patience import wait_until

from .relay import relay
from .test_chat_page import DESKTOP, PHONE, ROOT, Page, Visitor, answer, browser, check, complete, dev, expect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

__all__ = ["browser"]

ECHO = "tests/examples/echo.py"

RICH = r"""# Results

- [x] measured
- [ ] published

| left | middle | right |
|:-----|:------:|------:|
| a | b | 3 |

The root of $a^2 + b^2$ costs $5 or $10, and \(c > d\) holds:

$$
\begin{aligned} x &= \frac{1}{2} \\

y &= \sqrt{x} \end{aligned}
$$

```python
def area(radius: float) -> float:
    return 3.14 * radius**2  # about
```

![A chart](static/icon.svg?chart) and [![logo](static/icon.svg?logo)](https://example.org/)

<img src="static/icon.svg?raw" alt="A photo">

<details><summary>More</summary>

**Bold** text in it.

</details>

שלום עולם
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dev(ROOT, ECHO, CHAT_DATABASE=str(tmp_path_factory.mktemp("echo") / "chats.db"), CHAT_PERIOD_S="0") as address:
        yield address


@pytest.fixture(scope="module")
def slow_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The assistant writes a line every 100 ms."""
    database = str(tmp_path_factory.mktemp("slow") / "chats.db")
    with dev(ROOT, ECHO, CHAT_DATABASE=database, CHAT_PERIOD_S="0.1") as address:
        yield address


@pytest.fixture
def visitor(browser: Any, url: str) -> Iterator[Visitor]:
    visitor = Visitor(browser, url)
    yield visitor
    visitor.context.close()
    assert not visitor.errors


@pytest.fixture
def reader(browser: Any, slow_url: str) -> Iterator[Visitor]:
    reader = Visitor(browser, slow_url)
    yield reader
    reader.context.close()
    assert not reader.errors


def test_markdown_has_tasks_alignment_code_math_and_directions(visitor: Visitor) -> None:
    page = visitor.page
    loaded: list[str] = []
    page.on("request", lambda request: loaded.append(request.url))
    visitor.ask(RICH)
    complete(page)
    text = page.locator(".assistant .text")
    expect(text.get_by_role("img", name="Done", exact=True)).to_have_count(1)
    expect(text.get_by_role("img", name="Not done")).to_have_count(1)
    aligned = "(cells) => cells.map((cell) => getComputedStyle(cell).textAlign)"
    assert text.locator("td").evaluate_all(aligned) == ["left", "center", "right"]
    assert text.locator(".katex").count() == 3
    assert text.locator(".katex-display").count() == 1
    expect(text).to_contain_text("costs $5 or $10")
    font = page.evaluate("async () => (await document.fonts.load('16px KaTeX_Math')).length")
    assert font == 1
    expect(text.locator("pre .hljs-keyword").first).to_have_text("def")
    links = text.locator("a").evaluate_all("(all) => all.map((each) => [each.textContent, each.getAttribute('href')])")
    assert links == [
        ["A chart", "static/icon.svg?chart"],
        ["logo", "https://example.org/"],
        ["A photo", "static/icon.svg?raw"],
    ]
    assert not [each for each in loaded if "svg?" in each]
    expect(text.locator("details strong")).to_have_count(1)
    hebrew = text.locator("p").last
    assert hebrew.evaluate("(each) => getComputedStyle(each).direction") == "rtl"
    assert text.locator("h2").evaluate("(each) => getComputedStyle(each).direction") == "ltr"
    page.fill("#prompt", "שלום")
    assert page.locator("#prompt").evaluate("(each) => getComputedStyle(each).direction") == "rtl"
    page.get_by_role("button", name="Copy code").click()
    expect(page.locator("#announcement")).to_have_text("Copied.")


@pytest.mark.parametrize(
    "html",
    [
        "<dialog open>d</dialog>",
        "<textarea>t</textarea>",
        "<select><option>o</option></select>",
        "<label for=prompt>l</label>",
        "<fieldset><legend>l</legend></fieldset>",
        "<button>b</button>",
        "<progress value=1></progress>",
        "<iframe srcdoc=x></iframe>",
        "<object data=x></object>",
        '<div popover id=prompt role="alert" aria-live="assertive" data-x="y" contenteditable tabindex=0>d</div>',
        "<span style='color:red' class='notice'>s</span>",
        "<math><mi>x</mi></math>",
        "<base href=https://example.org>",
    ],
)
def test_html_of_a_model_keeps_only_text_elements(visitor: Visitor, html: str) -> None:
    page = visitor.page
    visitor.ask(f"before {html} after\n\n{html}")
    complete(page)
    shown = page.locator(".assistant .text").inner_html()
    assert "before" in shown
    left = set(re.findall(r"<(\w+)", shown)) - {"div", "p", "span"}
    names = set(re.findall(r" ([\w-]+)=", shown)) - {"dir"}
    assert (left, names) == (set(), set())
    visitor.errors.clear()  # the browser reports what its policy has kept a hostile document from


def test_text_that_is_selected_stays_selected_while_text_arrives(reader: Visitor) -> None:
    page = reader.page
    reader.ask("first paragraph\n\nsecond begins\n" + "".join(f"and line {n}\n" for n in range(60)))
    selected = "() => getSelection().toString()"
    for words in ("first paragraph", "second begins"):
        wait_until(lambda words=words: words in answer(page))  # type: ignore[misc]
        page.evaluate(
            """(words) => {
                const text = document.querySelector(".assistant .text");
                const walker = document.createTreeWalker(text, NodeFilter.SHOW_TEXT);
                while (!walker.nextNode().data.includes(words));
                const start = walker.currentNode.data.indexOf(words);
                getSelection().setBaseAndExtent(walker.currentNode, start, walker.currentNode, start + words.length);
            }""",
            words,
        )
        before = len(answer(page))
        wait_until(lambda before=before: len(answer(page)) > before + 40)  # type: ignore[misc]
        assert page.evaluate(selected) == words
    complete(page)
    assert page.evaluate(selected) == "second begins"


def test_only_the_last_block_is_rendered_again(reader: Visitor) -> None:
    page = reader.page
    reader.ask("```python\nx = 1\n```\n\n$x$ is one.\n\n" + "".join(f"line {n}\n" for n in range(40)))
    wait_until(lambda: "line 3" in answer(page))
    page.evaluate(
        """() => {
            window.changed = 0;
            const options = { childList: true, characterData: true, attributes: true, subtree: true };
            window.blocks = [...document.querySelectorAll(".assistant .text > *")].slice(0, -1);
            for (const block of window.blocks)
                new MutationObserver((records) => (window.changed += records.length)).observe(block, options);
        }"""
    )
    complete(page)
    assert page.locator(".assistant .text > *").count() == 3
    assert page.evaluate("() => window.blocks.every((block) => block.isConnected)")
    assert page.evaluate("() => window.changed") == 0


def test_a_tool_call_is_shown_with_its_input_and_output_and_after_a_reload(reader: Visitor) -> None:
    page = reader.page
    reader.ask('I look it up.\n/weather {"city":"Zürich"} {"degrees":21}\n/weather {} error\nIt is warm.')
    first, second = page.locator("details.call").nth(0), page.locator("details.call").nth(1)
    expect(first.locator("summary")).to_contain_text("weather")
    complete(page)
    for _ in range(2):
        expect(first.locator("summary")).to_have_text(re.compile("weather.*Done", re.S))
        expect(second.locator("summary")).to_have_text(re.compile("weather.*Failed", re.S))
        expect(first.locator("pre").first).to_be_hidden()
        first.locator("summary").click()
        expect(first.get_by_role("group", name="Input of weather")).to_have_text(re.compile(r'"city": "Zürich"'))
        expect(first.get_by_role("group", name="Output of weather")).to_have_text(re.compile(r'"degrees": 21'))
        second.locator("summary").click()
        expect(second.get_by_role("group", name="Error of weather")).to_have_text("no such city")
        kinds = page.locator(".assistant .parts > *").evaluate_all("(all) => all.map((each) => each.localName)")
        assert kinds == ["div", "details", "details", "div"], "the parts are in the order in which they were written"
        page.reload()
        expect(second).to_be_visible()


def test_a_draft_belongs_to_its_conversation(visitor: Visitor) -> None:
    page = visitor.page
    visitor.ask("alpha")
    complete(page)
    page.fill("#prompt", "draft of alpha")
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator("#prompt")).to_have_value("")
    page.keyboard.type("draft of a new one")
    page.get_by_role("button", name="alpha", exact=True).click()
    expect(page.locator("#prompt")).to_have_value("draft of alpha")
    page.locator(".user").hover()
    page.get_by_role("button", name="Edit").click()
    expect(page.locator("#prompt")).to_have_value("alpha")
    page.keyboard.press("Escape")
    expect(page.locator("#prompt")).to_have_value("draft of alpha")
    page.reload()
    expect(page.locator("#prompt")).to_have_value("draft of alpha")
    expect(page.locator(".assistant")).to_have_count(1)
    page.keyboard.press("Enter")
    complete(page)
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator("#prompt")).to_have_value("draft of a new one")
    page.get_by_role("button", name="alpha", exact=True).click()
    expect(page.locator("#prompt")).to_have_value("")


def test_a_long_message_is_sent_whole(visitor: Visitor) -> None:
    page = visitor.page
    text = "long " * 6_000 + "end"
    page.locator("#prompt").focus()
    page.keyboard.insert_text(text)
    page.keyboard.press("Enter")
    complete(page)
    assert page.locator(".user .text").evaluate("(each) => each.textContent.length") == len(text)
    assert answer(page).endswith("end")


def test_reconnecting_ends_with_an_error_and_can_be_tried_again(browser: Any, slow_url: str) -> None:
    port = urlsplit(slow_url).port
    assert port
    with relay(port) as line:
        reader = Visitor(browser, f"http://127.0.0.1:{line.port}/")
        page = reader.page
        page.clock.install()
        reader.ask("".join(f"line {n}\n" for n in range(30)))
        wait_until(lambda: "line 2" in answer(page))
        line.cut()
        expect(page.locator("#state")).to_have_text("Reconnecting…")
        wait_until(lambda: given_up(page))
        expect(page.locator(".notice")).to_contain_text("The connection to the server was lost.")
        assert "Reconnecting" not in page.locator("#state").inner_text()
        assert "line 2" in answer(page), "what has arrived stays"
        line.mend()
        page.get_by_role("button", name="Try again").click()
        page.clock.resume()
        assert complete(page).endswith("line 29")
        expect(page.locator(".assistant")).to_have_count(1)
        reader.context.close()
        assert not reader.errors


def given_up(page: Page) -> bool:
    """Let two seconds pass in the page. Returns whether it has given up."""
    page.clock.run_for(2_000)
    return bool(page.locator(".notice").count())


def test_a_stream_that_always_breaks_at_the_same_place_is_given_up(reader: Visitor) -> None:
    page = reader.page
    page.clock.install()
    begun = 'data: {"type":"start","messageId":"m"}\n\ndata: {"type":"text-start","id":"t"}\n\n'
    body = f'{begun}data: {{"type":"text-delta","id":"t","delta":"half"}}\n\n'
    page.route("**/api/chat", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.route("**/api/chat/*/stream", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    reader.ask("anything")
    wait_until(lambda: given_up(page))
    expect(page.locator(".notice")).to_contain_text("The connection to the server was lost.")
    assert answer(page) == "half"


def test_reconnecting_is_not_shown_in_another_conversation(reader: Visitor) -> None:
    page = reader.page
    page.clock.install()
    page.route("**/api/chat", lambda route: route.abort())
    page.route("**/api/chat/**", lambda route: route.abort())
    reader.ask("anything")
    expect(page.locator("#state")).to_have_text("Reconnecting…")
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator("#state")).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_no_violation_in_rich_text(browser: Any, url: str, scheme: str, size: dict[str, int]) -> None:
    visitor = Visitor(browser, url, viewport=size, color_scheme=scheme, reduced_motion="reduce")
    page: Page = visitor.page
    visitor.ask(f'{RICH}\n/weather {{"city":"Bern"}} {{"degrees":[1,2.5,null,"x"]}}\nDone.')
    complete(page)
    page.locator("details.call summary").click()
    check(page)
    assert page.evaluate("() => document.documentElement.scrollWidth") == size["width"]
    visitor.context.close()
    assert not visitor.errors
