"""Leases: all streams that this process generates are renewed in one call."""

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from app_toolkit.core.stream_log import Renewal
from app_toolkit.streaming.log import StreamLog

logger = logging.getLogger("app_toolkit.streaming")

RENEW_S = 0.5
"""Seconds between two renewals. A stop and the end of `linger_s` are noticed this late."""


@dataclass(eq=False, slots=True)
class StreamLease:
    """The lease on one stream."""

    stream: str
    owner: str
    obey: Callable[[Renewal | None], None]
    """Called after each renewal; with None if the log does not have the stream any more."""
    renewed_at: float
    """The time on `time.monotonic()`. Appended events renew the lease, too."""


class StreamLeases:
    """The leases on the streams of one log. A task renews them while there are any."""

    def __init__(self, log: StreamLog) -> None:
        self._log = log
        self._leases: set[StreamLease] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, lease: StreamLease) -> None:
        """Renew this lease from now on."""
        self._leases.add(lease)
        if self._task is None:
            # The task outlives the request that starts it, so it must not have the deadline of the request.
            self._task = asyncio.create_task(
                self._keep_renewing(), name="app-toolkit stream leases", context=contextvars.Context()
            )

    async def remove(self, lease: StreamLease) -> None:
        """Do not renew this lease any more."""
        self._leases.discard(lease)
        if not self._leases and self._task is not None:
            task, self._task = self._task, None
            if _kept.get(self._log) is self:
                del _kept[self._log]
            task.cancel()
            await asyncio.wait([task])

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            due = [each for each in self._leases if time.monotonic() - each.renewed_at >= RENEW_S]
            if not due:
                continue
            try:
                found = await self._log.renew([(each.stream, each.owner) for each in due])
            except Exception as error:
                logger.warning("the leases of %d streams were not renewed: %s", len(due), error)
                continue
            for lease, renewal in zip(due, found, strict=True):
                if lease in self._leases:
                    lease.obey(renewal)


_kept: dict[StreamLog, StreamLeases] = {}
"""By log. A log has an entry while this process generates a stream of it."""


def leases(log: StreamLog) -> StreamLeases:
    """Return the leases of this process on streams of a log."""
    return _kept.setdefault(log, StreamLeases(log))
