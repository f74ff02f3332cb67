"""Closes the generators of an aborted request, without waiting for the garbage collector.

A framework that is cancelled while it sends an item leaves the generator of its response suspended at `yield`, in a
reference cycle with the frames of a traceback. Its `finally` block would run only when garbage is collected, which in
an idle process never happens.
"""

import asyncio
import inspect
import logging
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import _AsyncGeneratorContextManager
from typing import Any
from weakref import ref

import anyio.to_thread
from starlette.concurrency import iterate_in_threadpool

from app_toolkit.observability.context import READ_STREAMS, ReadStream

logger = logging.getLogger("app_toolkit.replica")

THREAD_S = 0.05
"""Interval in seconds at which a generator that a thread steps is checked."""

ENTER = _AsyncGeneratorContextManager.__aenter__.__code__
"""The code that begins the generator of an `@asynccontextmanager`."""

Generator = AsyncGenerator[Any, Any]


class Noticing:
    """The hook of an event loop's thread that is called when an asynchronous generator begins.

    A generator that begins in a request is one of the request's read streams. If the request is aborted, and the task
    that began the generator has ended or is the request's own task, the generator is closed. The generator of an
    `@asynccontextmanager` is not a read stream: `async with` ends it, and it may be a client that all requests share.
    """

    def __init__(self, before: Callable[[Generator], None] | None) -> None:
        self._before = before
        self._closing: set[asyncio.Task[None]] = set()

    def __call__(self, generator: Generator) -> None:
        if self._before is not None:
            self._before(generator)
        read_streams = READ_STREAMS.get()
        if read_streams is not None and sys._getframe(1).f_code is not ENTER:
            # A weak reference: a request that runs for hours may begin many generators.
            weak, stepped = ref(generator, lambda _: read_streams.discard(read_stream)), _stepped_by_threads(generator)
            read_stream = ReadStream(lambda: self._close(weak, stepped))
            read_stream.reader = asyncio.current_task()
            read_streams.add(read_stream)

    def _close(self, weak: "ref[Generator]", stepped: "ref[Any] | None") -> None:
        generator: Any = weak()
        if generator is None or generator.ag_running:
            return
        inner = None if stepped is None else stepped()
        if generator.ag_frame is None and (inner is None or inner.gi_frame is None):
            return
        task = asyncio.get_running_loop().create_task(_close(generator, inner))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close(generator: Any, inner: Any) -> None:
    try:
        await generator.aclose()
        if inner is not None:
            while inner.gi_running:  # noqa: ASYNC110 - a thread does not report its end
                await asyncio.sleep(THREAD_S)
            await anyio.to_thread.run_sync(inner.close)
    except Exception:  # raised by user code, and no caller awaits this task
        logger.exception("the generator %s failed when it was closed", (inner or generator).__qualname__)


def _stepped_by_threads(generator: Any) -> "ref[Any] | None":
    """Return the ordinary generator that Starlette steps in threads, if this is Starlette's wrapper; otherwise None."""
    if generator.ag_code is not iterate_in_threadpool.__code__:
        return None
    inner = generator.ag_frame.f_locals["iterator"]
    return ref(inner) if inspect.isgenerator(inner) else None


def notice_generators() -> None:
    """Notice generators that begin on the calling thread from now on, as long as its event loop runs."""
    hooks = sys.get_asyncgen_hooks()
    if not isinstance(hooks.firstiter, Noticing):
        sys.set_asyncgen_hooks(firstiter=Noticing(hooks.firstiter))
