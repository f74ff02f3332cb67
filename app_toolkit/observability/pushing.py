"""Pushes the metrics of one process to the admin process."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

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
            pass  # there is no admin process

    async def _push_once(self, *, last: bool = False) -> None:
        """Push if it is due."""
        try:
            snapshot = self._snapshots.next(time.monotonic(), last=last)
            if snapshot is not None and await self._push(self._name, snapshot):
                self._snapshots.acknowledge()
        except Exception:  # a failure must not affect requests
            log.exception("the metrics of %s could not be pushed", self._name)


class MetricsThread:
    """Pushes on a thread of its own, which user code cannot block."""

    def __init__(self, push: MetricsPush) -> None:
        self._push = push
        self._stopped = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="app-toolkit metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Push once more, and end the thread, within about `LAST_S`. Does nothing if it has ended."""
        if self._thread.is_alive():
            with suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join(2 * LAST_S)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._push.run(self._stopped))
        finally:
            self._loop.close()
