"""Work that is done to its end although its caller is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def to_its_end(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`, and wait for its end although the caller is cancelled, also several times."""
    task = asyncio.create_task(work, name="app-toolkit chat storage")
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()
