"""The mirrored requests of one process: copies of requests and calls, whose responses nobody gets.

A mirrored request must not affect the request that a client waits for, the *primary*:

* The primary is sent first, and waits for nothing.
* A mirrored request begins only if nobody waits for the deployment of the primary or for that of the mirror, and a
  replica of the mirror has room at once. Otherwise it is dropped. It never waits in a queue, and is never retried. So
  it does not make a deployment without replicas start one.
* The number of mirrored requests, and the size of the bodies that are kept for them, are bounded.

Nothing here does I/O. The owner of a request or call sends the copy, and reports what happened:

| the owner calls | when |
|---|---|
| `Mirrors.is_sampled` | it knows a mirror that may serve the request |
| `Mirrors.begin` | the primary was sent, and its body is complete |
| `Primary.began`, `received`, then `ended` | the response for the client arrives, and ends |
| `MirroredRequest.response.received` | the response of the mirror arrives |
| one of `completed`, `refused`, `failed` of the `MirroredRequest` | the mirrored request has ended |
"""

import random
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any, Generic, Literal, TypeVar

from app_toolkit.config.models import Policy
from app_toolkit.contract.mirror_counts import Difference, MirrorCounts
from app_toolkit.exchange.attempts import Result, result_of_refusal
from app_toolkit.exchange.dispatcher import Permit, Router
from app_toolkit.exchange.preference import NO_PREFERENCE
from app_toolkit.observability.metrics import DEPLOYMENT, Sample, declare
from app_toolkit.observability.records import OK
from app_toolkit.wire.pool import ResponseHead

MIRRORED = declare(
    "app_toolkit_mirrored_total",
    "counter",
    "Requests and calls that a mirror should get copies of, by what became of the copy.",
    (*DEPLOYMENT, "kind", "result"),
    "all",
)
MIRROR_COMPARED = declare(
    "app_toolkit_mirror_compared_total",
    "counter",
    "Copies whose response was compared with that of the client, by the difference.",
    (*DEPLOYMENT, "kind", "result"),
    "all",
)


MOST_REQUESTS = 64
"""The maximum number of mirrored requests of a process that have not ended."""

MOST_BYTES = 2 * 1024 * 1024
"""The maximum size in bytes of all bodies that a process keeps for mirrored requests."""

MOST_BODY = 64 * 1024
"""The maximum size in bytes of the body of a request or call that is mirrored."""

MOST_RESPONSE = 1024 * 1024
"""The maximum size in bytes of a body that is compared. The owner stops reading a larger one of a mirror."""

LONGEST_S = 30.0
"""The maximum seconds until a mirrored request ends. A shorter `request_timeout_s` of the mirror applies."""

P = TypeVar("P", bound=Permit)


class ObservedResponse:
    """What is compared of one response: its status, the size and the hash of its body, and the time that it took."""

    __slots__ = ("_began", "_hash", "comparable", "seconds", "size", "status")

    def __init__(self, began: float) -> None:
        """`began`: when the request was sent."""
        #: Empty until the response is complete.
        self.status = ""
        #: Bytes of the body.
        self.size = 0
        #: From when the request was sent to the end of the response.
        self.seconds = 0.0
        #: Whether the bytes of the body may be compared. Set it to False if they contain the framing of the body.
        self.comparable = True
        self._began = began
        self._hash = blake2b(digest_size=16)

    @property
    def digest(self) -> bytes | None:
        """The hash of the body. None: the body is not compared."""
        return self._hash.digest() if self.comparable and self.size <= MOST_RESPONSE else None

    def received(self, data: bytes | memoryview) -> None:
        self.size += len(data)
        if self.comparable and self.size <= MOST_RESPONSE:
            self._hash.update(data)

    def end(self, status: str, now: float) -> None:
        self.status, self.seconds = status, now - self._began


class Primary:
    """The request or call that a client waits for, and the response to it, as its copies are compared with it."""

    __slots__ = ("_copies", "id", "name", "response")

    def __init__(self, id: str, name: str, now: float) -> None:
        """`id`: of the request. `name`: its method and path, without the query, or the method of a call."""
        self.id = id
        self.name = name
        self.response = ObservedResponse(now)
        #: The copies that have not been compared. None: the response will not be complete.
        self._copies: list[MirroredRequest[Any]] | None = []

    def began(self, head: ResponseHead) -> None:
        """Note the head of the response. A chunked body has its framing."""
        self.response.comparable = head.extent != "chunked"

    def received(self, data: Any) -> None:
        """Note bytes of the body of the response."""
        self.response.received(data)

    def ended(self, status: int, outcome: str, now: float) -> None:
        """Note how the request has ended, as it is recorded. Only a complete response is compared."""
        if outcome == OK:
            self.end(str(status), now)
        else:
            self.abandon()

    def end(self, status: str, now: float) -> None:
        """Note that the response is complete, and compare it with those of the copies that have ended."""
        self.response.end(status, now)
        copies, self._copies = self._copies, []
        for copy in copies or ():
            self.compare(copy)

    def abandon(self) -> None:
        """Note that a response that has not ended will not be complete. The copies are not compared with it."""
        if not self.response.status:
            self._copies = None

    def compare(self, copy: "MirroredRequest[Any]") -> None:
        """Compare a copy if both responses are complete, or else when this one is."""
        if self._copies is None or not copy.response.status:
            return
        primary, other = self.response, copy.response
        if not primary.status:
            self._copies.append(copy)
            return
        pair = Difference(
            self.id, self.name, primary.status, other.status, primary.size, other.size, primary.seconds, other.seconds
        )
        same_body = None in (primary.digest, other.digest) or primary.digest == other.digest
        copy.compared(pair, same_body=same_body)


class MirroredRequest(Generic[P]):
    """A copy of a request or call, which has a permit at a replica of the mirror until it ends."""

    __slots__ = ("_mirrors", "began", "deadline", "mirror", "permit", "primary", "response", "router", "size")

    def __init__(
        self, mirrors: "Mirrors", mirror: str, router: Router, permit: P, primary: Primary, size: int, now: float
    ) -> None:
        self._mirrors = mirrors
        #: The replica set that gets the copy.
        self.mirror = mirror
        self.router = router
        self.permit = permit
        self.primary = primary
        #: Bytes of the body that is kept.
        self.size = size
        self.response = ObservedResponse(now)
        self.began = now
        #: When it must have ended. Its owner then calls `failed`, or `completed` if the response has begun.
        self.deadline = now + min(router.policy.request_timeout_s or LONGEST_S, LONGEST_S)
        mirrors.live.add(self)

    def completed(self, status: str, now: float, *, whole: bool = True) -> None:
        """End with a response. `whole`: it is complete. Otherwise the owner stopped reading it, and it is not compared.

        `status`: that of the response, or the class of the error that a call raised.
        """
        if self._end(MirrorCounts(completed=1)):
            self.router.release(self.permit)
            if whole:
                self.response.end(status, now)
                self.primary.compare(self)

    def refused(self, word: str) -> None:
        """End without a response, because the replica refused it. `word`: the reason that it gave (`hop.Refusal`)."""
        if self._end(MirrorCounts(dropped=1)):
            result = result_of_refusal(word)
            # A router that sees a replica as busy joins its wait queue. A mirrored request does not wait there.
            if result is Result.BUSY:
                self.router.release(self.permit)
            else:
                self.router.ended(self.permit, result)

    def failed(self, result: Result | None = None) -> None:
        """End without a response. `result`: how the replica was lost; None: the deadline has passed."""
        if self._end(MirrorCounts(failed=1)):
            if result is not None:
                self.router.ended(self.permit, result)
            self.router.release(self.permit)  # an open stream has no slot that `ended` could release

    @property
    def ended(self) -> bool:
        return self not in self._mirrors.live

    def compared(self, pair: Difference, *, same_body: bool) -> None:
        """Count the two complete responses."""
        self._mirrors.note(self.mirror, lambda counts: counts.with_pair(pair, same_body=same_body))

    def _end(self, outcome: MirrorCounts) -> bool:
        if self.ended:
            return False
        self._mirrors.live.discard(self)
        self._mirrors.note(self.mirror, lambda counts: counts + outcome)
        return True


class Mirrors:
    """The mirrored requests of one process, and what became of them.

    Mirrors are named by their replica sets. Not thread-safe, except where noted.
    """

    def __init__(
        self,
        draw: Callable[[], float] = random.random,
        *,
        most_requests: int = MOST_REQUESTS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """`draw`: returns a random number, at least 0 and below 1, for each request and each mirror."""
        self.live: set[MirroredRequest[Any]] = set()
        self._draw = draw
        self._most_requests = most_requests
        self._most_bytes = most_bytes
        #: By mirror. The values are replaced and never changed, so that other threads can read them.
        self._counts: dict[str, MirrorCounts] = {}

    @property
    def kept_bytes(self) -> int:
        """The size of the bodies that are kept."""
        return sum(copy.size for copy in self.live)

    def is_sampled(self, share: float) -> bool:
        """Return whether a mirror with this share gets a copy of the next request. Each call draws anew."""
        return self._draw() < share

    def begin(
        self, mirror: str, primary: Primary, size: int | None, router: Router, primary_router: Router, now: float
    ) -> MirroredRequest[Any] | None:
        """Begin a mirrored request, which its owner sends now. None: it is not sent, and was counted.

        Parameters:
            mirror: The name of the replica set that gets the copy.
            primary: The request that was sampled.
            size: Bytes of its body. None: it was not kept.
            router: That of the mirror.
            primary_router: That of the deployment that serves the client.
            now: The time. The response of the mirror took the seconds from now on.
        """
        self._counts.setdefault(mirror, MirrorCounts())
        if size is None or size > min(MOST_BODY, _limit(router.policy)):
            self._counts[mirror] += MirrorCounts(too_large=1)
            return None
        has_room = len(self.live) < self._most_requests and self.kept_bytes + size <= self._most_bytes
        permit = (
            router.try_acquire((), NO_PREFERENCE)
            if has_room and not router.waiting and not primary_router.waiting
            else None
        )
        if permit is None:
            self._counts[mirror] += MirrorCounts(dropped=1)
            return None
        permit.request = f"mirrored {primary.name}"
        return MirroredRequest(self, mirror, router, permit, primary, size, now)

    def note(self, mirror: str, change: Callable[[MirrorCounts], MirrorCounts]) -> None:
        """Change the counts of a mirror, unless they were removed while its request ran."""
        if mirror in self._counts:
            self._counts[mirror] = change(self._counts[mirror])

    def forget(self, mirror: str) -> None:
        """Remove the counts of a mirror that is gone."""
        self._counts.pop(mirror, None)

    def counts(self) -> dict[str, MirrorCounts]:
        """Return the counts by mirror. Thread-safe."""
        return dict(self._counts)

    def samples(self, kind: Literal["request", "call"]) -> Iterator[Sample]:
        """Yield the samples of the metrics of mirrors. Thread-safe."""
        for mirror, counts in self.counts().items():
            for result in ("completed", "failed", "dropped", "too_large"):
                yield Sample(MIRRORED, (mirror, kind, result), [getattr(counts, result)])
            for result in ("same", "different_status", "different_body"):
                yield Sample(MIRROR_COMPARED, (mirror, kind, result), [getattr(counts, result)])


def _limit(policy: Policy) -> int:
    """Return the maximum size in bytes of a body that a deployment accepts."""
    return MOST_BODY if policy.max_body_size is None else policy.max_body_size
