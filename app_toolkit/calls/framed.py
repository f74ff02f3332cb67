"""The upstreams of calls over the wire: pooled connections, on which calls and their results are frames."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence

from app_toolkit.errors import DeadlineExceeded, ReplicaGone, ReplicaLost
from app_toolkit.exchange.call_exchange import HERE
from app_toolkit.exchange.call_request import CallRequest
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.filters.mirror import Copy
from app_toolkit.exchange.mirrored_requests import MOST_RESPONSE
from app_toolkit.exchange.permits import Permit
from app_toolkit.exchange.router import Router
from app_toolkit.exchange.upstream import Terms
from app_toolkit.interfaces import Payloads
from app_toolkit.types import Address, Header
from app_toolkit.wire import calls, hop
from app_toolkit.wire.calls import Frame, FrameReader, Piece
from app_toolkit.wire.pool import Pool, PooledConnection, ResponseHead

EXPECT = b"%b: 1\r\nexpect: 100-continue\r\n" % hop.EXPECT
"""Header fields that make the replica send a 100 when it waits for the arguments."""

LAST = frozenset({"value", "error", "end"})
"""The kinds of the frames after which a response may end."""


class Kept:
    """Stands for an item that the replica keeps out-of-band until the caller asks for it."""

    kind = "out_of_band"
    size = 0

    def __init__(self, fetch: Callable[[], None]) -> None:
        self.fetch = fetch


class FramedCall:
    """One attempt of a call: the upstream of its exchange, and the listener of its connection.

    The exchange gets complete frames, and the head of the response together with the first one: until then, the call
    can be attempted again. If the replica keeps the first one out-of-band, it is fetched before that.
    """

    __slots__ = (
        "_begun",
        "_behind",
        "_connection",
        "_copy",
        "_document",
        "_exchange",
        "_head",
        "_key",
        "_last",
        "_moving",
        "_payloads",
        "_permit",
        "_reader",
        "_refused",
        "_router",
        "_size",
    )

    def __init__(self, connection: PooledConnection, payloads: Payloads | None) -> None:
        #: None: it was given back.
        self._connection: PooledConnection | None = connection
        #: Is told which keys the replica holds.
        self._router: Router
        self._payloads = payloads
        self._exchange: Exchange | None = None
        self._permit: Permit
        self._key = ""
        #: The exchange, if the call is a copy for a mirror. The bytes of its response are bounded.
        self._copy: Copy | None = None
        self._size = 0
        self._reader = FrameReader()
        self._head: ResponseHead | None = None
        self._refused = False
        #: Whether the exchange knows the head.
        self._begun = False
        #: The kind of the last frame.
        self._last = ""
        #: The body of a response without frames: an error. None: the response has frames.
        self._document: list[bytes] | None = None
        #: The frames behind the one that is fetched now. None: none is.
        self._behind: list[Frame] | None = None
        #: Moves arguments or a frame out-of-band.
        self._moving: asyncio.Task[None] | None = None

    def begin(self, exchange: Exchange, permit: Permit, key: str, pieces: Sequence[Piece]) -> None:
        """Send a call. `key`: of its out-of-band payloads."""
        connection, router = self._connection, exchange.dispatcher.router
        assert connection is not None
        assert isinstance(router, Router)
        self._router = router
        self._exchange = exchange
        self._copy = exchange if isinstance(exchange, Copy) else None
        self._permit = permit
        self._key = key
        connection.begin(self, decode=True)
        connection.write_all(pieces)

    # For the exchange

    def write_all(self, pieces: Sequence[Piece]) -> None:
        """Send the arguments out-of-band, because the replica waits for them."""
        if self._head is None:
            self._move(self._put(pieces))

    def pass_on(self, data: bytes) -> None:
        raise NotImplementedError("a call has no tunnel")

    def pause_reading(self) -> None:
        if self._connection is not None:
            self._connection.pause_reading()

    def resume_reading(self) -> None:
        if self._connection is not None:
            self._connection.resume_reading()

    def abort(self) -> None:
        self._part()
        if self._connection is not None:
            self._connection.abort()

    close = abort

    def give_back(self, pool: Pool) -> None:
        self._part()
        connection, self._connection = self._connection, None
        if connection is not None:
            pool.give_back(connection)

    def _part(self) -> None:
        self._exchange = None
        if self._moving is not None:
            self._stop_moving()

    # For the connection

    def informed(self, response: ResponseHead) -> None:
        if self._exchange is not None:
            self._exchange.informed(response)

    def response_started(self, response: ResponseHead) -> None:
        self._head = response
        exchange = self._exchange
        if exchange is None:
            return
        if response.refusal is not None:
            self._refused = True
            if response.holdings is not None:
                self._router.report(self._permit, response.holdings, moved=True)
            exchange.response_started(response)
        elif response.status != 200:
            self._document = []
        elif self._copy is not None:  # its response may be cut at any time
            self._begin_response(exchange, response)

    def received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None or self._refused:
            return
        if self._copy is not None:
            self._size += len(data)
            if self._size > MOST_RESPONSE:
                self._copy.cut_short()
                return
        if self._document is not None:
            self._document.append(data)
            return
        try:
            frames = self._reader.feed(data)
        except ValueError as error:
            exchange.fail(ReplicaLost(f"the replica sent an invalid response to the call: {error}"))
            return
        if self._behind is not None:
            self._behind += frames
        else:
            self._pass(frames)

    def ended(self, reusable: bool) -> None:
        exchange, head = self._exchange, self._head
        assert exchange is not None
        assert head is not None
        if self._refused or self._last in LAST:
            exchange.ended(reusable)
            return
        if reusable:
            exchange.plane.upstreams.give_back(self)
        if self._document is None:
            self.abort()
            exchange.lost(ReplicaGone("the response ended before the result did"))
        else:
            exchange.fail(_error(head.status, b"".join(self._document)))

    def lost(self, error: ReplicaGone) -> None:
        exchange = self._exchange
        self._part()
        if exchange is not None:
            exchange.lost(error)

    def writing_paused(self, paused: bool) -> None:
        pass  # the caller holds the arguments until the call has ended, so pausing would save no memory

    def _pass(self, frames: list[Frame]) -> None:
        """Give frames to the exchange, up to one that is fetched before the exchange gets the head."""
        for number, frame in enumerate(frames, 1):
            exchange, kind = self._exchange, frame.kind
            if exchange is None:
                return
            if kind == "out_of_band":
                if not self._begun:
                    self.fetch()
                    self._behind = frames[number:]
                    return
                exchange.received(Kept(self.fetch))
                continue
            self._last = kind
            if not self._begun:
                if self._moving is not None:
                    self._stop_moving()
                assert self._head is not None
                self._begin_response(exchange, self._head)
            exchange.received(frame)

    def _begin_response(self, exchange: Exchange, head: ResponseHead) -> None:
        self._begun = True
        exchange.response_started(head)
        if head.holdings is not None:
            self._router.report(self._permit, head.holdings)

    def _lose(self, gone: ReplicaGone) -> None:
        exchange = self._exchange
        self.abort()
        if exchange is not None:
            exchange.lost(gone)

    # Out-of-band

    def fetch(self) -> None:
        """Get the frame that the replica keeps. The exchange receives it."""
        self._behind = []
        self._move(self._get())

    def _move(self, moving: Coroutine[None, None, None]) -> None:
        self._moving = asyncio.get_running_loop().create_task(moving)

    def _stop_moving(self) -> None:
        moving, self._moving = self._moving, None
        if moving is not None:
            moving.cancel()

    async def _put(self, pieces: Sequence[Piece]) -> None:
        assert self._payloads is not None, "arguments go out-of-band only where there is a way"
        try:
            await self._payloads.put(self._permit.endpoint.id, self._key, pieces)
        except Exception as error:
            self._not_moved(error)

    async def _get(self) -> None:
        assert self._payloads is not None, "results go out-of-band only where there is a way"
        replica = self._permit.endpoint.id
        try:
            frame = calls.frame_of(await self._payloads.get(replica, self._key))
        except ValueError as error:
            kept = f"the data that replica {replica} kept for a call is not a valid frame: {error}"
            self._not_moved(ReplicaLost(kept))
        except Exception as error:
            self._not_moved(error)
        else:
            self._moving = None
            behind, self._behind = self._behind, None
            self._pass([frame, *(behind or ())])

    def _not_moved(self, error: Exception) -> None:
        self._moving = None
        if isinstance(error, ReplicaGone):
            self._lose(error)
        elif self._exchange is not None:
            self._exchange.fail(error)


class FramedUpstreams:
    """Sends calls on the connections of a pool."""

    def __init__(
        self,
        pool: Pool,
        token: Callable[[], bytes],
        redeem: Header,
        payloads: Payloads | None,
        mint_key: Callable[[], str],
    ) -> None:
        """Create the upstreams.

        Parameters:
            pool: Has the connections.
            token: Returns what authenticates the hop fields.
            redeem: The field with which a call redeems a reservation.
            payloads: Transfers large payloads out-of-band. None: they are sent like all others.
            mint_key: Returns a new key for such payloads.
        """
        self._pool = pool
        self._token = token
        self._redeem = redeem
        self._payloads = payloads
        self._mint_key = mint_key
        self.distrust = pool.distrust

    def take(self, address: Address) -> FramedCall | None:
        connection = self._pool.take(address)
        return None if connection is None else self._framed(connection)

    def dial(
        self, address: Address, reached: Callable[[FramedCall], None], failed: Callable[[ReplicaGone], None]
    ) -> None:
        def take(connection: PooledConnection) -> None:
            if connection.usable:
                reached(self._framed(connection))
            else:
                connection.abort()
                failed(ReplicaGone(f"the connection to {address} was lost immediately after it was opened"))

        self._pool.dial(address, take, failed)

    def _framed(self, connection: PooledConnection) -> FramedCall:
        return FramedCall(connection, self._payloads)

    def send(self, upstream: FramedCall, exchange: Exchange, terms: Terms) -> None:
        request, permit = exchange.request, exchange.dispatcher.permit
        assert isinstance(request, CallRequest)
        assert isinstance(permit, Permit)
        call, pieces = request.call, request.pieces
        permit.yields = call.yields
        key = "" if self._payloads is None or terms.mirrored else self._mint_key()
        head = self._head(request, permit, terms, key)
        upstream.begin(exchange, permit, key, (head,) if request.body_on_demand else (head, *pieces))

    def give_back(self, upstream: FramedCall) -> None:
        upstream.give_back(self._pool)

    def _head(self, request: CallRequest, permit: Permit, terms: Terms, key: str) -> bytes:
        call, trace = request.call, request.forwarded_trace
        assert request.id is not None
        identity = hop.encode(self._token(), request.id, b"1.1", HERE, terms.timeout_ms)
        if terms.redeems:
            identity += b"\r\n%b: %b" % self._redeem
        return b"POST / HTTP/1.1\r\n%b: %b\r\n%b: %b\r\n%b%bhost: replica\r\ncontent-length: %d\r\n\r\n" % (
            hop.HOP,
            identity,
            hop.CALL,
            hop.encode_call(call.method, key, out_of_band=request.body_on_demand),
            (b"" if trace is None else b"%b: %b\r\n" % (hop.TRACE, trace.encode()))
            + (b"%b: %b\r\n" % (hop.SHARD_KEY, hop.encode_key(call.shard_key)) if call.shard_key else b"")
            + (
                b"%b: %b\r\n" % (hop.AFFINITY, hop.encode_key(call.affinity))
                if call.affinity and permit.holds_key
                else b""
            ),
            EXPECT if request.body_on_demand else b"",
            0 if request.body_on_demand else sum(map(len, request.pieces)),
        )


def _error(status: int, document: bytes) -> Exception:
    """Return the error for a response with this status, with its message if it has one."""
    late = status == DeadlineExceeded.status
    try:
        detail = str(json.loads(document)["detail"])
    except (ValueError, KeyError, TypeError):
        detail = "the deadline of this call passed while it ran" if late else ""
    if late:
        return DeadlineExceeded(detail)
    return ReplicaLost(detail or f"the replica answered the call with status {status}")
