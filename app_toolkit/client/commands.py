"""The operations of an instance. A command defines the arguments, the type of the result, and how it is performed.

A client sends a command to the controller's actor, which calls `perform` with the controller. To add an operation:

1. Add a class here, and the method of `Controller` that it calls.
2. Add a function to `running.py`, its coroutine to `aio.py`, and its name to `__init__.py`.
3. Add a command to `cli/main.py`. The admin API gets its route by itself. Describe both in `docs/cli.md` and
   `docs/reference/api.md`.

`docs/architecture.md` also names the files to change if the operation stores state or shows something new.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Generic, Self, TypeVar

from pydantic import Base64Bytes, ConfigDict, Field, PlainSerializer

from app_toolkit.config.files import written
from app_toolkit.config.models import ApplicationSpec, ClassSpec, HTTPOptions, SplitSpec
from app_toolkit.config.options import TrafficOptions
from app_toolkit.core.applications import Comparison
from app_toolkit.core.canary import CanaryPlan
from app_toolkit.core.identity import ReplicaSetKey, parts_of
from app_toolkit.core.rollout import Reverted
from app_toolkit.core.status import InstanceStatus
from app_toolkit.errors import ConfigError
from app_toolkit.observability.event_log import EventPage

if TYPE_CHECKING:
    from app_toolkit.controller.controller import Controller

R = TypeVar("R")

LONGEST_WAIT_S = 60.0
"""The longest wait of a query that waits for a change, in seconds."""

Timeout = Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)]

ExplicitOptions = Annotated[
    HTTPOptions, PlainSerializer(lambda options: options.model_dump(mode="json", exclude_unset=True))
]
"""Options of which JSON has those that are set explicitly."""


class Command(ABC, Generic[R]):
    """One operation with its arguments. If the controller restarts, a command may be performed twice.

    The admin API has a route for each command (`admin/api.py`), except for each `DriverCommand`.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    @abstractmethod
    async def perform(self, controller: "Controller") -> R: ...


class Query(Command[R]):
    """A command that changes nothing. Each of its fields is a number, a text or None."""


class DriverCommand(Command[R]):
    """A command of a process whose handles call deployments, or whose lease holds applications."""


@dataclass(frozen=True, slots=True)
class Deploy(Command[int]):
    """Serve an application. The result is its revision number, as soon as that is stored.

    Raises `ConfigError` if the application conflicts with another one, and `RevisionConflict` if its revision number is
    not the expected one.
    """

    spec: ApplicationSpec = field(repr=False)  # may contain secrets
    http: ExplicitOptions = field(default_factory=HTTPOptions)
    """The options of the proxies that change: those that are set explicitly. The others stay."""
    code: Mapping[str, Base64Bytes] = field(default_factory=dict, repr=False)
    """The code and files that the replicas unpack, by hash."""
    owner: str | None = None
    """The lease that holds the application; None: the application stays until it is deleted."""
    expected: int | None = None
    """The revision number that the application must have before the command; None: any."""
    initial: HTTPOptions | None = None
    """The options of the proxies if the instance has none yet; None: the default ones. `http` overrides them."""
    only: tuple[str, ...] = ()
    """The deployments of `spec` that replace those of the running application, by their names or by endpoints such as
    `POST /embed`. The others stay. Empty: all are replaced."""
    as_written: bool = False
    """Whether the options of `spec` are as written. Their references and masked secrets (`***`) then have the values
    that they have in the running application."""

    async def perform(self, controller: "Controller") -> int:
        return await controller.apply(
            self.spec,
            self.http,
            self.owner,
            self.code,
            self.expected,
            self.initial,
            only=self.only,
            as_written=self.as_written,
        )


@dataclass(frozen=True, slots=True)
class AddCandidate(Command[int]):
    """Start a live revision of an application beside its main revision. The result is its number.

    Raises `ConfigError` if it cannot be added, and `RevisionConflict` if it would not get the expected number.
    """

    spec: ApplicationSpec = field(repr=False)  # may contain secrets
    code: Mapping[str, Base64Bytes] = field(default_factory=dict, repr=False)
    """The code and files that the replicas unpack, by hash."""
    share: float = 0.0
    """The share of the requests that it gets once it is available, between 0 and 1."""
    tag: str | None = None
    """Selects the revision, whatever its share. None: it has no tag."""
    owner: str | None = None
    """The lease of the client. An application that another lease holds is refused."""
    expected: int | None = None
    """The number that the revision must get. Without this check, a command that is sent twice would start two."""
    mirror: float = 0.0
    """The share of the requests of the other live revisions that it gets copies of, between 0 and 1."""

    @classmethod
    def instead_of(
        cls, command: Deploy, traffic: TrafficOptions, owner: str | None, expected: int | None = None
    ) -> Self:
        """Return the command that starts this revision beside the main revision, and does not replace that."""
        share, mirror = traffic.percent / 100, traffic.mirror / 100
        return cls(command.spec, command.code, share, traffic.tag, owner, expected, mirror)

    async def perform(self, controller: "Controller") -> int:
        return await controller.add_candidate(
            self.spec, self.code, self.share, self.tag, self.owner, self.expected, self.mirror
        )


@dataclass(frozen=True, slots=True)
class Compare(Command[Comparison]):
    """Get what deploying applications would change. Changes nothing.

    Raises `ConfigError` if the deployment would be refused.
    """

    specs: tuple[ApplicationSpec, ...] = field(repr=False)  # may contain secrets
    http: ExplicitOptions = field(default_factory=HTTPOptions)
    """The options of the proxies that change: those that are set explicitly."""
    only: tuple[str, ...] = ()
    """As of `Deploy`."""
    candidates: tuple[AddCandidate, ...] = field(default=(), repr=False)
    """The commands for those of `specs` that start as live revisions. They need no code."""

    async def perform(self, controller: "Controller") -> Comparison:
        for each in self.candidates:
            controller.check_candidate(each.spec, each.share, each.tag, each.owner, each.mirror)
        beside = {each.spec.name for each in self.candidates}
        return controller.compare(self.specs, self.http, self.only, beside)


@dataclass(frozen=True, slots=True)
class SetTraffic(Command[None]):
    """Set the weights of the live revisions of an application, and what they mirror.

    A revision without a weight, a tag and a mirror is removed. Raises `ConfigError` if there is no such application or
    revision, or the weights are invalid.
    """

    application: str
    weights: Mapping[int, float]
    """By the number of the revision. Their sum is 100 %. Empty: they stay, if there are mirrors."""
    mirrors: Mapping[int, float] = field(default_factory=dict)
    """By the number of the revision: the share of the requests of the others that it gets copies of. The share of a
    revision that is missing stays."""

    async def perform(self, controller: "Controller") -> None:
        await controller.set_traffic(self.application, self.weights, self.mirrors)


@dataclass(frozen=True, slots=True)
class BeginRelease(Command[None]):
    """Begin a canary release of a live revision.

    Raises `ConfigError` if there is no such application or revision, another one gets requests, or a release goes on.
    """

    application: str
    plan: CanaryPlan
    revision: int | None = None
    """None: the only one beside the main revision."""

    async def perform(self, controller: "Controller") -> None:
        await controller.begin_release(self.application, self.revision, self.plan)


@dataclass(frozen=True, slots=True)
class PauseRelease(Command[None]):
    """Pause or resume the canary release of an application. Raises `ConfigError` if there is none that goes on."""

    application: str
    paused: bool

    async def perform(self, controller: "Controller") -> None:
        await controller.pause_release(self.application, paused=self.paused)


@dataclass(frozen=True, slots=True)
class SetSplit(Command[int]):
    """Set the weights of the members of a split, and what they mirror.

    The result is the revision number, as soon as that is stored. Raises `ConfigError` if there is no such application,
    split or member, or the weights or mirrors are invalid.
    """

    application: str
    split: str
    weights: Mapping[str, float]
    """By the name of the member. Their sum is 100 %. Empty: they stay, if there are mirrors."""
    mirrors: Mapping[str, float] = field(default_factory=dict)
    """By the name of the member: the share of the calls of the others that it gets copies of. The share of a member
    that is missing stays."""

    @classmethod
    def named(cls, split: str, weights: Mapping[str, float], mirrors: Mapping[str, float] | None = None) -> Self:
        """Return the command for `APPLICATION/SPLIT`. Raises `ConfigError` if the name has another form."""
        application, name = parts_of(split)
        if not (application and name):
            raise ConfigError(f"{split!r} names no split: it should be APPLICATION/SPLIT")
        return cls(application, name, weights, mirrors or {})

    async def perform(self, controller: "Controller") -> int:
        return await controller.set_split(self.application, self.split, self.weights, self.mirrors)


@dataclass(frozen=True, slots=True)
class Promote(Command[int]):
    """Send all requests to a live revision, and make it the main revision. The result is its new number.

    Raises `ConfigError` if there is no such application or revision.
    """

    application: str
    revision: int | None = None
    """None: the only one beside the main revision."""

    async def perform(self, controller: "Controller") -> int:
        return await controller.promote(self.application, self.revision)


@dataclass(frozen=True, slots=True)
class Abort(Command[None]):
    """Send all requests to the main revision of an application, and remove its other live revisions."""

    application: str

    async def perform(self, controller: "Controller") -> None:
        await controller.abort(self.application)


@dataclass(frozen=True, slots=True)
class Rollback(Command[Reverted]):
    """Return to the last stable revision of an application. Raises `ConfigError` if there is none."""

    application: str
    expected: int
    """The revision number that the application must have before the command. Without this check, a command that is sent
    twice would undo the rollback."""

    async def perform(self, controller: "Controller") -> Reverted:
        return await controller.rollback(self.application, self.expected)


@dataclass(frozen=True, slots=True)
class Scale(Command[int]):
    """Set the number of replicas of a deployment. The result is the revision number, as soon as that is stored.

    Raises `ConfigError` if there is no such deployment, or if it cannot have this number of replicas.
    """

    application: str
    deployment: str
    num_replicas: int

    @classmethod
    def named(cls, deployment: str, num_replicas: int) -> Self:
        """Return the command for `APPLICATION/DEPLOYMENT`. Raises `ConfigError` if the name has another form."""
        return cls(*_names(deployment), num_replicas)

    async def perform(self, controller: "Controller") -> int:
        return await controller.scale(self.application, self.deployment, self.num_replicas)


@dataclass(frozen=True, slots=True)
class Delete(Command[None]):
    """Stop serving an application, or one deployment of it.

    Raises `ConfigError` if it does not exist or is in use.
    """

    application: str
    deployment: str | None = None
    """None: the whole application."""

    @classmethod
    def named(cls, name: str) -> Self:
        """Return the command for `APPLICATION` or `APPLICATION/DEPLOYMENT`. Raises `ConfigError` for another form."""
        return cls(*_names(name)) if "/" in name else cls(name)

    async def perform(self, controller: "Controller") -> None:
        await controller.delete(self.application, self.deployment)


@dataclass(frozen=True, slots=True)
class GetStatus(Query[InstanceStatus]):
    """Get the status of the instance as soon as its `change` is above `after`, or after `timeout_s` seconds."""

    after: int = -1
    timeout_s: Timeout = 0.0

    async def perform(self, controller: "Controller") -> InstanceStatus:
        return (await controller.status_after(self.after, self.timeout_s))[1]


@dataclass(frozen=True, slots=True)
class GetEvents(Query[EventPage]):
    """Get what the controller has done, and what has happened to replicas, from its event log."""

    subject: str | None = None
    """Only events of this application or replica set, `APPLICATION/DEPLOYMENT`. None: all."""
    last: int | None = None
    """At most so many, the newest ones. None: all that the log keeps."""
    epoch: int = 0
    number: int = 0
    """Those of the page before: only later events. If there are none, wait for `timeout_s` seconds."""
    timeout_s: Timeout = 0.0

    async def perform(self, controller: "Controller") -> EventPage:
        return await controller.events_after(self.subject, self.last, self.epoch, self.number, self.timeout_s)


@dataclass(frozen=True, slots=True)
class GetApplications(Query[tuple[Mapping[str, ApplicationSpec], HTTPOptions]]):
    """Get the applications as deployed last, by name, and the options of the proxies.

    The options are as written: they contain references to environment variables, and not their values. `***` stands for
    each secret that is plain text.
    """

    async def perform(self, controller: "Controller") -> tuple[Mapping[str, ApplicationSpec], HTTPOptions]:
        applications, http = controller.current()
        return {name: written(spec) for name, spec in applications.items()}, http


@dataclass(frozen=True, slots=True)
class GetApplication(Query[tuple[ApplicationSpec, int]]):
    """Get the desired version of an application, as written, and its revision number.

    Raises `ConfigError` if there is none.
    """

    name: str

    async def perform(self, controller: "Controller") -> tuple[ApplicationSpec, int]:
        spec, revision = controller.application(self.name)
        return written(spec), revision


@dataclass(frozen=True, slots=True)
class GetCallee(DriverCommand[ClassSpec | SplitSpec]):
    """Get a deployment or a split, with the methods that callers may call. Raises `ConfigError` if there is none."""

    application: str
    name: str

    async def perform(self, controller: "Controller") -> ClassSpec | SplitSpec:
        return controller.callee(self.application, self.name)


@dataclass(frozen=True, slots=True)
class Hold(DriverCommand[None]):
    """Take or renew a lease. If it is not renewed for 30 s, the instance deletes the applications that it holds."""

    owner: str

    async def perform(self, controller: "Controller") -> None:
        controller.hold(self.owner)


@dataclass(frozen=True, slots=True)
class Leave(DriverCommand[None]):
    """End a lease, and wait until the applications that it holds have been deleted."""

    owner: str

    async def perform(self, controller: "Controller") -> None:
        await controller.leave(self.owner)


@dataclass(frozen=True, slots=True)
class Listen(DriverCommand[None]):
    """Start the proxies of an instance that has no application yet."""

    http: HTTPOptions
    """The options of the proxies."""

    async def perform(self, controller: "Controller") -> None:
        await controller.listen(self.http)


@dataclass(frozen=True, slots=True)
class Forget(DriverCommand[None]):
    """Forget a caller that has ended: its load counts no more, and no drain waits for its acknowledgements."""

    caller: str

    async def perform(self, controller: "Controller") -> None:
        controller.forget(self.caller)


@dataclass(frozen=True, slots=True)
class Shutdown(Command[None]):
    """Drain all replicas and proxies, and end the controller."""

    discard: bool = False
    """Whether a desired state that cannot be read is deleted. Otherwise the command raises `CorruptValue`."""

    async def perform(self, controller: "Controller") -> None:
        await controller.shutdown()


def _names(deployment: str) -> tuple[str, str]:
    try:
        key = ReplicaSetKey.parse(deployment)
    except ValueError:
        raise ConfigError(f"{deployment!r} names no deployment: it should be APPLICATION/DEPLOYMENT") from None
    return key.application_key.name, key.deployment
