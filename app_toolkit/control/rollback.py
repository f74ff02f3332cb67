"""Returning to an earlier revision by hand. `revisions.py` shows to which ones a rollback can return."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Self

from app_toolkit.control.application import Application, PerformedRollback, Reverted, rollback_target
from app_toolkit.control.application_specs import Revision
from app_toolkit.control.change import Change, State
from app_toolkit.control.command import ApplicationName, Argument, Numbers, Operation
from app_toolkit.control.operations import spec_changed
from app_toolkit.errors import ConfigError


def revision_to_return_to(application: Application, number: int | None) -> Revision:
    """Return the revision to which a rollback returns.

    `number`: None: the last stable one other than the current one. Raises `ConfigError` if it is not kept.
    """
    name = application.name
    if number is None:
        last = rollback_target(application)
        if last is None:
            raise ConfigError(f"application {name!r} has no stable revision other than the current one")
        return last
    kept, stable = application.history, application.main.stable
    if stable is not None and stable.spec != application.main.spec:
        kept = (*kept, stable)
    revision = next((revision for revision in kept if revision.number == number), None)
    if revision is not None:
        return revision
    numbers = ", ".join(str(revision.number) for revision in kept)
    what = "is the current one" if number == application.main.number else "is not kept"
    can = f"a rollback can return to {numbers}" if kept else "there is no earlier one to return to"
    raise ConfigError(f"revision {number} of application {name!r} {what}; {can}")


def performed_rollback(application: Application, expected: int | None, to: int | None) -> Reverted | None:
    """Return the rollback that gave the application its present revision, if it is the same one; None: it is not.

    `expected`: the number that the application had before it. `to`: as in `PerformedRollback`.
    """
    last = application.rollback
    if last is None or last.result.revision != application.revision:
        return None
    return last.result if (expected, to) == (application.number_before, last.to) else None


@dataclass(frozen=True, slots=True)
class Rollback(Operation[Reverted]):
    """Return to the last stable revision of an application other than the current one, or to an earlier one.

    The last stable one differs from it in more than the numbers of replicas. Raises `ConfigError` if there is none, or
    it is not kept, and `RevisionConflict` if the revision number is not the expected one.
    """

    while_frozen = True
    application: ApplicationName
    expected: int | None = None
    """The revision number that the application must have before the command. None: the present one, which
    `Client.change` asks for. Without this check, a command that is sent twice would undo the rollback."""
    to: Annotated[
        int | None,
        Argument("The number of the earlier revision, as `history` shows it. [default: the last stable one]", "N"),
    ] = field(default=None, kw_only=True)
    """The number of the earlier revision. None: the last stable one."""

    def expecting(self, numbers: Numbers) -> Self:
        return replace(self, expected=numbers.revision_of(self.application)) if self.expected is None else self

    def apply(self, state: State) -> Change[Reverted]:
        before = state.application(self.application)
        if (done := performed_rollback(before, self.expected, self.to)) is not None:
            return Change(done)  # the client repeats a request that was performed before
        target = revision_to_return_to(before, self.to)
        change = spec_changed(state, before, before.main, target.spec, self.expected)
        reverted = Reverted(self.application, before.main.number, target.number, change.result)
        (after,) = change.put
        return replace(change.with_result(reverted), put=(after.but(rollback=PerformedRollback(self.to, reverted)),))

    def outcome(self, result: Reverted) -> str:
        return str(result)

    def started(self, result: Reverted) -> Mapping[str, int]:
        return {self.application: result.revision}
