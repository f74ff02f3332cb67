"""What the page shows, as tables of plain rows, and the difference between two states of them. Decides without I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from app_toolkit.config.models import ApplicationSpec, DeploymentSpec
from app_toolkit.core.identity import ApplicationKey
from app_toolkit.core.status import ApplicationStatus, InstanceStatus, ReplicaSetStatus, ReplicaStatus
from app_toolkit.dashboard.history import History, Point, Sample, rounded
from app_toolkit.observability.aggregate import ProcessNumbers
from app_toolkit.observability.event_log import LoggedEvent

Row = Any
"""A value of plain data that JSON can represent."""
Tables = Mapping[str, Mapping[str, Row]]
"""The rows of each table by key."""

LONGEST_ERROR = 4_000
"""Characters of an error that a row has. The end is kept, because the end of a traceback is more useful."""

MOST_ROUTES = 20
"""The maximum number of routes of an ingress that a row has."""

SAME_MOMENT_S = 2.0
"""Two times of a replica that differ by less are the same moment. They are computed from ages, and waver a little."""

MEMORY_DIGITS = 6
"""Memory is rounded to megabytes. Otherwise each document would have all processes."""

LAG_DIGITS = 3
"""Delays of the event loop are rounded to milliseconds, for the same reason."""

COLUMNS = ("requests", "failed", *Point._fields)
"""The columns of the table `numbers`: two totals, and the fields of `Point`."""


def layout(applications: Mapping[str, ApplicationSpec]) -> dict[str, Row]:
    """Return what the code of each deployment says about it: kind, calls, limits and routes, without any secret."""
    return {
        key.replica_set(each.config.name).name: {
            "kind": each.kind,
            "calls": [key.replica_set(callee).name for callee in each.calls],
            "max_ongoing_requests": each.config.max_ongoing_requests,
            "max_open_streams": each.config.max_open_streams,
            "routes": _routes(spec, each),
        }
        for key, spec in ((ApplicationKey.parse(name), spec) for name, spec in applications.items())
        for each in spec.deployments
    }


def _routes(spec: ApplicationSpec, deployment: DeploymentSpec) -> list[str]:
    prefix = (spec.route_prefix or "").rstrip("/")
    owned = [route for route in spec.routes if route.owner == deployment.config.name]
    return [f"{','.join(route.methods or ()) or route.kind} {prefix}{route.path}" for route in owned[:MOST_ROUTES]]


class Moments:
    """The times at which the phases of replicas began. A time stays the same while it is computed from ages anew."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], float] = {}

    def of(self, replicas: Iterable[ReplicaStatus], at: float) -> list[float]:
        """Return the time at which the phase of each replica began. `at`: when the status was made."""
        found = []
        for each in replicas:
            began = round(at - each.age_s, 1)
            before = self._known.get((each.id, each.phase))
            if before is not None and abs(before - began) < SAME_MOMENT_S:
                began = before
            self._known[each.id, each.phase] = began
            found.append(began)
        return found

    def keep(self, replicas: Iterable[ReplicaStatus]) -> None:
        """Forget all other replicas."""
        alive = {(each.id, each.phase) for each in replicas}
        self._known = {key: began for key, began in self._known.items() if key in alive}


def status_tables(
    status: InstanceStatus, layouts: Mapping[str, Row], moments: Moments, at: float
) -> dict[str, dict[str, Row]]:
    """Return the tables `instance`, `applications`, `deployments` and `proxies`.

    Parameters:
        status: The status of the instance.
        layouts: As `layout` returns them.
        moments: Those of the replicas before this status.
        at: When the status was made, in seconds since 1970.
    """
    deployments = {each.name: each for application in status.applications for each in application.deployments}
    leaving = {each.name: each for each in status.leaving}
    proxies = {each.name: each for each in status.proxies}
    every = [
        replica for table in (deployments, leaving, proxies) for each in table.values() for replica in each.replicas
    ]
    moments.keep(every)
    return {
        "instance": {
            "status": status.status,
            "url": status.url,
            "stopping": status.stopping,
            "epoch": status.epoch,
        },
        "applications": {each.name: _application(each) for each in status.applications},
        "deployments": {
            name: {**_replica_set(each, moments, at), **layouts.get(name, {}), "leaving": name in leaving}
            for name, each in (leaving | deployments).items()
        },
        "proxies": {name: _replica_set(each, moments, at) for name, each in proxies.items()},
    }


def _application(application: ApplicationStatus) -> Row:
    canary = application.canary
    return {
        "status": application.status,
        "route_prefix": application.route_prefix,
        "revision": application.revision,
        "serving_revision": application.serving_revision,
        "error": _end(application.last_error),
        "deployments": [each.name for each in application.deployments],
        "traffic": [asdict(each) for each in application.traffic],
        "canary": None if canary is None else asdict(canary),
        "splits": [
            {"name": each.name, "shares": dict(each.shares), "mirrors": dict(each.mirrors)}
            for each in application.splits
        ],
    }


def _replica_set(replica_set: ReplicaSetStatus, moments: Moments, at: float) -> Row:
    began = moments.of(replica_set.replicas, at)
    return {
        "status": replica_set.status,
        "target": replica_set.target,
        "counts": replica_set.counts,
        "restarts": replica_set.restarts,
        "reason": _end(replica_set.reason),
        "error": _end(replica_set.last_error),
        "scaling": None if replica_set.scaling is None else asdict(replica_set.scaling),
        "replicas": [
            {
                "id": each.id,
                "phase": each.phase,
                "since": since,
                "node": each.node,
                "template_hash": each.template_hash,
                "problem": _problem(each),
            }
            for each, since in zip(replica_set.replicas, began, strict=True)
        ],
    }


def _problem(replica: ReplicaStatus) -> str | None:
    if replica.asks:
        return f"it asks for {replica.asks}; the instance has {replica.free} free"
    return replica.unhealthy or (replica.recycled and f"is replaced because {replica.recycled}")


def number_rows(sampled: Mapping[str, Sample], history: History) -> dict[str, Row]:
    """Return the rows of the table `numbers`, with the columns `COLUMNS`. `sampled`: the last sample of the history."""
    return {name: [each.requests, each.errors, *map(rounded, history.latest[name])] for name, each in sampled.items()}


def process_rows(processes: Mapping[str, ProcessNumbers]) -> dict[str, Row]:
    """Return the rows of the table `processes`: requests in flight, open streams, bytes of memory, and loop lag."""
    return {
        name: [
            each.ongoing,
            each.streams + each.websockets,
            round(each.memory_bytes, -MEMORY_DIGITS),
            round(each.loop_lag_s, LAG_DIGITS),
        ]
        for name, each in processes.items()
    }


def event_row(event: LoggedEvent, at: float, id: str) -> Row:
    """Return an event as a row. `at`: when its age was computed, in seconds since 1970."""
    return {
        "id": id,
        "at": round(at - event.age_s, 1),
        "subject": event.subject,
        "name": event.name,
        "replica": event.replica,
        "cause": _end(event.cause),
    }


def difference(before: Tables, after: Tables) -> dict[str, dict[str, Row]]:
    """Return the rows that differ, by table. A row that is gone is None. Tables without a difference are missing."""
    found: dict[str, dict[str, Row]] = {}
    for table, rows in after.items():
        known = before.get(table, {})
        changed = {key: row for key, row in rows.items() if key not in known or known[key] != row}
        changed |= dict.fromkeys(known.keys() - rows.keys())
        if changed:
            found[table] = changed
    return found


def _end(text: str | None) -> str | None:
    if text is None or len(text) <= LONGEST_ERROR:
        return text
    return "… " + text[-LONGEST_ERROR:]
