"""The filter that sends copies of requests and calls to mirrors (`exchange.mirrored_requests`)."""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from app_toolkit.config.models import CorsSettings
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.contract.targets import Target
from app_toolkit.errors import BadResponse, ReplicaGone, ReplicaLost, RequestError, ResponseUnreadable
from app_toolkit.exchange.attempts import Action, Result
from app_toolkit.exchange.builtin import BuiltinResponse
from app_toolkit.exchange.deadlines import SingleDeadline
from app_toolkit.exchange.exchange import Exchange
from app_toolkit.exchange.filters import Filters
from app_toolkit.exchange.ingress_router import IngressRouter, RoutePermit
from app_toolkit.exchange.ingress_state import UNOWNED, IngressState
from app_toolkit.exchange.mirrored_requests import MOST_BODY, MOST_RESPONSE, MirroredRequest, Mirrors, Primary
from app_toolkit.exchange.preference import Preference
from app_toolkit.exchange.request import ClientRequest
from app_toolkit.exchange.upstream import Terms, Upstreams
from app_toolkit.observability.metrics import Sample
from app_toolkit.observability.records import CUT, MIRRORED, Record, Records
from app_toolkit.wire.pool import ResponseHead

LONGEST_NAME = 200
"""Characters of the path in a difference."""


class Mirror(NamedTuple):
    """A target that gets copies, as this process reaches it."""

    name: str
    """Its name in the counts."""
    router: IngressRouter
    upstreams: Upstreams


class Mirroring:
    """The copies of requests that one proxy sends, or of the calls of one event loop (`CallMirroring`)."""

    kind: Literal["request", "call"] = "request"

    def __init__(
        self,
        mirror: Callable[[Exchange, Target], Mirror | None],
        clock: Callable[[], float],
        *subscribers: Callable[[Record], object],
        draw: Callable[[], float] = random.random,
    ) -> None:
        """Create the filter.

        Parameters:
            mirror: Returns a target of an exchange as this process reaches it. None: it was removed.
            clock: The current time in seconds: the clock of the plane.
            *subscribers: Get the records of the copies that have ended.
            draw: Returns a random number, at least 0 and below 1, for each request and each mirror.
        """
        self.mirrors = Mirrors(draw)
        #: The records of the copies that have ended. Those of clients' requests are elsewhere, so that no subscriber
        #: counts a copy as a request.
        self.records: Records[Record] = Records(*subscribers)
        self.clock = clock
        #: The copies that have not ended. `Mirrors` bounds their number.
        self.live: set[Copy] = set()
        self._mirror = mirror
        self._closed = False

    # Hooks

    def sent(self, exchange: Exchange) -> None:
        """Send copies of the request to mirrors, once it is complete or its body is too large for that.

        A request that is sent again is not copied again.
        """
        if not exchange.targets or self in exchange.marks:
            return
        mirrors = [target for target in exchange.targets if target.mirror and target.replica_set != exchange.ingress]
        request = exchange.request
        if mirrors and not request.websocket and (request.complete or (request.length or 0) > MOST_BODY):
            exchange.marks[self] = self._copy(exchange, mirrors)

    def response(self, exchange: Exchange, head: ResponseHead) -> None:
        primary: Primary | None = exchange.marks.get(self)
        if primary is not None:
            primary.began(head)
            exchange.observe(primary)

    def ended(self, exchange: Exchange, status: int, outcome: str) -> None:
        primary: Primary | None = exchange.marks.get(self)
        if primary is not None:
            primary.ended(status, outcome, self.clock())

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of the metrics of mirrors. Thread-safe."""
        return self.mirrors.samples(self.kind)

    def forget(self, ingress: ReplicaSetKey) -> None:
        self.mirrors.forget(ingress.name)

    async def aclose(self) -> None:
        """End all copies, and begin no others."""
        self._closed = True
        for copy in list(self.live):
            copy.expire()

    # For what is copied

    def primary(self, request_id: str, name: str) -> Primary:
        """Return what the copies of a request are compared with."""
        return Primary(request_id, name, self.clock())

    def nobody(self, mirrored: MirroredRequest[RoutePermit], peers: bytes) -> "Nobody":
        """Return the downstream of a copy."""
        return Nobody(mirrored, peers)

    def _copy(self, exchange: Exchange, mirrors: Sequence[Target]) -> Primary | None:
        """Send copies of a request, which was sent now, to the mirrors for which it is sampled.

        Return what is told of the response to the client. None: there are no copies.
        """
        request = exchange.request
        sampled = [target for target in mirrors if self.mirrors.is_sampled(target.mirror)]
        if not sampled:
            return None
        path = request.raw_path.decode("latin-1")[:LONGEST_NAME]
        primary = self.primary(request.request_id, f"{request.method.decode()} {path}".rstrip())
        copied = request.copied() if request.complete else None
        if copied is None:
            for target in sampled:
                self._admit(exchange, target, primary, None)
            return None
        terms = Terms(None, False, mirrored=True)
        for hook in exchange.plane.filters.sending:
            hook(exchange, terms)
        # An event loop may write the bytes of the client's request only after the callbacks of this iteration.
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._begin, exchange, sampled, primary, copied, terms)
        return primary

    def _begin(
        self, exchange: Exchange, sampled: Sequence[Target], primary: Primary, copied: ClientRequest, terms: Terms
    ) -> None:
        for target in sampled:
            admitted = self._admit(exchange, target, primary, copied.body.received)
            if admitted is not None:
                mirror, mirrored = admitted
                plane = CopyPlane(self, target.replica_set, mirror.upstreams, terms)
                Copy(plane, mirrored, copied, self.nobody(mirrored, exchange.downstream.peers)).begin()
                copied.body.rewind()

    def _admit(
        self, exchange: Exchange, target: Target, primary: Primary, size: int | None
    ) -> tuple[Mirror, MirroredRequest[RoutePermit]] | None:
        mirror = None if self._closed else self._mirror(exchange, target)
        if mirror is None:
            return None
        router, now = exchange.dispatcher.router, self.clock()
        mirrored = self.mirrors.begin(mirror.name, primary, size, mirror.router, router, now)
        return None if mirrored is None else (mirror, mirrored)


class CopyPlane:
    """The plane of a copy: it has no filters, and affects no state of the mirror's own requests."""

    def __init__(self, mirroring: Mirroring, mirror: ReplicaSetKey, upstreams: Upstreams, terms: Terms) -> None:
        """`terms`: those of the client's request."""
        self.mirroring = mirroring
        self.clock = mirroring.clock
        self.records = mirroring.records
        self.upstreams = upstreams
        self.filters = Filters(self)
        self.state = IngressState(mirror, mirroring.clock)
        self.unowned = IngressState(UNOWNED, mirroring.clock)
        self._terms = terms

    def sending(self, exchange: Exchange, terms: Terms) -> None:
        terms.mirrored, terms.replaced = True, self._terms.replaced

    def mint_id(self) -> bytes:
        raise NotImplementedError("a copy has the ID of its request")

    def own_response(self, request: ClientRequest) -> BuiltinResponse | None:
        return None

    def find(self, exchange: Exchange) -> tuple[ReplicaSetKey, str]:
        return self.state.key, ""

    def router(self, ingress: ReplicaSetKey) -> IngressRouter | None:
        return None

    def ingress_state(self, ingress: ReplicaSetKey) -> IngressState:
        return self.state

    def cors(self, ingress: ReplicaSetKey, path: str) -> Sequence[CorsSettings]:
        return ()


class Copy(Exchange):
    """A copy of a request or call. It never waits for a permit, and is attempted once."""

    __slots__ = ("_mirrored", "_mirroring")

    kind = MIRRORED

    downstream: "Nobody"

    def __init__(
        self, plane: CopyPlane, mirrored: MirroredRequest[RoutePermit], request: ClientRequest, nobody: "Nobody"
    ) -> None:
        super().__init__(plane, nobody, request)
        nobody.copy = self
        self._mirrored = mirrored
        self._mirroring = plane.mirroring
        self._ingress_state = plane.state
        self.marks[plane] = True

    def begin(self) -> None:
        """Send the request to the replica of the permit that it has."""
        self._mirroring.live.add(self)
        mirrored, now = self._mirrored, self.plane.clock()
        self.dispatcher.assign(mirrored.router, None)
        self._deadlines = SingleDeadline(self, mirrored.deadline - now)
        self.dispatcher.attempts.deadline = mirrored.deadline
        self.dispatcher.begin(mirrored.permit, now)
        self._connect(mirrored.permit)

    def cut_short(self) -> None:
        """Stop reading a response that is too large to be compared. The replica sees a disconnect."""
        self.fail(BadResponse("the response is too large"))

    # Ends

    def fail(self, error: Exception) -> None:
        self._drop_upstream()
        if self.downstream.head is not None and not isinstance(error, ReplicaLost):
            self._cut_off(error)
            return
        self._mirrored.failed()
        self._release()
        self._record(0, error.reason if isinstance(error, RequestError) else ReplicaLost.reason)

    def _cut_off(self, error: Exception) -> None:
        head = self.downstream.head
        assert head is not None
        if isinstance(error, ReplicaGone):
            self._fail_with(error)
            return
        self._mirrored.completed(self.downstream.status, self.plane.clock(), whole=False)
        self._release()
        self._record(head.status, CUT)

    def _attempt_refused(self, word: bytes) -> None:
        self._mirrored.refused(word.decode("latin-1"))
        self._release()

    def _attempt_ended(self, step: Action | Exception, now: float, error: ReplicaGone | None = None) -> None:
        self._fail_with(error)

    def _fail_with(self, error: ReplicaGone | None) -> None:
        """End the copy, because its replica was lost or its response is not HTTP."""
        unreadable = isinstance(error, ResponseUnreadable)
        self._mirrored.failed(Result.UNREADABLE if unreadable else Result.LOST)
        self._release()
        self._record(0, BadResponse.reason if unreadable else ReplicaLost.reason)

    def _finish(self) -> None:
        self._mirrored.completed(self.downstream.status, self.plane.clock())
        super()._finish()

    def _release(self) -> None:
        self._mirroring.live.discard(self)
        super()._release()


class Nobody:
    """The downstream of a copy. The bytes of the response are compared, and not kept."""

    host = ""
    continued = False
    writable = True

    copy: Copy

    def __init__(self, mirrored: MirroredRequest[RoutePermit], peers: bytes) -> None:
        """`peers`: of the client whose request was copied."""
        self.peers = peers
        self.served: dict[ReplicaSetKey, Preference] = {}
        self.head: ResponseHead | None = None
        self.size = 0
        self._response = mirrored.response

    @property
    def status(self) -> str:
        """The status of the response, as it is compared."""
        assert self.head is not None
        return str(self.head.status)

    def regulate(self) -> None: ...

    def inform(self, head: ResponseHead) -> None: ...

    def prepare(self, head: ResponseHead) -> bool:
        self.head = head
        return True

    def take_back(self) -> None: ...

    def start(self, data: Any = None) -> None:
        if data is not None:
            self.write(data)

    def write(self, data: Any) -> None:
        self.size += len(data)
        self._response.received(data)
        if self._response.size > MOST_RESPONSE:
            self.copy.cut_short()

    def open_tunnel(self, head: ResponseHead) -> None: ...

    def close_tunnel(self, why: str) -> None: ...

    def give(self, response: BuiltinResponse) -> None: ...

    def finished(self) -> None: ...

    def cut(self, error: Exception) -> None: ...
