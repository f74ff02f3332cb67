"""Restarting replicas: it marks their deployments, and the template hash contains the mark.

`backoff.py` decides when a replica that failed starts again.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Self

from app_toolkit.config.models import ApplicationSpec
from app_toolkit.control.application import Application, LiveRevision
from app_toolkit.control.application_specs import Revision
from app_toolkit.control.change import Change, ChangeEvent, State
from app_toolkit.control.command import Argument, Numbers, Operation, application_or_deployment
from app_toolkit.errors import RevisionConflict


def deployments_of(application: Application, deployment: str | None) -> tuple[str, ...]:
    """Return the names of the deployments to restart, in all live revisions together.

    `deployment`: only this one; None: all. Raises `ConfigError` if no live revision has it.
    """
    names = dict.fromkeys(deployment.config.name for live in application.live for deployment in live.spec.deployments)
    if deployment is None:
        return tuple(names)
    if deployment not in names:
        application.main.spec.deployment(deployment)  # raises
    return (deployment,)


def is_restarted(application: Application, deployments: Collection[str]) -> bool:
    """Return whether the last revision has restarted these deployments."""
    return all(application.main.spec.restarts.get(name) == application.revision for name in deployments)


def restarted(application: Application, deployments: Collection[str]) -> Application:
    """Return the application after a restart of these deployments in each live revision.

    The main revision gets a number, which is the mark, and the others keep theirs. Earlier revisions get the mark, too:
    a revision that differs only in its restarts is none that a rollback could return to.
    """
    number = application.next_number
    marks = dict.fromkeys(deployments, number)
    earlier = (revision._replace(spec=_marked(revision.spec, marks)) for revision in application.history)
    return application.but(
        main=_restarted(application.main, number, marks),
        candidates=tuple(_restarted(candidate, candidate.number, marks) for candidate in application.candidates),
        history=tuple(earlier),
        last_number=number,
        number_before=application.revision,
    )


def _restarted(live: LiveRevision, number: int, marks: Mapping[str, int]) -> LiveRevision:
    """Return a live revision whose replicas are replaced as in an update.

    If it was stable, it stays stable. Replicas of its spec could start no better after a rollback.
    """
    desired, stable = Revision(number, _marked(live.spec, marks)), live.stable
    if stable is not None:
        is_same = stable.spec == live.spec
        stable = desired if is_same else stable._replace(spec=_marked(stable.spec, marks))
    return live.but(desired=desired, stable=stable, outgoing=live.current, failure=None)


def _marked(spec: ApplicationSpec, marks: Mapping[str, int]) -> ApplicationSpec:
    return spec.model_copy(update={"restarts": {**spec.restarts, **marks}})


def kept(spec: ApplicationSpec, application: Application | None) -> ApplicationSpec:
    """Return a spec with the marks of the application that it updates, so that it replaces no replica because of them.

    `application`: None: there is none of this name.
    """
    marks = {} if application is None else application.main.spec.restarts
    return spec if spec.restarts == marks else spec.model_copy(update={"restarts": marks})


@dataclass(frozen=True, slots=True)
class Restart(Operation[int]):
    """Replace all replicas of an application, or of one deployment of it, by new ones of the same revision.

    They are replaced as in an update, so no request is lost. Those of other live revisions are replaced at the same
    time. If the new ones cannot start, those that are left go on serving, and nothing is rolled back. The result is the
    new number of the main revision. Raises `ConfigError` if there is no such application or deployment, and
    `RevisionConflict` if the revision number is not the expected one.
    """

    while_frozen = True
    waits = True
    name: Annotated[str, Argument("The name of an application, or of one deployment of it.", "APP[/DEPLOYMENT]")]
    """`APPLICATION` or `APPLICATION/DEPLOYMENT`."""
    expected: int | None = None
    """The revision number that the application must have before the command. None: the present one, which
    `Client.change` asks for. Without this check, a command that is sent twice would restart the replicas twice."""

    def __post_init__(self) -> None:
        self.parts  # noqa: B018 - raises its error

    def expecting(self, numbers: Numbers) -> Self:
        return replace(self, expected=numbers.revision_of(self.parts[0])) if self.expected is None else self

    @property
    def parts(self) -> tuple[str, str | None]:
        """The application, and the deployment; None: all of them. Raises `ConfigError` for another form."""
        return application_or_deployment(self.name)

    def apply(self, state: State) -> Change[int]:
        name, deployment = self.parts
        before = state.application(name)
        deployments = deployments_of(before, deployment)
        if self.expected not in (None, before.revision):
            # The client repeats a request that was performed before: the controller died before it could answer.
            if self.expected == before.number_before and is_restarted(before, deployments):
                return Change(before.revision)
            raise RevisionConflict(
                f"application {name!r} has revision {before.revision}, and revision {self.expected} was expected"
            )
        after = restarted(before, deployments)
        keys = (key for live in after.live for key in live.replica_set_keys())
        return Change(
            after.revision,
            put=(after,),
            events=(ChangeEvent(name, "Restarted", f"revision {after.revision}: {', '.join(deployments)}"),),
            lifted=tuple(key for key in keys if key.deployment in deployments),
        )

    def started(self, result: int) -> Mapping[str, int]:
        return {self.parts[0]: result}
