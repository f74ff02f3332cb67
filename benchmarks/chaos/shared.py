"""What several scenarios measure, or judge, in the same way."""

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
"""A time below this counts as this much where two are compared: the ratio of two tiny ones is noise."""

GONE_S = 10.0
"""How long a process that was killed may take to be gone."""

RESTORED_S = 15.0
"""Until all that had died is there again, and known to be well, while requests go on."""

SOME = 16
"""Clients of a closed loop."""


async def capacity_of(client: Client, short: bool) -> float:
    """C: what this client and this system, on this machine, manage together."""
    seconds = 1 if short else 15
    await closed_loop(client.get, SOME, 0.5)
    return len(ok(await closed_loop(client.get, SOME, seconds))) / seconds


def lost(what: str, found: Sequence[Done]) -> Row:
    return Row(f"{what}: without the right answer", len(not_ok(found)), 0, saw=counted(found))


def counted(found: Sequence[Done]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in Counter(done.outcome for done in found).most_common())


@dataclass(frozen=True, slots=True)
class Death:
    """Of a process: from when it was killed until it was gone. On a busy machine its sockets still take something."""

    began: float
    ended: float

    def meets(self, began: float, ended: float) -> bool:
        """Whether something else was going on meanwhile."""
        return began <= self.ended and ended >= self.began


async def killed(pid: int) -> Death:
    """Kill it, and wait until it is gone."""
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    await seconds_until(lambda: not _is_alive(pid), GONE_S)
    return Death(began, time.monotonic())


def _is_alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def unhurt(found: Sequence[Done], deaths: Collection[Death]) -> list[Done]:
    """Those that failed, and were not under way when something died."""
    return [done for done in not_ok(found) if not any(death.meets(done.sent, done.answered) for death in deaths)]


def count_of(found: Sequence[Done], what: str) -> int:
    return sum(done.outcome == what for done in found)


def ratio(value: float | None, to: float | None) -> float:
    """Infinite where either was not measured."""
    if value is None or to is None:
        return math.inf
    return max(value, SMALLEST_MS) / max(to, SMALLEST_MS)
