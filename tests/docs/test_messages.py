"""The page on messages between replicas: its hub, on processes and in one process, and its use of Redis."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import httpx
import pytest

from app_toolkit.engines.one_process.calls import IN_PROCESS
from tests.cluster import Cluster, Served
from tests.patience import PATIENCE_S
from tests.streaming.redis_server import RedisServer

from .pages import page

pytestmark = pytest.mark.anyio
PAGE = page("docs/stateful.md").part("Messages between replicas")
FOLLOWERS = 24
"""More than the hub has slots, and so many that the proxy divides them among both replicas."""


async def test_in_one_process_a_hub_has_more_followers_than_slots() -> None:
    hub = PAGE.run()["hub"].handle
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        following = [await stack.enter_async_context(aclosing(hub.subscribe("tea"))) for _ in range(FOLLOWERS)]
        assert [await anext(each) for each in following] == [None] * FOLLOWERS
        assert await hub.publish("tea", "It is hot.") == FOLLOWERS
        assert [await anext(each) for each in following] == ["It is hot."] * FOLLOWERS
        assert await hub.publish("coffee", "It is cold.") == 0
    await asyncio.to_thread(IN_PROCESS.close)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.end()


async def test_with_redis_each_follower_gets_the_message(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", redis.url)
    names = PAGE.run()
    async with aclosing(names["redis"]), asyncio.timeout(PATIENCE_S):
        following = [(await names["follow_redis"]("tea")).body_iterator for _ in range(3)]
        assert [await anext(each) for each in following] == [": following\n\n"] * 3
        assert await names["publish_redis"]("tea", "It is hot.") == 3
        assert [await anext(each) for each in following] == ['data: "It is hot."\n\n'] * 3
        for each in following:
            await each.aclose()


@pytest.fixture
def served(processes: Cluster, tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "messages.py").write_text(PAGE.code)
    served = processes.deploy("messages:app", tmp_path)
    yield served
    served.delete()


async def test_on_processes_the_followers_at_all_replicas_get_the_message(served: Served) -> None:
    async with AsyncExitStack() as stack, asyncio.timeout(PATIENCE_S):
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=served.url, trust_env=False, verify=False))
        following = []
        for _ in range(FOLLOWERS):
            response = await stack.enter_async_context(client.stream("GET", "/topics/tea"))
            lines = response.aiter_lines()
            assert await anext(lines) == ": following"
            following.append(lines)
        assert (await client.post("/topics/tea", json={"text": "It is hot."})).json() == FOLLOWERS
        for lines in following:
            assert [await anext(lines), await anext(lines)] == ["", 'data: "It is hot."']
