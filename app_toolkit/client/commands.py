"""The operations of an instance. Each is defined once: its arguments, the type of its result, and what performs it.

A client sends a command to the controller's actor, and that calls `perform` beside the controller. To add an operation,
add a class here, and present it: as a command of the command line, as a function of the Python API.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.core.rollout import Reverted
from app_toolkit.core.status import InstanceStatus
from app_toolkit.errors import ConfigError
from app_toolkit.types import Kind

if TYPE_CHECKING:
    from app_toolkit.controller.controller import Controller

R = TypeVar("R")


class Command(ABC, Generic[R]):
    """One operation with its arguments. A controller that comes back may be asked twice."""

    @abstractmethod
    async def perform(self, controller: "Controller") -> R: ...


@dataclass(frozen=True, slots=True)
class Deploy(Command[int]):
    """Make the cluster serve an application. Gives its revision number as soon as that is stored.

    Raises `ConfigError` if the application cannot be served beside the others, and `RevisionConflict` if its revision
    number is not the expected one.
    """

    spec: ApplicationSpec = field(repr=False)  # it has secrets
    http: HTTPOptions | None = None
    """How the proxies listen; None: as before."""
    code: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """What the replicas unpack, by its hashes."""
    owner: str | None = None
    """The lease that holds the application; None: it stays until it is deleted."""
    expected: int | None = None
    """The revision number that it must have until then; None: any."""

    async def perform(self, controller: "Controller") -> int:
        return await controller.apply(self.spec, self.http, self.owner, self.code, self.expected)


@dataclass(frozen=True, slots=True)
class Rollback(Command[Reverted]):
    """Go back to the last good version of an application. Raises `ConfigError` if there is none."""

    application: str
    expected: int
    """The revision number that it must have until then: a rollback that is asked twice would lead forward again."""

    async def perform(self, controller: "Controller") -> Reverted:
        return await controller.rollback(self.application, self.expected)


@dataclass(frozen=True, slots=True)
class Scale(Command[int]):
    """Run so many replicas of a deployment. Gives the application's revision number as soon as that is stored.

    Raises `ConfigError` if there is no such deployment, or it cannot have so many.
    """

    application: str
    deployment: str
    num_replicas: int

    @classmethod
    def named(cls, deployment: str, num_replicas: int) -> Self:
        """The command for `APPLICATION/DEPLOYMENT`. Raises `ConfigError` if the name has another form."""
        return cls(*_names(deployment), num_replicas)

    async def perform(self, controller: "Controller") -> int:
        return await controller.scale(self.application, self.deployment, self.num_replicas)


@dataclass(frozen=True, slots=True)
class Delete(Command[None]):
    """Stop serving an application, or one deployment of it. Raises `ConfigError` if there is none, or it is in use."""

    application: str
    deployment: str | None = None

    @classmethod
    def named(cls, name: str) -> Self:
        """The command for `APPLICATION` or `APPLICATION/DEPLOYMENT`. Raises `ConfigError` if the name is neither."""
        return cls(*_names(name)) if "/" in name else cls(name)

    async def perform(self, controller: "Controller") -> None:
        await controller.delete(self.application, self.deployment)


@dataclass(frozen=True, slots=True)
class GetStatus(Command[InstanceStatus]):
    """The status of the instance, as soon as its `change` is above `after`; after `timeout_s` seconds in any case."""

    after: int = -1
    timeout_s: float = 0.0

    async def perform(self, controller: "Controller") -> InstanceStatus:
        return (await controller.status_after(self.after, self.timeout_s))[1]


@dataclass(frozen=True, slots=True)
class GetApplications(Command[tuple[Mapping[str, ApplicationSpec], HTTPOptions]]):
    """The applications as deployed last, by name, with the values of all references; and how the proxies listen."""

    async def perform(self, controller: "Controller") -> tuple[Mapping[str, ApplicationSpec], HTTPOptions]:
        return controller.wanted()


@dataclass(frozen=True, slots=True)
class GetApplication(Command[tuple[ApplicationSpec, int]]):
    """The version of an application that is to run, and its revision number. Raises `ConfigError` if there is none."""

    name: str

    async def perform(self, controller: "Controller") -> tuple[ApplicationSpec, int]:
        return controller.application(self.name)


@dataclass(frozen=True, slots=True)
class GetMethods(Command[Mapping[str, Kind]]):
    """The methods of a deployment that callers may call. Raises `ConfigError` if there is no such deployment."""

    application: str
    deployment: str

    async def perform(self, controller: "Controller") -> Mapping[str, Kind]:
        return controller.methods(self.application, self.deployment)


@dataclass(frozen=True, slots=True)
class Hold(Command[None]):
    """Take or renew a lease. If it is not renewed for 30 s, the instance deletes the applications that it holds."""

    owner: str

    async def perform(self, controller: "Controller") -> None:
        controller.hold(self.owner)


@dataclass(frozen=True, slots=True)
class Leave(Command[None]):
    """End a lease, and wait until the applications that it holds are gone."""

    owner: str

    async def perform(self, controller: "Controller") -> None:
        await controller.leave(self.owner)


@dataclass(frozen=True, slots=True)
class Forget(Command[None]):
    """A process that called deployments has gone."""

    caller: str

    async def perform(self, controller: "Controller") -> None:
        controller.forget(self.caller)


@dataclass(frozen=True, slots=True)
class Shutdown(Command[None]):
    """Drain everything, and wait for it; then the controller ends."""

    async def perform(self, controller: "Controller") -> None:
        await controller.shutdown()


def _names(deployment: str) -> tuple[str, str]:
    application, _, name = deployment.partition("/")
    if not application or not name:
        raise ConfigError(f"{deployment!r} names no deployment: it should be APPLICATION/DEPLOYMENT")
    return application, name
