"""Routes, the own endpoints and the drain of a proxy."""

from typing import Any

import pytest

from app_toolkit.config.models import HTTPOptions, Route
from app_toolkit.edge.server import ProxyServer
from app_toolkit.edge.state import ProxyState
from app_toolkit.errors import StartupError
from app_toolkit.exchange.router import Router
from app_toolkit.interfaces import Snapshot, Version
from app_toolkit.wire.frames import close_frame
from tests import published
from tests.edge.world import WAIT_S, Raw, World, eventually, on_both
from tests.keys import key
from tests.patience import PATIENCE_S

GET = b"GET %s HTTP/1.1\r\nhost: a\r\n\r\n"


def path_route(owner: str | None) -> Route:
    return Route(kind="http", pattern="^/path/(?P<rest>.*)$", methods=("GET",), path="/path/{rest:path}", owner=owner)


def replicas(*served: Any) -> Any:
    endpoints = [each.endpoint() for each in served]
    return published.replica_set(*endpoints, max_queued_requests=10, max_queue_wait_s=WAIT_S)


@on_both
def test_each_route_goes_to_its_owner_and_each_prefix_to_its_application(world: World) -> None:
    web, chat, other = (world.replica() for _ in range(3))
    world.edge.post(
        {
            "routes": published.routes(
                published.application("shop", "/", "web", path_route("chat")),
                published.application("blog", "/blog", "other"),
            ),
            "replicas/shop/web": replicas(web),
            "replicas/shop/chat": replicas(chat),
            "replicas/blog/other": replicas(other),
        }
    )
    with world.raw() as raw:
        assert raw.send(GET % b"/hello").answer().json() == {"replica": web.name}
        chat.admission.draining = True  # who asks chat now waits
        with world.raw() as waits:
            waits.send(GET % b"/%70ath/x")
            eventually(lambda: world.edge.proxy.registry.routers[key("shop/chat")].waiting == 1)
            chat.admission.draining = False
            assert waits.answer().json()["path"] == "/path/x"
        assert raw.send(GET % b"/blog/hello").answer().status == 404  # the app's, which has no such prefix
        listing = raw.send(GET % b"/-/routes").answer().json()
    assert listing == {
        "/blog": {"application": "blog", "default": "other", "routes": []},
        "/": {
            "application": "shop",
            "default": "web",
            "routes": [{"kind": "http", "path": "/path/{rest:path}", "methods": ["GET"], "ingress": "chat"}],
        },
    }
    world.edge.post({"replicas/shop/chat": None, "replicas/blog/other": None})


def test_below_no_prefix_there_is_nothing(world: World) -> None:
    world.edge.post({"routes": published.routes(published.application(prefix="/shop"))})
    with world.raw() as raw:
        got = raw.send(GET % b"/shopping").answer()
        assert (got.status, got.error) == (404, "not_found")
        assert raw.send(b"POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi").answer().status == 404
        assert raw.send(b"HEAD /x HTTP/1.1\r\nhost: a\r\n\r\n").answer("HEAD").status == 404
        assert raw.send(GET % b"/-/healthz").answer().json() == {"status": "success"}


@on_both
def test_a_route_without_an_ingress_is_not_found(world: World) -> None:
    replica = world.one()
    world.edge.post({"routes": published.routes(published.application("shop", "/", "web", path_route(None)))})
    with world.raw() as raw:
        got = raw.send(GET % b"/path/x").answer()
        assert (got.status, got.error) == (404, "not_found")
        assert raw.send(GET % b"/hello").answer().json() == {"replica": replica.name}
        assert raw.send(GET % b"/-/routes").answer().json()["/"]["routes"] == []


def test_a_proxy_is_not_healthy_before_its_first_routes(own: World) -> None:
    with own.raw() as raw:
        assert raw.send(GET % b"/-/healthz").answer().status == 503
        assert raw.send(GET % b"/hello").answer().error == "no_replica"
        own.one()
        assert raw.send(GET % b"/-/healthz").answer().status == 200
        assert raw.send(GET % b"/hello").answer().status == 200


def test_a_proxy_is_ready_if_every_ingress_has_a_replica(own: World) -> None:
    def ready(raw: Any, query: bytes = b"") -> tuple[int, list[str]]:
        got = raw.send(GET % (b"/-/readyz" + query)).answer()
        return got.status, got.json().get("reasons", [])

    with own.raw() as raw:
        assert ready(raw) == (503, ["no routes have been published yet"])
        own.edge.post({"routes": published.routes(published.application())})
        assert ready(raw) == (503, ["no replica of shop/web has been published yet"])
        own.one()
        assert ready(raw) == ready(raw, b"?application=shop") == (200, [])
        assert ready(raw, b"?application=blog") == (503, ["there is no application 'blog' with a route prefix"])


@on_both
def test_an_old_snapshot_changes_nothing(world: World) -> None:
    replica = world.one()
    old = {"replicas/shop/web": Snapshot(Version(0, 9), None), "routes": Snapshot(Version(0, 9), None)}
    world.edge.call(lambda: world.edge.proxy.registry.update(old))
    with world.raw() as raw:
        assert raw.send(GET % b"/hello").answer().json() == {"replica": replica.name}


@on_both
def test_a_removed_replica_finishes_its_requests(world: World) -> None:
    replica = world.one()
    idle = world.edge.statistics().idle
    with world.raw() as raw:
        raw.send(GET % b"/wait")
        eventually(lambda: replica.journal.events)
        world.route()
        replica.release()
        assert raw.answer().status == 200
    assert world.edge.statistics().idle == idle


def is_refused(port: int) -> bool:
    try:
        Raw(port).close()
    except ConnectionRefusedError:
        return True
    return False


@on_both
def test_a_drain_waits_for_running_requests_and_closes_their_connections(own: World) -> None:
    replica = own.one()
    with own.raw() as idle, own.raw() as busy:
        assert idle.send(GET % b"/hello").answer().status == 200
        busy.send(GET % b"/wait")
        eventually(lambda: replica.journal.events)
        drained = own.edge.drain(timeout=PATIENCE_S)
        assert idle.closed()
        eventually(lambda: is_refused(own.port))  # the event loop closes the listener in its next iteration
        assert not drained.done()
        replica.release()
        got = busy.answer()
        assert (got.status, got.header("connection")) == (200, "close")
        assert busy.closed()
        drained.result(PATIENCE_S)


@on_both
def test_a_request_that_outlasts_the_drain_gets_an_error(own: World) -> None:
    replica = own.one()
    with own.raw() as busy, own.raw() as talking:
        busy.send(GET % b"/wait")
        talking.send(
            b"GET /ws HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        assert talking.answer().status == 101
        eventually(lambda: replica.journal.events)
        own.edge.drain(timeout=0.2).result(PATIENCE_S)
        assert busy.answer().error == "no_replica"
        assert busy.closed()
        # A WebSocket is left to the replica behind it: it still passes.
        eventually(lambda: own.edge.statistics().connections == 1)
        own.edge.stop(timeout=0.2).result(PATIENCE_S)
        assert talking.rest() == close_frame(1012, "the proxy is shutting down")


@pytest.mark.anyio
async def test_a_taken_port_is_named() -> None:
    async with ProxyServer(ProxyState(b"s", Router), HTTPOptions(port=0), drain_timeout_s=0) as server:
        other = ProxyServer(ProxyState(b"s", Router), HTTPOptions(port=server.port))
        with pytest.raises(StartupError, match=f"127.0.0.1:{server.port}"):
            await other.serve()


def test_a_secret_has_no_spaces() -> None:
    with pytest.raises(ValueError, match="spaces"):
        ProxyState(b"open sesame", Router)
