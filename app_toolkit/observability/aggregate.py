"""The metrics of the whole instance, added up from what its processes push."""

import threading


class MetricsAggregate:
    """Holds the last snapshot of each process, and exposes them for Prometheus. Safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._snapshots: dict[str, bytes] = {}

    def push(self, process: str, snapshot: bytes) -> None:
        """Take the cumulative snapshot of a process."""
        with self._lock:
            self._snapshots[process] = snapshot

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in the format that `accept`, the header field of the scrape, asks for, and its type."""
        with self._lock:
            processes = len(self._snapshots)
        text = f"# TYPE app_toolkit_reporting_processes gauge\napp_toolkit_reporting_processes {processes}\n"
        return text.encode(), "text/plain; version=0.0.4; charset=utf-8"
