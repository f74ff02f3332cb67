"""Sample the memory, /dev/shm usage and file descriptors of processes."""

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Self

import psutil

SHARED_MEMORY = "/dev/shm"


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    rss: Mapping[str, int]
    """Resident memory in bytes, by process."""
    fds: Mapping[str, int]
    shared: int
    """Bytes of /dev/shm that all processes of the machine use."""

    def memory(self, names: Collection[str] | None = None) -> int:
        """Return the memory of these processes in bytes. None: all processes and /dev/shm."""
        if names is None:
            return sum(self.rss.values()) + self.shared
        return sum(self.rss[name] for name in names)


class Probe:
    """Sample processes during a `with` block, and once at its start and its end."""

    def __init__(self, pids: Mapping[str, int], every_s: float = 1.0) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._every_s = every_s
        self.samples: list[Sample] = []

    async def __aenter__(self) -> Self:
        self._look()
        self._looking = asyncio.create_task(self._look_again_and_again())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._looking.cancel()
        with suppress(asyncio.CancelledError):
            await self._looking
        self._look()

    def growth(self, names: Collection[str] | None = None) -> float:
        """Return the difference between the highest and the first sample in MB."""
        held = [sample.memory(names) for sample in self.samples]
        return (max(held) - held[0]) / 1e6

    def slope(self) -> float:
        """Return the growth in MB/s in the second half, after one-time allocations."""
        late = self.samples[len(self.samples) // 2 :]
        return slope([(sample.at, sample.memory() / 1e6) for sample in late])

    async def _look_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            self._look()

    def _look(self) -> None:
        self.samples.append(
            Sample(
                at=time.monotonic(),
                rss={name: process.memory_info().rss for name, process in self._processes.items()},
                fds={name: process.num_fds() for name, process in self._processes.items()},
                shared=shutil.disk_usage(SHARED_MEMORY).used,
            )
        )


def queued(port: int) -> dict[int, int]:
    """Return the bytes in kernel socket buffers from the server at this port to its clients, by client port. IPv4."""
    found: Counter[int] = Counter()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, there, _, queues, *_ = line.split()
        sent, received = (int(size, 16) for size in queues.split(":"))
        ours, theirs = (int(end.partition(":")[2], 16) for end in (here, there))
        if ours == port:
            found[theirs] += sent
        elif theirs == port:
            found[ours] += received
    return found


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes between all pairs of points, which is robust to outliers; 0.0 without a pair."""
    found = [(y - x) / (later - at) for (at, x), (later, y) in combinations(points, 2) if later > at]
    return median(found) if found else 0.0
