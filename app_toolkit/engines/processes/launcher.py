"""The processes of an instance, for the common launcher: how they start, and how they end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from app_toolkit.config.settings import variables_of_threads
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.control.reconcile import Start
from app_toolkit.control.replica_state import Unplaceable
from app_toolkit.engines.processes.capacity import Grant
from app_toolkit.engines.processes.reservations import Reservations
from app_toolkit.engines.processes.services import HOME, SUPERVISOR, Child, ProcessServices, planning_name
from app_toolkit.engines.processes.wire import PeerGone
from app_toolkit.host.launcher import Ending, Process, Unreachable
from app_toolkit.host.orders import Order
from app_toolkit.host.preparation import Preparation
from app_toolkit.interfaces import Resources
from app_toolkit.types import ReplicaId

R = TypeVar("R")

logger = logging.getLogger("app_toolkit.processes")

KEPT_S = 60.0
"""Seconds for which a template is kept after its last replica has ended, because another one may start."""


FORK_S = 5.0
"""Seconds that a template that has imported its app may take to answer. Otherwise it is stopped, or hangs."""


class LocalProcesses:
    """The processes of an instance on this machine, which the supervisor starts and ends."""

    home = HOME

    def __init__(self, services: ProcessServices) -> None:
        self._services = services
        self._templates = Templates(services)
        self._reservations = Reservations()

    async def start(self, action: Start) -> Process:
        spec = action.spec
        if isinstance(spec, ReplicaSpec):
            creation = self._start_replica(spec, action.resources)
        else:
            creation = self._services.peer(SUPERVISOR).call("start", "proxy", spec.id)
        return LocalProcess(spec.id, self._services, self._release, creation)

    async def _start_replica(self, spec: ReplicaSpec, resources: Resources) -> None:
        granted = await self._reservations.reserve(spec.id, resources)
        if granted.memory is not None:
            logger.info("%s gets at most %d bytes of memory (RLIMIT_DATA)", spec.id, granted.memory)
        await self._templates.start_replica(spec, granted)

    def _release(self, name: str) -> None:
        """Free what a process has used that has ended."""
        self._templates.release(name)
        self._reservations.release(name)

    async def existing(self) -> Mapping[ReplicaId, Process | None]:
        running: Mapping[str, Child] = await self._services.peer(SUPERVISOR).call("running")
        processes: dict[ReplicaId, Process | None] = {}
        for name, child in running.items():
            if child.role != "template":
                processes[ReplicaId(name)] = LocalProcess(name, self._services, self._release)
                self._templates.adopt(name, child.template)
                self._reservations.adopt(name, child.granted)
        return processes

    async def lack(self, action: Start, waited_s: float) -> Unplaceable | None:
        lacks = self._reservations.lacks.get(action.replica)
        return None if lacks is None else Unplaceable(action.replica, lacks.asks, lacks.free, lacks.for_ever)


class LocalProcess:
    """One process, for the launcher."""

    def __init__(
        self,
        name: str,
        services: ProcessServices,
        release: Callable[[str], None],
        creation: Awaitable[None] | None = None,
    ) -> None:
        """`release`: is called once the process has ended. `creation`: starts the process. None: it runs."""
        self._name = name
        self._services = services
        self._release = release
        self._creation = None if creation is None else asyncio.ensure_future(creation)

    @property
    def is_running(self) -> bool:
        return self._failure() is None and (self._creation is None or self._creation.done())

    async def running(self) -> None:
        if self._creation is not None:
            await asyncio.wait([self._creation])
        failure = self._failure()
        if failure is not None:
            raise Unreachable(failure)

    async def order(self, order: Order[Any, R]) -> R:
        await self.running()
        try:
            result: R = await self._services.peer(self._name).call("serve", order)
        except PeerGone as error:
            raise Unreachable(str(error)) from error
        return result

    async def ended(self) -> Ending:
        if self._creation is not None:
            await asyncio.wait([self._creation])
        why = self._failure()
        while why is None:
            try:
                why = await self._services.peer(SUPERVISOR).call("ended", self._name)
            except PeerGone as error:  # the supervisor ends, and the kernel kills this process
                why = str(error)
        self._services.disconnect(self._name)
        self._release(self._name)
        return Ending(why)

    async def kill(self) -> None:
        if self._creation is not None and not self._creation.done():
            self._creation.cancel()
        with suppress(PeerGone):
            await self._services.peer(SUPERVISOR).call("kill", self._name)

    def _failure(self) -> str | None:
        """Return why the process could not be started; None: it has been started, or starts."""
        if self._creation is None or not self._creation.done():
            return None
        if self._creation.cancelled():
            return "it was killed while it started"
        error = self._creation.exception()
        return None if error is None else str(error)


class Templates:
    """The processes that have imported an app, by what they have prepared."""

    def __init__(self, services: ProcessServices) -> None:
        self._services = services
        #: The template of each replica that was forked.
        self._of_replicas: dict[str, str] = {}
        #: The templates that have imported their app.
        self._prepared: set[str] = set()
        #: The templates that must not be forked.
        self._unfit: set[str] = set()
        self._adopting = asyncio.Lock()
        #: The ends of templates that are not used any more.
        self._ends: set[asyncio.Task[None]] = set()

    async def start_replica(self, spec: ReplicaSpec, granted: Grant) -> None:
        """Fork a replica from the template of its app, which is started if there is none.

        If the app cannot be imported there, or must not be forked, or the template does not fork for `FORK_S`, the
        replica starts without a template, imports the app itself and reports its errors.
        """
        # Libraries read the number of threads when they are imported, so a template belongs to one number.
        spec = replace(spec, variables={**variables_of_threads(granted.num_cpus), **spec.variables})
        name = f"template-{Preparation.of(spec).key[:16]}"
        if not spec.application_config.fork:
            self._refuse(name, spec, "it sets fork=False")
        if name not in self._unfit:
            self._of_replicas[spec.id] = name
            if name not in self._prepared:
                await self._adopt_planning(name, spec)
            try:
                async with asyncio.timeout(FORK_S if name in self._prepared else None) as limit:
                    if await self._prepare(name, spec, limit):
                        limit.reschedule(asyncio.get_running_loop().time() + FORK_S)
                        await self._services.peer(name).call("fork", spec.id, granted)
                        return
            except (PeerGone, TimeoutError):  # the template has ended, for example because its app does not import
                pass
            except asyncio.CancelledError:
                if name not in self._prepared:
                    await self._end(name)  # the import may never end
                raise
            self._of_replicas.pop(spec.id, None)
            await self._end(name)
        await self._services.peer(SUPERVISOR).call("start", "replica", spec.id, granted)

    async def _adopt_planning(self, name: str, spec: ReplicaSpec) -> None:
        """Make the process that has planned the app this template, if there is one and it can be that."""
        planning = planning_name(spec.application)
        supervisor = self._services.peer(SUPERVISOR)
        async with self._adopting:
            running: Mapping[str, Child] = await supervisor.call("running")
            if planning not in running or name in running:
                return
            try:
                async with asyncio.timeout(FORK_S):
                    await self._services.peer(planning).call("become", name, spec)
            except Exception as error:  # of user code, or its process has ended or hangs
                logger.debug("the process that has planned %s cannot be its template: %s", spec.target, error)
            finally:
                self._services.disconnect(planning)

    async def _prepare(self, name: str, spec: ReplicaSpec, limit: asyncio.Timeout) -> bool:
        """Start a template, unless it runs, and return whether it can be forked. Remove the limit if it imports."""
        if await self._services.peer(SUPERVISOR).call("start", "template", name):
            self._prepared.discard(name)
            limit.reschedule(None)
        try:
            obstacles: list[str] = await self._services.peer(name).call("prepare", spec)
        except PeerGone:
            raise
        except Exception as error:  # of user code
            logger.debug("%s cannot be imported in a template: %s", spec.target, error)
            return False
        self._prepared.add(name)
        if obstacles:
            self._refuse(name, spec, f"while it is imported {' and '.join(obstacles)}")
        return not obstacles

    def _refuse(self, name: str, spec: ReplicaSpec, why: str) -> None:
        """Fork no replica from this template, and log that once."""
        if name not in self._unfit:
            self._unfit.add(name)
            logger.warning("each replica of %s imports its app itself, because %s", spec.target, why)

    def adopt(self, replica: str, template: str) -> None:
        """Note that a replica was forked from a template. `template`: empty: from none."""
        if template:
            self._of_replicas[replica] = template

    def release(self, replica: str) -> None:
        """Note that a replica has ended."""
        template = self._of_replicas.pop(replica, None)
        if template is not None:
            asyncio.get_running_loop().call_later(KEPT_S, partial(self._end_if_unused, template))

    def _end_if_unused(self, template: str) -> None:
        if template not in self._of_replicas.values():
            task = asyncio.get_running_loop().create_task(self._end(template))
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)

    async def _end(self, template: str) -> None:
        self._prepared.discard(template)
        self._services.disconnect(template)
        with suppress(PeerGone):
            await self._services.peer(SUPERVISOR).call("kill", template)
