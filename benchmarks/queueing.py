"""Simulate the orders in which a wait queue can serve its requests under overload.

python -m benchmarks.queueing     # print a table of all orders and loads

The capacity is 80 requests per second: four slots, and an exponentially distributed service time with a mean of 50 ms.
Arrivals are random with a fixed seed. The first five seconds do not count.
"""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from random import Random

from app_toolkit.exchange.queueing import ServingOrder
from benchmarks.report import table

SLOTS, SERVICE_S = 4, 0.05
CAPACITY = SLOTS / SERVICE_S
LONGEST_QUEUE, LONGEST_WAIT_S = 1_000, 30.0
"""The defaults of `max_queued_requests` and `max_queue_wait_s`."""
WARM_UP_S = 5.0


@dataclass(eq=False, slots=True)
class Request:
    at: float
    patience_s: float
    outcome: str = ""
    waited_s: float = 0.0


class OldestFirst:
    """First in, first out."""

    def __init__(self) -> None:
        self.queue: list[Request] = []

    def add(self, now: float, request: Request) -> None:
        self.queue.append(request)

    def gave_up(self, now: float, request: Request) -> None:
        self.queue.remove(request)

    def next(self, now: float) -> Request:
        return self.queue.pop(0)

    def dropped(self, now: float) -> list[Request]:
        return []


class NewestFirst(OldestFirst):
    """Last in, first out."""

    def next(self, now: float) -> Request:
        return self.queue.pop()


class NewestFirstOfAStandingQueue(OldestFirst):
    """Adaptive LIFO: newest first if the queue has not been empty for `INTERVAL_S`."""

    INTERVAL_S = 0.1
    _empty = 0.0

    def add(self, now: float, request: Request) -> None:
        if not self.queue:
            self._empty = now
        super().add(now, request)

    def stands(self, now: float) -> bool:
        return now - self._empty > self.INTERVAL_S

    def next(self, now: float) -> Request:
        return self.queue.pop(-1 if self.stands(now) else 0)


class ControlledDelay(NewestFirstOfAStandingQueue):
    """Adaptive LIFO with CoDel: a standing queue rejects requests that have waited for longer than `TARGET_S`."""

    TARGET_S = 0.005

    def dropped(self, now: float) -> list[Request]:
        limit = self.TARGET_S if self.stands(now) else self.INTERVAL_S
        late = [request for request in self.queue if now - request.at > limit]
        self.queue = [request for request in self.queue if request not in late]
        return late


class Ours(OldestFirst):
    """The order of app_toolkit's router."""

    def __init__(self) -> None:
        super().__init__()
        self.order = ServingOrder()

    def add(self, now: float, request: Request) -> None:
        if not self.queue:
            self.order.began()
        super().add(now, request)

    def gave_up(self, now: float, request: Request) -> None:
        super().gave_up(now, request)
        self.order.gave_up()

    def next(self, now: float) -> Request:
        request = self.queue.pop(-1 if self.order.newest_first else 0)
        self.order.served()
        return request


ORDERS: dict[str, Callable[[], OldestFirst]] = {
    "oldest first": OldestFirst,
    "newest first": NewestFirst,
    "adaptive LIFO": NewestFirstOfAStandingQueue,
    "adaptive LIFO and CoDel": ControlledDelay,
    "newest first while clients give up": Ours,
}


def simulate(order: OldestFirst, arrivals: Iterable[Request], seed: int = 1) -> list[Request]:
    """Run the simulation, and return the requests with their outcomes."""
    rng, numbers = Random(seed), itertools.count()
    events = [(request.at, next(numbers), "arrives", request) for request in arrivals]
    heapq.heapify(events)
    seen: list[Request] = []
    busy = 0

    def start(now: float, request: Request) -> None:
        nonlocal busy
        busy += 1
        request.outcome, request.waited_s = "runs", now - request.at
        ends = now + rng.expovariate(1 / SERVICE_S)
        heapq.heappush(events, (ends, next(numbers), "ends", request))

    while events:
        now, _, event, request = heapq.heappop(events)
        for late in order.dropped(now):
            late.outcome = "rejected"
        if event == "arrives":
            seen.append(request)
            if busy < SLOTS:
                start(now, request)
            elif len(order.queue) >= LONGEST_QUEUE:
                request.outcome = "rejected"
            else:
                order.add(now, request)
                leaves = request.at + min(request.patience_s, LONGEST_WAIT_S)
                heapq.heappush(events, (leaves, next(numbers), "leaves", request))
        elif event == "leaves" and request in order.queue:
            order.gave_up(now, request)
            request.outcome = "gave up" if request.patience_s < LONGEST_WAIT_S else "rejected"
        elif event == "ends":
            busy -= 1
            request.outcome = "served" if now - request.at <= request.patience_s else "in vain"
            if order.queue:
                start(now, order.next(now))
    return seen


def poisson(rate: float, seconds: float, patience_s: float, seed: int = 1) -> Iterator[Request]:
    rng, now = Random(seed), 0.0
    while (now := now + rng.expovariate(rate)) < seconds:
        yield Request(now, patience_s)


def burst(rate: float, seconds: float, patience_s: float, size: int, at: float) -> list[Request]:
    """Return a Poisson load with a burst of `size` requests at the time `at`."""
    more = [Request(at + number / 10_000, patience_s) for number in range(size)]
    return [*poisson(rate, seconds, patience_s), *more]


LOADS: dict[str, Callable[[], Iterable[Request]]] = {
    "300/s, clients wait 1 s": lambda: poisson(300, 30, 1),
    "200/s, clients wait 1 s": lambda: poisson(200, 30, 1),
    "90/s, clients wait 1 s": lambda: poisson(90, 60, 1),
    "300/s, clients wait 10 s": lambda: poisson(300, 60, 10),
    "300/s, clients wait 60 s": lambda: poisson(300, 60, 60),
    "72/s and 800 at once, clients wait 60 s": lambda: burst(72, 100, 60, 800, at=10),
}


@dataclass(frozen=True, slots=True)
class Judged:
    goodput: float
    """Requests served in time per second, relative to the capacity."""
    median_s: float
    """The median wait of the requests that were served in time."""
    outcomes: Counter[str]


def judged(seen: list[Request]) -> Judged:
    counted = [request for request in seen if request.at >= WARM_UP_S]
    waits = sorted(request.waited_s for request in counted if request.outcome == "served")
    seconds = max(request.at for request in counted) - WARM_UP_S
    median_s = waits[len(waits) // 2] if waits else math.nan
    return Judged(len(waits) / seconds / CAPACITY, median_s, Counter(request.outcome for request in counted))


def main() -> None:
    rows = []
    for load, arrivals in LOADS.items():
        for name, order in ORDERS.items():
            found = judged(simulate(order(), arrivals()))
            rejected = found.outcomes["rejected"]
            rows.append((load, name, f"{found.goodput:.2f}", f"{found.median_s:.2f} s", f"{rejected:,}"))
    print(table(("load", "order", "goodput relative to capacity", "median wait", "rejected"), rows))


if __name__ == "__main__":
    main()
