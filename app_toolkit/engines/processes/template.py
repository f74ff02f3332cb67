"""A process that has imported an app, and forks the replicas of it.

Replicas that are forked share its memory, and start without an import. A template has no threads and no event loop.
"""

import gc
import os
import socket
import sys
from dataclasses import replace
from functools import partial

from app_toolkit.engines.processes import limits
from app_toolkit.engines.processes.capacity import Grant
from app_toolkit.engines.processes.child import serve_replica
from app_toolkit.engines.processes.fork import fork_for
from app_toolkit.engines.processes.inheritance import Inheritance
from app_toolkit.engines.processes.services import SUPERVISOR, ProcessServices
from app_toolkit.engines.processes.wire import Request, Server, call, listen
from app_toolkit.errors import ControlError
from app_toolkit.host.preparation import Prepared, prepare
from app_toolkit.host.process import ReplicaProcess
from app_toolkit.interfaces import ReplicaSpec
from app_toolkit.transport.sockets import close_in_children
from app_toolkit.types import ReplicaId


def run(services: ProcessServices, name: str, listener: socket.socket, granted: Grant) -> None:
    """Obey orders until the process is killed. All run on the main thread, because the app is imported there."""
    template = Template(services, name)
    close_in_children(listener)

    def receive(request: Request) -> None:
        match request.method:
            case "prepare":
                request.perform(template.prepare)
            case "fork":
                request.perform(partial(template.fork, controller=request.pid))
            case _:
                request.fail(ControlError(f"a template has no order {request.method!r}"))

    server = Server(listener, receive)
    while True:
        server.run_once()


class Template:
    def __init__(self, services: ProcessServices, name: str) -> None:
        self._services = services
        self._name = name
        self._supervisor = os.getppid()
        self._prepared: Prepared | None = None
        self._obstacles: list[str] = []

    def prepare(self, spec: ReplicaSpec) -> list[str]:
        """Import the app, unless that is done. Return why this process must not be forked; empty: it can be forked.

        Raises what the app raises, also if it needs an event loop that runs while it is imported.
        """
        if self._prepared is None:
            inheritance = Inheritance()
            self._prepared = prepare(replace(spec, id=ReplicaId(self._name)), self._services, imports=True)
            self._obstacles = inheritance.obstacles()
            gc.collect()
            gc.freeze()  # otherwise the garbage collection of a replica copies the pages that it shares
        return self._obstacles

    def fork(self, name: str, granted: Grant, controller: int) -> None:
        """Fork a replica, and return once it can receive orders, or has ended.

        `controller`: the process ID of the one that has ordered it.
        """
        ready, starting = os.pipe()
        try:
            fork_for(self._supervisor, partial(self._live, name, granted, controller, ready, starting), "at-replica")
        finally:
            os.close(starting)
            os.read(ready, 1)  # the replica closes its end
            os.close(ready)

    def _live(self, name: str, granted: Grant, controller: int, ready: int, starting: int) -> None:
        os.close(ready)
        limits.apply(granted)
        try:
            call(self._services.path_of(SUPERVISOR), "register", name, self._name, granted, controller)
        except ControlError:  # nobody waits for this process any more
            sys.exit(1)
        listener = listen(self._services.path_of(name))
        os.close(starting)
        process = ReplicaProcess(ReplicaId(name), self._services, self._prepared)
        serve_replica(process, self._services, listener)
