"""Who comes into a replica, and which of the callers that stand in line for it is offered a slot next.

Callers take their turns: one with a hundred requests and one with a single request get offers alternately. An offer
promises a slot, so that whoever claims it finds one. There is one more offer than free slots, so that the next request
is there when a slot comes free, and no slot is empty for the time that an offer and its request travel.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

OFFER_S = 1.0
"""An offer that no request has claimed by then lapses: its caller has stopped."""

EARLY = 1
"""Offers beyond the free slots."""

MOST_CALLERS = 1_000
"""How many may stand in line; to more the replica is just busy."""


@dataclass(frozen=True, slots=True)
class Offer:
    caller: str
    at: float


@dataclass(slots=True)
class Admission(Generic[T]):
    """One replica's slots, as far as they are promised, and those who wait for one. It is told all that happens.

    `ongoing`, where a decision asks for it, is the number of requests inside; `now` counts seconds. A request that has
    to wait is a token of type T, which can be hashed and is not None.
    """

    slots: int
    callers: dict[str, None] = field(default_factory=dict)
    """Who stands in line; the first is offered a slot next."""
    offers: deque[Offer] = field(default_factory=deque)
    """Those that no request has claimed yet, oldest first."""
    deck: dict[T, str] = field(default_factory=dict)
    """Requests that claimed an offer before there was a slot, oldest first, and whose they are."""
    entering: set[T] = field(default_factory=set)
    """Requests from the deck that were given a slot, and are not inside yet."""
    eager: bool = False
    """Whether to offer early: a slot has come free since somebody who had an early offer came in vain."""

    @property
    def promised(self) -> int:
        return len(self.offers) + len(self.deck) + len(self.entering)

    @property
    def lapses_at(self) -> float | None:
        """When the oldest offer lapses."""
        return self.offers[0].at + OFFER_S if self.offers else None

    # The line

    def stand(self, caller: str) -> bool:
        """Stand at the end of the line; who stands there keeps its place. False: the line is too long."""
        if caller not in self.callers and len(self.callers) >= MOST_CALLERS:
            return False
        self.callers.setdefault(caller)
        return True

    def leave(self, caller: str) -> None:
        """Leave the line, and give back the offers that were not claimed."""
        self.callers.pop(caller, None)
        if any(offer.caller == caller for offer in self.offers):
            self.offers = deque(offer for offer in self.offers if offer.caller != caller)

    def next_offer(self, ongoing: int, now: float) -> str | None:
        """Who is offered a slot now; ask until nobody is."""
        if not self.callers or ongoing + self.promised >= self.slots + (EARLY if self.eager else 0):
            return None
        caller = next(iter(self.callers))
        del self.callers[caller]
        self.callers[caller] = None
        self.offers.append(Offer(caller, now))
        return caller

    def withdraw(self, now: float) -> list[str]:
        """Put out of the line whoever let an offer lapse, and give them."""
        stopped = list(dict.fromkeys(offer.caller for offer in self.offers if now - offer.at >= OFFER_S))
        for caller in stopped:
            self.leave(caller)
        return stopped

    # Requests

    def admits_stranger(self, ongoing: int) -> bool:
        """Whether a request comes in that claims no offer."""
        return not self.callers and ongoing + self.promised < self.slots

    def claim(self, caller: str) -> bool:
        """A request of this caller claims an offer. False: there is none, and it is a stranger."""
        for offer in self.offers:
            if offer.caller == caller:
                self.offers.remove(offer)
                return True
        return False

    def admits_claim(self, ongoing: int) -> bool:
        """Whether a request that claimed an offer comes in, or has to wait on deck."""
        return ongoing + len(self.entering) < self.slots

    def wait(self, token: T, caller: str) -> None:
        self.deck[token] = caller

    def next_in(self, ongoing: int) -> T | None:
        """The request on deck that has a slot now; ask until there is none. It is `entering` until it is forgotten."""
        if not self.deck or not self.admits_claim(ongoing):
            return None
        token = next(iter(self.deck))
        del self.deck[token]
        self.entering.add(token)
        return token

    def in_vain(self, token: T) -> None:
        """It has been on deck for too long: its caller gets the next offer, and nobody an early one until `freed`."""
        caller = self.deck.pop(token)
        if caller in self.callers:
            del self.callers[caller]
            self.callers = {caller: None, **self.callers}
        self.eager = False

    def forget(self, token: T) -> None:
        """It is inside now, or wherever it went."""
        self.deck.pop(token, None)
        self.entering.discard(token)

    def freed(self) -> None:
        """A request has left its slot."""
        self.eager = True
