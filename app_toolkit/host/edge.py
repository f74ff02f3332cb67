"""A proxy and replicas on one event loop: a request goes from the exchange to the app without a connection."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import lru_cache, partial
from typing import Any, TypeVar

from uvicorn.config import Config
from uvicorn.server import ServerState

from app_toolkit.edge.pooled_upstreams import PooledUpstreams, body_of, fields_of_attempt, has_no_chunks
from app_toolkit.edge.request_parser import Request
from app_toolkit.errors import ReplicaGone, ResponseUnreadable
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.upstream import Terms
from app_toolkit.replica.admission.replica import Replica
from app_toolkit.replica.http.connection import CallerConnection
from app_toolkit.replica.http.head import CHUNKED, LONGEST_MEMOIZED, MEMOIZED, REASONS, CheckedHead
from app_toolkit.replica.http.hop_request import HopRequest, new_scope
from app_toolkit.types import Address, Header
from app_toolkit.wire import hop
from app_toolkit.wire.pool import Pool, ResponseHead, lines_of, read_fields
from app_toolkit.wire.sockets import close_in_children, send_ahead

P = TypeVar("P", bound=asyncio.BaseProtocol)


class NearReplica:
    """A replica on the event loop of the proxy.

    Each HTTP request is a task. A WebSocket, and a position in the wait queue, have a pair of sockets, at one end of
    which the replica serves them as it serves any other caller.
    """

    def __init__(
        self, address: Address, replica: Replica, config: Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> None:
        """`address`: the one that is published for the replica, where other processes reach it.

        `config`, `server_state`: those of the server that shuts the replica down. `app_state`: that of the app's
        lifespan.
        """
        self.address = address
        self.replica = replica
        self.app_state = app_state
        self.asgi_version = config.asgi_version
        self.tasks = server_state.tasks
        self._config = config
        self._server_state = server_state
        self.context = copy_context()
        #: The requests whose app has not returned.
        self.live: set[NearUpstream] = set()

    async def connect(
        self, address: Address, talker: Callable[[], P], secret: bytes = b""
    ) -> tuple[asyncio.Transport, P]:
        """Connect a protocol to the replica. The parameters are those of `wire.pool.connect`."""
        loop = asyncio.get_running_loop()
        served = partial(CallerConnection, self.replica, self._config, self._server_state, self.app_state)
        ours, theirs = socket.socketpair()
        try:
            their_transport, _ = await loop.create_unix_connection(served, sock=theirs)
            transport, protocol = await loop.create_unix_connection(talker, sock=ours)
        except BaseException:
            ours.close()  # the replica sees this, and closes its end
            raise
        for end in (their_transport, transport):
            send_ahead(end)
            close_in_children(end)
        return transport, protocol

    def close(self) -> None:
        """End the requests whose response is not whole, because the replica ends."""
        for upstream in list(self.live):
            upstream.lose(ReplicaGone(f"the replica at {self.address} ended before its response did"))


class NearUpstream:
    """One request at a replica of this process: the upstream of an exchange, and the caller of the replica.

    Neither waits for the other: what the exchange may not send yet, the app waits for in its `send`.
    """

    def __init__(self, near: NearReplica) -> None:
        self._near = near
        #: The context in which the exchange is told of an event, because what it begins and logs does not belong to the
        #: request of the app. Not shared, because one exchange may end another one, and a context is entered once at a
        #: time.
        self._context = near.context.copy()
        self.blocked: asyncio.Event | None = None
        #: None: the exchange has got the end of the response, or has ended the attempt.
        self._exchange: Exchange | None = None
        self._request: HopRequest | None = None
        #: Whether the body of the request arrives in chunks.
        self._chunked = False
        self._paused = False
        self._reusable = True

    # For the exchange

    def begin(self, exchange: Exchange, terms: Terms, attempt: Sequence[Header]) -> None:
        """Let the replica serve the request.

        Parameters:
            exchange: Gets the response.
            terms: Those of the attempt.
            attempt: Its internal fields.
        """
        near, sent = self._near, exchange.request
        assert isinstance(sent, Request), "a proxy parses the requests of its clients"
        assert sent.id is not None
        client, server, scheme = hop.read_peers(exchange.downstream.peers.decode("latin-1"))
        origin = hop.Hop(sent.id.decode(), terms.timeout_ms, client, server, scheme, sent.version)
        internal, fields = sent.passed_on(terms.replaced, mirrored=terms.mirrored)
        scope = new_scope(sent.method, sent.target, sent.version, [*fields], near.app_state, near.asgi_version)
        self._exchange = exchange
        self._chunked = sent.body.chunked
        expects = not terms.mirrored and (sent.expects or sent.body_on_demand)
        framed = not has_no_chunks(exchange, terms)
        request = HopRequest(self, near.replica.live, scope, keep_alive=True, expects=expects, framed=framed)
        self._request = request
        near.live.add(self)
        served = near.replica.admit(request, origin, dict((*attempt, *internal)))
        request.begin(served, asyncio.get_running_loop(), near.context, near.tasks)
        body = body_of(exchange, terms)
        if body:
            self._take(request, body)
        if sent.complete and (body or not exchange.holding):
            request.body_ended()

    def write_all(self, pieces: Sequence[bytes]) -> None:
        request, exchange = self._request, self._exchange
        if request is not None:
            self._take(request, pieces)
            if exchange is not None and exchange.request.complete:
                request.body_ended()

    def _take(self, request: HopRequest, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            data = piece[piece.index(b"\r\n") + 2 : -2] if self._chunked else piece
            if data:
                request.take(data)

    def pass_on(self, data: bytes) -> None:
        raise NotImplementedError("a WebSocket has a connection")

    def pause_reading(self) -> None:
        if self.blocked is None:
            self.blocked = asyncio.Event()

    def resume_reading(self) -> None:
        blocked, self.blocked = self.blocked, None
        if blocked is not None:
            blocked.set()

    def abort(self) -> None:
        self._exchange = None
        self._disconnect()

    close = abort

    def lose(self, error: ReplicaGone) -> None:
        """End the attempt because the response cannot be completed."""
        exchange, self._exchange = self._exchange, None
        self._disconnect()
        if exchange is not None:
            self._context.run(exchange.lost, error)

    # For the request

    def pause_body(self) -> None:
        self._pause_body(True)

    def resume_body(self) -> None:
        self._pause_body(False)

    def _pause_body(self, paused: bool) -> None:
        if self._paused is not paused:
            self._paused = paused
            if self._exchange is not None:
                self._exchange.writing_paused(paused)

    def ask_for_body(self) -> None:
        if self._exchange is not None:
            self._context.run(self._exchange.informed, ResponseHead(100, REASONS[100], [], "none", None, True))

    def start(self, head: CheckedHead, more: tuple[Header, ...], body: Any, *, head_only: bool, whole: bool) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        read = read_head if len(head.lines) <= LONGEST_MEMOIZED else read_head.__wrapped__
        response = read(head, more, head_only, whole, bool(body))
        if response is None:
            self.lose(ResponseUnreadable(f"{self._near.address}: a response has two content-lengths"))
            return
        self._reusable = response.reusable
        self._context.run(self._begin_response, exchange, response.copied(), body)

    def _begin_response(self, exchange: Exchange, response: ResponseHead, body: Any) -> None:
        exchange.response_started(response)
        if body and self._exchange is not None:
            exchange.received(body if type(body) is bytes else bytes(body))  # the app may use a mutable buffer again

    def write(self, data: Any) -> None:
        # In the context of the app, because nothing begins here.
        if self._exchange is not None:  # the app may use a mutable buffer again
            self._exchange.received(data if type(data) is bytes else bytes(data))

    def response_sent(self, request: HopRequest) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self._context.run(exchange.ended, self._reusable)

    def hang_up(self) -> None:
        request = self._request
        if request is not None and request.whole:
            self._reusable = False
            self.response_sent(request)
        else:
            self.lose(ReplicaGone(f"the app at {self._near.address} ended before its response did"))

    def ended(self, request: HopRequest, task: "asyncio.Task[None]") -> None:
        self._near.tasks.discard(task)
        self._near.live.discard(self)
        self._request = None  # which refers to this object

    def _disconnect(self) -> None:
        """Let the app see a disconnect of its client, and wait for nothing."""
        if self._request is not None:
            self._request.disconnect()
        self.resume_reading()


@lru_cache(MEMOIZED)
def read_head(
    head: CheckedHead, more: tuple[Header, ...], head_only: bool, whole: bool, has_body: bool
) -> ResponseHead | None:
    """Return the head as an exchange gets it. None: it announces two lengths.

    Parameters:
        head: The head, as the app has sent it.
        more: Fields to add.
        head_only: Whether it is the response to a HEAD.
        whole: Whether no bytes follow, except those that are sent with the head.
        has_body: Whether bytes are sent with the head.
    """
    if sum(name == b"content-length" for name, _ in head.fields) > 1:
        return None
    fields = [*head.fields, *more]
    if head.unframed and not head_only:
        fields.append(CHUNKED)
    status = head.status
    response = read_fields(status, REASONS.get(status) or b"HTTP/1.1 %d " % status, fields, whole)
    if whole and not has_body:
        response.extent = "none"
    response.encoded = response.fields, lines_of(response.fields)
    return response


class EdgeUpstreams:
    """The ways to the replicas of this process, and the pooled connections to all others."""

    def __init__(self, pool: Pool, token: bytes, redeem: Header) -> None:
        """The parameters are those of `PooledUpstreams`."""
        self._pool = pool
        self._redeem = redeem
        self._pooled = PooledUpstreams(pool, token, redeem)
        self._replicas: dict[Address, NearReplica] = {}
        self.dial = self._pooled.dial
        self.distrust = self._pooled.distrust

    def add(self, near: NearReplica) -> None:
        """Reach a replica without a connection from now on. Requests on connections may end there."""
        self._replicas[near.address] = near
        self._pool.here[near.address] = near.connect

    def remove(self, near: NearReplica) -> None:
        """End the requests at a replica, and begin no others. Call this when its server ends."""
        del self._replicas[near.address], self._pool.here[near.address]
        near.close()

    def take(self, address: Address) -> Any:
        near = self._replicas.get(address)
        return self._pool.take(address) if near is None else NearUpstream(near)

    def send(self, upstream: Any, exchange: Exchange, terms: Terms) -> None:
        if isinstance(upstream, NearUpstream):
            upstream.begin(exchange, terms, fields_of_attempt(terms, self._redeem))
        else:
            self._pooled.send(upstream, exchange, terms)

    def give_back(self, upstream: Any) -> None:
        if not isinstance(upstream, NearUpstream):  # which serves one request
            self._pooled.give_back(upstream)
