"""What is known of every replica set: events come in, actions go out."""

import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from app_toolkit.controller.changes import Changes
from app_toolkit.core import replica_sets
from app_toolkit.core.reconcile import (
    Action,
    Kill,
    Probe,
    ReplicaSetSpec,
    Retire,
    Start,
    due,
    forgiven,
    noted,
    plan,
    recovered,
    replica_set_of,
    take,
)
from app_toolkit.core.replica_sets import ReplicaSet
from app_toolkit.core.replica_state import Event, Exited, Found, Placed, ProbeFailed, ProbePassed, Started
from app_toolkit.observability.event_log import EventLog
from app_toolkit.types import ReplicaId

logger = logging.getLogger("app_toolkit.controller")


class ReplicaSets:
    """Looks after each replica set by itself, and only when something happened to it or came due.

    One whose handling fails is quarantined until it is lifted; the others go on.
    """

    def __init__(self, epoch: int, event_log: EventLog, changes: Changes) -> None:
        self.known: dict[str, ReplicaSet] = {}
        """By name. To be looked at; it is changed here alone."""
        self.actions: deque[Action] = deque()
        """Those that were planned, for a launcher to perform."""
        self.moved = False
        """A process has come up or gone, since somebody last set this to False."""
        self._epoch = epoch
        self._event_log = event_log
        self._changes = changes
        self._touched: set[str] = set()
        self._due: dict[str, float] = {}
        self._minted = 0
        self._unmanaged: set[str] = set()

    # What is wanted

    def specify(self, desired: Mapping[str, ReplicaSetSpec], *, proxies_linger: bool) -> None:
        """From now on exactly these replica sets are wanted."""
        before = self.known
        self.known = replica_sets.specified(before, desired, starts=self._minted, proxies_linger=proxies_linger)
        self._touched.update(name for name, replica_set in self.known.items() if replica_set is not before.get(name))

    def scale(self, name: str, target: int) -> None:
        """So many replicas are wanted of a replica set that is."""
        replica_set = self.known[name]
        assert replica_set.spec is not None
        self._happened(name, replace(replica_set, spec=replace(replica_set.spec, target=target)))
        self._changes.notify()

    def set_unmanaged(self, why: Mapping[str, str]) -> None:
        """Exactly these are quarantined because nobody knows what is wanted of them; why that is, by name."""
        for name in self._unmanaged - why.keys():
            self.lift(name)
        for name in why.keys() - self._unmanaged:
            self._happened(name, replace(self.known[name], quarantine=why[name]))
        self._unmanaged = set(why)

    def lift(self, name: str) -> None:
        """End a replica set's quarantine, and whatever holds back its restarts."""
        if name in self.known:
            self._happened(name, replica_sets.lifted(self.known[name]))

    # What is known

    def find(self, name: str, ids: list[ReplicaId], now: float) -> None:
        """After a restart: these are there."""
        self._happened(name, ReplicaSet(recovered(name, sorted(ids), now)))
        for id in ids:
            self._event_log.append(name, "Recovering", replica=id, cause=f"epoch {self._epoch} began")

    def take(self, event: Event, now: float) -> bool:
        """Take note of an event; False: of a replica that nobody knows. It is ended, if it lives."""
        name = replica_set_of(event.replica)
        replica_set = self.known.get(name)
        was = None if replica_set is None else replica_set.record.replica(event.replica)
        if replica_set is None or was is None:
            if isinstance(event, (Started, Placed, Found)):
                # The record of its start was lost with an earlier controller.
                self._order(name, Kill(event.replica, "it is not among the replicas that are known"))
            return False
        try:
            self._happened(name, replace(replica_set, record=take(replica_set.record, event, now)))
        except Exception as error:
            self._quarantine(name, error)
            return True
        self.moved = self.moved or isinstance(event, (Started, Found, Exited))
        if isinstance(event, ProbeFailed):
            logger.warning("%s failed its health check %d: %s", event.replica, was.failed_probes + 1, event.why)
        nothing_new = (isinstance(event, ProbePassed) and not was.failed_probes) or was.unplaceable == event
        if not nothing_new:
            self._tell(name, event)
        return True

    def forgive(self, seconds: float) -> None:
        """Set every clock forward: time in which nobody watched counts for no deadline."""
        for name, replica_set in self.known.items():
            self._happened(name, replace(replica_set, record=forgiven(replica_set.record, seconds)))

    def touch(self) -> None:
        """Look at every replica set again."""
        self._touched.update(self.known)

    @property
    def touched(self) -> frozenset[str]:
        """Those to which something has happened since the last plan."""
        return frozenset(self._touched)

    def drop_gone(self, name: str) -> bool:
        """Forget a replica set that nobody wants and of which nothing is left; whether that is so."""
        if not self.known[name].gone:
            return False
        del self.known[name]
        self._touched.discard(name)
        self._due.pop(name, None)
        self._changes.notify()
        return True

    # What is to be done

    @property
    def due(self) -> float | None:
        """When the next replica set comes due although nothing happens before."""
        return min(self._due.values(), default=None)

    def plan(self, now: float) -> list[str]:
        """Plan for the replica sets that were touched or came due: their names."""
        names = [name for name in self.known if name in self._touched or self._due.get(name, math.inf) <= now]
        for name in names:
            self._touched.discard(name)
            self._due.pop(name, None)
            if not self.known[name].quarantine:
                self._plan(name, now)
        return names

    def kill_all(self, why: str) -> None:
        """Whoever is left, without asking what is wanted."""
        for name, replica_set in self.known.items():
            for replica in replica_set.record.replicas:
                self._order(name, Kill(replica.id, why))

    def _plan(self, name: str, now: float) -> None:
        replica_set = self.known[name]
        try:
            for action in plan(replica_set.spec, replica_set.record, now, self._epoch):
                self.known[name] = replica_set = replace(replica_set, record=noted(replica_set.record, action, now))
                self._order(name, action)
            at = due(replica_set.spec, replica_set.record)
        except Exception as error:
            self._quarantine(name, error)
        else:
            if at is not None:
                self._due[name] = at
        self._minted = max(self._minted, replica_set.record.starts)

    def _order(self, name: str, action: Action) -> None:
        if not isinstance(action, Probe):
            self._tell(name, action)
        if not isinstance(action, Retire):
            self.actions.append(action)

    def _happened(self, name: str, replica_set: ReplicaSet) -> None:
        self.known[name] = replica_set
        self._touched.add(name)

    def _quarantine(self, name: str, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        self.known[name] = replace(self.known[name], quarantine=f"{name} is not looked after any more: {message}")
        self._due.pop(name, None)
        self._event_log.append(name, "Quarantined", cause=message)
        self._changes.notify()

    def _tell(self, name: str, what: Event | Action) -> None:
        cause = f"revision {what.template_hash}" if isinstance(what, Start) else getattr(what, "why", None)
        self._event_log.append(name, type(what).__name__, replica=what.replica, cause=cause)
        self._changes.notify()
