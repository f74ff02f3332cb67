"""The memory and the CPU time of this process, and the delays of its event loop, as metrics."""

from collections.abc import Callable, Iterator

import psutil

from app_toolkit.observability.metrics import CPU_SECONDS, LOOP_LAG_SECONDS, MEMORY_BYTES, NONE, Sample
from app_toolkit.observability.snapshots import Component


class ProcessUse:
    """The samples of one process. Safe from any thread."""

    def __init__(self, component: Component, replica_set: str, name: str, lag: Callable[[], float | None]) -> None:
        """`replica_set`: empty if it belongs to no deployment. `lag`: returns the longest recent delay of its event
        loop in seconds; None: not known."""
        self._process = psutil.Process()
        self._labels = replica_set or NONE, component, name
        self._lag = lag

    def samples(self) -> Iterator[Sample]:
        with self._process.oneshot():
            memory, cpu = self._process.memory_info().rss, self._process.cpu_times()
        yield Sample(MEMORY_BYTES, self._labels, [memory])
        yield Sample(CPU_SECONDS, self._labels[:2], [cpu.user + cpu.system])
        lag = self._lag()
        if lag is not None:
            yield Sample(LOOP_LAG_SECONDS, self._labels, [lag])
