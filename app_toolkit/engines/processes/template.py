"""A process that has imported an app, and forks the replicas of it.

Replicas that are forked share its memory, and start without an import. A template has no threads and no event loop.
"""

import gc
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from app_toolkit.config import settings
from app_toolkit.contract.replica_spec import ReplicaSpec
from app_toolkit.engines.processes import limits
from app_toolkit.engines.processes.capacity import Grant
from app_toolkit.engines.processes.child import serve_replica
from app_toolkit.engines.processes.fork import fork_for
from app_toolkit.engines.processes.inheritance import Inheritance
from app_toolkit.engines.processes.output import end_reports
from app_toolkit.engines.processes.services import SUPERVISOR, ProcessServices
from app_toolkit.engines.processes.wire import Request, Server, call, listen
from app_toolkit.errors import ControlError
from app_toolkit.host.logs import begin_logs
from app_toolkit.host.preparation import Preparation, Prepared, prepare
from app_toolkit.host.process import ReplicaProcess
from app_toolkit.host.store import packed
from app_toolkit.observability.context import ReplicaContext
from app_toolkit.operate.client import Plan
from app_toolkit.replica import breakpoints
from app_toolkit.types import ReplicaId
from app_toolkit.userapp import sources
from app_toolkit.userapp.ending import exit_code
from app_toolkit.userapp.loading import load
from app_toolkit.userapp.target import is_factory
from app_toolkit.wire.sockets import close_in_children

ONE_CPU = 1.0
"""The CPUs for which an app is imported to plan it: those of most replicas, which reserve at most one."""

SETTLED = b"+"
"""What a replica sends to its template once it can receive orders, or the supervisor has refused it."""

TICK_NS = 20_000_000
"""Nanoseconds by which the time of a change of a file may be too early."""


def run(plan: Plan, services: ProcessServices, name: str, listener: socket.socket, granted: Grant) -> None:
    """Obey orders until the process is killed. All run on the main thread, because the app is imported there.

    `plan`: as of `Engine.begin_instance`.
    """
    template = Template(plan, services, name)
    close_in_children(listener)

    def receive(request: Request) -> None:
        match request.method:
            case "plan":
                request.perform(template.plan)
            case "become":
                request.perform(template.become)
            case "prepare":
                request.perform(template.prepare)
            case "fork":
                request.perform(partial(template.fork, controller=request.pid))
            case _:
                request.fail(ControlError(f"a template has no order {request.method!r}"))

    server = Server(listener, receive)
    while True:
        server.run_once()


@dataclass(frozen=True, slots=True)
class Planned:
    """What an import for a plan has used."""

    app_dir: str
    """The folder of the modules."""
    began: int
    """When it began, in nanoseconds."""
    variables: Mapping[str, str]
    """The environment."""

    def serves(self, spec: ReplicaSpec, services: ProcessServices) -> bool:
        """Return whether replicas can use the import: it read the same files with the same variables and options."""
        needed = Preparation.of(spec).spec
        imported = replace(  # `become` applies the application, its other options and the secrets after the import
            needed,
            app_dir=self.app_dir,
            working_dir=os.getcwd(),
            code="",
            artifact="",
            restarted=0,
            application_config=needed.application_config.model_copy(update={"logging_config": None}),
            variables={name: self.variables[name] for name in needed.variables if name in self.variables},
        )
        if needed != imported or not needed.sources:
            return False
        if is_factory(load(spec.target, spec.app_dir)):  # it was called for the plan
            return False
        files = sources.read(spec.sources, packed(services.store, spec.sources))
        return sources.are_older(spec.app_dir, files, self.began - TICK_NS)


class Template:
    def __init__(self, plan: Plan, services: ProcessServices, name: str) -> None:
        self._plan = plan
        self._services = services
        self._name = name
        self._supervisor = os.getppid()
        self._prepared: Prepared | None = None
        self._obstacles: list[str] = []
        self._planned: Planned | None = None

    def plan(self, app: str) -> str | int:
        """Import an app and plan it. Return the plan as JSON, or the exit code after an error that was reported."""
        settings.hide_admin_token()  # user code has no need of it
        settings.set_variables(settings.variables_of_threads(ONE_CPU))
        begin_logs(self._services.log_folder, ReplicaContext(app, "", ReplicaId(self._name)), user_code=True)
        breakpoints.install()
        began, variables, inheritance = time.time_ns(), settings.all_variables(), Inheritance()
        try:
            spec = self._plan(app)
        except SystemExit as ended:
            return exit_code(ended)
        self._planned = Planned(spec.app_dir, began, variables)
        self._obstacles = inheritance.obstacles()
        return spec.model_dump_json()  # its values may have classes of the app

    def become(self, name: str, spec: ReplicaSpec) -> bool:
        """Become the template of this name, if `prepare` would import what `plan` has imported. Return whether it has.

        `spec`: that of a replica of the planned app.
        """
        if self._planned is None or self._prepared is not None or not self._planned.serves(spec, self._services):
            return False
        if not call(self._services.path_of(SUPERVISOR), "rename", self._name, name):
            return False
        self._name = name
        self._prepare(spec)
        return True

    def prepare(self, spec: ReplicaSpec) -> list[str]:
        """Import the app, unless that is done. Return why this process must not be forked; empty: it can be forked.

        Raises what the app raises, also if it needs an event loop that runs while it is imported.
        """
        if self._prepared is None:
            inheritance = Inheritance()
            self._prepare(spec)
            self._obstacles = inheritance.obstacles()
        return self._obstacles

    def _prepare(self, spec: ReplicaSpec) -> None:
        end_reports()
        self._prepared = prepare(replace(spec, id=ReplicaId(self._name)), self._services, imports=True)
        gc.collect()
        gc.freeze()  # otherwise the garbage collection of a replica copies the pages that it shares

    def fork(self, name: str, granted: Grant, controller: int) -> None:
        """Fork a replica, and return once it can receive orders, or the supervisor has refused it.

        `controller`: the process ID of the one that has ordered it. Raises `ControlError` if the replica ends before.
        """
        ready, starting = os.pipe()
        try:
            fork_for(self._supervisor, partial(self._live, name, granted, controller, ready, starting), "at-replica")
        finally:
            os.close(starting)
            settled = os.read(ready, 1)  # a replica that ends closes its end
            os.close(ready)
        if settled != SETTLED:  # the supervisor may not know of the process, so nobody else reports its end
            raise ControlError(f"the process of {name!r} ended before it could receive orders")

    def _live(self, name: str, granted: Grant, controller: int, ready: int, starting: int) -> None:
        os.close(ready)
        limits.apply(granted)
        try:
            call(self._services.path_of(SUPERVISOR), "register", name, self._name, granted, controller)
        except ControlError:  # nobody waits for this process any more
            os.write(starting, SETTLED)
            sys.exit(1)
        listener = listen(self._services.path_of(name))
        os.write(starting, SETTLED)
        os.close(starting)
        process = ReplicaProcess(ReplicaId(name), self._services, self._prepared)
        serve_replica(process, self._services, listener)
