"""Calls over sockets to replicas."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from app_toolkit.calls.remote import CallLoad, RemoteDataPlane, RemoteDeploymentClient
from app_toolkit.errors import FaultInjected, NoReplica, ReplicaGone, ReplicaLost
from app_toolkit.exchange.filters.faults import FAULTS
from app_toolkit.exchange.placement.hashed import most_preferred
from app_toolkit.exchange.placement.prefix import PIECE
from app_toolkit.interfaces import Call, Snapshot, Version
from app_toolkit.types import Address, ReplicaId
from app_toolkit.wire.pool import PooledConnection, connect
from tests import published
from tests.keys import key
from tests.patience import PATIENCE_S, until
from tests.replica.client import SECRET, Serve, Served

pytestmark = pytest.mark.anyio

SOURCE = """
    import asyncio
    from app_toolkit.calls.served_calls import Calls
    from app_toolkit.calls.hosted_object import HostedObject

    class Model:
        async def who(self, prompt):
            return id(self)

        async def double(self, number):
            return 2 * number

        async def zeros(self, size):
            return bytes(size)

        async def hold(self):
            mark("began")
            try:
                await hold_until("open")
            except asyncio.CancelledError:
                mark("was cancelled")
                raise

        async def count(self, most):
            for number in range(most):
                yield number

    app = Calls(HostedObject(Model, name="model"))
"""


@pytest.fixture
def serve() -> Iterator[Serve]:
    serve = Serve()
    yield serve
    serve.close()


class Calling:
    """The callers of one process, with the replicas of the test."""

    def __init__(self) -> None:
        self.callers = RemoteDataPlane(SECRET, "shop", ("model",))
        self._number = 0

    def publish(
        self, *replicas: Served | Address, idempotent: tuple[str, ...] = (), **policy: object
    ) -> RemoteDeploymentClient:
        self._number += 1
        shown = [
            published.replica(f"shop.model-1-{number}", replica.address if isinstance(replica, Served) else replica, 2)
            for number, replica in enumerate(replicas)
        ]
        value = published.replica_set(*shown, idempotent=idempotent, **policy)
        self.callers.registry.update({"replicas/shop/model": Snapshot(Version(1, self._number), value)})
        return self.callers.client_at(key("shop/model"))

    async def gives_everything_back(self) -> None:
        await until(lambda: not any(each.waiting or each.ongoing for each in self.callers.call_loads().values()))


@pytest.fixture
async def calling() -> AsyncIterator[Calling]:
    calling = Calling()
    yield calling
    await calling.gives_everything_back()
    await calling.callers.aclose()


def double(number: int, **options: object) -> Call:
    return Call("double", (number,), {}, **options)  # type: ignore[arg-type]


async def test_a_call_is_answered_and_its_connection_serves_the_next(serve: Serve, calling: Calling) -> None:
    caller = calling.publish(serve(SOURCE))
    assert [await caller.call(double(number)) for number in range(3)] == [0, 2, 4]
    assert calling.callers.pool.idle == 1


async def test_a_call_that_yields_items_is_a_stream_in_the_load_from_its_first_item_to_its_end(
    serve: Serve, calling: Calling
) -> None:
    caller = calling.publish(serve(SOURCE))
    items = caller.stream(Call("count", (1_000_000,), {}))
    assert await anext(items) == 0
    assert calling.callers.call_loads() == {key("shop/model"): CallLoad(waiting=0, ongoing=0, streams=1)}
    calling.publish()
    assert calling.callers.call_loads()[key("shop/model")].streams == 1, "its replica is removed, and still serves it"
    await items.aclose()
    assert calling.callers.call_loads() == {key("shop/model"): CallLoad(0, 0)}


async def test_a_connection_that_is_lost_before_anybody_listens_is_no_loss(
    serve: Serve, calling: Calling, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = calling.publish(serve(SOURCE))
    dial = calling.callers.pool.dial
    lost: list[PooledConnection] = []

    async def lose(address: Address, reached: Callable[[PooledConnection], None]) -> None:
        gone = asyncio.Event()
        _, connection = await connect(address, lambda: PooledConnection(address, lambda _: gone.set()))
        connection.abort()
        await gone.wait()
        lost.append(connection)
        reached(connection)

    def once(
        address: Address,
        reached: Callable[[PooledConnection], None],
        failed: Callable[[ReplicaGone], None],
    ) -> None:
        if lost:
            dial(address, reached, failed)
        else:
            losing.append(asyncio.create_task(lose(address, reached)))

    losing: list[asyncio.Task[None]] = []
    monkeypatch.setattr(calling.callers.pool, "dial", once)
    async with asyncio.timeout(PATIENCE_S):
        assert await caller.call(double(21)) == 42
    assert len(lost) == 1


async def test_a_replica_that_cannot_be_reached_is_passed_over(serve: Serve, calling: Calling) -> None:
    caller = calling.publish(Address("unix:/nowhere/at/all.sock"), serve(SOURCE))
    assert [await caller.call(double(number)) for number in range(8)] == [2 * number for number in range(8)]


async def test_a_call_waits_for_a_full_replica(serve: Serve, calling: Calling) -> None:
    replica = serve(SOURCE, max_ongoing_requests=1)
    caller = calling.publish(replica)
    holding = asyncio.create_task(caller.call(Call("hold", (), {})))
    await until(lambda: replica.marked("began"))
    waiting = asyncio.create_task(caller.call(double(4)))
    await until(lambda: caller.router.waiting > 0)
    replica.release("open")
    assert await waiting == 8
    await holding


async def test_a_call_without_the_secret_is_refused(serve: Serve, calling: Calling) -> None:
    calling.callers.token = b"wrong"
    caller = calling.publish(serve(SOURCE))
    with pytest.raises(ReplicaLost, match=r"replica shop.model-1-0 rejected the caller's .* \(secret\)"):
        await caller.call(double(1))


async def test_waiting_calls_fail_when_the_callers_close(calling: Calling) -> None:
    caller = calling.publish()
    waiting = asyncio.create_task(caller.call(double(1)))
    await asyncio.sleep(0)
    await calling.callers.aclose()
    with pytest.raises(NoReplica, match="the router of model is closed"):
        await waiting


@pytest.fixture
async def dying(tmp_path: Path) -> AsyncIterator[Address]:
    """A replica that takes each request and is gone before it answers."""

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    path = tmp_path / "dying.sock"
    async with await asyncio.start_unix_server(die, path):
        yield Address(f"unix:{path}")


@pytest.mark.parametrize(("policy", "retry"), [("idempotent", None), ("none", "idempotent")])
async def test_a_call_of_an_idempotent_method_is_made_again_when_its_replica_is_lost(
    serve: Serve, calling: Calling, dying: Address, policy: str, retry: str | None
) -> None:
    caller = calling.publish(dying, idempotent=("double",), retry=policy)
    result = asyncio.create_task(caller.call(double(2, retry=retry)))
    await until(lambda: caller.router.ongoing == 1)
    calling.publish(dying, serve(SOURCE), serve(SOURCE), idempotent=("double",), retry=policy)
    assert await result == 4


async def test_a_call_made_before_the_first_snapshot_is_made_again_when_its_replica_is_lost(
    serve: Serve, calling: Calling, dying: Address
) -> None:
    caller = calling.callers.client_at(key("shop/model"))
    result = asyncio.create_task(caller.call(double(2)))
    await until(lambda: caller.router.waiting == 1)
    calling.publish(dying, idempotent=("double",))
    calling.publish(dying, serve(SOURCE), serve(SOURCE), idempotent=("double",))
    assert await result == 4


@pytest.mark.parametrize(
    ("idempotent", "policy", "retry"),
    [
        ((), "idempotent", None),
        (("zeros",), "idempotent", None),
        (("double",), "none", None),
        (("double",), "idempotent", "none"),
    ],
)
async def test_a_call_that_may_not_be_repeated_is_not_made_again(
    calling: Calling, dying: Address, idempotent: tuple[str, ...], policy: str, retry: str | None
) -> None:
    caller = calling.publish(dying, idempotent=idempotent, retry=policy)
    with pytest.raises(ReplicaLost, match="the outcome of double is unknown"):
        await caller.call(double(2, retry=retry))


async def test_callers_apply_a_changed_routing_policy_at_once_unless_a_call_has_a_key(
    serve: Serve, calling: Calling
) -> None:
    replicas = serve(SOURCE), serve(SOURCE)
    names = [ReplicaId("shop.model-1-0"), ReplicaId("shop.model-1-1")]
    caller = calling.publish(*replicas, routing_policy="tests.exchange.policies:last")

    async def called(times: int, affinity: str | None = None) -> set[int]:
        call = Call("who", ("a prompt of one piece".ljust(PIECE),), {}, affinity=affinity)
        return {await caller.call(call) for _ in range(times)}

    last = await called(40)
    assert len(last) == 1
    key = next(key for key in map(str, range(100)) if most_preferred(key, tuple(names)) == names[0])
    first = await called(1, affinity=key)
    assert first.isdisjoint(last)
    calling.publish(*replicas, routing_policy="prefix")
    assert len(await called(40)) == 1
    calling.publish(*replicas)
    assert await called(40) == first | last


async def test_calls_get_the_faults_of_their_deployment(serve: Serve, calling: Calling) -> None:
    replica = serve(SOURCE)
    caller = calling.publish(replica, faults={"abort_status": 503, "abort_percent": 100})
    with pytest.raises(FaultInjected, match="the option faults of shop/model"):
        await caller.call(double(1))
    counted = [each for each in calling.callers.samples() if each.metric == FAULTS]
    assert [(each.labels, each.numbers) for each in counted] == [(("shop/model", "abort"), [1])]
    calling.publish(replica)
    assert await caller.call(double(1)) == 2
