"""What a metric of the toolkit is, and a sample of it.

The module that samples a metric declares it. The exposition, docs/reference/metrics.md and the dashboard for Grafana
are derived from the declarations (`operate/metrics.py`). A process counts in plain data, and yields `Sample`s.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]

LATENCY_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The upper bounds in seconds of the buckets of a time that a client waits. One more bucket counts longer times."""

START_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""The upper bounds in seconds for the start of a replica, which may download a model."""

SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
"""The upper bounds of the number of items in a batch."""

NONE = "-"
"""The value of a label if there is nothing to name: no route matched, or no ingress owned the request."""

OTHER = "OTHER"
"""The value of the label `method` for an HTTP method that is not a standard one."""

HTTP_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH"})

DEPLOYMENT = ("application", "revision", "deployment")
"""The first labels of a metric of one deployment. A process names its replica set instead, `APPLICATION/DEPLOYMENT`,
and `operate/aggregate.py` derives the three labels from it."""

PROCESS = (*DEPLOYMENT, "component", "process")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of the toolkit."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...]
    source: str
    """The processes that count it: `proxies`, `replicas`, `controller`, `all` or `admin`."""
    buckets: tuple[float, ...] = ()
    """The upper bounds of the buckets of a histogram, without +Inf."""

    @property
    def is_of_deployment(self) -> bool:
        return self.labels[:3] == DEPLOYMENT


class Sample(NamedTuple):
    """One series of a metric in one process."""

    metric: str
    labels: tuple[str, ...]
    """The values of the labels. The first one is the replica set if the metric has the labels `DEPLOYMENT`."""
    numbers: list[float]
    """A counter or a gauge: its value. A histogram: the number of observations in each bucket, which are not
    cumulative, and their sum."""


Source = Callable[[], Iterable[Sample]]
"""Returns the present samples of a part of a process. It is called on any thread."""

DECLARED: dict[str, Metric] = {}
"""The metrics of the modules that this process has imported, by name, without those of user code."""


def declare(
    name: str, kind: Kind, help: str, labels: tuple[str, ...], source: str, buckets: tuple[float, ...] = ()
) -> str:
    """Declare a metric, and return its name. The parameters are the fields of `Metric`."""
    DECLARED[name] = Metric(name, kind, help, labels, source, buckets)
    return name
