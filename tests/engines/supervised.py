"""A supervisor in a process of its own, as the first process of an instance."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.groups import ROOT
from tests.patience import PATIENCE_S

IDLE = """
import os, signal, sys, socket
from app_toolkit.engines.processes.services import ProcessServices
from app_toolkit.engines.processes.supervisor import Supervisor

def wait(services, listener, ends):
    while True:
        signal.pause()

exec(sys.argv[3])
owner = socket.socket(fileno=int(sys.argv[2]))
sys.exit(Supervisor(ProcessServices(sys.argv[1]), wait).run(owner=owner))
"""
"""An instance whose controller does nothing."""


@contextmanager
def supervised(session: str, before: str = "") -> Iterator["subprocess.Popen[bytes]"]:
    """Run a supervisor until the end of the block, and wait until all of its processes have ended.

    `before`: code that its process runs first.
    """
    ours, theirs = socket.socketpair()
    with (
        ours,
        subprocess.Popen(
            [sys.executable, "-P", "-c", IDLE, session, str(theirs.fileno()), before],
            pass_fds=[theirs.fileno()],
            cwd=ROOT,
        ) as process,
    ):
        theirs.close()
        ours.settimeout(PATIENCE_S)
        try:
            assert ours.recv(1) == b"+", "the supervisor did not start"
            yield process
        finally:
            ours.close()
            process.wait(PATIENCE_S)
