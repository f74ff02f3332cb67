"""The router under a load that it cannot serve, with a clock that the test turns."""

import heapq
import itertools
from dataclasses import dataclass

import pytest

from app_toolkit.config.models import Policy
from app_toolkit.exchange.permits import Permit, Waiter
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import Endpoint
from app_toolkit.types import Address, ReplicaId

SLOTS, SERVICE_S, SECONDS = 4, 0.05, 30
CAPACITY = SLOTS / SERVICE_S


@dataclass(eq=False)
class Request:
    at: float
    waiter: Waiter | None = None
    permit: Permit | None = None
    given_up: bool = False


class Overload:
    """Requests arrive at regular times, and each client disconnects after its patience."""

    def __init__(self, rate: float, patience_s: float) -> None:
        self.router = Router("shop/web", policy=Policy())
        self.router.update([Endpoint(ReplicaId("a"), Address("unix:/a"), SLOTS)])
        self.now = 0.0
        self.ran = 0
        self.waits: list[float] = []
        self.order: list[float] = []
        """When each request arrived that was given a slot, in the order of the slots."""
        self._patience_s = patience_s
        self._numbers = itertools.count()
        self._events = [
            (number / rate, next(self._numbers), "arrives", Request(number / rate))
            for number in range(round(rate * SECONDS))
        ]

    def run(self) -> float:
        """The goodput, of the capacity."""
        served = 0
        while self._events:
            self.now, _, event, request = heapq.heappop(self._events)
            if event == "arrives":
                self._arrive(request)
            elif event == "leaves":
                request.given_up = True
                if request.waiter is not None:
                    self.router.leave(request.waiter)
            else:
                served += not request.given_up
                self.ran += 1
                assert request.permit is not None
                self.router.release(request.permit)
        return served / SECONDS / CAPACITY

    def _arrive(self, request: Request) -> None:
        def granted(permit: Permit) -> None:
            assert not request.given_up, "a client that has disconnected does not wait any more"
            request.permit = permit
            self.waits.append(self.now - request.at)
            self.order.append(request.at)
            self._later(SERVICE_S, "ends", request)

        self._later(self._patience_s, "leaves", request)
        permit = self.router.try_acquire()
        if permit is not None:
            granted(permit)
        else:
            request.waiter = self.router.wait(granted, self.now)

    def _later(self, seconds: float, event: str, request: Request) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), event, request))


@pytest.mark.parametrize("rate", [300, 200, 90])
def test_the_capacity_is_used_for_clients_that_are_still_there(rate: float) -> None:
    overload = Overload(rate, patience_s=1.0)
    assert overload.run() > 0.9
    assert overload.ran < 1.1 * CAPACITY * SECONDS
    assert (overload.router.waiting, overload.router.ongoing) == (0, 0)
    assert max(overload.waits) <= 1.0
