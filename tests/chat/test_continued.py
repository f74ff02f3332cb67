"""A response that goes on after the process of its model has died."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit import ConfigError
from app_toolkit.chat import (
    ApprovalRequest,
    ChatError,
    ChatEvent,
    ChatMessage,
    ChatRequest,
    ErrorEvent,
    FinishEvent,
    ReasoningEvent,
    TextEvent,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
    continued,
)
from app_toolkit.chat.echo import EchoModel
from app_toolkit.errors import NoReplica, ReplicaLost
from tests.chat.model_events import of_model
from tests.chat.scripted import Scripted, answer, question
from tests.chat.served import PausedModel

pytestmark = pytest.mark.anyio

LOST = ReplicaLost("the replica is gone")
REST = [TextEvent(" two"), FinishEvent()]
SEARCH = ToolCallEvent(0, "c1", "search", '{"q": 1}', executed=True)
FOUND = ToolResultEvent("c1", {"hits": 2})
ASKED = ToolCallEvent(0, "c1", "ask", "{}")


async def passed(*scripts: Any, request: ChatRequest | None = None) -> tuple[list[ChatEvent], list[ChatRequest]]:
    """What a client gets of a model with these scripts, and the requests that the model gets."""
    model = Scripted(*scripts)
    return await of_model(await answer(continued(model, wait_s=0), request)), model.requests


@pytest.mark.parametrize("interruption", [LOST, ChatError("closed", status=502), ErrorEvent("closed early")], ids=str)
async def test_a_model_continues_where_its_response_was_interrupted(interruption: Any) -> None:
    events, (first, second) = await passed([ReasoningEvent("Hm."), TextEvent("on"), TextEvent("e"), interruption], REST)
    assert events == [ReasoningEvent("Hm."), TextEvent("on"), TextEvent("e"), *REST]
    assert second.continue_from == ChatMessage("assistant", "one", reasoning="Hm.")
    assert (first.continue_from, second.messages) == (None, first.messages)


async def test_a_response_that_another_process_has_begun_is_continued_from_all_of_it() -> None:
    begun = question(continue_from=ChatMessage("assistant", "on", reasoning="Hm."))
    events, (_, second) = await passed([TextEvent("e"), LOST], REST, request=begun)
    assert events == [TextEvent("e"), *REST]
    assert second.continue_from == ChatMessage("assistant", "one", reasoning="Hm.")


async def test_a_model_that_was_lost_before_its_first_token_begins_again() -> None:
    events, (first, second) = await passed([UsageEvent(1, 0), LOST], REST)
    assert events == [UsageEvent(1, 0), *REST]
    assert second == first


async def test_a_tool_with_a_result_is_not_run_again() -> None:
    events, (first, second) = await passed(
        [TextEvent("I search."), SEARCH, FOUND, TextEvent("one"), LOST], REST, request=question(tool_choice="required")
    )
    assert events == [TextEvent("I search."), SEARCH, FOUND, TextEvent("one"), *REST]
    assert second.messages[len(first.messages) :] == (
        ChatMessage("assistant", "I search.", (ToolCall("c1", "search", '{"q": 1}'),)),
        ChatMessage("tool", '{"hits": 2}', tool_call_id="c1"),
    )
    assert (second.continue_from, second.tool_choice) == (ChatMessage("assistant", "one"), None)


async def test_a_model_lost_after_a_result_is_called_with_it() -> None:
    _, (_, second) = await passed([SEARCH, FOUND, LOST], REST)
    assert second.messages[-1] == ChatMessage("tool", '{"hits": 2}', tool_call_id="c1")
    assert second.continue_from is None


async def test_a_call_whose_process_has_died_has_an_error_as_its_result_and_may_be_called_anew() -> None:
    begun = ToolCallEvent(0, "c1", "search", '{"q', executed=True)
    events, (_, second) = await passed([begun, LOST], [SEARCH, FOUND, *REST])
    *_, other, found, _, _ = events
    assert events[:2] == [begun, ToolResultEvent("c1", "The response was interrupted.", True)]
    assert isinstance(other, ToolCallEvent)
    assert (other.index, found) == (1, ToolResultEvent(other.id, {"hits": 2}))
    assert other.id != "c1"
    assert second.messages[-1].text == "The response was interrupted."


async def test_a_call_for_the_client_that_is_not_complete_is_begun_anew() -> None:
    events, (_, second) = await passed(
        [TextEvent("one"), ToolCallEvent(0, "c1", "ask", '{"a', executed=False), LOST], [ASKED, FinishEvent()]
    )
    assert [event.arguments for event in events if isinstance(event, ToolCallEvent)] == ["{}"]
    assert events[-1] == FinishEvent("tool_calls")
    assert second.continue_from == ChatMessage("assistant", "one")


async def test_an_approved_call_with_a_result_is_not_run_again() -> None:
    approved = question(approved_calls=(ToolCall("c1", "search", "{}"), ToolCall("c2", "search", "{}")))
    model = Scripted([FOUND, LOST], [ToolResultEvent("c2", "b"), *REST])
    assert await answer(continued(model, wait_s=0), approved) == [FOUND, ToolResultEvent("c2", "b"), *REST]
    _, second = model.requests
    assert [call.id for call in second.approved_calls] == ["c2"]
    assert second.messages[-2:] == (
        ChatMessage("assistant", "", (ToolCall("c1", "search", "{}"),)),
        ChatMessage("tool", '{"hits": 2}', tool_call_id="c1"),
    )


async def test_a_response_that_lacks_nothing_but_its_end_is_complete() -> None:
    asks = ApprovalRequest(ToolCall("c1", "pay", "{}"))
    model = Scripted([asks, LOST], REST)
    assert await answer(continued(model, wait_s=0)) == [asks, FinishEvent()]
    assert len(model.requests) == 1
    events, (_,) = await passed([TextEvent("one"), TextEvent(" two"), LOST], REST, request=question(max_tokens=2))
    assert events[-1] == FinishEvent("length")


async def test_the_limit_of_tokens_and_the_usage_count_for_the_whole_response() -> None:
    events, (_, second) = await passed(
        [TextEvent("one"), UsageEvent(5, 1), LOST],
        [TextEvent(" two"), UsageEvent(6, 1)],
        request=question(max_tokens=9),
    )
    assert second.max_tokens == 8
    assert [event for event in events if isinstance(event, UsageEvent)] == [UsageEvent(5, 1), UsageEvent(11, 2)]


async def test_a_response_ends_with_its_error_if_no_attempt_is_left() -> None:
    model = Scripted([TextEvent("a"), LOST])
    with pytest.raises(ReplicaLost):
        await answer(continued(model, wait_s=0))
    assert [request.continue_from and request.continue_from.text for request in model.requests] == [None, "a", "aa"]


@pytest.mark.parametrize(
    "refusal", [ChatError("this model cannot continue"), NoReplica("none"), ErrorEvent("no")], ids=str
)
async def test_a_model_that_cannot_continue_does_not_hide_why_it_was_interrupted(refusal: Any) -> None:
    with pytest.raises(ReplicaLost):
        await answer(continued(Scripted([TextEvent("a"), LOST], [refusal]), wait_s=0))
    events, _ = await passed([TextEvent("a"), ErrorEvent("closed early")], [refusal])
    assert events[-1] == ErrorEvent("closed early")


@pytest.mark.parametrize("error", [ChatError("too long"), RuntimeError("a bug")], ids=str)
async def test_an_error_that_would_come_again_is_not_continued(error: Exception) -> None:
    model = Scripted([TextEvent("a"), error], REST)
    with pytest.raises(type(error)):
        await answer(continued(model, wait_s=0))
    assert len(model.requests) == 1


async def test_a_client_that_leaves_closes_the_model() -> None:
    model = PausedModel()
    async with aclosing(continued(model, wait_s=0).chat(question())) as events:
        assert await anext(events) == TextEvent("one")
    assert model.running == 0


@given(st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_each_word_comes_once_wherever_a_model_is_lost(lengths: list[int]) -> None:
    left = list(lengths)

    async def dying(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        length = left.pop(0) if left else 100
        async for event in EchoModel().chat(request):
            if not length:
                raise LOST
            length -= 1
            yield event

    prompt = "/reason 1 2 3 4 5 6"
    events = asyncio.run(answer(continued(dying, attempts=len(lengths) + 1, wait_s=0), question(prompt)))
    assert "".join(event.text for event in events if isinstance(event, ReasoningEvent)) == "let me think "
    assert "".join(event.text for event in events if isinstance(event, TextEvent)) == "1 2 3 4 5 6"


def test_options_out_of_bounds_are_refused() -> None:
    for options in ({"attempts": 0}, {"wait_s": -1}):
        with pytest.raises(ConfigError, match=r"^continued: "):
            continued(EchoModel(), **options)  # type: ignore[arg-type]
