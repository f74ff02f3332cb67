"""Deployments of classes in one process: a router and one replica, which the router calls directly."""

import asyncio
import atexit
import logging
import random
import sys
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol
from weakref import WeakSet

import uvloop

from app_toolkit.config import settings
from app_toolkit.config.models import ClassConfig, CorsSettings, DeploymentConfig
from app_toolkit.core import deadlines
from app_toolkit.core.preference import NO_PREFERENCE, Preference, keyed
from app_toolkit.core.trace import Trace
from app_toolkit.dispatch.dispatcher import Dispatcher, RetainedRequest
from app_toolkit.dispatch.mirror import MirroredRequest
from app_toolkit.dispatch.recorded_call import RecordedCall
from app_toolkit.errors import ConfigError, DeadlineExceeded, ReplicaBusy, ReplicaLost, RequestError, StartupError
from app_toolkit.interfaces import Call, Callee, Deployable, DeploymentClient, Endpoint, QueuePosition
from app_toolkit.observability import tracing
from app_toolkit.observability.context import DEADLINE, REQUEST_ID, ReplicaContext
from app_toolkit.observability.counts import Counters
from app_toolkit.observability.logs import attach_fields
from app_toolkit.observability.metrics import (
    CALL_STREAMS,
    CALLS_ONGOING,
    CALLS_QUEUED,
    NONE,
    OPEN_STREAMS,
    OPEN_WEBSOCKETS,
    REQUESTS_ONGOING,
    REQUESTS_QUEUED,
    Sample,
)
from app_toolkit.observability.records import Record, Records
from app_toolkit.observability.slow import SlowRequests
from app_toolkit.replica.admission.replica import Replica
from app_toolkit.replica.admission.wait_queue import Position
from app_toolkit.replica.objects.batching import BATCH_COUNTS
from app_toolkit.replica.objects.calls import Calls, ResultReceiver
from app_toolkit.replica.objects.hosted_object import HostedObject
from app_toolkit.router.mirrored import OK, MirroredCalls
from app_toolkit.router.router import Router
from app_toolkit.router.split import member_of
from app_toolkit.router.targets import Permit
from app_toolkit.transport import hop
from app_toolkit.transport.calls import Piece
from app_toolkit.types import Address, ASGIApp, Message, Receive, ReplicaId, Scope

logger = logging.getLogger("app_toolkit.replica")

LOCAL = "local:"
"""The beginning of the address of a replica in this process. The name of its deployment follows."""

CALLER = "embedded"
"""The name of the only caller in the wait queues of this process."""

LATE = "{request} of {deployment} did not complete before its deadline"
"""The error of a call whose deadline has passed."""

APPLICATION = "default"
"""The default name of an application, as on Ray."""

STOP_S = 10.0
"""Seconds that instances have to close when the process ends."""


def disable_ray_auto_start() -> None:
    """Make user code that calls Ray fail, instead of starting a new cluster implicitly."""
    hook = sys.modules.get("ray._private.auto_init_hook")
    if settings.disable_ray_auto_start() and hook is not None:  # Ray was imported before, and has read the environment
        hook.enable_auto_connect = False  # type: ignore[attr-defined]


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
        disable_ray_auto_start()
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

    async def dispatch(
        self,
        dispatcher: Dispatcher[Permit],
        scope: Scope,
        receive: Receive,
        send: Callable[[Permit, Message], Awaitable[None]],
        *,
        name: str,
        preference: Preference = NO_PREFERENCE,
        yields: bool = False,
    ) -> RequestError | None:
        """Run a request or call with a permit, and return what `Replica.admit` returns.

        Return None if the client disconnects before it runs. Raise a `RequestError` if it cannot run.

        `send`: takes the messages of the response, with the permit. `name`: names the request in warnings. `yields`:
        whether it is a call of a method that yields items.
        """
        dispatcher.assign(self.router, None)
        now = dispatcher.began
        try:
            while True:
                permit = dispatcher.acquire(now, preference)
                if permit is None:
                    permit, receive = await self._wait(dispatcher, receive, preference)
                    if permit is None:
                        return None
                    dispatcher.granted(permit, time.monotonic())
                permit.request, permit.yields = name, yields
                deadline = dispatcher.attempts.deadline
                left = None if deadline is None else deadline - time.monotonic()
                caller = CALLER if permit.redeem() else None
                dispatcher.sent()
                try:
                    return await self.replica.admit(scope, receive, partial(send, permit), left, caller=caller)
                except ReplicaBusy:
                    now = time.monotonic()
                    step = dispatcher.refused("busy", now)
                if isinstance(step, Exception):
                    raise step
        finally:
            dispatcher.end()

    async def _wait(
        self, dispatcher: Dispatcher[Permit], receive: Receive, preference: Preference
    ) -> tuple[Permit | None, Receive]:
        """Wait for a permit. Return None as the permit if the client disconnects first."""
        attempts = dispatcher.attempts
        return await self.router.acquire(attempts.since, preference=preference, again=attempts.count > 0), receive


class LocalResult:
    """The outcome of a call: one value, an error, or items that the caller reads one by one."""

    def __init__(self) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self.over = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._item: list[Any] = []
        self._news = asyncio.Event()

    # For the replica

    def value(self, value: Any) -> None:
        self._value = value

    def error(self, error: BaseException) -> None:
        self._error = error

    async def item(self, item: Any) -> None:
        """Put an item. Waits until the caller has taken the one before: the method is at most one item ahead."""
        await self._room.wait()
        self._room.clear()
        self._item.append(item)
        self._news.set()

    def end(self) -> None:
        pass

    # For the caller

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value

    def close(self) -> None:
        """Mark the end: the replica puts no more items."""
        self.over.set()
        self._news.set()

    async def items(self) -> AsyncGenerator[Any, None]:
        while True:
            await self._news.wait()
            self._news.clear()
            if self._item:
                item = self._item.pop()
                self._room.set()
                yield item
            if self.over.is_set() and not self._item:
                return


class DiscardedResult:
    """The outcome of a copy of a call, which nobody gets."""

    def __init__(self) -> None:
        #: `OK`, or the class of the error. Empty: the method has not ended.
        self.status = ""
        #: Whether it has yielded an item.
        self.begun = False

    def value(self, value: Any) -> None:
        self.status = OK

    def error(self, error: BaseException) -> None:
        self.status = type(error).__name__

    async def item(self, item: Any) -> None:
        self.begun = True
        await asyncio.sleep(0)  # a method that always has another item would keep the event loop

    def end(self) -> None:
        self.status = OK


class Deployed(Local):
    """The deployment of one class, which handles call. Its object is constructed when it is first needed."""

    def __init__(self, deployment: Deployable, loop: asyncio.AbstractEventLoop) -> None:
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

    async def call(self, call: Call) -> Any:
        await self._started()
        dispatcher, result = self._dispatcher(call), LocalResult()
        with RecordedCall(IN_PROCESS.records, dispatcher, self.router.name):
            await self._run(call, dispatcher, result)
            return result.result()

    fetch = call  # a result that is passed on is not serialized

    async def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        await self._started()
        dispatcher = self._dispatcher(call)
        with RecordedCall(IN_PROCESS.records, dispatcher, self.router.name):
            result = LocalResult()
            running = self.loop.create_task(self._run(call, dispatcher, result))
            running.add_done_callback(lambda _: result.close())
            items = result.items()
            try:
                async for item in items:
                    yield item
                await running
                result.result()
            finally:
                await items.aclose()
                running.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await running

    async def copy(self, call: Call, body: Sequence[Piece] | None, mirrored: MirroredRequest[Permit]) -> None:
        """As of `MirrorClient`. The arguments are the objects that the caller has passed."""
        if self._starting is None or not self._starting.done():  # no copy starts a replica
            mirrored.refused("busy")
            return
        result, response = DiscardedResult(), _ReplicaResponse(self.router)
        scope, permit = _scope(call, mirrored.primary.id, result), mirrored.permit
        left = mirrored.deadline - self.loop.time()
        try:
            async with asyncio.timeout_at(mirrored.deadline):
                await self.replica.admit(scope, _receive_nothing, partial(response.send, permit), left)
        except ReplicaBusy:
            mirrored.refused("busy")
        except (TimeoutError, DeadlineExceeded):
            if result.begun:
                mirrored.completed(OK, self.loop.time(), whole=False)
        else:
            if response.status == 200 and result.status:
                mirrored.completed(result.status, self.loop.time())

    async def _started(self) -> None:
        if self._starting is None or not self._starting.done():
            await self.start()

    def _dispatcher(self, call: Call) -> Dispatcher[Permit]:
        since = time.monotonic()
        until = deadlines.until(since, (call.timeout_s, self.router.policy.request_timeout_s), DEADLINE.get())
        request = RetainedRequest(call.method, REQUEST_ID.get() or uuid.uuid4().hex, LATE)
        dispatcher: Dispatcher[Permit] = Dispatcher(request, since, until)
        if tracing.current is not None:
            dispatcher.trace = tracing.current.begin_call()
        return dispatcher

    async def _run(self, call: Call, dispatcher: Dispatcher[Permit], result: LocalResult) -> None:
        """Run a call with a permit. Raises a `RequestError` if the call did not run to its end."""
        until = dispatcher.attempts.deadline
        response = _ReplicaResponse(self.router, dispatcher)
        scope = _scope(call, dispatcher.request.request_id, result, dispatcher.trace)
        options: Any = {"name": call.method, "preference": keyed(call.affinity), "yields": call.yields}
        try:
            async with asyncio.timeout_at(until):
                await self.dispatch(dispatcher, scope, _receive_nothing, response.send, **options)
        except TimeoutError:
            raise dispatcher.late() from None
        if response.status == DeadlineExceeded.status:
            raise dispatcher.late()
        if response.status != 200:
            raise ReplicaLost(f"{self.replica.name} answered {call.method} with status {response.status}")


def _unapplied(config: DeploymentConfig, cls: type | None = None) -> str:
    names = config.on_ray
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
        #: The copies of calls that mirrors of splits get, by event loop.
        self._mirrored: dict[asyncio.AbstractEventLoop, MirroredCalls] = {}
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
            there = list(self._measured)
        with self._lock:
            mirrored = list(self._mirrored.values())
        for measured in there:
            yield from measured.samples()
        for calls in mirrored:
            yield from calls.mirrors.samples("call")

    def list_unapplied(self, ingresses: Iterable[DeploymentConfig], classes: Iterable[Deployable]) -> None:
        """Log in one line which options of these deployments have no effect in one process. List each only once."""
        lines = [_unapplied(each) for each in ingresses]
        lines += [_unapplied(each.config, each.cls) for each in classes]
        new = [line for line in dict.fromkeys(lines) if line and line not in self.listed]
        if new:
            self.listed.update(new)
            logger.warning("without Ray these options have no effect; they apply with `run`: %s", "; ".join(new))

    def client_of(self, callee: Callee, shard_key: str | None = None) -> DeploymentClient:
        if callee.application is not None:
            raise ConfigError(
                f"{callee.name!r} belongs to application {callee.application!r}, but this process is not "
                "connected to an instance"
            )
        if not callee.members:
            assert isinstance(callee, Deployable), "a callee without members is a deployment"
            return self.deployed_of(callee)
        client = self.deployed_of(callee.members[member_of(callee, None, shard_key, self.draw)])
        if not (mirrors := callee.mirrors):
            return client
        return self.mirrored(client.loop).client(client, mirrors, lambda name: self.deployed_of(callee.members[name]))

    def mirrored(self, loop: asyncio.AbstractEventLoop) -> MirroredCalls:
        """Return the mirrored calls of an event loop. Thread-safe."""
        with self._lock:
            if loop not in self._mirrored:
                self._mirrored[loop] = MirroredCalls(loop)
                self._mirrored[loop].mirrors.draw = lambda: self.draw()
            return self._mirrored[loop]

    def deployed_of(self, callee: Deployable) -> Deployed:
        """Return a deployment. Its object is constructed when it is first needed. Thread-safe."""
        with self._lock:
            deployed = self.deployed.get(callee)
            if deployed is None:
                self.list_unapplied((), (callee,))
                deployed = self.deployed[callee] = Deployed(callee, self._home())
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
        disable_ray_auto_start()
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
            mirrored = self._mirrored.pop(loop, None)
            mine = [each for each in self.deployed.values() if each.loop is loop]
            self.deployed = {key: each for key, each in self.deployed.items() if each.loop is not loop}
        if mirrored is not None:
            await mirrored.aclose()
        for each in reversed(mine):
            await each.aclose()

    def close(self) -> None:
        """Close the objects on the `OwnLoop`, and end it. Does nothing if there is none."""
        with self._lock:
            own, self._own = self._own, None
        if own is not None:
            own.close(self.stop())


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


class _ReplicaResponse:
    """Keeps the status that the replica sends if it has no result, and tells the router what it reports."""

    status = 200

    def __init__(self, router: Router, dispatcher: Dispatcher[Permit] | None = None) -> None:
        """`dispatcher`: that of the call. None: a copy of a call has none."""
        self._router = router
        self._dispatcher = dispatcher

    async def send(self, permit: Permit, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self._dispatcher is not None:
                self._dispatcher.response_started(time.monotonic())
            self.status = message["status"]
            for name, value in message["headers"]:
                if name == hop.STREAM:
                    self._router.stream(permit, value)
                elif name == hop.HOLDINGS:
                    self._router.report(permit, value)


async def _receive_nothing() -> Message:
    """Receive no message: a caller in this process cancels the call, and does not disconnect."""
    await asyncio.get_running_loop().create_future()
    return {"type": "http.disconnect"}


def _scope(call: Call, request_id: str, result: ResultReceiver, trace: Trace | None = None) -> Scope:
    ours = {"request_id": request_id, "call": call, "result": result, "shard_key": call.shard_key}
    if trace is not None:
        ours["trace"] = trace.forwarded
    return {
        "type": "http",
        "method": "POST",
        "path": f"/{call.method}",
        "headers": [],
        "extensions": {"app_toolkit": ours},
    }
