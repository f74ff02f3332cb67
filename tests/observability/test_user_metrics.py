"""What user code has created with `prometheus_client` is read as it is."""

import json
from collections.abc import Iterator
from decimal import Decimal

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, Info, Summary

from app_toolkit.observability.metrics import Sample
from app_toolkit.observability.snapshots import DROPPED_SERIES, Snapshots, UserFamily
from app_toolkit.observability.user_metrics import UserRegistry


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> CollectorRegistry:
    """The default registry, without what other tests have registered."""
    registry = CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)
    return registry


def test_metrics_of_all_kinds_are_read(registry: CollectorRegistry) -> None:
    Counter("orders", "Orders.", ["kind"], registry=registry).labels("book").inc(2)
    wait = Histogram("wait", "Waits.", buckets=(0.5, 1.0), registry=registry)
    for seconds in (0.1, 0.7, 0.8, 9.0):
        wait.observe(seconds)
    Summary("size", "Sizes.", registry=registry).observe(30)
    Gauge("depth", "Depth.", registry=registry).set(7)
    Info("build", "Build.", registry=registry).info({"version": "1"})
    Enum("state", "State.", states=["on", "off"], registry=registry).state("off")
    Gauge("app_toolkit_own", "As the collector of one process has.", registry=registry).set(1)
    found = UserRegistry().collect()
    assert found.samples == [
        Sample("orders", ("kind", "book"), [2.0]),
        Sample("wait", (), [1.0, 2.0, 1.0, pytest.approx(10.6)]),
        Sample("size", (), [1.0, 30.0]),
        Sample("depth", (), [7.0]),
        Sample("build", ("version", "1"), [1.0]),
        Sample("state", ("state", "on"), [0]),
        Sample("state", ("state", "off"), [1]),
    ]
    assert found.families["wait"] == UserFamily("histogram", "Waits.", ("0.5", "1.0", "+Inf"))


def test_too_many_series_are_left_out_and_counted(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    Gauge("depth", "Depth.", registry=registry).set(7)
    kinds = Counter("orders", "Orders.", ["kind"], registry=registry)
    for number in range(3):
        kinds.labels(str(number)).inc()
    user = UserRegistry(most=2)
    snapshots = Snapshots("replica", "shop/web", [], user=user.collect)
    assert [sample.metric for sample in user.collect().samples] == ["depth"]
    pushed = snapshots.next(0.0)
    assert pushed is not None
    assert f'["{DROPPED_SERIES}",["shop/web"],3]'.encode() in pushed
    assert len(caplog.records) == 1
    assert "at most 2" in caplog.text


def test_a_collector_that_fails_is_logged_once(registry: CollectorRegistry, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(prometheus_client.registry.Collector):
        def collect(self) -> Iterator[prometheus_client.Metric]:
            raise ValueError("out of stock")

        def describe(self) -> list[prometheus_client.Metric]:
            return []

    registry.register(Broken())
    user = UserRegistry()
    assert user.collect().samples == user.collect().samples == []
    assert len(caplog.records) == 1
    assert "out of stock" in caplog.text


class Custom(prometheus_client.registry.Collector):
    """A collector of user code, which `prometheus_client` does not check."""

    def __init__(self, *values: object) -> None:
        self._values = values

    def describe(self) -> list[prometheus_client.Metric]:
        return []

    def collect(self) -> Iterator[prometheus_client.Metric]:
        family = prometheus_client.Metric("shelf", "Shelves.", "gauge")
        for number, value in enumerate(self._values):
            family.add_sample("shelf", {"number": number}, value)  # type: ignore[dict-item, arg-type]
        yield family


def test_labels_and_values_are_pushed_as_texts_with_utf8_and_as_numbers(registry: CollectorRegistry) -> None:
    registry.register(Custom(Decimal("0.5"), 3))
    Counter("orders", "Orders.", ["kind"], registry=registry).labels(json.loads(r'"a\ud800"')).inc()
    snapshots = Snapshots("replica", "shop/web", [], user=UserRegistry().collect)
    pushed = json.loads(snapshots.next(0.0) or b"")
    assert pushed["gauges"] == [["shelf", ["number", "0"], 0.5], ["shelf", ["number", "1"], 3.0]]
    assert pushed["counters"] == [["orders", ["kind", "a?"], [1.0]]]


def test_a_metric_without_numbers_is_left_out_with_one_warning(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.register(Custom(None))
    Gauge("depth", "Depth.", registry=registry).set(7)
    user = UserRegistry()
    assert user.collect().samples == user.collect().samples == [Sample("depth", (), [7.0])]
    assert [record.getMessage() for record in caplog.records] == [
        "the metric shelf of this app is left out: its values are no numbers"
    ]


def test_a_forked_process_reports_only_what_it_counts_itself(registry: CollectorRegistry) -> None:
    orders = Counter("orders", "Orders.", registry=registry)
    orders.inc(5)  # in the process that imports the app
    Gauge("depth", "Depth.", registry=registry).set(7)
    collect = UserRegistry().collect
    snapshots = Snapshots("replica", "shop/app", [], user=collect, inherited=collect())
    orders.inc(2)
    push = json.loads(snapshots.next(0.0) or b"")
    assert push["counters"] == [["orders", [], [2.0]]]
    assert push["gauges"] == [["depth", [], 7.0]]
