"""The upstreams of calls in one process: the method runs in the task of the caller, and its results stay objects."""

import asyncio
from contextvars import Context, copy_context
from typing import Any, Protocol

from app_toolkit.errors import DeadlineExceeded, ReplicaLost
from app_toolkit.exchange.call_exchange import HELD, CallDownstream, CallPlane
from app_toolkit.exchange.call_request import CallRequest
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.permits import Permit
from app_toolkit.exchange.router import Router
from app_toolkit.exchange.upstream import Terms
from app_toolkit.interfaces import Callee
from app_toolkit.replica.admission.replica import Replica
from app_toolkit.types import Address, Message, Scope
from app_toolkit.wire import hop
from app_toolkit.wire.pool import ResponseHead

CALLER = "embedded"
"""The name of the only caller in the wait queues of this process."""


class Given:
    """A result of a call that is an object of this process."""

    __slots__ = ("kind", "size", "value")

    def __init__(self, kind: str, value: Any = None, size: int = 0) -> None:
        """`kind`: that of a frame. `size`: see `exchange.call_exchange.HELD`."""
        self.kind = kind
        self.value = value
        self.size = size

    def open(self) -> Any:
        """Return the value, or raise it if it is an error."""
        if self.kind == "error":
            raise self.value
        return self.value


class LocalCallDownstream(CallDownstream):
    """The caller of a call in this process. Its task, or one that it has made, runs the method in `serve`."""

    __slots__ = ("_complete", "_next", "_turn", "context", "split")

    def __init__(self, plane: CallPlane, request: CallRequest, split: Callee | None = None) -> None:
        """`split`: the split whose members get copies of the call. None: there are no copies."""
        super().__init__(plane, request)
        self.split = split
        #: That in which the methods of copies run. None: there are no copies.
        self.context = None if split is None else copy_context()
        #: The attempt that is to run. None: there is none yet.
        self._next: LocalCall | None = None
        self._complete = False
        self._turn: asyncio.Future[None] | None = None

    async def serve(self) -> None:
        """Begin the call, and run its attempts until it has ended."""
        exchange = self.exchange
        assert exchange is not None
        exchange.begin()
        while not (self._complete or exchange.done):
            attempt, self._next = self._next, None
            if attempt is not None:
                await attempt.run()
            else:
                self._turn = asyncio.get_running_loop().create_future()
                await self._turn

    def fail_with(self, serving: "asyncio.Task[None]") -> None:
        """Fail the call if the task of `serve` has failed."""
        error = None if serving.cancelled() else serving.exception()
        if isinstance(error, Exception):
            self.fail(error)

    def run_next(self, attempt: "LocalCall") -> None:
        self._next = attempt
        self._go_on()

    def fail(self, error: Exception) -> None:
        super().fail(error)
        self._go_on()

    def finished(self) -> None:
        self._complete = True

    def _go_on(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)


class Serving(Protocol):
    """A deployment of this process."""

    replica: Replica
    router: Router

    @property
    def ready(self) -> bool:
        """Whether its object is constructed."""


class LocalCall:
    """One attempt of a call: an upstream of its exchange, and the receiver of its results."""

    __slots__ = ("_cancelled", "_context", "_deployed", "_exchange", "_last", "_over", "_room", "_task", "_terms")

    def __init__(self, deployed: Serving, context: Context | None = None) -> None:
        self._deployed = deployed
        self._context = context
        self._exchange: Exchange
        self._terms: Terms
        #: What ends the response. None: the method has not ended.
        self._last: Given | None = None
        #: Whether the exchange has ended the attempt, or the attempt the exchange.
        self._over = False
        #: Whether `abort` has cancelled the task.
        self._cancelled = False
        #: The task in which the method runs. None: it does not run.
        self._task: asyncio.Task[Any] | None = None
        #: Is set when the caller has taken an item. None: it has taken all.
        self._room: asyncio.Future[None] | None = None

    def begin(self, exchange: Exchange, terms: Terms) -> None:
        """Let the caller run the method, or a new task if there is no caller, as for a copy."""
        self._exchange = exchange
        self._terms = terms
        if isinstance(exchange.downstream, LocalCallDownstream):
            exchange.downstream.run_next(self)
        elif self._deployed.ready:
            self._task = asyncio.get_running_loop().create_task(self.run(), context=self._context)
        else:  # no copy starts a replica
            self._refuse("busy")

    # For the exchange

    def write_all(self, pieces: Any) -> None: ...

    def pass_on(self, data: bytes) -> None: ...

    def pause_reading(self) -> None:
        self._room = asyncio.get_running_loop().create_future()

    def resume_reading(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def abort(self) -> None:
        """Cancel the method, and drop its results."""
        self._over = True
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()

    close = abort

    # The method

    async def run(self) -> None:
        """Run the method to its end. Returns when the exchange has cancelled it."""
        if self._over:
            return
        terms, replica = self._terms, self._deployed.replica
        timeout_s = None if terms.timeout_ms is None else terms.timeout_ms / 1_000
        caller = CALLER if terms.redeems else None
        task = self._task = asyncio.current_task()
        assert task is not None
        try:
            refusal = await replica.serve(self._scope(), _receive_nothing, self.send, timeout_s, caller=caller)
        except asyncio.CancelledError:
            # `abort` has cancelled only this method. Any other cancellation is that of the task.
            if not self._cancelled or task.cancelling() > 1:
                raise
            return
        finally:
            self._task = None
            if self._cancelled:  # even if the method has caught it
                task.uncancel()
        if refusal is not None and not self._over:
            self._refuse(refusal)

    def _refuse(self, refusal: str) -> None:
        self._over = True
        self._exchange.response_started(ResponseHead(503, b"", [], "none", refusal.encode(), True))
        self._exchange.ended(True)

    def _scope(self) -> Scope:
        request = self._exchange.request
        assert isinstance(request, CallRequest)
        call, trace = request.call, request.trace
        ours = {"request_id": request.request_id, "call": call, "result": self, "shard_key": call.shard_key}
        if trace is not None:
            ours["trace"] = trace.forwarded
        return {
            "type": "http",
            "method": "POST",
            "path": f"/{call.method}",
            "headers": [],
            "extensions": {"app_toolkit": ours},
        }

    async def send(self, message: Message) -> None:
        """Take a message of the replica. The first one has what the replica reports, and the last one ends the call."""
        exchange = self._exchange
        if self._over:
            return
        if message["type"] == "http.response.start":
            status, fields = message["status"], dict(message["headers"])
            if status == 200:
                exchange.response_started(
                    ResponseHead(200, b"", [], "none", None, True, fields.get(hop.STREAM), fields.get(hop.HOLDINGS))
                )
                self._report(fields.get(hop.HOLDINGS))
            else:
                self._over, self._task = True, None
                exchange.fail(self._error(status))
        elif self._last is not None and not message.get("more_body", False):
            self._over = True
            exchange.received(self._last)
            exchange.ended(True)

    def _report(self, holdings: bytes | None) -> None:
        permit = self._exchange.dispatcher.permit
        if holdings is not None and isinstance(permit, Permit):
            self._deployed.router.report(permit, holdings)

    def _error(self, status: int) -> Exception:
        dispatcher = self._exchange.dispatcher
        if status == DeadlineExceeded.status:
            return dispatcher.late()
        return ReplicaLost(f"{self._deployed.replica.name} answered {dispatcher.request.name} with status {status}")

    # The results of the method

    def value(self, value: Any) -> None:
        self._last = Given("value", value)

    def error(self, error: Exception) -> None:
        self._last = Given("error", error)

    def end(self) -> None:
        self._last = Given("end")

    async def item(self, item: Any) -> None:
        """Give an item to the exchange. Waits until the caller has taken the one before."""
        if self._room is not None:
            await self._room
        if not self._over:
            self._exchange.received(Given("item", item, HELD))
        if self._room is None:
            await asyncio.sleep(0)  # a method that always has another item would keep the event loop


class LocalCalls:
    """The calls of one deployment of this process."""

    def __init__(self, deployed: Serving, context: Context | None = None) -> None:
        """`context`: that in which copies run. None: they run in that of the callback which sends them."""
        self._deployed = deployed
        self._context = context

    def take(self, address: Address) -> LocalCall:
        return LocalCall(self._deployed, self._context)

    def dial(self, address: Address, reached: Any, failed: Any) -> None:
        reached(self.take(address))

    def send(self, upstream: LocalCall, exchange: Exchange, terms: Terms) -> None:
        request, permit = exchange.request, exchange.dispatcher.permit
        assert isinstance(request, CallRequest)
        assert isinstance(permit, Permit)
        permit.yields = request.call.yields
        upstream.begin(exchange, terms)

    def give_back(self, upstream: LocalCall) -> None: ...

    def distrust(self, address: Address) -> None: ...


async def _receive_nothing() -> Message:
    """Receive no message: a caller in this process cancels the call, and does not disconnect."""
    await asyncio.get_running_loop().create_future()
    return {"type": "http.disconnect"}
