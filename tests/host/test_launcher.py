"""The launcher of all engines, on processes whose start and end a test decides."""

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

import pytest

from app_toolkit.config.models import DeploymentConfig
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.control.reconcile import Kill, Probe, Start, Stop
from app_toolkit.control.replica_state import Exited, Found, ProbeFailed, Started, Unplaceable
from app_toolkit.errors import Unresponsive
from app_toolkit.host import launcher as module
from app_toolkit.host import orders
from app_toolkit.host.launcher import Ending, Process, ProcessLauncher, Unreachable
from app_toolkit.host.orders import Order
from app_toolkit.interfaces import Location, ReloadableOptions, Resources
from app_toolkit.types import Address, NodeId, ReplicaId
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

R = TypeVar("R")

ID = ReplicaId("shop.web-1-1")
LOCATION = Location(Address("unix:/web"), NodeId("n"))
WEB = ReplicaSetKey("shop", "web")
SPEC = ReplicaSpec(ID, "shop", DeploymentConfig(name="web"), "shop:app", ".", "", ReloadableOptions(1))
START = Start(SPEC, Resources(), WEB, "v1")


class ScriptedProcess:
    """A process that answers each order with what the test says. By default it obeys."""

    is_running = True

    def __init__(self) -> None:
        self.answers: dict[type, Any] = {orders.Start: LOCATION}
        self.killed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def running(self) -> None: ...

    async def order(self, order: Order[Any, R]) -> R:
        answer: Any = self.answers.get(type(order))
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        result: R = answer
        return result

    async def ended(self) -> Ending:
        await self.killed
        return Ending("the process was killed")

    async def kill(self) -> None:
        self.killed.set_result(None)


class ScriptedProcesses:
    home = NodeId("n")

    def __init__(self, process: ScriptedProcess) -> None:
        self.process = process
        self.may_start = asyncio.Event()
        self.may_start.set()

    async def start(self, action: Start) -> Process:
        await self.may_start.wait()
        return self.process

    async def existing(self) -> Mapping[ReplicaId, Process | None]:
        return {ID: self.process}

    async def lack(self, action: Start, waited_s: float) -> Unplaceable | None:
        return None


class Launching:
    def __init__(self) -> None:
        self.process = ScriptedProcess()
        self.engine = ScriptedProcesses(self.process)
        self.launcher = ProcessLauncher(self.engine, b"secret")
        self._events: asyncio.Queue[object] = asyncio.Queue()
        self.launcher.listen(self._events.put_nowait, epoch=3)

    async def event(self) -> object:
        async with asyncio.timeout(PATIENCE_S):
            return await self._events.get()


async def test_a_process_that_is_killed_while_the_engine_starts_it_does_not_stay() -> None:
    launching = Launching()
    launching.engine.may_start.clear()
    launching.launcher.perform(START)
    await asyncio.sleep(0)
    launching.launcher.perform(Kill(ID, "it is not needed"))
    await asyncio.sleep(0)
    launching.engine.may_start.set()
    events = [await launching.event(), await launching.event()]
    assert events == [Started(ID, LOCATION), Exited(ID, "the process was killed")]
    launching.launcher.perform(Kill(ID, "again"))
    assert await launching.event() == Exited(ID)
    await launching.launcher.aclose()


async def test_the_end_of_a_process_that_was_stopped_is_no_failure() -> None:
    launching = Launching()
    launching.launcher.perform(START)
    assert await launching.event() == Started(ID, LOCATION)
    launching.launcher.perform(Stop(ID, 1.0))
    assert await launching.event() == Exited(ID, None)
    await launching.launcher.aclose()


async def test_the_process_of_an_app_that_does_not_start_is_killed() -> None:
    launching = Launching()
    failure = RuntimeError("the app failed")
    failure.add_note("in shop.py")
    launching.process.answers[orders.Start] = failure
    launching.launcher.perform(START)
    assert await launching.event() == Exited(ID, "the app failed\nin shop.py", raised=True)
    assert await launching.event() == Exited(ID, "the process was killed")
    await launching.launcher.aclose()


async def test_a_process_that_cannot_be_reached_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLACED_S", 0.0)
    launching = Launching()
    state = Found(ID, WEB, "v1", "running", LOCATION, None, 1.0)
    launching.process.answers[orders.Describe] = [Unreachable("the node does not answer"), state]
    assert await launching.launcher.found() == [ID]
    assert await launching.event() == state
    await launching.launcher.aclose()


@pytest.mark.parametrize(
    ("error", "why", "running"),
    [
        (Unresponsive("it is blocked", ("a", "b")), "it is blocked", ("a", "b")),
        (TimeoutError(), "no answer within 1 s", None),
        (Unreachable("it has ended"), "it has ended", ()),
    ],
)
async def test_a_failed_probe_names_the_requests_that_may_be_the_cause(
    error: Exception, why: str, running: tuple[str, ...] | None
) -> None:
    launching = Launching()
    launching.process.answers[orders.Probe] = error
    launching.launcher.perform(START)
    assert await launching.event() == Started(ID, LOCATION)
    launching.launcher.perform(Probe(ID, 1.0))
    assert await launching.event() == ProbeFailed(ID, why, False, running)
    await launching.launcher.aclose()
