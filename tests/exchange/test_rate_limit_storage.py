"""Rate limits in a Redis server, which several processes share."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx
import pytest
import redis
from fastapi import FastAPI

from app_toolkit import DeploymentConfig
from app_toolkit.config.models import REDIS_URL
from app_toolkit.engines.one_process.engine import OneProcess, in_one_process
from app_toolkit.errors import ConfigError
from app_toolkit.exchange.filters import rate_limit
from tests.patience import PATIENCE_S
from tests.streaming.redis_server import RedisServer

pytestmark = pytest.mark.anyio

STORAGE = "APP_TOOLKIT_RATE_LIMIT_STORAGE"
CONFIG = DeploymentConfig(name="web", rate_limit="3/hour", rate_limit_by="header:x-key")

Processes = Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.end()


@asynccontextmanager
async def process() -> AsyncIterator[httpx.AsyncClient]:
    """A client of an app in one process."""
    app = FastAPI()

    @app.get("/")
    async def get() -> str:
        return "ok"

    served = in_one_process(app, CONFIG)
    assert isinstance(served, OneProcess)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://shop") as http:
        yield http
    for plane in served.planes.values():
        await plane.filters.aclose()


async def ask(http: httpx.AsyncClient, key: str = "hidden-key") -> tuple[int, str | None]:
    got = await http.get("/", headers={"x-key": key})
    return got.status_code, got.headers.get("ratelimit", "").partition(";t=")[0] or None


async def test_processes_share_their_counters(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORAGE, server.url)
    async with process() as one, process() as two:
        answers = [await ask(each) for each in (one, two, one, two)]
        assert answers == [(200, f'"ingress";r={left}') for left in (2, 1, 0)] + [(429, '"ingress";r=0')]
        assert (await ask(one, "another"))[0] == 200
        at_once = await asyncio.gather(*[ask(each, "third") for each in (one, two) * 20])
        assert sorted(status for status, _ in at_once) == [200] * 3 + [429] * 37
    with redis.Redis.from_url(server.url) as client:
        keys = [key.decode() for key in client.scan_iter()]
        assert [3_590 < client.ttl(key) <= 3_600 for key in keys] == [True] * 3
    assert all(key.startswith("app_toolkit:rate:") and ":3600:" in key for key in keys)
    assert "hidden-key" not in str(keys)


async def test_requests_are_not_limited_while_the_server_is_away(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(STORAGE, "redis")
    monkeypatch.setenv(REDIS_URL, server.url)
    monkeypatch.setattr(rate_limit, "PAUSE_S", 0.05)
    async with process() as http:
        assert await ask(http) == (200, '"ingress";r=2')
        server.end()
        assert [await ask(http) for _ in range(5)] == [(200, None)] * 5
        server.start()
        await asyncio.sleep(0.05)
        answers = [await ask(http) for _ in range(3)]
        assert [status for status, _ in answers] == [200, 200, 429], "the server has kept the counter"
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["rate limits do not apply, their storage fails: ConnectionError (1 requests)"]


async def test_a_request_is_refused_if_its_app_ends_while_the_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    class Silent:
        async def incr(self, key: str, expiry: float) -> int:
            asked.set()
            await asyncio.Event().wait()
            return 1

        async def aclose(self) -> None: ...

    monkeypatch.setattr(rate_limit, "open_storage", lambda choice: Silent())
    monkeypatch.setattr(rate_limit, "TIMEOUT_S", None)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group, process() as http:
        answer = group.create_task(ask(http))
        await asked.wait()
    assert answer.result() == (503, None)


async def test_a_server_that_refuses_its_password_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv(STORAGE, "redis")
    monkeypatch.setenv(REDIS_URL, "redis://user:hidden@127.0.0.1:1/0")
    async with process() as http:
        assert await ask(http) == (200, None)
    assert "rate limits do not apply" in caplog.text
    assert "hidden" not in caplog.text


def test_a_server_that_is_not_named_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REDIS_URL, raising=False)
    with pytest.raises(ConfigError, match=REDIS_URL):
        rate_limit.RateLimits("redis")
    monkeypatch.setenv(REDIS_URL, "nonsense://:hidden@cache")
    with pytest.raises(ConfigError, match="no valid URL") as raised:
        rate_limit.RateLimits("redis")
    assert "hidden" not in str(raised.value)
    monkeypatch.setenv(STORAGE, "redis://:hidden@cache")
    with pytest.raises(ConfigError, match=STORAGE) as raised:
        in_one_process(FastAPI(), CONFIG)
    assert "hidden" not in str(raised.value)
