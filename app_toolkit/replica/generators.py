"""Closes the generators of a request that was broken off, without waiting for the garbage collector.

A framework that is cancelled while it sends an item leaves the generator of its response suspended at `yield`, in a
cycle with the frames of a traceback. Its `finally` would run when garbage is collected, which in an idle process is
never.
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

from app_toolkit.observability.context import READINGS, Reading

logger = logging.getLogger("app_toolkit.replica")

THREAD_S = 0.05
"""How often a thread that steps a generator is looked at."""

ENTER = _AsyncGeneratorContextManager.__aenter__.__code__
"""Begins the generator of an `@asynccontextmanager`."""

Generator = AsyncGenerator[Any, Any]


class Noticing:
    """The hook of an event loop's thread that is called when an asynchronous generator begins.

    A generator that begins in a request is one of its readings: if the request is broken off, and the task that began
    the generator has ended or is the request's own, the generator is closed. The generator of an `@asynccontextmanager`
    is none: `async with` ends it, and it may be a client that all requests share.
    """

    def __init__(self, before: Callable[[Generator], None] | None) -> None:
        self._before = before
        self._closing: set[asyncio.Task[None]] = set()

    def __call__(self, generator: Generator) -> None:
        if self._before is not None:
            self._before(generator)
        readings = READINGS.get()
        if readings is not None and sys._getframe(1).f_code is not ENTER:
            # Held weakly: a request that goes on for hours may begin many.
            weak, stepped = ref(generator, lambda _: readings.discard(reading)), _stepped_by_threads(generator)
            reading = Reading(lambda: self._close(weak, stepped))
            reading.reader = asyncio.current_task()
            readings.add(reading)

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
            while inner.gi_running:  # noqa: ASYNC110 - a thread that ends tells nobody
                await asyncio.sleep(THREAD_S)
            await anyio.to_thread.run_sync(inner.close)
    except Exception:  # of user code, for which nobody waits
        logger.exception("the generator %s failed when it was closed", (inner or generator).__qualname__)


def _stepped_by_threads(generator: Any) -> "ref[Any] | None":
    """The ordinary generator that Starlette has threads step, if this is its wrapper."""
    if generator.ag_code is not iterate_in_threadpool.__code__:
        return None
    inner = generator.ag_frame.f_locals["iterator"]
    return ref(inner) if inspect.isgenerator(inner) else None


def notice_generators() -> None:
    """Notice those that begin on the calling thread from now on, as long as its event loop runs."""
    hooks = sys.get_asyncgen_hooks()
    if not isinstance(hooks.firstiter, Noticing):
        sys.set_asyncgen_hooks(firstiter=Noticing(hooks.firstiter))
