"""The life of a replica or a proxy: its phases, the events that change them, and the record of one replica.

The table of transitions is complete. An event that the table does not list for a phase is a bug and raises
`IllegalTransition`. A late event has a row of its own, with a comment that says why it may be late.
"""

from dataclasses import dataclass, replace
from enum import Enum

from app_toolkit.errors import IllegalTransition
from app_toolkit.interfaces import Location, ReloadableOptions
from app_toolkit.types import ReplicaId


class Phase(Enum):
    STARTING = "starting"
    RECOVERING = "recovering"  # found after a restart of the controller; has not reported its state yet
    RUNNING = "running"
    DRAINING = "draining"  # takes no new requests and finishes those it has
    STOPPING = "stopping"  # has been told to exit
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to one replica."""

    replica: ReplicaId


# Events that a launcher reports.


@dataclass(frozen=True, slots=True)
class Unplaceable(Event):
    """The cluster has no room for the replica. `for_ever`: it would not fit even if the cluster were empty.

    The startup timeout does not run meanwhile. The launcher repeats the event at least every 30 s; after a minute
    without one the replica is started anew.
    """

    asks: str
    free: str
    for_ever: bool = False


@dataclass(frozen=True, slots=True)
class Placed(Event):
    """The process has begun. The startup timeout begins. Needed only after an `Unplaceable`."""


@dataclass(frozen=True, slots=True)
class Started(Event):
    """The app is imported, its lifespan has started, and the event loop that serves requests has answered a probe.

    `location` is the address that a replica serves callers at, or a proxy its clients (`tcp:127.0.0.1:8000`).
    """

    location: Location


@dataclass(frozen=True, slots=True)
class ProbePassed(Event):
    pass


@dataclass(frozen=True, slots=True)
class ProbeFailed(Event):
    why: str
    answered: bool = False
    """The replica itself reported that it is unhealthy, so it still serves."""
    running: tuple[str, ...] | None = None
    """If it did not answer: the ids of the requests that run in it; None: not known."""


@dataclass(frozen=True, slots=True)
class Reconfigured(Event):
    """The replica has applied these options."""

    live: ReloadableOptions


@dataclass(frozen=True, slots=True)
class ReconfigureFailed(Event):
    """The replica has not applied these options, or only some of them. `why` is a traceback or a sentence."""

    live: ReloadableOptions
    why: str


@dataclass(frozen=True, slots=True)
class Drained(Event):
    """All its requests have ended, or the timeout of its `Drain` has passed."""


@dataclass(frozen=True, slots=True)
class Exited(Event):
    """The process has ended, could not start, or never existed.

    `why` is the last traceback or a sentence; None: it exited as it was told to. `raised`: an exception of the app
    ended its start.
    """

    why: str | None = None
    raised: bool = False


@dataclass(frozen=True, slots=True)
class Found(Event):
    """The state of a replica that a new controller has found.

    `phase_name` is `starting`, `running`, `draining` or `stopping`. After `starting` a `Started` follows. `live` are
    the reloadable options that it has applied or starts with; None: it is applying some, or could not.
    """

    replica_set: str
    template_hash: str
    phase_name: str
    location: Location | None = None
    live: ReloadableOptions | None = None


# Events of the controller itself: it has sent an action, or callers have acknowledged a snapshot.


@dataclass(frozen=True, slots=True)
class StartSent(Event):
    replica_set: str
    template_hash: str
    live: ReloadableOptions | None


@dataclass(frozen=True, slots=True)
class RetireBegun(Event):
    failure: str | None = None
    """Why it has to be replaced, if it is unhealthy."""


@dataclass(frozen=True, slots=True)
class Unrouted(Event):
    """Every caller has acknowledged a snapshot without the replica, or its lease has expired."""


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
class ProbeSent(Event):
    pass


@dataclass(frozen=True, slots=True)
class ReconfigureSent(Event):
    live: ReloadableOptions


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """The state of the last reconfiguration of a replica."""

    live: ReloadableOptions
    sent: float | None
    """When the attempt in progress began; None: there is none."""
    failed_at: float = 0.0
    """When the last attempt failed."""
    failures: int = 0
    """In a row. An attempt without an answer counts when the next one is sent."""
    why: str | None = None
    """The last failure."""


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """The state of one replica as the controller knows it. Times are on the clock of this controller."""

    id: ReplicaId
    replica_set: str
    template_hash: str
    phase: Phase
    since: float
    """When the phase began, or when its deadline was reset."""
    location: Location | None = None
    """None until it has started."""
    unplaceable: Unplaceable | None = None
    serving_since: float | None = None
    ready: bool = False
    """A probe has passed since it began to serve with its present options, and it has served for longer than any
    replica with the same template hash that died."""
    probed_at: float = 0.0
    """When the last probe was answered. The next one is due one period later."""
    probing_since: float | None = None
    failed_probes: int = 0
    """In a row. A probe without an answer counts when the next one is sent."""
    last_failure: str | None = None
    answered: bool = False
    """The last failed probe was answered: the replica itself reported that it is unhealthy."""
    running: tuple[str, ...] | None = None
    """The ids of the requests that ran in it when its last probe failed; None: not known."""
    live: ReloadableOptions | None = None
    """The reloadable options that it has applied or starts with. None: not known while `reconfiguration` is in
    progress; or it is a proxy."""
    reconfiguration: Reconfiguration | None = None
    unrouted: bool = False
    drain_sent: float | None = None
    stop_sent: float | None = None
    kill_sent: float | None = None

    @property
    def unresponsive(self) -> bool:
        """Whether its last probe was not answered."""
        return self.failed_probes > 0 and not self.answered


P = Phase
TRANSITIONS: dict[tuple[Phase, type[Event]], Phase] = {
    (P.STARTING, Unplaceable): P.STARTING,
    (P.STARTING, Placed): P.STARTING,
    (P.STARTING, Started): P.RUNNING,
    (P.STARTING, StopSent): P.STOPPING,  # it serves no requests, so there is nothing to drain
    (P.STARTING, KillSent): P.STOPPING,
    (P.STARTING, Exited): P.STOPPED,
    (P.RECOVERING, Found): P.RECOVERING,  # takes the phase that it reports, see FOUND_AS
    (P.RECOVERING, KillSent): P.STOPPING,
    (P.RECOVERING, Exited): P.STOPPED,
    (P.RUNNING, ProbeSent): P.RUNNING,
    (P.RUNNING, ProbePassed): P.RUNNING,
    (P.RUNNING, ProbeFailed): P.RUNNING,
    (P.RUNNING, ReconfigureSent): P.RUNNING,
    (P.RUNNING, Reconfigured): P.RUNNING,
    (P.RUNNING, ReconfigureFailed): P.RUNNING,
    (P.RUNNING, RetireBegun): P.DRAINING,
    (P.RUNNING, DrainSent): P.DRAINING,  # callers do not know proxies, so nothing has to be acknowledged
    (P.RUNNING, KillSent): P.STOPPING,
    (P.RUNNING, Exited): P.STOPPED,
    (P.DRAINING, Unrouted): P.DRAINING,
    (P.DRAINING, DrainSent): P.DRAINING,
    (P.DRAINING, Drained): P.STOPPING,
    (P.DRAINING, KillSent): P.STOPPING,
    (P.DRAINING, Exited): P.STOPPED,
    (P.STOPPING, StopSent): P.STOPPING,
    (P.STOPPING, KillSent): P.STOPPING,  # it has not exited after the last one
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
    # Late: it answered before it received the order to exit.
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
    """The record after the event. Raises `IllegalTransition` for a pair that the table does not list."""
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
            return replace(
                record,
                template_hash=event.template_hash,
                location=event.location,
                live=event.live,
                serving_since=now if phase is P.RUNNING else None,
                probed_at=now,
                # It was told to drain, which happens only after every caller has acknowledged that it is gone.
                unrouted=phase is P.DRAINING,
            )
        case Started() if before is P.STARTING:
            return replace(record, location=event.location, unplaceable=None, serving_since=now, probed_at=now)
        case Unplaceable() if before is P.STARTING:
            return replace(record, unplaceable=event, since=now)
        case Placed() if before is P.STARTING:
            return replace(record, unplaceable=None, since=now)
        case ProbeSent() | ProbePassed() | ProbeFailed():
            return _probed(record, event, now)
        case ReconfigureSent() | Reconfigured() | ReconfigureFailed():
            return _reconfigured(record, event, now)
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
                last_failure="the probe before was never answered" if unanswered else record.last_failure,
                answered=record.answered and not unanswered,
                running=None if unanswered else record.running,
            )
        case ProbePassed():
            ready = record.ready or (record.phase is P.RUNNING and record.reconfiguration is None)
            return replace(record, probing_since=None, probed_at=now, failed_probes=0, last_failure=None, ready=ready)
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
            begun = _begun(record.reconfiguration, event.live, now)
            return replace(record, live=None, ready=False, reconfiguration=begun)
        case Reconfigured() if _is_answered_by(record, event):
            return replace(record, live=event.live, reconfiguration=None)
        case ReconfigureFailed() if _is_answered_by(record, event):
            assert record.reconfiguration is not None
            return replace(record, reconfiguration=_failed(record.reconfiguration, event.why, now))
    return record


def _begun(last: Reconfiguration | None, live: ReloadableOptions, now: float) -> Reconfiguration:
    if last is None or last.live != live:
        return Reconfiguration(live, sent=now)
    if last.sent is not None:
        last = _failed(last, "the try before was never answered", now)
    return replace(last, sent=now)


def _failed(tried: Reconfiguration, why: str, now: float) -> Reconfiguration:
    return replace(tried, sent=None, failed_at=now, failures=tried.failures + 1, why=why)


def _is_answered_by(record: ReplicaRecord, event: Reconfigured | ReconfigureFailed) -> bool:
    """Whether this answers the attempt in progress, and is not a repetition or the answer to an earlier attempt."""
    tried = record.reconfiguration
    return tried is not None and tried.sent is not None and tried.live == event.live
