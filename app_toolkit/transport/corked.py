"""What is sent in one go leaves in one go.

uvicorn writes the head of an answer, its body and every chunk of a stream one by one, and each is a system call here
and one more at the proxy. A corked transport keeps what is written within one turn of the event loop, and writes it at
the end of that turn. Many connections then are written to one right after another, so that a process that reads them
all, a replica or a proxy, is woken up for all of them and not for each.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

logger = logging.getLogger("app_toolkit.transport")

MOST = 64 * 1024
"""Bytes that are kept; beyond, the transport itself must see them, for it alone can make the writer wait."""


class EndOfTurn:
    """When the turn of a loop ends, everything that its corked transports kept is written, one after another.

    Who is on the other side of them wakes up once, and finds all of it.
    """

    def __init__(self) -> None:
        self._corked: list[CorkedTransport] = []

    def flush(self, transport: "CorkedTransport") -> None:
        """Flush it then; a transport asks once in a turn."""
        if not self._corked:
            asyncio.get_running_loop().call_soon(self._flush)
        self._corked.append(transport)

    def _flush(self) -> None:
        corked, self._corked = self._corked, []
        for transport in corked:
            try:
                transport.flush()
            except Exception:  # of one connection, which the others must not pay for
                logger.exception("a connection is aborted that could not be written to")
                transport.abort()


_ends: WeakKeyDictionary[asyncio.AbstractEventLoop, EndOfTurn] = WeakKeyDictionary()


class CorkedTransport(asyncio.Transport):
    """Another transport, whose writes are joined."""

    def __init__(self, inner: asyncio.Transport) -> None:
        self._inner = inner
        self._end_of_turn = _ends.setdefault(asyncio.get_running_loop(), EndOfTurn())
        self._pieces: list[Any] = []
        self._size = 0

    def write(self, data: Any) -> None:
        size = len(data)
        if self._size + size > MOST:
            self.flush()
            self._inner.write(data)
            return
        if not self._pieces:
            self._end_of_turn.flush(self)
        self._pieces.append(data if type(data) is bytes else bytes(data))  # who wrote it may use it again
        self._size += size

    def write_through(self, data: Any) -> None:
        """At once, behind what is kept: nothing is to come in this turn that it could be joined with."""
        self.flush()
        if not self._inner.is_closing():
            self._inner.write(data)

    def uncork(self) -> asyncio.Transport:
        """The other transport, for who writes on it from now on; this one is not to be written on any more."""
        self.flush()
        return self._inner

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        for data in list_of_data:
            self.write(data)

    def flush(self) -> None:
        pieces = self._pieces
        if pieces:
            # One that was lost meanwhile takes nothing, and some event loops raise at whoever tries.
            if not self._inner.is_closing():
                self._inner.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            self._forget()

    def write_eof(self) -> None:
        self.flush()
        self._inner.write_eof()

    def close(self) -> None:
        self.flush()
        self._inner.close()

    def abort(self) -> None:
        self._forget()
        self._inner.abort()

    def _forget(self) -> None:
        self._pieces.clear()
        self._size = 0

    # All else is the other's

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
