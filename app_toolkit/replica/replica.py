"""The gate in front of the user's app: who may come in, what the app is told, and who is still inside."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected

from app_toolkit.errors import ReplicaBusy
from app_toolkit.replica.context import REQUEST_ID
from app_toolkit.replica.line import Line, hold
from app_toolkit.transport import hop
from app_toolkit.transport.hop import Hop, Refusal
from app_toolkit.types import ASGIApp, Header, Message, Receive, Scope, Send

logger = logging.getLogger("app_toolkit.replica")

ANSWERS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
CHUNKS_PER_TURN = 64
"""After so many the event loop gets a turn: to a client that has gone uvicorn sends without ever waiting, and
a stream that does not wait either would keep the loop, and so never hear that its client has gone."""

WEBSOCKET_SCHEMES = {"http": "ws", "https": "wss"}
TEXT = [(b"content-type", b"text/plain; charset=utf-8")]
SERVER_ERROR = b"Internal Server Error"
NOTHING = (b"", "")


class Reported(Exception):
    """The app failed and that is logged; all that is left for the server to do is to cut the connection."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """A replica at one moment."""

    ongoing: int
    """HTTP requests that hold a slot: admitted, and their response is not complete."""
    running: int
    """HTTP requests whose coroutine has not ended: the ongoing ones, and background tasks."""
    websockets: int
    """WebSockets that are open, or being opened."""
    draining: bool
    """Whether it has stopped to admit anybody."""
    lines: int = 0
    """Callers that stand in line."""


class Replica:
    """The user's ASGI app behind a gate.

    * Whom it refuses never reached user code, so a refusal is always safe to hand on.
    * At most `max_ongoing_requests` HTTP requests are ongoing. A request is ongoing until its response is
      complete or its coroutine has ended; background tasks hold no slot, but a drain waits for them.
    * A caller that was refused stands in line, and is called when a slot comes free; nobody overtakes the line.
    * Nothing is believed of a request from elsewhere before the secret has been compared, and the app sees
      none of the internal header fields.
    * Every answer to a caller starts with the number of ongoing requests.

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
        secret: bytes | None = None,
        root_path: str = "",
        trusted_without_hop: bool = False,
    ) -> None:
        """`name` is for logs; the rest is for the wire.

        `secret`: what callers must know; None: there is no wire, and who claims to come over it is refused.
        `root_path`: the application's prefix, which the path of each request contains; "" or "/": none.
        `trusted_without_hop`: serve whoever reaches the socket (its file mode is the guard), hop or no hop.
        """
        self.app = app
        self.name = name
        self.draining = False
        self._secret = secret
        self._root_path = root_path.rstrip("/")
        self._trusted_without_hop = trusted_without_hop
        # Who is inside. An exchange leaves `_ongoing` when its response is complete, the others when its
        # coroutine ends.
        self._ongoing: set[Exchange] = set()
        self._running: set[Exchange] = set()
        self._websockets: set[Exchange] = set()
        self._idle = asyncio.Event()
        self.line = Line(max_ongoing_requests, self._ongoing)

    # The wire

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request as uvicorn hands it over; a refusal and a failure of the app become answers."""
        kind = scope["type"]
        if kind not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        origin = self._origin(scope["headers"])
        if origin is not None and not isinstance(origin, Hop):
            await _refuse(kind, [(hop.REFUSED, origin.encode())], send)
            return
        counted = origin is not None
        said, caller = _line_field(scope["headers"]) if counted else NOTHING
        if said == hop.LINE and kind == "http":
            await self._stand(caller, receive, send)
            return
        refusal = self._refusal(kind) if said != hop.CALLED else await self._come_in(kind, caller)
        if refusal is not None:
            count = [(hop.ONGOING, b"%d" % len(self._ongoing))] if counted else []
            await _refuse(kind, [*count, (hop.REFUSED, refusal.encode())], send)
            return
        self._rewrite(scope, origin)
        with Exchange(self, scope, send, counted) as exchange:
            try:
                await self.app(scope, receive, exchange.send)
            except ClientDisconnected:
                raise  # uvicorn's word to who sends on a WebSocket that has closed; it expects it back
            except Exception as error:
                # Starlette has answered 500 by now, and raises all the same; others leave it to their server.
                logger.error(
                    "request %s failed in %s: %s %r",
                    REQUEST_ID.get(),
                    self.name,
                    scope.get("method", "WebSocket"),
                    scope["path"],
                    exc_info=error,
                    extra={"request_id": REQUEST_ID.get()},
                )
                if not exchange.started:
                    await _answer(kind, 500, TEXT, SERVER_ERROR, exchange.send)
                elif not exchange.complete:
                    raise Reported from error

    async def _stand(self, caller: str, receive: Receive, send: Send) -> None:
        try:
            await hold(self.line, caller, receive, send)
        except ReplicaBusy as busy:
            refusal = b"draining" if self.draining else b"busy"
            await _refuse("http", [(hop.ONGOING, b"%d" % busy.ongoing), (hop.REFUSED, refusal)], send)

    def _origin(self, headers: list[Header]) -> Hop | Refusal | None:
        """Who sends this request; None: somebody without a hop field, who is trusted."""
        if not headers or headers[0][0] != hop.HOP:
            return None if self._trusted_without_hop else "secret"
        if self._secret is None:
            return "secret"
        try:
            return hop.decode(headers[0][1], self._secret)
        except ValueError:  # it knows the secret, and counts its words differently
            return "protocol"

    def _rewrite(self, scope: Scope, origin: Hop | None) -> None:
        """Make the scope that of a server which the client itself had reached."""
        headers: list[Header] = scope["headers"]
        dropped = b"expect" if (hop.EXPECT, b"1") in headers else None
        scope["headers"] = [field for field in headers if field[0] != dropped and not hop.is_internal(field[0])]
        scope["root_path"] = self._root_path
        if origin is None:
            return
        scope["client"] = origin.client
        scope["server"] = origin.server
        scope["http_version"] = origin.http_version
        scope["scheme"] = (
            origin.scheme if scope["type"] == "http" else WEBSOCKET_SCHEMES.get(origin.scheme, origin.scheme)
        )
        scope["extensions"] = {
            **scope.get("extensions", {}),
            "app_toolkit": {"request_id": origin.request_id},
        }

    # In one process

    async def admit(self, scope: Scope, receive: Receive, send: Send, *, caller: str | None = None) -> None:
        """Run one request of a caller in this process; its scope is right already.

        `caller`: who follows a call, None where nobody called.
        The request's id is what `scope["extensions"]["app_toolkit"]["request_id"]` says. Raises `ReplicaBusy`
        where no user code ran, and whatever the app raises.
        """
        kind = scope["type"]
        if (self._refusal(kind) if caller is None else await self._come_in(kind, caller)) is not None:
            raise ReplicaBusy(len(self._ongoing))
        with Exchange(self, scope, send, counted=False) as exchange:
            await self.app(scope, receive, exchange.send)

    # Both

    def _refusal(self, kind: str) -> Refusal | None:
        if self.draining:
            return "draining"
        if kind == "http" and not self.line.admits_stranger:
            return "busy"
        return None

    async def _come_in(self, kind: str, caller: str) -> Refusal | None:
        """The same for a request that follows a call. It waits for its slot, and is to take it at once."""
        if not self.line.claim(caller):
            return self._refusal(kind)
        if kind == "websocket":
            self.line.advance()  # it needs no slot
            return self._refusal(kind)
        came_in = await self.line.come_in(caller)
        if self.draining:  # meanwhile, and the drain has not counted this request
            return "draining"
        return None if came_in else "busy"

    async def drain(self, timeout: float | None = None) -> bool:
        """Admit nobody any more, and wait until no HTTP request runs, nor a background task of one.

        Gives whether that came about within `timeout` seconds (None: wait for ever). Open WebSockets stay.
        """
        self.draining = True
        self.line.close()
        if not self._running:
            return True
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return not self._running
        return True

    def statistics(self) -> Statistics:
        """Safe from any thread."""
        return Statistics(len(self._ongoing), len(self._running), len(self._websockets), self.draining, len(self.line))

    def __repr__(self) -> str:
        return f"<Replica {self.name} [{len(self._ongoing)} ongoing, {len(self._websockets)} websockets]>"


class Exchange:
    """One request from its admission until its coroutine ends."""

    __slots__ = (
        "_chunks",
        "_counted",
        "_live",
        "_outer_id",
        "_replica",
        "_request_id",
        "_send",
        "complete",
        "started",
    )

    def __init__(self, replica: Replica, scope: Scope, send: Send, counted: bool) -> None:
        self.started = False
        self.complete = False
        self._chunks = 0
        self._replica = replica
        self._send = send
        self._counted = counted
        self._request_id = _request_id(scope)
        self._live = replica._running if scope["type"] == "http" else replica._websockets

    def __enter__(self) -> "Exchange":
        self._outer_id = REQUEST_ID.get()
        REQUEST_ID.set(self._request_id)
        self._live.add(self)
        if self._live is self._replica._running:
            self._replica._ongoing.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not `reset(token)`: a coroutine that is thrown away ends in whatever context that happens in.
        REQUEST_ID.set(self._outer_id)
        replica = self._replica
        self._leave_slot()
        self._live.discard(self)
        if replica.draining and not replica._running:
            replica._idle.set()

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind in ANSWERS:
            self.started = True
            if self._counted:
                count = (hop.ONGOING, b"%d" % len(self._replica._ongoing))
                message = {**message, "headers": [count, *message.get("headers", ())]}
        elif kind == "websocket.close":  # uvicorn's own 403, where it comes first
            self.started = True
        await self._send(message)
        if kind == "http.response.body":
            if not message.get("more_body", False):
                self.complete = True
                self._leave_slot()
                return
            self._chunks += 1
            if self._chunks % CHUNKS_PER_TURN == 0:
                await asyncio.sleep(0)

    def _leave_slot(self) -> None:
        replica = self._replica
        if self in replica._ongoing:
            replica._ongoing.remove(self)
            replica.line.freed()


def _line_field(headers: list[Header]) -> tuple[bytes, str]:
    """What the field after the hop's says of the line, and the caller's name."""
    if len(headers) < 2:
        return NOTHING
    name, value = headers[1]
    return (name, value.decode("latin-1")) if name == hop.CALLED or name == hop.LINE else NOTHING


def _request_id(scope: Scope) -> str | None:
    extensions: Mapping[str, Any] = scope.get("extensions") or {}
    request_id: str | None = extensions.get("app_toolkit", {}).get("request_id")
    return request_id


async def _refuse(kind: str, headers: list[Header], send: Send) -> None:
    await _answer(kind, 503, headers, b"", send)


async def _answer(kind: str, status: int, headers: list[Header], body: bytes, send: Send) -> None:
    # A WebSocket that is not accepted is answered through its denial extension, which has the same two
    # messages.
    prefix = "http.response" if kind == "http" else "websocket.http.response"
    headers = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": f"{prefix}.start", "status": status, "headers": headers})
    await send({"type": f"{prefix}.body", "body": body})
