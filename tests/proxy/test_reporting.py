"""A proxy tells whose requests wait or are ongoing, of those ingresses that follow their load."""

from typing import Any

import pytest

from app_toolkit.interfaces import REPLICAS, ROUTES, Snapshot, Version
from app_toolkit.proxy.proxy import Proxy
from app_toolkit.router.router import Router
from app_toolkit.types import NodeId

pytestmark = pytest.mark.anyio

TABLE = {
    "applications": [
        {"name": "shop", "prefix": "/", "default": "shop", "routes": [["http", "^/c$", ["GET"], "/c", "chat"]]}
    ]
}


def posted(number: int, *, reported: bool, replicas: int) -> Snapshot:
    shown = [
        {"id": f"r{n}", "address": f"tcp:127.0.0.1:{n + 1}", "node": "here", "max_ongoing_requests": 2}
        for n in range(replicas)
    ]
    return Snapshot(Version(1, number), {"policy": {}, "reported": reported, "replicas": shown})


async def test_the_loads_of_those_that_are_reported_and_who_waits_for_the_first_replica() -> None:
    hurried: list[str] = []

    def router(name: str, stand: Any, unserved: Any) -> Router:
        return Router(name, stand, lambda: (hurried.append(name), unserved())[1])

    proxy = Proxy(b"secret", router, NodeId("here"))
    proxy.update({ROUTES: Snapshot(Version(1, 1), TABLE)})
    assert proxy.routes.loads() == {}
    chat, shop = proxy.routes.routers["shop/chat"], proxy.routes.routers["shop/shop"]
    proxy.update({f"{REPLICAS}shop/chat": posted(2, reported=True, replicas=0)})
    proxy.update({f"{REPLICAS}shop/shop": posted(3, reported=False, replicas=1)})
    granted: list[Any] = []
    for _ in range(3):
        chat.wait(granted.append, 0.0, avoid=(), again=False)
    turn = shop.try_turn(())
    assert turn is not None
    assert (proxy.routes.loads(), hurried) == ({"shop/chat": (3, 0)}, ["shop/chat"] * 3)
    proxy.update({f"{REPLICAS}shop/chat": posted(4, reported=True, replicas=1)})
    assert proxy.routes.loads() == {"shop/chat": (1, 2)}
    proxy.update({f"{REPLICAS}shop/chat": posted(5, reported=False, replicas=1)})
    assert proxy.routes.loads() == {}
    proxy.update({f"{REPLICAS}shop/shop": posted(6, reported=True, replicas=1)})
    assert proxy.routes.loads() == {"shop/shop": (0, 1)}
    proxy.update({ROUTES: Snapshot(Version(1, 7), None), f"{REPLICAS}shop/shop": Snapshot(Version(1, 8), None)})
    assert proxy.routes.loads() == {}
    await proxy.aclose()
