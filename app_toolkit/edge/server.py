"""The proxy as a server: uvicorn's lifecycle and sockets, with the proxy's own connection classes."""

import asyncio
import contextlib
import logging
import resource
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

import uvicorn

from app_toolkit.config.models import HTTPOptions, networks
from app_toolkit.contract.mirror_counts import MirrorCounts
from app_toolkit.edge import tls
from app_toolkit.edge.arrival import AcceptedConnection, Capacity, ConnectionLimiter
from app_toolkit.edge.forwarded import Trust
from app_toolkit.edge.protocol import ClientConnection, ServedConnection, ServerState, Timeouts
from app_toolkit.edge.request_parser import HeadLimits
from app_toolkit.edge.state import ProxyState
from app_toolkit.errors import StartupError
from app_toolkit.exchange.filters.mirror import Mirroring
from app_toolkit.exchange.upload_rate import MinimumRate
from app_toolkit.observability.counts import Counts
from app_toolkit.observability.loop_lag import LoopLag
from app_toolkit.observability.metrics import Sample, declare
from app_toolkit.types import Receive, Scope, Send
from app_toolkit.wire.uvicorn_server import EventServer

CONNECTIONS = declare(
    "app_toolkit_proxy_connections",
    "gauge",
    "Connections of clients.",
    ("process",),
    "proxies",
)


__all__ = ["ProxyServer", "ProxyState", "ProxyStatistics"]

log = logging.getLogger("app_toolkit.proxy")

SWEEP_S = 0.5
DRAIN_POLL_S = 0.05
"""Seconds between two checks whether a draining proxy has answered its last request."""
UNLIMITED = 1_048_576
"""The assumed number of file descriptors if the system has no limit."""
CLOSING_S = 0.5
"""Seconds for clients to read their last response, or to answer the close frame (1012) of their WebSocket."""


@dataclass(frozen=True, slots=True)
class ProxyStatistics:
    """The number of waiting and ongoing requests and of connections, and the outcomes of requests."""

    waiting: int
    ongoing: int
    connections: int
    idle: int
    requests: Mapping[str, Counts]
    """The outcomes by ingress. `-` counts the requests that no ingress owned."""
    queues: Mapping[str, int]
    """The number of waiting requests, by ingress."""
    reached: Mapping[str, str]
    """The limits of full queues, by ingress: `1,000 of 1,000 max_queued_requests`."""
    mirrors: Mapping[str, MirrorCounts]
    """What became of the mirrored requests, by the ingress of the mirror."""


class ProxyServer:
    """Serves clients until it is stopped. The constructor raises `StartupError` for an invalid certificate.

    Use either `await serve(sockets)`, which returns after `stop` or a signal, or `async with ProxyServer(...) as
    server`, which stops the server at the end of the block. `drain_timeout_s` is the time that requests may take to end
    after a signal and at the end of an `async with` block.
    """

    def __init__(
        self,
        proxy: ProxyState,
        options: HTTPOptions,
        *,
        limits: HeadLimits | None = None,
        timeouts: Timeouts | None = None,
        drain_timeout_s: float = 20.0,
    ) -> None:
        self.proxy = proxy
        #: The port of the first socket, once the server runs. Before, the configured port.
        self.port = options.port
        self._options = options
        self._limits = limits or HeadLimits()
        self._timeouts = timeouts or Timeouts(
            head_s=options.head_timeout_s,
            keep_alive_s=options.keep_alive_timeout_s,
            body=MinimumRate(options.min_body_rate, options.body_grace_s),
        )
        proxy.configure(options)
        self._trust = Trust(networks(options.forwarded_allow_ips))
        self._drain_timeout_s = drain_timeout_s
        descriptors = raise_descriptors()
        capacity = Capacity.within(descriptors, options.max_connections)
        if capacity.clients > (most := Capacity.within(descriptors).clients):
            log.warning(
                "max_connections is %d, but %d descriptors are enough for %d", capacity.clients, descriptors, most
            )
        self._server = _Server(_config(capacity.backlog, self._arrive), self._exit_requested)
        self._state = cast(ServerState, self._server.server_state)
        self._limiter = ConnectionLimiter(
            proxy, self._new_client, self._state, capacity, self._timeouts, tls.context(options)
        )
        #: The delays of the event loop.
        self.lag = LoopLag()
        self._deadline: asyncio.TimerHandle | None = None
        self._serving: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on these sockets, or on a new one bound to the configured address. Raise `StartupError`."""
        sockets = sockets or [bind(self._options)]
        self.port = int(sockets[0].getsockname()[1])
        sweeper = asyncio.create_task(self._keep_sweeping())
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
        """Wait until the server accepts connections."""
        await self._server.ready.wait()

    def close(self) -> None:
        """Accept no new connections, and soon close those without a request. All others close after their response."""
        self.proxy.draining = True
        self._server.should_exit = True

    async def drain(self, timeout_s: float) -> None:
        """Accept no new connections, and wait until every request is answered. After the timeout, fail the remaining.

        WebSockets stay open until their replicas close them, which send the reason in their close frames.
        """
        self.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                # Polling is sufficient, because a proxy drains only once. An event would cost every exchange.
                while any(connection.is_serving for connection in self.connections()):  # noqa: ASYNC110
                    await asyncio.sleep(DRAIN_POLL_S)
        for connection in self.connections():
            if connection.is_serving:
                connection.dismiss()

    async def stop(self, timeout_s: float) -> None:
        """Drain, wait for WebSockets until the timeout, and close the remaining ones with 1012.

        Returns when all connections are closed, at most `CLOSING_S` after the timeout.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        await self.drain(timeout_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._server.stopped.wait()
        self._dismiss_connections()
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

    def sweep(self, now: float) -> None:
        """Enforce all timeouts. It runs every `SWEEP_S`. `now` is a time of the proxy's clock."""
        self.proxy.sweep(now)
        for connection in self.connections():
            connection.sweep(now)

    def statistics(self) -> ProxyStatistics:
        registry = self.proxy.registry
        return ProxyStatistics(
            waiting=registry.waiting,
            ongoing=registry.ongoing,
            connections=len(self._state.connections),
            idle=self.proxy.pool.idle,
            requests=self.proxy.counts(),
            queues=registry.queues,
            reached=registry.reached,
            mirrors=mirrored.mirrors.counts() if (mirrored := self.proxy.filters.of(Mirroring)) else {},
        )

    def samples(self, name: str) -> Iterator[Sample]:
        """Yield the samples of all metrics of this proxy. `name`: that of its process. Thread-safe."""
        yield from self.proxy.samples()
        yield Sample(CONNECTIONS, (name,), [len(self._state.connections)])

    def _arrive(self, **_uvicorns: Any) -> AcceptedConnection:
        return AcceptedConnection(self._limiter)

    def _new_client(self) -> ClientConnection:
        return ClientConnection(self.proxy, self._state, self._limits, self._timeouts, self._trust)

    async def _keep_sweeping(self) -> None:
        while True:
            due = time.monotonic() + SWEEP_S
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            self.lag.note(now, max(now - due, 0.0))
            try:
                self.sweep(self.proxy.clock())
            except Exception:  # without the sweeper, no timeout would be enforced any more
                log.exception("a sweep of the proxy failed")

    def _exit_requested(self) -> None:
        """Begin to drain after a signal, unless the proxy is draining.

        uvicorn's own shutdown timeout applies to tasks only, and exchanges are not tasks.
        """
        if self.proxy.draining:
            return
        self.proxy.draining = True
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._drain_timeout_s, self._dismiss_connections)

    def _dismiss_connections(self) -> None:
        """End all requests and WebSockets because the timeout has passed, and abort them after `CLOSING_S`."""
        connections = self.connections()
        for connection in connections:
            connection.dismiss()
        if connections:
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = asyncio.get_running_loop().call_later(CLOSING_S, self._abort_connections)

    def _abort_connections(self) -> None:
        for connection in self.connections():
            connection.abort()

    def connections(self) -> list[ServedConnection]:
        """Return the connections of all clients, admitted or refused."""
        return [*self._state.connections, *self._limiter.refused]


class _Server(EventServer):
    """Signals when the server is ready, when it begins to stop, and when it has stopped."""

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


def _config(backlog: int, arrive: Callable[..., AcceptedConnection]) -> uvicorn.Config:
    return uvicorn.Config(
        _unused,
        http=cast(Any, arrive),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="warning",
        proxy_headers=False,
        backlog=backlog,
    )


def raise_descriptors() -> int:
    """Raise the soft limit of open file descriptors of this process to the hard limit. Return the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems allow less than the reported hard limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else UNLIMITED


def bind(options: HTTPOptions, *, shared: bool = False) -> socket.socket:
    """Return a socket bound to the configured address, exclusively or `shared` with other processes of this user.

    Raises `StartupError` if the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    sock = socket.socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((options.host, options.port))
    except OSError as error:
        sock.close()
        raise StartupError(f"the proxy cannot listen on {options.host}:{options.port}: {error.strerror}") from None
    return sock


async def _unused(scope: Scope, receive: Receive, send: Send) -> None:
    """Satisfy uvicorn, which requires an app. Only uvicorn's own protocol classes would call the app."""
    raise AssertionError("the proxy has no app")
