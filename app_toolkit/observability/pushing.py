"""Pushes the metrics of one process to the admin server."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from app_toolkit.observability.snapshots import PUSH_S, Snapshots

log = logging.getLogger("app_toolkit.metrics")

Push = Callable[[str, bytes], Awaitable[bool]]
"""Sends the push of the process of this name. Returns whether it was taken."""

LAST_S = 1.0
"""Seconds that the last push of a process may take."""


class MetricsPush:
    """The pushes of one process, on one event loop."""

    def __init__(self, name: str, snapshots: Snapshots, push: Push) -> None:
        self._name = name
        self._snapshots = snapshots
        self._push = push

    async def run(self, stopped: asyncio.Event) -> None:
        """Push while something changes, until `stopped` is set, and once more then."""
        while not stopped.is_set():
            try:
                async with asyncio.timeout(PUSH_S):
                    await stopped.wait()
            except TimeoutError:
                await self._push_once()
        try:
            async with asyncio.timeout(LAST_S):
                if not self._snapshots.is_acknowledged:
                    await self._push_once()  # what is counted since then is in the push after it
                await self._push_once(last=True)
        except TimeoutError:
            pass  # there is no admin server

    async def _push_once(self, *, last: bool = False) -> None:
        """Push if it is due."""
        try:
            snapshot = self._snapshots.next(time.monotonic(), last=last)
            if snapshot is not None and await self._push(self._name, snapshot):
                self._snapshots.acknowledge()
        except Exception:  # a failure must not affect requests
            log.exception("the metrics of %s could not be pushed", self._name)
