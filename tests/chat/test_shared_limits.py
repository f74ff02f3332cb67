"""Limits of API keys that several processes share in Redis. Each object of `api_keys` stands for one process."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from app_toolkit import ConfigError
from app_toolkit.chat import (
    ChatEvent,
    ChatRequest,
    Cost,
    TextEvent,
    UsageEvent,
    api_keys,
    openai_router,
    shared_limits,
    websocket_router,
)
from app_toolkit.chat.budgets import DAY_S, MAX_TOKENS
from app_toolkit.chat.keys import ApiKeys
from app_toolkit.chat.rate_limits import KeyLimits
from tests.chat.scripted import Scripted
from tests.chat.served import PausedModel, asking
from tests.patience import until, wait_until
from tests.streaming.redis_server import RedisServer

pytestmark = pytest.mark.anyio

KEYS = {"ada": "a" * 16, "bob": "b" * 16}
ADA, BOB = ({"authorization": f"Bearer {letter * 16}"} for letter in "ab")
BODY = {"model": "default", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    found = RedisServer(tmp_path_factory.mktemp("redis"))
    found.start()
    yield found
    found.end()


@pytest.fixture
def prefix() -> str:
    return f"{secrets.token_hex(4)}:"


@asynccontextmanager
async def replicas(server: RedisServer, prefix: str, model: Any, count: int = 2, **limits: Any) -> AsyncIterator[Any]:
    """Clients of several replicas, and the keys of each."""
    found: list[tuple[httpx.AsyncClient, ApiKeys]] = []
    async with AsyncExitStack() as stack:
        for _ in range(count):
            keys, app = api_keys(KEYS, storage=server.url, prefix=prefix, **limits), FastAPI()
            app.include_router(openai_router(model), dependencies=[Depends(keys)])
            stack.push_async_callback(keys.aclose)
            found.append((await stack.enter_async_context(asking(app)), keys))
        yield found


async def ask(http: httpx.AsyncClient, headers: dict[str, str] = ADA) -> httpx.Response:
    return await http.post("/chat/completions", json=BODY, headers=headers)


async def test_requests_at_a_time_are_limited_over_all_replicas(server: RedisServer, prefix: str) -> None:
    model = PausedModel()
    async with replicas(server, prefix, model, max_concurrent=2) as ((one, keys), (other, _)):
        running = [asyncio.create_task(ask(http)) for http in (one, other)]
        await until(lambda: model.running == 2)
        for http in (one, other):
            refused = await ask(http)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["error"]["message"] == "the API key has reached its limit of requests at a time: 2"
        bob = asyncio.create_task(ask(one, BOB))
        await until(lambda: model.running == 3)
        assert keys.running == {"ada": 1, "bob": 1}
        model.released.set()
        assert {(await each).status_code for each in [*running, bob]} == {200}
        await until(lambda: keys.running == {"ada": 0, "bob": 0})
        assert (await ask(other)).status_code == 200


async def test_requests_of_a_minute_are_limited_over_all_replicas(server: RedisServer, prefix: str) -> None:
    model = PausedModel()
    model.released.set()
    async with replicas(server, prefix, model, max_per_minute=3) as ((one, _), (other, _)):
        assert [(await ask(http)).status_code for http in (one, other, one)] == [200] * 3
        for http in (one, other):
            refused = await ask(http)
            assert refused.status_code == 429
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert (await ask(one, BOB)).status_code == 200


async def test_request_over_the_limit_of_a_minute_releases_its_lease(server: RedisServer, prefix: str) -> None:
    model = PausedModel()
    model.released.set()
    async with replicas(server, prefix, model, 1, max_per_minute=1, max_concurrent=1) as ((http, keys),):
        assert (await ask(http)).status_code == 200
        for _ in range(2):
            assert "requests per minute" in (await ask(http)).json()["error"]["message"]
        assert keys.running["ada"] == 0
        async with redis.asyncio.Redis.from_url(server.url) as client:
            assert await client.zcard(f"{prefix}running:ada") == 0


async def test_request_that_is_cancelled_at_any_moment_leaves_no_lease(server: RedisServer, prefix: str) -> None:
    shared = shared_limits.SharedLimits(server.url, prefix)
    limiter = shared_limits.SharedLimiter(shared, "ada", KeyLimits(max_concurrent=100, max_per_minute=1_000))

    async def request() -> None:
        permit = await limiter.acquire()
        assert isinstance(permit, shared_limits.Lease)
        try:
            await asyncio.sleep(0)
        finally:
            await limiter.release(permit)

    for steps in range(40):
        task = asyncio.create_task(request())
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    assert limiter.running == 0
    async with redis.asyncio.Redis.from_url(server.url) as client:
        assert await client.zcard(f"{prefix}running:ada") == 0
    await shared.aclose()


async def test_lease_of_a_killed_process_expires(
    server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "LEASE_S", 1.0)
    killed = shared_limits.SharedLimits(server.url, prefix)
    assert await killed.lease("ada", "never renewed", 1)
    await killed.aclose()
    model = PausedModel()
    model.released.set()
    statuses: list[int] = []
    async with replicas(server, prefix, model, 1, max_concurrent=1) as ((http, _),):
        async with asyncio.timeout(60):
            while 200 not in statuses:
                statuses.append((await ask(http)).status_code)
    assert set(statuses) <= {200, 429}


async def test_lease_of_a_request_that_runs_is_renewed(
    server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "RENEWAL_S", 0.02)
    model = PausedModel()
    async with (
        replicas(server, prefix, model, 1, max_concurrent=1) as ((http, _),),
        redis.asyncio.Redis.from_url(server.url) as client,
    ):
        running = asyncio.create_task(ask(http))
        await until(lambda: model.running == 1)

        async def expires() -> float:
            ((_, score),) = await client.zrange(f"{prefix}running:ada", 0, -1, withscores=True)
            return float(score)

        first = await expires()
        async with asyncio.timeout(60):
            while await expires() == first:
                pass
        model.released.set()
        assert (await running).status_code == 200
        async with asyncio.timeout(60):  # the lease ends after the client has received the response
            while await client.zcard(f"{prefix}running:ada"):
                pass


def test_websocket_holds_a_lease_for_each_response(server: RedisServer, prefix: str) -> None:
    async def model(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        yield TextEvent("one")
        await asyncio.Event().wait()

    keys, app = api_keys(KEYS, storage=server.url, prefix=prefix, max_concurrent=1), FastAPI()
    app.include_router(websocket_router(model), prefix="/ws", dependencies=[Depends(keys)])
    message = {"role": "user", "content": "hello"}
    with TestClient(app) as client, client.websocket_connect("/ws", headers=ADA) as websocket:
        websocket.send_json({"type": "chat", "id": "1", "messages": [message]})
        while websocket.receive_json()["type"] != "text":
            pass
        assert keys.running["ada"] == 1
        websocket.send_json({"type": "chat", "id": "2", "messages": [message]})
        assert websocket.receive_json()["status"] == 429
        websocket.send_json({"type": "stop", "id": "1"})
        while websocket.receive_json()["type"] != "finish":
            pass
        wait_until(lambda: keys.running["ada"] == 0)
        client.portal.call(keys.aclose)  # type: ignore[union-attr]


async def test_requests_are_refused_while_redis_is_away_and_no_password_is_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    away = RedisServer(tmp_path)
    away.url = f"unix://:secret-password@{tmp_path}/socket"
    model = PausedModel()
    model.released.set()
    async with replicas(away, "x:", model, 1, max_concurrent=1, max_per_minute=1) as ((http, keys),):
        refused = await ask(http)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert "cannot be checked" in refused.json()["error"]["message"]
        assert keys.running["ada"] == 0
        assert "secret-password" not in repr(keys) + refused.text
    assert "cannot be checked" in caplog.text
    assert "secret-password" not in caplog.text


async def test_a_budget_is_shared_by_all_replicas_and_exceeded_only_by_requests_that_run(
    server: RedisServer, prefix: str
) -> None:
    paused = PausedModel()

    async def model(request: ChatRequest) -> AsyncIterator[ChatEvent]:
        async for event in paused.chat(request):
            yield event
        yield UsageEvent(7, 3)

    async with replicas(server, prefix, model, max_tokens_per_day=10) as ((one, _), (other, _)):
        running = [asyncio.create_task(ask(http)) for http in (one, other, one)]
        await until(lambda: paused.running == 3)
        paused.released.set()
        assert {(await response).status_code for response in running} == {200}
        for http in (one, other):
            refused = await ask(http)
            assert refused.status_code == 429
            message = "the API key has used 30 tokens today (UTC), and its limit is 10"
            assert refused.json()["error"]["message"] == message
            assert 0 < int(refused.headers["retry-after"]) <= DAY_S
        assert (await ask(one, BOB)).status_code == 200


async def test_a_budget_survives_a_restart_and_begins_anew_on_the_next_day_of_the_server(
    server: RedisServer, prefix: str
) -> None:
    client, day = redis.asyncio.Redis.from_url(server.url), f"{prefix}spent:ada"
    model = Scripted([TextEvent("hi"), UsageEvent(7, 3)])
    for spent_on, status in ((None, 200), (0, 429), (-1, 200), (1, 429)):
        if spent_on is not None:
            today = int((await client.time())[0]) // DAY_S
            await client.hset(day, mapping={"day": today + spent_on, "tokens": 10, "nanos": 0})
        async with replicas(server, prefix, model, count=1, max_tokens_per_day=10) as ((http, _),):
            assert (await ask(http)).status_code == status
    await client.aclose()


async def test_absurd_numbers_use_up_a_budget_and_break_nothing(server: RedisServer, prefix: str) -> None:
    client = redis.asyncio.Redis.from_url(server.url)
    model, costs = Scripted([TextEvent("hi"), UsageEvent(10**30, 10**30)]), {"default": Cost(1e6, 1e6)}
    limits = {"max_tokens_per_day": 10**18, "max_cost_per_day": 1e300, "costs": costs}
    async with replicas(server, prefix, model, count=1, **limits) as ((http, _),):
        for _ in range(12):
            assert (await ask(http)).status_code == 200
        assert int(await client.hget(f"{prefix}spent:ada", "tokens")) == 24 * MAX_TOKENS
        assert int(await client.hget(f"{prefix}spent:ada", "nanos")) == 2**63 - 1
    await client.aclose()


@pytest.mark.parametrize("storage", ["redis://:secret@host:port", "memcached://:secret@host", "host:6379/secret"])
def test_storage_that_is_unknown_is_refused_without_showing_it(storage: str) -> None:
    with pytest.raises(ConfigError, match="api_keys: storage") as refused:
        api_keys(KEYS, storage=storage)
    assert "secret" not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
