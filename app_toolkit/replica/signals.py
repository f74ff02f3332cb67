"""Signal handlers for user code that does not run on the main thread.

Under plain uvicorn an app runs on the main thread and may install signal handlers in its lifespan. In a replica it runs
on the thread of the data loop, where Python refuses them. This module lets the main thread install them instead. An
otherwise unused signal wakes the main thread, which calls the real `signal.signal` and forwards the signals that arrive
to the data loop. This works whenever the main thread runs Python code from time to time, as an idle worker does every
few milliseconds.
"""

import asyncio
import inspect
import os
import signal
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from types import FrameType
from typing import Any, TypeVar, TypeVarTuple

import uvloop

from app_toolkit.types import LoopKind

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

WAKE = signal.SIGRTMIN + 7
"""The signal that makes the main thread run its queued functions. No known program uses it."""
WAIT_S = 2.0
"""Time in seconds that the main thread may take to do so. An idle one takes milliseconds."""

Handler = Any
"""A signal handler as in the standard library: a callable, an int, a `signal.Handlers` or None."""


class Signals:
    """Allows the thread of the data loop to install signal handlers.

    On that thread, `signal.signal`, `loop.add_signal_handler` and `loop.remove_signal_handler` have the same effect as
    on the main thread of a plain server. Handlers run on the data loop. A signal keeps its previous handler until user
    code installs one.
    """

    def __init__(self) -> None:
        """Call this on the main thread. Raises `RuntimeError` on others, or if the wake-up signal has a handler."""
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(f"Signals() was called on thread {threading.current_thread().name!r}, not the main one")
        if (handler := signal.getsignal(WAKE)) is not signal.SIG_DFL:
            raise RuntimeError(f"signal {int(WAKE)}, which wakes the main thread, has a handler already: {handler!r}")
        self._signal = signal.signal
        self._getsignal = signal.getsignal
        self._data_thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        # At most two at a time: the data thread waits for each, and so does the order to stop.
        self._queued: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        # The handlers from before user code: user code that restores one gets that very handler, not a forwarded one.
        self._found: dict[int, Handler] = {}
        signal.signal(WAKE, self._run_queued)

    def new_loop(self, kind: LoopKind) -> "UVLoop | AsyncioLoop":
        """Create an event loop for the calling thread, which from now on is the thread that user code runs on."""
        self._data_thread = threading.current_thread()
        self._loop = loop = UVLoop(self) if kind == "uvloop" else AsyncioLoop(self)
        signal.signal = self.signal  # type: ignore[assignment]
        signal.getsignal = self.getsignal  # type: ignore[assignment]
        return loop

    def close(self) -> None:
        """Restore everything. Call this on the main thread, after the event loop has ended."""
        signal.signal = self._signal
        signal.getsignal = self._getsignal
        self._give_back()
        self._signal(WAKE, signal.SIG_DFL)

    # Replacements of the standard library's functions

    def signal(self, signalnum: int, handler: Handler, /) -> Handler:
        """`signal.signal`, also on the data thread."""
        if not self._on_data_thread():
            return _as_set(self._signal(signalnum, handler))  # raises on any thread except the main one
        if callable(handler) and handler is not self._found.get(signalnum):
            assert self._loop is not None
            handler = Forward(self._loop, handler, (signalnum, None), seen_as=handler)
        return _as_set(self.install(signalnum, handler))

    def getsignal(self, signalnum: int, /) -> Handler:
        """`signal.getsignal`, which returns the handlers of user code."""
        return _as_set(self._getsignal(signalnum))

    def install(self, signalnum: int, handler: Handler) -> Handler:
        """Install a handler from the data thread. Return the previous one."""
        if not self._on_data_thread():
            raise RuntimeError("signal handlers of the data loop are installed from its own thread")

        def install() -> Handler:
            before = self._signal(signalnum, handler)
            if not isinstance(before, Forward):
                self._found.setdefault(signalnum, before)
            return before

        return self._on_main(install)

    def restore(self, signalnum: int) -> bool:
        """Restore the handler from before the data loop's own. Return False if the data loop has none for it."""
        current = self._getsignal(signalnum)
        if not isinstance(current, Forward) or current.seen_as is not None:
            return False
        self.install(signalnum, _installable(self._found.get(signalnum)))
        return True

    def loop_ends(self) -> None:
        """Restore the handlers of all signals that user code handles, because the event loop ends."""
        if self._found:
            with suppress(RuntimeError):  # a main thread that does not respond does not run signal handlers either
                self._on_main(self._give_back)

    def _give_back(self) -> None:
        for number, handler in self._found.items():
            self._signal(number, _installable(handler))
        self._found.clear()

    # Access to the main thread

    def _on_data_thread(self) -> bool:
        return threading.current_thread() is self._data_thread

    def start_on_main(self, work: Callable[[], T]) -> Future[T]:
        """Run a function on the main thread. Return its future result at once. Thread-safe."""
        done: Future[T] = Future()
        self._queued.append((done, work))
        os.kill(os.getpid(), WAKE)
        return done

    def _on_main(self, work: Callable[[], T]) -> T:
        done = self.start_on_main(work)
        try:
            return done.result(WAIT_S)
        except TimeoutError:
            if not done.cancel():  # it has begun after all
                return done.result()
            raise RuntimeError(
                f"the main thread did not install a signal handler within {WAIT_S:g} s: "
                "it runs code that does not return to Python"
            ) from None

    def _run_queued(self, signalnum: int, frame: FrameType | None) -> None:
        while self._queued:
            done, work = self._queued.popleft()
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except Exception as error:  # raised in the waiting thread
                    done.set_exception(error)


class Forward:
    """A handler on the main thread. It calls the user's handler on the data loop, in the context that set it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Callable[..., Any],
        arguments: tuple[Any, ...],
        seen_as: Handler,
    ) -> None:
        self.seen_as = seen_as
        """The handler that user code passed to `signal.signal`; None for a handler of `loop.add_signal_handler`."""
        self._loop = loop
        self._call = call
        self._arguments = arguments
        self._context = copy_context()

    def __call__(self, signalnum: int, frame: FrameType | None) -> None:
        with suppress(RuntimeError):  # the event loop has ended, so its handlers are obsolete
            self._loop.call_soon_threadsafe(self._call, *self._arguments, context=self._context)


class _Loop(asyncio.AbstractEventLoop):
    """The part of an event loop that lets the main thread install its signal handlers."""

    def __init__(self, signals: Signals) -> None:
        super().__init__()
        self._signals = signals

    def add_signal_handler(self, sig: int, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Raises as asyncio does: `TypeError` for a coroutine, otherwise `ValueError` or `RuntimeError`."""
        if inspect.iscoroutine(callback) or inspect.iscoroutinefunction(callback):
            raise TypeError("coroutines cannot be used with add_signal_handler()")
        try:
            self._signals.install(sig, Forward(self, callback, args, seen_as=None))
        except OSError:
            raise RuntimeError(f"signal {sig} cannot be caught") from None

    def remove_signal_handler(self, sig: int) -> bool:
        return self._signals.restore(sig)

    def close(self) -> None:
        self._signals.loop_ends()
        super().close()


class UVLoop(_Loop, uvloop.Loop):  # type: ignore[misc]  # its stubs differ from those of asyncio
    """A uvloop whose signal handlers are installed by the main thread."""


class AsyncioLoop(_Loop, asyncio.SelectorEventLoop):
    """An event loop of asyncio whose signal handlers are installed by the main thread."""


def _installable(handler: Handler) -> Handler:
    # None: the handler was not installed from Python, so it cannot be restored from Python.
    return signal.SIG_DFL if handler is None else handler


def _as_set(handler: Handler) -> Handler:
    return handler.seen_as if isinstance(handler, Forward) else handler
