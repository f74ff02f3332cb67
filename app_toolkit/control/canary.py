"""Beginning and pausing a canary release. `canary_analysis.py` has its plan, and decides how it goes on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from app_toolkit.control import traffic
from app_toolkit.control.application import Application
from app_toolkit.control.canary_analysis import EVERY, GUARDS, MIN_REQUESTS, STEPS, CanaryPlan, plan_release
from app_toolkit.control.change import Change, ChangeEvent, State
from app_toolkit.control.command import Numbers, Operation


@dataclass(frozen=True, slots=True)
class BeginRelease(Operation[None]):
    """Begin a canary release: shift the requests of an application to a live revision, step by step.

    When the last step has passed, the live revision is promoted. If a guard does not hold, or the revision fails, the
    main revision gets all requests, and the live one is removed. `status` shows how far it is. Does nothing if this
    release goes on.

    Raises `ConfigError` if there is no such application or revision, an argument is invalid, another revision gets
    requests, or another release goes on.
    """

    application: str
    revision: int | None = None
    """None: the only one beside the main revision. `Client.change` names it. Without a number, a command that is sent
    twice could begin the release of another one."""
    steps: Sequence[float] = STEPS
    """The shares of the requests that it gets, one after the other, in percent and in rising order."""
    every: str | int | float = EVERY
    """The least duration of a step, such as `"5m"`, or in seconds."""
    guards: Sequence[str] = GUARDS
    """Limits of the error rate and the latency, such as `"error_rate<1%"`, or `"p95<1.2x"` compared with the main
    revision."""
    min_requests: int = MIN_REQUESTS
    """The least number of requests of each revision in a step."""

    def __post_init__(self) -> None:
        self.plan  # noqa: B018 - raises its error

    @property
    def plan(self) -> CanaryPlan:
        """The steps and the guards. Raises `ConfigError` if one of them is invalid."""
        return plan_release(self.steps, self.every, self.guards, self.min_requests)

    def expecting(self, numbers: Numbers) -> Self:
        return replace(self, revision=numbers.candidate_of(self.application)) if self.revision is None else self

    def apply(self, state: State) -> Change[None]:
        before = state.application(self.application)
        steps = f"steps {', '.join(f'{step:g} %' for step in self.plan.steps)}"
        return _release_changed(before, traffic.with_release(before, self.revision, self.plan), "CanaryBegun", steps)


@dataclass(frozen=True, slots=True)
class PauseRelease(Operation[None]):
    """Pause or resume the canary release of an application.

    While it is paused, the weights stay, whatever the guards find. When it goes on, the present step begins again.
    Raises `ConfigError` if no release goes on.
    """

    application: str
    paused: bool = True
    """False: the release goes on."""

    def apply(self, state: State) -> Change[None]:
        before = state.application(self.application)
        event = "CanaryPaused" if self.paused else "CanaryResumed"
        return _release_changed(before, traffic.with_paused(before, paused=self.paused), event, "a client asked for it")


def _release_changed(before: Application, after: Application, event: str, cause: str) -> Change[None]:
    if after is before:
        return Change(None)
    return Change(None, (after,), events=(ChangeEvent(after.name, event, cause),))
