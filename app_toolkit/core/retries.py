"""Whether a request that was lost with its replica may be tried again.

Trying again helps where few requests need it. Where many do, something is wrong with all replicas, and more requests
make it worse; so what is tried again is kept to a share of what is asked.
"""

from app_toolkit.core.recent import WINDOW_S, Recent

SHARE = 0.2
"""Of the requests of the last ten seconds."""

FLOOR_PER_S = 10
"""So many a second are always tried again: a share of few requests is none."""

DEATHS = 2
"""What saw one replica die is tried once more; what saw two may be what kills them."""

LOSSES = 4
"""A dying process still takes connections for a moment: losing some more to it is the same death, up to this."""

ONE_DEATH_S = 1.0
"""What is lost with one replica within this time is lost in one death, and is counted once."""


def spent(replicas: int, losses: int) -> bool:
    """Whether what was lost so often, with so many replicas, has had its tries."""
    return replicas >= DEATHS or losses >= LOSSES


class RetryBudget:
    """The budget of one deployment in one caller. `now` is in seconds and never falls.

    A death is paid for once, however many requests it takes along. To hand on what no replica accepted costs nothing
    and is not asked for here.
    """

    __slots__ = ("_deaths", "_requests", "_retries")

    def __init__(self) -> None:
        self._requests = Recent()
        self._retries = Recent()
        #: When each replica's last death was paid for, oldest first.
        self._deaths: dict[str, float] = {}

    def asked(self, now: float) -> None:
        """One request came."""
        self._requests.note(now)

    def take(self, replica: str, now: float) -> bool:
        """Whether a request that was lost with this replica may be tried again; if so, that is paid for."""
        paid = self._deaths.get(replica)
        if paid is not None and now - paid < ONE_DEATH_S:
            return True
        if self._retries.total(now) >= self.most(now):
            return False
        self._retries.note(now)
        self._forget(now)
        self._deaths.pop(replica, None)
        self._deaths[replica] = now
        return True

    def most(self, now: float) -> float:
        """How many deaths may be made good within the window that ends now."""
        return max(SHARE * self._requests.total(now), FLOOR_PER_S * WINDOW_S)

    def _forget(self, now: float) -> None:
        while self._deaths:
            oldest = next(iter(self._deaths))
            if now - self._deaths[oldest] < ONE_DEATH_S:
                return
            del self._deaths[oldest]
