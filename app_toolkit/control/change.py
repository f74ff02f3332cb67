"""What an operation may read of an instance, and what it changes. Plain values."""

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, NamedTuple, TypeVar

from app_toolkit.config.fields import nearest
from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.control.application import Application, LiveRevision, recorded
from app_toolkit.errors import ConfigError

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


class ChangeEvent(NamedTuple):
    """An event that the log gets once a change is stored."""

    subject: str
    """The name of the application."""
    name: str
    """Such as `Applied`."""
    cause: str | None


@dataclass(frozen=True, slots=True)
class Change(Generic[R_co]):
    """What an operation changes, and its result. Without `put`, `deleted` and `http`, nothing changes."""

    result: R_co
    put: tuple[Application, ...] = ()
    """The applications that are new or changed, in the order in which they are stored and take effect."""
    deleted: tuple[str, ...] = ()
    """The names of the applications that are deleted after that. The log gets a `Deleted` event for each."""
    events: tuple[ChangeEvent, ...] = ()
    """The events that the log gets for the applications in `put`."""
    code: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """The packed code that `put` needs, by hash, if it may not be stored yet."""
    owner: str | None = None
    """The lease that holds `put`, and is renewed; None: the leases do not change."""
    http: HTTPOptions | None = None
    """The options with which the instance has proxies from now on; None: nothing changes."""
    lifted: tuple[ReplicaSetKey, ...] = ()
    """The replica sets whose quarantine ends, and whose replicas may start again at once."""

    def with_result(self, result: T) -> "Change[T]":
        """Return the same change with another result."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Change(**{**values, "result": result})


def _no_callers(called: str | ReplicaSetKey) -> Set[str]:
    return frozenset()


@dataclass(frozen=True, slots=True)
class State:
    """What an operation may read of an instance."""

    applications: Mapping[str, Application] = field(default_factory=dict)
    """The applications by name."""
    http: HTTPOptions | None = None
    """The options of the proxies; None: they were not chosen yet."""
    holders: Mapping[str, str] = field(default_factory=dict)
    """The owner of the lease that holds an application. An application that no lease holds is missing."""
    callers: Callable[[str | ReplicaSetKey], Set[str]] = _no_callers
    """Returns the names of the applications whose replicas call an application or a replica set."""
    now: float = 0.0
    """The Unix time in seconds."""

    def application(self, name: str) -> Application:
        """Return an application. Raises `ConfigError` if there is no such application."""
        application = self.applications.get(name)
        if application is None:
            raise ConfigError(f"there is no application {name!r}{nearest(name, self.applications)}")
        return application

    def live(self, name: str, revision: int | None) -> tuple[Application, LiveRevision]:
        """Return an application, and the live revision with this number; None: the main revision.

        Raises `ConfigError` if there is none.
        """
        application = self.application(name)
        if revision in (None, application.main.number):
            return application, application.main
        live = application.candidate(revision)
        if live is None:
            numbers = ", ".join(str(live.number) for live in application.live)
            raise ConfigError(f"application {name!r} has no live revision {revision}; it has {numbers}")
        return application, live

    def has(self, name: str, deployment: str | None, revision: int | None = None) -> bool:
        """Return whether `live` finds a live revision, and it has this deployment; None: any deployment."""
        try:
            _, live = self.live(name, revision)
        except ConfigError:
            return False
        return deployment is None or deployment in {spec.config.name for spec in live.spec.deployments}

    def check_not_called(self, name: str) -> None:
        """Raise `ConfigError` if another application calls a deployment of this one."""
        if names := self._names_of_callers(name, name):
            raise ConfigError(f"application {name!r} cannot be deleted: its deployments are called by {names}")

    def check_calls(self, spec: ApplicationSpec) -> None:
        """Raise `ConfigError` if another application calls a deployment that this application would lose."""
        application = self.applications.get(spec.name)
        left = {deployment.config.name for deployment in spec.deployments}
        for key in () if application is None else application.main.replica_set_keys():
            if key.deployment not in left and (names := self._names_of_callers(spec.name, key)):
                raise ConfigError(f"{key.main.name!r} cannot be deleted: it is called by {names}")

    def _names_of_callers(self, application: str, called: str | ReplicaSetKey) -> str:
        return ", ".join(sorted(self.callers(called) - {application}))

    def recorded(self, application: Application) -> Application:
        """Return an application that a change puts, with the history that follows from the change."""
        return recorded(self.applications.get(application.name), application, self.now)

    def after(self, change: Change[Any]) -> "State":
        """Return the state after a change."""
        applications = dict(self.applications)
        applications |= {application.name: self.recorded(application) for application in change.put}
        holders = dict(self.holders)
        if change.owner is not None:
            holders |= {application.name: change.owner for application in change.put}
        for name in change.deleted:
            applications.pop(name, None)
            holders.pop(name, None)
        http = self.http if change.http is None else change.http
        return replace(self, applications=applications, holders=holders, http=http)
