"""What clients send to the controller: commands, and their kinds.

`queries.py` has the commands that change no application. The others are in the files of their subjects.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from pydantic import ConfigDict

from app_toolkit.contract.identity import parts_of
from app_toolkit.control.application import Application
from app_toolkit.control.change import Change, State
from app_toolkit.errors import ApplicationFrozen, ConfigError

if TYPE_CHECKING:
    from app_toolkit.control.controller import Controller

R = TypeVar("R")


class Numbers(Protocol):
    """The present revision numbers of the applications of an instance."""

    def revision_of(self, application: str) -> int:
        """Return the number of the main revision. Raises `ConfigError` if there is no such application."""
        ...

    def next_revision_of(self, application: str) -> int | None:
        """Return the number that the next revision gets; None: there is no such application."""
        ...

    def candidate_of(self, application: str) -> int | None:
        """Return the number of the only live revision beside the main one; None: there is none, or several."""
        ...


class Removal(NamedTuple):
    """What a command removes."""

    application: str
    deployment: str | None
    """None: all of them."""
    revision: int | None
    """Another live revision than the main one; None: the main one, or the whole application."""


@dataclass(frozen=True, slots=True)
class Argument:
    """How `app-toolkit` takes a field of a command: as an argument, or as an option if the field is keyword-only."""

    help: str
    metavar: str | None = None
    """None: the name of the field."""


ApplicationName = Annotated[str, Argument("The name of the application.", "APP")]
OtherRevision = Annotated[int | None, Argument("Another live revision than the main one. [default: the main one]")]


class Command(ABC, Generic[R]):
    """What a client sends to the controller, with its arguments.

    The admin API has a route for each command (`operate/admin/api.py`), except for each `DriverCommand`. If the
    controller restarts, a command may be performed twice.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    waits: ClassVar[bool] = False
    """Whether `app-toolkit` waits for what the command starts. `--no-wait` and `--wait` override it."""

    @abstractmethod
    async def perform(self, controller: "Controller") -> R: ...

    def outcome(self, result: R) -> str:
        """Return what `app-toolkit` prints as soon as it has the result; empty: nothing."""
        return ""

    def expecting(self, numbers: Numbers) -> Self:
        """Return the command with the revision number that it expects, so that it has no effect if it is repeated.

        A client calls this before it sends the command. A command that may have its effect twice returns itself.
        """
        return self

    def started(self, result: R) -> Mapping[str, int]:
        """Return the numbers of the revisions that a client waits for after this result, by application."""
        return {}

    @property
    def removes(self) -> Removal | None:
        """What a client waits for until its replicas have ended; None: nothing."""
        return None

    def repeated(self) -> Self:
        """Return the command to send after this one was sent, and may have been performed, without an answer."""
        return self


class DriverCommand(Command[R]):
    """A command of a process whose handles call deployments, or whose lease holds applications."""


class Query(Command[R]):
    """A command that changes nothing. Each of its fields is a number, a text or None."""


class Operation(Command[R]):
    """A command that changes applications or the options of the proxies."""

    while_frozen: ClassVar[bool] = False
    """Whether it may change a frozen application."""

    def decide(self, state: State) -> Change[R]:
        """Return what changes, as `apply` does. Raises `ApplicationFrozen` if a freeze refuses the change."""
        change = self.apply(state)
        if not self.while_frozen:
            _check_not_frozen(state.applications, change)
        return change

    @abstractmethod
    def apply(self, state: State) -> Change[R]:
        """Return what changes. Depends only on the arguments and `state`, and raises the errors of the operation."""

    async def perform(self, controller: "Controller") -> R:
        return await controller.change(self)


def _check_not_frozen(applications: Mapping[str, Application], change: Change[Any]) -> None:
    """Raise `ApplicationFrozen` if a change puts or deletes an application that is frozen.

    `applications`: those before the change, by name.
    """
    for name in (*(application.name for application in change.put), *change.deleted):
        before = applications.get(name)
        if before is not None and before.refusal is not None:
            raise ApplicationFrozen(before.refusal)


def deployment_of(name: str) -> tuple[str, str]:
    """Return the parts of `APPLICATION/DEPLOYMENT`. Raises `ConfigError` if the name has another form."""
    application, deployment = parts_of(name)
    if not (application and deployment):
        raise ConfigError(f"{name!r} names no deployment: it should be APPLICATION/DEPLOYMENT")
    return application, deployment


def application_or_deployment(name: str) -> tuple[str, str | None]:
    """Return the parts of `APPLICATION` or `APPLICATION/DEPLOYMENT`. Raises `ConfigError` for another form."""
    return deployment_of(name) if "/" in name else (name, None)
