"""The gate in front of the user's app: who may come in, what the app is told, and who is still inside."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile

from uvicorn.protocols.utils import ClientDisconnected

from app_toolkit.errors import ReplicaBusy, TooManyWebSockets
from app_toolkit.interfaces import ReloadableOptions
from app_toolkit.observability.context import REQUEST_ID
from app_toolkit.replica.admitted_request import INTERNAL_ERROR, AdmittedRequest, Put, respond
from app_toolkit.replica.batching import buffered
from app_toolkit.replica.live_sets import LiveSets
from app_toolkit.replica.wait_queue import WaitQueue, serve_position
from app_toolkit.transport import hop
from app_toolkit.transport.hop import Hop, Refusal
from app_toolkit.types import ASGIApp, Header, OnDisconnect, Receive, Scope, Send

logger = logging.getLogger("app_toolkit.replica")


WEBSOCKET_SCHEMES = {"http": "ws", "https": "wss"}

TEXT = [(b"content-type", b"text/plain; charset=utf-8")]
SERVER_ERROR = b"Internal Server Error"
NOTHING: Mapping[bytes, bytes] = {}
MOST_IDS = 1_000
"""Requests that are named to the controller where the loop does not answer."""


class Reported(Exception):
    """The app failed and that is logged; all that is left for the server to do is to cut the connection."""


@dataclass(frozen=True, slots=True)
class ReplicaStatistics:
    """A replica at one moment."""

    ongoing: int
    """HTTP requests that hold a slot: admitted, and their response is not complete."""
    running: int
    """HTTP requests whose coroutine has not ended: the ongoing ones, and background tasks."""
    websockets: int
    """WebSockets that are open, or being opened."""
    draining: bool
    """Whether it has stopped to admit anybody."""
    waiting_callers: int = 0
    """Callers in the wait queue."""
    buffered: int = 0
    """Of the ongoing: items that wait for their batch."""
    streams: int = 0
    """Responses that are open streams and hold no slot."""
    reached: tuple[str, ...] = field(default=(), compare=False)
    """The limits that it has reached: `100 of 100 max_ongoing_requests`."""


class Replica:
    """The user's ASGI app behind a gate.

    * Whom it refuses never reached user code, so a refusal is always safe to hand on.
    * At most `max_ongoing_requests` HTTP requests are ongoing. A request is ongoing until its response is
      complete or its coroutine has ended; background tasks hold no slot, but a drain waits for them.
    * A request whose response is a stream leaves the ongoing ones when the head is sent, as long as fewer than
      `max_open_streams` are open. A stream beyond that limit keeps its slot: user code has run, so nobody refuses it.
    * A caller that was refused joins the wait queue and gets a reservation when a slot is free. Nobody overtakes it.
    * Nothing is believed of a request from elsewhere before the secret has been compared, and the app sees
      none of the internal header fields.
    * A handler whose client has gone is stopped where `on_disconnect` or its own mark says so: it is cancelled, or
      hears of it where it waits for a message, never both. One whose deadline has passed is cancelled in any case.

    Called as an ASGI app it serves the wire; `admit` is the same gate for a caller in the same process. Not
    safe across threads, but for `statistics` and the attributes: everything runs on the event loop that
    serves the app.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        name: str,
        max_ongoing_requests: int,
        max_open_websockets: int = 1_000,
        max_open_streams: int = 1_000,
        on_disconnect: OnDisconnect = "auto",
        secret: bytes | None = None,
        root_path: str = "",
        trusted_without_hop: bool = False,
    ) -> None:
        """`name` is for logs; what follows `on_disconnect` is for the wire.

        `secret`: what callers must know; None: there is no wire, and who claims to come over it is refused.
        `root_path`: the application's prefix, which the path of each request contains; "" or "/": none.
        `trusted_without_hop`: serve whoever reaches a Unix socket (the kernel names its user), hop or no hop.
        """
        self.app = app
        self.name = name
        self.max_open_websockets = max_open_websockets
        self.draining = False
        self._token = None if secret is None else hop.token(secret)
        self._root_path = root_path.rstrip("/")
        self._trusted_without_hop = trusted_without_hop
        self.live = LiveSets(max_open_streams, on_disconnect)
        self.wait_queue = WaitQueue(max_ongoing_requests, self.live.ongoing)
        self.live.freed = self.wait_queue.freed

    def limit(self, live: ReloadableOptions) -> None:
        """Keep to these limits from now on; whoever is inside stays, also where that is more."""
        self.max_open_websockets = live.max_open_websockets
        self.live.max_open_streams = live.max_open_streams
        self.wait_queue.resize(live.max_ongoing_requests)

    @property
    def max_open_streams(self) -> int:
        """The maximum number of open streams beside the requests that hold a slot."""
        return self.live.max_open_streams

    # The wire

    async def __call__(self, scope: Scope, receive: Receive, send: Send, put: Put | None = None) -> None:
        """Serve one request as uvicorn hands it over; a refusal and a failure of the app become answers.

        `put`: sends a message at once, and gives False where that has to wait, as `send` would.
        """
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        origin = self._origin(scope)
        if origin is not None and not isinstance(origin, Hop):
            await _refuse(kind, origin, send)
            return
        internal = self._rewrite(scope, origin)
        if hop.PROBE in internal and kind == "http":
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body"})
            return
        if hop.QUEUE in internal and kind == "http":
            await self._join(internal[hop.QUEUE].decode(), receive, send)
            return
        caller = internal.get(hop.REDEEM)
        refusal = self._refusal(kind) if caller is None else await self._enter(kind, caller.decode())
        if refusal is not None:
            await _refuse(kind, refusal, send)
            return
        if caller is not None and _has_gone(receive):  # while it waited for its slot
            self.wait_queue.freed()
            return
        with AdmittedRequest(
            self.live, scope, receive, send, put, held=hop.EXPECT in internal, from_caller=origin is not None
        ) as request:
            if origin is not None and origin.timeout_ms is not None and kind == "http":
                request.bound(origin.timeout_ms / 1_000)
            try:
                await self.app(scope, request.receive, request.send)
            except ClientDisconnected:
                raise  # uvicorn's word to who sends on a WebSocket that has closed; it expects it back
            except (Exception, SystemExit, KeyboardInterrupt) as error:  # no handler ends the replica
                await self._fail(scope, request, error)
        if request.cut is not None:
            raise Reported from request.cut

    async def _fail(self, scope: Scope, request: AdmittedRequest, error: BaseException) -> None:
        """Log what the app raised, and answer if it has not. Raises `Reported` if the response cannot be completed."""
        # Starlette has answered 500 by now and raises all the same. Other frameworks leave the answer to the server.
        kind = scope["type"]
        logger.error(
            "request %s failed in %s: %s %r",
            REQUEST_ID.get(),
            self.name,
            scope.get("method", "WebSocket"),
            scope["path"],
            exc_info=error,
            extra={"request_id": REQUEST_ID.get()},
        )
        if not request.started:
            request.take_back()
            await respond(kind, 500, TEXT, SERVER_ERROR, request.send)
        elif request.complete:
            pass
        elif kind == "websocket":
            # Otherwise the proxy could not tell this from a lost replica.
            await request.send({"type": "websocket.close", "code": INTERNAL_ERROR})
        else:
            raise Reported from error

    async def _join(self, caller: str, receive: Receive, send: Send) -> None:
        try:
            await serve_position(self.wait_queue, caller, receive, send)
        except ReplicaBusy:
            await _refuse("http", "draining" if self.draining else "busy", send)

    def _origin(self, scope: Scope) -> Hop | Refusal | None:
        """Who sends this request; None: somebody without a hop field, who is trusted."""
        headers: list[Header] = scope["headers"]
        if not headers or headers[0][0] != hop.HOP:
            server = scope.get("server")
            by_file = server is not None and server[1] is None  # a Unix socket has no port
            return None if self._trusted_without_hop and by_file else "secret"
        if self._token is None:
            return "secret"
        try:
            return hop.decode(headers[0][1], self._token)
        except ValueError:  # it knows the secret, and counts its words differently
            return "protocol"

    def _rewrite(self, scope: Scope, origin: Hop | None) -> Mapping[bytes, bytes]:
        """Make the scope that of a server which the client itself had reached; gives what the caller says beside it."""
        headers: list[Header] = scope["headers"]
        scope["root_path"] = self._root_path
        if origin is None:
            scope["headers"] = [field for field in headers if not hop.is_internal(field[0])]
            return NOTHING
        internal = (
            NOTHING if len(headers) < 2 or not headers[1][0].startswith(hop.INTERNAL_PREFIX) else _internal(headers)
        )
        # What a caller asks for by itself is the field behind its own ones.
        scope["headers"] = headers[1 + len(internal) + (hop.EXPECT in internal) :]
        scope["client"] = origin.client
        scope["server"] = origin.server
        scope["http_version"] = origin.http_version
        scope["scheme"] = (
            origin.scheme if scope["type"] == "http" else WEBSOCKET_SCHEMES.get(origin.scheme, origin.scheme)
        )
        ours = {"request_id": origin.request_id}
        if hop.CALL in internal:
            ours["call"] = internal[hop.CALL].decode()
        if hop.TRACE in internal:
            ours["trace"] = internal[hop.TRACE].decode()
        scope["extensions"] = {**scope.get("extensions", {}), "app_toolkit": ours}
        return internal

    # In one process

    async def admit(
        self, scope: Scope, receive: Receive, send: Send, timeout: float | None = None, *, caller: str | None = None
    ) -> None:
        """Run one request of a caller in this process. Its scope is complete.

        `caller`: the caller whose reservation the request redeems, or None. `timeout`: the seconds that the request has
        left. `scope["extensions"]["app_toolkit"]` has its `request_id`, and its `trace` if that is not the trace of
        the caller. Raises `ReplicaBusy` or `TooManyWebSockets` before user code runs, `DeadlineExceeded` after the
        response has begun (before that, the deadline is the response), and whatever the app raises.
        """
        kind = scope["type"]
        refusal = self._refusal(kind) if caller is None else await self._enter(kind, caller)
        if refusal == "websockets":
            raise TooManyWebSockets(
                f"{len(self.live.websockets)} WebSockets are open at {self.name}, "
                f"its max_open_websockets is {self.max_open_websockets}"
            )
        if refusal is not None:
            raise ReplicaBusy(len(self.live.ongoing))
        with AdmittedRequest(self.live, scope, receive, send) as request:
            if timeout is not None:
                request.bound(timeout, to_the_moment=True)
            await self.app(scope, request.receive, request.send)
        if request.cut is not None:
            raise request.cut

    # Both

    def _refusal(self, kind: str) -> Refusal | None:
        if self.draining:
            return "draining"
        if kind == "http" and not self.wait_queue.admits_unreserved:
            return "busy"
        if kind == "websocket" and len(self.live.websockets) >= self.max_open_websockets:
            return "websockets"
        return None

    async def _enter(self, kind: str, caller: str) -> Refusal | None:
        """The same for a request that redeems a reservation. It waits for its slot and takes it at once."""
        if not self.wait_queue.redeem(caller):
            return self._refusal(kind)
        if kind == "websocket":
            self.wait_queue.advance()  # it needs no slot
            return self._refusal(kind)
        entered = await self.wait_queue.enter(caller)
        if self.draining:  # meanwhile, and the drain has not counted this request
            return "draining"
        return None if entered else "busy"

    async def drain(self, timeout: float | None = None) -> bool:
        """Admit nobody any more, and wait until no HTTP request runs, nor a background task of one.

        Gives whether that came about within `timeout` seconds (None: wait for ever). Open WebSockets stay.
        """
        self.draining = True
        self.wait_queue.close()
        return await self.live.until_drained(timeout)

    def statistics(self) -> ReplicaStatistics:
        """Safe from any thread."""
        return ReplicaStatistics(
            len(self.live.ongoing),
            len(self.live.running),
            len(self.live.websockets),
            self.draining,
            len(self.wait_queue),
            buffered(),
            len(self.live.streams),
            self._reached(),
        )

    def _reached(self) -> tuple[str, ...]:
        limits = (
            ("max_ongoing_requests", len(self.live.ongoing), self.wait_queue.slots),
            ("max_open_streams", len(self.live.streams), self.live.max_open_streams),
            ("max_open_websockets", len(self.live.websockets), self.max_open_websockets),
        )
        return tuple(f"{count:,} of {most:,} {limit}" for limit, count, most in limits if count >= most > 0)

    def running_ids(self) -> tuple[str, ...] | None:
        """The ids of the requests that run; None: more than `MOST_IDS`. From any thread."""
        running = tuple(self.live.running)
        return tuple({each.request_id or "" for each in running}) if len(running) <= MOST_IDS else None

    def __repr__(self) -> str:
        live = self.live
        counts = f"{len(live.ongoing)} ongoing, {len(live.streams)} streams, {len(live.websockets)} websockets"
        return f"<Replica {self.name} [{counts}]>"


def _has_gone(receive: Receive) -> bool:
    """Whether the caller has disconnected, as the server knows it without being asked.

    Both servers of a replica keep that in the object whose method `receive` is.
    """
    return getattr(getattr(receive, "__self__", None), "disconnected", False) is True


def _internal(headers: list[Header]) -> dict[bytes, bytes]:
    """What the caller's own fields say, after the hop's."""
    return dict(takewhile(lambda field: field[0].startswith(hop.INTERNAL_PREFIX), islice(headers, 1, None)))


async def _refuse(kind: str, refusal: Refusal, send: Send) -> None:
    await respond(kind, 503, [(hop.REFUSED, refusal.encode())], b"", send)
