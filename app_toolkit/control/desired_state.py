"""The desired state, and everything that changes it: commands, expired leases, and the nodes that have replicas."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from app_toolkit.clock import Clock
from app_toolkit.config.models import HTTPOptions
from app_toolkit.contract.identity import AnySetKey, LiveRevisionKey, ReplicaSetKey
from app_toolkit.control import application_specs, progress, shutdown, traffic
from app_toolkit.control.admin import START_S, Admin
from app_toolkit.control.application import Application, LiveRevision, active_specs
from app_toolkit.control.change import Change, State
from app_toolkit.control.leases import LEASE_S, Leases
from app_toolkit.control.proxies import Proxies, are_needed
from app_toolkit.control.reconcile import ReplicaSetSpec
from app_toolkit.control.shutdown import ShutdownStep
from app_toolkit.control.state_store import StateStore, StoredState
from app_toolkit.errors import ControlError, CorruptValue, StaleEpoch
from app_toolkit.observability.event_log import EventLog
from app_toolkit.types import NodeId

R = TypeVar("R")

ROUTES_S = 2.0
"""Seconds until every proxy has the new routes. From then on, no request begins to wait for a removed revision."""


@dataclass(frozen=True, slots=True)
class _Specs:
    """The replica sets of one live revision, with the values that they were computed from."""

    live: LiveRevision
    spread: bool
    edge: Mapping[str, Any] | None
    specs: Mapping[AnySetKey, ReplicaSetSpec]


class DesiredState:
    """The applications, the options of the proxies, the leases, and the step of a shutdown.

    * A change is checked and stored in the state store before it takes effect. `changed` is called after each change.
    * Changes are serialized.
    * During a shutdown, `applications` stays for the status. The state store has already deleted them.
    """

    def __init__(
        self,
        state_store: StateStore,
        home: NodeId,
        clock: Clock,
        event_log: EventLog,
        changed: Callable[[], None],
        callers: Callable[[str | ReplicaSetKey], Set[str]],
        *,
        lasting: bool,
    ) -> None:
        self.applications: dict[str, Application] = {}
        """The applications by name."""
        self.proxies = Proxies(home)
        self.admin = Admin()
        self.leases = Leases()
        self.shutdown_step: ShutdownStep | None = None
        """The step of the shutdown; None: there is no shutdown."""
        self._state_store = state_store
        self._is_http_chosen = False
        """Whether the options of the proxies have been chosen, so that only those that a client names change."""
        self._has_served = False
        """Whether there was any application since the instance began, or `listen` was called. From then on it has
        proxies until its shutdown. They answer 404 while there is no application."""
        self._stored_port = 0
        self._stored_admin_port = 0
        self._stored_leases: dict[str, Any] = {}
        self._specs: dict[LiveRevisionKey, _Specs] = {}
        self._followed: dict[AnySetKey, ReplicaSetSpec] = {}
        """The specs of the proxies that `specs` returned last."""
        self._clock = clock
        self._event_log = event_log
        self._changed = changed
        self._callers = callers
        self._lasting = lasting
        self._changing = asyncio.Lock()
        self._unwanted: dict[LiveRevisionKey, float] = {}
        """When the ingresses of each revision that was removed are to be deleted, or the rest of it."""
        self.in_progress: set[LiveRevisionKey] = set()
        """The live revisions whose update is not settled."""

    def begin(self, stored: StoredState, now: float) -> None:
        """Take over the state that the previous controller stored. Every lease begins anew."""
        self.applications = stored.applications
        self._note_progress()
        if stored.http is not None:
            self._move(stored.http)
        self._has_served = bool(stored.port or self.applications)  # a shutdown deletes the port from the state store
        self._is_http_chosen = self._has_served or stored.http is not None
        if self._has_served:
            self.admin.start_by(now if stored.admin_port else now + START_S)
        self.proxies.port = self._stored_port = stored.port
        self.admin.port = self._stored_admin_port = stored.admin_port
        self._stored_leases = stored.leases
        self.leases.read(stored.leases, now)

    def specs(self) -> dict[AnySetKey, ReplicaSetSpec]:
        """Return the specs of the replica sets that are desired now, by key."""
        self._followed = proxies = self._proxies()
        revisions = [live for application in self.applications.values() for live in application.with_replicas]
        self._specs = {live.key: self._specs_of(live) for live in revisions}
        deployments = {key: spec for specs in self._specs.values() for key, spec in specs.specs.items()}
        return shutdown.desired(self.shutdown_step, deployments, proxies if self._has_served else {})

    def _specs_of(self, live: LiveRevision) -> "_Specs":
        """Compute the replica sets of a live revision, or reuse those from before: computing them takes a while."""
        before, spread, edge = self._specs.get(live.key), self.proxies.spread, self.proxies.edge
        if before is not None and before.live is live and before.spread == spread and before.edge == edge:
            return before
        specs = application_specs.replica_set_specs(live.key, live.active, spread=spread, edge=edge)
        return _Specs(live, spread, edge, specs)

    def _proxies(self) -> dict[AnySetKey, ReplicaSetSpec]:
        active = [spec for _, spec in active_specs(self.applications.values())]
        return self.proxies.specs() if are_needed(self.proxies.http.edge, active) else {}

    def state(self) -> State:
        """Return what operations read."""
        holders = {name: owner for owner, names in self.leases.holdings() for name in names}
        http = self.proxies.http if self._is_http_chosen else None
        return State(self.applications, http, holders, self._callers, time.time())

    @property
    def due(self) -> float | None:
        """When the next lease expires, the next node loses its proxies or the admin server starts, if nothing happens
        before; None: never."""
        expiring = [self.leases.due, self.admin.due, *self._unwanted.values()] if self.shutdown_step is None else []
        return min((at for at in (*expiring, self.proxies.due) if at is not None), default=None)

    # Changes

    async def change(self, decide: Callable[[State], Change[R]]) -> Change[R]:
        """Decide on a change by the present state, and perform it. The changes of an instance are serialized.

        A change is stored before it takes effect. If the state store fails, the rest of the change is not performed.
        Raises the errors of `decide`, `ControlError` if a shutdown has begun, and `StaleEpoch` if this controller was
        replaced.
        """
        async with self._changing:
            self._check_open()
            state = self.state()
            return await self._perform(state, decide(state))

    async def change_unless_shut_down(self, decide: Callable[[State], Change[R]]) -> Change[R] | None:
        """Perform a change as `change` does, but return None if a shutdown has begun.

        The changes that the controller makes by itself end by that.
        """
        async with self._changing:
            state = self.state()
            return await self._perform(state, decide(state)) if self.shutdown_step is None else None

    async def _perform(self, state: State, change: Change[R]) -> Change[R]:
        if change.http is not None:
            await self._listen(change.http)
        await self._state_store.put_code(change.code)
        for after in map(state.recorded, change.put):
            if change.owner is not None and after.name not in self.applications:
                # First: without a stored lease, the application would stay forever.
                await self._store_lease(change.owner, after.name)
            await self._state_store.put_application(after)
            self.applications[after.name] = after
            self._note_progress()
        for event in change.events:
            self._event_log.append(event.subject, event.name, cause=event.cause)
        if change.put or change.http is not None:
            self._changed()
        if change.owner is not None:
            for after in change.put:
                await self._store_lease(change.owner, after.name)
        for name in change.deleted:
            await self._delete(name)
        if change.put or change.deleted:
            await self._state_store.delete_code_except_of(
                [spec for application in self.applications.values() for spec in application.specs]
            )
        if change.put or change.deleted or change.http is not None:
            await self._state_store.check_epoch()  # a later controller may have read the store before this change
        return change

    async def _listen(self, http: HTTPOptions) -> None:
        if http != self.proxies.http:
            await self._state_store.put_http(http)
            self._move(http)
        self._is_http_chosen = self._has_served = True
        self.admin.start_by(self._clock.now() + START_S)

    def _move(self, http: HTTPOptions) -> None:
        self.proxies.move(http)
        self.admin.move(http)

    async def _delete(self, name: str) -> None:
        await self._state_store.delete_application(name)
        self.applications.pop(name, None)
        self._note_progress()
        self.leases.discard(name)
        self._event_log.append(name, "Deleted")
        self._changed()

    async def _delete_removed(self) -> None:
        """Delete the revisions that have been removed for so long that no request waits for them any more."""
        now = self._clock.now()
        for key in [key for key, at in self._unwanted.items() if now >= at]:
            change = await self.change_unless_shut_down(partial(progress.retired, key=key))
            if change is not None and change.result is not None:
                self._unwanted[key] = now + change.result + ROUTES_S

    def _note_progress(self) -> None:
        """Note which revisions are in progress, and when each removed one is to be deleted.

        That is when no request waits for it in the queue of a caller.
        """
        revisions = [live for application in self.applications.values() for live in application.with_replicas]
        self.in_progress = {live.key for live in revisions if not live.is_settled}
        removed = [live for application in self.applications.values() for live in application.removed]
        now = self._clock.now()
        self._unwanted = {
            live.key: self._unwanted.get(live.key, now + traffic.longest_wait_s(live) + ROUTES_S) for live in removed
        }

    async def begin_shutdown(self, why: str) -> None:
        """Begin a shutdown, and delete the desired state from the state store. Does nothing if a shutdown has begun.

        If the store cannot be written, for example because the disk is full, the shutdown goes on. If the controller
        restarts meanwhile, the next one then starts the applications again.
        """
        async with self._changing:
            if self.shutdown_step is not None:
                return
            try:
                await self._state_store.delete_all()
            except (StaleEpoch, CorruptValue):
                raise
            except ControlError as error:
                self._event_log.append("", "ShutdownNotStored", cause=str(error))
            self._event_log.append("", "ShutdownBegun", cause=why)
            self.shutdown_step = ShutdownStep.REQUESTS
            self._changed()

    def hold(self, owner: str, ttl_s: float) -> None:
        self._check_open()
        self.leases.hold(owner, ttl_s, self._clock.now())

    # For the controller loop

    async def keep(self) -> None:
        """Delete the applications of expired leases and the removed revisions, store the leases and the ports, and let
        the admin server start if it is due."""
        if self.shutdown_step is None:
            await self._end_leases()
            await self._delete_removed()
        if self.shutdown_step is None:
            await self._put_ports()
            self._start_admin()

    def _start_admin(self) -> None:
        """Let the admin server start if it is due, or an application and a proxy are up."""
        if (
            self.admin.due is not None
            and self.proxies.port
            and any(application.main.is_settled for application in self.applications.values())
        ):
            self.admin.start_by(self._clock.now())
        if self.admin.is_newly_desired(self._clock.now()):
            self._changed()

    def follow(self, occupied: Collection[NodeId], active: Mapping[NodeId, int], now: float) -> None:
        """Choose the nodes that have proxies, and take over the ports that processes have chosen.

        Parameters:
            occupied: The nodes that have replicas.
            active: The number of proxies by node.
            now: The time on the clock of the controller.
        """
        self.proxies.follow(occupied, active, now)
        if self._proxies() != self._followed:
            self._changed()

    def continue_shutdown(self, step: ShutdownStep) -> None:
        """Set the step of the shutdown, if one has begun."""
        if self.shutdown_step is not None and step is not self.shutdown_step:
            self.shutdown_step = step
            self._changed()

    async def _end_leases(self) -> None:
        """Delete the applications of expired leases, and store the leases.

        An expired lease is removed only after its applications are deleted. If the state store fails, the next tick
        continues.
        """
        now = self._clock.now()
        over = self.leases.expired(now)
        for names in over.values():
            await self.change_unless_shut_down(partial(progress.ended, names=names))
        still = self.leases.expired(now)  # an owner may have renewed its lease meanwhile
        over = {owner: names for owner, names in over.items() if owner in still}
        if over and not self._lasting and not self.applications and len(over) == len(self.leases):
            await self.begin_shutdown(f"all leases have expired: {', '.join(sorted(over))}")
        for owner, names in over.items():
            self.leases.remove(owner)
            self._event_log.append("", "LeaseEnded", cause=f"{owner} held {', '.join(names) or 'nothing'}")
        if over:
            self._changed()
        if self.leases.plain() != self._stored_leases:
            async with self._changing:
                if self.shutdown_step is None:
                    await self._put_leases()

    async def _store_lease(self, owner: str, name: str) -> None:
        self.leases.hold(owner, LEASE_S, self._clock.now())
        self.leases.add(owner, name)
        await self._put_leases()

    async def _put_leases(self) -> None:
        plain = self.leases.plain()
        if plain != self._stored_leases:
            await self._state_store.put_leases(plain)
            self._stored_leases = plain

    async def _put_ports(self) -> None:
        """Store the ports, so that the proxies and the admin server of the next controller listen on the same ones."""
        port = self.proxies.port
        if self._has_served and port != self._stored_port:
            await self._state_store.put_port(port)
            self._stored_port = port
        if self.admin.port != self._stored_admin_port:
            port = self.admin.port
            await self._state_store.put_admin_port(port)
            self._stored_admin_port = port

    def _check_open(self) -> None:
        if self.shutdown_step is not None:
            raise ControlError("the instance is shut down")
