"""The progress of applications, from the status: the rows that are shown, and failures that end a wait."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from app_toolkit.config.models import ApplicationSpec
from app_toolkit.contract.identity import ProxySetKey
from app_toolkit.control.status import FAILED, ApplicationStatus, InstanceStatus, ReplicaSetStatus
from app_toolkit.errors import ConfigError, InstanceEnded, PlacementError, StartupError, Superseded, ToolkitError
from app_toolkit.types import NodeId

SHOWN_NODE = 8
"""The number of characters of a node's ID that are shown."""

SHOWN_LINES = 20
"""The number of lines of a traceback that are shown, from its end."""


@dataclass(frozen=True, slots=True)
class Row:
    """The status of one deployment, or of the proxies of a node."""

    name: str
    replica_set: ReplicaSetStatus

    def __str__(self) -> str:
        replica_set = self.replica_set
        count = f"{replica_set.running} of {replica_set.target} running"
        if replica_set.outdated:
            count += f", {replica_set.outdated} of an earlier revision"
        if replica_set.restarts:
            count += f", {replica_set.restarts} restart{'s' * (replica_set.restarts > 1)}"
        reason = f" ({replica_set.reason})" if replica_set.reason else ""
        return f"{self.name}: {replica_set.status.replace('_', ' ')}, {count}{reason}"


Names = Collection[str] | Mapping[str, int]
"""The names of applications. A mapping has the number of the live revision that is meant."""


def rows(status: InstanceStatus, applications: Names) -> list[Row]:
    """Return the rows of the proxies and of the deployments of these applications.

    Returns no rows until the status has one of the applications. If there are several, the name of a row contains the
    application.
    """
    shown = [live for live in _live(status, applications) if live is not None]
    if not shown:
        return []
    several = len(status.proxies) > 1
    proxies = [Row(_short(replica_set.name) if several else "proxy", replica_set) for replica_set in status.proxies]
    replica_sets = [replica_set for live in shown for replica_set in live.deployments]
    named = [
        Row(replica_set.name if len(applications) > 1 else replica_set.key.deployment, replica_set)
        for replica_set in replica_sets
    ]
    return proxies + named


def _live(status: InstanceStatus, applications: Names) -> list[ApplicationStatus | None]:
    """Return the status of each application, or of the live revision that is meant; None: there is none."""
    statuses = [(name, status.application(name)) for name in applications]
    if not isinstance(applications, Mapping):
        return [application for _, application in statuses]
    return [None if application is None else application.live(applications[name]) for name, application in statuses]


def _short(proxies: str) -> str:
    """Return the name of a replica set of proxies with the beginning of the node's ID."""
    key = ProxySetKey.parse(proxies)
    return key._replace(node=NodeId(key.node[:SHOWN_NODE])).name


def is_serving(status: InstanceStatus, applications: Names) -> bool:
    """Return whether the latest revision of these applications is up, no other one serves, and clients can reach it."""
    available = all(live is not None and live.is_available for live in _live(status, applications))
    return available and status.url is not None and all(row.replica_set.is_up for row in rows(status, applications))


def unfinished(status: InstanceStatus, revisions: Mapping[str, int]) -> list[str]:
    """Return what is unfinished in an update of these live revisions, apart from starting replicas."""
    leaving = [
        f"{replica_set.name}: {replica_set.status}"
        for name, revision in revisions.items()
        for replica_set in status.leaving_of(name, revision)
    ]
    updating = [live for live in _live(status, revisions) if live is not None and not live.is_available]
    waiting = [
        f"{application.name}: revision {traffic.revision} gets no requests yet"
        for application in status.applications
        for traffic in application.traffic
        if traffic.revision == revisions.get(application.name) and not traffic.is_ready
    ]
    return (
        leaving
        + [f"{application.name}: revision {application.revision} is not available yet" for application in updating]
        + waiting
    )


def ended(status: InstanceStatus, application: str, revision: int) -> ToolkitError | None:
    """Return the error because of which this revision will not be up, however long a client waits; None: it may be."""
    if status.stopping:
        return InstanceEnded(f"the instance was shut down before revision {revision} of {application!r} was up")
    live = status.application(application)
    if live is None:
        return Superseded(f"{application!r} was deleted before its revision {revision} was up")
    live = live.live(revision) or live
    if (
        max(live.next_revision, live.revision + 1) <= revision
    ):  # the numbers of an application that was deleted begin with 1 again
        return Superseded(f"{application!r} was deleted before its revision {revision} was up, and deployed again")
    if 0 < live.revision != revision:
        return Superseded(
            f"revision {revision} of {application!r} was superseded by revision {live.revision} before it was up"
        )
    return rolled_back(live) or next(failures(status, {application: revision}), None)


def failures(status: InstanceStatus, applications: Names) -> Iterator[ConfigError]:
    """Yield the errors because of which an application does not start, however long a client waits."""
    for row in rows(status, applications):
        replica_set = row.replica_set
        if replica_set.status == FAILED and replica_set.unplaced:
            yield PlacementError(f"{row.name!r} cannot be placed: {replica_set.reason}")
        elif replica_set.status == FAILED:
            yield _with_traceback(f"{row.name!r} did not come up", replica_set.error)


def rolled_back(application: ApplicationStatus | None) -> StartupError | None:
    """Return the error because of which the latest revision was rolled back; None if it was not."""
    if application is None or not application.last_error or not application.revision:
        return None
    if application.serving_revision:
        back = f"was rolled back to revision {application.serving_revision}"
        sentence = f"revision {application.revision} of {application.name!r} {back}"
    else:
        sentence = f"{application.name!r} was rolled back"
    return _with_traceback(sentence, application.last_error)


def url_of(status: InstanceStatus, spec: ApplicationSpec) -> str:
    """Return the URL of an application. Raises `ConfigError` while no proxy is up."""
    if status.url is None:
        raise ConfigError("no process of this instance accepts clients")
    return status.url + (spec.route_prefix or "").rstrip("/")


def serving_at(status: InstanceStatus, spec: ApplicationSpec) -> Iterator[str]:
    """Yield sentences with the URL of an application. Raises `ConfigError` while no proxy is up."""
    if spec.route_prefix is None:
        yield f"Serving {spec.title or spec.name}"
        return
    url = url_of(status, spec)
    yield f"Serving {spec.title or spec.name} at {url}"
    if any(route.path == "/docs" for route in spec.routes):
        yield f"Documentation at {url}/docs"


def _with_traceback(what: str, why: str) -> StartupError:
    """Return an error with the last line of `why`. If there are several lines, a note has the last of them."""
    lines = why.strip().splitlines()
    error = StartupError(f"{what}: {lines[-1] if lines else ''}")
    if len(lines) > 1:
        error.add_note("\n".join(lines[-SHOWN_LINES:]))
    return error
