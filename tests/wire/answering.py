"""The replica's side of how a connection over TCP begins."""

import asyncio
from typing import Any, cast

from app_toolkit.wire.preface import respond

SECRET = b"secret"


class Answering(asyncio.Protocol):
    """Proves to know the secret, and hears the caller's proof; then another protocol has the connection."""

    def __init__(self, then: asyncio.BaseProtocol) -> None:
        self._then = then
        self._expected = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(Any, transport)

    def data_received(self, data: bytes) -> None:
        if not self._expected:
            said, self._expected = respond(SECRET, data, self._transport.get_extra_info("sockname"))
            self._transport.write(said)
        else:
            assert data == self._expected
            self._transport.set_protocol(self._then)
            self._then.connection_made(self._transport)
