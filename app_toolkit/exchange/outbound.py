"""How one process reaches replicas: what is published to it, its routers, and its connections."""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.exchange.registry import PublishedRouter, Registry
from app_toolkit.interfaces import Join, Watch
from app_toolkit.observability.reports import Report, Reports
from app_toolkit.types import NodeId
from app_toolkit.wire import hop
from app_toolkit.wire.pool import Pool
from app_toolkit.wire.wait_queue import WaitQueues

R = TypeVar("R", bound=PublishedRouter)

SWEEP_S = 0.5
"""Seconds between two checks for idle connections that have expired."""

NewRouter = Callable[[ReplicaSetKey, Join, Callable[[], None]], R]
"""Creates the router of a replica set, with the function that joins the wait queue of a replica, and with the function
that the router calls when a request begins to wait while there is no replica."""


class Outbound(Generic[R]):
    """The registry, the connections and the reports of one process, for all requests and calls that it sends.

    A process has one, also if it both serves clients and calls deployments. So the controller knows one caller: it
    waits for one acknowledgement before a replica drains, and forgets this caller when the process ends.

    Not thread-safe: call the methods on one event loop.
    """

    def __init__(
        self,
        secret: bytes,
        new_router: NewRouter[R],
        node: NodeId = NodeId(""),
        prefixes: Iterable[str] = ("",),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it without snapshots and connections.

        Parameters:
            secret: Authenticates this process to replicas.
            new_router: Creates the router of an ingress.
            node: The node of this process.
            prefixes: The beginnings of the keys to follow. Empty: those that `Registry` is told to follow later.
            clock: The current time in seconds, for the timeouts of connections.
        """
        self._clock = clock
        self.token = hop.token(secret)
        self.pool = Pool(secret, clock)
        self.wait_queues = WaitQueues(self.pool, self.token)
        self.reports = Reports()
        join, unserved = self.wait_queues.join, self.reports.unserved
        self.registry: Registry[R] = Registry(lambda key: new_router(key, join, unserved), self.pool, node, prefixes)

    async def run(self, watch: Watch, report: Report | None = None) -> None:
        """Follow the published snapshots until cancelled, once there is a key to follow.

        Run this until the process ends: replicas drain only when this process has acknowledged their removal.

        `report`: sends the loads to the controller. None: they are not reported.
        """
        await self.registry.followed()
        beside = [asyncio.create_task(self._sweep())]
        if report is not None:
            beside.append(asyncio.create_task(self.reports.run(report)))
        try:
            await self.registry.follow(watch)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def _sweep(self) -> None:
        """Close idle connections that have expired."""
        while True:
            self.pool.expire(self._clock())
            await asyncio.sleep(SWEEP_S)

    async def aclose(self) -> None:
        """Fail what waits, and close the connections."""
        self.registry.close()
        self.wait_queues.close()
        await self.pool.aclose()
