"""Says where the start of an app is, if it takes long."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from app_toolkit.observability.stacks import line_of, stack_of

logger = logging.getLogger("app_toolkit.start")

SLOW_START_S = 5.0
"""Seconds after which the log says where a start is."""


@contextmanager
def reported_if_slow(what: str) -> Iterator[None]:
    """Log one warning with the present line of user code if the block takes longer than `SLOW_START_S`.

    `what`: the subject of the sentence.
    """
    thread, done = threading.get_ident(), threading.Event()

    def report() -> None:
        if not done.wait(SLOW_START_S):
            line = line_of(stack_of(thread))
            logger.warning("%s has taken %g s so far%s", what, SLOW_START_S, f": it is at {line}" if line else "")

    watch = threading.Thread(target=report, name="app-toolkit start", daemon=True)
    watch.start()
    try:
        yield
    finally:
        done.set()
        watch.join()
