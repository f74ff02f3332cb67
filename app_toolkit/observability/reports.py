"""Sends the loads of a caller to the controller, and the requests of revisions that are compared."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from app_toolkit.contract.loads import Compared, LastReport, Loads, Lost, are_due, loads_to_report
from app_toolkit.observability.lost_requests import LostRequests

logger = logging.getLogger("app_toolkit.reports")

LOAD_CHECK_S = 0.25
"""Interval in seconds at which the loads are checked, outside of requests."""

Report = Callable[[Loads, Compared, Lost], Awaitable[bool]]
"""Sends a report to the controller. Returns whether the controller received it."""

NOTHING: Compared = {}


class Reports:
    """The reports of one process, on the event loop of its routers.

    A report that was not received is sent again. Only the requests that were lost with replicas are not: a controller
    that starts knows nothing of these replicas.
    """

    def __init__(self) -> None:
        """Create the reports of one process, which has nothing to report yet."""
        self._loads: list[Callable[[], Loads]] = []
        #: Returns the requests of the revisions that are compared. Its owner sets it.
        self.compared: Callable[[], Compared] = lambda: NOTHING
        self._last = LastReport()
        self._last_compared, self._compared_at = NOTHING, float("-inf")
        self._unserved = asyncio.Event()
        #: The requests that were lost. Its owner subscribes it to the records.
        self.lost = LostRequests()

    def add(self, loads: Callable[[], Loads]) -> None:
        """Report more deployments. `loads`: returns their current loads, if they are reported."""
        self._loads.append(loads)

    def unserved(self) -> None:
        """Report soon: a request has begun to wait for a deployment without replicas."""
        self._unserved.set()

    async def run(self, report: Report) -> None:
        """Send reports until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOAD_CHECK_S):
                    await self._unserved.wait()
            sampled_at = now()
            current = {key: load for loads in self._loads for key, load in loads().items()}
            loads = loads_to_report(self._last, current, sampled_at, unserved=self._unserved.is_set())
            self._unserved.clear()
            compared = self.compared()
            if not are_due(self._last_compared, self._compared_at, compared, sampled_at):
                compared = NOTHING
            lost = self.lost.take()
            if not loads and not compared and not lost:
                continue
            try:
                if await report(loads, compared, lost):
                    if loads:
                        self._last = LastReport(loads, sampled_at)
                    if compared:
                        self._last_compared, self._compared_at = compared, sampled_at
            except Exception:  # a failure must not affect requests
                logger.exception("the load could not be reported")
                await asyncio.sleep(LOAD_CHECK_S)
