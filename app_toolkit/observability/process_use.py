"""The memory and the CPU time of this process, and the delays of its event loop, as metrics."""

from collections.abc import Callable, Iterator

import psutil

from app_toolkit.observability.metrics import DEPLOYMENT, NONE, PROCESS, Sample, declare
from app_toolkit.observability.snapshots import Component

LOOP_LAG_SECONDS = declare(
    "app_toolkit_event_loop_lag_seconds",
    "gauge",
    "The longest delay of the event loop within the last 10 to 20 seconds.",
    PROCESS,
    "all",
)
MEMORY_BYTES = declare(
    "app_toolkit_process_resident_memory_bytes",
    "gauge",
    "Resident memory of a process.",
    PROCESS,
    "all",
)
CPU_SECONDS = declare(
    "app_toolkit_process_cpu_seconds_total",
    "counter",
    "CPU time of processes in user and system mode, also of those that have ended.",
    (*DEPLOYMENT, "component"),
    "all",
)


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
