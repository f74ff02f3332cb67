"""The wait queue of one replica: positions, reservations and their ends."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from functools import partial

import httpx
import pytest

from app_toolkit.replica.admission import reservations as admission
from app_toolkit.replica.admission import wait_queue
from app_toolkit.replica.admission.replica import Replica, ReplicaStatistics
from app_toolkit.types import Message, Receive, Scope, Send
from app_toolkit.wire import hop
from tests.patience import PATIENCE_S, until
from tests.replica.talking import Talking, handshake, head

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _no_reservation_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "RESERVATION_S", PATIENCE_S)
    monkeypatch.setattr(wait_queue, "PENDING_S", PATIENCE_S)


class World:
    """A replica whose requests note their path, and end when they are released."""

    def __init__(self, slots: int = 1) -> None:
        self.entered: list[str] = []
        self.released: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.talking = Talking(self.app, max_ongoing_requests=slots)
        self.replica = self.talking.replica

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            return
        assert not [name for name, _ in scope["headers"] if hop.is_internal(name)]
        self.entered.append(scope["path"][1:])
        await self.released[scope["path"][1:]].wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    def ask(self, name: str, caller: bytes | None = None, *, slow: bool = False) -> Talking:
        """Send a request, which redeems a reservation of the caller. `slow`: its body is said to be slow."""
        asking = self.talking.beside()
        redeem = [] if caller is None else [(hop.REDEEM, caller)]
        mark = [(hop.SLOW_BODY, b"1")] if slow else []
        asking.say(head(target=b"/" + name.encode(), fields=[*redeem, *mark, HOST]))
        return asking

    async def enters(self, name: str, caller: bytes | None = None, *, slow: bool = False) -> Talking:
        """Send a request, and wait until the app runs."""
        asking = self.ask(name, caller, slow=slow)
        await until(lambda: name in self.entered)
        return asking

    async def serves(self, name: str, caller: bytes | None = None, *, slow: bool = False) -> None:
        self.released[name].set()
        assert (await self.ask(name, caller, slow=slow).response()).status_code == 200

    async def ends(self, name: str, asking: Talking) -> None:
        self.released[name].set()
        assert (await asking.response()).status_code == 200

    async def reserved_early(self, *names: bytes) -> tuple[list["Caller"], Talking]:
        """Callers that wait, of which two have a reservation, and the request of the first one, which runs."""
        first = await self.enters("first")
        callers = [Caller(self, name) for name in names]
        await self.ends("first", first)
        await callers[0].has(1)
        await callers[1].has(1)
        return callers, await self.enters("second", names[0])


HOST = (b"host", b"shop")


class Caller:
    """A caller in the wait queue of the replica."""

    def __init__(self, world: World, name: bytes) -> None:
        self.talking = world.talking.beside()
        self.talking.say(head(fields=[(hop.QUEUE, name), HOST]))

    @property
    def reservations(self) -> int:
        return self.talking.wire.said.partition(b"\r\n\r\n")[2].count(b".")

    async def has(self, reservations: int) -> None:
        """Wait until it has got at least so many reservations in all."""
        await until(lambda: self.reservations >= reservations)

    async def is_removed(self) -> None:
        await until(lambda: self.talking.wire.said.endswith(b"0\r\n\r\n"))

    def leave(self) -> None:
        self.talking.leave()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.talking.idle()
    assert world.replica.wait_queue.admits_unreserved


def refusal(response: httpx.Response) -> str:
    assert response.status_code == 503
    return response.headers[hop.REFUSED.decode()]


async def test_a_waiting_caller_gets_the_next_free_slot_before_other_requests(world: World) -> None:
    running = await world.enters("first")
    waiting = Caller(world, b"a")
    await until(lambda: world.replica.statistics().waiting_callers == 1)
    assert waiting.reservations == 0
    await world.ends("first", running)
    await waiting.has(1)
    assert refusal(await world.ask("stranger").response()) == "busy"
    await world.serves("second", b"a")
    assert world.entered == ["first", "second"]
    waiting.leave()


async def test_a_request_with_an_early_reservation_waits_until_the_slot_is_free(world: World) -> None:
    callers, second = await world.reserved_early(b"a", b"b")
    third = world.ask("third", b"b")
    await world.ends("second", second)
    await world.ends("third", third)
    for caller in callers:
        caller.leave()


async def test_an_early_request_is_refused_after_a_wait_and_its_caller_gets_the_next_reservation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_queue, "PENDING_S", 0.02)
    (one, two, three), second = await world.reserved_early(b"a", b"b", b"c")
    assert refusal(await world.ask("early", b"b").response()) == "busy"
    assert "early" not in world.entered
    assert (two.reservations, three.reservations) == (1, 0)
    one.leave()
    await world.ends("second", second)
    await two.has(2)
    await world.serves("third", b"b")
    two.leave()
    three.leave()


async def test_a_request_without_a_reservation_is_refused_by_a_full_replica(world: World) -> None:
    first = await world.enters("first")
    assert refusal(await world.ask("second", b"unknown").response()) == "busy"
    await world.ends("first", first)


async def test_a_caller_that_does_not_redeem_its_reservation_leaves_the_queue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "RESERVATION_S", 0.05)
    stopped = Caller(world, b"stopped")
    await stopped.has(1)
    behind = Caller(world, b"behind")
    await stopped.is_removed()
    await behind.has(1)
    behind.leave()


async def test_a_reservation_is_free_at_once_if_its_caller_dies(world: World) -> None:
    dying = Caller(world, b"dying")
    await dying.has(1)
    behind = Caller(world, b"behind")
    await until(lambda: world.replica.statistics().waiting_callers == 2)
    assert behind.reservations == 0
    dying.leave()
    await behind.has(1)
    behind.leave()


async def test_a_caller_that_joins_twice_loses_its_first_position(world: World) -> None:
    before = Caller(world, b"a")
    await before.has(1)
    again = Caller(world, b"a")
    await before.is_removed()
    await again.has(1)
    assert world.replica.statistics().waiting_callers == 1
    again.leave()


async def test_a_drain_closes_the_queue_and_refuses_early_requests() -> None:
    world = World()
    callers, second = await world.reserved_early(b"a", b"b")
    early = world.ask("third", b"b")
    assert not await world.replica.drain(0.01)
    assert refusal(await early.response()) in ("draining", "busy")
    for caller in callers:
        await caller.is_removed()
    assert refusal(await Caller(world, b"c").talking.response()) == "draining"
    await world.ends("second", second)
    assert await world.replica.drain(PATIENCE_S)
    assert world.replica.statistics().waiting_callers == 0
    assert "third" not in world.entered


async def test_a_slow_body_is_refused_beyond_half_of_the_slots_and_leaves_its_reserved_slot_to_others() -> None:
    world = World(slots=2)
    slow, second = await world.enters("slow", slow=True), await world.enters("second")
    waiting = Caller(world, b"a")
    await world.ends("second", second)
    await waiting.has(1)
    assert refusal(await world.ask("refused", b"a", slow=True).response()) == "slow_bodies"
    await waiting.has(2)
    await world.serves("third", b"a")
    waiting.leave()
    await until(lambda: world.replica.statistics().waiting_callers == 0)
    await world.ends("slow", slow)
    await world.talking.idle()
    await world.serves("fourth", slow=True)
    assert "refused" not in world.entered


async def test_a_websocket_that_redeems_a_reservation_takes_no_slot(world: World) -> None:
    one = Caller(world, b"a")
    await one.has(1)
    two = Caller(world, b"b")
    redeeming = world.talking.beside()
    redeeming.say(handshake(b"/", (hop.REDEEM, b"a")))
    await until(lambda: b"101 Switching Protocols" in redeeming.wire.said)
    await until(lambda: one.reservations + two.reservations == 2)  # the slot is offered again
    one.leave()
    two.leave()


async def test_a_caller_cannot_join_the_queue_without_the_secret(world: World) -> None:
    stranger = world.talking.beside()
    stranger.say(head(fields=[(hop.QUEUE, b"a"), HOST], secret=b"a-wrong-one"))
    assert refusal(await stranger.response()) == "secret"
    assert world.replica.statistics().waiting_callers == 0


async def test_an_early_request_whose_caller_disconnects_leaves_its_slot_to_the_next(world: World) -> None:
    callers, second = await world.reserved_early(b"a", b"b")
    third = world.ask("third", b"b")
    await asyncio.sleep(0)
    third.leave()
    await world.ends("second", second)
    await until(lambda: sum(each.reservations for each in callers) == 4)  # its slot is offered again
    assert world.entered == ["first", "second"]
    for caller in callers:
        caller.leave()


@pytest.mark.parametrize("in_time", [True, False], ids=["before-its-slot", "with-its-slot"])
async def test_an_early_request_that_is_cancelled_leaves_its_slot_to_the_next(in_time: bool) -> None:
    entered: list[str] = []
    go = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        entered.append(scope["path"])
        await go.wait()

    async def nothing(_: Message | None = None) -> Message:
        return {}

    replica = Replica(app, name="r", max_ongoing_requests=1)

    def request(path: str, caller: str | None) -> asyncio.Task[None]:
        return asyncio.create_task(replica.serve({"type": "http", "path": path}, nothing, nothing, caller=caller))

    first = request("first", None)
    await asyncio.sleep(0)
    heard: list[str] = []
    to_cancel: list[asyncio.Task[None]] = []

    def reserved(name: str) -> None:
        heard.append(name)
        if to_cancel:  # its slot has been given to it this moment, and it has not run since
            to_cancel.pop().cancel()

    positions = [replica.wait_queue.join(name, partial(reserved, name), partial(heard.append, "end")) for name in "ab"]
    go.set()
    await first
    go.clear()
    assert heard == ["a", "b"]
    second = request("second", "a")
    await asyncio.sleep(0)
    early = request("third", "b")
    await asyncio.sleep(0)
    assert entered == ["first", "second"]
    if in_time:
        early.cancel()
    else:
        to_cancel.append(early)
    go.set()
    await second
    with pytest.raises(asyncio.CancelledError):
        await early
    assert entered == ["first", "second"]
    assert replica.statistics().ongoing == 0
    assert heard[2:] == ["a", "b"]
    for position in positions:
        position.leave()
    assert replica.wait_queue.admits_unreserved
    assert replica.statistics() == ReplicaStatistics(0, 0, 0, draining=False)
