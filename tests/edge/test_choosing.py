"""The choice of a replica, and retries when it refuses or is lost."""

import contextlib
import json
import select
import socket
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from app_toolkit.contract.snapshots import PublishedReplica
from tests import published
from tests.edge.wire import Received, Wire, detail
from tests.edge.world import Killable, Raw, World, eventually, later, on_both
from tests.patience import PATIENCE_S

GET = b"GET %s HTTP/1.1\r\nhost: a\r\n\r\n"
POST = b"POST %s HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nhi"
NOWHERE = published.replica("nobody", "unix:/nowhere/at/all.sock")


def attempts(replicas: list[Killable]) -> int:
    return len(replicas[0].marks.read_text().splitlines())


# Waiting


@on_both
def test_a_request_waits_for_a_replica_and_is_served_when_one_comes(world: World) -> None:
    world.route()
    replica = world.replica()
    with world.raw() as raw:
        raw.send(GET % b"/hello")
        eventually(lambda: world.edge.statistics().waiting == 1)
        world.route(replica.endpoint())
        assert raw.answer().json() == {"replica": replica.name}


@on_both
def test_requests_are_refused_while_no_replica_can_start(world: World) -> None:
    world.route()
    with world.raw() as waiting, world.raw() as raw:
        waiting.send(POST % b"/echo")
        eventually(lambda: world.edge.statistics().waiting == 1)
        world.route(cannot_start="RuntimeError")
        for got in (waiting.answer(), raw.send(GET % b"/hello").answer()):
            assert (got.status, got.error) == (503, "cannot_start")
            assert got.header("retry-after") == "1"
            assert (
                "no replica of shop/web runs: each one that is started fails with RuntimeError" in got.json()["detail"]
            )
        replica = world.replica()
        world.route(replica.endpoint())
        assert raw.send(GET % b"/hello").answer().json() == {"replica": replica.name}


def test_a_disconnect_behind_an_unread_body_is_found_at_the_next_sweep(
    own: World,
) -> None:
    own.route()
    with own.raw() as raw:
        raw.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 300000\r\n\r\n" + bytes(200_000))
        eventually(lambda: own.edge.statistics().waiting == 1)
        eventually(lambda: own.edge.call(lambda: not any(each.reading for each in own.edge.server.connections())))  # type: ignore[attr-defined]
        later(own, 0)
        assert own.edge.statistics().waiting == 1
    eventually(lambda: own.edge.statistics().waiting == 0)


@on_both
def test_the_newest_request_is_served_first_while_clients_leave_the_queue(own: World) -> None:
    replica = own.one(most=1)
    with ExitStack() as stack:
        first = stack.enter_context(own.raw()).send(GET % b"/wait")
        eventually(lambda: replica.journal.events)
        queued = []
        for number in range(6):
            queued.append(stack.enter_context(own.raw()).send(GET % b"/path/%d" % number))
            eventually(lambda number=number: own.edge.statistics().waiting == number + 1)  # type: ignore[misc]
        for leaving in queued[:2]:
            leaving.socket.close()
        eventually(lambda: own.edge.statistics().waiting == 4)
        replica.release()
        assert first.answer().status == 200
        assert {each.answer().status for each in queued[2:]} == {200}
    served = [record["path"] for record in own.edge.records() if record["status"] == 200]
    assert served == ["/wait", "/path/5", "/path/4", "/path/3", "/path/2"]


@on_both
def test_waiting_requests_fail_when_their_application_is_removed(world: World) -> None:
    world.route()
    with world.raw() as raw:
        raw.send(GET % b"/hello")
        eventually(lambda: world.edge.statistics().waiting == 1)
        world.edge.post({"routes": published.routes(), "replicas/shop/web": None})
        got = raw.answer()
        assert (got.status, got.error) == (503, "no_replica")
        assert raw.send(GET % b"/hello").answer().status == 404


# Refusals: no user code ran


@on_both
def test_a_request_refused_by_a_busy_replica_goes_to_another_one(world: World) -> None:
    full, free = world.replica(most=1), world.replica()
    # The proxy believes in more room than there is, as when others fill a replica.
    world.route(full.endpoint(most=50), free.endpoint(most=50))
    with httpx.Client() as direct:
        holder = threading.Thread(target=lambda: httpx.get(world.url + "/wait", timeout=PATIENCE_S))
        world.route(full.endpoint(most=50))
        holder.start()
        eventually(lambda: full.journal.events)
        world.route(full.endpoint(most=50), free.endpoint(most=50))
        body = b"b" * 60_000
        for content in [body] * 10 + [body * 5] * 5:
            got = direct.post(world.url + "/echo", content=content)
            assert got.content == content
        assert not [name for name in got.headers if name.startswith("x-app-toolkit")]
        full.release()
        holder.join(PATIENCE_S)


@on_both
def test_a_refusal_costs_no_byte_of_a_large_body(world: World) -> None:
    full, free = world.replica(most=1), world.replica()
    world.route(full.endpoint(most=50))
    with world.raw() as first, world.raw() as second:
        first.send(GET % b"/wait")
        eventually(lambda: full.journal.events)
        body = b"l" * 1_000_000
        second.send(b"POST /digest HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n" + body[:100_000])
        world.route(full.endpoint(most=50), free.endpoint())
        second.send(body[100_000:])
        assert second.answer().json()["length"] == len(body)
        assert (full.journal.consumed, free.journal.consumed) == (0, len(body))
        full.release()
        assert first.answer().status == 200


@on_both
def test_a_request_refused_by_a_draining_replica_goes_to_another_one(world: World) -> None:
    old, new = world.replica(), world.replica()
    old.admission.draining = True
    world.route(old.endpoint(), new.endpoint())
    with world.raw() as raw:
        for _ in range(10):
            assert raw.send(GET % b"/hello").answer().json() == {"replica": new.name}
            assert raw.send(POST % b"/echo").answer().body == b"hi"


@on_both
def test_a_replica_with_too_many_websockets_is_left_for_another_until_there_is_none(world: World) -> None:
    replicas = [world.replica(), world.replica()]
    for replica in replicas:
        replica.admission.max_open_websockets = 1
    world.route(*(replica.endpoint() for replica in replicas))
    url = world.url.replace("http", "ws") + "/ws"
    with ExitStack() as open_ones, world.raw() as raw:
        for _ in replicas:
            open_ones.enter_context(connect(url, proxy=None))
        assert [replica.admission.statistics().websockets for replica in replicas] == [1, 1]
        with pytest.raises(InvalidStatus) as refused:
            connect(url, proxy=None)
        response = refused.value.response
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        content = json.loads(response.body)
        assert (content["error"], content["detail"]) == (
            "too_many_websockets",
            "no replica has room for another WebSocket: each has its max_open_websockets open",
        )
        assert raw.send(GET % b"/hello").answer().status == 200, "for requests there is room"
    eventually(lambda: all(replica.admission.statistics().websockets == 0 for replica in replicas))
    eventually(lambda: world.edge.statistics().ongoing == 0)


@on_both
@pytest.mark.parametrize("other", ["drains", "is not reached"])
def test_a_websocket_that_replicas_refuse_for_several_reasons_is_answered_no_replica(world: World, other: str) -> None:
    crowded, draining = world.replica(), world.replica()
    crowded.admission.max_open_websockets = 0
    draining.admission.draining = True
    world.route(crowded.endpoint(), draining.endpoint() if other == "drains" else NOWHERE)
    # Whichever it was given to first.
    for _ in range(5):
        with pytest.raises(InvalidStatus) as refused:
            connect(world.url.replace("http", "ws") + "/ws", proxy=None)
        content = json.loads(refused.value.response.body)
        assert (refused.value.response.status_code, content["error"]) == (503, "no_replica")
        assert content["detail"] == (
            "no replica took this WebSocket: some have their max_open_websockets open, others drain or were not reached"
        )


def test_a_replica_that_rejects_the_secret_is_502_and_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    stranger = world.replica(secret=b"another")
    world.route(stranger.endpoint())
    with world.raw() as raw:
        got = raw.send(GET % b"/hello").answer()
        assert (got.status, got.error) == (502, "replica_lost")
    assert caplog.text.count("rejected the caller's credentials or protocol version (secret)") == 1
    assert "open-sesame" not in caplog.text


def test_a_replica_that_is_not_reached_costs_nothing(world: World) -> None:
    replica = world.replica()
    world.route(NOWHERE, replica.endpoint())
    with world.raw() as raw:
        for _ in range(10):
            assert raw.send(POST % b"/echo").answer().body == b"hi"


def test_a_request_waits_if_no_replica_can_be_reached(world: World) -> None:
    replica = world.replica()
    world.route(NOWHERE)
    with world.raw() as raw:
        raw.send(POST % b"/echo")
        eventually(lambda: world.edge.statistics().waiting == 1)
        world.route(replica.endpoint())
        assert raw.answer().body == b"hi"
        world.route(NOWHERE, wait_s=0.1)
        assert raw.send(POST % b"/echo").answer().error == "queue_timeout"


def test_a_tcp_address_is_dialled_too(world: World) -> None:
    replica = world.replica(tcp=True)
    assert replica.address.startswith("tcp:127.0.0.1:")
    world.route(replica.endpoint())
    with world.raw() as raw:
        for _ in range(2):
            assert raw.send(POST % b"/echo").answer().body == b"hi"


# Deaths: the replica had accepted


@pytest.mark.parametrize(
    ("method", "size", "losses", "before", "status", "attempts"),
    [
        ("GET", 0, 1, b"", 200, 2),
        ("GET", 0, 1, b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n", 200, 2),
        ("GET", 0, 2, b"", 502, 2),
        ("PUT", 50_000, 1, b"", 200, 2),
        ("PUT", 500_000, 1, b"", 502, 1),
        ("POST", 2, 1, b"", 502, 1),
    ],
    ids=["GET", "after the head", "two losses", "PUT", "a PUT whose body is not retained", "POST"],
)
def test_a_lost_request_is_sent_once_more_if_it_may_run_twice(
    wire: Wire, method: str, size: int, losses: int, before: bytes, status: int, attempts: int
) -> None:
    replicas = [wire.replica() for _ in range(3)]
    wire.route(*replicas)
    head = f"{method} / HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n".encode()
    client = wire.client().send(head + b"p" * size)
    lost: list[Received] = []
    for _ in range(losses):
        (current,) = [each.last for each in replicas if each.received and each.last not in lost]
        current.respond(before + (b"HTTP/1.1 100 Continue\r\n\r\n" if size > 100_000 else b""))
        current.lose()
        lost.append(current)
    received = [each for replica in replicas for each in replica.received]
    assert len(received) == attempts
    assert {len(each.body) for each in received} == {size}
    if status == 200:
        received[0 if received[0] not in lost else 1].respond(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    got = client.response()
    assert got.status == status
    if status == 502:
        assert got.error == "replica_lost"
    if method == "POST":
        assert "the outcome of this POST is unknown" in detail(got)


def test_a_request_that_was_lost_with_one_of_two_replicas_is_not_sent_to_the_other(wire: Wire) -> None:
    first, second = wire.replica(), wire.replica()
    wire.route(first, second)
    client = wire.client().send(b"GET /die HTTP/1.1\r\nhost: a\r\n\r\n")
    lost, other = (first, second) if first.received else (second, first)
    lost.last.lose()
    wire.route(other)
    assert not other.received
    third = wire.replica()
    wire.route(other, third)
    third.last.lose()
    got = client.response()
    assert (got.status, got.error) == (502, "replica_lost")
    assert "another replica before it; this GET is not retried" in detail(got)
    assert not other.received


def test_a_lost_request_that_no_replica_takes_in_time_fails_with_an_unknown_outcome(wire: Wire) -> None:
    replicas = [wire.replica(), wire.replica()]
    wire.route(*replicas, wait_s=1.0)
    client = wire.client().send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    (lost,) = [each for each in replicas if each.received]
    (other,) = [each for each in replicas if each is not lost]
    lost.last.lose()
    wire.route(other, wait_s=1.0)
    wire.advance(2.0)
    got = client.response()
    assert (got.status, got.error) == (502, "replica_lost")
    assert "the outcome is unknown" in detail(got)
    assert not other.received


def test_the_time_that_a_request_ran_is_no_waiting(world: World) -> None:
    replicas = world.killable(3)
    world.route(*(each.endpoint() for each in replicas), wait_s=0.2)
    with world.raw() as raw:
        raw.send(b"PUT /die/at-once HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nh")
        time.sleep(0.3)  # the replica has it for longer than it may wait
        got = raw.send(b"i").answer()
        assert (got.status, got.body) == (200, b"hi")
    assert attempts(replicas) == 2


class Dying:
    """A replica that accepts connections, and ends each before it has read what it is sent."""

    name = "dying"

    def __init__(self, world: World) -> None:
        self.address = f"unix:{world.folder / 'dying.sock'}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address.removeprefix("unix:"))
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()
        world.replicas.append(self)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                select.select([connection], [], [])
                connection.close()

    def endpoint(self) -> PublishedReplica:
        return published.replica(self.name, self.address)

    def stop(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def test_a_handshake_that_a_dying_replica_has_not_read_goes_to_another_one(world: World) -> None:
    dying, survivor = Dying(world), world.replica()
    world.route(dying.endpoint(), survivor.endpoint())
    for _ in range(10):
        with connect(f"ws://127.0.0.1:{world.port}/ws") as ws:
            ws.send("hello")
            assert ws.recv() == "ws:hello"


def test_a_post_whose_head_a_dying_replica_has_not_read_goes_to_another_one(world: World) -> None:
    dying, survivor = Dying(world), world.replica()
    world.route(dying.endpoint(), survivor.endpoint())
    for _ in range(10):
        with world.raw() as raw:
            raw.send(b"POST /echo HTTP/1.1\r\nhost: a\r\nx-request-id: it\r\ntransfer-encoding: chunked\r\n\r\n")
            eventually(lambda: world.load()[1] == 1)
            assert raw.send(b"2\r\nhi\r\n0\r\n\r\n").answer().body == b"hi"


def test_a_death_after_which_no_replica_has_room_is_no_queue_timeout(world: World) -> None:
    (replica,) = world.killable(1)
    world.route(replica.endpoint(), wait_s=0.3, retry="all")
    with world.raw() as raw:
        got = raw.send(POST % b"/die/at-once").answer()
        assert (got.status, got.error, got.header("retry-after")) == (502, "replica_lost", None)
        assert got.json()["detail"] == (
            "a replica was lost with this POST, and then no replica of shop/web had room within 0.3 s; "
            "the outcome is unknown"
        )


def test_a_death_after_which_nothing_is_served_leaves_the_outcome_unknown(world: World) -> None:
    (replica,) = world.killable(1)
    world.route(replica.endpoint())
    with world.raw() as raw:
        raw.send(GET % b"/die/at-once")
        replica.join()  # a request waits for its first connection, too
        eventually(lambda: world.edge.statistics().waiting == 1)
        world.edge.post({"routes": published.routes(), "replicas/shop/web": None})
        got = raw.answer()
        assert (got.status, got.error) == (502, "replica_lost")
        detail = got.json()["detail"]
        assert "the router of shop/web is closed" in detail
        assert detail.endswith("; the outcome is unknown")


@pytest.mark.parametrize("running", [("the-blocker", "another"), None])
def test_only_requests_that_wait_in_an_unresponsive_replica_are_retried(
    world: World, running: tuple[str, ...] | None
) -> None:
    victim, survivor = world.killable()
    world.route(victim.endpoint())
    with ExitStack() as clients:

        def sends(request: bytes) -> Raw:
            """A client that connects and asks at once: the proxy of these tests closes one that is silent for 1 s."""
            return clients.enter_context(world.raw()).send(request)

        blocker = sends(b"GET /block HTTP/1.1\r\nhost: a\r\nx-request-id: the-blocker\r\n\r\n")
        eventually(lambda: attempts([victim]) == 1)
        unread = sends(GET % b"/hello")
        eventually(lambda: world.load()[1] == 2)
        blocked = replace(victim.endpoint(), unresponsive=True, running=running)
        world.route(blocked)
        waiting = sends(GET % b"/hello")
        eventually(lambda: world.edge.statistics().waiting == 1)
        world.route(blocked, survivor.endpoint())
        assert waiting.answer().json() == {"replica": survivor.name}, "new requests go elsewhere"
        victim.stop()
        got = blocker.answer()
        assert (got.status, got.error) == (502, "replica_lost")
        assert got.json()["detail"].endswith("stopped answering while this GET ran in it; it is not retried")
        got = unread.answer()
        if running is None:
            assert got.status == 502, "nobody knows what blocks it"
        else:
            assert got.json() == {"replica": survivor.name}
    assert attempts([victim]) == 1, "the other replica was not blocked"


def test_a_kill_among_many_gets_is_not_seen(world: World) -> None:
    victim, *survivors = world.killable(3)
    world.route(victim.endpoint(), *(survivor.endpoint() for survivor in survivors))
    failed: list[Any] = []

    def ask() -> None:
        with httpx.Client() as client:
            for _ in range(40):
                got = client.get(world.url + "/hello")
                if got.status_code != 200:
                    failed.append(got.text)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    victim.process.kill()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not failed


def test_a_death_is_counted_once_however_many_connections_it_breaks(world: World) -> None:
    victim, successor = world.killable()
    world.route(victim.endpoint())
    with ExitStack() as stack:
        raws = [stack.enter_context(world.raw()) for _ in range(4)]

        def each_had_a_connection() -> bool:
            """Not so if the first was answered before the last one asked."""
            for raw in raws:
                raw.send(GET % b"/nap/0.2")
            assert {raw.answer().status for raw in raws} == {200}
            return bool(world.edge.statistics().idle == 4)

        eventually(each_had_a_connection)
        asking = raws[0].send(GET % b"/die/at-once")
        eventually(lambda: world.edge.statistics().idle == 0)
        world.route(successor.endpoint())
        assert asking.answer().status == 200


def test_a_connection_that_the_replica_closed_is_not_used(world: World) -> None:
    victim, survivor = world.killable()
    world.route(victim.endpoint())
    with world.raw() as raw:
        assert raw.send(GET % b"/hello").answer().status == 200
        idle = world.edge.statistics().idle
        victim.process.kill()
        victim.process.join(PATIENCE_S)
        eventually(lambda: world.edge.statistics().idle == idle - 1)
        world.route(victim.endpoint(), survivor.endpoint())
        for _ in range(5):
            assert raw.send(POST % b"/echo").answer().body == b"hi"
