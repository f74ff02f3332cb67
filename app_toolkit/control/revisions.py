"""What the history of an application shows. `rollback.py` decides to which revision a rollback returns."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from app_toolkit.contract.identity import FIRST
from app_toolkit.control.application import Application
from app_toolkit.control.application_specs import Revision
from app_toolkit.control.diff import difference


class RevisionState(StrEnum):
    """What became of a revision."""

    EARLIER = "earlier"
    """It has no replicas, and a rollback can return to it."""
    RUNS = "runs"
    """The main revision, which is available."""
    STARTS = "starts"
    """It is to be the main revision, and is not available yet."""
    FAILED = "failed"
    """It did not become available, and the main revision runs instead."""
    LIVE = "live"
    """It is live beside the main revision."""


@dataclass(frozen=True, slots=True)
class RevisionStatus:
    """One revision of an application."""

    number: int
    since: float
    """When it was applied or became the main revision, in seconds of the Unix time."""
    changes: str | None
    """How it differs from the revision above it, and a live revision from the main one, without secrets. None: the
    revision before it is not kept."""
    state: RevisionState


def revisions(application: Application) -> tuple[RevisionStatus, ...]:
    """Return the revisions of an application: the earlier ones, the newest last, the main one, and the live ones."""
    main, before = application.main, None
    statuses = []
    for revision, state in _main_revisions(application):
        is_known = before is not None or revision.number == FIRST
        changes = str(difference(before, revision.spec)) if is_known else None
        statuses.append(RevisionStatus(revision.number, application.since[revision.number], changes, state))
        before = revision.spec
    statuses += [
        RevisionStatus(
            candidate.number,
            application.since[candidate.number],
            str(difference(main.spec, candidate.spec)),
            RevisionState.LIVE,
        )
        for candidate in application.candidates
    ]
    return tuple(statuses)


def _main_revisions(application: Application) -> Iterator[tuple[Revision, RevisionState]]:
    """Yield the revisions that are, were or are to be the main one, and their states, in this order in time."""
    main = application.main
    yield from ((revision, RevisionState.EARLIER) for revision in application.history)
    if main.stable is not None:
        yield main.stable, RevisionState.RUNS
    if main.desired != main.stable:
        yield main.desired, RevisionState.STARTS if main.failure is None else RevisionState.FAILED
