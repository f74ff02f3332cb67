"""A simulated engine, in which processes are records and tests set the clock. The controller runs on it unchanged.

A `World` outlives a controller. It has the processes and the failures to simulate. Each controller uses a
`SimulatedLauncher` of its own on the world.
"""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from app_toolkit.clock import Clock
from app_toolkit.contract.identity import AnySetKey
from app_toolkit.contract.replica_spec import ProxySpec, ReplicaSpec
from app_toolkit.control.reconcile import Action, Drain, Kill, Probe, Reconfigure, Start, Stop
from app_toolkit.control.replica_state import (
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
from app_toolkit.interfaces import Emit, Location, ReloadableOptions
from app_toolkit.types import Address, NodeId, ReplicaId

HOME = NodeId("home")
"""The node that every controller runs on."""

FREE_PORTS = 40_000
"""The first port for processes that may listen on any port. Each gets the next one."""

PLACE_AGAIN_S = 10.0
"""Seconds between two attempts to place a process for which there is no room."""


@dataclass(slots=True)
class Process:
    """The actual state of one replica or of a proxy."""

    order: Start
    placed: bool = False
    phase: str = "starting"
    deaf: bool = False
    """The process runs, but answers no order."""
    location: Location | None = None
    """Where the process serves; None until it is placed."""
    reloadable: ReloadableOptions | None = None
    """The options that a replica uses; None: it is no replica, or its last reconfiguration failed."""
    running_since: float | None = None
    """When the process began to serve; None: it has not."""


class World:
    """The processes, and the failures to simulate.

    Tests may set these attributes at any time:

    * `start_s`, `answer_s`, `drain_s`, `exit_s`: durations in seconds.
    * `room`: the maximum number of processes; None: no limit.
    * `nodes`: the nodes for replicas. A replica is placed on the node with the fewest processes.
    * `broken`, `stubborn`: the errors with which starts and reconfigurations fail, by replica set.
    * `lost`: the types of events that are never emitted.
    * `late`: the delay of events in seconds, by type.

    `performed` has all orders that were obeyed, `refused` those of an earlier epoch.
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
        self.broken: dict[AnySetKey, str] = {}
        self.stubborn: dict[AnySetKey, str] = {}
        self.lost: set[type[Event]] = set()
        self.late: dict[type[Event], float] = {}
        self.epoch = 0
        self._emit: Emit = lambda event: None
        self._timers: set[asyncio.Task[None]] = set()

    def of(self, replica_set: AnySetKey, phase: str | None = None) -> list[ReplicaId]:
        """Return the processes of a replica set, oldest first. `phase`: only those in this phase."""
        return [
            id
            for id, process in self.processes.items()
            if process.order.replica_set == replica_set and (phase is None or process.phase == phase)
        ]

    def crash(self, id: ReplicaId, why: str = "it was killed with signal 9") -> None:
        self._end(id, why)

    def node_dies(self, node: NodeId) -> None:
        """End all processes on a node, and place none there any more."""
        self.nodes.remove(node)
        for id, process in list(self.processes.items()):
            if process.location is not None and process.location.node == node:
                self._end(id, "its node died")

    async def aclose(self) -> None:
        for timer in self._timers:
            timer.cancel()
        await asyncio.gather(*self._timers, return_exceptions=True)

    # For launchers

    def attend(self, emit: Emit, epoch: int) -> None:
        """Emit events to the controller of this epoch from now on, and refuse orders of earlier epochs."""
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
                    reloadable = action.spec.reloadable if isinstance(action.spec, ReplicaSpec) else None
                    process = self.processes[id] = Process(action, reloadable=reloadable)
                    self._place(process)
            case _ if process is None:
                self._emit_event(Exited(id, "there is no such process"))
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
                self._emit_event(ProbePassed(id) if running else ProbeFailed(id, f"it is {process.phase}"))
            case Reconfigure(_, reloadable):
                stubborn = self.stubborn.get(process.order.replica_set)
                process.reloadable = reloadable if stubborn is None else None
                self._emit_event(
                    Reconfigured(id, reloadable) if stubborn is None else ReconfigureFailed(id, reloadable, stubborn)
                )

    def ask(self, id: ReplicaId) -> None:
        """Emit the state of a process as a `Found` event."""
        process = self.processes.get(id)
        if process is None:
            self._emit_event(Exited(id, "there is no such process"))
        elif not process.deaf:
            order = process.order
            location = None if process.phase == "starting" else process.location
            running_s = 0.0 if process.running_since is None else self.clock.now() - process.running_since
            found = Found(
                id, order.replica_set, order.template_hash, process.phase, location, process.reloadable, running_s
            )
            self._emit_event(found)

    # Processes

    def _place(self, process: Process) -> None:
        id = process.order.spec.id
        if self.processes.get(id) is not process or process.phase != "starting":
            return
        spec = process.order.spec
        if isinstance(spec, ReplicaSpec) and not self._open_nodes(process.order):
            self._emit_event(Unplaceable(id, "a node with fewer of its replicas", "0 CPU"))
            self._after(PLACE_AGAIN_S, lambda: self._place(process))
            return
        if self.room is not None and sum(other.placed for other in self.processes.values()) >= self.room:
            asks, free = f"{process.order.resources.num_cpus:g} CPU", "0 CPU"
            self._emit_event(Unplaceable(id, asks, free, for_ever=self.room == 0))
            self._after(PLACE_AGAIN_S, lambda: self._place(process))
            return
        if isinstance(spec, ProxySpec) and spec.node not in self.nodes:
            self._end(id, f"there is no node {spec.node}")
            return
        process.location = self._location_for(process.order)
        process.placed = True
        self._emit_event(Placed(id))
        self._after(self.start_s, lambda: self._become_ready(process))

    def _open_nodes(self, order: Start) -> list[NodeId]:
        """Return the nodes that may run one more replica of this replica set and template hash."""
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

    def _become_ready(self, process: Process) -> None:
        id = process.order.spec.id
        if self.processes.get(id) is not process or process.phase != "starting" or process.deaf:
            return
        error = self.broken.get(process.order.replica_set)
        if error is not None:
            self._end(id, error)
            return
        process.phase = "running"
        process.running_since = self.clock.now()
        assert process.location is not None
        self._emit_event(Started(id, process.location))

    def _drained(self, id: ReplicaId) -> None:
        if id in self.processes and not self.processes[id].deaf:
            self._emit_event(Drained(id))

    def _end(self, id: ReplicaId, why: str | None) -> None:
        if self.processes.pop(id, None) is not None:
            self._emit_event(Exited(id, why))

    def _emit_event(self, event: Event) -> None:
        kind = type(event)
        emit = self._emit  # an event for this controller is lost if another controller replaces it
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
    """The launcher of one controller on a world."""

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
        """Do nothing: the world outlives the controller."""
