"""Performs the actions of the controller on Ray actors, and reports their outcomes as events."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Coroutine
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
    RuntimeEnvSetupError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from app_toolkit.core.identity import AnySetKey
from app_toolkit.core.reconcile import Action, Drain, Kill, Probe, Reconfigure, Start, Stop
from app_toolkit.core.replica_state import (
    Drained,
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
from app_toolkit.engines.ray.actors import CONTROLLER, NAMESPACE, ProxyActor, ReplicaActor, log_folder
from app_toolkit.engines.ray.admin import AdminActor
from app_toolkit.engines.ray.exits import Exits, exit_sentence
from app_toolkit.engines.ray.placement import Lack, Node, lack, may_be_granted
from app_toolkit.errors import NotWell, StaleEpoch, Unresponsive
from app_toolkit.interfaces import AdminSpec, Emit, Location, ProxySpec, ReloadableOptions, Resources
from app_toolkit.types import NodeId, ReplicaId

Handle = Any
"""The handle of an actor. Ray's types do not describe its methods."""

HEED_S = 1.0
"""Seconds that a process has to refuse a kill because it obeys a later controller."""

PLACED_S = 1.0
"""Seconds between two checks whether a process is up, or whether the cluster has no room for it. A process with room
is usually up within this time."""

ENDING_S = 0.05
"""Seconds between two checks whether a process that has said how it ends has ended."""

GRANTED_S = 30.0
"""Seconds that a process may take to start once its resources are granted. Until then a replica is not reported as
waiting for resources if it may hold them already (`may_be_granted`)."""

IMPLICIT = "node:__internal_implicit_resource_"
"""The prefix of resources of which every node has 1, whatever name follows. With such a resource Ray's scheduler itself
enforces `max_replicas_per_node`, also if two replicas start at once. Ray does not document the prefix, but Ray Serve
uses it for the same purpose."""

ACCELERATOR = "accelerator_type:"
"""The prefix of the resource by which a node declares the kind of its accelerators."""

ACCELERATOR_SHARE = 0.001
"""The amount of this resource that Ray reserves for the actor option `accelerator_type`."""


class RayLauncher:
    """Performs actions on Ray, within the event loop of the controller's actor."""

    def __init__(self, secret: bytes) -> None:
        self.home = NodeId(ray.get_runtime_context().get_node_id())
        self._secret = secret
        self._epoch = 0
        self._emit: Emit = lambda event: None
        self._handles: dict[ReplicaId, Handle] = {}
        #: Replicas whose process is up and answers calls.
        self._placed: set[ReplicaId] = set()
        #: Replicas that have started: their replica set and template hash, and their node.
        self._nodes: dict[ReplicaId, tuple[tuple[AnySetKey, str], NodeId]] = {}
        #: The resources of each replica until it exits.
        self._amounts: dict[ReplicaId, dict[str, float]] = {}
        #: Replicas that were ordered to stop, so that their exit is no failure.
        self._stopped: set[ReplicaId] = set()
        #: Replicas whose process has said how it ends.
        self._endings: dict[ReplicaId, str] = {}
        self._exits = Exits(log_folder().parent)
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, emit: Emit, epoch: int) -> None:
        self._emit, self._epoch = emit, epoch

    def perform(self, action: Action) -> None:
        match action:
            case Start():
                self._run(self._start(action))
            case Probe(replica, timeout_s):
                self._run(self._probe(replica, timeout_s))
            case Reconfigure(replica, live, timeout_s):
                self._run(self._reconfigure(replica, live, timeout_s))
            case Drain(replica, timeout_s):
                self._run(self._drain(replica, timeout_s))
            case Stop(replica, timeout_s):
                self._run(self._stop(replica, timeout_s))
            case Kill(replica):
                self._run(self._kill(replica))

    async def found(self) -> list[ReplicaId]:
        """Return all actors of this instance except the controller. The state of each follows as an event."""
        named = await asyncio.to_thread(ray.util.list_named_actors, all_namespaces=True)
        ids = [
            ReplicaId(actor["name"])
            for actor in named
            if actor["namespace"] == NAMESPACE and actor["name"] != CONTROLLER
        ]
        for replica in ids:
            self._run(self._find(replica))
        return ids

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, action: Start) -> None:
        spec = action.spec
        try:
            handle = self._create(action)
        except Exception as error:  # Ray checks options of the user, whose errors have no common class
            self._emit(Exited(spec.id, _sentence(error), raised=True))
            return
        self._amounts[spec.id] = _amounts(action.resources)
        self._watch_process(spec.id, handle)
        placed = asyncio.create_task(self._report_if_unplaceable(action, handle))
        try:
            started = handle.start.remote(spec, action.replica_set, action.template_hash, self._secret, self._epoch)
            await self._until_started(spec.id, action.replica_set, action.template_hash, started)
        finally:
            placed.cancel()

    async def _until_started(
        self, replica: ReplicaId, replica_set: AnySetKey, template_hash: str, start: Awaitable[Location]
    ) -> None:
        try:
            location = await start
        except StaleEpoch:
            pass  # the process runs, and belongs to a later controller
        except RayTaskError as error:
            # The app failed to start, so its process is not needed.
            self._emit(Exited(replica, _sentence(error), raised=True))
            await self._kill(replica)
        except RayError:
            pass  # the process has ended, which `_until_gone` reports
        else:
            self._placed.add(replica)
            self._at(replica, replica_set, template_hash, location.node)
            self._emit(Started(replica, location))

    def _create(self, action: Start) -> Handle:
        """Create the actor, or return the existing actor of this name, which an earlier order created."""
        options: dict[str, Any] = {
            "name": action.spec.id,
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "get_if_exists": True,
        }
        if isinstance(action.spec, ProxySpec | AdminSpec):
            # A proxy serves the clients of its node, and users expect the admin process on that of the controller.
            there = NodeAffinitySchedulingStrategy(action.spec.node, soft=False)
            actor = ProxyActor if isinstance(action.spec, ProxySpec) else AdminActor
            return actor.options(**options, scheduling_strategy=there).remote(action.spec.id)
        return ReplicaActor.options(**options, **_actor_options(action)).remote(action.spec.id)

    async def _report_if_unplaceable(self, action: Start, handle: Handle) -> None:
        replica = action.replica
        here: asyncio.Future[int] = asyncio.ensure_future(handle.here.remote())
        reported, since = False, time.monotonic()
        try:
            while not (await asyncio.wait([here], timeout=PLACED_S))[0]:
                lacks = await asyncio.to_thread(self._lack, action, time.monotonic() - since)
                if lacks is not None:
                    reported = True
                    self._emit(Unplaceable(replica, lacks.asks, lacks.free, lacks.for_ever))
            if here.exception() is None:  # `_until_gone` reports a process that has ended
                self._placed.add(replica)
                if reported:
                    self._emit(Placed(replica))
        finally:
            here.cancel()

    def _lack(self, action: Start, waited_s: float) -> Lack | None:
        state: Any = ray  # its functions below have no types
        kind = action.replica_set, action.template_hash
        mine = Counter(node for other, node in self._nodes.copy().values() if other == kind)
        nodes = [Node(node["Resources"], mine[node["NodeID"]]) for node in state.nodes() if node["Alive"]]
        asks, free = _amounts(action.resources), state.available_resources()
        found = lack(asks, free, nodes, action.max_per_node)
        if found is None or found.for_ever or action.max_per_node is not None or waited_s >= GRANTED_S:
            return found
        held: Counter[str] = Counter()
        for replica in self._placed.copy():
            held.update(self._amounts.get(replica, {}))
        return None if may_be_granted(asks, free, nodes, held) else found

    def _at(self, replica: ReplicaId, replica_set: AnySetKey, template_hash: str, node: NodeId) -> None:
        if replica in self._handles:  # otherwise the process has ended meanwhile
            self._nodes[replica] = (replica_set, template_hash), node

    def _watch_process(self, replica: ReplicaId, handle: Handle) -> None:
        """Report the end of the process of a replica, once."""
        if replica not in self._handles:
            self._handles[replica] = handle
            self._run(self._until_gone(replica, handle))

    async def _until_gone(self, replica: ReplicaId, handle: Handle) -> None:
        try:
            self._endings[replica] = await handle.until_gone.remote()
            await asyncio.sleep(ENDING_S)
            self._run(self._until_gone(replica, handle))
        except ActorUnavailableError:
            # The actor is not reachable at the moment, but may be alive: ask again.
            await asyncio.sleep(PLACED_S)
            self._run(self._until_gone(replica, handle))
        except RayError as error:
            # Ray has an error of its own for each cause, such as a runtime environment that could not be created or a
            # lack of memory. Few of them say that the process has ended, so make sure of it.
            if not isinstance(error, ActorDiedError):
                await self._kill(replica)
            why = self._endings.pop(replica, None) or self._why(replica, error)
            self._handles.pop(replica, None)
            self._placed.discard(replica)
            self._nodes.pop(replica, None)
            self._amounts.pop(replica, None)
            why = None if replica in self._stopped else why
            self._emit(Exited(replica, why, raised=isinstance(error, RuntimeEnvSetupError)))
            self._stopped.discard(replica)

    def _why(self, replica: ReplicaId, error: RayError) -> str | None:
        """Return why the process of a replica has ended."""
        if not isinstance(error, ActorDiedError | OutOfMemoryError):
            return _sentence(error)
        _, node = self._nodes.get(replica, (None, self.home))
        return self._exits.why(error, is_local=node == self.home)

    async def _find(self, replica: ReplicaId) -> None:
        try:
            handle = await asyncio.to_thread(ray.get_actor, replica, namespace=NAMESPACE)
        except ValueError:
            self._emit(Exited(replica, "the process did not exist when the controller restarted"))
            return
        self._watch_process(replica, handle)
        try:
            about: Found | None = await handle.describe.remote(self._epoch)
        except StaleEpoch:
            return  # the process belongs to a later controller
        except ActorUnavailableError:  # not reachable at the moment, but may be alive
            await asyncio.sleep(PLACED_S)
            self._run(self._find(replica))
            return
        except RayError:
            return  # the process has ended, which `_until_gone` reports
        self._placed.add(replica)
        if about is None:
            # The controller that created the actor ended before it ordered the start.
            self._emit(Exited(replica, "the process had received no order to start before the controller restarted"))
            await self._kill(replica)
            return
        self._emit(about)
        if about.location is not None:
            self._at(replica, about.replica_set, about.template_hash, about.location.node)
        if about.phase_name == "starting":
            await self._until_started(replica, about.replica_set, about.template_hash, handle.started.remote())

    async def _probe(self, replica: ReplicaId, timeout_s: float) -> None:
        try:
            probe: Awaitable[int] = self._handles[replica].probe.remote(timeout_s, self._epoch)
            # The replica itself applies the timeout. The margin covers a replica whose interpreter is blocked.
            connections = await asyncio.wait_for(probe, timeout_s + PLACED_S)
        except KeyError:
            self._emit(Exited(replica))
        except (RayError, TimeoutError) as error:
            cause = error.cause if isinstance(error, RayTaskError) else None
            if isinstance(cause, Unresponsive):
                running = cause.running
            else:  # a process that has ended did not fail the probe because of a request
                running = None if isinstance(error, TimeoutError) else ()
            why = _sentence(error) or f"no answer within {timeout_s:g} s"
            self._emit(ProbeFailed(replica, why, isinstance(cause, NotWell), running))
        else:
            self._emit(ProbePassed(replica, connections))

    async def _reconfigure(self, replica: ReplicaId, live: ReloadableOptions, timeout_s: float) -> None:
        try:
            taken_up: Awaitable[None] = self._handles[replica].reconfigure.remote(live, timeout_s, self._epoch)
            await asyncio.wait_for(taken_up, timeout_s + PLACED_S)
        except KeyError:
            self._emit(Exited(replica))
        except (RayError, TimeoutError) as error:
            self._emit(ReconfigureFailed(replica, live, _sentence(error) or f"no answer within {timeout_s:g} s"))
        else:
            self._emit(Reconfigured(replica, live))

    async def _drain(self, replica: ReplicaId, timeout_s: float) -> None:
        try:
            await self._handles[replica].drain.remote(timeout_s, self._epoch)
        except KeyError:
            self._emit(Exited(replica))
        except RayError:
            pass  # the process has ended, which `_until_gone` reports, or its time has passed, and `reconcile` kills it
        else:
            self._emit(Drained(replica))

    async def _stop(self, replica: ReplicaId, timeout_s: float) -> None:
        if replica in self._placed:  # otherwise the call would wait until Ray has started the process
            with contextlib.suppress(RayError, TimeoutError):
                stop: Awaitable[None] = self._handles[replica].stop.remote(timeout_s, self._epoch)
                await asyncio.wait_for(stop, timeout_s)
        if replica in self._handles:
            self._stopped.add(replica)
        await self._kill(replica)

    async def _kill(self, replica: ReplicaId) -> None:
        handle = self._handles.get(replica)
        if handle is None:
            self._emit(Exited(replica))
        elif await self._is_ours(replica, handle):
            await asyncio.to_thread(ray.kill, handle, no_restart=True)

    async def _is_ours(self, replica: ReplicaId, handle: Handle) -> bool:
        """Return whether the replica belongs to no later controller. A replica that does not answer belongs to none.

        Ray itself accepts a kill from any controller.
        """
        if replica in self._placed:
            try:
                await asyncio.wait_for(handle.heed.remote(self._epoch), HEED_S)
            except StaleEpoch:
                return False
            except (RayError, TimeoutError):
                pass
        return True


def _amounts(resources: Resources) -> dict[str, float]:
    named = {"CPU": resources.num_cpus, "GPU": resources.num_gpus, "memory": resources.memory or 0.0}
    accelerator = resources.engine_options.get("accelerator_type")
    if accelerator is not None:
        named[f"{ACCELERATOR}{accelerator}"] = ACCELERATOR_SHARE
    named.update(resources.custom)
    return {name: float(amount) for name, amount in named.items() if amount}


def _actor_options(action: Start) -> dict[str, Any]:
    resources = action.resources
    options = {
        "num_cpus": resources.num_cpus,
        "num_gpus": resources.num_gpus,
        "resources": dict(resources.custom),
        **resources.engine_options,
    }
    if resources.memory is not None:
        options["memory"] = resources.memory
    if action.max_per_node is not None:
        one = {f"{IMPLICIT}{action.replica_set}:{action.template_hash}": share(action.max_per_node)}
        options["resources"] = {**resources.custom, **one}
    return options


def share(most: int) -> float:
    """Return the largest amount of a resource of which a whole has room for `most`. Ray counts in ten-thousandths."""
    return 10_000 // most / 10_000


def _sentence(error: BaseException) -> str | None:
    """Return the message for users: the traceback of user code that raised, or else Ray's own description."""
    if isinstance(error, RayTaskError):
        notes = [str(error.cause), *getattr(error.cause, "__notes__", ())]
        return "\n".join(line for line in notes if line) or error.traceback_str
    if isinstance(error, ActorDiedError):
        return exit_sentence(str(error))
    return str(error).strip() or None
