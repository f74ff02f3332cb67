"""The assignment of a request to a replica: its ingress, its place in the queue, its permit, and its attempts."""

import time
from collections.abc import Callable

from app_toolkit.core.attempts import Action, Attempt, Attempts, Reason, Result, failure, is_repeatable
from app_toolkit.core.routes import Kind
from app_toolkit.errors import ReplicaGone, ReplicaLost
from app_toolkit.proxy.downstream import Downstream
from app_toolkit.proxy.ingress_router import Failed, IngressRouter, RoutePermit
from app_toolkit.proxy.request import IDEMPOTENT, Request
from app_toolkit.proxy.state import ProxyState
from app_toolkit.types import ReplicaId


class Assignment:
    """Assigns one request to a replica, and reassigns it after an attempt without a response."""

    __slots__ = (
        "_proxy",
        "_request",
        "_waiter",
        "attempts",
        "ingress_state",
        "max_body",
        "permit",
        "replica",
        "router",
    )

    def __init__(self, proxy: ProxyState, request: Request, now: float) -> None:
        self._proxy = proxy
        self._request = request
        #: The router of the ingress. Set by `find_ingress`.
        self.router: IngressRouter
        self._waiter: object | None = None
        self.ingress_state = proxy.unowned
        self.attempts = Attempts(now)
        #: The most bytes in the body. None: no limit.
        self.max_body: int | None = None
        #: The replica of the current or last attempt.
        self.replica = ReplicaId("-")
        self.permit: RoutePermit | None = None

    @property
    def waiting(self) -> int | None:
        """The number of requests in the queue of the ingress. None: no ingress owns the request."""
        return None if self.ingress_state is self._proxy.unowned else self.router.waiting

    @property
    def is_current(self) -> bool:
        """Whether the ingress is still served."""
        return self.router is self._proxy.registry.routers.get(self.ingress_state.name)

    @property
    def is_repeatable(self) -> bool:
        """Whether the request may run twice."""
        request = self._request
        return not request.websocket and is_repeatable(self.router.policy.retry, request.method in IDEMPOTENT)

    @property
    def request_name(self) -> str:
        """The name of the request in error messages."""
        return f"this {self._request.method.decode()}"

    def find_ingress(self) -> None:
        """Find the ingress that owns the request now, and check the body against its limit. Raise `RequestError`."""
        request, proxy = self._request, self._proxy
        kind: Kind = "websocket" if request.websocket else "http"
        name = proxy.registry.find(kind, request.method.decode(), request.path)
        router = self.router = proxy.registry.routers[name]
        self.ingress_state = proxy.ingress_state(name)
        self.ingress_state.budget.count_request(self.attempts.since)
        self.max_body = None if request.websocket else router.policy.max_body_size
        if self.max_body is not None:
            self.check_body()

    def check_body(self) -> None:
        """Raise `ContentTooLarge` if the announced or received size of the body exceeds the limit."""
        if self.max_body is not None:
            self._request.check_body(self.max_body, self.ingress_state.name)

    def ask(self, client: Downstream, granted: Callable[[RoutePermit], None], failed: Failed) -> RoutePermit | None:
        """Acquire a permit. Return None if the request has to wait.

        In that case, `granted` is called later with a permit, or `failed` with an error. Raises `RequestError` if the
        request cannot wait.
        """
        attempts = self.attempts
        preferred = self.ingress_state.preferred(client.served, client.peers, shared=bool(self._request.forwarded))
        permit = self.router.try_acquire(attempts.avoid, *preferred)
        if permit is None:
            again = attempts.count > 0
            self._waiter = self.router.wait(granted, attempts.since, avoid=attempts.avoid, again=again, failed=failed)
        return permit

    def begin(self, permit: RoutePermit) -> None:
        """Begin an attempt with this permit."""
        if self._waiter is not None:
            self._leave_queue()
        self.permit = permit
        permit.request = self._request.path
        self.replica = permit.endpoint.id
        self.attempts.count += 1

    def end(self, result: Result) -> Action | Reason:
        """End the attempt, which had no response, and return the next step, which `core.attempts` decides."""
        permit, self.permit = self.permit, None
        assert permit is not None, "an attempt has begun with a permit"
        endpoint = permit.endpoint
        attempt = Attempt(
            self.replica,
            result,
            repeatable=self.is_repeatable,
            body_retained=self._request.body.retained,
            suspect=endpoint.may_have_failed_with((self._request.id or b"").decode()),
        )
        if result is Result.LOST or result is Result.UNREAD:
            self._proxy.pool.distrust(endpoint.address)
        self.router.ended(permit, result)
        return self.attempts.after(
            attempt, time.monotonic(), self.router.policy.max_queue_wait_s, self.ingress_state.budget
        )

    def failure(self, reason: Reason, word: bytes | None, cause: ReplicaGone | None) -> Exception:
        """Return the error for a request that is not attempted again.

        Parameters:
            reason: Why there is no other attempt.
            word: The reason of the replica's refusal. None: the replica did not refuse the request.
            cause: The error of the last attempt, if any.
        """
        if reason is Reason.QUEUE_WAIT:
            return self.router.waited_too_long()
        if reason is Reason.REFUSED and word is not None:
            rejected = f"rejected the proxy's credentials or protocol version ({word.decode('latin-1')})"
            return ReplicaLost(f"replica {self.replica} {rejected}; the request did not run")
        error = failure(reason, self.replica, request=self.request_name, it="this", deployment=self.ingress_state.name)
        error.__cause__ = cause
        return error

    def open(self, exchange: object, client: Downstream) -> None:
        """Release the slot of the request, because an open stream or WebSocket does not count as an ongoing request."""
        assert self.permit is not None
        self.ingress_state.opened(exchange, client.peers, self.permit, websocket=self._request.websocket)
        self.router.open(self.permit)

    def keep_slot(self) -> None:
        """Record that the response is a stream and keeps its slot, because its replica has too many open streams."""
        assert self.permit is not None
        self.permit.kept = True

    def close(self, exchange: object, client: Downstream) -> None:
        """Record that the stream or WebSocket is closed. Does nothing if it was not open."""
        self.ingress_state.closed(exchange, client.peers, self.permit)

    def release(self) -> None:
        """Leave the queue, and release the permit."""
        if self._waiter is not None:
            self._leave_queue()
        permit, self.permit = self.permit, None
        if permit is not None:
            self.router.release(permit)

    def _leave_queue(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            self.router.leave(waiter)
