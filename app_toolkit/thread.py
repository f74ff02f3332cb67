"""A server on the event loop of a thread of its own, which other threads control."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

from app_toolkit.errors import ReplicaGone, StartupError, Unresponsive

logger = logging.getLogger("app_toolkit.thread")

T = TypeVar("T")


class ServerThread:
    """A thread whose event loop runs one server.

    Other threads call all methods, except `report_ready`, which the server calls. A thread can be started only once.
    """

    def __init__(
        self,
        name: str,
        loop_name: str,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        """Create the thread, and do not start it.

        Parameters:
            name: The name of the thread.
            loop_name: What errors call the event loop.
            new_loop: Creates the event loop. It is called on the thread.
        """
        self._loop_name = loop_name
        self._new_loop = new_loop
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._ready: Future[None] = Future()
        # Set by `start`.
        self._serve: Callable[[], Coroutine[Any, Any, None]]
        self._close: Callable[[], None]
        # Set on the thread while it starts.
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, serve: Callable[[], Coroutine[Any, Any, None]], close: Callable[[], None] = lambda: None) -> None:
        """Run the coroutine of `serve` on the event loop, and wait until it calls `report_ready`.

        `close` is called on the thread when the event loop has ended, also if the start fails.

        Raises what the coroutine raises before it is ready, and `StartupError` if it returns before that.
        """
        self._serve, self._close = serve, close
        self._thread.start()
        self._ready.result()

    def report_ready(self) -> None:
        """Let `start` return. The server calls this once it serves."""
        self._ready.set_result(None)

    @property
    def is_running(self) -> bool:
        """Whether the event loop has started and not ended."""
        return self._loop is not None and not self._loop.is_closed() and self._thread.is_alive()

    @property
    def has_ended(self) -> bool:
        """Whether the thread was started and has ended."""
        return self._thread.ident is not None and not self._thread.is_alive()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function on the event loop soon. Do nothing if the event loop does not run."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(function, *arguments)

    def submit(self, question: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the event loop. Raises `ReplicaGone` if the event loop does not run."""
        if self._loop is None:
            question.close()
            raise ReplicaGone(f"{self._loop_name} has not started")
        try:
            return asyncio.run_coroutine_threadsafe(question, self._loop)
        except RuntimeError:
            question.close()
            raise ReplicaGone(f"{self._loop_name} has ended") from None

    def ask(self, question: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Return the result of a coroutine on the event loop.

        Raises `Unresponsive` if there is none within `timeout_s` seconds, and `ReplicaGone` if the event loop does not
        run.
        """
        asked = self.submit(question)
        if not wait((asked,), timeout_s).done:  # a `TimeoutError` may also be the result
            asked.cancel()
            raise Unresponsive(f"{self._loop_name} did not answer within {timeout_s:g} s", None)
        return asked.result()

    def join(self, timeout_s: float) -> bool:
        """Wait until the thread has ended, at most `timeout_s` seconds. Return whether it runs no more."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        failure: BaseException = StartupError(f"{self._loop_name} ended while it started")
        try:
            with asyncio.Runner(loop_factory=self._new_loop) as runner:
                self._loop = runner.get_loop()
                runner.run(self._serve())
        except BaseException as error:  # no other code handles an error of this thread
            failure = error
            if self._ready.done():
                logger.critical("%s ended", self._loop_name, exc_info=error)
        try:
            self._close()
        finally:
            if not self._ready.done():
                self._ready.set_exception(failure)
