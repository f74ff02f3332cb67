"""The changes that the controller makes by itself. Each function computes one from the present state."""

from collections.abc import Collection, Iterator, Mapping

from app_toolkit.contract.compared import Requests
from app_toolkit.contract.identity import AnySetKey, LiveRevisionKey
from app_toolkit.control import promotion, traffic
from app_toolkit.control.application import LiveRevision, after_step
from app_toolkit.control.canary_analysis import CanaryRelease, Decision
from app_toolkit.control.change import Change, ChangeEvent, State
from app_toolkit.control.promotion import Promote
from app_toolkit.control.replica_set import ReplicaSet


def advanced(state: State, key: LiveRevisionKey, replica_sets: Mapping[AnySetKey, ReplicaSet]) -> Change[None]:
    """Continue the update of a live revision by the state of its replica sets.

    A candidate that gets all requests is promoted when its update has ended, as by `promotion.completed`.
    """
    before = state.applications.get(key.application)
    after = None if before is None else after_step(before, key, replica_sets)
    if before is None or after is None or after is before:
        return Change(None)
    was, live = before.with_key(key), after.with_key(key)
    assert was is not None
    assert live is not None
    lifted = tuple(live.replica_set_keys()) if live.failure != was.failure else ()
    events = tuple(ChangeEvent(after.name, event, cause) for event, cause in _events(was, live))
    if live.is_settled and live.share:
        after, promoted = promotion.completed(state, after)
        events += promoted
    return Change(None, put=(after,), events=events, lifted=lifted)


def _events(before: LiveRevision, after: LiveRevision) -> Iterator[tuple[str, str | None]]:
    revision = f"revision {after.desired.number}"
    if after.failure != before.failure:
        yield "RolledBack", after.failure
    elif after.published != before.published:
        yield "RoutesPublished", revision
    if after.is_settled:
        yield "Available", revision


def release_continued(
    state: State, name: str, release: CanaryRelease, decision: Decision, baseline: Requests
) -> Change[object]:
    """Continue a canary release as decided. If it was paused or has ended meanwhile, nothing changes.

    `baseline`: the main revision's requests in the present step. Raises the `ConfigError` of `Promote` if the release
    finishes, and its candidate cannot be promoted.
    """
    before = state.application(name)
    if before.canary != release:
        return Change(None)
    if decision.action == "finish":
        return Promote(name, release.revision).apply(state)
    after = traffic.after_decision(before, release, decision, baseline)
    event = "CanaryReturned" if decision.action == "return" else "CanaryStep"
    return Change(None, put=(after,), events=(ChangeEvent(name, event, decision.why),))


def ended(state: State, names: Collection[str]) -> Change[None]:
    """Delete the applications of an expired lease.

    The previous controller may have deleted an application and died before it stored the leases.
    """
    return Change(None, deleted=tuple(name for name in names if name in state.applications))


def retired(state: State, key: LiveRevisionKey) -> Change[float | None]:
    """Delete a revision that was removed, once no request waits for it.

    Its requests may call its other deployments until its ingresses have drained, so the ingresses are deleted first.
    Then the result is the longest time in seconds until they have drained.
    """
    application = state.applications.get(key.application)
    removed = () if application is None else application.removed
    live = next((live for live in removed if live.key == key), None)
    if application is None or live is None:
        return Change(None)
    rest = traffic.without_ingresses(live)
    if rest is not None:
        return Change(traffic.longest_drain_s(live), put=(application.replaced(rest),))
    event = ChangeEvent(application.name, "RevisionDeleted", f"revision {live.number}")
    return Change(None, put=(traffic.without(application, key),), events=(event,))
