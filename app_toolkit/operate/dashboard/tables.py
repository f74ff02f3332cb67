"""What the page shows, as tables of plain rows, and the difference between two states of them. Decides without I/O."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from app_toolkit.config.models import ApplicationSpec, DeploymentSpec
from app_toolkit.control.status import ApplicationStatus, InstanceStatus, ReplicaSetStatus, ReplicaStatus
from app_toolkit.observability.event_log import LoggedEvent
from app_toolkit.operate.aggregate import ProcessNumbers
from app_toolkit.operate.dashboard.history import History, Point, Sample, rounded

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
    """Return what the code of each deployment says about it: kind, calls, limits and routes, without any secret.

    The names are those of deployments in the main revisions. Their other live revisions are shown with the same values.
    """
    return {
        f"{name}/{deployment.config.name}": {
            "kind": deployment.kind,
            "calls": list(deployment.calls),
            "max_ongoing_requests": deployment.config.max_ongoing_requests,
            "max_open_streams": deployment.config.max_open_streams,
            "routes": _routes(spec, deployment),
        }
        for name, spec in applications.items()
        for deployment in spec.deployments
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
        times = []
        for replica in replicas:
            began = round(at - replica.age_s, 1)
            before = self._known.get((replica.id, replica.phase))
            if before is not None and abs(before - began) < SAME_MOMENT_S:
                began = before
            self._known[replica.id, replica.phase] = began
            times.append(began)
        return times

    def keep(self, replicas: Iterable[ReplicaStatus]) -> None:
        """Forget all other replicas."""
        alive = {(replica.id, replica.phase) for replica in replicas}
        self._known = {key: began for key, began in self._known.items() if key in alive}


def status_tables(
    status: InstanceStatus, layouts: Mapping[str, Row], moments: Moments, at: float
) -> dict[str, dict[str, Row]]:
    """Return the tables `instance`, `applications`, `deployments` and `proxies`.

    Parameters:
        status: The status of the instance.
        layouts: As `layout` returns them.
        moments: The times at which the phases of the replicas began, as far as earlier statuses show them.
        at: When the status was made, in seconds since 1970.
    """
    live = {name: revision for application in status.applications for name, revision in _live(application).items()}
    deployments = {
        f"{name}/{replica_set.key.deployment}": replica_set
        for name, application in live.items()
        for replica_set in application.deployments
    }
    leaving = {
        _leaving(replica_set, live.get(replica_set.key.application)): replica_set for replica_set in status.leaving
    }
    proxies = {replica_set.name: replica_set for replica_set in status.proxies}
    every = [
        replica
        for table in (deployments, leaving, proxies)
        for replica_set in table.values()
        for replica in replica_set.replicas
    ]
    moments.keep(every)
    return {
        "instance": {
            "status": status.status,
            "url": status.url,
            "stopping": status.stopping,
            "epoch": status.epoch,
        },
        "applications": {name: _application(name, application) for name, application in live.items()},
        "deployments": {
            name: {
                **_replica_set(replica_set, moments, at),
                **_layout(name, replica_set, layouts),
                "key": replica_set.key.name,
                "leaving": name in leaving,
            }
            for name, replica_set in (leaving | deployments).items()
        },
        "proxies": {name: _replica_set(replica_set, moments, at) for name, replica_set in proxies.items()},
    }


def _leaving(replica_set: ReplicaSetStatus, main: ApplicationStatus | None) -> str:
    """Return the name of a replica set that leaves, with a number unless it belongs to the main revision.

    `main`: the main revision; None: there is none.
    """
    application, deployment = replica_set.key.application, replica_set.key.deployment
    is_main = main is None or main.created == replica_set.created
    return replica_set.name if is_main else f"{application}@{replica_set.created}/{deployment}"


def _layout(name: str, replica_set: ReplicaSetStatus, layouts: Mapping[str, Row]) -> Row:
    """Return the layout of a deployment, with the names of those that it calls in its own live revision."""
    row = layouts.get(replica_set.name)
    live = name.rpartition("/")[0]
    return {} if row is None else {**row, "calls": [f"{live}/{callee}" for callee in row["calls"]]}


def _live(application: ApplicationStatus) -> dict[str, ApplicationStatus]:
    """Return the status of the main revision under the name of the application, and that of each other live one."""
    numbers = [traffic.revision for traffic in application.traffic[1:]]
    others = {f"{application.name}@{number}": application.live(number) for number in numbers}
    return {application.name: application} | {name: live for name, live in others.items() if live is not None}


def _application(name: str, application: ApplicationStatus) -> Row:
    canary = application.canary
    return {
        "key": application.key.name,
        "status": application.status,
        "route_prefix": application.route_prefix,
        "revision": application.revision,
        "serving_revision": application.serving_revision,
        "rollback_to": application.rollback_to,
        "error": _end(application.last_error),
        "facts": [fact._asdict() for fact in application.facts.shown],
        "deployments": [f"{name}/{replica_set.key.deployment}" for replica_set in application.deployments],
        "traffic": [
            {**asdict(replace(traffic, deployments=(), splits=())), "state": traffic.state}
            for traffic in application.traffic
        ],
        "canary": None if canary is None else asdict(canary),
        "splits": [
            {"name": split.name, "shares": dict(split.shares), "mirrors": dict(split.mirrors)}
            for split in application.splits
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
                "id": replica.id,
                "phase": replica.phase,
                "since": since,
                "node": replica.node,
                "template_hash": replica.template_hash,
                "problem": _problem(replica),
            }
            for replica, since in zip(replica_set.replicas, began, strict=True)
        ],
    }


def _problem(replica: ReplicaStatus) -> str | None:
    if replica.asks:
        return f"it asks for {replica.asks}; the instance has {replica.free} free"
    return replica.unhealthy or (replica.recycled and f"is replaced because {replica.recycled}")


def number_rows(sampled: Mapping[str, Sample], history: History) -> dict[str, Row]:
    """Return the rows of the table `numbers`, with the columns `COLUMNS`. `sampled`: the last sample of the history."""
    return {
        name: [sample.requests, sample.errors, *map(rounded, history.latest[name])] for name, sample in sampled.items()
    }


def process_rows(processes: Mapping[str, ProcessNumbers]) -> dict[str, Row]:
    """Return the rows of the table `processes`: requests in flight, open streams, bytes of memory, and loop lag."""
    return {
        name: [
            numbers.ongoing,
            numbers.streams + numbers.websockets,
            round(numbers.memory_bytes, -MEMORY_DIGITS),
            round(numbers.loop_lag_s, LAG_DIGITS),
        ]
        for name, numbers in processes.items()
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
    changes: dict[str, dict[str, Row]] = {}
    for table, rows in after.items():
        earlier = before.get(table, {})
        changed = {key: row for key, row in rows.items() if key not in earlier or earlier[key] != row}
        changed |= dict.fromkeys(earlier.keys() - rows.keys())
        if changed:
            changes[table] = changed
    return changes


def _end(text: str | None) -> str | None:
    if text is None or len(text) <= LONGEST_ERROR:
        return text
    return "… " + text[-LONGEST_ERROR:]
