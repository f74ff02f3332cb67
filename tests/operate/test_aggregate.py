"""The aggregate is held against the sum of what the processes have counted, over random histories."""

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from app_toolkit.clock import ManualClock
from app_toolkit.control.metrics import REPLICAS
from app_toolkit.exchange.gauges import OPEN_STREAMS
from app_toolkit.host.replica_server import REPLICA_ONGOING
from app_toolkit.observability.counts import REQUEST_SECONDS, REQUESTS, Counters
from app_toolkit.observability.metrics import LATENCY_S, Sample
from app_toolkit.observability.records import Record
from app_toolkit.observability.snapshots import HEARTBEAT_S, Component, Snapshots, UserFamily, UserMetrics
from app_toolkit.operate.aggregate import FIRST_S, FORGOTTEN_S, SILENT_S, SWEEP_S, MetricsAggregate
from app_toolkit.operate.metrics import METRICS

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
OK_LABELS = ("shop/web", "/items/{id}", "GET", "200", "ok")


@dataclass
class Process:
    """A process that counts, and pushes by hand."""

    name: str
    component: Component = "proxy"
    replica_set: str = ""
    samples: dict[tuple[str, tuple[str, ...]], list[float]] = field(default_factory=dict)
    user: UserMetrics = field(default_factory=UserMetrics)
    state: Callable[[], Mapping[str, object]] | None = None

    def __post_init__(self) -> None:
        self.now = 0.0
        self.snapshots = Snapshots(
            self.component, self.replica_set, [self.present], user=lambda: self.user, state=self.state
        )

    def present(self) -> list[Sample]:
        return [Sample(name, labels, list(numbers)) for (name, labels), numbers in self.samples.items()]

    def count(self, metric: str, labels: tuple[str, ...], number: float = 1) -> None:
        self.samples.setdefault((metric, labels), [0])[0] += number

    def set(self, metric: str, labels: tuple[str, ...], number: float) -> None:
        self.samples[metric, labels] = [number]

    def push(self, aggregate: MetricsAggregate, *, last: bool = False, reply_is_lost: bool = False) -> None:
        self.now += HEARTBEAT_S
        pushed = self.snapshots.next(self.now, last=last)
        assert pushed is not None
        if aggregate.push(self.name, pushed) and not reply_is_lost:
            self.snapshots.acknowledge()


def new_aggregate(clock: ManualClock | None = None) -> MetricsAggregate:
    """Return an aggregate to which the controller has pushed."""
    aggregate = MetricsAggregate((clock or ManualClock()).now)
    Process("controller", "controller", state=lambda: {"revisions": {"shop": 1}, "processes": []}).push(aggregate)
    return aggregate


def values(aggregate: MetricsAggregate, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Return the values of one sample name of the exposition, by their labels."""
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in parse_text(aggregate.exposition()[0].decode())
        for sample in family.samples
        if sample.name == name
    }


def total(aggregate: MetricsAggregate, name: str = REQUESTS) -> float:
    return sum(values(aggregate, name).values())


@dataclass
class Step:
    kind: str
    process: int
    number: int
    reply_is_lost: bool


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(["count", "count", "count", "push", "push", "end", "kill", "restart_admin", "later"]),
        st.integers(0, 3),
        st.integers(0, 5),
        st.booleans(),
    ),
    max_size=60,
)


@given(STEPS)
@settings(deadline=None)
def test_totals_are_the_sum_of_what_was_pushed_and_never_decrease(steps: list[Step]) -> None:
    clock = ManualClock()
    aggregate = new_aggregate(clock)
    processes = {number: Process(f"proxy-{number}") for number in range(4)}
    unpushed: Counter[int] = Counter()
    expected, before = 0, 0.0
    for step in steps:
        process = processes[step.process]
        if step.kind == "count" and step.number:
            process.count(REQUESTS, OK_LABELS, step.number)
            unpushed[step.process] += step.number
        elif step.kind in ("push", "end"):
            process.push(aggregate, last=step.kind == "end", reply_is_lost=step.reply_is_lost)
            # A push that is sent again has what it had before, so what was counted since is pushed with the next one.
            if step.reply_is_lost:
                process.push(aggregate, last=step.kind == "end")
            process.push(aggregate, last=step.kind == "end")
            expected += unpushed.pop(step.process, 0)
            if step.kind == "end":
                processes[step.process] = Process(process.name)
        elif step.kind == "kill":
            unpushed.pop(step.process, 0)
            processes[step.process] = Process(process.name)
        elif step.kind == "restart_admin":
            aggregate, expected, before = new_aggregate(clock), 0, 0.0
        elif step.kind == "later":
            clock.stall(SILENT_S / 2 * step.number)
        now = total(aggregate)
        assert now == expected
        assert now >= before
        before = now


def test_push_whose_reply_was_lost_is_added_once() -> None:
    aggregate, process = new_aggregate(), Process("proxy-1")
    process.count(REQUESTS, OK_LABELS)
    process.push(aggregate, reply_is_lost=True)
    process.count(REQUESTS, OK_LABELS)
    process.push(aggregate)
    assert total(aggregate) == 1
    process.push(aggregate)
    assert total(aggregate) == 2


def test_new_aggregate_adds_only_what_was_not_taken_before() -> None:
    process = Process("proxy-1")
    process.count(REQUESTS, OK_LABELS, 100)
    process.push(new_aggregate())
    process.count(REQUESTS, OK_LABELS, 3)
    aggregate = new_aggregate()
    process.push(aggregate)
    assert total(aggregate) == 3


def test_counts_that_begin_again_at_zero_are_added() -> None:
    aggregate, process = new_aggregate(), Process("proxy-1")
    process.count(REQUESTS, OK_LABELS, 5)
    process.push(aggregate)
    process.samples.clear()
    process.count(REQUESTS, OK_LABELS, 2)
    process.push(aggregate)
    assert total(aggregate) == 7


def test_nothing_is_pushed_until_something_changes_or_the_heartbeat_is_due() -> None:
    process = Process("proxy-1")
    process.count(REQUESTS, OK_LABELS)
    assert process.snapshots.next(100.0) is not None
    process.snapshots.acknowledge()
    assert process.snapshots.next(102.0) is None
    process.set(OPEN_STREAMS, ("shop/web",), 1)
    assert process.snapshots.next(104.0) is not None, "a gauge has changed"
    process.snapshots.acknowledge()
    assert process.snapshots.next(106.0) is None
    assert process.snapshots.next(104.0 + HEARTBEAT_S) is not None


def test_revision_is_that_of_the_application_when_the_requests_were_counted() -> None:
    aggregate, process = new_aggregate(), Process("proxy-1")
    revisions = {"shop": 3, "shop@7": 7}
    controller = Process("controller", "controller", state=lambda: {"revisions": revisions, "processes": ["proxy-1"]})
    controller.push(aggregate)
    process.count(REQUESTS, OK_LABELS)
    process.count(REQUESTS, ("shop@7/web", *OK_LABELS[1:]))
    process.push(aggregate)
    revisions["shop"] = 4
    controller.push(aggregate)
    process.count(REQUESTS, OK_LABELS)
    process.push(aggregate)
    found = {(dict(labels)["revision"]): value for labels, value in values(aggregate, REQUESTS).items()}
    assert found == {"3": 1, "7": 1, "4": 1}
    assert {dict(labels)["application"] for labels in values(aggregate, REQUESTS)} == {"shop"}


def test_gauges_of_the_same_labels_are_added() -> None:
    aggregate = new_aggregate()
    for name in ("proxy-1", "proxy-2"):
        process = Process(name)
        process.set(OPEN_STREAMS, ("shop/web",), 2)
        process.push(aggregate)
    assert list(values(aggregate, OPEN_STREAMS).values()) == [4]


@pytest.mark.parametrize("how", ["it ends", "it is silent", "the controller knows it no more"])
def test_gauges_of_an_ended_process_vanish_and_its_counters_stay(how: str) -> None:
    clock = ManualClock()
    aggregate = new_aggregate(clock)
    alive = ["shop.web-1-1"]
    controller = Process("controller", "controller", state=lambda: {"revisions": {}, "processes": alive})
    controller.push(aggregate)
    replica = Process("shop.web-1-1", "replica", "shop/web")
    replica.set(REPLICA_ONGOING, ("shop/web", "shop.web-1-1"), 7)
    replica.count(REQUESTS, OK_LABELS)
    replica.push(aggregate)
    assert list(values(aggregate, REPLICA_ONGOING).values()) == [7]
    clock.stall(1.0)
    if how == "it ends":
        replica.push(aggregate, last=True)
    elif how == "it is silent":
        clock.stall(SILENT_S)
    else:
        alive.clear()
        controller.push(aggregate)
    assert values(aggregate, REPLICA_ONGOING) == {}
    assert total(aggregate) == 1


def test_new_process_shows_before_the_controller_has_pushed_again() -> None:
    clock = ManualClock()
    aggregate = new_aggregate(clock)
    Process("controller", "controller", state=lambda: {"revisions": {}, "processes": []}).push(aggregate)
    clock.stall(1.0)
    process = Process("proxy-1")
    process.set(OPEN_STREAMS, ("shop/web",), 1)
    process.push(aggregate)
    assert values(aggregate, OPEN_STREAMS)


def test_aggregate_waits_for_the_controller_which_knows_the_revisions() -> None:
    clock = ManualClock()
    aggregate, process = MetricsAggregate(clock.now), Process("proxy-1")
    process.count(REQUESTS, OK_LABELS)
    process.push(aggregate)
    assert not process.snapshots.is_acknowledged
    assert total(aggregate) == 0
    Process("controller", "controller", state=lambda: {"revisions": {"shop": 3}, "processes": []}).push(aggregate)
    process.push(aggregate)
    assert [dict(labels)["revision"] for labels in values(aggregate, REQUESTS)] == ["3"]


def test_aggregate_does_not_wait_long_for_the_controller() -> None:
    clock = ManualClock()
    aggregate, process = MetricsAggregate(clock.now), Process("proxy-1")
    process.count(REQUESTS, OK_LABELS)
    process.push(aggregate)
    clock.stall(FIRST_S)
    process.push(aggregate)
    assert total(aggregate) == 1


def test_series_of_a_deployment_that_is_gone_are_forgotten() -> None:
    clock = ManualClock()
    aggregate = new_aggregate(clock)
    controller = Process("controller", "controller", state=lambda: {"revisions": {"shop": 1}, "processes": []})
    controller.set(REPLICAS, ("shop/web", "running"), 1)
    proxy = Process("proxy-1")
    proxy.count(REQUESTS, OK_LABELS)
    proxy.count(REQUESTS, ("gone/web", *OK_LABELS[1:]))
    proxy.push(aggregate)
    user = UserMetrics({"orders": UserFamily("counter", "Orders.")}, [Sample("orders", ("kind", "a"), [1])])
    replica = Process("gone.web-1-1", "replica", "gone/web", user=user)
    replica.push(aggregate, last=True)
    controller.push(aggregate)
    assert len(values(aggregate, REQUESTS)) == 2
    clock.stall(FORGOTTEN_S + SWEEP_S)
    controller.push(aggregate)
    assert [dict(labels)["application"] for labels in values(aggregate, REQUESTS)] == ["shop"]
    assert values(aggregate, "orders_total") == {}
    assert set(aggregate.latest().deployments) == {"shop/web"}


def counted() -> Process:
    """Return a proxy that has counted requests, with values that need escapes."""
    counters = Counters()
    for seconds in (0.0005, 0.02, 100.0):
        counters.add(
            Record(
                0.0,
                seconds,
                "http",
                "shop/web",
                "r",
                2,
                "ok",
                b"GET",
                status=200,
                size=10,
                affinity="kept",
                queued_s=seconds / 2,
                first_byte_s=seconds / 2,
                route='/it"ems\\{id}/100%s',
            )
        )
    counters.gaps("shop/web").observe(0.2)
    process = Process("proxy-1")
    for name, labels, numbers in counters.samples():
        process.samples[name, labels] = numbers
    return process


def user_metrics() -> UserMetrics:
    families = {
        "orders": UserFamily("counter", "Orders\nof \\ clients."),
        "wait_seconds": UserFamily("histogram", "", ("0.5", "+Inf")),
        "size": UserFamily("summary", "Sizes."),
        "temperature": UserFamily("gauge", "Degrees."),
        "build": UserFamily("info", "Build."),
    }
    samples = [
        Sample("orders", ("the.kind", 'a"\n', "replica", "mine"), [2.0]),
        Sample("wait_seconds", (), [1, 2, 3.5]),
        Sample("size", (), [3, 30.0]),
        Sample("temperature", ("room", "a"), [float("nan")]),
        Sample("build", ("version", "1"), [1]),
    ]
    return UserMetrics(families, samples)


@pytest.mark.parametrize("accept", [None, "text/plain", OPENMETRICS])
def test_exposition_parses_and_has_every_value(accept: str | None) -> None:
    aggregate = new_aggregate()
    counted().push(aggregate)
    Process("shop.web-1-1", "replica", "shop/web", user=user_metrics()).push(aggregate)
    text, media_type = aggregate.exposition(accept)
    assert media_type.startswith("application/openmetrics-text" if accept == OPENMETRICS else "text/plain; version=0")
    parse = parse_openmetrics if accept == OPENMETRICS else parse_text
    samples = [sample for family in parse(text.decode()) for sample in family.samples]
    found = {(sample.name, sample.labels.get("le")): sample for sample in samples}
    own = {"application": "shop", "revision": "1", "deployment": "web"}
    labels = own | {"route": '/it"ems\\{id}/100%s', "method": "GET", "status": "200", "outcome": "ok"}
    assert (found[REQUESTS, None].labels, found[REQUESTS, None].value) == (labels, 3)
    buckets = {bound: sample.value for (name, bound), sample in found.items() if name == f"{REQUEST_SECONDS}_bucket"}
    assert (buckets["0.001"], buckets["0.025"], buckets["60.0"], buckets["+Inf"]) == (1, 2, 2, 3)
    assert found[f"{REQUEST_SECONDS}_count", None].value == 3
    assert found[f"{REQUEST_SECONDS}_sum", None].value == pytest.approx(100.0205)
    orders = found["orders_total", None]
    assert (orders.labels, orders.value) == (own | {"the_kind": 'a"\n', "exported_replica": "mine"}, 2)
    assert (found["wait_seconds_bucket", "0.5"].value, found["wait_seconds_bucket", "+Inf"].value) == (1, 3)
    assert (found["size_count", None].value, found["size_sum", None].value) == (3, 30)
    assert found["temperature", None].labels == own | {"replica": "shop.web-1-1", "room": "a"}
    assert found["build_info", None].labels["version"] == "1"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_exposition() -> None:
    aggregate = new_aggregate()
    counted().push(aggregate)
    user = user_metrics()
    user.families["orders"] = UserFamily("counter", "Orders.")
    user.families["wait_seconds"] = UserFamily("histogram", "Waits.", ("0.5", "+Inf"))
    Process("shop.web-1-1", "replica", "shop/web", user=user).push(aggregate)
    every = Process("controller", "controller", state=lambda: {"revisions": {"shop": 3}, "processes": []})
    for metric in METRICS.values():
        labels = tuple(f"{name}-1" for name in metric.labels[2 if metric.is_of_deployment else 0 :])
        if metric.is_of_deployment:
            labels = ("shop/web", *labels[1:])
        every.samples[metric.name, labels] = [1] * (len(metric.buckets) + 2) if metric.buckets else [1]
    every.push(aggregate)
    names = set(re.findall(r"^# TYPE (\S+)", aggregate.exposition()[0].decode(), re.MULTILINE))
    assert names >= METRICS.keys(), "every metric of the table is exposed"
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=aggregate.exposition()[0], capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_user_counters_are_added_over_the_replicas() -> None:
    aggregate = new_aggregate()
    families = {"orders": UserFamily("counter", "Orders."), "depth": UserFamily("gauge", "Depth.")}
    for replica in ("shop.web-1-1", "shop.web-1-2"):
        user = UserMetrics(families, [Sample("orders", (), [2]), Sample("depth", (), [5])])
        Process(replica, "replica", "shop/web", user=user).push(aggregate)
    assert list(values(aggregate, "orders_total").values()) == [4]
    depths = {dict(labels)["replica"]: value for labels, value in values(aggregate, "depth").items()}
    assert depths == {"shop.web-1-1": 5, "shop.web-1-2": 5}


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("orders", UserFamily("gauge", "")),
        ("wait", UserFamily("histogram", "", ("1.0", "+Inf"))),
        ("app_toolkit_requests", UserFamily("counter", "")),
        ("a name", UserFamily("counter", "")),
        ("orders_total", UserFamily("gauge", "")),
        ("wait_count", UserFamily("gauge", "")),
    ],
)
def test_user_metric_that_conflicts_is_left_out_with_one_warning(
    name: str, family: UserFamily, caplog: pytest.LogCaptureFixture
) -> None:
    aggregate = new_aggregate()
    families = {"orders": UserFamily("counter", ""), "wait": UserFamily("histogram", "", ("0.5", "+Inf"))}
    samples = [Sample("orders", (), [2]), Sample("wait", (), [1, 1, 1])]
    Process("shop.web-1-1", "replica", "shop/web", user=UserMetrics(families, samples)).push(aggregate)
    before = aggregate.exposition()[0]
    other = UserMetrics({name: family}, [Sample(name, (), [9, 9, 9] if family.bounds else [9])])
    process = Process("shop.other-1-1", "replica", "shop/other", user=other)
    process.push(aggregate)
    process.push(aggregate)
    assert aggregate.exposition()[0].replace(b'component="replica"} 2', b'component="replica"} 1') == before
    assert len(caplog.records) == 1
    assert name in caplog.text


def test_each_label_of_a_user_metric_has_a_name_of_its_own() -> None:
    aggregate = new_aggregate()
    labels = ("a.b", "1", "a_b", "2", "exported_replica", "3", "replica", "4")
    user = UserMetrics({"orders": UserFamily("counter", "")}, [Sample("orders", labels, [1])])
    Process("shop.web-1-1", "replica", "shop/web", user=user).push(aggregate)
    (found,) = map(dict, values(aggregate, "orders_total"))
    names = {"a_b": "1", "exported_a_b": "2", "exported_replica": "3", "exported_exported_replica": "4"}
    assert found.items() >= names.items()


def test_series_with_another_number_of_buckets_than_its_metric_is_left_out() -> None:
    aggregate = new_aggregate()
    families = {"wait": UserFamily("histogram", "", ("0.5", "1.0", "+Inf"))}
    samples = [Sample("wait", ("kind", "a"), [1, 1, 1, 2.0]), Sample("wait", ("kind", "b"), [1, 1, 2.0])]
    Process("shop.web-1-1", "replica", "shop/web", user=UserMetrics(families, samples)).push(aggregate)
    assert [dict(labels)["kind"] for labels in values(aggregate, "wait_count")] == ["a"]


def test_requests_without_a_route_are_counted_together() -> None:
    aggregate = new_aggregate()
    proxy = Process("proxy-1", "proxy")
    for route, method, status in (("/", "GET", "200"), ("-", "GET", "404"), ("-", "PUT", "503")):
        proxy.count(REQUESTS, ("shop/web", route, method, status, "ok"), 2)
    proxy.push(aggregate)
    assert aggregate.latest().deployments["shop/web"].routes == {"GET /": (2, 0), "without a route": (4, 2)}


def test_plain_numbers_are_those_of_the_exposition() -> None:
    clock = ManualClock()
    aggregate = new_aggregate(clock)
    proxy = counted()
    proxy.count(REQUESTS, ("shop/web", "/", "GET", "503", "queue_full"), 4)
    proxy.set(OPEN_STREAMS, ("shop/web",), 2)
    proxy.push(aggregate)
    controller = Process("controller", "controller", state=lambda: {"revisions": {}, "processes": ["proxy-1"]})
    controller.set(REPLICAS, ("shop/web", "running"), 3)
    controller.push(aggregate)
    numbers = aggregate.latest()
    web = numbers.deployments["shop/web"]
    assert (web.requests, web.errors, web.streams, web.replicas) == (7, 4, 2, {"running": 3})
    assert sum(web.latency) == 3
    assert web.latency[LATENCY_S.index(0.025)] == 1
    assert numbers.processes["proxy-1"].component == "proxy"
    proxy.count(REQUESTS, OK_LABELS)
    proxy.push(aggregate)
    assert web.requests == 7, "a copy does not change"
    assert aggregate.latest().deployments["shop/web"].requests == 8
