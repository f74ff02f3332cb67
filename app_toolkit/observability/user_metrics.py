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
        found = UserMetrics()
        registry = getattr(sys.modules.get("prometheus_client"), "REGISTRY", None)
        if registry is None:
            return found
        try:
            families = list(registry.collect())
        except Exception:  # a collector of user code
            if not self._warned:
                log.exception("the metrics of this app cannot be collected")
            self._warned = True
            return found
        count = 0
        for family in families:
            if family.name in OWN or family.name.startswith("app_toolkit_"):
                continue
            samples = _samples_of(family)
            size = sum(len(each.numbers) for each in samples)
            if count + size > self._most or family.type not in (*SUMMED, *INSTANT):
                found.dropped += size
                continue
            count += size
            found.families[family.name] = UserFamily(family.type, family.documentation, _bounds_of(family))
            found.samples.extend(samples)
        if found.dropped and not self._warned:
            self._warned = True
            log.warning(
                "%d series of the metrics of this app are left out: a process has at most %d", found.dropped, self._most
            )
        return found


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
        Sample(family.name, tuple(chain.from_iterable(sample.labels.items())), [sample.value])
        for sample in family.samples
        if sample.name == name
    ]


def _grouped(name: str, samples: Iterable[Any], *, is_histogram: bool) -> list[tuple[tuple[str, ...], list[float]]]:
    """Return the numbers of histograms or summaries by their labels, as of `Sample`."""
    found: dict[tuple[str, ...], list[float]] = {}
    sums: dict[tuple[str, ...], float] = {}
    below: dict[tuple[str, ...], float] = {}
    for sample in samples:
        labels = tuple(chain.from_iterable(pair for pair in sample.labels.items() if pair[0] != "le"))
        if sample.name == f"{name}_sum":
            sums[labels] = sample.value
        elif is_histogram and sample.name == f"{name}_bucket":
            found.setdefault(labels, []).append(sample.value - below.get(labels, 0.0))
            below[labels] = sample.value
        elif not is_histogram and sample.name == f"{name}_count":
            found[labels] = [sample.value]
    return [(labels, [*numbers, sums.get(labels, 0.0)]) for labels, numbers in found.items()]


def _bounds_of(family: Any) -> tuple[str, ...]:
    """Return the upper bounds of the buckets of a histogram."""
    if family.type != "histogram":
        return ()
    return tuple(dict.fromkeys(sample.labels["le"] for sample in family.samples if "le" in sample.labels))
