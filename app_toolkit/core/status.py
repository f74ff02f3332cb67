"""The status of an instance, derived from the desired state and the known state. It is not stored."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app_toolkit.config.suggestions import nearest
from app_toolkit.core import restarts
from app_toolkit.core.applications import replica_set_keys
from app_toolkit.core.canary import Requests
from app_toolkit.core.identity import (
    AnySetKey,
    ApplicationKey,
    ProcessSetKey,
    ReplicaSetKey,
    application_of,
    are_proxies,
    parts_of,
)
from app_toolkit.core.reconcile import ReplicaSetRecord, ReplicaSetSpec
from app_toolkit.core.replica_sets import ReplicaSet
from app_toolkit.core.replica_state import Phase, ReplicaRecord
from app_toolkit.core.rollout import Rollout, failure_of, rest_of
from app_toolkit.core.traffic import MirrorCounts
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
        return next((each for each in self.replicas if each.asks), None)

    @property
    def error(self) -> str:
        """Why it is not up: a sentence, or a traceback whose last line is the reason; empty: there is no error."""
        if self.status == UNHEALTHY:
            ill = [each for each in self.replicas if each.unhealthy]
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


def mirrored_to(application: ApplicationKey, load: Mapping[str, Load]) -> MirrorCounts:
    """Return what became of the mirrored requests for all deployments of an application."""
    return sum((each.mirrored for name, each in load.items() if application_of(name) == application), MirrorCounts())


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

    def split(self, name: str) -> "SplitStatus":
        """Return the status of a split. Raises `ConfigError` if there is none of this name."""
        for each in self.splits:
            if each.name == name:
                return each
        names = ", ".join(each.name for each in self.splits) or "none"
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
    admin: ReplicaSetStatus | None = None
    """The admin process; None: there is none. It does not count for `status`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options of the instance by name: those of its start, and those of its proxies and admin process."""

    @property
    def admin_url(self) -> str | None:
        """The URL of the admin process, `http://HOST:PORT`; None while it does not run."""
        replicas = () if self.admin is None else self.admin.replicas
        address = next((each.address for each in replicas if each.phase == Phase.RUNNING.value), None)
        return None if address is None else f"http://{address.partition(':')[2]}"

    @property
    def edges(self) -> list[ReplicaStatus]:
        """The replicas that accept clients."""
        deployments = (replica_set for each in self.applications for replica_set in each.deployments)
        return [
            replica
            for replica_set in (*deployments, *self.leaving)
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
        return next((each for each in self.applications if each.name == name), None)

    def check_name(self, name: str) -> None:
        """Raise `ConfigError` if no application, deployment or other replica set has this name."""
        application, deployment = parts_of(name)
        found = self.application(application)
        deployments = () if found is None else found.deployments
        others = (*self.proxies, *self.leaving, *(() if self.admin is None else (self.admin,)))
        if name in {each.name for each in (*self.applications, *deployments, *others)}:
            return
        if found is None:
            meant = nearest(application, [each.name for each in self.applications])
            raise ConfigError(f"there is no application {application!r}{meant}")
        names = ", ".join(sorted(ReplicaSetKey.parse(each.name).deployment for each in deployments)) or "none"
        raise ConfigError(f"application {application!r} has no deployment {deployment!r}; it has {names}")

    def leaving_of(self, application: str) -> list[ReplicaSetStatus]:
        """Return the replica sets of an application that its current revision does not have."""
        key = ApplicationKey.parse(application)
        return [replica_set for replica_set in self.leaving if application_of(replica_set.name) == key]


NO_SCALING: Mapping[AnySetKey, ScalingStatus] = {}
NO_PROGRESS: Mapping[ApplicationKey, CanaryProgress] = {}
NO_OPTIONS: Mapping[str, Any] = {}


def instance_status(
    applications: Iterable[Rollout],
    replica_sets: Mapping[AnySetKey, ReplicaSet],
    now: float,
    *,
    epoch: int,
    change: int,
    home: NodeId,
    stopping: bool,
    scaling: Mapping[AnySetKey, ScalingStatus] = NO_SCALING,
    canaries: Mapping[ApplicationKey, CanaryProgress] = NO_PROGRESS,
    options: Mapping[str, Any] = NO_OPTIONS,
) -> InstanceStatus:
    """Return the status with the applications in the order of their names, and the proxies of `home` first.

    `stopping`: whether a shutdown is in progress.
    """
    by_key = {
        key: replica_set_status(replica_set.spec, replica_set.record, now, replica_set.quarantine, scaling.get(key))
        for key, replica_set in replica_sets.items()
    }
    of_applications = []
    rollouts = {each.key: each for each in applications}
    for rollout in rollouts.values():
        spec = rollout.current
        mine = tuple(by_key[key] for key in replica_set_keys(spec) if key in by_key)
        if failure_of(rollout, replica_sets) is not None:
            # The rollback begins as soon as it is stored. Until then the failure is not final.
            mine = tuple(
                replace(replica_set, status=UPDATING) if replica_set.status == FAILED else replica_set
                for replica_set in mine
            )
        status = worst((_rollout_status(rollout), *(replica_set.status for replica_set in mine)))
        of_applications.append(
            ApplicationStatus(
                spec.name,
                status,
                spec.route_prefix,
                mine,
                rollout.revision,
                rollout.failure,
                rollout.current_revision or 0,
                traffic_status(rollout, rollouts),
                rollout.next_number,
                _canary(rollout, canaries.get(rollout.key)),
                tuple(SplitStatus(each.name, each.shares, each.mirrors) for each in spec.splits),
                rollout.is_settled,
            )
        )
    of_applications.sort(key=lambda each: each.name)
    first = ProcessSetKey("proxy", home)
    proxies = tuple(
        by_key[key] for key in sorted(filter(are_proxies, by_key), key=lambda key: (key != first, key.name))
    )
    shown = {replica_set.name for each in of_applications for replica_set in each.deployments}
    leaving = tuple(by_key[key] for key in replica_sets if isinstance(key, ReplicaSetKey) and key.name not in shown)
    statuses = [each.status for several in (of_applications, proxies, leaving) for each in several]
    return InstanceStatus(
        epoch=epoch,
        change=change,
        status=STOPPING if stopping else worst(statuses),
        applications=tuple(of_applications),
        proxies=proxies,
        leaving=leaving,
        stopping=stopping,
        admin=by_key.get(ProcessSetKey("admin", home)),
        options=options,
    )


def traffic_status(rollout: Rollout, rollouts: Mapping[ApplicationKey, Rollout]) -> tuple[TrafficStatus, ...]:
    """Return the traffic of each live revision, the main one first; empty: there is only that one."""
    if not rollout.candidates:
        return ()
    others = [
        TrafficStatus(each.revision, each.share * ready, each.share, each.tag, ready, each.removed, each.mirror)
        for each in rollout.candidates
        for own in (rollouts.get(rollout.key.candidate(each.revision)),)
        for ready in (own is not None and own.stable is not None,)
    ]
    rest = rest_of(each.share for each in others)
    return (TrafficStatus(rollout.current_revision or rollout.revision, rest, rollout.share), *others)


def _canary(rollout: Rollout, progress: CanaryProgress | None) -> CanaryStatus | None:
    release = rollout.canary
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


def _rollout_status(rollout: Rollout) -> str:
    if rollout.failure is not None:
        return ROLLED_BACK
    is_first = rollout.outgoing is None and rollout.stable is None
    return HEALTHY if rollout.is_settled or is_first else UPDATING


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
        name=record.key.name,
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
    failed = restarts.failed_starts(record.failures, spec.template_hash) >= restarts.FAILED_STARTS
    if failed or any(r.unplaceable and r.unplaceable.for_ever for r in current):
        return FAILED
    if any(r.unplaceable for r in current):
        return WAITING
    others = [r for r in record.replicas if r.template_hash != spec.template_hash]
    if any(r.phase is Phase.RUNNING or (r.phase is Phase.DRAINING and not r.unrouted) for r in others):
        return UPDATING  # callers may still send requests to the others
    if any(r.phase is Phase.RUNNING and r.live != spec.live for r in current):
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
    faults = None if spec.policy is None else spec.policy.faults
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
