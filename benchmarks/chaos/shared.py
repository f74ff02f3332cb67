"""Measurements and checks that several scenarios share."""

import math
import os
import signal
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from benchmarks.chaos.client import Client, Done, closed_loop, not_ok, ok
from benchmarks.chaos.report import Row
from benchmarks.chaos.system import seconds_until

SMALLEST_MS = 10.0
"""Ratios treat a shorter time as this long: the ratio of two very short times is noise."""

GONE_S = 10.0
"""How long a killed process may take to end."""

RESTORED_S = 15.0
"""Maximum time in seconds until killed processes are replaced and reported healthy under load."""

SOME = 16
"""The number of clients in a closed loop."""


async def capacity_of(client: Client, short: bool) -> float:
    """Measure the capacity C in requests per second. Client and system share the machine."""
    seconds = 1 if short else 15
    await closed_loop(client.get, SOME, 0.5)
    return len(ok(await closed_loop(client.get, SOME, seconds))) / seconds


def lost(what: str, found: Sequence[Done]) -> Row:
    return Row(f"{what}: failed or wrong responses", len(not_ok(found)), 0, saw=counted(found))


def counted(found: Sequence[Done]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in Counter(done.outcome for done in found).most_common())


@dataclass(frozen=True, slots=True)
class Death:
    """The time from killing a process until it ended. On a busy machine, its sockets accept data meanwhile."""

    began: float
    ended: float

    def meets(self, began: float, ended: float) -> bool:
        """Whether this time overlaps with the time from `began` to `ended`."""
        return began <= self.ended and ended >= self.began


async def killed(pid: int) -> Death:
    """Kill the process, and wait until it has ended."""
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    await seconds_until(lambda: not _is_alive(pid), GONE_S)
    return Death(began, time.monotonic())


def _is_alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        # The main thread may end before the others. The last thread closes the sockets.
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    return False


def unhurt(found: Sequence[Done], deaths: Collection[Death]) -> list[Done]:
    """Return the failed requests that were not in flight during any of these deaths."""
    return [done for done in not_ok(found) if not any(death.meets(done.sent, done.answered) for death in deaths)]


def count_of(found: Sequence[Done], what: str) -> int:
    return sum(done.outcome == what for done in found)


def ratio(value: float | None, to: float | None) -> float:
    """Return infinity if either value is None."""
    if value is None or to is None:
        return math.inf
    return max(value, SMALLEST_MS) / max(to, SMALLEST_MS)
