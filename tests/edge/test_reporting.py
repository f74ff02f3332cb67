"""A proxy tells whose requests wait or are ongoing, of those ingresses that follow their load."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from app_toolkit.config.models import Route
from app_toolkit.contract.compared import Requests
from app_toolkit.edge.state import ProxyState
from app_toolkit.exchange.preference import NO_PREFERENCE
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import REPLICAS, ROUTES, Snapshot, Version
from app_toolkit.observability.records import Record
from app_toolkit.types import NodeId
from tests import published
from tests.edge.test_outcomes import SWITCHING, WS
from tests.edge.wire import Client, Received, Wire
from tests.edge.world import World, on_both
from tests.keys import app, key

pytestmark = pytest.mark.anyio

TABLE = published.routes(
    published.application(
        "shop", "/", "shop", Route(kind="http", pattern="^/c$", methods=("GET",), path="/c", owner="chat")
    )
)


def snapshots(number: int, *, reported: bool, replicas: int) -> Snapshot:
    shown = [published.replica(f"r{n}", f"tcp:127.0.0.1:{n + 1}", 2, node="here") for n in range(replicas)]
    return Snapshot(Version(1, number), published.replica_set(*shown, reported=reported))


async def test_the_proxy_reports_loads_and_requests_that_wait_for_the_first_replica() -> None:
    hurried: list[str] = []

    def router(name: str, join: Any, unserved: Any) -> Router:
        return Router(name, join, lambda: (hurried.append(name), unserved())[1])

    proxy = ProxyState(b"secret", router, NodeId("here"))
    proxy.registry.update({ROUTES: Snapshot(Version(1, 1), TABLE)})
    assert proxy.loads() == {}
    chat, shop = proxy.registry.routers[key("shop/chat")], proxy.registry.routers[key("shop/shop")]
    proxy.registry.update({f"{REPLICAS}shop/chat": snapshots(2, reported=True, replicas=0)})
    proxy.registry.update({f"{REPLICAS}shop/shop": snapshots(3, reported=False, replicas=1)})
    granted: list[Any] = []
    for _ in range(3):
        chat.wait(granted.append, 0.0, avoid=(), again=False)
    permit = shop.try_acquire((), NO_PREFERENCE)
    assert permit is not None
    assert (proxy.loads(), hurried) == ({key("shop/chat"): (3, 0, 0, 0)}, ["shop/chat"] * 3)
    proxy.registry.update({f"{REPLICAS}shop/chat": snapshots(4, reported=True, replicas=1)})
    assert proxy.loads() == {key("shop/chat"): (1, 2, 0, 0)}
    proxy.registry.update({f"{REPLICAS}shop/chat": snapshots(5, reported=False, replicas=1)})
    assert proxy.loads() == {}
    proxy.registry.update({f"{REPLICAS}shop/shop": snapshots(6, reported=True, replicas=1)})
    assert proxy.loads() == {key("shop/shop"): (0, 1, 0, 0)}
    proxy.registry.update(
        {ROUTES: Snapshot(Version(1, 7), None), f"{REPLICAS}shop/shop": Snapshot(Version(1, 8), None)}
    )
    assert proxy.loads() == {}
    await proxy.aclose()


async def test_requests_are_counted_only_while_the_routes_name_a_canary_release() -> None:
    proxy = ProxyState(b"secret", lambda name, join, unserved: Router(name, join, unserved), NodeId("here"))
    main, new = published.application("shop"), published.application("shop@2")

    def publish(number: int, *, compared: bool) -> None:
        routes = published.routes(*(replace(each, compared=compared) for each in (main, new)))
        proxy.registry.update({ROUTES: Snapshot(Version(1, number), routes)})

    def ask() -> None:
        proxy.records.add(Record(0.0, 0.1, "http", "shop@2/web", "-", 1, "ok", b"GET", status=200))

    publish(1, compared=False)
    ask()
    assert proxy.compared() == {}
    publish(2, compared=True)
    assert proxy.compared() == {app("shop"): Requests(), app("shop@2"): Requests()}
    ask()
    ask()
    assert {name: each.requests for name, each in proxy.compared().items()} == {app("shop"): 0, app("shop@2"): 2}
    publish(3, compared=False)
    assert proxy.compared() == {}
    ask()
    publish(4, compared=True)
    assert proxy.compared()[app("shop@2")] == Requests(), "each release begins at zero"
    await proxy.aclose()


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda client, request: client.leave(), id="its client leaves"),
        pytest.param(lambda client, request: client.leave(ConnectionResetError()), id="its client is lost"),
        pytest.param(lambda client, request: request.lose(), id="its replica is lost"),
    ],
)
def test_a_websocket_is_in_the_report_from_its_handshake_until_its_end(
    wire: Wire, end: Callable[[Client, Received], None]
) -> None:
    replica = wire.one(SWITCHING)
    other, client = wire.client().send(WS), wire.client().send(WS)
    assert wire.load == (0, 0, 2, 0), "it holds no permit"
    other.leave()
    assert wire.load == (0, 0, 1, 0)
    end(client, replica.last)
    assert wire.load == (0, 0, 0, 0)


@on_both
def test_a_handshake_that_is_refused_is_no_websocket(world: World) -> None:
    world.one()
    with pytest.raises(InvalidStatus, match="401"):
        connect(f"ws://127.0.0.1:{world.port}/denied")
    assert world.load() == (0, 0, 0, 0)
