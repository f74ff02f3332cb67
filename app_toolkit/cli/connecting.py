"""Connecting to an instance with a time limit, and with a Ctrl-C that takes effect at once."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CONNECT_S = 30.0
"""Seconds that the engine may take to connect to an instance or a Ray cluster that answers."""


@contextmanager
def connecting(address: str) -> Iterator[None]:
    """Within this context Ctrl-C ends the process. After `CONNECT_S` the process ends with an error and exit code 2.

    Ray connects in C++ code that neither a Python signal handler nor an exception can interrupt. A command has nothing
    to clean up at that time.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    timer = threading.Timer(CONNECT_S, _give_up, (address,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGINT, before)


def _give_up(address: str) -> None:
    print(
        f"Error: the address {address} did not accept a connection within {CONNECT_S:g} s: try again, and for a Ray "
        "cluster, check that its nodes run the same version of Ray and that no firewall blocks Ray's ports",
        file=sys.stderr,
        flush=True,
    )
    os._exit(2)
