"""What a replica (or a proxy) is doing, and what may happen to it next.

The table is the whole life of a replica. A pair that is not in it is a bug and raises; a message that is
merely late is a row, with its reason beside it.
"""

from dataclasses import dataclass, replace
from enum import Enum

from app_toolkit.errors import IllegalTransition
from app_toolkit.interfaces import LiveOptions, Location
from app_toolkit.types import ReplicaId


class Phase(Enum):
    STARTING = "starting"
    RECOVERING = "recovering"  # found after a restart of the controller; has not yet said what it is
    RUNNING = "running"
    DRAINING = "draining"  # no new requests; callers are told, then it finishes what it has
    STOPPING = "stopping"  # told to exit
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened to one replica."""

    replica: ReplicaId


# What a launcher tells.


@dataclass(frozen=True, slots=True)
class Unplaceable(Event):
    """The cluster has no room for it now, or (`for_ever`) could not have, even empty.

    Its start-up clock stands. Told again at least every 30 s while that is so: after a minute of silence it
    is started anew.
    """

    asks: str
    free: str
    for_ever: bool = False


@dataclass(frozen=True, slots=True)
class Placed(Event):
    """Its process has begun. Needed only after an `Unplaceable`: the start-up clock begins here."""


@dataclass(frozen=True, slots=True)
class Started(Event):
    """Ready: imported, lifespan up, and one probe through its data loop passed.

    `location` is where a replica serves its callers, or a proxy its clients (`tcp:127.0.0.1:8000`).
    """

    location: Location


@dataclass(frozen=True, slots=True)
class ProbePassed(Event):
    pass


@dataclass(frozen=True, slots=True)
class ProbeFailed(Event):
    why: str
    answered: bool = False
    """It said itself that it is not well; so it still serves."""
    running: tuple[str, ...] | None = None
    """Of one that did not answer: the ids of the requests that run in it; None: not known."""


@dataclass(frozen=True, slots=True)
class Reconfigured(Event):
    """It has taken these options up."""

    live: LiveOptions


@dataclass(frozen=True, slots=True)
class ReconfigureFailed(Event):
    """It has not taken these options up, or in part; `why` is the traceback or sentence."""

    live: LiveOptions
    why: str


@dataclass(frozen=True, slots=True)
class Drained(Event):
    """It has finished what it had; also said when the time that its `Drain` gave is over."""


@dataclass(frozen=True, slots=True)
class Exited(Event):
    """The process is gone, or could not start, or never was.

    `why` is the last traceback or sentence; None where it exited as it was told to. `raised`: the app's own code ended
    its start, by an exception.
    """

    why: str | None = None
    raised: bool = False


@dataclass(frozen=True, slots=True)
class Found(Event):
    """After a restart of the controller: what a replica that was there says it is.

    `phase_name` is `starting`, `running`, `draining` or `stopping`. After `starting` a `Started` follows. `live` is
    what it has taken up, or starts with; None: it is being reconfigured, or failed to take up what it was given.
    """

    group: str
    revision: str
    phase_name: str
    location: Location | None = None
    live: LiveOptions | None = None


# What the controller notes for itself: an action that was performed, and what the board knows.


@dataclass(frozen=True, slots=True)
class StartSent(Event):
    group: str
    revision: str
    live: LiveOptions | None


@dataclass(frozen=True, slots=True)
class RetireBegun(Event):
    failure: str | None = None
    """Where it has to go because it is not well: why that is."""


@dataclass(frozen=True, slots=True)
class Unrouted(Event):
    """Every caller has acknowledged a snapshot without it, or its lease has ended."""


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
    live: LiveOptions


@dataclass(frozen=True, slots=True)
class Reconfiguration:
    """How it goes with the options that a replica was last told to take up."""

    live: LiveOptions
    sent: float | None
    """When the try that is under way began; None: none is."""
    failed_at: float = 0.0
    """When the last try failed."""
    failures: int = 0
    """In a row. A try that was never answered counts when the next one is sent."""
    why: str | None = None
    """The last failure."""


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """What is known of one replica. Times are on the controller's clock, and mean nothing to another."""

    id: ReplicaId
    group: str
    revision: str
    phase: Phase
    since: float
    """When the phase began, or when its deadline began anew."""
    location: Location | None = None
    """Known once it has started."""
    unplaceable: Unplaceable | None = None
    ready_at: float | None = None
    proven: bool = False
    """It was well when it was probed, after it had begun to serve with the options that it has, and for longer than any
    of its revision that died."""
    probed_at: float = 0.0
    """When the last probe was answered; the next one is due a period later."""
    probing_since: float | None = None
    failed_probes: int = 0
    """In a row. A probe that was never answered counts when the next one is sent."""
    last_failure: str | None = None
    answered: bool = False
    """It said itself that it is not well, when it was probed last."""
    running: tuple[str, ...] | None = None
    """The ids of the requests that ran in it when its last probe failed; None: not known."""
    live: LiveOptions | None = None
    """What it starts with or has taken up. None: nobody knows, as long as `reconfiguration` goes on; or a proxy."""
    reconfiguration: Reconfiguration | None = None
    unrouted: bool = False
    drain_sent: float | None = None
    stop_sent: float | None = None
    kill_sent: float | None = None

    @property
    def unresponsive(self) -> bool:
        """Its last probe was not answered."""
        return self.failed_probes > 0 and not self.answered


P = Phase
TRANSITIONS: dict[tuple[Phase, type[Event]], Phase] = {
    (P.STARTING, Unplaceable): P.STARTING,
    (P.STARTING, Placed): P.STARTING,
    (P.STARTING, Started): P.RUNNING,
    (P.STARTING, StopSent): P.STOPPING,  # it serves nobody, so there is nothing to drain
    (P.STARTING, KillSent): P.STOPPING,
    (P.STARTING, Exited): P.STOPPED,
    (P.RECOVERING, Found): P.RECOVERING,  # becomes what it says, see FOUND_AS
    (P.RECOVERING, KillSent): P.STOPPING,
    (P.RECOVERING, Exited): P.STOPPED,
    (P.RUNNING, ProbeSent): P.RUNNING,
    (P.RUNNING, ProbePassed): P.RUNNING,
    (P.RUNNING, ProbeFailed): P.RUNNING,
    (P.RUNNING, ReconfigureSent): P.RUNNING,
    (P.RUNNING, Reconfigured): P.RUNNING,
    (P.RUNNING, ReconfigureFailed): P.RUNNING,
    (P.RUNNING, RetireBegun): P.DRAINING,
    (P.RUNNING, DrainSent): P.DRAINING,  # nobody is routed to a proxy, so its drain waits for nobody
    (P.RUNNING, KillSent): P.STOPPING,
    (P.RUNNING, Exited): P.STOPPED,
    (P.DRAINING, Unrouted): P.DRAINING,
    (P.DRAINING, DrainSent): P.DRAINING,
    (P.DRAINING, Drained): P.STOPPING,
    (P.DRAINING, KillSent): P.STOPPING,
    (P.DRAINING, Exited): P.STOPPED,
    (P.STOPPING, StopSent): P.STOPPING,
    (P.STOPPING, KillSent): P.STOPPING,  # the last one brought no exit
    (P.STOPPING, Exited): P.STOPPED,
    # Late: what was begun before the restart goes on, and may be told before the replica has said what it is.
    (P.RECOVERING, Unplaceable): P.RECOVERING,
    (P.RECOVERING, Placed): P.RECOVERING,
    (P.RECOVERING, Started): P.RECOVERING,
    (P.RECOVERING, Drained): P.RECOVERING,
    # Late: told twice, or overtaken by a later event of the same start.
    (P.STARTING, Found): P.STARTING,
    (P.RUNNING, Unplaceable): P.RUNNING,
    (P.RUNNING, Placed): P.RUNNING,
    (P.RUNNING, Started): P.RUNNING,
    (P.RUNNING, Found): P.RUNNING,
    (P.DRAINING, Unplaceable): P.DRAINING,
    (P.DRAINING, Placed): P.DRAINING,
    (P.DRAINING, Started): P.DRAINING,
    (P.DRAINING, Found): P.DRAINING,
    # Late: a probe or a reconfiguration was under way when its replica was retired.
    (P.DRAINING, ProbePassed): P.DRAINING,
    (P.DRAINING, ProbeFailed): P.DRAINING,
    (P.DRAINING, Reconfigured): P.DRAINING,
    (P.DRAINING, ReconfigureFailed): P.DRAINING,
    # Late: it answered before it heard that it is to exit.
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
                revision=event.revision,
                location=event.location,
                live=event.live,
                ready_at=now if phase is P.RUNNING else None,
                probed_at=now,
                # It drains because it was told to, and that only happens once nobody is routed to it.
                unrouted=phase is P.DRAINING,
            )
        case Started() if before is P.STARTING:
            return replace(record, location=event.location, unplaceable=None, ready_at=now, probed_at=now)
        case Unplaceable() if before is P.STARTING:
            return replace(record, unplaceable=event, since=now)
        case Placed() if before is P.STARTING:
            return replace(record, unplaceable=None, since=now)
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
            proven = record.proven or (record.phase is P.RUNNING and record.reconfiguration is None)
            return replace(record, probing_since=None, probed_at=now, failed_probes=0, last_failure=None, proven=proven)
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
        case ReconfigureSent():
            return replace(
                record, live=None, proven=False, reconfiguration=_begun(record.reconfiguration, event.live, now)
            )
        case Reconfigured() if _is_answered_by(record, event):
            return replace(record, live=event.live, reconfiguration=None)
        case ReconfigureFailed() if _is_answered_by(record, event):
            assert record.reconfiguration is not None
            return replace(record, reconfiguration=_failed(record.reconfiguration, event.why, now))
        case Unrouted():
            return replace(record, unrouted=True)
        case DrainSent():
            return replace(record, drain_sent=now)
        case StopSent():
            return replace(record, stop_sent=now)
        case KillSent():
            return replace(record, kill_sent=now)
    return record


def _begun(last: Reconfiguration | None, live: LiveOptions, now: float) -> Reconfiguration:
    if last is None or last.live != live:
        return Reconfiguration(live, sent=now)
    if last.sent is not None:
        last = _failed(last, "the try before was never answered", now)
    return replace(last, sent=now)


def _failed(tried: Reconfiguration, why: str, now: float) -> Reconfiguration:
    return replace(tried, sent=None, failed_at=now, failures=tried.failures + 1, why=why)


def _is_answered_by(record: ReplicaRecord, event: Reconfigured | ReconfigureFailed) -> bool:
    """Else it is told twice, or of a try that was given up."""
    tried = record.reconfiguration
    return tried is not None and tried.sent is not None and tried.live == event.live
