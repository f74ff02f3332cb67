"""The first process of an instance that another process starts and owns: see `client.OwnSupervisor`."""

import os
import socket
import sys

from app_toolkit import private
from app_toolkit.engines.processes.services import ProcessServices
from app_toolkit.engines.processes.sessions import new_session
from app_toolkit.engines.processes.supervisor import Supervisor


def _detach(services: ProcessServices) -> None:
    """Use nothing of the process that has started this one: neither its output nor its folder."""
    output = private.open_file(services.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    os.chdir("/")


if __name__ == "__main__":
    place, number, *clients = sys.argv[1:]
    services = ProcessServices(new_session())
    owner = socket.socket(fileno=int(number))
    try:
        owner.sendall(f"{services.session}\n".encode())
    except OSError:  # the owner has ended meanwhile
        services.folder.end()
        sys.exit(0)
    if clients:
        services.clients, services.host = socket.socket(fileno=int(clients[0])), clients[1]
    if place == "background":
        _detach(services)
    sys.exit(Supervisor(services).run(owner=owner, until_released=place == "background"))
