"""The threads that the `def` methods of one object run on."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


_OWNERS: "dict[int, SyncThreads]" = {}
"""By the id of the object, while it lives."""


def threads_of(instance: object) -> "SyncThreads | None":
    """Where the `def` methods of a deployment's object run; None for any other object."""
    return _OWNERS.get(id(instance))


class SyncThreads:
    """So many threads, which take what is run in the order in which it came.

    Whoever runs something waits until its thread has ended it, also where the wait is cancelled: a thread cannot be
    stopped, and as long as it works, what the caller holds (a slot, a turn) is in use. What has not begun by then is
    not run. Nothing bounds the queue here: the gate has admitted everybody who waits.
    """

    def __init__(self, count: int, *, name: str) -> None:
        """`name` is for the names of the threads, which start when the first has something to do."""
        self._count = count
        self._name = name
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._threads: list[tuple[threading.Thread, Future[None]]] = []
        self._owner: int | None = None
        self._closed = False

    async def run(self, function: Callable[[], T], context: Context | None = None) -> T:
        """What the function gives, run on one of the threads; raises what it raises.

        `context`: what it runs in; None: a copy of the caller's. Raises `RuntimeError` after `aclose`.
        """
        if self._closed:
            raise RuntimeError(f"the threads of {self._name} have ended")
        if not self._threads:
            self._begin()
        job = _Job(function, context or copy_context())
        self._jobs.put(job)
        try:
            return await asyncio.wrap_future(job.done)
        except asyncio.CancelledError:
            if not job.done.cancel():
                await _end_of(job.done)
            raise
        finally:
            del job  # else an error, its traceback and this frame would keep each other

    def own(self, instance: object) -> None:
        """These are its threads, until `aclose`."""
        _OWNERS[id(instance)] = self
        self._owner = id(instance)

    async def aclose(self) -> None:
        """End the threads, once they have run what waits."""
        if self._closed:
            return
        self._closed = True
        if self._owner is not None:
            del _OWNERS[self._owner]
        for _ in self._threads:
            self._jobs.put(None)
        for thread, ended in self._threads:
            await asyncio.wrap_future(ended)
            thread.join()

    def _begin(self) -> None:
        for number in range(self._count):
            ended: Future[None] = Future()
            thread = threading.Thread(
                target=self._work, args=(ended,), name=f"app-toolkit sync {self._name} {number}", daemon=True
            )
            self._threads.append((thread, ended))
            thread.start()

    def _work(self, ended: Future[None]) -> None:
        ended.set_running_or_notify_cancel()
        while (job := self._jobs.get()) is not None:
            job.run()
            del job  # an idle thread keeps no result
        ended.set_result(None)

    def __repr__(self) -> str:
        return f"<SyncThreads {self._name} [{self._jobs.qsize()} waiting | {self._count} threads]>"


class _Job(Generic[T]):
    __slots__ = ("_context", "_function", "done")

    def __init__(self, function: Callable[[], T], context: Context) -> None:
        self._function = function
        self._context = context
        self.done: Future[T] = Future()

    def run(self) -> None:
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            result = self._context.run(self._function)
        except StopIteration as error:
            # No future takes it, and whoever waits would wait for ever; a coroutine makes the same of it.
            failure = RuntimeError("a `def` method raised StopIteration")
            failure.__cause__ = error
            self.done.set_exception(failure)
        except BaseException as error:  # whoever waits is told
            self.done.set_exception(error)
        else:
            self.done.set_result(result)
        finally:
            del self  # as in `SyncThreads.run`


async def _end_of(future: "Future[T]") -> None:
    """Wait for it whatever happens; further cancellations change nothing."""
    loop = asyncio.get_running_loop()
    while not future.done():
        over = asyncio.Event()
        future.add_done_callback(lambda _, over=over: loop.call_soon_threadsafe(over.set))  # type: ignore[misc]
        with suppress(asyncio.CancelledError):
            await over.wait()
