"""The desired state, and everything that changes it: commands, expired leases, and the nodes that have replicas."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app_toolkit.clock import Clock
from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.controller.leases import LEASE_S, Leases
from app_toolkit.controller.proxies import Proxies
from app_toolkit.controller.state_store import HTTP, StateStore, StoredState, application_key, application_of_key
from app_toolkit.core import applications, rollout, shutdown
from app_toolkit.core.applications import application_of
from app_toolkit.core.reconcile import ReplicaSetSpec, are_proxies
from app_toolkit.core.replica_sets import ReplicaSet
from app_toolkit.core.rollout import Rollout
from app_toolkit.core.shutdown import ShutdownStep
from app_toolkit.errors import ConfigError, ControlError, RevisionConflict
from app_toolkit.observability.event_log import EventLog
from app_toolkit.types import NodeId


@dataclass(frozen=True, slots=True)
class _Specs:
    """The replica sets of one application, with the values that they were computed from."""

    rollout: Rollout
    spread: bool
    specs: Mapping[str, ReplicaSetSpec]


class DesiredState:
    """The applications, the options of the proxies, the leases, and the step of a shutdown.

    * A change is checked and stored in the state store before it takes effect. `changed` is called after each change.
    * Changes are serialized.
    * During a shutdown, `rollouts` keeps the applications for the status. The state store has already deleted them.
    * If a value in the state store is corrupt, its desired state is not known. The replica sets that belong to it stay
      as they are until the application or the options of the proxies are applied again.
    """

    def __init__(
        self, written: StateStore, home: NodeId, clock: Clock, event_log: EventLog, changed: Callable[[], None]
    ) -> None:
        self.rollouts: dict[str, Rollout] = {}
        """The rollout of each application, by name."""
        self.proxies = Proxies(home)
        self.leases = Leases()
        self.shutdown_step: ShutdownStep | None = None
        """The step of the shutdown; None: there is no shutdown."""
        self._state_store = written
        self._is_http_chosen = False
        """Whether the options of the proxies have been chosen, so that only those that a client names change."""
        self._has_served = False
        """Whether there was any application since the instance began. From then on it has proxies until its shutdown.
        They answer 404 after the last application was deleted."""
        self._stored_port = 0
        self._stored_leases: dict[str, Any] = {}
        self._specs: dict[str, _Specs] = {}
        self._followed: dict[str, ReplicaSetSpec] = {}
        """The specs of the proxies that `specs` returned last."""
        self._clock = clock
        self._event_log = event_log
        self._changed = changed
        self._changing = asyncio.Lock()
        self.in_progress: set[str] = set()
        """The applications whose rollout is not settled."""
        self._corrupt: dict[str, str] = {}
        """The keys of the state store that cannot be read, each with the reason."""

    def begin(self, stored: StoredState, now: float) -> None:
        """Take over the state that the previous controller stored. Every lease begins anew."""
        self._corrupt = dict(stored.corrupt)
        self.rollouts = stored.rollouts
        self.in_progress = {name for name, each in stored.rollouts.items() if not each.is_settled}
        if stored.http is not None:
            self.proxies.move(stored.http)
        self._has_served = bool(stored.port or self._is_any)  # a shutdown deletes the port from the state store
        self._is_http_chosen = self._has_served or stored.http is not None or bool(self._corrupt)
        self.proxies.port = self._stored_port = stored.port
        self._stored_leases = stored.leases
        self.leases.read(stored.leases, now)

    def specs(self) -> dict[str, ReplicaSetSpec]:
        """Return the specs of the replica sets that are desired now, by name."""
        self._followed = self._proxies()
        self._specs = {name: self._specs_of(each) for name, each in self.rollouts.items()}
        deployments = {name: spec for each in self._specs.values() for name, spec in each.specs.items()}
        return shutdown.desired(self.shutdown_step, deployments, self._followed if self._has_served else {})

    def _proxies(self) -> dict[str, ReplicaSetSpec]:
        return {} if HTTP in self._corrupt else self.proxies.specs()

    @property
    def corrupt(self) -> dict[str, str]:
        """The applications that cannot be read from the state store, each with the reason."""
        return {name: why for key, why in self._corrupt.items() if (name := application_of_key(key)) is not None}

    @property
    def _is_any(self) -> bool:
        """Whether there is any application."""
        return bool(self.rollouts or self.corrupt)

    def unmanaged(self, replica_sets: Iterable[str]) -> dict[str, str]:
        """Return those of these replica sets whose desired state cannot be read, each with the reason."""
        if not self._corrupt:
            return {}
        keys = {name: HTTP if are_proxies(name) else application_key(application_of(name)) for name in replica_sets}
        return {name: self._corrupt[key] for name, key in keys.items() if key in self._corrupt}

    def _specs_of(self, stands: Rollout) -> "_Specs":
        """Compute the replica sets of an application, or reuse those from before: computing them takes a while."""
        before, spread = self._specs.get(stands.name), self.proxies.spread
        if before is not None and before.rollout is stands and before.spread == spread:
            return before
        return _Specs(stands, spread, applications.replica_set_specs(stands.active, spread=spread))

    @property
    def applications(self) -> dict[str, ApplicationSpec]:
        """The current revision of each application, by name."""
        return {name: each.current for name, each in self.rollouts.items()}

    def rollout(self, name: str) -> Rollout:
        """Return the rollout of an application.

        Raises `ConfigError` if there is no such application, or if it cannot be read from the state store.
        """
        if name in self.corrupt:
            raise ConfigError(f"application {name!r} must be deployed again first: {self.corrupt[name]}")
        if name not in self.rollouts:
            raise ConfigError(f"there is no application {name!r}")
        return self.rollouts[name]

    @property
    def due(self) -> float | None:
        """When the next lease expires or the next node loses its proxies, if nothing happens before; None: never."""
        leases = self.leases.due if self.shutdown_step is None else None
        return min((at for at in (leases, self.proxies.due) if at is not None), default=None)

    # Commands. Each raises `StaleEpoch` if this controller was replaced.

    async def apply(
        self,
        spec: ApplicationSpec,
        http: HTTPOptions,
        owner: str | None,
        code: Mapping[str, bytes],
        expected: int | None,
        initial: HTTPOptions | None,
    ) -> int:
        """Apply an application, and return its new revision number."""
        async with self._changing:
            self._check_open()
            last = self.rollouts.get(spec.name)
            revision = 0 if last is None else last.revision
            if expected not in (None, revision):
                # The client repeats a request that was applied before: the controller died before it could answer.
                if last is not None and expected == revision - 1 and last.desired == spec:
                    return revision
                raise RevisionConflict(
                    f"application {spec.name!r} has revision {revision}, and revision {expected} was expected"
                )
            old, anew = self.proxies.http, HTTP in self._corrupt and bool(http.model_fields_set)
            present = old if self._is_http_chosen and not anew else initial or HTTPOptions()
            new = applications.proxy_options(present, http)
            there = rollout.active_revisions(self.rollouts.values())
            was = new if anew else old
            applications.check(spec, new, owner, there, self.corrupt, was, self.leases.holder(spec.name))
            if anew or new != old:
                await self._state_store.put_http(new)
                self.proxies.move(new, stay=anew)
                self._corrupt.pop(HTTP, None)
            self._is_http_chosen = self._has_served = True
            after = rollout.applied(last, spec)
            if owner is not None and last is None and spec.name not in self.corrupt:
                # First: without a stored lease, the application would stay forever.
                await self._store_lease(owner, spec.name)
            await self._state_store.put_application(after, code)
            self._corrupt.pop(application_key(spec.name), None)
            self._store_rollout(after)
            self._event_log.append(spec.name, "Applied", cause=f"revision {after.revision}")
            self._changed()
            if owner is not None:
                await self._store_lease(owner, spec.name)
            await self._delete_code()
            await self._state_store.check_epoch()  # a later controller may have read the store before this change
            return after.revision

    async def delete(self, name: str) -> None:
        async with self._changing:
            self._check_open()
            if name not in self.corrupt:
                self.rollout(name)
            await self._state_store.delete_application(name)
            self.rollouts.pop(name, None)
            self._corrupt.pop(application_key(name), None)
            self.in_progress.discard(name)
            self.leases.discard(name)
            self._event_log.append(name, "Deleted")
            self._changed()
            await self._delete_code()
            await self._state_store.check_epoch()  # a later controller may have read the store before this change

    async def begin_shutdown(self, why: str) -> None:
        """Begin a shutdown, and delete the desired state from the state store. Does nothing if a shutdown has begun."""
        async with self._changing:
            if self.shutdown_step is not None:
                return
            await self._state_store.delete_all()
            self._corrupt.clear()
            self._event_log.append("", "ShutdownBegun", cause=why)
            self.shutdown_step = ShutdownStep.REQUESTS
            self._changed()

    def hold(self, owner: str, ttl_s: float) -> None:
        self._check_open()
        self.leases.hold(owner, ttl_s, self._clock.now())

    # For the controller loop

    async def advance(self, name: str, known: Mapping[str, ReplicaSet]) -> bool:
        """Continue the rollout of an application. Return whether it was rolled back to the stable revision now."""
        before = self.rollouts.get(name)
        after = before and rollout.step(before, known)
        if before is None or after is None or after is before:
            return False
        async with self._changing:
            if self.shutdown_step is not None or self.rollouts.get(name) is not before:
                return False  # another revision was applied meanwhile, or a shutdown has begun
            await self._state_store.put_application(after)
            self._store_rollout(after)
            self._log_progress(before, after)
            self._changed()
            return after.failure != before.failure

    def _store_rollout(self, after: Rollout) -> None:
        self.rollouts[after.name] = after
        if after.is_settled:
            self.in_progress.discard(after.name)
        else:
            self.in_progress.add(after.name)

    def _log_progress(self, before: Rollout, after: Rollout) -> None:
        if after.failure != before.failure:
            self._event_log.append(after.name, "RolledBack", cause=after.failure)
        elif after.published != before.published:
            self._event_log.append(after.name, "RoutesPublished", cause=f"revision {after.revision}")
        if after.is_settled:
            self._event_log.append(after.name, "Available", cause=f"revision {after.revision}")

    async def _delete_code(self) -> None:
        if self.corrupt:
            return  # a corrupt application may use any of the stored code
        await self._state_store.delete_code_except_of(
            [spec for each in self.rollouts.values() for spec in each.revisions]
        )

    async def keep(self) -> None:
        """Delete the applications of expired leases, and store the leases and the port of the proxies."""
        if self._is_http_lost:
            await self._forget_http()
        if self.shutdown_step is None:
            await self._end_leases()
        if self.shutdown_step is None:
            await self._put_port()

    def follow(self, occupied: Collection[NodeId], active: Mapping[NodeId, int], now: float) -> None:
        """Choose the nodes that have proxies.

        Parameters:
            occupied: The nodes that have replicas.
            active: The number of proxies by node.
            now: The time on the clock of the controller.
        """
        self.proxies.follow(occupied, active, now)
        if self._proxies() != self._followed or self._is_http_lost:
            self._changed()

    def continue_shutdown(self, step: ShutdownStep) -> None:
        """Set the step of the shutdown, if one has begun."""
        if self.shutdown_step is not None and step is not self.shutdown_step:
            self.shutdown_step = step
            self._changed()

    @property
    def _is_http_lost(self) -> bool:
        """Whether the options of the proxies cannot be read, and no proxy is left that runs with them."""
        return HTTP in self._corrupt and not self.proxies.any_active

    async def _forget_http(self) -> None:
        async with self._changing:
            if not self._is_http_lost:
                return  # the options were applied again meanwhile
            await self._state_store.delete_http()
            del self._corrupt[HTTP]
            http = self.proxies.http
            cause = f"no running proxy is left; new proxies listen on {http.host}:{http.port}, the default"
            self._event_log.append("", "HTTPForgotten", cause=cause)
            self._changed()

    async def _end_leases(self) -> None:
        """Delete the applications of expired leases, and store the leases.

        An expired lease is removed only after its applications are deleted. If the state store fails, the next tick
        continues.
        """
        now = self._clock.now()
        over = self.leases.expired(now)
        for held in over.values():
            for name in held:
                # The previous controller may have deleted the application and died before it stored the leases.
                if name in self.rollouts or name in self.corrupt:
                    await self.delete(name)
        still = self.leases.expired(now)  # an owner may have renewed its lease meanwhile
        over = {owner: held for owner, held in over.items() if owner in still}
        if over and not self._is_any and len(over) == len(self.leases):
            await self.begin_shutdown(f"all leases have expired: {', '.join(sorted(over))}")
        for owner, held in over.items():
            self.leases.remove(owner)
            self._event_log.append("", "LeaseEnded", cause=f"{owner} held {', '.join(held) or 'nothing'}")
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

    async def _put_port(self) -> None:
        """Store the port, so that the proxies that the next controller starts listen on the same port."""
        port = self.proxies.port
        if self._has_served and port != self._stored_port:
            await self._state_store.put_port(port)
            self._stored_port = port

    def _check_open(self) -> None:
        if self.shutdown_step is not None:
            raise ControlError("the instance is shut down")
