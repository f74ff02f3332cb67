"""What a proxy keeps of the requests for one ingress."""

from app_toolkit.core.recent import Recent
from app_toolkit.core.retries import RetryBudget
from app_toolkit.observability.counts import Counts

TELL_AGAIN_S = 1.0


class Account:
    """The requests for one ingress: what they may cost, how fast they are answered, and what became of them."""

    __slots__ = ("_told", "answers", "budget", "counts", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.budget = RetryBudget()
        self.answers = Recent()
        self.counts = Counts()
        self._told = float("-inf")

    def may_tell(self, now: float) -> bool:
        """Whether to say in the log that requests are refused: once a second, for under load there are thousands."""
        if now - self._told < TELL_AGAIN_S:
            return False
        self._told = now
        return True
