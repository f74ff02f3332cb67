"""Decides which requests a replica admits, and which waiting caller gets the next reservation.

Waiting callers are served round-robin: a caller with a hundred requests and a caller with a single request get
reservations alternately. A reservation keeps a slot for the request that redeems it. There is one more reservation than
free slots, so that the next request has already arrived when a slot becomes free. Otherwise the slot would be empty
while the reservation and its request are on the network.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

RESERVATION_S = 1.0
"""Seconds after which a reservation expires that no request has redeemed. Its caller has probably stopped."""

EARLY = 1
"""The number of reservations beyond the free slots."""

MAX_CALLERS = 1_000
"""The maximum number of waiting callers. The replica refuses other callers as busy."""

MAX_DEPARTED = 1_000
"""The maximum number of reservations that are remembered after their callers have left. The oldest are dropped."""


@dataclass(frozen=True, slots=True)
class Reservation:
    caller: str
    at: float


@dataclass(slots=True)
class Admission(Generic[T]):
    """The reserved slots of one replica, and the callers and requests that wait for a slot.

    The owner calls a method for each event. `ongoing`: the number of requests that hold a slot. `now`: a time in
    seconds. A pending request is a token of type T, which must be hashable and not None.
    """

    slots: int
    callers: dict[str, None] = field(default_factory=dict)
    """The waiting callers. The first caller gets the next reservation."""
    reservations: deque[Reservation] = field(default_factory=deque)
    """The reservations that no request has redeemed yet, oldest first."""
    departed: deque[Reservation] = field(default_factory=lambda: deque(maxlen=MAX_DEPARTED))
    """The reservations of callers that have left. They keep no slot, but a request may be on its way to redeem one."""
    pending: dict[T, str] = field(default_factory=dict)
    """Requests that redeemed a reservation before a slot was free, oldest first, with their callers."""
    entering: set[T] = field(default_factory=set)
    """Requests that were pending and now have a slot, but have not been admitted yet."""
    eager: bool = False
    """Whether to make early reservations: a slot has become free since the last pending request timed out."""

    @property
    def reserved(self) -> int:
        return len(self.reservations) + len(self.pending) + len(self.entering)

    @property
    def expires_at(self) -> float | None:
        """When the oldest reservation expires; None: there is no reservation."""
        return self.reservations[0].at + RESERVATION_S if self.reservations else None

    # Callers

    def join(self, caller: str) -> bool:
        """Add a caller at the end of the wait queue, unless it already waits. Return False if the queue is full."""
        if caller not in self.callers and len(self.callers) >= MAX_CALLERS:
            return False
        self.callers.setdefault(caller)
        return True

    def leave(self, caller: str) -> None:
        """Remove a caller. Its reservations keep no slot any more, but can be redeemed until they expire."""
        self.callers.pop(caller, None)
        if any(reservation.caller == caller for reservation in self.reservations):
            before, self.reservations = self.reservations, deque()
            for reservation in before:
                (self.departed if reservation.caller == caller else self.reservations).append(reservation)

    def next_reservation(self, ongoing: int, now: float) -> str | None:
        """Reserve a slot and return the caller that gets it. Call this until it returns None."""
        if not self.callers or ongoing + self.reserved >= self.slots + (EARLY if self.eager else 0):
            return None
        caller = next(iter(self.callers))
        del self.callers[caller]
        self.callers[caller] = None
        self.reservations.append(Reservation(caller, now))
        return caller

    def expire(self, now: float) -> list[str]:
        """Remove and return the callers whose reservations have expired."""
        stopped = list(
            dict.fromkeys(
                reservation.caller for reservation in self.reservations if now - reservation.at >= RESERVATION_S
            )
        )
        for caller in stopped:
            self.leave(caller)
        return stopped

    # Requests

    def admits_unreserved(self, ongoing: int) -> bool:
        """Return whether a request without a reservation is admitted."""
        return not self.callers and ongoing + self.reserved < self.slots

    def redeem(self, caller: str, now: float) -> bool:
        """Redeem a reservation of this caller. Return False if the caller has none."""
        for reservations in (self.reservations, self.departed):
            for reservation in reservations:
                departed = reservations is self.departed
                if reservation.caller == caller and not (departed and now - reservation.at >= RESERVATION_S):
                    reservations.remove(reservation)
                    return True
        return False

    def admits_reserved(self, ongoing: int) -> bool:
        """Return whether a request that redeemed a reservation is admitted. Otherwise it is pending."""
        return ongoing + len(self.entering) < self.slots

    def wait(self, token: T, caller: str) -> None:
        self.pending[token] = caller

    def next_in(self, ongoing: int) -> T | None:
        """Give a slot to the oldest pending request, and return its token; None: no slot or no pending request.

        Call this until it returns None. The request is in `entering` until `forget`.
        """
        if not self.pending or not self.admits_reserved(ongoing):
            return None
        token = next(iter(self.pending))
        del self.pending[token]
        self.entering.add(token)
        return token

    def timed_out(self, token: T) -> None:
        """Remove a request that was pending for too long.

        Its caller gets the next reservation. There are no early reservations until `freed`.
        """
        caller = self.pending.pop(token)
        if caller in self.callers:
            del self.callers[caller]
            self.callers = {caller: None, **self.callers}
        self.eager = False

    def forget(self, token: T) -> None:
        """Remove a request that was admitted or cancelled."""
        self.pending.pop(token, None)
        self.entering.discard(token)

    def freed(self) -> None:
        """Note that a request has released its slot."""
        self.eager = True
