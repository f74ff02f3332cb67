"""The clients of an instance, accepted by a replica: the server of a proxy on the data loop of the replica."""

import asyncio
import socket
from collections.abc import Iterable, Mapping
from dataclasses import replace

from app_toolkit.config.models import HTTPOptions
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.contract.snapshots import PublishedReplica, ReplicaSetSnapshot, decode_replica_set, encode
from app_toolkit.edge.server import ProxyServer, ProxyStatistics
from app_toolkit.edge.state import ProxyState
from app_toolkit.errors import StartupError
from app_toolkit.exchange.outbound import Outbound
from app_toolkit.exchange.router import Router
from app_toolkit.host.edge import EdgeUpstreams, NearReplica
from app_toolkit.host.replica_server import Server
from app_toolkit.interfaces import REPLICAS, Snapshot, Version, Watch
from app_toolkit.observability.access import AccessLog
from app_toolkit.observability.metrics import Sample
from app_toolkit.observability.slow_requests import SlowRequests
from app_toolkit.types import Address, NodeId, ReplicaId

ROUTES_POLL_S = 0.005
"""Seconds between two checks whether the first routes have arrived."""


class ReplicaEdge:
    """Accepts clients on the data loop of one replica, and serves all routes of the instance as a proxy does.

    A request for this replica is served without a connection, if the replica has room. All others go to other replicas.

    When the controller removes this replica from the routes, the edge accepts no more clients. Those that it has
    accepted keep this replica until it drains, so each of their requests finds one, also if all replicas end.
    """

    def __init__(
        self,
        options: HTTPOptions,
        listener: socket.socket,
        id: ReplicaId,
        replica_set: ReplicaSetKey,
        access: AccessLog | None,
    ) -> None:
        """Create an edge that does not accept clients yet.

        Parameters:
            options: The certificate, the limits and the timeouts.
            listener: The bound socket, which the edge closes.
            id: The name of the replica.
            replica_set: That of the replica.
            access: Records each request at its end. None: there is no access log.
        """
        self._options = options
        self._listener = listener
        self._id = id
        self._replicas = f"{REPLICAS}{replica_set.name}"
        self._access = access
        #: The replica and its set as they were published last; None: it was not published yet.
        self._published: tuple[PublishedReplica, ReplicaSetSnapshot] | None = None
        # Set on the data loop.
        self._upstreams: EdgeUpstreams | None = None
        self._near: NearReplica | None = None
        self._proxy: ProxyState | None = None
        self._opening: asyncio.Task[None] | None = None
        self._server: ProxyServer | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> Address:
        """The address at which clients connect."""
        host, port = self._options.host, self._listener.getsockname()[1]
        kind = "tcp" if self._options.ssl_certfile is None else "tls"
        return Address(f"{kind}:[{host}]:{port}" if ":" in host else f"{kind}:{host}:{port}")

    # On the data loop

    def outbound(self, secret: bytes, node: NodeId) -> Outbound[Router]:
        """Return how this process reaches replicas, for the requests of clients and the calls of handles."""
        outbound: Outbound[Router] = Outbound(
            secret, lambda key, join, unserved: Router(key.name, join, unserved, near=self._id), node
        )
        self._proxy = ProxyState(secret, Router, node, self._access, new_upstreams=EdgeUpstreams, outbound=outbound)
        return outbound

    def watching(self, watch: Watch) -> Watch:
        """Return a watch whose snapshots keep this replica after the controller has removed it from the routes."""

        async def wait(seen: Mapping[str, Version], prefixes: tuple[str, ...], /) -> Mapping[str, Snapshot]:
            snapshots = await watch(seen, prefixes)
            snapshot = snapshots.get(self._replicas)
            return snapshots if snapshot is None else {**snapshots, self._replicas: self._kept(snapshot)}

        return wait

    def _kept(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot of the replica set with this replica. If it was removed, accept no more clients."""
        published = None if snapshot.value is None else decode_replica_set(snapshot.value)
        others = () if published is None else published.replicas
        replica = next((replica for replica in others if replica.id == self._id), None)
        if replica is not None and published is not None:
            self._published = replica, published
            return snapshot
        if self._published is None:
            return snapshot
        if self._server is not None:
            self._server.close()
        replica, before = self._published
        kept = replace(published or before, replicas=(*others, replica), cannot_start=None)
        return replace(snapshot, value=encode(kept))

    async def open(self, address: Address, server: Server) -> None:
        assert self._proxy is not None, "the replica has called `outbound`"
        upstreams = self._proxy.upstreams
        assert isinstance(upstreams, EdgeUpstreams)
        near = NearReplica(address, server.replica, server.config, server.server_state, server.app_state)
        upstreams.add(near)
        self._upstreams, self._near = upstreams, near
        self._server = ProxyServer(self._proxy, self._options)
        self._opening = asyncio.create_task(self._wait_for_routes(self._proxy))
        await asyncio.wait((self._opening,))
        if self._opening.cancelled():
            raise StartupError("the replica was stopped before it received any routes")
        self._serving = asyncio.create_task(self._server.serve([self._listener]))
        accepting = asyncio.create_task(self._server.accepting())
        await asyncio.wait((self._serving, accepting), return_when=asyncio.FIRST_COMPLETED)
        accepting.cancel()
        if self._serving.done():
            await self._serving

    async def _wait_for_routes(self, proxy: ProxyState) -> None:
        while not proxy.registry.ready:  # noqa: ASYNC110 # only once in the life of a replica
            await asyncio.sleep(ROUTES_POLL_S)

    async def drain(self, timeout_s: float) -> None:
        if self._server is not None and self._serving is not None:
            await self._server.drain(timeout_s)

    async def stop(self, timeout_s: float) -> None:
        if self._opening is not None and self._opening.cancel():  # otherwise the routes were received
            return
        if self._server is not None and self._serving is not None:
            await self._server.stop(timeout_s)
            await asyncio.gather(self._serving, return_exceptions=True)

    def close(self) -> None:
        """End what is left of the requests, after the server of the replica has ended."""
        if self._upstreams is not None and self._near is not None:
            self._upstreams.remove(self._near)
        self._listener.close()

    # On other threads

    def statistics(self) -> ProxyStatistics | None:
        """Return the current statistics; None: the edge does not accept clients yet."""
        return None if self._server is None else self._server.statistics()

    def samples(self) -> Iterable[Sample]:
        """Return the samples of all metrics of the edge."""
        return () if self._server is None else self._server.samples(self._id)

    @property
    def slow(self) -> SlowRequests | None:
        """The slowest requests of the last minutes; None: the edge does not accept clients yet."""
        return None if self._server is None else self._server.proxy.slow
