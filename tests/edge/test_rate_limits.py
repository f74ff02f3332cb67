"""Rate limits of an ingress, at a proxy without sockets."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.config.rate_limit import RateLimit
from app_toolkit.exchange.filters import rate_counters, rate_limit
from app_toolkit.exchange.filters.rate_limit import LOG_INTERVAL_S, PAUSE_S, RATE_LIMITED, TIMEOUT_S, Usage, fields
from tests import published
from tests.edge import test_cors, test_mirroring
from tests.edge.test_ending import HANDSHAKE, SWITCHING
from tests.edge.test_sessions import OK, ask
from tests.edge.wire import Wire
from tests.edge.world import RunningProxy, World
from tests.streaming.redis_server import RedisServer

BUSY = b"HTTP/1.1 503 Busy\r\nx-app-toolkit-refused: draining\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture
def wire(new_wire: Callable[..., Wire], monkeypatch: pytest.MonkeyPatch) -> Wire:
    wire = new_wire()
    monkeypatch.setattr(time, "time", wire.loop.time)
    return wire


def asked(wire: Wire, *more: str, host: str = "10.0.0.1", path: str = "/") -> int:
    """Send a request from this address, and return the status of the response."""
    return ask(wire.client((host, 1)), *more, path=path).status


def counted(wire: Wire) -> dict[str, float]:
    return {each.labels[1]: each.numbers[0] for each in wire.proxy.samples() if each.metric == RATE_LIMITED}


class Storage:
    """A storage that fails, or does not answer."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked = 0

    async def incr(self, key: str, expiry: float) -> int:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return await asyncio.Future()

    async def get_expiry(self, key: str) -> float:
        raise NotImplementedError

    async def aclose(self) -> None: ...


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Storage]:
    def fails(error: Exception | None = None) -> Storage:
        storage = Storage(error)
        monkeypatch.setattr(rate_limit, "open_storage", lambda choice: storage)
        return storage

    return fails


def test_a_client_gets_429_until_its_window_has_ended(wire: Wire) -> None:
    replica = wire.one(OK, rate_limit="2/minute")
    client = wire.client()
    limits = []
    for _ in range(4):
        got = ask(client)
        limits.append((got.status, got.header("ratelimit"), got.header("retry-after")))
        assert got.header("ratelimit-policy") == '"ingress";q=2;w=60'
        wire.advance(2.0)
    assert limits == [
        (200, '"ingress";r=1;t=60', None),
        (200, '"ingress";r=0;t=58', None),
        (429, '"ingress";r=0;t=56', "56"),
        (429, '"ingress";r=0;t=54', "54"),
    ]
    assert len(replica.received) == 2
    assert ask(wire.client()).error == "too_many_requests"
    assert asked(wire) == 200, "another address has a limit of its own"
    wire.advance(52.0)
    assert ask(wire.client()).status == 200
    assert counted(wire) == {"admitted": 4, "refused": 3}


@pytest.mark.parametrize("by", ["header:x-key", "query:key", "cookie:key", "session"])
def test_a_client_is_identified_by_its_key_or_else_by_its_address(wire: Wire, by: str) -> None:
    wire.one(OK, rate_limit="1/minute", rate_limit_by=by, affinity="header:x-key")

    def of(key: str, host: str) -> int:
        return asked(wire, f"x-key: {key}", f"cookie: key={key}", host=host, path=f"/?key={key}")

    assert [of("one", "10.0.0.1"), of("two", "10.0.0.1"), of("one", "10.0.0.2")] == [200, 200, 429]
    assert [asked(wire), asked(wire, host="10.0.0.2"), asked(wire)] == [200, 200, 429]


def test_a_session_has_one_limit_with_and_without_its_pin(wire: Wire) -> None:
    begun = b"HTTP/1.1 200 OK\r\nmcp-session-id: one\r\ncontent-length: 0\r\n\r\n"
    wire.one(begun, rate_limit="2/minute", rate_limit_by="session", affinity="header:mcp-session-id")
    pinned = ask(wire.client(("10.0.0.9", 1))).header("mcp-session-id")
    assert pinned is not None
    assert pinned.startswith("one~")
    statuses = [asked(wire, f"mcp-session-id: {id}") for id in (pinned, "one", pinned)]
    assert statuses == [200, 200, 429]


def test_no_key_is_stored(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = rate_counters.Memory()
    monkeypatch.setattr(rate_limit, "open_storage", lambda choice: memory)
    wire.one(OK, rate_limit="9/minute", rate_limit_by="header:authorization")
    asked(wire, "authorization: Bearer hidden")
    (key,) = memory.storage
    assert key.startswith("shop/web:60:")
    assert "hidden" not in key


def test_a_limit_changes_while_clients_have_counters(wire: Wire) -> None:
    replica = wire.one(OK, rate_limit="1/minute")
    assert [asked(wire), asked(wire)] == [200, 429]
    wire.route(replica, rate_limit="3/minute")
    assert [asked(wire), asked(wire)] == [200, 429], "the requests before count"
    wire.route(replica)
    got = ask(wire.client(("10.0.0.1", 1)))
    assert (got.status, got.header("ratelimit")) == (200, None)


def test_another_attempt_does_not_count_again(wire: Wire) -> None:
    replicas = [wire.replica(), wire.replica()]
    wire.route(*replicas, rate_limit="1/minute")
    client = wire.client().send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    (asked_first,) = [each for each in replicas if each.received]
    asked_first.last.respond(BUSY)
    (other,) = [each for each in replicas if each is not asked_first]
    other.last.respond(OK)
    got = client.response()
    assert (got.status, got.header("ratelimit"), wire.records[0].tries) == (200, '"ingress";r=0;t=60', 2)


def test_a_request_waits_for_its_body_and_its_limit(wire: Wire) -> None:
    replica = wire.one(OK, rate_limit="1/minute")
    post = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n"
    client = wire.client().send(post)
    assert not replica.received
    assert client.send(b"ok").response().status == 200
    assert replica.last.body == b"ok"
    assert wire.client().send(post).response().status == 429


def test_a_handshake_counts_once(wire: Wire) -> None:
    wire.one(SWITCHING, rate_limit="1/minute")
    client = wire.client().send(HANDSHAKE % b"/")
    assert b'ratelimit: "ingress";r=0;t=60\r\n' in client.until(b"\r\n\r\n").lower()
    client.send(b"frames")
    assert wire.client().send(HANDSHAKE % b"/").response().status == 429


def test_preflights_and_own_endpoints_do_not_count(wire: Wire) -> None:
    replica = wire.one(OK, rate_limit="1/minute")
    wire.publish({"routes": published.routes(published.application(cors=test_cors.SETTINGS))})
    preflight = test_cors.request("OPTIONS", "access-control-request-method: POST")
    for _ in range(3):
        assert wire.client().send(preflight).response().status == 200
        assert ask(wire.client(), path="/-/healthz").status == 200
    assert len(replica.received) == 3
    assert wire.client().send(test_cors.request()).response().status == 200
    got = wire.client().send(test_cors.request()).response()
    assert test_cors.read(got) == (429, *test_cors.READABLE)


def test_a_copy_does_not_count(wire: Wire) -> None:
    mirror = wire.replica().says(OK)
    test_mirroring.serve(wire, mirror, rate_limit="2/minute")
    assert [asked(wire), asked(wire), asked(wire)] == [200, 200, 429]
    assert len(mirror.received) == 2


def test_live_revisions_share_the_counters(wire: Wire) -> None:
    replicas = [wire.replica().says(OK), wire.replica().says(OK)]

    def serve(main: float, other: float) -> None:
        routed = [published.application(share=main), published.application("shop@2", share=other)]
        sets: dict[str, Any] = {"routes": published.routes(*routed)}
        for name, each in zip(("shop", "shop@2"), replicas, strict=True):
            replica = published.replica(each.name, each.address, each.most)
            sets[f"replicas/{name}/web"] = published.replica_set(replica, rate_limit="2/minute")
        wire.publish(sets)

    serve(1.0, 0.0)
    assert asked(wire) == 200
    serve(0.0, 1.0)
    assert [asked(wire), asked(wire)] == [200, 429]
    assert [len(each.received) for each in replicas] == [1, 1]


def test_proxies_share_the_counters_in_redis(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    worlds = []
    try:
        for name in "ab":
            (folder := tmp_path / name).mkdir()
            worlds.append(World(RunningProxy(rate_limit_storage=server.url), folder))
            worlds[-1].route(worlds[-1].replica().endpoint(), rate_limit="3/hour")
        statuses = []
        for world in worlds * 2:
            with world.raw() as raw:
                statuses.append(raw.send(b"GET /hello HTTP/1.1\r\nhost: a\r\n\r\n").answer().status)
        assert statuses == [200, 200, 200, 429]
    finally:
        for world in worlds:
            world.close()
            world.edge.close()
        server.end()


# A storage that fails


def test_requests_are_not_limited_while_the_storage_does_not_answer(
    wire: Wire, fails: Callable[..., Storage], caplog: pytest.LogCaptureFixture
) -> None:
    storage, replica = fails(), wire.one(OK, rate_limit="1/day")
    client = wire.client().send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    wire.advance(TIMEOUT_S - 0.1)
    assert not replica.received
    wire.advance(0.2)
    got = client.response()
    assert (got.status, got.header("ratelimit")) == (200, None)
    assert [asked(wire), asked(wire), storage.asked] == [200, 200, 1], "the storage has a pause"
    wire.advance(PAUSE_S)
    wire.client().send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").leave()
    assert storage.asked == 2
    wire.advance(TIMEOUT_S)
    assert (len(replica.received), counted(wire)) == (3, {"unchecked": 4})
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "rate limits do not apply, their storage fails: TimeoutError (1 requests)"
    ]


def test_a_failing_storage_is_logged_now_and_then(
    wire: Wire, fails: Callable[..., Storage], caplog: pytest.LogCaptureFixture
) -> None:
    storage = fails(ConnectionRefusedError("redis://:hidden@cache"))
    wire.one(OK, rate_limit="1/day")
    for _ in range(3):
        assert [asked(wire), asked(wire)] == [200, 200]
        wire.advance(PAUSE_S)
    wire.advance(LOG_INTERVAL_S)
    assert asked(wire) == 200
    assert storage.asked == 4
    messages = [record.message for record in caplog.records]
    assert [each.partition(": ")[2] for each in messages] == [
        "ConnectionRefusedError (1 requests)",
        "ConnectionRefusedError (6 requests)",
    ]


def test_a_request_may_end_while_it_is_counted(wire: Wire, fails: Callable[..., Storage]) -> None:
    storage, replica = fails(), wire.one(OK, rate_limit="1/day", request_timeout_s=0.5)
    client = wire.client().send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    wire.advance(1.0)
    assert client.response().status == 504
    wire.advance(1.0)
    wire.client().send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    wire.loop.run_until_complete(wire.proxy.filters.aclose())
    assert (storage.asked, len(replica.received)) == (2, 0)


# Parts


@given(st.integers(1, 10), st.integers(1, 20), st.floats(-1, 60))
def test_the_fields_never_promise_too_much(most: int, count: int, reset_s: float) -> None:
    (_, policy), (_, left) = fields(RateLimit(most, 60), Usage(count, reset_s))
    assert policy == b'"ingress";q=%d;w=60' % most
    remaining, seconds = (int(each.partition(b"=")[2]) for each in left.split(b";")[1:])
    assert remaining == max(0, most - count)
    assert reset_s <= seconds
    assert 1 <= seconds <= max(1, reset_s + 1)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([1, 5]), st.floats(0, 3)), max_size=40))
def test_counters_in_memory_count_one_window(steps: list[tuple[str, int, float]]) -> None:
    now = 100.0
    windows: dict[str, tuple[float, int]] = {}

    async def run() -> None:
        nonlocal now
        memory = rate_counters.Memory()
        for key, window_s, wait in steps:
            key = f"{key}{window_s}"
            now += wait
            end, count = windows.get(key, (0.0, 0))
            windows[key] = end, count = (end, count + 1) if now < end else (now + window_s, 1)
            assert await memory.incr(key, window_s) == count
            assert await memory.get_expiry(key) == end
            assert len(memory) <= rate_counters.MOST_COUNTERS

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rate_counters.time, "time", lambda: now)
        patch.setattr(rate_counters, "MOST_COUNTERS", 12)
        asyncio.run(run())


async def _fill(memory: rate_counters.Memory, clients: int) -> None:
    for number in range(clients):
        await memory.incr(str(number), 60)


def test_clients_that_invent_keys_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_counters, "MOST_COUNTERS", 50)
    memory = rate_counters.Memory()
    asyncio.run(_fill(memory, 200))
    assert (len(memory), len(memory.storage)) == (50, 50)
    assert list(memory.storage) == [str(number) for number in range(150, 200)]
