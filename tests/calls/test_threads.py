"""The threads that `def` methods run on."""

import asyncio
import gc
import threading
import weakref
from contextvars import ContextVar

import pytest

from app_toolkit.calls.threads import SyncThreads
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

WHO: ContextVar[str] = ContextVar("who", default="nobody")


class Door:
    """What a function waits at until the test lets it through."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self) -> str:
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)
        return threading.current_thread().name

    async def until_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 5)


async def test_one_thread_runs_everything_in_the_order_in_which_it_came() -> None:
    threads = SyncThreads(1, name="writer")
    order: list[tuple[int, str]] = []

    def note(number: int) -> None:
        order.append((number, threading.current_thread().name))

    await asyncio.gather(*(threads.run(lambda number=number: note(number)) for number in range(20)))  # type: ignore[misc]
    assert order == [(number, "app-toolkit sync writer 0") for number in range(20)]
    await threads.aclose()


async def test_several_threads_run_as_much_at_a_time_and_no_more() -> None:
    threads = SyncThreads(2, name="writer")
    doors = [Door() for _ in range(3)]
    running = [asyncio.create_task(threads.run(door)) for door in doors]
    for door in doors[:2]:
        await door.until_reached()
    assert not doors[2].reached.is_set()
    doors[0].opened.set()
    await doors[2].until_reached()
    for door in doors[1:]:
        door.opened.set()
    names = await asyncio.gather(*running)
    assert names[0] != names[1]
    assert names[2] == names[0], "the first that was free"
    await threads.aclose()


async def test_an_exception_is_raised_at_the_await() -> None:
    threads = SyncThreads(1, name="writer")
    for error in (ValueError("no"), SystemExit(3)):

        def fail(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            await threads.run(fail)
        assert caught.value is error

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        await threads.run(lambda: next(iter(())))
    assert await threads.run(lambda: "still there") == "still there"
    await threads.aclose()


async def test_a_thread_has_a_copy_of_the_callers_context() -> None:
    threads = SyncThreads(1, name="writer")

    def swap() -> str:
        before = WHO.get()
        WHO.set("the thread")
        return before

    token = WHO.set("the caller")
    assert await threads.run(swap) == "the caller"
    assert WHO.get() == "the caller"
    WHO.reset(token)
    assert await threads.run(swap) == "nobody"
    await threads.aclose()


async def test_a_cancelled_wait_ends_with_its_thread_however_often_it_is_cancelled() -> None:
    threads = SyncThreads(1, name="writer")
    door = Door()
    task = asyncio.create_task(threads.run(door))
    await door.until_reached()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done()
    door.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await threads.aclose()


async def test_a_function_cancelled_before_its_start_is_not_run() -> None:
    threads = SyncThreads(1, name="writer")
    first, second = Door(), Door()
    running = asyncio.create_task(threads.run(first))
    await first.until_reached()
    waiting = asyncio.create_task(threads.run(second))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not running.done(), "nobody waited for the one before"
    first.opened.set()
    await running
    await threads.aclose()
    assert not second.reached.is_set()


async def test_aclose_waits_for_queued_functions_and_refuses_others() -> None:
    threads = SyncThreads(2, name="writer")
    doors = [Door() for _ in range(5)]
    running = [asyncio.create_task(threads.run(door)) for door in doors]
    await doors[0].until_reached()
    closing = asyncio.create_task(threads.aclose())
    for door in doors:
        door.opened.set()
    await closing
    assert all(door.reached.is_set() for door in doors)
    await asyncio.gather(*running)
    await threads.aclose()
    with pytest.raises(RuntimeError, match="the threads of writer have ended"):
        await threads.run(doors[0])


async def test_threads_start_when_they_are_needed() -> None:
    before = threading.active_count()
    threads = SyncThreads(4, name="writer")
    assert threading.active_count() == before
    await threads.aclose()


async def test_an_idle_thread_keeps_neither_arguments_nor_results_nor_errors() -> None:
    class Large:
        pass

    class Failure(Exception):
        pass

    threads = SyncThreads(1, name="writer")
    kept: list[weakref.ref[object]] = []

    def make() -> Large:
        large = Large()
        kept.append(weakref.ref(large))
        return large

    def fail() -> None:
        raise Failure

    gc.disable()  # nothing waits for the collector
    try:
        await threads.run(make)
        try:
            await threads.run(fail)
        except Failure as error:
            kept.append(weakref.ref(error))
        await threads.run(lambda: None)
        assert [one() for one in kept] == [None, None]
    finally:
        gc.enable()
        await threads.aclose()
