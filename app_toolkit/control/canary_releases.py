"""Collects the requests that proxies report for all canary releases.

`canary_analysis.py` decides how each release goes on.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from app_toolkit.contract.compared import Requests
from app_toolkit.contract.identity import AnySetKey, LiveRevisionKey
from app_toolkit.contract.loads import Compared
from app_toolkit.control import status
from app_toolkit.control.application import Application, LiveRevision
from app_toolkit.control.application_specs import Revision
from app_toolkit.control.canary_analysis import CanaryRelease, Decision, decide
from app_toolkit.control.replica_set import ReplicaSet
from app_toolkit.control.status import CanaryProgress


@dataclass(slots=True)
class _Step:
    """The present step of one release."""

    depends_on: tuple[object, ...]
    """If this changes, the step begins again."""
    began: float
    ends: float
    """When it may end, if it has enough requests then."""
    stable: Revision | None
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
        self._steps: dict[str, _Step] = {}
        self._now = float("-inf")
        """When `decide` was called last."""
        self._reported: dict[str, dict[LiveRevisionKey, Requests]] = {}
        """The last counts by live revision, by proxy."""
        self._refused: dict[str, tuple[CanaryRelease, str]] = {}
        """The releases that could not be promoted, with the error."""

    def add_requests(self, caller: str, compared: Compared, applications: Iterable[Application], now: float) -> bool:
        """Take the report of a proxy. Return whether it may change a decision."""
        if not compared:
            return False
        before = self._reported.get(caller, {})
        added = {key: counts.since(before[key]) for key, counts in compared.items() if key in before}
        self._reported[caller] = {key: counts.copy() for key, counts in compared.items()}
        for application, release, step in self._present(applications, now):
            candidate = application.candidate(release.revision)
            for live, counts in ((candidate, step.candidate), (application.main, step.baseline)):
                if live is not None and live.key in added:
                    counts.add(added[live.key])
        return bool(self._steps)

    def forget(self, caller: str) -> None:
        """Forget the counts of a proxy that has ended. What it has reported stays counted."""
        self._reported.pop(caller, None)

    def decide(
        self, applications: Iterable[Application], by_key: Mapping[AnySetKey, ReplicaSet], now: float
    ) -> Iterator[tuple[str, CanaryRelease, Decision, Requests]]:
        """Yield each application whose release goes on now, with the decision and the requests of the baseline."""
        self._now = now
        for application, release, step in self._present(applications, now):
            candidate = application.candidate(release.revision)
            waits_for = None
            if candidate is None or not candidate.is_ready:
                waits_for = f"revision {release.revision}, which is not available yet"
            elif not application.main.is_settled:
                waits_for = "the main revision, which is updated"
            step.last = decide(
                release,
                step.candidate,
                step.baseline,
                release.every_s if now >= step.ends else now - step.began,
                failure=None if candidate is None else _failure(candidate, by_key, now),
                waits_for=waits_for,
                paused_by=application.refusal,
            )
            refused = self._refused.get(application.name)
            if step.last.action == "finish" and refused is not None and refused[0] == release:
                step.last = Decision("hold", f"it cannot be promoted: {refused[1]}")
            if step.last.action != "hold":
                yield application.name, release, step.last, step.baseline.copy()

    def refuse(self, application: str, release: CanaryRelease, why: str) -> None:
        """Note that a release could not be promoted, so that this is not tried again and again."""
        self._refused[application] = release, why

    @property
    def due(self) -> float | None:
        """When the next step may end without another report; None: no step can."""
        return min((step.ends for step in self._steps.values() if step.ends > self._now), default=None)

    def status(self, applications: Iterable[Application], now: float) -> dict[str, CanaryProgress]:
        """Return how far each release is, by application."""
        return {
            application.name: CanaryProgress(
                now - step.began, step.candidate.copy(), step.baseline.copy(), step.last.why
            )
            for application, _, step in self._present(applications, now)
        }

    def _present(
        self, applications: Iterable[Application], now: float
    ) -> list[tuple[Application, CanaryRelease, _Step]]:
        """Return the releases that go on, with their present steps. A step that has changed begins now."""
        releases = []
        for application in applications:
            if (release := application.release) is not None:
                releases.append((application, release, self._step(application, release, now)))
        if len(releases) < len(self._steps):
            names = {application.name for application, _, _ in releases}
            self._steps = {name: step for name, step in self._steps.items() if name in names}
            self._refused = {name: refused for name, refused in self._refused.items() if name in names}
        if not releases:
            self._reported.clear()
        return releases

    def _step(self, application: Application, release: CanaryRelease, now: float) -> _Step:
        before, main = self._steps.get(application.name), application.main
        if before is not None and before.stable is main.stable:
            templates = before.templates
        else:
            templates = () if main.stable is None else _templates(main.stable)
        candidate = application.candidate(release.revision)
        depends_on = (
            release.revision,
            release.step,
            release.paused,
            candidate is not None and candidate.is_ready,
            templates,
        )
        if before is not None and before.depends_on == depends_on:
            before.stable = main.stable
            return before
        step = self._steps[application.name] = _Step(depends_on, now, now + release.every_s, main.stable, templates)
        return step


def _templates(revision: Revision) -> tuple[str, ...]:
    spec = revision.spec
    return tuple(spec.template_hash(deployment.config.name) for deployment in spec.deployments)


def _failure(candidate: LiveRevision, by_key: Mapping[AnySetKey, ReplicaSet], now: float) -> str | None:
    """Return why a candidate has failed; None: it has not."""
    for key in candidate.replica_set_keys():
        if (replica_set := by_key.get(key)) is not None:
            shown = status.replica_set_status(replica_set.spec, replica_set.record, now, replica_set.quarantine)
            if shown.status == status.FAILED:
                return f"{key.main}: {shown.reason}"
    return None
