"""A world of processes that are only records, on a clock that tests turn; the controller runs on it as is.

A `World` is what outlives a controller: its processes, and what is to go wrong with them. Each controller
gets a `SimulatedLauncher` of its own on it.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from app_toolkit.clock import Clock
from app_toolkit.core.reconcile import Action, Drain, Kill, Probe, Reconfigure, Start, Stop
from app_toolkit.core.replica_state import (
    Drained,
    Event,
    Exited,
    Found,
    Placed,
    ProbeFailed,
    ProbePassed,
    Reconfigured,
    ReconfigureFailed,
    Started,
    Unplaceable,
)
from app_toolkit.interfaces import Emit, Location, ProxySpec, ReloadableOptions, ReplicaSpec
from app_toolkit.types import Address, NodeId, ReplicaId

HOME = NodeId("home")
"""The node that every controller runs on."""

FREE_PORTS = 40_000
"""Who is to listen on any port gets the next one above."""

PLACE_AGAIN_S = 10.0
"""How often a process without room is looked after."""


@dataclass(slots=True)
class Process:
    """One replica or proxy, as it truly is."""

    order: Start
    placed: bool = False
    phase: str = "starting"
    deaf: bool = False
    """It lives, and answers nobody."""
    location: Location | None = None
    """Where it serves, once it is placed."""
    live: ReloadableOptions | None = None
    """What it has taken up; None: a proxy, or what it was given it has not."""


class World:
    """Processes, and the script of what goes wrong.

    The script, to be set at any time: `start_s`, `answer_s`, `drain_s` and `exit_s` say how long things take;
    `room` how many processes fit (None: any number); `nodes` where replicas are placed, each where the fewest
    are; `broken` what the starts of a replica set fail with, `stubborn` what its reconfigurations do; `lost` and
    `late` which events never come, or come so many seconds later. `performed` is the history of all orders that
    were obeyed, `refused` of those that came from an earlier epoch.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.processes: dict[ReplicaId, Process] = {}
        self.performed: list[Action] = []
        self.refused: list[Action] = []
        self.start_s = 1.0
        self.answer_s = 0.01
        self.drain_s = 0.5
        self.exit_s = 0.1
        self.room: int | None = None
        self.nodes = [HOME]
        self._ports = itertools.count(FREE_PORTS)
        self.broken: dict[str, str] = {}
        self.stubborn: dict[str, str] = {}
        self.lost: set[type[Event]] = set()
        self.late: dict[type[Event], float] = {}
        self.epoch = 0
        self._emit: Emit = lambda event: None
        self._timers: set[asyncio.Task[None]] = set()

    def of(self, replica_set: str, phase: str | None = None) -> list[ReplicaId]:
        """The processes of a replica set, and of a phase, oldest first."""
        return [
            id
            for id, process in self.processes.items()
            if process.order.replica_set == replica_set and (phase is None or process.phase == phase)
        ]

    def crash(self, id: ReplicaId, why: str = "it was killed with signal 9") -> None:
        self._end(id, why)

    def node_dies(self, node: NodeId) -> None:
        """With all that runs there; nothing is placed there any more."""
        self.nodes.remove(node)
        for id, process in list(self.processes.items()):
            if process.location is not None and process.location.node == node:
                self._end(id, "its node died")

    async def aclose(self) -> None:
        for timer in self._timers:
            timer.cancel()
        await asyncio.gather(*self._timers, return_exceptions=True)

    # What a launcher asks of it

    def attend(self, emit: Emit, epoch: int) -> None:
        """From now on events go to this controller, and those of an earlier epoch are not obeyed."""
        if epoch >= self.epoch:
            self._emit, self.epoch = emit, epoch

    def obey(self, action: Action, epoch: int) -> None:
        if epoch < self.epoch:
            self.refused.append(action)
            return
        self.performed.append(action)
        id = action.replica
        process = self.processes.get(id)
        match action:
            case Start():
                if process is None:
                    live = action.spec.live if isinstance(action.spec, ReplicaSpec) else None
                    process = self.processes[id] = Process(action, live=live)
                    self._place(process)
            case _ if process is None:
                self._tell(Exited(id, "there is no such process"))
            case Kill(_, why):
                self._end(id, why)
            case _ if process.deaf:
                pass
            case Drain():
                process.phase = "draining"
                self._after(self.drain_s, lambda: self._drained(id))
            case Stop():
                process.phase = "stopping"
                self._after(self.exit_s, lambda: self._end(id, None))
            case Probe():
                running = process.phase == "running"
                self._tell(ProbePassed(id) if running else ProbeFailed(id, f"it is {process.phase}"))
            case Reconfigure(_, live):
                stubborn = self.stubborn.get(process.order.replica_set)
                process.live = live if stubborn is None else None
                self._tell(Reconfigured(id, live) if stubborn is None else ReconfigureFailed(id, live, stubborn))

    def ask(self, id: ReplicaId) -> None:
        """What is it?"""
        process = self.processes.get(id)
        if process is None:
            self._tell(Exited(id, "there is no such process"))
        elif not process.deaf:
            order = process.order
            location = None if process.phase == "starting" else process.location
            self._tell(Found(id, order.replica_set, order.template_hash, process.phase, location, process.live))

    # What happens

    def _place(self, process: Process) -> None:
        id = process.order.spec.id
        if self.processes.get(id) is not process or process.phase != "starting":
            return
        spec = process.order.spec
        if isinstance(spec, ReplicaSpec) and not self._open_nodes(process.order):
            self._tell(Unplaceable(id, "a node with fewer of its replicas", "0 CPU"))
            self._after(PLACE_AGAIN_S, lambda: self._place(process))
            return
        if self.room is not None and sum(other.placed for other in self.processes.values()) >= self.room:
            asks, free = f"{process.order.options.num_cpus:g} CPU", "0 CPU"
            self._tell(Unplaceable(id, asks, free, for_ever=self.room == 0))
            self._after(PLACE_AGAIN_S, lambda: self._place(process))
            return
        if isinstance(spec, ProxySpec) and spec.node not in self.nodes:
            self._end(id, f"there is no node {spec.node}")
            return
        process.location = self._location_for(process.order)
        process.placed = True
        self._tell(Placed(id))
        self._after(self.start_s, lambda: self._come_up(process))

    def _open_nodes(self, order: Start) -> list[NodeId]:
        """Those that have room for one more of its kind."""
        kind = order.replica_set, order.template_hash
        mine = [
            process.location.node
            for process in self.processes.values()
            if process.location is not None and (process.order.replica_set, process.order.template_hash) == kind
        ]
        return [node for node in self.nodes if order.max_per_node is None or mine.count(node) < order.max_per_node]

    def _location_for(self, order: Start) -> Location:
        spec = order.spec
        if isinstance(spec, ProxySpec):
            port = spec.options["port"] or next(self._ports)
            return Location(Address(f"tcp:{spec.options['host']}:{port}"), spec.node)
        busy = [process.location.node for process in self.processes.values() if process.location is not None]
        node = min(self._open_nodes(order), key=busy.count)
        remote = Address(f"tcp:{node}:{next(self._ports)}") if len(self.nodes) > 1 else None
        return Location(Address(f"unix:/simulated/{spec.id}"), node, remote)

    def _come_up(self, process: Process) -> None:
        id = process.order.spec.id
        if self.processes.get(id) is not process or process.phase != "starting" or process.deaf:
            return
        error = self.broken.get(process.order.replica_set)
        if error is not None:
            self._end(id, error)
            return
        process.phase = "running"
        assert process.location is not None
        self._tell(Started(id, process.location))

    def _drained(self, id: ReplicaId) -> None:
        if id in self.processes and not self.processes[id].deaf:
            self._tell(Drained(id))

    def _end(self, id: ReplicaId, why: str | None) -> None:
        if self.processes.pop(id, None) is not None:
            self._tell(Exited(id, why))

    def _tell(self, event: Event) -> None:
        kind = type(event)
        emit = self._emit  # what is under way to a controller dies with it
        if kind not in self.lost:
            self._after(self.answer_s + self.late.get(kind, 0.0), lambda: emit(event))

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        timer = asyncio.get_running_loop().create_task(self._do_after(seconds, do))
        self._timers.add(timer)
        timer.add_done_callback(self._timers.discard)

    async def _do_after(self, seconds: float, do: Callable[[], None]) -> None:
        await self.clock.sleep(seconds)
        do()


class SimulatedLauncher:
    """One controller's way to act on a world."""

    home = HOME

    def __init__(self, world: World) -> None:
        self._world = world
        self._epoch = 0

    def listen(self, emit: Emit, epoch: int) -> None:
        self._epoch = epoch
        self._world.attend(emit, epoch)

    def perform(self, action: Action) -> None:
        self._world.obey(action, self._epoch)

    async def found(self) -> list[ReplicaId]:
        ids = list(self._world.processes)
        for id in ids:
            self._world.ask(id)
        return ids

    async def aclose(self) -> None:
        """The world stays."""
