"""The state of the requests of one ingress at a proxy."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from app_toolkit.config.models import Policy
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.errors import ReplicaGone, RequestError
from app_toolkit.exchange.attempts import RetryBudget
from app_toolkit.exchange.deadlines import Deadlines
from app_toolkit.exchange.filters import Filters, selected
from app_toolkit.exchange.ingress_router import RoutePermit
from app_toolkit.exchange.preference import NEW_CLIENT, NO_PREFERENCE, Preference
from app_toolkit.exchange.recent import Recent
from app_toolkit.observability.records import NOT_OWNED

log = logging.getLogger("app_toolkit.proxy")

UNOWNED = ReplicaSetKey("", "")
"""The key of the requests that no ingress owns."""

LOG_INTERVAL_S = 1.0
"""The least seconds between two log messages about requests refused under load, because there may be thousands."""


class IngressState:
    """The requests of one ingress: retry budget, rate of responses, and open streams and WebSockets."""

    __slots__ = (
        "_clock",
        "_deadlines",
        "_logged",
        "_newest",
        "budget",
        "key",
        "name",
        "place_hooks",
        "policy",
        "request_hooks",
        "responses",
        "streams",
        "websockets",
    )

    def __init__(self, key: ReplicaSetKey, clock: Callable[[], float], name: str | None = None) -> None:
        """`name`: in records and messages. None: that of the key."""
        self.key = key
        self.name = name or (NOT_OWNED if key is UNOWNED else key.name)
        self._clock = clock
        #: The options for which the hooks were selected. None: there are no requests yet.
        self.policy: Policy | None = None
        #: The hooks `place` and `request` of the filters that concern the requests.
        self.place_hooks: tuple[Any, ...] = ()
        self.request_hooks: tuple[Any, ...] = ()
        self.budget = RetryBudget()
        self.responses = Recent()
        #: The exchanges that are open WebSockets.
        self.websockets: set[object] = set()
        #: The exchanges that are open streams and hold no slot at their replica.
        self.streams: set[object] = set()
        #: The permit of the newest open stream or WebSocket of each client address.
        self._newest: dict[bytes, RoutePermit] = {}
        self._deadlines: Deadlines | None = None
        self._logged = float("-inf")

    def apply(self, policy: Policy, filters: Filters) -> None:
        """Select what depends on the options of the ingress."""
        self.policy = policy
        self.place_hooks = selected(filters.place, policy)
        self.request_hooks = selected(filters.request, policy)

    def deadlines(self, timeout: float) -> Deadlines:
        """Return the shared deadlines of the requests with this timeout, in seconds."""
        if self._deadlines is None or self._deadlines.timeout != timeout:
            self._deadlines = Deadlines(timeout, self._clock)
        return self._deadlines

    def close(self) -> None:
        """Discard the shared deadlines."""
        if self._deadlines is not None:
            self._deadlines.close()

    def preferred(
        self, served: Mapping[ReplicaSetKey, Preference], peers: bytes, *, shared: bool, sessions: bool = False
    ) -> Preference:
        """Return the preference of a request without a key: for the replica that serves its client.

        A client is identified by its connection, whose preference is in `served`. For a new connection, and for
        one that a trusted proxy shares among its clients (`shared`), the client is identified by its address: while a
        replica has an open stream or WebSocket to this address, other requests from it prefer that replica. With
        `sessions`, a request without a key begins a new one, which may go to any replica.
        """
        if sessions:
            return NEW_CLIENT
        if not shared:
            before = served.get(self.key)
            if before is not None:
                return before
        newest = self._newest.get(_address(peers))
        if newest is None:
            return NO_PREFERENCE if shared else NEW_CLIENT
        return Preference(replica=newest.endpoint.id, stays=not shared)

    def opened(self, exchange: object, peers: bytes, permit: RoutePermit, *, websocket: bool) -> None:
        """Record that an exchange has become an open WebSocket or stream."""
        (self.websockets if websocket else self.streams).add(exchange)
        self._newest[_address(peers)] = permit

    def closed(self, exchange: object, peers: bytes, permit: RoutePermit | None) -> None:
        self.websockets.discard(exchange)
        self.streams.discard(exchange)
        address = _address(peers)
        newest = self._newest.get(address)
        if newest is not None and newest is permit:
            del self._newest[address]

    def log_retry(self, request_id: str, error: ReplicaGone | None) -> None:
        log.warning("request %s is retried: %s", request_id, error)

    def log_failure(self, request_id: str, error: RequestError, now: float) -> None:
        """Log a server error. Refusals under load are logged at most once in `LOG_INTERVAL_S`."""
        if error.frequent:
            if now - self._logged < LOG_INTERVAL_S:
                return
            self._logged = now
        cause = error.__cause__
        if isinstance(cause, ReplicaGone):
            log.warning("request %s: %d, %s: %s", request_id, error.status, error, cause)
        else:
            log.warning("request %s: %d, %s", request_id, error.status, error, exc_info=cause)


def _address(peers: bytes) -> bytes:
    return peers.partition(b" ")[0]
