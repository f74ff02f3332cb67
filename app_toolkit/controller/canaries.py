"""The canary releases: collects the requests that proxies report, and decides how each release goes on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from app_toolkit.config.models import ApplicationSpec
from app_toolkit.core import status
from app_toolkit.core.applications import replica_set_keys
from app_toolkit.core.canary import CanaryRelease, Decision, Requests, decide
from app_toolkit.core.identity import AnySetKey, ApplicationKey
from app_toolkit.core.replica_sets import ReplicaSet
from app_toolkit.core.reports import Compared
from app_toolkit.core.rollout import Rollout
from app_toolkit.core.status import CanaryProgress


@dataclass(slots=True)
class _Step:
    """The present step of one release."""

    depends_on: tuple[object, ...]
    """If this changes, the step begins again."""
    began: float
    ends: float
    """When it may end, if it has enough requests then."""
    stable: ApplicationSpec | None
    """The main revision at the last look."""
    templates: tuple[str, ...]
    """The hashes of its templates."""
    candidate: Requests = field(default_factory=Requests)
    baseline: Requests = field(default_factory=Requests)
    last: Decision = field(default_factory=lambda: Decision("hold", "it begins"))


class Canaries:
    """The statistics and the decisions of all canary releases. Nothing is stored here.

    A step begins again after a restart of the controller, after a pause, after an update of the main revision, and when
    the candidate becomes available. Each proxy reports counts. The first report of a proxy is where its counts begin.
    """

    def __init__(self) -> None:
        self._steps: dict[ApplicationKey, _Step] = {}
        self._now = float("-inf")
        """When `decide` was called last."""
        self._reported: dict[str, dict[ApplicationKey, Requests]] = {}
        """The last counts by live revision, by proxy."""
        self._refused: dict[ApplicationKey, tuple[CanaryRelease, str]] = {}
        """The releases that could not be promoted, with the error."""

    def hear(self, caller: str, compared: Compared, rollouts: Mapping[ApplicationKey, Rollout], now: float) -> bool:
        """Take the report of a proxy. Return whether it may change a decision."""
        if not compared:
            return False
        before = self._reported.get(caller, {})
        added = {key: counts.since(before[key]) for key, counts in compared.items() if key in before}
        self._reported[caller] = {key: counts.copy() for key, counts in compared.items()}
        for key, release, step in self._present(rollouts, now):
            for revision, counts in ((key.candidate(release.revision), step.candidate), (key, step.baseline)):
                if revision in added:
                    counts.add(added[revision])
        return bool(self._steps)

    def forget(self, caller: str) -> None:
        """Forget the counts of a proxy that has ended. What it has reported stays counted."""
        self._reported.pop(caller, None)

    def decide(
        self, rollouts: Mapping[ApplicationKey, Rollout], known: Mapping[AnySetKey, ReplicaSet], now: float
    ) -> Iterator[tuple[ApplicationKey, CanaryRelease, Decision, Requests]]:
        """Yield each application whose release goes on now, with the decision and the requests of the baseline."""
        self._now = now
        for key, release, step in self._present(rollouts, now):
            own = rollouts.get(key.candidate(release.revision))
            waits_for = None
            if own is None or own.stable is None:
                waits_for = f"revision {release.revision}, which is not available yet"
            elif not rollouts[key].is_settled:
                waits_for = "the main revision, which is updated"
            step.last = decide(
                release,
                step.candidate,
                step.baseline,
                release.every_s if now >= step.ends else now - step.began,
                failure=None if own is None else _failure(own.current, known, now),
                waits_for=waits_for,
            )
            refused = self._refused.get(key)
            if step.last.action == "finish" and refused is not None and refused[0] == release:
                step.last = Decision("hold", f"it cannot be promoted: {refused[1]}")
            if step.last.action != "hold":
                yield key, release, step.last, step.baseline.copy()

    def refuse(self, key: ApplicationKey, release: CanaryRelease, why: str) -> None:
        """Note that a release could not be promoted, so that this is not tried again and again."""
        self._refused[key] = release, why

    @property
    def due(self) -> float | None:
        """When the next step may end without another report; None: no step can."""
        return min((step.ends for step in self._steps.values() if step.ends > self._now), default=None)

    def status(self, rollouts: Mapping[ApplicationKey, Rollout], now: float) -> dict[ApplicationKey, CanaryProgress]:
        """Return how far each release is, by application."""
        return {
            key: CanaryProgress(now - step.began, step.candidate.copy(), step.baseline.copy(), step.last.why)
            for key, _, step in self._present(rollouts, now)
        }

    def _present(
        self, rollouts: Mapping[ApplicationKey, Rollout], now: float
    ) -> list[tuple[ApplicationKey, CanaryRelease, _Step]]:
        """Return the releases that go on, with their present steps. A step that has changed begins now."""
        found = []
        for key, each in rollouts.items():
            if (release := each.release) is not None:
                found.append((key, release, self._step(each, release, rollouts, now)))
        if len(found) < len(self._steps):
            there = {key for key, _, _ in found}
            self._steps = {key: step for key, step in self._steps.items() if key in there}
            self._refused = {key: refused for key, refused in self._refused.items() if key in there}
        if not found:
            self._reported.clear()
        return found

    def _step(
        self, main: Rollout, release: CanaryRelease, rollouts: Mapping[ApplicationKey, Rollout], now: float
    ) -> _Step:
        before = self._steps.get(main.key)
        if before is not None and before.stable is main.stable:
            templates = before.templates
        else:
            templates = () if main.stable is None else _templates(main.stable)
        own = rollouts.get(main.key.candidate(release.revision))
        depends_on = (
            release.revision,
            release.step,
            release.paused,
            own is not None and own.stable is not None,
            templates,
        )
        if before is not None and before.depends_on == depends_on:
            before.stable = main.stable
            return before
        step = self._steps[main.key] = _Step(depends_on, now, now + release.every_s, main.stable, templates)
        return step


def _templates(spec: ApplicationSpec) -> tuple[str, ...]:
    return tuple(spec.template_hash(each.config.name) for each in spec.deployments)


def _failure(spec: ApplicationSpec, known: Mapping[AnySetKey, ReplicaSet], now: float) -> str | None:
    """Return why a candidate has failed; None: it has not."""
    for key in replica_set_keys(spec):
        if (there := known.get(key)) is not None:
            found = status.replica_set_status(there.spec, there.record, now, there.quarantine)
            if found.status == status.FAILED:
                return f"{key}: {found.reason}"
    return None
