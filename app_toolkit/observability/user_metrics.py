"""The metrics that user code has created with `prometheus_client`, in its default registry."""

import logging
import sys
from collections.abc import Iterable
from itertools import chain
from typing import Any

from app_toolkit.observability.metrics import Sample
from app_toolkit.observability.snapshots import UserFamily, UserMetrics

log = logging.getLogger("app_toolkit.metrics")

MOST_SERIES = 5_000
"""Maximum number of series of user code in one process. Each bucket of a histogram is one."""

OWN = frozenset(
    {
        *("process_virtual_memory_bytes", "process_resident_memory_bytes", "process_start_time_seconds"),
        *("process_cpu_seconds", "process_open_fds", "process_max_fds", "python_info", "python_gc_collections"),
        *("python_gc_objects_collected", "python_gc_objects_uncollectable"),
    }
)
"""What `prometheus_client` collects by itself. The toolkit has its own metrics of processes."""

SUMMED = ("counter", "histogram", "summary")
INSTANT = ("gauge", "info", "stateset", "unknown")


class UserRegistry:
    """Reads the default registry of `prometheus_client`, once user code has imported the package."""

    def __init__(self, most: int = MOST_SERIES) -> None:
        self._most = most
        self._warned = False

    def collect(self) -> UserMetrics:
        """Return the present values. Blocks as long as the collectors of user code do."""
        metrics = UserMetrics()
        registry = getattr(sys.modules.get("prometheus_client"), "REGISTRY", None)
        if registry is None:
            return metrics
        try:
            families = list(registry.collect())
        except Exception:  # a collector of user code
            self._warn("the metrics of this app cannot be collected", exc_info=True)
            return metrics
        count = 0
        for family in families:
            if family.name in OWN or family.name.startswith("app_toolkit_"):
                continue
            try:
                samples = _samples_of(family)
            except (TypeError, ValueError):  # a collector of user code that returns no numbers
                self._warn("the metric %s of this app is left out: its values are no numbers", family.name)
                continue
            size = sum(len(sample.numbers) for sample in samples)
            if count + size > self._most or family.type not in (*SUMMED, *INSTANT):
                metrics.dropped += size
                continue
            count += size
            metrics.families[family.name] = UserFamily(family.type, _text(family.documentation), _bounds_of(family))
            metrics.samples.extend(samples)
        if metrics.dropped:
            why = "%d series of the metrics of this app are left out: a process has at most %d"
            self._warn(why, metrics.dropped, self._most)
        return metrics

    def _warn(self, message: str, *values: object, exc_info: bool = False) -> None:
        """Log the first problem of this process. The next collection, seconds later, would have the same one."""
        if not self._warned:
            self._warned = True
            log.warning(message, *values, exc_info=exc_info)


def _samples_of(family: Any) -> list[Sample]:
    """Return the samples of a `prometheus_client.Metric`."""
    if family.type in ("histogram", "summary"):
        return [
            Sample(family.name, labels, numbers)
            for labels, numbers in _grouped(family.name, family.samples, is_histogram=family.type == "histogram")
        ]
    suffixes = {"counter": "_total", "info": "_info"}
    name = family.name + suffixes.get(family.type, "")
    return [
        Sample(family.name, _labels(sample.labels.items()), [float(sample.value)])
        for sample in family.samples
        if sample.name == name
    ]


def _labels(pairs: Iterable[tuple[Any, Any]]) -> tuple[str, ...]:
    return tuple(map(_text, chain.from_iterable(pairs)))


def _text(value: object) -> str:
    """Return a text that has UTF-8. Other objects come from collectors, surrogates from the JSON of a client."""
    return str(value).encode(errors="replace").decode()


def _grouped(name: str, samples: Iterable[Any], *, is_histogram: bool) -> list[tuple[tuple[str, ...], list[float]]]:
    """Return the numbers of histograms or summaries by their labels, as of `Sample`."""
    grouped: dict[tuple[str, ...], list[float]] = {}
    sums: dict[tuple[str, ...], float] = {}
    below: dict[tuple[str, ...], float] = {}
    for sample in samples:
        labels = _labels(pair for pair in sample.labels.items() if pair[0] != "le")
        value = float(sample.value)
        if sample.name == f"{name}_sum":
            sums[labels] = value
        elif is_histogram and sample.name == f"{name}_bucket":
            grouped.setdefault(labels, []).append(value - below.get(labels, 0.0))
            below[labels] = value
        elif not is_histogram and sample.name == f"{name}_count":
            grouped[labels] = [value]
    return [(labels, [*numbers, sums.get(labels, 0.0)]) for labels, numbers in grouped.items()]


def _bounds_of(family: Any) -> tuple[str, ...]:
    """Return the upper bounds of the buckets of a histogram."""
    if family.type != "histogram":
        return ()
    return tuple(dict.fromkeys(sample.labels["le"] for sample in family.samples if "le" in sample.labels))
