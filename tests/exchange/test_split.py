"""The member that gets a call of a split, and the calls of a process that does not know the weights yet."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from math import sqrt
from random import Random

import pytest

from app_toolkit.calls.remote import RemoteDataPlane
from app_toolkit.contract.snapshots import encode
from app_toolkit.contract.targets import members
from app_toolkit.declare.deployment import NamedDeployment
from app_toolkit.declare.split import split
from app_toolkit.errors import ConfigError, DeadlineExceeded, NoReplica, QueueFull
from app_toolkit.interfaces import REPLICAS, SPLITS, Call, Snapshot, Version, WeightedCallee
from tests import published
from tests.exchange.deployments import Writer
from tests.keys import app, key
from tests.patience import until

pytestmark = pytest.mark.anyio

CALLS = 900


class Named(WeightedCallee):
    """A split of classes without code."""

    name = "writer"
    cls = Writer

    def __init__(self, **shares: float) -> None:
        self.members = {each: NamedDeployment("shop", each, {}) for each in shares}
        self.shares = shares


@pytest.fixture
async def plane() -> AsyncIterator[RemoteDataPlane]:
    plane = RemoteDataPlane(b"secret", "shop", ("one", "two"), draw=Random(7).random)
    yield plane
    await plane.aclose()


def publish(plane: RemoteDataPlane, number: int, **shares: float) -> None:
    value = encode(members(app("shop"), shares)) if shares else None
    plane.registry.update({f"{SPLITS}shop/writer": Snapshot(Version(1, number), value)})


async def chosen(plane: RemoteDataPlane, named: Named, calls: int = CALLS) -> Counter[str]:
    """Return how many of these calls each member gets."""
    tasks = [asyncio.create_task(plane.client_of(named).call(Call("write", (), {}))) for _ in range(calls)]
    await asyncio.sleep(0)
    waiting = Counter({each.deployment: load.waiting for each, load in plane.call_loads().items()})
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not any(load.waiting for load in plane.call_loads().values())
    return +waiting


async def test_published_shares_replace_those_of_the_code(plane: RemoteDataPlane) -> None:
    named = Named(one=0.9, two=0.1)
    publish(plane, 1, one=0.1, two=0.9)
    found = await chosen(plane, named)
    assert abs(found["one"] - 0.1 * CALLS) <= 3 * sqrt(CALLS * 0.1 * 0.9)
    publish(plane, 2, one=0.0, two=1.0)
    assert await chosen(plane, named, 100) == {"two": 100}
    publish(plane, 3)
    assert (await chosen(plane, named, 100)).keys() == {"one", "two"}, "the split was removed"


async def test_call_waits_until_the_weights_are_published(plane: RemoteDataPlane) -> None:
    named = Named(one=0.9, two=0.1)
    calls = [asyncio.create_task(plane.client_of(named).call(Call("write", (), {}))) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(load.waiting for load in plane.call_loads().values()), "no member has the calls"
    publish(plane, 1, one=0.0, two=1.0)
    await until(lambda: plane.call_loads()[key("shop/two")].waiting == 3)
    assert plane.call_loads()[key("shop/one")].waiting == 0
    for each in calls:
        each.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_call_that_waited_for_the_weights_has_the_options_of_its_member(plane: RemoteDataPlane) -> None:
    call = asyncio.create_task(plane.client_of(Named(one=1.0)).call(Call("write", (), {})))
    await asyncio.sleep(0)
    member, full = encode(members(app("shop"), {"one": 1.0})), published.replica_set(max_queued_requests=0)
    values = {f"{SPLITS}shop/writer": member, f"{REPLICAS}shop/one": full}
    plane.registry.update({name: Snapshot(Version(1, 1), value) for name, value in values.items()})
    with pytest.raises(QueueFull, match="its max_queued_requests is 0"):
        await call


async def test_call_that_waits_for_weights_fails_at_its_deadline(plane: RemoteDataPlane) -> None:
    with pytest.raises(DeadlineExceeded, match="write of writer did not respond before its deadline"):
        await plane.client_of(Named(one=1.0)).call(Call("write", (), {}, timeout_s=0.01))


async def test_calls_beyond_the_bound_are_refused_while_weights_are_unknown(plane: RemoteDataPlane) -> None:
    client = plane.client_of(Named(one=1.0))
    waiting = [asyncio.create_task(client.call(Call("write", (), {}))) for _ in range(1_000)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull, match="1000 requests wait for writer, its max_queued_requests is 1000"):
        await client.call(Call("write", (), {}))
    await plane.aclose()
    assert {type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)} == {NoReplica}


async def test_split_that_is_not_deployed_is_an_error_of_one_sentence(plane: RemoteDataPlane) -> None:
    with pytest.raises(ConfigError, match="'three' is not deployed with application 'shop': make a route depend on it"):
        plane.client_of(split({Writer.options(name="three").bind(): 1}, name="writer"))


async def test_process_follows_a_split_of_another_application() -> None:
    plane, asked = RemoteDataPlane(b"secret"), asyncio.Queue[tuple[str, ...]]()

    async def watch(seen: object, prefixes: tuple[str, ...]) -> dict[str, Snapshot]:
        asked.put_nowait(prefixes)
        await asyncio.Event().wait()
        return {}

    follow: Callable[..., object] = watch
    run = asyncio.create_task(plane.run(follow))  # type: ignore[arg-type]
    plane.client_in(app("bank"), Named(one=1.0))
    async with asyncio.timeout(5):
        assert await asked.get() == ("splits/bank/writer/",)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    await plane.aclose()
