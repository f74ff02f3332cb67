"""The main thread of a replica or a proxy: receives orders, and lets other threads obey them."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue

from app_toolkit.engines.processes import limits
from app_toolkit.engines.processes.capacity import Grant
from app_toolkit.engines.processes.services import SUPERVISOR, ProcessServices
from app_toolkit.engines.processes.wire import Request, Server, call
from app_toolkit.host.exit_report import report_exit
from app_toolkit.host.orders import Lane, Order, serve
from app_toolkit.host.process import ControlledProcess, ProxyProcess, ReplicaProcess
from app_toolkit.types import ReplicaId
from app_toolkit.wire.sockets import close_in_children

REPORT_S = 1.0
"""Seconds for which a call of `os._exit` waits until the supervisor knows of it."""

THREADS: dict[Lane, int] = {"control": 8, "bulk": 2}
"""The threads of each lane. A start, a reconfiguration, a drain and a stop may block at the same time, while probes
continue. The orders that wait for a thread are bounded by their senders: the controller and the clients of the
instance send the next one when the last one is answered."""


def run_replica(services: ProcessServices, name: str, listener: socket.socket, granted: Grant) -> None:
    limits.apply(granted)
    serve_replica(ReplicaProcess(ReplicaId(name), services), services, listener)


def serve_replica(process: ReplicaProcess, services: ProcessServices, listener: socket.socket) -> None:
    """Obey the orders to a replica, and let the supervisor know if user code ends the process."""

    def report(sentence: str) -> None:
        with suppress(OSError):
            call(services.path_of(SUPERVISOR), "note_end", process.name, sentence, timeout_s=REPORT_S)

    report_exit(report)
    if services.clients is not None:
        close_in_children(services.clients)
    obey(process, listener)


def run_proxy(services: ProcessServices, name: str, listener: socket.socket, granted: Grant) -> None:
    obey(ProxyProcess(ReplicaId(name), services), listener)


def obey(process: ControlledProcess, listener: socket.socket) -> None:
    """Obey orders until the process is killed."""
    lanes = {lane: _begin(lane, number) for lane, number in THREADS.items()}

    def receive(request: Request) -> None:
        order: Order[ControlledProcess, object] = request.args[0]
        lanes[order.lane].put(partial(request.perform, partial(serve, process)))

    server = Server(listener, receive)
    while True:
        server.run_once()


def _begin(lane: Lane, number: int) -> "SimpleQueue[Callable[[], None]]":
    """Begin the threads of a lane, and return the queue of their work.

    They are daemons: a replica that stops waits for the threads of user code (`host/exit_functions.py`), on such a
    thread.
    """
    work: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def run() -> None:
        while True:
            work.get()()

    for _ in range(number):
        threading.Thread(target=run, name=f"app-toolkit {lane}", daemon=True).start()
    return work
