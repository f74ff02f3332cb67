"""The downstream of a call: the task that awaits its result. And the exchange and the plane of calls."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from app_toolkit.config.models import CorsSettings
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.errors import ReplicaGone, ReplicaLost, RequestError
from app_toolkit.exchange import allowed_time as deadlines
from app_toolkit.exchange.builtin import BuiltinResponse
from app_toolkit.exchange.call_request import CallRequest
from app_toolkit.exchange.deadlines import SingleDeadline
from app_toolkit.exchange.dispatcher import WAITING, Router
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.filters import Filters
from app_toolkit.exchange.ingress_router import IngressRouter, RoutePermit
from app_toolkit.exchange.ingress_state import IngressState
from app_toolkit.exchange.preference import Preference, keyed
from app_toolkit.exchange.request import ClientRequest
from app_toolkit.exchange.upstream import Upstreams
from app_toolkit.observability.records import OK, Record, Records
from app_toolkit.wire import hop
from app_toolkit.wire.pool import ResponseHead

FAILED = 500
"""The status of a call whose method raised an exception."""

HELD = 1024 * 1024
"""Bytes of results that arrive before the caller has taken them. Then reading pauses (backpressure)."""

HERE = hop.peers(None, None, "http")


class CallDownstream:
    """The caller of a call, until the end of the `with` block. `next` returns the results one by one.

    A result is an item, or the last one. It is a frame of the wire, or an object with the same `kind` and `size`.

    The block ends the exchange. An exception in it is the outcome of the call, as it is recorded. An exception of the
    user's method is a complete response, so that its outcome is `OK`, unless it is a `RequestError`, such as that of a
    call which the method has made.
    """

    __slots__ = ("_ahead", "_error", "_results", "_waiter", "exchange", "request", "writable")

    host = ""
    head: ResponseHead | None = None  # only the results matter
    peers = HERE
    continued = False
    size = 0
    served: dict[ReplicaSetKey, Preference] = {}  # noqa: RUF012  # a call prefers no replica by its caller

    def __init__(self, plane: "CallPlane", request: CallRequest) -> None:
        self.request = request
        self.exchange: CallExchange | None = CallExchange(plane, self, request)
        #: Those that the caller has not taken, with their sizes.
        self._results: deque[tuple[Any, int]] = deque()
        self._ahead = 0
        #: Whether fewer than `HELD` bytes of results wait for the caller. Otherwise, reading is paused.
        self.writable = True
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> Any:
        """Return the next result. Raises the error of the call, once all results that arrived before are taken."""
        while True:
            while not self._results:
                if self._error is not None:
                    raise self._error
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            result, size = self._results.popleft()
            if result.kind != "out_of_band":
                break
            result.fetch()
        self._ahead -= size
        if not self.writable and self._ahead < HELD:
            self.writable = True
            if self.exchange is not None:
                self.exchange.client_paused(False)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        exchange, self.exchange = self.exchange, None  # no reference cycle keeps the arguments
        assert exchange is not None
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            exchange.client_gone()
        elif not exchange.done:
            exchange.taken(error)

    # For the exchange

    def write(self, data: Any) -> None:
        """Keep a result until the caller takes it."""
        size = data.size
        self._results.append((data, size))
        self._ahead += size
        if self._ahead >= HELD and self.writable:
            self.writable = False
            if self.exchange is not None:
                self.exchange.client_paused(True)
        self._wake()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def prepare(self, head: ResponseHead) -> bool:
        return True

    def take_back(self) -> None: ...

    def regulate(self) -> None: ...

    def inform(self, head: ResponseHead) -> None: ...

    def start(self, data: Any = None) -> None:
        if data is not None:
            self.write(data)

    def open_tunnel(self, head: ResponseHead) -> None: ...

    def close_tunnel(self, why: str) -> None: ...

    def give(self, response: BuiltinResponse) -> None: ...

    def finished(self) -> None: ...

    def cut(self, error: Exception) -> None: ...


class CallExchange(Exchange):
    """The exchange of a call. It ends when the caller has taken the result, and not when the result has arrived."""

    __slots__ = ()

    kind = "call"
    plane: "CallPlane"
    downstream: CallDownstream
    request: CallRequest

    def __init__(self, plane: "CallPlane", caller: CallDownstream, request: CallRequest) -> None:
        super().__init__(plane, caller, request)
        self.preference = keyed(request.call.affinity)

    def taken(self, error: BaseException | None) -> None:
        """End the exchange, because the caller needs nothing more. `error`: the exception that the caller gets."""
        self._drop_upstream()
        self._release()
        if isinstance(error, RequestError):
            self._record(error.status, error.reason)
        else:
            self._record(200 if error is None else FAILED, OK)

    def fail(self, error: Exception) -> None:
        caller, error = self.downstream, self.dispatcher.explain(error)
        self.taken(error)
        caller.fail(error)

    def _cut_off(self, error: Exception) -> None:
        if isinstance(error, ReplicaGone):
            lost = ReplicaLost(f"{self.dispatcher.router.name} was lost while it answered {self.request.name}")
            lost.__cause__ = error
            error = lost
        self.fail(error)

    def _finish(self) -> None:
        self._forget_deadline()
        self.downstream.finished()

    def _set_deadline(self) -> None:
        dispatcher, request = self.dispatcher, self.request
        usual, began = dispatcher.router.policy.request_timeout_s, dispatcher.began
        if usual is None and request.call.timeout_s is None and request.outer is None:
            return
        at = deadlines.until(began, (request.call.timeout_s, usual), request.outer)
        if at is not None:
            dispatcher.attempts.deadline = at
            if usual is not None and at == began + usual:
                self._deadlines = self._ingress_state.deadlines(usual)
                self._deadlines.add(self, at)
            else:
                self._deadlines = SingleDeadline(self, at - began)

    def _wait_for_permit(self) -> None:
        super()._wait_for_permit()
        dispatcher = self.dispatcher
        if dispatcher.stage is WAITING:
            left = dispatcher.attempts.since + dispatcher.router.policy.max_queue_wait_s - self.plane.clock()
            self._timer = asyncio.get_running_loop().call_later(max(left, 0.0), self._waited_too_long)

    def _waited_too_long(self) -> None:
        self.fail(self.plane.waited_too_long(self.dispatcher.router))

    def _wait_failed(self, error: Exception) -> None:
        """Fail, or begin at the target that serves the call now: the call has waited for a split to be published."""
        if self.plane.router(self.ingress) is self.dispatcher.router:
            self.fail(error)
            return
        self._waiter = None
        self._forget_timer()
        self._forget_deadline()
        self.dispatcher.asks_elsewhere(self.plane.clock())
        self.begin()

    def _granted(self, permit: RoutePermit) -> None:
        self._forget_timer()
        super()._granted(permit)


class CallState(IngressState):
    """The calls of one deployment. Their replicas do not depend on who calls, and their failures are not logged."""

    __slots__ = ()

    def opened(self, *args: object, **options: object) -> None: ...

    def closed(self, *args: object) -> None: ...

    def log_failure(self, *args: object) -> None: ...

    def log_retry(self, *args: object) -> None: ...


class CallPlane:
    """The plane of the calls of one deployment from one event loop."""

    def __init__(
        self,
        key: ReplicaSetKey,
        router: IngressRouter | None,
        upstreams: Upstreams,
        records: Records[Record],
        filters: Filters,
        name: str | None = None,
    ) -> None:
        """Create the plane.

        Parameters:
            key: The replica set of the deployment.
            router: Its router. None: a subclass has one for each call.
            upstreams: The ways to the replicas.
            records: Gets the record of each call.
            filters: Those of the event loop.
            name: The name of the deployment in records. None: that of the key.
        """
        self.clock = time.monotonic
        self.filters = filters
        self.records = records
        self.upstreams = upstreams
        self.state = CallState(key, self.clock, name)
        self.unowned: IngressState = self.state
        self._router = router
        self._found = key, ""

    def mint_id(self) -> bytes:
        raise NotImplementedError("a call has an ID when it begins")

    def own_response(self, request: ClientRequest) -> BuiltinResponse | None:
        return None

    def find(self, exchange: Exchange) -> tuple[ReplicaSetKey, str]:
        return self._found

    def router(self, ingress: ReplicaSetKey) -> IngressRouter | None:
        return self._router

    def ingress_state(self, ingress: ReplicaSetKey) -> IngressState:
        return self.state

    def cors(self, ingress: ReplicaSetKey, path: str) -> Sequence[CorsSettings]:
        return ()

    def waited_too_long(self, router: Router) -> Exception:
        """Return the error of a call that has waited at this router for `max_queue_wait_s`."""
        return router.waited_too_long()

    def close(self) -> None:
        self.state.close()
