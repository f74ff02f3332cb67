"""How long a test waits for a condition: far longer than it takes, so that a slow machine fails no test."""

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 90.0
"""A process or a replica that starts, and a request that may wait for one."""

AGAIN_S = 0.05

QUICK_TURNS = 100
"""The number of turns of the event loop for which `until` does not pause."""


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop turn until the condition is true."""
    turns = 0
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            turns += 1
            # What takes longer than these turns waits for time or for another process, which may need the processor.
            await asyncio.sleep(0 if turns < QUICK_TURNS else 0.001)


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    """Block until the condition is true, which may take `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it was not so within {seconds:g} s"
        time.sleep(AGAIN_S)
