"""A request's way to a replica: its ingress, the queue, its permit, and the attempts so far."""

import time
from collections.abc import Callable

from app_toolkit.core.attempts import Action, Attempt, Attempts, Reason, Result, failure, is_repeatable
from app_toolkit.errors import ReplicaGone, ReplicaLost
from app_toolkit.proxy.downstream import Downstream
from app_toolkit.proxy.proxy import Proxy
from app_toolkit.proxy.request import IDEMPOTENT, Request
from app_toolkit.proxy.routes import Failed, IngressRouter, RoutePermit
from app_toolkit.types import ReplicaId


class Assignment:
    """Assigns one request to a replica, and to another one after an attempt that brought no answer."""

    __slots__ = ("_proxy", "_request", "_waiter", "account", "attempts", "max_body", "permit", "replica", "router")

    def __init__(self, proxy: Proxy, request: Request, now: float) -> None:
        self._proxy = proxy
        self._request = request
        #: That of the ingress; set by `find_ingress`.
        self.router: IngressRouter
        self._waiter: object | None = None
        self.account = proxy.unowned
        self.attempts = Attempts(now)
        #: Bytes that the body may have; None: any number.
        self.max_body: int | None = None
        #: The one that has the request, or had it last.
        self.replica = ReplicaId("-")
        self.permit: RoutePermit | None = None

    @property
    def waiting(self) -> int | None:
        """The requests in the queue of the ingress; None: no ingress owns the request."""
        return None if self.account is self._proxy.unowned else self.router.waiting

    @property
    def is_current(self) -> bool:
        """Whether the ingress is still served."""
        return self.router is self._proxy.routes.routers.get(self.account.name)

    @property
    def is_repeatable(self) -> bool:
        """Whether the request may run twice."""
        request = self._request
        return not request.websocket and is_repeatable(self.router.policy.retry, request.method in IDEMPOTENT)

    @property
    def request_name(self) -> str:
        """How error messages name the request."""
        return f"this {self._request.method.decode()}"

    def find_ingress(self) -> None:
        """Find the ingress that owns the request now, and check the body against its limit. Raises `RequestError`."""
        request, proxy = self._request, self._proxy
        kind = "websocket" if request.websocket else "http"
        name = proxy.routes.find(kind, request.method.decode(), request.path)
        router = self.router = proxy.routes.routers[name]
        self.account = proxy.account(name)
        self.account.budget.count_request(self.attempts.since)
        self.max_body = None if request.websocket else router.policy.max_body_size
        if self.max_body is not None:
            self.check_body()

    def check_body(self) -> None:
        """Raises `ContentTooLarge` if the body is announced, or has come, longer than it may be."""
        if self.max_body is not None:
            self._request.check_body(self.max_body, self.account.name)

    def ask(self, client: Downstream, granted: Callable[[RoutePermit], None], failed: Failed) -> RoutePermit | None:
        """A permit; None: the request waits, until `granted` is called with one, or `failed` with an error.

        Raises `RequestError` if it may not wait.
        """
        attempts = self.attempts
        preferred = self.account.preferred(client.served, client.peers, shared=bool(self._request.forwarded))
        permit = self.router.try_acquire(attempts.avoid, *preferred)
        if permit is None:
            again = attempts.count > 0
            self._waiter = self.router.wait(granted, attempts.since, avoid=attempts.avoid, again=again, failed=failed)
        return permit

    def begin(self, permit: RoutePermit) -> None:
        """Begin an attempt."""
        if self._waiter is not None:
            self._leave_queue()
        self.permit = permit
        self.replica = permit.endpoint.id
        self.attempts.count += 1

    def end(self, result: Result) -> Action | Reason:
        """End the attempt, which brought no answer. Gives what to do next."""
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
        return self.attempts.after(attempt, time.monotonic(), self.router.policy.max_queue_wait_s, self.account.budget)

    def failure(self, reason: Reason, word: bytes | None, cause: ReplicaGone | None) -> Exception:
        """The error for a request that gets no other attempt. `word`: that of the replica's refusal."""
        if reason is Reason.QUEUE_WAIT:
            return self.router.waited_too_long()
        if reason is Reason.REFUSED and word is not None:
            how = f"refused the proxy itself ({word.decode('latin-1')}); the request did not run"
            return ReplicaLost(f"replica {self.replica} {how}")
        error = failure(reason, self.replica, request=self.request_name, it="this", deployment=self.account.name)
        error.__cause__ = cause
        return error

    def open(self, exchange: object, client: Downstream) -> None:
        """The request holds no slot from now on: an open stream or WebSocket is no ongoing request."""
        assert self.permit is not None
        self.account.opened(exchange, client.peers, self.permit, websocket=self._request.websocket)
        self.router.open(self.permit)

    def keep_slot(self) -> None:
        """The response is a stream, and the request holds its slot all the same: the replica has too many open."""
        assert self.permit is not None
        self.permit.kept = True

    def close(self, exchange: object, client: Downstream) -> None:
        """The stream or the WebSocket is closed; nothing happens if it was not open."""
        self.account.closed(exchange, client.peers, self.permit)

    def release(self) -> None:
        """Leave the queue, and give the permit back."""
        if self._waiter is not None:
            self._leave_queue()
        permit, self.permit = self.permit, None
        if permit is not None:
            self.router.release(permit)

    def _leave_queue(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            self.router.leave(waiter)
