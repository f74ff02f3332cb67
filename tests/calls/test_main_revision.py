"""Calls to the main revision of another application, while it is published which revision that is."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from app_toolkit.calls.remote import RemoteDataPlane
from app_toolkit.declare.deployment import NamedDeployment
from app_toolkit.interfaces import Call, Snapshot, Version
from tests import published
from tests.patience import until
from tests.replica.client import SECRET, Serve, Served

pytestmark = pytest.mark.anyio

SOURCE = """
    from app_toolkit.calls.served_calls import Calls
    from app_toolkit.calls.hosted_object import HostedObject

    class Teller:
        async def who(self):
            return id(self)

    app = Calls(HostedObject(Teller, name="teller"))
"""
WHO = Call("who", (), {})
TELLER = NamedDeployment("bank", "teller", {"who": "coroutine"})


@pytest.fixture
def serve() -> Iterator[Serve]:
    serve = Serve()
    yield serve
    serve.close()


@pytest.fixture
async def callers() -> AsyncIterator[RemoteDataPlane]:
    callers = RemoteDataPlane(SECRET, "shop")
    yield callers
    await callers.aclose()


def publish(callers: RemoteDataPlane, number: int, **values: Any) -> None:
    """Publish the main revision and replicas of live revisions, by their names. None: the key is removed."""
    snapshots: dict[str, Snapshot] = {}
    for name, value in values.items():
        is_replica = isinstance(value, Served)
        key = "mains/bank" if name == "main" else f"replicas/bank{name.removeprefix('of').replace('_', '@')}/teller"
        shown = published.replica_set(published.replica(f"{name}-1-1", value.address, 2)) if is_replica else value
        snapshots[key] = Snapshot(Version(1, number), shown)
    callers.registry.update(snapshots)


async def test_calls_wait_until_a_main_revision_is_published_and_follow_a_promotion(
    serve: Serve, callers: RemoteDataPlane
) -> None:
    bank = callers.client_in_main("bank", TELLER)
    waiting = asyncio.create_task(bank.call(WHO))
    await until(lambda: any(router.waiting for router in callers.registry.unpublished.values()))
    publish(callers, 1, main="bank", of=serve(SOURCE))
    first = await waiting
    assert await bank.call(WHO) == first
    publish(callers, 2, of_2=serve(SOURCE))
    assert await bank.call(WHO) == first, "it is a candidate"
    publish(callers, 3, main="bank@2")
    other = await bank.call(WHO)
    assert other != first
    publish(callers, 4, of=None)
    assert await bank.call(WHO) == other, "the former main revision is gone"


async def test_calls_of_an_application_that_was_deleted_wait_until_it_is_deployed_again(
    serve: Serve, callers: RemoteDataPlane
) -> None:
    bank = callers.client_in_main("bank", TELLER)
    publish(callers, 1, main="bank", of=serve(SOURCE))
    await bank.call(WHO)
    publish(callers, 2, main=None, of=None)
    waiting = asyncio.create_task(bank.call(WHO))
    await until(lambda: any(router.waiting for router in callers.registry.unpublished.values()))
    publish(callers, 3, main="bank", of=serve(SOURCE))
    assert await waiting
