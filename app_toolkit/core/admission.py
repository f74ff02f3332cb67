"""Which requests a replica admits, and which of the waiting callers gets the next reservation.

Callers take turns: one with a hundred requests and one with a single request get reservations alternately. A
reservation keeps a slot for the request that redeems it. There is one reservation more than free slots, so that the
next request is there when a slot becomes free, and no slot is empty while a reservation and its request travel.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

RESERVATION_S = 1.0
"""A reservation that no request has redeemed by then expires: its caller has stopped."""

EARLY = 1
"""Reservations beyond the free slots."""

MAX_CALLERS = 1_000
"""The maximum number of callers that wait. For others the replica is just busy."""


@dataclass(frozen=True, slots=True)
class Reservation:
    caller: str
    at: float


@dataclass(slots=True)
class Admission(Generic[T]):
    """The reserved slots of one replica and those who wait for a slot. It is told all that happens.

    `ongoing`: the number of requests that hold a slot. `now`: a time in seconds. A pending request is a token of type
    T, which can be hashed and is not None.
    """

    slots: int
    callers: dict[str, None] = field(default_factory=dict)
    """The callers that wait. The first one gets the next reservation."""
    reservations: deque[Reservation] = field(default_factory=deque)
    """Those that no request has redeemed yet, oldest first."""
    pending: dict[T, str] = field(default_factory=dict)
    """Requests that redeemed a reservation before there was a slot, oldest first, with their callers."""
    entering: set[T] = field(default_factory=set)
    """Pending requests that were given a slot and have not taken it yet."""
    eager: bool = False
    """Whether to reserve early: a slot has become free since a request with an early reservation timed out."""

    @property
    def reserved(self) -> int:
        return len(self.reservations) + len(self.pending) + len(self.entering)

    @property
    def expires_at(self) -> float | None:
        """When the oldest reservation expires."""
        return self.reservations[0].at + RESERVATION_S if self.reservations else None

    # Callers

    def join(self, caller: str) -> bool:
        """Add a caller at the end of the queue, unless it is there. Return False if the queue is full."""
        if caller not in self.callers and len(self.callers) >= MAX_CALLERS:
            return False
        self.callers.setdefault(caller)
        return True

    def leave(self, caller: str) -> None:
        """Remove a caller and its reservations."""
        self.callers.pop(caller, None)
        if any(each.caller == caller for each in self.reservations):
            self.reservations = deque(each for each in self.reservations if each.caller != caller)

    def next_reservation(self, ongoing: int, now: float) -> str | None:
        """Reserve a slot and return its caller. Call this until it returns None."""
        if not self.callers or ongoing + self.reserved >= self.slots + (EARLY if self.eager else 0):
            return None
        caller = next(iter(self.callers))
        del self.callers[caller]
        self.callers[caller] = None
        self.reservations.append(Reservation(caller, now))
        return caller

    def expire(self, now: float) -> list[str]:
        """Remove and return the callers whose reservations have expired."""
        stopped = list(dict.fromkeys(each.caller for each in self.reservations if now - each.at >= RESERVATION_S))
        for caller in stopped:
            self.leave(caller)
        return stopped

    # Requests

    def admits_unreserved(self, ongoing: int) -> bool:
        """Whether a request without a reservation is admitted."""
        return not self.callers and ongoing + self.reserved < self.slots

    def redeem(self, caller: str) -> bool:
        """Redeem a reservation of this caller. Return False if it has none."""
        for each in self.reservations:
            if each.caller == caller:
                self.reservations.remove(each)
                return True
        return False

    def admits_reserved(self, ongoing: int) -> bool:
        """Whether a request that redeemed a reservation is admitted, or is pending."""
        return ongoing + len(self.entering) < self.slots

    def wait(self, token: T, caller: str) -> None:
        self.pending[token] = caller

    def next_in(self, ongoing: int) -> T | None:
        """The pending request that has a slot now. Call this until it returns None. It is `entering` until `forget`."""
        if not self.pending or not self.admits_reserved(ongoing):
            return None
        token = next(iter(self.pending))
        del self.pending[token]
        self.entering.add(token)
        return token

    def timed_out(self, token: T) -> None:
        """A request was pending for too long. Its caller is next, and there are no early reservations until `freed`."""
        caller = self.pending.pop(token)
        if caller in self.callers:
            del self.callers[caller]
            self.callers = {caller: None, **self.callers}
        self.eager = False

    def forget(self, token: T) -> None:
        """The request is admitted now, or has gone."""
        self.pending.pop(token, None)
        self.entering.discard(token)

    def freed(self) -> None:
        """A request has left its slot."""
        self.eager = True
