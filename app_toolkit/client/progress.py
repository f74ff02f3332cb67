"""The progress of applications, from the status: the rows that are shown, and failures that end a wait."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from app_toolkit.config.models import ApplicationSpec
from app_toolkit.core.identity import ApplicationKey, ProxySetKey, ReplicaSetKey
from app_toolkit.core.status import FAILED, ApplicationStatus, InstanceStatus, ReplicaSetStatus
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


def rows(status: InstanceStatus, applications: Collection[str]) -> list[Row]:
    """Return the rows of the proxies and of the deployments of these applications.

    Returns no rows until the status has one of the applications. If there are several, the name of a row contains the
    application.
    """
    found = [each for name in applications if (each := status.application(name))]
    if not found:
        return []
    several = len(status.proxies) > 1
    proxies = [Row(_short(each.name) if several else "proxy", each) for each in status.proxies]
    replica_sets = [replica_set for application in found for replica_set in application.deployments]
    named = [
        Row(each.name if len(applications) > 1 else ReplicaSetKey.parse(each.name).deployment, each)
        for each in replica_sets
    ]
    return proxies + named


def _short(proxies: str) -> str:
    """Return the name of a replica set of proxies with the beginning of the node's ID."""
    key = ProxySetKey.parse(proxies)
    return key._replace(node=NodeId(key.node[:SHOWN_NODE])).name


def is_serving(status: InstanceStatus, applications: Collection[str]) -> bool:
    """Return whether the latest revision of these applications is up, no other one serves, and clients can reach it."""
    found = [status.application(name) for name in applications]
    available = all(application is not None and application.is_available for application in found)
    return available and status.url is not None and all(row.replica_set.is_up for row in rows(status, applications))


def unfinished(status: InstanceStatus, applications: Collection[str]) -> list[str]:
    """Return what is unfinished in an update of these applications, apart from starting replicas."""
    leaving = [
        f"{replica_set.name}: {replica_set.status}" for name in applications for replica_set in status.leaving_of(name)
    ]
    updating = [each for each in status.applications if each.name in applications and not each.is_available]
    waiting = [name for name in applications if _gets_no_requests(status, name)]
    return (
        leaving
        + [f"{each.name}: revision {each.revision} is not available yet" for each in updating]
        + [f"{name}: gets no requests yet" for name in waiting]
    )


def _gets_no_requests(status: InstanceStatus, name: str) -> bool:
    """Return whether an application is a live revision that was not available yet."""
    key = ApplicationKey.parse(name)
    if not key.is_candidate:
        return False
    main = status.application(key.application)
    return main is not None and any(each.revision == key.revision and not each.is_ready for each in main.traffic)


def ended(status: InstanceStatus, application: str, revision: int) -> ToolkitError | None:
    """Return the error because of which this revision will not be up, however long a client waits; None: it may be."""
    if status.stopping:
        return InstanceEnded(f"the instance was shut down before revision {revision} of {application!r} was up")
    found = status.application(application)
    if found is None:
        return Superseded(f"{application!r} was deleted before its revision {revision} was up")
    if found.revision > revision:
        return Superseded(
            f"revision {revision} of {application!r} was superseded by revision {found.revision} before it was up"
        )
    if 0 < found.revision < revision:  # the numbers of an application that was deleted begin with 1 again
        return Superseded(f"{application!r} was deleted before its revision {revision} was up, and deployed again")
    return rolled_back(found) or next(failures(status, application), None)


def failures(status: InstanceStatus, application: str) -> Iterator[ConfigError]:
    """Yield the errors because of which an application does not start, however long a client waits."""
    for row in rows(status, [application]):
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
