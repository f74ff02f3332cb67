"""What all connections of one proxy share."""

import itertools
import secrets
from collections.abc import Callable, Mapping

from app_toolkit.core.reports import Loads
from app_toolkit.interfaces import Join, Snapshot
from app_toolkit.observability.access import AccessLog
from app_toolkit.observability.counts import Counts
from app_toolkit.observability.reports import Reports
from app_toolkit.proxy.account import Account
from app_toolkit.proxy.clients import Clients
from app_toolkit.proxy.routes import IngressRouter, Routes
from app_toolkit.transport import hop
from app_toolkit.transport.pool import Pool
from app_toolkit.transport.wait_queue import WaitQueues
from app_toolkit.types import NodeId


class Proxy:
    """The routes, the routers behind them, and the pooled connections to replicas.

    `secret` authenticates this proxy to replicas and holds no space. `new_router` is called with the name of an
    ingress, `application/ingress`, with the function that joins the wait queue of a replica, and with the function that
    is called when a request waits and there is no replica. `node` is the node of this proxy. `access` gets every
    request at its end. Not thread-safe: everything happens on the loop that serves.
    """

    def __init__(
        self,
        secret: bytes,
        new_router: Callable[[str, Join, Callable[[], None]], IngressRouter],
        node: NodeId = NodeId(""),
        access: AccessLog | None = None,
    ) -> None:
        if not secret or b" " in secret:
            raise ValueError("the secret of a proxy must be without spaces, and not empty")
        self.token = hop.token(secret)
        self.pool = Pool(secret)
        self.wait_queues = WaitQueues(self.pool, self.token)
        self.reports = Reports(self.loads)
        join, unserved = self.wait_queues.join, self.reports.unserved
        self.routes = Routes(lambda name: new_router(name, join, unserved), self.pool, node)
        #: None: a client address may have any number of requests.
        self.clients: Clients | None = None
        self.draining = False
        self.access = access
        #: Requests that no ingress owns: those that were refused, and those to the proxy itself.
        self.unowned = Account("-")
        self._accounts: dict[str, Account] = {}
        self._process = secrets.token_hex(6).encode()
        self._count = itertools.count(1)

    def update(self, snapshots: Mapping[str, Snapshot]) -> None:
        """Take news of the board: `routes`, and `replicas/{application}/{ingress}`; None removes."""
        self.routes.update(snapshots)
        for name in self._accounts.keys() - self.routes.routers.keys():
            del self._accounts[name]

    def account(self, name: str) -> Account:
        """That of an ingress; it lives as long as the ingress's router."""
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Account(name)
        return account

    def loads(self) -> Loads:
        """Who waits, who is served, and which WebSockets and streams are open, of each ingress that is reported."""
        return {
            name: (*load, len(self.account(name).websockets), len(self.account(name).streams))
            for name, load in self.routes.loads().items()
        }

    def counts(self) -> dict[str, Counts]:
        """What became of requests, by ingress, and by `-` where none owned them. Safe from any thread."""
        accounts = [self.unowned, *list(self._accounts.values())]
        return {account.name: account.counts.copy() for account in accounts}

    def mint_id(self) -> bytes:
        """A request id: unique, cheap, and no secret."""
        return b"%b-%x" % (self._process, next(self._count))

    def sweep(self, now: float) -> None:
        """Look at the clocks of the queues and of the pool, and write the access log; `now` as `time.monotonic()`."""
        self.routes.expire(now)
        self.pool.expire(now)
        if self.access is not None:
            self.access.flush()

    async def aclose(self) -> None:
        """Once no connection is left: close those to replicas, and write what waits for the access log."""
        self.wait_queues.close()
        for account in self._accounts.values():
            account.close()
        await self.pool.aclose()
        if self.access is not None:
            self.access.flush()
