"""A model whose requests and responses are checked."""

from collections.abc import Iterable
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit import ConfigError
from app_toolkit.chat import (
    ChatError,
    ChatEvent,
    ChatRequest,
    FinishEvent,
    ReasoningEvent,
    StatusEvent,
    TextEvent,
    ToolCallEvent,
    UsageEvent,
    moderated,
)
from tests.chat.scripted import Scripted, answer, question
from tests.chat.served import PausedModel

pytestmark = pytest.mark.anyio

REFUSED = [TextEvent("No."), FinishEvent("content_filter")]


class Forbidden:
    """Refuses texts with the word `bad`, and keeps what it has checked."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def request(self, request: ChatRequest) -> str | None:
        return await self.text(request, request.prompt)

    async def text(self, request: ChatRequest, text: str) -> str | None:
        self.texts.append(text)
        return "No." if "bad" in text else None


def words(text: str) -> list[ChatEvent]:
    return [TextEvent(word) for word in text]


async def shown(model: Scripted, window: int | None = None) -> str:
    """The text of a response that is checked."""
    events = await answer(moderated(model, after=Forbidden().text, window=window))
    return "".join(event.text for event in events if isinstance(event, TextEvent))


async def test_a_request_that_is_refused_does_not_reach_the_model() -> None:
    model = Scripted([TextEvent("hello"), FinishEvent()])
    chain = moderated(model, before=Forbidden().request)
    assert await answer(chain, question("a bad question")) == REFUSED
    assert not model.requests
    assert await answer(chain, question("a good question")) == [TextEvent("hello"), FinishEvent()]


async def test_a_response_is_held_back_and_checked_as_a_whole() -> None:
    check = Forbidden()
    script = [ReasoningEvent("let me "), TextEvent("see"), UsageEvent(1, 2), FinishEvent()]
    assert await answer(moderated(Scripted(script), after=check.text)) == script
    assert check.texts == ["let me see"]


@pytest.mark.parametrize("window", [None, 100])
async def test_the_status_is_shown_while_text_is_held_back(window: int | None) -> None:
    model = Scripted([TextEvent("a"), StatusEvent("Searching"), TextEvent("b")])
    shown = [StatusEvent("Searching"), TextEvent("a"), TextEvent("b")]
    assert await answer(moderated(model, after=Forbidden().text, window=window)) == shown


@pytest.mark.parametrize("bad", [TextEvent("bad"), ReasoningEvent("bad")])
async def test_a_response_that_is_refused_is_replaced_and_keeps_its_usage(bad: ChatEvent) -> None:
    model = Scripted([TextEvent("a "), bad, UsageEvent(1, 2), FinishEvent()])
    assert await answer(moderated(model, after=Forbidden().text)) == [UsageEvent(1, 2), *REFUSED]


async def test_windows_are_shown_once_they_are_checked_with_all_text_before_them() -> None:
    check = Forbidden()
    model = Scripted([*words("abcdefg"), FinishEvent()])
    assert await answer(moderated(model, after=check.text, window=3)) == [*words("abcdefg"), FinishEvent()]
    assert check.texts == ["abc", "abcdef", "abcdefg"]


async def test_a_word_over_two_windows_is_refused_after_the_first_of_them() -> None:
    model = Scripted([*words("it is bad enough"), FinishEvent()])
    assert await shown(model, window=7) == "it is b\n\nNo."
    assert model.running == 0


async def test_text_before_a_tool_call_is_checked_before_the_call_is_shown() -> None:
    call = ToolCallEvent(0, "c1", "search", "{}")
    check = Forbidden()
    script = [TextEvent("a"), call, TextEvent("b"), FinishEvent()]
    assert await answer(moderated(Scripted(script), after=check.text, window=100)) == script
    assert check.texts == ["a", "ab"]
    assert await answer(moderated(Scripted([TextEvent("bad"), call]), after=check.text, window=100)) == REFUSED


@given(st.lists(st.sampled_from("abd ")), st.none() | st.integers(1, 9))
async def test_no_forbidden_word_is_shown(letters: Iterable[str], window: int | None) -> None:
    text = "".join(letters)
    result = await shown(Scripted(words(text)), window)
    assert "bad" not in result
    assert result.endswith("No.") if "bad" in text else result == text


async def test_a_check_that_fails_is_the_error_of_the_response() -> None:
    async def failing(request: ChatRequest, text: str) -> str | None:
        raise ChatError("the check does not answer", status=503)

    with pytest.raises(ChatError, match="the check does not answer"):
        await answer(moderated(Scripted([TextEvent("a")]), after=failing))


@pytest.mark.parametrize("window", [None, 1])
async def test_a_client_that_leaves_closes_the_model(window: int | None) -> None:
    model = PausedModel()
    check = None if window is None else Forbidden().text
    async with aclosing(moderated(model, after=check, window=window).chat(question())) as events:
        assert await anext(events) == TextEvent("one")
        assert model.running == 1
    assert model.running == 0


def test_options_out_of_bounds_are_refused() -> None:
    with pytest.raises(ConfigError, match="window = 0"):
        moderated(Scripted([]), after=Forbidden().text, window=0)
    with pytest.raises(ConfigError, match="window = 9"):
        moderated(Scripted([]), window=9)
