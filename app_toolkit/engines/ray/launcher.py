"""The processes of an instance as Ray actors: how they start, what they wait for, and how they end."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Any, TypeVar

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

from app_toolkit.contract.replica_spec import ProxySpec
from app_toolkit.control.reconcile import Start
from app_toolkit.control.replica_state import Unplaceable
from app_toolkit.engines.amounts import Lack, amounts_of
from app_toolkit.engines.ray.actors import NAMESPACE, Kind, ProxyActor, ReplicaActor, log_folder
from app_toolkit.engines.ray.exits import Exits, exit_sentence
from app_toolkit.engines.ray.orders import send
from app_toolkit.engines.ray.placement import Node, lack, may_be_granted
from app_toolkit.host.launcher import PLACED_S, Ending, Process, Unreachable
from app_toolkit.host.orders import Order
from app_toolkit.host.services import CONTROLLER
from app_toolkit.interfaces import Resources
from app_toolkit.types import NodeId, ReplicaId

R = TypeVar("R")

Handle = Any
"""The handle of an actor. Ray's types do not describe its methods."""

NO_RESOURCES = Resources()

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


class RayProcesses:
    """The actors of an instance."""

    def __init__(self) -> None:
        self.home = NodeId(ray.get_runtime_context().get_node_id())
        self._exits = Exits(log_folder().parent)
        #: Those that have not ended.
        self._processes: set[RayProcess] = set()

    async def start(self, action: Start) -> Process:
        """Create the actor, or return the existing actor of this name, which an earlier order created."""
        options: dict[str, Any] = {
            "name": action.spec.id,
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "get_if_exists": True,
        }
        if isinstance(action.spec, ProxySpec):
            on_node = NodeAffinitySchedulingStrategy(action.spec.node, soft=False)  # a proxy serves clients of its node
            handle = ProxyActor.options(**options, scheduling_strategy=on_node).remote(action.spec.id)
        else:
            handle = ReplicaActor.options(**options, **_actor_options(action)).remote(action.spec.id)
        return self._process(handle, (action.replica_set, action.template_hash), action.resources)

    async def existing(self) -> Mapping[ReplicaId, Process | None]:
        handles = await asyncio.to_thread(_existing)
        return {id: None if handle is None else self._process(handle) for id, handle in handles.items()}

    async def lack(self, action: Start, waited_s: float) -> Unplaceable | None:
        lacks = await asyncio.to_thread(self._lack, action, waited_s, self._processes.copy())
        return None if lacks is None else Unplaceable(action.replica, lacks.asks, lacks.free, lacks.for_ever)

    def _process(self, handle: Handle, kind: Kind | None = None, resources: Resources = NO_RESOURCES) -> "RayProcess":
        process = RayProcess(handle, kind, _amounts(resources), self._report)
        self._processes.add(process)
        return process

    def _report(self, process: "RayProcess", error: RayError) -> str | None:
        """Note that a process has ended, and return why."""
        self._processes.discard(process)
        if isinstance(error, ActorDiedError | OutOfMemoryError):
            return self._exits.why(error, is_local=process.node in (None, self.home))
        return _sentence(error)

    def _lack(self, action: Start, waited_s: float, processes: Set["RayProcess"]) -> Lack | None:
        state: Any = ray  # its functions below have no types
        kind = action.replica_set, action.template_hash
        same = Counter(process.node for process in processes if process.kind == kind and process.node is not None)
        nodes = [Node(node["Resources"], same[node["NodeID"]]) for node in state.nodes() if node["Alive"]]
        asks, free = _amounts(action.resources), state.available_resources()
        lacks = lack(asks, free, nodes, action.max_per_node)
        if lacks is None or lacks.for_ever or action.max_per_node is not None or waited_s >= GRANTED_S:
            return lacks
        reserved: Counter[str] = Counter()
        for process in processes:
            if process.is_running:
                reserved.update(process.amounts)
        return None if may_be_granted(asks, free, nodes, reserved) else lacks


class RayProcess:
    """One actor, for the launcher."""

    def __init__(
        self,
        handle: Handle,
        kind: Kind | None,
        amounts: Mapping[str, float],
        report: Callable[["RayProcess", RayError], str | None],
    ) -> None:
        """Follow an actor.

        Parameters:
            handle: The actor.
            kind: The replica set and the template hash. None: the actor knows them.
            amounts: The resources that it reserves. Empty: none, or they are not known.
            report: Is called once with the error that shows that it has ended, and returns why.
        """
        self.kind = kind
        self.amounts = amounts
        self.is_running = False
        #: The node that the process runs on; None: not known yet.
        self.node: NodeId | None = None
        self._handle = handle
        self._report = report

    async def running(self) -> None:
        self.node, kind = await _result(self._handle.place.remote())
        self.kind = self.kind or kind
        self.is_running = True

    async def order(self, order: Order[Any, R]) -> R:
        return await _result(send(self._handle, order))

    async def ended(self) -> Ending:
        last_words: str | None = None  # how the process ends, by user code that calls `os._exit`
        while True:
            try:
                last_words = await self._handle.until_gone.remote()
                await asyncio.sleep(ENDING_S)
            except ActorUnavailableError:
                # The actor is not reachable at the moment, but may be alive: ask again.
                await asyncio.sleep(PLACED_S)
            except RayError as error:
                why = self._report(self, error)
                # Ray has an error of its own for each cause, such as a runtime environment that could not be created or
                # a lack of memory. Few of them say that the process has ended.
                return Ending(
                    last_words or why,
                    raised=isinstance(error, RuntimeEnvSetupError),
                    is_certain=isinstance(error, ActorDiedError),
                )

    async def kill(self) -> None:
        await asyncio.to_thread(ray.kill, self._handle, no_restart=True)


async def _result(reference: Awaitable[R]) -> R:
    """Return the result of a call of an actor. Raises what the call has raised, and `Unreachable`."""
    try:
        return await reference
    except RayTaskError as error:
        cause = error.cause
        if not isinstance(cause, Exception):  # an error that cannot be sent, or one such as SystemExit
            raise RuntimeError(error.traceback_str) from None
        if not str(cause) and not hasattr(cause, "__notes__"):
            cause.add_note(error.traceback_str)
        raise cause from None
    except RayError as error:
        raise Unreachable(_sentence(error)) from error


def _existing() -> dict[ReplicaId, Handle]:
    """Return the actors of this instance except the controller. None: it has just ended."""
    handles: dict[ReplicaId, Handle] = {}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if actor["namespace"] == NAMESPACE and actor["name"] != CONTROLLER:
            id = ReplicaId(actor["name"])
            try:
                handles[id] = ray.get_actor(id, namespace=NAMESPACE)
            except ValueError:
                handles[id] = None
    return handles


def _amounts(resources: Resources) -> dict[str, float]:
    amounts = amounts_of(resources)
    accelerator = resources.engine_options.get("accelerator_type")
    return amounts if accelerator is None else {**amounts, f"{ACCELERATOR}{accelerator}": ACCELERATOR_SHARE}


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


def _sentence(error: RayError) -> str:
    """Return Ray's own description of an error."""
    return exit_sentence(str(error)) if isinstance(error, ActorDiedError) else str(error).strip()
