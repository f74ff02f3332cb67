"""A caller's connection at the replica that carries HTTP/1.1, by uvicorn's own protocol."""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any, cast
from weakref import WeakSet, ref

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app_toolkit.transport import hop
from app_toolkit.transport.calls import MOST_BYTES
from app_toolkit.transport.corked import CorkedTransport
from app_toolkit.transport.filling import FILLED, Filling
from app_toolkit.transport.sheet import LEAST, MOST, STEP, Sheet
from app_toolkit.types import Message


class CallerConnection(HttpToolsProtocol):
    """HTTP/1.1 over a connection of its own."""

    _own: "_Own"
    """Its transport."""
    _long = 0
    """Bytes of the body that is to be read into one place, once it is wanted."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._own = _Own(cast(asyncio.Transport, transport), self._fill)
        # No request's own: one that was sent early begins where the one before it ends.
        self._context = copy_context()
        #: Those whose callers have all of their answers, and whose apps have not ended.
        self._behind: WeakSet[RequestResponseCycle] = WeakSet()
        super().connection_made(self._own)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._own.end_sheet()
        self._tell_behind()

    def _tell_behind(self) -> None:
        """Their callers have gone."""
        for cycle in self._behind:
            cycle.disconnected = not cycle.response_complete
            cycle.message_event.set()

    def shutdown(self) -> None:
        if self.cycle in self._behind:
            self.transport.close()
        else:
            super().shutdown()

    def handle_websocket_upgrade(self) -> None:
        # Another protocol has it from now on, whose messages are written one by one, and each is a whole.
        self._own.end_sheet()
        self._tell_behind()
        self.transport = self._own.uncork()
        super().handle_websocket_upgrade()

    def on_headers_complete(self) -> None:
        self._own.renew(next((value for name, value in self.headers[1:3] if name == hop.SHEET), None))
        before = self.cycle
        if before in self._behind:
            self.cycle = None  # type: ignore[assignment]  # as it is at first
        super().on_headers_complete()
        cycle = self.cycle
        if cycle is not None and cycle is not before:
            # Not the cycle itself: with a body in it, that would be left for the garbage collector.
            cast(Any, cycle).send = partial(self._send, ref(cycle))
        if len(self.headers) > 1 and self.headers[1][0] == hop.CALL:
            name, length = self.headers[-1]
            if name == b"content-length" and FILLED <= int(length) <= MOST_BYTES:
                self._long = int(length)

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if cycle in self._behind:
            # What comes next is not to wait behind what its app has not asked for by now.
            cycle.disconnected = True
            cycle.message_event.set()
        else:
            super().on_body(body)

    async def _send(self, its: ref[RequestResponseCycle], message: Message) -> None:
        cycle = its()
        assert cycle is not None, "it runs"
        await RequestResponseCycle.send(cycle, cast(Any, message))
        if not cycle.response_complete and cycle.transport is self.transport and _is_whole(cycle):
            self._let_go(cycle)

    def _let_go(self, cycle: RequestResponseCycle) -> None:
        """Of an answer of known length a caller sees the end before its app says so, and comes again."""
        if cycle.keep_alive:
            cycle.transport = NOWHERE
            cycle.on_response = _nothing
            self._behind.add(cycle)
            self.on_response_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._long:
            # Nobody reads before it is wanted, so that who is refused at the gate costs nothing.
            self.flow.pause_reading()

    def _fill(self) -> None:
        """The body is wanted."""
        long, self._long = self._long, 0
        cycle = self.cycle
        if not long or cycle.response_complete or not cycle.more_body or cycle in self._behind:
            return
        begun, cycle.body = cycle.body, bytearray()
        cycle.message_event.clear()
        Filling(self.transport, self, begun, long, self._filled)

    def _filled(self, body: bytearray) -> None:
        cycle = self.cycle
        if not cycle.response_complete:  # else nobody wants it any more
            # Beside the messages: in one of them it would be copied.
            cast(Any, cycle.scope)["extensions"]["app_toolkit"]["body"] = memoryview(body)
            cycle.more_body = False
            cycle.message_event.set()
        self.parser = httptools.HttpRequestParser(self)  # the other one waits for the body

    def on_response_complete(self) -> None:
        # What came meanwhile is served before the turn ends: a whole answer does not wait for that.
        self._own.flush()
        if self.pipeline or self.transport.is_closing():
            self._context.copy().run(super().on_response_complete)
            return
        # As uvicorn's own, but that nothing is set to close the connection: only the pool closes one that is idle.
        self.server_state.total_requests += 1
        self.flow.resume_reading()


def _is_whole(cycle: RequestResponseCycle) -> bool:
    """Whether all of its answer has been written."""
    bodyless = cycle.scope["method"] == "HEAD"
    return cycle.response_started and (bodyless or not (cycle.chunked_encoding or cycle.expected_content_length))


def _nothing() -> None:
    pass


class _Nowhere(asyncio.Transport):
    """Where an app writes that has nothing to say any more; whatever it does, the connection is another's."""

    def write(self, data: Any) -> None: ...

    def close(self) -> None: ...

    def is_closing(self) -> bool:
        return True


NOWHERE = _Nowhere()


class _Own(CorkedTransport):
    """One that tells when somebody wants to read again, and that writes a long answer onto a sheet for who reads those.

    What lies on a sheet counts as not sent until its caller comes again.
    """

    def __init__(self, inner: asyncio.Transport, asked: Callable[[], None]) -> None:
        super().__init__(inner)
        self._asked = asked
        #: By which the caller of this request knows a sheet; None: it does not want one, or not any more.
        self._sign: bytes | None = None
        self._head: bytes | None = None
        self._sheet: Sheet | None = None
        self._lying = 0

    def renew(self, sign: bytes | None) -> None:
        """The next request has come, so what was answered has arrived. `sign`: its caller reads sheets."""
        self._sign = sign
        self._head = None
        self._lying = 0

    def resume_reading(self) -> None:
        self._asked()
        super().resume_reading()

    def write(self, data: Any) -> None:
        sign = self._sign
        if sign is not None:
            if self._head is not None:
                self._sign = None  # it is the body, or its beginning
                if LEAST <= len(data) <= MOST and self._write_beside(memoryview(data), self._head, sign):
                    return
            elif not data.startswith(b"HTTP/1.1 1"):
                self._head = data
        super().write(data)

    def _write_beside(self, body: memoryview, head: bytes, sign: bytes) -> bool:
        """Write it onto a sheet, if it is all of the body, and the head has not left."""
        size = len(body)
        if len(self._pieces) != 1 or self._pieces[0] is not head or self.is_closing():
            return False
        if b"\r\ncontent-length: %d\r\n" % size not in head or b"\r\nconnection:" in head:
            return False  # one that closes would do so before its caller has found the sheet
        sheet = self._sheet
        if sheet is None or sheet.size < size:
            self.end_sheet()
            try:
                sheet = self._sheet = Sheet(-(-size // STEP) * STEP)
            except OSError:
                return False
        self._pieces[0] = b"%b%b: %b/%b\r\n\r\n" % (head[:-2], hop.SHEET, sign, sheet.name)
        self._lying = size
        for at in range(0, size, STEP):
            super().write(sheet.write(body[at : at + STEP], at))
            self.flush()
        return True

    def end_sheet(self) -> None:
        sheet, self._sheet = self._sheet, None
        self._lying = 0
        if sheet is not None:
            sheet.close()

    def get_write_buffer_size(self) -> int:
        return self._lying + super().get_write_buffer_size()
