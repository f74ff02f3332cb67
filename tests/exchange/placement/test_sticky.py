"""A client keeps its replica, and the load stays balanced: both, with clients that ask again and again."""

import heapq
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest

from app_toolkit.exchange.permits import Permit
from app_toolkit.exchange.preference import NEW_CLIENT, Preference, served_by
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import Endpoint
from app_toolkit.types import Address, ReplicaId


def endpoint(name: str, room: int = 100) -> Endpoint:
    return Endpoint(ReplicaId(name), Address(f"unix:/{name}"), room)


def router_of(*names: str, room: int = 100, seed: int = 1) -> Router:
    router = Router("shop/chat", rng=Random(seed))
    router.update(endpoint(name, room) for name in names)
    return router


def begin(router: Router, prefer: str, *, streamed: bool = False) -> Permit:
    permit = router.try_acquire(preference=Preference(replica=ReplicaId(prefer), streamed=streamed))
    assert permit is not None
    return permit


def test_new_clients_are_divided_evenly_over_idle_replicas() -> None:
    router = router_of("a", "b")
    met = Counter[str]()
    for _ in range(10):
        permit = router.try_acquire(preference=NEW_CLIENT)
        assert permit is not None
        met[permit.endpoint.id] += 1
        router.release(permit)
    assert met == {"a": 5, "b": 5}


def test_a_client_changes_its_replica_if_that_is_full_resting_or_removed() -> None:
    router = router_of("a", "b", room=1)
    begin(router, "a")
    assert begin(router, "a").endpoint.id == "b"
    router = router_of("a", "b")
    assert begin(router, "gone").endpoint.id in ("a", "b")
    permit = router.try_acquire({ReplicaId("a")}, served_by(ReplicaId("a")))
    assert permit is not None
    assert permit.endpoint.id == "b", "it has failed this request"


def test_a_client_stays_if_the_less_loaded_replica_has_no_room() -> None:
    router = Router("shop/chat", rng=Random(1))
    router.update([endpoint("a"), endpoint("b", 1)])
    for _ in range(7):
        begin(router, "a")
    begin(router, "b")
    assert begin(router, "a").endpoint.id == "a"


# Simulated


@dataclass
class Clients:
    """Clients of one proxy in a closed loop: each asks, on its connection, as soon as it is answered.

    A replica works on one request at a time, as one with busy handlers does.
    """

    router: Router
    rng: Random
    count: int
    stream_s: float = 0.0
    kept: dict[int, ReplicaId] = field(default_factory=dict)
    served: Counter[str] = field(default_factory=Counter)
    moves: int = 0
    now: float = 0.0
    _free_at: dict[str, float] = field(default_factory=dict)
    _events: list[tuple[float, int, int, Permit | None]] = field(default_factory=list)

    def start(self) -> None:
        for client in range(self.count):
            self._push(self.rng.uniform(0, 0.005), client, None)

    def _push(self, at: float, client: int, permit: Permit | None) -> None:
        heapq.heappush(self._events, (at, self.rng.randrange(1 << 30), client, permit))

    def run(self, until: float) -> None:
        while self._events[0][0] < until:
            self.now, _, client, permit = heapq.heappop(self._events)
            if permit is None:
                self._ask(client)
            else:
                self.router.release(permit)
                self.served[permit.endpoint.id] += 1
                self.kept[client] = permit.endpoint.id
                self._push(self.now + self.rng.expovariate(1 / 0.0005), client, None)

    def _ask(self, client: int) -> None:
        before = self.kept.get(client)
        permit = self.router.try_acquire(
            preference=NEW_CLIENT if before is None else served_by(before, bool(self.stream_s))
        )
        assert permit is not None
        self.moves += before is not None and permit.endpoint.id != before
        ready = max(self.now, self._free_at.get(permit.endpoint.id, 0.0)) + self.rng.expovariate(1 / 0.002)
        self._free_at[permit.endpoint.id] = ready
        if self.stream_s:
            self.router.open(permit)
        self._push(ready + self.stream_s, client, permit)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("clients", "replicas"), [(32, 2), (32, 3), (100, 4), (8, 2)])
def test_clients_with_connections_of_their_own_load_all_replicas_alike(clients: int, replicas: int, seed: int) -> None:
    names = [f"r{number}" for number in range(replicas)]
    world = Clients(router_of(*names, seed=seed), Random(seed), clients)
    world.start()
    world.run(20.0)
    shares = [world.served[name] / world.served.total() for name in names]
    assert min(shares) > 0.9 / replicas, world.served
    assert world.moves < 0.1 * world.served.total(), "nearly all requests stay where the one before was"


@pytest.mark.parametrize("seed", range(2))
def test_connections_whose_responses_are_streams_spread_over_the_replicas(seed: int) -> None:
    world = Clients(router_of("a", "b", seed=seed), Random(seed), 8, stream_s=0.01)
    world.kept = {client: ReplicaId("a") for client in range(8)}
    world.start()
    world.run(10.0)
    assert min(world.served.values()) > 0.35 * world.served.total(), world.served


@pytest.mark.parametrize("seed", range(2))
def test_a_new_replica_gets_its_share_of_the_connections_that_are_there(seed: int) -> None:
    world = Clients(router_of("a", "b", seed=seed), Random(seed), 48)
    world.start()
    world.run(5.0)
    world.router.update([endpoint("a"), endpoint("b"), endpoint("new")])
    world.served.clear()
    world.run(15.0)
    assert world.served["new"] > 0.25 * world.served.total(), world.served
