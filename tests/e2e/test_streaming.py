"""Resumable streams on processes: their clients get each event once and in order through kills and updates."""

import asyncio
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

import httpx
import pytest

from app_toolkit.control.operations import Delete
from app_toolkit.declare.planning import plan
from app_toolkit.userapp.loading import load
from tests.cluster import E2E, Cluster, Served
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.anyio

LAST = 150
CLIENTS = 20


@pytest.fixture(scope="module")
def streams(processes: Cluster) -> Iterator[Served]:
    log = processes.deploy("streamlog:log", name="stream-log")
    served = processes.deploy("streams:one")
    yield served
    for each in (served, log):  # which may drain for the ten seconds that follow the end of a controller
        processes.client.execute(Delete(each.spec.name))


class Reader:
    """Follows one stream, and comes back when its connection ends."""

    def __init__(self, http: httpx.AsyncClient, path: str = "/numbers", *, last: int = LAST) -> None:
        self._http = http
        self._path = f"{path}{'' if '?' in path else '?'}last={last}"
        self._last = last
        self.numbers: list[int] = []
        self.errors: list[str] = []
        self.connections = 0
        self.id: str | None = None

    async def follow(self, leave: float = 0.0) -> None:
        """Read to the end. `leave`: the share of events after which the client disconnects."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.numbers) < self._last and not self.errors:
                self.connections += 1
                with suppress(httpx.TransportError):  # a proxy that was killed
                    await self._connect(leave)

    async def _connect(self, leave: float) -> None:
        headers = {"last-event-id": self.id} if self.id else {}
        async with self._http.stream("GET", self._path, headers=headers) as answer:
            if answer.status_code == 503:  # no proxy or replica at this moment
                await asyncio.sleep(0.1)
                return
            assert answer.status_code == 200, answer.status_code
            event: dict[str, str] = {}
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                event[name] = value
                if line:
                    continue
                if event.get("event") == "error":
                    self.errors.append(json.loads(event["data"])["error"])
                elif "id" in event:
                    self.numbers.append(int(event["data"]))
                    self.id = event["id"]
                    if random.random() < leave:
                        return
                event = {}


async def reached(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - a condition that nobody announces
            await asyncio.sleep(0.02)


def client(served: Served) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=served.url, trust_env=False, timeout=PATIENCE_S, limits=limits)


async def test_a_stream_whose_replica_is_killed_ends_with_an_error_or_continues(streams: Served) -> None:
    async with client(streams) as http:
        readers = {path: [Reader(http, path) for _ in range(6)] for path in ("/numbers", "/lasting")}
        every = [reader for of_path in readers.values() for reader in of_path]
        following = [asyncio.create_task(reader.follow()) for reader in every]
        await reached(lambda: min(len(reader.numbers) for reader in every) >= 3)
        os.kill(int((await http.get("/pid")).text), signal.SIGKILL)
        await asyncio.gather(*following)
    for reader in every:
        assert reader.numbers == list(range(1, len(reader.numbers) + 1))
        assert reader.errors == ([] if len(reader.numbers) == LAST else ["stream_lost"])
    assert any(reader.errors for reader in readers["/numbers"])
    assert not any(reader.errors for reader in readers["/lasting"])
    wait_until(lambda: streams.status()["status"] == "healthy")


async def test_a_stop_reaches_the_replica_that_generates(streams: Served) -> None:
    async with client(streams) as http:
        reader = Reader(http, last=100_000)
        following = asyncio.create_task(reader.follow())
        await reached(lambda: bool(reader.numbers))
        assert reader.id is not None
        stream = reader.id.partition(":")[0]
        assert (await http.post(f"/streams/{stream}/stop")).json() == {"stopped": True}
        while (await http.post(f"/streams/{stream}/stop")).json() != {"stopped": False}:
            pass
        following.cancel()
        await asyncio.wait([following])
        rest = await http.get(f"/streams/{stream}?after={reader.numbers[-1]}")
        assert rest.status_code in (200, 204)
        assert "event: error" not in rest.text


async def test_every_client_gets_each_event_once_and_in_order_through_kills_and_an_update(streams: Served) -> None:
    cluster = streams.cluster
    async with client(streams) as http:
        readers = [Reader(http) for _ in range(CLIENTS)]
        following = [asyncio.create_task(reader.follow(leave=0.03)) for reader in readers]
        await reached(lambda: min(len(reader.numbers) for reader in readers) >= 5)
        os.kill(await asyncio.to_thread(cluster.proxy_pid), signal.SIGKILL)
        again = plan(
            load("streams:two", str(E2E)), target="streams:two", app_dir=str(E2E),
            name=streams.spec.name, route_prefix=streams.spec.route_prefix,
        )  # fmt: skip
        await asyncio.to_thread(cluster.update, again)
        os.kill(await asyncio.to_thread(cluster.controller_pid), signal.SIGKILL)
        await asyncio.gather(*following)
        for reader in readers:
            assert reader.numbers == list(range(1, LAST + 1))
            assert not reader.errors
        assert max(reader.connections for reader in readers) > 1
