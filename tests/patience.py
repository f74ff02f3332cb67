"""How long a test waits for what is to come about: far longer than that takes, so that no slow machine fails it."""

import asyncio
from collections.abc import Callable

PATIENCE_S = 90.0
"""A process or a replica that starts, and a request that may wait for one."""


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop turn until it is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - a condition that nobody tells of
            await asyncio.sleep(0)
