"""What a proxy keeps of the requests for one ingress."""

import logging
from collections.abc import Mapping

from app_toolkit.core.attempts import RetryBudget
from app_toolkit.core.recent import Recent
from app_toolkit.errors import ReplicaGone, RequestError
from app_toolkit.observability.counts import Counts
from app_toolkit.proxy.deadlines import Deadlines
from app_toolkit.proxy.routes import RoutePermit
from app_toolkit.types import ReplicaId

log = logging.getLogger("app_toolkit.proxy")

LOG_AGAIN_S = 1.0
"""Requests that are refused under load are logged once in this time: there are thousands."""


class Account:
    """The requests for one ingress: their budget, their rate, how they ended, and the streams and WebSockets."""

    __slots__ = (
        "_deadlines",
        "_logged",
        "_newest",
        "answers",
        "budget",
        "counts",
        "name",
        "streams",
        "websockets",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.budget = RetryBudget()
        self.answers = Recent()
        self.counts = Counts()
        #: The exchanges that are open WebSockets.
        self.websockets: set[object] = set()
        #: The exchanges that are open streams, and hold no slot at their replica.
        self.streams: set[object] = set()
        #: By the address of a client: the permit of its newest stream or WebSocket that is open.
        self._newest: dict[bytes, RoutePermit] = {}
        self._deadlines: Deadlines | None = None
        self._logged = float("-inf")

    def deadlines(self, timeout: float) -> Deadlines:
        """Of the requests that came while this was what one may take."""
        if self._deadlines is None or self._deadlines.timeout != timeout:
            self._deadlines = Deadlines(timeout)
        return self._deadlines

    def close(self) -> None:
        if self._deadlines is not None:
            self._deadlines.close()

    def preferred(
        self, served: Mapping[str, tuple[ReplicaId, bool]], peers: bytes, *, shared: bool
    ) -> tuple[ReplicaId | None, bool, bool]:
        """The replica that serves this client, whether its previous response was a stream, and whether it will stay.

        A client is known by its connection, of which `served` tells. A new connection, and one that a trusted proxy
        shares among its clients (`shared`), goes by the address of the client: while a stream to it is open at some
        replica, its other requests belong there.
        """
        if not shared:
            before = served.get(self.name)
            if before is not None:
                return *before, True
        newest = self._newest.get(_address(peers))
        return (None if newest is None else newest.endpoint.id), False, not shared

    def opened(self, exchange: object, peers: bytes, permit: RoutePermit, *, websocket: bool) -> None:
        """An exchange has become an open WebSocket or stream."""
        (self.websockets if websocket else self.streams).add(exchange)
        self._newest[_address(peers)] = permit

    def closed(self, exchange: object, peers: bytes, permit: RoutePermit | None) -> None:
        self.websockets.discard(exchange)
        self.streams.discard(exchange)
        address = _address(peers)
        newest = self._newest.get(address)
        if newest is not None and newest is permit:
            del self._newest[address]

    def record(self, outcome: str, now: float, seconds: float | None, *, answered: bool) -> None:
        """Count a request that has ended. `seconds`: None for a WebSocket. `answered`: the app did."""
        self.counts.note(outcome)
        if answered:
            self.answers.note(now)
        if seconds is not None:
            self.counts.took(seconds)

    def log_failure(self, request_id: str, error: RequestError, now: float) -> None:
        """Log an error on our side; of refusals under load, which the access log has, only some."""
        if error.frequent:
            if now - self._logged < LOG_AGAIN_S:
                return
            self._logged = now
        cause = error.__cause__
        if isinstance(cause, ReplicaGone):
            log.warning("request %s: %d, %s: %s", request_id, error.status, error, cause)
        else:
            log.warning("request %s: %d, %s", request_id, error.status, error, exc_info=cause)


def _address(peers: bytes) -> bytes:
    return peers.partition(b" ")[0]
