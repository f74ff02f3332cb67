"""Watches an event loop from another thread, and reports the line of code that blocks it."""

import asyncio
import logging
import os
import sysconfig
import threading
import time
from dataclasses import replace

import uvloop

from app_toolkit.observability.loop_lag import LoopLag
from app_toolkit.observability.stacks import line_of, stack_of
from app_toolkit.observability.stalls import WATCHDOG, Blocked, StackFrame, Watched, is_debugging, is_starting
from app_toolkit.types import LoopKind

logger = logging.getLogger(WATCHDOG)


class Watchdog:
    """Checks four times a second whether an event loop responds.

    A loop that has not responded for a second is logged as one warning, with the line that blocks it. There is no
    warning while a debugger holds the loop's thread, or while the app starts. The thread ends with the loop, or with
    `stop`.
    """

    def __init__(self, name: str) -> None:
        """`name` is for the log: the replica, or the app."""
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self.thread_id = 0
        self._state = Watched()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._lag = LoopLag()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch an event loop that runs, or will run, on the calling thread."""
        self._loop = loop
        self.thread_id = threading.get_ident()
        self._state = Watched(responded=time.monotonic())
        threading.Thread(target=self._watch, name=f"app-toolkit watchdog {self._name}", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    @property
    def is_debugging(self) -> bool:
        """Whether a debugger holds the loop's thread. Safe from any thread."""
        return is_debugging(self._stack(), DEBUGGER)

    def blocked(self) -> Blocked | None:
        """Return how long the loop has been blocked, and the line; None: it is not blocked. Safe from any thread."""
        with self._lock:
            seconds = self._state.blocked_s(time.monotonic())
        return Blocked(seconds, self._line()) if seconds > 0 else None

    def lag_s(self) -> float:
        """Return the longest recent delay of the loop in seconds, also one that has not ended. Safe from any thread."""
        now = time.monotonic()
        asked = self._state.asked
        return max(self._lag.longest(now), 0.0 if asked is None else now - asked)

    # On the watchdog's own thread

    def _watch(self) -> None:
        while not self._stopped.wait(self._state.next_look_s(time.monotonic())):
            if not self._check_loop():
                return

    def _check_loop(self) -> bool:
        """Check the loop once. Return False if the loop has ended."""
        now = time.monotonic()
        with self._lock:
            state = self._state
            if state.asked is None:
                self._state = replace(state, asked=now)
        if state.asked is None:
            try:
                assert self._loop is not None
                self._loop.call_soon_threadsafe(self._loop_responded)
            except RuntimeError:  # the loop is closed
                return False
        elif state.must_report(now):
            self._report(now)
        return True

    def _report(self, now: float) -> None:
        stack = self._stack()
        at = self._line(stack)
        with self._lock:
            if self._state.asked is None:  # the loop has responded since
                return
            if at is None or is_debugging(stack, DEBUGGER) or is_starting(stack):
                self._state = self._state.paused(now)
                return
            self._state = replace(self._state, reported=True)
            seconds = self._state.blocked_s(now)
        logger.warning(
            "the event loop of %s is %s and serves nothing else: make the endpoint `def`, or run the call in a thread",
            self._name,
            Blocked(seconds, at),
        )

    def _loop_responded(self) -> None:
        """Record a response of the loop. Runs on the loop."""
        now = time.monotonic()
        with self._lock:
            state, self._state = self._state, Watched(responded=now)
        if state.asked is not None:
            self._lag.note(now, now - state.asked)
        if state.reported:
            logger.warning("the event loop of %s was blocked for %.1f s", self._name, state.blocked_s(now))

    # From any thread

    def _stack(self) -> list[StackFrame]:
        """Return the stack of the loop's thread, innermost frame first."""
        return stack_of(self.thread_id)

    def _line(self, stack: list[StackFrame] | None = None) -> str | None:
        return line_of(self._stack() if stack is None else stack)


def new_loop(kind: LoopKind) -> asyncio.AbstractEventLoop:
    """Create an event loop of one kind."""
    return uvloop.new_event_loop() if kind == "uvloop" else asyncio.SelectorEventLoop()


def watched_uvloop() -> asyncio.AbstractEventLoop:
    """Create a uvloop for uvicorn that a watchdog watches."""
    return _watched(new_loop("uvloop"))


def watched_asyncio() -> asyncio.AbstractEventLoop:
    """Create an event loop of asyncio for uvicorn that a watchdog watches."""
    return _watched(new_loop("asyncio"))


def _watched(loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
    Watchdog("this app").start(loop)
    return loop


DEBUGGER = frozenset(os.path.join(sysconfig.get_paths()["stdlib"], name) for name in ("bdb.py", "pdb.py", "cmd.py"))
"""Files of the standard library's debugger. They are not imported, because a user's `cmd.py` might be imported
instead.
"""
