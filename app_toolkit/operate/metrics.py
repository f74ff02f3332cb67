"""All metrics of the toolkit, and the page that lists them.

python -m app_toolkit.operate.metrics > docs/reference/metrics.md
"""

from collections.abc import Iterator

import app_toolkit.control.metrics
import app_toolkit.edge.server
import app_toolkit.exchange.filters.faults
import app_toolkit.exchange.filters.rate_limit
import app_toolkit.exchange.gauges
import app_toolkit.exchange.mirrored_requests
import app_toolkit.host.replica_server
import app_toolkit.observability.counts
import app_toolkit.observability.process_use
import app_toolkit.observability.snapshots  # noqa: F401 - they declare the metrics
from app_toolkit.observability.metrics import DECLARED, DEPLOYMENT, Metric, declare

REPORTING = declare(
    "app_toolkit_metrics_processes",
    "gauge",
    "Processes that push metrics.",
    ("component",),
    "admin",
)

METRICS = dict(sorted(DECLARED.items()))
"""The metrics of all processes by name, without those of user code."""

HEAD = """\
# List of metrics

`python -m app_toolkit.operate.metrics > docs/reference/metrics.md` writes this page from the declared metrics.
[Metrics](../observability.md#metrics) explains the labels, and how Prometheus scrapes them.

A metric *of a deployment* has the labels `application`, `revision` and `deployment`, and the others that are listed. A
histogram `NAME` has the series `NAME_bucket`, `NAME_sum` and `NAME_count`. The list below a table has the upper bounds
of the buckets."""

SOURCES = {
    "proxies": ("Requests", "Proxies count these."),
    "replicas": ("Calls, batches and replicas", "Replicas count these; those of calls, the replica that calls."),
    "all": ("Affinity, mirrors and processes", "Several kinds of processes count these."),
    "controller": ("Controller", "The controller counts these."),
    "admin": ("Admin server", "The admin server counts these."),
}
"""The heading and the introduction of the metrics of each source."""


def page() -> str:
    """Return the page, in Markdown."""
    lines = [HEAD]
    for source, (title, about) in SOURCES.items():
        lines += [f"\n## {title}\n", f"{about}\n"]
        lines += ["| metric | type | of a deployment | other labels | |", "|---|---|---|---|---|"]
        of_source = [metric for metric in METRICS.values() if metric.source == source]
        lines += [_line(metric) for metric in of_source]
        lines += _bounds(of_source)
    return "\n".join(lines)


def _line(metric: Metric) -> str:
    others = metric.labels[len(DEPLOYMENT) :] if metric.is_of_deployment else metric.labels
    labels = ", ".join(f"`{name}`" for name in others) or "–"
    return (
        f"| `{metric.name}` | {metric.kind} | {'yes' if metric.is_of_deployment else 'no'} | {labels} | {metric.help} |"
    )


def _bounds(metrics: list[Metric]) -> Iterator[str]:
    by_bounds: dict[tuple[float, ...], list[str]] = {}
    for metric in metrics:
        if metric.buckets:
            by_bounds.setdefault(metric.buckets, []).append(f"`{metric.name}`")
    if by_bounds:
        yield ""
    for bounds, names in by_bounds.items():
        yield f"- {', '.join(names)}: {', '.join(f'{bound:g}' for bound in bounds)}"


if __name__ == "__main__":
    print(page())
