"""The end of a program as Python defines it, for a process that an engine kills instead.

A program ends when its main thread has ended: Python waits for the threads that are not daemons, and then runs the
functions that were registered with `atexit`, which flush logs, export the last spans and remove temporary folders.
"""

import atexit
import logging
import threading
from concurrent.futures import Future, wait

from app_toolkit.replica.signals import Signals
from app_toolkit.types import ReplicaId
from app_toolkit.userapp.ending import SAID_AFTER_S, waited_for

logger = logging.getLogger("app_toolkit.replica")


def run_exit_functions(name: ReplicaId, signals: Signals, timeout_s: float) -> None:
    """Do on the main thread what Python does when a program ends, and wait for it for `timeout_s` seconds.

    The engine then kills the process, even if this is not done. Python prints the errors of these functions.
    """
    done = signals.start_on_main(_end_program)
    wait((done,), min(SAID_AFTER_S, timeout_s))
    if not done.done() and timeout_s > SAID_AFTER_S:
        left_s = timeout_s - SAID_AFTER_S
        logger.warning("%s waits for %s; its process is killed in %.0f s", name, _awaited(done), left_s)
        wait((done,), left_s)


def _end_program() -> None:
    # `Py_FinalizeEx` does the same.
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    finally:
        atexit._run_exitfuncs()


def _awaited(done: Future[None]) -> str:
    if not done.running():
        return "the main thread, which does not run Python"
    return waited_for()
