"""The metrics of a process without an admin server, for the exporters of `prometheus_client`."""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from app_toolkit.observability.metrics import DECLARED, DEPLOYMENT, NONE, Metric, Source

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class ToolkitCollector(Collector):
    """Translates samples to families of `prometheus_client`. Those with the same labels are added."""

    def __init__(self, samples: Source) -> None:
        self._samples = samples

    def register(self) -> None:
        """Let the default registry collect the metrics."""
        REGISTRY.register(self)

    def describe(self) -> Iterable[Family]:
        return [_family(metric) for metric in DECLARED.values()]

    def collect(self) -> Iterator[Family]:
        samples: dict[str, dict[tuple[str, ...], list[float]]] = {}
        for name, labels, numbers in self._samples():
            series = samples.setdefault(name, {})
            before = series.get(labels)
            series[labels] = numbers if before is None else [a + b for a, b in zip(before, numbers, strict=True)]
        for name, series in samples.items():
            metric = DECLARED[name]
            family = _family(metric)
            for labels, numbers in series.items():
                _add(family, metric, (*(NONE,) * (len(DEPLOYMENT) - 1), *labels), numbers)
            yield family


def _family(metric: Metric) -> Family:
    match metric.kind:
        case "counter":
            return CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
        case "gauge":
            return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
        case "histogram":
            return HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)


def _add(family: Family, metric: Metric, labels: tuple[str, ...], numbers: list[float]) -> None:
    if isinstance(family, HistogramMetricFamily):
        bounds = (*(str(bound) for bound in metric.buckets), "+Inf")
        family.add_metric(labels, list(zip(bounds, accumulate(numbers[:-1]), strict=True)), numbers[-1])
    else:
        family.add_metric(labels, numbers[0])
