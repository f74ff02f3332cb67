"""A small data plane in this process, and a class with a method of every kind, for tests of handles."""

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from app_toolkit import Deployment
from app_toolkit.calls import handle
from app_toolkit.interfaces import Call, Callee, Deployable
from tests.patience import PATIENCE_S

LANGUAGE: ContextVar[str] = ContextVar("language", default="none")


class InProcess:
    """Calls one object of the class, on one loop. Counts what is under way."""

    def __init__(self, deployment: Deployable, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.object = deployment.make()
        self.calls: list[Call] = []
        self.ongoing = 0

    def _method(self, call: Call) -> Any:
        assert asyncio.get_running_loop() is self.loop
        self.calls.append(call)
        return getattr(self.object, call.method)(*call.args, **call.kwargs)

    async def call(self, call: Call) -> Any:
        self.ongoing += 1
        try:
            result = self._method(call)
            return await result if inspect.isawaitable(result) else result
        finally:
            self.ongoing -= 1

    fetch = call

    async def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        self.ongoing += 1
        items = self._method(call)
        try:
            if isinstance(items, AsyncGenerator):
                async for item in items:
                    yield item
            else:
                for item in items:
                    yield item
        finally:
            if isinstance(items, AsyncGenerator):
                await items.aclose()
            else:
                items.close()
            self.ongoing -= 1


class Local:
    """A data plane of such callers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.callers: dict[Deployable, InProcess] = {}

    def client_of(self, deployment: Callee, shard_key: str | None = None) -> InProcess:
        if deployment not in self.callers:
            self.callers[deployment] = InProcess(deployment, self.loop)
        return self.callers[deployment]


@contextmanager
def served_here() -> Iterator[Local]:
    """On the loop that runs."""
    data_plane = Local(asyncio.get_running_loop())
    handle.use(data_plane)
    try:
        yield data_plane
    finally:
        handle.use(None)


@contextmanager
def served_elsewhere() -> Iterator[Local]:
    """On the loop of a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="app-toolkit-test-data-plane")
    thread.start()
    data_plane = Local(loop)
    handle.use(data_plane)
    try:
        yield data_plane
    finally:
        handle.use(None)
        asyncio.run_coroutine_threadsafe(_until_idle(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _until_idle() -> None:
    """What was cancelled has ended, and nothing else was left."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=PATIENCE_S)
    assert not left, f"a test left calls behind: {left}"


class Writer(Deployment):
    """`log` is what happened at the callee."""

    style = "plain"

    def __init__(self, model: str = "small") -> None:
        self.model = model
        self.log: list[str] = []
        self.started = threading.Event()
        self.ended = threading.Event()

    async def write(self, prompt: str, *, times: int = 1) -> str:
        return f"{self.model}: {prompt * times}"

    async def fail(self) -> None:
        raise LookupError("no such word")

    async def language(self) -> str:
        return LANGUAGE.get()

    async def wait(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.log.append("wait ended")
            self.ended.set()

    async def wait_badly(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("no way out")

    async def count(self, to: int) -> AsyncIterator[int]:
        self.started.set()
        try:
            async with asyncio.timeout(60):  # needs one task from its beginning to its end
                for number in range(to):
                    self.log.append(f"made {number}")
                    yield number
        finally:
            self.log.append("count ended")
            self.ended.set()

    async def break_off(self) -> AsyncIterator[int]:
        yield 1
        raise LookupError("no second word")

    async def break_off_at_once(self) -> AsyncIterator[int]:
        raise LookupError("no first word")
        yield 1

    def score(self, text: str) -> int:
        return len(text)

    def spell(self, text: str) -> Iterator[str]:
        try:
            yield from text
        finally:
            self.ended.set()

    def _secret(self) -> None: ...
