"""Plans the actions that move a replica set towards its spec.

`plan` is a pure function of the spec, the record and the time. A restarted controller therefore plans what the
controller before it would have planned. A *replica set* is the set of replicas of one deployment, or of the proxies of
one node; `contract.identity` has their keys.

* New replicas start before old ones are retired, as many at a time as `max_surge` allows. An old replica is retired
  only if a new one is ready. The controller never lets fewer replicas serve than the target less `max_unavailable`.
* A replica that was found after a restart counts as serving until it has reported its state. Until then, the only
  possible action is a kill after its startup timeout.
* A running replica applies changed reloadable options while it runs. If it cannot, it is replaced, and the new replica
  starts first. Options that no replica can apply therefore do not stop a replica that serves.
* Planning is idempotent: once the actions of a plan are noted, another plan at the same time is empty.

Design: docs/design/rollout-and-traffic.md
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from app_toolkit.config.models import DeploymentConfig
from app_toolkit.contract.identity import AnySetKey, are_proxies, replica_id
from app_toolkit.contract.replica_spec import ProxySpec, ReplicaSpec, unconfigured
from app_toolkit.control import backoff, recycling
from app_toolkit.control.replica_state import (
    DrainSent,
    Event,
    Exited,
    KillSent,
    Phase,
    ProbeSent,
    ReconfigureSent,
    RecycleBegun,
    ReplicaRecord,
    RetireBegun,
    Started,
    StartSent,
    StopSent,
    apply,
)
from app_toolkit.interfaces import ReloadableOptions, Resources
from app_toolkit.types import NodeId, RecyclingLimit, ReplicaId

ANSWER_S = 2.0
"""Seconds that an answer may arrive after its deadline before it counts as missing."""

AGAIN_S = 1.0
"""Seconds after a failed probe within which the next one is sent."""

RECONFIGURE_AGAIN_S = 1.0
"""Seconds to wait after the first failed reconfiguration. Each further failure doubles the wait."""

RECONFIGURE_TRIES = 3
"""Failed reconfigurations after which a replica is replaced."""

STOP_S = 5.0
"""The minimum number of seconds for the shutdown of a lifespan."""

KILL_RETRY_S = 5.0
"""Seconds after which a replica that has not exited is killed again."""

LONGEST_ERROR = 8_000
"""Characters that are kept of a traceback, from its end."""

FOUND_S = 60.0
"""Seconds within which a replica that was found after a restart of the controller must report its state. It can report
while its app starts."""

UNPLACED_S = 60.0
"""Seconds without a report about an unplaced replica, after which it is killed: the launcher has lost it."""

UNROUTE_S = 60.0
"""Seconds after which a retired replica drains even if a caller has not acknowledged its removal. Leases expire
sooner."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process with the name `spec.id`. Answered by `Unplaceable`, `Placed`, `Started` or `Exited`."""

    spec: ReplicaSpec | ProxySpec
    resources: Resources
    replica_set: AnySetKey
    template_hash: str
    max_per_node: int | None = None
    """How many replicas of this replica set and template may be on one node; None: any number."""

    @property
    def replica(self) -> ReplicaId:
        return self.spec.id


@dataclass(frozen=True, slots=True)
class Retire:
    """Publish endpoints without this replica. The controller itself performs this action and answers `Unrouted`."""

    replica: ReplicaId
    why: str
    failed: bool = False
    """Whether it is retired because it is unhealthy."""


@dataclass(frozen=True, slots=True)
class Recycle:
    """Replace a replica that works, because it has reached a limit of its `recycling`.

    The controller only notes this. The replica serves until another one has taken its place.
    """

    replica: ReplicaId
    limit: RecyclingLimit
    why: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Refuse new requests and finish the others within `timeout_s` seconds. Answered by `Drained`."""

    replica: ReplicaId
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Shut down the lifespan and exit within `timeout_s` seconds, even during the start. Answered by `Exited`."""

    replica: ReplicaId
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Kill:
    """End the process now. Answered by `Exited`, even if the process has already ended."""

    replica: ReplicaId
    why: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Check the health of the replica on the event loop that serves requests.

    Answered within `timeout_s` seconds by `ProbePassed`, `ProbeFailed` or `Exited`.
    """

    replica: ReplicaId
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Apply these options. Answered within `timeout_s` seconds by `Reconfigured`, `ReconfigureFailed` or `Exited`."""

    replica: ReplicaId
    reloadable: ReloadableOptions
    timeout_s: float


Action = Start | Retire | Recycle | Drain | Stop | Kill | Probe | Reconfigure


@dataclass(frozen=True, slots=True)
class ReplicaSetSpec:
    """The desired state of one replica set. `template` is the spec of each of its replicas, without the id."""

    key: AnySetKey
    template_hash: str
    target: int
    template: ReplicaSpec | ProxySpec
    idempotent: tuple[str, ...] = ()
    """The methods of a class that callers may call again if a replica is lost."""
    resources: Resources = field(default_factory=Resources)
    apart: bool = False
    """Whether all old replicas must have ended before new ones start, regardless of `max_surge` and
    `max_unavailable`."""
    routed: bool = True
    """Whether its replicas are published to callers. Callers must then acknowledge the removal of a replica before it
    drains."""
    spread: bool = False
    """Whether its callers are on several nodes. If so, a replica without a remote address is replaced."""
    edge: str = ""
    """The hash of the options with which its replicas accept clients; empty: they accept none. A replica that has
    started with others is replaced."""
    lingers: bool = False
    """Whether proxies keep running after they have drained, until the replicas have closed the WebSockets that pass
    through them."""

    @property
    def config(self) -> DeploymentConfig:
        """The options of the deployment. The options of proxies and of deleted deployments are fixed."""
        return self.template.config

    @property
    def reloadable(self) -> ReloadableOptions | None:
        """The reloadable options that each replica should have applied; None for proxies."""
        return _live(self.template)

    @property
    def surge(self) -> int:
        """Replicas beyond the target during a replacement, including those that drain. A share is rounded up."""
        return -(-_hundredths(self.config.max_surge, self.target) // 100)

    @property
    def unavailable(self) -> int:
        """How many replicas fewer than the target may serve during a replacement. A share is rounded down; without a
        surge it is at least 1, because otherwise no replica could ever be replaced."""
        return max(_hundredths(self.config.max_unavailable, self.target) // 100, 0 if self.surge else 1)


@dataclass(frozen=True, slots=True)
class ReplicaSetRecord:
    """The state of one replica set as the controller knows it, with the history of replicas that have ended."""

    key: AnySetKey
    replicas: tuple[ReplicaRecord, ...] = ()
    starts: int = 0
    """The number of starts in this epoch. The id of the next replica is derived from it."""
    failures: tuple[backoff.Failure, ...] = ()
    deaths: int = 0
    """The number of replicas that ended unexpectedly in this epoch."""
    recycled: Mapping[RecyclingLimit, int] = field(default_factory=dict)
    """The number of replicas in this epoch that were replaced while they worked, by the limit that they reached."""
    last_error: str | None = None
    last_failed: ReplicaId | None = None
    """The replica that `last_error` is about, until its lost requests are added to it; None: there is none."""

    def replica(self, id: ReplicaId) -> ReplicaRecord | None:
        return next((record for record in self.replicas if record.id == id), None)


def _hundredths(amount: int | str, target: int) -> int:
    return amount * 100 if isinstance(amount, int) else int(amount.removesuffix("%")) * target


def _live(spec: ReplicaSpec | ProxySpec) -> ReloadableOptions | None:
    return spec.reloadable if isinstance(spec, ReplicaSpec) else None


# Records


def recovered(replica_set: AnySetKey, ids: Iterable[ReplicaId], now: float, starts: int = 0) -> ReplicaSetRecord:
    """Return the record of a replica set after a restart: the ids of its replicas, whose state is not known yet."""
    return ReplicaSetRecord(
        replica_set, tuple(ReplicaRecord(id, replica_set, "", Phase.RECOVERING, since=now) for id in ids), starts
    )


def take(record: ReplicaSetRecord, event: Event, now: float) -> ReplicaSetRecord:
    """Return the record after an event. An event of a replica that has ended changes nothing.

    Raises `IllegalTransition` if the event is not possible in the phase of the replica.
    """
    if isinstance(event, StartSent):
        new = ReplicaRecord(
            event.replica,
            event.replica_set,
            event.template_hash,
            Phase.STARTING,
            since=now,
            reloadable=event.reloadable,
        )
        return replace(record, replicas=(*record.replicas, new), starts=record.starts + 1)
    old = record.replica(event.replica)
    if old is None:
        return record
    new = apply(old, event, now)
    if new.ready and not old.ready and not backoff.has_outlived(record.failures, new.template_hash, _lived_s(new, now)):
        new = replace(new, ready=False)
    stays = new.phase is not Phase.STOPPED
    record = replace(
        record,
        replicas=tuple(new if other is old else other for other in record.replicas if stays or other is not old),
    )
    match event:
        case Exited(_, why, raised) if old.phase not in (Phase.DRAINING, Phase.STOPPING):
            return _failed(record, old, why, now, raised=raised, ended=True)
        case KillSent(_, why) | RetireBegun(_, str() as why) if old.phase not in (Phase.DRAINING, Phase.STOPPING):
            return _failed(record, old, why, now, never_ready=not old.ready)
        case RecycleBegun(_, limit):
            return replace(record, recycled={**record.recycled, limit: record.recycled.get(limit, 0) + 1})
        case Started() if old.phase is Phase.STARTING:
            return replace(record, failures=backoff.cleared(record.failures, new.template_hash))
    return record


def _failed(
    record: ReplicaSetRecord,
    replica: ReplicaRecord,
    why: str | None,
    now: float,
    *,
    never_ready: bool = False,
    raised: bool = False,
    ended: bool = False,
) -> ReplicaSetRecord:
    if replica.unplaceable is not None and not raised:
        return record  # the replica never ran, so this is no failure of its template
    served = replica.phase is not Phase.STARTING
    failures = record.failures
    if not served or replica.serving_since is None or now - replica.serving_since < backoff.SERVED_LONG_S:
        lived_s = _lived_s(replica, now)
        failure = backoff.Failure(now, replica.template_hash, served, never_ready, raised, served and ended, lived_s)
        failures = backoff.noted(failures, failure)
    why = why[-LONGEST_ERROR:] if why else f"{replica.id} exited while it was {replica.phase.value}"
    record = replace(record, failures=failures, deaths=record.deaths + 1, last_error=why, last_failed=replica.id)
    return with_lost_requests(record, replica.id, replica.lost_requests) if ended and replica.lost_requests else record


def with_lost_requests(record: ReplicaSetRecord, replica: ReplicaId, why: str) -> ReplicaSetRecord:
    """Return the record with a sentence about the requests of a replica in the error that its end has left.

    Only the first report is added. The event log has those of all callers.
    """
    running = record.replica(replica)
    if running is not None:
        noted = replace(running, lost_requests=why)
        return replace(record, replicas=tuple(noted if replica is running else replica for replica in record.replicas))
    if record.last_failed != replica or record.last_error is None:
        return record
    return replace(record, last_error=f"{record.last_error}; {why}", last_failed=None)


def _lived_s(replica: ReplicaRecord, now: float) -> float:
    return 0.0 if replica.serving_since is None else now - replica.serving_since


def noted(record: ReplicaSetRecord, action: Action, now: float) -> ReplicaSetRecord:
    """Return the record after an action was sent."""
    return take(record, _note(action), now)


def _note(action: Action) -> Event:
    match action:
        case Start(spec, _, replica_set, template_hash):
            return StartSent(spec.id, replica_set, template_hash, _live(spec))
        case Retire(replica, why, failed):
            return RetireBegun(replica, why if failed else None)
        case Recycle(replica, limit, why):
            return RecycleBegun(replica, limit, why)
        case Drain(replica):
            return DrainSent(replica)
        case Stop(replica):
            return StopSent(replica)
        case Kill(replica, why):
            return KillSent(replica, why)
        case Probe(replica):
            return ProbeSent(replica)
        case Reconfigure(replica, reloadable):
            return ReconfigureSent(replica, reloadable)


def forgiven(record: ReplicaSetRecord, seconds: float) -> ReplicaSetRecord:
    """Return the record with all times moved forward by `seconds`, the time in which the controller did not run."""

    def later(at: float | None) -> float | None:
        return None if at is None else at + seconds

    return replace(
        record,
        replicas=tuple(
            replace(
                replica,
                since=replica.since + seconds,
                probed_at=later(replica.probed_at),
                probing_since=later(replica.probing_since),
                drain_sent=later(replica.drain_sent),
                stop_sent=later(replica.stop_sent),
                kill_sent=later(replica.kill_sent),
                reconfiguration=replica.reconfiguration
                and replace(
                    replica.reconfiguration,
                    sent=later(replica.reconfiguration.sent),
                    failed_at=replica.reconfiguration.failed_at + seconds,
                ),
            )
            for replica in record.replicas
        ),
    )


# The plan


def plan(spec: ReplicaSetSpec | None, record: ReplicaSetRecord, now: float, epoch: int) -> list[Action]:
    """Return the actions that are due now. Without a spec, or with a target of 0, all replicas are retired."""
    desired = spec or orphan_spec(record)
    actions: list[Action] = []
    for replica in record.replicas:
        steps = sorted(_next(desired, replica), key=lambda step: step[0])
        due_now = [action for at, action in steps if now >= at]
        # A replica that is killed or retired gets no other action.
        actions += [action for action in due_now if isinstance(action, (Kill, Retire))][:1] or _first_recycle(due_now)
    # Actions for single replicas are noted first: a kill makes room, and is a failure that delays the next start.
    for action in actions:
        record = noted(record, action, now)
    moves = _moves(desired, record, now)
    actions += moves.leave
    held_until = backoff.not_before(record.failures, desired.template_hash, desired.target)
    if held_until is None or now >= held_until:
        for number in range(moves.starts):
            id = replica_id(record.key, epoch, record.starts + 1 + number)
            template = replace(desired.template, id=id)
            most = desired.config.max_replicas_per_node
            actions.append(Start(template, desired.resources, record.key, desired.template_hash, most))
    return actions


def _first_recycle(actions: list[Action]) -> list[Action]:
    """Return the actions without those that recycle a replica again, because it has reached several limits."""
    again = [action for action in actions if isinstance(action, Recycle)][1:]
    return [action for action in actions if action not in again]


def due(spec: ReplicaSetSpec | None, record: ReplicaSetRecord) -> float | None:
    """Return the time at which the next plan is not empty even if no event arrives before; None: never.

    After the actions of a plan have been noted, this time is later than the time of that plan.
    """
    desired = spec or orphan_spec(record)
    times = [at for replica in record.replicas for at, _ in _next(desired, replica)]
    held_until = backoff.not_before(record.failures, desired.template_hash, desired.target)
    if held_until is not None and _moves(desired, record, held_until).starts:
        times.append(held_until)
    if desired.config.min_healthy_s:
        available = {_available_at(desired, replica) for replica in record.replicas} - {None}
        times += [at for at in available if at is not None and _moves(desired, record, at).leave]
    return min(times, default=None)


def _next(spec: ReplicaSetSpec, replica: ReplicaRecord) -> Iterator[tuple[float, Action]]:
    """Yield the next actions for one replica, each with the time at which it is due."""
    startup, graceful = spec.config.startup_timeout_s, spec.config.graceful_shutdown_timeout_s
    match replica.phase:
        case Phase.STARTING if replica.unplaceable is not None:
            why = f"the launcher has not reported its placement for {UNPLACED_S:g} s"
            yield replica.since + UNPLACED_S, Kill(replica.id, why)
        case Phase.STARTING:
            yield replica.since + startup, Kill(replica.id, _not_ready(spec))
        case Phase.RECOVERING:
            why = f"it was found after a restart and did not report its state within {FOUND_S:g} s"
            yield replica.since + FOUND_S, Kill(replica.id, why)
        case Phase.RUNNING:
            yield _next_probe(spec, replica)
            yield from _next_reconfigure(spec, replica)
            if spec.config.recycling is not None and not _is_outdated(spec, replica):
                for at, limit, why in recycling.reached(spec.config.recycling, replica):
                    yield at, Recycle(replica.id, limit, why)
        case Phase.DRAINING if replica.drain_sent is None:
            ready = replica.unrouted or not spec.routed
            yield replica.since + (0.0 if ready else UNROUTE_S), Drain(replica.id, graceful)
        case Phase.DRAINING:
            assert replica.drain_sent is not None
            yield replica.drain_sent + graceful + ANSWER_S, Kill(replica.id, f"it was not drained after {graceful:g} s")
        case Phase.STOPPING if replica.kill_sent is not None:
            yield replica.kill_sent + KILL_RETRY_S, Kill(replica.id, "it was killed and has not exited")
        case Phase.STOPPING if replica.stop_sent is None and spec.lingers:
            pass
        case Phase.STOPPING if replica.stop_sent is None:
            yield replica.since, Stop(replica.id, max(graceful, STOP_S))
        case Phase.STOPPING:
            assert replica.stop_sent is not None
            timeout = max(graceful, STOP_S)
            yield replica.stop_sent + timeout + ANSWER_S, Kill(replica.id, f"it had not exited after {timeout:g} s")


def _not_ready(spec: ReplicaSetSpec) -> str:
    why = f"it was not ready after {spec.config.startup_timeout_s:g} s"
    if isinstance(spec.template, ProxySpec):
        return why
    return f"{why}: if it needs longer to import and start the app, set a larger startup_timeout_s for its deployment"


def _next_probe(spec: ReplicaSetSpec, replica: ReplicaRecord) -> tuple[float, Action]:
    """Return the next probe, or the action after too many failures, with the time at which it is due.

    A replica that does not answer is killed, and its requests are lost or retried. A replica that reports that it is
    unhealthy drains.
    """
    failed, threshold = replica.failed_probes, spec.config.health_check_failure_threshold
    if failed >= threshold:
        why = f"it failed {failed} probes in a row; the last: {replica.last_failure}"
        if replica.answered and spec.routed:
            return replica.since, Retire(replica.id, why, failed=True)
        # Before the kill, callers receive a snapshot that marks the replica as unresponsive and lists the requests that
        # run in it, because callers must not retry those requests.
        failed_at = max(replica.probed_at or 0.0, replica.probing_since or 0.0)
        return failed_at + AGAIN_S if failed == 1 and spec.routed else replica.since, Kill(replica.id, why)
    probe = Probe(replica.id, spec.config.health_check_timeout_s)
    if replica.probing_since is None:
        if replica.probed_at is None:
            return replica.since, probe
        # After a failure the next probe follows soon, because clients wait for a replica that hangs.
        period = min(spec.config.health_check_period_s, AGAIN_S) if failed else spec.config.health_check_period_s
        return replica.probed_at + period, probe
    unanswered_at = replica.probing_since + spec.config.health_check_timeout_s + ANSWER_S
    if failed + 1 < threshold or (not failed and spec.routed):
        return unanswered_at, probe
    return unanswered_at, Kill(replica.id, f"it failed {failed + 1} probes in a row; the last was never answered")


def _next_reconfigure(spec: ReplicaSetSpec, replica: ReplicaRecord) -> Iterator[tuple[float, Action]]:
    reloadable, last = spec.reloadable, replica.reconfiguration
    if (
        reloadable is None
        or replica.reloadable == reloadable
        or replica.template_hash != spec.template_hash
        or _cannot_reload(spec, replica)
    ):
        return
    reconfigure = Reconfigure(replica.id, reloadable, spec.config.startup_timeout_s)
    if last is not None and last.sent is not None:
        # One attempt at a time, even if the options have changed again.
        yield last.sent + spec.config.startup_timeout_s + ANSWER_S, reconfigure
    elif last is not None and last.reloadable == reloadable:
        yield last.failed_at + RECONFIGURE_AGAIN_S * 2 ** (last.failures - 1), reconfigure
    else:
        yield replica.since, reconfigure


def _cannot_reload(spec: ReplicaSetSpec, replica: ReplicaRecord) -> bool:
    last = replica.reconfiguration
    return last is not None and last.reloadable == spec.reloadable and last.failures >= RECONFIGURE_TRIES


@dataclass(frozen=True, slots=True)
class _Moves:
    """The changes to the whole replica set: the actions that remove replicas, and how many replicas start once the
    backoff allows it."""

    leave: list[Action]
    starts: int


def _available_at(spec: ReplicaSetSpec, replica: ReplicaRecord) -> float | None:
    """Return the time from which a replica can take the place of an old one; None: it is not healthy yet."""
    if not replica.ready or replica.failed_probes:
        return None
    return (replica.since if replica.serving_since is None else replica.serving_since) + spec.config.min_healthy_s


def _moves(spec: ReplicaSetSpec, record: ReplicaSetRecord, now: float) -> _Moves:
    active = [r for r in record.replicas if r.phase not in (Phase.DRAINING, Phase.STOPPING)]

    # A starting replica serves no requests and may always leave. A running replica may leave only while enough others
    # serve, or if new replicas cannot start before the old ones have ended. A recovering replica serves, may have any
    # template, and stays. It makes no other replica superfluous: otherwise a starting replica could be stopped and have
    # to be started again.
    templated = sorted((r for r in active if r.phase is not Phase.RECOVERING), key=_first_to_keep)
    outdated = [replica for replica in reversed(templated) if _is_outdated(spec, replica)]
    old = {replica.id for replica in outdated}
    current = [replica for replica in templated if replica.id not in old]
    # An outdated replica leaves only if an available one takes its place. A superfluous replica needs no replacement.
    serving = [r for r in active if r.phase is not Phase.STARTING]
    available = {r.id for r in serving if (at := _available_at(spec, r)) is not None and at <= now}
    sound = available | (old & {r.id for r in serving})
    floor = 0 if spec.apart else spec.target - spec.unavailable
    spare, replaceable = len(serving) - floor, len(sound) - floor
    leave: list[Action] = []
    leaving = set()
    for replica in [*outdated, *current[spec.target :]]:
        if replica.phase is Phase.RUNNING:
            if spare <= 0 or (replaceable <= 0 and replica.id in old):
                continue
            spare -= 1
            replaceable -= replica.id in sound
        leaving.add(replica.id)
        leave.append(_leave(spec, replica))

    # Starts are counted against the replicas that stay, so that planning is idempotent.
    staying = [replica for replica in active if replica.id not in leaving]
    current_or_recovering = [
        replica for replica in staying if replica.phase is Phase.RECOVERING or not _is_outdated(spec, replica)
    ]
    if not spec.apart:
        # Draining replicas count towards the surge, but never delay the replacement of a replica that died.
        least = spec.target - spec.unavailable
        room = max(spec.target + spec.surge - len(record.replicas), least - len(staying))
    elif any(_is_outdated(spec, replica) for replica in record.replicas):
        room = 0
    else:
        room = spec.target - len(record.replicas)
    if backoff.failed_starts(record.failures, spec.template_hash):
        # After a failed start, only one replica starts at a time, until a start succeeds.
        room = min(room, 1 - sum(replica.phase is Phase.STARTING for replica in current_or_recovering))
    return _Moves(leave, max(0, min(spec.target - len(current_or_recovering), room)))


def _is_outdated(spec: ReplicaSetSpec, replica: ReplicaRecord) -> bool:
    if replica.template_hash != spec.template_hash or _cannot_reload(spec, replica) or replica.recycled is not None:
        return True
    location = replica.location
    return location is not None and (location.edge != spec.edge or (spec.spread and location.remote_address is None))


def _leave(spec: ReplicaSetSpec, replica: ReplicaRecord) -> Action:
    if replica.phase is Phase.STARTING:
        return Stop(replica.id, max(spec.config.graceful_shutdown_timeout_s, STOP_S))
    if not spec.routed:
        return Drain(replica.id, spec.config.graceful_shutdown_timeout_s)
    if spec.target == 0:
        return Retire(replica.id, "the target of the replica set is 0")
    if replica.template_hash != spec.template_hash:
        return Retire(replica.id, f"it is replaced by template hash {spec.template_hash}")
    if _cannot_reload(spec, replica):
        return Retire(replica.id, "it could not apply the new options and is replaced")
    if replica.location is not None and replica.location.edge != spec.edge:
        return Retire(replica.id, "the options with which it accepts clients have changed")
    if replica.recycled is not None:
        return Retire(replica.id, replica.recycled)
    if _is_outdated(spec, replica):
        return Retire(replica.id, "callers on other nodes cannot reach it")
    return Retire(replica.id, "the replica set has more replicas than its target")


def _first_to_keep(replica: ReplicaRecord) -> tuple[bool, int, int, float, ReplicaId]:
    """Return the sort key of the order in which replicas are kept.

    Running replicas come before starting ones, healthy before failing, those with many open connections before those
    with few, because sessions in memory end with their replica, and old before new.
    """
    return (
        replica.phase is Phase.STARTING,
        replica.failed_probes,
        -replica.connections,
        replica.since,
        replica.id,
    )


def orphan_spec(record: ReplicaSetRecord) -> ReplicaSetSpec:
    """Return the spec of an orphaned replica set, which was found after its application was deleted."""
    if are_proxies(record.key):
        proxy = ProxySpec(ReplicaId(""), {}, NodeId(""))
        return ReplicaSetSpec(record.key, "", 0, proxy, apart=True, routed=False)
    replica = ReplicaSpec(ReplicaId(""), "", unconfigured(), "", "", "", ReloadableOptions(0))
    return ReplicaSetSpec(record.key, "", 0, replica)
