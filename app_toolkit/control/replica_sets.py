"""Keeps the state of every replica set, updates it with events, and plans actions."""

import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from app_toolkit.contract.identity import AnySetKey, replica_set_of
from app_toolkit.control.notifier import Notifier
from app_toolkit.control.reconcile import (
    Action,
    Kill,
    Probe,
    Recycle,
    ReplicaSetSpec,
    Retire,
    Start,
    due,
    forgiven,
    noted,
    plan,
    recovered,
    take,
    with_lost_requests,
)
from app_toolkit.control.replica_set import ReplicaSet, lifted, specified
from app_toolkit.control.replica_state import Event, Exited, Found, Placed, ProbeFailed, ProbePassed, Started
from app_toolkit.observability.event_log import EventLog
from app_toolkit.types import ReplicaId

logger = logging.getLogger("app_toolkit.controller")


class ReplicaSets:
    """Plans for each replica set separately, and only after an event or when an action is due.

    If the handling of a replica set fails, the replica set is quarantined until `lift`. The others are not affected.
    """

    def __init__(self, epoch: int, event_log: EventLog, changes: Notifier) -> None:
        self.by_key: dict[AnySetKey, ReplicaSet] = {}
        """The replica sets by their keys. Only this class changes them."""
        self.actions: deque[Action] = deque()
        """The planned actions that the launcher has not performed yet."""
        self.moved = False
        """Whether a process has started, was found or has exited. The controller resets this to False."""
        self._epoch = epoch
        self._event_log = event_log
        self._changes = changes
        self._touched: set[AnySetKey] = set()
        self._due: dict[AnySetKey, float] = {}
        self._minted = 0

    # Desired state

    def specify(self, desired: Mapping[AnySetKey, ReplicaSetSpec], *, proxies_linger: bool) -> None:
        """Set the desired replica sets. All others are orphaned."""
        before = self.by_key
        self.by_key = specified(before, desired, starts=self._minted, proxies_linger=proxies_linger)
        self._touched.update(key for key, replica_set in self.by_key.items() if replica_set is not before.get(key))

    def scale(self, key: AnySetKey, target: int) -> None:
        """Set the target of a replica set, which must have a spec."""
        replica_set = self.by_key[key]
        assert replica_set.spec is not None
        self._happened(key, replace(replica_set, spec=replace(replica_set.spec, target=target)))
        self._changes.notify()

    def lift(self, key: AnySetKey) -> None:
        """End the quarantine of a replica set, and clear the backoff of its restarts."""
        if key in self.by_key:
            self._happened(key, lifted(self.by_key[key]))

    # Known state

    def find(self, key: AnySetKey, ids: list[ReplicaId], now: float) -> None:
        """Add the replicas of a replica set that were found after a restart."""
        self._happened(key, ReplicaSet(recovered(key, sorted(ids), now)))
        for id in ids:
            self._event_log.append(key.name, "Recovering", replica=id, cause=f"epoch {self._epoch} began")

    def take(self, event: Event, now: float) -> bool:
        """Apply an event. Return False if the replica is not known; it is then killed if it runs."""
        key = replica_set_of(event.replica)
        replica_set = self.by_key.get(key)
        was = None if replica_set is None else replica_set.record.replica(event.replica)
        if replica_set is None or was is None:
            if isinstance(event, (Started, Placed, Found)):
                # The replica was started by an earlier controller, and the record of the start was lost.
                self._order(key, Kill(event.replica, "it is not among the replicas that are known"))
            return False
        try:
            self._happened(key, replace(replica_set, record=take(replica_set.record, event, now)))
        except Exception as error:
            self._quarantine(key, error)
            return True
        self.moved = self.moved or isinstance(event, (Started, Found, Exited))
        if isinstance(event, ProbeFailed):
            logger.warning("%s failed its health check %d: %s", event.replica, was.failed_probes + 1, event.why)
        if isinstance(event, Exited) and event.why is not None:
            logger.warning("%s has ended: %s", event.replica, event.why.strip().rpartition("\n")[2])
        nothing_new = (isinstance(event, ProbePassed) and not was.failed_probes) or was.unplaceable == event
        if not nothing_new:
            self._log_event(key, event)
        return True

    def requests_lost(self, replica: ReplicaId, why: str) -> None:
        """Record which requests ran in a replica when it was lost, also in the error that its end has left."""
        key = replica_set_of(replica)
        if key not in self.by_key:
            return
        self.by_key[key] = replace(self.by_key[key], record=with_lost_requests(self.by_key[key].record, replica, why))
        self._event_log.append(key.name, "RequestsLost", replica=replica, cause=why)
        self._changes.notify()

    def forgive(self, seconds: float) -> None:
        """Move all deadlines forward by the time in which the controller did not run."""
        for key, replica_set in self.by_key.items():
            self._happened(key, replace(replica_set, record=forgiven(replica_set.record, seconds)))

    def touch(self) -> None:
        """Include every replica set in the next plan."""
        self._touched.update(self.by_key)

    @property
    def touched(self) -> frozenset[AnySetKey]:
        """The replica sets that have changed since the last plan."""
        return frozenset(self._touched)

    def drop_gone(self, key: AnySetKey) -> bool:
        """Remove a replica set if it is not desired and has no replicas. Return whether it was removed."""
        if not self.by_key[key].gone:
            return False
        del self.by_key[key]
        self._touched.discard(key)
        self._due.pop(key, None)
        self._changes.notify()
        return True

    # Plans

    @property
    def due(self) -> float | None:
        """When the next action of any replica set is due if no event arrives before; None: never."""
        return min(self._due.values(), default=None)

    def plan(self, now: float) -> list[AnySetKey]:
        """Plan for the replica sets that have changed or are due, and return their keys."""
        keys = [key for key in self.by_key if key in self._touched or self._due.get(key, math.inf) <= now]
        for key in keys:
            self._touched.discard(key)
            self._due.pop(key, None)
            if not self.by_key[key].quarantine:
                self._plan(key, now)
        return keys

    def kill_all(self, why: str) -> None:
        """Kill all replicas that are left, regardless of the desired state."""
        for key, replica_set in self.by_key.items():
            for replica in replica_set.record.replicas:
                self._order(key, Kill(replica.id, why))

    def _plan(self, key: AnySetKey, now: float) -> None:
        replica_set = self.by_key[key]
        try:
            for action in plan(replica_set.spec, replica_set.record, now, self._epoch):
                self.by_key[key] = replica_set = replace(replica_set, record=noted(replica_set.record, action, now))
                self._order(key, action)
            at = due(replica_set.spec, replica_set.record)
        except Exception as error:
            self._quarantine(key, error)
        else:
            if at is not None:
                self._due[key] = at
        self._minted = max(self._minted, replica_set.record.starts)

    def _order(self, key: AnySetKey, action: Action) -> None:
        if not isinstance(action, Probe):
            self._log_event(key, action)
        if not isinstance(action, Retire | Recycle):
            self.actions.append(action)

    def _happened(self, key: AnySetKey, replica_set: ReplicaSet) -> None:
        self.by_key[key] = replica_set
        self._touched.add(key)

    def _quarantine(self, key: AnySetKey, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        self.by_key[key] = replace(self.by_key[key], quarantine=f"{key} is not looked after any more: {message}")
        self._due.pop(key, None)
        self._event_log.append(key.name, "Quarantined", cause=message)
        self._changes.notify()

    def _log_event(self, key: AnySetKey, what: Event | Action) -> None:
        cause = f"template hash {what.template_hash}" if isinstance(what, Start) else getattr(what, "why", None)
        self._event_log.append(key.name, type(what).__name__, replica=what.replica, cause=cause)
        self._changes.notify()
