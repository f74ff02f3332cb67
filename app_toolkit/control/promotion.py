"""Promotes a candidate, because a client asks for it or because it gets all requests, or aborts it.

A promotion that callers forbid is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Self, TypeVar

from app_toolkit.control import traffic
from app_toolkit.control.application import Application
from app_toolkit.control.change import Change, ChangeEvent, State
from app_toolkit.control.command import ApplicationName, Argument, Numbers, Operation
from app_toolkit.errors import ConfigError

R = TypeVar("R")


def events(state: State, after: Application) -> tuple[ChangeEvent, ...]:
    """Return the event of the promotion in a change; none if the main revision is the same.

    Raises `ConfigError` if another application calls a deployment that the new main revision lacks.

    Parameters:
        state: The state before the change.
        after: The application after the change.
    """
    before, main = state.application(after.name).main, after.main
    if main.created == before.created:
        return ()
    state.check_calls(main.spec)
    return (ChangeEvent(after.name, "Promoted", f"revision {main.number}"),)


def completed(state: State, application: Application) -> tuple[Application, tuple[ChangeEvent, ...]]:
    """Return the application in which a candidate that gets all requests is the main revision, and the events.

    If the application is frozen, or another one calls a deployment that the candidate lacks, it stays a candidate, and
    the event says so. Without such a candidate, nothing changes.

    Parameters:
        state: The state before the change.
        application: The application as the change leaves it otherwise.
    """
    after = traffic.completed(application)
    if after is application:
        return application, ()
    if application.refusal is not None:
        return application, (ChangeEvent(application.name, "PromotionRefused", application.refusal),)
    try:
        return after, events(state, after)
    except ConfigError as error:
        return application, (ChangeEvent(application.name, "PromotionRefused", str(error)),)


def traffic_changed(state: State, result: R, after: Application) -> Change[R]:
    """Return the change to other traffic. Raises `ConfigError` if it promotes a revision, and a caller forbids that."""
    event = ChangeEvent(after.name, "TrafficChanged", traffic.summary(after))
    return Change(result, (after,), events=(event, *events(state, after)))


@dataclass(frozen=True, slots=True)
class Promote(Operation[int]):
    """Make a live revision the main revision, which gets all requests. The result is its number.

    Its replicas stay, and nothing starts. All other live revisions are removed. Raises `ConfigError` if there is no
    such application or revision, if it is not available yet, or if it lacks a deployment that another application
    calls.
    """

    application: ApplicationName
    revision: Annotated[
        int | None, Argument("The live revision. [default: the one beside the main revision]", "REVISION")
    ] = None
    """None: the only one beside the main revision. `Client.change` names it. Without a number, a command that is sent
    twice would fail although it was performed."""

    def expecting(self, numbers: Numbers) -> Self:
        return replace(self, revision=numbers.candidate_of(self.application)) if self.revision is None else self

    def apply(self, state: State) -> Change[int]:
        before = state.application(self.application)
        after = traffic.promoted(before, self.revision)
        main = after.main
        if after is before:  # the client repeats a request that was performed before
            return Change(main.number)
        return Change(main.number, put=(after,), events=events(state, after))

    def outcome(self, result: int) -> str:
        return f"application {self.application} becomes revision {result}"

    def started(self, result: int) -> Mapping[str, int]:
        return {self.application: result}


@dataclass(frozen=True, slots=True)
class Abort(Operation[None]):
    """Send all requests to the main revision of an application, and remove its other live revisions.

    Raises `ConfigError` if there is no such application.
    """

    while_frozen = True
    application: ApplicationName

    def apply(self, state: State) -> Change[None]:
        after = traffic.aborted(state.application(self.application))
        return replace(traffic_changed(state, None, after), lifted=tuple(after.main.replica_set_keys()))
