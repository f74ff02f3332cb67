"""Transports that join the writes of one event loop iteration.

uvicorn writes the head of a response, its body and every chunk of a stream separately, and each write is one system
call here and another one at the proxy. A corked transport buffers all writes of one iteration of the event loop, and
writes them at its end. All connections are then written to in direct succession, so a process that reads several of
them, such as a replica or a proxy, wakes up once for all of them.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextvars import Context
from typing import Any
from weakref import WeakKeyDictionary

logger = logging.getLogger("app_toolkit.transport")

MOST = 64 * 1024
"""The most bytes in the buffer. More bytes are passed to the inner transport, which pauses the writer if necessary."""


class EndOfTurn:
    """Flushes all corked transports of one event loop at the end of an iteration, one after another.

    A process at the other end of several of them wakes up once.
    """

    def __init__(self) -> None:
        self._corked: list[CorkedTransport] = []
        # Not the context of the first writer, because the flush is not a part of its request.
        self._context = Context()

    def flush(self, transport: "CorkedTransport") -> None:
        """Schedule a flush of a transport. Each transport calls this at most once in an iteration."""
        if not self._corked:
            asyncio.get_running_loop().call_soon(self._flush, context=self._context)
        self._corked.append(transport)

    def _flush(self) -> None:
        corked, self._corked = self._corked, []
        for transport in corked:
            try:
                transport.flush()
            except Exception:  # an error of one connection must not affect the others
                logger.exception("a connection is aborted because a write failed")
                transport.abort()


_ends: WeakKeyDictionary[asyncio.AbstractEventLoop, EndOfTurn] = WeakKeyDictionary()


class CorkedTransport(asyncio.Transport):
    """Wraps a transport, and joins its writes."""

    def __init__(self, inner: asyncio.Transport) -> None:
        self._inner = inner
        self._end_of_turn = _ends.setdefault(asyncio.get_running_loop(), EndOfTurn())
        self._pieces: list[Any] = []
        self._size = 0
        self.written = 0
        """Bytes that were written so far, those in the buffer included."""

    def write(self, data: Any) -> None:
        size = len(data)
        self.written += size
        if self._size + size > MOST:
            self.flush()
            self._inner.write(data)
            return
        if not self._pieces:
            self._end_of_turn.flush(self)
        self._pieces.append(data if type(data) is bytes else bytes(data))  # the writer may reuse a mutable buffer
        self._size += size

    def write_through(self, data: Any) -> None:
        """Write the buffered bytes and `data` at once. Use it if no other write follows in this iteration."""
        self.flush()
        self.written += len(data)
        if not self._inner.is_closing():
            self._inner.write(data)

    def uncork(self) -> asyncio.Transport:
        """Flush, and return the inner transport. This transport must not be written to afterwards."""
        self.flush()
        return self._inner

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for data in list_of_data:
            self.write(data)

    def flush(self) -> None:
        pieces = self._pieces
        if pieces:
            # The connection may have been lost meanwhile, and some event loops then raise an error on a write.
            if not self._inner.is_closing():
                self._inner.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            pieces.clear()
            self._size = 0

    def write_eof(self) -> None:
        self.flush()
        self._inner.write_eof()

    def close(self) -> None:
        self.flush()
        self._inner.close()

    def abort(self) -> None:
        self._pieces.clear()
        self._size = 0
        self._inner.abort()

    # Delegated to the inner transport

    def is_closing(self) -> bool:
        return self._inner.is_closing()

    def can_write_eof(self) -> bool:
        return self._inner.can_write_eof()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._size + self._inner.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._inner.get_write_buffer_limits()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._inner.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()

    def is_reading(self) -> bool:
        return self._inner.is_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._inner.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._inner.get_protocol()
