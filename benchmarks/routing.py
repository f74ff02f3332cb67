"""Simulate how many turns of chats reach the replica that has served the turn before.

python -m benchmarks.routing      # print a table with and without `routing_policy="prefix"`

Conversations begin at random times and have eight turns. A turn takes two seconds on average, and the next one follows
ten seconds later on average. A replica has 16 slots, as by default. With two callers, each turn comes through a random
one of them.

`found`: the turns that reach the replica of the turn before, of all that have one before. `busiest`: with prefix
routing, the turns of the replica that gets the most, relative to the average.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from statistics import quantiles

from app_toolkit.config.models import Policy
from app_toolkit.exchange.permits import Permit
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import Call, Endpoint
from app_toolkit.types import Address, ReplicaId
from benchmarks.report import table

SLOTS, TURNS, SERVICE_S, PAUSE_S = 16, 8, 2.0, 10.0
REPLICAS, CALLERS, LOADS = (2, 4), (1, 2), (0.5, 0.9)


@dataclass(eq=False, slots=True)
class Conversation:
    messages: list[dict[str, str]]
    replica: str = ""
    turns: int = 0


@dataclass(eq=False, slots=True)
class Routed:
    """What one simulation has measured."""

    found: int = 0
    """Turns at the replica of the turn before, of all that have one before."""
    following: int = 0
    waits_s: list[float] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        return self.found / self.following

    @property
    def busiest(self) -> float:
        """The turns of the replica with the most, relative to the average."""
        return max(self.served.values()) * len(self.served) / self.served.total()


class Simulation:
    """The callers share the slots of the replicas equally."""

    def __init__(self, replicas: int, callers: int, load: float, option: str | None, *, seed: int = 1) -> None:
        self.result = Routed()
        self._rng = Random(seed)
        self._rate = load * replicas * SLOTS / SERVICE_S / TURNS
        self._routers = [
            Router("chat", policy=Policy(routing_policy=option), rng=Random(seed + number)) for number in range(callers)
        ]
        for router in self._routers:
            router.update(
                Endpoint(ReplicaId(f"r{number}"), Address("local:"), SLOTS // callers) for number in range(replicas)
            )
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now = 0.0

    def run(self, conversations: int) -> Routed:
        at = 0.0
        for number in range(conversations):
            at += self._rng.expovariate(self._rate)
            system = {"role": "system", "content": "You are a helpful assistant."}
            self._at(at, partial(self._ask, Conversation([system]), number))
        while self._events:
            self._now, _, event = heapq.heappop(self._events)
            event()
        return self.result

    def _at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), event))

    def _ask(self, conversation: Conversation, number: int) -> None:
        conversation.messages.append({"role": "user", "content": f"{number} asks {conversation.turns}"})
        router = self._rng.choice(self._routers)
        preference = router.preference(Call("chat", (conversation.messages,), {}))
        begin = partial(self._begin, conversation, number, router, self._now)
        permit = router.try_acquire(preference=preference)
        if permit is None:
            router.wait(begin, self._now, preference=preference, again=True)
        else:
            begin(permit)

    def _begin(self, conversation: Conversation, number: int, router: Router, asked_at: float, permit: Permit) -> None:
        replica = permit.endpoint.id
        self.result.waits_s.append(self._now - asked_at)
        self.result.served[replica] += 1
        self.result.following += conversation.turns > 0
        self.result.found += conversation.replica == replica
        conversation.replica = replica
        conversation.turns += 1
        ends = self._now + self._rng.expovariate(1 / SERVICE_S)
        self._at(ends, partial(self._end, conversation, number, router, permit))

    def _end(self, conversation: Conversation, number: int, router: Router, permit: Permit) -> None:
        router.release(permit)
        conversation.messages.append({"role": "assistant", "content": f"answer {conversation.turns}"})
        if conversation.turns < TURNS:
            self._at(self._now + self._rng.expovariate(1 / PAUSE_S), partial(self._ask, conversation, number))


def main() -> None:
    rows = []
    for replicas, callers, load in itertools.product(REPLICAS, CALLERS, LOADS):
        without, by_prefix = (Simulation(replicas, callers, load, option).run(2_000) for option in (None, "prefix"))
        p95 = [f"{quantiles(each.waits_s, n=20)[-1]:.1f} s" for each in (without, by_prefix)]
        shares = [f"{each.share:.0%}" for each in (without, by_prefix)]
        rows.append([str(replicas), str(callers), f"{load:.0%}", *shares, *p95, f"{by_prefix.busiest:.2f}"])
    head = ["replicas", "callers", "load", "found", "with prefix", "p95 wait", "with prefix", "busiest"]
    print(table(head, rows))


if __name__ == "__main__":
    main()
