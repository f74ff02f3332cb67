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
"""The threads by the id of their object, until `aclose`."""


def threads_of(hosted: object) -> "SyncThreads | None":
    """Return the threads for the `def` methods of a deployment's object; None for any other object."""
    return _OWNERS.get(id(hosted))


class SyncThreads:
    """A fixed number of threads, which run functions in the order in which these were submitted.

    The caller of `run` waits until its function has ended, even if the caller is cancelled: a thread cannot be stopped,
    and as long as it works, what the caller holds (a slot, a running batch) is in use. A function that has not begun at
    cancellation is not run. The queue has no limit, because admission control has admitted all requests that wait in
    it.
    """

    def __init__(self, count: int, *, name: str) -> None:
        """`name` is for the names of the threads. They start when the first function is run."""
        self._count = count
        self._name = name
        self._jobs: SimpleQueue[_Job[Any] | None] = SimpleQueue()
        self._threads: list[tuple[threading.Thread, Future[None]]] = []
        self._owner: int | None = None
        self._closed = False

    async def run(self, function: Callable[[], T], context: Context | None = None) -> T:
        """Run a function on one of the threads and return its result. Raises what the function raises.

        `context`: the context to run in; None: a copy of the caller's context. Raises `RuntimeError` after `aclose`.
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
            del job  # otherwise an error, its traceback and this frame would refer to each other

    def own(self, hosted: object) -> None:
        """Make these the threads of an object, until `aclose`."""
        _OWNERS[id(hosted)] = self
        self._owner = id(hosted)

    async def aclose(self) -> None:
        """End the threads after they have run the queued functions."""
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
            del job  # an idle thread must not keep a result alive
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
            # A future does not accept StopIteration, so the caller would wait forever. A coroutine converts it in the
            # same way.
            failure = RuntimeError("a `def` method raised StopIteration")
            failure.__cause__ = error
            self.done.set_exception(failure)
        except BaseException as error:  # raised in the waiting caller
            self.done.set_exception(error)
        else:
            self.done.set_result(result)
        finally:
            del self  # as in `SyncThreads.run`


async def _end_of(future: "Future[T]") -> None:
    """Wait for the end of a future, even if this task is cancelled meanwhile."""
    loop = asyncio.get_running_loop()
    while not future.done():
        over = asyncio.Event()
        future.add_done_callback(lambda _, over=over: loop.call_soon_threadsafe(over.set))  # type: ignore[misc]
        with suppress(asyncio.CancelledError):
            await over.wait()
