"""One record for each request and each call that has ended, for each connection that a proxy has refused, and for each
action of the controller; and those that subscribe to the records.

The access log, the counters and the event log subscribe. Metrics and traces subscribe in the same way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from app_toolkit.observability.trace_context import Trace

LONGEST_PATH = 2_000
"""Bytes of a path that a record has."""

NOT_OWNED = "-"
"""The deployment of a request that no ingress owned."""

OK = "ok"
CUT = "cut"
CLIENT_GONE = "client_gone"
"""The outcomes of a request. A request that ends with an error has the error's `reason` as its outcome instead."""

MIRRORED = "mirrored"
"""The kind of the record of a mirrored request, which is no request of a client."""

CLIENT_CLOSED_REQUEST = 499
"""The status in a record if the client disconnects before the response is complete. It is never sent."""


class FailedAttempt(NamedTuple):
    """An attempt that has ended without a response."""

    replica: str
    began_s: float
    """From `Record.arrived` to its beginning."""
    seconds: float
    """From its beginning to its end."""
    result: str
    """`exchange.attempts.Result` in lowercase, such as `busy` or `lost`."""


class Record(NamedTuple):
    """A request or a call that has ended, or a refused connection.

    A named tuple, because one is created for each request on the data path.
    """

    arrived: float
    """When the process received or made it, as `time.monotonic()` counts."""
    seconds: float
    """From `arrived` to its end."""
    kind: str
    """`http`, `websocket` or `call`. `connection`: the proxy refused it, because it has too many clients. `MIRRORED`: a
    copy of a request that a proxy has sent to a mirror."""
    deployment: str
    """`APPLICATION/DEPLOYMENT`, and only `DEPLOYMENT` in one process. `NOT_OWNED`: no ingress owned the request."""
    replica: str
    """The replica of the last attempt; `-`: there was no attempt."""
    tries: int
    """The number of attempts."""
    outcome: str
    """`OK`, `CUT`, `CLIENT_GONE`, or the reason of an error."""
    method: bytes
    """The method of the request, or that of the object."""
    id: bytes = b"-"
    """The ID of the request in which this happened."""
    # Only for requests
    peers: bytes = b"- 0"
    """The address and the port of the client, separated by a space. What follows is ignored."""
    path: bytes = b""
    """The first `LONGEST_PATH` bytes of the path with its query."""
    status: int = 0
    """The status of the response; `CLIENT_CLOSED_REQUEST`: the client left before its end."""
    size: int = 0
    """Bytes of the body of the response."""
    affinity: str | None = None
    """What became of its affinity key, or of the preference of its routing policy, in the last attempt
    (`exchange.preference.Outcome`). None: it had none."""
    # The stages
    queued_s: float = 0.0
    """How long it waited for a permit in the queue of the router, before all attempts together."""
    first_byte_s: float | None = None
    """From `arrived` to the start of the response. None: no response began."""
    attempt_s: float | None = None
    """From `arrived` to the beginning of the last attempt, which has a permit. None: there was no attempt."""
    failed: tuple[FailedAttempt, ...] = ()
    """The attempts that ended without a response, oldest first."""
    # Only for requests
    route: str = ""
    """The path template of its route, with the route prefix of the application, such as `/items/{item_id}`. Empty: it
    matched no route."""
    trace: Trace | None = None
    """Its place in its trace. None: tracing is off."""


@dataclass(frozen=True, slots=True)
class ControllerRecord:
    """An action of the controller, or an event that it has taken."""

    at: float
    """When it happened, on the clock of the controller."""
    subject: str
    """The name of the application or of the replica set; empty: the instance."""
    name: str
    """The name of the action or the event, such as `Applied`, `Scaled`, `Retire` or `Exited`."""
    replica: str | None
    cause: str | None


R = TypeVar("R", Record, ControllerRecord)


class Records(Generic[R]):
    """The records of one process, one proxy or one controller: each goes to all subscribers.

    A subscriber receives each record on the thread that creates it, and returns at once.
    """

    def __init__(self, *subscribers: Callable[[R], object]) -> None:
        self._subscribers: list[Callable[[R], object]] = list(subscribers)

    def subscribe(self, subscriber: Callable[[R], object]) -> None:
        """Pass all records from now on to `subscriber`."""
        self._subscribers.append(subscriber)

    def unsubscribe(self, subscriber: Callable[[R], object]) -> None:
        """Pass no more records to `subscriber`."""
        self._subscribers.remove(subscriber)

    def add(self, record: R) -> None:
        """Pass a record to all subscribers."""
        for subscriber in self._subscribers:
            subscriber(record)
