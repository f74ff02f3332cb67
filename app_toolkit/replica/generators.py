"""Closes the generators of an aborted request, without waiting for the garbage collector.

A framework that is cancelled while it sends an item leaves the generator of its response suspended at `yield`, in a
reference cycle with the frames of a traceback. Its `finally` block would run only when garbage is collected, which in
an idle process never happens. A generator that is no `async def` is left to Python, as under uvicorn.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import _AsyncGeneratorContextManager
from typing import Any
from weakref import ref

from app_toolkit.observability.context import READ_STREAMS, ReadStream

logger = logging.getLogger("app_toolkit.replica")

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
            weak = ref(generator, lambda _: read_streams.discard(read_stream))
            read_stream = ReadStream(lambda: self._close(weak))
            read_stream.reader = asyncio.current_task()
            read_streams.add(read_stream)

    def _close(self, weak: "ref[Generator]") -> None:
        generator: Any = weak()
        if generator is None or generator.ag_running or generator.ag_frame is None:
            return
        task = asyncio.get_running_loop().create_task(_close(generator))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def _close(generator: Any) -> None:
    try:
        await generator.aclose()
    except Exception:  # raised by user code, and no caller awaits this task
        logger.exception("the generator %s failed when it was closed", generator.__qualname__)


def notice_generators() -> None:
    """Notice generators that begin on the calling thread from now on, as long as its event loop runs."""
    hooks = sys.get_asyncgen_hooks()
    if not isinstance(hooks.firstiter, Noticing):
        sys.set_asyncgen_hooks(firstiter=Noticing(hooks.firstiter))
