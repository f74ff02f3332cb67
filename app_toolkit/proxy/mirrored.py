"""Sends copies of requests to mirrors (`dispatch.mirror`), and throws the responses away."""

import asyncio
import math
from collections.abc import Callable, Sequence

from app_toolkit.core.attempts import Result
from app_toolkit.core.identity import ReplicaSetKey
from app_toolkit.dispatch.mirror import MOST_RESPONSE, MirroredRequest, Mirrors, Primary
from app_toolkit.dispatch.registry import Registry
from app_toolkit.errors import BadResponse, DeadlineExceeded, ReplicaGone, ReplicaLost, ResponseUnreadable
from app_toolkit.observability.records import CUT, LONGEST_PATH, MIRRORED, OK, Record, Records
from app_toolkit.proxy.ingress_router import IngressRouter, RoutePermit
from app_toolkit.proxy.request import Request
from app_toolkit.transport import hop
from app_toolkit.transport.pool import Pool, PooledConnection, ResponseHead
from app_toolkit.types import Header

LONGEST_NAME = 200
"""Characters of the path in a difference."""


class Mirroring:
    """The mirrored requests of one proxy."""

    def __init__(self, registry: Registry[IngressRouter], pool: Pool, token: bytes, clock: Callable[[], float]) -> None:
        self.mirrors = Mirrors()
        #: The records of the copies that have ended. Those of clients' requests are elsewhere, so that no subscriber
        #: counts a copy as a request.
        self.records: Records[Record] = Records()
        self.pool = pool
        self.clock = clock
        #: The mirrored requests that have not ended.
        self.live: set[MirroredExchange] = set()
        self._registry = registry
        self._token = token
        self._closed = False

    def copy(self, request: Request, serving: ReplicaSetKey, peers: bytes, unpinned: Header | None) -> Primary | None:
        """Send copies of a request, which was sent now, to the mirrors for which it is sampled.

        Return an object that is told of the response to the client. None: there are no copies.

        Parameters:
            request: The request. It is complete, or its body is too large.
            serving: The ingress that serves the client.
            peers: The client, as encoded by `hop.peers`.
            unpinned: A field that replicas get instead of those of the client with this name. None: there is none.
        """
        method = request.method.decode()
        found = self._registry.routes.mirrors(method, request.path, serving)
        keys = [key for key, share in found if self.mirrors.is_sampled(share)]
        if not keys:
            return None
        path = request.raw_path.decode("latin-1")[:LONGEST_NAME]
        primary = Primary(request.request_id, f"{method} {path}", self.clock())
        body = request.body.kept if request.complete else None
        if body is None:
            for key in keys:
                self._admit(key, primary, None, serving)
            return None
        # An event loop may write the bytes of the client's request only after the callbacks of this iteration.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._begin, keys, primary, request, body, serving, peers, unpinned)
        return primary

    def sweep(self, now: float) -> None:
        """End the mirrored requests whose deadline has passed."""
        for each in [each for each in self.live if now >= each.mirrored.deadline]:
            each.expire()

    def close(self) -> None:
        """End all mirrored requests, and begin no others."""
        self._closed = True
        for each in list(self.live):
            each.expire()

    def _admit(
        self, key: ReplicaSetKey, primary: Primary, size: int | None, serving: ReplicaSetKey
    ) -> MirroredRequest[RoutePermit] | None:
        routers = self._registry.routers
        if self._closed or key not in routers or serving not in routers:  # removed meanwhile
            return None
        return self.mirrors.begin(key.name, primary, size, routers[key], routers[serving], self.clock())

    def _begin(
        self,
        keys: Sequence[ReplicaSetKey],
        primary: Primary,
        request: Request,
        body: Sequence[bytes],
        serving: ReplicaSetKey,
        peers: bytes,
        unpinned: Header | None,
    ) -> None:
        for key in keys:
            mirrored = self._admit(key, primary, request.body.received, serving)
            if mirrored is not None:
                left_ms = math.ceil((mirrored.deadline - self.clock()) * 1_000)
                identity = hop.encode(
                    self._token, request.request_id.encode(), request.version.encode(), peers, left_ms
                )
                head = request.head(identity, unpinned, mirrored=True)
                MirroredExchange(self, mirrored, request, peers).begin((head, *body))


class MirroredExchange:
    """One mirrored request, and its response. The bytes of the response are compared, and not kept."""

    __slots__ = ("_connection", "_head", "_mirroring", "_peers", "_pieces", "_request", "mirrored")

    def __init__(
        self, mirroring: Mirroring, mirrored: MirroredRequest[RoutePermit], request: Request, peers: bytes
    ) -> None:
        self.mirrored = mirrored
        self._mirroring = mirroring
        self._request = request
        self._peers = peers
        self._pieces: Sequence[bytes] = ()
        self._connection: PooledConnection | None = None
        self._head: ResponseHead | None = None

    def begin(self, pieces: Sequence[bytes]) -> None:
        """Send these bytes to the replica of the permit."""
        self._pieces = pieces
        self._mirroring.live.add(self)
        address = self.mirrored.permit.endpoint.address
        connection = self._mirroring.pool.take(address)
        if connection is not None:
            self._send(connection)
        else:
            self._mirroring.pool.dial(address, self._reached, self._unreached)

    def expire(self) -> None:
        """End the request, because its deadline has passed or the proxy stops. A response that has begun is cut."""
        if self._head is not None and self._head.refusal is None:
            self._cut()
        else:
            self.mirrored.failed()
            self._end(0, DeadlineExceeded.reason)

    # The attempt

    def _reached(self, connection: PooledConnection) -> None:
        if self.mirrored.ended:
            self._mirroring.pool.give_back(connection)
        else:
            self._send(connection)

    def _unreached(self, gone: ReplicaGone) -> None:
        if not self.mirrored.ended:
            self.mirrored.failed(Result.UNREACHED)
            self._end(0, ReplicaLost.reason)

    def _send(self, connection: PooledConnection) -> None:
        self._connection = connection
        connection.begin(self, head_only=self._request.method == b"HEAD", decode=True)
        connection.write_all(self._pieces)
        self._pieces = ()

    # For the replica's connection

    def informed(self, head: ResponseHead) -> None:
        pass

    def response_started(self, head: ResponseHead) -> None:
        self._head = head
        if head.status == 101:
            self.mirrored.failed(Result.UNREADABLE)
            self._end(head.status, BadResponse.reason)
        elif head.stream is not None and head.stream != hop.KEPT:
            self.mirrored.router.open(self.mirrored.permit)

    def received(self, data: bytes) -> None:
        response = self.mirrored.response
        response.received(data)
        if response.size > MOST_RESPONSE:
            self._cut()

    def ended(self, reusable: bool) -> None:
        assert self._head is not None
        connection, self._connection = self._connection, None
        if connection is not None and reusable:
            self._mirroring.pool.give_back(connection)
        elif connection is not None:
            connection.abort()
        if self._head.refusal is not None:
            self._refused(self._head.refusal)
        else:
            self.mirrored.completed(str(self._head.status), self._mirroring.clock())
            self._end(self._head.status, OK)

    def lost(self, error: ReplicaGone) -> None:
        self._connection = None
        if self._head is not None and self._head.refusal is not None:
            self._refused(self._head.refusal)
            return
        readable = not isinstance(error, ResponseUnreadable)
        if readable:
            self._mirroring.pool.distrust(self.mirrored.permit.endpoint.address)
        self.mirrored.failed(Result.LOST if readable else Result.UNREADABLE)
        self._end(0, ReplicaLost.reason if readable else BadResponse.reason)

    def writing_paused(self, paused: bool) -> None:
        pass  # what is sent is at most `MOST_BODY` and a head

    # The end

    def _cut(self) -> None:
        """End a response that takes too long or is too large. The replica sees a disconnect."""
        assert self._head is not None
        self.mirrored.completed(str(self._head.status), self._mirroring.clock(), whole=False)
        self._end(self._head.status, CUT)

    def _refused(self, word: bytes) -> None:
        self.mirrored.refused(word.decode("latin-1"))
        self._mirroring.live.discard(self)

    def _end(self, status: int, outcome: str) -> None:
        mirroring, mirrored, request = self._mirroring, self.mirrored, self._request
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        self._pieces = ()
        mirroring.live.discard(self)
        mirroring.records.add(
            Record(
                mirrored.began,
                mirroring.clock() - mirrored.began,
                MIRRORED,
                mirrored.mirror,
                mirrored.permit.endpoint.id,
                1,
                outcome,
                request.method,
                request.id or b"-",
                self._peers,
                request.raw_path[:LONGEST_PATH],
                status,
                mirrored.response.size,
            )
        )
