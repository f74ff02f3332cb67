"""The HTTP server of the admin routes: uvicorn on a thread, which other threads control."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from app_toolkit.config.models import AdminOptions
from app_toolkit.errors import StartupError
from app_toolkit.operate.admin.security import check_exposure
from app_toolkit.thread import ServerThread
from app_toolkit.types import Address
from app_toolkit.wire.uvicorn_server import EventServer

BACKLOG = 128
"""Connections that may wait until the server accepts them."""

CONNECTIONS = 256
"""Connections and requests at the same time. Further requests get 503. Connections above twice as many are closed."""

HEAD_S = 10.0
"""Seconds that a client may take for the head of a request, and for the rest of one that was answered already."""

ENDING_S = 1
"""Seconds that requests may take to end when the server stops. Streams end then."""


class AdminServer:
    """Serves the app of the admin routes on a thread of its own. Call its methods from other threads.

    The app is created when the first connection waits, because many instances never get one, and the app takes 12 MiB
    of memory. A server can be started only once.
    """

    def __init__(self, create: Callable[[], FastAPI], options: AdminOptions, preferred_port: int) -> None:
        """Prepare a server.

        Parameters:
            create: Returns the app, as `create_app` does. It is called on the thread.
            options: The address to listen on.
            preferred_port: The port if the options name none, and it is free.
        """
        self._create = create
        self._options = options
        self._preferred_port = preferred_port
        self._thread = ServerThread("app-toolkit admin", "the event loop of the admin server")
        self._woken = asyncio.Event()
        # Set on the thread.
        self._server: _Server | None = None
        self._is_stopped = False

    def start(self) -> Address:
        """Bind, and serve. Return the address.

        Raises `ConfigError` if other machines could reach the server without a token, and `StartupError` if the
        address cannot be bound.
        """
        check_exposure(self._options.admin_host)
        listener = bind(self._options, self._preferred_port)
        port = listener.getsockname()[1]
        self._thread.start(lambda: self._serve(listener), listener.close)
        host = self._options.admin_host
        return Address(f"tcp:[{host}]:{port}" if ":" in host else f"tcp:{host}:{port}")

    @property
    def is_running(self) -> bool:
        """Whether the server has started and not ended."""
        return self._thread.is_running

    def stop(self, timeout_s: float) -> None:
        """End the streams, and stop within `timeout_s` seconds."""
        self._thread.call(self._end)
        self._thread.join(timeout_s)

    def _end(self) -> None:
        self._is_stopped = True
        self._woken.set()
        if self._server is not None:
            self._server.should_exit = True

    async def _serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(listener, self._woken.set)
        self._thread.report_ready()
        await self._woken.wait()
        loop.remove_reader(listener)
        if self._is_stopped:
            return
        app = self._create()
        config = uvicorn.Config(
            app,
            http=_Connection,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=ENDING_S,
        )
        self._server = _Server(config, app.state.live.close)
        await self._server.serve([listener])


class _Connection(H11Protocol):
    """A connection of a client, which is closed if it sends no request. uvicorn itself would wait for ever."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        if len(self.connections) > 2 * CONNECTIONS:
            transport.abort()
        else:
            self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._expect_request()  # before a request that has arrived already begins
        super().on_response_complete()

    def _expect_request(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(HEAD_S, self._close_if_idle)

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


class _Server(EventServer):
    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], Awaitable[None]]) -> None:
        """`end_streams`: is called when the server stops."""
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._end_streams()
        await super().shutdown(sockets)


def bind(options: AdminOptions, preferred_port: int) -> socket.socket:
    """Return a socket that listens on the address of the options.

    If they name no port, use `preferred_port`, or any free port if that is in use. Raises `StartupError` if the address
    cannot be bound.
    """
    host, port = options.admin_host, options.admin_port
    ports = [port] if port else [preferred_port, 0]
    reason: Any = None
    for number in ports:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, protocol)
        except OSError as error:
            raise StartupError(f"admin_host = {host!r} has no address: {error.strerror}") from None
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            reason = error.strerror
        else:
            return listener
    raise StartupError(f"the admin server cannot listen on port {ports[0]} of {host}: {reason}")
