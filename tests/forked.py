"""A child that a test forks, as user code may do."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def forked_child() -> Iterator[None]:
    """Within the block, a forked child of this process lives and does nothing."""
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
