"""The state that all connections of one proxy share."""

import itertools
import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from app_toolkit.config.affinity import KeySource, key_sources
from app_toolkit.config.models import CorsSettings, HTTPOptions
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.contract.loads import Compared, Loads
from app_toolkit.contract.routes import RequestKind
from app_toolkit.contract.targets import Target
from app_toolkit.edge.pooled_upstreams import PooledUpstreams
from app_toolkit.exchange import builtin
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.filters import Filters
from app_toolkit.exchange.filters.client_limit import ClientLimit
from app_toolkit.exchange.filters.ingress import ingress_filters
from app_toolkit.exchange.filters.mirror import Mirror, Mirroring
from app_toolkit.exchange.filters.sessions import SessionAffinity
from app_toolkit.exchange.filters.upload_pacing import UploadPacing
from app_toolkit.exchange.gauges import OPEN_STREAMS, OPEN_WEBSOCKETS, REQUESTS_ONGOING, REQUESTS_QUEUED
from app_toolkit.exchange.ingress_router import IngressRouter
from app_toolkit.exchange.ingress_state import UNOWNED, IngressState
from app_toolkit.exchange.live_revisions import choose_revision
from app_toolkit.exchange.outbound import Outbound
from app_toolkit.exchange.registry import Registry
from app_toolkit.exchange.request import ClientRequest
from app_toolkit.exchange.upstream import Upstreams
from app_toolkit.interfaces import Join
from app_toolkit.observability import tracing
from app_toolkit.observability.access import AccessLog
from app_toolkit.observability.counts import ComparedRequests, Counters, Counts
from app_toolkit.observability.metrics import Sample
from app_toolkit.observability.records import NOT_OWNED, Record, Records
from app_toolkit.observability.slow_requests import SlowRequests
from app_toolkit.types import Header, NodeId
from app_toolkit.wire.pool import Pool

COUNTED_S = 60.0
"""Seconds for which the counts of a removed ingress are kept. In this time its requests drain, and the counts are
pushed to the admin server."""


class ProxyState:
    """The registry of routes and routers, the states of ingresses, and the pool of connections to replicas.

    Not thread-safe: call the methods on the event loop that serves, except where noted.

    Parameters:
        secret: Authenticates this proxy to replicas. It must not contain spaces.
        new_router: Creates a router. It is called with the name of an ingress, `application/ingress`, with the function
            that joins the wait queue of a replica, and with the function that the router calls when a request begins to
            wait while there is no replica.
        node: The node of this proxy.
        access: Records every request at its end. None: there is no access log.
        clock: The current time in seconds, for all timeouts and records.
        new_upstreams: Creates the ways to the replicas, as `PooledUpstreams` does.
        outbound: That of a process which also calls deployments, and closes it. None: the proxy has one of its own.

    Raises:
        ValueError: The secret is empty or contains a space.
    """

    def __init__(
        self,
        secret: bytes,
        new_router: Callable[[str, Join, Callable[[], None]], IngressRouter],
        node: NodeId = NodeId(""),
        access: AccessLog | None = None,
        clock: Callable[[], float] = time.monotonic,
        new_upstreams: Callable[[Pool, bytes, Header], Upstreams] = PooledUpstreams,
        outbound: Outbound[Any] | None = None,
    ) -> None:
        if not secret or b" " in secret:
            raise ValueError("the secret of a proxy must not be empty and must not contain spaces")
        self.clock = clock
        self._owned = None  # what this proxy closes
        if outbound is None:
            self._owned = outbound = Outbound(
                secret, lambda key, join, unserved: new_router(key.name, join, unserved), node, clock=clock
            )
        self.token, self.pool, self.wait_queues = outbound.token, outbound.pool, outbound.wait_queues
        self.reports = outbound.reports
        self.reports.add(self.loads)
        self.reports.compared = self.compared
        #: The routes, and the routers of their ingresses.
        self.registry: Registry[IngressRouter] = outbound.registry
        self.registry.closed = self._forget_ingress
        self.upstreams = new_upstreams(self.pool, self.token, self.wait_queues.redeem)
        #: Where requests name the tag of a live revision. None: nowhere.
        self.tag_source: KeySource | None = None
        #: Returns a random number, at least 0 and below 1, for the choice of a live revision.
        self.draw: Callable[[], float] = random.random
        self.draining = False
        self.access = access
        #: The outcomes and latencies of requests.
        self.counters = Counters()
        #: The records of the requests that have ended, and of refused connections.
        self.records = Records(self._count_request)
        #: The slowest requests of the last minutes.
        self.slow = SlowRequests()
        self.records.subscribe(self.slow.add)
        self.records.subscribe(self.reports.lost.add)
        if tracing.current is not None:
            self.records.subscribe(tracing.current.add)
        if access is not None:
            self.records.subscribe(access.add)
        self.configure(HTTPOptions())
        self._compared = ComparedRequests()
        #: The requests that no ingress owns: refused requests, and requests to the proxy's own endpoints.
        self.unowned = IngressState(UNOWNED, clock)
        self._ingress_states: dict[ReplicaSetKey, IngressState] = {}
        #: The names of the ingresses whose requests are counted.
        self._counted = {NOT_OWNED}
        #: The ingresses whose counts are kept for now, and when they were removed.
        self._removed: dict[ReplicaSetKey, float] = {}
        self._process = secrets.token_hex(6).encode()
        self._count = itertools.count(1)

    def configure(self, options: HTTPOptions) -> None:
        """Apply the options of requests. Call this before the first request."""
        (self.tag_source,) = (None,) if options.tag_source is None else key_sources(options.tag_source)
        access = () if self.access is None else (self.access.add,)
        filters = [
            SessionAffinity(self.token),
            UploadPacing(),
            Mirroring(self._mirror, self.clock, *access),
        ]
        if options.max_requests_per_client is not None:
            filters.append(ClientLimit(options.max_requests_per_client))
        common = ingress_filters(options, count_gap=lambda ingress: self.counters.gaps(ingress).observe)
        self.filters = Filters(*filters, *common)

    # For exchanges

    def own_response(self, request: ClientRequest) -> builtin.BuiltinResponse | None:
        return builtin.endpoint(request, self.registry, self.draining) if request.path.startswith("/-/") else None

    def find(self, exchange: Exchange) -> tuple[ReplicaSetKey, str]:
        request = exchange.request
        kind: RequestKind = "websocket" if request.websocket else "http"

        def choose(able: Sequence[Target]) -> Target:
            exchange.targets = able
            return choose_revision(exchange, able, self.registry.routers, self.tag_source, self.draw)

        return self.registry.find(kind, request.method.decode(), request.path, choose)

    def _mirror(self, exchange: Exchange, target: Target) -> Mirror | None:
        router = self.registry.routers.get(target.replica_set)
        return None if router is None else Mirror(target.replica_set.name, router, self.upstreams)

    def router(self, ingress: ReplicaSetKey) -> IngressRouter | None:
        return self.registry.routers.get(ingress)

    def cors(self, ingress: ReplicaSetKey, path: str) -> Sequence[CorsSettings]:
        return self.registry.routes.cors(ingress, path)

    def ingress_state(self, key: ReplicaSetKey) -> IngressState:
        """Return the state of the requests of an ingress. It is kept as long as the router of the ingress."""
        ingress_state = self._ingress_states.get(key)
        if ingress_state is None:
            ingress_state = self._ingress_states[key] = IngressState(key, self.clock)
            self._counted.add(key.name)
            self._removed.pop(key, None)
        return ingress_state

    def _forget_ingress(self, key: ReplicaSetKey) -> None:
        self.filters.forget(key)
        if self._ingress_states.pop(key, None) is not None:
            self._removed[key] = self.clock()

    def _count_request(self, record: Record) -> None:
        """Count a request, unless its ingress was removed `COUNTED_S` before its end."""
        if record.deployment in self._counted:
            self.counters.add(record)

    def loads(self) -> Loads:
        """Return the number of waiting and ongoing requests, and of open WebSockets and streams.

        Only the ingresses whose callers report their load are included.
        """
        routers = self.registry.ingress_routers
        loads = {}
        for key in self.registry.reported & routers.keys():
            state = self.ingress_state(key)
            loads[key] = routers[key].waiting, routers[key].ongoing, len(state.websockets), len(state.streams)
        return loads

    def compared(self) -> Compared:
        """Return the requests of the live revisions that a canary release compares. Without one, none are counted."""
        followed, counted = self.registry.routes.compared, self._compared.revisions
        if followed != counted:
            if not counted:
                self.records.subscribe(self._compared.add)
            self._compared.follow(followed)
            if not followed:
                self.records.unsubscribe(self._compared.add)
        return self._compared.copy() if followed else {}

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of all metrics of this proxy. Thread-safe."""
        yield from self.counters.samples()
        yield from self.filters.samples()
        for key, router in self.registry.ingress_routers.items():
            yield Sample(REQUESTS_QUEUED, (key.name,), [router.waiting])
            yield Sample(REQUESTS_ONGOING, (key.name,), [router.ongoing])
        for state in list(self._ingress_states.values()):
            yield Sample(OPEN_STREAMS, (state.name,), [len(state.streams)])
            yield Sample(OPEN_WEBSOCKETS, (state.name,), [len(state.websockets)])

    def counts(self) -> dict[str, Counts]:
        """Return the outcomes of requests by ingress. `-` counts those that no ingress owned. Thread-safe."""
        return self.counters.copy()

    def mint_id(self) -> bytes:
        """Return a new request id, which is unique but predictable."""
        return b"%b-%x" % (self._process, next(self._count))

    def sweep(self, now: float) -> None:
        """Enforce the timeouts of the queues and of the pool, and write the access log.

        `now` is a time of `clock`.
        """
        self.registry.expire(now)
        self.pool.expire(now)
        for key in [key for key, removed in self._removed.items() if now - removed >= COUNTED_S]:
            del self._removed[key]
            self._counted.discard(key.name)
            self.counters.forget(key.name)
        if self.access is not None:
            self.access.flush()

    async def aclose(self) -> None:
        """Close the connections to replicas, and flush the access log. Call it after all clients have disconnected."""
        await self.filters.aclose()
        for ingress_state in self._ingress_states.values():
            ingress_state.close()
        if self._owned is not None:
            await self._owned.aclose()
        if self.access is not None:
            self.access.flush()
