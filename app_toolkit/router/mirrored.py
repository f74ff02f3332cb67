"""Sends copies of calls to mirrors (`dispatch.mirror`), and throws the results away."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from contextvars import copy_context
from dataclasses import replace
from typing import Any, Protocol

from app_toolkit.core.identity import ReplicaSetKey
from app_toolkit.dispatch.call_request import CallRequest
from app_toolkit.dispatch.caller import HERE
from app_toolkit.dispatch.filters.mirror import Copy, CopyPlane, Nobody
from app_toolkit.dispatch.ingress_router import RoutePermit
from app_toolkit.dispatch.mirror import MirroredRequest, Mirrors, ObservedResponse, Primary
from app_toolkit.dispatch.upstream import Terms, Upstreams
from app_toolkit.interfaces import Call, DeploymentClient
from app_toolkit.observability.context import REQUEST_ID
from app_toolkit.observability.records import Record, Records
from app_toolkit.router.router import Router
from app_toolkit.transport.calls import EncodedValue, Frame, Piece, decode_error

OK = "ok"
"""The status of a call that raised nothing. That of another call is the class of the exception."""


class MirrorClient(DeploymentClient, Protocol):
    """The client of a deployment that may get copies of calls. Use it only on `loop`."""

    @property
    def router(self) -> Router: ...

    @property
    def replica_set(self) -> str:
        """The name of the deployment among the mirrors of this process."""
        ...

    @property
    def key(self) -> ReplicaSetKey: ...

    @property
    def upstreams(self) -> Upstreams: ...


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
        return MirroredClient(self, primary, mirrors) if mirrors else primary

    def begin(
        self,
        call: Call,
        pieces: Sequence[Piece],
        primary: Primary,
        client: MirrorClient,
        mirrors: Sequence[MirrorClient],
    ) -> None:
        """Send copies of a call that was sent to its replica, in the context of its caller.

        Parameters:
            call: The call.
            pieces: Its encoded arguments. Empty: they are not encoded.
            primary: The call that the caller waits for.
            client: That of the member that serves the caller.
            mirrors: Those of the mirrors.
        """
        size = sum(map(len, pieces))
        for mirror in mirrors:
            if self._closed:
                return
            mirrored: MirroredRequest[RoutePermit] | None = self.mirrors.begin(
                mirror.replica_set, primary, size, mirror.router, client.router, self.clock()
            )
            if mirrored is not None:
                request = CallRequest(replace(call, sent=None), primary.id, traced=False)
                request.pieces = pieces
                plane = CopyPlane(self, mirror.key, mirror.upstreams, Terms(None, False, mirrored=True))
                Copy(plane, mirrored, request, NobodyCalls(mirrored, HERE)).begin()

    def close(self) -> None:
        """End all mirrored calls, and begin no others."""
        self._closed = True
        for copy in list(self.live):
            copy.expire()


class NobodyCalls(Nobody):
    """The downstream of a copy of a call. What its mirror returns is compared, and not kept."""

    _status = OK

    @property
    def status(self) -> str:
        return self._status

    def write(self, data: Any) -> None:
        """Note a frame, or an object of this process, which is not compared."""
        is_frame = isinstance(data, Frame)
        if data.kind == "error":
            self._status = type(decode_error(data) if is_frame else data.value).__name__
        elif data.kind == "value" and is_frame:
            compare_result(self._response, data)


class MirroredClient:
    """The client of one call of which mirrors get copies. The caller gets what the member responds."""

    def __init__(self, calls: MirroredCalls, primary: MirrorClient, mirrors: Sequence[MirrorClient]) -> None:
        self.loop = primary.loop
        self._calls = calls
        self._primary = primary
        self._mirrors = mirrors

    async def call(self, call: Call) -> Any:
        value = await self.fetch(call)
        return value.open() if isinstance(value, EncodedValue) else value

    async def fetch(self, call: Call) -> Any:
        with self._compared(call) as (primary, observed):
            value = await self._primary.fetch(observed)
            if isinstance(value, EncodedValue):
                compare_result(primary.response, value.frame)
            else:
                primary.response.comparable = False
            return value

    async def stream(self, call: Call) -> AsyncGenerator[Any, None]:
        with self._compared(call) as (primary, observed):
            primary.response.comparable = False
            async with aclosing(self._primary.stream(observed)) as items:
                async for item in items:
                    yield item

    @contextmanager
    def _compared(self, call: Call) -> Iterator[tuple[Primary, Call]]:
        """Begin the copies once the call was sent, and compare them with what happens in the block."""
        primary = Primary(REQUEST_ID.get() or uuid.uuid4().hex, call.method, self.loop.time())
        context, soon, was_sent = copy_context(), self.loop.call_soon, False

        def sent(pieces: Sequence[Piece]) -> None:
            nonlocal was_sent
            if not was_sent:  # not again if it is retried
                was_sent = True
                # An event loop may write the bytes of the call only after the callbacks of this iteration.
                copied = (self._calls.begin, call, pieces, primary, self._primary, self._mirrors)
                soon(soon, *copied, context=context)

        try:
            yield primary, replace(call, sent=sent)
        except Exception as error:
            primary.end(type(error).__name__, self.loop.time())
            raise
        except BaseException:  # the caller has left
            primary.abandon()
            raise
        else:
            primary.end(OK, self.loop.time())


def compare_result(response: ObservedResponse, frame: Frame) -> None:
    """Note the encoded result of a call for the comparison."""
    for piece in (frame.pickled, *frame.buffers):
        response.received(piece)
