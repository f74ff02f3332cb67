"""How a caller tells the controller of its loads."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from app_toolkit.core.reports import Loads, Told, to_tell

logger = logging.getLogger("app_toolkit.reports")

LOOK_S = 0.25
"""How often it is looked whether there is something to tell. No request pays for it."""

Report = Callable[[Loads], Awaitable[bool]]
"""Tells the controller; whether that heard it."""


class Reports:
    """Those of one process, on the loop that its routers belong to. What nobody heard is told again."""

    def __init__(self, loads: Callable[[], Loads]) -> None:
        """`loads`: of the deployments that are to be reported, now."""
        self._loads = loads
        self._told = Told()
        self._unserved = asyncio.Event()

    def unserved(self) -> None:
        """Something begins to wait that no replica is there for."""
        self._unserved.set()

    async def run(self, report: Report) -> None:
        """Until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._unserved.wait()
            taken = now()
            loads = to_tell(self._told, self._loads(), taken, unserved=self._unserved.is_set())
            self._unserved.clear()
            if not loads:
                continue
            try:
                if await report(loads):
                    self._told = Told(loads, taken)
            except Exception:  # the edge between what is served and who counts it: requests go on
                logger.exception("the load could not be reported")
                await asyncio.sleep(LOOK_S)
