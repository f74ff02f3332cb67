"""A dashboard for Grafana, whose queries are derived from the table of metrics."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from app_toolkit.control.metrics import (
    APPLICATION_REVISION,
    EVENTS,
    MIRROR_WEIGHT,
    REPLICAS,
    REPLICAS_DESIRED,
    REPLICAS_REASON,
    RESTARTS,
    SPLIT_WEIGHT,
    START_SECONDS,
    TICK_SECONDS,
    TRAFFIC_WEIGHT,
)
from app_toolkit.edge.server import CONNECTIONS
from app_toolkit.exchange.filters.rate_limit import RATE_LIMITED
from app_toolkit.exchange.gauges import (
    CALL_STREAMS,
    CALLS_ONGOING,
    CALLS_QUEUED,
    OPEN_STREAMS,
    OPEN_WEBSOCKETS,
    REQUESTS_ONGOING,
    REQUESTS_QUEUED,
)
from app_toolkit.exchange.mirrored_requests import MIRROR_COMPARED, MIRRORED
from app_toolkit.host.replica_server import REPLICA_BUFFERED, REPLICA_ONGOING, REPLICA_STREAMS, REPLICA_WEBSOCKETS
from app_toolkit.observability.counts import (
    AFFINITY,
    BATCH_SECONDS,
    BATCH_SIZE,
    BATCH_WAIT_SECONDS,
    CALL_QUEUE_SECONDS,
    CALL_RETRIES,
    CALL_SECONDS,
    CALLS,
    FIRST_BYTE_SECONDS,
    REQUEST_QUEUE_SECONDS,
    REQUEST_RETRIES,
    REQUEST_SECONDS,
    REQUESTS,
    RESPONSE_BYTES,
    STREAM_GAP_SECONDS,
)
from app_toolkit.observability.metrics import Metric
from app_toolkit.observability.process_use import CPU_SECONDS, LOOP_LAG_SECONDS, MEMORY_BYTES
from app_toolkit.observability.snapshots import DROPPED_SERIES
from app_toolkit.operate.metrics import METRICS, REPORTING

QUANTILES = (0.5, 0.95, 0.99)
"""The quantiles that the panel of a histogram shows."""

VARIABLES = ("application", "deployment")
"""The labels whose values the user of the dashboard chooses."""

SOURCE = {"type": "prometheus", "uid": "${datasource}"}

WIDTH, HEIGHT, COLUMNS = 8, 7, 3
"""The size of a panel in units of Grafana's grid, which has 24 columns, and the panels in a line."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart of one metric. A counter is shown as its rate, and a histogram as its `QUANTILES`."""

    title: str
    metric: str
    by: tuple[str, ...] = ()
    """The labels that tell the lines apart. The series of all others are added."""
    unit: str = "short"
    """As Grafana names it."""
    only: str = ""
    """A selector of further labels, such as `status=~"5.."`."""


DEPLOYMENT = ("application", "deployment")

ROWS: dict[str, tuple[Panel, ...]] = {
    "Requests": (
        Panel("Requests", REQUESTS, DEPLOYMENT, "reqps"),
        Panel("Requests by outcome", REQUESTS, ("outcome",), "reqps"),
        Panel("Responses with a status from 500", REQUESTS, DEPLOYMENT, "reqps", 'status=~"5.."'),
        Panel("Latency", REQUEST_SECONDS, (), "s"),
        Panel("Latency by route", REQUEST_SECONDS, ("route", "method"), "s"),
        Panel("Time to the first byte", FIRST_BYTE_SECONDS, (), "s"),
        Panel("Requests that wait", REQUESTS_QUEUED, DEPLOYMENT),
        Panel("Wait for a replica", REQUEST_QUEUE_SECONDS, (), "s"),
        Panel("Requests that replicas serve", REQUESTS_ONGOING, DEPLOYMENT),
        Panel("Retries of requests", REQUEST_RETRIES, DEPLOYMENT, "ops"),
        Panel("Bodies of responses", RESPONSE_BYTES, DEPLOYMENT, "Bps"),
        Panel("Connections of clients", CONNECTIONS, ("process",)),
    ),
    "Streams and WebSockets": (
        Panel("Open streams", OPEN_STREAMS, DEPLOYMENT),
        Panel("Gaps between chunks", STREAM_GAP_SECONDS, (), "s"),
        Panel("Open WebSockets", OPEN_WEBSOCKETS, DEPLOYMENT),
    ),
    "Replicas": (
        Panel("Desired replicas", REPLICAS_DESIRED, DEPLOYMENT),
        Panel("Replicas by phase", REPLICAS, (*DEPLOYMENT, "phase")),
        Panel("Reason of the desired number", REPLICAS_REASON, (*DEPLOYMENT, "reason")),
        Panel("Replicas that ended unexpectedly", RESTARTS, DEPLOYMENT, "ops"),
        Panel("Time to start", START_SECONDS, (), "s"),
        Panel("Slots in use by replica", REPLICA_ONGOING, ("replica",)),
        Panel("Open streams by replica", REPLICA_STREAMS, ("replica",)),
        Panel("Open WebSockets by replica", REPLICA_WEBSOCKETS, ("replica",)),
        Panel("Items that wait for their batch", REPLICA_BUFFERED, ("replica",)),
    ),
    "Calls": (
        Panel("Calls", CALLS, (*DEPLOYMENT, "method"), "ops"),
        Panel("Calls by outcome", CALLS, ("outcome",), "ops"),
        Panel("Retries of calls", CALL_RETRIES, DEPLOYMENT, "ops"),
        Panel("Latency of calls", CALL_SECONDS, (), "s"),
        Panel("Latency of calls by method", CALL_SECONDS, ("deployment", "method"), "s"),
        Panel("Wait of calls for a replica", CALL_QUEUE_SECONDS, (), "s"),
        Panel("Calls that wait", CALLS_QUEUED, DEPLOYMENT),
        Panel("Calls that replicas run", CALLS_ONGOING, DEPLOYMENT),
        Panel("Calls that yield items", CALL_STREAMS, DEPLOYMENT),
    ),
    "Batches": (
        Panel("Items of a batch", BATCH_SIZE, ("deployment", "function")),
        Panel("Wait of the first item", BATCH_WAIT_SECONDS, ("deployment", "function"), "s"),
        Panel("Duration of a batch", BATCH_SECONDS, ("deployment", "function"), "s"),
    ),
    "Traffic": (
        Panel("Share of live revisions", TRAFFIC_WEIGHT, ("application", "revision"), "percentunit"),
        Panel("Requests by revision", REQUESTS, ("application", "revision"), "reqps"),
        Panel("Main revision", APPLICATION_REVISION, ("application",)),
        Panel("Share of mirrors", MIRROR_WEIGHT, ("application", "revision"), "percentunit"),
        Panel("Copies for mirrors", MIRRORED, ("application", "revision", "result"), "ops"),
        Panel("Compared responses", MIRROR_COMPARED, ("application", "revision", "result"), "ops"),
        Panel("Share of the members of splits", SPLIT_WEIGHT, ("split", "deployment"), "percentunit"),
        Panel("Rate limits", RATE_LIMITED, ("deployment", "result"), "ops"),
        Panel("Affinity", AFFINITY, ("deployment", "kind", "result"), "ops"),
    ),
    "Processes": (
        Panel("Memory", MEMORY_BYTES, ("component", "process"), "bytes"),
        Panel("CPU", CPU_SECONDS, ("component", "application", "deployment")),
        Panel("Longest delay of the event loop", LOOP_LAG_SECONDS, ("component", "process"), "s"),
        Panel("Pass of the controller's loop", TICK_SECONDS, (), "s"),
        Panel("Events of the controller", EVENTS, ("application", "event"), "ops"),
        Panel("Processes that push metrics", REPORTING, ("component",)),
        Panel("Series of user code that were left out", DROPPED_SERIES, DEPLOYMENT),
    ),
}
"""The panels of each row. A metric without a panel gets one in the row `Others`."""


def rows(metrics: Iterable[Metric]) -> dict[str, tuple[Panel, ...]]:
    """Return the rows of panels that show all of these metrics."""
    placed = {panel.metric for row in ROWS.values() for panel in row}
    others = tuple(_panel(metric) for metric in metrics if metric.name not in placed)
    return {**ROWS, "Others": others} if others else ROWS


def _panel(metric: Metric) -> Panel:
    """Return a panel with a line for each series, whose title is the name of the metric."""
    title = metric.name.removeprefix("app_toolkit_").removesuffix("_total").replace("_", " ").capitalize()
    unit = {"counter": "ops", "histogram": "s", "gauge": "short"}[metric.kind]
    return Panel(title, metric.name, metric.labels, unit)


def dashboard() -> dict[str, Any]:
    """Return the dashboard, to import into Grafana 10 or later."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in rows(METRICS.values()).items():
        panels.append({"type": "row", "title": title, "collapsed": False, "panels": []} | _at(24, 1, 0, top))
        top += 1
        for number, panel in enumerate(row):
            line, column = divmod(number, COLUMNS)
            panels.append(_chart(panel) | _at(WIDTH, HEIGHT, column * WIDTH, top + line * HEIGHT))
        top += -(-len(row) // COLUMNS) * HEIGHT
    return {
        "uid": "app-toolkit",
        "title": "app_toolkit",
        "tags": ["app_toolkit"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,  # all charts show the same moment
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": [{"id": number} | panel for number, panel in enumerate(panels, 1)],
    }


def queries(panel: Panel) -> dict[str, str]:
    """Return the PromQL expressions of a panel, each with the legend of its lines."""
    metric = METRICS[panel.metric]
    chosen = [f'{name}=~"${name}"' for name in VARIABLES if name in metric.labels]
    selector = f"{{{','.join([*chosen, *([panel.only] if panel.only else [])])}}}"
    legend = " ".join(f"{{{{{name}}}}}" for name in panel.by)
    match metric.kind:
        case "gauge":
            return {_sum(f"{metric.name}{selector}", panel.by): legend}
        case "counter":
            return {_sum(f"rate({metric.name}{selector}[$__rate_interval])", panel.by): legend}
        case "histogram":
            rate = _sum(f"rate({metric.name}_bucket{selector}[$__rate_interval])", ("le", *panel.by))
            return {
                f"histogram_quantile({quantile}, {rate})": f"p{quantile * 100:g} {legend}".strip()
                for quantile in QUANTILES
            }


def _sum(expression: str, by: tuple[str, ...]) -> str:
    return f"sum by ({', '.join(by)}) ({expression})" if by else f"sum({expression})"


def _chart(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": METRICS[panel.metric].help,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": expression, "legendFormat": legend or "all"}
            for number, (expression, legend) in enumerate(queries(panel).items())
        ],
    }


def _variables() -> list[dict[str, Any]]:
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    ]
    for number, name in enumerate(VARIABLES):
        before = ",".join(f'{variable}=~"${variable}"' for variable in VARIABLES[:number])
        query = f"label_values({REPLICAS_DESIRED}{f'{{{before}}}' if before else ''}, {name})"
        variables.append(
            {
                "name": name,
                "label": name.capitalize(),
                "type": "query",
                "datasource": SOURCE,
                "definition": query,
                "query": {"query": query, "refId": name},
                "refresh": 2,  # when the time range changes
                "sort": 1,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
                "current": {"text": ["All"], "value": ["$__all"]},
            }
        )
    return variables


def _at(width: int, height: int, left: int, top: int) -> dict[str, Any]:
    return {"gridPos": {"w": width, "h": height, "x": left, "y": top}}
