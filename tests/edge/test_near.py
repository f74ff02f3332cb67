"""What a replica on the event loop of the proxy does without a connection."""

import asyncio
import re
from contextvars import ContextVar
from typing import Any

import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.contract.mirror_counts import MirrorCounts
from app_toolkit.exchange.filters.mirror import Mirroring
from app_toolkit.observability.records import CUT
from tests import published
from tests.edge.world import World, eventually, on_both

near = pytest.mark.parametrize("near", [True], ids=["near"])

SEEN: ContextVar[str] = ContextVar("seen", default="nothing")


@near
def test_a_request_needs_no_connection(world: World) -> None:
    replica = world.one()
    with world.raw() as raw:
        for path in (b"/hello", b"/stream", b"/missing"):
            got = raw.send(b"GET %b HTTP/1.1\r\nhost: a\r\n\r\n" % path).answer()
            assert world.record(str(got.header("x-request-id")))["replica"] == replica.name
    assert replica.connections == 0


@on_both
def test_a_response_that_the_app_does_not_end_is_cut_off(world: World) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        raise ValueError("out of stock")

    world.one(app=app)
    with world.raw() as raw:
        raw.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        head = raw.until(b"\r\n\r\n")
        assert raw.rest() == b"5\r\nfirst\r\n"
    (request_id,) = re.findall(rb"x-request-id: (.*)\r\n", head)
    assert world.record(request_id.decode())["outcome"] == CUT


@on_both
def test_a_handler_ends_at_the_deadline_of_its_request(world: World) -> None:
    replica = world.replica()
    world.route(replica.endpoint(), request_timeout_s=0.2)
    with world.raw() as raw:
        late = raw.send(b"POST /wait HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n").answer()
        assert (late.status, late.error) == (504, "deadline_exceeded")
    assert replica.journal.events == ["wait began"]
    eventually(lambda: replica.admission.statistics().running == 0)


@near
def test_responses_with_the_same_head_do_not_share_the_field_of_a_filter(own: World) -> None:
    own.edge.call(lambda: own.edge.proxy.configure(HTTPOptions(server_timing=True)))
    own.one()
    with own.raw() as raw:
        for _ in range(3):
            raw.send(b"GET /hello HTTP/1.1\r\nhost: a\r\n\r\n")
            assert raw.until(b"\r\n\r\n").count(b"server-timing: ") == 1
            raw.until(b"}")


@near
def test_a_request_is_lost_with_its_replica(world: World) -> None:
    replica = world.one()
    with world.raw() as raw, world.raw() as other:
        raw.send(b"POST /wait HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")
        eventually(lambda: replica.journal.events)
        replica.stop()
        assert (lost := raw.answer()).status == 502
        assert lost.error == "replica_lost"
        replica.join()
        world.route(replica.endpoint(), wait_s=0.1)
        assert other.send(b"GET /hello HTTP/1.1\r\nhost: a\r\n\r\n").answer().status == 503


@near
def test_a_request_has_not_the_context_of_the_one_that_it_waited_for(world: World) -> None:
    free = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen = SEEN.get().encode()
        SEEN.set("another request")
        if scope["path"] == "/first":
            await free.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(seen))]})
        await send({"type": "http.response.body", "body": seen})

    replica = world.one(app=app, most=1)
    with world.raw() as first, world.raw() as second:
        first.send(b"GET /first HTTP/1.1\r\nhost: a\r\n\r\n")
        eventually(lambda: replica.admission.statistics().ongoing == 1)
        second.send(b"GET /second HTTP/1.1\r\nhost: a\r\n\r\n")
        eventually(lambda: world.load()[0] == 1)
        world.edge.call(free.set)
        assert [first.answer().body, second.answer().body] == [b"nothing", b"nothing"]


@on_both
def test_a_mirror_serves_a_copy(own: World) -> None:
    main, mirror = own.replica(), own.replica()
    own.edge.post(
        {
            "routes": published.routes(
                published.application(), published.application("shop@2", share=0.0, tag="preview", mirror=1.0)
            ),
            "replicas/shop/web": published.replica_set(main.endpoint()),
            "replicas/shop@2/web": published.replica_set(mirror.endpoint()),
        }
    )
    with own.raw() as raw:
        raw.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\ntea\r\n0\r\n\r\n")
        assert raw.answer().body == b"tea"
        raw.send(b"GET /stream HTTP/1.1\r\nhost: a\r\n\r\n").answer()

    def counts() -> MirrorCounts:
        there = own.edge.proxy.filters.of(Mirroring)
        assert there is not None
        return there.mirrors.counts().get("shop@2/web", MirrorCounts())

    eventually(lambda: own.edge.call(counts).same == 2)
