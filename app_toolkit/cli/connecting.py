"""Commands that connect to a cluster: bounded in time, and ended by Ctrl-C at once."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CONNECT_S = 30.0
"""Seconds within which Ray has to connect to a cluster that answers."""


@contextmanager
def connecting(address: str) -> Iterator[None]:
    """While this lasts, a Ctrl-C ends the process, and so does `CONNECT_S` with a sentence and exit code 2.

    Ray connects in C++ code that neither a signal handler of Python's nor an exception interrupts. A command has
    nothing to put away at that time.
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
        f"Error: the Ray cluster at {address} answers, but no connection came about within {CONNECT_S:g} s",
        file=sys.stderr,
        flush=True,
    )
    os._exit(2)
