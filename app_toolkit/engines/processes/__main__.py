"""The first process of an instance that another process owns: see `client.OwnSupervisor`."""

import socket
import sys

from app_toolkit.engines.processes.services import ProcessServices
from app_toolkit.engines.processes.supervisor import Supervisor

if __name__ == "__main__":
    session, owner = sys.argv[1:]
    sys.exit(Supervisor(ProcessServices(session)).run(owner=socket.socket(fileno=int(owner))))
