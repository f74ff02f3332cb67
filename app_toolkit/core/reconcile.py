"""Which actions move a group of replicas towards its spec.

`plan` looks at facts only: it keeps nothing between calls and asks no clock, so a controller that was
restarted plans what the old one would have. A *group* is what replicas are counted by:
`"{application}/{deployment}"`, or `"proxy@{node}"`.

* The new is started before the old is retired, as many at a time as `max_surge` allows, and an old one leaves only for
  a new one that has proven itself. What serves never falls below the target less `max_unavailable` by our doing.
* A replica that was found and has not said what it is counts as serving, and is left alone until it has.
* What runs takes up changed options while it runs. One that cannot is replaced, the new first: what nobody can take up
  ends nothing that serves.
* Planning twice changes nothing: once the actions of a plan are noted, the plan at the same time is empty.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from app_toolkit.config.models import AutoscalingConfig, Policy, RayActorOptions
from app_toolkit.core import restarts
from app_toolkit.core.replica_state import (
    DrainSent,
    Event,
    Exited,
    KillSent,
    Phase,
    ProbeSent,
    ReconfigureSent,
    ReplicaRecord,
    RetireBegun,
    Started,
    StartSent,
    StopSent,
    apply,
)
from app_toolkit.interfaces import LiveOptions, ProxySpec, ReplicaSpec
from app_toolkit.types import NodeId, ReplicaId

PROXIES = "proxy@"
"""Begins the group of the proxies of a node. A deployment's has a slash in it, and no `@`."""

ANSWER_S = 2.0
"""How long an answer that is due at a deadline may be under way before it counts as missing."""

AGAIN_S = 1.0
"""After a failed probe the next one comes no later than this."""

RECONFIGURE_AGAIN_S = 1.0
"""After the first try that failed; each further failure doubles the wait."""

RECONFIGURE_TRIES = 3
"""After so many in vain a replica is replaced."""

STOP_S = 5.0
"""The least that a lifespan's shutdown gets."""

KILL_AGAIN_S = 5.0

LONGEST_ERROR = 8_000
"""Characters of a traceback that are kept: its end."""

UNPLACED_S = 60.0
"""A launcher that says nothing of an unplaced replica for so long has lost it."""

UNROUTE_S = 60.0
"""A lease ends long before; whoever has not let go by then is not waited for."""


@dataclass(frozen=True, slots=True)
class Start:
    """Bring up a process by the name `spec.id`. Answered by `Unplaceable`, `Placed`, `Started`, `Exited`."""

    spec: ReplicaSpec | ProxySpec
    options: RayActorOptions
    group: str
    revision: str
    max_per_node: int | None = None
    """Replicas of this group and revision that may be on one node; None: any number."""

    @property
    def replica(self) -> ReplicaId:
        return self.spec.id


@dataclass(frozen=True, slots=True)
class Retire:
    """Take it out of what is published. No launcher hears of it: the controller itself answers `Unrouted`."""

    replica: ReplicaId
    why: str
    failed: bool = False
    """It has to go because it is not well."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Refuse new requests and finish those it has, within `timeout_s`. Answered by `Drained`."""

    replica: ReplicaId
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Shut the lifespan down and exit, within `timeout_s`. Answered by `Exited`. It may still be starting."""

    replica: ReplicaId
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Kill:
    """End the process now. Answered by `Exited`, also where it is long gone."""

    replica: ReplicaId
    why: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask through its data loop. Answered in `timeout_s` by `ProbePassed`, `ProbeFailed` or `Exited`."""

    replica: ReplicaId
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Take these options up. Answered in `timeout_s` by `Reconfigured`, `ReconfigureFailed` or `Exited`."""

    replica: ReplicaId
    live: LiveOptions
    timeout_s: float


Action = Start | Retire | Drain | Stop | Kill | Probe | Reconfigure


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """What is wanted of one group. `template` is what each of its replicas is told, but for the id."""

    group: str
    revision: str
    target: int
    template: ReplicaSpec | ProxySpec
    policy: Policy | None = None
    """What its callers keep to; None: proxies, which nobody calls."""
    idempotent: tuple[str, ...] = ()
    """Methods of a class that its callers may call again when a replica is lost."""
    options: RayActorOptions = field(default_factory=RayActorOptions)
    max_per_node: int | None = None
    startup_timeout_s: float = 60.0
    graceful_shutdown_timeout_s: float = 20.0
    health_check_period_s: float = 5.0
    health_check_timeout_s: float = 5.0
    health_check_failure_threshold: int = 3
    max_surge: int | str = 1
    """Replicas beyond the target while others take their place, also those that leave: how many, or `"25%"` of them."""
    max_unavailable: int | str = 0
    """How many fewer than the target may serve meanwhile."""
    apart: bool = False
    """All of the old are gone before the new start, whatever else is said of both."""
    routed: bool = True
    """Callers are told of its replicas and must let go of one before it drains."""
    spread: bool = False
    """Its callers are on several nodes: a replica that serves its own node alone is replaced."""
    lingers: bool = False
    """What is drained stays until this is taken back: what still passes through it ends elsewhere first."""
    autoscaling: AutoscalingConfig | None = None
    """How the target follows the load; None: it stays."""

    @property
    def live(self) -> LiveOptions | None:
        """What each replica is to have taken up; None: proxies."""
        return _live(self.template)

    @property
    def surge(self) -> int:
        """`max_surge` of this target; of a share at least 1."""
        return -(-_hundredths(self.max_surge, self.target) // 100)

    @property
    def unavailable(self) -> int:
        """`max_unavailable` of this target; at least 1 where there is no surge, or nothing could ever be replaced."""
        return max(_hundredths(self.max_unavailable, self.target) // 100, 0 if self.surge else 1)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """What is known of one group. The history of replicas that are gone lives here."""

    group: str
    replicas: tuple[ReplicaRecord, ...] = ()
    starts: int = 0
    """In this epoch: the next id is minted from it."""
    failures: tuple[restarts.Failure, ...] = ()
    deaths: int = 0
    """Replicas that ended without being told to, in this epoch."""
    last_error: str | None = None

    def replica(self, id: ReplicaId) -> ReplicaRecord | None:
        return next((record for record in self.replicas if record.id == id), None)


def _hundredths(amount: int | str, target: int) -> int:
    return amount * 100 if isinstance(amount, int) else int(amount.removesuffix("%")) * target


def _live(spec: ReplicaSpec | ProxySpec) -> LiveOptions | None:
    return spec.live if isinstance(spec, ReplicaSpec) else None


def replica_id(group: str, epoch: int, number: int) -> ReplicaId:
    """Unique for ever, because an epoch is taken once; no name of an application or a deployment has a dot."""
    return ReplicaId(f"{group.replace('/', '.')}-{epoch}-{number}")


def group_of(id: ReplicaId) -> str:
    """The group that an id was minted for."""
    return id.rsplit("-", 2)[0].replace(".", "/")


def proxies_of(node: NodeId) -> str:
    """The group of a node's proxies."""
    return f"{PROXIES}{node}"


def are_proxies(group: str) -> bool:
    return group.startswith(PROXIES)


def node_of(proxies: str) -> NodeId:
    """The node whose proxies this group is."""
    return NodeId(proxies.removeprefix(PROXIES))


# Records


def recovered(group: str, found: Iterable[ReplicaId], now: float, starts: int = 0) -> GroupRecord:
    """What a fresh controller knows of a group: who is there, and nothing about them."""
    return GroupRecord(group, tuple(ReplicaRecord(id, group, "", Phase.RECOVERING, since=now) for id in found), starts)


def take(record: GroupRecord, event: Event, now: float) -> GroupRecord:
    """The record after an event of one of its replicas; whose is not there any more changes nothing.

    Raises `IllegalTransition`.
    """
    if isinstance(event, StartSent):
        new = ReplicaRecord(event.replica, event.group, event.revision, Phase.STARTING, since=now, live=event.live)
        return replace(record, replicas=(*record.replicas, new), starts=record.starts + 1)
    old = record.replica(event.replica)
    if old is None:
        return record
    new = apply(old, event, now)
    if new.proven and not old.proven and not restarts.has_outlived(record.failures, new.revision, _lived_s(new, now)):
        new = replace(new, proven=False)
    stays = new.phase is not Phase.STOPPED
    record = replace(
        record,
        replicas=tuple(new if other is old else other for other in record.replicas if stays or other is not old),
    )
    match event:
        case Exited(_, why, raised) if old.phase not in (Phase.DRAINING, Phase.STOPPING):
            return _failed(record, old, why, now, raised=raised)
        case KillSent(_, why) | RetireBegun(_, str() as why) if old.phase not in (Phase.DRAINING, Phase.STOPPING):
            return _failed(record, old, why, now, given_up=not old.proven)
        case Started() if old.phase is Phase.STARTING:
            return replace(record, failures=restarts.cleared(record.failures, new.revision))
    return record


def _failed(
    record: GroupRecord,
    replica: ReplicaRecord,
    why: str | None,
    now: float,
    *,
    given_up: bool = False,
    raised: bool = False,
) -> GroupRecord:
    if replica.unplaceable is not None:
        return record  # it never ran, so it says nothing about its revision
    served = replica.phase is not Phase.STARTING
    failures = record.failures
    if not served or replica.ready_at is None or now - replica.ready_at < restarts.SERVED_LONG_S:
        failure = restarts.Failure(now, replica.revision, served, given_up, raised, _lived_s(replica, now))
        failures = restarts.noted(failures, failure)
    return replace(
        record,
        failures=failures,
        deaths=record.deaths + 1,
        last_error=why[-LONGEST_ERROR:] if why else f"{replica.id} exited while it was {replica.phase.value}",
    )


def _lived_s(replica: ReplicaRecord, now: float) -> float:
    return 0.0 if replica.ready_at is None else now - replica.ready_at


def noted(record: GroupRecord, action: Action, now: float) -> GroupRecord:
    """The record once an action is on its way."""
    return take(record, _note(action), now)


def _note(action: Action) -> Event:
    match action:
        case Start(spec, _, group, revision):
            return StartSent(spec.id, group, revision, _live(spec))
        case Retire(replica, why, failed):
            return RetireBegun(replica, why if failed else None)
        case Drain(replica):
            return DrainSent(replica)
        case Stop(replica):
            return StopSent(replica)
        case Kill(replica, why):
            return KillSent(replica, why)
        case Probe(replica):
            return ProbeSent(replica)
        case Reconfigure(replica, live):
            return ReconfigureSent(replica, live)


def forgiven(record: GroupRecord, seconds: float) -> GroupRecord:
    """The record with every clock set forward: time in which nobody watched counts for no deadline."""

    def later(at: float | None) -> float | None:
        return None if at is None else at + seconds

    return replace(
        record,
        replicas=tuple(
            replace(
                replica,
                since=replica.since + seconds,
                probed_at=replica.probed_at + seconds,
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


def plan(spec: GroupSpec | None, record: GroupRecord, now: float, epoch: int) -> list[Action]:
    """What to do now. Without a spec, or with a target of 0: everything is retired."""
    wanted = spec or unwanted(record)
    actions: list[Action] = []
    for replica in record.replicas:
        steps = sorted(_next(wanted, replica), key=lambda step: step[0])
        due_now = [action for at, action in steps if now >= at]
        # Who is to be killed, or has to go, is told nothing more.
        actions += [action for action in due_now if isinstance(action, (Kill, Retire))][:1] or due_now
    # What is due for one by itself goes first: who is killed frees a place, and is a failure that holds back
    # a start.
    for action in actions:
        record = noted(record, action, now)
    moves = _moves(wanted, record)
    actions += moves.leave
    held_until = restarts.not_before(record.failures, wanted.revision, wanted.target)
    if held_until is None or now >= held_until:
        for number in range(moves.starts):
            id = replica_id(record.group, epoch, record.starts + 1 + number)
            template = replace(wanted.template, id=id)
            actions.append(Start(template, wanted.options, record.group, wanted.revision, wanted.max_per_node))
    return actions


def due(spec: GroupSpec | None, record: GroupRecord) -> float | None:
    """When the next plan will not be empty although nothing happens before; None: never.

    Asked after the actions of a plan have been noted, it is later than that plan's time.
    """
    wanted = spec or unwanted(record)
    times = [at for replica in record.replicas for at, _ in _next(wanted, replica)]
    held_until = restarts.not_before(record.failures, wanted.revision, wanted.target)
    if held_until is not None and _moves(wanted, record).starts:
        times.append(held_until)
    return min(times, default=None)


def _next(spec: GroupSpec, replica: ReplicaRecord) -> Iterator[tuple[float, Action]]:
    """What comes next for one replica by itself, and when."""
    startup, graceful = spec.startup_timeout_s, spec.graceful_shutdown_timeout_s
    match replica.phase:
        case Phase.STARTING if replica.unplaceable is not None:
            why = f"nothing was heard of its placement for {UNPLACED_S:g} s"
            yield replica.since + UNPLACED_S, Kill(replica.id, why)
        case Phase.STARTING:
            yield replica.since + startup, Kill(replica.id, f"it was not ready after {startup:g} s")
        case Phase.RECOVERING:
            why = f"it was found after a restart and did not say what it is within {startup:g} s"
            yield replica.since + startup, Kill(replica.id, why)
        case Phase.RUNNING:
            yield _next_probe(spec, replica)
            yield from _next_reconfigure(spec, replica)
        case Phase.DRAINING if replica.drain_sent is None:
            ready = replica.unrouted or not spec.routed
            yield replica.since + (0.0 if ready else UNROUTE_S), Drain(replica.id, graceful)
        case Phase.DRAINING:
            assert replica.drain_sent is not None
            yield replica.drain_sent + graceful + ANSWER_S, Kill(replica.id, f"it was not drained after {graceful:g} s")
        case Phase.STOPPING if replica.kill_sent is not None:
            yield replica.kill_sent + KILL_AGAIN_S, Kill(replica.id, "it was killed and has not exited")
        case Phase.STOPPING if replica.stop_sent is None and spec.lingers:
            pass
        case Phase.STOPPING if replica.stop_sent is None:
            yield replica.since, Stop(replica.id, max(graceful, STOP_S))
        case Phase.STOPPING:
            assert replica.stop_sent is not None
            timeout = max(graceful, STOP_S)
            yield replica.stop_sent + timeout + ANSWER_S, Kill(replica.id, f"it had not exited after {timeout:g} s")


def _next_probe(spec: GroupSpec, replica: ReplicaRecord) -> tuple[float, Action]:
    """Who does not answer is killed: what it has is lost, or tried elsewhere. Who says that it is not well drains."""
    failed, threshold = replica.failed_probes, spec.health_check_failure_threshold
    if failed >= threshold:
        why = f"it failed {failed} probes in a row; the last: {replica.last_failure}"
        if replica.answered and spec.routed:
            return replica.since, Retire(replica.id, why, failed=True)
        # Callers learn first that it does not answer and what runs in it: they do not try that elsewhere.
        failed_at = max(replica.probed_at, replica.probing_since or 0.0)
        return failed_at + AGAIN_S if failed == 1 and spec.routed else replica.since, Kill(replica.id, why)
    probe = Probe(replica.id, spec.health_check_timeout_s)
    if replica.probing_since is None:
        # After a failure it is asked again soon: who waits for a replica that hangs has only so much patience.
        period = min(spec.health_check_period_s, AGAIN_S) if failed else spec.health_check_period_s
        return replica.probed_at + period, probe
    unanswered_at = replica.probing_since + spec.health_check_timeout_s + ANSWER_S
    if failed + 1 < threshold or (not failed and spec.routed):
        return unanswered_at, probe
    return unanswered_at, Kill(replica.id, f"it failed {failed + 1} probes in a row; the last was never answered")


def _next_reconfigure(spec: GroupSpec, replica: ReplicaRecord) -> Iterator[tuple[float, Action]]:
    live, last = spec.live, replica.reconfiguration
    if live is None or replica.live == live or replica.revision != spec.revision or _cannot_take_up(spec, replica):
        return
    reconfigure = Reconfigure(replica.id, live, spec.startup_timeout_s)
    if last is not None and last.sent is not None:
        # One at a time: also where it is to take up something else by now.
        yield last.sent + spec.startup_timeout_s + ANSWER_S, reconfigure
    elif last is not None and last.live == live:
        yield last.failed_at + RECONFIGURE_AGAIN_S * 2 ** (last.failures - 1), reconfigure
    else:
        yield replica.since, reconfigure


def _cannot_take_up(spec: GroupSpec, replica: ReplicaRecord) -> bool:
    last = replica.reconfiguration
    return last is not None and last.live == spec.live and last.failures >= RECONFIGURE_TRIES


@dataclass(frozen=True, slots=True)
class _Moves:
    """How the group as a whole moves: who leaves now, and how many are to start as soon as restarts allow."""

    leave: list[Action]
    starts: int


def _moves(spec: GroupSpec, record: GroupRecord) -> _Moves:
    live = [r for r in record.replicas if r.phase not in (Phase.DRAINING, Phase.STOPPING)]

    # One that is not ready serves nobody and may always go. One that runs may go only while enough others serve, or
    # where the new cannot come before the old has gone. One that is recovering serves, may be of any revision, and goes
    # nowhere; nor is another one too many because of it, or what starts would have to be started again.
    known = sorted((r for r in live if r.phase is not Phase.RECOVERING), key=_first_to_keep)
    outdated = [replica for replica in reversed(known) if _is_outdated(spec, replica)]
    old = {replica.id for replica in outdated}
    current = [replica for replica in known if replica.id not in old]
    # Nobody leaves for one that may turn out not to be well; who is one too many leaves no gap.
    serving = [r for r in live if r.phase is not Phase.STARTING]
    sound = {r.id for r in serving if r.id in old or (r.proven and not r.failed_probes)}
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

    # Starts are counted against those who stay, so that planning twice changes nothing.
    staying = [replica for replica in live if replica.id not in leaving]
    mine = [replica for replica in staying if replica.phase is Phase.RECOVERING or not _is_outdated(spec, replica)]
    if not spec.apart:
        # Those on their way out use up the surge, but never hold up the replacement of one that died.
        least = spec.target - spec.unavailable
        room = max(spec.target + spec.surge - len(record.replicas), least - len(staying))
    elif any(_is_outdated(spec, replica) for replica in record.replicas):
        room = 0
    else:
        room = spec.target - len(record.replicas)
    if restarts.failed_starts(record.failures, spec.revision):
        # While the last start has failed, one at a time finds out as much as all at once.
        room = min(room, 1 - sum(replica.phase is Phase.STARTING for replica in mine))
    return _Moves(leave, max(0, min(spec.target - len(mine), room)))


def _is_outdated(spec: GroupSpec, replica: ReplicaRecord) -> bool:
    if replica.revision != spec.revision or _cannot_take_up(spec, replica):
        return True
    return spec.spread and replica.location is not None and replica.location.remote_address is None


def _leave(spec: GroupSpec, replica: ReplicaRecord) -> Action:
    if replica.phase is Phase.STARTING:
        return Stop(replica.id, max(spec.graceful_shutdown_timeout_s, STOP_S))
    if not spec.routed:
        return Drain(replica.id, spec.graceful_shutdown_timeout_s)
    if replica.revision != spec.revision:
        return Retire(replica.id, f"revision {spec.revision} takes its place")
    if _cannot_take_up(spec, replica):
        return Retire(replica.id, "one that has taken up the options takes its place")
    if _is_outdated(spec, replica):
        return Retire(replica.id, "callers on other nodes cannot reach it")
    return Retire(replica.id, "it is one too many")


def _first_to_keep(replica: ReplicaRecord) -> tuple[bool, int, float, ReplicaId]:
    """Who runs, then who starts; the sound before the failing, the old before the new."""
    return (
        replica.phase is Phase.STARTING,
        replica.failed_probes,
        replica.since,
        replica.id,
    )


def unwanted(record: GroupRecord) -> GroupSpec:
    """The spec of a group that nobody wants: found after its application was deleted."""
    if are_proxies(record.group):
        proxy = ProxySpec(ReplicaId(""), {}, NodeId(""))
        return GroupSpec(record.group, "", 0, proxy, apart=True, routed=False)
    replica = ReplicaSpec(ReplicaId(""), "", "", "", "", "", "", LiveOptions(0), 0.0)
    return GroupSpec(record.group, "", 0, replica)
