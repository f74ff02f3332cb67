"""The main thread of a replica or a proxy: receives orders, and lets other threads obey them."""

import socket
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from app_toolkit.engines.processes.services import ProcessServices
from app_toolkit.engines.processes.wire import Request, Server
from app_toolkit.host.orders import Lane, Order, serve
from app_toolkit.host.process import ControlledProcess, ProxyProcess, ReplicaProcess
from app_toolkit.types import ReplicaId

THREADS: dict[Lane, int] = {"control": 8, "bulk": 2}
"""The threads of each lane. A start, a reconfiguration, a drain and a stop may block at the same time, while probes
continue. The orders that wait for a thread are bounded by their senders: the controller and the clients of the
instance send the next one when the last one is answered."""


def run_replica(services: ProcessServices, name: str, listener: socket.socket) -> None:
    obey(ReplicaProcess(ReplicaId(name), services), listener)


def run_proxy(services: ProcessServices, name: str, listener: socket.socket) -> None:
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
