"""An application with several replicas, whose stream log is therefore shared, on processes."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from app_toolkit.control.operations import AddCandidate
from app_toolkit.control.promotion import Promote
from app_toolkit.declare.planning import plan, shared_logs
from app_toolkit.errors import ConfigError
from app_toolkit.userapp.loading import load
from tests.cluster import E2E, Cluster, Served
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.anyio

MISSING = (
    "the stream log 'stream-log' of application 'stream-log' is not deployed: run "
    "`app-toolkit deploy app_toolkit.streaming.service:log --name stream-log`"
)


@pytest.fixture(scope="module")
def chats(processes: Cluster) -> Iterator[Served]:
    served = processes.deploy("shared_streams:one")
    yield served
    served.delete()
    (log,) = shared_logs([served.spec])
    with suppress(ConfigError):  # the test that deploys it may not run
        Served(processes, log).delete()


async def sent(http: httpx.AsyncClient, prompt: str, chat: str) -> httpx.Response:
    message = {"role": "user", "parts": [{"type": "text", "text": prompt}]}
    return await http.post("/api/chat", json={"id": chat, "message": message})


def client(served: Served) -> httpx.AsyncClient:
    # A new connection for each request, so that both replicas get some.
    limits = httpx.Limits(max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=PATIENCE_S, limits=limits)


async def test_a_shared_log_that_is_not_deployed_is_a_sentence_with_a_status(chats: Served) -> None:
    async with client(chats) as http:
        answer = await sent(http, "3", "a")
        assert (answer.status_code, answer.text) == (503, MISSING)
        for path in ("/numbers", "/numbers?stream=one", "/streams/one"):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()) == (503, {"detail": MISSING}), path


async def begun(http: httpx.AsyncClient) -> None:
    """Wait until the response of the chat can be resumed."""
    while True:
        async with http.stream("GET", "/api/chat/long/stream") as answer:
            if answer.status_code == 200:
                return


async def words(http: httpx.AsyncClient, found: list[str]) -> list[str]:
    """Resume the response of the chat from its start, at any replica. Return its words when it has ended."""
    async with http.stream("GET", "/api/chat/long/stream") as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            found += re.findall(r'"delta":"(\d+) "', line)
    return found


async def test_streams_are_resumed_at_every_replica_and_after_an_update_and_a_promotion(chats: Served) -> None:
    cluster = chats.cluster
    (log,) = shared_logs([chats.spec])
    await asyncio.to_thread(cluster.apply, log)
    async with client(chats) as http:
        sending = asyncio.create_task(sent(http, "100000", "long"))
        await begun(http)
        found: list[list[str]] = [[] for _ in range(12)]
        reading = [asyncio.create_task(words(http, each)) for each in found[:10]]
        await until(lambda: all(found[:10]))
        again = plan(
            load("shared_streams:two", str(E2E)), target="shared_streams:two", app_dir=str(E2E),
            name=chats.spec.name, route_prefix=chats.spec.route_prefix,
        )  # fmt: skip
        await asyncio.to_thread(cluster.update, again)
        while (await http.get("/openapi.json")).json()["info"]["title"] != "two":
            pass
        reading.append(asyncio.create_task(words(http, found[10])))
        await until(lambda: len(found[10]) > 10)
        number = await asyncio.to_thread(
            cluster.client.execute, AddCandidate(chats.spec, tag="next", owner=cluster.client.owner)
        )
        ready = lambda now: any(each["revision"] == number and each["is_ready"] for each in now["traffic"])  # noqa: E731
        await asyncio.to_thread(chats.wait, ready)
        await asyncio.to_thread(cluster.client.execute, Promote(chats.spec.name))
        while (await http.get("/openapi.json")).json()["info"]["title"] != "one":
            pass
        reading.append(asyncio.create_task(words(http, found[11])))
        await until(lambda: len(found[11]) > 10)
        assert (await http.post("/api/chat/long/stop")).json() == {"success": True, "stopped": True}
        (first, *others) = await asyncio.gather(*reading)
        assert first == [str(number) for number in range(len(first))]
        assert all(each == first for each in others)
        assert (await sending).status_code == 200
