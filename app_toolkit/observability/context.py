"""The context of user code: the request that it serves, the replica that runs it, and the streams that it reads."""

import asyncio
import secrets
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from app_toolkit.types import ReplicaId

REQUEST_ID: ContextVar[str | None] = ContextVar("app_toolkit_request_id", default=None)
REQUEST_IDS: ContextVar[tuple[str | None, ...]] = ContextVar("app_toolkit_batch_request_ids", default=())
"""Within a batch: the request id of each item. Otherwise empty."""

DEADLINE: ContextVar[float | None] = ContextVar("app_toolkit_deadline", default=None)
TRACE: ContextVar[str | None] = ContextVar("app_toolkit_trace", default=None)
"""The trace in the format of `observability.trace_context`: `traceparent`, and `tracestate` after a space."""

SHARD_KEY: ContextVar[str | None] = ContextVar("app_toolkit_shard_key", default=None)
"""The shard key of the request, which its calls have, too; None: it has none."""


class ThreadWork:
    """The work of a thread in one context.

    Only that context, and the contexts that were copied from it meanwhile, refer to this object. So it is collected
    once the thread has left the context.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()


THREAD_WORK: ContextVar[ThreadWork | None] = ContextVar("app_toolkit_thread_work", default=None)


def thread_work() -> weakref.ref[ThreadWork]:
    """Return a weak reference to the work of the calling thread in the current context."""
    work = THREAD_WORK.get()
    # A copied context contains the value of the original: a task finds that of the thread which started it.
    if work is None or work.thread != threading.get_ident():
        work = ThreadWork()
        THREAD_WORK.set(work)
    return weakref.ref(work)


class ReadStream:
    """The stream of a call that user code reads.

    A framework that is cancelled while it sends an item leaves its generator suspended, often in a reference cycle with
    the traceback. So the stream would stay open until garbage is collected. Therefore a request that was aborted closes
    the streams that it reads.
    """

    __slots__ = ("_close", "reader")

    def __init__(self, close: Callable[[], object]) -> None:
        self.reader: asyncio.Task[Any] | weakref.ref[ThreadWork] | None = None
        """The task or thread that took the last item or waits for one; None: none yet, or one of another loop."""
        self._close = close

    def leave(self) -> None:
        """Close the stream, unless a task that still runs reads it. Use it at the end of the request, in its task.

        If a thread reads the stream, it is closed when the thread has ended that work, by the thread that drops the
        last reference to it.
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


READ_STREAMS: ContextVar[set[ReadStream] | None] = ContextVar("app_toolkit_read_streams", default=None)
"""The readings of the current request, on the event loop that serves it; None outside of a request."""


@dataclass(frozen=True, slots=True)
class ReplicaContext:
    """The replica that runs this code."""

    application: str
    """The name of the application. In one process it is "default" unless a name is given."""
    deployment: str
    replica_id: ReplicaId
    revision: int = 0
    """The revision of the application in which the replica has started. 0: not known, as in one process."""


REPLICA: ContextVar[ReplicaContext | None] = ContextVar("app_toolkit_replica", default=None)

_pin = ""
"""What `exchange.session_pins.Pins.attach` appends to the IDs of this process, which has one replica. Empty: this is no
replica of an ingress."""


def use_session_pin(pin: str) -> None:
    """Let `session_id` append this to its IDs, in all threads and tasks of this process."""
    global _pin
    _pin = pin


def request_id() -> str | None:
    """Return the id of the current request, which its client reads in `X-Request-ID`.

    None outside of a request. Tasks and threads that a handler starts through asyncio or AnyIO have the id of the
    request that started them.
    """
    return REQUEST_ID.get()


def deadline() -> float | None:
    """Return the deadline of the current request in seconds, as `time.monotonic()` counts; None: it has no deadline."""
    return DEADLINE.get()


def clear_deadline() -> None:
    """Remove the deadline of the current request, for work that outlives it.

    The calls that this task or thread makes from now on have none, and neither do those of the tasks that it starts.
    """
    DEADLINE.set(None)


def trace_context() -> dict[str, str]:
    """Return the trace of the current request as header fields: `traceparent`, and `tracestate` if there is one.

    Empty if the client sent none, or none that is valid in W3C Trace Context. Calls of handles carry the trace
    themselves.
    """
    parent, _, state = (TRACE.get() or "").partition(" ")
    return {name: value for name, value in (("traceparent", parent), ("tracestate", state)) if value}


def session_id() -> str:
    """Return a new random ID for a session that only this replica knows, such as `p3pHn0u1mBvGWTz3c5Vq~q2w...`.

    The ID names the replica, so that a request with it goes to this replica: in the parameter of the query, the header
    or the cookie that the option `affinity` of the ingress names. It cannot be guessed, and has at most 40 characters
    out of `A-Z a-z 0-9 - _ ~`. In one process it names no replica.
    """
    return secrets.token_urlsafe(15) + _pin


def replica_context() -> ReplicaContext:
    """Return the application, the deployment and the id of the replica that runs this code.

    Works in routes, methods and batches, and in the constructor of a class.

    Raises:
        RuntimeError: The code does not run in a replica. In one process this includes the lifespan of the app, which
            belongs to every ingress.
    """
    replica = REPLICA.get()
    if replica is None:
        raise RuntimeError("replica_context() was called outside of a replica")
    return replica
