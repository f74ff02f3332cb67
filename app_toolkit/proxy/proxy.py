"""What all connections of one proxy share."""

import itertools
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from app_toolkit.interfaces import Snapshot, Stand
from app_toolkit.proxy.routes import Router, Routes
from app_toolkit.transport.line import Lines
from app_toolkit.transport.pool import Pool


class Waiting(Protocol):
    """A request that has a place in a router's queue."""

    def fail(self, error: Exception) -> None: ...


class Proxy:
    """The routes, the routers behind them, and the pooled connections to replicas.

    `secret` opens the replicas' door and holds no space. `new_router` is called with the name of an ingress,
    `application/ingress`, and how to stand in line at a replica. Not safe across threads: everything happens on the
    loop that serves.
    """

    def __init__(self, secret: bytes, new_router: Callable[[str, Stand], Router]) -> None:
        if not secret or b" " in secret:
            raise ValueError("the secret of a proxy must be without spaces, and not empty")
        self.secret = secret
        self.pool = Pool()
        self.lines = Lines(self.pool, secret)
        self.routes = Routes(lambda name: new_router(name, self.lines.stand), self.pool, self._failed)
        #: Places in the queues of all routers, and whose they are.
        self.waiting: dict[Any, Waiting] = {}
        self.draining = False
        self._process = secrets.token_hex(6).encode()
        self._count = itertools.count(1)

    def update(self, snapshots: Mapping[str, Snapshot]) -> None:
        """Take news of the board: `routes`, and `replicas/{application}/{ingress}`; None removes."""
        self.routes.update(snapshots)

    def mint_id(self) -> bytes:
        """A request id: unique, cheap, and no secret."""
        return b"%b-%x" % (self._process, next(self._count))

    def sweep(self, now: float) -> None:
        """Look at the clocks of the queues and of the pool; `now` as `time.monotonic()` counts."""
        self.routes.expire(now)
        self.pool.expire(now)

    async def aclose(self) -> None:
        self.lines.close()
        await self.pool.aclose()

    def _failed(self, waiter: Any, error: Exception) -> None:
        waiting = self.waiting.pop(waiter, None)
        if waiting is not None:
            waiting.fail(error)
