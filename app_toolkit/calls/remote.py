"""Calls over the wire: one router for each deployment that this process calls, and the client that calls it."""

import asyncio
import itertools
import random
import secrets
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from app_toolkit.calls.framed import FramedUpstreams
from app_toolkit.calls.handle import ENDED
from app_toolkit.contract.identity import MAIN, LiveRevisionKey, ReplicaSetKey
from app_toolkit.contract.loads import Loads
from app_toolkit.contract.methods import MANY
from app_toolkit.contract.mirror_counts import MirrorCounts
from app_toolkit.contract.targets import Target, callable_members, choose, members
from app_toolkit.errors import ConfigError, NoReplica, QueueTimeout
from app_toolkit.exchange import dispatcher
from app_toolkit.exchange.call_exchange import CallDownstream, CallExchange, CallPlane
from app_toolkit.exchange.call_request import CallRequest
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.filters import Filters
from app_toolkit.exchange.filters.faults import FaultInjection
from app_toolkit.exchange.filters.mirror import Mirror
from app_toolkit.exchange.filters.mirrored_calls import CallMirroring
from app_toolkit.exchange.gauges import CALL_STREAMS, CALLS_ONGOING, CALLS_QUEUED
from app_toolkit.exchange.ingress_router import IngressRouter
from app_toolkit.exchange.ingress_state import IngressState
from app_toolkit.exchange.outbound import Outbound
from app_toolkit.exchange.registry import Registry
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import REPLICAS, SPLITS, Call, Callee, DeploymentClient, Join, Payloads, Watch
from app_toolkit.observability import tracing
from app_toolkit.observability.context import REQUEST_ID
from app_toolkit.observability.counts import Counters
from app_toolkit.observability.metrics import Sample
from app_toolkit.observability.records import Records
from app_toolkit.observability.reports import Report
from app_toolkit.observability.slow_requests import SlowRequests
from app_toolkit.types import NodeId
from app_toolkit.wire import calls
from app_toolkit.wire.calls import EncodedValue, Frame


@dataclass(frozen=True, slots=True)
class CallLoad:
    """The calls of one process to one deployment."""

    waiting: int
    """Calls in the queue, without a permit."""
    ongoing: int
    """Calls with a permit at a replica."""
    streams: int = 0
    """Calls that yield items and hold no permit, since their first item."""
    reached: str = ""
    """The limit of the queue if the queue is full, else empty."""
    mirrored: MirrorCounts = field(default=MirrorCounts(), compare=False)
    """What became of the mirrored calls that this process has sent to it."""


class RemoteDataPlane:
    """The data plane of a process whose handles call over the wire.

    Handles may call the `callees`, which are classes of one application, and deployments that name their application
    themselves. All state belongs to the event loop that runs `run`. Handles in other threads submit their calls to it.
    """

    def __init__(
        self,
        secret: bytes,
        application: str = "",
        callees: Collection[str] = (),
        node: NodeId = NodeId(""),
        payloads: Payloads | None = None,
        draw: Callable[[], float] = random.random,
        outbound: Outbound[Any] | None = None,
    ) -> None:
        """Create the data plane of a process.

        Parameters:
            secret: Authenticates this process to replicas.
            application: The live revision of the process, by the name of its key; empty: it has none.
            callees: The deployments of this live revision that handles may call.
            node: The node of this process.
            payloads: Transfers large payloads out-of-band. None: they are sent over the sockets like all others.
            draw: Returns a random number, at least 0 and below 1, for a call of a split without a key, and for each
                mirror of a split.
            outbound: That of a process which also serves clients. Its owner runs and closes it. None: the data plane
                has one of its own.
        """
        self.payloads = payloads
        self.loop = asyncio.get_running_loop()
        prefixes = (f"{REPLICAS}{application}/", f"{SPLITS}{application}/") if callees else ()
        self._owned = None  # what this data plane runs and closes
        if outbound is None:
            self._owned = outbound = Outbound(secret, _new_router, node, prefixes)
        self.token, self.pool, self.wait_queues = outbound.token, outbound.pool, outbound.wait_queues
        #: The replica sets of deployments and their routers, and the members of splits.
        self.registry: Registry[Router] = outbound.registry
        self.live_revision = LiveRevisionKey.parse(application)
        self.reports = outbound.reports
        self.reports.add(self._loads)
        self.counters = Counters()
        #: The slowest calls of the last minutes.
        self.slow = SlowRequests()
        #: The records of the calls that have ended.
        self.records = Records(self.counters.add, self.slow.add, self.reports.lost.add)
        if tracing.current is not None:
            self.records.subscribe(tracing.current.add)
        redeem = self.wait_queues.redeem
        self.upstreams = FramedUpstreams(self.pool, lambda: self.token, redeem, payloads, self.mint_id)
        self.mirroring = CallMirroring(self._mirror, self.loop.time, draw=draw)
        self.filters = Filters(FaultInjection(), self.mirroring)
        self.draw = draw
        self._lock = threading.Lock()
        keys = [self.live_revision.replica_set(name) for name in callees]
        self._clients = {key: RemoteDeploymentClient(self, key) for key in keys}
        for key in keys:
            self.registry.follow_replica_set(key)
        self._splits: dict[ReplicaSetKey, SplitClient] = {}
        #: The clients of deployments and splits in main revisions.
        self._mains: dict[ReplicaSetKey, MainClient] = {}
        self._closed = False
        self._process = secrets.token_hex(6)
        self._count = itertools.count(1)

    def router(self, key: ReplicaSetKey) -> Router:
        """Return the router of a deployment, which stays as long as the process. Errors name only the deployment."""
        return self.registry.router(key, self._new_router)

    def router_until_published(self, key: ReplicaSetKey) -> Router:
        """Return the router at which calls wait until it is published which replica set gets them."""
        return self.registry.router_until_published(key, self._new_router)

    def present_router(self, key: ReplicaSetKey) -> Router | None:
        """Return the router that a call waits at or uses; None: its replica set is published now."""
        router = self.registry.unpublished.get(key)
        return self.registry.routers.get(key) if router is None else router

    def _new_router(self, key: ReplicaSetKey) -> Router:
        return _new_router(key, self.wait_queues.join, self.reports.unserved)

    def client_of(self, callee: Callee, shard_key: str | None = None) -> DeploymentClient:
        """Return the client of a deployment or a split.

        Calls wait while the deployment has no replicas, and until the members of the split are published.

        Raises:
            ConfigError: The deployment is not a part of the application of this process.
        """
        if callee.application is not None:
            return self.client_in_main(callee.application, callee)
        for name in callee.members or (callee.name,):
            if self.live_revision.replica_set(name) not in self._clients:
                raise ConfigError(
                    f"{name!r} is not deployed with application {self.live_revision.name!r}: make a route "
                    "depend on it, or list it in Toolkit(deployments=[...])"
                )
        return self.client_in(self.live_revision, callee)

    def client_in_main(self, application: str, callee: Callee) -> "MainClient":
        """Return the client of a deployment or split in the main revision of any application. Thread-safe.

        The application need not exist.
        """
        key = ReplicaSetKey(application, callee.name, MAIN)
        client = self._mains.get(key)
        if client is None or client.callee is not callee:
            client = self._mains[key] = MainClient(self, key, callee)
            self._follow(self.registry.follow_main, key)
        return client

    def client_in(self, live: LiveRevisionKey, callee: Callee) -> "CalleeClient":
        """Return the client of a deployment or split of a live revision. Thread-safe."""
        key = live.replica_set(callee.name)
        if not callee.members:
            return self.client_at(key)
        client = self._splits.get(key)
        if client is None or client.split is not callee:
            client = self._splits[key] = SplitClient(self, key, callee)
            self._follow(self.registry.follow_split, key)
        return client

    def client_at(self, key: ReplicaSetKey) -> "RemoteDeploymentClient":
        """Return the client of a deployment of any application. The deployment need not exist. Thread-safe."""
        client = self._clients.get(key)
        if client is not None:
            return client
        with self._lock:
            if key not in self._clients:
                self._clients[key] = RemoteDeploymentClient(self, key)
                self._follow(self.registry.follow_replica_set, key)
            return self._clients[key]

    def _mirror(self, exchange: Exchange, target: Target) -> Mirror:
        key = target.replica_set
        return Mirror(key.name, self.client_at(key).router, self.upstreams)

    def _follow(self, follow: Callable[[ReplicaSetKey], None], key: ReplicaSetKey) -> None:
        try:
            self.loop.call_soon_threadsafe(follow, key)
        except RuntimeError:  # the loop is closed
            raise NoReplica(ENDED) from None

    async def run(self, watch: Watch, report: Report | None = None) -> None:
        """Follow the published snapshots until cancelled, once there is a deployment to call.

        Only for a data plane with an outbound side of its own. `report`: sends the load of the called deployments to
        the controller. None: the load is not reported.
        """
        assert self._owned is not None, "the owner of the outbound side runs it"
        try:
            await self._owned.run(watch, report)
        finally:
            self._closed = True

    async def aclose(self) -> None:
        """Fail the calls that wait, end the mirrored calls, and close the connections, if they are its own."""
        self._closed = True
        await self.filters.aclose()
        for deployment in self._clients.values():
            deployment.router.close()
        for key in (*self._splits, *self._mains):
            self.registry.close_until_published(key)
        for client in (*self._clients.values(), *self._splits.values(), *self._mains.values()):
            client.plane.close()
        if self._owned is not None:
            await self._owned.aclose()

    def call_loads(self) -> dict[ReplicaSetKey, CallLoad]:
        """Return the waiting and ongoing calls by deployment. Thread-safe."""
        mirrored = self.mirroring.mirrors.counts()
        return {
            key: CallLoad(
                client.router.waiting,
                client.router.ongoing,
                client.router.opened,
                client.router.reached,
                mirrored.get(key.name, MirrorCounts()),
            )
            for key, client in list(self._clients.items())
        }

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of all metrics of the calls of this process. Thread-safe."""
        yield from self.counters.samples()
        yield from self.filters.samples()
        for key, load in self.call_loads().items():
            yield Sample(CALLS_QUEUED, (key.name,), [load.waiting])
            yield Sample(CALLS_ONGOING, (key.name,), [load.ongoing])
            yield Sample(CALL_STREAMS, (key.name,), [load.streams])

    def _loads(self) -> Loads:
        reported = self.registry.reported
        return {
            key: (load.waiting, load.ongoing, 0, load.streams)
            for key, load in self.call_loads().items()
            if key in reported
        }

    def mint_id(self) -> str:
        """Return a new id, such as for a call that is made outside of a request."""
        return f"{self._process}-{next(self._count):x}"


class CalleeClient:
    """Sends calls to the replicas of one deployment, or of the members of a split.

    * An exchange (`exchange.call_exchange`) is one call. Its dispatcher decides the next step after an attempt without
      a response. A call may run twice if the call, or else its deployment, has `retry="all"`, or has
      `retry="idempotent"` and the method is marked as idempotent.
    * One deadline applies to waiting and all attempts. It is the earliest of those of the call, of its deployment, and
      of the request in which the call is made.
    """

    def __init__(self, data_plane: RemoteDataPlane, plane: CallPlane) -> None:
        self.loop = data_plane.loop
        self.plane = plane
        self._data_plane = data_plane

    async def call(self, call: Call) -> Any:
        with self._caller(call) as caller:
            self._begin(caller)
            return _outcome(await caller.next())

    async def fetch(self, call: Call) -> Any:
        with self._caller(call) as caller:
            self._begin(caller)
            frame = await caller.next()
            return EncodedValue(frame) if frame.kind == "value" else _outcome(frame)

    async def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        with self._caller(call) as caller:
            self._begin(caller)
            while (frame := await caller.next()).kind == "item":
                yield _outcome(frame)
            if frame.kind != "end":
                _outcome(frame)  # an error

    def _caller(self, call: Call) -> CallDownstream:
        return CallDownstream(self.plane, CallRequest(call, REQUEST_ID.get() or self._data_plane.mint_id()))

    def _begin(self, caller: CallDownstream) -> None:
        """Encode the arguments, and begin the call."""
        request, exchange = caller.request, caller.exchange
        assert exchange is not None
        request.pieces = calls.encode_call(request.call)
        request.body_on_demand = self._data_plane.payloads is not None and calls.is_out_of_band(request.pieces)
        self.prepare(exchange)
        exchange.begin()

    def prepare(self, exchange: CallExchange) -> None:
        """Set what depends on the deployment that gets the call."""


class RemoteDeploymentClient(CalleeClient):
    """Sends calls to the replicas of one deployment."""

    def __init__(self, data_plane: RemoteDataPlane, key: ReplicaSetKey) -> None:
        self.key = key
        self.router = data_plane.router(key)
        #: The deployment, for messages.
        self.name = self.router.name
        plane = CallPlane(key, self.router, data_plane.upstreams, data_plane.records, data_plane.filters)
        super().__init__(data_plane, plane)

    def prepare(self, exchange: CallExchange) -> None:
        request = exchange.request
        request.idempotent = self._is_idempotent
        exchange.preference = self.router.preference(request.call)

    def _is_idempotent(self, method: str) -> bool:
        """Return whether the method is marked as idempotent."""
        return method.removesuffix(MANY) in self._data_plane.registry.idempotent(self.key)


class SplitClient(CalleeClient):
    """Sends each call of a split to one of its members."""

    def __init__(self, data_plane: RemoteDataPlane, key: ReplicaSetKey, split: Callee) -> None:
        self.split = split
        super().__init__(data_plane, SplitPlane(data_plane, key, split))


class SplitPlane(CallPlane):
    """The plane of the calls of a split. Until its members are published, calls wait at a router without replicas."""

    def __init__(self, data_plane: RemoteDataPlane, key: ReplicaSetKey, split: Callee) -> None:
        super().__init__(key, None, data_plane.upstreams, data_plane.records, data_plane.filters)
        self._data_plane = data_plane
        self._code = members(key.live_revision, split.shares)
        #: The members as they were published last, and those of them that this process calls.
        self._published: Sequence[Target] | None = None
        self._targets: Sequence[Target] = ()

    def find(self, exchange: Exchange) -> tuple[ReplicaSetKey, str]:
        data_plane, key = self._data_plane, self.state.key
        published = data_plane.registry.splits.get(key)
        if published is None:
            data_plane.router_until_published(key)
            return key, ""
        if published is not self._published:
            self._published, self._targets = published, callable_members(self._code, published)
        assert isinstance(exchange, CallExchange)
        exchange.targets = self._targets
        target = choose(self._targets, exchange.request.call.shard_key, data_plane.draw)
        data_plane.client_at(target.replica_set).prepare(exchange)
        return target.replica_set, ""

    def router(self, ingress: ReplicaSetKey) -> IngressRouter | None:
        return self._data_plane.present_router(ingress)

    def ingress_state(self, ingress: ReplicaSetKey) -> IngressState:
        return self.state if ingress == self.state.key else self._data_plane.client_at(ingress).plane.state

    def waited_too_long(self, router: dispatcher.Router) -> Exception:
        key = self.state.key
        if router is not self._data_plane.registry.unpublished.get(key):
            return super().waited_too_long(router)
        return QueueTimeout(
            f"the weights of the split {key} were not published within {router.policy.max_queue_wait_s:g} s; if no "
            "route depends on it, list it in Toolkit(deployments=[...])"
        )


class MainClient(CalleeClient):
    """Sends each call to a deployment or split in the main revision of an application, whichever revision that is."""

    def __init__(self, data_plane: RemoteDataPlane, key: ReplicaSetKey, callee: Callee) -> None:
        self.callee = callee
        super().__init__(data_plane, MainPlane(data_plane, key, callee))


class MainPlane(CallPlane):
    """The plane of the calls to a main revision. Until it is published which one that is, calls wait at a router."""

    def __init__(self, data_plane: RemoteDataPlane, key: ReplicaSetKey, callee: Callee) -> None:
        super().__init__(key, None, data_plane.upstreams, data_plane.records, data_plane.filters)
        self._data_plane = data_plane
        self._callee = callee

    @property
    def _present(self) -> CalleeClient | None:
        """The client in the revision that is the main one now; None: it is not published."""
        main = self._data_plane.registry.mains.get(self.state.key.application)
        return None if main is None else self._data_plane.client_in(main, self._callee)

    def find(self, exchange: Exchange) -> tuple[ReplicaSetKey, str]:
        present = self._present
        if present is None:
            self._data_plane.router_until_published(self.state.key)
            return self.state.key, ""
        assert isinstance(exchange, CallExchange)
        present.prepare(exchange)
        return present.plane.find(exchange)

    def router(self, ingress: ReplicaSetKey) -> IngressRouter | None:
        return self._data_plane.present_router(ingress)

    def ingress_state(self, ingress: ReplicaSetKey) -> IngressState:
        present = None if ingress == self.state.key else self._present
        if present is not None and ingress == present.plane.state.key:  # a split waits, too
            return present.plane.state
        return self.state if present is None else self._data_plane.client_at(ingress).plane.state

    def waited_too_long(self, router: dispatcher.Router) -> Exception:
        present = self._present
        return super().waited_too_long(router) if present is None else present.plane.waited_too_long(router)


def _new_router(key: ReplicaSetKey, join: Join, unserved: Callable[[], None]) -> Router:
    return Router(key.deployment, join, unserved)


def _outcome(frame: Frame) -> Any:
    """Return the result of the method, or raise the exception that it raised."""
    if frame.kind == "error":
        raise calls.decode_error(frame)
    return calls.decode_value(frame)
