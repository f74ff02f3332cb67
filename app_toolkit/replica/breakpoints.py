"""The behavior of `breakpoint()` in a replica: one warning for each line. A debugger that is started replaces it."""

import logging
import sys
from functools import lru_cache
from typing import Any

logger = logging.getLogger("app_toolkit.replica")

MOST_PLACES = 1_000
"""Maximum number of code lines that are remembered, so that each line logs only one warning."""


def install() -> None:
    """Replace Ray's own debugger, which waits without limit and listens on the node's network address."""
    sys.breakpointhook = _ignore


def _ignore(*args: Any, **kwargs: Any) -> None:
    frame = sys._getframe(1)
    _warn(frame.f_code.co_filename, frame.f_lineno)


@lru_cache(MOST_PLACES)
def _warn(file: str, line: int) -> None:
    logger.warning("breakpoint() at %s:%d does nothing in a replica: use `app-toolkit dev`, or debugpy", file, line)
