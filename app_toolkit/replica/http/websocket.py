"""A WebSocket at the replica: uvicorn's protocol with limits on the CPU time that the frames of one client take."""

from functools import partial
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request

from app_toolkit.replica.http.floods import MOST_PER_S, SHORT, FrameBudget
from app_toolkit.types import ASGIApp, Message, Receive, Scope, Send

SMALLEST_SLICE = 4 * 1024
LARGEST_SLICE = 64 * 1024
"""Bytes that are parsed in one iteration of the event loop.

A frame takes up to 20 us, whatever its length, and has two bytes or more. So the slice grows only while frames are
long.
"""

CUT_OFF = b"\x88"
"""Sent before the connection is closed if the handler has ended without a close frame.

It is the first byte of a frame that does not follow. So the caller sees that the WebSocket is cut off, and ends that of
its client without a close frame, as uvicorn does. If the connection ends between two frames, the replica was lost.
"""

FEW = 64
"""The next slice is larger if the current one has fewer frames than this."""


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """Parses a bounded part of the data in each iteration of the event loop, and closes a flood of frames with 1008."""

    _unread = b""
    _slice = SMALLEST_SLICE
    _frames = 0
    """Number of frames in the current slice."""
    _idle_frames = 0
    """Number of those frames that no backpressure slows down."""
    _budget: FrameBudget | None = None
    _scheduled = False
    _drains = False
    """Whether the WebSocket is to be closed once the app has accepted it, because the replica drains."""

    def handle_connect(self, event: Request) -> None:
        self.app = partial(self._run, self.app)
        super().handle_connect(event)

    async def _run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        finally:
            is_open = self.handshake_complete and not (self.close_sent or self.disconnected)
            if is_open and not self.transport.is_closing():
                self.transport.write(CUT_OFF)

    def drain(self) -> None:
        """Close with 1012, so that the client connects to another replica. The handler may go on.

        A WebSocket that the app has not accepted yet is closed right after that.
        """
        self._drains = True
        if self.handshake_complete and not (self.close_sent or self.disconnected):
            if not self.transport.is_closing():  # otherwise the client has closed, and does not read
                self.shutdown()
            # uvicorn does not record this before the connection is lost, which a client that does not read delays.
            self.close_sent = self.disconnected = True
            self.writable.set()

    def data_received(self, data: bytes) -> None:
        if self._unread or self._scheduled:  # reading was resumed because the app has closed
            self._unread += data
            self.transport.pause_reading()
            self._go_on_later()
        else:
            self._parse(data)

    async def receive(self) -> Any:
        message: Message = await self.queue.get()  # type: ignore[assignment]
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            if self._unread:
                self._go_on_later()
            else:
                self.transport.resume_reading()
        return message

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self._drains:
            self.drain()
        if self.close_sent and self._unread:  # the client's close frame may be in the unread data
            self._go_on_later()

    def _parse(self, data: bytes) -> None:
        self._frames = self._idle_frames = 0
        part, self._unread = data[: self._slice], data[self._slice :]
        super().data_received(part)
        if self._idle_frames and not self._may_go_on():
            self._unread = b""
            self._close_flood()
            return
        larger = self._frames < FEW
        self._slice = min(self._slice * 2, LARGEST_SLICE) if larger else SMALLEST_SLICE
        if self._unread and not self.read_paused:
            self.transport.pause_reading()
            self._go_on_later()

    def _go_on_later(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        if self.transport.is_closing():
            return
        data, self._unread = self._unread, b""
        self._parse(data)
        if not (self._unread or self.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()

    # Floods

    def _may_go_on(self) -> bool:
        now = self.loop.time()
        if self._budget is None:
            self._budget = FrameBudget(now)
        return self._budget.spend(self._idle_frames, now)

    def _close_flood(self) -> None:
        if self.close_sent:
            self.transport.close()
        if self.disconnected or self.transport.is_closing():
            return
        self.conn.fail(CloseCode.POLICY_VIOLATION, f"more than {MOST_PER_S:,.0f} pings or fragments a second")
        self.handle_parser_exception()

    def handle_ping(self) -> None:
        self._count(idle=True)
        super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        self._count(idle=True)
        super().handle_pong(event)

    def handle_cont(self, event: Frame) -> None:
        self._count(idle=_is_idle(event))
        super().handle_cont(event)

    def handle_text(self, event: Frame) -> None:
        self._count(idle=_is_idle(event))
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        self._count(idle=_is_idle(event))
        super().handle_bytes(event)

    def _count(self, *, idle: bool) -> None:
        self._frames += 1
        self._idle_frames += idle


def _is_idle(event: Frame) -> bool:
    """Return whether the frame is a short fragment, and not the last one of its message."""
    return not event.fin and len(event.data) < SHORT
