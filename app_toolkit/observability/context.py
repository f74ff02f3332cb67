"""What user code may ask about the request that it serves, and about where it runs; and what it reads meanwhile."""

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from app_toolkit.types import ReplicaId

REQUEST_ID: ContextVar[str | None] = ContextVar("app_toolkit_request_id", default=None)
DEADLINE: ContextVar[float | None] = ContextVar("app_toolkit_deadline", default=None)
TRACE: ContextVar[str | None] = ContextVar("app_toolkit_trace", default=None)
"""As it travels (`core.trace`): `traceparent`, and `tracestate` behind a space."""


class Errand:
    """What a thread does in one context. Only that context holds it, and those that were copied from it meanwhile: so
    it is gone once the thread has come back.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()


ERRAND: ContextVar[Errand | None] = ContextVar("app_toolkit_errand", default=None)


def errand() -> weakref.ref[Errand]:
    """That of the thread that asks."""
    found = ERRAND.get()
    # A context is copied with all that is in it: what a script's thread did is found by every task that it starts.
    if found is None or found.thread != threading.get_ident():
        found = Errand()
        ERRAND.set(found)
    return weakref.ref(found)


class Reading:
    """The stream of a call that user code reads.

    A framework that is cancelled while it sends an item leaves its generator between two of them, often in a cycle with
    the traceback, and so the stream open until garbage is collected. So a request that was not served to its end looks
    at what it reads.
    """

    __slots__ = ("_close", "reader")

    def __init__(self, close: Callable[[], object]) -> None:
        self.reader: asyncio.Task[Any] | weakref.ref[Errand] | None = None
        """Who took the last item, or waits for one; None: nobody yet, or a task of another event loop."""
        self._close = close

    def leave(self) -> None:
        """The request is over: close the stream, unless a task that goes on reads it. Called in the request's task.

        Where a thread reads it, that is done once the thread has come back, and by whoever lets go of its errand.
        """
        reader = self.reader
        if isinstance(reader, weakref.ref):
            going_on = reader()
            if going_on is None:
                self._close()
            else:
                weakref.finalize(going_on, self.leave).atexit = False
        elif reader is not None and (reader.done() or reader is asyncio.current_task()):
            self._close()


READINGS: ContextVar[set[Reading] | None] = ContextVar("app_toolkit_readings", default=None)
"""Those of the request that is being served, on the event loop that serves it; None outside of one."""


@dataclass(frozen=True, slots=True)
class ReplicaContext:
    """Which replica this is."""

    application: str
    """In one process, where nobody names it, "default"."""
    deployment: str
    replica_id: ReplicaId


REPLICA: ContextVar[ReplicaContext | None] = ContextVar("app_toolkit_replica", default=None)


def request_id() -> str | None:
    """Return the id of the current request, which its client reads in `X-Request-ID`.

    None outside of a request. Tasks and threads that a handler starts through asyncio or AnyIO have the id of the
    request that started them.
    """
    return REQUEST_ID.get()


def deadline() -> float | None:
    """Return the deadline of the current request in seconds, as `time.monotonic()` counts; None: it has no deadline."""
    return DEADLINE.get()


def trace_context() -> dict[str, str]:
    """Return the trace of the current request as header fields: `traceparent`, and `tracestate` if there is one.

    Empty if the client sent none, or none that is valid in W3C Trace Context. Calls of handles carry the trace
    themselves.
    """
    parent, _, state = (TRACE.get() or "").partition(" ")
    return {name: value for name, value in (("traceparent", parent), ("tracestate", state)) if value}


def replica_context() -> ReplicaContext:
    """Return the application, the deployment and the id of the replica that runs this code.

    Works in routes, methods and batches, and in the constructor of a class.

    Raises:
        RuntimeError: The code does not run in a replica. In one process this includes the lifespan of the app, which
            belongs to every ingress.
    """
    found = REPLICA.get()
    if found is None:
        raise RuntimeError("replica_context() was asked outside of what a replica runs")
    return found
