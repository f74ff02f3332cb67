"""A long body of known length, read into one place.

Read piece by piece, ten megabytes are copied from where the loop reads them, and joined; each of these copies is new
memory, whose pages cost more than the copying. Here the kernel writes them where they stay.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

FILLED = 256 * 1024
"""Bytes from which on a body is worth it."""


class Filling(asyncio.BufferedProtocol):
    """Takes the place of a connection's protocol until so many bytes have come, and gives it back."""

    def __init__(
        self,
        transport: asyncio.Transport,
        owner: asyncio.BaseProtocol,
        begun: bytes | bytearray,
        size: int,
        full: Callable[[bytearray], None],
    ) -> None:
        """`begun`: what has come of it, less than `size`; `full` is called with the whole, on the loop."""
        self._transport = transport
        self._owner = cast(Any, owner)
        self._body = bytearray(size)
        self._body[: len(begun)] = begun
        self._rest = memoryview(self._body)[len(begun) :]
        self._full = full
        transport.set_protocol(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._rest

    def buffer_updated(self, nbytes: int) -> None:
        self._rest = self._rest[nbytes:]
        if not self._rest:
            self._rest.release()
            self._transport.set_protocol(self._owner)
            self._full(self._body)

    def data_received(self, data: bytes | memoryview) -> None:
        """From a circuit."""
        fits = data[: len(self._rest)]
        self._rest[: len(fits)] = fits
        self.buffer_updated(len(fits))
        if len(data) > len(fits):
            self._owner.data_received(data[len(fits) :])

    # All else is the owner's

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._owner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.resume_writing()
