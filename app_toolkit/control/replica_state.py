"""The state machine of a replica or a proxy: its phases, the events that change them, and the record of one replica.

The table of transitions is complete. An event that the table does not list for a phase is a bug and raises
`IllegalTransition`. The table lists late events in separate rows, with comments that explain why they may be late.
"""

from dataclasses import dataclass, field, replace
from enum import Enum

from app_toolkit.contract.identity import AnySetKey
from app_toolkit.errors import IllegalTransition
from app_toolkit.interfaces import Location, ReloadableOptions
from app_toolkit.types import RecyclingLimit, ReplicaId


class Phase(Enum):
    STARTING = "starting"
    RECOVERING = "recovering"  # found after a restart of the controller; has not reported its state yet
    RUNNING = "running"
    DRAINING = "draining"  # accepts no new requests and finishes the ongoing ones
    STOPPING = "stopping"  # has been ordered to exit
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Event:
    """An event that concerns one replica."""

    replica: ReplicaId


# Events that a launcher reports.


@dataclass(frozen=True, slots=True)
class Unplaceable(Event):
    """The cluster has no room for the replica. `for_ever`: it would not fit even if the cluster were empty.

    The startup timeout does not run meanwhile. The launcher repeats the event at least every 30 s. After a minute
    without this event, the replica is killed and another one starts.
    """

    asks: str
    free: str
    for_ever: bool = False


@dataclass(frozen=True, slots=True)
class Placed(Event):
    """The process has started. The startup timeout begins. Needed only after an `Unplaceable`."""


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The app is imported, its lifespan has started, and the event loop that serves requests has answered a probe.

    `location` has the address at which a replica serves callers, or a proxy serves clients (`tcp:127.0.0.1:8000`).
    """

    location: Location


@dataclass(frozen=True, slots=True)
class ProbePassed(Event):
    connections: int = 0
    """The ongoing requests, open streams and open WebSockets of a replica; 0 for a proxy."""
    requests: int = 0
    """The requests, calls and WebSockets that a replica has received since its start; 0 for a proxy."""
    memory: int = 0
    """The resident memory of a replica in bytes; 0 for a proxy."""


@dataclass(frozen=True, slots=True)
class ProbeFailed(Event):
    why: str
    answered: bool = False
    """Whether the replica answered and reported itself that it is unhealthy. It then still serves requests."""
    running: tuple[str, ...] | None = None
    """If the replica did not answer: the ids of the requests that run in it; None: not known."""


@dataclass(frozen=True, slots=True)
class Reconfigured(Event):
    """The replica has applied these options."""

    reloadable: ReloadableOptions


@dataclass(frozen=True, slots=True)
class ReconfigureFailed(Event):
    """The replica has not applied these options, or only some of them. `why` is a traceback or a sentence."""

    reloadable: ReloadableOptions
    why: str


@dataclass(frozen=True, slots=True)
class Drained(Event):
    """All requests of the replica have ended, or the timeout of its `Drain` has passed."""


@dataclass(frozen=True, slots=True)
class Exited(Event):
    """The process has ended, could not start, or never existed.

    `why` is the last traceback or a sentence; None: it exited as ordered. `raised`: an exception of the app, or of its
    options or its environment, ended the start.
    """

    why: str | None = None
    raised: bool = False


@dataclass(frozen=True, slots=True)
class Found(Event):
    """The state of a replica that a new controller has found.

    `phase_name` is `starting`, `running`, `draining` or `stopping`. After `starting`, a `Started` follows.
    `reloadable`: what the replica has applied or starts with; None: it is applying options, or failed to.
    """

    replica_set: AnySetKey
    template_hash: str
    phase_name: str
    location: Location | None = None
    reloadable: ReloadableOptions | None = None
    running_s: float = field(default=0.0, compare=False)
    """Seconds since the process began to serve; 0: it has not, or not known."""


# Events of the controller itself: the controller has sent an action, or callers have acknowledged a snapshot.


@dataclass(frozen=True, slots=True)
class StartSent(Event):
    replica_set: AnySetKey
    template_hash: str
    reloadable: ReloadableOptions | None


@dataclass(frozen=True, slots=True)
class RetireBegun(Event):
    failure: str | None = None
    """Why the replica is replaced, if it is unhealthy; None: it is retired for another reason."""


@dataclass(frozen=True, slots=True)
class Unrouted(Event):
    """Every caller has acknowledged a snapshot without the replica, or the lease of the caller has expired."""


@dataclass(frozen=True, slots=True)
class DrainSent(Event):
    pass


@dataclass(frozen=True, slots=True)
class StopSent(Event):
    pass


@dataclass(frozen=True, slots=True)
class KillSent(Event):
    why: str


@dataclass(frozen=True, slots=True)
class RecycleBegun(Event):
    limit: RecyclingLimit
    why: str


@dataclass(frozen=True, slots=True)
class ProbeSent(Event):
    pass


@dataclass(frozen=True, slots=True)
class ReconfigureSent(Event):
    reloadable: ReloadableOptions


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """The state of the last reconfiguration of a replica."""

    reloadable: ReloadableOptions
    sent: float | None
    """When the attempt in progress began; None: there is none."""
    failed_at: float = 0.0
    """When the last attempt failed."""
    failures: int = 0
    """The number of consecutive failures. An attempt without an answer counts when the next attempt is sent."""
    why: str | None = None
    """The reason of the last failure; None: there was none."""


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """The state of one replica as the controller knows it. Times are on the clock of this controller."""

    id: ReplicaId
    replica_set: AnySetKey
    template_hash: str
    phase: Phase
    since: float
    """When the phase began, or when its deadline was reset."""
    location: Location | None = None
    """Where the replica serves; None until it has started."""
    unplaceable: Unplaceable | None = None
    serving_since: float | None = None
    ready: bool = False
    """Whether a probe has passed since the replica began to serve with its present options, and the replica has served
    for longer than any replica with the same template hash that died."""
    probed_at: float | None = None
    """When the last probe was answered, or the running process was found. The next probe is due one period later.
    None: neither has happened, so the first probe is due when the replica has started."""
    probing_since: float | None = None
    """When the probe in progress was sent; None: there is none."""
    connections: int = 0
    """The connections that the last passed probe reported."""
    requests: int = 0
    """The received requests that the last passed probe reported."""
    memory: int = 0
    """The bytes of memory that the last passed probe reported."""
    recycled: str | None = None
    """Why a new replica takes its place although it works; None: none does."""
    failed_probes: int = 0
    """The number of consecutive failures. A probe without an answer counts when the next probe is sent."""
    last_failure: str | None = None
    answered: bool = False
    """Whether the last failed probe was answered: the replica itself reported that it is unhealthy."""
    running: tuple[str, ...] | None = None
    """The ids of the requests that ran in the replica when its last probe failed; None: not known."""
    reloadable: ReloadableOptions | None = None
    """The reloadable options that the replica has applied or starts with; None: they are not known because a
    reconfiguration is in progress or has failed, or this is a proxy."""
    reconfiguration: Reconfiguration | None = None
    lost_requests: str | None = None
    """A sentence about the requests that were lost with the replica, if it came before the end of the process."""
    unrouted: bool = False
    drain_sent: float | None = None
    stop_sent: float | None = None
    kill_sent: float | None = None

    @property
    def unresponsive(self) -> bool:
        """Whether the replica did not answer its last probe."""
        return self.failed_probes > 0 and not self.answered


P = Phase
TRANSITIONS: dict[tuple[Phase, type[Event]], Phase] = {
    (P.STARTING, Unplaceable): P.STARTING,
    (P.STARTING, Placed): P.STARTING,
    (P.STARTING, Started): P.RUNNING,
    (P.STARTING, StopSent): P.STOPPING,  # the replica serves no requests, so there is nothing to drain
    (P.STARTING, KillSent): P.STOPPING,
    (P.STARTING, Exited): P.STOPPED,
    (P.RECOVERING, Found): P.RECOVERING,  # then the phase that the event reports, see FOUND_AS
    (P.RECOVERING, KillSent): P.STOPPING,
    (P.RECOVERING, Exited): P.STOPPED,
    (P.RUNNING, ProbeSent): P.RUNNING,
    (P.RUNNING, ProbePassed): P.RUNNING,
    (P.RUNNING, ProbeFailed): P.RUNNING,
    (P.RUNNING, ReconfigureSent): P.RUNNING,
    (P.RUNNING, Reconfigured): P.RUNNING,
    (P.RUNNING, ReconfigureFailed): P.RUNNING,
    (P.RUNNING, RecycleBegun): P.RUNNING,
    (P.RUNNING, RetireBegun): P.DRAINING,
    (P.RUNNING, DrainSent): P.DRAINING,  # only proxies: they are not published to callers, so no acknowledgement is due
    (P.RUNNING, KillSent): P.STOPPING,
    (P.RUNNING, Exited): P.STOPPED,
    (P.DRAINING, Unrouted): P.DRAINING,
    (P.DRAINING, DrainSent): P.DRAINING,
    (P.DRAINING, Drained): P.STOPPING,
    (P.DRAINING, KillSent): P.STOPPING,
    (P.DRAINING, Exited): P.STOPPED,
    (P.STOPPING, StopSent): P.STOPPING,
    (P.STOPPING, KillSent): P.STOPPING,  # the process has not exited after a stop or an earlier kill
    (P.STOPPING, Exited): P.STOPPED,
    # Late: a start or a drain from before the restart may end before the replica has reported its state.
    (P.RECOVERING, Unplaceable): P.RECOVERING,
    (P.RECOVERING, Placed): P.RECOVERING,
    (P.RECOVERING, Started): P.RECOVERING,
    (P.RECOVERING, Drained): P.RECOVERING,
    # Late: reported twice, or overtaken by a later event of the same start.
    (P.STARTING, Found): P.STARTING,
    (P.RUNNING, Unplaceable): P.RUNNING,
    (P.RUNNING, Placed): P.RUNNING,
    (P.RUNNING, Started): P.RUNNING,
    (P.RUNNING, Found): P.RUNNING,
    (P.DRAINING, Unplaceable): P.DRAINING,
    (P.DRAINING, Placed): P.DRAINING,
    (P.DRAINING, Started): P.DRAINING,
    (P.DRAINING, Found): P.DRAINING,
    # Late: a probe or a reconfiguration was in progress when the replica was retired.
    (P.DRAINING, ProbePassed): P.DRAINING,
    (P.DRAINING, ProbeFailed): P.DRAINING,
    (P.DRAINING, Reconfigured): P.DRAINING,
    (P.DRAINING, ReconfigureFailed): P.DRAINING,
    # Late: the replica answered before it received the order to exit.
    (P.STOPPING, Unplaceable): P.STOPPING,
    (P.STOPPING, Placed): P.STOPPING,
    (P.STOPPING, Started): P.STOPPING,
    (P.STOPPING, Found): P.STOPPING,
    (P.STOPPING, ProbePassed): P.STOPPING,
    (P.STOPPING, ProbeFailed): P.STOPPING,
    (P.STOPPING, Reconfigured): P.STOPPING,
    (P.STOPPING, ReconfigureFailed): P.STOPPING,
    (P.STOPPING, Unrouted): P.STOPPING,
    (P.STOPPING, Drained): P.STOPPING,
}

FOUND_AS = {phase.value: phase for phase in (P.STARTING, P.RUNNING, P.DRAINING, P.STOPPING)}


def apply(record: ReplicaRecord, event: Event, now: float) -> ReplicaRecord:
    """Return the record after the event. Raises `IllegalTransition` if the table does not list the event."""
    phase = TRANSITIONS.get((record.phase, type(event)))
    if phase is P.RECOVERING and isinstance(event, Found):
        phase = FOUND_AS.get(event.phase_name)
    if phase is None:
        raise IllegalTransition(f"{record.id} is {record.phase.value} and cannot take {event!r}")
    before = record.phase
    if phase is not before:
        record = replace(record, phase=phase, since=now)
    match event:
        case Found() if before is P.RECOVERING:
            # The deadlines begin anew. A running replica has none, so its phase began when its process began to serve.
            since = now - event.running_s if phase is P.RUNNING else record.since
            return replace(
                record,
                since=since,
                template_hash=event.template_hash,
                location=event.location,
                reloadable=event.reloadable,
                serving_since=since if phase is P.RUNNING else None,
                probed_at=now,
                # The replica was ordered to drain only after its removal was acknowledged, or after `UNROUTE_S`.
                unrouted=phase is P.DRAINING,
            )
        case Started() if before is P.STARTING:
            return replace(record, location=event.location, unplaceable=None, serving_since=now)
        case Unplaceable() if before is P.STARTING:
            return replace(record, unplaceable=event, since=now)
        case Placed() if before is P.STARTING:
            return replace(record, unplaceable=None, since=now)
        case ProbeSent() | ProbePassed() | ProbeFailed():
            return _probed(record, event, now)
        case ReconfigureSent() | Reconfigured() | ReconfigureFailed():
            return _reconfigured(record, event, now)
        case RecycleBegun():
            return replace(record, recycled=event.why)
        case Unrouted():
            return replace(record, unrouted=True)
        case DrainSent():
            return replace(record, drain_sent=now)
        case StopSent():
            return replace(record, stop_sent=now)
        case KillSent():
            return replace(record, kill_sent=now)
    return record


def _probed(record: ReplicaRecord, event: ProbeSent | ProbePassed | ProbeFailed, now: float) -> ReplicaRecord:
    match event:
        case ProbeSent():
            unanswered = record.probing_since is not None
            return replace(
                record,
                probing_since=now,
                failed_probes=record.failed_probes + unanswered,
                last_failure="the previous probe was never answered" if unanswered else record.last_failure,
                answered=record.answered and not unanswered,
                running=None if unanswered else record.running,
            )
        case ProbePassed():
            ready = record.ready or (record.phase is P.RUNNING and record.reconfiguration is None)
            return replace(
                record,
                probing_since=None,
                probed_at=now,
                connections=event.connections,
                requests=event.requests,
                memory=event.memory,
                failed_probes=0,
                last_failure=None,
                ready=ready,
            )
        case ProbeFailed():
            return replace(
                record,
                probing_since=None,
                probed_at=now,
                failed_probes=record.failed_probes + 1,
                last_failure=event.why,
                answered=event.answered,
                running=event.running,
            )


def _reconfigured(
    record: ReplicaRecord, event: ReconfigureSent | Reconfigured | ReconfigureFailed, now: float
) -> ReplicaRecord:
    match event:
        case ReconfigureSent():
            begun = _begun(record.reconfiguration, event.reloadable, now)
            return replace(record, reloadable=None, ready=False, reconfiguration=begun)
        case Reconfigured() if _is_answered_by(record, event):
            return replace(record, reloadable=event.reloadable, reconfiguration=None)
        case ReconfigureFailed() if _is_answered_by(record, event):
            assert record.reconfiguration is not None
            return replace(record, reconfiguration=_failed(record.reconfiguration, event.why, now))
    return record


def _begun(last: Reconfiguration | None, reloadable: ReloadableOptions, now: float) -> Reconfiguration:
    if last is None or last.reloadable != reloadable:
        return Reconfiguration(reloadable, sent=now)
    if last.sent is not None:
        last = _failed(last, "the previous attempt was never answered", now)
    return replace(last, sent=now)


def _failed(tried: Reconfiguration, why: str, now: float) -> Reconfiguration:
    return replace(tried, sent=None, failed_at=now, failures=tried.failures + 1, why=why)


def _is_answered_by(record: ReplicaRecord, event: Reconfigured | ReconfigureFailed) -> bool:
    """Return whether the event answers the attempt in progress, and neither repeats an event nor answers an earlier
    attempt."""
    tried = record.reconfiguration
    return tried is not None and tried.sent is not None and tried.reloadable == event.reloadable
