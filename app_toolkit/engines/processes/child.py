"""The main thread of a replica or a proxy: receives orders, and lets other threads obey them."""

import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from app_toolkit.engines.processes.services import ProcessServices
from app_toolkit.engines.processes.wire import Request, Server
from app_toolkit.host.orders import Lane, Order, serve
from app_toolkit.host.process import ControlledProcess, ProxyProcess, ReplicaProcess
from app_toolkit.types import ReplicaId

THREADS: dict[Lane, int] = {"control": 8, "bulk": 2}
"""The threads of each lane. A start, a reconfiguration, a drain and a stop may block at the same time, while probes
continue."""


def run_replica(services: ProcessServices, name: str, listener: socket.socket) -> None:
    obey(ReplicaProcess(ReplicaId(name), services), listener)


def run_proxy(services: ProcessServices, name: str, listener: socket.socket) -> None:
    obey(ProxyProcess(ReplicaId(name), services), listener)


def obey(process: ControlledProcess, listener: socket.socket) -> None:
    """Obey orders until the process is killed."""
    threads = {lane: ThreadPoolExecutor(most, f"app-toolkit {lane}") for lane, most in THREADS.items()}

    def receive(request: Request) -> None:
        order: Order[ControlledProcess, object] = request.args[0]
        threads[order.lane].submit(partial(request.perform, partial(serve, process)))

    server = Server(listener, receive)
    while True:
        server.run_once()
