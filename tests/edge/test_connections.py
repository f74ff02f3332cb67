"""How many clients there may be, and how long each may take: every state of a connection has a clock."""

import contextlib
import itertools
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.edge.arrival import Capacity
from app_toolkit.edge.protocol import LINGER_S, Timeouts
from app_toolkit.observability.records import Record
from tests.edge.world import (
    CALM,
    TESTS,
    WAIT_S,
    Got,
    Raw,
    RunningProxy,
    World,
    eventually,
    later,
    lingering_ends,
    on_both,
    takes_a_little,
)
from tests.patience import PATIENCE_S

GET = b"GET %s HTTP/1.1\r\nhost: a\r\n\r\n"


@pytest.fixture
def own(tmp_path: Path, put_away: Callable[[World], None]) -> Iterator[Callable[..., World]]:
    """Worlds whose proxies have options of their own."""
    made: list[World] = []

    def own(patience: Timeouts = CALM, **options: Any) -> World:
        made.append(World(RunningProxy(patience, **options), tmp_path))
        return made[-1]

    yield own
    for world in made:
        put_away(world)


# How many


def test_a_connection_beyond_the_limit_is_refused(own: Callable[..., World]) -> None:
    world = own(max_connections=3)
    replica = world.one()
    records: list[Record] = []
    world.edge.call(lambda: world.edge.proxy.records.subscribe(records.append))
    with world.raw() as first, world.raw() as second, world.raw() as busy:
        assert first.send(GET % b"/hello").answer().status == 200
        assert second.send(GET % b"/hello").answer().status == 200
        busy.send(GET % b"/wait")
        eventually(lambda: replica.journal.events)
        for _ in range(5):
            with world.raw() as refused:
                got = refused.send(GET % b"/hello").answer()
                assert (got.status, got.error) == (503, "too_many_connections")
                assert (got.header("retry-after"), got.header("connection")) == ("1", "close")
                assert "3 clients" in got.json()["detail"]
                assert refused.closed()
        assert world.edge.statistics().requests["-"].outcomes == {"too_many_connections": 5}
        refusals = [record for record in records if record.kind == "connection"]
        assert [(record.outcome, record.status) for record in refusals] == [("too_many_connections", 503)] * 5
        assert not [line for line in world.edge.records() if line["status"] == 503], "no request has arrived"
        assert first.send(GET % b"/hello").answer().status == 200
        replica.release()
        assert busy.answer().status == 200
    eventually(lambda: world.edge.statistics().connections == 0)
    with world.raw() as again:
        assert again.send(GET % b"/hello").answer().status == 200


def test_a_refusal_is_readable_also_behind_a_body(own: Callable[..., World]) -> None:
    world = own(max_connections=1)
    with world.raw(), world.raw() as refused:
        refused.send(b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 500000\r\n\r\n" + b"x" * 500_000)
        assert refused.answer().error == "too_many_connections"
        assert refused.closed()


def test_a_refused_client_that_stays_is_closed(own: Callable[..., World]) -> None:
    world = own(max_connections=1)
    with world.raw(), world.raw() as refused:
        assert refused.answer().status == 503
        refused.send(b"and another thing")
        eventually(lambda: later(world, CALM.linger_s + 1) or not refused_at(world))
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            assert refused.closed()


def refused_at(world: World) -> int:
    return world.edge.call(lambda: len(world.edge.server.connections()) - world.edge.server.statistics().connections)


def test_the_oldest_refusal_makes_room_for_one_more(own: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    capacity = Capacity(clients=1, refused=2, backlog=10)
    monkeypatch.setattr(Capacity, "within", lambda descriptors, clients=None: capacity)
    world = own()
    with world.raw(), contextlib.ExitStack() as stack:
        for _ in range(10):
            assert stack.enter_context(world.raw()).answer().status == 503
            assert refused_at(world) <= 2


@given(st.integers(8, 2_000_000))
def test_the_limits_of_a_proxy_fit_into_its_file_descriptors(descriptors: int) -> None:
    capacity = Capacity.within(descriptors)
    assert min(capacity.clients, capacity.refused, capacity.backlog) >= 1
    own = min(4_096, descriptors // 4) // 4 - 3  # less what rounding takes
    assert 2 * capacity.clients + capacity.refused + capacity.backlog + own <= descriptors
    assert Capacity.within(descriptors, 7).clients == 7


class Narrow:
    """A proxy in a process that may open few files, before a replica."""

    def __init__(self, descriptors: int, clients: int, replica: str) -> None:
        command = [sys.executable, "-m", "tests.edge.narrow", str(descriptors), str(clients), replica]
        self.process = subprocess.Popen(
            command, cwd=TESTS.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def __enter__(self) -> "Narrow":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0

    def busy(self, seconds: float) -> float:
        """The share of that time for which it runs."""
        process = psutil.Process(self.process.pid)
        before = sum(process.cpu_times()[:2])
        time.sleep(seconds)
        return (sum(process.cpu_times()[:2]) - before) / seconds


def outcome(raw: Raw) -> Got | None:
    """The answer; None: closed without one."""
    try:
        return raw.send(GET % b"/hello").answer()
    except (OSError, AssertionError):
        return None


def crowd(narrow: Narrow, count: int) -> tuple[list[Raw], list[Got | None]]:
    """Clients that stay, each come once the one before knows its outcome.

    All at once they would overflow the backlog, and what the kernel drops it tries again a second later.
    """
    clients, got = [], []
    for _ in range(count):
        clients.append(Raw(narrow.port))
        got.append(outcome(clients[-1]))
    return clients, got


def test_descriptors_bound_the_clients_and_the_rest_is_refused(world: World) -> None:
    replica = world.replica()
    with Narrow(128, 0, replica.address) as narrow:
        clients, got = crowd(narrow, 200)
        served = [each for each in got if each is not None and each.status == 200]
        refused = [each for each in got if each is not None and each.status == 503]
        assert len(served) == Capacity.within(128).clients == 48
        assert len(refused) >= 100
        assert {each.error for each in refused} == {"too_many_connections"}
        assert narrow.busy(0.5) < 0.5
        for raw, each in zip(clients, got, strict=True):
            if each in served:
                assert raw.send(GET % b"/hello").answer().status == 200
        for raw in clients:
            raw.socket.close()
        eventually(lambda: serves(narrow))


def test_a_proxy_without_descriptors_neither_spins_nor_dies(world: World) -> None:
    replica = world.replica()
    with Narrow(64, 1_000, replica.address) as narrow:
        clients, got = crowd(narrow, 200)
        assert Counter(each and each.status for each in got) == {200: got.index(None), None: got.count(None)}
        with contextlib.suppress(OSError):
            for raw in clients:
                raw.send(b"GET /-/routes HTTP/1.1\r\n")
        assert narrow.busy(0.5) < 0.5
        for raw in clients:
            raw.socket.close()
        eventually(lambda: serves(narrow))


def serves(narrow: Narrow) -> bool:
    with Raw(narrow.port) as raw:
        got = outcome(raw)
        return got is not None and got.status == 200


# How long


@on_both
def test_a_response_that_is_still_read_outlasts_the_linger_time(world: World) -> None:
    world.one()
    with world.raw() as raw:
        size = 8_000_000
        raw.send(b"POST /echo HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % size)
        raw.send(b"x" * size)
        head = raw.until(b"\r\n\r\n")
        assert b"connection: close" in head
        taken = len(raw.exactly(1))
        while world.edge.statistics().ongoing:  # until the proxy has all of it
            taken += len(raw.exactly(4_096))
        later(world, CALM.linger_s + 1)
        later(world, CALM.linger_s + 2)
        assert taken + len(raw.rest()) == size


@on_both
def test_a_client_that_reads_nothing_is_cut(world: World) -> None:
    replica = world.one()
    with world.raw() as raw:
        raw.send(GET % b"/endless")
        eventually(lambda: world.edge.call(lambda: any(not each.writable for each in world.edge.server.connections())))
        later(world, 0)
        assert world.edge.statistics().ongoing == 1
        passed = itertools.count(1)
        # What was on its way when the replica was stopped still comes, and starts the clock anew.
        eventually(
            lambda: later(world, next(passed) * (CALM.stalled_write_s + 1)) or world.edge.statistics().ongoing == 0
        )
    eventually(lambda: replica.admission.statistics().running == 0)


@on_both
def test_a_client_that_reads_slowly_is_not_cut(world: World) -> None:
    world.one()
    with world.raw() as raw:
        takes_a_little(world, raw)


@on_both
def test_a_connection_closes_if_the_rest_of_an_answered_body_is_late(world: World) -> None:
    world.one()
    with world.raw() as raw:
        raw.send(b"POST /unread HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\nhalf")
        assert raw.answer().status == 413
        eventually(lambda: world.edge.statistics().ongoing == 0)
        later(world, CALM.discard_s + 1)
        assert raw.closed()
        lingering_ends(world)


@on_both
def test_a_websocket_that_is_never_accepted_ends_with_its_client(world: World) -> None:
    replica = world.one()
    replica.admission.draining = True  # nobody takes it
    with world.raw() as raw:
        raw.send(
            b"GET /ws HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        eventually(lambda: world.edge.statistics().waiting == 1)
        later(world, WAIT_S + 1)
        assert raw.answer().error == "queue_timeout"


def test_a_drain_closes_connections_that_stay_idle_for_a_moment(own: Callable[..., World]) -> None:
    world = own()
    replica = world.one()
    with (
        world.raw() as idle,
        world.raw() as silent,
        world.raw() as busy,
        world.raw() as rest,
        world.raw() as quick,
    ):
        for client in (idle, quick):
            assert client.send(GET % b"/hello").answer().status == 200
        rest.send(b"POST /unread HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\nhalf")
        got = rest.answer()
        assert (got.status, got.header("connection")) == (413, None)
        busy.send(GET % b"/wait")
        eventually(lambda: replica.journal.events)
        drained = world.edge.drain(PATIENCE_S)
        assert quick.send(GET % b"/hello").answer().header("connection") == "close"
        later(world, LINGER_S + 0.1)
        assert idle.closed()
        assert silent.closed()
        assert rest.closed()
        replica.release()
        assert busy.answer().header("connection") == "close"
        drained.result(PATIENCE_S)
