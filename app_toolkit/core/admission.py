"""Who comes into a replica, and which of the callers that stand in line for it is called next.

Callers take their turns: one with a hundred requests and one with a single request are called alternately. A call
promises a slot, so that whoever follows it finds one. One more than the free slots is called, so that the next request
is there when a slot comes free, and no slot is empty for the time that a call and its request travel.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

CALL_S = 1.0
"""A call that no request has followed by then is withdrawn: its caller has stopped."""

EARLY = 1
"""Calls beyond the free slots."""

MOST_CALLERS = 1_000
"""How many may stand in line; to more the replica is just busy."""


@dataclass(frozen=True, slots=True)
class Call:
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
    """Who stands in line; the first is called next."""
    calls: deque[Call] = field(default_factory=deque)
    """Those that no request has followed yet, oldest first."""
    deck: dict[T, str] = field(default_factory=dict)
    """Requests that came with a call before there was a slot, oldest first, and whose they are."""
    entering: set[T] = field(default_factory=set)
    """Requests from the deck that were given a slot, and are not inside yet."""
    eager: bool = False
    """Whether to call early: a slot has come free since somebody who had been called early came in vain."""

    @property
    def promised(self) -> int:
        return len(self.calls) + len(self.deck) + len(self.entering)

    @property
    def lapses_at(self) -> float | None:
        """When the oldest call lapses."""
        return self.calls[0].at + CALL_S if self.calls else None

    # The line

    def stand(self, caller: str) -> bool:
        """Stand at the end of the line; who stands there keeps its place. False: the line is too long."""
        if caller not in self.callers and len(self.callers) >= MOST_CALLERS:
            return False
        self.callers.setdefault(caller)
        return True

    def leave(self, caller: str) -> None:
        """Leave the line, and give back the calls that were not claimed."""
        self.callers.pop(caller, None)
        if any(call.caller == caller for call in self.calls):
            self.calls = deque(call for call in self.calls if call.caller != caller)

    def next_call(self, ongoing: int, now: float) -> str | None:
        """Who is called now; ask until nobody is."""
        if not self.callers or ongoing + self.promised >= self.slots + (EARLY if self.eager else 0):
            return None
        caller = next(iter(self.callers))
        del self.callers[caller]
        self.callers[caller] = None
        self.calls.append(Call(caller, now))
        return caller

    def withdraw(self, now: float) -> list[str]:
        """Put out of the line whoever does not follow its calls, and give them."""
        stopped = list(dict.fromkeys(call.caller for call in self.calls if now - call.at >= CALL_S))
        for caller in stopped:
            self.leave(caller)
        return stopped

    # Requests

    def admits_stranger(self, ongoing: int) -> bool:
        """Whether a request comes in that nobody called."""
        return not self.callers and ongoing + self.promised < self.slots

    def claim(self, caller: str) -> bool:
        """A request of this caller follows a call. False: there is none, and it is a stranger."""
        for call in self.calls:
            if call.caller == caller:
                self.calls.remove(call)
                return True
        return False

    def admits_called(self, ongoing: int) -> bool:
        """Whether a request whose call was claimed comes in, or has to wait on deck."""
        return ongoing + len(self.entering) < self.slots

    def wait(self, token: T, caller: str) -> None:
        self.deck[token] = caller

    def next_in(self, ongoing: int) -> T | None:
        """The request on deck that has a slot now; ask until there is none. It is `entering` until it is forgotten."""
        if not self.deck or not self.admits_called(ongoing):
            return None
        token = next(iter(self.deck))
        del self.deck[token]
        self.entering.add(token)
        return token

    def in_vain(self, token: T) -> None:
        """It has been on deck for too long: its caller is the next to be called, and nobody early until `freed`."""
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
