"""The request of a handle's call, as an exchange sees it. It is complete from the start, and kept until the end."""

from collections.abc import Callable, Sequence
from copy import copy

from app_toolkit.errors import DeadlineExceeded, RequestError
from app_toolkit.exchange.attempts import is_repeatable
from app_toolkit.exchange.dispatcher import RESPONDING, Stage
from app_toolkit.interfaces import Call
from app_toolkit.observability import tracing
from app_toolkit.observability.context import DEADLINE, TRACE
from app_toolkit.observability.trace_context import Trace
from app_toolkit.types import Header, Retry
from app_toolkit.wire.calls import Piece


class CallRequest:
    """One call of a method. Create it in the context of its caller, from which it takes the deadline and the trace."""

    __slots__ = (
        "_outer_trace",
        "body_on_demand",
        "call",
        "id",
        "idempotent",
        "method",
        "outer",
        "path",
        "pieces",
        "trace",
    )

    # What only requests of clients over HTTP have.
    version = "1.1"
    error: RequestError | None = None
    timeout: bytes | None = None
    forwarded: list[Header] = []  # noqa: RUF012
    length: int | None = None
    shard_key: str | None = None
    expects = False
    websocket = False
    raw_path = b""
    query = b""
    fields: list[Header] = []  # noqa: RUF012

    # The body: the arguments.
    complete = True
    body_retained = True
    missing: int | None = 0
    waiting = 0

    def __init__(self, call: Call, id: str, idempotent: Callable[[str], bool] = lambda method: False) -> None:
        """Create the request of a call.

        Parameters:
            call: The call.
            id: The ID of the request in which it is made, or a new one.
            idempotent: Returns whether a method may run twice. Asked after a loss, because the methods may not be known
                when the call begins.
        """
        self.call = call
        self.path = call.method
        self.method = call.method.encode()
        self.id: bytes | None = id.encode("latin-1", "replace")
        self.idempotent = idempotent
        #: The deadline of the request in which the call is made. None: it has none.
        self.outer = DEADLINE.get()
        #: The encoded arguments. Empty: they stay objects, because the method runs in this process.
        self.pieces: Sequence[Piece] = ()
        #: Whether the arguments go out-of-band, once the replica waits for them.
        self.body_on_demand = False
        self._outer_trace = TRACE.get()
        self.trace: Trace | None = None
        if tracing.current is not None:
            self.trace = tracing.current.begin_call()

    @property
    def name(self) -> str:
        return self.call.method

    @property
    def request_id(self) -> str:
        assert self.id is not None
        return self.id.decode("latin-1")

    @property
    def forwarded_trace(self) -> str | None:
        """The trace that the method belongs to, in the format of `observability.trace_context`. None: there is none."""
        return self._outer_trace if self.trace is None else self.trace.forwarded

    def is_repeatable(self, policy: Retry) -> bool:
        return is_repeatable(self.call.retry or policy, self.idempotent(self.call.method))

    def late(self, stage: Stage, timeout: float, deployment: str) -> DeadlineExceeded:
        missed = "end" if stage is RESPONDING else "respond"
        return DeadlineExceeded(f"{self.name} of {deployment} did not {missed} before its deadline")

    def values(self, name: bytes) -> list[bytes]:
        return []

    def copied(self) -> "CallRequest":
        """Return a copy for mirrors. It has no span of its own, and its arguments do not go out-of-band."""
        request = copy(self)
        request.trace, request.body_on_demand = None, False
        return request

    def check_body(self, most: int, name: str) -> None:
        pass

    # The body

    @property
    def body(self) -> "CallRequest":
        return self

    @property
    def received(self) -> int:
        return sum(map(len, self.pieces))

    def take(self) -> Sequence[Piece]:
        return self.pieces

    def rewind(self) -> None:
        pass

    def forget(self) -> None:
        pass
