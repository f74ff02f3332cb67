"""Mirroring: another live revision gets copies of requests, and the client notices nothing."""

from collections.abc import Callable
from math import sqrt
from random import Random
from typing import Any

import pytest

from app_toolkit.config.models import HTTPOptions
from app_toolkit.contract.mirror_counts import MirrorCounts
from app_toolkit.exchange.filters.mirror import Mirroring
from app_toolkit.exchange.mirrored_requests import LONGEST_S, MOST_BODY, MOST_REQUESTS, MOST_RESPONSE
from app_toolkit.observability.records import MIRRORED, Record
from tests import published
from tests.edge.test_sessions import BEGUN, HEADER, OK, ask, begin
from tests.edge.wire import Client, Replica, Wire
from tests.keys import key

MARK = b"x-app-toolkit-mirrored"
STREAM = b"HTTP/1.1 200 OK\r\nx-app-toolkit-stream: open\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture
def wire(new_wire: Callable[..., Wire]) -> Wire:
    return new_wire(options=HTTPOptions(port=0, tag_source="header:x-revision"))


def serve(wire: Wire, mirror: Replica | None, share: float = 1.0, *, most: int = 100, **policy: str) -> Replica:
    """Return the replica of the main revision. `mirror`: that of a revision which gets copies; None: it has none."""
    main = wire.replica(most).says(OK)
    weigh(wire, share)
    wire.publish(
        {
            "replicas/shop/web": published.replica_set(published.replica(main.name, main.address, most), **policy),
            "replicas/shop@2/web": published.replica_set(
                *([] if mirror is None else [published.replica(mirror.name, mirror.address, mirror.most)]), **policy
            ),
        }
    )
    return main


def weigh(wire: Wire, mirror: float) -> None:
    tagged = published.application("shop@2", share=0.0, tag="preview", mirror=mirror)
    wire.publish({"routes": published.routes(published.application(), tagged)})


def mirroring(wire: Wire) -> Mirroring:
    there = wire.proxy.filters.of(Mirroring)
    assert there is not None
    return there


def counts(wire: Wire) -> MirrorCounts:
    return mirroring(wire).mirrors.counts().get("shop@2/web", MirrorCounts())


def post(client: Client, body: bytes, *fields: str) -> None:
    head = "".join(f"{field}\r\n" for field in ("host: shop", *fields))
    client.send(f"POST /orders?token=secret HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body)


def test_a_mirror_gets_a_marked_copy(wire: Wire) -> None:
    mirror = wire.replica().says(OK)
    main = serve(wire, mirror)
    client = wire.client()
    post(client, b"tea", "x-request-id: it", "authorization: Bearer abc")
    assert client.response().body == b"ok"
    assert main.last.header(MARK) is None
    assert mirror.last.header(MARK) == b"1"
    assert mirror.last.head.startswith(b"POST /orders?token=secret HTTP/1.1\r\n")
    assert (mirror.last.body, mirror.last.hop.request_id) == (b"tea", "it")
    assert mirror.last.header(b"authorization") == b"Bearer abc"
    assert mirror.last.hop.timeout_ms == LONGEST_S * 1_000


@pytest.mark.parametrize("field", ["x-app-toolkit-mirrored: 1", "X-App-Toolkit_Mirrored: 1"])
def test_a_client_cannot_mark_its_request(wire: Wire, field: str) -> None:
    main = serve(wire, None, 0.0)
    ask(wire.client(), field)
    assert b"mirrored" not in main.last.head.lower()


def test_the_copy_is_sent_after_the_request_of_the_client(wire: Wire) -> None:
    order: list[str] = []

    class Noted(Replica):
        def _read(self, transport: object, data: bytes) -> None:
            order.append(self.name)
            super()._read(transport, data)  # type: ignore[arg-type]

    main = serve(wire, None)
    mirror = wire.replica().says(OK)
    main.__class__ = mirror.__class__ = Noted
    shown = published.replica_set(published.replica(mirror.name, mirror.address))
    wire.publish({"replicas/shop@2/web": shown})
    client = wire.client()
    for _ in range(2):  # with new connections, and with those of the pool
        order.clear()
        ask(client)
        assert order == [main.name, mirror.name]


def test_a_share_of_the_requests_is_copied_and_a_change_applies_at_once(wire: Wire) -> None:
    mirror = wire.replica().says(OK)
    main = serve(wire, mirror, 0.3)
    mirroring(wire).mirrors.draw = Random(1).random
    client = wire.client()
    for _ in range(500):
        ask(client)
    copied = len(mirror.received)
    assert len(main.received) == 500
    assert abs(copied - 150) < 3 * sqrt(500 * 0.3 * 0.7)
    assert counts(wire).completed == counts(wire).same == copied
    weigh(wire, 0.0)
    ask(client)
    assert len(mirror.received) == copied


def test_a_revision_gets_no_copy_of_its_own_requests(wire: Wire) -> None:
    mirror = wire.replica().says(OK)
    serve(wire, mirror)
    ask(wire.client(), "x-revision: preview")
    assert [each.header(MARK) for each in mirror.received] == [None]


def test_a_body_of_unknown_length_is_copied_when_it_is_complete(wire: Wire) -> None:
    body = b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
    mirror = wire.replica().says(OK)
    main = serve(wire, mirror)
    main.says()
    client = wire.client().send(b"POST / HTTP/1.1\r\nhost: shop\r\ntransfer-encoding: chunked\r\n\r\n" + body[:7])
    wire.advance(0.5)
    main.last.respond(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert mirror.received == []
    client.send(body[7:])
    assert (main.last.body, mirror.last.body) == (body, body)
    assert mirror.last.header(b"expect") is None
    main.last.respond(OK)
    assert client.response().body == b"ok"
    assert counts(wire) == MirrorCounts(completed=1, same=1, primary_s=counts(wire).primary_s)


@pytest.mark.parametrize("length", [MOST_BODY, MOST_BODY + 1])
def test_a_larger_body_is_counted_and_not_copied(wire: Wire, length: int) -> None:
    mirror = wire.replica().says(OK)
    main = serve(wire, mirror)
    client = wire.client()
    post(client, b"x" * length)
    if length > MOST_BODY:
        main.last.respond(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert client.response().body == b"ok"
    assert len(mirror.received) == counts(wire).completed == (length <= MOST_BODY)
    assert counts(wire).too_large == (length > MOST_BODY)


def test_nobody_waits_for_a_mirror_that_sleeps(wire: Wire) -> None:
    mirror = wire.replica(1_000)
    main = serve(wire, mirror)
    client = wire.client()
    for _ in range(MOST_REQUESTS + 10):
        assert ask(client).body == b"ok"
    assert len(main.received) == MOST_REQUESTS + 10
    assert len(mirror.received) == MOST_REQUESTS
    assert counts(wire).dropped == 10
    wire.advance(LONGEST_S)
    assert counts(wire).failed == MOST_REQUESTS
    assert all(connection.closed for connection in mirror.connections)
    mirror.says(OK)
    ask(wire.client())
    assert counts(wire).completed == 1


def test_a_mirror_that_raises_is_a_difference(wire: Wire) -> None:
    mirror = wire.replica().says(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 4\r\n\r\noops")
    serve(wire, mirror)
    client = wire.client()
    post(client, b"", "x-request-id: it")
    assert client.response().status == 200
    found = counts(wire)
    assert (found.completed, found.different_status) == (1, 1)
    (difference,) = found.differences
    assert (difference.request_id, difference.request) == ("it", "POST /orders")
    assert (difference.primary_status, difference.mirror_status) == ("200", "500")
    assert (difference.primary_bytes, difference.mirror_bytes) == (2, 4)


@pytest.mark.parametrize("other", [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno", STREAM + b"2\r\nno\r\n0\r\n\r\n"])
def test_bodies_are_compared_without_their_framing(wire: Wire, other: bytes) -> None:
    serve(wire, wire.replica().says(other))
    ask(wire.client())
    assert counts(wire).different_body == 1


def test_a_body_with_framing_is_not_compared(wire: Wire) -> None:
    serve(wire, wire.replica().says(OK)).says(STREAM + b"2\r\nno\r\n0\r\n\r\n")
    ask(wire.client())
    assert (counts(wire).same, counts(wire).different) == (1, 0)


@pytest.mark.parametrize("how", ["unreached", "lost", "cut", "unreadable", "switching"])
def test_a_dead_mirror_is_a_failure_that_nobody_sees(wire: Wire, how: str) -> None:
    mirror = wire.replica().says(
        {
            "cut": b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok",
            "unreadable": b"SMTP\r\n\r\n",
            "switching": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        }.get(how, b""),
        close=how in ("lost", "cut"),
    )
    serve(wire, mirror)
    if how == "unreached":
        del wire.replicas[mirror.address]
    client = wire.client()
    for _ in range(3):
        assert ask(client).body == b"ok"
        wire.advance(0.5)
    assert counts(wire) == MirrorCounts(failed=3)
    assert [record.outcome for record in wire.records] == ["ok"] * 3


def test_a_mirror_without_replicas_is_not_started(wire: Wire) -> None:
    serve(wire, None)
    assert ask(wire.client()).body == b"ok"
    assert counts(wire) == MirrorCounts(dropped=1)
    assert wire.proxy.registry.waiting == 0


def test_a_mirror_without_room_gets_no_copy(wire: Wire) -> None:
    mirror = wire.replica(1)
    serve(wire, mirror)
    client = wire.client()
    for _ in range(2):
        assert ask(client).body == b"ok"
    assert counts(wire).dropped == 1
    mirror.last.respond(b"HTTP/1.1 503 Service Unavailable\r\nx-app-toolkit-refused: busy\r\ncontent-length: 0\r\n\r\n")
    assert counts(wire) == MirrorCounts(dropped=2)
    assert len(mirror.received) == 1, "it does not join the wait queue of the replica"
    ask(client)
    mirror.last.respond(OK)
    assert counts(wire).completed == 1


def test_copies_are_dropped_while_a_request_of_a_client_waits(wire: Wire) -> None:
    mirror = wire.replica().says(OK)
    main = serve(wire, mirror, most=1)
    main.says()
    clients = [wire.client().send(b"GET / HTTP/1.1\r\nhost: shop\r\n\r\n") for _ in range(3)]
    assert len(mirror.received) == 1
    for client in clients:
        main.last.respond(OK)
        assert client.response().body == b"ok"
    assert counts(wire).completed == 2
    assert counts(wire).dropped == 1


def test_a_large_response_of_a_mirror_is_cut(wire: Wire) -> None:
    size = MOST_RESPONSE + 1
    mirror = wire.replica().says(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (2 * size) + b"x" * size)
    serve(wire, mirror)
    assert ask(wire.client()).body == b"ok"
    assert counts(wire) == MirrorCounts(completed=1)
    assert mirror.connections[0].closed


def test_a_stream_of_a_mirror_holds_no_slot_and_is_cut_at_the_deadline(wire: Wire) -> None:
    mirror = wire.replica(1).says(STREAM)
    serve(wire, mirror)
    client = wire.client()
    for _ in range(2):
        assert ask(client).body == b"ok"
    assert len(mirror.received) == 2
    wire.advance(LONGEST_S)
    assert counts(wire) == MirrorCounts(completed=2)
    assert all(connection.closed for connection in mirror.connections)


def test_a_stream_of_a_mirror_that_is_lost_does_not_count_as_open_any_more(wire: Wire) -> None:
    mirror = wire.replica().says(STREAM)
    serve(wire, mirror)
    assert ask(wire.client()).body == b"ok"
    router: Any = wire.proxy.registry.routers[key("shop@2/web")]
    assert router.opened == 1
    mirror.last.lose()
    assert router.opened == 0
    assert counts(wire) == MirrorCounts(failed=1)


def test_the_deadline_of_the_mirror_may_be_shorter(wire: Wire) -> None:
    mirror = wire.replica()
    main = serve(wire, mirror)
    shown = published.replica_set(published.replica(mirror.name, mirror.address), request_timeout_s=2.0)
    wire.publish({"replicas/shop@2/web": shown})
    assert ask(wire.client()).body == b"ok"
    assert (main.last.hop.timeout_ms, mirror.last.hop.timeout_ms) == (None, 2_000)
    wire.advance(2.0)
    assert counts(wire) == MirrorCounts(failed=1)


def test_a_copy_goes_on_if_the_client_leaves(wire: Wire) -> None:
    mirror = wire.replica()
    main = serve(wire, mirror)
    main.says()
    wire.client().send(b"GET / HTTP/1.1\r\nhost: shop\r\n\r\n").leave()
    mirror.last.respond(OK)
    assert counts(wire) == MirrorCounts(completed=1)
    assert main.connections[0].closed


def test_a_retry_is_not_copied_again(wire: Wire) -> None:
    mirror = wire.replica().says(OK)
    main = serve(wire, mirror)
    main.says()
    client = wire.client().send(b"GET / HTTP/1.1\r\nhost: shop\r\n\r\n")
    main.last.lose()
    wire.advance(0.5)
    main.last.respond(OK)
    assert client.response().body == b"ok"
    assert (len(main.received), len(mirror.received)) == (2, 1)


def test_only_the_last_attempt_is_compared(wire: Wire) -> None:
    main = serve(wire, wire.replica().says(OK))
    main.says()
    client = wire.client().send(b"GET / HTTP/1.1\r\nhost: shop\r\n\r\n")
    main.last.respond(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n")
    main.last.lose()
    wire.advance(0.5)
    main.last.respond(OK)
    assert client.response().body == b"ok"
    assert (counts(wire).completed, counts(wire).different_body) == (1, 0)


def test_a_websocket_is_not_copied(wire: Wire) -> None:
    mirror = wire.replica()
    main = serve(wire, mirror)
    main.says(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
    wire.client().send(b"GET / HTTP/1.1\r\nhost: shop\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n").leave()
    assert (len(main.received), mirror.received) == (1, [])


def test_the_app_of_the_mirror_sees_the_id_of_the_session(wire: Wire) -> None:
    mirror = wire.replica().says(BEGUN)
    main = serve(wire, mirror, affinity=HEADER)
    main.says(BEGUN)
    session = begin(wire.client())
    assert "~" in session
    ask(wire.client(), f"mcp-session-id: {session}")
    assert main.last.header(b"mcp-session-id") == mirror.last.header(b"mcp-session-id") == b"one"


def test_a_copy_is_recorded_and_counts_as_no_request(wire: Wire) -> None:
    serve(wire, wire.replica().says(OK))
    copies: list[Record] = []
    mirroring(wire).records.subscribe(copies.append)
    ask(wire.client(), "x-request-id: it")
    (request,), (copy,) = wire.records, copies
    assert (request.kind, request.deployment) == ("http", "shop/web")
    assert (copy.kind, copy.deployment, copy.outcome, copy.status) == (MIRRORED, "shop@2/web", "ok", 200)
    assert (copy.id, copy.path, copy.size) == (b"it", b"/", 2)
    assert set(wire.proxy.counts()) == {"shop/web"}


def test_counts_of_a_removed_mirror_are_forgotten(wire: Wire) -> None:
    serve(wire, wire.replica().says(OK))
    ask(wire.client())
    wire.publish({"routes": published.routes(published.application()), "replicas/shop@2/web": None})
    assert counts(wire) == MirrorCounts()


def test_a_mirrored_request_ends_with_the_proxy(wire: Wire) -> None:
    mirror = wire.replica()
    serve(wire, mirror)
    ask(wire.client())
    wire.loop.run_until_complete(wire.proxy.aclose())
    assert counts(wire) == MirrorCounts(failed=1)
    wire.loop.call(lambda: None)
    assert mirror.connections[0].closed
