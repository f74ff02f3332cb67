"""A caller's connection at the replica: uvicorn's own protocol, over a transport that suits the two processes."""

import asyncio
import socket
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app_toolkit.transport.corked import CorkedTransport

ROOM = 512 * 1024
"""Bytes that the kernel is asked to hold between the two processes (it counts twice as many, and has a limit of its
own). With the usual 208 KiB they wake each other twice as often while a large body goes over."""


class CallerConnection(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        own: socket.socket | None = transport.get_extra_info("socket")
        if own is not None and own.family == socket.AF_UNIX:  # TCP finds the right size by itself
            own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM)
        self._corked = CorkedTransport(transport)
        super().connection_made(cast(Any, self._corked))

    def on_response_complete(self) -> None:
        # What came meanwhile is served before the turn ends: a whole answer does not wait for that.
        self._corked.flush()
        super().on_response_complete()
