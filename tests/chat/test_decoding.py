"""Sequences that run together, one step of the model after the other."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app_toolkit.errors import ChatError, QueueFull
from tests.chat import tiny_model as tiny
from tests.patience import PATIENCE_S, until

decoding = pytest.importorskip("app_toolkit.chat.decoding", reason=tiny.REASON)

pytestmark = [pytest.mark.anyio, pytest.mark.slow]  # torch alone takes seconds to import

GREEDY = {"temperature": 1.0, "top_k": 1, "top_p": 1.0}
A, B, C = [10, 20, 30], [40, 50, 60, 70, 80], [90, 100]


class Steps:
    """The steps of a model, which a test allows one by one."""

    def __init__(self, model: Any) -> None:
        self.sizes: list[int] = []
        """The number of tokens that each step reads: all of a new prompt, one of any other sequence."""
        self.error: Exception | None = None
        self._allowed = threading.Semaphore(0)
        self._free = False
        model.register_forward_pre_hook(self._before, with_kwargs=True)

    def _before(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if not self._free:
            assert self._allowed.acquire(timeout=PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.sizes.append(kwargs["input_ids"].shape[-1])

    async def allow(self, steps: int = 1) -> None:
        """Allow steps, and wait until they have begun."""
        due = len(self.sizes) + steps
        for _ in range(steps):
            self._allowed.release()
        await until(lambda: len(self.sizes) >= due)

    def let_go(self) -> None:
        """Allow all further steps."""
        self._free = True
        self._allowed.release()


@asynccontextmanager
async def decoder(
    max_running: int = 3, max_waiting: int = 5, cache_tokens: int = 512
) -> AsyncIterator[tuple[Any, Steps]]:
    model = tiny.tiny_model()
    steps = Steps(model)
    made = decoding.BatchedDecoder(
        model,
        model.generation_config,
        max_running=max_running,
        max_waiting=max_waiting,
        cache_tokens=cache_tokens,
        max_batch_tokens=64,
    )
    try:
        yield made, steps
    finally:
        steps.let_go()
        await asyncio.to_thread(made.close)
        assert not made.running


async def collected(sequence: AsyncGenerator[list[int], None]) -> list[int]:
    return [token async for tokens in sequence for token in tokens]


async def test_a_sequence_joins_at_the_next_step_and_leaves_when_it_is_complete() -> None:
    async with decoder() as (made, steps):
        first = asyncio.create_task(collected(made.decode(A, 6, GREEDY)))
        await steps.allow(2)
        second = asyncio.create_task(collected(made.decode(B, 2, GREEDY)))
        await asyncio.sleep(0)
        await steps.allow(4)
        assert await second == tiny.alone(B, 2)
        assert await first == tiny.alone(A, 6)
    joined = steps.sizes.index(1 + len(B))
    assert joined in (2, 3)
    assert steps.sizes == [len(A), *[1] * (joined - 1), 1 + len(B), 2, *[1] * (4 - joined)]


async def test_a_cancelled_sequence_leaves_at_the_next_step() -> None:
    async with decoder() as (made, steps):
        first = asyncio.create_task(collected(made.decode(A, 100, GREEDY)))
        second = asyncio.create_task(collected(made.decode(B, 12, GREEDY)))
        await asyncio.sleep(0)
        await steps.allow(4)
        assert steps.sizes[-1] == 2
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await steps.allow(2)
        assert steps.sizes[-1] == 1
        steps.let_go()
        assert await second == tiny.alone(B, 12)


async def test_a_waiting_sequence_takes_the_place_of_one_that_leaves() -> None:
    async with decoder(max_running=1, max_waiting=1) as (made, steps):
        first = made.decode(A, 100, GREEDY)
        running = asyncio.ensure_future(anext(first))
        await asyncio.sleep(0)
        await steps.allow(3)
        second = asyncio.create_task(collected(made.decode(B, 3, GREEDY)))
        await asyncio.sleep(0)
        await steps.allow(3)
        assert steps.sizes == [len(A), 1, 1, 1, 1, 1]
        with pytest.raises(QueueFull, match="2 sequences run or wait in this replica already"):
            await anext(made.decode(C, 3, GREEDY))
        await running
        await first.aclose()
        steps.let_go()
        assert await second == tiny.alone(B, 3)
    assert steps.sizes[6:].count(len(B)) == 1


async def test_a_long_prompt_is_read_in_several_steps() -> None:
    prompt = [number % 200 + 1 for number in range(150)]
    async with decoder() as (made, steps):
        steps.let_go()
        assert await collected(made.decode(prompt, 4, GREEDY)) == tiny.alone(prompt, 4)
    assert steps.sizes == [64, 64, 150 - 128, 1, 1, 1]


async def test_sequences_that_need_more_cache_than_available_alternate() -> None:
    async with decoder(cache_tokens=128) as (made, steps):
        steps.let_go()
        found = await asyncio.gather(*(collected(made.decode(each, 60, GREEDY)) for each in (A, B, C)))
    assert found == [tiny.alone(each, 60) for each in (A, B, C)]


async def test_a_step_that_fails_ends_all_sequences() -> None:
    async with decoder() as (made, steps):
        tasks = [asyncio.create_task(collected(made.decode(each, 50, GREEDY))) for each in (A, B)]
        await asyncio.sleep(0)
        await steps.allow(2)
        steps.error = RuntimeError("out of memory at a secret place")
        steps.let_go()
        for task in tasks:
            with pytest.raises(ChatError, match="the model failed") as failed:
                await task
            assert failed.value.status == 500
        await until(lambda: not made.running)
        with pytest.raises(ChatError, match="the model does not run") as refused:
            await collected(made.decode(C, 3, GREEDY))
        assert refused.value.status == 503


async def test_sequences_fail_when_the_model_is_closed() -> None:
    async with decoder() as (made, steps):
        task = asyncio.create_task(collected(made.decode(A, 200, GREEDY)))
        await asyncio.sleep(0)
        await steps.allow(2)
        closing = asyncio.create_task(asyncio.to_thread(made.close))
        await asyncio.sleep(0)
        steps.let_go()
        with pytest.raises(ChatError, match="the model failed"):
            await task
        await closing
