"""The replica around the user's app: admission control, authentication of callers, and the requests that run."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Protocol

from app_toolkit.config.models import CorsSettings
from app_toolkit.errors import ReplicaBusy
from app_toolkit.exchange.upload_rate import most_slow_bodies
from app_toolkit.interfaces import ReloadableOptions
from app_toolkit.replica.admission.live_sets import LiveSets
from app_toolkit.replica.admission.replica_request import ReplicaRequest
from app_toolkit.replica.admission.server_request import ServerRequest
from app_toolkit.replica.admission.wait_queue import WaitQueue, serve_position
from app_toolkit.types import ASGIApp, Header, OnDisconnect, Receive, Scope, Send
from app_toolkit.wire import hop
from app_toolkit.wire.hop import Hop, Refusal

logger = logging.getLogger("app_toolkit.replica")


WEBSOCKET_SCHEMES = {"http": "ws", "https": "wss"}

NOTHING: Mapping[bytes, bytes] = {}
MOST_IDS = 1_000
"""Maximum number of requests that are named to the controller if the event loop does not respond."""
MOST_LOGGED = 20
"""Maximum number of requests that a drain names in the log if they have not ended."""


@dataclass(frozen=True, slots=True)
class ReplicaStatistics:
    """The state of a replica at one moment."""

    ongoing: int
    """HTTP requests that hold a slot: admitted, and their response is not complete."""
    running: int
    """HTTP requests whose coroutine has not ended: the ongoing ones, and those that run background tasks."""
    websockets: int
    """WebSockets that are open or being opened, or whose handler has not ended."""
    draining: bool
    """Whether the replica has stopped admitting requests."""
    waiting_callers: int = 0
    """Callers in the wait queue."""
    buffered: int = 0
    """Items that wait for their batch; their requests are ongoing. Only `ReplicaServer.statistics` counts them."""
    streams: int = 0
    """Responses that are open streams and hold no slot."""
    reached: tuple[str, ...] = field(default=(), compare=False)
    """The limits that the replica has reached: `100 of 100 max_ongoing_requests`."""
    received: int = field(default=0, compare=False)
    """The requests, calls and WebSockets that were admitted since the start."""

    @property
    def connections(self) -> int:
        """The ongoing requests, open streams and open WebSockets."""
        return self.ongoing + self.streams + self.websockets


class Keys(Protocol):
    """The affinity keys that an app holds."""

    def holdings(self) -> bytes | None: ...

    def must_displace(self, key: str) -> bool: ...


class Replica:
    """The user's ASGI app behind admission control.

    * A request that is refused never reached user code, so it is always safe to send it to another replica.
    * At most `max_ongoing_requests` HTTP requests are ongoing. A request is ongoing until its response is complete or
      its coroutine has ended. Background tasks hold no slot, but a drain waits for them.
    * A request whose response is a stream leaves the ongoing ones when the head is sent, if fewer than
      `max_open_streams` are open. A stream beyond that limit keeps its slot, as user code has already run.
    * At most half of the slots are held by requests whose bodies arrive slowly. The caller says so before it sends the
      request, or the body turns out to be slow. In the second case, a request beyond that limit is ended with 408.
    * A caller that was refused joins the wait queue and gets a reservation when a slot is free. No other caller
      overtakes it.
    * The secret is compared before any field of a request over a connection is trusted. The app does not see the
      internal header fields.
    * A handler whose client has disconnected is stopped if `on_disconnect`, or the mark of the endpoint, requires it.
      It is either cancelled or, if it waits for a message, receives the disconnect, never both. A handler whose
      deadline has passed is always cancelled.

    `answer` serves a request over a connection, and `admit` one of the proxy on the same event loop. As an ASGI app,
    the replica serves requests of a server: WebSockets over a connection. `serve` serves those of a server in one
    process. Only `statistics` and the attributes are safe in other threads: everything else runs on the event loop that
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
        cors: Sequence[CorsSettings] = (),
        secret: bytes | None = None,
        root_path: str = "",
        trusted_without_hop: bool = False,
        stream_log: str = "memory",
        keys: Keys | None = None,
    ) -> None:
        """`name` is for logs. The parameters after `cors` are for requests over a connection.

        `cors`: the settings of each `CORSMiddleware` of the app, the outermost first.
        `secret`: the secret that callers must prove to know. None: only for callers in this process.
        `root_path`: the prefix of the application, which the path of each request contains; "" or "/": no prefix.
        `trusted_without_hop`: serve requests on the Unix socket without a hop field, as the kernel reports their user.
        `stream_log`: the option of the application.
        `keys`: the affinity keys that the app holds. None: no keys have places in it.
        """
        self.app = app
        self.name = name
        self.max_open_websockets = max_open_websockets
        self.draining = False
        self._token = None if secret is None else hop.token(secret)
        self._root_path = root_path.rstrip("/")
        self._trusted_without_hop = trusted_without_hop
        self._stream_log = stream_log
        self._keys = keys
        self.live = LiveSets(max_open_streams, on_disconnect, cors)
        self.wait_queue = WaitQueue(max_ongoing_requests, self.live.ongoing)
        self.live.freed = self.wait_queue.freed
        self.live.max_slow_bodies = most_slow_bodies(max_ongoing_requests)

    def limit(self, reloadable: ReloadableOptions) -> None:
        """Apply these limits from now on. Requests that run continue, even if there are more of them."""
        self.max_open_websockets = reloadable.max_open_websockets
        self.live.max_open_streams = reloadable.max_open_streams
        self.live.max_slow_bodies = most_slow_bodies(reloadable.max_ongoing_requests)
        self.wait_queue.resize(reloadable.max_ongoing_requests)

    @property
    def max_open_streams(self) -> int:
        """The maximum number of open streams beside the requests that hold a slot."""
        return self.live.max_open_streams

    # Over a connection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request of uvicorn. A refusal and a failure of the app become responses."""
        if scope["type"] in ("http", "websocket"):
            await self.answer(ServerRequest(scope, self.live, receive, send))
        else:
            await self.app(scope, receive, send)

    async def answer(self, request: ReplicaRequest) -> None:
        """Serve one request over a connection. A refusal and a failure of the app become responses."""
        scope = request.scope
        headers: list[Header] = scope["headers"]
        origin = self._origin(scope)
        if origin is None:
            scope["headers"] = [field for field in headers if not hop.is_internal(field[0])]
            internal = NOTHING
        elif isinstance(origin, Hop):
            first = headers[1][0] if len(headers) > 1 else b""
            internal = _internal(headers) if first.startswith(hop.INTERNAL_PREFIX) else NOTHING
            # With `hop.EXPECT`, the caller's own `Expect` field follows the internal fields. The app must not see it.
            scope["headers"] = headers[1 + len(internal) + (hop.EXPECT in internal) :]
        else:
            await _refuse(request, origin)
            return
        if hop.PROBE in internal and scope["type"] == "http":
            await request.respond(204, (), b"")
        elif hop.QUEUE in internal and scope["type"] == "http":
            await self._join(internal[hop.QUEUE].decode(), request)
        else:
            await self.admit(request, origin, internal)

    async def admit(self, request: ReplicaRequest, origin: Hop | None, internal: Mapping[bytes, bytes]) -> None:
        """Serve one request of a caller that is trusted. A refusal and a failure of the app become responses.

        Parameters:
            request: Its scope has no internal fields.
            origin: The origin of the request. None: it is that of the scope.
            internal: The other internal fields of the caller.
        """
        scope = request.scope
        kind = scope["type"]
        scope["root_path"] = self._root_path
        if origin is not None:
            self._set_origin(scope, origin, internal)
        caller = internal.get(hop.REDEEM)
        slow, key = hop.SLOW_BODY in internal, internal.get(hop.AFFINITY)
        if caller is None:
            refusal = self._refusal(kind, slow=slow, key=key)
        else:
            refusal = await self._enter(kind, caller.decode(), slow=slow, key=key)
        if refusal is not None:
            holdings = self._keys.holdings() if refusal == "moved" and self._keys is not None else None
            await _refuse(request, refusal, holdings)
            return
        if caller is not None and request.has_left:  # while the request waited for its slot
            self.wait_queue.freed()
            return
        if origin is not None:
            request.from_caller = True
            if origin.timeout_ms is not None and kind == "http":
                request.bound(origin.timeout_ms / 1_000)
        await request.run(self.app, self.name, slow=slow, responds=True)

    async def _join(self, caller: str, request: ReplicaRequest) -> None:
        try:
            await serve_position(self.wait_queue, caller, request.receive, request.send)
        except ReplicaBusy:
            await _refuse(request, "draining" if self.draining else "busy")

    def _origin(self, scope: Scope) -> Hop | Refusal | None:
        """Return the hop of a request, or why it is refused. None: the request has no hop field and is trusted."""
        headers: list[Header] = scope["headers"]
        if not headers or headers[0][0] != hop.HOP:
            server = scope.get("server")
            by_file = server is not None and server[1] is None  # a Unix socket has no port
            return None if self._trusted_without_hop and by_file else "secret"
        if self._token is None:
            return "secret"
        try:
            return hop.decode(headers[0][1], self._token)
        except ValueError:  # the caller knows the secret, but its field has another format
            return "protocol"

    def _set_origin(self, scope: Scope, origin: Hop, internal: Mapping[bytes, bytes]) -> None:
        """Change the scope as if the client had connected to the app directly."""
        scope["client"] = origin.client
        scope["server"] = origin.server
        scope["http_version"] = origin.http_version
        scope["scheme"] = (
            origin.scheme if scope["type"] == "http" else WEBSOCKET_SCHEMES.get(origin.scheme, origin.scheme)
        )
        added = {"request_id": origin.request_id}
        if self._stream_log != "memory":
            added["stream_log"] = self._stream_log
        if hop.CALL in internal:
            added["call"] = internal[hop.CALL].decode()
        if hop.TRACE in internal:
            added["trace"] = internal[hop.TRACE].decode()
        if hop.SHARD_KEY in internal:
            added["shard_key"] = hop.decode_key(internal[hop.SHARD_KEY])
        scope["extensions"] = {**scope.get("extensions", {}), "app_toolkit": added}

    # Within one process

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, timeout: float | None = None, *, caller: str | None = None
    ) -> Refusal | None:
        """Run one request of an exchange in this process. The scope is complete.

        Return why it is refused, before user code runs. None: it has run. Raises whatever the app raises.

        `caller`: the caller whose reservation the request redeems, or None. `timeout`: the time in seconds until the
        deadline of the request. The exchange enforces it: here, it ends the handler at the next sweep.
        `scope["extensions"]["app_toolkit"]` has its `request_id`, and its `trace` and `shard_key` if they are not those
        of the caller.
        """
        kind = scope["type"]
        refusal = self._refusal(kind) if caller is None else await self._enter(kind, caller)
        if refusal is not None:
            return refusal
        request = ServerRequest(scope, self.live, receive, send)
        if timeout is not None:
            request.bound(timeout)
        await request.run(self.app, self.name)
        return None

    # For both

    def _refusal(
        self, kind: str, *, slow: bool = False, key: bytes | None = None, reserved: bool = False
    ) -> Refusal | None:
        """Return why a request is refused. None: it is admitted.

        Parameters:
            kind: The type of its ASGI scope.
            slow: Whether its body arrives slowly.
            key: The affinity key that its caller expects here.
            reserved: Whether it has redeemed a reservation, and has its slot.
        """
        if self.draining:
            return "draining"
        if kind == "http" and not reserved and not self.wait_queue.admits_unreserved:
            return "busy"
        if kind == "websocket" and len(self.live.websockets) >= self.max_open_websockets:
            return "websockets"
        if slow and not self.live.admits_slow_body:
            return "slow_bodies"
        if key is not None and self._keys is not None and self._keys.must_displace(hop.decode_key(key)):
            return "moved"  # the app would have to give up a key that it holds
        return None

    async def _enter(self, kind: str, caller: str, *, slow: bool = False, key: bytes | None = None) -> Refusal | None:
        """Admit a request that redeems a reservation. It waits for its slot. Return the reason if it is refused."""
        if self.draining or not self.wait_queue.redeem(caller):
            return self._refusal(kind, slow=slow, key=key)
        if kind == "websocket":
            self.wait_queue.advance()  # it needs no slot
            return self._refusal(kind, slow=slow, key=key)
        entered = await self.wait_queue.enter(caller)
        if self.draining:  # since the request began to wait; the drain has not counted it
            return "draining"
        if not entered:
            return "busy"
        refusal = self._refusal(kind, slow=slow, key=key, reserved=True)
        if refusal is not None:
            self.wait_queue.freed()
        return refusal

    async def drain(self, timeout: float | None = None) -> bool:
        """Admit no more requests, and wait until no request, no background task of one, and no WebSocket handler runs.

        Return whether that happened within `timeout` seconds (None: no limit). The server closes the WebSockets.
        """
        self.draining = True
        self.wait_queue.close()
        return await self.live.until_drained(timeout)

    def log_unfinished(self, timeout: float) -> None:
        """Log what a drain of `timeout` seconds has not waited for, because the replica ends it."""
        unfinished = [*self.live.running, *self.live.websockets]
        for request in unfinished[:MOST_LOGGED]:
            logger.warning(
                "%s ends %s, which did not end within %g s, its graceful_shutdown_timeout_s",
                self.name,
                request.unfinished(),
                timeout,
                extra={"request_id": request.request_id},
            )
        if len(unfinished) > MOST_LOGGED:
            logger.warning("%s ends %d more requests", self.name, len(unfinished) - MOST_LOGGED)

    def statistics(self) -> ReplicaStatistics:
        """Return the current statistics. Safe from any thread."""
        return ReplicaStatistics(
            len(self.live.ongoing),
            len(self.live.running),
            len(self.live.websockets),
            self.draining,
            len(self.wait_queue),
            streams=len(self.live.streams),
            reached=self._reached(),
            received=self.live.received,
        )

    def _reached(self) -> tuple[str, ...]:
        limits = (
            ("max_ongoing_requests", len(self.live.ongoing), self.wait_queue.slots),
            ("max_open_streams", len(self.live.streams), self.live.max_open_streams),
            ("max_open_websockets", len(self.live.websockets), self.max_open_websockets),
        )
        return tuple(f"{count:,} of {most:,} {limit}" for limit, count, most in limits if count >= most > 0)

    def running_ids(self) -> tuple[str, ...] | None:
        """Return the ids of the running requests; None: there are more than `MOST_IDS`. Safe from any thread."""
        running = tuple(self.live.running)
        return tuple({request.request_id or "" for request in running}) if len(running) <= MOST_IDS else None

    def __repr__(self) -> str:
        live = self.live
        counts = f"{len(live.ongoing)} ongoing, {len(live.streams)} streams, {len(live.websockets)} websockets"
        return f"<Replica {self.name} [{counts}]>"


def _internal(headers: list[Header]) -> dict[bytes, bytes]:
    """Return the caller's own internal fields, which follow the hop field."""
    return dict(takewhile(lambda field: field[0].startswith(hop.INTERNAL_PREFIX), islice(headers, 1, None)))


async def _refuse(request: ReplicaRequest, refusal: Refusal, holdings: bytes | None = None) -> None:
    fields = [(hop.REFUSED, refusal.encode())]
    if holdings is not None:
        fields.append((hop.HOLDINGS, holdings))
    await request.respond(503, fields, b"")
