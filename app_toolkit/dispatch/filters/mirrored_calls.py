"""The filter that sends copies of calls to mirrors (`dispatch.mirror`). Nobody gets their results."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from typing import Any, Protocol

from app_toolkit.core.identity import ReplicaSetKey
from app_toolkit.dispatch.call_request import CallRequest
from app_toolkit.dispatch.caller import HERE
from app_toolkit.dispatch.exchange import Exchange
from app_toolkit.dispatch.filters.mirror import Copy, CopyPlane, Nobody
from app_toolkit.dispatch.ingress_router import IngressRouter, RoutePermit
from app_toolkit.dispatch.mirror import MirroredRequest, Mirrors, ObservedResponse, Primary
from app_toolkit.dispatch.upstream import Terms, Upstreams
from app_toolkit.interfaces import Call, DeploymentClient
from app_toolkit.observability.records import CLIENT_GONE, Record, Records
from app_toolkit.transport.calls import Frame, decode_error
from app_toolkit.transport.pool import ResponseHead

OK = "ok"
"""The status of a call that raised nothing. That of another call is the class of the exception, or its reason."""


class MirrorClient(DeploymentClient, Protocol):
    """The client of a deployment that may get copies of calls. Use it only on `loop`."""

    @property
    def router(self) -> IngressRouter: ...

    @property
    def key(self) -> ReplicaSetKey: ...

    @property
    def replica_set(self) -> str:
        """The name of the deployment among the mirrors of this process."""
        ...

    @property
    def upstreams(self) -> Upstreams: ...


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a call has if mirrors get copies of it."""

    mirrors: Sequence[MirrorClient]
    context: Context
    """That of the caller, from which copies take the deadline and the trace."""


class MirroredCalls:
    """The mirrored calls of one event loop. Create it anywhere, and use it only on that loop, except where noted."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.mirrors = Mirrors()
        self.clock = loop.time
        #: The records of the copies, for which nobody asks.
        self.records: Records[Record] = Records()
        #: The copies that have not ended. `Mirrors` bounds their number.
        self.live: set[Copy] = set()
        self._loop = loop
        self._closed = False

    def client(
        self, primary: MirrorClient, shares: Mapping[str, float], named: Callable[[str], MirrorClient | None]
    ) -> DeploymentClient:
        """Return the client for one call, which sends copies to the mirrors for which the call is sampled. Thread-safe.

        Parameters:
            primary: The client of the member that serves the caller. It gets no copy.
            shares: The share of the calls that each mirror gets copies of, by its name.
            named: Returns the client of a mirror. None: it gets no copies.
        """
        sampled = [named(name) for name, share in shares.items() if self.mirrors.is_sampled(share)]
        mirrors = [each for each in sampled if each not in (None, primary) and each.loop is self._loop]
        return MirroredClient(primary, mirrors) if mirrors else primary

    # Hooks

    def sent(self, exchange: Exchange) -> None:
        """Begin the copies of a call that is sent. A call that is retried is not copied again."""
        request = exchange.request
        assert isinstance(request, CallRequest)
        sampled: Sampled | None = request.call.sampled
        if sampled is None or self in exchange.marks:
            return
        primary = Primary(request.request_id, request.name, self.clock())
        exchange.marks[self] = ObservedCall(primary)
        # An event loop may write the bytes of the call only after the callbacks of this iteration.
        soon, router = self._loop.call_soon, exchange.dispatcher.router
        soon(soon, self._begin, request, primary, router, sampled.mirrors, context=sampled.context)

    def response(self, exchange: Exchange, head: ResponseHead) -> None:
        observed: ObservedCall | None = exchange.marks.get(self)
        if observed is not None:
            exchange.observe(observed)

    def ended(self, exchange: Exchange, status: int, outcome: str) -> None:
        observed: ObservedCall | None = exchange.marks.get(self)
        if observed is None:
            return
        if outcome == CLIENT_GONE:
            observed.primary.abandon()
        else:
            observed.primary.end(observed.status or outcome, self.clock())

    def close(self) -> None:
        """End all mirrored calls, and begin no others."""
        self._closed = True
        for copy in list(self.live):
            copy.expire()

    def _begin(self, sent: CallRequest, primary: Primary, router: Any, mirrors: Sequence[MirrorClient]) -> None:
        """Send copies of a call to these mirrors. `router`: that of the member that serves the caller."""
        size = sum(map(len, sent.pieces))
        for mirror in mirrors:
            if self._closed:
                return
            mirrored: MirroredRequest[RoutePermit] | None = self.mirrors.begin(
                mirror.replica_set, primary, size, mirror.router, router, self.clock()
            )
            if mirrored is not None:
                request = CallRequest(replace(sent.call, sampled=None), primary.id, traced=False)
                request.pieces = sent.pieces
                plane = CopyPlane(self, mirror.key, mirror.upstreams, Terms(None, False, mirrored=True))
                Copy(plane, mirrored, request, NobodyCalls(mirrored, HERE)).begin()


class ObservedCall:
    """The results of the call that the caller waits for, as those of its copies are compared with them."""

    __slots__ = ("primary", "status")

    def __init__(self, primary: Primary) -> None:
        self.primary = primary
        #: The class of the exception that the method has raised. Empty: it has raised none.
        self.status = ""

    def received(self, data: Any) -> None:
        if data.kind == "error":
            self.status = error_name(data)
        elif data.kind == "value" and isinstance(data, Frame):
            compare_result(self.primary.response, data)
        else:  # items, and objects of this process
            self.primary.response.comparable = False


class NobodyCalls(Nobody):
    """The downstream of a copy of a call. What its mirror returns is compared, and not kept."""

    _status = OK

    @property
    def status(self) -> str:
        return self._status

    def write(self, data: Any) -> None:
        """Note a frame, or an object of this process, which is not compared."""
        if data.kind == "error":
            self._status = error_name(data)
        elif data.kind == "value" and isinstance(data, Frame):
            compare_result(self._response, data)


class MirroredClient:
    """The client of one call of which mirrors get copies. The caller gets what the member responds."""

    def __init__(self, primary: MirrorClient, mirrors: Sequence[MirrorClient]) -> None:
        self.loop = primary.loop
        self._primary = primary
        self._mirrors = mirrors

    async def call(self, call: Call) -> Any:
        return await self._primary.call(self._sampled(call))

    async def fetch(self, call: Call) -> Any:
        return await self._primary.fetch(self._sampled(call))

    async def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        async with aclosing(self._primary.stream(self._sampled(call))) as items:
            async for item in items:
                yield item

    def _sampled(self, call: Call) -> Call:
        return replace(call, sampled=Sampled(self._mirrors, copy_context()))


def error_name(data: Any) -> str:
    """Return the class of the exception in a result."""
    return type(decode_error(data) if isinstance(data, Frame) else data.value).__name__


def compare_result(response: ObservedResponse, frame: Frame) -> None:
    """Note the encoded result of a call for the comparison."""
    for piece in (frame.pickled, *frame.buffers):
        response.received(piece)
