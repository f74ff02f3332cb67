"""A proxy on a thread of its own, which follows the published snapshots and which other threads control."""

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

import uvloop

from app_toolkit.config.models import HTTPOptions
from app_toolkit.edge.server import ProxyServer, ProxyStatistics, bind
from app_toolkit.edge.sharing import SharedPort
from app_toolkit.edge.state import ProxyState
from app_toolkit.errors import ReplicaGone, StartupError
from app_toolkit.interfaces import Watch
from app_toolkit.observability.metrics import Sample
from app_toolkit.observability.reports import Report
from app_toolkit.observability.slow_requests import SlowRequests
from app_toolkit.thread import ServerThread
from app_toolkit.types import Address

LAST_WORDS_S = 5.0
"""Seconds that a server may take to stop after its timeout has passed."""


class HostedProxy:
    """The HTTP edge of one process.

    The edge accepts no connections before it has received the routes. While no controller publishes snapshots, it uses
    the last ones. Call its methods from other threads than its own. They wait no longer than their timeout (plus
    `LAST_WORDS_S`). An edge can be started only once.
    """

    def __init__(
        self,
        new_proxy: Callable[[], ProxyState],
        options: HTTPOptions,
        watch: Watch,
        listener: socket.socket | SharedPort | None = None,
        report: Report | None = None,
    ) -> None:
        """Create an edge. `new_proxy` is called, and `watch` and `report` are awaited, on the edge's own event loop.

        Parameters:
            new_proxy: Creates the proxy.
            options: The address, the certificate and the limits.
            watch: Waits for new snapshots.
            listener: The bound socket, which the edge closes. None: the edge binds the address of the options.
            report: Sends the load to the controller. None: the load is not reported.
        """
        self._new_proxy = new_proxy
        self._options = options
        self._watch = watch
        self._listener = listener
        self._report = report
        self._thread = ServerThread("app-toolkit edge", "the proxy's event loop", uvloop.new_event_loop)
        # Set by the edge's thread during its start.
        self._server: ProxyServer | None = None
        self._routes_task: asyncio.Task[None] | None = None

    def start(self) -> Address:
        """Bind, unless that is done, wait for the routes, and accept connections. Return the address.

        Raises:
            StartupError: The address cannot be bound, the certificate is invalid, or the edge was stopped before it
                received any routes.
        """
        listener = self._listener or bind(self._options)
        sock = listener.socket if isinstance(listener, SharedPort) else listener
        port = sock.getsockname()[1]
        self._thread.start(lambda: self._serve(sock), listener.close)
        host = self._options.host
        kind = "tcp" if self._options.ssl_certfile is None else "tls"
        return Address(f"{kind}:[{host}]:{port}" if ":" in host else f"{kind}:{host}:{port}")

    def probe(self, timeout: float) -> ProxyStatistics:
        """Get the statistics from the edge's event loop.

        Raises:
            Unresponsive: The event loop did not answer within the timeout.
            ReplicaGone: The event loop has ended.
        """

        async def read() -> ProxyStatistics:
            return self.statistics()

        return self._thread.ask(read(), timeout)

    def drain(self, timeout: float) -> None:
        """Accept no new connections, and wait, at most `timeout` seconds, until every request is answered."""
        self._end(self._server.drain(timeout) if self._server else None, timeout)

    def stop(self, timeout: float) -> None:
        """Drain, wait for WebSockets within the same timeout, and stop. Does nothing if the edge has ended."""
        self._end(self._stop(self._server, timeout) if self._server else None, timeout)
        self._thread.join(LAST_WORDS_S)

    def _end(self, ending: Coroutine[Any, Any, None] | None, timeout: float) -> None:
        if ending is not None:
            with suppress(TimeoutError, ReplicaGone):
                self._thread.submit(ending).result(timeout + LAST_WORDS_S)

    def statistics(self) -> ProxyStatistics:
        """Return the current statistics. Raise `ReplicaGone` if the edge has not started."""
        if self._server is None:
            raise ReplicaGone("the proxy has not started")
        return self._server.statistics()

    def samples(self, name: str) -> Iterable[Sample]:
        """Return the samples of all metrics of this proxy. `name`: that of its process."""
        return () if self._server is None else self._server.samples(name)

    def lag_s(self) -> float | None:
        """Return the longest recent delay of the event loop in seconds; None: the proxy has not started."""
        return None if self._server is None else self._server.lag.longest(time.monotonic())

    @property
    def slow(self) -> SlowRequests | None:
        """The slowest requests of the last minutes; None: the edge has not started. Safe from any thread."""
        return None if self._server is None else self._server.proxy.slow

    async def _serve(self, listener: socket.socket) -> None:
        proxy = self._new_proxy()
        self._server = ProxyServer(proxy, self._options)
        self._routes_task = asyncio.create_task(self._wait_for_routes(proxy))
        await asyncio.wait((self._routes_task,))
        if self._routes_task.cancelled():
            raise StartupError("the proxy was stopped before it received any routes")
        await self._routes_task
        following = asyncio.create_task(proxy.registry.follow(self._watch))
        ready = asyncio.create_task(self._report_ready())
        beside = [following, ready]
        if self._report is not None:
            beside.append(asyncio.create_task(proxy.reports.run(self._report)))
        try:
            await self._server.serve([listener])
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _wait_for_routes(self, proxy: ProxyState) -> None:
        """Apply the published snapshots until the proxy has routes."""
        while not proxy.registry.ready:
            await proxy.registry.receive(self._watch)

    async def _stop(self, server: ProxyServer, timeout: float) -> None:
        if self._routes_task is None or not self._routes_task.cancel():  # the routes were received: the server runs
            await server.stop(timeout)

    async def _report_ready(self) -> None:
        """Let `start` return when the server accepts connections."""
        assert self._server is not None
        await self._server.accepting()
        self._thread.report_ready()
