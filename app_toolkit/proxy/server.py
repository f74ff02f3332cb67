"""The proxy as a server: uvicorn's lifecycle and sockets, with connections of our own."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

import uvicorn

from app_toolkit.config.models import HTTPOptions
from app_toolkit.errors import StartupError
from app_toolkit.proxy.protocol import ClientConnection, Patience
from app_toolkit.proxy.proxy import Proxy
from app_toolkit.proxy.request import Limits
from app_toolkit.types import Receive, Scope, Send

__all__ = ["Proxy", "ProxyServer", "Statistics"]

log = logging.getLogger("app_toolkit.proxy")

SWEEP_S = 0.5
LOOK_S = 0.05
"""How often a draining proxy looks whether its last request is answered."""
BACKLOG = 2_048


@dataclass(frozen=True, slots=True)
class Statistics:
    """The sizes of live sets."""

    waiting: int
    ongoing: int
    connections: int
    idle: int


class ProxyServer:
    """Serves clients until it is stopped.

    Either `await serve(sockets)`, which returns once it is stopped or was told to exit by a signal, or
    `async with ProxyServer(...) as server`, which stops it at its end. `drain_timeout_s` is how long what runs
    may take in the two cases that name no time.
    """

    def __init__(
        self,
        proxy: Proxy,
        options: HTTPOptions,
        *,
        limits: Limits | None = None,
        patience: Patience | None = None,
        drain_timeout_s: float = 20.0,
    ) -> None:
        self.proxy = proxy
        #: The port of the first socket, once it serves.
        self.port = options.port
        self._options = options
        self._limits = limits or Limits()
        self._patience = patience or Patience(head_s=options.head_timeout_s, keep_alive_s=options.keep_alive_timeout_s)
        self._drain_timeout_s = drain_timeout_s
        self._server = _Server(self._config(), self._told_to_exit)
        self._deadline: asyncio.TimerHandle | None = None
        self._serving: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on these sockets, or on one of its own, bound as the options say. Raises `StartupError`."""
        sockets = sockets or [bind(self._options)]
        self.port = int(sockets[0].getsockname()[1])
        sweeper = asyncio.create_task(self._sweep())
        try:
            await self._server.serve(sockets)
        finally:
            sweeper.cancel()
            await asyncio.gather(sweeper, return_exceptions=True)
            if self._deadline is not None:
                self._deadline.cancel()
            self._abort_connections()
            await self.proxy.aclose()

    async def accepting(self) -> None:
        """Wait until it takes connections."""
        await self._server.ready.wait()

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, and wait until every request is answered; those that take longer are cut.

        WebSockets stay open: they end with the replicas behind them, which say why.
        """
        self.proxy.draining = True
        self._server.should_exit = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                # Once in a life and for a moment: no exchange needs to tell anybody that it was the last.
                while any(connection.answers for connection in self._connections()):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        for connection in self._connections():
            if connection.answers:
                connection.abort()

    async def stop(self, timeout_s: float) -> None:
        """`drain`, and give WebSockets what is left of the time to end; returns when nothing is left."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        await self.drain(timeout_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._server.stopped.wait()
        self._abort_connections()
        await self._server.stopped.wait()

    async def __aenter__(self) -> Self:
        self._serving = asyncio.create_task(self.serve())
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait((self._serving, ready), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._serving.done():
            await self._serving
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._serving is not None
        if not self._serving.done():
            await self.stop(self._drain_timeout_s)
        await self._serving

    def statistics(self) -> Statistics:
        routes = self.proxy.routes
        return Statistics(
            waiting=routes.waiting,
            ongoing=routes.ongoing,
            connections=len(self._server.server_state.connections),
            idle=self.proxy.pool.idle,
        )

    def _config(self) -> uvicorn.Config:
        return uvicorn.Config(
            _unused,
            http=cast(Any, self._connect),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            proxy_headers=False,
            backlog=BACKLOG,
        )

    def _connect(
        self,
        config: uvicorn.Config,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> ClientConnection:
        return ClientConnection(self.proxy, server_state, self._limits, self._patience)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                self._sweep_once(time.monotonic())
            except Exception:  # the sweeper's edge: without it no clock would ever be looked at again
                log.exception("a sweep of the proxy failed")

    def _sweep_once(self, now: float) -> None:
        self.proxy.sweep(now)
        for connection in self._connections():
            connection.sweep(now)

    def _told_to_exit(self) -> None:
        """By a signal, where nobody drained us. uvicorn would end tasks at a deadline; our exchanges are none."""
        if self.proxy.draining:
            return
        self.proxy.draining = True
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._drain_timeout_s, self._abort_connections)

    def _abort_connections(self) -> None:
        for connection in self._connections():
            connection.abort()

    def _connections(self) -> list[ClientConnection]:
        return cast(list[ClientConnection], list(self._server.server_state.connections))


class _Server(uvicorn.Server):
    """Says when it serves, when it begins to stop, and when it has stopped."""

    def __init__(self, config: uvicorn.Config, stopping: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self.stopped = asyncio.Event()
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping()
        try:
            await super().shutdown(sockets)
        finally:
            self.stopped.set()


def bind(options: HTTPOptions) -> socket.socket:
    """A listening place as the options say. Raises `StartupError`."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    sock = socket.socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((options.host, options.port))
    except OSError as error:
        sock.close()
        raise StartupError(f"the proxy cannot listen on {options.host}:{options.port}: {error.strerror}") from None
    return sock


async def _unused(scope: Scope, receive: Receive, send: Send) -> None:
    """uvicorn wants an app. Its protocol class alone would call it, and ours does not."""
    raise AssertionError("the proxy has no app")
