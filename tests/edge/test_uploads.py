"""Bodies that arrive slowly: they occupy no slot of a replica, and no more than their share of a proxy."""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app_toolkit.exchange.filters.client_limit import ClientLimit
from app_toolkit.exchange.filters.upload_pacing import MEASURE_S
from app_toolkit.exchange.request import KEPT_BODY
from tests import published
from tests.edge.world import CALM, WAIT_S, Raw, RunningProxy, Served, World, eventually, later, on_both
from tests.patience import PATIENCE_S

GET = b"GET %s HTTP/1.1\r\nhost: a\r\n\r\n"
POST = b"POST %s HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
CHUNKED = b"POST %s HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
SLOTS = 100


def begun(world: World, count: int) -> None:
    eventually(lambda: sum(each.is_serving for each in world.edge.server.connections()) == count)


@on_both
def test_105_slow_uploads_leave_a_replica_with_100_slots_free_for_others(own: World) -> None:
    replica = own.one(most=SLOTS)
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(own.raw()).send(POST % (b"/digest", 60_000)) for _ in range(105)]
        begun(own, 105)
        asking = stack.enter_context(own.raw())
        for _ in range(5):
            for each in slow:
                each.send(b"s" * 65)
            began = time.monotonic()
            assert asking.send(GET % b"/hello").answer().status == 200
            assert time.monotonic() - began < WAIT_S / 2
        assert (own.edge.statistics().waiting, own.edge.statistics().ongoing) == (0, 0)
        assert replica.admission.statistics().ongoing == 0
        assert slow[0].send(b"s" * (60_000 - 5 * 65)).answer().json()["length"] == 60_000


@on_both
@pytest.mark.parametrize("size", [1, 3_000, KEPT_BODY])
def test_a_small_body_that_comes_in_pieces_reaches_the_app_whole_once_it_is_there(world: World, size: int) -> None:
    replica = world.one()
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    with world.raw() as raw:
        raw.send(POST % (b"/echo", size) + body[: size - 1])
        begun(world, 1)
        assert replica.admission.statistics().running == 0
        got = raw.send(body[size - 1 :] + GET % b"/hello").answer()
        assert (got.status, got.body) == (200, body)
        assert raw.answer().status == 200


def replaced_by(other: Served | None, **policy: Any) -> dict[str, Any]:
    """What is posted where another ingress, or none, takes the place of the only one."""
    if other is None:
        return {"routes": published.routes(), "replicas/shop/web": None, "replicas/shop/other": None}
    return {
        "routes": published.routes(published.application(default="other")),
        "replicas/shop/web": None,
        "replicas/shop/other": published.replica_set(other.endpoint(), max_queue_wait_s=WAIT_S, **policy),
    }


@on_both
def test_a_body_that_arrives_while_its_ingress_is_replaced_goes_to_the_new_one(own: World) -> None:
    replica, other = own.one(), own.replica()
    with own.raw() as raw:
        raw.send(POST % (b"/echo", 4) + b"so")
        begun(own, 1)
        own.edge.post(replaced_by(other))
        assert raw.send(b"me").answer().body == b"some"
        assert raw.send(GET % b"/hello").answer().json() == {"replica": other.name}
    assert replica.journal.consumed == 0


@on_both
def test_a_body_that_arrives_while_its_application_is_removed_is_answered_404(own: World) -> None:
    own.one()
    with own.raw() as raw:
        raw.send(POST % (b"/echo", 4) + b"so")
        begun(own, 1)
        own.edge.post(replaced_by(None))
        got = raw.send(b"me").answer()
        assert (got.status, got.error) == (404, "not_found")


@on_both
def test_a_larger_body_is_passed_on_as_it_comes(world: World) -> None:
    replica = world.one()
    with world.raw() as raw:
        raw.send(POST % (b"/digest", KEPT_BODY + 1) + b"x" * 10)
        eventually(lambda: replica.journal.consumed == 10)
        assert raw.send(b"x" * (KEPT_BODY - 9)).answer().json()["length"] == KEPT_BODY + 1


def slow_upload(raw: Raw, size: int = 200_000) -> Raw:
    """Begin an upload that goes on slowly."""
    return raw.send(POST % (b"/digest", size) + b"s" * 10)


@on_both
def test_slow_bodies_hold_half_of_the_slots_and_others_are_served(own: World) -> None:
    replica = own.one(most=10)
    with contextlib.ExitStack() as stack:
        slow = [slow_upload(stack.enter_context(own.raw())) for _ in range(12)]
        eventually(lambda: replica.journal.consumed == 5 * 10)
        waiting = [stack.enter_context(own.raw()).send(GET % b"/wait") for _ in range(5)]
        eventually(lambda: len(replica.journal.events) == 5)
        assert replica.admission.statistics().ongoing == 10
        replica.release()
        assert [each.answer().status for each in waiting] == [200] * 5
        for each in slow:
            each.send(b"s" * (200_000 - 10))
        assert [each.answer().json()["length"] for each in slow] == [200_000] * 12
        assert replica.journal.consumed == 12 * 200_000


@on_both
def test_a_delayed_upload_gets_a_slot_when_another_one_ends(own: World) -> None:
    replica = own.one(most=2)
    with own.raw() as first, own.raw() as second:
        slow_upload(first)
        eventually(lambda: replica.journal.consumed == 10)
        slow_upload(second)
        begun(own, 2)
        first.socket.close()
        eventually(lambda: replica.journal.consumed == 20)
        assert second.send(b"s" * (200_000 - 10)).answer().json()["length"] == 200_000


@on_both
def test_a_slow_upload_that_is_refused_goes_to_another_replica(own: World) -> None:
    replicas = [own.replica(most=2), own.replica(most=2)]
    own.route(*(each.endpoint() for each in replicas))
    with own.raw() as first, own.raw() as second:
        slow_upload(first)
        slow_upload(second)
        eventually(lambda: [each.journal.consumed for each in replicas] == [10, 10])


@on_both
def test_an_upload_that_gets_no_slot_for_slow_bodies_is_answered_503(own: World) -> None:
    replica = own.replica(most=2)
    own.route(replica.endpoint(), wait_s=0.3)
    with own.raw() as first, own.raw() as second:
        slow_upload(first)
        eventually(lambda: replica.journal.consumed == 10)
        got = slow_upload(second).answer()
        assert (got.status, got.error) == (503, "queue_timeout")
        assert "the body of this POST arrives slowly" in got.json()["detail"]
        assert got.header("retry-after") is not None
    assert replica.journal.consumed == 10


@on_both
def test_a_client_that_reads_the_response_before_it_ends_its_body_is_answered(world: World) -> None:
    world.one()
    with world.raw() as raw:
        began = time.monotonic()
        raw.send(CHUNKED % b"/echo-as-it-comes" + b"4\r\nsome\r\n").until(b"some")
        assert time.monotonic() - began > MEASURE_S * 0.9
        raw.send(b"4\r\nmore\r\n").until(b"more")
        raw.send(b"0\r\n\r\n").until(b"0\r\n\r\n")


@on_both
def test_a_long_chunked_body_does_not_wait_for_its_time(world: World) -> None:
    replica = world.one()
    with world.raw() as raw:
        raw.send(CHUNKED % b"/digest" + b"%x\r\n" % KEPT_BODY + bytes(KEPT_BODY) + b"\r\n")
        eventually(lambda: replica.journal.consumed == KEPT_BODY)
        assert raw.send(b"0\r\n\r\n").answer().json()["length"] == KEPT_BODY


@on_both
def test_the_time_that_a_body_takes_is_not_time_in_the_queue(own: World) -> None:
    own.route()
    with own.raw() as raw:
        raw.send(POST % (b"/echo", 2) + b"h")
        begun(own, 1)
        later(own, WAIT_S + 1)
        raw.send(b"i")
        eventually(lambda: own.edge.statistics().waiting == 1)
        replica = own.replica()
        own.route(replica.endpoint())
        assert raw.answer().body == b"hi"


@on_both
def test_the_deadline_of_a_request_includes_the_time_that_its_body_takes(own: World) -> None:
    replica = own.replica()
    own.route(replica.endpoint(), request_timeout_s=0.3)
    with own.raw() as raw:
        got = raw.send(POST % (b"/echo", 1_000) + b"h").answer()
        assert (got.status, got.error) == (504, "deadline_exceeded")
        assert "the body of the request did not arrive within its 0.3 s" in got.json()["detail"]
    assert own.record(str(got.header("x-request-id")))["tries"] == 0


@on_both
def test_a_malformed_chunk_in_a_small_body_is_refused_before_any_user_code_runs(world: World) -> None:
    replica = world.one()
    with world.raw() as raw:
        got = raw.send(CHUNKED % b"/wait" + b"4\r\nsome\r\nnonsense").answer()
        assert got.status == 400
    assert replica.journal.events == []


def has_no_clients(world: World) -> bool:
    limit = world.edge.proxy.filters.of(ClientLimit)
    return limit is None or len(limit) == 0


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def make(**options: Any) -> World:
        worlds.append(World(RunningProxy(**{"timeouts": CALM, **options}), tmp_path))
        return worlds[-1]

    yield make
    for world in worlds:
        eventually(partial(has_no_clients, world))
        world.close()
        world.edge.close()


@on_both
def test_a_client_that_a_slow_app_keeps_from_sending_is_not_slow(own: World) -> None:
    replica = own.one()
    with own.raw() as raw:
        raw.send(POST % (b"/slow-upload", 20_000_000))
        sent = 0
        raw.socket.settimeout(0.5)
        begun(own, 1)
        reading = True
        while reading:
            with contextlib.suppress(TimeoutError):
                while True:
                    sent += raw.socket.send(bytes(65_536))
            reading = any(each.reading for each in own.edge.server.connections())  # type: ignore[attr-defined]
        for passed in range(1, 30):
            later(own, passed)
        raw.socket.settimeout(PATIENCE_S)
        replica.release()
        raw.send(bytes(20_000_000 - sent))
        assert raw.answer().json() == {"length": 20_000_000}


def test_one_address_has_no_more_requests_than_it_may(limited: Callable[..., World]) -> None:
    world = limited(max_requests_per_client=2)
    replica = world.one()
    with world.raw() as one, world.raw() as two, world.raw() as three:
        one.send(GET % b"/wait")
        two.send(POST % (b"/echo", 10) + b"slow")
        begun(world, 2)
        got = three.send(GET % b"/hello").answer()
        assert (got.status, got.error, got.header("retry-after")) == (429, "too_many_requests", "1")
        assert "127.0.0.1 has 2 requests" in got.json()["detail"]
        assert "max_requests_per_client is 2" in got.json()["detail"]
        assert three.send(GET % b"/-/healthz").answer().status == 200
        two.socket.close()
        eventually(lambda: three.send(GET % b"/hello").answer().status == 200)
        replica.release()
        assert one.answer().status == 200


@pytest.mark.parametrize(("believed", "served"), [("127.0.0.1", 2), ("10.0.0.0/8", 1)])
def test_only_a_trusted_proxy_names_the_client_that_is_limited(
    limited: Callable[..., World], believed: str, served: int
) -> None:
    """Each is sent while those before it are not answered."""

    def asking(client: bytes) -> Raw:
        raw = stack.enter_context(world.raw())
        return raw.send(b"GET /wait HTTP/1.1\r\nhost: a\r\nx-forwarded-for: %b\r\n\r\n" % client)

    world = limited(max_requests_per_client=1, forwarded_allow_ips=believed)
    replica = world.one()
    with contextlib.ExitStack() as stack:
        first = asking(b"192.0.2.1")
        eventually(lambda: len(replica.journal.events) == 1)
        second = asking(b"192.0.2.2")
        if served == 2:
            eventually(lambda: len(replica.journal.events) == 2)
        refused = [asking(b"192.0.2.2")] if served == 2 else [second]
        assert [each.answer().status for each in refused] == [429]
        replica.release()
        assert {each.answer().status for each in (first, second)[:served]} == {200}


def test_an_open_websocket_counts_until_it_ends(limited: Callable[..., World]) -> None:
    world = limited(max_requests_per_client=1)
    world.one()
    handshake = (
        b"GET /ws HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with world.raw() as other:
        with world.raw() as talking:
            assert talking.send(handshake).answer().status == 101
            assert other.send(GET % b"/hello").answer().status == 429
        eventually(lambda: other.send(GET % b"/hello").answer().status == 200)


@pytest.mark.parametrize(("rate", "status"), [(0, 200), (1_000_000, 408)])
def test_the_minimum_rate_is_an_option(limited: Callable[..., World], rate: float, status: int) -> None:
    world = limited(timeouts=None, min_body_rate=rate, body_grace_s=20.0)
    world.one()
    with world.raw() as raw:
        raw.send(POST % (b"/echo", 10) + b"half")
        begun(world, 1)
        for passed in range(1, 30):
            later(world, passed)
        if status == 408:
            assert "less than 1e+06 bytes a second" in raw.answer().json()["detail"]
        else:
            assert raw.send(b"a body").answer().body == b"halfa body"
