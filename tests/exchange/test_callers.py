"""The deployments that a process calls, and the snapshots that it follows."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from app_toolkit.calls.remote import RemoteDataPlane, RemoteDeploymentClient
from app_toolkit.contract.loads import Compared, Loads, Lost
from app_toolkit.errors import ConfigError
from app_toolkit.exchange import registry
from app_toolkit.interfaces import REPLICAS, Snapshot, Version
from tests import published
from tests.exchange.deployments import Writer
from tests.exchange.waiting import acquire
from tests.keys import key
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

OWN = ("replicas/shop/", "splits/shop/")
"""The prefixes that a replica of application `shop` follows."""


class Publisher:
    """The published snapshots, and the prefixes that are watched."""

    def __init__(self) -> None:
        self.snapshots: dict[str, Snapshot] = {}
        self.asked: list[tuple[str, ...]] = []
        self.unreached = 0
        """How often it is still asked in vain."""
        self._news = asyncio.Event()

    def publish(self, group: str) -> None:
        value = published.replica_set(published.replica(f"{group}#1", "unix:/nowhere", 1))
        self.snapshots[REPLICAS + group] = Snapshot(Version(1, len(self.snapshots) + 1), value)
        self._news.set()

    async def watch(self, seen: Mapping[str, Version], beginnings: tuple[str, ...]) -> Mapping[str, Snapshot]:
        self.asked.append(tuple(sorted(beginnings)))
        if self.unreached > 0:
            self.unreached -= 1
            raise OSError("it cannot be reached")
        while True:
            self._news.clear()
            news = {
                key: snapshots
                for key, snapshots in self.snapshots.items()
                if f"{key}/".startswith(beginnings) and key not in seen
            }
            if news:
                return news
            await self._news.wait()


@asynccontextmanager
async def following(*callees: str) -> AsyncIterator[tuple[RemoteDataPlane, Publisher]]:
    callers, publisher = RemoteDataPlane(b"secret", "shop", callees), Publisher()
    run = asyncio.create_task(callers.run(publisher.watch))
    try:
        await asyncio.sleep(0)
        yield callers, publisher
    finally:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        await callers.aclose()


async def sent_to(caller: RemoteDeploymentClient) -> str:
    """The replica that a call goes to, once there is one."""
    async with asyncio.timeout(PATIENCE_S):
        permit = caller.router.try_acquire() or await acquire(caller.router)
    caller.router.release(permit)
    return permit.endpoint.id


async def test_a_process_that_calls_no_deployment_follows_no_snapshot() -> None:
    async with following() as (_, publisher):
        await asyncio.sleep(0.01)
        assert publisher.asked == []


async def test_the_first_call_of_another_deployment_asks_for_its_snapshot() -> None:
    async with following("writer") as (callers, publisher):
        bank = callers.client_at(key("bank/teller"))
        publisher.publish("bank/teller")
        assert await sent_to(bank) == "bank/teller#1"
        assert publisher.asked[:2] == [OWN, ("replicas/bank/teller/", *OWN)]


async def test_a_publisher_that_cannot_be_reached_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "AGAIN_S", 0.0)
    async with following("writer") as (callers, publisher):
        publisher.unreached = 3
        bank = callers.client_at(key("bank/teller"))
        publisher.publish("bank/teller")
        assert await sent_to(bank) == "bank/teller#1"
        assert publisher.unreached == 0


async def test_a_snapshot_received_before_the_first_call_is_used() -> None:
    async with following() as (callers, publisher):
        publisher.publish("bank/teller")
        publisher.publish("bank/safe")
        assert await sent_to(callers.client_at(key("bank/teller"))) == "bank/teller#1"
        assert await sent_to(await asyncio.to_thread(callers.client_at, key("bank/safe"))) == "bank/safe#1"
        assert callers.client_at(key("bank/safe")) is callers.client_at(key("bank/safe"))


async def test_calls_that_wait_for_the_first_replica_are_reported_at_once() -> None:
    async with following() as (callers, _):
        shown: asyncio.Queue[Loads] = asyncio.Queue()

        async def report(loads: Loads, compared: Compared, lost: Lost) -> bool:
            shown.put_nowait(loads)
            return True

        async def nobody(seen: Mapping[str, Version], beginnings: tuple[str, ...]) -> Mapping[str, Snapshot]:
            await asyncio.Event().wait()
            return {}

        for number, name in enumerate(("safe", "teller"), 1):
            value = published.replica_set(reported=name == "teller")
            caller = callers.client_at(key(f"bank/{name}"))
            callers.registry.update({f"{REPLICAS}bank/{name}": Snapshot(Version(1, number), value)})
            assert (caller.router.waiting, caller.router.replicas) == (0, 0)
        run = asyncio.create_task(callers.run(nobody, report))
        waiting = [
            asyncio.create_task(acquire(callers.client_at(key(f"bank/{name}")).router))
            for name in ("safe", "teller", "teller")
        ]
        async with asyncio.timeout(PATIENCE_S):
            assert await shown.get() == {key("bank/teller"): (2, 0, 0, 0)}
        for each in (run, *waiting):
            each.cancel()
        await asyncio.gather(run, *waiting, return_exceptions=True)
        assert shown.empty()


async def test_of_its_own_application_only_callees_are_called() -> None:
    async with following("other") as (callers, _):
        with pytest.raises(ConfigError, match="'writer' is not deployed with application 'shop'"):
            callers.client_of(Writer.bind())
