"""A caller's connection at the replica: HTTP/1.1 by uvicorn's own protocol."""

import asyncio
from contextvars import copy_context
from functools import partial
from typing import Any, cast
from weakref import WeakSet, ref

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from app_toolkit.transport.corked import CorkedTransport
from app_toolkit.types import Message


class CallerConnection(HttpToolsProtocol):
    """Serves one request after another."""

    _own: CorkedTransport
    """Its transport."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._own = CorkedTransport(cast(asyncio.Transport, transport))
        # No request's own: one that was sent early begins where the one before it ends.
        self._context = copy_context()
        #: Those whose callers have all of their answers, and whose apps have not ended.
        self._behind: WeakSet[RequestResponseCycle] = WeakSet()
        super().connection_made(self._own)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
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
        self._tell_behind()
        self.transport = self._own.uncork()
        super().handle_websocket_upgrade()

    def on_headers_complete(self) -> None:
        before = self.cycle
        if before in self._behind:
            self.cycle = None  # type: ignore[assignment]  # as it is at first
        super().on_headers_complete()
        cycle = self.cycle
        if cycle is not None and cycle is not before:
            # Not the cycle itself: with a body in it, that would be left for the garbage collector.
            cast(Any, cycle).send = partial(self._send, ref(cycle))

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
