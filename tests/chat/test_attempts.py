"""Chains that call a model once more, or another one, before the first token."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from app_toolkit import ConfigError, Deployment, Toolkit
from app_toolkit.chat import (
    ChatError,
    ChatEvent,
    ChatRequest,
    ErrorEvent,
    FinishEvent,
    ReasoningEvent,
    StatusEvent,
    TextEvent,
    UsageEvent,
    fallback,
    first_token_within,
    openai_router,
    retried,
)
from app_toolkit.chat.attempts import retry_wait_s
from app_toolkit.chat.chain import counter_of
from app_toolkit.chat.echo import EchoModel
from app_toolkit.declare.planning import plan
from app_toolkit.errors import NoReplica
from tests.chat.scripted import Scripted, answer, question
from tests.chat.served import PausedModel
from tests.patience import until

pytestmark = pytest.mark.anyio

HELLO = [TextEvent("hello"), FinishEvent()]
BUSY = ChatError("busy", status=503, code="busy")


async def never(request: ChatRequest) -> AsyncIterator[ChatEvent]:
    await asyncio.Event().wait()
    yield TextEvent("never")


async def test_a_fallback_yields_what_its_first_model_yields() -> None:
    first, second = Scripted(HELLO), Scripted([TextEvent("other")])
    assert await answer(fallback(first, second)) == HELLO
    assert not second.requests


@pytest.mark.parametrize(
    "failure",
    [
        [BUSY],
        [RuntimeError("a bug")],
        [ErrorEvent("no memory")],
        [TextEvent(""), ReasoningEvent(""), BUSY],
        [UsageEvent(1, 0), BUSY],
        [StatusEvent("Searching"), BUSY],
    ],
    ids=str,
)
async def test_a_fallback_calls_the_next_model_if_one_fails_before_its_first_token(failure: Any) -> None:
    events = await answer(fallback(Scripted(failure), Scripted([NoReplica("none")]), Scripted(HELLO)))
    assert [event for event in events if event in HELLO] == HELLO
    assert not [event for event in events if isinstance(event, ErrorEvent)]


async def test_an_error_after_the_first_token_is_the_error_of_the_response() -> None:
    second = Scripted(HELLO)
    for first in ([TextEvent("a"), BUSY], [ReasoningEvent("a"), BUSY]):
        with pytest.raises(ChatError, match="busy"):
            await answer(fallback(Scripted(first), second))
    assert await answer(fallback(Scripted([TextEvent("a"), ErrorEvent("b")]), second)) == [
        TextEvent("a"),
        ErrorEvent("b"),
    ]
    assert not second.requests


async def test_the_error_of_the_last_model_is_the_error_of_the_response_with_its_status() -> None:
    with pytest.raises(ChatError, match="busy"):
        await answer(fallback(Scripted([RuntimeError()]), Scripted([UsageEvent(1, 0), BUSY])))
    with pytest.raises(ChatError, match="no memory") as failed:
        await answer(fallback(Scripted([ErrorEvent("no memory", "memory")])))
    assert (failed.value.status, failed.value.code) == (502, "memory")


async def test_the_usage_includes_that_of_the_failed_models() -> None:
    failing = Scripted([UsageEvent(10, 1), UsageEvent(20, 2, cached_tokens=5), BUSY])
    reporting = Scripted([TextEvent("a"), UsageEvent(1, 1), TextEvent("b"), UsageEvent(1, 2), FinishEvent()])
    assert [each for each in await answer(fallback(failing, reporting)) if isinstance(each, UsageEvent)] == [
        UsageEvent(10, 1),
        UsageEvent(20, 2, cached_tokens=5),
        UsageEvent(21, 3, cached_tokens=5),
        UsageEvent(21, 4, cached_tokens=5),
    ]
    nested = fallback(retried(failing, attempts=2, first_wait_s=0), Scripted(HELLO))
    assert (await answer(nested))[-3:] == [UsageEvent(40, 4, cached_tokens=10), *HELLO]


@pytest.mark.parametrize("chain", [fallback, retried, lambda model: first_token_within(model, 60)])
async def test_a_client_that_leaves_closes_the_model(chain: Any) -> None:
    model = PausedModel()
    async with aclosing(chain(model).chat(question())) as events:
        assert await anext(events) == TextEvent("one")
        assert model.running == 1
    assert model.running == 0
    waiting = asyncio.create_task(answer(chain(model)))
    await until(lambda: model.running == 1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert model.running == 0


async def test_a_model_is_called_again_if_its_failure_may_pass() -> None:
    model = Scripted([BUSY], [UsageEvent(1, 0), ErrorEvent("no memory")], HELLO)
    assert await answer(retried(model, first_wait_s=0)) == [UsageEvent(1, 0), *HELLO]
    assert len(model.requests) == 3


@pytest.mark.parametrize("failure", [[ChatError("too long")], [RuntimeError("a bug")], [TextEvent("a"), BUSY]], ids=str)
async def test_a_model_is_not_called_again_if_it_would_fail_again_or_has_begun(failure: Any) -> None:
    model = Scripted(failure, HELLO)
    with pytest.raises(type(failure[-1])):
        await answer(retried(model, first_wait_s=0))
    assert len(model.requests) == 1


async def test_the_last_attempt_fails_with_its_error() -> None:
    model = Scripted([BUSY])
    with pytest.raises(ChatError, match="busy"):
        await answer(retried(model, attempts=2, first_wait_s=0))
    assert len(model.requests) == 2


@given(st.integers(1, 2000), st.floats(0, 100), st.floats(0, 100), st.floats(0, 1), st.none() | st.floats(0, 200))
def test_a_wait_is_not_shorter_than_the_server_asks_and_not_longer_than_the_limit(
    number: int, first_wait_s: float, max_wait_s: float, chance: float, after_s: float | None
) -> None:
    error = ChatError("busy", status=429, retry_after_s=after_s)
    wait_s = retry_wait_s(error, number, first_wait_s, max_wait_s, chance)
    if after_s is not None and after_s > max_wait_s:
        assert wait_s is None
    else:
        assert wait_s is not None
        assert (after_s or 0) <= wait_s <= max_wait_s


def test_the_wait_doubles_with_each_attempt() -> None:
    assert [retry_wait_s(BUSY, number, 0.5, 3.0, 1.0) for number in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 3.0]
    assert retry_wait_s(BUSY, 3, 0.5, 3.0, 0.25) == 0.5


async def test_a_model_without_a_token_in_time_is_closed_and_fails() -> None:
    closed = asyncio.Event()

    async def slow(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        try:
            yield UsageEvent(1, 0)
            await asyncio.Event().wait()
        finally:
            closed.set()

    with pytest.raises(ChatError, match=r"has not begun to answer within 0\.01 s") as failed:
        await answer(first_token_within(slow, 0.01))
    assert (failed.value.status, failed.value.code) == (504, "first_token_timeout")
    assert closed.is_set()


async def test_the_limit_counts_to_the_first_token_only() -> None:
    async def begins(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        yield TextEvent("a")
        await asyncio.sleep(0.05)
        yield TextEvent("b")

    assert await answer(first_token_within(begins, 0.04)) == [TextEvent("a"), TextEvent("b")]
    assert await answer(first_token_within(Scripted([]), 1)) == []


async def test_a_timeout_of_the_model_itself_is_its_error() -> None:
    with pytest.raises(TimeoutError, match="of the model"):
        await answer(first_token_within(Scripted([TimeoutError("of the model")]), 60))


async def test_chains_are_models_of_chains() -> None:
    flaky = Scripted([BUSY], HELLO)
    assert await answer(fallback(first_token_within(never, 0.01), retried(flaky, first_wait_s=0))) == HELLO


def test_a_router_serves_a_chain_of_deployments() -> None:
    class Large(Deployment):
        async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
            raise ChatError("full", status=503)
            yield

    class Small(Deployment):
        async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
            yield TextEvent("small")

    small = Small.bind()
    app = Toolkit(title="Chain")
    app.include_router(openai_router({"chain": fallback(retried(Large.bind(), attempts=1), small), "small": small}))
    assert {each.config.name for each in plan(app, target="app:app", app_dir=".").deployments} >= {"large", "small"}
    body = {"model": "chain", "messages": [{"role": "user", "content": "hello"}]}
    with TestClient(app) as client:
        response = client.post("/chat/completions", json=body)
    assert response.json()["choices"][0]["message"]["content"] == "small"


@pytest.mark.parametrize(
    "chain",
    [
        fallback,
        lambda: retried(never, attempts=0),
        lambda: retried(never, first_wait_s=-1),
        lambda: first_token_within(never, 0),
    ],
)
def test_options_out_of_bounds_are_refused(chain: Any) -> None:
    with pytest.raises(ConfigError, match=r"^(fallback|retried|first_token_within)"):
        chain()


async def test_a_chain_counts_tokens_as_its_first_model() -> None:
    counter = counter_of(fallback(retried(EchoModel()), never))
    assert counter is not None
    assert await counter(question("two words")) == 2
    assert counter_of(fallback(never, EchoModel())) is None
