"""The router of an ingress, as the proxy uses it."""

from collections.abc import Callable, Collection
from typing import Any, Protocol

from app_toolkit.core.attempts import Result
from app_toolkit.dispatch.registry import PublishedRouter
from app_toolkit.interfaces import Endpoint
from app_toolkit.types import ReplicaId

Failed = Callable[[Exception], None]


class RoutePermit(Protocol):
    """The right to run one request at one replica."""

    @property
    def endpoint(self) -> Endpoint: ...

    kept: bool
    request: str

    def redeem(self) -> bool: ...


class IngressRouter(PublishedRouter, Protocol):
    """The router interface that the proxy uses. Permits and waiters are returned to the router that created them."""

    def try_acquire(
        self, avoid: Collection[ReplicaId], prefer: ReplicaId | None, streamed: bool, stays: bool
    ) -> RoutePermit | None: ...

    def wait(
        self, granted: Callable[[Any], None], since: float, *, avoid: Collection[ReplicaId], again: bool, failed: Failed
    ) -> Any: ...

    def leave(self, waiter: Any) -> None: ...

    def open(self, permit: Any) -> None: ...

    def release(self, permit: Any) -> None: ...

    def ended(self, permit: Any, result: Result) -> None: ...

    def waited_too_long(self) -> Exception: ...
