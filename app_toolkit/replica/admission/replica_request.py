"""One request at a replica: what its app receives and sends, and when its handler is cancelled."""

import asyncio
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import anyio.to_thread
from uvicorn.protocols.utils import ClientDisconnected

from app_toolkit.errors import DeadlineExceeded, RequestError, RequestTimeout
from app_toolkit.exchange.cors import response_fields
from app_toolkit.exchange.upload_rate import PROMPT, Period, measured
from app_toolkit.observability import tracing
from app_toolkit.observability.context import DEADLINE, READ_STREAMS, REPLICA, REQUEST_ID, SHARD_KEY, TRACE, ReadStream
from app_toolkit.replica.admission.after_disconnect import stops
from app_toolkit.replica.admission.live_sets import LiveSets
from app_toolkit.replica.admission.stage import (
    ADMITTED,
    ARRIVED,
    COMPLETE,
    CUT,
    ENDED,
    FAILED,
    HEAD_DROPPED,
    HEAD_KEPT,
    HELD,
    REPLACED,
    TRANSITIONS,
)
from app_toolkit.replica.admission.streams import LEAVE_SLOT, is_lasting, is_stream
from app_toolkit.replica.disconnect import choice_of
from app_toolkit.replica.http.head import FRAMING, CheckedHead
from app_toolkit.types import ASGIApp, Header, Message, Scope
from app_toolkit.wire import hop

logger = logging.getLogger("app_toolkit.replica")

CHUNKS_PER_TURN = 64
"""Number of chunks after which a stream yields to the event loop once.

When its client has disconnected, `send` never waits. A stream that does not wait either would block the event loop, and
the disconnect would never be noticed.
"""
THREAD_S = 0.05
"""Interval in seconds at which a handler that is to be cancelled is checked: whether its thread has ended."""
JSON = (b"content-type", b"application/json")
TEXT = (b"content-type", b"text/plain; charset=utf-8")
SERVER_ERROR = b"Internal Server Error"


class Reported(Exception):
    """The app failed and that is logged. The server only has to close the connection."""


class ReplicaRequest(ABC):
    """One request at a replica, from its arrival until its app has returned.

    `replica.admission.stage` has its stages. A subclass connects it with its caller: `HopRequest` writes the response
    itself, and `ServerRequest` passes messages to an ASGI server.
    """

    # Class attributes are the defaults, because few requests change them.
    stage = ARRIVED
    request_id: str | None = None
    deadline: float | None = None
    """The time on `time.monotonic()` at which the request is cancelled; checked at every sweep. None: no deadline."""
    from_caller = False
    """Whether a proxy or another replica sent the request over its own connection."""
    _bounded = False
    """Whether the request has, or had, a deadline."""
    _task: asyncio.Task[Any] | None = None
    """The task that runs the app, or will run it. None: it does not run."""
    _head: CheckedHead | None = None
    """The head that is kept in the stage `HELD`."""
    _chunks = 0
    _seen = False
    """Whether a sweep has checked the request."""
    _cancelled = False
    """Whether the request has cancelled its task itself."""
    _ending: asyncio.Task[None] | None = None
    """Ends the handler, and before that may send an error."""
    _error_sent: asyncio.Event | None = None
    """Set when the error that replaces the response of the handler has been sent: the 504 of a late handler, or the 408
    of a slow body."""
    _body_period: Period | None = None
    """The period in which the rate of the body is measured. None: the app has not waited for the body yet."""
    _trace: str | None = None
    _span: tracing.ReplicaSpan | None = None
    _read_streams: set[ReadStream]

    def __init__(self, scope: Scope, live: LiveSets) -> None:
        self.scope = scope
        self._live = live
        self._is_http: bool = scope["type"] == "http"

    # The way to the caller

    @property
    @abstractmethod
    def gone(self) -> bool:
        """Whether it was noticed that the client has disconnected. Its response cannot be sent any more."""

    @property
    def has_left(self) -> bool:
        """Whether the client has disconnected, even if nobody has noticed it."""
        return self.gone

    @property
    @abstractmethod
    def asked(self) -> bool:
        """Whether the app has asked for a message."""

    @property
    @abstractmethod
    def body_read(self) -> bool:
        """Whether the last part of the body was read."""

    @property
    @abstractmethod
    def reading(self) -> int:
        """How often the app waits for a message now. Then it notices a disconnect itself."""

    @property
    @abstractmethod
    def received(self) -> int:
        """The bytes of the body that have arrived."""

    @abstractmethod
    async def receive(self) -> Message:
        """Return the next message of the client for the app."""

    @abstractmethod
    async def send(self, message: Message) -> None:
        """Send a message of the app."""

    @abstractmethod
    async def respond(self, status: int, fields: Sequence[Header], body: bytes) -> None:
        """Send a complete response of the replica itself."""

    @abstractmethod
    def _watch(self) -> None:
        """Notice a disconnect that nobody waits for. Called at every sweep, from the second one on."""

    @abstractmethod
    def _wake(self) -> None:
        """Wake a `receive` that waits for the end of the response."""

    # The app

    async def run(self, app: ASGIApp, name: str, *, slow: bool = False, responds: bool = False) -> None:
        """Run the app of a request that was admitted.

        If an error replaces its response meanwhile, return when the error has been sent whole.

        Parameters:
            app: The app of the user.
            name: The name of the replica, for the log.
            slow: Whether the body arrives slowly.
            responds: If the app fails, log the error, and respond with 500. Otherwise, raise the error.

        Raises:
            Reported: The response cannot be completed, and that is logged.
        """
        self._enter()
        if slow:
            self._live.slow_body(self)
        try:
            try:
                await app(self.scope, self.receive, self.send)
            except ClientDisconnected:  # uvicorn raises this on a WebSocket that has closed, and expects it back
                raise
            except Exception as error:
                await self._until_error_sent()
                if not responds:
                    raise
                await self._failed(error, name)
            except (SystemExit, KeyboardInterrupt) as error:  # a handler must not end the replica
                if not responds:
                    raise
                await self._failed(error, name)
            else:
                if self._error_sent is not None:
                    await self._until_error_sent()
        except BaseException as error:
            if not self._leave(error):
                raise
        else:
            self._leave(None)
        if responds and self.stage is CUT:
            raise Reported

    def _enter(self) -> None:
        """Begin to hold a slot, in the context of the task."""
        self.stage = TRANSITIONS[self.stage, ADMITTED]
        added = extension(self.scope)
        self.request_id = added.get("request_id")
        REQUEST_ID.set(self.request_id)
        self._read_streams = set()
        READ_STREAMS.set(self._read_streams)
        if self._bounded:
            DEADLINE.set(self.deadline)
        trace = added.get("trace")
        if trace is not None:
            if tracing.current is not None:
                self._span = tracing.ReplicaSpan(tracing.current, trace, REPLICA.get())
                trace = self._span.forwarded
                self.scope["headers"] = tracing.with_trace(self.scope["headers"], trace)
            TRACE.set(trace)
        shard_key = added.get("shard_key")
        if shard_key is not None:
            SHARD_KEY.set(shard_key)
        if self._task is None:
            self._task = asyncio.current_task()
        self._live.enter(self, self.scope["type"])

    def bound(self, timeout: float) -> None:
        """Set the deadline to `timeout` seconds from now. The handler is cancelled at the next sweep after it."""
        self.deadline = time.monotonic() + timeout
        self._bounded = True

    def _leave(self, error: BaseException | None) -> bool:
        """Release everything. Return whether `error` is a cancellation that the request has caused itself."""
        if self._read_streams and self._broke_off(error):
            for read_stream in tuple(self._read_streams):
                read_stream.leave()
        if self._span is not None:
            self._span.end(error)
        self._live.leave(self)
        if self._ending is not None:
            self._ending.cancel()
        task, self._task = self._task, None
        self.scope.pop(LEAVE_SLOT, None)  # which refers to the request
        if not self._cancelled:
            return False
        assert task is not None
        return task.uncancel() == 0 and isinstance(error, asyncio.CancelledError)

    def _broke_off(self, error: BaseException | None) -> bool:
        """Whether the request was aborted. A coroutine that is discarded does not count: no event loop runs it."""
        if error is None:
            return self.gone and self.stage is not COMPLETE
        return not isinstance(error, GeneratorExit)

    async def _until_error_sent(self) -> None:
        """Wait until the error that replaces the response has been sent, if there is one."""
        if self._error_sent is not None:
            self.stage = TRANSITIONS[self.stage, ENDED]  # nothing is left to cancel
            await self._error_sent.wait()

    async def _failed(self, error: BaseException, name: str) -> None:
        """Log what the app raised, and respond if it has not. Raise `Reported` if the response cannot be completed."""
        # Starlette has sent a 500 and raises anyway. Other frameworks leave the response to the server.
        scope = self.scope
        logger.error(
            "request %s failed in %s: %s %r",
            self.request_id,
            name,
            scope.get("method", "WebSocket"),
            scope["path"],
            exc_info=error,
        )
        if not self.stage.begun:
            self._drop_head()
            await self.respond(500, [TEXT], SERVER_ERROR)
        elif self._is_http and self.stage is not COMPLETE:
            raise Reported from error

    # The response

    def _drop_head(self) -> None:
        """Discard the head that was kept, because another response follows."""
        if self.stage is HELD:
            self.stage = TRANSITIONS[self.stage, HEAD_DROPPED]
            self._head = None

    def _begins_body(self, size: int, more: bool) -> bool:
        """Return whether the body begins with this part. Raise `RuntimeError` if its length is not as announced."""
        assert self._head is not None
        length = self._head.length
        if length is not None and (size > length or (length and not size and not more)):
            raise RuntimeError(f"the app sends {size} bytes of a body, and has announced {length}")
        return size > 0 or not more

    def _keep(self, head: CheckedHead) -> bool:
        """Keep a head until the first bytes of its body. Return False if there are none."""
        if self._is_http and (not head.length or self.scope["method"] == "HEAD"):
            return False
        self.stage = TRANSITIONS[self.stage, HEAD_KEPT]
        self._head = head
        return True

    def _stream_fields(self, head: CheckedHead) -> tuple[Header, ...]:
        """Make a response an open stream if it is a stream. Return the field from which the caller learns that."""
        if head.length is not None or head.bodyless or not is_stream(self.scope, head.fields):
            return ()
        lasting = is_lasting(self.scope)
        self.scope[LEAVE_SLOT] = partial(self._live.leave_slot, self)
        if lasting:
            self.deadline = None
        if not self._live.open_stream(self):
            return ((hop.STREAM, hop.KEPT),)
        return ((hop.STREAM, hop.LASTING if lasting else hop.OPEN),)

    def _complete(self) -> None:
        """Release the slot, because the app has sent the last part of its response."""
        self._live.leave_slot(self)
        if self._bounded:
            DEADLINE.set(None)  # what runs from here on is background work
        self._wake()

    def unfinished(self) -> str:
        """Name the part of the request that has not ended, for a log."""
        scope = self.scope
        name = f"{scope.get('method', 'WebSocket')} {scope['path']!r} (request {self.request_id})"
        return f"the background tasks of {name}" if self.stage is COMPLETE and self._is_http else name

    # Sweeps

    def check(self, now: float) -> None:
        """Check the deadline, the body and the client; called at every sweep. `now`: `time.monotonic()`."""
        if self.deadline is not None and self.deadline <= now:
            self.deadline = None
            self._expired()
        if self._is_http and self.asked and not self.body_read:
            self._check_body(now)
        if not self._seen:
            self._seen = True
        elif self._stops():
            self._watch()

    # Client disconnect

    def _stops(self) -> bool:
        scope = self.scope
        choice = choice_of(scope, self._live.on_disconnect)
        return stops(choice, scope["type"], scope.get("method", ""), self.stage.begun)

    def _withholds_disconnect(self) -> bool:
        # The rest of a body that is not complete never arrives, so an app that waits for it must get the disconnect.
        if self.stage is COMPLETE or choice_of(self.scope, self._live.on_disconnect) != "continue":
            return False
        return self.body_read or not any(name in FRAMING for name, _ in self.scope["headers"])

    def _hung_up(self) -> None:
        """Cancel the handler of a client that has disconnected."""
        if self._ending is None and self.stage is not COMPLETE and not self.reading and self._stops():
            self._end(self._stop())

    # Slow bodies

    def _check_body(self, now: float) -> None:
        """Measure the rate at which the body arrives. Only time in which the app waits for the body counts."""
        period = self._body_period
        if period is None:
            self._body_period = Period(now, self.received)
        elif not self.reading:
            self._body_period = replace(period, looked_at=now)
        else:
            self._body_period = measured(period, now, self.received, PROMPT)
            if self._body_period is None:
                self._slow_body()

    def _slow_body(self) -> None:
        """Count the request among those with slow bodies, or end it if there are too many. A call is never ended."""
        if "call" not in extension(self.scope) and not (
            self._live.slow_body(self) or self.stage.begun or self._ending is not None
        ):
            self._end(self._refuse_body())

    async def _refuse_body(self) -> None:
        if not self.stage.begun:
            slow = f"the body arrives at less than {PROMPT.bytes_per_s:,.0f} bytes a second"
            most = self._live.max_slow_bodies
            await self._replace_response(
                RequestTimeout(
                    f"{slow}, and requests with such bodies hold {most} slots of the replica, the most possible"
                )
            )

    # Deadline

    def _expired(self) -> None:
        if self.stage is not COMPLETE and self._is_http:
            self._end(self._expire())

    async def _expire(self) -> None:
        if self.stage is COMPLETE:  # the response was completed just after the deadline
            return
        await self._replace_response(DeadlineExceeded("the deadline of this request passed while its handler ran"))

    async def _replace_response(self, error: RequestError) -> None:
        """Send an error instead of the response, or cut off the response that has begun. Cancel the handler."""
        self.stage = TRANSITIONS[self.stage, FAILED]
        if self.stage is REPLACED:
            self._error_sent = asyncio.Event()
            body = json.dumps(error.document(self.request_id or "")).encode()
            try:
                fields = [JSON, *response_fields(self._live.cors, self.scope["headers"])]
                await self.respond(error.status, fields, body)
            finally:
                self._error_sent.set()
        await self._stop()

    # Client disconnect and deadline

    def _end(self, how: Coroutine[Any, Any, None]) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.get_running_loop().create_task(how)

    async def _stop(self) -> None:
        """Cancel the handler, unless its response is complete or it is being cancelled already.

        A thread cannot be cancelled: while a `def` endpoint runs in a thread, the handler continues and keeps its slot.
        """
        limiter = anyio.to_thread.current_default_thread_limiter()
        while self._task in limiter.statistics().borrowers:  # noqa: ASYNC110 - a thread does not report its end
            await asyncio.sleep(THREAD_S)
        task = self._task
        if task is not None and not (self.stage is COMPLETE or self._cancelled or task.cancelling()):
            self._cancelled = True
            task.cancel()


def extension(scope: Scope) -> Mapping[str, Any]:
    """Return what the toolkit has added to the scope of a request."""
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    added: Mapping[str, Any] = extensions.get("app_toolkit", {})
    return added
