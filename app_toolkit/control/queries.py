"""The commands of an instance that are no operations: queries, leases and the shutdown.

A command has the arguments, the type of the result, and how the controller performs it. The operations,
which change applications, are in the files of their subjects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, TypeVar

from pydantic import Field

from app_toolkit.config.files import written
from app_toolkit.config.models import ApplicationSpec, ClassSpec, HTTPOptions, SplitSpec
from app_toolkit.control import application_specs, restart
from app_toolkit.control.application_specs import Comparison, callee
from app_toolkit.control.change import State
from app_toolkit.control.command import Command, DriverCommand, Query
from app_toolkit.control.operations import AddCandidate, Deploy, ExplicitOptions
from app_toolkit.control.revisions import RevisionStatus, revisions
from app_toolkit.control.status import InstanceStatus
from app_toolkit.observability.event_log import EventPage

if TYPE_CHECKING:
    from app_toolkit.control.controller import Controller

R = TypeVar("R")

LONGEST_WAIT_S = 60.0
"""The longest wait of a query that waits for a change, in seconds."""

Timeout = Annotated[float, Field(ge=0, le=LONGEST_WAIT_S)]


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
    """The epoch and the number of the page before: only later events. If there are none, wait for `timeout_s`."""
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
        state = controller.desired.state()
        return {
            name: written(application.main.spec) for name, application in state.applications.items()
        }, state.http or HTTPOptions()


@dataclass(frozen=True, slots=True)
class GetApplication(Query[tuple[ApplicationSpec, int]]):
    """Get the desired version of an application, as written, and its revision number.

    Raises `ConfigError` if there is none.
    """

    name: str

    async def perform(self, controller: "Controller") -> tuple[ApplicationSpec, int]:
        application = controller.desired.state().application(self.name)
        return written(application.main.spec), application.revision


@dataclass(frozen=True, slots=True)
class Compare(Command[Comparison]):
    """Get what deploying applications would change.

    Raises `ConfigError` if the deployment would be refused.
    """

    specs: tuple[ApplicationSpec, ...] = field(repr=False)  # may contain secrets
    http: ExplicitOptions = field(default_factory=HTTPOptions)
    """The options of the proxies that change: those that are set explicitly."""
    candidates: tuple[AddCandidate, ...] = field(default=(), repr=False)
    """The commands for those of `specs` that start as live revisions. They need no code."""

    async def perform(self, controller: "Controller") -> Comparison:
        return self.compared(controller.desired.state())

    def compared(self, state: State) -> Comparison:
        """Return what deploying would change in this state. Raises the errors of the deployment."""
        running = {name: application.main.spec for name, application in state.applications.items()}
        listening = state.http or HTTPOptions()
        specs = [restart.kept(spec, state.applications.get(spec.name)) for spec in self.specs]
        comparison = application_specs.compare(specs, running, listening, self.http)
        beside = {candidate.spec.name for candidate in self.candidates}
        deployed = [Deploy(spec, self.http) for spec in self.specs if spec.name not in beside]
        for operation in (*self.candidates, *deployed):
            state = state.after(operation.decide(state))
        return comparison


@dataclass(frozen=True, slots=True)
class GetHistory(Query[tuple[RevisionStatus, ...]]):
    """Get the revisions of an application: the earlier ones that are kept, the main one, and the live ones.

    Raises `ConfigError` if there is no such application.
    """

    application: str

    async def perform(self, controller: "Controller") -> tuple[RevisionStatus, ...]:
        return revisions(controller.desired.state().application(self.application))


@dataclass(frozen=True, slots=True)
class GetCallee(DriverCommand[ClassSpec | SplitSpec]):
    """Get a deployment or a split, with the methods that callers may call. Raises `ConfigError` if there is none."""

    application: str
    name: str

    async def perform(self, controller: "Controller") -> ClassSpec | SplitSpec:
        running = controller.desired.applications
        specs = {name: application.main.spec for name, application in running.items()}
        return callee(specs, self.application, self.name)


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
class Forget(DriverCommand[None]):
    """Forget a caller that has ended: its load counts no more, and no drain waits for its acknowledgements."""

    caller: str

    async def perform(self, controller: "Controller") -> None:
        controller.forget(self.caller)


@dataclass(frozen=True, slots=True)
class Shutdown(Command[None]):
    """Drain and delete all applications, and end the instance. A Ray cluster stays."""

    discard: bool = False
    """Whether a desired state that cannot be read is deleted. Otherwise the command raises `CorruptValue`."""

    async def perform(self, controller: "Controller") -> None:
        await controller.shutdown()
