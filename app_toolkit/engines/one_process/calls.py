"""Deployments of classes in one process: a router and one replica, which the router calls directly."""

import asyncio
import atexit
import logging
import random
import sys
import threading
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol
from weakref import WeakSet

import uvloop

from app_toolkit.calls.batching import BATCH_COUNTS
from app_toolkit.calls.hosted_object import HostedObject
from app_toolkit.calls.served_calls import Calls
from app_toolkit.config.models import ClassConfig, CorsSettings, DeploymentConfig
from app_toolkit.contract.identity import LiveRevisionKey, ReplicaSetKey
from app_toolkit.contract.targets import Target, choose, members
from app_toolkit.engines.one_process.local_call import CALLER, LocalCallDownstream, LocalCalls
from app_toolkit.engines.ray import environment
from app_toolkit.errors import ConfigError, ReplicaBusy, StartupError
from app_toolkit.exchange.call_exchange import CallPlane
from app_toolkit.exchange.call_request import CallRequest
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.filters import Filters
from app_toolkit.exchange.filters.faults import FaultInjection
from app_toolkit.exchange.filters.mirror import Mirror
from app_toolkit.exchange.filters.mirrored_calls import CallMirroring
from app_toolkit.exchange.gauges import (
    CALL_STREAMS,
    CALLS_ONGOING,
    CALLS_QUEUED,
    OPEN_STREAMS,
    OPEN_WEBSOCKETS,
    REQUESTS_ONGOING,
    REQUESTS_QUEUED,
)
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import Call, Callee, Deployable, DeploymentClient, Endpoint, QueuePosition
from app_toolkit.observability import tracing
from app_toolkit.observability.context import REQUEST_ID, ReplicaContext
from app_toolkit.observability.counts import Counters
from app_toolkit.observability.logs import attach_fields
from app_toolkit.observability.metrics import NONE, Sample
from app_toolkit.observability.records import Record, Records
from app_toolkit.observability.slow_requests import SlowRequests
from app_toolkit.replica.admission.replica import Replica
from app_toolkit.replica.admission.wait_queue import Position
from app_toolkit.types import Address, ASGIApp, ReplicaId

logger = logging.getLogger("app_toolkit.replica")

LOCAL = "local:"
"""The beginning of the address of a replica in this process. The name of its deployment follows."""

APPLICATION = "default"
"""The default name of an application."""

STOP_S = 10.0
"""Seconds that instances have to close when the process ends."""


def context_of(deployment: str) -> ReplicaContext:
    """Return the context of the only replica of a deployment in this process."""
    return ReplicaContext(APPLICATION, deployment, ReplicaId(deployment))


class Measured(Protocol):
    """Has metrics as long as it exists."""

    def samples(self) -> Iterator[Sample]:
        """Yield the samples. Thread-safe."""


class Local:
    """One deployment within one event loop: its router, and its only replica."""

    def __init__(self, name: str, app: ASGIApp, config: DeploymentConfig, cors: Sequence[CorsSettings] = ()) -> None:
        environment.disable_auto_start()
        attach_fields()
        IN_PROCESS.expose(self)
        self.replica = Replica(
            app,
            name=name,
            max_ongoing_requests=config.max_ongoing_requests,
            max_open_websockets=config.max_open_websockets,
            max_open_streams=config.max_open_streams,
            on_disconnect=config.on_disconnect,
            cors=cors,
        )
        self.router = Router(name, self._join, policy=config.policy)
        limits = config.max_ongoing_requests, config.max_open_streams
        self.router.update([Endpoint(ReplicaId(name), Address(LOCAL + name), *limits)])

    def _join(self, endpoint: Endpoint, reserved: Callable[[], None], ended: Callable[[], None]) -> QueuePosition:
        loop = asyncio.get_running_loop()

        def soon(callback: Callable[[], None]) -> None:  # as over the wire: never before `join` has returned
            loop.call_soon(callback)

        try:
            return self.replica.wait_queue.join(CALLER, partial(soon, reserved), partial(soon, ended))
        except ReplicaBusy:  # as over the wire: the position ends at once
            soon(ended)
            return Position(self.replica.wait_queue, CALLER, reserved, ended)

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of what waits and runs. Thread-safe."""
        yield Sample(REQUESTS_QUEUED, (self.router.name,), [self.router.waiting])
        yield Sample(REQUESTS_ONGOING, (self.router.name,), [self.router.ongoing])
        yield Sample(OPEN_STREAMS, (self.router.name,), [self.router.opened])
        yield Sample(OPEN_WEBSOCKETS, (self.router.name,), [self.replica.statistics().websockets])


class Deployed(Local):
    """The deployment of one class, which handles call. Its object is constructed when it is first needed."""

    def __init__(self, deployment: Deployable, loop: asyncio.AbstractEventLoop, filters: Filters) -> None:
        """`filters`: those of the loop."""
        config: ClassConfig = deployment.config
        self.hosted = HostedObject(
            deployment.make,
            name=deployment.name,
            sync_threads=config.sync_threads,
            replica=context_of(deployment.name),
        )
        self.hosted.limit_batches(config.reloadable_options.batch)
        self._user_config = config.user_config
        self._starting: asyncio.Task[None] | None = None
        self.loop = loop
        super().__init__(deployment.name, Calls(self.hosted), config)
        key = ReplicaSetKey(APPLICATION, deployment.name)
        self.plane = CallPlane(key, self.router, LocalCalls(self), IN_PROCESS.records, filters, name=deployment.name)

    async def start(self) -> None:
        """Construct the object, once for all callers. Raises `StartupError`; the next call then tries again."""
        if self._starting is None:
            self._starting = self.loop.create_task(self.hosted.start(self._user_config))
        try:
            await asyncio.shield(self._starting)
        except StartupError:
            self._starting = None
            raise

    async def aclose(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            with suppress(BaseException):
                await self._starting
            await self.hosted.aclose()

    def samples(self) -> Iterator[Sample]:
        yield Sample(CALLS_QUEUED, (self.router.name,), [self.router.waiting])
        yield Sample(CALLS_ONGOING, (self.router.name,), [self.router.ongoing])
        yield Sample(CALL_STREAMS, (self.router.name,), [self.router.opened])

    # For handles

    @property
    def replica_set(self) -> str:
        return self.router.name

    @property
    def ready(self) -> bool:
        """Whether the object is constructed, or its construction has failed."""
        return self._starting is not None and self._starting.done()

    async def call(self, call: Call, split: Callee | None = None) -> Any:
        await self._started()
        with self._caller(call, split) as caller:
            await caller.serve()
            return (await caller.next()).open()

    fetch = call  # a result that is passed on is not serialized

    async def stream(self, call: Call, split: Callee | None = None) -> AsyncGenerator[Any, None]:
        await self._started()
        with self._caller(call, split) as caller:
            running = self.loop.create_task(caller.serve())
            running.add_done_callback(caller.fail_with)
            try:
                while (result := await caller.next()).kind == "item":
                    yield result.value
                await running
                result.open()
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await running

    async def _started(self) -> None:
        if not self.ready:
            await self.start()

    def _caller(self, call: Call, split: Callee | None) -> LocalCallDownstream:
        """`split`: the split whose members get copies of the call. None: there are no copies."""
        caller = LocalCallDownstream(self.plane, CallRequest(call, REQUEST_ID.get() or uuid.uuid4().hex), split)
        if split is not None and caller.exchange is not None:
            caller.exchange.targets = targets_of(split)
        return caller


class MirroredMember:
    """The client of one call of a split whose members get copies of it."""

    def __init__(self, deployed: Deployed, split: Callee) -> None:
        self.loop = deployed.loop
        self._deployed = deployed
        self._split = split

    async def call(self, call: Call) -> Any:
        return await self._deployed.call(call, self._split)

    fetch = call

    def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        return self._deployed.stream(call, self._split)


def targets_of(split: Callee) -> Sequence[Target]:
    """Return the members of a split in this process as targets."""
    return members(LiveRevisionKey(APPLICATION), split.shares, split.mirrors)


def _unapplied(config: DeploymentConfig, cls: type | None = None) -> str:
    names = config.without_effect(())
    if hasattr(cls, "check_health"):
        names = (*names, "check_health()")
    return f"{config.name}: {', '.join(names)}" if names else ""


class InProcess:
    """The deployments of all classes that this process uses. Each belongs to one event loop, its *home*.

    The home is the loop of the app whose lifespan runs, or of the latest one if there are several. If no lifespan runs,
    it is an `OwnLoop`, which starts at first use. An object can then outlive the loop that needed it first: each
    request has a loop of its own with a `TestClient` without `with`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.deployed: dict[Callee, Deployed] = {}
        #: The loops of apps whose lifespan runs, one entry for each app.
        self._homes: list[asyncio.AbstractEventLoop] = []
        self._own: OwnLoop | None = None
        self.counters = Counters()
        #: The slowest requests and calls of the last minutes.
        self.slow = SlowRequests()
        self._counting = threading.Lock()
        #: The records of the requests and calls that have ended. Each event loop adds those that end on it.
        self.records = Records(self._count)
        self._is_traced = False
        #: The lines that have been logged by `list_unapplied`, so that each is logged once.
        self.listed: set[str] = set()
        #: The filters of calls, by event loop.
        self._filters: dict[asyncio.AbstractEventLoop, Filters] = {}
        #: The deployments and event loops that have metrics.
        self._measured: WeakSet[Measured] = WeakSet()
        self._exposed = False
        #: Returns a random number, at least 0 and below 1, for a call of a split without a key, and for each
        #: mirror of a split.
        self.draw: Callable[[], float] = random.random

    def begin_tracing(self) -> None:
        """Export the spans of this process, if the environment names a collector. Later calls do nothing."""
        with self._lock:
            if self._is_traced:
                return
            self._is_traced = True
        if begun := tracing.begin_tracing(ReplicaContext("default", "", ReplicaId("default"))):
            self.records.subscribe(begun.add)

    def _count(self, record: Record) -> None:
        with self._counting:
            self.counters.add(record)
            self.slow.add(record)

    def gap_counter(self, deployment: str) -> Callable[[float], None]:
        """Return the function that counts the seconds between two chunks of a streamed response. Thread-safe."""
        with self._counting:
            gaps = self.counters.gaps(deployment)

        def count(seconds: float) -> None:
            with self._counting:
                gaps.observe(seconds)

        return count

    def expose(self, measured: Measured) -> None:
        """Include an object in the metrics, and have `prometheus_client` collect these if user code has imported it.

        `prometheus_client` collects the metrics if user code has imported it. The import takes 0.1 s, and is of no use
        to others.
        """
        with self._counting:  # `_lock` is held while a deployment is made
            self._measured.add(measured)
            if self._exposed or "prometheus_client" not in sys.modules:
                return
            self._exposed = True
        from app_toolkit.observability.collector import ToolkitCollector

        ToolkitCollector(self.samples).register()

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics that one process has. Thread-safe."""
        yield from self.counters.samples()
        yield from BATCH_COUNTS.samples(lambda replica: NONE if replica is None else replica.deployment)
        with self._counting:
            all_measured = list(self._measured)
        with self._lock:
            filters = list(self._filters.values())
        for measured in all_measured:
            yield from measured.samples()
        for request_filter in filters:
            yield from request_filter.samples()

    def list_unapplied(self, ingresses: Iterable[DeploymentConfig], classes: Iterable[Deployable]) -> None:
        """Log in one line which options of these deployments have no effect in one process. List each only once."""
        lines = [_unapplied(ingress) for ingress in ingresses]
        lines += [_unapplied(deployment.config, deployment.cls) for deployment in classes]
        new = [line for line in dict.fromkeys(lines) if line and line not in self.listed]
        if new:
            self.listed.update(new)
            logger.warning("in one process these options have no effect; they apply with `run`: %s", "; ".join(new))

    def client_of(self, callee: Callee, shard_key: str | None = None) -> DeploymentClient:
        if callee.application is not None:
            raise ConfigError(
                f"{callee.name!r} belongs to application {callee.application!r}, but this process is not "
                "connected to an instance"
            )
        if not callee.members:
            assert isinstance(callee, Deployable), "a callee without members is a deployment"
            return self.deployed_of(callee)
        deployed = self.deployed_of(callee.members[choose(targets_of(callee), shard_key, self.draw).name])
        return MirroredMember(deployed, callee) if callee.mirrors else deployed

    def _filters_of(self, loop: asyncio.AbstractEventLoop) -> Filters:
        if loop not in self._filters:
            mirroring = CallMirroring(self._mirror, loop.time, draw=lambda: self.draw())
            self._filters[loop] = Filters(FaultInjection(), mirroring)
        return self._filters[loop]

    def _mirror(self, exchange: Exchange, target: Target) -> Mirror | None:
        caller = exchange.downstream
        if not isinstance(caller, LocalCallDownstream) or caller.split is None:
            return None
        deployed = self.deployed_of(caller.split.members[target.name])
        if deployed.loop is not asyncio.get_running_loop():
            return None
        return Mirror(deployed.replica_set, deployed.router, LocalCalls(deployed, caller.context))

    def deployed_of(self, callee: Deployable) -> Deployed:
        """Return a deployment. Its object is constructed when it is first needed. Thread-safe."""
        with self._lock:
            deployed = self.deployed.get(callee)
            if deployed is None:
                self.list_unapplied((), (callee,))
                home = self._home()
                deployed = self.deployed[callee] = Deployed(callee, home, self._filters_of(home))
            return deployed

    def _home(self) -> asyncio.AbstractEventLoop:
        if self._homes:
            return self._homes[-1]
        if self._own is None:
            self._own = OwnLoop("app-toolkit embedded")
        return self._own.loop

    async def start(self, deployments: Sequence[Deployable]) -> None:
        """Make the running loop the home, and construct the objects of these deployments in order.

        Before that, close the objects on the `OwnLoop`. They are constructed again here when they are needed. Raises
        `StartupError`.
        """
        environment.disable_auto_start()
        if self._own is not None:
            await asyncio.to_thread(self.close)
        with self._lock:
            self._homes.append(asyncio.get_running_loop())
        for deployment in deployments:
            await self.deployed_of(deployment).start()

    async def stop(self) -> None:
        """Close the objects on the running loop, the latest first. The loop is then no home any more.

        If several apps run their lifespans on this loop, only the last one to stop does this.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop in self._homes:
                self._homes.remove(loop)
            if loop in self._homes:
                return
            filters = self._filters.pop(loop, None)
            of_loop = [deployed for deployed in self.deployed.values() if deployed.loop is loop]
            self.deployed = {key: deployed for key, deployed in self.deployed.items() if deployed.loop is not loop}
        if filters is not None:
            await filters.aclose()
        for deployed in reversed(of_loop):
            await deployed.aclose()

    def close(self) -> None:
        """Close the objects on the `OwnLoop`, and end it. Does nothing if there is none."""
        with self._lock:
            own_loop, self._own = self._own, None
        if own_loop is not None:
            own_loop.close(self.stop())


class OwnLoop:
    """An event loop in a thread of its own, which ends with the process or with `close`."""

    def __init__(self, name: str) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def close(self, last: Coroutine[Any, Any, None] | None = None) -> None:
        """Run the coroutine `last` on the loop, and end the loop. Call this from another thread."""
        if last is not None:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(last, self.loop).result(STOP_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(STOP_S)


#: The only one of this process.
IN_PROCESS = InProcess()
atexit.register(IN_PROCESS.close)
