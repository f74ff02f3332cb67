"""Freezing an application. `Operation.decide` in `command.py` refuses what would change one that is frozen."""

from dataclasses import dataclass, field, replace
from typing import Annotated

from app_toolkit.control import promotion, traffic
from app_toolkit.control.application import Application
from app_toolkit.control.change import Change, ChangeEvent, State
from app_toolkit.control.command import ApplicationName, Argument, Operation
from app_toolkit.control.facts import Frozen
from app_toolkit.errors import ConfigError

LONGEST_REASON = 200
"""The maximum number of characters of a reason."""


def frozen(application: Application, reason: str, now: float) -> Application:
    """Return the application after it was frozen for this reason; the same object if it is already.

    Its canary release is paused, because its next step would change the traffic. An application that is frozen gets the
    new reason, and stays frozen since the same time. `now`: the Unix time in seconds.
    """
    before = application.facts.frozen
    after = Frozen(reason, now if before is None else before.since)
    if before == after:
        return application
    paused = application if application.release is None else traffic.with_paused(application, paused=True)
    return paused.but(facts=replace(paused.facts, frozen=after))


@dataclass(frozen=True, slots=True)
class Freeze(Operation[None]):
    """Refuse what would change an application until it is unfrozen, with this reason.

    Deployments, promotions, canary releases, changes of traffic and its deletion raise `ApplicationFrozen`. Scaling,
    a restart, a rollback and an abort still work, and what has begun goes on, except that a canary release is paused,
    and stays paused afterwards, and that no live revision is promoted. An application that is frozen gets the new
    reason.

    Raises `ConfigError` if there is no such application, or the reason has several lines or more than 200 characters.
    """

    while_frozen = True
    application: ApplicationName
    reason: Annotated[str, Argument("Why. Every command that is refused shows it.", "TEXT")] = field(kw_only=True)

    def __post_init__(self) -> None:
        reason = self.reason
        if not reason.strip() or len(reason) > LONGEST_REASON or not reason.isprintable():
            raise ConfigError(f"reason = {reason!r}: it should be one line of 1 to {LONGEST_REASON} characters")

    def apply(self, state: State) -> Change[None]:
        before = state.application(self.application)
        after = frozen(before, self.reason, state.now)
        if after is before:
            return Change(None)
        events = [ChangeEvent(after.name, "Frozen", self.reason)]
        if after.canary != before.canary:
            events.append(ChangeEvent(after.name, "CanaryPaused", "a freeze began"))
        return Change(None, (after,), events=tuple(events))


@dataclass(frozen=True, slots=True)
class Unfreeze(Operation[None]):
    """End the freeze of an application. Does nothing if it is not frozen.

    A live revision that gets all requests is promoted. A canary release that the freeze has paused stays paused.
    Raises `ConfigError` if there is no such application.
    """

    while_frozen = True
    application: ApplicationName

    def apply(self, state: State) -> Change[None]:
        before = state.application(self.application)
        noted = before.facts.frozen
        if noted is None:
            return Change(None)
        event = ChangeEvent(before.name, "Unfrozen", f"it was frozen: {noted.reason}")
        after, promoted = promotion.completed(state, before.but(facts=replace(before.facts, frozen=None)))
        return Change(None, (after,), events=(event, *promoted))
