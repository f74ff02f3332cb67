"""How a process uses the published routes and replica sets."""

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.contract.snapshots import StartBlocked
from app_toolkit.errors import NoReplica
from app_toolkit.exchange import registry as registry_module
from app_toolkit.exchange.registry import Registry, endpoint
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import REPLICAS, ROUTES, Snapshot, Version
from app_toolkit.types import Address, NodeId
from app_toolkit.wire.pool import Pool
from tests import published
from tests.keys import key
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

HERE, THERE = NodeId("here"), NodeId("there")
REMOTE = Address("tcp:10.0.0.7:4242")


def address(replica: published.PublishedReplica, node: NodeId) -> Address | None:
    found = endpoint(replica, node)
    return None if found is None else found.address


def replica(path: Path) -> published.PublishedReplica:
    return published.replica("r", f"unix:{path}", node=HERE, remote_address=REMOTE)


def test_a_replica_on_the_same_node_is_reached_by_its_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "r.sock"))
        shown = replica(tmp_path / "r.sock")
        assert address(shown, HERE) == shown.address
        assert address(shown, THERE) == REMOTE


def test_a_replica_whose_socket_is_not_accessible_is_reached_by_its_port(tmp_path: Path) -> None:
    shown = replica(tmp_path / "in another container.sock")
    assert address(shown, HERE) == REMOTE
    assert address(replace(shown, remote_address=None), HERE) == shown.address


def test_a_replica_without_a_remote_address_is_not_reached_from_another_node(tmp_path: Path) -> None:
    assert address(replace(replica(tmp_path / "r.sock"), remote_address=None), THERE) is None


def test_a_local_port_is_used_only_on_its_own_node(tmp_path: Path) -> None:
    shown = replace(replica(tmp_path), address=Address("tcp:127.0.0.1:5151"))
    assert address(shown, HERE) == "tcp:127.0.0.1:5151"
    assert address(shown, THERE) == REMOTE


async def test_a_new_route_has_its_replicas_at_once_and_keeps_its_router_until_nothing_names_it() -> None:
    closed: list[ReplicaSetKey] = []
    pool = Pool(b"secret")
    registry = Registry(Router, pool, HERE)
    registry.closed = closed.append
    with pytest.raises(NoReplica):
        registry.find("http", "GET", "/", published.no_choice)

    def update(number: int, values: dict[str, Any]) -> None:
        registry.update({name: Snapshot(Version(1, number), value) for name, value in values.items()})

    served = published.replica_set(published.replica("r", "tcp:127.0.0.1:1", node=HERE))
    update(1, {ROUTES: published.routes(published.application()), f"{REPLICAS}shop/web": served})
    router = registry.routers[registry.find("http", "GET", "/", published.no_choice)[0]]
    assert router.try_acquire() is not None
    update(2, {f"{REPLICAS}shop/model": served})
    assert registry.routers.keys() == {key("shop/web")}, "no request of this process can go to the other replica set"
    update(3, {ROUTES: published.routes()})
    assert registry.routers == {key("shop/web"): router}
    update(4, {f"{REPLICAS}shop/web": None})
    assert (registry.routers, closed) == ({}, [key("shop/web")])
    await pool.aclose()


async def test_ingresses_that_cannot_serve_are_named_with_the_reason() -> None:
    pool = Pool(b"secret")
    registry = Registry(Router, pool, HERE)
    assert registry.unavailable() == ["no routes have been published yet"]
    versions = count(1)

    def publish(**values: Any) -> None:
        names = {"routes": ROUTES, "web": f"{REPLICAS}shop/web", "new": f"{REPLICAS}shop@2/web"}
        registry.update({names[name]: Snapshot(Version(1, next(versions)), value) for name, value in values.items()})

    shop, blog = published.application(), published.application("blog", "/blog")
    candidate, idle = published.application("shop@2", share=0.1), published.application("shop@3", share=0.0)
    publish(routes=published.routes(shop, candidate, idle))
    missing = ["no replica of shop/web has been published yet", "no replica of shop@2/web has been published yet"]
    assert registry.unavailable() == registry.unavailable("shop") == missing
    assert registry.unavailable("blog") == ["there is no application 'blog' with a route prefix"]
    up = published.replica("r", "tcp:127.0.0.1:1", node=HERE)
    publish(web=published.replica_set(up), new=published.replica_set(scaled_to_zero=True))
    assert registry.unavailable() == []
    publish(web=published.replica_set(replace(up, unresponsive=True), up))
    assert registry.unavailable() == []
    publish(web=published.replica_set(replace(up, unresponsive=True)))
    assert registry.unavailable() == ["no replica of shop/web answers its health checks"]
    publish(web=published.replica_set())
    assert registry.unavailable() == ["no replica of shop/web runs yet"]
    failing = StartBlocked("starts_fail", "KeyError")
    publish(web=published.replica_set(cannot_start=failing), routes=published.routes(shop, candidate, blog))
    assert registry.unavailable("shop") == [failing.sentence(key("shop/web"))]
    assert registry.unavailable("blog") == ["no replica of blog/web has been published yet"]
    await pool.aclose()


async def test_a_snapshot_is_acknowledged_only_after_it_was_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "AGAIN_S", 0.0)
    pool = Pool(b"secret")
    registry = Registry(Router, pool)
    acknowledged: list[Mapping[str, Version]] = []
    applied = asyncio.Event()
    values = iter(({"applications": "none"}, published.routes()))

    async def watch(seen: Mapping[str, Version], prefixes: tuple[str, ...]) -> Mapping[str, Snapshot]:
        acknowledged.append(seen)
        value = next(values, None)
        if value is None:
            applied.set()
            await asyncio.Event().wait()
        return {ROUTES: Snapshot(Version(1, 1), value)}

    following = asyncio.create_task(registry.follow(watch))
    async with asyncio.timeout(PATIENCE_S):
        await applied.wait()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert acknowledged == [{}, {}, {ROUTES: Version(1, 1)}]
    await pool.aclose()


async def test_a_snapshot_that_cannot_be_applied_delays_no_other_and_is_not_acknowledged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = Pool(b"secret")
    registry = Registry(Router, pool, HERE)
    values = {f"{REPLICAS}shop/web": {"replicas": 3}, ROUTES: published.routes(published.application())}
    assert not registry.update({name: Snapshot(Version(1, 1), value) for name, value in values.items()})
    assert registry.find("http", "GET", "/", published.no_choice)[0] == key("shop/web")
    [record] = caplog.records
    assert record.getMessage().startswith("the published value of 'replicas/shop/web' cannot be applied")
    served = published.replica_set(published.replica("r", "tcp:127.0.0.1:1", node=HERE))
    assert registry.update({f"{REPLICAS}shop/web": Snapshot(Version(1, 1), served)})
    assert registry.routers[key("shop/web")].try_acquire() is not None
    await pool.aclose()


@pytest.mark.parametrize("value", [None, {"applications": "none"}], ids=["cancelled", "unreadable"])
async def test_a_watch_that_brings_nothing_new_at_once_is_not_repeated_at_once(
    monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    pauses: list[float] = []
    pool = Pool(b"secret")
    registry = Registry(Router, pool)

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def watch(seen: Mapping[str, Version], prefixes: tuple[str, ...]) -> Mapping[str, Snapshot]:
        if value is None:
            raise asyncio.CancelledError
        return {ROUTES: Snapshot(Version(1, 1), value)}

    monkeypatch.setattr(registry_module.asyncio, "sleep", sleep)
    await registry.receive(watch)
    assert pauses == [registry_module.AGAIN_S]
    monkeypatch.undo()
    await pool.aclose()


async def test_the_watch_begins_again_without_a_pause_if_another_replica_set_is_followed() -> None:
    pool = Pool(b"secret")
    registry = Registry(Router, pool, prefixes=())
    watched: list[tuple[str, ...]] = []

    async def watch(seen: Mapping[str, Version], prefixes: tuple[str, ...]) -> Mapping[str, Snapshot]:
        watched.append(prefixes)
        if len(watched) == 1:
            registry.router(key("shop/web"))
            registry.follow_replica_set(key("shop/web"))
        await asyncio.Event().wait()
        return {}

    following = asyncio.create_task(registry.follow(watch))
    for _ in range(10):
        await asyncio.sleep(0)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert watched == [(), (f"{REPLICAS}shop/web/",)]
    await pool.aclose()
