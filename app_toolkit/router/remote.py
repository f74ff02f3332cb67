"""Calls over the wire: one router for each deployment that this process calls, and the attempts of each call."""

import asyncio
import itertools
import logging
import math
import random
import secrets
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from app_toolkit.core import deadlines
from app_toolkit.core.attempts import Result, RetryBudget
from app_toolkit.core.identity import ApplicationKey, ReplicaSetKey
from app_toolkit.core.methods import MANY
from app_toolkit.core.preference import Preference
from app_toolkit.core.reports import Loads
from app_toolkit.core.traffic import MirrorCounts
from app_toolkit.dispatch.dispatcher import Dispatcher, RetainedRequest, Stage
from app_toolkit.dispatch.mirror import MirroredRequest
from app_toolkit.dispatch.recorded_call import RecordedCall
from app_toolkit.dispatch.registry import Registry
from app_toolkit.errors import (
    NOT_TAKEN,
    ConfigError,
    DeadlineExceeded,
    NoReplica,
    ReplicaGone,
    ReplicaLost,
    ResponseUnreadable,
)
from app_toolkit.interfaces import (
    REPLICAS,
    SPLITS,
    Call,
    Callee,
    DeploymentClient,
    Payloads,
    Watch,
)
from app_toolkit.observability import tracing
from app_toolkit.observability.context import DEADLINE, REQUEST_ID, TRACE
from app_toolkit.observability.counts import Counters
from app_toolkit.observability.metrics import CALL_STREAMS, CALLS_ONGOING, CALLS_QUEUED, Sample
from app_toolkit.observability.records import Records
from app_toolkit.observability.reports import Report, Reports
from app_toolkit.observability.slow import SlowRequests
from app_toolkit.router.handle import ENDED
from app_toolkit.router.mirrored import OK, DiscardedResponse, MirroredCalls, TooLong, compare_result
from app_toolkit.router.router import Router
from app_toolkit.router.split import UnpublishedSplit, member_of
from app_toolkit.router.targets import Permit
from app_toolkit.transport import calls, hop
from app_toolkit.transport.calls import EncodedValue, Frame, Piece
from app_toolkit.transport.pool import Pool, PooledConnection
from app_toolkit.transport.sent import Refused, Sent
from app_toolkit.transport.wait_queue import WaitQueues
from app_toolkit.types import Address, NodeId, ReplicaId

logger = logging.getLogger("app_toolkit.router")

SWEEP_S = 0.5
"""Seconds between two checks for idle connections that have expired."""

LATE = "{request} of {deployment} did not respond before its deadline"
"""The error of a call whose deadline has passed."""

HERE = hop.peers(None, None, "http")

EXPECT = b"%b: 1\r\nexpect: 100-continue\r\n" % hop.EXPECT
"""Header fields that make the replica send a 100 when it waits for the arguments."""


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
    ) -> None:
        """`payloads`: transfers large payloads out-of-band. None: they are sent over the sockets like all others.

        `draw`: returns a random number, at least 0 and below 1, for a call of a split without a key, and for each
        mirror of a split.
        """
        self.payloads = payloads
        self.loop = asyncio.get_running_loop()
        self.token = hop.token(secret)
        self.pool = Pool(secret)
        self.wait_queues = WaitQueues(self.pool, self.token)
        self.application = ApplicationKey.parse(application)
        self.reports = Reports(self._loads)
        self.counters = Counters()
        #: The slowest calls of the last minutes.
        self.slow = SlowRequests()
        #: The records of the calls that have ended.
        self.records = Records(self.counters.add, self.slow.add, self.reports.lost.add)
        if tracing.current is not None:
            self.records.subscribe(tracing.current.add)
        prefixes = (f"{REPLICAS}{application}/", f"{SPLITS}{application}/") if callees else ()
        #: The replica sets of deployments and their routers, and the shares of splits.
        self.registry = Registry(self._new_router, self.pool, node, prefixes)
        #: The copies of calls that mirrors of splits get.
        self.mirrored = MirroredCalls(self.loop)
        self.mirrored.mirrors.draw = draw
        self._draw = draw
        self._lock = threading.Lock()
        keys = [self.application.replica_set(name) for name in callees]
        self._clients = {key: RemoteDeploymentClient(self, key) for key in keys}
        self._closed = False
        self._process = secrets.token_hex(6)
        self._count = itertools.count(1)

    def _new_router(self, key: ReplicaSetKey) -> Router:
        return Router(key.deployment, self.wait_queues.join, self.reports.unserved)

    def client_of(self, callee: Callee, shard_key: str | None = None) -> DeploymentClient:
        """Return the client for one call of a deployment, or of the member that a split chooses.

        Calls wait while the deployment has no replicas.

        Raises:
            ConfigError: The deployment is not a part of the application of this process.
        """
        application = callee.application
        if application is not None:
            return self.client_in(ApplicationKey.parse(application), callee, shard_key)
        for name in callee.members or (callee.name,):
            if self.application.replica_set(name) not in self._clients:
                raise ConfigError(
                    f"{name!r} is not deployed with application {self.application.name!r}: make a route "
                    "depend on it, or list it in Toolkit(deployments=[...])"
                )
        return self.client_in(self.application, callee, shard_key)

    def client_in(self, application: ApplicationKey, callee: Callee, shard_key: str | None = None) -> DeploymentClient:
        """Return the client for one call of a deployment or split of any application, which need not exist."""
        if not callee.members:
            return self.client_named(application, callee.name)
        split = application.replica_set(callee.name)
        published = self.registry.split(split)
        if published is None:
            self._follow(self.registry.follow_split, split)
            member = partial(self.client_in, application, callee)
            return UnpublishedSplit(self.loop, partial(self.registry.published, split), member)
        chosen = member_of(callee, published.shares, shard_key, self._draw)
        client = self.client_named(application, chosen)
        if not published.mirrors:
            return client

        def named(mirror: str) -> RemoteDeploymentClient | None:
            return self.client_named(application, mirror) if mirror in callee.members else None

        return self.mirrored.client(client, published.mirrors, named)

    def client_named(self, application: ApplicationKey, deployment: str) -> "RemoteDeploymentClient":
        """Return the client of a deployment of any application. The deployment need not exist. Thread-safe."""
        key = application.replica_set(deployment)
        client = self._clients.get(key)
        if client is not None:
            return client
        with self._lock:
            if key not in self._clients:
                self._clients[key] = RemoteDeploymentClient(self, key)
                self._follow(self.registry.follow_replica_set, key)
            return self._clients[key]

    def _follow(self, follow: Callable[[ReplicaSetKey], None], key: ReplicaSetKey) -> None:
        try:
            self.loop.call_soon_threadsafe(follow, key)
        except RuntimeError:  # the loop is closed
            raise NoReplica(ENDED) from None

    async def run(self, watch: Watch, report: Report | None = None) -> None:
        """Follow the published snapshots until cancelled, once there is a deployment to call.

        `report`: sends the load of the called deployments to the controller. None: the load is not reported.
        """
        reporting: asyncio.Task[None] | None = None
        try:
            await self.registry.followed()
            self._sweep()
            if report is not None:
                reporting = self.loop.create_task(self.reports.run(report))
            await self.registry.follow(watch)
        finally:
            self._closed = True
            if reporting is not None:
                reporting.cancel()
                await asyncio.gather(reporting, return_exceptions=True)

    async def aclose(self) -> None:
        """Fail the calls that wait, end the mirrored calls, and close the connections."""
        self._closed = True
        await self.mirrored.aclose()
        self.registry.close()
        self.wait_queues.close()
        await self.pool.aclose()

    def call_loads(self) -> dict[ReplicaSetKey, CallLoad]:
        """Return the waiting and ongoing calls by deployment. Thread-safe."""
        mirrored = self.mirrored.mirrors.counts()
        return {
            key: CallLoad(
                each.router.waiting,
                each.router.ongoing,
                each.router.opened,
                each.router.reached,
                mirrored.get(key.name, MirrorCounts()),
            )
            for key, each in list(self._clients.items())
        }

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of all metrics of the calls of this process. Thread-safe."""
        yield from self.counters.samples()
        yield from self.mirrored.mirrors.samples("call")
        for key, load in self.call_loads().items():
            yield Sample(CALLS_QUEUED, (key.name,), [load.waiting])
            yield Sample(CALLS_ONGOING, (key.name,), [load.ongoing])
            yield Sample(CALL_STREAMS, (key.name,), [load.streams])

    def _loads(self) -> Loads:
        reported = self.registry.reported
        return {
            key: (each.waiting, each.ongoing, 0, each.streams)
            for key, each in self.call_loads().items()
            if key in reported
        }

    def mint_id(self) -> str:
        """Return a new id, such as for a call that is made outside of a request."""
        return f"{self._process}-{next(self._count):x}"

    def _sweep(self) -> None:
        if not self._closed:
            self.pool.expire(self.loop.time())
            self.loop.call_later(SWEEP_S, self._sweep)


class RemoteDeploymentClient:
    """Sends calls to the replicas of one deployment.

    * A dispatcher decides the next step after an attempt without a response. A call may run twice if the call, or
      else its deployment, has `retry="all"`, or has `retry="idempotent"` and the method is marked as idempotent.
    * One deadline applies to waiting and all attempts. It is the earliest of those of the call, of its deployment, and
      of the request in which the call is made.
    """

    def __init__(self, data_plane: RemoteDataPlane, key: ReplicaSetKey) -> None:
        self.key = key
        self.router = data_plane.registry.router(key)
        #: The deployment, for messages.
        self.name = self.router.name
        self.loop = data_plane.loop
        #: The replica set, for records and the counts of mirrors.
        self.replica_set = key.name
        self._data_plane = data_plane
        self._pool = data_plane.pool
        self._budget = RetryBudget()

    def _is_idempotent(self, method: str) -> bool:
        """Return whether the method is marked as idempotent."""
        return method.removesuffix(MANY) in self._data_plane.registry.idempotent(self.key)

    async def call(self, call: Call) -> Any:
        dispatcher = self._dispatcher(call)
        with RecordedCall(self._data_plane.records, dispatcher, self.replica_set):
            return _outcome(await self._only_frame(call, dispatcher))

    async def fetch(self, call: Call) -> Any:
        dispatcher = self._dispatcher(call)
        with RecordedCall(self._data_plane.records, dispatcher, self.replica_set):
            frame = await self._only_frame(call, dispatcher)
            return EncodedValue(frame) if frame.kind == "value" else _outcome(frame)

    async def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        dispatcher = self._dispatcher(call)
        with RecordedCall(self._data_plane.records, dispatcher, self.replica_set):
            sent, frame = await self._first_in_time(call, dispatcher)
            until, replica = dispatcher.attempts.deadline, dispatcher.replica
            late = DeadlineExceeded(f"{call.method} of {self.name} did not end before its deadline")
            timer = None if until is None else self.loop.call_at(until, sent.fail, late)
            try:
                while frame.kind == "item":
                    yield _outcome(frame)
                    frame = await sent.frame()
                    if frame.kind == "out_of_band":
                        frame = await self._frame_out_of_band(sent, replica, until)
                if frame.kind != "end":
                    _outcome(frame)  # an error
            except ReplicaGone as gone:
                raise ReplicaLost(f"{self.name} was lost while it answered {call.method}") from gone
            finally:
                if timer is not None:
                    timer.cancel()
                sent.abandon()
                dispatcher.end()

    async def copy(self, call: Call, body: Sequence[Piece] | None, mirrored: MirroredRequest[Permit]) -> None:
        """As of `MirrorClient`. The result arrives over the socket, whatever its size, until it is cut."""
        assert body is not None, "calls over the wire are encoded"
        permit = mirrored.permit
        address = permit.endpoint.address
        sent: DiscardedResponse | None = None
        begun = False
        try:
            async with asyncio.timeout_at(mirrored.deadline):
                connection = self._pool.take(address) or await self._dial(address)
                head = self._head(
                    call, permit, mirrored.primary.id, mirrored.deadline, "", TRACE.get(), sum(map(len, body))
                )
                sent = DiscardedResponse(self._pool, connection, (head, *body))
                frame = await sent.frame()
                begun = True
                if sent.stream is not None:
                    self.router.stream(permit, sent.stream)
                while frame.kind == "item":
                    frame = await sent.frame()
        except Refused as refused:
            mirrored.refused(str(refused))
        except TooLong:
            mirrored.completed(OK, self.loop.time(), whole=False)
        except (TimeoutError, DeadlineExceeded):
            if begun:
                mirrored.completed(OK, self.loop.time(), whole=False)
        except ReplicaLost:
            mirrored.failed(Result.UNREADABLE)
        except ReplicaGone as gone:
            readable = not isinstance(gone, ResponseUnreadable)
            if sent is not None and readable:
                self._pool.distrust(address)
            mirrored.failed(Result.UNREACHED if sent is None else Result.LOST if readable else Result.UNREADABLE)
        else:
            if frame.kind == "value":
                compare_result(mirrored.response, frame)
            status = type(calls.decode_error(frame)).__name__ if frame.kind == "error" else OK
            mirrored.completed(status, self.loop.time())
        finally:
            if sent is not None:
                sent.abandon()

    def _dispatcher(self, call: Call) -> Dispatcher[Permit]:
        request_id = REQUEST_ID.get() or self._data_plane.mint_id()
        idempotent = partial(self._is_idempotent, call.method)
        request = RetainedRequest(call.method, request_id, LATE, idempotent, call.retry)
        now = time.monotonic()
        allowed = call.timeout_s, self.router.policy.request_timeout_s
        dispatcher: Dispatcher[Permit] = Dispatcher(request, now, deadlines.until(now, allowed, DEADLINE.get()))
        if tracing.current is not None:
            dispatcher.trace = tracing.current.begin_call()
        return dispatcher

    async def _only_frame(self, call: Call, dispatcher: Dispatcher[Permit]) -> Frame:
        sent, frame = await self._first_in_time(call, dispatcher)
        sent.abandon()
        dispatcher.end()
        return frame

    async def _first_in_time(self, call: Call, dispatcher: Dispatcher[Permit]) -> tuple[Sent, Frame]:
        """Return the result of `_first`, unless the deadline of the call passes before."""
        until = dispatcher.attempts.deadline
        if until is None:
            return await self._first(call, dispatcher)
        try:
            async with asyncio.timeout_at(until):
                return await self._first(call, dispatcher)
        except TimeoutError:
            raise DeadlineExceeded(LATE.format(request=call.method, deployment=self.name)) from None

    async def _first(self, call: Call, dispatcher: Dispatcher[Permit]) -> tuple[Sent, Frame]:
        """Make attempts until there is a response. Return the exchange and the first frame."""
        body = calls.encode_call(call)
        request_id, until = dispatcher.request.request_id, dispatcher.attempts.deadline
        dispatcher.assign(self.router, self._budget)
        preference = self.router.preference(call)
        now = dispatcher.began
        try:
            while True:
                permit = await self._permit(call, dispatcher, preference, now)
                address = permit.endpoint.address
                try:
                    connection = self._pool.take(address) or await self._dial(address)
                    dispatcher.sent()
                    trace = TRACE.get() if dispatcher.trace is None else dispatcher.trace.forwarded
                    sent, frame = await self._send(call, permit, connection, request_id, until, body, trace)
                except Refused as refused:
                    if refused.holdings is not None:
                        self.router.report(permit, refused.holdings, moved=True)
                    now = time.monotonic()
                    step = dispatcher.refused(str(refused), now)
                except ReplicaGone as gone:
                    if dispatcher.stage is Stage.SENT:
                        self._pool.distrust(address)
                    now = time.monotonic()
                    step = dispatcher.lost(gone, now)
                else:
                    dispatcher.response_started(time.monotonic())
                    if sent.stream is not None:
                        self.router.stream(permit, sent.stream)
                    if sent.holdings is not None:
                        self.router.report(permit, sent.holdings)
                    return sent, frame
                if isinstance(step, Exception):
                    raise step
        except BaseException:
            dispatcher.end()
            raise

    async def _permit(self, call: Call, dispatcher: Dispatcher[Permit], preference: Preference, now: float) -> Permit:
        permit, attempts = dispatcher.acquire(now, preference), dispatcher.attempts
        if permit is None:
            try:
                permit = await self.router.acquire(
                    attempts.since, avoid=attempts.avoid, preference=preference, again=attempts.count > 0
                )
            except NOT_TAKEN as error:
                raise dispatcher.explain(error) from None
            dispatcher.granted(permit, time.monotonic())
        permit.request, permit.yields = call.method, call.yields
        return permit

    async def _send(
        self,
        call: Call,
        permit: Permit,
        connection: PooledConnection,
        request_id: str,
        until: float | None,
        body: Sequence[Piece],
        trace: str | None,
    ) -> tuple[Sent, Frame]:
        """Send the call. Return the exchange, and the first frame of its result."""
        payloads = self._data_plane.payloads
        key = "" if payloads is None else self._data_plane.mint_id()
        out_of_band = payloads is not None and calls.is_out_of_band(body)
        length = None if out_of_band else sum(map(len, body))
        head = self._head(call, permit, request_id, until, key, trace, length)
        sent = Sent(self._pool, connection, (head,) if out_of_band else (head, *body), key)
        if call.sent is not None:
            call.sent(body)
        try:
            frame = await (self._frame_after_put(sent, permit, body) if out_of_band else sent.frame())
            if frame.kind == "out_of_band":
                frame = await self._frame_out_of_band(sent, permit.endpoint.id)
        except BaseException:
            sent.abandon()
            raise
        return sent, frame

    async def _frame_after_put(self, sent: Sent, permit: Permit, body: Sequence[Piece]) -> Frame:
        """Send the arguments out-of-band, and return the first frame of the result."""
        assert self._data_plane.payloads is not None, "arguments go out-of-band only where there is a way"
        await sent.invited()
        put = self.loop.create_task(self._data_plane.payloads.put(permit.endpoint.id, sent.key, body))
        put.add_done_callback(partial(_fail, sent))
        try:
            return await sent.frame()
        finally:
            put.cancel()

    async def _frame_out_of_band(self, sent: Sent, replica: ReplicaId, until: float | None = None) -> Frame:
        """Get the frame that the replica keeps for this exchange.

        Raises `DeadlineExceeded` if the frame does not arrive by the deadline `until`.
        """
        assert self._data_plane.payloads is not None, "arguments go out-of-band only where there is a way"
        try:
            async with asyncio.timeout_at(until):
                return calls.frame_of(await self._data_plane.payloads.get(replica, sent.key))
        except TimeoutError:
            raise DeadlineExceeded(f"the result of {self.name} did not arrive before the deadline") from None
        except ValueError as error:
            raise ReplicaLost(
                f"the data that replica {replica} kept for a call is not a valid frame: {error}"
            ) from None

    async def _dial(self, address: Address) -> PooledConnection:
        reached: asyncio.Future[PooledConnection] = self.loop.create_future()

        def take(connection: PooledConnection) -> None:
            if reached.done():  # the waiting task was cancelled
                self._pool.give_back(connection)
            else:
                reached.set_result(connection)

        def fail(gone: ReplicaGone) -> None:
            if not reached.done():
                reached.set_exception(gone)

        self._pool.dial(address, take, fail)
        try:
            connection = await reached
        except asyncio.CancelledError:
            if reached.done() and not reached.cancelled() and reached.exception() is None:  # connected before that
                self._pool.give_back(reached.result())
            raise
        if not connection.usable:  # lost after it was connected and before this task resumed
            connection.abort()
            raise ReplicaGone(f"the connection to {address} was lost immediately after it was opened")
        return connection

    def _head(
        self,
        call: Call,
        permit: Permit,
        request_id: str,
        until: float | None,
        key: str,
        trace: str | None,
        length: int | None,
    ) -> bytes:
        """Return the head of a call.

        `trace`: in the format of `core.trace`. `length`: that of the body. None: the arguments are sent out-of-band.
        """
        left = None if until is None else max(math.ceil((until - self.loop.time()) * 1_000), 1)
        identity = hop.encode(self._data_plane.token, request_id.encode("latin-1", "replace"), b"1.1", HERE, left)
        if permit.redeem():
            identity += self._data_plane.wait_queues.redeem
        return b"POST / HTTP/1.1\r\n%b: %b\r\n%b: %b\r\n%b%bhost: replica\r\ncontent-length: %d\r\n\r\n" % (
            hop.HOP,
            identity,
            hop.CALL,
            hop.encode_call(call.method, key, out_of_band=length is None),
            (b"" if trace is None else b"%b: %b\r\n" % (hop.TRACE, trace.encode()))
            + (b"%b: %b\r\n" % (hop.SHARD_KEY, hop.encode_key(call.shard_key)) if call.shard_key else b"")
            + (b"%b: %b\r\n" % (hop.AFFINITY, hop.encode_key(call.affinity)) if call.affinity and permit.held else b""),
            EXPECT if length is None else b"",
            length or 0,
        )


def _fail(sent: Sent, put: "asyncio.Task[None]") -> None:
    """Fail the exchange if its arguments could not be sent out-of-band."""
    if not put.cancelled() and isinstance(error := put.exception(), Exception):
        sent.fail(error)


def _outcome(frame: Frame) -> Any:
    """Return the result of the method, or raise the exception that it raised."""
    if frame.kind == "error":
        raise calls.decode_error(frame)
    return calls.decode_value(frame)
