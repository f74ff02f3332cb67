"""A client keeps its replica by its connection, open streams and open WebSockets."""

import itertools
from collections.abc import Iterator

import httpx
import pytest
from websockets.sync.client import connect

from tests.edge.test_streams import Stream
from tests.edge.world import Served, World, eventually, on_both


@pytest.fixture
def pair(world: World) -> tuple[Served, Served]:
    one, other = world.replica(), world.replica()
    world.route(one.endpoint(), other.endpoint())
    return one, other


def served_by(client: httpx.Client, **headers: str) -> str:
    replica: str = client.get("/nap/0", headers=headers).json()["replica"]
    return replica


def fresh(world: World) -> Iterator[str]:
    """The replicas that serve requests, each on a connection of its own."""
    while True:
        with httpx.Client(base_url=world.url) as client:
            yield served_by(client)


@on_both
def test_each_connection_keeps_its_replica(world: World, pair: tuple[Served, Served]) -> None:
    clients = [httpx.Client(base_url=world.url) for _ in range(16)]
    first = [served_by(client) for client in clients]
    assert set(first) == {replica.name for replica in pair}, "connections spread"
    for _ in range(2):
        assert [served_by(client) for client in clients] == first
    for client in clients:
        client.close()


@on_both
@pytest.mark.slow
def test_an_open_stream_keeps_the_requests_of_its_client_at_its_replica(
    world: World, pair: tuple[Served, Served]
) -> None:
    stream = Stream(world)
    (holder,) = [replica.name for replica in pair if replica.admission.statistics().streams]
    assert set(itertools.islice(fresh(world), 16)) == {holder}
    stream.close()
    eventually(lambda: world.load() == (0, 0, 0, 0))
    assert set(itertools.islice(fresh(world), 16)) == {replica.name for replica in pair}


@on_both
def test_an_open_websocket_does_the_same(world: World, pair: tuple[Served, Served]) -> None:
    with connect(f"ws://127.0.0.1:{world.port}/ws") as socket:
        socket.send("hello")
        assert socket.recv() == "ws:hello"
        (holder,) = [replica.name for replica in pair if replica.admission.statistics().websockets]
        assert set(itertools.islice(fresh(world), 16)) == {holder}
    eventually(lambda: world.load() == (0, 0, 0, 0))


@on_both
def test_the_clients_of_a_trusted_proxy_differ_by_their_addresses(world: World, pair: tuple[Served, Served]) -> None:
    mine = {"x-forwarded-for": "203.0.113.7"}
    stream = Stream(world, headers=mine)
    (holder,) = [replica.name for replica in pair if replica.admission.statistics().streams]
    with httpx.Client(base_url=world.url) as shared:
        seen = [
            (served_by(shared, **mine), served_by(shared, **{"x-forwarded-for": "198.51.100.9"})) for _ in range(16)
        ]
    assert {own for own, _ in seen} == {holder}
    assert {other for _, other in seen} != {holder}, "nothing ties this client to that replica"
    stream.close()
    eventually(lambda: world.load() == (0, 0, 0, 0))


@on_both
def test_a_client_whose_replica_has_left_goes_to_another_one(world: World, pair: tuple[Served, Served]) -> None:
    one, other = pair
    with httpx.Client(base_url=world.url) as client:
        left = other if served_by(client) == one.name else one
        world.route(left.endpoint())
        eventually(lambda: served_by(client) == left.name)
