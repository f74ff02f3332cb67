"""The status of an instance, derived from the desired state and the known state. It is not stored."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app_toolkit.config.fields import nearest
from app_toolkit.contract.compared import Requests
from app_toolkit.contract.identity import (
    FIRST,
    AnySetKey,
    LiveRevisionKey,
    ProxySetKey,
    ReplicaSetKey,
    are_proxies,
    live_revision_of,
    parts_of,
)
from app_toolkit.contract.mirror_counts import MirrorCounts
from app_toolkit.control import backoff
from app_toolkit.control.application import Application, LiveRevision, failure_of, rest_of, rollback_target
from app_toolkit.control.facts import Facts
from app_toolkit.control.reconcile import ReplicaSetRecord, ReplicaSetSpec
from app_toolkit.control.replica_set import ReplicaSet
from app_toolkit.control.replica_state import Phase, ReplicaRecord
from app_toolkit.errors import ConfigError
from app_toolkit.types import NodeId

HEALTHY = "healthy"
UPDATING = "updating"
STARTING = "starting"
WAITING = "waiting_for_resources"
FAILED = "failed"
STOPPING = "stopping"
UNHEALTHY = "unhealthy"
"""Of a replica set: fewer replicas than desired answer their health checks well, because some that run do not."""
ROLLED_BACK = "rolled_back"
"""Of an application: the revision that was applied last has failed, and the stable revision before it runs instead."""

UNANSWERED_S = 2.0
"""Seconds after which a health check without an answer is shown. Most answers take milliseconds."""

WORST_FIRST = (FAILED, ROLLED_BACK, UNHEALTHY, WAITING, UPDATING, STARTING, STOPPING, HEALTHY)


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    id: str
    phase: str
    age_s: float
    """Seconds since the phase began. A running replica: since its process began to serve, whichever controller runs."""
    template_hash: str
    address: str | None
    failed_probes: int
    asks: str | None
    """The resources that it asks for, if there is no room for it; None: there is."""
    free: str | None
    """The resources that are free, if there is no room for the replica."""
    node: str | None = None
    """The node of the cluster; None until the replica has started."""
    remote_address: str | None = None
    """The address for callers on other nodes; None: they cannot reach the replica."""
    clients: str | None = None
    """The address at which the replica accepts clients; None: it accepts none."""
    unhealthy: str | None = None
    """Why the replica may not serve, as a phrase without a subject; None: it answered its last health check well."""
    recycled: str | None = None
    """Why another replica takes its place although it works, as a sentence; None: none does."""


@dataclass(frozen=True, slots=True)
class ScalingStatus:
    """The values from which the target of an autoscaled deployment is computed."""

    min_replicas: int
    max_replicas: int
    load: float
    """The load that its callers reported, in requests: waiting and ongoing requests, open WebSockets and streams."""
    average: float
    """The average load in the look-back period."""
    needed: int
    """The number of replicas that are needed, regardless of the delays."""
    why: str | None
    """The reason for the last change of the target; None: it has not changed."""


@dataclass(frozen=True, slots=True)
class ReplicaSetStatus:
    name: str
    """`APPLICATION/DEPLOYMENT`, which the replica sets of all live revisions have, or `proxy@NODE`."""
    status: str
    target: int
    template_hash: str
    counts: dict[str, int]
    """The number of replicas by phase, without phases that have none."""
    replicas: tuple[ReplicaStatus, ...]
    restarts: int
    """The number of replicas that ended unexpectedly since this controller started."""
    last_error: str | None
    scaling: ScalingStatus | None = None
    """None: the deployment is not autoscaled."""
    outdated: int = 0
    """The number of replicas of earlier revisions that run."""
    faults: str | None = None
    """The faults that its requests get on purpose, as a sentence; None: they get none."""
    created: int = FIRST
    """The number of the revision that created it."""

    @property
    def key(self) -> ReplicaSetKey:
        """The key of the replica set of a deployment."""
        return ReplicaSetKey.parse(self.name)._replace(revision=self.created)

    @property
    def running(self) -> int:
        """The number of replicas of its present revision that run."""
        return self.counts.get(Phase.RUNNING.value, 0) - self.outdated

    @property
    def is_up(self) -> bool:
        """Whether its target is reached, and no replica of another revision may still serve."""
        return self.running >= self.target and not self.outdated and self.status != UPDATING

    @property
    def unplaced(self) -> ReplicaStatus | None:
        """A replica for which there is no room; None: there is none."""
        return next((replica for replica in self.replicas if replica.asks), None)

    @property
    def error(self) -> str:
        """Why it is not up: a sentence, or a traceback whose last line is the reason; empty: there is no error."""
        if self.status == UNHEALTHY:
            ill = [replica for replica in self.replicas if replica.unhealthy]
            more = f", and {len(ill) - 1} more" if len(ill) > 1 else ""
            return f"{ill[0].id} {ill[0].unhealthy}{more}"
        if self.status != WAITING:
            return self.last_error or ""
        lacking = self.unplaced
        return f"one replica asks for {lacking.asks}; the instance has {lacking.free} free" if lacking else ""

    @property
    def reason(self) -> str:
        """The last line of the error. If there is none or the status is healthy: its faults; empty: it has none."""
        lines = self.error.strip().splitlines()
        return lines[-1] if lines and self.status != HEALTHY else self.faults or ""


@dataclass(frozen=True, slots=True)
class Load:
    """The numbers of requests and calls for one deployment at one moment, by place."""

    proxies: int
    """Requests that wait for a permit in the proxies."""
    handles: int
    """Calls that wait for a permit in the processes whose handles call the deployment."""
    ongoing: int
    """Requests and calls that its replicas have admitted."""
    buffered: int
    """The part of `ongoing` that waits for a batch to close."""
    streams: int = 0
    """Open streams at its replicas, which hold no slots."""
    replicas: Mapping[str, int] = field(default_factory=dict, compare=False)
    """The ongoing requests and calls by replica."""
    reached: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The limits that its replicas and the wait queues of its callers have reached, by process."""
    mirrored: MirrorCounts = field(default=MirrorCounts(), compare=False)
    """What became of the mirrored requests for it, since the proxies began."""
    mirrored_calls: MirrorCounts = field(default=MirrorCounts(), compare=False)
    """What became of the mirrored calls for it, since the replicas that make them began."""


def mirrored_to(live: LiveRevisionKey, load: Mapping[str, Load]) -> MirrorCounts:
    """Return what became of the mirrored requests for all deployments of a live revision."""
    return sum((numbers.mirrored for name, numbers in load.items() if live_revision_of(name) == live), MirrorCounts())


@dataclass(frozen=True, slots=True)
class ApplicationStatus:
    name: str
    status: str
    route_prefix: str | None
    deployments: tuple[ReplicaSetStatus, ...]
    revision: int = 1
    """The number of the revision that was applied last."""
    last_error: str | None = None
    """Why the revision that was applied last has failed."""
    serving_revision: int = 0
    """The number of the revision that should run, which is lower than `revision` after an automatic rollback; 0: not
    known."""
    traffic: tuple["TrafficStatus", ...] = ()
    """Its live revisions, the main one first. Empty: there is only that one."""
    next_revision: int = 2
    """The number that its next revision will get."""
    canary: "CanaryStatus | None" = None
    """Its canary release, or the last one until another revision follows; None: there is none."""
    splits: tuple["SplitStatus", ...] = ()
    is_available: bool = True
    """Whether enough replicas of the revision that should run are ready, and no requests go to replicas of another
    one."""
    created: int = FIRST
    """The number of the revision that created its replica sets."""
    facts: Facts = field(default_factory=Facts)
    """What operations have noted about it, such as a freeze."""
    rollback_to: int | None = None
    """The number of the earlier revision to which a rollback returns that names none; None: there is none."""

    @property
    def key(self) -> LiveRevisionKey:
        """The key of the main revision."""
        return LiveRevisionKey(self.name, self.created)

    def live(self, revision: int) -> "ApplicationStatus | None":
        """Return the status of the application as if this live revision were the main one; None: it is not live."""
        if revision in (self.revision, self.serving_revision):
            return self
        candidate = next((live for live in self.traffic if live.revision == revision and not live.is_removed), None)
        if candidate is None:
            return None
        return replace(
            self,
            status=candidate.status,
            deployments=candidate.deployments,
            revision=revision,
            last_error=candidate.last_error,
            serving_revision=revision,
            traffic=(),
            canary=None,
            splits=candidate.splits,
            is_available=candidate.is_available,
            created=candidate.created,
        )

    def split(self, name: str) -> "SplitStatus":
        """Return the status of a split. Raises `ConfigError` if there is none of this name."""
        for split in self.splits:
            if split.name == name:
                return split
        names = ", ".join(split.name for split in self.splits) or "none"
        raise ConfigError(f"application {self.name!r} has no split {name!r}; it has {names}")


@dataclass(frozen=True, slots=True)
class TrafficStatus:
    """The traffic of one live revision of an application."""

    revision: int
    share: float
    """The share of the requests that it gets now, between 0 and 1."""
    planned: float
    """The share that it gets once it is ready."""
    tag: str | None = None
    is_ready: bool = True
    """Whether the revision was available. Until then, the main revision gets its requests."""
    is_removed: bool = False
    """Whether it gets no more requests, and is deleted when none waits for it."""
    mirror: float = 0.0
    """The share of the requests of the other live revisions that it gets copies of, once it is ready."""
    status: str = HEALTHY
    deployments: tuple[ReplicaSetStatus, ...] = ()
    """The replica sets of this revision. Empty for the main revision, whose replica sets the application has."""
    last_error: str | None = None
    """Why the last change of its deployments has failed."""
    splits: tuple["SplitStatus", ...] = ()
    is_available: bool = True
    """Whether enough replicas of this revision are ready, and no requests go to replicas that an update replaces."""
    created: int = FIRST
    """The number of the revision that created its replica sets."""

    @property
    def state(self) -> str:
        """Whether it gets its share, as a phrase without a subject, and why it cannot start or what it waits for."""
        if self.is_removed:
            return "being removed"
        if self.is_ready:
            return "ready"
        for status, phrase in ((FAILED, "failed"), (WAITING, "waits for resources")):
            for replica_set in self.deployments:
                if replica_set.status == status:
                    return f"{phrase}: {replica_set.name}: {replica_set.reason}"
        return f"starts, then {100 * self.planned:.4g} %"


@dataclass(frozen=True, slots=True)
class ComparedStatus:
    """The requests of one live revision in the present step of a canary release."""

    requests: int
    errors: int
    p50_s: float
    p95_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class CanaryStatus:
    """A canary release of an application."""

    revision: int
    steps: tuple[float, ...]
    """The shares in percent."""
    step: int
    """The number of the present step, or of the last one; the first one is 1."""
    every_s: float
    guards: tuple[str, ...]
    paused: bool
    outcome: str | None
    """`promoted`, `returned` or `aborted`; None: it goes on."""
    why: str
    """What the step waits for, or why the release has ended."""
    elapsed_s: float = 0.0
    """Seconds since the step began, or began again."""
    candidate: ComparedStatus | None = None
    """None: the release has ended."""
    baseline: ComparedStatus | None = None


@dataclass(frozen=True, slots=True)
class CanaryProgress:
    """What the controller knows about the present step of a canary release."""

    elapsed_s: float
    candidate: Requests
    baseline: Requests
    why: str


@dataclass(frozen=True, slots=True)
class SplitStatus:
    """A split of an application."""

    name: str
    shares: Mapping[str, float]
    """The share of the calls that each member gets, by its name."""
    mirrors: Mapping[str, float] = field(default_factory=dict)
    """The share of the calls of other members that a member gets copies of, by its name."""


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """The status of an instance. `dataclasses.asdict` converts it to plain data that JSON can represent."""

    epoch: int
    change: int
    """A number that increases whenever the status may have changed."""
    status: str
    applications: tuple[ApplicationStatus, ...]
    proxies: tuple[ReplicaSetStatus, ...]
    leaving: tuple[ReplicaSetStatus, ...]
    """Replica sets that are not in the current revision of any application."""
    stopping: bool = False
    """Whether the instance is being shut down."""
    admin_url: str | None = None
    """The URL of the admin server, `http://HOST:PORT`; None while it does not run."""
    admin_failure: str | None = None
    """Why the admin server could not start; None: it runs, or is not to run. It does not count for `status`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the instance by name: the options of its start, of its proxies and of its admin server."""

    @property
    def deployments(self) -> list[ReplicaSetStatus]:
        """The replica sets of all live revisions of all applications."""
        return [
            replica_set
            for application in self.applications
            for deployments in (application.deployments, *(live.deployments for live in application.traffic))
            for replica_set in deployments
        ]

    @property
    def edges(self) -> list[ReplicaStatus]:
        """The replicas that accept clients."""
        return [
            replica
            for replica_set in (*self.deployments, *self.leaving)
            for replica in replica_set.replicas
            if replica.clients is not None
        ]

    @property
    def url(self) -> str | None:
        """The URL for clients, `http://HOST:PORT` or `https://HOST:PORT`; None while no process accepts them."""
        addresses = [
            proxy.address for replica_set in self.proxies for proxy in replica_set.replicas if proxy.address is not None
        ] or [replica.clients for replica in self.edges if replica.clients is not None]
        if not addresses:
            return None
        kind, _, place = addresses[0].partition(":")
        return f"{'https' if kind == 'tls' else 'http'}://{place}"

    def application(self, name: str) -> ApplicationStatus | None:
        """Return the status of an application; None: there is no application of this name."""
        return next((application for application in self.applications if application.name == name), None)

    def check_name(self, name: str) -> None:
        """Raise `ConfigError` if no application, deployment or other replica set has this name."""
        application, deployment = parts_of(name)
        main = self.application(application)
        deployments = [replica_set for replica_set in self.deployments if replica_set.key.application == application]
        replica_sets = (*deployments, *self.proxies, *self.leaving)
        if name in {*(shown.name for shown in self.applications), *(shown.name for shown in replica_sets)}:
            return
        if main is None:
            meant = nearest(application, [other.name for other in self.applications])
            raise ConfigError(f"there is no application {application!r}{meant}")
        names = ", ".join(sorted({replica_set.key.deployment for replica_set in deployments})) or "none"
        raise ConfigError(f"application {application!r} has no deployment {deployment!r}; it has {names}")

    def leaving_of(self, application: str, revision: int | None = None) -> list[ReplicaSetStatus]:
        """Return the replica sets of a live revision that it does not have any more.

        `revision`: a live revision, or one that was removed. None: the main one; if there is no such application, all.
        """
        main = self.application(application)
        leaving = [replica_set for replica_set in self.leaving if replica_set.key.application == application]
        live = None if main is None or revision is None else main.live(revision)
        if live is not None:
            return [replica_set for replica_set in leaving if replica_set.created == live.created]
        if revision is not None:  # a candidate was created with its number
            return [replica_set for replica_set in leaving if replica_set.created == revision]
        if main is None:
            return leaving
        return [replica_set for replica_set in leaving if replica_set.created == main.created]


NO_SCALING: Mapping[AnySetKey, ScalingStatus] = {}
NO_PROGRESS: Mapping[str, CanaryProgress] = {}
NO_OPTIONS: Mapping[str, Any] = {}


def instance_status(
    applications: Collection[Application],
    replica_sets: Mapping[AnySetKey, ReplicaSet],
    now: float,
    *,
    epoch: int,
    change: int,
    home: NodeId,
    stopping: bool,
    scaling: Mapping[AnySetKey, ScalingStatus] = NO_SCALING,
    canaries: Mapping[str, CanaryProgress] = NO_PROGRESS,
    admin_url: str | None = None,
    admin_failure: str | None = None,
    options: Mapping[str, Any] = NO_OPTIONS,
) -> InstanceStatus:
    """Return the status with the applications in the order of their names, and the proxies of `home` first.

    `stopping`: whether a shutdown is in progress.
    """
    by_key = {
        key: replica_set_status(replica_set.spec, replica_set.record, now, replica_set.quarantine, scaling.get(key))
        for key, replica_set in replica_sets.items()
    }
    of_applications = [
        _application_status(application, replica_sets, by_key, canaries.get(application.name))
        for application in sorted(applications, key=lambda application: application.name)
    ]
    first = ProxySetKey(home)
    proxies = tuple(
        by_key[key] for key in sorted(filter(are_proxies, by_key), key=lambda key: (key != first, key.name))
    )
    shown = {key for application in applications for live in application.live for key in live.replica_set_keys()}
    leaving = tuple(by_key[key] for key in replica_sets if isinstance(key, ReplicaSetKey) and key not in shown)
    live = [traffic for application in of_applications for traffic in application.traffic]
    statuses = [shown.status for several in (of_applications, live, proxies, leaving) for shown in several]
    return InstanceStatus(
        epoch=epoch,
        change=change,
        status=STOPPING if stopping else worst(statuses),
        applications=tuple(of_applications),
        proxies=proxies,
        leaving=leaving,
        stopping=stopping,
        admin_url=admin_url,
        admin_failure=admin_failure,
        options=options,
    )


def _application_status(
    application: Application,
    replica_sets: Mapping[AnySetKey, ReplicaSet],
    by_key: Mapping[AnySetKey, ReplicaSetStatus],
    progress: CanaryProgress | None,
) -> ApplicationStatus:
    main = application.main
    status, deployments = _live_status(main, replica_sets, by_key)
    target = rollback_target(application)
    return ApplicationStatus(
        name=application.name,
        status=status,
        route_prefix=main.spec.route_prefix,
        deployments=deployments,
        revision=application.revision,
        last_error=main.failure,
        serving_revision=main.number,
        traffic=tuple(
            traffic
            if live is None or live is main
            else _with_deployments(traffic, live, *_live_status(live, replica_sets, by_key))
            for traffic, live in _traffic(application)
        ),
        next_revision=application.next_number,
        canary=_canary(application, progress),
        splits=_splits(main),
        is_available=main.is_settled,
        created=main.created,
        facts=application.facts,
        rollback_to=None if target is None else target.number,
    )


def _live_status(
    live: LiveRevision, replica_sets: Mapping[AnySetKey, ReplicaSet], by_key: Mapping[AnySetKey, ReplicaSetStatus]
) -> tuple[str, tuple[ReplicaSetStatus, ...]]:
    """Return the status of a live revision, and those of its deployments."""
    deployments = tuple(by_key[key] for key in live.replica_set_keys() if key in by_key)
    if failure_of(live, replica_sets) is not None:
        # The rollback begins as soon as it is stored. Until then the failure is not final.
        deployments = tuple(
            replace(replica_set, status=UPDATING) if replica_set.status == FAILED else replica_set
            for replica_set in deployments
        )
    return worst((_update_status(live), *(replica_set.status for replica_set in deployments))), deployments


def _with_deployments(
    traffic: TrafficStatus, live: LiveRevision, status: str, deployments: tuple[ReplicaSetStatus, ...]
) -> TrafficStatus:
    return replace(
        traffic,
        status=status,
        deployments=deployments,
        last_error=live.failure,
        splits=_splits(live),
        is_available=live.is_settled,
        created=live.created,
    )


def _splits(live: LiveRevision) -> tuple[SplitStatus, ...]:
    return tuple(SplitStatus(split.name, split.shares, split.mirrors) for split in live.spec.splits)


def traffic_status(application: Application) -> list[TrafficStatus]:
    """Return the traffic of each live revision, the main one first; empty: there is only that one."""
    return [traffic for traffic, _ in _traffic(application)]


def _traffic(application: Application) -> list[tuple[TrafficStatus, LiveRevision | None]]:
    """Return the traffic of each live revision, and None for those that were removed."""
    candidates, removed = application.candidates, application.removed
    if not candidates and not removed:
        return []
    others = [
        TrafficStatus(live.number, live.share * live.is_ready, live.share, live.tag, live.is_ready, mirror=live.mirror)
        for live in candidates
    ]
    leaving = [TrafficStatus(live.number, 0.0, 0.0, live.tag, live.is_ready, is_removed=True) for live in removed]
    rest = rest_of(status.share for status in others)
    main = TrafficStatus(application.main.number, rest, application.share)
    return [(main, application.main), *zip(others, candidates, strict=True), *((traffic, None) for traffic in leaving)]


def _canary(application: Application, progress: CanaryProgress | None) -> CanaryStatus | None:
    release = application.canary
    if release is None:
        return None
    status = CanaryStatus(
        release.revision,
        release.steps,
        release.step + 1,
        release.every_s,
        tuple(map(str, release.guards)),
        release.paused,
        release.outcome,
        release.why,
    )
    if not release.goes_on or progress is None:
        return status
    return replace(
        status,
        why=progress.why,
        elapsed_s=round(progress.elapsed_s, 3),
        candidate=_compared(progress.candidate),
        baseline=_compared(progress.baseline),
    )


def _compared(seen: Requests) -> ComparedStatus:
    p50_s, p95_s, p99_s = (round(seen.quantile_s(level), 6) for level in (0.5, 0.95, 0.99))
    return ComparedStatus(seen.requests, seen.errors, p50_s, p95_s, p99_s)


def _update_status(live: LiveRevision) -> str:
    if live.failure is not None:
        return ROLLED_BACK
    is_first = live.outgoing is None and not live.is_ready
    return HEALTHY if live.is_settled or is_first else UPDATING


def replica_set_status(
    spec: ReplicaSetSpec | None,
    record: ReplicaSetRecord,
    now: float,
    quarantine: str | None = None,
    scaling: ScalingStatus | None = None,
) -> ReplicaSetStatus:
    """Return the status of a replica set. `quarantine`: why it is quarantined, as a sentence; None: it is not."""
    counts = {phase.value: sum(r.phase is phase for r in record.replicas) for phase in Phase}
    return ReplicaSetStatus(
        name=record.key.main.name if isinstance(record.key, ReplicaSetKey) else record.key.name,
        status=FAILED if quarantine else _status_of(spec, record, now),
        target=spec.target if spec else 0,
        template_hash=spec.template_hash if spec else "",
        counts={phase: count for phase, count in counts.items() if count},
        replicas=tuple(_replica_status(r, now) for r in sorted(record.replicas, key=lambda r: r.id)),
        restarts=record.deaths,
        last_error=quarantine or _never_placed(record) or _not_reconfigured(record) or record.last_error,
        scaling=scaling,
        outdated=0
        if spec is None
        else sum(r.phase is Phase.RUNNING and r.template_hash != spec.template_hash for r in record.replicas),
        faults=None if spec is None else _faults(spec),
        created=record.key.revision if isinstance(record.key, ReplicaSetKey) else FIRST,
    )


def worst(statuses: Iterable[str]) -> str:
    """Return the worst of several statuses; `healthy` if there are none."""
    return min(statuses, key=WORST_FIRST.index, default=HEALTHY)


def _status_of(spec: ReplicaSetSpec | None, record: ReplicaSetRecord, now: float) -> str:
    if spec is None or spec.target == 0:
        return STOPPING if record.replicas else HEALTHY
    current = [
        r
        for r in record.replicas
        if r.template_hash == spec.template_hash and r.phase in (Phase.STARTING, Phase.RUNNING)
    ]
    failed = backoff.failed_starts(record.failures, spec.template_hash) >= backoff.FAILED_STARTS
    if failed or any(r.unplaceable and r.unplaceable.for_ever for r in current):
        return FAILED
    if any(r.unplaceable for r in current):
        return WAITING
    others = [r for r in record.replicas if r.template_hash != spec.template_hash]
    if any(r.phase is Phase.RUNNING or (r.phase is Phase.DRAINING and not r.unrouted) for r in others):
        return UPDATING  # callers may still send requests to the others
    if any(r.phase is Phase.RUNNING and r.reloadable != spec.reloadable for r in current):
        return UPDATING
    running = [r for r in current if r.phase is Phase.RUNNING]
    healthy = [r for r in running if unhealthy(r, now) is None]
    if len(healthy) >= spec.target:
        return HEALTHY
    return UNHEALTHY if len(healthy) < len(running) else STARTING


def unhealthy(replica: ReplicaRecord, now: float) -> str | None:
    """Return why a running replica may not serve; None: it answered its last health check well, or does not run."""
    if replica.phase is not Phase.RUNNING:
        return None
    if replica.failed_probes and replica.answered:
        lines = (replica.last_failure or "").strip().splitlines()
        return f"is unhealthy: {lines[-1]}" if lines else "is unhealthy"
    unanswered_s = 0.0 if replica.probing_since is None else now - replica.probing_since
    if replica.failed_probes:
        return f"did not answer {replica.failed_probes} health check{'s' * (replica.failed_probes > 1)}"
    return f"has not answered a health check for {unanswered_s:.0f} s" if unanswered_s >= UNANSWERED_S else None


def _faults(spec: ReplicaSetSpec) -> str | None:
    faults = spec.config.faults
    return f"faults are injected: {faults.summary}" if faults is not None and faults.summary else None


def _never_placed(record: ReplicaSetRecord) -> str | None:
    for replica in record.replicas:
        lacks = replica.unplaceable
        if lacks is not None and lacks.for_ever:
            return f"{replica.id} asks for {lacks.asks}; the instance has {lacks.free}"
    return None


def _not_reconfigured(record: ReplicaSetRecord) -> str | None:
    for replica in record.replicas:
        tried = replica.reconfiguration
        if tried is not None and tried.why is not None and replica.phase is Phase.RUNNING:
            return f"{replica.id} could not be reconfigured: {tried.why}"
    return None


def _replica_status(replica: ReplicaRecord, now: float) -> ReplicaStatus:
    return ReplicaStatus(
        id=replica.id,
        phase=replica.phase.value,
        age_s=round(max(0.0, now - replica.since), 3),
        template_hash=replica.template_hash,
        address=replica.location.address if replica.location else None,
        failed_probes=replica.failed_probes,
        asks=replica.unplaceable.asks if replica.unplaceable else None,
        free=replica.unplaceable.free if replica.unplaceable else None,
        node=replica.location.node if replica.location else None,
        remote_address=replica.location.remote_address if replica.location else None,
        clients=replica.location.clients if replica.location else None,
        unhealthy=unhealthy(replica, now),
        recycled=replica.recycled,
    )
