"""Performs the actions of the controller on processes, and reports their outcomes as events."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from app_toolkit.control.reconcile import Action, Drain, Kill, Probe, Reconfigure, Start, Stop
from app_toolkit.control.replica_state import (
    Drained,
    Exited,
    Placed,
    ProbeFailed,
    Reconfigured,
    ReconfigureFailed,
    Started,
    Unplaceable,
)
from app_toolkit.errors import NotWell, StaleEpoch, Unresponsive
from app_toolkit.host import orders
from app_toolkit.host.orders import Order
from app_toolkit.interfaces import Emit, Location, ReloadableOptions
from app_toolkit.types import NodeId, ReplicaId

R = TypeVar("R")

PLACED_S = 1.0
"""Seconds between two checks whether a process is up, or whether there is no room for it. A process with room is
usually up within this time. Also the seconds before a process that could not be reached is asked again."""


class Unreachable(Exception):
    """An order or its result was lost: the process has ended, or cannot be reached at the moment."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process has ended."""

    why: str | None
    """A sentence; None: not known."""
    raised: bool = False
    """Whether the process could not start because of the options or the code of the user."""
    is_certain: bool = True
    """False: the process may still run, so the launcher kills it."""


class Process(Protocol):
    """A process that an engine has begun to start."""

    @property
    def is_running(self) -> bool:
        """Whether the process has begun to run, so that it can obey orders."""
        ...

    async def running(self) -> None:
        """Wait until the process runs. Raises `Unreachable` if it has ended."""
        ...

    async def order(self, order: Order[Any, R]) -> R:
        """Have the process obey an order, once it runs, and return the result.

        Raises what the order raises, and `Unreachable`.
        """
        ...

    async def ended(self) -> Ending:
        """Wait until the process has ended."""
        ...

    async def kill(self) -> None:
        """End the process now. Do nothing if it has ended."""
        ...


class Processes(Protocol):
    """The processes of an instance on an engine."""

    @property
    def home(self) -> NodeId:
        """The node of the controller."""
        ...

    async def start(self, action: Start) -> Process:
        """Begin to start a process with the name `action.replica`, without an order to it.

        If a process has this name, return it. Raises an error if the engine refuses the options of the action.
        """
        ...

    async def existing(self) -> Mapping[ReplicaId, Process | None]:
        """Return the processes that exist, except that of the controller; None: it has just ended."""
        ...

    async def lack(self, action: Start, waited_s: float) -> Unplaceable | None:
        """Return what a process that does not run yet waits for; None: it can be expected to run soon.

        `waited_s`: the seconds since its start.
        """
        ...


class ProcessLauncher:
    """Performs actions on the processes of an engine, within the event loop of the controller."""

    def __init__(self, engine: Processes, secret: bytes) -> None:
        self.home = engine.home
        self._engine = engine
        self._secret = secret
        self._epoch = 0
        self._emit: Emit = lambda event: None
        #: The processes that have not ended.
        self._processes: dict[ReplicaId, Process] = {}
        #: The processes that the engine begins to start.
        self._creations: dict[ReplicaId, asyncio.Task[Process]] = {}
        #: The processes that were ordered to stop, so that their exit is no failure.
        self._stopped: set[ReplicaId] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, emit: Emit, epoch: int) -> None:
        self._emit, self._epoch = emit, epoch

    def perform(self, action: Action) -> None:
        match action:
            case Start():
                self._run(self._start(action))
            case Probe(replica, timeout_s):
                self._run(self._probe(replica, timeout_s))
            case Reconfigure(replica, reloadable, timeout_s):
                self._run(self._reconfigure(replica, reloadable, timeout_s))
            case Drain(replica, timeout_s):
                self._run(self._drain(replica, timeout_s))
            case Stop(replica, timeout_s):
                self._run(self._stop(replica, timeout_s))
            case Kill(replica):
                self._run(self._kill(replica))

    async def found(self) -> list[ReplicaId]:
        """Return all processes of this instance except the controller. The state of each follows as an event."""
        existing = await self._engine.existing()
        for replica, process in existing.items():
            if process is None:
                self._emit(Exited(replica, "the process did not exist when the controller restarted"))
            else:
                self._watch(replica, process)
                self._run(self._describe(replica, process))
        return list(existing)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _process(self, replica: ReplicaId) -> Process | None:
        """Return a process, once the engine has begun to start it; None: there is none."""
        if (creation := self._creations.get(replica)) is not None:
            await asyncio.wait([creation])
        return self._processes.get(replica)

    # Start and end

    async def _start(self, action: Start) -> None:
        process = await self._process(action.replica)
        if process is None:
            creation = self._creations[action.replica] = asyncio.create_task(self._create(action))
            try:
                process = await creation
            except Exception as error:  # options of the user, whose errors have no common class
                self._emit(Exited(action.replica, _sentence(error), raised=True))
                return
            finally:
                del self._creations[action.replica]
        self._run(self._report_placement(action, process))
        order = orders.Start(action.spec, action.replica_set, action.template_hash, self._secret, epoch=self._epoch)
        await self._report_start(action.replica, process.order(order))

    async def _create(self, action: Start) -> Process:
        process = await self._engine.start(action)
        self._watch(action.replica, process)
        return process

    async def _report_placement(self, action: Start, process: Process) -> None:
        running = asyncio.ensure_future(process.running())
        is_reported, since = False, time.monotonic()
        try:
            while not (await asyncio.wait([running], timeout=PLACED_S))[0]:
                unplaceable = await self._engine.lack(action, time.monotonic() - since)
                if unplaceable is not None:
                    is_reported = True
                    self._emit(unplaceable)
            if running.exception() is None and is_reported:  # `_report_end` reports a process that has ended
                self._emit(Placed(action.replica))
        finally:
            running.cancel()

    async def _report_start(self, replica: ReplicaId, start: Awaitable[Location]) -> None:
        try:
            location = await start
        except StaleEpoch:
            pass  # the process runs, and belongs to a later controller
        except Unreachable:
            pass  # the process has ended, which `_report_end` reports
        except Exception as error:
            # The app failed to start, so its process is not needed.
            self._emit(Exited(replica, _sentence(error), raised=True))
            await self._kill(replica)
        else:
            self._emit(Started(replica, location))

    async def _describe(self, replica: ReplicaId, process: Process) -> None:
        while True:
            try:
                await process.running()
                state = await process.order(orders.Describe(epoch=self._epoch))
                break
            except StaleEpoch:
                return  # the process belongs to a later controller
            except Unreachable:
                if replica not in self._processes:
                    return  # the process has ended, which `_report_end` reports
                await asyncio.sleep(PLACED_S)
        if state is None:
            # The controller that created the process ended before it ordered the start.
            self._emit(Exited(replica, "the process had received no order to start before the controller restarted"))
            await self._kill(replica)
            return
        self._emit(state)
        if state.phase_name == "starting":
            await self._report_start(replica, process.order(orders.AwaitStart()))

    def _watch(self, replica: ReplicaId, process: Process) -> None:
        """Report the end of a process, once."""
        if replica not in self._processes:
            self._processes[replica] = process
            self._run(self._report_end(replica, process))

    async def _report_end(self, replica: ReplicaId, process: Process) -> None:
        ending = await process.ended()
        if not ending.is_certain:
            await self._kill(replica)
        del self._processes[replica]
        self._emit(Exited(replica, None if replica in self._stopped else ending.why, raised=ending.raised))
        self._stopped.discard(replica)

    # Orders

    async def _probe(self, replica: ReplicaId, timeout_s: float) -> None:
        try:
            passed = await self._order(replica, orders.Probe(timeout_s, epoch=self._epoch))
        except KeyError:
            self._emit(Exited(replica))
        except Exception as error:
            why = _sentence(error) or f"no answer within {timeout_s:g} s"
            # A process that has ended did not fail the probe because of a request.
            running: tuple[str, ...] | None = None if isinstance(error, TimeoutError) else ()
            if isinstance(error, Unresponsive):
                running = error.running
            self._emit(ProbeFailed(replica, why, isinstance(error, NotWell), running))
        else:
            self._emit(passed)

    async def _reconfigure(self, replica: ReplicaId, reloadable: ReloadableOptions, timeout_s: float) -> None:
        try:
            await self._order(replica, orders.Reconfigure(reloadable, timeout_s, epoch=self._epoch))
        except KeyError:
            self._emit(Exited(replica))
        except Exception as error:
            self._emit(ReconfigureFailed(replica, reloadable, _sentence(error) or f"no answer within {timeout_s:g} s"))
        else:
            self._emit(Reconfigured(replica, reloadable))

    async def _drain(self, replica: ReplicaId, timeout_s: float) -> None:
        try:
            await self._order(replica, orders.Drain(timeout_s, epoch=self._epoch))
        except KeyError:
            self._emit(Exited(replica))
        except Exception:  # the process has ended, which `_report_end` reports, or its time has passed
            pass  # and `reconcile` kills it
        else:
            self._emit(Drained(replica))

    async def _stop(self, replica: ReplicaId, timeout_s: float) -> None:
        process = await self._process(replica)
        if process is not None and process.is_running:  # otherwise the order would wait until the process runs
            with contextlib.suppress(Exception):
                await self._order(replica, orders.Stop(timeout_s, epoch=self._epoch))
        if replica in self._processes:
            self._stopped.add(replica)
        await self._kill(replica)

    async def _kill(self, replica: ReplicaId) -> None:
        process = await self._process(replica)
        if process is None:
            self._emit(Exited(replica))
        elif await self._is_ours(process):
            await process.kill()

    async def _is_ours(self, process: Process) -> bool:
        """Return whether a process belongs to no later controller. One that does not answer belongs to none."""
        if process.is_running:
            try:
                await _answer(process, orders.CheckEpoch(epoch=self._epoch))
            except StaleEpoch:
                return False
            except Exception:
                pass
        return True

    async def _order(self, replica: ReplicaId, order: Order[Any, R]) -> R:
        """Return the result of an order. Raises `KeyError` if there is no process, and `TimeoutError`."""
        process = await self._process(replica)
        if process is None:
            raise KeyError(replica)
        return await _answer(process, order)


async def _answer(process: Process, order: Order[Any, R]) -> R:
    async with asyncio.timeout(order.answer_s):
        return await process.order(order)


def _sentence(error: BaseException) -> str | None:
    """Return the message of an error with its notes, which may be the traceback of user code."""
    lines = [str(error).strip(), *getattr(error, "__notes__", ())]
    return "\n".join(line for line in lines if line) or None
