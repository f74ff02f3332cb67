"""What people are told, derived from what is wanted and what is known. Nothing of it is stored."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from app_toolkit.core import restarts
from app_toolkit.core.applications import application_of, replica_set_names
from app_toolkit.core.reconcile import ReplicaSetRecord, ReplicaSetSpec, are_proxies, proxies_of
from app_toolkit.core.replica_sets import ReplicaSet
from app_toolkit.core.replica_state import Phase, ReplicaRecord
from app_toolkit.core.rollout import Rollout
from app_toolkit.types import NodeId

HEALTHY = "healthy"
UPDATING = "updating"
STARTING = "starting"
WAITING = "waiting_for_resources"
FAILED = "failed"
STOPPING = "stopping"
ROLLED_BACK = "rolled_back"
"""Of an application: what was applied last was given up, and the version before it is to run."""

WORST_FIRST = (FAILED, ROLLED_BACK, WAITING, UPDATING, STARTING, STOPPING, HEALTHY)


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    id: str
    phase: str
    age_s: float
    """Seconds in this phase."""
    revision: str
    address: str | None
    failed_probes: int
    asks: str | None
    """What it asks of a cluster that has no room for it."""
    free: str | None
    node: str | None = None
    """Of the cluster; None until it has started."""
    remote_address: str | None = None
    """Where callers on other nodes reach it."""


@dataclass(frozen=True, slots=True)
class ScalingStatus:
    """What the target of a deployment goes by that follows its load."""

    min_replicas: int
    max_replicas: int
    load: float
    """Requests that wait or are ongoing, and what open WebSockets count as, as its callers reported them."""
    average: float
    """The load, averaged over the look-back."""
    needed: int
    """What the target would be if there were no delays."""
    why: str | None
    """Of the last change of the target; None: it is as it began."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    name: str
    status: str
    target: int
    revision: str
    counts: dict[str, int]
    """Replicas by phase; phases without any are left out."""
    replicas: tuple[ReplicaStatus, ...]
    restarts: int
    """Replicas that ended without being told to, since this controller began."""
    last_error: str | None
    scaling: ScalingStatus | None = None
    """None: its target does not follow its load."""

    @property
    def running(self) -> int:
        """The number of replicas that run."""
        return self.counts.get(Phase.RUNNING.value, 0)

    @property
    def is_up(self) -> bool:
        """Whether it has as many replicas as it should, and none of before may still serve."""
        return self.running >= self.target and self.status != UPDATING

    @property
    def unplaced(self) -> ReplicaStatus | None:
        """A replica for which the cluster has no room."""
        return next((each for each in self.replicas if each.asks), None)

    @property
    def error(self) -> str:
        """Why it is not up: a sentence, or a traceback whose last line is one. Empty: there is nothing to say."""
        if self.status != WAITING:
            return self.last_error or ""
        return f"one replica asks for {self.unplaced.asks}; {self.unplaced.free} is free" if self.unplaced else ""

    @property
    def reason(self) -> str:
        """The last line of the error of what is not healthy."""
        lines = self.error.strip().splitlines()
        return lines[-1] if lines and self.status != HEALTHY else ""


@dataclass(frozen=True, slots=True)
class Load:
    """Where the requests and calls for one deployment are at one moment."""

    proxies: int
    """Waiting for a turn in the proxies."""
    handles: int
    """Waiting for a turn in the processes whose handles call it."""
    ongoing: int
    """Admitted at its replicas."""
    buffered: int
    """Of the ongoing: waiting for a batch to close."""
    streams: int = 0
    """Open streams at its replicas, which hold no slots."""
    replicas: Mapping[str, int] = field(default_factory=dict, compare=False)
    """The ongoing once more, by replica."""
    reached: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The limits that its replicas and the queues of its callers have reached, by process."""


@dataclass(frozen=True, slots=True)
class ApplicationStatus:
    name: str
    status: str
    route_prefix: str | None
    deployments: tuple[GroupStatus, ...]
    revision: int = 1
    """Counts what was applied under this name; 0: nobody knows."""
    last_error: str | None = None
    """Why the version that was applied last was given up, or nobody knows which one that is."""
    serving_revision: int = 0
    """The number of the version that is to run: after a rollback a lower one than `revision`; 0: not known."""


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """All of it. `dataclasses.asdict` makes it plain data that JSON can say."""

    epoch: int
    change: int
    """Counts up whenever anything here may have changed."""
    status: str
    applications: tuple[ApplicationStatus, ...]
    proxies: tuple[GroupStatus, ...]
    leaving: tuple[GroupStatus, ...]
    """Groups that are in no application's present version."""
    doubts: tuple[str, ...] = ()
    """What of the store could not be believed, a sentence each."""

    @property
    def url(self) -> str | None:
        """Where clients come in, `http://HOST:PORT` or https; None while no proxy is up."""
        addresses = [proxy.address for group in self.proxies for proxy in group.replicas if proxy.address is not None]
        if not addresses:
            return None
        kind, _, place = addresses[0].partition(":")
        return f"{'https' if kind == 'tls' else 'http'}://{place}"

    def application(self, name: str) -> ApplicationStatus | None:
        """None: there is none of this name."""
        return next((each for each in self.applications if each.name == name), None)

    def leaving_of(self, application: str) -> list[GroupStatus]:
        """The deployments that it had, and that are not gone yet."""
        return [group for group in self.leaving if application_of(group.name) == application]


NO_SCALING: Mapping[str, ScalingStatus] = {}
NOTHING_CORRUPT: Mapping[str, str] = {}


def instance_status(
    applications: Iterable[Rollout],
    replica_sets: Mapping[str, ReplicaSet],
    now: float,
    *,
    epoch: int,
    change: int,
    home: NodeId,
    stopping: bool,
    scaling: Mapping[str, ScalingStatus] = NO_SCALING,
    corrupt: Mapping[str, str] = NOTHING_CORRUPT,
    doubts: tuple[str, ...] = (),
) -> InstanceStatus:
    """Applications by name; of the proxies those of `home` first. `stopping`: everything is being put away.

    `corrupt`: applications of which nobody knows what is wanted, and why.
    """
    told = {
        name: group_status(replica_set.spec, replica_set.record, now, replica_set.quarantine, scaling.get(name))
        for name, replica_set in replica_sets.items()
    }
    of_applications = []
    for rollout in applications:
        spec = rollout.current
        mine = tuple(told[name] for name in replica_set_names(spec) if name in told)
        word = worst((_rollout_word(rollout), *(replica_set.status for replica_set in mine)))
        of_applications.append(
            ApplicationStatus(
                spec.name,
                word,
                spec.route_prefix,
                mine,
                rollout.revision,
                rollout.failure,
                rollout.current_revision or 0,
            )
        )
    for name, why in corrupt.items():
        mine = tuple(replica_set for replica_set in told.values() if application_of(replica_set.name) == name)
        of_applications.append(ApplicationStatus(name, FAILED, None, mine, 0, why))
    of_applications.sort(key=lambda each: each.name)
    first = proxies_of(home)
    proxies = tuple(told[name] for name in sorted(filter(are_proxies, told), key=lambda name: (name != first, name)))
    shown = {replica_set.name for each in of_applications for replica_set in each.deployments}
    leaving = tuple(told[name] for name in replica_sets if name not in shown and not are_proxies(name))
    words = [each.status for several in (of_applications, proxies, leaving) for each in several]
    return InstanceStatus(
        epoch=epoch,
        change=change,
        status=STOPPING if stopping else worst(words),
        applications=tuple(of_applications),
        proxies=proxies,
        leaving=leaving,
        doubts=doubts,
    )


def _rollout_word(rollout: Rollout) -> str:
    if rollout.failure is not None:
        return ROLLED_BACK
    is_first = rollout.outgoing is None and rollout.stable is None
    return HEALTHY if rollout.is_settled or is_first else UPDATING


def group_status(
    spec: ReplicaSetSpec | None,
    record: ReplicaSetRecord,
    now: float,
    quarantine: str | None = None,
    scaling: ScalingStatus | None = None,
) -> GroupStatus:
    """`quarantine` is the sentence that says why the replica set is not looked after any more."""
    counts = {phase.value: sum(r.phase is phase for r in record.replicas) for phase in Phase}
    return GroupStatus(
        name=record.name,
        status=FAILED if quarantine else _word(spec, record),
        target=spec.target if spec else 0,
        revision=spec.template_hash if spec else "",
        counts={phase: count for phase, count in counts.items() if count},
        replicas=tuple(_replica_status(r, now) for r in sorted(record.replicas, key=lambda r: r.id)),
        restarts=record.deaths,
        last_error=quarantine or _never_placed(record) or _not_reconfigured(record) or record.last_error,
        scaling=scaling,
    )


def worst(statuses: Iterable[str]) -> str:
    """One word for several; `healthy` for none."""
    return min(statuses, key=WORST_FIRST.index, default=HEALTHY)


def _word(spec: ReplicaSetSpec | None, record: ReplicaSetRecord) -> str:
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
        return UPDATING  # callers may still send something there
    if any(r.phase is Phase.RUNNING and r.live != spec.live for r in current):
        return UPDATING
    return HEALTHY if sum(r.phase is Phase.RUNNING for r in current) >= spec.target else STARTING


def _never_placed(record: ReplicaSetRecord) -> str | None:
    for replica in record.replicas:
        lacks = replica.unplaceable
        if lacks is not None and lacks.for_ever:
            return f"{replica.id} asks for {lacks.asks}; the cluster has {lacks.free}"
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
        revision=replica.template_hash,
        address=replica.location.address if replica.location else None,
        failed_probes=replica.failed_probes,
        asks=replica.unplaceable.asks if replica.unplaceable else None,
        free=replica.unplaceable.free if replica.unplaceable else None,
        node=replica.location.node if replica.location else None,
        remote_address=replica.location.remote_address if replica.location else None,
    )
