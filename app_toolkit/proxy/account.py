"""What a proxy keeps of the requests for one ingress."""

from app_toolkit.core.recent import Recent
from app_toolkit.core.retries import RetryBudget
from app_toolkit.observability.counts import Counts
from app_toolkit.proxy.deadlines import Deadlines
from app_toolkit.proxy.routes import Turn

TELL_AGAIN_S = 1.0


class Account:
    """The requests for one ingress: what they may cost, how fast they are answered, and what became of them."""

    __slots__ = (
        "_deadlines",
        "_told",
        "answers",
        "budget",
        "counts",
        "name",
        "open_at",
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
        #: By the address of a client: the turn of its newest stream or WebSocket that is open.
        self.open_at: dict[bytes, Turn] = {}
        self._deadlines: Deadlines | None = None
        self._told = float("-inf")

    def deadlines(self, timeout: float) -> Deadlines:
        """Of the requests that came while this was what one may take."""
        if self._deadlines is None or self._deadlines.timeout != timeout:
            self._deadlines = Deadlines(timeout)
        return self._deadlines

    def close(self) -> None:
        if self._deadlines is not None:
            self._deadlines.close()

    def may_tell(self, now: float) -> bool:
        """Whether to say in the log that requests are refused: once a second, for under load there are thousands."""
        if now - self._told < TELL_AGAIN_S:
            return False
        self._told = now
        return True
