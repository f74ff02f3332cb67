"""The object of a deployment's class: its start, calls and end."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from app_toolkit.calls.hosted_object import HostedObject
from app_toolkit.errors import ReconfigureError, StartupError
from app_toolkit.observability.context import ReplicaContext, replica_context
from app_toolkit.types import ReplicaId
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

HERE = ReplicaContext("shop", "writer", ReplicaId("shop/writer-1-1"))
STEP: ContextVar[int] = ContextVar("step", default=0)


class Writer:
    """Has every kind of method, and notes what happens to it."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes
        self.config: Any = None
        self.size = 3
        self.note("constructed")

    def note(self, event: str) -> None:
        thread = "loop" if threading.current_thread() is threading.main_thread() else "thread"
        self.notes.append(f"{event} on the {thread}")

    async def start(self) -> None:
        self.note("started")

    def reconfigure(self, config: Any) -> None:
        self.config = config
        self.note("reconfigured")

    async def ask(self, text: str, *, times: int = 1) -> str:
        self.note("asked")
        return text * times

    def count(self, *numbers: int) -> int:
        self.note("counted")
        return sum(numbers)

    async def tell(self, count: int) -> AsyncIterator[int]:
        try:
            for number in range(count):
                yield number
        finally:
            self.note("tell ended")

    def each(self, count: int) -> Iterator[int]:
        try:
            for _ in range(count):
                STEP.set(STEP.get() + 1)
                yield STEP.get()
        finally:
            self.note("gave each")

    async def forever(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.note("stopped")

    async def aclose(self) -> None:
        self.note("closed")

    def _secret(self) -> str:
        raise AssertionError


@asynccontextmanager
async def running(make: Any, **options: Any) -> AsyncIterator[HostedObject]:
    instance = HostedObject(make, name="writer", **options)
    await instance.start()
    try:
        yield instance
    finally:
        await instance.aclose()


async def test_an_object_is_constructed_started_configured_and_closed_in_this_order() -> None:
    notes: list[str] = []
    instance = HostedObject(lambda: Writer(notes), name="writer")
    await instance.start({"size": 1})
    await instance.aclose()
    assert notes == [
        "constructed on the thread",
        "started on the loop",
        "reconfigured on the thread",
        "closed on the loop",
    ]
    await instance.aclose()
    assert len(notes) == 4, "only once"
    for ask in (instance.call("ask", ("a",), {}), instance.check_health()):
        with pytest.raises(RuntimeError, match="writer does not run"):
            await ask


async def test_async_methods_run_on_the_loop_and_def_methods_on_a_thread() -> None:
    notes: list[str] = []
    async with running(lambda: Writer(notes)) as instance:
        del notes[:]
        assert await instance.call("ask", ("ab",), {"times": 2}) == "abab"
        assert await instance.call("count", (1, 2), {}) == 3
        assert [item async for item in instance.stream("tell", (3,), {})] == [0, 1, 2]
        assert [item async for item in instance.stream("each", (3,), {})] == [1, 2, 3], "one context for all steps"
        assert STEP.get() == 0
        assert notes == [
            "asked on the loop",
            "counted on the thread",
            "tell ended on the loop",
            "gave each on the thread",
        ]
        assert [instance.streams(name) for name in ("ask", "count", "tell", "each")] == [False, False, True, True]


@pytest.mark.parametrize("method", ["tell", "each"])
async def test_a_stream_that_is_not_read_to_its_end_is_closed_at_once(method: str) -> None:
    notes: list[str] = []
    async with running(lambda: Writer(notes)) as instance:
        async with aclosing(instance.stream(method, (1_000_000,), {})) as items:
            async for _ in items:
                break
        assert notes[-1].startswith("tell ended" if method == "tell" else "gave each")


async def test_a_generator_leaves_its_thread_between_two_items() -> None:
    notes: list[str] = []
    async with running(lambda: Writer(notes)) as instance, aclosing(instance.stream("each", (2,), {})) as items:
        assert await anext(items) == 1
        assert await instance.call("count", (1, 1), {}) == 2
        assert await anext(items) == 2


async def test_a_cancelled_call_cancels_an_async_method() -> None:
    notes: list[str] = []
    async with running(lambda: Writer(notes)) as instance:
        task = asyncio.create_task(instance.call("forever", (), {}))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert notes[-1] == "stopped on the loop"


async def test_a_generator_that_is_cancelled_in_a_step_is_closed_behind_that_step() -> None:
    begun, go = threading.Event(), threading.Event()
    events: list[str] = []

    class Slow:
        def each(self) -> Iterator[int]:
            try:
                begun.set()
                assert go.wait(PATIENCE_S)
                events.append("stepped")
                yield 1
                events.append("went on")
            finally:
                events.append("closed")

    async with running(Slow) as instance:
        items = instance.stream("each", (), {})
        task = asyncio.ensure_future(anext(items))
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        task.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert events == ["stepped", "closed"]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("_secret", "Writer._secret is private"),
        ("__class__", "Writer.__class__ is private"),
        ("missing", "Writer.missing is not a method"),
        ("size", "Writer.size is not a method"),
    ],
)
async def test_private_names_and_attributes_cannot_be_called(method: str, said: str) -> None:
    async with running(lambda: Writer([])) as instance:
        for ask in (instance.streams, lambda name: instance.stream(name, (), {})):
            with pytest.raises(AttributeError, match=said):
                ask(method)
        with pytest.raises(AttributeError, match=said):
            await instance.call(method, (), {})


async def test_a_stream_is_not_awaited_and_a_result_not_iterated() -> None:
    async with running(lambda: Writer([])) as instance:
        with pytest.raises(TypeError, match=r"Writer\.tell yields items: iterate over it"):
            await instance.call("tell", (1,), {})
        with pytest.raises(TypeError, match=r"Writer\.ask returns one result: await it"):
            instance.stream("ask", ("a",), {})


# Failures on the way up and down


def constructor_fails(notes: list[str]) -> object:
    raise ValueError("no such file")


class StartFails(Writer):
    async def start(self) -> None:
        raise ValueError("no such file")


class ReconfigureFails(Writer):
    def reconfigure(self, config: Any) -> None:
        raise ValueError("no such file")


@pytest.mark.parametrize("make", [constructor_fails, StartFails, ReconfigureFails])
async def test_a_failed_start_names_the_error_and_closes_the_object(make: Any) -> None:
    notes: list[str] = []
    instance = HostedObject(lambda: make(notes), name="writer")
    with pytest.raises(StartupError, match=r"^writer did not start: ValueError: no such file\n") as caught:
        await instance.start({})
    assert isinstance(caught.value.__cause__, ValueError)
    (note,) = caught.value.__notes__
    assert 'raise ValueError("no such file")' in note
    assert "app_toolkit/replica" not in note, "only the user's part of it"
    assert ("closed on the loop" in notes) == (make is not constructor_fails)


async def test_a_constructor_that_ends_the_process_does_not() -> None:
    instance = HostedObject(lambda: exit(3), name="writer")
    with pytest.raises(StartupError, match=r"it ends the process \(SystemExit: 3\)"):
        await instance.start()


async def test_a_user_config_for_a_class_that_takes_none_is_refused() -> None:
    class Plain:
        pass

    with pytest.raises(StartupError, match=r"Plain no reconfigure\(user_config\)"):
        await HostedObject(Plain, name="writer").start({"a": 1})
    async with running(Plain) as instance:
        with pytest.raises(
            ReconfigureError, match=r"writer has a user_config, and Plain no reconfigure\(user_config\)"
        ):
            await instance.reconfigure({"a": 1})


async def test_a_cancelled_start_closes_the_object() -> None:
    class Slow(Writer):
        async def start(self) -> None:
            await self.forever()

    notes: list[str] = []
    task = asyncio.create_task(HostedObject(lambda: Slow(notes), name="writer").start())
    async with asyncio.timeout(PATIENCE_S):
        while not notes:  # noqa: ASYNC110 - it is constructed on a thread
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert notes[-1] == "closed on the loop"


async def test_a_failed_close_is_raised_and_ends_the_threads() -> None:
    class Broken:
        def aclose(self) -> None:
            raise ValueError("not twice")

    instance = HostedObject(Broken, name="writer")
    await instance.start()
    with pytest.raises(ValueError, match="not twice"):
        await instance.aclose()
    assert not any("sync writer" in thread.name for thread in threading.enumerate())


async def test_a_failed_close_after_a_failed_start_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(StartFails):
        async def aclose(self) -> None:
            raise ValueError("not twice")

    with caplog.at_level(logging.ERROR), pytest.raises(StartupError, match="no such file"):
        await HostedObject(lambda: Broken([]), name="writer").start()
    assert [record.getMessage() for record in caplog.records] == ["writer did not close after its start had failed"]


# Health checks, user configs and the context of hooks


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_health_check_fails_when_the_hook_raises(is_async: bool) -> None:
    class Model:
        well = True

        def check(self) -> None:
            if not self.well:
                raise RuntimeError("out of memory")

        if is_async:

            async def check_health(self) -> None:
                self.check()
        else:

            def check_health(self) -> None:
                self.check()

    async with running(Model) as instance:
        await instance.check_health()
        Model.well = False
        with pytest.raises(RuntimeError, match="out of memory"):
            await instance.check_health()


async def test_replica_context_is_set_in_all_hooks_and_nowhere_else() -> None:
    seen: list[ReplicaContext] = []

    class Model:
        def __init__(self) -> None:
            seen.append(replica_context())

        async def start(self) -> None:
            seen.append(replica_context())

        async def check_health(self) -> None:
            seen.append(replica_context())

        def aclose(self) -> None:
            seen.append(replica_context())

    async with running(Model, replica=HERE) as instance:
        await instance.check_health()
        with pytest.raises(RuntimeError, match="was called outside of a replica"):
            replica_context()
    assert seen == [HERE] * 4


async def test_a_batch_of_calls_runs_on_as_many_threads_as_it_may() -> None:
    together = threading.Barrier(3)

    class Model:
        def meet(self) -> int:
            return together.wait(PATIENCE_S)

    async with running(Model, sync_threads=3) as instance:
        met = await asyncio.gather(*(instance.call("meet", (), {}) for _ in range(3)))
    assert sorted(met) == [0, 1, 2]
